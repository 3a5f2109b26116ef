//! The endpoints of the cluster's DNS service: the DNS servers of all nodes in the pod network.

use crate::bootstrap;
use client::{ApiResource, Informers, Scope, Shutdown};
use k8s_openapi::api::core::v1::Node;
use network::Family;
use node::NodeNetwork;
use registry::Registry;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// How long changes are collected.
const GATHER: Duration = Duration::from_millis(20);
/// The pause after a write that failed.
const AGAIN: Duration = Duration::from_secs(1);

/// The DNS server of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoint {
    pub node: String,
    pub address: IpAddr,
}

/// What the endpoints are made from.
#[derive(Clone)]
pub struct Options {
    pub registry: Arc<Registry>,
    pub informers: Informers,
    /// The DNS server of the node in this process.
    pub own: Option<Endpoint>,
    /// The address of the service.
    pub dns: IpAddr,
    pub shutdown: Shutdown,
}

/// Keeps the endpoints up to date, until shutdown.
pub async fn run(options: Options) {
    let nodes = options.informers.informer::<NodeNetwork>(&ApiResource::typed::<Node>(), &Scope::default());
    let changed = Arc::new(Notify::new());
    let notify = changed.clone();
    let _subscription = nodes.subscribe(move |_| notify.notify_one());
    if options.shutdown.race(nodes.synced()).await.is_none() {
        return;
    }
    changed.notify_one();
    let mut written: Vec<Endpoint> = options.own.iter().cloned().collect();
    loop {
        let next = async {
            changed.notified().await;
            tokio::time::sleep(GATHER).await;
        };
        if options.shutdown.race(next).await.is_none() {
            return;
        }
        let endpoint = |n: &Arc<client::Entry<NodeNetwork>>| {
            // The DNS server of a node has the first address of each of its ranges.
            let range = n.view.ranges()?.of(Family::of(options.dns))?;
            range.nth(1).map(|address| Endpoint { node: n.meta.name.to_string(), address })
        };
        let mut servers: Vec<Endpoint> =
            nodes.cache().entries().filter_map(endpoint).chain(options.own.clone()).collect();
        servers.sort();
        servers.dedup();
        if servers == written {
            continue;
        }
        match bootstrap::dns(&options.registry, options.dns, &servers).await {
            Ok(()) => written = servers,
            Err(e) => {
                tracing::warn!("writing the endpoints of the DNS service failed; it is tried again: {e}");
                changed.notify_one();
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}
