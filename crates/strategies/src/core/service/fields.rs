//! Fields of services that depend on each other: allocated values that an update omits, single and list fields, and
//! values of the old type (upstream `patchAllocatedValues`, `normalizeClusterIPs`, `dropTypeDependentFields`).

use super::{accepts_external_traffic, has_address, is_balanced, is_checked, list, reaches_nodes};
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
