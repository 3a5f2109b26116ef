//! Which host names and addresses a node may have in its serving certificate.

use client::informer::or_default;
use serde::Deserialize;

/// The addresses of a node.
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
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ServiceSpec {
    #[serde(rename = "clusterIPs", deserialize_with = "or_default")]
    cluster_ips: Vec<String>,
}

impl Service {
    pub fn addresses(&self) -> Vec<String> {
        self.spec.cluster_ips.clone()
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

/// Whether this is a name of the API server.
fn is_api_server(host: &str) -> bool {
    let host = host.to_ascii_lowercase();
    host == "localhost" || host == "kubernetes" || host.starts_with("kubernetes.default")
}

impl View {
    fn has(&self, host: &str) -> bool {
        self.status.addresses.iter().any(|a| a.address == host)
    }
}

/// Whether all hosts of a certificate are addresses in the status of this node, and of no other node, and neither names of the API server
/// nor `reserved`: with such a certificate, the node could answer in its place.
pub fn check_hosts<'a>(
    node: &str,
    hosts: &[String],
    reserved: &[String],
    nodes: impl Iterator<Item = (&'a str, &'a View)>,
) -> Result<(), String> {
    let (own, others): (Vec<_>, Vec<_>) = nodes.partition(|(name, _)| *name == node);
    let (_, own) = own.first().ok_or_else(|| format!("there is no node {node}"))?;
    for host in hosts {
        if is_api_server(host) || reserved.contains(host) {
            return Err(format!("{host} is that of the API server"));
        }
        if let Some((name, _)) = others.iter().find(|(_, other)| other.has(host)) {
            return Err(format!("{host} is an address of the node {name}, too"));
        }
        if !own.has(host) && host != node {
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
        let nodes = [
            ("a", view(&["10.0.0.1", "a"])),
            ("b", view(&["10.0.0.2", "b"])),
            ("thief", view(&["10.0.0.2", "10.96.0.1", "localhost"])),
        ];
        let check = |node: &str, hosts: &[&str]| {
            let hosts: Vec<String> = hosts.iter().map(|h| (*h).to_owned()).collect();
            check_hosts(node, &hosts, &["10.96.0.1".to_owned()], nodes.iter().map(|(name, view)| (*name, view)))
        };
        assert_eq!(check("a", &["a", "10.0.0.1"]), Ok(()));
        assert_eq!(check("a", &["10.0.0.9"]).unwrap_err(), "10.0.0.9 is no address of the node a");
        assert_eq!(check("thief", &["10.0.0.2"]).unwrap_err(), "10.0.0.2 is an address of the node b, too");
        assert_eq!(check("thief", &["b"]).unwrap_err(), "b is an address of the node b, too");
        for host in ["10.96.0.1", "localhost", "kubernetes", "Kubernetes.default.svc"] {
            assert_eq!(check("thief", &[host]).unwrap_err(), format!("{host} is that of the API server"));
        }
        assert_eq!(check("absent", &[]).unwrap_err(), "there is no node absent");
        assert!(check("a", &[""]).is_err(), "an address that cannot be read");
    }
}
