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
use std::str::FromStr;

/// The name of the ConfigMap in `kube-system`, which nodes may read.
pub const NAME: &str = "kemudi-cluster";
pub const NAMESPACE: &str = "kube-system";
const LOAD_BALANCER_FIELD: &str = "loadBalancerCIDR";
/// The default range of load balancers.
const LOAD_BALANCERS: &str = "10.97.0.0/24";
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
    /// Addresses of load balancers.
    #[serde(default)]
    pub load_balancers: Option<Cidr>,
}

/// The value of `--load-balancer-cidr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadBalancers {
    /// Services get no addresses.
    Off,
    /// They get addresses of this range.
    Range(Cidr),
}

impl FromStr for LoadBalancers {
    type Err = network::Error;

    fn from_str(text: &str) -> Result<Self, network::Error> {
        if text == "none" { Ok(Self::Off) } else { text.parse().map(Self::Range) }
    }
}

/// The range of load balancers overlaps another one.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("--load-balancer-cidr {range} overlaps {flag} {other}; give load balancers a range of their own")]
pub struct Overlap {
    range: Cidr,
    flag: &'static str,
    other: Cidr,
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

    /// Sets the range of load balancers: that of the flag, else [`LOAD_BALANCERS`] if there is a node and no range of `others` overlaps it.
    pub fn with_load_balancers(
        mut self,
        flag: Option<LoadBalancers>,
        has_node: bool,
        others: &[(&'static str, Cidr)],
    ) -> Result<Self, Overlap> {
        let own = [("--cluster-cidr", self.pods), ("--service-cluster-ip-range", self.services)];
        let overlap = |range: Cidr| {
            let mut all = own.iter().chain(others);
            let found = all.find(|(_, other)| range.contains_range(other) || other.contains_range(&range));
            found.map(|(flag, other)| Overlap { range, flag, other: *other })
        };
        self.load_balancers = match flag {
            Some(LoadBalancers::Off) => None,
            Some(LoadBalancers::Range(range)) => match overlap(range) {
                Some(overlap) => return Err(overlap),
                None => Some(range),
            },
            None => LOAD_BALANCERS.parse().ok().filter(|range| has_node && overlap(*range).is_none()),
        };
        Ok(self)
    }

    /// The ranges of services, besides those of pods.
    pub fn service_ranges(&self) -> Vec<Cidr> {
        std::iter::once(self.services).chain(self.load_balancers).collect()
    }

    /// Publishes the ranges.
    pub async fn publish(&self, registry: &Registry) -> Result<(), meta::Status> {
        let mut data = json!({"podCIDR": self.pods.to_string(), "serviceCIDR": self.services.to_string(),
            "clusterDNS": self.dns.to_string()});
        if let Some(range) = self.load_balancers {
            data[LOAD_BALANCER_FIELD] = range.to_string().into();
        }
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
            load_balancers: match data.get(LOAD_BALANCER_FIELD) {
                Some(text) => Some(text.parse().map_err(|_| Error::Field(LOAD_BALANCER_FIELD))?),
                None => None,
            },
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
            Self {
                pods: range("10.244.0.0/24"),
                services: range("10.96.0.0/16"),
                dns: Ipv4Addr::UNSPECIFIED,
                load_balancers: None,
            }
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
    fn load_balancers_have_a_range_of_their_own() {
        let ranges = ClusterNetwork::recorded(Path::new("/nonexistent"));
        let check = |flag: Option<&str>, has_node, nodes: &str| {
            let others = [("--node-network", nodes.parse().unwrap())];
            let found = ranges.with_load_balancers(flag.map(|f| f.parse().unwrap()), has_node, &others);
            found.map(|r| r.load_balancers.map(|r| r.to_string())).map_err(|e| e.to_string())
        };
        let range = |text: &str| Ok(Some(text.to_owned()));
        assert_eq!(check(None, true, "10.89.0.0/24"), range("10.97.0.0/24"));
        assert_eq!(check(None, true, "10.97.0.0/16"), Ok(None));
        assert_eq!(check(None, false, "10.89.0.0/24"), Ok(None));
        assert_eq!(check(Some("none"), true, "10.89.0.0/24"), Ok(None));
        assert_eq!(check(Some("192.0.2.0/28"), false, "10.89.0.0/24"), range("192.0.2.0/28"));
        let overlap = "--load-balancer-cidr 10.0.0.0/8 overlaps --cluster-cidr 10.244.0.0/24; give load balancers a range of their own";
        assert_eq!(check(Some("10.0.0.0/8"), true, "10.89.0.0/24"), Err(overlap.to_owned()));
        assert!("10.0.0.1/8".parse::<LoadBalancers>().is_err());
    }

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
