//! Sorting endpoints into slices, as data to data: endpoints stay in the slice they are in, so that a pod more or less changes one
//! slice and not all.

use super::{HEADLESS, MANAGED_BY, MANAGER, SERVICE_NAME};
use crate::ownership::controller_reference;
use crate::service_pods::{Port, Service};
use crate::views::PodEntry;
use client::Entry;
use meta::{Map, Object, Value};
use serde_json::json;
use std::collections::BTreeMap;

/// How many endpoints a slice takes.
pub const MAX: usize = 100;

/// What all endpoints of a slice have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group {
    /// `IPv4` or `IPv6`.
    pub family: String,
    pub ports: Vec<Port>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    Create(Object),
    Update(Object),
    Delete(Object),
}

/// A pod as an endpoint; none when it has no address of that family.
pub fn endpoint(pod: &PodEntry, service: &Entry<Service>, family: &str, zone: Option<&str>) -> Option<Value> {
    let s = &pod.view.status;
    let v6 = family == "IPv6";
    let all = s.pod_ips.iter().map(|i| &*i.ip).chain([&*s.pod_ip]);
    let address = all.into_iter().find(|a| !a.is_empty() && a.contains(':') == v6)?;
    let (serving, terminating) = (pod.view.is_ready(), pod.meta.is_deleting());
    let ready = service.view.spec.publish_not_ready_addresses || (serving && !terminating);
    let mut e = json!({
        "addresses": [address],
        "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
        "targetRef": {"kind": "Pod", "namespace": &*pod.meta.namespace, "name": &*pod.meta.name, "uid": &*pod.meta.uid},
    });
    let spec = &pod.view.spec;
    if !spec.node_name.is_empty() {
        e["nodeName"] = (&*spec.node_name).into();
    }
    if let Some(z) = zone {
        e["zone"] = z.into();
    }
    if !spec.hostname.is_empty() && *spec.subdomain == *service.meta.name {
        e["hostname"] = (&*spec.hostname).into();
    }
    Some(e)
}

fn ports(g: &Group) -> Value {
    g.ports
        .iter()
        .map(|p| {
            let mut v = json!({"name": p.name, "protocol": p.protocol, "port": p.port});
            if let Some(a) = &p.app_protocol {
                v["appProtocol"] = a.as_str().into();
            }
            v
        })
        .collect()
}

fn pod_of(endpoint: &Value) -> (&str, &str) {
    (endpoint["targetRef"]["uid"].as_str().unwrap_or_default(), endpoint["addresses"][0].as_str().unwrap_or_default())
}

/// The labels of a slice: the service's own, and whose it is.
fn labels(service: &Object) -> Map<String, Value> {
    let mut l: Map<String, Value> = service.labels().map(|(k, v)| (k.to_owned(), v.into())).collect();
    l.remove(HEADLESS);
    l.insert(SERVICE_NAME.into(), service.name().into());
    l.insert(MANAGED_BY.into(), MANAGER.into());
    if service.str_at(&["spec", "clusterIP"]) == Some("None") {
        l.insert(HEADLESS.into(), "".into());
    }
    l
}

fn new_slice(service: &Object, g: &Group) -> Object {
    let mut s = Object::default();
    s.set(&["apiVersion"], "discovery.k8s.io/v1");
    s.set(&["kind"], "EndpointSlice");
    s.set(
        &["metadata"],
        json!({
            "generateName": meta::names::as_prefix(&format!("{}-", service.name())),
            "namespace": service.namespace(),
            "labels": labels(service),
            "ownerReferences": [controller_reference(service)],
        }),
    );
    s.set(&["addressType"], g.family.as_str());
    s.set(&["ports"], ports(g));
    s
}

/// The changes that bring the existing slices to the wished endpoints.
pub fn plan(service: &Object, groups: BTreeMap<Group, Vec<Value>>, existing: Vec<Object>) -> Vec<Change> {
    let mut changes = Vec::new();
    let mut left = existing;
    left.sort_by(|a, b| a.name().cmp(b.name()));
    let wished_labels = Value::Object(labels(service));
    for (g, wished) in groups {
        let p = ports(&g);
        let (mine, others): (Vec<Object>, Vec<Object>) = left.into_iter().partition(|s| {
            s.str_at(&["addressType"]) == Some(&g.family) && s.get("ports").cloned().unwrap_or_else(|| json!([])) == p
        });
        left = others;
        let mut wanted: BTreeMap<(String, String), Value> = BTreeMap::new();
        for e in wished {
            let (uid, address) = pod_of(&e);
            wanted.insert((uid.to_owned(), address.to_owned()), e);
        }
        let empty = wanted.is_empty();
        let mut kept: Vec<(Object, Vec<Value>)> = Vec::new();
        for s in mine {
            let now = s.get("endpoints").and_then(Value::as_array).cloned().unwrap_or_default();
            let stay = now.iter().filter_map(|e| {
                let (uid, address) = pod_of(e);
                wanted.remove(&(uid.to_owned(), address.to_owned()))
            });
            let stay = stay.collect();
            kept.push((s, stay));
        }
        let mut fresh = wanted.into_values();
        for (_, stay) in &mut kept {
            let room = MAX.saturating_sub(stay.len());
            stay.extend(fresh.by_ref().take(room));
        }
        let mut rest: Vec<Value> = fresh.collect();
        let mut placeholder = empty;
        for (mut s, stay) in kept {
            if stay.is_empty() && !std::mem::take(&mut placeholder) {
                changes.push(Change::Delete(s));
                continue;
            }
            let before = s.clone();
            s.set(&["metadata", "labels"], wished_labels.clone());
            let had = before.get("endpoints").and_then(Value::as_array).cloned().unwrap_or_default();
            if had != stay {
                s.set(&["endpoints"], stay);
            }
            if s != before {
                changes.push(Change::Update(s));
            }
        }
        while !rest.is_empty() || placeholder {
            placeholder = false;
            let more = rest.split_off(rest.len().min(MAX));
            let mut s = new_slice(service, &g);
            s.set(&["endpoints"], std::mem::replace(&mut rest, more));
            changes.push(Change::Create(s));
        }
    }
    changes.extend(left.into_iter().map(Change::Delete));
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service() -> Object {
        Object::from_value(json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "web", "namespace": "n", "uid": "s", "labels": {"a": "b"}}, "spec": {"clusterIP": "10.0.0.1"},
        }))
        .unwrap()
    }

    fn endpoints(range: std::ops::Range<usize>) -> Vec<Value> {
        range.map(|i| json!({"addresses": [format!("10.1.0.{i}")], "targetRef": {"uid": format!("u{i}")}})).collect()
    }

    fn group(port: i64) -> Group {
        Group {
            family: "IPv4".into(),
            ports: vec![Port { name: String::new(), protocol: "TCP".into(), port, app_protocol: None }],
        }
    }

    fn created(c: &Change) -> Object {
        match c {
            Change::Create(s) | Change::Update(s) => s.clone(),
            Change::Delete(_) => panic!("{c:?}"),
        }
    }

    fn count(s: &Object) -> usize {
        s.get("endpoints").unwrap().as_array().unwrap().len()
    }

    /// Clauses: C14.endpointslices
    #[test]
    fn endpoints_stay_where_they_are() {
        let s = service();
        let first = plan(&s, [(group(80), endpoints(0..150))].into(), vec![]);
        let mut slices: Vec<Object> = first.iter().map(created).collect();
        assert_eq!(slices.iter().map(count).collect::<Vec<_>>(), [100, 50]);
        for (i, s) in slices.iter_mut().enumerate() {
            s.set_name(&format!("web-{i}"));
        }
        assert_eq!(slices[0].label(SERVICE_NAME), Some("web"));
        assert!(plan(&s, [(group(80), endpoints(0..150))].into(), slices.clone()).is_empty(), "nothing to do");
        let one_more = plan(&s, [(group(80), endpoints(0..151))].into(), slices.clone());
        assert_eq!(one_more.len(), 1);
        assert_eq!((created(&one_more[0]).name(), count(&created(&one_more[0]))), ("web-1", 51));
        let none = plan(&s, [(group(80), vec![])].into(), slices.clone());
        assert_eq!(none.len(), 2);
        assert_eq!(count(&created(&none[0])), 0, "one empty slice stays");
        assert!(matches!(&none[1], Change::Delete(s) if s.name() == "web-1"));
        let other_port = plan(&s, [(group(81), endpoints(0..1))].into(), slices);
        assert_eq!(other_port.len(), 3, "one made, two gone");
    }
}
