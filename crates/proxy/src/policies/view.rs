//! The fields of policies and pods that decide which connections are allowed.

use std::net::IpAddr;

use meta::Value;
use meta::selector::LabelSelector;
use network::Protocol;
use network::policies::{Block, PortRange};
use serde::Deserialize;

use crate::desired::range;

/// A NetworkPolicy.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "RawObject")]
pub struct Policy {
    /// The pods that it isolates.
    pub pods: LabelSelector,
    /// The rules for connections to these pods; none if it does not isolate them in this direction.
    pub ingress: Option<Vec<Rule>>,
    /// The rules for connections from these pods; likewise.
    pub egress: Option<Vec<Rule>>,
}

/// A rule of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The other ends; empty for all.
    pub peers: Vec<Peer>,
    /// The ports of the destination; empty for all.
    pub ports: Vec<Port>,
}

/// Other ends of connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Pods by their labels, in the namespace of the policy or in those that another selector selects.
    Pods { namespaces: Option<LabelSelector>, pods: LabelSelector },
    /// Addresses.
    Block(Block),
    /// No pod and no address of IPv4.
    Nothing,
}

/// Ports of the destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Port {
    /// By number.
    Numbers(PortRange),
    /// A port of a container, by its name.
    Name(Protocol, String),
}

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "RawPod")]
pub struct Pod {
    /// Its addresses in the pod network; empty for a pod without one, and for one that has ended.
    pub addresses: Vec<IpAddr>,
    /// The named ports of its containers.
    pub ports: Vec<(String, Protocol, u16)>,
    /// The UID of the static pod that this one shows.
    pub mirror_of: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawObject {
    spec: RawPolicy,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawPolicy {
    pod_selector: Value,
    policy_types: Option<Vec<String>>,
    ingress: Option<Vec<RawRule>>,
    egress: Option<Vec<RawRule>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawRule {
    from: Option<Vec<RawPeer>>,
    to: Option<Vec<RawPeer>>,
    ports: Option<Vec<RawPort>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawPeer {
    pod_selector: Value,
    namespace_selector: Value,
    ip_block: Option<RawBlock>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawBlock {
    cidr: String,
    except: Option<Vec<String>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawPort {
    protocol: Option<String>,
    port: Value,
    end_port: Option<i64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawPod {
    metadata: RawMetadata,
    spec: RawPodSpec,
    status: RawStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawMetadata {
    annotations: Option<RawAnnotations>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawAnnotations {
    #[serde(rename = "kubernetes.io/config.mirror")]
    mirror: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawPodSpec {
    node_name: String,
    host_network: bool,
    containers: Vec<RawContainer>,
    init_containers: Option<Vec<RawContainer>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawContainer {
    restart_policy: Option<String>,
    ports: Option<Vec<RawContainerPort>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawContainerPort {
    name: String,
    protocol: String,
    container_port: i64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawStatus {
    phase: String,
    #[serde(rename = "podIP")]
    pod_ip: String,
    #[serde(rename = "podIPs", deserialize_with = "client::informer::or_default")]
    pod_ips: Vec<RawIp>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawIp {
    ip: String,
}

/// Protocols are TCP if nothing is given.
pub fn protocol(text: &str) -> Option<Protocol> {
    match text {
        "" | "TCP" => Some(Protocol::Tcp),
        "UDP" => Some(Protocol::Udp),
        "SCTP" => Some(Protocol::Sctp),
        _ => None,
    }
}

/// A selector that selects nothing if it is invalid; the API server does not store such ones.
fn selector(value: &Value) -> Option<LabelSelector> {
    (!value.is_null()).then(|| LabelSelector::from_value(Some(value)).unwrap_or_else(|_| LabelSelector::none()))
}

impl From<RawObject> for Policy {
    fn from(RawObject { spec }: RawObject) -> Policy {
        let types = spec.policy_types.unwrap_or_default();
        let has = |name: &str| types.iter().any(|t| t == name);
        // Without types: ingress, and egress if there are rules for it.
        let isolates_ingress = types.is_empty() || has("Ingress");
        let isolates_egress = has("Egress") || types.is_empty() && spec.egress.as_ref().is_some_and(|e| !e.is_empty());
        let rules = |rules: Option<Vec<RawRule>>| rules.unwrap_or_default().into_iter().map(Rule::from).collect();
        Policy {
            pods: selector(&spec.pod_selector).unwrap_or_else(LabelSelector::everything),
            ingress: isolates_ingress.then(|| rules(spec.ingress)),
            egress: isolates_egress.then(|| rules(spec.egress)),
        }
    }
}

impl From<RawRule> for Rule {
    fn from(raw: RawRule) -> Rule {
        let peers = raw.from.into_iter().chain(raw.to).flatten().map(Peer::from).collect();
        Rule { peers, ports: raw.ports.into_iter().flatten().map(Port::from).collect() }
    }
}

impl From<RawPeer> for Peer {
    fn from(raw: RawPeer) -> Peer {
        if let Some(block) = raw.ip_block {
            let Some(cidr) = range(&block.cidr) else { return Peer::Nothing };
            return Peer::Block(Block {
                cidr,
                except: block.except.iter().flatten().filter_map(|e| range(e)).collect(),
            });
        }
        match (selector(&raw.namespace_selector), selector(&raw.pod_selector)) {
            (None, None) => Peer::Nothing,
            (namespaces, pods) => Peer::Pods { namespaces, pods: pods.unwrap_or_else(LabelSelector::everything) },
        }
    }
}

impl From<RawPort> for Port {
    fn from(raw: RawPort) -> Port {
        // An unknown protocol has no ports: the API server does not store it.
        let nothing = PortRange { protocol: Protocol::Tcp, ports: Some((0, 0)) };
        let Some(protocol) = protocol(raw.protocol.as_deref().unwrap_or_default()) else {
            return Port::Numbers(nothing);
        };
        let number = |n: i64| u16::try_from(n).ok();
        match &raw.port {
            Value::Null => Port::Numbers(PortRange { protocol, ports: None }),
            Value::String(name) => Port::Name(protocol, name.clone()),
            first => {
                let first = first.as_i64();
                let range = first.and_then(|first| Some((number(first)?, number(raw.end_port.unwrap_or(first))?)));
                Port::Numbers(range.map_or(nothing, |range| PortRange { protocol, ports: Some(range) }))
            }
        }
    }
}

/// At most one address of each family.
fn addresses(status: &RawStatus) -> Vec<IpAddr> {
    let all = std::iter::once(&status.pod_ip).chain(status.pod_ips.iter().map(|p| &p.ip));
    let mut found: Vec<IpAddr> = Vec::new();
    for address in all.filter_map(|text| text.parse::<IpAddr>().ok()) {
        if !found.iter().any(|known| known.is_ipv4() == address.is_ipv4()) {
            found.push(address);
        }
    }
    found
}

impl From<RawPod> for Pod {
    fn from(RawPod { metadata, spec, status }: RawPod) -> Pod {
        let sidecars = spec.init_containers.into_iter().flatten();
        let sidecars = sidecars.filter(|c| c.restart_policy.as_deref() == Some("Always"));
        let ports = spec.containers.into_iter().chain(sidecars).flat_map(|c| c.ports.unwrap_or_default());
        let named = ports.filter(|p| !p.name.is_empty());
        let has_ended = matches!(&*status.phase, "Succeeded" | "Failed");
        Pod {
            // A pod in the network of its node is part of the node.
            addresses: if spec.host_network || has_ended { Vec::new() } else { addresses(&status) },
            ports: named
                .filter_map(|p| Some((p.name, protocol(&p.protocol)?, u16::try_from(p.container_port).ok()?)))
                .collect(),
            // Agents delete mirror pods on their nodes that show none of their static pods. Nobody looks at those without a node.
            mirror_of: metadata.annotations.and_then(|a| a.mirror).filter(|_| !spec.node_name.is_empty()),
        }
    }
}
