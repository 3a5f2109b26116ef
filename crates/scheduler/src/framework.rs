//! What a plugin is, and the reasons it gives.
//!
//! A plugin looks at the pod once ([`Plugin::filter`], [`Plugin::score`]) and gives back what is asked per node, or nothing where
//! the pod does not concern it. One file per plugin. A plugin that filters also says which events may change its mind.

use crate::cluster::{Cluster, Node};
use crate::pod::Pod;
use std::borrow::Cow;

pub const MAX_SCORE: i64 = 100;

/// Why a node is no place for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub plugin: &'static str,
    /// As upstream words them; they are counted over nodes in the event.
    pub reasons: Vec<Cow<'static, str>>,
    /// Whether evicting pods from the node could help.
    pub resolvable: bool,
}

impl Refusal {
    /// Evicting pods could help.
    pub fn busy(plugin: &'static str, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { plugin, reasons: vec![reason.into()], resolvable: true }
    }

    /// Nothing on the node could help.
    pub fn wrong(plugin: &'static str, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { plugin, reasons: vec![reason.into()], resolvable: false }
    }
}

/// Asked about many nodes for one pod.
pub trait NodeFilter {
    /// `node.entry` is there.
    fn check(&self, node: &Node) -> Result<(), Refusal>;

    /// Limits the nodes that can pass to these, when few can.
    fn names(&self) -> Option<Vec<String>> {
        None
    }
}

pub trait NodeScore {
    fn score(&self, node: &Node) -> i64;

    /// Brings the scores of all feasible nodes to 0…100.
    fn normalize(&self, _scores: &mut [i64]) {}
}

pub trait Plugin: Send + Sync {
    fn name(&self) -> &'static str;

    fn filter<'a>(&self, _pod: &'a Pod, _cluster: &'a Cluster) -> Option<Box<dyn NodeFilter + 'a>> {
        None
    }

    fn score<'a>(&self, _pod: &'a Pod, _cluster: &'a Cluster) -> Option<Box<dyn NodeScore + 'a>> {
        None
    }

    fn weight(&self) -> i64 {
        1
    }

    /// Whether a pod that this plugin refused may fit after the event.
    fn hint(&self, pod: &Pod, event: &Event<'_>) -> bool;
}

/// What happened in the cluster.
pub enum Event<'a> {
    NodeAdded(&'a crate::cluster::NodeEntry),
    NodeChanged { old: &'a crate::cluster::NodeEntry, new: &'a crate::cluster::NodeEntry },
    PodPlaced(&'a Pod),
    PodChanged(&'a Pod),
    PodGone(&'a Pod),
}

impl<'a> Event<'a> {
    /// The node as it is now, if the event is about one.
    pub fn node(&self) -> Option<&'a crate::cluster::NodeEntry> {
        match self {
            Self::NodeAdded(n) | Self::NodeChanged { new: n, .. } => Some(n),
            _ => None,
        }
    }
}

/// Scales scores so that the largest is 100, and turns them round where less is better.
pub fn normalize(scores: &mut [i64], reverse: bool) {
    let max = scores.iter().copied().max().unwrap_or(0);
    for s in scores {
        let scaled = if max == 0 { 0 } else { *s * MAX_SCORE / max };
        *s = if reverse { MAX_SCORE - scaled } else { scaled };
    }
}
