//! The cluster state of the scheduler: nodes and the pods on them.
//!
//! It is updated by events and read in place, so a decision copies nothing. A pod is *assumed* on its chosen node
//! until its binding fails or the cache shows it.

use crate::budgets::Budget;
use crate::devices::Devices;
use crate::nominations::Nominations;
use crate::pod::{HostPort, Pod};
use crate::pod_affinity::NamespaceLabels;
use crate::resources::Resources;
use crate::storage::Storage;
use crate::topology::{ByDomain, Query, Topology};
use crate::workloads::Workloads;
use client::Entry;
use client::informer::{Key, Labels, or_default};
use parking_lot::Mutex;
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
    /// `status.declaredFeatures`.
    pub features: Vec<Box<str>>,
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
#[serde(rename_all = "camelCase", default)]
struct RawStatus {
    allocatable: Option<Map<String, Value>>,
    #[serde(deserialize_with = "or_default")]
    declared_features: Vec<Box<str>>,
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
            features: r.status.declared_features,
            images: images.flat_map(|i| i.names.into_iter().map(move |n| (n, i.size_bytes))).collect(),
        }
    }
}

/// A node and the pods on it.
#[derive(Clone)]
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
    /// Orders nodes by when they were added.
    arrival: u64,
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
            arrival: 0,
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
    /// How many nodes were ever added.
    arrivals: u64,
    /// Number of nodes with each image.
    images: HashMap<Box<str>, usize>,
    /// Number of assigned pods with required anti-affinity; if zero, it is not evaluated.
    anti_affine: usize,
    /// Number of assigned pods with preferred affinity or anti-affinity.
    preferring: usize,
    namespaces: NamespaceLabels,
    nominations: Nominations,
    budgets: BTreeMap<Key, Arc<Budget>>,
    workloads: Workloads,
    storage: Storage,
    devices: Devices,
    /// How many placed pods use each claim.
    claim_uses: HashMap<Key, usize>,
    /// Numbers of pods by topology domain.
    topology: Mutex<Topology>,
    /// The nodes that exist, in the order in which they are searched; none after a change.
    order: Mutex<Option<Arc<[usize]>>>,
}

impl Clone for Cluster {
    /// Copies the state. Counts by topology domain are made again when they are needed.
    fn clone(&self) -> Self {
        Self {
            nodes: self.nodes.clone(),
            by_name: self.by_name.clone(),
            placed: self.placed.clone(),
            live: self.live,
            arrivals: self.arrivals,
            images: self.images.clone(),
            anti_affine: self.anti_affine,
            preferring: self.preferring,
            namespaces: self.namespaces.clone(),
            nominations: self.nominations.clone(),
            budgets: self.budgets.clone(),
            workloads: self.workloads.clone(),
            storage: self.storage.clone(),
            devices: self.devices.clone(),
            claim_uses: self.claim_uses.clone(),
            topology: Mutex::default(),
            order: Mutex::new(self.order.lock().clone()),
        }
    }
}

/// The region and zone of a node; empty without.
fn zone(entry: &NodeEntry) -> (&str, &str) {
    let label = |key: &str, old: &str| entry.meta.label(key).or_else(|| entry.meta.label(old)).unwrap_or_default();
    (
        label("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region"),
        label("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"),
    )
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

    /// The slots of the nodes that exist, in the order in which they are searched: in turn one node of each zone.
    pub fn search_order(&self) -> Arc<[usize]> {
        let mut cached = self.order.lock();
        if let Some(order) = &*cached {
            return order.clone();
        }
        let mut zones: Vec<Vec<usize>> = Vec::new();
        let mut by_zone: HashMap<(&str, &str), usize> = HashMap::new();
        let mut slots: Vec<usize> = (0..self.nodes.len()).filter(|i| self.nodes[*i].entry.is_some()).collect();
        slots.sort_by_key(|slot| self.nodes[*slot].arrival);
        for slot in slots {
            let Some(entry) = &self.nodes[slot].entry else { continue };
            let next = zones.len();
            let zone = *by_zone.entry(zone(entry)).or_insert(next);
            if zone == next {
                zones.push(Vec::new());
            }
            zones[zone].push(slot);
        }
        let rounds = zones.iter().map(Vec::len).max().unwrap_or(0);
        let order: Arc<[usize]> =
            (0..rounds).flat_map(|i| zones.iter().filter_map(move |z| z.get(i).copied())).collect();
        *cached = Some(order.clone());
        order
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

    /// The pods of a query by domain.
    pub fn count(&self, query: Query) -> ByDomain {
        self.topology.lock().count(query, &self.nodes, &self.namespaces)
    }

    /// Reads the affinity terms of placed pods.
    pub fn with_terms<T>(&self, read: impl FnOnce(&mut Topology, &[Node]) -> T) -> T {
        read(&mut self.topology.lock(), &self.nodes)
    }

    pub fn namespace_labels(&self) -> &NamespaceLabels {
        &self.namespaces
    }

    pub fn set_namespace(&mut self, name: &str, labels: Labels) {
        let old = self.namespaces.insert(name.into(), labels.clone());
        if old.is_none_or(|old| old != labels) {
            self.topology.get_mut().clear();
        }
    }

    pub fn remove_namespace(&mut self, name: &str) {
        self.namespaces.remove(name);
        self.topology.get_mut().clear();
    }

    /// The pods that are nominated for a node.
    pub fn nominated(&self, node: &str) -> &[Arc<Pod>] {
        self.nominations.on(node)
    }

    pub fn nominations(&self) -> &Nominations {
        &self.nominations
    }

    pub fn nominations_mut(&mut self) -> &mut Nominations {
        &mut self.nominations
    }

    pub fn budgets(&self) -> impl Iterator<Item = &Arc<Budget>> {
        self.budgets.values()
    }

    pub fn set_budget(&mut self, budget: Arc<Budget>) {
        self.budgets.insert(budget.key(), budget);
    }

    pub fn remove_budget(&mut self, key: &Key) {
        self.budgets.remove(key);
    }

    pub fn devices(&self) -> &Devices {
        &self.devices
    }

    pub fn devices_mut(&mut self) -> &mut Devices {
        &mut self.devices
    }

    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    pub fn storage_mut(&mut self) -> &mut Storage {
        &mut self.storage
    }

    /// Whether a placed pod uses a claim.
    pub fn is_claim_used(&self, namespace: &Arc<str>, name: &str) -> bool {
        self.claim_uses.contains_key(&Key::new(namespace.clone(), name))
    }

    fn count_claims(&mut self, pod: &Pod, add: bool) {
        for claim in &pod.view.claims {
            let key = Key::new(pod.meta.namespace.clone(), &*claim.name);
            let uses = self.claim_uses.entry(key.clone()).or_default();
            *uses = if add { *uses + 1 } else { uses.saturating_sub(1) };
            if *uses == 0 {
                self.claim_uses.remove(&key);
            }
        }
    }

    pub fn workloads(&self) -> &Workloads {
        &self.workloads
    }

    pub fn workloads_mut(&mut self) -> &mut Workloads {
        &mut self.workloads
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
        let same_zone = self.nodes[i].entry.as_ref().is_some_and(|old| zone(old) == zone(&entry));
        if !same_zone {
            *self.order.get_mut() = None;
        }
        if self.nodes[i].entry.as_ref().is_none_or(|old| old.meta.labels != entry.meta.labels) {
            self.topology.get_mut().clear();
        } else if self.nodes[i].entry.as_ref().is_some_and(|old| old.view.taints != entry.view.taints) {
            self.topology.get_mut().taints_changed();
        }
        let old = self.nodes[i].entry.replace(entry);
        match old {
            Some(o) => self.forget_images(&o),
            None => {
                self.live += 1;
                self.arrivals += 1;
                self.nodes[i].arrival = self.arrivals;
            }
        }
    }

    pub fn remove_node(&mut self, name: &str) {
        let Some(i) = self.slot(name) else { return };
        if let Some(o) = self.nodes[i].entry.take() {
            *self.order.get_mut() = None;
            self.topology.get_mut().clear();
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
        *self.order.get_mut() = None;
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
        self.count_claims(&pod, true);
        self.topology.get_mut().change(&pod, &self.nodes[i], &self.namespaces, 1);
        self.nodes[i].add(pod);
    }

    /// Removes a pod; returns whether it was on a node.
    pub fn remove_pod(&mut self, uid: &str) -> bool {
        let Some(node) = self.placed.remove(uid) else { return false };
        if let Some(i) = self.slot(&node) {
            if let Some(p) = self.nodes[i].remove(uid) {
                self.anti_affine -= usize::from(!p.view.pod_affinity.anti_required.is_empty());
                self.preferring -= prefers(&p);
                self.count_claims(&p, false);
                self.topology.get_mut().change(&p, &self.nodes[i], &self.namespaces, -1);
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
