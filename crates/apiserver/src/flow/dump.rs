//! `/debug/api_priority_and_fairness/`: levels and queues as tables, for people (upstream `apf_controller_debug.go`).
//!
//! Left out: `dump_requests`. Requests are not kept in lists while they are answered.

use super::FlowControl;
use crate::answer::bytes;
use crate::body::Body;
use http::Response;

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

type Table = Vec<Vec<String>>;

impl FlowControl {
    /// What is known of the way of requests; none: the path is another's, or nobody governs requests.
    pub(crate) fn dump(&self, path: &str) -> Option<Response<Body>> {
        let rows = match path.strip_prefix(PREFIX)? {
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
            let d = l.digest();
            let active = d.queues.iter().filter(|q| q.waiting > 0).count();
            let idle = d.waiting == 0 && d.executing == 0;
            let counts = [d.waiting as u64, d.executing, d.dispatched, d.rejected, d.timed_out, d.cancelled];
            let mut row = vec![l.name.clone(), active.to_string(), idle.to_string(), false.to_string()];
            row.extend(counts.map(|n| n.to_string()));
            out.push(row);
        }
        Some(out)
    }

    fn queues(&self) -> Option<Table> {
        let governed = self.governed.as_ref()?.read().clone();
        let mut out = vec![QUEUES.map(str::to_owned).to_vec()];
        for l in governed.config.levels() {
            for (i, q) in l.digest().queues.into_iter().enumerate() {
                let work = |seconds: f64| format!("{seconds:.8}ss");
                let (waiting, executing) = (q.waiting.to_string(), q.executing.to_string());
                let (wanted, next) = (q.wanted.to_string(), work(q.next));
                let name = l.name.clone();
                let row = [name, i.to_string(), waiting, executing, q.taken.to_string(), next, wanted.clone(), wanted];
                out.push(row.into_iter().chain([work(q.work)]).collect());
            }
        }
        Some(out)
    }
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
