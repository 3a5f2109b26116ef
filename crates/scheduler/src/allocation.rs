//! Allocates devices on a node for resource claims (upstream `structured/allocator.go`). Pure.
//!
//! Devices are tried in the order of their pools and slices, with backtracking over all claims of the pod. The number of steps and the
//! time are limited: users write the requests and their selectors.

mod pools;
mod search;

use crate::capacity::{Amounts, InUse};
use crate::cluster::NodeEntry;
use crate::devices::{DeviceClaim, DeviceClaimInfo, DeviceId, Devices, Offered, is_available, reaches};
use expressions::Device;
use placement::Toleration;
use pools::{Pools, State};
use search::Search;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::HashMap;
use tokio::time::Instant;

/// The most steps of the search for the claims of a pod on a node.
const MOST_STEPS: usize = 50_000;
/// The time is looked at after so many devices.
const STEPS_TO_CLOCK: usize = 64;
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

impl<'a> Request<'a> {
    fn is_admin(&self) -> bool {
        self.value["adminAccess"] == true
    }

    /// Whether it is a subrequest.
    fn is_alternative(&self) -> bool {
        self.name != self.parent
    }

    /// The name of the request or subrequest, without its parent's.
    fn own_name(&self) -> &'a str {
        if self.is_alternative() { text(self.value, "name") } else { self.parent }
    }
}

/// One of the ways to meet a request.
struct Alternative<'a> {
    request: Request<'a>,
    /// None if its class does not exist.
    class: Option<&'a Value>,
    tolerations: Vec<Toleration>,
    /// How many devices it needs.
    count: usize,
    /// The devices, if it asks for all of them.
    all: Vec<usize>,
    /// Whether it selects a device, for those that were tried.
    selected: HashMap<usize, bool>,
}

impl<'a> Alternative<'a> {
    fn of_request(devices: &'a Devices, request: &'a Value) -> Vec<Self> {
        let parent = text(request, "name");
        let alternative = |value: &'a Value, name: String| {
            let request = Request { name, parent, class: text(value, "deviceClassName"), value };
            let tolerations = list(value, "tolerations").filter_map(|t| Toleration::deserialize(t).ok());
            Self {
                class: devices.class(request.class),
                tolerations: tolerations.collect(),
                count: value["count"].as_u64().map_or(1, |n| n as usize),
                request,
                all: Vec::new(),
                selected: HashMap::new(),
            }
        };
        let sub = |value| alternative(value, format!("{parent}/{}", text(value, "name")));
        let first: Vec<Self> = list(request, "firstAvailable").map(sub).collect();
        if first.is_empty() { vec![alternative(&request["exactly"], parent.to_owned())] } else { first }
    }

    fn wants_all(&self) -> bool {
        text(self.request.value, "allocationMode") == "All"
    }
}

/// A device for a request.
struct Chosen {
    request: usize,
    device: usize,
    /// What the request uses of a device that others may share.
    share: Option<Amounts>,
    /// Whether it uses counters of its pool.
    consumes: bool,
}

/// What a claim needs, and what it gets.
struct Demand<'a> {
    claim: &'a DeviceClaimInfo,
    /// The alternatives of each request.
    requests: Vec<Vec<Alternative<'a>>>,
    /// The alternative of each request that is tried.
    choice: Vec<usize>,
    chosen: Vec<Chosen>,
}

impl<'a> Demand<'a> {
    fn new(devices: &'a Devices, claim: &'a DeviceClaimInfo) -> Self {
        let requests: Vec<_> =
            list(&claim.devices, "requests").map(|request| Alternative::of_request(devices, request)).collect();
        Self { claim, choice: vec![0; requests.len()], requests, chosen: Vec::new() }
    }

    /// The alternative of a request that is tried.
    fn alternative(&self, request: usize) -> &Alternative<'a> {
        &self.requests[request][self.choice[request]]
    }

    fn alternatives(&self) -> impl Iterator<Item = &Alternative<'a>> {
        (0..self.requests.len()).map(|request| self.alternative(request))
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
    pools: Pools<'a>,
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

/// What a search for devices found.
#[derive(Debug)]
pub enum Found {
    /// The allocations of the claims, in their order.
    Allocations(Vec<Value>),
    /// The devices do not suffice.
    Nothing,
    /// The devices do not suffice, and some are left out because their pool is invalid.
    InvalidPools,
}

/// Why the search for devices failed, other than for lack of them.
#[derive(Debug)]
pub enum AllocationError {
    Selector(SelectorError),
    /// The claim with this index cannot be met, whichever devices there are. `why` follows its name.
    Claim {
        claim: usize,
        why: String,
    },
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
        Self { offer, node, pools: Pools::new(offer.devices, node) }
    }

    /// What others have or get.
    fn in_use(&self) -> [&InUse; 2] {
        [self.offer.devices.in_use(), &self.offer.reserved]
    }

    fn is_used(&self, device: &DeviceId) -> bool {
        self.in_use().iter().any(|all| all.has(device))
    }

    /// The allocations of all claims. Errors if one cannot be met whichever node it is: its claim or class is wrong.
    pub fn allocate(&self, claims: &[&'a DeviceClaimInfo]) -> Result<Found, AllocationError> {
        let mut demands: Vec<Demand<'a>> = claims.iter().map(|claim| Demand::new(self.offer.devices, claim)).collect();
        let mut search = Search::new(self, &mut demands);
        search.prepare()?;
        if search.run()? {
            return Ok(Found::Allocations(demands.iter().map(|demand| self.result(demand)).collect()));
        }
        let has_invalid = self.pools.all.iter().any(|pool| pool.state == State::Invalid);
        Ok(if has_invalid { Found::InvalidPools } else { Found::Nothing })
    }

    /// `status.allocation` of a claim.
    fn result(&self, demand: &Demand<'a>) -> Value {
        let mut results = Vec::new();
        for c in &demand.chosen {
            let (request, device) = (&demand.alternative(c.request).request, &self.pools.devices[c.device]);
            let mut result =
                json!({"request": request.name, "driver": device.driver, "pool": device.pool, "device": device.name});
            if request.is_admin() {
                result["adminAccess"] = true.into();
            }
            if !request.value["tolerations"].is_null() {
                result["tolerations"] = request.value["tolerations"].clone();
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
                if !device.device[field].is_null() {
                    result[field] = device.device[field].clone();
                }
            }
            results.push(result);
        }
        let mut allocation = json!({"devices": {"results": results}});
        let config = configuration(demand);
        if !config.is_empty() {
            allocation["devices"]["config"] = config.into();
        }
        if let Some(selector) = self.node_selector(&demand.chosen) {
            allocation["nodeSelector"] = selector;
        }
        allocation
    }

    /// The nodes that can use all chosen devices; none: all.
    fn node_selector(&self, chosen: &[Chosen]) -> Option<Value> {
        let (mut expressions, mut fields): (Vec<Value>, Vec<Value>) = (Vec::new(), Vec::new());
        for device in chosen.iter().map(|c| &self.pools.devices[c.device]) {
            let nodes = device.nodes();
            if !text(nodes, "nodeName").is_empty() || device.device["bindsToNode"] == true {
                let here = json!({"key": "metadata.name", "operator": "In", "values": [&*self.node.meta.name]});
                return Some(json!({"nodeSelectorTerms": [{"matchFields": [here]}]}));
            }
            for term in list(&nodes["nodeSelector"], "nodeSelectorTerms") {
                for (all, field) in [(&mut expressions, "matchExpressions"), (&mut fields, "matchFields")] {
                    for requirement in list(term, field) {
                        if !all.contains(requirement) {
                            all.push(requirement.clone());
                        }
                    }
                }
            }
        }
        let mut term = json!({});
        for (requirements, field) in [(expressions, "matchExpressions"), (fields, "matchFields")] {
            if !requirements.is_empty() {
                term[field] = requirements.into();
            }
        }
        (term != json!({})).then(|| json!({"nodeSelectorTerms": [term]}))
    }
}

/// The configuration for drivers: that of each class once, with the requests that use it, and that of the claim for these requests.
fn configuration(demand: &Demand<'_>) -> Vec<Value> {
    let mut classes: Vec<(&str, Vec<&str>)> = Vec::new();
    for a in demand.alternatives() {
        match classes.iter_mut().find(|(class, _)| *class == a.request.class) {
            Some((_, requests)) => requests.push(&a.request.name),
            None => classes.push((a.request.class, vec![&a.request.name])),
        }
    }
    let mut config = Vec::new();
    for (class, requests) in classes {
        let spec = demand.alternatives().find(|a| a.request.class == class).and_then(|a| a.class);
        for c in spec.into_iter().flat_map(|spec| list(spec, "config")) {
            config.push(json!({"source": "FromClass", "requests": requests, "opaque": c["opaque"]}));
        }
    }
    for c in list(&demand.claim.devices, "config") {
        let mut names = list(c, "requests").filter_map(Value::as_str).peekable();
        let is_used = |name: &str| demand.alternatives().any(|a| name == a.request.parent || name == a.request.name);
        if names.peek().is_none() || names.any(is_used) {
            let mut entry = c.clone();
            entry["source"] = "FromClaim".into();
            config.push(entry);
        }
    }
    config
}

/// Whether class and request select a device.
fn select(
    devices: &Devices,
    device: &Offered<'_>,
    alternative: &Alternative<'_>,
    claim: usize,
) -> Result<bool, SelectorError> {
    let failed = |class: Option<&str>| {
        let class = class.map(str::to_owned);
        move |(selector, source)| SelectorError { claim, class, selector, source }
    };
    let request = &alternative.request;
    let Some(class) = alternative.class else { return Ok(false) };
    Ok(are_selected(devices, device, list(class, "selectors")).map_err(failed(Some(request.class)))?
        && are_selected(devices, device, list(request.value, "selectors")).map_err(failed(None))?)
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
