//! `metrics.k8s.io`: what nodes and pods use, computed from what [`usage::Usage`] holds at the time of the request (metrics-server).

mod node_metrics;
mod pod_metrics;

use crate::RuntimeConfig;
use meta::{GroupResource, Map, Object, Quantity, Status, Value, time};
use registry::Rows;
use serde_json::json;
use store::Entry;
use usage::Rate;

kinds! {
    node_metrics,
    pod_metrics,
}

const GROUP: &str = "metrics.k8s.io";
const VERSION: &str = "v1beta1";

/// Serves the group unless a setting turns it off.
pub fn serve(config: RuntimeConfig) -> RuntimeConfig {
    config.by_default(GROUP, VERSION)
}

/// Whether the group is served.
pub fn is_served(rows: &Rows) -> bool {
    rows.iter().any(|r| *r.kind.group == *GROUP)
}

/// The amounts of a rate.
fn amounts(rate: &Rate) -> Value {
    let whole = |v: u64| i64::try_from(v).unwrap_or(i64::MAX);
    let (cpu, memory) = (Quantity::from_nano(whole(rate.cpu)), Quantity::binary(whole(rate.memory)));
    json!({"cpu": cpu.to_string(), "memory": memory.to_string()})
}

/// The metrics of a stored node or pod, with its name and labels. `rate` has the end of the window and its length.
fn metrics(kind: &str, entry: &Entry, rate: &Rate, now: &str, field: &str, usage: Value) -> Object {
    let key = &entry.key;
    let mut metadata = json!({"name": &*key.name, "creationTimestamp": now});
    if !key.namespace.is_empty() {
        metadata["namespace"] = (*key.namespace).into();
    }
    let labels: Map<String, Value> =
        entry.index().labels.iter().map(|(k, v)| (k.to_string(), Value::from(&**v))).collect();
    if !labels.is_empty() {
        metadata["labels"] = labels.into();
    }
    let nanoseconds = i64::try_from(rate.window.as_nanos()).unwrap_or(i64::MAX);
    let object = json!({
        "kind": kind, "apiVersion": format!("{GROUP}/{VERSION}"), "metadata": metadata, "timestamp": time::format(rate.at),
        "window": time::go_duration(nanoseconds), field: usage,
    });
    Object::from_value(object).unwrap_or_default()
}

/// The error for metrics that are unknown. It names the kind, as metrics-server's does.
fn not_found(kind: &str, name: &str) -> Status {
    Status::not_found(&GroupResource { group: GROUP.into(), resource: kind.to_lowercase() }, name)
}
