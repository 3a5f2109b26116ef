//! The slices of a service: pure functions of the service and its endpoints.

use super::backend::{Backend, Family, is_headless, ports, publishes_not_ready};
use super::reconcile::{Desired, Group};
use super::{COMPONENT, MANAGED_BY, SERVICE};
use meta::{Object, Value};
use serde_json::json;
use std::collections::HashMap;

/// The maximum number of endpoints of one slice (upstream's default).
const PER_SLICE: usize = 100;
const HEADLESS: &str = "service.kubernetes.io/headless";

/// The address types of a service's slices.
fn families(service: &Object) -> Vec<Family> {
    let named = service.at(&["spec", "ipFamilies"]).and_then(Value::as_array);
    let named: Vec<Family> = named
        .into_iter()
        .flatten()
        .filter_map(|f| match f.as_str() {
            Some("IPv4") => Some(Family::IPv4),
            Some("IPv6") => Some(Family::IPv6),
            _ => None,
        })
        .collect();
    match (named.is_empty(), is_headless(service)) {
        (false, _) => named,
        (true, true) => vec![Family::IPv4, Family::IPv6],
        (true, false) => vec![Family::of_address(service.str_at(&["spec", "clusterIP"]).unwrap_or_default())],
    }
}

/// Groups backends with the same port numbers.
fn grouped<'a>(backends: impl Iterator<Item = &'a Backend>) -> Vec<(&'a [Option<i64>], Vec<&'a Backend>)> {
    let mut groups: Vec<(&[Option<i64>], Vec<&Backend>)> = Vec::new();
    let mut places: HashMap<&[Option<i64>], usize> = HashMap::new();
    for b in backends {
        let place = *places.entry(&b.ports).or_insert(groups.len());
        match groups.get_mut(place) {
            Some((_, list)) => list.push(b),
            None => groups.push((&b.ports, vec![b])),
        }
    }
    groups
}

fn ports_of(service: &Object, numbers: &[Option<i64>]) -> Vec<Value> {
    ports(service)
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

/// The desired slices of a service. Of each address type without endpoints there is one empty slice.
pub(super) fn desired_slices(service: &Object, backends: &[Backend]) -> Desired {
    let publish = publishes_not_ready(service);
    let mut groups = Vec::new();
    for family in families(service) {
        let group = |ports, endpoints| Group { address_type: family.address_type(), ports, endpoints };
        let with_address = grouped(backends.iter().filter(|b| b.addresses(family).next().is_some()));
        if with_address.is_empty() {
            groups.push(group(Vec::new(), Vec::new()));
        }
        for (numbers, list) in with_address {
            let endpoints = list.into_iter().map(|b| endpoint(b, family, publish)).collect();
            groups.push(group(ports_of(service, numbers), endpoints));
        }
    }
    let reserved = [SERVICE, MANAGED_BY, HEADLESS];
    let mut labels: serde_json::Map<String, Value> =
        service.labels().filter(|(k, _)| !reserved.contains(k)).map(|(k, v)| (k.to_owned(), Value::from(v))).collect();
    labels.insert(SERVICE.into(), service.name().into());
    labels.insert(MANAGED_BY.into(), COMPONENT.into());
    if is_headless(service) {
        labels.insert(HEADLESS.into(), "".into());
    }
    let owner = json!([{"apiVersion": "v1", "kind": "Service", "name": service.name(), "uid": service.uid(),
        "controller": true, "blockOwnerDeletion": true}]);
    Desired {
        metadata: [("labels".to_owned(), labels.into()), ("ownerReferences".to_owned(), owner)].into_iter().collect(),
        owner: Some(service.uid().to_owned()),
        groups,
        per_slice: PER_SLICE,
    }
}

fn endpoint(b: &Backend, family: Family, publish: bool) -> Value {
    let addresses: Vec<String> = b.addresses(family).map(ToString::to_string).collect();
    let ready = publish || (b.serving && !b.terminating);
    let mut v = json!({"addresses": addresses, "targetRef": b.reference(),
        "conditions": {"ready": ready, "serving": b.serving, "terminating": b.terminating}});
    if !b.node.is_empty() {
        v["nodeName"] = b.node.clone().into();
    }
    if let Some(zone) = &b.zone {
        v["zone"] = zone.clone().into();
    }
    if let Some(h) = &b.hostname {
        v["hostname"] = h.clone().into();
    }
    v
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpointslice::backend::backends;
    use crate::endpointslice::testing::{entry, pod};

    fn object(v: Value) -> Object {
        Object::from_value(v).unwrap()
    }

    /// Groundwork of C14.endpointslices and P04.out-of-endpoints
    #[test]
    fn a_terminating_pod_is_not_ready_but_may_serve() {
        let spec = json!({"clusterIP": "10.96.0.1", "ports": [
            {"name": "http", "port": 80, "protocol": "TCP", "targetPort": "web"}]});
        let mut service = object(json!({"metadata": {"name": "s"}, "spec": spec}));
        let pods = [pod("a", true, false), pod("b", false, false), pod("c", true, true)].map(|p| entry(&p));
        let b = backends(&service, &pods, |n| Some(format!("zone-of-{n}")));
        let flags = |service: &Object| -> Vec<String> {
            let d = desired_slices(service, &b);
            let c = |e: &Value| ["ready", "serving", "terminating"].map(|k| e["conditions"][k].to_string()).join(" ");
            d.groups[0].endpoints.iter().map(c).collect()
        };
        assert_eq!(flags(&service), ["true true false", "false false false", "false true true"]);
        let d = desired_slices(&service, &b);
        assert_eq!((d.groups.len(), &d.groups[0].ports[0]["port"]), (1, &json!(8080)));
        assert_eq!(d.groups[0].endpoints[0]["zone"], "zone-of-n");
        service.set(&["spec", "publishNotReadyAddresses"], true);
        assert_eq!(flags(&service), ["true true false", "true false false", "true true true"]);
        assert_eq!(desired_slices(&service, &[]).groups.len(), 1);
    }

    #[test]
    fn every_family_of_the_service_has_slices() {
        let mut p = pod("a", true, false);
        p.set(&["status", "podIPs"], json!([{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]));
        let cases = [
            (json!({"clusterIP": "10.96.0.1"}), "IPv4=10.0.0.1"),
            (json!({"clusterIP": "fd00:96::1"}), "IPv6=fd00::1"),
            (json!({"clusterIP": "10.96.0.1", "ipFamilies": ["IPv6", "IPv4"]}), "IPv6=fd00::1 IPv4=10.0.0.1"),
            (json!({"clusterIP": "None", "ipFamilies": ["IPv4"]}), "IPv4=10.0.0.1"),
            (json!({"clusterIP": "None"}), "IPv4=10.0.0.1 IPv6=fd00::1"),
        ];
        for (spec, expect) in cases {
            let service = object(json!({"metadata": {"name": "s"}, "spec": spec}));
            let text = |b: &[Backend]| {
                let d = desired_slices(&service, b);
                let group = |g: &Group| {
                    let first = g.endpoints.first().map_or("-", |e| e["addresses"][0].as_str().unwrap());
                    format!("{}={first}", g.address_type)
                };
                d.groups.iter().map(group).collect::<Vec<_>>().join(" ")
            };
            assert_eq!(text(&backends(&service, &[entry(&p)], |_| None)), expect, "{spec}");
            assert_eq!(text(&[]).matches("=-").count(), expect.split(' ').count(), "{spec}: one empty slice each");
        }
    }

    #[test]
    fn labels_are_those_of_the_service() {
        let labels = |spec: Value, labels: Value| {
            let service = object(json!({"metadata": {"name": "s", "labels": labels}, "spec": spec}));
            desired_slices(&service, &[]).metadata["labels"].clone()
        };
        let own = json!({SERVICE: "s", MANAGED_BY: COMPONENT});
        let mut headless = own.clone();
        headless[HEADLESS] = "".into();
        let ip = json!({"clusterIP": "10.96.0.1"});
        assert_eq!(labels(ip.clone(), json!({SERVICE: "x", HEADLESS: "x", MANAGED_BY: "x"})), own);
        assert_eq!(labels(json!({"clusterIP": "None"}), json!({})), headless);
        assert_eq!(labels(json!({}), json!({})), headless);
        assert_eq!(labels(ip, json!({"a": "b"}))["a"], "b");
    }
}
