//! The real API server over a store in memory, controllers and scheduler as components of their own, and simulated nodes.

use crate::assumptions::Assumptions;
use crate::component::{Component, Host, Layer, Start};
use crate::driver::Reason;
use crate::journal::Journal;
use crate::link::Link;
use crate::load::Load;
use crate::node_spec::ZONE;
use crate::nodes::{Machine, NodeSpec, Nodes};
use auth::user::GROUP_MASTERS;
use client::{ApiResource, Client, Informers, ListOptions, Trigger, WriteOptions};
use controllers::certificates::Authority;
use meta::{Gvk, Object};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use testkit::{Cluster, SeededRng};

/// The name of the scheduler's component.
pub const SCHEDULER: &str = "scheduler";
/// The controller that needs heartbeats of nodes.
const NODE_CONTROLLER: &str = "node-controller";
const SERVICE_RANGE: &str = "10.96.0.0/16";

/// What a control plane consists of.
#[derive(Clone, Default)]
pub struct Options {
    /// The components that run: controllers and [`SCHEDULER`]; none: all.
    pub components: Option<BTreeSet<String>>,
    /// Components with informers of their own, so that faults of their connection also affect what they read.
    pub isolated: BTreeSet<String>,
    /// Whether the server can be stopped.
    pub server_stops: bool,
    /// The minimum and maximum of what requests of components take.
    pub latency: (Duration, Duration),
    /// Wraps the transport of components.
    pub layer: Option<Layer>,
    /// Signs certificates.
    pub authority: Option<Arc<Authority>>,
    /// The seed of random latencies and of simulated containers.
    pub seed: u64,
    /// What is assumed of containers; none: [`Assumptions::immediate`].
    pub assumptions: Option<Assumptions>,
    /// Where nodes write what no commit shows.
    pub journal: Option<Arc<Journal>>,
    /// How often nodes report their status; zero: with each renewal of their lease.
    pub status_period: Duration,
    /// Where the usage of pods is reported, which the server must share.
    pub usage: Option<Arc<usage::Usage>>,
    /// The addresses of load balancers.
    pub load_balancers: Option<controllers::servicelb::Pool>,
}

/// A control plane in virtual time, with its nodes.
pub struct ControlPlane {
    pub cluster: Cluster,
    /// A client with all permissions, whose connection has no faults.
    pub client: Client,
    pub nodes: Nodes,
    /// The CPU that pods use.
    pub load: Arc<Load>,
    components: BTreeMap<&'static str, Arc<Component>>,
    /// What all connections of components and nodes have in common, if the server can be stopped.
    server: Option<Arc<Link>>,
    informers: Informers,
    /// Ends the components and informers.
    trigger: Trigger,
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        self.trigger.trigger();
    }
}

/// The resource of a kind; none if the server does not serve it.
pub(crate) fn resource(cluster: &Cluster, gvk: &Gvk) -> Option<ApiResource> {
    let rows = cluster.server.registry.rows();
    let row = rows.iter().find(|row| row.kind.gvk() == *gvk && row.stored().is_some())?;
    Some(ApiResource::new(row.kind.gvr(), &*row.kind.kind, row.kind.namespaced))
}

/// The error of a component that does not exist.
#[derive(Debug, thiserror::Error)]
#[error("there is no component {0:?}; those that run are {1}")]
pub struct UnknownComponent(String, String);

impl ControlPlane {
    /// Starts the components on a server. Must be called inside a runtime of one thread, so that a run can be repeated.
    pub async fn start(cluster: Cluster, options: Options) -> Self {
        cluster.call("POST", "/api/v1/namespaces", json!({"metadata": {"name": "kube-node-lease"}})).await;
        let client = cluster.client(auth::User::new("system:admin", &[GROUP_MASTERS]));
        let (trigger, shutdown) = client::shutdown();
        let rng = SeededRng::new(options.seed ^ 0x5eed);
        let server = options.server_stops.then(|| Link::new(rng.clone()));
        let served = match &server {
            Some(link) => client.clone().over(|inner| Arc::new(link.transport(inner))),
            None => client.clone(),
        };
        let informers = Informers::new(served.clone(), cluster.rng.clone(), shutdown.clone());
        let host = Arc::new(Host {
            client: served.clone(),
            layer: options.layer.clone(),
            informers: informers.clone(),
            rng: cluster.rng.clone(),
            shutdown,
        });
        let controllers = Arc::new(controllers::Options {
            informers: informers.clone(),
            clock: cluster.clock.clone(),
            rng: cluster.rng.clone(),
            root_ca: "PEM".into(),
            server_hosts: Vec::new(),
            authority: options.authority.clone(),
            issue: Arc::new({
                let accounts = cluster.accounts.clone();
                move |account, secret| accounts.issue_legacy(account, secret)
            }),
            terminated_pods: controllers::podgc::DEFAULT_THRESHOLD,
            server: served.clone(),
            service_ranges: vec![SERVICE_RANGE.into()],
            load_balancers: options.load_balancers,
        });
        let mut components = BTreeMap::new();
        for name in controllers::names().chain([SCHEDULER]) {
            if options.components.as_ref().is_some_and(|chosen| !chosen.contains(name)) {
                continue;
            }
            let controllers = controllers.clone();
            let start: Start = match name {
                SCHEDULER => Arc::new(|c| {
                    let options = scheduler::Options::new(c.client, c.informers, c.clock, c.rng);
                    Some(scheduler::run(options, c.shutdown))
                }),
                _ => Arc::new(move |c| controllers::run(c, &controllers)),
            };
            let isolated = options.isolated.contains(name);
            let component = Component::start(name, &host, cluster.clock.fork(), rng.clone(), isolated, start);
            component.set_latency(options.latency.0, options.latency.1);
            components.insert(name, component);
        }
        let assumptions = options.assumptions.unwrap_or_else(Assumptions::immediate);
        let journal = options.journal.unwrap_or_else(Journal::off);
        let period = options.status_period;
        let clock = cluster.clock.clone();
        let nodes = Nodes::start(served, &informers, clock, rng, assumptions, journal, period);
        let load = Arc::<Load>::default();
        if let Some(usage) = options.usage {
            tokio::spawn(load.clone().report(nodes.clone(), cluster.clock.clone(), usage));
        }
        Self { cluster, client, nodes, load, components, server, informers, trigger }
    }

    /// Stops the API server, or starts it again; only if [`Options::server_stops`].
    pub fn set_server_stopped(&self, stopped: bool) {
        if let Some(server) = &self.server {
            server.set_refusing(stopped);
        }
    }

    /// Adds a node. It sends heartbeats if a controller needs them.
    pub async fn add_node(&self, spec: &NodeSpec) -> Result<(), client::Error> {
        self.nodes.add(spec, self.components.contains_key(NODE_CONTROLLER)).await
    }

    /// Starts the agent of a node that exists. It sends heartbeats if a controller needs them.
    pub(crate) fn attach_node(&self, name: &str) {
        self.nodes.attach(name, self.components.contains_key(NODE_CONTROLLER), Machine::Runs);
    }

    /// The same, but the node's machine does not run until a step starts it.
    pub(crate) fn attach_failed_node(&self, name: &str) {
        self.nodes.attach(name, self.components.contains_key(NODE_CONTROLLER), Machine::Failed);
    }

    /// The component of a name.
    pub fn component(&self, name: &str) -> Result<&Arc<Component>, UnknownComponent> {
        let known = || self.components.keys().copied().collect::<Vec<_>>().join(", ");
        self.components.get(name).ok_or_else(|| UnknownComponent(name.to_owned(), known()))
    }

    /// All components, by name.
    pub fn components(&self) -> impl Iterator<Item = &Arc<Component>> {
        self.components.values()
    }

    /// The resource of a kind; none if the server does not serve it.
    pub fn resource(&self, gvk: &Gvk) -> Option<ApiResource> {
        resource(&self.cluster, gvk)
    }

    /// The caches that components share.
    pub(crate) fn informers(&self) -> &Informers {
        &self.informers
    }

    /// The client for objects of a kind, in a namespace if they have one.
    pub fn api(&self, gvk: &Gvk, namespace: &str) -> Option<client::Api<Object>> {
        let resource = self.resource(gvk)?;
        let api = self.client.dynamic(&resource);
        Some(if resource.namespaced() { api.namespace(namespace) } else { api })
    }

    /// The names of the nodes in a zone.
    pub(crate) async fn nodes_in_zone(&self, zone: &str) -> Result<Vec<String>, Reason> {
        let nodes = self.client.dynamic(&ApiResource::named("", "v1", "nodes", "Node", false));
        let options = ListOptions { label_selector: format!("{ZONE}={zone}"), ..ListOptions::default() };
        let all = nodes.list_all(&options).await.map_err(|e| Reason::Request(format!("zone {zone}: {e}")))?;
        if all.items.is_empty() {
            return Err(Reason::Request(format!("no node is in the zone {zone:?}")));
        }
        Ok(all.items.iter().map(|n| n.name().to_owned()).collect())
    }

    /// Creates an object, in the namespace `default` if it names none.
    pub async fn create(&self, object: &Object) -> Result<Object, client::Error> {
        let gvk = object.gvk().unwrap_or_else(|| Gvk::new("", "", ""));
        let namespace = if object.namespace().is_empty() { "default" } else { object.namespace() };
        let unknown = || client::Error::Request(format!("the server has no resource for kind {:?}", object.kind()));
        self.api(&gvk, namespace).ok_or_else(unknown)?.create(&WriteOptions::default(), object).await
    }
}
