//! Admission through the HTTP API.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod configured;
mod hook;
mod limits;
mod optional;
mod plugins;
mod pod_preset;
mod pod_security;
mod policies;
mod priorities;
mod quota;
mod webhooks;

use admission::Configuration;
use meta::{Clock, Value};
use serde_json::json;
use std::sync::Arc;
use testkit::{Cluster, VirtualClock};

/// Sends JSON as an administrator; returns the warnings too.
pub async fn call(c: &Cluster, method: &str, path: &str, body: Value) -> (u16, Value, Vec<String>) {
    let patch = "application/merge-patch+json";
    let media = if method == "PATCH" { patch } else { "application/json" };
    let bytes = if body.is_null() { bytes::Bytes::new() } else { body.to_string().into() };
    let r = c.request(method, path, &[("content-type", media)], bytes).await;
    let code = r.status().as_u16();
    let text = |v: &http::HeaderValue| {
        let quoted = v.to_str().unwrap().trim_start_matches("299 - ").to_owned();
        serde_json::from_str::<String>(&quoted).unwrap()
    };
    let warnings = r.headers().get_all("warning").iter().map(text).collect();
    let body = r.into_body().collect().await.unwrap();
    (code, serde_json::from_slice(&body).unwrap_or_default(), warnings)
}

/// A server with a configured plugin.
pub async fn configured_cluster(plugin: &str, config: Value) -> Cluster {
    let configuration = Configuration::default().with(plugin, config);
    let chain = admission::configured(&[plugin.to_owned()], &[], &configuration).unwrap();
    Cluster::admitting(1, chain.open(&clock()).await.unwrap()).await
}

pub fn clock() -> Arc<dyn Clock> {
    VirtualClock::new()
}

pub fn config_map(name: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"a": "1"}})
}

pub const MAPS: &str = "/api/v1/namespaces/golden/configmaps";
