//! `Endpoints`, the older form of endpoint slices (upstream `pkg/controller/endpoint`): one object per service.

use crate::context::{Context, Error, object};
use crate::service_pods::{Port, Service, Watch};
use client::{ApiResource, DeleteOptions, Entry, Informer, Key, Outcome, Scope, WriteOptions, optional};
use meta::{Map, Object, Value};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;

const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const MANAGER: &str = "endpoint-controller";
const HEADLESS: &str = "service.kubernetes.io/headless";
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
/// Addresses beyond these are left out.
const MAX: usize = 1000;

fn resource() -> ApiResource {
    ApiResource::of::<k8s_openapi::api::core::v1::Endpoints>()
}

/// Runs until shutdown.
pub async fn run(context: Context) {
    let watch = Watch::new(&context);
    let held: Informer<()> = context.informers.informer(&resource(), &Scope::default());
    let queue = watch.queue.clone();
    held.on_change(move |c| queue.add(c.key()));
    watch.synced().await;
    held.synced().await;
    let (w, c) = (watch.clone(), context.clone());
    watch
        .work("endpoint", &context, move |key| {
            let (watch, held, context) = (w.clone(), held.clone(), c.clone());
            async move { reconcile(&watch, &held, &context, key).await }
        })
        .await;
}

async fn reconcile(watch: &Watch, held: &Informer<()>, context: &Context, key: Key) -> Result<Outcome, Error> {
    let api = context.client.dynamic(&resource()).namespace(&key.namespace);
    let old = held.get(&key);
    let Some(service) = watch.services.get(&key) else {
        // Only what this controller made: leader election and people write Endpoints of their own.
        if let Some(o) = old.filter(|o| o.meta.label(MANAGED_BY) == Some(MANAGER)) {
            optional(api.delete(&key.name, &DeleteOptions::uid(&o.meta.uid)).await)?;
        }
        return Ok(Outcome::Done);
    };
    let Some(selector) = service.view.selector() else { return Ok(Outcome::Done) };
    let (subsets, cut) = subsets(&service, &watch.behind(&service, &selector));
    let mut next = match &old {
        Some(e) => object(&resource(), e)?,
        None => {
            let mut o = Object::new(&resource().gvk());
            o.set_name(&key.name);
            o.set_namespace(&key.namespace);
            o
        }
    };
    let before = next.clone();
    let mut labels: Map<String, Value> =
        service.meta.labels.iter().map(|(k, v)| (k.clone(), v.as_str().into())).collect();
    labels.insert(MANAGED_BY.into(), MANAGER.into());
    if service.view.is_headless() {
        labels.insert(HEADLESS.into(), "".into());
    }
    next.set(&["metadata", "labels"], labels);
    if cut {
        next.set_annotation(OVER_CAPACITY, "truncated");
    } else {
        next.remove(&["metadata", "annotations", OVER_CAPACITY]);
    }
    if subsets.is_empty() {
        next.remove(&["subsets"]);
    } else {
        next.set(&["subsets"], subsets);
    }
    if next == before {
        return Ok(Outcome::Done);
    }
    let written = match old {
        Some(_) => api.update(&key.name, &WriteOptions::default(), &next).await,
        None => api.create(&WriteOptions::default(), &next).await,
    };
    match written {
        Err(e) if e.is_namespace_terminating() => Ok(Outcome::Done),
        Err(e) => Err(e.into()),
        Ok(_) => Ok(Outcome::Done),
    }
}

/// The addresses by ports, and whether some were left out.
fn subsets(service: &Entry<Service>, pods: &[Arc<crate::views::PodEntry>]) -> (Vec<Value>, bool) {
    let mut by_ports: BTreeMap<Vec<Port>, (Vec<Value>, Vec<Value>)> = BTreeMap::new();
    let mut n = 0;
    let tolerant = service.view.spec.publish_not_ready_addresses;
    for p in pods.iter().filter(|p| tolerant || !p.meta.is_deleting()) {
        n += 1;
        if n > MAX {
            continue;
        }
        let spec = &p.view.spec;
        let mut address = json!({
            "ip": &*p.view.status.pod_ip,
            "targetRef": {"kind": "Pod", "namespace": &*p.meta.namespace, "name": &*p.meta.name, "uid": &*p.meta.uid},
        });
        if !spec.node_name.is_empty() {
            address["nodeName"] = (&*spec.node_name).into();
        }
        if !spec.hostname.is_empty() && *spec.subdomain == *service.meta.name {
            address["hostname"] = (&*spec.hostname).into();
        }
        let ports = service.view.ports(&p.view);
        if ports.is_empty() && !service.view.is_headless() {
            continue;
        }
        let (ready, waiting) = by_ports.entry(ports).or_default();
        if tolerant || p.view.is_ready() { ready.push(address) } else { waiting.push(address) }
    }
    let subsets = by_ports.into_iter().map(|(ports, (ready, waiting))| {
        let mut s = Map::new();
        let by_ip = |mut v: Vec<Value>| {
            v.sort_by(|a, b| a["ip"].as_str().cmp(&b["ip"].as_str()));
            v
        };
        if !ready.is_empty() {
            s.insert("addresses".into(), by_ip(ready).into());
        }
        if !waiting.is_empty() {
            s.insert("notReadyAddresses".into(), by_ip(waiting).into());
        }
        let ports = ports.iter().map(|p| {
            let mut v = json!({"port": p.port, "protocol": p.protocol});
            if !p.name.is_empty() {
                v["name"] = p.name.as_str().into();
            }
            if let Some(a) = &p.app_protocol {
                v["appProtocol"] = a.as_str().into();
            }
            v
        });
        let ports: Vec<Value> = ports.collect();
        if !ports.is_empty() {
            s.insert("ports".into(), ports.into());
        }
        Value::Object(s)
    });
    (subsets.collect(), n > MAX)
}
