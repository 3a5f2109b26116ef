//! The Endpoints object of a service (upstream `endpoints_controller.go`). Pure: data to data.

use super::backend::{Backend, Family, is_headless, ports, publishes_not_ready};
use jiff::Timestamp;
use meta::{Object, Value};
use serde_json::json;
use std::collections::BTreeMap;

/// The limit of addresses of one object.
const MAX_ADDRESSES: usize = 1000;
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
const HEADLESS: &str = "service.kubernetes.io/headless";
const MANAGED_BY: (&str, &str) = ("endpoints.kubernetes.io/managed-by", "endpoint-controller");

/// The address of a backend with which the service's first family reaches it.
fn address(service: &Object, b: &Backend) -> Option<Value> {
    let family = match service.at(&["spec", "ipFamilies"]).and_then(|f| f[0].as_str()) {
        Some("IPv6") => Family::IPv6,
        Some(_) => Family::IPv4,
        None if is_headless(service) => Family::of_address(&b.ips.first()?.to_string()),
        None => Family::of_address(service.str_at(&["spec", "clusterIP"]).unwrap_or_default()),
    };
    let mut v = json!({"ip": b.addresses(family).next()?.to_string(), "targetRef": b.reference()});
    if !b.node.is_empty() {
        v["nodeName"] = b.node.clone().into();
    }
    if let Some(h) = &b.hostname {
        v["hostname"] = h.clone().into();
    }
    Some(v)
}

/// The addresses of a port, by IP and UID, with whether they are ready.
type Addresses = BTreeMap<(String, String), (Value, bool)>;

/// The `subsets`: ports with the same addresses share one.
pub(super) fn subsets(service: &Object, backends: &[Backend]) -> Vec<Value> {
    let publish = publishes_not_ready(service);
    let ports = ports(service);
    let without_ports = ports.is_empty() && service.str_at(&["spec", "clusterIP"]) == Some("None");
    // By port: its description and addresses; one entry without a description for a service without ports.
    let mut by_port: BTreeMap<(usize, Option<i64>), (Option<Value>, Addresses)> = BTreeMap::new();
    for b in backends.iter().filter(|b| publish || !b.terminating) {
        let Some(a) = address(service, b) else { continue };
        let key = (a["ip"].as_str().unwrap_or_default().to_owned(), b.uid.clone());
        let mut add = |at, port: Option<Value>| {
            let entry = by_port.entry(at).or_insert_with(|| (port, Addresses::new()));
            entry.1.insert(key.clone(), (a.clone(), publish || b.serving));
        };
        if without_ports {
            add((0, None), None);
        }
        for (i, (port, number)) in ports.iter().zip(&b.ports).enumerate().filter(|(_, (_, n))| n.is_some()) {
            let mut v = json!({"port": number, "protocol": port["protocol"]});
            for field in ["name", "appProtocol"] {
                if let Some(text) = port[field].as_str().filter(|text| !text.is_empty()) {
                    v[field] = text.into();
                }
            }
            add((i, *number), Some(v));
        }
    }
    let mut found: Vec<(Addresses, Vec<Value>)> = Vec::new();
    for (port, addresses) in by_port.into_values() {
        match found.iter_mut().find(|(held, _)| *held == addresses) {
            Some((_, ports)) => ports.extend(port),
            None => found.push((addresses, port.into_iter().collect())),
        }
    }
    found.into_iter().map(|(addresses, ports)| subset(addresses, ports)).collect()
}

fn subset(addresses: Addresses, ports: Vec<Value>) -> Value {
    let (ready, waiting): (Vec<_>, Vec<_>) = addresses.into_values().partition(|(_, ready)| *ready);
    let list = |all: Vec<(Value, bool)>| Value::Array(all.into_iter().map(|(a, _)| a).collect());
    let mut s = json!({});
    for (field, value) in [("addresses", list(ready)), ("notReadyAddresses", list(waiting)), ("ports", ports.into())] {
        if value.as_array().is_some_and(|v| !v.is_empty()) {
            s[field] = value;
        }
    }
    s
}

fn count(subsets: &[Value], field: &str) -> usize {
    subsets.iter().filter_map(|s| s[field].as_array()).map(Vec::len).sum()
}

/// Leaves as many addresses as an object may have, in proportion from each subset and ready ones first. Returns whether some are left
/// out.
fn truncate(subsets: &mut [Value]) -> bool {
    let (ready, waiting) = (count(subsets, "addresses"), count(subsets, "notReadyAddresses"));
    if ready + waiting <= MAX_ADDRESSES {
        return false;
    }
    let (field, limit, all) = match ready > MAX_ADDRESSES {
        true => ("addresses", MAX_ADDRESSES, ready),
        false => ("notReadyAddresses", MAX_ADDRESSES - ready, waiting),
    };
    let mut left = limit;
    for s in subsets {
        if field == "addresses" {
            s.as_object_mut().map(|s| s.remove("notReadyAddresses"));
        }
        let Some(list) = s[field].as_array_mut() else { continue };
        let share = (list.len() as f64 / all as f64 * limit as f64).ceil() as usize;
        list.truncate(share.min(left));
        left -= list.len();
        if list.is_empty() {
            s.as_object_mut().map(|s| s.remove(field));
        }
    }
    true
}

/// Whether the labels are those of the service.
fn has_labels(held: &Object, service: &Object) -> bool {
    let own = |k: &str| k == HEADLESS || k == MANAGED_BY.0;
    let theirs: BTreeMap<&str, &str> = held.labels().filter(|(k, _)| !own(k)).collect();
    held.label(MANAGED_BY.0) == Some(MANAGED_BY.1) && theirs == service.labels().collect()
}

/// The Endpoints of a service, to create or to update; none if `held` is right. `changed` is the time of the change that is the reason.
pub(super) fn next(
    service: &Object,
    held: Option<&Object>,
    mut subsets: Vec<Value>,
    changed: Option<Timestamp>,
) -> Option<Object> {
    if let Some(held) = held {
        let current = held.get("subsets").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let all = count(current, "addresses") + count(current, "notReadyAddresses");
        let fits = all <= MAX_ADDRESSES && held.annotation(OVER_CAPACITY).is_none();
        if fits && current == subsets && has_labels(held, service) {
            return None;
        }
    }
    let mut o = held.cloned().unwrap_or_else(|| {
        let mut o = Object::default();
        o.set_name(service.name());
        o.set_namespace(service.namespace());
        o
    });
    let mut labels = service.at(&["metadata", "labels"]).cloned().unwrap_or_else(|| json!({}));
    if let Some(labels) = labels.as_object_mut() {
        labels.remove(HEADLESS);
        if is_headless(service) {
            labels.insert(HEADLESS.into(), "".into());
        }
        labels.insert(MANAGED_BY.0.into(), MANAGED_BY.1.into());
    }
    o.metadata_mut().insert("labels".into(), labels);
    match truncate(&mut subsets) {
        true => o.set_annotation(OVER_CAPACITY, "truncated"),
        false => drop(o.remove(&["metadata", "annotations", OVER_CAPACITY])),
    }
    match subsets.is_empty() {
        true => drop(o.remove(&["subsets"])),
        false => o.set(&["subsets"], subsets),
    }
    // One that holds as many addresses as it may is not written for the time alone.
    if held.is_some_and(|held| *held == o) {
        return None;
    }
    super::trigger::annotate(&mut o, changed);
    Some(o)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpointslice::backend::backends;
    use crate::endpointslice::testing::{entry, pod};

    fn object(v: Value) -> Object {
        Object::from_value(v).unwrap()
    }

    fn port(name: &str, target: Value) -> Value {
        json!({"name": name, "port": 80, "protocol": "TCP", "targetPort": target})
    }

    /// Each subset as `ports: ready addresses / others`.
    fn outline(subsets: &[Value]) -> Vec<String> {
        let names = |list: &Value, field: &str| -> String {
            let text = |v: &Value| v[field].as_str().map_or_else(|| v["port"].to_string(), str::to_owned);
            list.as_array().into_iter().flatten().map(text).collect::<Vec<_>>().join(",")
        };
        let one = |s: &Value| {
            let ports = names(&s["ports"], "name");
            format!("{ports}: {} / {}", names(&s["addresses"], "ip"), names(&s["notReadyAddresses"], "ip"))
        };
        subsets.iter().map(one).collect()
    }

    fn with_ip(mut p: Object, ip: &str) -> Object {
        p.set(&["status", "podIP"], ip);
        p.set(&["metadata", "uid"], p.name().to_owned());
        p
    }

    /// Subsets were made of pods with the same ports, not of ports with the same pods.
    #[test]
    fn ports_with_the_same_addresses_share_a_subset() {
        let a = with_ip(pod("a", true, false), "10.0.0.1");
        let mut b = with_ip(pod("b", false, false), "10.0.0.2");
        let c = with_ip(pod("c", true, true), "10.0.0.3");
        b.remove(&["spec", "containers"]);
        let all = [a, b, c].map(|p| entry(&p));
        let got = |spec: Value| {
            let service = object(json!({"metadata": {"name": "s"}, "spec": spec}));
            outline(&subsets(&service, &backends(&service, &all, |_| None)))
        };
        let fixed = json!([port("x", json!(8080)), port("y", json!(9090))]);
        assert_eq!(got(json!({"ports": fixed.clone()})), ["x,y: 10.0.0.1 / 10.0.0.2"]);
        assert_eq!(
            got(json!({"ports": [port("x", json!(8080)), port("n", json!("web")), port("y", json!(9090))]})),
            ["x,y: 10.0.0.1 / 10.0.0.2", "n: 10.0.0.1 / "]
        );
        assert_eq!(
            got(json!({"ports": fixed, "publishNotReadyAddresses": true})),
            ["x,y: 10.0.0.1,10.0.0.2,10.0.0.3 / "]
        );
        assert_eq!(got(json!({"clusterIP": "None"})), [": 10.0.0.1 / 10.0.0.2"]);
        assert_eq!(got(json!({"clusterIP": "10.96.0.1"})), [""; 0]);
    }

    #[test]
    fn addresses_are_of_the_first_family() {
        let mut p = with_ip(pod("a", true, false), "10.0.0.1");
        p.set(&["status", "podIPs"], json!([{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]));
        for (more, expect) in [
            (json!({"ipFamilies": ["IPv6", "IPv4"]}), "fd00::1"),
            (json!({"ipFamilies": ["IPv4"]}), "10.0.0.1"),
            (json!({"clusterIP": "fd00:96::1"}), "fd00::1"),
            (json!({"clusterIP": "None"}), "10.0.0.1"),
        ] {
            let mut spec = json!({"ports": [port("x", json!(1))]});
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let service = object(json!({"metadata": {"name": "s"}, "spec": spec}));
            let got = subsets(&service, &backends(&service, &[entry(&p)], |_| None));
            assert_eq!(got[0]["addresses"][0]["ip"], expect, "{more}");
        }
    }

    #[test]
    fn ready_addresses_are_left_first() {
        let list = |n: usize| -> Vec<Value> { (0..n).map(|i| json!({"ip": format!("10.0.{i}.1")})).collect() };
        let cases = [
            ([(600, 0), (400, 0)], false, [(600, 0), (400, 0)]),
            ([(600, 300), (400, 300)], true, [(600, 0), (400, 0)]),
            ([(900, 0), (900, 50)], true, [(500, 0), (500, 0)]),
            ([(500, 400), (100, 1200)], true, [(500, 100), (100, 300)]),
            ([(1, 0), (2000, 0)], true, [(1, 0), (999, 0)]),
        ];
        for (held, truncated, expect) in cases {
            let mut subsets: Vec<Value> =
                held.iter().map(|(r, w)| json!({"addresses": list(*r), "notReadyAddresses": list(*w)})).collect();
            assert_eq!(truncate(&mut subsets), truncated);
            let counts: Vec<(usize, usize)> = subsets
                .iter()
                .map(|s| {
                    (count(std::slice::from_ref(s), "addresses"), count(std::slice::from_ref(s), "notReadyAddresses"))
                })
                .collect();
            assert_eq!(counts, expect, "{held:?}");
        }
    }

    #[test]
    fn the_object_is_written_only_if_it_differs() {
        let at = Some(Timestamp::UNIX_EPOCH);
        let service = object(json!({"metadata": {"name": "s", "namespace": "x", "labels": {"a": "b"}},
            "spec": {"clusterIP": "None"}}));
        let some =
            |n: usize| vec![json!({"addresses": (0..n).map(|i| json!({"ip": i.to_string()})).collect::<Vec<_>>()})];
        let first = next(&service, None, some(1), at).unwrap();
        assert_eq!(
            first.at(&["metadata", "labels"]),
            Some(&json!({"a": "b", HEADLESS: "", MANAGED_BY.0: MANAGED_BY.1}))
        );
        assert_eq!(next(&service, Some(&first), some(1), at), None);
        let second = next(&service, Some(&first), some(1001), None).unwrap();
        assert_eq!(second.annotations().collect::<Vec<_>>(), [(OVER_CAPACITY, "truncated")], "no change has a time");
        assert_eq!(next(&service, Some(&second), some(1001), at), None);
        let third = next(&service, Some(&second), some(2), at).unwrap();
        assert_eq!(third.annotation(OVER_CAPACITY), None);
        let mut other = third.clone();
        other.set(&["metadata", "labels", "a"], "c");
        assert!(next(&service, Some(&other), some(2), at).is_some(), "labels follow the service");
        other = third.clone();
        other.set(&["metadata", "annotations", "mine"], "kept");
        let fourth = next(&service, Some(&other), some(3), None).unwrap();
        assert_eq!(fourth.annotations().collect::<Vec<_>>(), [("mine", "kept")]);
        assert!(next(&service, Some(&third), Vec::new(), at).unwrap().get("subsets").is_none());
    }
}
