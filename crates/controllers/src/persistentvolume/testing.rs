//! Claims and volumes for unit tests.

use super::view::{Claim, Class, Volume};
use client::Entry;
use client::informer::View;
use serde_json::{Value, json};
use std::sync::Arc;

fn merge(into: &mut Value, changes: Value) {
    match (into, changes) {
        (Value::Object(into), Value::Object(changes)) => {
            changes.into_iter().for_each(|(k, v)| merge(into.entry(k).or_insert(Value::Null), v));
        }
        (into, changes) => *into = changes,
    }
}

fn entry<V: View>(mut base: Value, changes: Value) -> Arc<Entry<V>> {
    merge(&mut base, changes);
    Arc::new(Entry::new(base.to_string().into()).unwrap())
}

/// The claim `ns/NAME` with the UID `uid-NAME`, for 1Gi, without a class.
pub fn claim(name: &str, changes: Value) -> Arc<Claim> {
    let base = json!({"metadata": {"namespace": "ns", "name": name, "uid": format!("uid-{name}"), "resourceVersion": "1"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Pending"}});
    entry(base, changes)
}

/// An available volume of 1Gi, without a class.
pub fn volume(name: &str, changes: Value) -> Arc<Volume> {
    let base = json!({"metadata": {"name": name, "uid": format!("uid-{name}"), "resourceVersion": "1"},
        "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "persistentVolumeReclaimPolicy": "Retain"},
        "status": {"phase": "Available"}});
    entry(base, changes)
}

/// A class with the provisioner `example.com/x`.
pub fn class(name: &str, changes: Value) -> Arc<Class> {
    let base = json!({"metadata": {"name": name, "uid": format!("uid-{name}")}, "provisioner": "example.com/x",
        "volumeBindingMode": "Immediate"});
    entry(base, changes)
}
