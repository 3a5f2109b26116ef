//! Allocates devices for the resource claims of pods.

mod write;

use crate::allocation::{Allocator, Offer, is_usable};
use crate::cluster::{Cluster, Node, NodeEntry};
use crate::devices::{DeviceClaim, DeviceId, Devices, Selectors, allocated};
use crate::framework::{NodeFilter, Plugin, Point, PostFilter, PostFilterContext, PreFilter, Read, Refusal};
use crate::pod::Pod;
use client::{Client, Error};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

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
    selectors: Selectors,
    reserved: Mutex<Reserved>,
}

impl DynamicResources {
    pub fn new(client: Option<Client>) -> Self {
        Self { client, selectors: Selectors::default(), reserved: Mutex::default() }
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

    /// The devices that claims have, or will have.
    fn in_use(&self, devices: &Devices) -> HashSet<DeviceId> {
        let mut in_use = devices.in_use();
        in_use.extend(self.reserved.lock().allocations.values().flat_map(allocated));
        in_use
    }

    /// What a pod needs on a node: its claims, with devices for those that have none. Errors with the reason why it cannot be had.
    fn plan(&self, check: &Check<'_>, node: &NodeEntry) -> Result<Vec<Reservation>, &'static str> {
        let missing: Vec<&Arc<DeviceClaim>> =
            check.claims.iter().filter(|c| c.view.allocation.is_null()).copied().collect();
        if check.claims.iter().any(|c| !c.view.allocation.is_null() && !is_usable(c, node)) {
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
        Ok(Self { plugin, offer: Offer::new(devices, plugin.in_use(devices)), claims })
    }
}

impl Plugin for DynamicResources {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> &'static [Point] {
        &[Point::PreFilter, Point::Filter, Point::PostFilter, Point::Reserve, Point::PreBind]
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
        let reason = match context.pod.view.device_claims.is_empty() {
            true => "no new claims to deallocate",
            false => "still not schedulable",
        };
        PostFilter::Refused(reason.into())
    }

    fn reserve(&self, pod: &Pod, node: &str, cluster: &Cluster) -> Result<(), Refusal> {
        let entry = cluster.node(node).and_then(|n| n.entry.as_ref());
        let (false, Some(entry)) = (pod.view.device_claims.is_empty(), entry) else { return Ok(()) };
        let check = Check::new(self, pod, cluster.devices())?;
        let plan = self.plan(&check, entry).map_err(|why| Refusal::unresolvable(NAME, why))?;
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
        let (client, pod) = (self.client.clone()?, pod.clone());
        Some(Box::pin(async move {
            for (claim, allocation) in &plan {
                write::reserve(&client, &pod, claim, allocation).await?;
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

impl NodeFilter for Check<'_> {
    fn check(&self, node: &Node) -> Result<(), Refusal> {
        let Some(entry) = &node.entry else { return Ok(()) };
        self.plugin.plan(self, entry).map(|_| ()).map_err(|why| Refusal::unresolvable(NAME, why))
    }
}
