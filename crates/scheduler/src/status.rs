//! What the scheduler writes into the status of pods.

use crate::pod::Pod;
use client::{ApiResource, Client, Error, Patch, WriteOptions};
use k8s_openapi::api::core::v1 as core;
use meta::{Clock, Object};
use serde_json::{Value, json};

/// What happens to `status.nominatedNodeName`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NominatedNode<'a> {
    Keep,
    Clear,
    Set(&'a str),
}

/// A condition of a pod.
pub struct Condition<'a> {
    pub r#type: &'a str,
    pub status: &'a str,
    pub reason: &'a str,
    pub message: &'a str,
}

impl Condition<'_> {
    /// The condition as it is written; none if the pod has it already.
    fn value(&self, pod: &Pod, status: &Object, clock: &dyn Clock) -> Option<Value> {
        let conditions = status.at(&["status", "conditions"]).and_then(Value::as_array);
        let old = conditions.and_then(|c| c.iter().find(|c| c["type"] == self.r#type));
        let same = |key: &str, value: &str| old.is_some_and(|o| o[key] == value);
        if same("status", self.status) && same("reason", self.reason) && same("message", self.message) {
            return None;
        }
        let mut condition =
            json!({"type": self.r#type, "status": self.status, "reason": self.reason, "message": self.message});
        if pod.meta.generation > 0 {
            condition["observedGeneration"] = pod.meta.generation.into();
        }
        condition["lastTransitionTime"] = match old {
            Some(o) if o["status"] == self.status && o["lastTransitionTime"].is_string() => {
                o["lastTransitionTime"].clone()
            }
            _ => meta::time::format(clock.now()).into(),
        };
        Some(condition)
    }
}

/// Writes a condition and the nominated node, if they differ from those of `pod`.
pub async fn write(
    client: &Client,
    clock: &dyn Clock,
    pod: &Pod,
    condition: Option<Condition<'_>>,
    nominated: NominatedNode<'_>,
) -> Result<(), Error> {
    let now: Object = pod.decode()?;
    let mut status = serde_json::Map::new();
    if let Some(condition) = condition.and_then(|c| c.value(pod, &now, clock)) {
        let conditions = now.at(&["status", "conditions"]).and_then(Value::as_array).into_iter().flatten();
        status = client::condition_patch(conditions.filter_map(|c| c["type"].as_str()), condition);
    }
    match nominated {
        NominatedNode::Clear if !pod.view.nominated_node.is_empty() => {
            status.insert("nominatedNodeName".into(), Value::Null);
        }
        NominatedNode::Set(node) if *pod.view.nominated_node != *node => {
            status.insert("nominatedNodeName".into(), node.into());
        }
        _ => {}
    }
    if status.is_empty() {
        return Ok(());
    }
    let patch = Patch::Strategic(json!({"metadata": {"uid": &*pod.meta.uid}, "status": status}));
    let pods = client.dynamic(&ApiResource::typed::<core::Pod>()).namespace(&pod.meta.namespace);
    pods.patch_status(&pod.meta.name, &WriteOptions::default(), &patch).await.map(|_| ())
}
