//! Addresses with ports that no service receives packets for, although users choose external addresses of services: those of the API
//! server, and of every node's agent, tunnel and health check.

use crate::Slice;
use crate::status::HEALTH_PORT;
use client::Meta;
use client::informer::or_default;
use network::Protocol;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// The port of kubelet, if a node does not report one.
const KUBELET: u16 = 10_250;

/// A node: its addresses, and the port of its agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeView {
    #[serde(deserialize_with = "or_default")]
    spec: Spec,
    #[serde(deserialize_with = "or_default")]
    status: Status,
}

impl NodeView {
    /// Whether the cluster autoscaler is about to remove the node.
    pub fn is_leaving(&self) -> bool {
        self.spec.taints.iter().any(|taint| taint.key == LEAVING)
    }
}

/// The taint that the cluster autoscaler sets before it removes a node.
const LEAVING: &str = "ToBeDeletedByClusterAutoscaler";

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Spec {
    #[serde(deserialize_with = "or_default")]
    taints: Vec<Taint>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Taint {
    key: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    #[serde(deserialize_with = "or_default")]
    addresses: Vec<Address>,
    #[serde(deserialize_with = "or_default")]
    daemon_endpoints: DaemonEndpoints,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Address {
    address: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DaemonEndpoints {
    #[serde(deserialize_with = "or_default")]
    kubelet_endpoint: KubeletEndpoint,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct KubeletEndpoint {
    port: u16,
}

/// The reserved addresses and ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reserved(BTreeSet<(IpAddr, Protocol, u16)>);

impl Reserved {
    /// Of all nodes, and of the API server by the slices of its service (`default/kubernetes`).
    pub fn new<'a>(
        nodes: impl Iterator<Item = &'a NodeView>,
        slices: impl Iterator<Item = (&'a Meta, &'a Slice)>,
    ) -> Self {
        let mut reserved = BTreeSet::new();
        for status in nodes.map(|n| &n.status) {
            let port = Some(status.daemon_endpoints.kubelet_endpoint.port).filter(|p| *p > 0).unwrap_or(KUBELET);
            for address in status.addresses.iter().filter_map(|a| a.address.parse().ok()) {
                reserved.insert((address, Protocol::Tcp, port));
                reserved.insert((address, Protocol::Tcp, HEALTH_PORT));
                reserved.insert((address, Protocol::Udp, network::TUNNEL_PORT));
            }
        }
        for (meta, slice) in slices {
            if &*meta.namespace == crate::SYSTEM && meta.label(crate::desired::SERVICE_NAME) == Some("kubernetes") {
                reserved.extend(slice.addresses().map(|(address, port)| (address, Protocol::Tcp, port)));
            }
        }
        Self(reserved)
    }

    /// Whether a service may receive packets for an address and port.
    pub fn allows(&self, address: IpAddr, protocol: Protocol, port: u16) -> bool {
        !self.0.contains(&(address, protocol, port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{from_value, json};

    #[test]
    fn agents_tunnels_and_the_api_server_are_reserved() {
        let node = |status| from_value::<NodeView>(json!({"status": status})).unwrap();
        let nodes = [
            node(
                json!({"addresses": [{"type": "InternalIP", "address": "10.89.0.11"}, {"type": "Hostname", "address": "a"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": 1234}}}),
            ),
            node(json!({"addresses": [{"type": "InternalIP", "address": "10.89.0.12"}], "daemonEndpoints": null})),
            node(json!({})),
        ];
        let slice: Slice = from_value(
            json!({"endpoints": [{"addresses": ["10.89.0.1"]}], "ports": [{"name": "https", "port": 6443}]}),
        )
        .unwrap();
        let of = |namespace: &str, service: &str| {
            let labels = [(crate::desired::SERVICE_NAME.into(), service.into())].into_iter().collect();
            let labels = client::informer::Labels::from_sorted(labels);
            Meta { namespace: namespace.into(), name: "s".into(), labels, ..Meta::default() }
        };
        let slices = [(of("default", "kubernetes"), slice.clone()), (of("evil", "kubernetes"), slice)];
        let reserved = Reserved::new(nodes.iter(), slices[..1].iter().map(|(m, s)| (m, s)));
        for (address, protocol, port, allowed) in [
            ("10.89.0.11", Protocol::Tcp, 1234, false),
            ("10.89.0.11", Protocol::Udp, 8473, false),
            ("10.89.0.11", Protocol::Tcp, 80, true),
            ("10.89.0.12", Protocol::Tcp, 10_250, false),
            ("10.89.0.1", Protocol::Tcp, 6443, false),
            ("10.89.0.1", Protocol::Tcp, 443, true),
        ] {
            assert_eq!(reserved.allows(address.parse().unwrap(), protocol, port), allowed, "{address}:{port}");
        }
        let others = Reserved::new([].iter(), slices[1..].iter().map(|(m, s)| (m, s)));
        assert_eq!(others, Reserved::default(), "slices of other namespaces");
    }
}
