//! What the kernel is to do for the services there are.

use client::Meta;
use network::{Affinity, Endpoint, Policy, Protocol, ServicePort};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// A service, as the proxy sees it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct View {
    spec: Spec,
    status: Value,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    r#type: String,
    #[serde(rename = "clusterIP")]
    cluster_ip: String,
    #[serde(rename = "externalIPs")]
    external_ips: Vec<String>,
    ports: Vec<Port>,
    session_affinity: String,
    session_affinity_config: Value,
    internal_traffic_policy: String,
    external_traffic_policy: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Port {
    name: String,
    protocol: String,
    port: u16,
    node_port: u16,
}

/// An endpoint slice, as the proxy sees it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Slice {
    endpoints: Option<Vec<SliceEndpoint>>,
    ports: Option<Vec<SlicePort>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SliceEndpoint {
    addresses: Vec<String>,
    conditions: Conditions,
    node_name: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Conditions {
    ready: Option<bool>,
    serving: Option<bool>,
    terminating: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct SlicePort {
    name: Option<String>,
    /// Whoever writes a slice may put any number here.
    port: Option<i64>,
    protocol: Option<String>,
}

/// The ports of all services with what is behind them. Ready endpoints first; those that are ending but still serve only where no
/// other is left, as upstream does.
pub fn desired<'a>(
    services: impl Iterator<Item = (&'a Meta, &'a View)>,
    slices: impl Iterator<Item = (&'a Meta, &'a Slice)>,
    node: &str,
) -> Vec<ServicePort> {
    let mut by_service: BTreeMap<(&str, &str), Vec<&Slice>> = BTreeMap::new();
    for (meta, slice) in slices {
        if let Some(name) = meta.label(SERVICE_NAME) {
            by_service.entry((&meta.namespace, name)).or_default().push(slice);
        }
    }
    let mut out = Vec::new();
    for (meta, service) in services {
        let spec = &service.spec;
        let Ok(cluster_ip) = spec.cluster_ip.parse::<Ipv4Addr>() else { continue };
        let own = by_service.get(&(&*meta.namespace, &*meta.name)).map(Vec::as_slice).unwrap_or_default();
        for port in &spec.ports {
            let Some(protocol) = protocol(&port.protocol) else { continue };
            out.push(ServicePort {
                name: format!("{}/{}:{}", meta.namespace, meta.name, port_name(port)),
                cluster_ip,
                protocol,
                port: port.port,
                node_port: Some(port.node_port).filter(|p| *p > 0),
                external_ips: external(service),
                endpoints: endpoints(own, port, node),
                affinity: affinity(spec),
                internal_policy: policy(&spec.internal_traffic_policy),
                external_policy: policy(&spec.external_traffic_policy),
            });
        }
    }
    out.sort_by(|a, b| a.name.cmp(&b.name));
    out
}

fn port_name(p: &Port) -> String {
    if p.name.is_empty() { format!("{}-{}", p.port, p.protocol.to_lowercase()) } else { p.name.clone() }
}

fn protocol(text: &str) -> Option<Protocol> {
    match text {
        "TCP" => Some(Protocol::Tcp),
        "UDP" => Some(Protocol::Udp),
        "SCTP" => Some(Protocol::Sctp),
        _ => None,
    }
}

fn policy(text: &str) -> Policy {
    if text == "Local" { Policy::Local } else { Policy::Cluster }
}

fn affinity(spec: &Spec) -> Affinity {
    if spec.session_affinity != "ClientIP" {
        return Affinity::None;
    }
    let seconds = spec.session_affinity_config["clientIP"]["timeoutSeconds"].as_i64().unwrap_or(10_800);
    Affinity::ClientIp(meta::time::seconds(seconds))
}

fn external(service: &View) -> Vec<Ipv4Addr> {
    let balanced = service.spec.r#type == "LoadBalancer";
    let ingress = service.status["loadBalancer"]["ingress"].as_array().filter(|_| balanced);
    let balancer = ingress.into_iter().flatten().filter_map(|i| i["ip"].as_str());
    service.spec.external_ips.iter().map(String::as_str).chain(balancer).filter_map(|ip| ip.parse().ok()).collect()
}

fn endpoints(slices: &[&Slice], port: &Port, node: &str) -> Vec<Endpoint> {
    let (mut ready, mut ending) = (Vec::new(), Vec::new());
    for s in slices {
        let same = |p: &&SlicePort| {
            p.name.as_deref().unwrap_or_default() == port.name
                && p.protocol.as_deref().unwrap_or("TCP") == port.protocol
        };
        let number = s.ports.iter().flatten().find(same).and_then(|p| u16::try_from(p.port?).ok());
        let Some(number) = number.filter(|n| *n > 0) else { continue };
        for e in s.endpoints.iter().flatten() {
            let Some(address) = e.addresses.first().and_then(|a| a.parse().ok()) else { continue };
            let endpoint = Endpoint { address, port: number, local: e.node_name.as_deref() == Some(node) };
            let c = &e.conditions;
            if c.ready.unwrap_or(true) {
                ready.push(endpoint);
            } else if c.serving.unwrap_or(false) && c.terminating.unwrap_or(false) {
                ending.push(endpoint);
            }
        }
    }
    let mut out = if ready.is_empty() { ending } else { ready };
    out.sort();
    out.dedup();
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn addresses(conditions: &[Value]) -> Vec<String> {
        let all: Vec<Value> = conditions
            .iter()
            .enumerate()
            .map(|(i, c)| json!({"addresses": [format!("10.0.0.{i}")], "conditions": c}))
            .collect();
        let slice: Slice = serde_json::from_value(
            json!({"endpoints": all, "ports": [{"name": "a", "port": 8080, "protocol": "TCP"}]}),
        )
        .unwrap();
        let port = Port { name: "a".into(), protocol: "TCP".into(), port: 80, node_port: 0 };
        endpoints(&[&slice], &port, "n").iter().map(|e| e.address.to_string()).collect()
    }

    #[test]
    fn any_number_may_stand_for_a_port() {
        let port = Port { name: String::new(), protocol: "TCP".into(), port: 80, node_port: 0 };
        for (number, reached) in [(json!(8080), 1), (json!(70_000), 0), (json!(-1), 0), (json!(0), 0), (json!(null), 0)]
        {
            let slice = json!({"endpoints": [{"addresses": ["10.0.0.1"]}], "ports": [{"port": number}]});
            let slice: Slice = serde_json::from_value(slice).unwrap();
            assert_eq!(endpoints(&[&slice], &port, "n").len(), reached, "{number}");
        }
    }

    #[test]
    fn ending_endpoints_serve_only_when_nobody_else_does() {
        let ready = json!({"ready": true});
        let ending = json!({"ready": false, "serving": true, "terminating": true});
        let down = json!({"ready": false, "serving": false});
        assert_eq!(addresses(&[ready.clone(), ending.clone(), down.clone()]), ["10.0.0.0"]);
        assert_eq!(addresses(&[down.clone(), ending]), ["10.0.0.1"]);
        assert!(addresses(&[down]).is_empty());
        assert_eq!(addresses(&[json!({})]), ["10.0.0.0"]);
    }
}
