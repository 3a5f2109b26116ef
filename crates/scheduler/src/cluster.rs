//! The cluster state of the scheduler: nodes and the pods on them.
//!
//! It is updated by events and read in place, so a decision copies nothing. A pod is *assumed* on its chosen node
//! until its binding fails or the cache shows it.

use crate::pod::{HostPort, Pod};
use crate::pod_affinity::NamespaceLabels;
use crate::resources::Resources;
use client::Entry;
use client::informer::{Labels, or_default};
use placement::Taint;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

pub type NodeEntry = Entry<NodeInfo>;

/// Capacity, taints and images of a node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "Raw")]
pub struct NodeInfo {
    pub unschedulable: bool,
    pub taints: Vec<Taint>,
    pub allocatable: Resources,
    /// Size in bytes of each image, by name.
    pub images: BTreeMap<Box<str>, i64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Raw {
    spec: RawSpec,
    status: RawStatus,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawSpec {
    unschedulable: bool,
    #[serde(deserialize_with = "or_default")]
    taints: Vec<Taint>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawStatus {
    allocatable: Option<Map<String, Value>>,
    #[serde(deserialize_with = "or_default")]
    images: Vec<RawImage>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawImage {
    #[serde(deserialize_with = "or_default")]
    names: Vec<Box<str>>,
    size_bytes: i64,
}

impl From<Raw> for NodeInfo {
    fn from(r: Raw) -> Self {
        let images = r.status.images.into_iter();
        Self {
            unschedulable: r.spec.unschedulable,
            taints: r.spec.taints,
            allocatable: Resources::read(r.status.allocatable.as_ref()),
            images: images.flat_map(|i| i.names.into_iter().map(move |n| (n, i.size_bytes))).collect(),
        }
    }
}

/// A node and the pods on it.
pub struct Node {
    pub name: Arc<str>,
    /// None while only its pods are known.
    pub entry: Option<Arc<NodeEntry>>,
    pub requested: Resources,
    pub nonzero: Resources,
    pub ports: Vec<HostPort>,
    /// Unordered.
    pub pods: Vec<Arc<Pod>>,
    /// How many of them have required anti-affinity.
    pub with_anti_affinity: usize,
}

impl Node {
    fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            entry: None,
            requested: Resources::default(),
            nonzero: Resources::default(),
            ports: Vec::new(),
            pods: Vec::new(),
            with_anti_affinity: 0,
        }
    }

    pub(crate) fn add(&mut self, pod: Arc<Pod>) {
        self.requested.add(&pod.view.requests);
        self.nonzero.add(&pod.view.nonzero);
        self.ports.extend(pod.view.host_ports.iter().cloned());
        self.with_anti_affinity += usize::from(!pod.view.pod_affinity.anti_required.is_empty());
        self.pods.push(pod);
    }

    pub(crate) fn remove(&mut self, uid: &str) -> Option<Arc<Pod>> {
        let i = self.pods.iter().position(|p| &*p.meta.uid == uid)?;
        let pod = self.pods.swap_remove(i);
        self.requested.subtract(&pod.view.requests);
        self.nonzero.subtract(&pod.view.nonzero);
        for p in &pod.view.host_ports {
            if let Some(i) = self.ports.iter().position(|q| q == p) {
                self.ports.swap_remove(i);
            }
        }
        self.with_anti_affinity -= usize::from(!pod.view.pod_affinity.anti_required.is_empty());
        Some(pod)
    }
}

/// All nodes, by slot; a node keeps its slot until it is removed.
#[derive(Default)]
pub struct Cluster {
    nodes: Vec<Node>,
    by_name: HashMap<Arc<str>, usize>,
    /// The node of each assigned or assumed pod.
    placed: HashMap<Arc<str>, Arc<str>>,
    live: usize,
    /// Number of nodes with each image.
    images: HashMap<Box<str>, usize>,
    /// Number of assigned pods with required anti-affinity; if zero, it is not evaluated.
    anti_affine: usize,
    /// Number of assigned pods with preferred affinity or anti-affinity.
    preferring: usize,
    namespaces: NamespaceLabels,
}

/// 1 if the pod's affinity affects the scores of other pods.
fn prefers(pod: &Pod) -> usize {
    let a = &pod.view.pod_affinity;
    usize::from(!a.preferred.is_empty() || !a.required.is_empty())
}

impl Cluster {
    /// All slots, including those without a node object.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    pub fn node(&self, name: &str) -> Option<&Node> {
        self.by_name.get(name).map(|i| &self.nodes[*i])
    }

    pub fn slot(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// Number of nodes that exist.
    pub fn live(&self) -> usize {
        self.live
    }

    pub fn holders_of(&self, image: &str) -> usize {
        self.images.get(image).copied().unwrap_or(0)
    }

    pub fn has_anti_affinity(&self) -> bool {
        self.anti_affine > 0
    }

    pub fn has_preferred_affinity(&self) -> bool {
        self.preferring > 0
    }

    pub fn namespace_labels(&self) -> &NamespaceLabels {
        &self.namespaces
    }

    pub fn set_namespace(&mut self, name: &str, labels: Labels) {
        self.namespaces.insert(name.into(), labels);
    }

    pub fn remove_namespace(&mut self, name: &str) {
        self.namespaces.remove(name);
    }

    fn entry(&mut self, name: &str) -> usize {
        if let Some(i) = self.by_name.get(name) {
            return *i;
        }
        let node = Node::new(name);
        self.by_name.insert(node.name.clone(), self.nodes.len());
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    pub fn set_node(&mut self, entry: Arc<NodeEntry>) {
        let i = self.entry(&entry.meta.name.clone());
        for name in entry.view.images.keys() {
            *self.images.entry(name.clone()).or_default() += 1;
        }
        let old = self.nodes[i].entry.replace(entry);
        match old {
            Some(o) => self.forget_images(&o),
            None => self.live += 1,
        }
    }

    pub fn remove_node(&mut self, name: &str) {
        let Some(i) = self.slot(name) else { return };
        if let Some(o) = self.nodes[i].entry.take() {
            self.live -= 1;
            self.forget_images(&o);
        }
        self.tidy(i);
    }

    fn forget_images(&mut self, old: &NodeEntry) {
        for name in old.view.images.keys() {
            if let Some(n) = self.images.get_mut(name) {
                *n -= 1;
                if *n == 0 {
                    self.images.remove(name);
                }
            }
        }
    }

    /// Frees an empty slot.
    fn tidy(&mut self, i: usize) {
        let n = &self.nodes[i];
        if n.entry.is_some() || !n.pods.is_empty() {
            return;
        }
        self.by_name.remove(&n.name);
        self.nodes.swap_remove(i);
        if let Some(moved) = self.nodes.get(i) {
            self.by_name.insert(moved.name.clone(), i);
        }
    }

    /// Adds a pod to a node, and removes it from the node it was on.
    pub fn add_pod(&mut self, pod: Arc<Pod>, node: &str) {
        self.remove_pod(&pod.meta.uid);
        let i = self.entry(node);
        self.placed.insert(pod.meta.uid.clone(), self.nodes[i].name.clone());
        self.anti_affine += usize::from(!pod.view.pod_affinity.anti_required.is_empty());
        self.preferring += prefers(&pod);
        self.nodes[i].add(pod);
    }

    /// Removes a pod; returns whether it was on a node.
    pub fn remove_pod(&mut self, uid: &str) -> bool {
        let Some(node) = self.placed.remove(uid) else { return false };
        if let Some(i) = self.slot(&node) {
            if let Some(p) = self.nodes[i].remove(uid) {
                self.anti_affine -= usize::from(!p.view.pod_affinity.anti_required.is_empty());
                self.preferring -= prefers(&p);
            }
            self.tidy(i);
        }
        true
    }

    /// A pod on a node, in the version that was added.
    pub fn pod(&self, uid: &str) -> Option<&Arc<Pod>> {
        let node = self.node(self.placed.get(uid)?)?;
        node.pods.iter().find(|p| &*p.meta.uid == uid)
    }

    pub fn is_placed(&self, uid: &str) -> bool {
        self.placed.contains_key(uid)
    }
}
