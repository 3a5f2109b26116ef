//! What is behind a service: pure functions of the service and the pods it selects.

use super::{COMPONENT, MANAGED_BY, SERVICE};
use meta::{Object, Value};
use serde_json::json;
use std::collections::HashMap;

/// The most endpoints of one slice, as upstream's default.
const PER_SLICE: usize = 100;

/// A pod behind a service.
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

/// The pods that can be reached, in a stable order. Pods that are over or have no address are left out.
pub fn backends(service: &Object, pods: &[Object]) -> Vec<Backend> {
    let publish = service.at(&["spec", "publishNotReadyAddresses"]) == Some(&Value::Bool(true));
    let ports = service.at(&["spec", "ports"]).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let by_name = ports.iter().any(|p| p["targetPort"].is_string());
    let mut all: Vec<Backend> = pods
        .iter()
        .filter(|p| !matches!(p.str_at(&["status", "phase"]), Some("Succeeded" | "Failed")))
        .filter_map(|p| {
            let ip = p.str_at(&["status", "podIP"]).filter(|i| !i.is_empty())?.to_owned();
            let conditions = p.at(&["status", "conditions"]).and_then(Value::as_array);
            let serving = conditions.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True");
            let terminating = p.is_deleting();
            let named = if by_name { NamedPorts::new(p) } else { NamedPorts(HashMap::new()) };
            let subdomain = p.str_at(&["spec", "subdomain"]) == Some(service.name());
            Some(Backend {
                ip,
                node: p.str_at(&["spec", "nodeName"]).unwrap_or_default().to_owned(),
                name: p.name().to_owned(),
                namespace: p.namespace().to_owned(),
                uid: p.uid().to_owned(),
                hostname: p.str_at(&["spec", "hostname"]).filter(|_| subdomain).map(str::to_owned),
                ready: publish || (serving && !terminating),
                serving,
                terminating,
                ports: ports.iter().map(|port| target(port, &named)).collect(),
            })
        })
        .collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

/// The numbers of the named ports of a pod's containers, by name and protocol.
struct NamedPorts<'a>(HashMap<(&'a str, &'a str), i64>);

impl<'a> NamedPorts<'a> {
    fn new(pod: &'a Object) -> Self {
        let containers = ["containers", "initContainers"].map(|list| pod.at(&["spec", list]).and_then(Value::as_array));
        let ports = containers.into_iter().flatten().flatten().filter_map(|c| c["ports"].as_array()).flatten();
        let mut found = HashMap::new();
        for p in ports {
            let (Some(name), Some(number)) = (p["name"].as_str(), p["containerPort"].as_i64()) else { continue };
            // The first of a name counts.
            found.entry((name, p["protocol"].as_str().unwrap_or_default())).or_insert(number);
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

/// Backends whose ports have the same numbers go together.
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

/// The contents of the slices of a service. A service without backends has one empty slice.
pub fn slices_of(service: &Object, backends: &[Backend]) -> Vec<Object> {
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
    let mut out = Vec::new();
    for (numbers, list) in groups {
        let chunks: Vec<&[&Backend]> = if list.is_empty() { vec![&[]] } else { list.chunks(PER_SLICE).collect() };
        for chunk in chunks {
            let endpoints: Vec<Value> = chunk.iter().map(|b| endpoint(b)).collect();
            let v = json!({"metadata": {"labels": labels, "ownerReferences": owner}, "addressType": "IPv4",
                "endpoints": endpoints, "ports": ports_of(service, &numbers)});
            out.extend(Object::from_value(v));
        }
    }
    out
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

/// The `subsets` of Endpoints.
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

    /// Each port is looked up, however many there are.
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
            assert_eq!(backends(&service(protocol, target.clone()), &[p.clone()])[0].ports, [number], "{target}");
        }
        let many = |key: &str, n: usize| -> Value {
            (0..n).map(|i| json!({"name": format!("p{i}"), "protocol": "TCP", "port": 1, "containerPort": i, "targetPort": format!("{key}{i}")})).collect()
        };
        p.set(&["spec", "containers"], ports(many("", 20_000)));
        let service = object(json!({"metadata": {"name": "s"}, "spec": {"ports": many("none", 20_000)}}));
        assert!(backends(&service, &[p])[0].ports.iter().all(Option::is_none));
    }

    /// Groundwork of C14.endpointslices and P04.out-of-endpoints
    #[test]
    fn a_pod_that_is_leaving_is_not_ready_but_may_still_serve() {
        let service = object(json!({"metadata": {"name": "s"}, "spec": {"ports": [
            {"name": "http", "port": 80, "protocol": "TCP", "targetPort": "web"}]}}));
        let b = backends(&service, &[pod("a", true, false), pod("b", false, false), pod("c", true, true)]);
        let flags: Vec<_> = b.iter().map(|b| (b.ready, b.serving, b.terminating)).collect();
        assert_eq!(flags, [(true, true, false), (false, false, false), (false, true, true)]);
        assert_eq!(b[0].ports, [Some(8080)]);
        let e = endpoints_of(&service, &b);
        assert_eq!(e[0]["addresses"].as_array().unwrap().len(), 1);
        assert_eq!(e[0]["notReadyAddresses"].as_array().unwrap().len(), 1);
        let s = slices_of(&service, &b);
        assert_eq!(s[0].get("endpoints").unwrap().as_array().unwrap().len(), 3);
        assert_eq!(slices_of(&service, &[]).len(), 1);
    }
}
