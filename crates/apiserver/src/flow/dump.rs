//! `/debug/api_priority_and_fairness/`: levels, queues and requests as tables (upstream `apf_controller_debug.go`).

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

/// Go's zero time, for a request that has not started.
const NEVER: &str = "0001-01-01T00:00:00Z";

type Table = Vec<Vec<String>>;

impl FlowControl {
    /// Serves a dump; none if the path is another one, or priority and fairness is disabled.
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

    /// The requests of each level: waiting ones by queue, then executing ones.
    fn requests(&self, detailed: bool, now: Timestamp) -> Option<Table> {
        let governed = self.governed.as_ref()?.read().clone();
        let names = REQUESTS.iter().chain(DETAILS.iter().take(if detailed { DETAILS.len() } else { 0 }));
        let mut out: Table = vec![names.map(|n| (*n).to_owned()).collect()];
        for level in governed.config.levels() {
            let tags = level.tags();
            let known = self.known.all();
            let here = |request: &GovernedRequest| request.schema().level.name == level.name;
            let mut add = |request: &GovernedRequest, queue: Option<usize>, position: Option<usize>| {
                let index = |i: Option<usize>| i.map_or("-1".to_owned(), |i| i.to_string());
                let began = request.begun.map_or(NEVER.to_owned(), |(at, _)| wall(at, now));
                let (level, schema) = (level.name.clone(), request.schema().name.clone());
                let (seats, arrived) = (request.seats.to_string(), wall(request.arrived, now));
                let flow = request.distinguisher.clone();
                let mut row = vec![level, schema, index(queue), index(position), flow, arrived, seats];
                row.extend(["0".to_owned(), "0s".to_owned(), began]);
                row.extend(detailed.then(|| details(request)).into_iter().flatten());
                out.push(row);
            };
            let mut last = (usize::MAX, 0);
            for (queue, tag) in tags {
                last = if last.0 == queue { (queue, last.1 + 1) } else { (queue, 0) };
                if let Some(request) = known.get(tag).filter(|a| a.begun.is_none() && here(a)) {
                    add(request, Some(queue), Some(last.1));
                }
            }
            for (request, queue) in known.iter().filter_map(|(_, a)| a.begun.map(|(_, q)| (a, q))).filter(|a| here(a.0))
            {
                add(request, queue, None);
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
                let (seats_waiting, next) = (q.seats_waiting.to_string(), work(q.next_start));
                let name = l.name.clone();
                let row = [
                    name,
                    i.to_string(),
                    waiting,
                    executing,
                    q.seats_in_use.to_string(),
                    next,
                    seats_waiting.clone(),
                    seats_waiting,
                ];
                out.push(row.into_iter().chain([work(q.work)]).collect());
            }
        }
        Some(out)
    }
}

/// The wall clock time of an instant, formatted as Go's `RFC3339Nano`.
fn wall(moment: Instant, now: Timestamp) -> String {
    let past = i64::try_from(moment.elapsed().as_nanos()).unwrap_or(i64::MAX);
    now.checked_sub(jiff::SignedDuration::from_nanos(past)).unwrap_or(now).to_string()
}

/// The user and request line.
fn details(request: &GovernedRequest) -> [String; 8] {
    let info = RequestInfo::of_line(&request.method, &request.uri);
    let t = info.target;
    let version = t.group_version.as_ref().map(ToString::to_string).unwrap_or_default();
    let (user, path) = (request.user.clone(), request.uri.path().to_owned());
    [user, info.verb.to_owned(), path, t.namespace, t.name, version, t.resource, t.subresource]
}

/// Aligns columns as Go's `tabwriter`: at least eight wide, separated by a space.
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
