//! Follows the nodes of the cluster, for the routes to their pods.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use client::{ApiResource, Informers, Scope, Shutdown};
use k8s_openapi::api::core::v1::Node;
use network::{Family, Peer, Ranges};
use serde::Deserialize;
use tokio::sync::Notify;

use crate::join::POD_NETWORK;

/// How long changes are collected.
const GATHER: Duration = Duration::from_millis(10);
/// The pause after a change that failed.
const AGAIN: Duration = Duration::from_secs(1);

/// The fields of a node that lead to its pods.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeNetwork {
    metadata: Metadata,
    spec: Spec,
    status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Metadata {
    #[serde(deserialize_with = "client::informer::or_default")]
    annotations: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    #[serde(rename = "podCIDR")]
    pod_cidr: String,
    #[serde(rename = "podCIDRs", deserialize_with = "client::informer::or_default")]
    pod_cidrs: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    #[serde(deserialize_with = "client::informer::or_default")]
    addresses: Vec<Address>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Address {
    #[serde(rename = "type")]
    kind: String,
    address: String,
}

impl NodeNetwork {
    /// The addresses of its pods. None if the node takes no part in the pod network of Kemudi, or has no ranges yet.
    pub fn ranges(&self) -> Option<Ranges> {
        self.metadata.annotations.get(POD_NETWORK)?;
        match self.spec.pod_cidrs.as_slice() {
            [] => self.spec.pod_cidr.parse().ok(),
            all => all.join(",").parse().ok(),
        }
    }

    fn peer(&self) -> Option<Peer> {
        let ranges = self.ranges()?;
        let own = self.status.addresses.iter().filter(|a| a.kind == "InternalIP");
        let mut all = own.filter_map(|a| a.address.parse::<IpAddr>().ok());
        let address = all.find(|address| Family::of(*address) == ranges.of_tunnels())?;
        Some(Peer { ranges, address })
    }
}

/// Calls `apply` with the nodes in the pod network other than `own`, oldest first, when they change, until shutdown. An error is logged, and it is called
/// again.
pub async fn follow_peers<F: Future<Output = network::Result<()>>>(
    informers: Informers,
    own: Option<String>,
    shutdown: Shutdown,
    apply: impl Fn(Vec<Peer>) -> F,
) {
    let nodes = informers.informer::<NodeNetwork>(&ApiResource::typed::<Node>(), &Scope::default());
    let changed = Arc::new(Notify::new());
    let notify = changed.clone();
    let _subscription = nodes.subscribe(move |_| notify.notify_one());
    if shutdown.race(nodes.synced()).await.is_none() {
        return;
    }
    changed.notify_one();
    loop {
        let next = async {
            changed.notified().await;
            tokio::time::sleep(GATHER).await;
        };
        if shutdown.race(next).await.is_none() {
            return;
        }
        let mut others: Vec<_> =
            nodes.cache().entries().filter(|n| own.as_deref() != Some(&*n.meta.name)).cloned().collect();
        // A node that claims the range of an older one does not get it.
        others
            .sort_by(|a, b| (a.meta.creation_timestamp, &a.meta.name).cmp(&(b.meta.creation_timestamp, &b.meta.name)));
        let peers: Vec<Peer> = others.iter().filter_map(|n| n.view.peer()).collect();
        let count = peers.len();
        if let Err(e) = apply(peers).await {
            tracing::warn!("setting the routes to {count} nodes failed; it is tried again: {e}");
            changed.notify_one();
            tokio::time::sleep(AGAIN).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nodes_reach_each_other_by_one_family() {
        let peer = |ranges: &[&str], addresses: &[&str]| {
            let addresses: Vec<_> = addresses.iter().map(|a| json!({"type": "InternalIP", "address": a})).collect();
            let node = json!({"metadata": {"annotations": {POD_NETWORK: "vxlan"}}, "spec": {"podCIDRs": ranges},
                "status": {"addresses": addresses}});
            let node: NodeNetwork = serde_json::from_value(node).unwrap();
            node.peer().map(|p| p.address.to_string())
        };
        let both = ["2001:db8::1", "192.0.2.1"];
        for (ranges, addresses, expect) in [
            (&["10.1.0.0/24"][..], &["192.0.2.1"][..], Some("192.0.2.1")),
            (&["fd00:1::/64", "10.1.0.0/24"], &both, Some("192.0.2.1")),
            (&["fd00:1::/64"], &both, Some("2001:db8::1")),
            (&["fd00:1::/64"], &["192.0.2.1"], None),
            (&["10.1.0.0/24"], &["2001:db8::1"], None),
        ] {
            assert_eq!(peer(ranges, addresses).as_deref(), expect, "{ranges:?} {addresses:?}");
        }
    }
}
