//! NodeMetrics: what a node uses.

use super::{amounts, metrics, not_found};
use crate::Config;
use crate::plain::Ruled;
use crate::table::Row;
use async_trait::async_trait;
use meta::{Object, Status};
use registry::{Env, Function, ListOptions, Request, Selector, WriteOptions};
use std::sync::Arc;
use store::{Entry, Key, Str};
use usage::Usage;

const NODES: &str = "nodes";

pub fn row(config: &Config) -> Row {
    Row::computed(Ruled::new(|_, _| {}), NodeMetrics(config.usage.clone()))
}

pub struct NodeMetrics(Arc<Usage>);

impl NodeMetrics {
    fn find(&self, entry: &Entry, now: &str) -> Option<Object> {
        let rate = self.0.node(&entry.key.name)?;
        Some(metrics("NodeMetrics", entry, &rate, now, "usage", amounts(&rate)))
    }
}

#[async_trait]
impl Function for NodeMetrics {
    async fn create(&self, _: Env<'_>, request: &Request, _: Object, _: &WriteOptions) -> Result<Object, Status> {
        Err(Status::method_not_supported(&request.group_resource(), "create"))
    }

    async fn get(&self, env: Env<'_>, request: &Request) -> Result<Object, Status> {
        let now = meta::time::format(env.registry.clock.now());
        let entry = env.registry.find(&Key::new(NODES, "", &request.name))?;
        entry.and_then(|e| self.find(&e, &now)).ok_or_else(|| not_found("NodeMetrics", &request.name))
    }

    async fn list(&self, env: Env<'_>, request: &Request, options: &ListOptions) -> Result<Vec<Object>, Status> {
        let now = meta::time::format(env.registry.clock.now());
        let selector = Selector::new(&request.resource, options);
        let (snapshot, resource) = (env.registry.store.snapshot(), Str::from(NODES));
        let nodes = snapshot.range(&resource, None, None).filter(|e| selector.matches(e));
        Ok(nodes.filter_map(|e| self.find(e, &now)).collect())
    }
}
