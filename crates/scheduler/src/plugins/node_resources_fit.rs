//! Filters nodes without enough resources for a pod's requests, and scores nodes by the share of their resources that is requested.

use crate::allocation;
use crate::capacity::InUse;
use crate::cluster::{Cluster, Node, NodeEntry};
use crate::devices::Devices;
use crate::explain::{Change, Shortfall, amount, plural};
use crate::framework::{Event, MAX_SCORE, NodeFilter, NodeScore, Plugin, Point, PreFilter, PreScore, Read, Refusal};
use crate::plugins::Reservations;
use crate::pod::Pod;
use crate::resources::{Resource, Resources};
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const NAME: &str = "NodeResourcesFit";

/// How a node is scored by the share of its resources that is requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Strategy {
    LeastAllocated,
    MostAllocated,
    /// Scores at utilizations in percent, in increasing order.
    RequestedToCapacityRatio(Vec<(i64, i64)>),
}

/// The arguments of the plugin.
#[derive(Clone, Debug)]
pub struct NodeResourcesFit {
    pub strategy: Strategy,
    /// The resources that are scored, with their weights.
    pub resources: Vec<(Box<str>, i64)>,
    /// Extended resources that are not filtered.
    pub ignored: Vec<Box<str>>,
    /// Groups (the part before the slash) of extended resources that are not filtered.
    pub ignored_groups: Vec<Box<str>>,
    /// Whether the cluster had device classes when a pod was filtered last. Copies share it.
    pub has_device_classes: Arc<AtomicBool>,
    /// The devices that pods get before their claims show it.
    pub reservations: Reservations,
}

impl Default for NodeResourcesFit {
    fn default() -> Self {
        Self {
            strategy: Strategy::LeastAllocated,
            resources: vec![("cpu".into(), 1), ("memory".into(), 1)],
            ignored: Vec::new(),
            ignored_groups: Vec::new(),
            has_device_classes: Arc::default(),
            reservations: Reservations::default(),
        }
    }
}

/// A resource of which a node has too little for a pod. CPU in millicores, other amounts in units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Insufficient {
    pub resource: Cow<'static, str>,
    pub requested: i64,
    pub used: i64,
    pub capacity: i64,
}

impl Insufficient {
    /// The amount that is missing.
    pub fn missing(&self) -> i64 {
        self.requested.saturating_sub(self.capacity.saturating_sub(self.used))
    }
}

/// Returns the resources of which a node with `pods` pods has too little for the requests (upstream `noderesources.Fits`).
pub fn insufficiencies(
    requests: &Resources,
    used: &Resources,
    pods: usize,
    allocatable: &Resources,
) -> Vec<Insufficient> {
    let mut all = Vec::new();
    if pods as i64 + 1 > allocatable.pods {
        let (used, capacity) = (pods as i64, allocatable.pods);
        all.push(Insufficient { resource: "pods".into(), requested: 1, used, capacity });
    }
    let mut check = |resource: Cow<'static, str>, requested: i64, used: i64, capacity: i64| {
        if requested > 0 && requested > capacity.saturating_sub(used) {
            all.push(Insufficient { resource, requested, used, capacity });
        }
    };
    check("cpu".into(), requests.cpu, used.cpu, allocatable.cpu);
    check("memory".into(), requests.memory, used.memory, allocatable.memory);
    check("ephemeral-storage".into(), requests.ephemeral, used.ephemeral, allocatable.ephemeral);
    for (name, requested) in &requests.extended {
        check(name.to_string().into(), *requested, used.extended(name), allocatable.extended(name));
    }
    all
}

/// Returns upstream's messages for missing resources, and whether the node would be large enough if it were empty.
pub fn shortfalls(
    requests: &Resources,
    used: &Resources,
    pods: usize,
    allocatable: &Resources,
) -> (Vec<Cow<'static, str>>, bool) {
    let (mut reasons, mut possible) = (Vec::new(), true);
    if pods as i64 + 1 > allocatable.pods {
        reasons.push("Too many pods".into());
    }
    let mut is_short = |requested: i64, used: i64, capacity: i64| {
        let short = requested > 0 && requested > capacity.saturating_sub(used);
        possible &= !short || requested <= capacity;
        short
    };
    if is_short(requests.cpu, used.cpu, allocatable.cpu) {
        reasons.push("Insufficient cpu".into());
    }
    if is_short(requests.memory, used.memory, allocatable.memory) {
        reasons.push("Insufficient memory".into());
    }
    if is_short(requests.ephemeral, used.ephemeral, allocatable.ephemeral) {
        reasons.push("Insufficient ephemeral-storage".into());
    }
    for (name, requested) in &requests.extended {
        if is_short(*requested, used.extended(name), allocatable.extended(name)) {
            reasons.push(format!("Insufficient {name}").into());
        }
    }
    (reasons, possible)
}

impl NodeResourcesFit {
    /// Whether an extended resource is left to an extender.
    fn is_ignored(&self, name: &str) -> bool {
        self.ignored.iter().any(|i| **i == *name)
            || name.split_once('/').is_some_and(|(group, _)| self.ignored_groups.iter().any(|g| **g == *group))
    }

    /// The requests that nodes have to have room for.
    fn counted(&self, requests: &Resources) -> Option<Resources> {
        if !requests.extended.iter().any(|(name, _)| self.is_ignored(name)) {
            return None;
        }
        let mut counted = requests.clone();
        counted.extended.retain(|(name, _)| !self.is_ignored(name));
        Some(counted)
    }
}

impl Plugin for NodeResourcesFit {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> &'static [Point] {
        &[Point::PreFilter, Point::Filter, Point::PreScore, Point::Score]
    }

    fn pre_filter<'a>(&'a self, pod: &'a Pod, cluster: &'a Cluster) -> PreFilter<'a> {
        let devices = cluster.devices();
        self.has_device_classes.store(devices.has_classes(), Ordering::Relaxed);
        let requests = match self.counted(&pod.view.requests) {
            Some(counted) => Cow::Owned(counted),
            None => Cow::Borrowed(&pod.view.requests),
        };
        Ok(Some(Box::new(Check { devices, requests })))
    }

    fn pre_score<'a>(&'a self, pod: &'a Pod, cluster: &'a Cluster, _: &[&'a Node]) -> PreScore<'a> {
        let provided = Provided::new(cluster.devices(), &self.reservations);
        let resources = self.resources.iter().filter_map(|(name, weight)| {
            let resource = Resource::from(&**name);
            let (requests, counts) = match resource {
                Resource::Cpu | Resource::Memory => (pod.view.scored(), true),
                Resource::EphemeralStorage => (&pod.view.requests, true),
                // A pod that requests none of it is not affected.
                _ => (&pod.view.requests, pod.view.requests.of(&resource) != 0),
            };
            counts.then(|| Scored { requested: requests.of(&resource), resource, weight: *weight })
        });
        Ok(Some(Box::new(Usage { strategy: &self.strategy, resources: resources.collect(), provided })))
    }

    fn reads(&self) -> &'static [Read] {
        &[Read::Nodes, Read::NodeAllocatable, Read::GonePods, Read::PodRequests, Read::OwnRequests, Read::DeviceClasses]
    }

    fn hint(&self, pod: &Pod, event: &Event<'_>) -> bool {
        let requests = &pod.view.requests;
        let fits_empty = |allocatable: &Resources| match self.has_device_classes.load(Ordering::Relaxed) {
            true => fits_empty(&elsewhere(requests, allocatable), allocatable),
            false => fits_empty(requests, allocatable),
        };
        match event {
            Event::DependencyChanged(Read::DeviceClasses) => !requests.extended.is_empty(),
            Event::NodeAdded(node) => fits_empty(&node.view.allocatable),
            Event::NodeChanged { old, new } => {
                let (old, new) = (&old.view.allocatable, &new.view.allocatable);
                let more = |name: &str| requests.get(name) > 0 && new.get(name) > old.get(name);
                let extended = requests.extended.iter().any(|(name, _)| more(name));
                let any =
                    new.pods > old.pods || ["cpu", "memory", "ephemeral-storage"].into_iter().any(more) || extended;
                any && fits_empty(new)
            }
            Event::PodChanged { old, new } => {
                let (old, new) = (&old.view.requests, &new.view.requests);
                let less = |name: &str| requests.get(name) > 0 && new.get(name) < old.get(name);
                ["cpu", "memory", "ephemeral-storage"].into_iter().any(less)
                    || requests.extended.iter().any(|(name, _)| less(name))
            }
            _ => true,
        }
    }
}

fn fits_empty(requests: &Resources, allocatable: &Resources) -> bool {
    insufficiencies(requests, &Resources::default(), 0, allocatable).is_empty()
}

/// The requests without extended resources of which a node has nothing: drivers of devices may provide those.
fn elsewhere(requests: &Resources, allocatable: &Resources) -> Resources {
    let mut rest = requests.clone();
    rest.extended.retain(|(name, _)| allocatable.extended(name) > 0);
    rest
}

/// Whether devices provide an extended resource on a node, and not a device plugin (upstream `shouldDelegateResourceToDRA`).
pub fn is_provided_by_devices(devices: &Devices, resource: &str, node: &NodeEntry) -> bool {
    node.view.allocatable.extended(resource) == 0 && devices.class_of_resource(resource).is_some()
}

/// The devices that provide extended resources, and those of them that are reserved.
pub struct Provided<'a> {
    devices: &'a Devices,
    reserved: InUse,
}

impl<'a> Provided<'a> {
    pub fn new(devices: &'a Devices, reservations: &Reservations) -> Self {
        let reserved = if devices.has_classes() { reservations.lock().in_use(devices) } else { InUse::default() };
        Self { devices, reserved }
    }

    /// What a node has of a resource, and what its pods request. Of an extended resource that devices provide: devices.
    pub fn amounts(&self, resource: &Resource, node: &Node, entry: &NodeEntry) -> (i64, i64) {
        let there = entry.view.allocatable.of(resource);
        if let (Resource::Extended(name), 0) = (resource, there)
            && let Some(class) = self.devices.class_of_resource(name)
        {
            return allocation::totals(self.devices, &self.reserved, class, entry);
        }
        (there, node.requested.of(resource))
    }
}

struct Check<'a> {
    requests: Cow<'a, Resources>,
    devices: &'a Devices,
}

impl Check<'_> {
    /// The requests that the node itself has to meet.
    fn on_node(&self, node: &NodeEntry) -> Cow<'_, Resources> {
        let provided = |(name, _): &(Arc<str>, i64)| is_provided_by_devices(self.devices, name, node);
        if !self.requests.extended.iter().any(provided) {
            return Cow::Borrowed(&self.requests);
        }
        let mut requests = Resources::clone(&self.requests);
        requests.extended.retain(|request| !provided(request));
        Cow::Owned(requests)
    }
}

impl NodeFilter for Check<'_> {
    fn check(&self, node: &Node) -> Result<(), Refusal> {
        let Some(n) = &node.entry else { return Ok(()) };
        let (a, u, r) = (&n.view.allocatable, &node.requested, &*self.requests);
        // The common case, without an allocation.
        let fits = (node.pods.len() as i64) < a.pods
            && (r.cpu == 0 || r.cpu <= a.cpu.saturating_sub(u.cpu))
            && (r.memory == 0 || r.memory <= a.memory.saturating_sub(u.memory))
            && (r.ephemeral == 0 || r.ephemeral <= a.ephemeral.saturating_sub(u.ephemeral))
            && r.extended.is_empty();
        if fits {
            return Ok(());
        }
        let (reasons, resolvable) = shortfalls(&self.on_node(n), u, node.pods.len(), a);
        if reasons.is_empty() { Ok(()) } else { Err(Refusal { plugin: NAME, reasons, resolvable, is_error: false }) }
    }

    fn shortfalls(&self, node: &Node) -> Vec<Shortfall> {
        let Some(n) = &node.entry else { return Vec::new() };
        let missing = insufficiencies(&self.on_node(n), &node.requested, node.pods.len(), &n.view.allocatable);
        missing.iter().map(shortfall).collect()
    }
}

/// What a node has too little of.
fn shortfall(i: &Insufficient) -> Shortfall {
    let (resource, free) = (&*i.resource, i.capacity.saturating_sub(i.used).max(0));
    let text = |v: i64| amount(resource, v);
    if resource == "pods" {
        let full = format!("the node has {} pod{} and allows {}", i.used, plural(i.used as usize), i.capacity);
        return Shortfall::new(resource, full).amounts(resource, i.requested, free, i.capacity);
    }
    let message = match i.capacity {
        0 => format!("the pod requests {} {resource}, the node has none", text(i.requested)),
        capacity => {
            format!("the pod requests {} {resource}, {} of {} are free", text(i.requested), text(free), text(capacity))
        }
    };
    let missing = Shortfall::new(resource, message).amounts(resource, i.requested, free, i.capacity);
    // A part of a device cannot be requested, and without a request the pod would not be the same.
    let reducible = matches!(resource, "cpu" | "memory" | "ephemeral-storage") || free > 0;
    if reducible && i.missing() < i.requested {
        return missing.remedy(Change::lower_request(resource, i.missing(), i.requested));
    }
    missing
}

/// A resource that is scored.
struct Scored {
    resource: Resource,
    weight: i64,
    /// What the pod requests.
    requested: i64,
}

struct Usage<'a> {
    strategy: &'a Strategy,
    resources: Vec<Scored>,
    provided: Provided<'a>,
}

impl Strategy {
    /// The score of one resource; none if it does not count.
    fn score(&self, requested: i64, there: i64) -> Option<i64> {
        let share = |amount: i64| match amount.checked_mul(MAX_SCORE) {
            Some(product) => product / there,
            None => (i128::from(amount) * i128::from(MAX_SCORE) / i128::from(there)) as i64,
        };
        match self {
            Self::LeastAllocated => Some(if requested > there { 0 } else { share(there - requested) }),
            Self::MostAllocated => Some(share(requested.min(there))),
            Self::RequestedToCapacityRatio(shape) => {
                let used = if requested > there { MAX_SCORE } else { share(requested) };
                Some(interpolate(shape, used)).filter(|score| *score > 0)
            }
        }
    }
}

/// The score at a utilization, on lines between the points of a shape.
fn interpolate(shape: &[(i64, i64)], utilization: i64) -> i64 {
    let mut before: Option<(i64, i64)> = None;
    for (x, y) in shape.iter().copied() {
        if utilization <= x {
            return match before {
                None => y,
                Some((x0, y0)) => y0 + (y - y0) * (utilization - x0) / (x - x0).max(1),
            };
        }
        before = Some((x, y));
    }
    before.map_or(0, |(_, y)| y)
}

impl NodeScore for Usage<'_> {
    fn score(&self, node: &Node) -> i64 {
        let Some(n) = &node.entry else { return 0 };
        let (mut sum, mut weights) = (0, 0);
        for Scored { resource, weight, requested } in &self.resources {
            let (there, used) = match resource {
                Resource::Cpu | Resource::Memory => (n.view.allocatable.of(resource), node.nonzero.of(resource)),
                _ => self.provided.amounts(resource, node, n),
            };
            if there == 0 {
                continue;
            }
            if let Some(score) = self.strategy.score(used.saturating_add(*requested), there) {
                sum += score * weight;
                weights += weight;
            }
        }
        match (weights, self.strategy) {
            (0, _) => 0,
            (_, Strategy::RequestedToCapacityRatio(_)) => (sum as f64 / weights as f64).round() as i64,
            _ => sum / weights,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clauses: R02.requests
    #[test]
    fn every_shortage_is_reported() {
        let r = |cpu, memory, pods| Resources { cpu, memory, pods, ..Resources::default() };
        let mut requests = r(500, 100, 0);
        requests.extended.push(("example.com/gpu".into(), 1));
        let (reasons, possible) = shortfalls(&requests, &r(600, 950, 0), 5, &r(1000, 1000, 5));
        let expect = ["Too many pods", "Insufficient cpu", "Insufficient memory", "Insufficient example.com/gpu"];
        assert_eq!(reasons, expect);
        assert!(!possible, "the node has no such device");
        assert!(shortfalls(&r(400, 50, 0), &r(600, 950, 0), 4, &r(1000, 1000, 5)).0.is_empty());
        assert!(shortfalls(&Resources::default(), &r(2000, 0, 0), 0, &r(1000, 1000, 5)).0.is_empty(), "no requests");
    }
}
