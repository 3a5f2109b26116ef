//! ComponentStatus: the health of the control plane components at the time of the request.

use crate::Config;
use crate::plain::Ruled;
use crate::table::Row;
use async_trait::async_trait;
use kinds::columns::{Cell, display, list_at};
use meta::{GroupResource, Object, Status, Value};
use registry::{Env, Function, ListOptions, Request, WriteOptions};
use serde_json::json;

pub fn row(_: &Config) -> Row {
    Row::computed(Ruled::new(|_, _| {}).with_cells(cells), ComponentStatuses)
}

pub struct ComponentStatuses;

/// Returns the status of the components that upstream lists: scheduler, controllers and store.
fn component_statuses(env: Env<'_>) -> Vec<Object> {
    let runs = |name: &str| env.registry.supervisor.is_healthy(name);
    let status_of = |name: &str, healthy: bool| {
        let (status, message) = if healthy { ("True", "ok") } else { ("False", "not running") };
        Object::from_value(json!({"kind": "ComponentStatus", "apiVersion": "v1", "metadata": {"name": name},
            "conditions": [{"type": "Healthy", "status": status, "message": message}]}))
        .unwrap_or_default()
    };
    let [scheduler, controllers] = ["scheduler", "controller-manager"].map(|name| status_of(name, runs(name)));
    vec![scheduler, controllers, status_of("etcd-0", env.registry.store.is_healthy())]
}

#[async_trait]
impl Function for ComponentStatuses {
    async fn create(&self, _: Env<'_>, request: &Request, _: Object, _: &WriteOptions) -> Result<Object, Status> {
        Err(Status::method_not_supported(&request.group_resource(), "create"))
    }

    async fn get(&self, env: Env<'_>, request: &Request) -> Result<Object, Status> {
        let found = component_statuses(env).into_iter().find(|o| o.name() == request.name);
        // Upstream names the kind here, not the resource.
        let named = GroupResource { group: String::new(), resource: "componentstatus".into() };
        found.ok_or_else(|| Status::not_found(&named, &request.name))
    }

    async fn list(&self, env: Env<'_>, _: &Request, options: &ListOptions) -> Result<Vec<Object>, Status> {
        let selects = |o: &Object| {
            options.labels.matches(|_| None) && options.fields.matches(|f| (f == "metadata.name").then(|| o.name()))
        };
        Ok(component_statuses(env).into_iter().filter(selects).collect())
    }
}

/// Evaluates the table cell functions of the kind.
fn cells(cell: &Cell<'_>) -> Option<Value> {
    let o = cell.object;
    Some(match cell.function {
        "componentStatus" => match o.get("conditions").and_then(Value::as_array).and_then(|c| c.first()) {
            Some(c) if c["status"] == "True" => "Healthy".into(),
            Some(c) if c["status"] == "False" => "Unhealthy".into(),
            _ => "Unknown".into(),
        },
        "componentMessage" => {
            list_at(o, &["conditions"]).first().map(|c| display(&c["message"])).unwrap_or_default().into()
        }
        "componentError" => {
            list_at(o, &["conditions"]).first().map(|c| display(&c["error"])).unwrap_or_default().into()
        }
        _ => return None,
    })
}
