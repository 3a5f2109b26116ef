//! Copies Endpoints that users write to slices (upstream `pkg/controller/endpointslicemirroring`).

use super::reconcile::{Desired, Group};
use super::slices::Slices;
use super::{LEADER, MANAGED_BY, SERVICE, Selectable};
use crate::context::{Context, Error, object};
use crate::controller::{Builder, Reconcile};
use crate::meters;
use client::{ApiResource, Informer, Key, Outcome, Recorder, Regarding};
use k8s_openapi::api::core::v1::{Endpoints, Service};
use meta::{Object, Value};
use serde_json::json;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::time::Instant;

const COMPONENT: &str = "endpointslicemirroring-controller.k8s.io";
const SKIP: &str = "endpointslice.kubernetes.io/skip-mirror";
/// Annotations that concern the Endpoints object only.
const NOT_COPIED: [&str; 2] =
    ["endpoints.kubernetes.io/last-change-trigger-time", "kubectl.kubernetes.io/last-applied-configuration"];
/// The limit of addresses that are copied from one subset (upstream's default).
const PER_SUBSET: usize = 1000;

/// The limit of slices for one Endpoints object, of which each slice has all labels and annotations.
const MAX_SLICES: usize = 100;

struct Controller {
    services: Informer<Selectable>,
    endpoints: Informer<()>,
    slices: Slices,
    recorder: Recorder,
}

fn endpoints() -> ApiResource {
    ApiResource::typed::<Endpoints>()
}

/// Runs until shutdown.
pub async fn run(context: Context) {
    let mut builder = Builder::new(&context);
    let c = Arc::new(Controller {
        services: builder.watch(&ApiResource::typed::<Service>()),
        endpoints: builder.watch(&endpoints()),
        recorder: context.recorder_as("endpoint-slice-mirroring-controller"),
        slices: Slices::new(&mut builder, context, COMPONENT, meters::MIRROR_CHANGES),
    });
    builder.enqueue(&c.services);
    builder.enqueue(&c.endpoints);
    builder.on_change(&c.slices.written, |change, queue| {
        for meta in [&change.old, &change.new].into_iter().flatten().map(|e| &e.meta) {
            if let (Some(COMPONENT), Some(service)) = (meta.label(MANAGED_BY), meta.label(SERVICE)) {
                queue.add(Key::new(meta.namespace.clone(), service));
            }
        }
    });
    builder.run(2, c).await;
}

impl Reconcile for Controller {
    type Key = Key;

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let begun = Instant::now();
        let mut desired = Desired::default();
        if let (Some(service), Some(e)) = (self.services.get(&key), self.endpoints.get(&key))
            && service.view.spec.selector.is_none()
        {
            let endpoints = object(&endpoints(), &e)?;
            if is_mirrored(&endpoints) && !endpoints.is_deleting() {
                let m = mirrored(&endpoints);
                meters::observe(&meters::MIRROR_SKIPPED, &[], (m.invalid + m.skipped) as f64);
                self.report(&endpoints, &m);
                desired = m.desired;
            }
        }
        self.slices.write(&key, desired, || None, |_| {}).await?;
        meters::took(&meters::MIRROR_SECONDS, &[], begun.elapsed());
        Ok(Outcome::Done)
    }
}

impl Controller {
    fn report(&self, endpoints: &Object, m: &Mirrored) {
        let about = || Regarding::object(endpoints);
        if m.invalid > 0 {
            let text = format!("Skipped {} invalid IP addresses when mirroring to EndpointSlices", m.invalid);
            self.recorder.warning(about(), "InvalidIPAddress", text);
        }
        if m.skipped > 0 {
            let text = format!(
                "A max of {PER_SUBSET} addresses can be mirrored to EndpointSlices per Endpoints subset. {} addresses were skipped",
                m.skipped + m.invalid
            );
            self.recorder.warning(about(), "TooManyAddressesToMirror", text);
        }
    }
}

fn is_mirrored(endpoints: &Object) -> bool {
    endpoints.label(SKIP) != Some("true") && endpoints.annotation(LEADER).is_none()
}

/// The slices for an Endpoints object, and what was skipped.
#[derive(Debug, Default)]
struct Mirrored {
    desired: Desired,
    /// The number of invalid addresses.
    invalid: usize,
    /// The number of addresses beyond the limit.
    skipped: usize,
}

fn mirrored(e: &Object) -> Mirrored {
    let mut labels: serde_json::Map<String, Value> = e.labels().map(|(k, v)| (k.to_owned(), v.into())).collect();
    labels.insert(SERVICE.into(), e.name().into());
    labels.insert(MANAGED_BY.into(), COMPONENT.into());
    let mut annotations = e.at(&["metadata", "annotations"]).and_then(Value::as_object).cloned().unwrap_or_default();
    annotations.retain(|k, _| !NOT_COPIED.contains(&k.as_str()));
    let annotations = if annotations.is_empty() { Value::Null } else { annotations.into() };
    let owner = json!([{"apiVersion": "v1", "kind": "Endpoints", "name": e.name(), "uid": e.uid(), "controller": true,
        "blockOwnerDeletion": true}]);

    let mut out = Mirrored::default();
    // Subsets with the same ports are merged: one slice per address type and list of ports.
    let mut groups: Vec<(&'static str, Vec<Value>, Vec<Value>)> = Vec::new();
    for subset in e.get("subsets").and_then(Value::as_array).into_iter().flatten() {
        let ports: Vec<Value> = subset["ports"].as_array().into_iter().flatten().map(port).collect();
        let list = |field: &str| subset[field].as_array().cloned().unwrap_or_default();
        let ready = list("addresses").into_iter().map(|a| (a, true));
        let addresses = ready.chain(list("notReadyAddresses").into_iter().map(|a| (a, false)));
        let mut taken = 0;
        for (a, ready) in addresses {
            if taken == PER_SUBSET {
                out.skipped += 1;
                continue;
            }
            let Some(ip) = a["ip"].as_str().and_then(|ip| ip.parse::<IpAddr>().ok()) else {
                out.invalid += 1;
                continue;
            };
            taken += 1;
            let kind = if ip.is_ipv6() { "IPv6" } else { "IPv4" };
            let mut endpoint = json!({"addresses": [ip.to_string()], "conditions": {"ready": ready}});
            for field in ["hostname", "nodeName", "targetRef"] {
                if let Some(v) = a.get(field).filter(|v| v.as_str() != Some("")) {
                    endpoint[field] = v.clone();
                }
            }
            let full = groups.len() == MAX_SLICES;
            match groups.iter_mut().find(|(k, p, _)| *k == kind && *p == ports) {
                Some((_, _, list)) if list.len() < PER_SUBSET => list.push(endpoint),
                Some(_) => out.skipped += 1,
                None if full => out.skipped += 1,
                None => groups.push((kind, ports.clone(), vec![endpoint])),
            }
        }
    }
    let metadata = [("labels", labels.into()), ("annotations", annotations), ("ownerReferences", owner)];
    let group = |(address_type, ports, endpoints)| Group { address_type, ports, endpoints };
    out.desired = Desired {
        owner: None,
        metadata: metadata.into_iter().map(|(k, v)| (k.to_owned(), v)).collect(),
        groups: groups.into_iter().map(group).collect(),
        per_slice: PER_SUBSET,
    };
    out
}

fn port(p: &Value) -> Value {
    let mut v = json!({"name": p["name"].as_str().unwrap_or_default(), "port": p["port"],
        "protocol": p["protocol"].as_str().unwrap_or("TCP")});
    if let Some(a) = p.get("appProtocol") {
        v["appProtocol"] = a.clone();
    }
    v
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(v: Value) -> Object {
        Object::from_value(v).unwrap()
    }

    #[test]
    fn endpoints_are_mirrored_to_slices() {
        let many: Vec<Value> = (0..1001).map(|i| json!({"ip": format!("10.1.{}.{}", i / 250, i % 250)})).collect();
        let ports = json!([{"name": "p", "port": 80, "protocol": "TCP"}]);
        let e = object(json!({
            "metadata": {"name": "s", "uid": "u", "labels": {"a": "b"}, "annotations": {
                "x": "y", "kubectl.kubernetes.io/last-applied-configuration": "{}"}},
            "subsets": [
                {"addresses": [{"ip": "10.0.0.1", "nodeName": "n", "hostname": ""}, {"ip": "fd00::1"}, {"ip": "none"}],
                    "notReadyAddresses": [{"ip": "10.0.0.2"}], "ports": ports},
                {"addresses": [{"ip": "10.0.0.3"}], "ports": ports},
                {"addresses": many},
            ],
        }));
        let m = mirrored(&e);
        let d = &m.desired;
        assert_eq!((d.groups.len(), m.invalid, m.skipped), (3, 1, 1), "{m:?}");
        assert_eq!(d.metadata["annotations"], json!({"x": "y"}));
        assert_eq!((&d.metadata["labels"]["a"], &d.metadata["labels"][MANAGED_BY]), (&json!("b"), &json!(COMPONENT)));
        assert_eq!(
            Value::from(d.groups[0].endpoints.clone()),
            json!([
                {"addresses": ["10.0.0.1"], "conditions": {"ready": true}, "nodeName": "n"},
                {"addresses": ["10.0.0.2"], "conditions": {"ready": false}},
                {"addresses": ["10.0.0.3"], "conditions": {"ready": true}},
            ])
        );
        assert_eq!((d.groups[1].address_type, d.groups[2].endpoints.len()), ("IPv6", 1000));
        let subsets: Vec<Value> =
            (1..=200).map(|i| json!({"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": i}]})).collect();
        let m = mirrored(&object(json!({"metadata": {"name": "s"}, "subsets": subsets})));
        assert_eq!((m.desired.groups.len(), m.skipped), (MAX_SLICES, 100));
        assert!(is_mirrored(&e));
        assert!(!is_mirrored(&object(json!({"metadata": {"name": "s", "labels": {SKIP: "true"}}}))));
        assert!(!is_mirrored(&object(json!({"metadata": {"name": "s", "annotations": {LEADER: "{}"}}}))));
    }
}
