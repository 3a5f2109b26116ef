//! Garbage collection of pods (upstream `pkg/controller/podgc`): terminated pods beyond a threshold, pods of nodes that no longer exist,
//! and pods that were deleted before they were scheduled.

use crate::context::Context;
use crate::meters;
use crate::pod_control::{condition_patch, disruption_target};
use crate::views::{Condition, Pod, PodEntry, pods};
use client::informer::or_default;
use client::{Api, ApiResource, DeleteOptions, Error, Informer, Key, Patch, Scope, WriteOptions};
use jiff::Timestamp;
use meta::Object;
use parking_lot::Mutex;
use placement::Taint;
use serde::Deserialize;
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

/// Taint of a node that is shut down for good, as an administrator says.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// The terminated pods to delete so that `threshold` are left: evicted ones first, then the oldest. Zero keeps all.
pub fn excess<'a>(pods: impl Iterator<Item = &'a Arc<PodEntry>>, threshold: usize) -> Vec<Arc<PodEntry>> {
    if threshold == 0 {
        return Vec::new();
    }
    let mut ended: Vec<_> = pods.filter(|p| p.view.is_terminal()).cloned().collect();
    let n = ended.len().saturating_sub(threshold);
    in_order(&mut ended);
    ended.truncate(n);
    ended
}

/// Sorts evicted pods first, then by age.
fn in_order(pods: &mut [Arc<PodEntry>]) {
    let evicted = |p: &PodEntry| &*p.view.status.phase == "Failed" && &*p.view.status.reason == "Evicted";
    pods.sort_by_key(|p| (!evicted(p), p.meta.creation_timestamp, p.meta.name.clone()));
}

/// The fields of a node that the collector reads.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeView {
    spec: NodeSpec,
    status: NodeStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct NodeSpec {
    #[serde(deserialize_with = "or_default")]
    taints: Vec<Taint>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct NodeStatus {
    #[serde(deserialize_with = "or_default")]
    conditions: Vec<Condition>,
}

impl NodeView {
    /// Whether the node does not run and will not come back: nothing on it still ends pods.
    fn is_out_of_service(&self) -> bool {
        let ready = self.status.conditions.iter().any(|c| &*c.r#type == "Ready" && &*c.status == "True");
        !ready && self.spec.taints.iter().any(|t| &*t.key == OUT_OF_SERVICE)
    }
}

struct Collector {
    context: Context,
    threshold: usize,
    pods: Informer<Pod>,
    nodes: Informer<NodeView>,
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
            self.remove(&p, "terminated", None).await;
        }
        let out_of_service = |p: &PodEntry| {
            let node = self.nodes.get(&Key::new("", &*p.view.spec.node_name));
            p.meta.is_deleting() && node.is_some_and(|n| n.view.is_out_of_service())
        };
        let mut stuck: Vec<Arc<PodEntry>> = all.iter().filter(|p| out_of_service(p)).cloned().collect();
        in_order(&mut stuck);
        for p in stuck {
            self.remove(&p, "out-of-service", None).await;
        }
        for name in self.gone_nodes(&all).await {
            for p in all.iter().filter(|p| p.view.spec.node_name == name) {
                self.remove(p, "orphaned", Some("PodGC: node no longer exists")).await;
            }
        }
        for p in all.iter().filter(|p| p.meta.is_deleting() && p.view.spec.node_name.is_empty()) {
            self.remove(p, "unscheduled", None).await;
        }
    }

    /// Deletes a pod without grace period, and counts it.
    async fn remove(&self, p: &PodEntry, reason: &str, disrupted: Option<&str>) {
        meters::count(&meters::PODGC_DELETIONS, &[&p.meta.namespace, reason]);
        if let Err(e) = remove(&self.context, p, disrupted).await {
            meters::count(&meters::PODGC_ERRORS, &[&p.meta.namespace, reason]);
            tracing::debug!(pod = %p.key(), "deleting a pod failed: {e}");
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
    let mut status = serde_json::Map::new();
    if let Some(message) = disruption {
        status = condition_patch(p, disruption_target(p, "DeletionByPodGC", message, now));
    }
    status.insert("phase".into(), "Failed".into());
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
        assert!(names(0).is_empty(), "no threshold");
    }

    #[test]
    fn nodes_are_out_of_service_if_they_do_not_run() {
        let cases = [
            ("False", OUT_OF_SERVICE, true),
            ("Unknown", OUT_OF_SERVICE, true),
            ("True", OUT_OF_SERVICE, false),
            ("False", "other", false),
        ];
        for (ready, taint, expect) in cases {
            let v = json!({"spec": {"taints": [{"key": taint, "effect": "NoExecute"}]},
                "status": {"conditions": [{"type": "Ready", "status": ready}]}});
            let node: NodeView = serde_json::from_value(v).unwrap();
            assert_eq!(node.is_out_of_service(), expect, "{ready} {taint}");
        }
    }
}
