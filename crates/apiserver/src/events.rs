//! Events that the server writes: what happened to an object during a request and its response does not report.

use crate::server_kinds::{EVENT_KIND, EVENTS};
use admission::Event;
use meta::{Object, time};
use registry::{AdmitAll, Registry, Request, WriteOptions};
use serde_json::json;
use std::sync::Arc;

/// Writes a warning event in the background.
pub(crate) fn write(registry: &Arc<Registry>, e: &Event<'_>) {
    let now = registry.clock.now();
    let about = e.about;
    let name = format!("{}.{:016x}", about.name(), now.as_nanosecond());
    let at = time::format(now);
    let event = json!({"apiVersion": "v1", "kind": EVENT_KIND,
        "metadata": {"name": name, "namespace": about.namespace()},
        "involvedObject": {"apiVersion": about.api_version(), "kind": about.kind(), "namespace": about.namespace(),
            "name": about.name(), "uid": about.uid()},
        "type": "Warning", "reason": e.reason, "message": e.message, "source": {"component": e.component},
        "reportingComponent": e.component, "firstTimestamp": at, "lastTimestamp": at, "count": 1});
    let row = registry.rows().stored("", EVENTS).cloned();
    let (Some(row), Some(event)) = (row, Object::from_value(event)) else { return };
    let registry = registry.clone();
    tokio::spawn(async move {
        let request = Request::own(row, "", event.namespace(), event.name());
        let options = WriteOptions::by("kube-apiserver");
        if let Err(s) = registry.create(&request, event, &options, &AdmitAll).await {
            tracing::warn!("an event was not written: {s}");
        }
    });
}
