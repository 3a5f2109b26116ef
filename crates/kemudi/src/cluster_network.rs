//! The address ranges of a cluster. The server publishes them in a ConfigMap, from which nodes that join learn them; each node records
//! them in its data directory, for its removal.

use crate::bootstrap;
use client::Client;
use k8s_openapi::api::core::v1::ConfigMap;
use network::{Cidr, Family, Ranges};
use registry::Registry;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The name of the ConfigMap in `kube-system`, which nodes may read.
pub const NAME: &str = "kemudi-cluster";
pub const NAMESPACE: &str = "kube-system";
const LOAD_BALANCER_FIELD: &str = "loadBalancerCIDR";
/// The default ranges of load balancers.
const LOAD_BALANCERS: [&str; 2] = ["10.97.0.0/24", "fd00:10:97::/112"];
/// The default ranges of the nodes of one machine.
const NODES: [&str; 2] = ["10.89.0.0/24", "fd00:10:89::/120"];

/// Those of two constant ranges that are of these families, in their order.
fn defaults(texts: [&str; 2], families: impl Iterator<Item = Family>) -> Vec<Cidr> {
    let all = texts.map(|text| text.parse::<Cidr>().unwrap_or_else(|e| unreachable!("a constant range: {e}")));
    families.flat_map(|family| all.into_iter().filter(move |range| range.family() == family)).collect()
}

/// The prefix lengths of the ranges of nodes, if they are not upstream's defaults: `--node-cidr-mask-size-ipv4` and `-ipv6`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeMasks {
    pub v4: Option<u8>,
    pub v6: Option<u8>,
}

impl NodeMasks {
    /// The prefix length of the ranges of nodes in this range.
    fn bits(self, range: Cidr) -> u8 {
        let (given, default) = match range.family() {
            Family::V4 => (self.v4, 24),
            Family::V6 => (self.v6, 64),
        };
        given.unwrap_or_else(|| range.length().max(default))
    }
}

/// The ranges of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterNetwork {
    /// Addresses of all pods.
    pub pods: Ranges,
    /// Addresses of services.
    pub services: Ranges,
    /// The prefix lengths of the ranges of nodes.
    #[serde(default)]
    pub node_masks: NodeMasks,
    /// The address of the cluster's DNS service, of the first family of services.
    pub dns: IpAddr,
    /// Addresses of load balancers.
    #[serde(default)]
    pub load_balancers: Option<Ranges>,
}

/// The value of `--load-balancer-cidr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadBalancers {
    /// Services get no addresses.
    Off,
    /// They get addresses of these ranges.
    Ranges(Ranges),
}

impl FromStr for LoadBalancers {
    type Err = network::Error;

    fn from_str(text: &str) -> Result<Self, network::Error> {
        if text == "none" {
            return Ok(Self::Off);
        }
        Ok(Self::Ranges(text.parse()?))
    }
}

/// Why ranges of load balancers cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidLoadBalancers {
    #[error("--load-balancer-cidr {range} overlaps {flag} {other}; give load balancers a range of their own")]
    Overlap { range: Cidr, flag: &'static str, other: Cidr },
    #[error("--load-balancer-cidr {range} is of a family that --service-cluster-ip-range {services} does not have")]
    Family { range: Cidr, services: Ranges },
}

/// The ranges of a cluster are not those of its former start.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{flag} {new}: the cluster in {directory} has {old}. Its ranges can get a second one of the other family, but no other change: pods and \
     services have addresses of them. Start it with {flag} {old}, or remove it with `kemudi down --purge --data-dir {directory}`"
)]
pub struct Changed {
    flag: &'static str,
    new: String,
    old: String,
    directory: String,
}

/// Why ranges of pods and services cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InvalidRanges {
    #[error(
        "--service-cluster-ip-range {services} overlaps --cluster-cidr {pods}: services and pods need ranges of their own"
    )]
    Overlap { services: Cidr, pods: Cidr },
    #[error(
        "--service-cluster-ip-range {services} is of a family that --cluster-cidr {pods} does not have: give pods a range of each family of services"
    )]
    NoPods { services: Cidr, pods: Ranges },
    #[error(
        "the prefix length {bits} of the ranges of nodes does not fit --cluster-cidr {pods}: it is {first} to {last} (--node-cidr-mask-size-ipv4, --node-cidr-mask-size-ipv6)"
    )]
    Mask { pods: Cidr, bits: u8, first: u8, last: u8 },
    #[error("--cluster-cidr: {0}")]
    Nodes(#[from] controllers::nodeipam::InvalidRanges),
}

impl ClusterNetwork {
    /// The prefix length of the ranges of nodes of a family; none without pods of that family.
    pub fn node_bits(&self, family: Family) -> Option<u8> {
        self.pods.of(family).map(|range| self.node_masks.bits(range))
    }

    /// The first ranges of a node: those of the node in the process of the server.
    pub fn first(&self) -> Ranges {
        let first = |range: Cidr| Cidr::around(range.address(), self.node_masks.bits(range));
        let ranges: Vec<Cidr> = self.pods.iter().map(first).collect();
        match Ranges::new(&ranges) {
            Ok(ranges) => ranges,
            Err(e) => unreachable!("parts of valid ranges: {e}"),
        }
    }

    /// Errors if ranges of pods and services overlap, or a node cannot use them.
    pub fn check(&self) -> Result<(), InvalidRanges> {
        for services in self.services.iter() {
            match self.pods.of(services.family()) {
                Some(pods) if pods.overlaps(&services) => return Err(InvalidRanges::Overlap { services, pods }),
                Some(_) => {}
                None => return Err(InvalidRanges::NoPods { services, pods: self.pods }),
            }
        }
        for pods in self.pods.iter() {
            let (bits, all) = (self.node_masks.bits(pods), pods.family().bits());
            // Four addresses: the network, the node, a pod, and the last one.
            if bits < pods.length() || bits > all - 2 {
                return Err(InvalidRanges::Mask { pods, bits, first: pods.length(), last: all - 2 });
            }
        }
        controllers::nodeipam::Options::new(
            &self.pods.to_string(),
            self.node_bits(Family::V4),
            self.node_bits(Family::V6),
        )?;
        Ok(())
    }

    /// Sets the ranges of load balancers: those of the flag, else, if there is a node, those of [`LOAD_BALANCERS`] of families of services that
    /// no range of `others` overlaps.
    pub fn with_load_balancers(
        mut self,
        flag: Option<LoadBalancers>,
        has_node: bool,
        others: &[(&'static str, Cidr)],
    ) -> Result<Self, InvalidLoadBalancers> {
        let (pods, services) = (self.pods.iter(), self.services.iter());
        let own: Vec<_> =
            pods.map(|r| ("--cluster-cidr", r)).chain(services.map(|r| ("--service-cluster-ip-range", r))).collect();
        let overlap = |range: Cidr| {
            let mut all = own.iter().chain(others);
            let found = all.find(|(_, other)| range.overlaps(other));
            found.map(|(flag, other)| InvalidLoadBalancers::Overlap { range, flag, other: *other })
        };
        self.load_balancers = match flag {
            Some(LoadBalancers::Off) => None,
            Some(LoadBalancers::Ranges(ranges)) => {
                for range in ranges.iter() {
                    if let Some(overlap) = overlap(range) {
                        return Err(overlap);
                    }
                    if self.services.of(range.family()).is_none() {
                        return Err(InvalidLoadBalancers::Family { range, services: self.services });
                    }
                }
                Some(ranges)
            }
            None => {
                let mut ranges = defaults(LOAD_BALANCERS, self.services.families());
                ranges.retain(|range| has_node && overlap(*range).is_none());
                Ranges::new(&ranges).ok()
            }
        };
        Ok(self)
    }

    /// The default range of the nodes of one machine, of the families of pods.
    pub fn node_network(&self) -> Ranges {
        let ranges = defaults(NODES, self.pods.families());
        Ranges::new(&ranges).unwrap_or_else(|e| unreachable!("pods have one or two families: {e}"))
    }

    /// The ranges of services, besides those of pods.
    pub fn service_ranges(&self) -> Vec<Cidr> {
        self.services.iter().chain(self.load_balancers.into_iter().flat_map(|ranges| ranges.iter())).collect()
    }

    /// Errors if the cluster of a data directory, which had the ranges `former`, cannot have these.
    pub fn check_change(&self, former: &Self, data_dir: &Path) -> Result<(), Changed> {
        let directory = data_dir.display().to_string();
        let is_kept = |new: Ranges, old: Ranges| new.iter().zip(old.iter()).all(|(new, old)| new == old);
        let ranges = [
            ("--cluster-cidr", self.pods, former.pods),
            ("--service-cluster-ip-range", self.services, former.services),
        ];
        for (flag, new, old) in ranges {
            if new.iter().count() < old.iter().count() || !is_kept(new, old) {
                return Err(Changed { flag, new: new.to_string(), old: old.to_string(), directory });
            }
        }
        let flags = [(Family::V4, "--node-cidr-mask-size-ipv4"), (Family::V6, "--node-cidr-mask-size-ipv6")];
        for (family, flag) in flags {
            match (self.node_bits(family), former.node_bits(family)) {
                (Some(new), Some(old)) if new != old => {
                    return Err(Changed { flag, new: new.to_string(), old: old.to_string(), directory });
                }
                _ => {}
            }
        }
        Ok(())
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
            node_masks: NodeMasks::default(),
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

    /// The ranges of the former start of a data directory, if it recorded them.
    pub fn former(data_dir: &Path) -> Option<Self> {
        std::fs::read(file(data_dir)).ok().and_then(|t| serde_json::from_slice(&t).ok())
    }

    /// The recorded ranges; those of earlier versions, which recorded none.
    pub fn recorded(data_dir: &Path) -> Self {
        Self::former(data_dir).unwrap_or_else(|| {
            let range = |text: &str| text.parse::<Ranges>().unwrap_or_else(|e| unreachable!("a constant range: {e}"));
            Self {
                pods: range("10.244.0.0/24"),
                services: range("10.96.0.0/16"),
                node_masks: NodeMasks::default(),
                dns: IpAddr::from([0; 4]),
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
        let family =
            "--load-balancer-cidr fd00::/64 is of a family that --service-cluster-ip-range 10.96.0.0/16 does not have";
        assert_eq!(check(Some("192.0.2.0/28,fd00::/64"), true, "10.89.0.0/24"), Err(family.to_owned()));
        assert!("10.0.0.1/8".parse::<LoadBalancers>().is_err() && "fd00::/64,".parse::<LoadBalancers>().is_err());
        let mut both = ranges;
        both.services = "fd00:10:96::/112,10.96.0.0/16".parse().unwrap();
        let shown = |r: Result<ClusterNetwork, _>| r.unwrap().load_balancers.unwrap().to_string();
        assert_eq!(shown(both.with_load_balancers(None, true, &[])), "fd00:10:97::/112,10.97.0.0/24");
        let nodes = [("--node-network", "fd00:10::/32".parse().unwrap())];
        assert_eq!(shown(both.with_load_balancers(None, true, &nodes)), "10.97.0.0/24");
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
        assert_eq!((ranges.first(), ranges.node_bits(Family::V4)), (ranges.pods, Some(26)));
        ranges.pods = "fd00:10:244::/56,10.7.0.0/16".parse().unwrap();
        assert_eq!(ranges.first().to_string(), "fd00:10:244::/64,10.7.0.0/24");
        ranges.record(directory.path()).unwrap();
        assert_eq!(ClusterNetwork::recorded(directory.path()), ranges);
    }

    #[test]
    fn ranges_of_pods_and_services_fit_together() {
        let check = |services: &str, pods: &str, v4, v6| {
            let mut ranges = ClusterNetwork::recorded(Path::new("/nonexistent"));
            (ranges.services, ranges.pods) = (services.parse().unwrap(), pods.parse().unwrap());
            ranges.node_masks = NodeMasks { v4, v6 };
            ranges.check().err().map(|e| e.to_string()).unwrap_or_default()
        };
        let good = [
            ("10.96.0.0/16", "10.244.0.0/16", None),
            ("10.96.0.0/16", "10.244.0.0/16,fd00:10:244::/56", None),
            ("10.96.0.0/16,fd00:10:96::/112", "fd00:10:244::/56,10.244.0.0/16", Some(72)),
            ("fd00:10:96::/112,10.96.0.0/16", "10.244.0.0/30,fd00:10:244::/112", None),
            ("fd00:10:96::/112", "fd00:10:244::/56", None),
        ];
        for (services, pods, v6) in good {
            assert_eq!(check(services, pods, None, v6), "", "{services} {pods}");
        }
        for (services, pods, v4, v6, expect) in [
            (
                "10.244.0.0/16",
                "10.244.0.0/24",
                None,
                None,
                "--service-cluster-ip-range 10.244.0.0/16 overlaps --cluster-cidr 10.244.0.0/24: ",
            ),
            (
                "10.0.0.0/24,fd00::/112",
                "10.1.0.0/24,fd00::/56",
                None,
                None,
                "--service-cluster-ip-range fd00::/112 overlaps --cluster-cidr fd00::/56: ",
            ),
            (
                "10.96.0.0/16,fd00::/112",
                "10.244.0.0/16",
                None,
                None,
                "--service-cluster-ip-range fd00::/112 is of a family that ",
            ),
            ("fd00::/112", "10.0.0.0/8", None, None, "--service-cluster-ip-range fd00::/112 is of a family that "),
            (
                "10.96.0.0/16",
                "10.244.0.0/16",
                Some(15),
                None,
                "the prefix length 15 of the ranges of nodes does not fit",
            ),
            ("10.96.0.0/16", "10.244.0.0/31", None, None, "the prefix length 31 of the ranges of nodes does not fit"),
            (
                "10.96.0.0/16",
                "10.244.0.0/16,fd00::/56",
                None,
                Some(127),
                "the prefix length 127 of the ranges of nodes does not fit",
            ),
            ("10.96.0.0/16", "10.244.0.0/16,fd00::/40", None, None, "--cluster-cidr: New CIDR set failed"),
        ] {
            let error = check(services, pods, v4, v6);
            assert!(error.starts_with(expect), "{services} {pods}: {error}");
        }
    }

    #[test]
    fn ranges_get_a_second_family_and_change_no_more() {
        let with = |pods: &str, services: &str, v6| {
            let mut ranges = ClusterNetwork::recorded(Path::new("/nonexistent"));
            (ranges.pods, ranges.services) = (pods.parse().unwrap(), services.parse().unwrap());
            ranges.node_masks = NodeMasks { v4: None, v6 };
            ranges
        };
        let check = |new: &ClusterNetwork, old: &ClusterNetwork| new.check_change(old, Path::new("/data"));
        let (one, two) = (
            with("10.244.0.0/16", "10.96.0.0/16", None),
            with("10.244.0.0/16,fd00::/56", "10.96.0.0/16,fd01::/112", None),
        );
        assert_eq!((check(&one, &one), check(&two, &one), check(&two, &two)), (Ok(()), Ok(()), Ok(())));
        let taken = check(&one, &two).unwrap_err().to_string();
        assert!(
            taken.starts_with("--cluster-cidr 10.244.0.0/16: the cluster in /data has 10.244.0.0/16,fd00::/56. "),
            "{taken}"
        );
        for (pods, services, v6, flag) in [
            ("10.245.0.0/16", "10.96.0.0/16", None, "--cluster-cidr 10.245.0.0/16:"),
            ("fd00::/56,10.244.0.0/16", "10.96.0.0/16", None, "--cluster-cidr fd00::/56,10.244.0.0/16:"),
            ("10.244.0.0/16,fd00::/56", "10.96.0.0/16", None, "--service-cluster-ip-range 10.96.0.0/16:"),
            ("10.244.0.0/16,fd00::/56", "10.96.0.0/16,fd01::/112", Some(72), "--node-cidr-mask-size-ipv6 72:"),
        ] {
            let error = check(&with(pods, services, v6), &two).unwrap_err().to_string();
            assert!(error.starts_with(flag), "{error}");
        }
        assert_eq!(two.node_network().to_string(), "10.89.0.0/24,fd00:10:89::/120");
        assert_eq!(with("fd00::/56", "fd01::/112", None).node_network().to_string(), "fd00:10:89::/120");
    }
}
