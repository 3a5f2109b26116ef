//! Allocates devices for the resource claims of pods.

mod conditions;
mod extended;
mod preference;
mod reserved;
mod write;

use crate::allocation::{AllocationError, Allocator, Found, Offer, is_usable};
use crate::cluster::{Cluster, Node, NodeEntry};
use crate::devices::{DeviceClaim, DeviceClaimInfo, Devices};
use crate::framework::{
    NodeFilter, NodeScore, Plugin, Point, PostFilter, PostFilterContext, PreFilter, PreScore, Read, Refusal, normalize,
};
use crate::plugins::Handle;
use crate::pod::Pod;
use client::{Client, Error, Recorder, Regarding, Severity};
use extended::{Extended, Generated};
use futures::future::BoxFuture;
use meta::{Clock, Rng};
pub use reserved::Reservations;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const NAME: &str = "DynamicResources";
const NO_CLAIMS: &str = "no new claims to deallocate";

/// The most pods that may use a claim.
const MOST_CONSUMERS: usize = 256;

/// A claim that a pod uses.
#[derive(Clone)]
pub enum Claim {
    Known(Arc<DeviceClaim>),
    /// Is created before the pod is bound, for its extended resources.
    Generated(Arc<Generated>),
}

/// A claim that a pod may use, and the devices for it; null if it has them already.
pub type Reservation = (Claim, Value);

impl Claim {
    fn view(&self) -> &DeviceClaimInfo {
        match self {
            Self::Known(claim) => &claim.view,
            Self::Generated(generated) => &generated.view,
        }
    }

    /// What messages call it.
    fn label(&self) -> String {
        match self {
            Self::Known(claim) => format!("{}/{}", claim.meta.namespace, claim.meta.name),
            Self::Generated(_) => "/<extended-resources>".into(),
        }
    }

    /// What identifies it among reservations: its UID, or while it has none, that of its pod.
    fn id(&self, pod: &Pod) -> Arc<str> {
        match self {
            Self::Known(claim) => claim.meta.uid.clone(),
            Self::Generated(_) => pod.meta.uid.clone(),
        }
    }
}

pub struct DynamicResources {
    client: Option<Client>,
    clock: Option<Arc<dyn Clock>>,
    rng: Option<Arc<dyn Rng>>,
    recorders: Arc<HashMap<Arc<str>, Recorder>>,
    /// How long devices may take to be bound.
    timeout: Duration,
    /// How long the search for devices may take in one attempt to schedule a pod; zero: any time.
    search_time: Duration,
    reserved: Reservations,
}

impl DynamicResources {
    /// `timeout`: how long devices may take to be bound. `search_time`: how long a search may take; zero: any time.
    pub fn new(handle: &Handle, timeout: Duration, search_time: Duration) -> Self {
        Self {
            client: handle.client.clone(),
            clock: handle.clock.clone(),
            rng: handle.rng.clone(),
            recorders: handle.recorders.clone(),
            timeout,
            search_time,
            reserved: handle.reservations.clone(),
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
        // A claim that has its devices gets none.
        let Some(rng) = self.rng.as_ref().filter(|_| !allocation.is_null()) else { return };
        let results = allocation["devices"]["results"].as_array_mut().into_iter().flatten();
        for result in results.filter(|r| !r["shareID"].is_null()) {
            result["shareID"] = meta::random::uuid(&**rng).into();
        }
    }

    /// The claims of a pod. Errors if one is missing, is being deleted or belongs to another pod.
    fn existing<'a>(pod: &Pod, devices: &'a Devices) -> Result<Vec<&'a Arc<DeviceClaim>>, String> {
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
            claims.push(found);
        }
        Ok(claims)
    }

    /// The claims of a pod. Errors if one is missing or cannot be used.
    fn claims<'a>(pod: &Pod, devices: &'a Devices) -> Result<Vec<&'a Arc<DeviceClaim>>, String> {
        let claims = Self::existing(pod, devices)?;
        for found in &claims {
            let consumers = &found.view.reserved_for;
            if consumers.len() >= MOST_CONSUMERS && !consumers.iter().any(|c| **c == *pod.meta.uid) {
                return Err("resourceclaim in use".into());
            }
            let requests = found.view.devices["requests"].as_array().into_iter().flatten();
            for request in requests.filter(|_| found.view.allocation.is_null()) {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let name = text(&request["name"]);
                let sub = |r: &Value| (format!("{name}/{}", text(&r["name"])), text(&r["deviceClassName"]));
                let mut classes: Vec<(String, String)> =
                    request["firstAvailable"].as_array().into_iter().flatten().map(sub).collect();
                if let Some(class) = request["exactly"]["deviceClassName"].as_str() {
                    classes.push((name.clone(), class.to_owned()));
                }
                if let Some((name, class)) = classes.iter().find(|(_, class)| devices.class(class).is_none()) {
                    return Err(format!("request {name}: device class {class} does not exist"));
                }
            }
        }
        Ok(claims)
    }

    /// What a pod needs on a node: its claims, with devices for those that have none.
    fn plan(&self, check: &Check<'_>, node: &NodeEntry) -> Result<Vec<Reservation>, Refusal> {
        let refused = |why: &'static str| Refusal::unresolvable(NAME, why);
        let generated = match &check.extended {
            Extended::None => None,
            Extended::Stale(_) => return Err(refused("cannot schedule extended resource claim")),
            Extended::Wanted(wanted) => wanted.on_node(check.devices, node).map_err(refused)?.map(Arc::new),
        };
        let known = check.claims.iter().map(|c| Claim::Known((*c).clone()));
        let all: Vec<Claim> = known.chain(generated.map(Claim::Generated)).collect();
        let unallocated: Vec<&Claim> = all.iter().filter(|c| c.view().allocation.is_null()).collect();
        let missing: Vec<&DeviceClaimInfo> = unallocated.iter().map(|c| c.view()).collect();
        let mut allocations = Vec::new();
        if !missing.is_empty() {
            let label = |claim: usize| unallocated.get(claim).map(|c| c.label()).unwrap_or_default();
            let found = Allocator::new(&check.offer, node).allocate(&missing).map_err(|e| {
                let why = match e {
                    AllocationError::Selector(e) => e.message(&label(e.claim)),
                    AllocationError::Claim { claim, why } => format!("claim {}{why}", label(claim)),
                    AllocationError::TimedOut => {
                        format!("node {}: timed out trying to allocate devices", node.meta.name)
                    }
                };
                Refusal::error(NAME, why)
            })?;
            allocations = match found {
                Found::Allocations(allocations) => allocations,
                Found::Nothing => return Err(refused("cannot allocate all claims")),
                Found::InvalidPools => return Err(refused("invalid resource pools were encountered")),
            };
        }
        // After the search, whose errors and refusals come first upstream.
        if check.claims.iter().any(|c| !c.view.allocation.is_null() && !self.is_available(c, node)) {
            return Err(refused("resourceclaim not available on the node"));
        }
        let mut allocations = allocations.into_iter();
        let reserve = |claim: Claim| {
            let new = claim.view().allocation.is_null().then(|| allocations.next()).flatten();
            (claim, new.unwrap_or(Value::Null))
        };
        Ok(all.into_iter().map(reserve).collect())
    }
}

struct Check<'a> {
    plugin: &'a DynamicResources,
    devices: &'a Devices,
    offer: Offer<'a>,
    claims: Vec<&'a Arc<DeviceClaim>>,
    extended: Extended,
}

impl<'a> Check<'a> {
    /// None if the pod needs no devices.
    fn new(plugin: &'a DynamicResources, pod: &Pod, devices: &'a Devices) -> Result<Option<Self>, Refusal> {
        let refused = |why: String| Refusal::unresolvable(NAME, why);
        let claims = DynamicResources::claims(pod, devices).map_err(refused)?;
        let extended = Extended::of(pod, devices).map_err(|e| refused(e.to_string()))?;
        if claims.is_empty() && matches!(extended, Extended::None) {
            return Ok(None);
        }
        plugin.reserved.lock().forget_written(devices, plugin.clock.as_deref());
        let is_pending = |c: &DeviceClaim| {
            c.view.allocation.is_null() && plugin.reserved.lock().allocations.contains_key(&c.meta.uid)
        };
        if let Some(claim) = claims.iter().find(|c| is_pending(c)) {
            let key = format!("{}/{}", claim.meta.namespace, claim.meta.name);
            return Err(refused(format!("resource claim {key} is in the process of being allocated")));
        }
        if plugin.reserved.lock().created.values().any(|c| c.pod == pod.meta.uid) {
            let why = "the claim for the extended resources of an earlier attempt is not known yet";
            return Err(refused(why.into()));
        }
        let until = Some(plugin.search_time).filter(|time| !time.is_zero()).map(|time| Instant::now() + time);
        let offer = Offer::new(devices, plugin.reserved.lock().in_use(devices), until);
        Ok(Some(Self { plugin, devices, offer, claims, extended }))
    }
}

impl Plugin for DynamicResources {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> &'static [Point] {
        &[
            Point::PreEnqueue,
            Point::PreFilter,
            Point::Filter,
            Point::PostFilter,
            Point::PreScore,
            Point::Score,
            Point::Reserve,
            Point::PreBind,
        ]
    }

    /// A claim made from a template exists a moment after its pod.
    fn gate(&self, pod: &Pod, cluster: &Cluster) -> Result<(), Refusal> {
        Self::existing(pod, cluster.devices()).map(drop).map_err(|why| Refusal::unresolvable(NAME, why))
    }

    fn pre_filter<'a>(&'a self, pod: &'a Pod, cluster: &'a Cluster) -> PreFilter<'a> {
        let check = Check::new(self, pod, cluster.devices())?;
        Ok(check.map(|check| Box::new(check) as Box<dyn NodeFilter>))
    }

    fn reads(&self) -> &'static [Read] {
        &[Read::Nodes, Read::NodeLabels, Read::Devices, Read::DeviceClasses, Read::OwnClaims]
    }

    fn post_filter(&self, context: &PostFilterContext<'_>) -> PostFilter {
        // Upstream's state of the pod is made by PreFilter: before, the plugin fails; after a refusal of its own, there are no claims.
        if let Some(refusal) = &context.decision.pod_refusal {
            if refusal.plugin == NAME {
                return PostFilter::Refused(NO_CLAIMS.into());
            }
            let mut before = context.framework.at(Point::PreFilter).map(|p| p.name()).take_while(|name| *name != NAME);
            if !refusal.resolvable && before.any(|name| name == refusal.plugin) {
                return PostFilter::Failed("not found".into());
            }
        }
        if let (Some(claim), Some(client)) = (self.replaceable(context.pod, context.cluster), &self.client) {
            let (client, claim) = (client.clone(), claim.clone());
            let write = Box::pin(async move { write::deallocate(&client, &claim).await });
            return PostFilter::Repair { message: "deallocation of ResourceClaim completed".into(), write };
        }
        let extended = Extended::of(context.pod, context.cluster.devices()).unwrap_or(Extended::None);
        if let (Extended::Stale(claim), Some(client)) = (&extended, &self.client) {
            let (client, claim) = (client.clone(), claim.clone());
            let write = Box::pin(async move {
                extended::delete(&client, &claim.meta.namespace, &claim.meta.name, &claim.meta.uid).await
            });
            return PostFilter::Repair { message: "deletion of ResourceClaim completed".into(), write };
        }
        let needs_none = context.pod.view.device_claims.is_empty() && matches!(extended, Extended::None);
        let reason = match needs_none {
            true => NO_CLAIMS,
            false => "still not schedulable",
        };
        PostFilter::Refused(reason.into())
    }

    fn pre_score<'a>(&'a self, pod: &'a Pod, cluster: &'a Cluster, _: &[&'a Node]) -> PreScore<'a> {
        let Ok(Some(check)) = Check::new(self, pod, cluster.devices()) else { return Ok(None) };
        let has_choice = |c: &Arc<DeviceClaim>| preference::alternatives(&c.view.devices).next().is_some();
        Ok(check.claims.iter().any(|c| has_choice(c)).then(|| Box::new(Preferred(check)) as _))
    }

    fn reserve(&self, pod: &Pod, node: &str, cluster: &Cluster) -> Result<(), Refusal> {
        let entry = cluster.node(node).and_then(|n| n.entry.as_ref());
        let Some(entry) = entry else { return Ok(()) };
        let Some(check) = Check::new(self, pod, cluster.devices())? else { return Ok(()) };
        let mut plan = self.plan(&check, entry)?;
        plan.iter_mut().for_each(|(_, allocation)| self.name_shares(allocation));
        let mut reserved = self.reserved.lock();
        for (claim, allocation) in plan.iter().filter(|(_, a)| !a.is_null()) {
            reserved.allocations.insert(claim.id(pod), allocation.clone());
        }
        reserved.pods.insert(pod.meta.uid.clone(), plan);
        Ok(())
    }

    fn unreserve(&self, pod: &Pod, _: &str) {
        let mut reserved = self.reserved.lock();
        for (claim, _) in reserved.pods.remove(&pod.meta.uid).into_iter().flatten() {
            let id = claim.id(pod);
            // What is written stays until the claim shows it.
            if !reserved.written.contains_key(&id) {
                reserved.allocations.remove(&id);
            }
        }
    }

    fn pre_bind(&self, pod: &Arc<Pod>, node: &Arc<str>) -> Option<BoxFuture<'static, Result<(), Error>>> {
        let plan = self.reserved.lock().pods.get(&pod.meta.uid).cloned()?;
        let (client, clock) = (self.client.clone()?, self.clock.clone()?);
        let recorder = self.recorders.get(&*pod.view.scheduler_name).cloned();
        let (reserved, timeout, pod, node) = (self.reserved.clone(), self.timeout, pod.clone(), node.clone());
        Some(Box::pin(async move {
            let mut names: Vec<String> = Vec::new();
            for (claim, allocation) in &plan {
                let name = match claim {
                    Claim::Known(claim) => {
                        let (name, uid) = (&*claim.meta.name, &claim.meta.uid);
                        let revision = write::reserve(&client, &*clock, &pod, (name, uid), allocation).await?;
                        reserved.lock().written.insert(uid.clone(), revision);
                        name.to_owned()
                    }
                    Claim::Generated(generated) => {
                        bind_generated(&client, &*clock, &reserved, &pod, generated, allocation).await?
                    }
                };
                names.push(name);
            }
            let has_conditions = |(claim, new): &Reservation| {
                conditions::has_conditions(if new.is_null() { &claim.view().allocation } else { new })
            };
            let finish = || drop(reserved.lock().pods.remove(&pod.meta.uid));
            if !plan.iter().any(has_conditions) {
                finish();
                return Ok(());
            }
            if let Some(recorder) = recorder {
                let about = Regarding::from_meta("v1", "Pod", &pod.meta);
                let message = format!("waiting for binding conditions for device on node {node}");
                recorder.action(about, Severity::Normal, "BindingConditionsPending", "Scheduling", message);
            }
            for name in &names {
                conditions::wait(&client, &*clock, (&pod.meta.namespace, name), timeout).await?;
            }
            finish();
            Ok(())
        }))
    }
}

/// Creates the claim for the extended resources of a pod, with its devices, and returns its name. Nothing is left of it after an error.
async fn bind_generated(
    client: &Client,
    clock: &dyn Clock,
    reserved: &Reservations,
    pod: &Pod,
    generated: &Generated,
    allocation: &Value,
) -> Result<String, Error> {
    let claim = generated.create(client, pod).await?;
    let (name, uid) = (claim.name().to_owned(), claim.uid().to_owned());
    reserved.lock().created(pod, &uid, clock.now());
    let written = async {
        let revision = write::reserve(client, clock, pod, (&name, &uid), allocation).await?;
        reserved.lock().written.insert(uid.as_str().into(), revision);
        generated.report(client, pod, &name).await
    };
    match written.await {
        Ok(()) => Ok(name),
        Err(e) => {
            if let Err(also) = extended::delete(client, &pod.meta.namespace, &name, &uid).await {
                // The next attempt deletes it.
                tracing::debug!(claim = %name, "deleting the claim of a pod that was not bound failed: {also}");
            }
            reserved.lock().deleted(&uid);
            Err(e)
        }
    }
}

/// Scores nodes by the alternatives that requests get there: earlier ones are better.
struct Preferred<'a>(Check<'a>);

impl NodeScore for Preferred<'_> {
    fn score(&self, node: &Node) -> i64 {
        let plan = node.entry.as_ref().and_then(|entry| self.0.plugin.plan(&self.0, entry).ok());
        let score = |(claim, new): &Reservation| {
            let allocation = if new.is_null() { &claim.view().allocation } else { new };
            preference::score(&claim.view().devices, allocation)
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
        self.plugin.plan(self, entry).map(|_| ())
    }
}
