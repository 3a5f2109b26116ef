//! Pods that nobody needs any more (upstream `pkg/controller/podgc`): ended pods beyond a number, pods of nodes that are gone, and
//! pods that were deleted before they had a node.

use crate::context::Context;
use crate::views::{Pod, PodEntry, pods};
use client::panics::{Everything, caught};
use client::{Api, ApiResource, DeleteOptions, Error, Informer, Key, Patch, Scope, WriteOptions};
use jiff::Timestamp;
use meta::Object;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const EVERY: Duration = Duration::from_secs(20);
/// A node has to be missing for so long before its pods are.
const QUARANTINE: Duration = Duration::from_secs(40);

/// Ended pods that may stay. None: all of them.
pub const DEFAULT_THRESHOLD: usize = 12_500;

/// The ended pods to delete: the oldest, evicted ones before others, until `threshold` are left.
pub fn excess<'a>(pods: impl Iterator<Item = &'a Arc<PodEntry>>, threshold: usize) -> Vec<Arc<PodEntry>> {
    let mut ended: Vec<_> = pods.filter(|p| p.view.is_terminal() && !p.meta.is_deleting()).cloned().collect();
    let n = ended.len().saturating_sub(threshold);
    let evicted = |p: &PodEntry| &*p.view.status.phase == "Failed" && &*p.view.status.reason == "Evicted";
    ended.sort_by_key(|p| (!evicted(p), p.meta.creation_timestamp, p.meta.name.clone()));
    ended.truncate(n);
    ended
}

/// Runs until shutdown.
pub async fn run(context: Context, threshold: usize) {
    let pod_cache: Informer<Pod> = context.informers.informer(&pods(), &Scope::default());
    let node_resource = ApiResource::of::<k8s_openapi::api::core::v1::Node>();
    let nodes: Informer<()> = context.informers.informer(&node_resource, &Scope::default());
    let shutdown = context.shutdown.clone();
    let work = async {
        pod_cache.synced().await;
        nodes.synced().await;
        let mut missing: BTreeMap<Box<str>, Instant> = BTreeMap::new();
        let mut round = async || {
            let all: Vec<Arc<PodEntry>> = pod_cache.cache().all().cloned().collect();
            for p in excess(all.iter(), threshold) {
                log(&p, remove(&context, &p, None).await);
            }
            let used: BTreeSet<&str> = all.iter().map(|p| &*p.view.spec.node_name).filter(|n| !n.is_empty()).collect();
            missing.retain(|n, _| used.contains(&**n) && nodes.get(&Key::new("", &**n)).is_none());
            for n in used.iter().filter(|n| nodes.get(&Key::new("", **n)).is_none()) {
                missing.entry((*n).into()).or_insert_with(Instant::now);
            }
            for (name, since) in &missing {
                if since.elapsed() < QUARANTINE {
                    continue;
                }
                // The cache may be behind; the server is asked.
                match context.client.dynamic(&node_resource).get_opt(name).await {
                    Ok(None) => {}
                    Ok(Some(_)) => continue,
                    Err(e) => {
                        tracing::debug!(node = &**name, "looking for a node: {e}");
                        continue;
                    }
                }
                for p in all.iter().filter(|p| p.view.spec.node_name == *name) {
                    log(p, remove(&context, p, Some("PodGC: node no longer exists")).await);
                }
            }
            for p in all.iter().filter(|p| p.meta.is_deleting() && p.view.spec.node_name.is_empty()) {
                log(p, remove(&context, p, None).await);
            }
        };
        loop {
            let _ = caught("pod-garbage-collector", Everything, round()).await;
            tokio::time::sleep(EVERY).await;
        }
    };
    shutdown.race(work).await;
}

fn log(p: &PodEntry, r: Result<(), Error>) {
    if let Err(e) = r {
        tracing::debug!(pod = %p.key(), "collecting: {e}");
    }
}

/// Deletes at once; a pod that did not end is marked failed before, with why it was disrupted.
async fn remove(context: &Context, p: &PodEntry, disrupted: Option<&str>) -> Result<(), Error> {
    let api = context.client.dynamic(&pods()).namespace(&p.meta.namespace);
    if !p.view.is_terminal() {
        client::optional(mark_failed(&api, p, disrupted, context.now()).await)?;
    }
    client::optional(api.delete(&p.meta.name, &DeleteOptions::uid(&p.meta.uid).with_grace(0)).await)?;
    Ok(())
}

async fn mark_failed(api: &Api<Object>, p: &PodEntry, why: Option<&str>, now: Timestamp) -> Result<Object, Error> {
    let mut status = json!({"phase": "Failed"});
    if let Some(message) = why {
        status["conditions"] = json!([{
            "type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC", "message": message,
            "lastTransitionTime": meta::time::format(now),
        }]);
    }
    let patch = json!({"metadata": {"uid": &*p.meta.uid}, "status": status});
    api.patch_status(&p.meta.name, &WriteOptions::default(), &Patch::Strategic(patch)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clauses: P11.threshold
    #[test]
    fn the_oldest_ended_pods_beyond_the_threshold() {
        let pod = |name: &str, phase: &str, reason: &str, hour: u8| {
            let v = json!({
                "metadata": {"name": name, "creationTimestamp": format!("2026-01-01T0{hour}:00:00Z")},
                "status": {"phase": phase, "reason": reason},
            });
            Arc::new(PodEntry::new(serde_json::to_vec(&v).unwrap().into()).unwrap())
        };
        let all = [
            pod("young", "Failed", "", 5),
            pod("old", "Succeeded", "", 1),
            pod("runs", "Running", "", 0),
            pod("evicted", "Failed", "Evicted", 4),
        ];
        let names = |n| excess(all.iter(), n).iter().map(|p| p.meta.name.to_string()).collect::<Vec<_>>();
        assert_eq!(names(1), ["evicted", "old"]);
        assert!(names(3).is_empty());
    }
}
