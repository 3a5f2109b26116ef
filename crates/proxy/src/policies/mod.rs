//! Network policies: NetworkPolicies, namespaces and pods become packet rules.
//!
//! [`desired()`] is a pure function from objects of the API to the rules of this node's pods; [`run`] applies them. Pods and namespaces are
//! read once there is a policy. A pod of the network of its node is part of the node: no policy selects it. A pod starts once
//! its rules are in place ([`network::policies::PodGate`]).
//!
//! Left out: IPv6. Connections that exist when a policy begins to forbid them continue.

mod desired;
mod view;

pub use desired::{Desired, Objects, desired};
pub use view::{Pod, Policy};

use client::informer::{Change, Subscription};
use client::{Informer, Informers, Shutdown};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use network::policies::{PodGate, PodPolicy, Pods, PolicyRules};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use supervisor::panics::{Everything, caught};
use tokio::sync::Notify;
use tokio::time::Instant;

/// How long changes are collected before they are written together.
const GATHER: Duration = Duration::from_millis(3);
/// The delay after a failed transaction.
const AGAIN: Duration = Duration::from_secs(1);
/// The minimum time between log lines about a namespace that exceeds its limits.
const WARN_AGAIN: Duration = Duration::from_secs(60);

/// What [`run`] uses.
pub struct Options {
    /// A client that may read policies, pods and namespaces.
    pub informers: Informers,
    /// The pods of the node.
    pub gate: Arc<PodGate>,
    /// The rules of the node.
    pub rules: Arc<PolicyRules>,
    /// Ends the service.
    pub shutdown: Shutdown,
}

/// Runs until shutdown. The rules stay.
pub fn run(options: Options) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(follow(options))
}

/// The objects that policies refer to, with the subscriptions.
struct Cluster {
    pods: Informer<Pod>,
    namespaces: Informer<()>,
    /// The addresses of pods that are gone. Their connections are forgotten, so that the next pod with the address cannot use them.
    left: Arc<Mutex<BTreeSet<IpAddr>>>,
    _subscriptions: [Subscription; 2],
}

impl Cluster {
    /// Starts reading.
    async fn read(informers: &Informers, changed: &Arc<Notify>) -> Cluster {
        let pods = informers.typed::<core::Pod, Pod>();
        let namespaces = informers.typed::<core::Namespace, ()>();
        let (a, b) = (changed.clone(), changed.clone());
        let left = Arc::new(Mutex::new(BTreeSet::new()));
        let leaving = left.clone();
        let of_pods = pods.subscribe(move |change| {
            leaving.lock().extend(lost_addresses(change));
            notify(&a, change);
        });
        let subscriptions = [of_pods, namespaces.subscribe(move |change| notify(&b, change))];
        pods.synced().await;
        namespaces.synced().await;
        Cluster { pods, namespaces, left, _subscriptions: subscriptions }
    }
}

/// The addresses that a pod has no more.
fn lost_addresses(change: &Change<Pod>) -> Vec<IpAddr> {
    let Some(old) = &change.old else { return Vec::new() };
    let new = change.new.as_ref().filter(|new| new.meta.uid == old.meta.uid);
    let kept = |address: &IpAddr| new.is_some_and(|new| new.view.addresses.contains(address));
    old.view.addresses.iter().copied().filter(|address| !kept(address)).collect()
}

/// Notifies about changes of labels and of the view.
fn notify<V: PartialEq>(changed: &Notify, change: &Change<V>) {
    if let (Some(old), Some(new)) = (&change.old, &change.new)
        && old.meta.labels == new.meta.labels
        && old.meta.uid == new.meta.uid
        && old.view == new.view
    {
        return;
    }
    changed.notify_one();
}

async fn follow(options: Options) {
    let policies = options.informers.typed::<NetworkPolicy, Policy>();
    let changed = Arc::new(Notify::new());
    let notify = changed.clone();
    let _subscription = policies.subscribe(move |_| notify.notify_one());
    if options.shutdown.race(policies.synced()).await.is_none() {
        return;
    }
    let mut cluster: Option<Cluster> = None;
    let mut warned: BTreeMap<String, Instant> = BTreeMap::new();
    loop {
        if cluster.is_none() && policies.cache().entries().next().is_some() {
            cluster = options.shutdown.race(Cluster::read(&options.informers, &changed)).await;
            if cluster.is_none() {
                return;
            }
        }
        if let Some(cluster) = &cluster {
            let left = std::mem::take(&mut *cluster.left.lock());
            options.rules.forget_connections(left).await;
        }
        // Before the objects are read, so that later changes are another version.
        let pods = options.gate.pods();
        let version = pods.version;
        let work = apply(&options, &policies, cluster.as_ref(), pods, &mut warned);
        let applied = caught("network-policies", Everything, work).await;
        let next = async {
            if matches!(applied, Ok(Ok(()))) {
                tokio::select! {
                    () = changed.notified() => {}
                    () = options.gate.changed(version) => {}
                }
                tokio::time::sleep(GATHER).await;
            } else {
                tokio::time::sleep(AGAIN).await;
            }
        };
        if options.shutdown.race(next).await.is_none() {
            return;
        }
    }
}

async fn apply(
    options: &Options,
    policies: &Informer<Policy>,
    cluster: Option<&Cluster>,
    Pods { version, pods }: Pods,
    warned: &mut BTreeMap<String, Instant>,
) -> network::Result<()> {
    let desired = cluster.and_then(|cluster| {
        let (policies, namespaces, all) = (policies.cache(), cluster.namespaces.cache(), cluster.pods.cache());
        let objects = Objects {
            policies: policies.entries().map(|e| (&e.meta, &e.view)).collect(),
            namespaces: namespaces.entries().map(|e| &e.meta).collect(),
            pods: all.entries().map(|e| (&e.meta, &e.view)).collect(),
        };
        (!objects.policies.is_empty()).then(|| desired(&objects, &pods))
    });
    warned.retain(|_, at| at.elapsed() < WARN_AGAIN);
    for (namespace, rules) in desired.iter().flat_map(|d| &d.excess) {
        if !warned.contains_key(namespace) {
            warned.insert(namespace.clone(), Instant::now());
            tracing::warn!(namespace, rules, "the network policies of pods have too many rules: so many are left out");
        }
    }
    let (uids, rules): (Option<_>, Option<Vec<PodPolicy>>) = match desired {
        Some(desired) => {
            let (uids, rules) = desired.pods.into_iter().unzip();
            (Some(uids), Some(rules))
        }
        None => (None, None),
    };
    let written = options.rules.apply(rules.as_deref()).await;
    written.inspect_err(|e| tracing::error!("writing the rules of network policies failed; it is tried again: {e}"))?;
    options.gate.set_applied(version, uids);
    Ok(())
}
