//! Which endpoints answer for which service port.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use network::{Affinity, Endpoint, Policy, Protocol, ServicePort};

const SERVICE_NAME: &str = "kubernetes.io/service-name";
const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
const DEFAULT_AFFINITY_SECONDS: u64 = 10_800;

/// An endpoint and what may be sent to it.
struct Candidate {
    endpoint: Endpoint,
    ready: bool,
    serving: bool,
    terminating: bool,
}

/// Slices by namespace and service.
type Slices<'a> = BTreeMap<(&'a str, &'a str), Vec<&'a EndpointSlice>>;

/// The ports of all services with their endpoints, as seen from `node`, in a stable order.
pub fn desired(services: &[Service], slices: &[EndpointSlice], node: &str) -> Vec<ServicePort> {
    let mut by_service: Slices<'_> = BTreeMap::new();
    for s in slices.iter().filter(|s| s.address_type == "IPv4") {
        let name = s.metadata.labels.as_ref().and_then(|l| l.get(SERVICE_NAME));
        if let (Some(ns), Some(name)) = (s.metadata.namespace.as_deref(), name) {
            by_service.entry((ns, name)).or_default().push(s);
        }
    }
    let mut out = Vec::new();
    for service in services {
        one(service, &by_service, node, &mut out);
    }
    out.sort_by(|a, b| a.name.cmp(&b.name));
    out
}

fn protocol(text: Option<&str>) -> Option<Protocol> {
    match text.unwrap_or("TCP") {
        "TCP" => Some(Protocol::Tcp),
        "UDP" => Some(Protocol::Udp),
        "SCTP" => Some(Protocol::Sctp),
        _ => None,
    }
}

fn one(service: &Service, slices: &Slices<'_>, node: &str, out: &mut Vec<ServicePort>) {
    let Some(spec) = &service.spec else { return };
    let (Some(ns), Some(name)) = (service.metadata.namespace.as_deref(), service.metadata.name.as_deref()) else {
        return;
    };
    let other_proxy = service.metadata.labels.as_ref().is_some_and(|l| l.contains_key(PROXY_NAME));
    let address = spec.cluster_ip.as_deref().and_then(|ip| ip.parse::<Ipv4Addr>().ok());
    let Some(cluster_ip) = address.filter(|_| spec.type_.as_deref() != Some("ExternalName") && !other_proxy) else {
        return;
    };
    let local = |text: Option<&str>| if text == Some("Local") { Policy::Local } else { Policy::Cluster };
    let (internal, external) =
        (local(spec.internal_traffic_policy.as_deref()), local(spec.external_traffic_policy.as_deref()));
    let affinity = match spec.session_affinity.as_deref() {
        Some("ClientIP") => {
            let seconds = spec.session_affinity_config.as_ref().and_then(|c| c.client_ip.as_ref()?.timeout_seconds);
            let seconds = seconds.and_then(|s| u64::try_from(s).ok()).unwrap_or(DEFAULT_AFFINITY_SECONDS);
            Affinity::ClientIp(Duration::from_secs(seconds))
        }
        _ => Affinity::None,
    };
    let ingress = service.status.as_ref().and_then(|s| s.load_balancer.as_ref()?.ingress.as_ref());
    let balanced = ingress.into_iter().flatten().filter_map(|i| i.ip.as_deref());
    let external_ips: Vec<Ipv4Addr> = spec
        .external_ips
        .iter()
        .flatten()
        .map(String::as_str)
        .chain(balanced)
        .filter_map(|ip| ip.parse().ok())
        .collect();
    for port in spec.ports.iter().flatten() {
        let (Some(proto), Ok(number)) = (protocol(port.protocol.as_deref()), u16::try_from(port.port)) else {
            continue;
        };
        let port_name = port.name.as_deref().unwrap_or_default();
        let found = candidates(slices.get(&(ns, name)).map_or(&[], Vec::as_slice), port_name, proto, node);
        let endpoints = choose(&found, internal, external);
        out.push(ServicePort {
            name: match port_name {
                "" => format!("{ns}/{name}/{number}/{proto:?}"),
                p => format!("{ns}/{name}:{p}"),
            },
            cluster_ip,
            protocol: proto,
            port: number,
            node_port: port.node_port.and_then(|p| u16::try_from(p).ok()).filter(|p| *p > 0),
            external_ips: external_ips.clone(),
            endpoints,
            affinity,
            internal_policy: internal,
            external_policy: external,
        });
    }
}

fn candidates(slices: &[&EndpointSlice], port_name: &str, proto: Protocol, node: &str) -> Vec<Candidate> {
    // An address may be in two slices for a moment; the one that is ready counts.
    let mut found: BTreeMap<(Ipv4Addr, u16), Candidate> = BTreeMap::new();
    for slice in slices {
        let port = slice.ports.iter().flatten().find(|p| {
            p.name.as_deref().unwrap_or_default() == port_name && protocol(p.protocol.as_deref()) == Some(proto)
        });
        let Some(port) = port.and_then(|p| u16::try_from(p.port?).ok()) else { continue };
        for e in slice.endpoints.iter().flatten() {
            let conditions = e.conditions.as_ref();
            let ready = conditions.and_then(|c| c.ready).unwrap_or(true);
            let serving = conditions.and_then(|c| c.serving).unwrap_or(ready);
            let terminating = conditions.and_then(|c| c.terminating).unwrap_or(false);
            let Some(address) = e.addresses.first().and_then(|a| a.parse::<Ipv4Addr>().ok()) else { continue };
            let endpoint = Endpoint { address, port, local: e.node_name.as_deref() == Some(node) };
            let candidate = Candidate { endpoint, ready, serving, terminating };
            let better = found.get(&(address, port)).is_none_or(|o| !o.ready && ready);
            if better {
                found.insert((address, port), candidate);
            }
        }
    }
    found.into_values().collect()
}

/// Ready endpoints; if there are none, those that still serve while they end. With node-local traffic the same is asked of this
/// node's own, so that a last local pod drains (KEP-1669).
fn choose(found: &[Candidate], internal: Policy, external: Policy) -> Vec<Endpoint> {
    let pick = |among: &dyn Fn(&Candidate) -> bool| -> Vec<Endpoint> {
        let some = |want: &dyn Fn(&Candidate) -> bool| {
            found.iter().filter(|c| among(c) && want(c)).map(|c| c.endpoint).collect::<Vec<_>>()
        };
        let ready = some(&|c| c.ready);
        if ready.is_empty() { some(&|c| c.serving && c.terminating) } else { ready }
    };
    let mut all = Vec::new();
    if internal == Policy::Cluster || external == Policy::Cluster {
        all = pick(&|_| true);
    }
    if internal == Policy::Local || external == Policy::Local {
        let local = pick(&|c| c.endpoint.local);
        all.extend(local.into_iter().filter(|e| !all.contains(e)).collect::<Vec<_>>());
    }
    all.sort();
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn service(spec: serde_json::Value) -> Service {
        serde_json::from_value(json!({"metadata": {"namespace": "d", "name": "web"}, "spec": spec})).unwrap()
    }

    fn slice(endpoints: serde_json::Value) -> EndpointSlice {
        serde_json::from_value(json!({"metadata": {"namespace": "d", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4", "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}], "endpoints": endpoints}))
        .unwrap()
    }

    fn addresses(spec: serde_json::Value, endpoints: serde_json::Value) -> Vec<String> {
        let got = desired(&[service(spec)], &[slice(endpoints)], "n1");
        got[0].endpoints.iter().map(|e| format!("{}:{}{}", e.address, e.port, if e.local { "*" } else { "" })).collect()
    }

    fn plain() -> serde_json::Value {
        json!({"clusterIP": "10.96.0.5", "ports": [{"name": "http", "port": 80}]})
    }

    fn endpoint(ip: &str, node: &str, ready: bool, serving: bool, terminating: bool) -> serde_json::Value {
        json!({"addresses": [ip], "nodeName": node,
            "conditions": {"ready": ready, "serving": serving, "terminating": terminating}})
    }

    /// Clauses: K01
    #[test]
    fn ready_endpoints_come_first_and_draining_ones_last() {
        let ready = endpoint("10.0.0.1", "n1", true, true, false);
        let draining = endpoint("10.0.0.2", "n2", false, true, true);
        let dead = endpoint("10.0.0.3", "n2", false, false, false);
        assert_eq!(addresses(plain(), json!([ready, draining, dead])), ["10.0.0.1:8080*"]);
        assert_eq!(addresses(plain(), json!([draining, dead])), ["10.0.0.2:8080"]);
        assert!(addresses(plain(), json!([dead])).is_empty());
        assert_eq!(addresses(plain(), json!([{"addresses": ["10.0.0.4"]}])), ["10.0.0.4:8080"], "unknown is ready");
    }

    #[test]
    fn the_service_is_told_whole() {
        let got = desired(
            &[service(json!({"clusterIP": "10.96.0.5", "externalIPs": ["192.0.2.9"], "sessionAffinity": "ClientIP",
                "externalTrafficPolicy": "Local",
                "ports": [{"name": "http", "port": 80, "nodePort": 30080}, {"name": "dns", "port": 53, "protocol": "UDP"}]}))],
            &[slice(json!([{"addresses": ["10.0.0.1"], "nodeName": "n2"}]))],
            "n1",
        );
        let ports: Vec<_> = got.iter().map(|p| (p.name.as_str(), p.port, p.node_port, p.endpoints.len())).collect();
        assert_eq!(ports, [("d/web:dns", 53, None, 0), ("d/web:http", 80, Some(30080), 1)]);
        assert_eq!(got[1].affinity, Affinity::ClientIp(Duration::from_secs(10_800)));
        assert_eq!((got[1].internal_policy, got[1].external_policy), (Policy::Cluster, Policy::Local));
        assert_eq!(got[1].external_ips, ["192.0.2.9".parse::<Ipv4Addr>().unwrap()]);
    }

    #[test]
    fn headless_and_external_names_have_no_rules() {
        let check = |spec| assert!(desired(&[service(spec)], &[], "n1").is_empty());
        check(json!({"clusterIP": "None", "ports": [{"port": 80}]}));
        check(json!({"type": "ExternalName", "externalName": "example.org"}));
    }
}
