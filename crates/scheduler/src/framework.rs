//! The scheduling framework: the extension points of plugins, and the plugins of a scheduler (upstream `pkg/scheduler/framework`).
//!
//! A plugin implements the extension points that it needs, one file per plugin. What is computed once per pod ([`Plugin::pre_filter`],
//! [`Plugin::pre_score`]) returns what is called per node. Next to its filter a plugin declares what it reads ([`Plugin::reads`]): a change of
//! that may make a pod fit that it refused.

use crate::cluster::{Cluster, Node, NodeEntry};
use crate::decision::Decision;
pub use crate::decision::Refusal;
use crate::explain::Shortfall;
use crate::pod::Pod;
use crate::preemption::Candidate;
pub use crate::profile::Framework;
use futures::future::BoxFuture;
use meta::Rng;
use std::sync::Arc;

pub const MAX_SCORE: i64 = 100;

/// An extension point, in the order of their calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Point {
    PreEnqueue,
    QueueSort,
    PreFilter,
    Filter,
    PostFilter,
    PreScore,
    Score,
    Reserve,
    Permit,
    PreBind,
    Bind,
    PostBind,
}

impl Point {
    pub const ALL: &'static [Self] = &[
        Self::PreEnqueue,
        Self::QueueSort,
        Self::PreFilter,
        Self::Filter,
        Self::PostFilter,
        Self::PreScore,
        Self::Score,
        Self::Reserve,
        Self::Permit,
        Self::PreBind,
        Self::Bind,
        Self::PostBind,
    ];

    /// The name of the field in a profile's `plugins`.
    pub fn field(self) -> &'static str {
        match self {
            Self::PreEnqueue => "preEnqueue",
            Self::QueueSort => "queueSort",
            Self::PreFilter => "preFilter",
            Self::Filter => "filter",
            Self::PostFilter => "postFilter",
            Self::PreScore => "preScore",
            Self::Score => "score",
            Self::Reserve => "reserve",
            Self::Permit => "permit",
            Self::PreBind => "preBind",
            Self::Bind => "bind",
            Self::PostBind => "postBind",
        }
    }
}

/// Filters nodes for one pod.
pub trait NodeFilter {
    /// Called only for nodes with an entry.
    fn check(&self, node: &Node) -> Result<(), Refusal>;

    /// What the pod misses on a node that `check` refuses, with numbers. Empty: the reasons of the refusal are complete.
    fn shortfalls(&self, _node: &Node) -> Vec<Shortfall> {
        Vec::new()
    }

    /// The only nodes that can pass, where those are few.
    fn names(&self) -> Option<Vec<String>> {
        None
    }

    /// Copies the filter, so that pods can be added and removed on trial. None if `check` reads nothing but the node.
    fn fork(&self) -> Option<Box<dyn NodeFilter + '_>> {
        None
    }

    /// Counts a pod that was added to a node on trial (upstream `PreFilterExtensions`).
    fn add_pod(&mut self, _pod: &Pod, _node: &Node) {}

    /// Forgets a pod that was removed from a node on trial.
    fn remove_pod(&mut self, _pod: &Pod, _node: &Node) {}
}

/// The result of PreFilter: the filter of nodes for a pod, none if the pod does not concern the plugin, or why no node fits.
pub type PreFilter<'a> = Result<Option<Box<dyn NodeFilter + 'a>>, Refusal>;

/// The result of PreScore: the scorer of nodes for a pod, none if the pod does not concern the plugin, or why scheduling fails.
pub type PreScore<'a> = Result<Option<Box<dyn NodeScore + 'a>>, String>;

/// Scores the feasible nodes for one pod.
pub trait NodeScore {
    fn score(&self, node: &Node) -> i64;

    /// Scales the scores of all feasible nodes to 0…[`MAX_SCORE`].
    fn normalize(&self, _scores: &mut [i64]) {}
}

/// A node on which a pod will fit once its victims are gone.
#[derive(Clone)]
pub struct Nomination {
    pub node: Arc<str>,
    /// Pods to delete.
    pub victims: Vec<Arc<Pod>>,
}

/// What PostFilter plugins see of a decision without a node.
pub struct PostFilterContext<'a> {
    pub framework: &'a Framework,
    pub pod: &'a Pod,
    pub cluster: &'a Cluster,
    pub decision: &'a Decision,
    pub rng: &'a dyn Rng,
}

/// The result of a PostFilter plugin.
pub enum PostFilter {
    /// The pod does not concern the plugin.
    Pass,
    /// The pod fits once the victims are gone.
    Nominated(Nomination),
    /// The pod fits on each of these nodes once their victims are gone.
    Candidates(Vec<Candidate>),
    /// The plugin cannot make the pod fit, and the pod keeps the nomination that it has.
    Refused(String),
    /// The write may make the pod fit later. The message says what it does.
    Repair { message: String, write: BoxFuture<'static, Result<(), client::Error>> },
    /// The plugin cannot make the pod fit on any node: a nomination of the pod is void.
    Hopeless(String),
    /// The plugin failed, and no other one is called. The pod keeps the nomination that it has.
    Failed(String),
}

/// Whether a pod may be bound.
pub enum Permit {
    Allow,
    /// When the future completes: with an error, the pod is refused for that reason.
    Wait(BoxFuture<'static, Result<(), String>>),
}

/// An extension of the scheduler. Its methods are in the order in which they are called.
pub trait Plugin: Send + Sync {
    /// The name in configurations, events and metrics.
    fn name(&self) -> &'static str;

    /// The extension points that the plugin implements.
    fn points(&self) -> &'static [Point] {
        Point::ALL
    }

    /// PreEnqueue: whether a pod may be scheduled at all. A refused one waits until it is changed.
    fn pre_enqueue(&self, _pod: &Pod) -> Result<(), Refusal> {
        Ok(())
    }

    /// PreEnqueue for what the cluster decides: asked when the pod is taken from the queue. A refused pod goes back without a condition,
    /// an event or a back-off, until what the plugin [reads](Self::reads) changes.
    fn gate(&self, _pod: &Pod, _cluster: &Cluster) -> Result<(), Refusal> {
        Ok(())
    }

    /// QueueSort: the rank of a waiting pod. Higher ranks come first, equal ones in the order of arrival. One plugin of a scheduler ranks.
    fn queue_rank(&self, _pod: &Pod) -> Option<i64> {
        None
    }

    /// PreFilter: returns the filter of nodes for a pod, or nothing if the pod does not concern the plugin. An error refuses all nodes.
    fn pre_filter<'a>(&'a self, _pod: &'a Pod, _cluster: &'a Cluster) -> PreFilter<'a> {
        Ok(None)
    }

    /// What the filter of this plugin reads. After a change of it, a pod that the plugin refused is retried if [`Self::hint`] returns true.
    fn reads(&self) -> &'static [Read] {
        &[]
    }

    /// Whether a pod that this plugin refused may fit after a change of what it reads.
    fn hint(&self, _pod: &Pod, _event: &Event<'_>) -> bool {
        true
    }

    /// PostFilter: called when no node fits. May return the node on which the pod fits once others are gone.
    fn post_filter(&self, _context: &PostFilterContext<'_>) -> PostFilter {
        PostFilter::Pass
    }

    /// PreScore: returns the scorer of nodes for a pod, or nothing if the pod does not concern the plugin.
    /// `nodes` are the feasible nodes.
    fn pre_score<'a>(&'a self, _pod: &'a Pod, _cluster: &'a Cluster, _nodes: &[&'a Node]) -> PreScore<'a> {
        Ok(None)
    }

    /// The factor of this plugin's scores, unless the configuration has another one.
    fn weight(&self) -> i64 {
        1
    }

    /// Reserve: takes what the pod needs on the node. If a later step fails, [`Self::unreserve`] returns it.
    fn reserve(&self, _pod: &Pod, _node: &str, _cluster: &Cluster) -> Result<(), Refusal> {
        Ok(())
    }

    /// Called after a failure, also if `reserve` of this plugin was not called or failed.
    fn unreserve(&self, _pod: &Pod, _node: &str) {}

    /// Permit: lets the binding go ahead, or delays it.
    fn permit(&self, _pod: &Pod, _node: &str) -> Permit {
        Permit::Allow
    }

    /// PreBind: prepares the node for the pod, such as its volumes. An error fails the binding.
    fn pre_bind(&self, _pod: &Arc<Pod>, _node: &Arc<str>) -> Option<BoxFuture<'static, Result<(), client::Error>>> {
        None
    }

    /// Bind: binds the pod. The first plugin that returns a future binds.
    fn bind(&self, _pod: &Arc<Pod>, _node: &Arc<str>) -> Option<BoxFuture<'static, Result<(), client::Error>>> {
        None
    }

    /// PostBind: called after the pod was bound.
    fn post_bind(&self, _pod: &Pod, _node: &str) {}
}

/// What a filter reads, and what an event changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Read {
    /// Which nodes exist.
    Nodes,
    NodeLabels,
    NodeTaints,
    NodeUnschedulable,
    NodeAllocatable,
    /// The features that nodes declare.
    NodeFeatures,
    /// Pods that are placed on nodes.
    PlacedPods,
    /// Pods that leave nodes.
    GonePods,
    /// Labels of placed pods.
    PodLabels,
    /// Resource requests of placed pods.
    PodRequests,
    /// Labels of namespaces.
    NamespaceLabels,
    /// Volumes, claims, classes and drivers of storage.
    Storage,
    /// Device claims and slices.
    Devices,
    DeviceClasses,
    /// Fields of the waiting pod itself.
    OwnLabels,
    OwnTolerations,
    OwnRequests,
    OwnAffinity,
    OwnClaims,
}

/// A change in the cluster.
pub enum Event<'a> {
    NodeAdded(&'a NodeEntry),
    NodeChanged {
        old: &'a NodeEntry,
        new: &'a NodeEntry,
    },
    PodPlaced(&'a Pod),
    /// A pod on a node was changed.
    PodChanged {
        old: &'a Pod,
        new: &'a Pod,
    },
    PodGone(&'a Pod),
    NamespaceChanged,
    /// An object was changed that plugins read.
    DependencyChanged(Read),
    /// The waiting pod itself was changed.
    OwnChanged {
        old: &'a Pod,
        new: &'a Pod,
    },
}

impl<'a> Event<'a> {
    /// The node as it is now, if the event concerns one.
    pub fn node(&self) -> Option<&'a NodeEntry> {
        match self {
            Self::NodeAdded(n) | Self::NodeChanged { new: n, .. } => Some(n),
            _ => None,
        }
    }

    /// What the event changes. Heartbeats of nodes and statuses of pods change nothing that filters read.
    pub fn changes(&self) -> Vec<Read> {
        let changed = |all: &[(bool, Read)]| all.iter().filter(|(c, _)| *c).map(|(_, read)| *read).collect();
        match self {
            Self::NodeAdded(_) => vec![Read::Nodes],
            Self::NodeChanged { old, new } => changed(&[
                (old.meta.labels != new.meta.labels, Read::NodeLabels),
                (old.view.taints != new.view.taints, Read::NodeTaints),
                (old.view.unschedulable != new.view.unschedulable, Read::NodeUnschedulable),
                (old.view.allocatable != new.view.allocatable, Read::NodeAllocatable),
                (old.view.features != new.view.features, Read::NodeFeatures),
            ]),
            Self::PodPlaced(_) => vec![Read::PlacedPods],
            Self::PodChanged { old, new } => changed(&[
                (old.meta.labels != new.meta.labels, Read::PodLabels),
                (old.view.requests != new.view.requests, Read::PodRequests),
            ]),
            Self::PodGone(_) => vec![Read::GonePods],
            Self::NamespaceChanged => vec![Read::NamespaceLabels],
            Self::DependencyChanged(read) => vec![*read],
            Self::OwnChanged { old, new } => changed(&[
                (old.meta.labels != new.meta.labels, Read::OwnLabels),
                (old.view.tolerations != new.view.tolerations, Read::OwnTolerations),
                (old.view.requests != new.view.requests, Read::OwnRequests),
                (old.view.affinity != new.view.affinity, Read::OwnAffinity),
                (old.view.device_claims != new.view.device_claims, Read::OwnClaims),
            ]),
        }
    }
}

/// Scales scores so that the largest is [`MAX_SCORE`]; reversed, that the smallest is.
pub fn normalize(scores: &mut [i64], reverse: bool) {
    let max = scores.iter().copied().max().unwrap_or(0);
    for s in scores {
        let scaled = if max == 0 { 0 } else { *s * MAX_SCORE / max };
        *s = if reverse { MAX_SCORE - scaled } else { scaled };
    }
}
