//! The address ranges of a cluster. The server publishes them in a ConfigMap, from which nodes that join learn them; each node records
//! them in its data directory, for its removal.

use crate::bootstrap;
use client::Client;
use k8s_openapi::api::core::v1::ConfigMap;
use network::Cidr;
use registry::Registry;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

/// The name of the ConfigMap in `kube-system`, which nodes may read.
pub const NAME: &str = "kemudi-cluster";
pub const NAMESPACE: &str = "kube-system";
/// The prefix length of the ranges of nodes (upstream's default of `--node-cidr-mask-size`).
const NODE_BITS: u8 = 24;

/// The ranges of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterNetwork {
    /// Addresses of all pods.
    pub pods: Cidr,
    /// Addresses of services.
    pub services: Cidr,
    /// The address of the cluster's DNS service.
    pub dns: Ipv4Addr,
}

impl ClusterNetwork {
    /// The prefix length of the ranges of nodes.
    pub fn node_bits(&self) -> u8 {
        self.pods.length().max(NODE_BITS)
    }

    /// The first range of a node: that of the node in the process of the server.
    pub fn first(&self) -> Cidr {
        let text = format!("{}/{}", self.pods.address(), self.node_bits());
        match text.parse() {
            Ok(range) => range,
            Err(e) => unreachable!("a part of a valid range: {e}"),
        }
    }

    /// Publishes the ranges.
    pub async fn publish(&self, registry: &Registry) -> Result<(), meta::Status> {
        let data = json!({"podCIDR": self.pods.to_string(), "serviceCIDR": self.services.to_string(),
            "clusterDNS": self.dns.to_string()});
        let metadata = json!({"name": NAME, "namespace": NAMESPACE});
        bootstrap::replace(registry, "", "v1", "configmaps", json!({"metadata": metadata, "data": data})).await
    }

    /// Reads the published ranges.
    pub async fn read(client: &Client) -> Result<Self, Error> {
        let map = client.api::<ConfigMap>().namespace(NAMESPACE).get(NAME).await?;
        let data = map.data.unwrap_or_default();
        let field = |name: &'static str| data.get(name).map(String::as_str).ok_or(Error::Field(name));
        Ok(Self {
            pods: field("podCIDR")?.parse().map_err(|_| Error::Field("podCIDR"))?,
            services: field("serviceCIDR")?.parse().map_err(|_| Error::Field("serviceCIDR"))?,
            dns: field("clusterDNS")?.parse().map_err(|_| Error::Field("clusterDNS"))?,
        })
    }

    /// Records the ranges in a data directory.
    pub fn record(&self, data_dir: &Path) -> io::Result<()> {
        std::fs::write(file(data_dir), serde_json::to_vec(self).map_err(io::Error::other)?)
    }

    /// The recorded ranges; those of earlier versions, which recorded none.
    pub fn recorded(data_dir: &Path) -> Self {
        let recorded = std::fs::read(file(data_dir)).ok().and_then(|t| serde_json::from_slice(&t).ok());
        recorded.unwrap_or_else(|| {
            let range = |text: &str| text.parse().unwrap_or_else(|e| unreachable!("a constant range: {e}"));
            Self { pods: range("10.244.0.0/24"), services: range("10.96.0.0/16"), dns: Ipv4Addr::UNSPECIFIED }
        })
    }
}

/// Why the ranges are unknown.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("reading the cluster's address ranges (ConfigMap {NAMESPACE}/{NAME}): {0}")]
    Client(#[from] client::Error),
    #[error("{0} of the ConfigMap {NAMESPACE}/{NAME} is missing or invalid")]
    Field(&'static str),
}

fn file(data_dir: &Path) -> PathBuf {
    data_dir.join("cluster-network.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_recorded() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(ClusterNetwork::recorded(directory.path()).pods.to_string(), "10.244.0.0/24");
        let mut ranges = ClusterNetwork::recorded(directory.path());
        ranges.pods = "10.7.0.0/16".parse().unwrap();
        ranges.record(directory.path()).unwrap();
        assert_eq!(ClusterNetwork::recorded(directory.path()), ranges);
        assert_eq!(ranges.first().to_string(), "10.7.0.0/24");
        ranges.pods = "10.7.0.0/26".parse().unwrap();
        assert_eq!((ranges.first(), ranges.node_bits()), (ranges.pods, 26));
    }
}
