//! Service: addresses and ports, allocated in the transaction that writes the service.

use super::service_rules;
use crate::Config;
use crate::networking::Cidr;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, GroupKind, Object, Status, Value};
use registry::{Env, NameRule, Place, Request, Strategy, Sub, Upstream, encode};
use serde_json::json;
use std::collections::HashSet;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use store::{Action, Expect, Key, Op, Snapshot};

pub struct Service {
    range: Cidr,
    node_ports: RangeInclusive<u16>,
}

const ADDRESSES: &str = "networking.k8s.io/ipaddresses";
const RANGES: &str = "networking.k8s.io/servicecidrs";

impl Service {
    pub fn new(config: &Config) -> Self {
        Self { range: config.service_cidr, node_ports: config.node_ports.clone() }
    }
}

fn wants_address(o: &Object) -> bool {
    let ty = o.str_at(&["spec", "type"]).unwrap_or("ClusterIP");
    ty != "ExternalName" && o.str_at(&["spec", "clusterIP"]) != Some("None")
}

impl Strategy for Service {
    fn name_rule(&self) -> NameRule {
        NameRule::DnsLabel
    }

    fn default(&self, o: &mut Object) {
        let Some(mut spec) = o.remove(&["spec"]) else { return };
        for p in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
            let absent = match &p["targetPort"] {
                Value::Number(n) => n.as_i64() == Some(0),
                Value::String(s) => s.is_empty(),
                _ => true,
            };
            if absent {
                p["targetPort"] = p["port"].clone();
            }
        }
        // Whoever is reached from outside has a policy of how.
        let named = spec["externalIPs"].as_array().is_some_and(|a| !a.is_empty());
        let unsaid = spec["externalTrafficPolicy"].as_str().unwrap_or_default().is_empty();
        if spec["type"] == "ClusterIP" && named && unsaid {
            spec["externalTrafficPolicy"] = "Cluster".into();
        }
        if spec["sessionAffinity"] == "None"
            && let Some(m) = spec.as_object_mut()
        {
            m.remove("sessionAffinityConfig");
        }
        o.set(&["spec"], spec);
    }

    fn prepare_for_create(&self, _env: Env<'_>, _request: &registry::Request, o: &mut Object) {
        o.set(&["status"], json!({"loadBalancer": {}}));
        same_addresses(o);
        families_of_others(o);
        families(o);
    }

    fn prepare_for_update(&self, _env: Env<'_>, _request: &registry::Request, o: &mut Object, old: &Object) {
        // An address that is not mentioned stays, as long as the service still has one.
        let external = |o: &Object| o.str_at(&["spec", "type"]) == Some("ExternalName");
        if !external(o) && !external(old) && o.str_at(&["spec", "clusterIP"]).unwrap_or_default().is_empty() {
            for k in ["clusterIP", "clusterIPs"] {
                if let Some(v) = old.at(&["spec", k]).cloned() {
                    o.set(&["spec", k], v);
                }
            }
        }
        follow_address(o, old);
        same_addresses(o);
        keep_node_ports(o, old);
        drop_of_old_type(o, old);
        families(o);
    }

    fn validate(&self, o: &Object, errors: &mut ErrorList) {
        service_rules::validate(o, errors);
    }

    fn warnings(&self, o: &Object, _old: Option<&Object>) -> Vec<String> {
        service_rules::warnings(o)
    }

    fn validate_part(&self, subresource: &str, o: &Object, _old: &Object, errors: &mut ErrorList) {
        if subresource == "status" {
            service_rules::status(o, errors);
        }
    }

    fn validate_create(&self, o: &Object, errors: &mut ErrorList) {
        if !matches!(o.str_at(&["spec", "type"]), Some("NodePort" | "LoadBalancer")) {
            return;
        }
        // Ports of one number share the port of the nodes that they are given.
        let ports = o.at(&["spec", "ports"]).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let same = |a: &Value, b: &Value| a["protocol"] == b["protocol"] && a["port"] == b["port"];
        for (i, p) in ports.iter().enumerate() {
            let given = p["nodePort"].as_i64().unwrap_or(0) == 0;
            if given && ports[..i].iter().any(|before| same(before, p)) {
                let at = FieldPath::new("spec.ports").index(i).child("nodePort");
                errors.push(FieldError::duplicate(&at, 0));
            }
        }
    }

    fn validate_update(&self, o: &Object, old: &Object, errors: &mut ErrorList) {
        service_rules::update(o, old, errors);
    }

    fn proxy(&self, env: Env<'_>, _request: &Request, o: &Object, place: &Place) -> Result<Upstream, Status> {
        super::proxy::service(env, o, place)
    }

    fn subresource(&self, name: &str) -> Option<Sub> {
        (name == "proxy").then_some(Sub::Connect)
    }

    fn returns_deleted_object(&self) -> bool {
        true
    }

    fn allocates(&self) -> bool {
        true
    }

    fn allocate(&self, env: Env<'_>, o: &mut Object, old: Option<&Object>) -> Result<Vec<Op>, Status> {
        let mut ops = Vec::new();
        let had = old
            .and_then(|o| o.str_at(&["spec", "clusterIP"]))
            .filter(|ip| !matches!(*ip, "" | "None"))
            .map(str::to_owned);
        let has = o.str_at(&["spec", "clusterIP"]).filter(|ip| !matches!(*ip, "" | "None")).map(str::to_owned);
        if !wants_address(o) {
            if let Some(ip) = had {
                ops.push(release(&ip));
                for k in ["clusterIP", "clusterIPs"] {
                    if o.str_at(&["spec", "clusterIP"]) != Some("None") {
                        o.remove(&["spec", k]);
                    }
                }
            }
        } else if let (Some(ip), None) = (&has, &had) {
            let address: Ipv4Addr = ip.parse().map_err(|_| self.bad_address(o, ip, "is no IPv4 address"))?;
            let snapshot = env.registry.store.snapshot();
            if !self.ranges(&snapshot).iter().any(|r| r.contains(address)) {
                let why = format!("failed to allocate IP {ip}: the provided network does not match the current range");
                return Err(self.bad_address(o, ip, &why));
            }
            if snapshot.get(&key(ip)).is_some() {
                let why = format!("failed to allocate IP {ip}: provided IP is already allocated");
                return Err(self.bad_address(o, ip, &why));
            }
            ops.push(claim(env, o, ip));
        } else if has.is_none() {
            let ip = self
                .free_address(env)
                .ok_or_else(|| Status::internal("failed to allocate a serviceIP: range is full"))?;
            o.set(&["spec", "clusterIP"], ip.as_str());
            o.set(&["spec", "clusterIPs"], json!([ip]));
            ops.push(claim(env, o, &ip));
        }
        self.node_ports(env, o, old)?;
        Ok(ops)
    }

    fn release(&self, _env: Env<'_>, o: &Object) -> Vec<Op> {
        let ip = o.str_at(&["spec", "clusterIP"]).filter(|ip| !matches!(*ip, "" | "None"));
        ip.map(release).into_iter().collect()
    }
}

/// Who changes the one address and not the list means the list too.
fn follow_address(o: &mut Object, old: &Object) {
    let (one, list) = (["spec", "clusterIP"], ["spec", "clusterIPs"]);
    if o.at(&one) != old.at(&one) && o.at(&list).is_some() && o.at(&list) == old.at(&list) {
        o.remove(&list);
    }
}

/// One field for one family, a list for both: they say the same.
fn same_addresses(o: &mut Object) {
    if o.str_at(&["spec", "type"]) == Some("ExternalName") {
        return;
    }
    let ip = o.str_at(&["spec", "clusterIP"]).unwrap_or_default().to_owned();
    let list = o.at(&["spec", "clusterIPs"]);
    let first = list.and_then(|l| l[0].as_str()).unwrap_or_default().to_owned();
    if !ip.is_empty() && first.is_empty() {
        o.set(&["spec", "clusterIPs"], json!([ip]));
    } else if ip.is_empty() && !first.is_empty() {
        o.set(&["spec", "clusterIP"], first);
    }
}

fn reaches_nodes(o: &Object) -> bool {
    matches!(o.str_at(&["spec", "type"]), Some("NodePort" | "LoadBalancer"))
}

pub(super) fn is_balanced(o: &Object) -> bool {
    o.str_at(&["spec", "type"]) == Some("LoadBalancer")
}

pub(super) fn is_reached_from_outside(o: &Object) -> bool {
    let addresses = o.at(&["spec", "externalIPs"]).and_then(Value::as_array).is_some_and(|a| !a.is_empty());
    reaches_nodes(o) || (o.str_at(&["spec", "type"]) == Some("ClusterIP") && addresses)
}

/// What only the old type had goes with it, unless it was touched.
fn drop_of_old_type(o: &mut Object, old: &Object) {
    let same = |o: &Object, k: &str| o.at(&["spec", k]) == old.at(&["spec", k]);
    let closed = reaches_nodes(old) && !reaches_nodes(o) && ports_of(o).is_subset(&ports_of(old));
    if let Some(Value::Array(mut ports)) = o.at(&["spec", "ports"]).filter(|_| closed).cloned() {
        ports.iter_mut().filter_map(Value::as_object_mut).for_each(|p| drop(p.remove("nodePort")));
        o.set(&["spec", "ports"], ports);
    }
    if is_reached_from_outside(old) && !is_reached_from_outside(o) && same(o, "externalTrafficPolicy") {
        o.remove(&["spec", "externalTrafficPolicy"]);
    }
    for k in ["allocateLoadBalancerNodePorts", "loadBalancerClass", "healthCheckNodePort"] {
        if is_balanced(old) && !is_balanced(o) && same(o, k) {
            o.remove(&["spec", k]);
        }
    }
}

/// A new service without addresses and without pods: its endpoints are somebody else's, who may have addresses of both.
fn families_of_others(o: &mut Object) {
    let selects = o.at(&["spec", "selector"]).and_then(Value::as_object).is_some_and(|s| !s.is_empty());
    let chosen = ["ipFamilies", "ipFamilyPolicy"].iter().any(|k| o.at(&["spec", k]).is_some());
    if o.str_at(&["spec", "clusterIP"]) == Some("None") && !selects && !chosen {
        o.set(&["spec", "ipFamilies"], json!(["IPv4", "IPv6"]));
        o.set(&["spec", "ipFamilyPolicy"], "RequireDualStack");
    }
}

/// The family of the address: there is one here.
fn families(o: &mut Object) {
    if o.str_at(&["spec", "type"]) == Some("ExternalName") {
        return;
    }
    if o.at(&["spec", "ipFamilies"]).is_none() {
        o.set(&["spec", "ipFamilies"], json!(["IPv4"]));
    }
    if o.at(&["spec", "ipFamilyPolicy"]).is_none() {
        o.set(&["spec", "ipFamilyPolicy"], "SingleStack");
    }
}

fn keep_node_ports(o: &mut Object, old: &Object) {
    if !matches!(o.str_at(&["spec", "type"]), Some("NodePort" | "LoadBalancer")) {
        return;
    }
    let was = old.at(&["spec", "ports"]).and_then(Value::as_array).cloned().unwrap_or_default();
    let Some(Value::Array(mut ports)) = o.remove(&["spec", "ports"]) else { return };
    for p in &mut ports {
        let same = was.iter().find(|w| w["port"] == p["port"] && w["protocol"] == p["protocol"]);
        if let (None, Some(n)) = (p["nodePort"].as_i64().filter(|n| *n > 0), same.map(|w| w["nodePort"].clone()))
            && !n.is_null()
        {
            p["nodePort"] = n;
        }
    }
    o.set(&["spec", "ports"], ports);
}

fn key(ip: &str) -> Key {
    Key { resource: ADDRESSES.into(), namespace: "".into(), name: ip.into() }
}

fn release(ip: &str) -> Op {
    Op { key: key(ip), expect: Expect::Any, action: Action::Delete }
}

/// The IPAddress that says whose an address is. Two services cannot both create it.
fn claim(env: Env<'_>, o: &Object, ip: &str) -> Op {
    let v = json!({"kind": "IPAddress", "apiVersion": "networking.k8s.io/v1", "metadata": {"name": ip,
        "uid": meta::random::uuid(env.rng()), "creationTimestamp": meta::time::format(env.clock().now()),
        "labels": {"ipaddress.kubernetes.io/ip-family": "IPv4", "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"}},
        "spec": {"parentRef": {"group": "", "resource": "services", "namespace": o.namespace(), "name": o.name()}}});
    let bytes = encode::encode(&Object::from_value(v).unwrap_or_default());
    Op { key: key(ip), expect: Expect::Absent, action: Action::Put(bytes) }
}

impl Service {
    fn bad_address(&self, o: &Object, ip: &str, why: &str) -> Status {
        let e = FieldError::invalid(&FieldPath::new("spec.clusterIPs"), json!([ip]), why);
        Status::invalid(&GroupKind { group: String::new(), kind: "Service".into() }, o.name(), &[e])
    }

    /// Where addresses may come from: every range that is ready and stays. A server that keeps no such objects has the range
    /// it was started with.
    fn ranges(&self, snapshot: &Snapshot) -> Vec<Cidr> {
        let all: Vec<Object> = snapshot.range(RANGES, None, None).map(|e| encode::decode(e)).collect();
        if all.is_empty() {
            return vec![self.range];
        }
        let unready = |c: &Value| c["type"] == "Ready" && c["status"] != "True";
        let conditions = |o: &Object| o.at(&["status", "conditions"]).and_then(Value::as_array).cloned();
        let usable = |o: &&Object| !o.is_deleting() && !conditions(o).unwrap_or_default().iter().any(unready);
        let texts = all.iter().filter(usable).filter_map(|o| o.at(&["spec", "cidrs"])?.as_array());
        texts.flatten().filter_map(|c| c.as_str()?.parse().ok()).collect()
    }

    /// A free address, from a random point on. The first addresses of each range are left for those who name theirs.
    fn free_address(&self, env: Env<'_>) -> Option<String> {
        let snapshot = env.registry.store.snapshot();
        self.ranges(&snapshot).into_iter().find_map(|range| {
            let size = range.size();
            let reserved = (size / 16).clamp(16, 256).min(size / 2);
            let start = env.rng().next_u64() % (size - reserved).max(1);
            let upper = (0..size - reserved).map(|i| reserved + (start + i) % (size - reserved));
            let all = upper.chain(1..reserved).map(|n| range.nth(n)).filter(|ip| range.contains(*ip));
            all.map(|ip| ip.to_string()).find(|ip| snapshot.get(&key(ip)).is_none())
        })
    }

    fn node_ports(&self, env: Env<'_>, o: &mut Object, old: Option<&Object>) -> Result<(), Status> {
        let ty = o.str_at(&["spec", "type"]).unwrap_or_default().to_owned();
        let balanced = o.at(&["spec", "allocateLoadBalancerNodePorts"]) != Some(&Value::Bool(false));
        let wants = ty == "NodePort" || (ty == "LoadBalancer" && balanced);
        let own: HashSet<i64> = old.map(ports_of).unwrap_or_default();
        let missing = |p: &Value| p["nodePort"].as_i64().unwrap_or(0) == 0;
        let Some(Value::Array(mut ports)) = o.at(&["spec", "ports"]).cloned() else { return Ok(()) };
        let named: Vec<i64> =
            ports.iter().filter_map(|p| p["nodePort"].as_i64()).filter(|n| *n > 0 && !own.contains(n)).collect();
        if named.is_empty() && !(wants && ports.iter().any(missing)) {
            return Ok(());
        }
        let snapshot = env.registry.store.snapshot();
        let mut used: HashSet<i64> = HashSet::new();
        for e in snapshot.range("services", None, None) {
            let other = encode::decode(e);
            if other.namespace() != o.namespace() || other.name() != o.name() {
                used.extend(ports_of(&other));
            }
        }
        for n in named {
            let path = FieldPath::new("spec.ports[0].nodePort");
            let fail = |why: &str| {
                let gk = GroupKind { group: String::new(), kind: "Service".into() };
                Status::invalid(&gk, o.name(), &[FieldError::invalid(&path, n, why)])
            };
            if !u16::try_from(n).is_ok_and(|n| self.node_ports.contains(&n)) {
                let (a, b) = (self.node_ports.start(), self.node_ports.end());
                return Err(fail(&format!(
                    "provided port is not in the valid range. The range of valid ports is {a}-{b}"
                )));
            }
            if used.contains(&n) {
                return Err(fail("provided port is already allocated"));
            }
        }
        if !wants {
            return Ok(());
        }
        let (first, last) = (u64::from(*self.node_ports.start()), u64::from(*self.node_ports.end()));
        used.extend(ports.iter().filter_map(|p| p["nodePort"].as_i64()));
        for p in ports.iter_mut().filter(|p| missing(p)) {
            let size = last - first + 1;
            let start = env.rng().next_u64() % size;
            let free = (0..size).map(|i| (first + (start + i) % size) as i64).find(|n| !used.contains(n));
            let n = free.ok_or_else(|| Status::internal("failed to allocate a nodePort: range is full"))?;
            used.insert(n);
            p["nodePort"] = n.into();
        }
        o.set(&["spec", "ports"], ports);
        Ok(())
    }
}

fn ports_of(o: &Object) -> HashSet<i64> {
    let ports = o.at(&["spec", "ports"]).and_then(Value::as_array).into_iter().flatten();
    ports.filter_map(|p| p["nodePort"].as_i64()).filter(|n| *n > 0).collect()
}
