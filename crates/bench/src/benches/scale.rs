//! How long controllers take with many objects: a Deployment that is scaled from 0, and a namespace that is deleted.
//!
//! The pods are on nodes without agents; the benchmark reports them as running and ready, as their kubelets would.

use crate::benches::run::Pod;
use crate::context::{Context, Target, call};
use crate::load::{Load, drive};
use crate::{Bench, Error, Outcome, Row, objects};
use async_trait::async_trait;
use bytes::Bytes;
use client::client::{JSON, request};
use client::{ApiResource, WatchEvent, WatchOptions};
use futures::{StreamExt, stream};
use http::Method;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout_at};

/// Scales a Deployment from 0.
pub struct Scale;

/// Deletes a namespace.
pub struct DeleteNamespace;

const PODS: u64 = 5_000;
/// Pods per node.
const SHARE: u64 = 500;
const OBJECTS: u64 = 10_000;
/// Status writes at a time.
const REPORTS: usize = 32;
const PATIENCE: Duration = Duration::from_secs(300);
const STRATEGIC: &str = "application/strategic-merge-patch+json";

/// When the pods of a namespace were there.
struct Times {
    created: Instant,
    running: Instant,
}

/// Follows the pods of a namespace, reports the bound ones as running, and returns when `count` of them run.
async fn run_pods(target: &Target, namespace: &str, count: usize) -> Result<Times, Error> {
    let pods = ApiResource::named("", "v1", "pods", "Pod", true);
    let client = target.separate_client().await?;
    let api = client.dynamic(&pods).namespace(namespace);
    let version = api.list_raw(&client::ListOptions::default()).await?.resource_version;
    let options = WatchOptions { resource_version: version, ..WatchOptions::default() };
    let mut watch = api.watch_raw(&options).await?;
    let (bound, queue) = mpsc::unbounded_channel::<String>();
    let base = format!("/api/v1/namespaces/{namespace}/pods");
    let reports = tokio::spawn(async move {
        let names = stream::unfold(queue, |mut q| async { q.recv().await.map(|name| (name, q)) });
        names
            .for_each_concurrent(REPORTS, |name| {
                let (client, path) = (client.clone(), format!("{base}/{name}/status"));
                async move {
                    let body = json!({"status": {"phase": "Running",
                        "conditions": [{"type": "Ready", "status": "True"}]}});
                    let media = Some((STRATEGIC, body.to_string().into_bytes()));
                    if let Ok(r) = request(Method::PATCH, &path, JSON, media) {
                        // A pod that is not reported is missed at the end.
                        let _ = client.bytes(r).await;
                    }
                }
            })
            .await;
    });
    let end = Instant::now() + PATIENCE;
    let (mut seen, mut running) = (BTreeSet::new(), BTreeSet::new());
    let mut created = None;
    let result = loop {
        let late = || Error::Late { what: format!("pod {} of {count} to run", running.len() + 1), limit: PATIENCE };
        let event = match timeout_at(end, watch.next()).await {
            Err(_) | Ok(None) => break Err(late()),
            Ok(Some(event)) => event,
        };
        let pod: Pod = match event {
            Ok(WatchEvent::Added(b) | WatchEvent::Modified(b)) => match serde_json::from_slice(&b) {
                Ok(pod) => pod,
                Err(e) => break Err(Error::Answer(e.to_string())),
            },
            Ok(_) => continue,
            Err(e) => break Err(e.into()),
        };
        let name = pod.metadata.name;
        if seen.insert(name.clone()) && seen.len() == count {
            created = Some(Instant::now());
        }
        if pod.status.phase == "Running" {
            running.insert(name);
            if let (true, Some(created)) = (running.len() >= count, created) {
                break Ok(Times { created, running: Instant::now() });
            }
        } else if !pod.spec.node_name.is_empty() {
            let _ = bound.send(name);
        }
    };
    reports.abort();
    result
}

#[async_trait]
impl Bench for Scale {
    fn name(&self) -> &'static str {
        "scale"
    }

    fn about(&self) -> &'static str {
        "A Deployment scaled from 0: until all pods exist, run, and are available"
    }

    async fn run(&self, cx: &mut Context) -> Result<Outcome, Error> {
        let namespace = cx.enter().await?;
        let count = cx.options.count_or(PODS);
        cx.add_nodes(&namespace, count.div_ceil(SHARE)).await?;
        let target = cx.target()?.clone();
        let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments");
        crate::context::post(&target.client, &path, &objects::scaled_deployment("d", &namespace)).await?;
        let path = format!("{path}/d");
        let started = Instant::now();
        let scale = json!({"spec": {"replicas": count}}).to_string().into_bytes();
        let scale = request(Method::PATCH, &path, JSON, Some(("application/merge-patch+json", scale)))?;
        let (times, scaled) = tokio::join!(run_pods(&target, &namespace, count as usize), target.client.bytes(scale));
        scaled?;
        let times = times?;
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            let d: Value = target.client.get(&path).await?;
            if d["status"]["availableReplicas"].as_u64() == Some(count) {
                break;
            }
            sleep(Duration::from_millis(20)).await;
        }
        let row = |name: &str, at: Instant| {
            Row::value(format!("{}-{name}", self.name()), at.duration_since(started).as_secs_f64(), "s")
        };
        Ok(Outcome::Measured(vec![
            row("created", times.created),
            row("running", times.running),
            row("available", Instant::now()),
        ]))
    }
}

#[async_trait]
impl Bench for DeleteNamespace {
    fn name(&self) -> &'static str {
        "delete-namespace"
    }

    fn about(&self) -> &'static str {
        "A namespace with many config maps, from its deletion until it is gone"
    }

    async fn run(&self, cx: &mut Context) -> Result<Outcome, Error> {
        let namespace = cx.enter().await?;
        let count = cx.options.count_or(OBJECTS);
        let load = Load { connections: cx.options.connections_or(64), count, duration: Duration::from_secs(120) };
        let path = format!("/api/v1/namespaces/{namespace}/configmaps");
        let made = drive(cx, &load, move |t| {
            let body = objects::config_map(&format!("c-{}-{}", t.worker, t.number)).to_string();
            call(Method::POST, &path, Some((JSON, Bytes::from(body))))
        })
        .await?;
        let client = cx.target()?.client.clone();
        let path = format!("/api/v1/namespaces/{namespace}");
        let started = Instant::now();
        client.bytes(request(Method::DELETE, &path, JSON, None)?).await?;
        while client::optional(client.get::<Value>(&path).await)?.is_some() {
            if started.elapsed() > PATIENCE {
                return Err(Error::Late { what: "the end of the namespace".into(), limit: PATIENCE });
            }
            sleep(Duration::from_millis(20)).await;
        }
        let row =
            Row::value(self.name(), started.elapsed().as_secs_f64(), "s").with_errors(made.errors, made.first_error);
        Ok(Outcome::Measured(vec![row]))
    }
}
