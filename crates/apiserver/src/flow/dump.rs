//! `/debug/api_priority_and_fairness/`: levels, queues and requests as tables, for people (upstream `apf_controller_debug.go`).

use super::FlowControl;
use super::known::GovernedRequest;
use crate::answer::bytes;
use crate::body::Body;
use crate::info::RequestInfo;
use crate::path::Query;
use http::{Response, Uri};
use jiff::Timestamp;
use tokio::time::Instant;

const PREFIX: &str = "/debug/api_priority_and_fairness/";
const LEVELS: [&str; 10] = [
    "PriorityLevelName",
    "ActiveQueues",
    "IsIdle",
    "IsQuiescing",
    "WaitingRequests",
    "ExecutingRequests",
    "DispatchedRequests",
    "RejectedRequests",
    "TimedoutRequests",
    "CancelledRequests",
];
const QUEUES: [&str; 9] = [
    "PriorityLevelName",
    "Index",
    "PendingRequests",
    "ExecutingRequests",
    "SeatsInUse",
    "NextDispatchR",
    "InitialSeatsSum",
    "MaxSeatsSum",
    "TotalWorkSum",
];

const REQUESTS: [&str; 10] = [
    "PriorityLevelName",
    "FlowSchemaName",
    "QueueIndex",
    "RequestIndexInQueue",
    "FlowDistingsher",
    "ArriveTime",
    "InitialSeats",
    "FinalSeats",
    "AdditionalLatency",
    "StartTime",
];
const DETAILS: [&str; 8] =
    ["UserName", "Verb", "APIPath", "Namespace", "Name", "APIVersion", "Resource", "SubResource"];

/// Of a request that has not begun: Go's time of nothing.
const NEVER: &str = "0001-01-01T00:00:00Z";

type Table = Vec<Vec<String>>;

impl FlowControl {
    /// What is known of the way of requests; none: the path is another's, or nobody governs requests.
    pub(crate) fn dump(&self, uri: &Uri, now: Timestamp) -> Option<Response<Body>> {
        let rows = match uri.path().strip_prefix(PREFIX)? {
            "dump_requests" => {
                self.requests(!Query::parse(uri.query()).get("includeRequestDetails").is_empty(), now)?
            }
            "dump_priority_levels" => self.levels()?,
            "dump_queues" => self.queues()?,
            _ => return None,
        };
        Some(bytes(200, "text/plain; charset=utf-8", aligned(&rows)))
    }

    fn levels(&self) -> Option<Table> {
        let governed = self.governed.as_ref()?.read().clone();
        let mut out = vec![LEVELS.map(str::to_owned).to_vec()];
        for l in governed.config.levels() {
            let d = l.snapshot();
            let idle = d.waiting == 0 && d.executing == 0;
            let counts = [d.waiting as u64, d.executing, d.dispatched, d.rejected, d.timed_out, d.cancelled];
            let mut row = vec![l.name.clone(), d.active_queues.to_string(), idle.to_string(), false.to_string()];
            row.extend(counts.map(|n| n.to_string()));
            out.push(row);
        }
        Some(out)
    }

    /// Level by level: those who wait, queue by queue, then those who are being answered.
    fn requests(&self, detailed: bool, now: Timestamp) -> Option<Table> {
        let governed = self.governed.as_ref()?.read().clone();
        let names = REQUESTS.iter().chain(DETAILS.iter().take(if detailed { DETAILS.len() } else { 0 }));
        let mut out: Table = vec![names.map(|n| (*n).to_owned()).collect()];
        for level in governed.config.levels() {
            let tags = level.tags();
            let known = self.known.all();
            let here = |asked: &GovernedRequest| asked.schema().level.name == level.name;
            let mut say = |asked: &GovernedRequest, queue: Option<usize>, place: Option<usize>| {
                let index = |i: Option<usize>| i.map_or("-1".to_owned(), |i| i.to_string());
                let began = asked.begun.map_or(NEVER.to_owned(), |(at, _)| wall(at, now));
                let (level, schema) = (level.name.clone(), asked.schema().name.clone());
                let (seats, arrived) = (asked.seats.to_string(), wall(asked.arrived, now));
                let flow = asked.distinguisher.clone();
                let mut row = vec![level, schema, index(queue), index(place), flow, arrived, seats];
                row.extend(["0".to_owned(), "0s".to_owned(), began]);
                row.extend(detailed.then(|| details(asked)).into_iter().flatten());
                out.push(row);
            };
            let mut last = (usize::MAX, 0);
            for (queue, tag) in tags {
                last = if last.0 == queue { (queue, last.1 + 1) } else { (queue, 0) };
                if let Some(asked) = known.get(tag).filter(|a| a.begun.is_none() && here(a)) {
                    say(asked, Some(queue), Some(last.1));
                }
            }
            for (asked, queue) in known.iter().filter_map(|(_, a)| a.begun.map(|(_, q)| (a, q))).filter(|a| here(a.0)) {
                say(asked, queue, None);
            }
        }
        Some(out)
    }

    fn queues(&self) -> Option<Table> {
        let governed = self.governed.as_ref()?.read().clone();
        let mut out = vec![QUEUES.map(str::to_owned).to_vec()];
        for l in governed.config.levels() {
            for (i, q) in l.snapshot().queues.into_iter().enumerate() {
                let work = |seconds: f64| format!("{seconds:.8}ss");
                let (waiting, executing) = (q.waiting.to_string(), q.executing.to_string());
                let (wanted, next) = (q.seats_waiting.to_string(), work(q.next_start));
                let name = l.name.clone();
                let row =
                    [name, i.to_string(), waiting, executing, q.seats_in_use.to_string(), next, wanted.clone(), wanted];
                out.push(row.into_iter().chain([work(q.work)]).collect());
            }
        }
        Some(out)
    }
}

/// The wall clock's time of a moment, as Go's `RFC3339Nano` has it.
fn wall(moment: Instant, now: Timestamp) -> String {
    let past = i64::try_from(moment.elapsed().as_nanos()).unwrap_or(i64::MAX);
    now.checked_sub(jiff::SignedDuration::from_nanos(past)).unwrap_or(now).to_string()
}

/// What a request says of itself: who, and its first line.
fn details(asked: &GovernedRequest) -> [String; 8] {
    let info = RequestInfo::of_line(&asked.method, &asked.uri);
    let t = info.target;
    let version = t.group_version.as_ref().map(ToString::to_string).unwrap_or_default();
    let (user, path) = (asked.user.clone(), asked.uri.path().to_owned());
    [user, info.verb.to_owned(), path, t.namespace, t.name, version, t.resource, t.subresource]
}

/// Columns as Go's `tabwriter` sets them: at least eight wide, a blank between.
fn aligned(rows: &Table) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |i: usize| rows.iter().map(|r| r[i].len() + 2).max().unwrap_or(0).max(8);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in rows {
        for (i, cell) in row.iter().enumerate() {
            if i + 1 == columns {
                out.push_str(cell);
            } else {
                let cell = format!("{cell},");
                out.push_str(&format!("{cell:<width$}", width = widths[i]));
            }
        }
        out.push('\n');
    }
    out
}
