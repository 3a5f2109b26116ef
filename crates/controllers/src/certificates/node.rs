//! Which certificates of nodes are approved: the name in a client certificate, the host names and addresses in a serving certificate.

use client::informer::or_default;
use meta::{address, names};
use serde::Deserialize;
use serde_json::Value;
use std::net::IpAddr;

/// The addresses and conditions of a node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct View {
    status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    #[serde(deserialize_with = "or_default")]
    addresses: Vec<Address>,
    #[serde(deserialize_with = "or_default")]
    conditions: Vec<Condition>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Address {
    address: String,
}

/// The addresses of a service.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Service {
    spec: ServiceSpec,
    status: Value,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ServiceSpec {
    #[serde(rename = "clusterIPs", deserialize_with = "or_default")]
    cluster_ips: Vec<String>,
    #[serde(rename = "externalIPs", deserialize_with = "or_default")]
    external_ips: Vec<String>,
}

impl Service {
    /// The addresses by which clients reach it: in the cluster, external ones, and those of its load balancer.
    pub fn addresses(&self) -> impl Iterator<Item = String> + use<> {
        let ingress = self.status["loadBalancer"]["ingress"].as_array().into_iter().flatten();
        let balancers = ingress.filter_map(|i| i["ip"].as_str().map(str::to_owned));
        let all: Vec<String> =
            self.spec.cluster_ips.iter().chain(&self.spec.external_ips).cloned().chain(balancers).collect();
        all.into_iter()
    }
}

/// The addresses of endpoints.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Slice {
    #[serde(deserialize_with = "or_default")]
    endpoints: Vec<Endpoint>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Endpoint {
    #[serde(deserialize_with = "or_default")]
    addresses: Vec<String>,
}

impl Slice {
    pub fn addresses(&self) -> Vec<String> {
        self.endpoints.iter().flat_map(|e| e.addresses.clone()).collect()
    }
}

impl View {
    fn has(&self, address: &str) -> bool {
        self.status.addresses.iter().any(|a| a.address == address)
    }

    /// The addresses of a node that is ready; none if it is not.
    pub fn ready_at(&self) -> Option<String> {
        let is_ready = self.status.conditions.iter().any(|c| c.kind == "Ready" && c.status == "True");
        let addresses: Vec<&str> = self.status.addresses.iter().map(|a| a.address.as_str()).collect();
        is_ready.then(|| addresses.join(", "))
    }
}

/// Why a client certificate is not approved.
#[derive(Debug, PartialEq, Eq)]
pub enum Refusal {
    InvalidName(String),
    NameTaken(String),
}

/// Whether the name is one that services and the API server have in the cluster.
fn is_name_in_cluster(host: &str) -> bool {
    host == "localhost" || host.starts_with("kubernetes") || host.split('.').any(|label| label == "svc")
}

/// Whether a client certificate with this common name may be approved. A node that is ready has one, and renews it itself (`own`): nobody
/// else gets its name. `ready_at` returns the addresses of a node that is ready.
pub fn check_client(common_name: &str, own: bool, ready_at: impl Fn(&str) -> Option<String>) -> Result<(), Refusal> {
    let node = common_name.strip_prefix("system:node:").unwrap_or_default();
    if !names::dns_subdomain(node).is_empty() {
        return Err(Refusal::InvalidName(format!("{node:?} is no name of a node")));
    }
    match ready_at(node) {
        Some(addresses) if !own => Err(Refusal::NameTaken(format!("the node {node} is ready already, at {addresses}"))),
        _ => Ok(()),
    }
}

/// Whether a serving certificate for these hosts may be approved: the node's own name, and IP addresses that are in the status of this node
/// and of no other one. Never names and addresses that others have: with such a certificate, the node could answer in the place of the API
/// server or of a service. `reserved` are those of the API server, and the addresses of services.
pub fn check_hosts<'a>(
    node: &str,
    hosts: &[String],
    reserved: &[String],
    nodes: impl Iterator<Item = (&'a str, &'a View)>,
) -> Result<(), String> {
    let (own, others): (Vec<_>, Vec<_>) = nodes.partition(|(name, _)| *name == node);
    let (_, own) = own.first().ok_or_else(|| format!("there is no node {node}"))?;
    for host in hosts {
        if reserved.contains(host) {
            return Err(format!("{host} is that of the API server or of a service"));
        }
        let Ok(ip) = host.parse::<IpAddr>() else {
            if host != node || is_name_in_cluster(host) {
                return Err(format!("{host:?} is not the name of the node {node}, or one that others have"));
            }
            continue;
        };
        if address::is_special(ip) || ip != ip.to_canonical() {
            return Err(format!("{host} is not the address of one machine"));
        }
        if let Some((name, _)) = others.iter().find(|(_, other)| other.has(host)) {
            return Err(format!("{host} is an address of the node {name}, too"));
        }
        if !own.has(host) {
            return Err(format!("{host} is no address of the node {node}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn view(addresses: &[&str]) -> View {
        let all: Vec<_> = addresses.iter().map(|a| json!({"type": "InternalIP", "address": a})).collect();
        serde_json::from_value(json!({"status": {"addresses": all}})).unwrap()
    }

    #[test]
    fn nodes_get_certificates_for_their_own_addresses() {
        let claimed = [
            "10.0.0.2",
            "10.96.0.1",
            "10.89.0.1",
            "localhost",
            "*.default.svc",
            "*",
            "127.0.0.1",
            "::1",
            "b",
            "a.example",
        ];
        let nodes = [
            ("a", view(&["10.0.0.1", "a", "fd00::1"])),
            ("b", view(&["10.0.0.2", "b"])),
            ("thief", view(&claimed)),
            ("kubernetes.default", view(&["10.0.0.4"])),
            ("web.default.svc", view(&["10.0.0.5"])),
        ];
        let reserved = ["10.96.0.1", "10.89.0.1", "kubernetes.default", "api.example"].map(str::to_owned);
        let check = |node: &str, hosts: &[&str]| {
            let hosts: Vec<String> = hosts.iter().map(|h| (*h).to_owned()).collect();
            check_hosts(node, &hosts, &reserved, nodes.iter().map(|(name, view)| (*name, view)))
        };
        assert_eq!(check("a", &["a", "10.0.0.1", "fd00::1"]), Ok(()));
        assert_eq!(check("a", &["10.0.0.9"]).unwrap_err(), "10.0.0.9 is no address of the node a");
        assert_eq!(check("thief", &["10.0.0.2"]).unwrap_err(), "10.0.0.2 is an address of the node b, too");
        for host in claimed {
            assert!(check("thief", &["thief", host]).is_err(), "{host}");
        }
        for node in ["kubernetes.default", "web.default.svc"] {
            assert!(check(node, &[node]).is_err(), "{node}");
        }
        assert_eq!(check("absent", &[]).unwrap_err(), "there is no node absent");
        assert!(check("a", &[""]).is_err(), "an address that cannot be read");
    }

    #[test]
    fn only_nodes_that_are_not_ready_get_another_client() {
        let ready_at = |node: &str| (node == "runs").then(|| "10.0.0.1, runs".to_owned());
        let check = |node: &str, own| check_client(&format!("system:node:{node}"), own, ready_at);
        assert_eq!(check("new", false), Ok(()));
        let taken = Refusal::NameTaken("the node runs is ready already, at 10.0.0.1, runs".into());
        assert_eq!(check("runs", false), Err(taken));
        assert_eq!(check("runs", true), Ok(()), "it renews its own");
        for name in ["", "../x", "NODE-2", "a b", "a/b"] {
            assert!(matches!(check(name, false), Err(Refusal::InvalidName(_))), "{name:?}");
        }
        assert!(check_client("jane", false, ready_at).is_err());
    }
}
