//! The pods behind a service, as endpoints. Pure: data to data.

use crate::views::{Pod, PodEntry};
use meta::{Object, Value};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

/// An IP family, which is the address type of endpoint slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    IPv4,
    IPv6,
}

impl Family {
    pub fn address_type(self) -> &'static str {
        match self {
            Self::IPv4 => "IPv4",
            Self::IPv6 => "IPv6",
        }
    }

    fn includes(self, ip: &IpAddr) -> bool {
        ip.is_ipv6() == (self == Self::IPv6)
    }

    /// The family of an address; IPv4 if it is none.
    pub fn of_address(text: &str) -> Self {
        if text.contains(':') { Self::IPv6 } else { Self::IPv4 }
    }
}

/// A pod that is an endpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Backend {
    pub ips: Vec<IpAddr>,
    pub node: String,
    /// The zone of its node.
    pub zone: Option<String>,
    pub name: String,
    pub namespace: String,
    pub uid: String,
    pub hostname: Option<String>,
    /// The pod is ready, whether or not it is being deleted.
    pub serving: bool,
    pub terminating: bool,
    /// Port numbers in the order of the service's ports; none where the pod has no port of that name.
    pub ports: Vec<Option<i64>>,
}

impl Backend {
    /// The addresses of a family.
    pub fn addresses(&self, family: Family) -> impl Iterator<Item = &IpAddr> {
        self.ips.iter().filter(move |ip| family.includes(ip))
    }

    pub fn reference(&self) -> Value {
        serde_json::json!({"kind": "Pod", "namespace": self.namespace, "name": self.name, "uid": self.uid})
    }
}

/// Whether a service publishes the addresses of pods that are not ready.
pub fn publishes_not_ready(service: &Object) -> bool {
    service.at(&["spec", "publishNotReadyAddresses"]) == Some(&Value::Bool(true))
}

/// The ports of a service.
pub fn ports(service: &Object) -> &[Value] {
    service.at(&["spec", "ports"]).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// Whether a service has no address of its own.
pub fn is_headless(service: &Object) -> bool {
    matches!(service.str_at(&["spec", "clusterIP"]), None | Some("" | "None"))
}

/// Returns the endpoints of a service by name. Terminated pods and those without an address are omitted. `zone` returns the zone of a
/// node.
pub fn backends(service: &Object, pods: &[Arc<PodEntry>], zone: impl Fn(&str) -> Option<String>) -> Vec<Backend> {
    let ports = ports(service);
    let by_name = ports.iter().any(|p| p["targetPort"].is_string());
    let mut all: Vec<Backend> = pods
        .iter()
        .filter(|p| !p.view.is_terminal())
        .filter_map(|p| {
            let (meta, spec, status) = (&p.meta, &p.view.spec, &p.view.status);
            let mut ips: Vec<IpAddr> = status.pod_ips.iter().filter_map(|p| p.ip.parse().ok()).collect();
            if ips.is_empty() {
                ips.push(status.pod_ip.parse().ok()?);
            }
            let named = if by_name { NamedPorts::new(&p.view) } else { NamedPorts(HashMap::new()) };
            let subdomain = *spec.subdomain == *service.name() && !spec.hostname.is_empty();
            Some(Backend {
                ips,
                node: spec.node_name.to_string(),
                zone: zone(&spec.node_name),
                name: meta.name.to_string(),
                namespace: meta.namespace.to_string(),
                uid: meta.uid.to_string(),
                hostname: subdomain.then(|| spec.hostname.to_string()),
                serving: p.view.is_ready(),
                terminating: meta.is_deleting(),
                ports: ports.iter().map(|port| target(port, &named)).collect(),
            })
        })
        .collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

/// Whether a change of a pod can change endpoints; a change of container states, for example, cannot.
pub fn is_relevant(old: &PodEntry, new: &PodEntry) -> bool {
    let facts = |p: &PodEntry| (p.meta.is_deleting(), p.view.is_terminal(), p.view.is_ready());
    let (a, b) = (&old.view.spec, &new.view.spec);
    facts(old) != facts(new)
        || old.meta.uid != new.meta.uid
        || old.meta.labels != new.meta.labels
        || (&old.view.status.pod_ip, &old.view.status.pod_ips) != (&new.view.status.pod_ip, &new.view.status.pod_ips)
        || (&a.node_name, &a.hostname, &a.subdomain) != (&b.node_name, &b.hostname, &b.subdomain)
}

/// The numbers of the named ports of a pod's containers and sidecars, by name and protocol.
struct NamedPorts<'a>(HashMap<(&'a str, &'a str), i64>);

impl<'a> NamedPorts<'a> {
    fn new(pod: &'a Pod) -> Self {
        let sidecars = pod.spec.init_containers.iter().filter(|c| c.is_sidecar());
        let mut found = HashMap::new();
        let containers = pod.spec.containers.iter().chain(sidecars);
        for p in containers.flat_map(|c| &c.ports).filter(|p| !p.name.is_empty()) {
            // The first of a name applies.
            found.entry((&*p.name, &*p.protocol)).or_insert(p.container_port);
        }
        Self(found)
    }
}

/// The number of a service's target port on a pod.
fn target(port: &Value, named: &NamedPorts<'_>) -> Option<i64> {
    match &port["targetPort"] {
        Value::Number(n) => n.as_i64(),
        Value::String(name) => named.0.get(&(name.as_str(), port["protocol"].as_str().unwrap_or_default())).copied(),
        _ => port["port"].as_i64(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpointslice::testing::{entry, pod};
    use serde_json::json;

    fn object(v: Value) -> Object {
        Object::from_value(v).unwrap()
    }

    /// Ports are found independent of their number.
    #[test]
    fn ports_are_found_by_name_and_protocol() {
        let ports = |list: Value| json!([{"ports": list, "restartPolicy": "Always"}]);
        let mut p = pod("a", true, false);
        p.set(
            &["spec", "containers"],
            ports(json!([
            {"name": "dns", "containerPort": 53, "protocol": "UDP"}, {"name": "dns", "containerPort": 54, "protocol": "TCP"},
            {"name": "dns", "containerPort": 55, "protocol": "TCP"}])),
        );
        p.set(&["spec", "initContainers"], ports(json!([{"name": "side", "containerPort": 9, "protocol": "TCP"}])));
        let all = |service: &Object, p: &Object| backends(service, &[entry(p)], |_| None);
        let service = |protocol: &str, target: Value| {
            object(json!({"metadata": {"name": "s"}, "spec": {"ports": [
                {"name": "x", "port": 80, "protocol": protocol, "targetPort": target}]}}))
        };
        for (protocol, target, number) in [
            ("TCP", json!("dns"), Some(54)),
            ("UDP", json!("dns"), Some(53)),
            ("TCP", json!("side"), Some(9)),
            ("UDP", json!("side"), None),
            ("TCP", json!(7), Some(7)),
            ("TCP", Value::Null, Some(80)),
        ] {
            assert_eq!(all(&service(protocol, target.clone()), &p)[0].ports, [number], "{target}");
        }
        p.set(
            &["spec", "initContainers"],
            json!([{"ports": [{"name": "side", "containerPort": 9, "protocol": "TCP"}]}]),
        );
        assert_eq!(all(&service("TCP", json!("side")), &p)[0].ports, [None], "an init container that has ended");
        let many = |key: &str, n: usize| -> Value {
            (0..n).map(|i| json!({"name": format!("p{i}"), "protocol": "TCP", "port": 1, "containerPort": i, "targetPort": format!("{key}{i}")})).collect()
        };
        p.set(&["spec", "containers"], ports(many("", 20_000)));
        let service = object(json!({"metadata": {"name": "s"}, "spec": {"ports": many("none", 20_000)}}));
        assert!(all(&service, &p)[0].ports.iter().all(Option::is_none));
    }

    #[test]
    fn pods_have_addresses_of_both_families() {
        let service = object(json!({"metadata": {"name": "s"}, "spec": {"ports": []}}));
        let mut p = pod("a", true, false);
        let addresses = |p: &Object, family: Family| -> Vec<String> {
            let all = backends(&service, &[entry(p)], |_| None);
            all.iter().flat_map(|b| b.addresses(family)).map(ToString::to_string).collect()
        };
        assert_eq!(addresses(&p, Family::IPv4), ["10.0.0.1"]);
        assert!(addresses(&p, Family::IPv6).is_empty());
        p.set(&["status", "podIPs"], json!([{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]));
        assert_eq!(addresses(&p, Family::IPv6), ["fd00::1"]);
        p.remove(&["status", "podIPs"]);
        p.remove(&["status", "podIP"]);
        assert!(backends(&service, &[entry(&p)], |_| None).is_empty());
    }

    #[test]
    fn irrelevant_pod_changes_are_ignored() {
        let (ready, unready) = (pod("a", true, false), pod("a", false, false));
        let mut other = ready.clone();
        other.set(&["status", "startTime"], "2026-01-01T00:00:00Z");
        assert!(is_relevant(&entry(&ready), &entry(&unready)) && !is_relevant(&entry(&ready), &entry(&other)));
        other.set(&["status", "podIP"], "10.0.0.2");
        assert!(is_relevant(&entry(&ready), &entry(&other)));
    }
}
