//! Allocates devices for the resource claims of pods.

mod conditions;
mod preference;
mod write;

use crate::allocation::{Allocator, Offer, is_usable};
use crate::capacity::InUse;
use crate::cluster::{Cluster, Node, NodeEntry};
use crate::devices::{DeviceClaim, Devices, Selectors};
use crate::framework::{
    NodeFilter, NodeScore, Plugin, Point, PostFilter, PostFilterContext, PreFilter, Read, Refusal, normalize,
};
use crate::plugins::Handle;
use crate::pod::Pod;
use client::{Client, Error};
use futures::future::BoxFuture;
use meta::{Clock, Rng};
use parking_lot::Mutex;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

const NAME: &str = "DynamicResources";

/// The most pods that may use a claim.
const MOST_CONSUMERS: usize = 256;

/// A claim that a pod may use, and the devices for it; null if it has them already.
type Reservation = (Arc<DeviceClaim>, Value);

#[derive(Default)]
struct Reserved {
    /// By UID of the pod.
    pods: HashMap<Arc<str>, Vec<Reservation>>,
    /// The allocations that the claims do not show yet, by UID of the claim.
    allocations: HashMap<Arc<str>, Value>,
}

pub struct DynamicResources {
    client: Option<Client>,
    clock: Option<Arc<dyn Clock>>,
    rng: Option<Arc<dyn Rng>>,
    /// How long devices may take to be bound.
    timeout: Duration,
    selectors: Selectors,
    reserved: Mutex<Reserved>,
}

impl DynamicResources {
    pub fn new(handle: &Handle, timeout: Duration) -> Self {
        Self {
            client: handle.client.clone(),
            clock: handle.clock.clone(),
            rng: handle.rng.clone(),
            timeout,
            selectors: Selectors::default(),
            reserved: Mutex::default(),
        }
    }

    /// Whether a pod can use on this node what a claim has: the node reaches the devices, and binding them has not failed.
    fn is_available(&self, claim: &DeviceClaim, node: &NodeEntry) -> bool {
        is_usable(claim, node) && !conditions::has_failed(&claim.view, self.timeout, self.clock.as_deref())
    }

    /// A claim whose devices the pod cannot use on some node, and that only this pod may use: it may get others.
    fn replaceable<'a>(&self, pod: &Pod, cluster: &'a Cluster) -> Option<&'a Arc<DeviceClaim>> {
        let claims = Self::claims(pod, cluster.devices()).ok()?;
        let nodes = || cluster.nodes().iter().filter_map(|n| n.entry.as_ref());
        let unavailable = |c: &DeviceClaim| nodes().any(|node| !self.is_available(c, node));
        claims.into_iter().find(|c| {
            let only_this = c.view.reserved_for.iter().all(|uid| **uid == *pod.meta.uid);
            !c.view.allocation.is_null() && only_this && unavailable(c)
        })
    }

    /// Names each share of a device.
    fn name_shares(&self, allocation: &mut Value) {
        let Some(rng) = &self.rng else { return };
        let results = allocation["devices"]["results"].as_array_mut().into_iter().flatten();
        for result in results.filter(|r| !r["shareID"].is_null()) {
            result["shareID"] = meta::random::uuid(&**rng).into();
        }
    }

    /// The claims of a pod. Errors if one is missing or cannot be used.
    fn claims<'a>(pod: &Pod, devices: &'a Devices) -> Result<Vec<&'a Arc<DeviceClaim>>, String> {
        let mut claims = Vec::new();
        for claim in &pod.view.device_claims {
            let Some(name) = &claim.name else {
                let (ns, pod) = (&pod.meta.namespace, &pod.meta.name);
                return Err(format!("pod \"{ns}/{pod}\": ResourceClaim not created yet"));
            };
            let Some(found) = devices.claim(&pod.meta.namespace, name) else {
                return Err(format!("resourceclaim \"{name}\" not found"));
            };
            if found.meta.is_deleting() {
                return Err(format!("resourceclaim \"{name}\" is being deleted"));
            }
            let owner = found.meta.controller();
            if claim.is_generated && owner.is_none_or(|o| *o.uid != *pod.meta.uid) {
                let (ns, pod) = (&pod.meta.namespace, &pod.meta.name);
                return Err(format!("ResourceClaim {ns}/{name} was not created for pod {ns}/{pod} (pod is not owner)"));
            }
            let consumers = &found.view.reserved_for;
            if consumers.len() >= MOST_CONSUMERS && !consumers.iter().any(|c| **c == *pod.meta.uid) {
                return Err("resourceclaim in use".into());
            }
            let requests = found.view.devices["requests"].as_array().into_iter().flatten();
            for request in requests.filter(|_| found.view.allocation.is_null()) {
                let alternatives = request["firstAvailable"].as_array().into_iter().flatten();
                let exactly = Some(&request["exactly"]).filter(|e| e.is_object());
                for class in alternatives.chain(exactly).filter_map(|r| r["deviceClassName"].as_str()) {
                    if devices.class(class).is_none() {
                        let name = request["name"].as_str().unwrap_or_default();
                        return Err(format!("request {name}: device class {class} does not exist"));
                    }
                }
            }
            claims.push(found);
        }
        Ok(claims)
    }

    /// What claims get that do not show it yet.
    fn reserved(&self, devices: &Devices) -> InUse {
        let mut in_use = InUse::default();
        let is_written = |uid: &str| devices.claim_by_uid(uid).is_some_and(|c| !c.view.allocation.is_null());
        let reserved = self.reserved.lock();
        let pending = reserved.allocations.iter().filter(|(uid, _)| !is_written(uid));
        pending.for_each(|(_, allocation)| in_use.add(allocation));
        in_use
    }

    /// What a pod needs on a node: its claims, with devices for those that have none. Errors with the reason why it cannot be had.
    fn plan(&self, check: &Check<'_>, node: &NodeEntry) -> Result<Vec<Reservation>, &'static str> {
        let missing: Vec<&Arc<DeviceClaim>> =
            check.claims.iter().filter(|c| c.view.allocation.is_null()).copied().collect();
        if check.claims.iter().any(|c| !c.view.allocation.is_null() && !self.is_available(c, node)) {
            return Err("resourceclaim not available on the node");
        }
        let mut allocations = Vec::new();
        if !missing.is_empty() {
            let mut allocator = Allocator::new(&check.offer, &self.selectors, node);
            allocations = allocator.allocate(&missing).ok_or("cannot allocate all claims")?;
        }
        let mut allocations = allocations.into_iter();
        let reserve = |claim: &&Arc<DeviceClaim>| {
            let new = claim.view.allocation.is_null().then(|| allocations.next()).flatten();
            ((*claim).clone(), new.unwrap_or(Value::Null))
        };
        Ok(check.claims.iter().map(reserve).collect())
    }
}

struct Check<'a> {
    plugin: &'a DynamicResources,
    offer: Offer<'a>,
    claims: Vec<&'a Arc<DeviceClaim>>,
}

impl<'a> Check<'a> {
    fn new(plugin: &'a DynamicResources, pod: &Pod, devices: &'a Devices) -> Result<Self, Refusal> {
        let claims = DynamicResources::claims(pod, devices).map_err(|why| Refusal::unresolvable(NAME, why))?;
        if let Some(claim) = claims.iter().find(|c| plugin.reserved.lock().allocations.contains_key(&c.meta.uid)) {
            let key = format!("{}/{}", claim.meta.namespace, claim.meta.name);
            let why = format!("resource claim {key} is in the process of being allocated");
            return Err(Refusal::unresolvable(NAME, why));
        }
        Ok(Self { plugin, offer: Offer::new(devices, plugin.reserved(devices)), claims })
    }
}

impl Plugin for DynamicResources {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> &'static [Point] {
        &[
            Point::PreFilter,
            Point::Filter,
            Point::PostFilter,
            Point::PreScore,
            Point::Score,
            Point::Reserve,
            Point::PreBind,
        ]
    }

    fn pre_filter<'a>(&'a self, pod: &'a Pod, cluster: &'a Cluster) -> PreFilter<'a> {
        if pod.view.device_claims.is_empty() {
            return Ok(None);
        }
        self.forget_written(cluster.devices());
        Ok(Some(Box::new(Check::new(self, pod, cluster.devices())?)))
    }

    fn reads(&self) -> &'static [Read] {
        &[Read::Nodes, Read::NodeLabels, Read::Devices, Read::OwnClaims]
    }

    fn post_filter(&self, context: &PostFilterContext<'_>) -> PostFilter {
        if let (Some(claim), Some(client)) = (self.replaceable(context.pod, context.cluster), &self.client) {
            let (client, claim) = (client.clone(), claim.clone());
            let write = Box::pin(async move { write::deallocate(&client, &claim).await });
            return PostFilter::Repair { message: "deallocation of ResourceClaim completed".into(), write };
        }
        let reason = match context.pod.view.device_claims.is_empty() {
            true => "no new claims to deallocate",
            false => "still not schedulable",
        };
        PostFilter::Refused(reason.into())
    }

    fn pre_score<'a>(&'a self, pod: &'a Pod, cluster: &'a Cluster, _: &[&'a Node]) -> Option<Box<dyn NodeScore + 'a>> {
        let check = Check::new(self, pod, cluster.devices()).ok().filter(|c| !c.claims.is_empty())?;
        let has_choice = |c: &Arc<DeviceClaim>| preference::alternatives(&c.view.devices).next().is_some();
        check.claims.iter().any(|c| has_choice(c)).then(|| Box::new(Preferred(check)) as _)
    }

    fn reserve(&self, pod: &Pod, node: &str, cluster: &Cluster) -> Result<(), Refusal> {
        let entry = cluster.node(node).and_then(|n| n.entry.as_ref());
        let (false, Some(entry)) = (pod.view.device_claims.is_empty(), entry) else { return Ok(()) };
        let check = Check::new(self, pod, cluster.devices())?;
        let mut plan = self.plan(&check, entry).map_err(|why| Refusal::unresolvable(NAME, why))?;
        plan.iter_mut().for_each(|(_, allocation)| self.name_shares(allocation));
        let mut reserved = self.reserved.lock();
        for (claim, allocation) in plan.iter().filter(|(_, a)| !a.is_null()) {
            reserved.allocations.insert(claim.meta.uid.clone(), allocation.clone());
        }
        reserved.pods.insert(pod.meta.uid.clone(), plan);
        Ok(())
    }

    fn unreserve(&self, pod: &Pod, _: &str) {
        let mut reserved = self.reserved.lock();
        for (claim, _) in reserved.pods.remove(&pod.meta.uid).into_iter().flatten() {
            reserved.allocations.remove(&claim.meta.uid);
        }
    }

    fn pre_bind(&self, pod: &Arc<Pod>, _: &Arc<str>) -> Option<BoxFuture<'static, Result<(), Error>>> {
        let plan = self.reserved.lock().pods.get(&pod.meta.uid).cloned()?;
        let (client, clock, timeout, pod) = (self.client.clone()?, self.clock.clone()?, self.timeout, pod.clone());
        Some(Box::pin(async move {
            for (claim, allocation) in &plan {
                write::reserve(&client, &*clock, &pod, claim, allocation).await?;
            }
            for (claim, _) in &plan {
                conditions::wait(&client, &*clock, claim, timeout).await?;
            }
            Ok(())
        }))
    }

    fn post_bind(&self, pod: &Pod, _: &str) {
        self.reserved.lock().pods.remove(&pod.meta.uid);
    }
}

impl DynamicResources {
    /// Forgets the allocations that the claims show, and those of claims that are gone.
    fn forget_written(&self, devices: &Devices) {
        let mut reserved = self.reserved.lock();
        let Reserved { pods, allocations } = &mut *reserved;
        let waiting: HashMap<&Arc<str>, &Arc<DeviceClaim>> =
            pods.values().flatten().map(|(claim, _)| (&claim.meta.uid, claim)).collect();
        allocations.retain(|uid, _| {
            waiting.contains_key(uid) || devices.claim_by_uid(uid).is_some_and(|c| c.view.allocation.is_null())
        });
    }
}

/// Scores nodes by the alternatives that requests get there: earlier ones are better.
struct Preferred<'a>(Check<'a>);

impl NodeScore for Preferred<'_> {
    fn score(&self, node: &Node) -> i64 {
        let plan = node.entry.as_ref().and_then(|entry| self.0.plugin.plan(&self.0, entry).ok());
        let score = |(claim, new): &Reservation| {
            let allocation = if new.is_null() { &claim.view.allocation } else { new };
            preference::score(&claim.view.devices, allocation)
        };
        plan.iter().flatten().map(score).sum()
    }

    fn normalize(&self, scores: &mut [i64]) {
        normalize(scores, false);
    }
}

impl NodeFilter for Check<'_> {
    fn check(&self, node: &Node) -> Result<(), Refusal> {
        let Some(entry) = &node.entry else { return Ok(()) };
        self.plugin.plan(self, entry).map(|_| ()).map_err(|why| Refusal::unresolvable(NAME, why))
    }
}
