//! Allocates devices on a node for resource claims (upstream `structured/allocator.go`). Pure.
//!
//! Devices are tried in the order of their pools and slices, with backtracking. The number of steps and the time are limited: users write
//! the requests and their selectors.

use crate::capacity::{Amounts, InUse, consumed, suffices};
use crate::cluster::NodeEntry;
use crate::devices::{DeviceClaim, DeviceClaimInfo, DeviceId, Devices, Offered, is_available, reaches};
use expressions::Device;
use meta::Quantity;
use placement::{EXCLUDING, Taint, Toleration, untolerated};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::HashMap;
use tokio::time::Instant;

/// The most devices that are tried for the claims of a pod on a node.
const MOST_STEPS: usize = 50_000;
/// The time is looked at after so many steps: one may look at all devices of a pool.
const STEPS_TO_CLOCK: usize = 64;
/// The most devices of one claim.
const MOST_DEVICES: usize = 32;

/// A request, or a subrequest that stands for it.
#[derive(Clone)]
struct Request<'a> {
    /// The name in results: `request`, or `request/subrequest`.
    name: String,
    /// The name of the request itself.
    parent: &'a str,
    class: &'a str,
    value: &'a Value,
}

/// One of the ways to meet a request.
struct Alternative<'a> {
    request: Request<'a>,
    /// The devices that it may have, and how many it needs; none if that is not known yet.
    suitable: Option<(Vec<Offered<'a>>, usize)>,
}

impl<'a> Alternative<'a> {
    fn of_request(request: &'a Value) -> Vec<Self> {
        let parent = text(request, "name");
        let alternative = |value: &'a Value| {
            let name = match text(value, "name") {
                "" => parent.to_owned(),
                sub => format!("{parent}/{sub}"),
            };
            let request = Request { name, parent, class: text(value, "deviceClassName"), value };
            Self { request, suitable: None }
        };
        let first: Vec<Self> = list(request, "firstAvailable").map(alternative).collect();
        if first.is_empty() { vec![alternative(&request["exactly"])] } else { first }
    }

    fn is_hopeless(&self) -> bool {
        self.suitable.as_ref().is_some_and(|(devices, _)| devices.is_empty())
    }

    fn devices(&self) -> (&[Offered<'a>], usize) {
        self.suitable.as_ref().map_or((&[], 0), |(devices, count)| (devices, *count))
    }
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
    /// When the search ends.
    until: Option<Instant>,
}

impl<'a> Offer<'a> {
    pub fn new(devices: &'a Devices, reserved: InUse, until: Option<Instant>) -> Self {
        Self { devices, reserved, until }
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

/// The requests of a claim, and the devices that they get.
type Met<'a> = (Vec<Request<'a>>, Vec<Chosen<'a>>);

/// Why the search for devices failed, other than for lack of them.
#[derive(Debug)]
pub enum AllocationError {
    Selector(SelectorError),
    TimedOut,
}

impl From<SelectorError> for AllocationError {
    fn from(e: SelectorError) -> Self {
        Self::Selector(e)
    }
}

/// A selector whose evaluation failed for a device.
#[derive(Debug)]
pub struct SelectorError {
    /// The index of the claim.
    pub claim: usize,
    /// The class that has the selector; none if it is the claim.
    pub class: Option<String>,
    /// The index of the selector.
    pub selector: usize,
    pub source: cel::Error,
}

impl SelectorError {
    /// In upstream's words. `claim`: the name of its claim.
    pub fn message(&self, claim: &str) -> String {
        let Self { class, selector, source, .. } = self;
        let of = class.as_ref().map_or_else(|| format!("claim {claim}"), |class| format!("class {class}"));
        format!("{of}: selector #{selector}: CEL runtime error: {source}")
    }
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
    /// Errors if a selector fails, whatever else there is: its claim or class is wrong.
    pub fn allocate(&mut self, claims: &[&'a DeviceClaimInfo]) -> Result<Option<Vec<Value>>, AllocationError> {
        let mut allocations = Vec::new();
        for (index, claim) in claims.iter().enumerate() {
            let found = self.claim(claim).map_err(|e| match e {
                AllocationError::Selector(e) => SelectorError { claim: index, ..e }.into(),
                AllocationError::TimedOut => AllocationError::TimedOut,
            })?;
            let Some((requests, chosen)) = found else { return Ok(None) };
            for c in chosen.iter().filter(|c| requests[c.request].value["adminAccess"] != true) {
                match &c.share {
                    Some(share) => self.taken.add_shared(c.device.id(), share.iter().map(|(name, q)| (name, *q))),
                    None => self.taken.add_exclusive(c.device.id()),
                }
            }
            allocations.push(self.result(claim, &requests, &chosen));
        }
        Ok(Some(allocations))
    }

    /// The devices of one claim: the first alternatives of its requests that can be met together.
    fn claim(&mut self, claim: &'a DeviceClaimInfo) -> Result<Option<Met<'a>>, AllocationError> {
        let mut requests: Vec<Vec<Alternative<'a>>> =
            list(&claim.devices, "requests").map(Alternative::of_request).collect();
        let mut choice = vec![0; requests.len()];
        loop {
            self.check_time()?;
            // The next combination: later requests change first. One that can have no device has to change itself, or those before it.
            let last = match self.without_devices(&mut requests, &choice)? {
                Some(request) if requests[request].iter().all(Alternative::is_hopeless) => return Ok(None),
                Some(request) => request + 1,
                None => {
                    let chosen = requests.iter().zip(&choice).map(|(all, i)| &all[*i]);
                    let (chosen, suitable) = chosen.map(|a| (a.request.clone(), a.devices())).unzip();
                    if let Some(devices) = self.meet(claim, &chosen, &suitable) {
                        return Ok(Some((chosen, devices)));
                    }
                    choice.len()
                }
            };
            let next = (0..last).rev().find(|i| choice[*i] + 1 < requests[*i].len());
            let Some(next) = next else {
                self.check_time()?;
                return Ok(None);
            };
            choice[next] += 1;
            choice[next + 1..].fill(0);
            if self.is_over() {
                self.check_time()?;
                return Ok(None);
            }
        }
    }

    /// The first request for whose chosen alternative there is no device, whatever the others get. Selectors are evaluated once.
    fn without_devices(
        &self,
        requests: &mut [Vec<Alternative<'a>>],
        choice: &[usize],
    ) -> Result<Option<usize>, AllocationError> {
        for (i, (all, chosen)) in requests.iter_mut().zip(choice).enumerate() {
            let alternative = &mut all[*chosen];
            if alternative.suitable.is_none() {
                alternative.suitable = Some(self.suitable(&alternative.request)?);
            }
            if alternative.is_hopeless() {
                return Ok(Some(i));
            }
        }
        Ok(None)
    }

    /// The devices that a request may have, and how many it needs. Without devices, it cannot be met.
    fn suitable(&self, request: &Request<'a>) -> Result<(Vec<Offered<'a>>, usize), AllocationError> {
        let none = (Vec::new(), 0);
        let Some(class) = self.offer.devices.class(request.class) else { return Ok(none) };
        let mut fit: Vec<Offered<'a>> = Vec::new();
        for device in &self.offered {
            self.check_time()?;
            if self.suits(device, class, request)? {
                fit.push(*device);
            }
        }
        if text(request.value, "allocationMode") != "All" {
            return Ok((fit, request.value["count"].as_u64().map_or(1, |n| n as usize)));
        }
        // Devices that are in use, or of an incomplete pool, cannot be left out.
        if fit.iter().any(|d| !d.complete) {
            return Ok(none);
        }
        fit.retain(|d| self.share(d, request, &[]).is_some());
        let count = fit.len();
        Ok((fit, count))
    }

    fn meet(
        &mut self,
        claim: &'a DeviceClaimInfo,
        requests: &Vec<Request<'a>>,
        suitable: &Vec<(&[Offered<'a>], usize)>,
    ) -> Option<Vec<Chosen<'a>>> {
        // The requests of which one more device is needed.
        let mut needed: Vec<usize> = Vec::new();
        for (i, (_, count)) in suitable.iter().enumerate() {
            needed.extend(std::iter::repeat_n(i, (*count).min(MOST_DEVICES + 1)));
        }
        let mut chosen = Vec::new();
        let all = needed.len() <= MOST_DEVICES && self.choose(claim, requests, suitable, &needed, &mut chosen);
        all.then_some(chosen)
    }

    /// Counts a step. Whether it is one too many, or the time is over.
    fn is_over(&mut self) -> bool {
        self.steps += 1;
        if self.steps.is_multiple_of(STEPS_TO_CLOCK) && self.check_time().is_err() {
            self.steps = MOST_STEPS + 1;
        }
        self.steps > MOST_STEPS
    }

    fn check_time(&self) -> Result<(), AllocationError> {
        match self.offer.until {
            Some(until) if Instant::now() > until => Err(AllocationError::TimedOut),
            _ => Ok(()),
        }
    }

    /// Chooses a device for each needed one, depth first.
    fn choose(
        &mut self,
        claim: &'a DeviceClaimInfo,
        requests: &[Request<'a>],
        suitable: &[(&[Offered<'a>], usize)],
        needed: &[usize],
        chosen: &mut Vec<Chosen<'a>>,
    ) -> bool {
        let Some((request, rest)) = needed.split_first() else { return true };
        for device in suitable[*request].0 {
            if self.is_over() {
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
    fn suits(&self, device: &Offered<'a>, class: &'a Value, request: &Request<'a>) -> Result<bool, SelectorError> {
        let taints: Vec<Taint> = list(device.device, "taints").filter_map(|t| Taint::deserialize(t).ok()).collect();
        let tolerations = list(request.value, "tolerations").filter_map(|t| Toleration::deserialize(t).ok());
        let tolerations: Vec<Toleration> = tolerations.collect();
        if untolerated(&taints, EXCLUDING, &tolerations).is_some() {
            return Ok(false);
        }
        let failed = |class: Option<&str>| {
            let class = class.map(str::to_owned);
            move |(selector, source)| SelectorError { claim: 0, class, selector, source }
        };
        let devices = self.offer.devices;
        Ok(are_selected(devices, device, list(class, "selectors")).map_err(failed(Some(request.class)))?
            && are_selected(devices, device, list(request.value, "selectors")).map_err(failed(None))?)
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

/// Whether all selectors select a device. Errors with the index of one whose evaluation fails.
fn are_selected<'a>(
    devices: &Devices,
    device: &Offered<'_>,
    selectors: impl Iterator<Item = &'a Value>,
) -> Result<bool, (usize, cel::Error)> {
    let subject = Device { driver: device.driver, device: device.device, domains: devices.domains() };
    for (i, selector) in selectors.enumerate() {
        let Some(program) = devices.selectors().get(text(&selector["cel"], "expression")) else { return Ok(false) };
        if !subject.is_selected(&program).map_err(|e| (i, e))? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// How many devices of a class a node reaches, and how many of them claims have or `reserved` has.
pub fn totals(devices: &Devices, reserved: &InUse, class: &str, node: &NodeEntry) -> (i64, i64) {
    let Some(class) = devices.class(class) else { return (0, 0) };
    let pools = devices.pools(&node.meta.name);
    let all = pools.iter().flat_map(|pool| pool.devices()).filter(|d| reaches(d.nodes(), node));
    all.filter(|d| are_selected(devices, d, list(class, "selectors")).unwrap_or(false))
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
