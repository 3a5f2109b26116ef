//! PodMetrics: what the containers of a pod use.

use super::{amounts, metrics, not_found};
use crate::Config;
use crate::plain::Ruled;
use crate::table::Row;
use async_trait::async_trait;
use kinds::columns::{Cell, list_at};
use meta::quantity::Format;
use meta::{Object, Quantity, Status, Value};
use registry::{Env, Function, ListOptions, Request, Selector, WriteOptions};
use serde_json::json;
use std::sync::Arc;
use store::{Entry, Key, Str};
use usage::Usage;

const PODS: &str = "pods";

pub fn row(config: &Config) -> Row {
    Row::computed(Ruled::new(|_, _| {}).with_cells(cells), PodMetrics(config.usage.clone()))
}

pub struct PodMetrics(Arc<Usage>);

impl PodMetrics {
    /// The metrics of a pod, from the report of its own node.
    fn find(&self, entry: &Entry, now: &str) -> Option<Object> {
        let (key, index) = (&entry.key, entry.index());
        let (_, node) = index.fields.iter().find(|(field, _)| **field == *"spec.nodeName")?;
        let rates = self.0.pod(node, &key.namespace, &key.name)?;
        let (_, oldest) = rates.iter().min_by_key(|(_, rate)| rate.at)?;
        let usage: Vec<Value> =
            rates.iter().map(|(name, rate)| json!({"name": &**name, "usage": amounts(rate)})).collect();
        Some(metrics("PodMetrics", entry, oldest, now, "containers", usage.into()))
    }
}

#[async_trait]
impl Function for PodMetrics {
    async fn create(&self, _: Env<'_>, request: &Request, _: Object, _: &WriteOptions) -> Result<Object, Status> {
        Err(Status::method_not_supported(&request.group_resource(), "create"))
    }

    async fn get(&self, env: Env<'_>, request: &Request) -> Result<Object, Status> {
        let now = meta::time::format(env.registry.clock.now());
        let entry = env.registry.find(&Key::new(PODS, &request.namespace, &request.name))?;
        let name = || format!("{}/{}", request.namespace, request.name);
        entry.and_then(|e| self.find(&e, &now)).ok_or_else(|| not_found("PodMetrics", &name()))
    }

    async fn list(&self, env: Env<'_>, request: &Request, options: &ListOptions) -> Result<Vec<Object>, Status> {
        let now = meta::time::format(env.registry.clock.now());
        let selector = Selector::new(&request.resource, options);
        let (snapshot, resource) = (env.registry.store.snapshot(), Str::from(PODS));
        let namespace = Some(&*request.namespace).filter(|n| !n.is_empty());
        let pods = snapshot.range(&resource, namespace, None).filter(|e| selector.matches(e));
        Ok(pods.filter_map(|e| self.find(e, &now)).collect())
    }
}

/// Evaluates the table cell functions of the kind.
fn cells(cell: &Cell<'_>) -> Option<Value> {
    let [resource] = cell.arguments else { return None };
    if cell.function != "containersUsage" {
        return None;
    }
    let containers = list_at(cell.object, &["containers"]);
    let own = containers.iter().filter_map(|c| Quantity::parse(c["usage"][resource].as_str()?).ok());
    let format = if *resource == "memory" { Format::BinarySi } else { Format::DecimalSi };
    let sum = own.fold(Quantity::from_int(0), |a, b| a + b).in_format(format);
    Some(sum.to_string().into())
}
