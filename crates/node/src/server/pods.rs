//! `/pods`: the pods bound to this node, from the API, and its static pods in place of their mirror pods; `/runningpods/`: the pods of the runtime.

use std::collections::BTreeMap;

use http::Response;
use runtime::PodState;
use serde_json::{Value, json};

use super::usage::running_by_pod;
use super::{Body, Error, Handle, json};
use crate::pod::container::{POD_NAME, POD_NAMESPACE, POD_UID};
use crate::static_pods::MIRROR;

fn list(items: Vec<Value>) -> Response<Body> {
    json(&json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}))
}

pub(super) fn bound(handle: &Handle) -> Result<Response<Body>, Error> {
    let (mut items, mut mirrors) = (Vec::new(), BTreeMap::new());
    if let Some(pods) = handle.known.pods.read().clone() {
        for entry in pods.cache().entries() {
            let mut pod: Value = entry.decode().map_err(|e| Error::Internal(e.to_string()))?;
            if pod["metadata"]["annotations"][MIRROR].is_string() {
                mirrors.insert(name_of(&pod), pod["status"].take());
                continue;
            }
            // Items of a list have no kind of their own.
            if let Some(fields) = pod.as_object_mut() {
                fields.remove("kind");
                fields.remove("apiVersion");
            }
            items.push(pod);
        }
    }
    for pod in handle.known.static_pods.running().into_values() {
        let mut pod = serde_json::to_value(&*pod).map_err(|e| Error::Internal(e.to_string()))?;
        if let Some(status) = mirrors.remove(&name_of(&pod)) {
            pod["status"] = status;
        }
        items.push(pod);
    }
    Ok(list(items))
}

fn name_of(pod: &Value) -> (String, String) {
    let text = |field: &str| pod["metadata"][field].as_str().unwrap_or_default().to_owned();
    (text("namespace"), text("name"))
}

pub(super) async fn running(handle: &Handle) -> Result<Response<Body>, Error> {
    let runtime = &handle.options.runtime;
    let mut containers = running_by_pod(runtime.list_containers().await?);
    let mut items = Vec::new();
    for pod in runtime.list_pods().await?.into_iter().filter(|p| p.state == PodState::Ready) {
        let label = |name: &str| pod.config.labels.get(name).cloned().unwrap_or_default();
        let inside = containers.remove(&pod.id).unwrap_or_default();
        let inside: Vec<Value> =
            inside.iter().map(|c| json!({"name": c.name, "image": c.image, "resources": {}})).collect();
        items.push(json!({
            "metadata": {"name": label(POD_NAME), "namespace": label(POD_NAMESPACE), "uid": label(POD_UID)},
            "spec": {"containers": inside}, "status": {},
        }));
    }
    Ok(list(items))
}
