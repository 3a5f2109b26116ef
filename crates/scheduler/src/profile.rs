//! The plugins of one scheduler name, by extension point (upstream `framework/runtime`).

use crate::cluster::Cluster;
use crate::framework::{Event, Nomination, Plugin, Point, PostFilter, PostFilterContext, Read, Refusal};
use crate::pod::Pod;
use crate::preemption::Candidate;
use futures::future::BoxFuture;
use std::collections::BTreeSet;
use std::sync::Arc;
use supervisor::panics::caught_now;

/// A plugin and the weight of its scores.
#[derive(Clone)]
pub struct Weighted {
    pub plugin: Arc<dyn Plugin>,
    pub weight: i64,
}

/// The plugins of one scheduler name, in the order in which each extension point calls them.
#[derive(Clone)]
pub struct Framework {
    /// The `schedulerName` of the pods that it schedules.
    pub name: Arc<str>,
    /// The share of nodes to find before they are scored; none: it falls with the size of the cluster.
    pub percentage: Option<u32>,
    points: Vec<Vec<Weighted>>,
    /// All plugins, each once.
    all: Vec<Arc<dyn Plugin>>,
    /// The plugins that filter, in the order in which they do.
    filtering: Vec<Filtering>,
}

/// A plugin that filters.
#[derive(Clone)]
pub(crate) struct Filtering {
    pub plugin: Arc<dyn Plugin>,
    /// Whether it may refuse all nodes at once (PreFilter).
    pub pre_filter: bool,
    /// Whether it filters single nodes (Filter).
    pub filter: bool,
}

/// Why a pod was not reserved.
pub enum ReserveError {
    Refused(Refusal),
    Panicked,
}

/// The rejection of a pod after all PostFilter plugins were called.
#[derive(Default)]
pub struct PostFiltered {
    pub nomination: Option<Nomination>,
    /// Nodes for the pod, of which one has to be chosen.
    pub candidates: Vec<Candidate>,
    /// Whether an earlier nomination of the pod is void.
    pub clear: bool,
    pub message: String,
    /// Writes that may make the pod fit later.
    pub repairs: Vec<BoxFuture<'static, Result<(), client::Error>>>,
}

impl Framework {
    /// A framework that calls the plugins in this order at all points that they implement.
    #[cfg(test)]
    fn new(name: &str, plugins: Vec<Arc<dyn Plugin>>) -> Self {
        let at = |point: &Point| {
            let implementing = plugins.iter().filter(|p| p.points().contains(point));
            implementing.map(|p| Weighted { plugin: p.clone(), weight: p.weight() }).collect()
        };
        Self::with_points(name, Point::ALL.iter().map(at).collect())
    }

    /// A framework of the plugins of each point, in the order of [`Point::ALL`].
    pub fn with_points(name: &str, points: Vec<Vec<Weighted>>) -> Self {
        let mut names = BTreeSet::new();
        let mut all = Vec::new();
        for w in points.iter().flatten() {
            if names.insert(w.plugin.name()) {
                all.push(w.plugin.clone());
            }
        }
        let at = |p: Point| points.get(p as usize).into_iter().flatten().map(|w| w.plugin.clone());
        let enabled = |p: Point, name: &str| at(p).any(|q| q.name() == name);
        let only_pre_filter = at(Point::PreFilter).filter(|p| !enabled(Point::Filter, p.name()));
        let filtering = at(Point::Filter).chain(only_pre_filter).map(|plugin| Filtering {
            pre_filter: enabled(Point::PreFilter, plugin.name()),
            filter: enabled(Point::Filter, plugin.name()),
            plugin,
        });
        let filtering = filtering.collect();
        Self { name: name.into(), percentage: None, points, all, filtering }
    }

    /// The plugins that an extension point calls.
    pub fn at(&self, point: Point) -> impl DoubleEndedIterator<Item = &dyn Plugin> {
        self.weighted(point).iter().map(|w| &*w.plugin)
    }

    pub fn weighted(&self, point: Point) -> &[Weighted] {
        self.points.get(point as usize).map_or(&[], Vec::as_slice)
    }

    /// All plugins that are called at any point.
    pub fn plugins(&self) -> impl Iterator<Item = &dyn Plugin> {
        self.all.iter().map(|p| &**p)
    }

    pub(crate) fn filtering(&self) -> &[Filtering] {
        &self.filtering
    }

    pub fn plugin(&self, name: &str) -> Option<&dyn Plugin> {
        self.plugins().find(|p| p.name() == name)
    }

    /// Whether all plugins let the pod into the queue.
    pub fn admits(&self, pod: &Pod) -> bool {
        self.at(Point::PreEnqueue).all(|p| p.pre_enqueue(pod).is_ok())
    }

    /// Errors if a plugin does not let the pod be scheduled in this cluster.
    pub fn gate(&self, pod: &Pod, cluster: &Cluster) -> Result<(), Refusal> {
        self.at(Point::PreEnqueue).try_for_each(|p| p.gate(pod, cluster))
    }

    /// The rank of a pod in the queue.
    pub fn queue_rank(&self, pod: &Pod) -> i64 {
        self.at(Point::QueueSort).find_map(|p| p.queue_rank(pod)).unwrap_or(0)
    }

    /// Whether a pod that plugins refused before may fit after an event with these changes.
    pub fn may_fit(&self, pod: &Pod, refused_by: &BTreeSet<&'static str>, event: &Event<'_>, changes: &[Read]) -> bool {
        // Without a refusing plugin there was no node at all, or a binding failed. What extenders read is not known.
        if refused_by.is_empty() || refused_by.contains(crate::extender::NAME) {
            return !changes.is_empty();
        }
        let concerns = |p: &&dyn Plugin| refused_by.contains(p.name()) && p.reads().iter().any(|r| changes.contains(r));
        self.plugins().filter(concerns).any(|p| p.hint(pod, event))
    }

    /// Calls the PostFilter plugins until one nominates a node.
    pub fn post_filter(&self, context: &PostFilterContext<'_>) -> PostFiltered {
        let mut result = PostFiltered::default();
        let mut reasons = Vec::new();
        for plugin in self.at(Point::PostFilter) {
            match plugin.post_filter(context) {
                PostFilter::Pass => {}
                PostFilter::Nominated(nomination) => {
                    return PostFiltered { nomination: Some(nomination), ..PostFiltered::default() };
                }
                PostFilter::Candidates(candidates) => return PostFiltered { candidates, ..PostFiltered::default() },
                PostFilter::Failed(message) => return PostFiltered { message, ..PostFiltered::default() },
                PostFilter::Refused(reason) => reasons.push(reason),
                PostFilter::Repair { message, write } => {
                    reasons.push(message);
                    result.repairs.push(write);
                }
                PostFilter::Hopeless(reason) => {
                    result.clear = true;
                    reasons.push(reason);
                }
            }
        }
        result.message = reasons.join(", ");
        result
    }

    /// Reserves with all plugins; returns everything if one of them refuses or panics.
    pub fn reserve(&self, pod: &Pod, node: &str, cluster: &Cluster) -> Result<(), ReserveError> {
        let reserve = || self.at(Point::Reserve).try_for_each(|p| p.reserve(pod, node, cluster));
        let reserved = match caught_now("scheduler", pod.key(), reserve) {
            Ok(reserved) => reserved.map_err(ReserveError::Refused),
            Err(_) => Err(ReserveError::Panicked),
        };
        reserved.inspect_err(|_| self.unreserve(pod, node))
    }

    /// Returns reservations, in reverse order. A plugin that panics does not keep others from it.
    pub fn unreserve(&self, pod: &Pod, node: &str) {
        for plugin in self.at(Point::Reserve).rev() {
            if caught_now("scheduler", pod.key(), || plugin.unreserve(pod, node)).is_err() {
                tracing::warn!(plugin = plugin.name(), pod = %pod.key(), "a plugin may not have returned its reservation");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use serde_json::json;

    /// Records what it holds, and panics or refuses in `reserve` if it is to.
    struct Holder {
        name: &'static str,
        held: Arc<Mutex<Vec<&'static str>>>,
        fails: bool,
    }

    impl Plugin for Holder {
        fn name(&self) -> &'static str {
            self.name
        }

        fn reserve(&self, _: &Pod, _: &str, _: &Cluster) -> Result<(), Refusal> {
            assert!(!self.fails, "a test panics");
            self.held.lock().push(self.name);
            Ok(())
        }

        fn unreserve(&self, _: &Pod, _: &str) {
            self.held.lock().retain(|n| *n != self.name);
            assert!(self.name != "second", "a test panics");
        }
    }

    /// A plugin that panicked in `reserve` left the reservations of those before it for ever.
    #[test]
    fn a_panic_in_reserve_returns_all_reservations() {
        let held = Arc::new(Mutex::new(Vec::new()));
        let plugin = |name, fails| Arc::new(Holder { name, held: held.clone(), fails }) as Arc<dyn Plugin>;
        let framework =
            Framework::new("s", vec![plugin("first", false), plugin("second", false), plugin("third", true)]);
        let v = json!({"metadata": {"name": "p", "uid": "p"}});
        let pod = Pod::new(serde_json::to_vec(&v).unwrap().into()).unwrap();
        assert!(matches!(framework.reserve(&pod, "n", &Cluster::default()), Err(ReserveError::Panicked)));
        assert!(held.lock().is_empty(), "also after one that panics in unreserve");
    }
}
