//! Fields of services that depend on each other: allocated values that an update omits, single and list fields, and
//! values of the old type (upstream `patchAllocatedValues`, `normalizeClusterIPs`, `dropTypeDependentFields`).

use crate::core::service_spec::{accepts_external_traffic, has_address, is_balanced, is_checked, list, reaches_nodes};
use meta::{Object, Value};
use serde_json::json;
use std::collections::{BTreeSet, HashMap};

fn port(p: &Value) -> i64 {
    p["nodePort"].as_i64().unwrap_or(0)
}

/// Returns the node ports of a service.
pub fn ports_of(o: &Object) -> BTreeSet<i64> {
    list(o, "ports").iter().map(port).filter(|n| *n != 0).collect()
}

fn same(o: &Object, old: &Object, field: &str) -> bool {
    o.at(&["spec", field]) == old.at(&["spec", field])
}

fn address(o: &Object) -> &str {
    o.str_at(&["spec", "clusterIP"]).unwrap_or_default()
}

/// Restores allocated values that an update omits and the service still needs.
pub fn keep_allocated(o: &mut Object, old: &Object) {
    if has_address(old) && has_address(o) {
        if address(o).is_empty() && !address(old).is_empty() {
            o.set(&["spec", "clusterIP"], address(old));
        }
        if list(o, "clusterIPs").is_empty() && address(o) == address(old) && !list(old, "clusterIPs").is_empty() {
            o.set(&["spec", "clusterIPs"], list(old, "clusterIPs").to_vec());
        }
    }
    if reaches_nodes(old) && reaches_nodes(o) {
        keep_ports(o, old);
    }
    let checked = ["spec", "healthCheckNodePort"];
    if is_checked(old)
        && is_checked(o)
        && o.at(&checked).is_none_or(|n| *n == 0)
        && let Some(n) = old.at(&checked).cloned()
    {
        o.set(&checked, n);
    }
}

/// Restores node ports by port name, unless another port now requests the same number.
fn keep_ports(o: &mut Object, old: &Object) {
    let (was, now) = (ports_of(old), ports_of(o));
    let name = |p: &Value| p["name"].as_str().unwrap_or_default().to_owned();
    let known: HashMap<String, i64> = list(old, "ports").iter().map(|p| (name(p), port(p))).collect();
    let mut ports = list(o, "ports").to_vec();
    for p in ports.iter_mut().filter(|p| port(p) == 0) {
        let n = known.get(&name(p)).copied().unwrap_or(0);
        if n != 0 && !(was.contains(&n) && now.contains(&n)) {
            p["nodePort"] = n.into();
        }
    }
    if !ports.is_empty() {
        o.set(&["spec", "ports"], ports);
    }
}

/// Synchronizes `clusterIP` and `clusterIPs` for clients that set only the former.
pub fn normalize_cluster_ips(o: &mut Object, old: Option<&Object>) {
    let (one, all) = (["spec", "clusterIP"], ["spec", "clusterIPs"]);
    let ip = address(o).to_owned();
    let Some(old) = old else {
        if !ip.is_empty() && list(o, "clusterIPs").is_empty() {
            o.set(&all, json!([ip]));
        }
        return;
    };
    if list(o, "clusterIPs").is_empty() && !list(old, "clusterIPs").is_empty() && ip == address(old) {
        o.set(&all, list(old, "clusterIPs").to_vec());
    }
    let list_is_unset = list(o, "clusterIPs").is_empty() && !ip.is_empty();
    if ip == address(old) || !list_is_unset && list(o, "clusterIPs") != list(old, "clusterIPs") {
        return;
    }
    if ip.is_empty() {
        o.remove(&all);
        o.remove(&one);
    } else {
        o.set(&all, json!([ip]));
    }
}

/// Drops a valid policy for traffic from inside that the type does not use: upstream stores it and leaves it out of what it reads
/// (`defaultOnReadInternalTrafficPolicy`).
pub fn drop_unused_policy(o: &mut Object) {
    let path = ["spec", "internalTrafficPolicy"];
    if !has_address(o) && matches!(o.str_at(&path), Some("Cluster" | "Local")) {
        o.remove(&path);
    }
}

/// Drops unchanged fields that only the old type supports.
pub fn drop_of_old_type(o: &mut Object, old: &Object) {
    if has_address(old) && !has_address(o) {
        if list(o, "clusterIPs") == list(old, "clusterIPs") {
            o.remove(&["spec", "clusterIP"]);
            o.remove(&["spec", "clusterIPs"]);
        }
        for k in ["ipFamilies", "ipFamilyPolicy"] {
            if same(o, old, k) {
                o.remove(&["spec", k]);
            }
        }
    }
    if reaches_nodes(old) && !reaches_nodes(o) && ports_of(o).is_subset(&ports_of(old)) {
        let mut ports = list(o, "ports").to_vec();
        ports.iter_mut().filter_map(Value::as_object_mut).for_each(|p| drop(p.remove("nodePort")));
        if !ports.is_empty() {
            o.set(&["spec", "ports"], ports);
        }
    }
    if is_checked(old) && !is_checked(o) && same(o, old, "healthCheckNodePort") {
        o.remove(&["spec", "healthCheckNodePort"]);
    }
    for k in ["allocateLoadBalancerNodePorts", "loadBalancerClass"] {
        if is_balanced(old) && !is_balanced(o) && same(o, old, k) {
            o.remove(&["spec", k]);
        }
    }
    if accepts_external_traffic(old) && !accepts_external_traffic(o) && same(o, old, "externalTrafficPolicy") {
        o.remove(&["spec", "externalTrafficPolicy"]);
    }
    if !is_balanced(o) && o.get("status").is_some() {
        o.set(&["status", "loadBalancer"], json!({}));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(spec: &Value) -> Object {
        Object::from_value(json!({"spec": spec})).expect("an object")
    }

    fn check(f: impl Fn(&mut Object, &Object), new: Value, old: Value, expected: Value) {
        let mut object = service(&new);
        f(&mut object, &service(&old));
        assert_eq!(object.0["spec"], expected, "{new} after {old}");
    }

    #[test]
    fn keeps_allocated_values() {
        let old = json!({"type": "NodePort", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"],
            "ports": [{"name": "a", "port": 1, "nodePort": 30001}]});
        let new = json!({"type": "NodePort", "ports": [{"name": "a", "port": 2}]});
        let mut kept = old.clone();
        kept["ports"][0]["port"] = 2.into();
        check(keep_allocated, new, old.clone(), kept);
        let renamed = json!({"type": "NodePort", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ports": [{"name": "b", "port": 1}]});
        check(keep_allocated, renamed.clone(), old.clone(), renamed);
        // Another port takes the number.
        let taken = json!({"type": "NodePort", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"],
            "ports": [{"name": "a", "port": 1}, {"name": "b", "port": 2, "nodePort": 30001}]});
        check(keep_allocated, taken.clone(), old.clone(), taken);
        let external = json!({"type": "ExternalName"});
        check(keep_allocated, external.clone(), old, external);
    }

    #[test]
    fn normalizes_cluster_ips() {
        let normalize = |o: &mut Object, old: &Object| normalize_cluster_ips(o, Some(old));
        let old = json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00::1"]});
        check(normalize, json!({"clusterIP": "10.0.0.1"}), old.clone(), old.clone());
        let changed = json!({"clusterIP": "10.0.0.2", "clusterIPs": ["10.0.0.1", "fd00::1"]});
        check(normalize, changed, old, json!({"clusterIP": "10.0.0.2", "clusterIPs": ["10.0.0.2"]}));
        let mut new = service(&json!({"clusterIP": "10.0.0.1"}));
        normalize_cluster_ips(&mut new, None);
        assert_eq!(new.0["spec"]["clusterIPs"], json!(["10.0.0.1"]));
    }

    #[test]
    fn drops_fields_of_the_old_type() {
        let old = json!({"type": "LoadBalancer", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"],
            "ports": [{"port": 1, "nodePort": 30001}], "externalTrafficPolicy": "Cluster", "allocateLoadBalancerNodePorts": true});
        let mut new = old.clone();
        new["type"] = "ClusterIP".into();
        let dropped = json!({"type": "ClusterIP", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"],
            "ports": [{"port": 1}]});
        check(drop_of_old_type, new.clone(), old.clone(), dropped);
        let external = json!({"type": "ExternalName", "internalTrafficPolicy": "Local"});
        check(|o, _| drop_unused_policy(o), external, json!({}), json!({"type": "ExternalName"}));
        new["type"] = "ExternalName".into();
        check(drop_of_old_type, new, old, json!({"type": "ExternalName", "ports": [{"port": 1}]}));
    }
}
