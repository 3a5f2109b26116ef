//! Reads the usage of all nodes and their pods from kubelets (metrics-server's `pkg/scraper`).
//!
//! Requests go over the connection and with the identity that `log` uses. Invariant: a kubelet that is slow or reports too much
//! affects only its own node, which has no usage then.

use crate::Server;
use crate::connect::NodeConnector;
use crate::server_kinds::NODES;
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Limited};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use store::Str;
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval, timeout};
use usage::{RESOLUTION, Usage};

/// Time limit of a request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of requests at a time.
const CONCURRENT: usize = 64;
/// Maximum size of a report.
const MAX_REPORT: usize = 16 << 20;
/// The user under whom connections to kubelets are counted.
const USER: &str = "system:apiserver";

/// Records the usage of all nodes every [`RESOLUTION`].
pub async fn run(server: Arc<Server>, usage: Arc<Usage>) {
    let mut ticks = interval(RESOLUTION.try_into().unwrap_or(TIMEOUT));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let permits = Arc::new(Semaphore::new(CONCURRENT));
    let mut requests = JoinSet::new();
    let mut running: BTreeMap<Str, AbortHandle> = BTreeMap::new();
    loop {
        ticks.tick().await;
        while requests.try_join_next().is_some() {}
        running.retain(|_, request| !request.is_finished());
        let Some(connector) = server.connector.read().clone() else { continue };
        let nodes: Vec<Str> = {
            let (snapshot, resource) = (server.registry.store.snapshot(), Str::from(NODES));
            snapshot.range(&resource, None, None).map(|e| e.key.name.clone()).collect()
        };
        usage.retain(|node| nodes.binary_search_by(|n| (**n).cmp(node)).is_ok());
        for node in nodes {
            if running.contains_key(&node) {
                continue;
            }
            let (server, usage, connector) = (server.clone(), usage.clone(), connector.clone());
            let (permits, name) = (permits.clone(), node.clone());
            let request = requests.spawn(async move {
                let _permit = permits.acquire_owned().await;
                let report = timeout(TIMEOUT, read(&*connector, &node)).await;
                match report.unwrap_or_else(|_| Err("the kubelet does not answer in time".into())) {
                    Ok(text) => usage.record(&node, usage::parse(&text, server.registry.clock.now())),
                    Err(why) => {
                        tracing::debug!("reading the usage of node {node}: {why}");
                        usage.forget(&node);
                    }
                }
            });
            running.insert(name, request);
        }
    }
}

/// Reads the metrics of a kubelet.
async fn read(connector: &dyn NodeConnector, node: &str) -> Result<String, String> {
    let request = Request::get("/metrics/resource").body(Bytes::new()).map_err(|e| e.to_string())?;
    let response = connector.connect(node, USER, request).await.map_err(|e| e.to_string())?;
    if response.status() != 200 {
        return Err(format!("the kubelet answers with status {}", response.status()));
    }
    let body = Limited::new(response.into_body(), MAX_REPORT).collect().await.map_err(|e| e.to_string())?;
    String::from_utf8(body.to_bytes().into()).map_err(|e| e.to_string())
}
