//! Pods that are expected to be placed on a node once pods that they preempt are gone (upstream `nominator.go`).

use crate::pod::Pod;
use std::collections::HashMap;
use std::sync::Arc;

/// The nominated pods. A nomination is in memory at once, before the status of its pod shows it.
#[derive(Clone, Default)]
pub struct Nominations {
    by_node: HashMap<Arc<str>, Vec<Arc<Pod>>>,
    nodes: HashMap<Arc<str>, Arc<str>>,
}

impl Nominations {
    /// The pods that are nominated for a node.
    pub fn on(&self, node: &str) -> &[Arc<Pod>] {
        self.by_node.get(node).map_or(&[], Vec::as_slice)
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The node that a pod is nominated for.
    pub fn node_of(&self, uid: &str) -> Option<&Arc<str>> {
        self.nodes.get(uid)
    }

    /// Nominates a pod for a node, instead of an earlier one.
    pub fn set(&mut self, pod: Arc<Pod>, node: &Arc<str>) {
        self.remove(&pod.meta.uid);
        self.nodes.insert(pod.meta.uid.clone(), node.clone());
        self.by_node.entry(node.clone()).or_default().push(pod);
    }

    /// Takes a changed pod. A nomination in memory stays while neither the old nor the new status has one.
    pub fn update(&mut self, old: Option<&Pod>, new: &Arc<Pod>) {
        let before = old.is_some_and(|p| !p.view.nominated_node.is_empty());
        let kept = self.node_of(&new.meta.uid).filter(|_| !before).cloned();
        match &*new.view.nominated_node {
            "" => match kept {
                Some(node) => self.set(new.clone(), &node),
                None => self.remove(&new.meta.uid),
            },
            node => self.set(new.clone(), &node.into()),
        }
    }

    pub fn remove(&mut self, uid: &str) {
        let Some(node) = self.nodes.remove(uid) else { return };
        if let Some(pods) = self.by_node.get_mut(&node) {
            pods.retain(|p| &*p.meta.uid != uid);
            if pods.is_empty() {
                self.by_node.remove(&node);
            }
        }
    }
}
