//! CPU and memory that nodes and pods use, from the metrics of their kubelets (metrics-server's `pkg/scraper` and `pkg/storage`).
//!
//! [`parse`] reads what a kubelet reports, [`Usage`] keeps the last two points of each node and container and computes rates from them.
//! Invariant: a node reports on its own pods; those of other nodes are never looked up among them. Left out: I/O, and which nodes and
//! pods exist.

#![warn(missing_docs)]

mod report;

pub use report::parse;

use jiff::{SignedDuration, Timestamp};
use parking_lot::RwLock;
use std::collections::{BTreeMap, HashMap};

/// The time between two points.
pub const RESOLUTION: SignedDuration = SignedDuration::from_secs(15);
/// A container that is younger than [`RESOLUTION`], but at least this old, has its rate since its start.
const FRESH: SignedDuration = SignedDuration::from_secs(10);

/// What a node or container had used at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// When it was measured.
    pub at: Timestamp,
    /// The start of a container.
    pub started: Option<Timestamp>,
    /// CPU time since the start, in nanoseconds.
    pub cpu: u64,
    /// The working set in bytes.
    pub memory: u64,
}

/// What a node or container uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// The end of the window.
    pub at: Timestamp,
    /// The time over which CPU usage is averaged.
    pub window: SignedDuration,
    /// CPU usage in billionths of a core.
    pub cpu: u64,
    /// The working set in bytes.
    pub memory: u64,
}

/// Namespace and name of a pod.
pub type PodKey = (Box<str>, Box<str>);

/// Points by container name.
pub type Containers = BTreeMap<Box<str>, Point>;

/// What a kubelet reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The node itself.
    pub node: Option<Point>,
    /// The pods whose containers are all measured.
    pub pods: HashMap<PodKey, Containers>,
}

#[derive(Default)]
struct Node {
    last: Option<Point>,
    previous: Option<Point>,
    pods: HashMap<PodKey, Pod>,
}

#[derive(Default)]
struct Pod {
    last: Containers,
    previous: Containers,
}

/// The usage of all nodes.
#[derive(Default)]
pub struct Usage(RwLock<HashMap<Box<str>, Node>>);

/// The point from which a rate to `new` is computed.
fn previous(new: &Point, last: Option<&Point>, previous: Option<&Point>) -> Option<Point> {
    if let Some(started) = new.started {
        let age = new.at.duration_since(started);
        if (FRESH..RESOLUTION).contains(&age) {
            return Some(Point { at: started, cpu: 0, ..*new });
        }
    }
    // A restart begins anew.
    let last = last.filter(|last| new.started.is_none_or(|started| started < last.at))?;
    if new.at > last.at { Some(*last) } else { previous.filter(|p| p.at < new.at).copied() }
}

fn rate(last: &Point, previous: &Point) -> Option<Rate> {
    let window = last.at.duration_since(previous.at);
    let cpu = last.cpu.checked_sub(previous.cpu)? as f64 / window.as_secs_f64();
    window.is_positive().then_some(Rate { at: last.at, window, cpu: cpu as u64, memory: last.memory })
}

impl Usage {
    /// Records what the kubelet of a node reports.
    pub fn record(&self, node: &str, report: Report) {
        let mut all = self.0.write();
        let known = all.remove(node).unwrap_or_default();
        let mut next = Node { last: report.node, ..Node::default() };
        next.previous = report.node.and_then(|new| previous(&new, known.last.as_ref(), known.previous.as_ref()));
        let none = Pod::default();
        for (key, last) in report.pods {
            let known = known.pods.get(&key).unwrap_or(&none);
            let mut pod = Pod { last, ..Pod::default() };
            for (name, new) in &pod.last {
                if let Some(point) = previous(new, known.last.get(name), known.previous.get(name)) {
                    pod.previous.insert(name.clone(), point);
                }
            }
            next.pods.insert(key, pod);
        }
        all.insert(node.into(), next);
    }

    /// Forgets a node whose kubelet did not answer.
    pub fn forget(&self, node: &str) {
        self.0.write().remove(node);
    }

    /// Forgets nodes that do not exist.
    pub fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.0.write().retain(|node, _| exists(node));
    }

    /// The usage of a node; none before its second report.
    pub fn node(&self, node: &str) -> Option<Rate> {
        let all = self.0.read();
        let node = all.get(node)?;
        rate(node.last.as_ref()?, node.previous.as_ref()?)
    }

    /// The usage of the containers of a pod, by name; none if that of a container is unknown.
    pub fn pod(&self, node: &str, namespace: &str, name: &str) -> Option<Vec<(Box<str>, Rate)>> {
        let all = self.0.read();
        let pod = all.get(node)?.pods.get(&(namespace.into(), name.into()))?;
        pod.last.iter().map(|(name, last)| Some((name.clone(), rate(last, pod.previous.get(name)?)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).unwrap()
    }

    fn report(seconds: i64, started: i64, cpu: u64) -> Report {
        let point = Point { at: at(seconds), started: None, cpu: cpu * 1_000_000_000, memory: 1 << 20 };
        let container = Point { started: Some(at(started)), ..point };
        let pods = HashMap::from([(("ns".into(), "p".into()), Containers::from([("c".into(), container)]))]);
        Report { node: Some(point), pods }
    }

    /// Clauses: R07.metrics
    #[test]
    fn rates_need_two_points() {
        let usage = Usage::default();
        // Time, start of the container, CPU seconds; millicores and window of the node and of the container.
        let steps = [
            (0, -100, 10, None, None),
            (15, -100, 40, Some((2000, 15)), Some((2000, 15))),
            // The same point again.
            (15, -100, 40, Some((2000, 15)), Some((2000, 15))),
            (35, -100, 50, Some((500, 20)), Some((500, 20))),
            // The container has restarted a moment ago, the node has not.
            (50, 48, 60, Some((666, 15)), None),
            (65, 48, 75, Some((1000, 15)), Some((1000, 15))),
            // It restarted long enough ago for a rate since then.
            (80, 68, 87, Some((800, 15)), Some((7250, 12))),
            // CPU time went backwards: the node has restarted.
            (95, 68, 1, None, None),
            (110, 68, 16, Some((1000, 15)), Some((1000, 15))),
        ];
        let short = |r: Rate| (r.cpu / 1_000_000, r.window.as_secs());
        for (time, started, cpu, node, container) in steps {
            usage.record("n", report(time, started, cpu));
            assert_eq!(usage.node("n").map(short), node, "node at {time}");
            let found = usage.pod("n", "ns", "p").map(|all| short(all[0].1));
            assert_eq!(found, container, "container at {time}");
        }
        assert_eq!(usage.node("n").unwrap().memory, 1 << 20);
        assert_eq!(usage.pod("other", "ns", "p"), None);
        usage.forget("n");
        assert_eq!(usage.node("n"), None);
    }

    #[test]
    fn a_pod_is_unknown_if_a_container_is() {
        let usage = Usage::default();
        usage.record("n", report(0, -100, 10));
        let mut next = report(15, -100, 20);
        let pod = next.pods.values_mut().next().unwrap();
        let new = Point { started: Some(at(12)), ..pod["c"] };
        pod.insert("new".into(), new);
        usage.record("n", next);
        assert_eq!(usage.pod("n", "ns", "p"), None);
        usage.retain(|_| false);
        assert_eq!(usage.node("n"), None);
    }
}
