//! Garbage collection of pods (upstream `pkg/controller/podgc`): terminated pods beyond a threshold, pods of nodes that no longer exist,
//! and pods that were deleted before they were scheduled.

use crate::context::Context;
use crate::views::{Pod, PodEntry, pods};
use client::{Api, ApiResource, DeleteOptions, Error, Informer, Key, Patch, Scope, WriteOptions};
use jiff::Timestamp;
use meta::Object;
use parking_lot::Mutex;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const PERIOD: Duration = Duration::from_secs(20);
/// How long a node must be missing before its pods are deleted.
const QUARANTINE: Duration = Duration::from_secs(40);

/// How many terminated pods are kept (upstream's default).
pub const DEFAULT_THRESHOLD: usize = 12_500;

/// The terminated pods to delete so that `threshold` are left: evicted ones first, then the oldest.
pub fn excess<'a>(pods: impl Iterator<Item = &'a Arc<PodEntry>>, threshold: usize) -> Vec<Arc<PodEntry>> {
    let mut ended: Vec<_> = pods.filter(|p| p.view.is_terminal() && !p.meta.is_deleting()).cloned().collect();
    let n = ended.len().saturating_sub(threshold);
    let evicted = |p: &PodEntry| &*p.view.status.phase == "Failed" && &*p.view.status.reason == "Evicted";
    ended.sort_by_key(|p| (!evicted(p), p.meta.creation_timestamp, p.meta.name.clone()));
    ended.truncate(n);
    ended
}

struct Collector {
    context: Context,
    threshold: usize,
    pods: Informer<Pod>,
    nodes: Informer<()>,
    /// Nodes that pods name and that do not exist, since when.
    missing: Mutex<BTreeMap<Box<str>, Instant>>,
}

/// Runs until shutdown.
pub async fn run(context: Context, threshold: usize) {
    let c = Collector {
        pods: context.informers.informer(&pods(), &Scope::default()),
        nodes: context.informers.informer(&nodes(), &Scope::default()),
        missing: Mutex::default(),
        threshold,
        context,
    };
    c.context.every(PERIOD, || c.collect()).await;
}

fn nodes() -> ApiResource {
    ApiResource::typed::<k8s_openapi::api::core::v1::Node>()
}

impl Collector {
    async fn collect(&self) {
        self.pods.synced().await;
        self.nodes.synced().await;
        let all: Vec<Arc<PodEntry>> = self.pods.cache().entries().cloned().collect();
        for p in excess(all.iter(), self.threshold) {
            log(&p, remove(&self.context, &p, None).await);
        }
        for name in self.gone_nodes(&all).await {
            for p in all.iter().filter(|p| p.view.spec.node_name == name) {
                log(p, remove(&self.context, p, Some("PodGC: node no longer exists")).await);
            }
        }
        for p in all.iter().filter(|p| p.meta.is_deleting() && p.view.spec.node_name.is_empty()) {
            log(p, remove(&self.context, p, None).await);
        }
    }

    /// The nodes that pods name and that have been missing for the quarantine.
    async fn gone_nodes(&self, pods: &[Arc<PodEntry>]) -> Vec<Box<str>> {
        let named: BTreeSet<&str> = pods.iter().map(|p| &*p.view.spec.node_name).filter(|n| !n.is_empty()).collect();
        let is_missing = |name: &str| self.nodes.get(&Key::new("", name)).is_none();
        let candidates: Vec<Box<str>> = {
            let mut missing = self.missing.lock();
            missing.retain(|n, _| named.contains(&**n) && is_missing(n));
            for n in named.iter().filter(|n| is_missing(n)) {
                missing.entry((*n).into()).or_insert_with(Instant::now);
            }
            missing.iter().filter(|(_, since)| since.elapsed() >= QUARANTINE).map(|(n, _)| n.clone()).collect()
        };
        let mut gone = Vec::new();
        for name in candidates {
            // The cache may be stale.
            match self.context.client.dynamic(&nodes()).get_opt(&name).await {
                Ok(None) => gone.push(name),
                Ok(Some(_)) => {}
                Err(e) => tracing::debug!(node = &*name, "reading a missing node failed: {e}"),
            }
        }
        gone
    }
}

fn log(p: &PodEntry, r: Result<(), Error>) {
    if let Err(e) = r {
        tracing::debug!(pod = %p.key(), "deleting a pod failed: {e}");
    }
}

/// Deletes a pod without grace period. Marks one that has not terminated as failed before, with the reason of its disruption.
async fn remove(context: &Context, p: &PodEntry, disrupted: Option<&str>) -> Result<(), Error> {
    let api = context.client.dynamic(&pods()).namespace(&p.meta.namespace);
    if !p.view.is_terminal() {
        client::optional(mark_failed(&api, p, disrupted, context.now()).await)?;
    }
    client::optional(api.delete(&p.meta.name, &DeleteOptions::uid(&p.meta.uid).with_grace(0)).await)?;
    Ok(())
}

async fn mark_failed(
    api: &Api<Object>,
    p: &PodEntry,
    disruption: Option<&str>,
    now: Timestamp,
) -> Result<Object, Error> {
    let mut status = json!({"phase": "Failed"});
    if let Some(message) = disruption {
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
    fn selects_the_oldest_pods_beyond_the_threshold() {
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
