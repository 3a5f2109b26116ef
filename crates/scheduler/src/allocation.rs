//! Allocates devices on a node for resource claims (upstream `structured/allocator.go`). Pure.
//!
//! Devices are tried in the order of their pools and slices, with backtracking; the number of steps is limited.

use crate::capacity::{Amounts, InUse, consumed, suffices};
use crate::cluster::NodeEntry;
use crate::devices::{DeviceClaim, DeviceClaimInfo, DeviceId, Devices, Offered, is_available, reaches};
use expressions::Device;
use meta::Quantity;
use placement::{EXCLUDING, Taint, Toleration, untolerated};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::HashMap;

/// The most devices that are tried for the claims of a pod on a node.
const MOST_STEPS: usize = 50_000;
/// The most devices of one claim.
const MOST_DEVICES: usize = 32;

/// A request, or a subrequest that stands for it.
struct Request<'a> {
    /// The name in results: `request`, or `request/subrequest`.
    name: String,
    /// The name of the request itself.
    parent: &'a str,
    class: &'a str,
    value: &'a Value,
}

/// A device for a request.
#[derive(Clone)]
struct Chosen<'a> {
    request: usize,
    device: Offered<'a>,
    /// What the request uses of a device that others may share.
    share: Option<Amounts>,
}

/// Amounts in billionths, by counter set and name.
type Counters<'a> = HashMap<(&'a str, &'a str), i128>;

/// The devices of a pool, and the counters that they share.
#[derive(Default)]
struct Pool<'a> {
    devices: Vec<Offered<'a>>,
    counters: Counters<'a>,
}

/// Calls `each` with set, name and amount of all counters in a list of counter sets. `name_of` is the field with the name of a set.
fn counters<'a>(sets: &'a Value, name_of: &str, mut each: impl FnMut(&'a str, &'a str, i128)) {
    for set in sets.as_array().into_iter().flatten() {
        for (name, value) in set["counters"].as_object().into_iter().flatten() {
            let amount = value["value"].as_str().and_then(|q| Quantity::parse(q).ok()).map_or(0, |q| q.nano_value());
            each(text(set, name_of), name, amount);
        }
    }
}

/// What can be allocated on all nodes.
pub struct Offer<'a> {
    devices: &'a Devices,
    /// What others get whose claims do not show it yet.
    reserved: InUse,
}

impl<'a> Offer<'a> {
    pub fn new(devices: &'a Devices, reserved: InUse) -> Self {
        Self { devices, reserved }
    }
}

/// Allocates devices on one node.
pub struct Allocator<'a> {
    offer: &'a Offer<'a>,
    node: &'a NodeEntry,
    /// The devices that the node can use, in the order of their pools and slices.
    offered: Vec<Offered<'a>>,
    /// The pools of these devices, by driver and name.
    pools: HashMap<(&'a str, &'a str), Pool<'a>>,
    /// What was allocated before for other claims of the pod.
    taken: InUse,
    steps: usize,
}

fn list<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    value[field].as_array().into_iter().flatten()
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

/// The value of an attribute. A name without a domain is of the driver's.
fn attribute<'a>(device: &Offered<'a>, name: &str) -> Option<&'a Value> {
    let attributes = &device.device["attributes"];
    let short = name.strip_prefix(device.driver).and_then(|rest| rest.strip_prefix('/'));
    attributes.get(name).or_else(|| attributes.get(short?))
}

impl<'a> Allocator<'a> {
    pub fn new(offer: &'a Offer<'a>, node: &'a NodeEntry) -> Self {
        let (mut offered, mut pools) = (Vec::new(), HashMap::new());
        for found in offer.devices.pools(&node.meta.name) {
            let mut pool = Pool::default();
            for slice in &found.slices {
                counters(&slice["sharedCounters"], "name", |set, name, amount| {
                    pool.counters.insert((set, name), amount);
                });
            }
            pool.devices.extend(found.devices());
            offered.extend(pool.devices.iter().filter(|d| reaches(d.nodes(), node)).copied());
            pools.insert((found.driver, found.name), pool);
        }
        Self { offer, node, offered, pools, taken: InUse::default(), steps: 0 }
    }

    /// What others have or get, and what other claims of the pod get.
    fn in_use(&self) -> [&InUse; 3] {
        [self.offer.devices.in_use(), &self.offer.reserved, &self.taken]
    }

    fn is_used(&self, device: &DeviceId) -> bool {
        self.in_use().iter().any(|all| all.has(device))
    }

    /// The allocations of claims, in their order. None if the devices do not suffice.
    pub fn allocate(&mut self, claims: &[&'a DeviceClaimInfo]) -> Option<Vec<Value>> {
        let mut allocations = Vec::new();
        for claim in claims {
            let (requests, chosen) = self.claim(claim)?;
            for c in chosen.iter().filter(|c| requests[c.request].value["adminAccess"] != true) {
                match &c.share {
                    Some(share) => self.taken.add_shared(c.device.id(), share.iter().map(|(name, q)| (name, *q))),
                    None => self.taken.add_exclusive(c.device.id()),
                }
            }
            allocations.push(self.result(claim, &requests, &chosen));
        }
        Some(allocations)
    }

    /// The devices of one claim: the first alternatives of its requests that can be met together.
    fn claim(&mut self, claim: &'a DeviceClaimInfo) -> Option<(Vec<Request<'a>>, Vec<Chosen<'a>>)> {
        let mut alternatives: Vec<Vec<&'a Value>> = Vec::new();
        let requests: Vec<&'a Value> = list(&claim.devices, "requests").collect();
        for request in &requests {
            let first: Vec<&Value> = list(request, "firstAvailable").collect();
            alternatives.push(if first.is_empty() { vec![&request["exactly"]] } else { first });
        }
        let mut choice = vec![0; alternatives.len()];
        loop {
            let chosen: Vec<Request<'a>> = requests
                .iter()
                .zip(alternatives.iter().zip(&choice))
                .map(|(request, (all, i))| {
                    let (parent, value) = (text(request, "name"), all[*i]);
                    let name = match text(value, "name") {
                        "" => parent.to_owned(),
                        sub => format!("{parent}/{sub}"),
                    };
                    Request { name, parent, class: text(value, "deviceClassName"), value }
                })
                .collect();
            if let Some(devices) = self.meet(claim, &chosen) {
                return Some((chosen, devices));
            }
            // The next combination: later requests change first.
            let next = (0..choice.len()).rev().find(|i| choice[*i] + 1 < alternatives[*i].len())?;
            choice[next] += 1;
            choice[next + 1..].fill(0);
            if self.steps > MOST_STEPS {
                return None;
            }
        }
    }

    fn meet(&mut self, claim: &'a DeviceClaimInfo, requests: &[Request<'a>]) -> Option<Vec<Chosen<'a>>> {
        // The devices that each request may have, and the requests of which one more device is needed.
        let mut suitable: Vec<Vec<Offered<'a>>> = Vec::new();
        let mut needed: Vec<usize> = Vec::new();
        for (i, request) in requests.iter().enumerate() {
            let class = self.offer.devices.class(request.class)?;
            let mut fit: Vec<Offered<'a>> =
                self.offered.iter().filter(|d| self.suits(d, class, request)).copied().collect();
            let count = match text(request.value, "allocationMode") {
                // Devices that are in use, or of an incomplete pool, cannot be left out.
                "All" if fit.is_empty() || fit.iter().any(|d| !d.complete) => return None,
                "All" => {
                    fit.retain(|d| self.share(d, request, &[]).is_some());
                    fit.len()
                }
                _ => request.value["count"].as_u64().map_or(1, |n| n as usize),
            };
            needed.extend(std::iter::repeat_n(i, count.min(MOST_DEVICES + 1)));
            suitable.push(fit);
        }
        if needed.len() > MOST_DEVICES {
            return None;
        }
        let mut chosen = Vec::new();
        self.choose(claim, requests, &suitable, &needed, &mut chosen).then_some(chosen)
    }

    /// Chooses a device for each needed one, depth first.
    fn choose(
        &mut self,
        claim: &'a DeviceClaimInfo,
        requests: &[Request<'a>],
        suitable: &[Vec<Offered<'a>>],
        needed: &[usize],
        chosen: &mut Vec<Chosen<'a>>,
    ) -> bool {
        let Some((request, rest)) = needed.split_first() else { return true };
        for device in &suitable[*request] {
            self.steps += 1;
            if self.steps > MOST_STEPS {
                return false;
            }
            if !device.complete || !self.is_free(device, &requests[*request], chosen) {
                continue;
            }
            let Some(share) = self.share(device, &requests[*request], chosen) else { continue };
            chosen.push(Chosen { request: *request, device: *device, share });
            if self.satisfies(claim, requests, chosen) && self.choose(claim, requests, suitable, rest, chosen) {
                return true;
            }
            chosen.pop();
        }
        false
    }

    /// Whether selectors and tolerations admit a device.
    fn suits(&self, device: &Offered<'a>, class: &'a Value, request: &Request<'a>) -> bool {
        let selectors = list(class, "selectors").chain(list(request.value, "selectors"));
        let taints: Vec<Taint> = list(device.device, "taints").filter_map(|t| Taint::deserialize(t).ok()).collect();
        let tolerations = list(request.value, "tolerations").filter_map(|t| Toleration::deserialize(t).ok());
        let tolerations: Vec<Toleration> = tolerations.collect();
        untolerated(&taints, EXCLUDING, &tolerations).is_none() && are_selected(self.offer.devices, device, selectors)
    }

    /// Whether the device is not in use, and the counters that it shares with others of its pool suffice.
    fn is_free(&self, device: &Offered<'a>, request: &Request<'_>, chosen: &[Chosen<'a>]) -> bool {
        let id = device.id();
        let mut same = chosen.iter().filter(|c| c.device.id() == id);
        let is_admin = request.value["adminAccess"] == true;
        if device.device["allowMultipleAllocations"] == true {
            let has_share = self.in_use().iter().any(|all| all.is_shared(&id)) || same.next().is_some();
            let is_exclusive = self.in_use().iter().any(|all| all.is_exclusive(&id));
            // Whoever has a share already has the counters, too.
            return is_admin || (!is_exclusive && (has_share || self.has_counters(device, chosen)));
        }
        if same.next().is_some() {
            return false;
        }
        is_admin || (!self.is_used(&id) && self.has_counters(device, chosen))
    }

    /// What a request uses of a device: a share of each capacity, or all of it (`Some(None)`). None if the device has not enough capacity.
    fn share(&self, device: &Offered<'a>, request: &Request<'_>, chosen: &[Chosen<'a>]) -> Option<Option<Amounts>> {
        let is_shared = device.device["allowMultipleAllocations"] == true;
        if !is_shared && request.value["capacity"].is_null() {
            return Some(None);
        }
        let amounts = consumed(&request.value["capacity"], device.device)?;
        let id = device.id();
        let here = |name: &str| -> i128 {
            let shares = chosen.iter().filter(|c| c.device.id() == id).filter_map(|c| c.share.as_ref()?.get(name));
            shares.map(meta::Quantity::nano_value).sum()
        };
        let used = |name: &str| self.in_use().iter().map(|all| all.used(&id, name)).sum::<i128>() + here(name);
        suffices(device.device, &amounts, used).then(|| is_shared.then_some(amounts))
    }

    /// Whether the counters of a pool suffice for a device of it (partitionable devices).
    fn has_counters(&self, device: &Offered<'a>, chosen: &[Chosen<'a>]) -> bool {
        if list(device.device, "consumesCounters").next().is_none() {
            return true;
        }
        let Some(pool) = self.pools.get(&(device.driver, device.pool)) else { return false };
        let mut left = pool.counters.clone();
        let is_used = |d: &Offered<'a>| {
            let id = d.id();
            self.is_used(&id) || chosen.iter().any(|c| c.device.id() == id) || id == device.id()
        };
        for d in pool.devices.iter().filter(|d| is_used(d)) {
            counters(&d.device["consumesCounters"], "counterSet", |set, name, amount| {
                *left.entry((set, name)).or_default() -= amount;
            });
        }
        left.values().all(|amount| *amount >= 0)
    }

    /// Whether the constraints of a claim admit the devices chosen so far.
    fn satisfies(&self, claim: &'a DeviceClaimInfo, requests: &[Request<'a>], chosen: &[Chosen<'a>]) -> bool {
        list(&claim.devices, "constraints").all(|constraint| {
            let names: Vec<&str> = list(constraint, "requests").filter_map(Value::as_str).collect();
            let concerned = |c: &&Chosen<'a>| {
                let r = &requests[c.request];
                names.is_empty() || names.iter().any(|n| *n == r.parent || *n == r.name)
            };
            let values = |name: &str| -> Vec<Option<&Value>> {
                chosen.iter().filter(concerned).map(|c| attribute(&c.device, name)).collect()
            };
            if let Some(name) = constraint["matchAttribute"].as_str() {
                let all = values(name);
                return all.iter().all(|v| v.is_some() && *v == all[0]);
            }
            if let Some(name) = constraint["distinctAttribute"].as_str() {
                let all = values(name);
                return all.iter().enumerate().all(|(i, v)| v.is_some() && !all[..i].contains(v));
            }
            // A constraint of a later version.
            false
        })
    }

    /// `status.allocation` of a claim.
    fn result(&self, claim: &DeviceClaimInfo, requests: &[Request<'a>], chosen: &[Chosen<'a>]) -> Value {
        let mut results = Vec::new();
        for c in chosen {
            let request = &requests[c.request];
            let mut result = json!({
                "request": request.name, "driver": c.device.driver, "pool": c.device.pool, "device": c.device.name,
            });
            for field in ["adminAccess", "tolerations"] {
                if !request.value[field].is_null() {
                    result[field] = request.value[field].clone();
                }
            }
            if let Some(share) = &c.share {
                // Replaced when the allocation is reserved.
                result["shareID"] = "".into();
                if !share.is_empty() {
                    let amounts = share.iter().map(|(name, amount)| (name.clone(), amount.to_string().into()));
                    result["consumedCapacity"] = Value::Object(amounts.collect());
                }
            }
            for field in ["bindingConditions", "bindingFailureConditions"] {
                if !c.device.device[field].is_null() {
                    result[field] = c.device.device[field].clone();
                }
            }
            results.push(result);
        }
        let mut config = Vec::new();
        for request in requests {
            for c in self.offer.devices.class(request.class).into_iter().flat_map(|class| list(class, "config")) {
                config.push(json!({"source": "FromClass", "requests": [request.name], "opaque": c["opaque"]}));
            }
        }
        for c in list(&claim.devices, "config") {
            let mut entry = c.clone();
            entry["source"] = "FromClaim".into();
            config.push(entry);
        }
        let mut allocation = json!({"devices": {"results": results}});
        if !config.is_empty() {
            allocation["devices"]["config"] = config.into();
        }
        if let Some(selector) = self.node_selector(chosen) {
            allocation["nodeSelector"] = selector;
        }
        allocation
    }

    /// The nodes that can use all chosen devices; none: all.
    fn node_selector(&self, chosen: &[Chosen<'a>]) -> Option<Value> {
        let mut requirements: Vec<Value> = Vec::new();
        for nodes in chosen.iter().map(|c| c.device.nodes()) {
            if nodes["nodeName"].as_str().is_some_and(|n| !n.is_empty()) {
                let here = json!({"key": "metadata.name", "operator": "In", "values": [&*self.node.meta.name]});
                return Some(json!({"nodeSelectorTerms": [{"matchFields": [here]}]}));
            }
            for term in list(&nodes["nodeSelector"], "nodeSelectorTerms") {
                for requirement in
                    list(term, "matchExpressions").filter(|r| !requirements.contains(r)).collect::<Vec<_>>()
                {
                    requirements.push(requirement.clone());
                }
            }
        }
        (!requirements.is_empty()).then(|| json!({"nodeSelectorTerms": [{"matchExpressions": requirements}]}))
    }
}

/// Whether all selectors select a device. An expression that fails selects nothing.
fn are_selected<'a>(devices: &Devices, device: &Offered<'_>, mut selectors: impl Iterator<Item = &'a Value>) -> bool {
    let subject = Device { driver: device.driver, device: device.device, domains: devices.domains() };
    selectors.all(|s| {
        let program = devices.selectors().get(text(&s["cel"], "expression"));
        program.is_some_and(|p| subject.is_selected(&p).unwrap_or(false))
    })
}

/// How many devices of a class a node reaches, and how many of them claims have or `reserved` has.
pub fn totals(devices: &Devices, reserved: &InUse, class: &str, node: &NodeEntry) -> (i64, i64) {
    let Some(class) = devices.class(class) else { return (0, 0) };
    let pools = devices.pools(&node.meta.name);
    let all = pools.iter().flat_map(|pool| pool.devices()).filter(|d| reaches(d.nodes(), node));
    all.filter(|d| are_selected(devices, d, list(class, "selectors")))
        .map(|d| devices.in_use().has(&d.id()) || reserved.has(&d.id()))
        .fold((0, 0), |(all, used), is_used| (all + 1, used + i64::from(is_used)))
}

/// Whether a claim that has devices can be used on a node.
pub fn is_usable(claim: &DeviceClaim, node: &NodeEntry) -> bool {
    is_available(&claim.view.allocation, node)
}

#[cfg(test)]
#[path = "allocation_tests.rs"]
mod tests;
