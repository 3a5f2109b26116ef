//! A large cluster: pods on many nodes with all controllers running, the memory of the server, and a rolling update in it.
//!
//! The nodes have no agents; the benchmark renews their leases, reports bound pods as running and removes terminating ones, as their kubelets would.

use crate::context::{Context, Target, post};
use crate::{Bench, Error, Outcome, Row, objects};
use async_trait::async_trait;
use client::client::{JSON, request};
use client::{ApiResource, ListOptions, WatchEvent, WatchOptions};
use futures::future::try_join_all;
use futures::{StreamExt, stream};
use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

/// Pods on many nodes.
pub struct Large;

const PODS: u64 = 150_000;
/// Pods per node, and per Deployment.
const PER_NODE: u64 = 30;
const PER_DEPLOYMENT: u64 = 1_000;
/// Requests at a time for nodes, for their leases, and for pods.
const NODES_AT_A_TIME: usize = 16;
const LEASES_AT_A_TIME: usize = 4;
const PODS_AT_A_TIME: usize = 48;
/// How often each lease is renewed: nodes without a heartbeat for 50 s count as dead.
const RENEW: Duration = Duration::from_secs(20);
const PATIENCE: Duration = Duration::from_secs(1500);
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const MERGE: &str = "application/merge-patch+json";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

#[derive(Deserialize)]
struct Pod {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: String,
    #[serde(default)]
    deletion_timestamp: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    node_name: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Status {
    phase: String,
}

/// What a kubelet does next for a pod.
enum Work {
    Run(String),
    Remove(String),
}

/// Background tasks, which end with this value.
struct Tasks(Vec<tokio::task::JoinHandle<()>>);

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

async fn patch(client: &client::Client, path: &str, media: &str, body: &Value) -> Result<(), Error> {
    client.bytes(request(Method::PATCH, path, JSON, Some((media, body.to_string().into_bytes())))?).await?;
    Ok(())
}

/// Creates the lease of a node and its condition Ready.
async fn make_ready(client: &client::Client, name: &str) -> Result<(), Error> {
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "leaseTransitions": 0}});
    post(client, LEASES, &lease).await?;
    let conditions = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]}});
    patch(client, &format!("/api/v1/nodes/{name}/status"), STRATEGIC, &conditions).await
}

/// Renews all leases, evenly over the interval.
async fn renew(target: Target, names: Vec<String>) {
    let Ok(client) = target.separate_client().await else { return };
    for transition in 1.. {
        let started = Instant::now();
        let pause = RENEW / u32::try_from(names.len().div_ceil(LEASES_AT_A_TIME)).unwrap_or(1).max(1);
        for (number, part) in names.chunks(LEASES_AT_A_TIME).enumerate() {
            let renewals = part.iter().map(|name| {
                let (client, path) = (client.clone(), format!("{LEASES}/{name}"));
                // The node controller compares the times of renewals with each other, not with its clock.
                let at = meta::time::plus(jiff::Timestamp::UNIX_EPOCH, transition);
                let body = json!({"spec": {"renewTime": meta::time::format_micro(at)}});
                async move { drop(patch(&client, &path, MERGE, &body).await) }
            });
            futures::future::join_all(renewals).await;
            tokio::time::sleep_until(started + pause * (number as u32 + 1)).await;
        }
    }
}

/// Follows the pods of a namespace and does what kubelets do. `running` counts those that run.
async fn follow(target: Target, namespace: String, running: Arc<AtomicUsize>) -> Result<(), Error> {
    let client = target.separate_client().await?;
    let pods = ApiResource::named("", "v1", "pods", "Pod", true);
    let api = client.dynamic(&pods).namespace(&namespace);
    let mut version = api.list_raw(&ListOptions::default()).await?.resource_version;
    let (work, queue) = mpsc::unbounded_channel::<Work>();
    let base = format!("/api/v1/namespaces/{namespace}/pods");
    let kubelets = tokio::spawn(async move {
        let queue = stream::unfold(queue, |mut q| async { q.recv().await.map(|work| (work, q)) });
        queue
            .for_each_concurrent(PODS_AT_A_TIME, |work| {
                let (client, base) = (client.clone(), base.clone());
                async move {
                    // A pod for which it fails is missed at the end.
                    let _ = match work {
                        Work::Run(name) => {
                            let status = json!({"status": {"phase": "Running",
                                "conditions": [{"type": "Ready", "status": "True"}]}});
                            patch(&client, &format!("{base}/{name}/status"), STRATEGIC, &status).await
                        }
                        Work::Remove(name) => {
                            let options = json!({"gracePeriodSeconds": 0}).to_string().into_bytes();
                            match request(Method::DELETE, &format!("{base}/{name}"), JSON, Some((JSON, options))) {
                                Ok(r) => client.bytes(r).await.map(drop).map_err(Error::from),
                                Err(e) => Err(e.into()),
                            }
                        }
                    };
                }
            })
            .await;
    });
    let _kubelets = Tasks(vec![kubelets]);
    let (mut known, mut done) = (BTreeSet::new(), BTreeSet::new());
    loop {
        let options = WatchOptions { resource_version: version.clone(), bookmarks: true, ..WatchOptions::default() };
        let mut watch = api.watch_raw(&options).await?;
        while let Some(event) = watch.next().await {
            let pod: Pod = match event? {
                WatchEvent::Added(b) | WatchEvent::Modified(b) => {
                    serde_json::from_slice(&b).map_err(|e| Error::Answer(e.to_string()))?
                }
                WatchEvent::Deleted(b) => {
                    let pod: Pod = serde_json::from_slice(&b).map_err(|e| Error::Answer(e.to_string()))?;
                    known.remove(&pod.metadata.name);
                    if done.remove(&pod.metadata.name) {
                        running.fetch_sub(1, Ordering::Relaxed);
                    }
                    continue;
                }
                WatchEvent::Bookmark { resource_version, .. } => {
                    version = resource_version;
                    continue;
                }
            };
            let name = pod.metadata.name;
            if pod.metadata.deletion_timestamp.is_some() {
                let _ = work.send(Work::Remove(name));
            } else if pod.status.phase == "Running" {
                if done.insert(name) {
                    running.fetch_add(1, Ordering::Relaxed);
                }
            } else if !pod.spec.node_name.is_empty() && known.insert(name.clone()) {
                let _ = work.send(Work::Run(name));
            }
        }
    }
}

/// Waits until a condition holds, which is checked every 100 ms.
async fn until<F: Future<Output = Result<bool, Error>>>(what: &str, holds: impl Fn() -> F) -> Result<Instant, Error> {
    let end = Instant::now() + PATIENCE;
    while !holds().await? {
        if Instant::now() > end {
            return Err(Error::Late { what: what.into(), limit: PATIENCE });
        }
        sleep(Duration::from_millis(100)).await;
    }
    Ok(Instant::now())
}

#[async_trait]
impl Bench for Large {
    fn name(&self) -> &'static str {
        "large"
    }

    fn about(&self) -> &'static str {
        "Pods on many nodes: until all run, the server's memory, and a rolling update of one Deployment; only with --only"
    }

    fn is_default(&self) -> bool {
        false
    }

    fn limit(&self) -> Duration {
        PATIENCE * 2
    }

    async fn run(&self, cx: &mut Context) -> Result<Outcome, Error> {
        let namespace = cx.enter().await?;
        let count = cx.options.count_or(PODS);
        let per_deployment = PER_DEPLOYMENT.min(count);
        let nodes = count.div_ceil(PER_NODE);
        cx.add_nodes(&namespace, nodes).await?;
        let target = cx.target()?.clone();
        let client = target.client.clone();
        let names: Vec<String> = (0..nodes).map(|n| format!("{namespace}-{n}")).collect();
        for part in names.chunks(NODES_AT_A_TIME) {
            try_join_all(part.iter().map(|name| make_ready(&client, name))).await?;
        }
        let running: Arc<AtomicUsize> = Arc::default();
        let (kubelets, counted, place) = (target.clone(), running.clone(), namespace.clone());
        let _tasks = Tasks(vec![
            tokio::spawn(renew(target.clone(), names)),
            tokio::spawn(async move {
                if let Err(e) = follow(kubelets, place, counted).await {
                    eprintln!("warning: following the pods: {e}");
                }
            }),
        ]);
        let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments");
        let started = Instant::now();
        for n in 0..count.div_ceil(per_deployment) {
            let name = format!("d-{n}");
            let mut deployment = objects::scaled_deployment(&name, &namespace);
            let labels = json!({"app": "bench", "deployment": name});
            deployment["spec"]["selector"]["matchLabels"] = labels.clone();
            deployment["spec"]["template"]["metadata"]["labels"] = labels;
            deployment["spec"]["replicas"] = per_deployment.min(count - n * per_deployment).into();
            post(&client, &path, &deployment).await?;
        }
        let all = count as usize;
        let ran = until("running pods", || async { Ok(running.load(Ordering::Relaxed) >= all) }).await?;
        sleep(cx.options.idle).await;
        let memory = cx.cluster().and_then(|c| c.usage()).map(|u| u.memory_bytes).ok();
        let first = format!("{path}/d-0");
        let template = json!({"spec": {"template": {"metadata": {"annotations": {"bench/update": "1"}}}}});
        let updated = Instant::now();
        patch(&client, &first, MERGE, &template).await?;
        let finished = until("the rolling update", || async {
            let d: Value = client.get(&first).await?;
            let status = |field: &str| d["status"][field].as_u64().unwrap_or(0);
            let observed = d["status"]["observedGeneration"] == d["metadata"]["generation"];
            let whole = [status("updatedReplicas"), status("availableReplicas"), status("replicas")];
            Ok(observed && whole == [per_deployment; 3])
        })
        .await?;
        let name = |what: &str| format!("{}-{what}", self.name());
        let mut rows = vec![Row::value(name("running"), ran.duration_since(started).as_secs_f64(), "s")];
        rows.extend(memory.map(|m| Row::value(name("memory"), m as f64 / 1e6, "MB")));
        rows.push(Row::value(name("rolling-update"), finished.duration_since(updated).as_secs_f64(), "s"));
        Ok(Outcome::Measured(rows))
    }
}
