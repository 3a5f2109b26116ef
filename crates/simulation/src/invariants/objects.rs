//! Reads of stored objects that invariants share.

use meta::{LabelSelector, Quantity, Value};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use store::Key;

/// All objects after a commit.
pub type Objects = BTreeMap<Key, Arc<Value>>;

/// The objects of a resource.
pub fn in_resource<'a>(objects: &'a Objects, resource: &'a str) -> impl Iterator<Item = (&'a Key, &'a Arc<Value>)> {
    objects.range(Key::new(resource, "", "")..).take_while(move |(key, _)| *key.resource == *resource)
}

/// The objects of a resource that an object controls.
pub fn controlled_by<'a>(
    objects: &'a Objects,
    resource: &'a str,
    uid: &'a str,
) -> impl Iterator<Item = &'a Arc<Value>> {
    in_resource(objects, resource).map(|(_, o)| o).filter(move |o| controller(o).is_some_and(|c| c["uid"] == uid))
}

/// The reference to the controller of an object.
pub fn controller(object: &Value) -> Option<&Value> {
    object["metadata"]["ownerReferences"].as_array()?.iter().find(|o| o["controller"] == true)
}

/// The object that a resource has under a UID.
pub fn by_uid<'a>(objects: &'a Objects, resource: &'a str, uid: &str) -> Option<(&'a Key, &'a Arc<Value>)> {
    in_resource(objects, resource).find(|(_, o)| o["metadata"]["uid"] == uid)
}

pub fn uid(object: &Value) -> &str {
    object["metadata"]["uid"].as_str().unwrap_or_default()
}

pub fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

pub fn is_deleting(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

/// The condition of a type, if it is true.
pub fn true_condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|c| c["type"] == kind && c["status"] == "True")
}

/// Whether a pod has ended.
pub fn is_terminal(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

/// Whether a pod counts as a replica: it has not ended and is not being deleted.
pub fn is_active(pod: &Value) -> bool {
    !is_terminal(pod) && !is_deleting(pod)
}

pub fn is_ready(pod: &Value) -> bool {
    true_condition(pod, "Ready").is_some() && is_active(pod)
}

/// A count in an object; 0 if it is absent.
pub fn count(value: &Value) -> i64 {
    value.as_i64().unwrap_or(0)
}

/// A number, or a percentage of `total`, rounded up or down.
pub fn scaled(value: &Value, total: i64, round_up: bool) -> Option<i64> {
    if let Some(n) = value.as_i64() {
        return Some(n);
    }
    let percent: i64 = value.as_str()?.strip_suffix('%')?.parse().ok()?;
    let product = total.saturating_mul(percent);
    Some(if round_up { product.saturating_add(99).div_euclid(100) } else { product.div_euclid(100) })
}

/// Whether a label selector selects an object.
pub fn selects(selector: &Value, object: &Value) -> bool {
    let labels = &object["metadata"]["labels"];
    LabelSelector::from_value(Some(selector)).is_ok_and(|s| s.matches(|key| labels[key].as_str()))
}

/// The sum of the containers' requests of a resource, in thousandths.
pub fn requested(pod: &Value, resource: &str) -> i64 {
    let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
    containers.map(|c| milli(&c["resources"]["requests"][resource])).sum()
}

/// A quantity in thousandths.
pub fn milli(quantity: &Value) -> i64 {
    let parsed = quantity.as_str().and_then(|q| Quantity::parse(q).ok());
    parsed.map_or_else(|| quantity.as_i64().unwrap_or(0).saturating_mul(1000), |q| q.milli_value())
}

/// The values that something had recently.
#[derive(Debug, Default)]
pub struct Window(Vec<(Duration, i64)>);

impl Window {
    /// Records a value from now on.
    pub fn record(&mut self, at: Duration, value: i64) {
        if self.0.last().is_none_or(|(_, last)| *last != value) {
            self.0.push((at, value));
        }
        // What was true at the beginning of the window also counts.
        while self.0.len() > 1 && self.0[1].0 + super::RECENT < at {
            self.0.remove(0);
        }
    }

    fn recent(&self, at: Duration) -> impl Iterator<Item = i64> {
        let until = move |i: usize| self.0.get(i + 1).map_or(at, |(end, _)| *end);
        self.0.iter().enumerate().filter(move |(i, _)| until(*i) + super::RECENT >= at).map(|(_, (_, v))| *v)
    }

    pub fn maximum(&self, at: Duration) -> i64 {
        self.recent(at).max().unwrap_or(0)
    }

    pub fn minimum(&self, at: Duration) -> i64 {
        self.recent(at).min().unwrap_or(0)
    }
}
