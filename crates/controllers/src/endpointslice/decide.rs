//! The endpoints of a service: pure functions of the service and the pods it selects.

use super::reconcile::{Desired, Group};
use super::{COMPONENT, MANAGED_BY, SERVICE};
use crate::views::{Pod, PodEntry};
use meta::{Object, Value};
use serde_json::json;
use std::collections::HashMap;
use std::sync::Arc;

/// The maximum number of endpoints of one slice (upstream's default).
const PER_SLICE: usize = 100;

/// A pod that is an endpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Backend {
    pub ip: String,
    pub node: String,
    pub name: String,
    pub namespace: String,
    pub uid: String,
    pub hostname: Option<String>,
    pub ready: bool,
    pub serving: bool,
    pub terminating: bool,
    /// Port numbers in the order of the service's ports; none where the pod has no port of that name.
    pub ports: Vec<Option<i64>>,
}

/// Returns the endpoints of a service in a stable order. Terminated pods and those without an address are omitted.
pub fn backends(service: &Object, pods: &[Arc<PodEntry>]) -> Vec<Backend> {
    let publish = service.at(&["spec", "publishNotReadyAddresses"]) == Some(&Value::Bool(true));
    let ports = service.at(&["spec", "ports"]).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let by_name = ports.iter().any(|p| p["targetPort"].is_string());
    let mut all: Vec<Backend> = pods
        .iter()
        .filter(|p| !p.view.is_terminal() && !p.view.status.pod_ip.is_empty())
        .map(|p| {
            let (meta, spec) = (&p.meta, &p.view.spec);
            let (serving, terminating) = (p.view.is_ready(), meta.is_deleting());
            let named = if by_name { NamedPorts::new(&p.view) } else { NamedPorts(HashMap::new()) };
            let subdomain = *spec.subdomain == *service.name() && !spec.hostname.is_empty();
            Backend {
                ip: p.view.status.pod_ip.to_string(),
                node: spec.node_name.to_string(),
                name: meta.name.to_string(),
                namespace: meta.namespace.to_string(),
                uid: meta.uid.to_string(),
                hostname: subdomain.then(|| spec.hostname.to_string()),
                ready: publish || (serving && !terminating),
                serving,
                terminating,
                ports: ports.iter().map(|port| target(port, &named)).collect(),
            }
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
        || old.view.status.pod_ip != new.view.status.pod_ip
        || (&a.node_name, &a.hostname, &a.subdomain) != (&b.node_name, &b.hostname, &b.subdomain)
}

/// The numbers of the named ports of a pod's containers, by name and protocol.
struct NamedPorts<'a>(HashMap<(&'a str, &'a str), i64>);

impl<'a> NamedPorts<'a> {
    fn new(pod: &'a Pod) -> Self {
        let containers = pod.spec.containers.iter().chain(pod.spec.init_containers.iter());
        let mut found = HashMap::new();
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

/// Groups backends with the same port numbers.
fn grouped(backends: &[Backend]) -> Vec<(Vec<Option<i64>>, Vec<&Backend>)> {
    let mut groups: Vec<(Vec<Option<i64>>, Vec<&Backend>)> = Vec::new();
    let mut places: HashMap<&[Option<i64>], usize> = HashMap::new();
    for b in backends {
        let place = *places.entry(&b.ports).or_insert(groups.len());
        match groups.get_mut(place) {
            Some((_, list)) => list.push(b),
            None => groups.push((b.ports.clone(), vec![b])),
        }
    }
    groups
}

fn ports_of(service: &Object, numbers: &[Option<i64>]) -> Vec<Value> {
    let ports = service.at(&["spec", "ports"]).and_then(Value::as_array).cloned().unwrap_or_default();
    ports
        .iter()
        .zip(numbers)
        .filter_map(|(p, n)| {
            let mut v =
                json!({"name": p["name"].as_str().unwrap_or_default(), "protocol": p["protocol"], "port": (*n)?});
            if let Some(a) = p.get("appProtocol") {
                v["appProtocol"] = a.clone();
            }
            Some(v)
        })
        .collect()
}

/// The desired slices of a service. A service without endpoints has one empty slice.
pub(super) fn desired_slices(service: &Object, backends: &[Backend]) -> Desired {
    let mut groups = grouped(backends);
    if groups.is_empty() {
        groups.push((Vec::new(), Vec::new()));
    }
    let mut labels: serde_json::Map<String, Value> =
        service.labels().map(|(k, v)| (k.to_owned(), Value::from(v))).collect();
    labels.insert(SERVICE.into(), service.name().into());
    labels.insert(MANAGED_BY.into(), COMPONENT.into());
    if service.str_at(&["spec", "clusterIP"]) == Some("None") {
        labels.insert("service.kubernetes.io/headless".into(), "".into());
    }
    let owner = json!([{"apiVersion": "v1", "kind": "Service", "name": service.name(), "uid": service.uid(),
        "controller": true, "blockOwnerDeletion": true}]);
    let group = |(numbers, list): (Vec<Option<i64>>, Vec<&Backend>)| Group {
        address_type: "IPv4",
        ports: ports_of(service, &numbers),
        endpoints: list.into_iter().map(endpoint).collect(),
    };
    Desired {
        metadata: [("labels".to_owned(), labels.into()), ("ownerReferences".to_owned(), owner)].into_iter().collect(),
        groups: groups.into_iter().map(group).collect(),
        per_slice: PER_SLICE,
    }
}

fn reference(b: &Backend) -> Value {
    json!({"kind": "Pod", "namespace": b.namespace, "name": b.name, "uid": b.uid})
}

fn endpoint(b: &Backend) -> Value {
    let mut v = json!({"addresses": [b.ip], "targetRef": reference(b),
        "conditions": {"ready": b.ready, "serving": b.serving, "terminating": b.terminating}});
    if !b.node.is_empty() {
        v["nodeName"] = b.node.clone().into();
    }
    if let Some(h) = &b.hostname {
        v["hostname"] = h.clone().into();
    }
    v
}

/// The `subsets` of an Endpoints object.
pub fn endpoints_of(service: &Object, backends: &[Backend]) -> Value {
    let mut subsets = Vec::new();
    for (numbers, list) in grouped(backends) {
        let address = |b: &&&Backend| {
            let mut v = json!({"ip": b.ip, "targetRef": reference(b)});
            if !b.node.is_empty() {
                v["nodeName"] = b.node.clone().into();
            }
            if let Some(h) = &b.hostname {
                v["hostname"] = h.clone().into();
            }
            v
        };
        let ready: Vec<Value> = list.iter().filter(|b| b.ready).map(|b| address(&b)).collect();
        let waiting: Vec<Value> = list.iter().filter(|b| !b.ready && !b.terminating).map(|b| address(&b)).collect();
        let mut ports = ports_of(service, &numbers);
        for p in &mut ports {
            if p["name"] == "" {
                p.as_object_mut().map(|p| p.remove("name"));
            }
        }
        let mut s = json!({});
        for (k, v) in [("addresses", ready), ("notReadyAddresses", waiting), ("ports", ports)] {
            if !v.is_empty() {
                s[k] = v.into();
            }
        }
        if s.get("addresses").is_some() || s.get("notReadyAddresses").is_some() {
            subsets.push(s);
        }
    }
    subsets.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(v: Value) -> Object {
        Object::from_value(v).unwrap()
    }

    fn entry(pod: &Object) -> Arc<PodEntry> {
        Arc::new(PodEntry::new(serde_json::to_vec(pod).unwrap().into()).unwrap())
    }

    fn pod(name: &str, ready: bool, deleting: bool) -> Object {
        let mut p = object(json!({"metadata": {"name": name, "namespace": "x"},
            "spec": {"nodeName": "n", "containers": [{"ports": [{"name": "web", "containerPort": 8080, "protocol": "TCP"}]}]},
            "status": {"phase": "Running", "podIP": "10.0.0.1",
                "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]}}));
        if deleting {
            p.set(&["metadata", "deletionTimestamp"], "2026-01-01T00:00:00Z");
        }
        p
    }

    /// Ports are found independent of their number.
    #[test]
    fn ports_are_found_by_name_and_protocol() {
        let ports = |list: Value| json!([{"ports": list}]);
        let mut p = pod("a", true, false);
        p.set(&["spec", "containers"], ports(json!([
            {"name": "dns", "containerPort": 53, "protocol": "UDP"}, {"name": "dns", "containerPort": 54, "protocol": "TCP"},
            {"name": "dns", "containerPort": 55, "protocol": "TCP"}])));
        p.set(&["spec", "initContainers"], ports(json!([{"name": "side", "containerPort": 9, "protocol": "TCP"}])));
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
            assert_eq!(backends(&service(protocol, target.clone()), &[entry(&p)])[0].ports, [number], "{target}");
        }
        let many = |key: &str, n: usize| -> Value {
            (0..n).map(|i| json!({"name": format!("p{i}"), "protocol": "TCP", "port": 1, "containerPort": i, "targetPort": format!("{key}{i}")})).collect()
        };
        p.set(&["spec", "containers"], ports(many("", 20_000)));
        let service = object(json!({"metadata": {"name": "s"}, "spec": {"ports": many("none", 20_000)}}));
        assert!(backends(&service, &[entry(&p)])[0].ports.iter().all(Option::is_none));
    }

    /// Groundwork of C14.endpointslices and P04.out-of-endpoints
    #[test]
    fn a_terminating_pod_is_not_ready_but_may_serve() {
        let service = object(json!({"metadata": {"name": "s"}, "spec": {"ports": [
            {"name": "http", "port": 80, "protocol": "TCP", "targetPort": "web"}]}}));
        let b = backends(
            &service,
            &[pod("a", true, false), pod("b", false, false), pod("c", true, true)].map(|p| entry(&p)),
        );
        let flags: Vec<_> = b.iter().map(|b| (b.ready, b.serving, b.terminating)).collect();
        assert_eq!(flags, [(true, true, false), (false, false, false), (false, true, true)]);
        assert_eq!(b[0].ports, [Some(8080)]);
        let e = endpoints_of(&service, &b);
        assert_eq!(e[0]["addresses"].as_array().unwrap().len(), 1);
        assert_eq!(e[0]["notReadyAddresses"].as_array().unwrap().len(), 1);
        assert_eq!(desired_slices(&service, &b).groups[0].endpoints.len(), 3);
        assert_eq!(desired_slices(&service, &[]).groups.len(), 1);
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
