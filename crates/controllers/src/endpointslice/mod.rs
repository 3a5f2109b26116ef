//! EndpointSlices and Endpoints of services that select pods (upstream `endpointslice_controller.go`,
//! `endpoints_controller.go`). Two controllers share the decision which pods are behind a service, and write them in two forms. [`mirror`]
//! copies Endpoints that users write to slices.
//!
//! A service without a selector keeps what it has, and the garbage collector deletes the slices of one that is gone.

mod backend;
mod decide;
mod endpoints;
mod hints;
pub mod mirror;
mod reconcile;
mod slices;
#[cfg(test)]
mod testing;
mod topology;
mod totals;
mod tracker;
mod trigger;

use crate::context::{Context, Error, object};
use crate::controller::{Builder, Reconcile};
use crate::meters;
use crate::views::{Amounts, Condition, Pod, PodEntry, Selector, pods};
use backend::Backend;
use client::informer::or_default;
use client::{
    ApiResource, Change, DeleteOptions, Entry, Informer, Key, Outcome, RateLimit, Recorder, Regarding, WorkQueue,
    WriteOptions, optional,
};
use hints::Distribution;
use k8s_openapi::api::core::v1::{Endpoints, Node, Service};
use parking_lot::Mutex;
use reconcile::Plan;
use serde::Deserialize;
use slices::Slices;
use std::sync::Arc;
use std::time::Duration;
use topology::{NodeCpu, Report, Topology};
use totals::Totals;
use trigger::TriggerTimes;

const SERVICE: &str = "kubernetes.io/service-name";
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const COMPONENT: &str = "endpointslice-controller.k8s.io";
const ZONE: &str = "topology.kubernetes.io/zone";
/// Annotation of the Endpoints that are the lock of an elected leader.
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";

/// Back-off of services whose slices cannot be written.
const SLICE_BACKOFF: RateLimit = RateLimit { base: Duration::from_secs(1), max: Duration::from_secs(1000) };
/// The delay after a change of a slice by another client.
const FOREIGN_CHANGE: Duration = Duration::from_secs(1);

/// The fields of a service that the controller reads from the cache.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Selectable {
    spec: ServiceSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ServiceSpec {
    r#type: String,
    selector: Option<Selector>,
}

impl Selectable {
    /// The selector of pods behind the service. None: its endpoints are left alone.
    fn selector(&self) -> Option<&Selector> {
        self.spec.selector.as_ref().filter(|_| self.spec.r#type != "ExternalName")
    }
}

/// The fields of a node that hints depend on.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct NodeView {
    status: NodeStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct NodeStatus {
    allocatable: Amounts,
    #[serde(deserialize_with = "or_default")]
    conditions: Vec<Condition>,
}

impl NodeView {
    fn is_ready(&self) -> bool {
        self.status.conditions.iter().any(|c| &*c.r#type == "Ready" && &*c.status == "True")
    }
}

/// What both forms know of services and their pods.
struct Common {
    context: Context,
    services: Informer<Selectable>,
    pods: Informer<Pod>,
    recorder: Recorder,
    times: TriggerTimes,
}

impl Common {
    fn new(builder: &mut Builder, context: Context, component: &str) -> Self {
        Self {
            services: builder.watch(&ApiResource::typed::<Service>()),
            pods: builder.watch(&pods()),
            recorder: context.recorder_as(component),
            times: TriggerTimes::default(),
            context,
        }
    }

    /// Enqueues the services that select the pod, or did before the change.
    fn pod_changed(&self, change: &Change<Pod>, queue: &WorkQueue<Key>) {
        if let (Some(old), Some(new)) = (&change.old, &change.new)
            && !backend::is_relevant(old, new)
        {
            return;
        }
        for entry in [&change.old, &change.new].into_iter().flatten() {
            for s in self.services.cache().in_namespace(&entry.meta.namespace) {
                if s.view.spec.selector.as_ref().is_some_and(|selector| selector.selects(&entry.meta)) {
                    queue.add(s.key());
                }
            }
        }
    }

    /// The pods that a service selects.
    fn selected(&self, service: &Entry<Selectable>) -> Option<Vec<Arc<PodEntry>>> {
        let selector = service.view.selector()?.selector()?;
        let cache = self.pods.cache();
        let all = cache.in_namespace(&service.meta.namespace).filter(|p| selector.matches(|k| p.meta.label(k)));
        Some(all.cloned().collect())
    }

    /// When the change happened that endpoints follow now.
    fn changed(&self, service: &Entry<Selectable>, pods: &[Arc<PodEntry>]) -> Option<jiff::Timestamp> {
        let ready = |p: &PodEntry| p.view.condition("Ready").and_then(|c| c.last_transition_time);
        let times = pods.iter().map(|p| (&*p.meta.name, ready(p)));
        self.times.next(&service.key(), service.meta.creation_timestamp, times)
    }
}

/// Writes slices.
struct SliceController {
    common: Common,
    slices: Slices,
    nodes: Informer<NodeView>,
    topology: Mutex<Topology>,
    totals: Totals,
}

/// Writes the endpoints of services to slices. Runs until shutdown.
pub async fn run_slices(context: Context) {
    let mut builder = Builder::with_rate_limit(&context, SLICE_BACKOFF);
    let mut zones = Builder::<()>::new(&context);
    let c = Arc::new(SliceController {
        slices: Slices::new(&mut builder, context.clone(), COMPONENT, meters::SLICE_CHANGES),
        nodes: builder.watch(&ApiResource::typed::<Node>()),
        common: Common::new(&mut builder, context, "endpoint-slice-controller"),
        topology: Mutex::default(),
        totals: Totals::default(),
    });
    builder.enqueue(&c.common.services);
    builder.handle(&c, &c.common.pods, |c: &SliceController, change, queue| c.common.pod_changed(change, queue));
    builder.handle(&c, &c.slices.written, SliceController::slice_changed);
    zones.wait_for(&c.nodes);
    zones.on_change(&c.nodes, |change, queue| {
        let facts = |n: &Option<Arc<Entry<NodeView>>>| {
            n.as_ref().map(|n| (n.view.is_ready(), n.meta.label(ZONE).map(str::to_owned)))
        };
        if facts(&change.old) != facts(&change.new) {
            queue.add(());
        }
    });
    let zones = zones.run_as("endpoint_slice_topology", 1, Arc::new(Shares(c.clone(), builder.queue())));
    tokio::join!(builder.run(5, c), zones);
}

/// Counts the CPUs of zones, and enqueues the services whose hints no longer fit.
struct Shares(Arc<SliceController>, Arc<WorkQueue<Key>>);

impl Reconcile for Shares {
    type Key = ();

    async fn reconcile(&self, (): ()) -> Result<Outcome, Error> {
        let nodes: Vec<Arc<Entry<NodeView>>> = self.0.nodes.cache().entries().cloned().collect();
        let control_plane = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];
        let counted = nodes
            .iter()
            .filter(|n| n.view.is_ready() && control_plane.iter().all(|role| n.meta.label(role).is_none()))
            .map(|n| NodeCpu {
                zone: n.meta.label(ZONE).map(str::to_owned),
                cpu: n.view.status.allocatable.get("cpu").map_or(0, |cpu| cpu.0),
            });
        let mut topology = self.0.topology.lock();
        topology.set_nodes(counted);
        topology.overloaded().into_iter().for_each(|service| self.1.add(service));
        Ok(Outcome::Done)
    }
}

impl SliceController {
    fn slice_changed(&self, change: &Change<()>, queue: &WorkQueue<Key>) {
        for meta in [&change.old, &change.new].into_iter().flatten().map(|e| &e.meta) {
            if let (Some(COMPONENT), Some(service)) = (meta.label(MANAGED_BY), meta.label(SERVICE)) {
                let key = Key::new(meta.namespace.clone(), service);
                match self.slices.is_own(&key, change) {
                    true => queue.add(key),
                    false => queue.add_after(key, FOREIGN_CHANGE),
                }
            }
        }
    }

    /// Sets hints, and returns what to report about them.
    fn hint(&self, service: &Key, distribution: Distribution, plan: &mut Plan) -> Vec<Report> {
        let mut topology = self.topology.lock();
        let types: Vec<&str> = ["IPv4", "IPv6"].into_iter().filter(|t| plan.has_slices_of(t)).collect();
        if distribution != Distribution::Topology {
            hints::apply(plan, distribution);
            return types.into_iter().filter_map(|t| topology.disable(service, t)).collect();
        }
        let mut reports = Vec::new();
        let mut whole = Plan { delete: std::mem::take(&mut plan.delete), ..Plan::default() };
        for t in types {
            let mut part = plan.take_slices_of(t);
            reports.extend(topology.apply(service, t, &mut part));
            whole.append(part);
        }
        *plan = whole;
        reports
    }
}

impl Reconcile for SliceController {
    type Key = Key;

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(entry) = self.common.services.get(&key) else {
            self.common.times.forget(&key);
            self.slices.forget(&key);
            self.totals.forget(&key);
            for t in ["IPv4", "IPv6"] {
                self.topology.lock().remove(&key, t);
            }
            return Ok(Outcome::Done);
        };
        let Some(pods) = self.common.selected(&entry) else { return Ok(Outcome::Done) };
        let service = object(&ApiResource::typed::<Service>(), &entry)?;
        let node = |name: &str| self.nodes.get(&Key::new("", name));
        let zone = |n: &str| node(n).and_then(|n| Some(n.meta.label(ZONE).filter(|z| !z.is_empty())?.to_owned()));
        let mut all = backend::backends(&service, &pods, zone);
        let missing = match backend::publishes_not_ready(&service) {
            true => None,
            false => remove_without_node(&mut all, |n| node(n).is_some()),
        };
        let desired = decide::desired_slices(&service, &all);
        let sizes = desired.sizes();
        let changed = || self.common.changed(&entry, &pods);
        let mut reports = Vec::new();
        let finish = |plan: &mut Plan| {
            if service.is_deleting() {
                plan.create.clear();
            }
            let distribution = Distribution::of_service(&service);
            reports = self.hint(&key, distribution, plan);
            let field = service.str_at(&["spec", "trafficDistribution"]).filter(|_| distribution.is_close());
            self.totals.count(&key, sizes, plan, distribution, field);
        };
        let written = self.slices.write(&key, desired, changed, finish).await;
        let about = || Regarding::object(&service);
        for report in reports {
            match report {
                Report::Enabled(text) => self.common.recorder.normal(about(), "TopologyAwareHintsEnabled", text),
                Report::Disabled(text) => self.common.recorder.warning(about(), "TopologyAwareHintsDisabled", text),
            }
        }
        let result = match (written, missing) {
            (Err(slices::WriteError::Stale), _) => {
                meters::count(&meters::SLICE_SYNCS, &["stale"]);
                return Err(Error::Waiting("the cache does not show the endpoint slices that were written".into()));
            }
            (Err(slices::WriteError::Failed(e)), _) => Err(e),
            (Ok(()), Some((pod, node))) => {
                Err(Error::Waiting(format!("skipping Pod {pod} for Service {key}: Node {node} Not Found")))
            }
            (Ok(()), None) => Ok(Outcome::Done),
        };
        meters::count(&meters::SLICE_SYNCS, &[if result.is_ok() { "success" } else { "error" }]);
        if let Err(e) = &result {
            let text = format!("Error updating Endpoint Slices for Service {key}: {e}");
            self.common.recorder.warning(about(), "FailedToUpdateEndpointSlices", text);
        }
        result
    }
}

/// Removes backends whose node does not exist. Returns the first one with its node.
fn remove_without_node(all: &mut Vec<Backend>, exists: impl Fn(&str) -> bool) -> Option<(String, String)> {
    let mut missing = None;
    all.retain(|b| {
        let exists = exists(&b.node);
        if !exists && missing.is_none() {
            missing = Some((b.name.clone(), b.node.clone()));
        }
        exists
    });
    missing
}

/// Writes Endpoints.
struct EndpointsController {
    common: Common,
    written: Informer<()>,
}

fn endpoints() -> ApiResource {
    ApiResource::typed::<Endpoints>()
}

/// Writes the endpoints of services to Endpoints. Runs until shutdown.
pub async fn run_endpoints(context: Context) {
    let mut builder = Builder::new(&context);
    let c = Arc::new(EndpointsController {
        written: builder.watch(&endpoints()),
        common: Common::new(&mut builder, context, "endpoint-controller"),
    });
    builder.enqueue(&c.common.services);
    builder.handle(&c, &c.common.pods, |c: &EndpointsController, change, queue| c.common.pod_changed(change, queue));
    builder.on_change(&c.written, |change, queue| {
        if change.new.is_none() {
            queue.add(change.key());
        }
    });
    let queue = builder.queue();
    let leftovers = async {
        c.written.synced().await;
        c.common.services.synced().await;
        // Those of services that were deleted while no controller ran.
        for e in c.written.cache().entries() {
            let is_lock = object(&endpoints(), e).is_ok_and(|o| o.annotation(LEADER).is_some());
            if !is_lock {
                queue.add(e.key());
            }
        }
    };
    tokio::join!(leftovers, builder.run(5, c.clone()));
}

impl Reconcile for EndpointsController {
    type Key = Key;

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let api = self.common.context.client.dynamic(&endpoints()).namespace(&key.namespace);
        let Some(entry) = self.common.services.get(&key) else {
            self.common.times.forget(&key);
            if self.written.get(&key).is_some() {
                optional(api.delete(&key.name, &DeleteOptions::default()).await)?;
            }
            return Ok(Outcome::Done);
        };
        let Some(pods) = self.common.selected(&entry) else { return Ok(Outcome::Done) };
        let service = object(&ApiResource::typed::<Service>(), &entry)?;
        let backends = backend::backends(&service, &pods, |_| None);
        let held = self.written.get(&key).map(|e| object(&endpoints(), &e)).transpose()?;
        let changed = self.common.changed(&entry, &pods);
        let subsets = endpoints::subsets(&service, &backends);
        let Some(mut next) = endpoints::next(&service, held.as_ref(), subsets, changed) else {
            return Ok(Outcome::Done);
        };
        next.set_gvk(&endpoints().gvk());
        let options = WriteOptions::default();
        let (written, reason, what) = match held {
            None => {
                let why = format!("Failed to create endpoint for service {key}");
                (api.create(&options, &next).await, "FailedToCreateEndpoint", why)
            }
            Some(_) => {
                let why = format!("Failed to update endpoint {key}");
                (api.update(&key.name, &options, &next).await, "FailedToUpdateEndpoint", why)
            }
        };
        match written {
            Err(e) => {
                if !e.is_namespace_terminating() {
                    self.common.recorder.warning(Regarding::object(&next), reason, format!("{what}: {e}"));
                }
                Err(e.into())
            }
            Ok(_) => Ok(Outcome::Done),
        }
    }
}
