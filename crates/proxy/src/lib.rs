//! The service proxy: Services and EndpointSlices become packet rules. And network policies: see [`policies`].
//!
//! [`desired()`] is a pure function from objects of the API to rules; [`run`] applies them, many changes in one transaction. The rules
//! of a namespace are limited: what exceeds the limits is left out, and logged. Left out: session affinity for more than client
//! addresses.

mod desired;
mod health_check;
mod namespaces;
pub mod policies;
mod reserved;
mod status;
mod topology;

pub use desired::{Desired, Excess, Slice, View, desired};
pub use health_check::Health;
pub use reserved::{NodeView, Reserved};
pub use status::{HEALTH_PORT, METRICS_PORT, StatusOptions};
pub use topology::Location;

use client::{ApiResource, Entry, Informers, Key, Scope, Shutdown};
use health_check::HealthChecks;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use namespaces::{Changed, Namespaces, Surroundings};
use network::{Progress, ServiceRules};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use supervisor::panics::{Everything, caught};
use tokio::sync::Notify;
use tokio::time::Instant;

/// The label of a node with its zone.
const ZONE: &str = "topology.kubernetes.io/zone";
/// The namespace of the service of the API server.
const SYSTEM: &str = "default";
/// How long changes are collected before they are written together.
const GATHER: Duration = Duration::from_millis(10);
/// The delay after a failed transaction.
const AGAIN: Duration = Duration::from_secs(1);
/// The minimum time between log lines about a namespace that exceeds its limits.
const WARN_AGAIN: Duration = Duration::from_secs(60);

pub struct Options {
    /// A client that authenticates as `system:kube-proxy`.
    pub informers: Informers,
    pub rules: Arc<ServiceRules>,
    pub role: Role,
    /// Where the proxy says how it is; `None` for nowhere.
    pub status: Option<StatusOptions>,
    pub shutdown: Shutdown,
}

/// The machine whose rules these are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// The node of this name.
    Node(String),
    /// Part of the cluster's network without pods: it reaches services by their addresses, and has no node ports.
    Client,
}

/// Runs until shutdown. The rules stay: connections outlive a restart.
pub fn run(options: Options) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(follow(options))
}

async fn follow(options: Options) {
    let services = options.informers.informer::<View>(&ApiResource::typed::<Service>(), &Scope::default());
    let slices = options.informers.informer::<Slice>(&ApiResource::typed::<EndpointSlice>(), &Scope::default());
    let node_name = match &options.role {
        Role::Node(name) => name.as_str(),
        Role::Client => "",
    };
    let nodes = options.informers.informer::<NodeView>(&ApiResource::typed::<Node>(), &Scope::default());
    let changed = Arc::new(Notify::new());
    let status = options.status.as_ref().map(status::Status::new);
    let namespaces = Changed::default();
    let noticed = || {
        let (namespaces, changed, status) = (namespaces.clone(), changed.clone(), status.clone());
        move |namespace: &Arc<str>| {
            namespaces.add(namespace);
            status.iter().for_each(|s| s.queued());
            changed.notify_one();
        }
    };
    let (a, b, c) = (noticed(), noticed(), changed.clone());
    let _services = services.subscribe(move |change| a(&change.latest().meta.namespace));
    let _slices = slices.subscribe(move |change| b(&change.latest().meta.namespace));
    let zone_of = |node: &Entry<NodeView>| node.meta.label(ZONE).unwrap_or_default().to_owned();
    let _nodes = nodes.subscribe(move |change| {
        let used = |node: &Option<Arc<Entry<NodeView>>>| node.as_deref().map(|n| (zone_of(n), n.view.clone()));
        if used(&change.old) != used(&change.new) {
            c.notify_one();
        }
    });
    let synced = async {
        services.synced().await;
        slices.synced().await;
        nodes.synced().await;
    };
    let known = nodes.clone();
    let own = Key::new("", node_name);
    let eligible = move || {
        let cache = known.cache();
        cache.get(&own).is_some_and(|n| n.meta.deletion_timestamp.is_none() && !n.view.is_leaving())
    };
    // Aborted with this task.
    let shutdown = options.shutdown.clone();
    let mut serving = tokio::task::JoinSet::new();
    if let (Some(options), Some(status)) = (&options.status, &status) {
        serving.spawn(status::run(options.clone(), status.clone(), eligible, shutdown));
    }
    if options.shutdown.race(synced).await.is_none() {
        return;
    }
    changed.notify_one();
    let mut warned = BTreeMap::new();
    // Whether everything was applied once.
    let mut is_synced = false;
    let mut checks = HealthChecks::default();
    let mut known = Namespaces::default();
    loop {
        if options.shutdown.race(changed.notified()).await.is_none() {
            return;
        }
        if options.shutdown.race(tokio::time::sleep(GATHER)).await.is_none() {
            return;
        }
        let work = async {
            {
                let changed = namespaces.take();
                let (s, e) = (services.cache(), slices.cache());
                let n = nodes.cache();
                let zone = n.get(&Key::new("", node_name)).map(|n| zone_of(n)).unwrap_or_default();
                let system = e.in_namespace(SYSTEM);
                let reserved = Reserved::new(n.entries().map(|n| &n.view), system.map(|e| (&e.meta, &e.view)));
                known.update(changed, Surroundings { zone, reserved }, |namespace, surroundings| {
                    let mut desired = desired(
                        s.in_namespace(namespace).map(|s| (&s.meta, &s.view)),
                        e.in_namespace(namespace).map(|e| (&e.meta, &e.view)),
                        Location { node: node_name, zone: &surroundings.zone },
                        &surroundings.reserved,
                    );
                    if options.role == Role::Client {
                        desired.ports.iter_mut().for_each(|port| Arc::make_mut(port).node_port = None);
                        desired.health_checks.clear();
                    }
                    desired
                });
            }
            warned.retain(|_, at: &mut Instant| at.elapsed() < WARN_AGAIN);
            for (namespace, Excess { endpoints, ports, affinities }) in known.all().flat_map(|desired| &desired.excess)
            {
                if !warned.contains_key(namespace) {
                    warned.insert(namespace.clone(), Instant::now());
                    tracing::warn!(
                        namespace,
                        endpoints,
                        ports,
                        affinities,
                        "too many endpoints, service ports or session affinities: so many are left out"
                    );
                }
            }
            let health_checks = known.all().flat_map(|desired| desired.health_checks.clone()).collect();
            let ports = known.ports();
            checks.set(&health_checks, &options.shutdown).await;
            let written = options.rules.apply_next(&ports).await;
            written.inspect_err(|e| {
                tracing::error!("writing the rules of {} service ports failed; it is tried again: {e}", ports.len())
            })
        };
        let started = Instant::now();
        match caught("service-proxy", Everything, work).await {
            Ok(Ok(Progress::Complete)) => {
                is_synced = true;
                status.iter().for_each(|s| s.updated(started.elapsed()));
            }
            // The rest is applied together with newer changes. The pause gives other users of the kernel as much time, since
            // namespaces may change all the time.
            Ok(Ok(Progress::Partial)) => {
                status.iter().for_each(|s| s.advanced());
                let pause = if is_synced { started.elapsed().min(AGAIN) } else { Duration::ZERO };
                if options.shutdown.race(tokio::time::sleep(pause)).await.is_none() {
                    return;
                }
                changed.notify_one();
            }
            ended => {
                // After a panic it is not known how far the computation came.
                if ended.is_err() {
                    services.cache().entries().for_each(|s| namespaces.add(&s.meta.namespace));
                    slices.cache().entries().for_each(|s| namespaces.add(&s.meta.namespace));
                }
                let changed = changed.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(AGAIN).await;
                    changed.notify_one();
                });
            }
        }
    }
}
