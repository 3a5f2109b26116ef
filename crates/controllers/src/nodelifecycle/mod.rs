//! Nodes that send no heartbeats: their conditions become Unknown, they are tainted, and their pods are evicted after the time they
//! tolerate (upstream `pkg/controller/nodelifecycle` and `tainteviction`).
//!
//! A heartbeat is a change of the node's lease or Ready condition that this process saw; the clock of the node does not matter. The
//! eviction rate depends on how many nodes are not ready ([`zones`]).

mod evict;
mod health;
mod zones;

use crate::context::{Context, Error, object};
use crate::controller::{Builder, Reconcile};
use crate::views::{Pod, PodEntry, pods};
use client::{
    ApiResource, Change, DeleteOptions, Informer, Key, Outcome, Patch, Recorder, Regarding, Scope, WorkQueue,
    WriteOptions, optional,
};
use evict::Stay;
use health::{GRACE, Ready, STARTUP_GRACE};
use jiff::Timestamp;
use meta::{Object, Value};
use parking_lot::Mutex;
use placement::Taint;
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use zones::Zones;

const EVERY: Duration = Duration::from_secs(5);
const LEASES: &str = "kube-node-lease";

/// The fields of a node that the controller reads.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeView {
    spec: NodeSpec,
    status: NodeStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct NodeSpec {
    unschedulable: bool,
    #[serde(deserialize_with = "client::informer::or_default")]
    taints: Vec<Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct NodeStatus {
    #[serde(deserialize_with = "client::informer::or_default")]
    conditions: Vec<Value>,
}

/// The lease of a node, which is its heartbeat.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct LeaseView {
    spec: Value,
}

/// The last heartbeat of a node, and when it was seen.
struct Heard {
    /// The UID of the node.
    uid: Arc<str>,
    heartbeat: Value,
    renewed: Value,
    at: Instant,
    /// There was none since its creation.
    never: bool,
}

struct Controller {
    context: Context,
    nodes: Informer<NodeView>,
    leases: Informer<LeaseView>,
    pods: Informer<Pod>,
    heard: Mutex<BTreeMap<Key, Heard>>,
    zones: Zones,
    /// Pods that tolerate taints for a time: their UIDs, and when this began.
    tolerating: Mutex<BTreeMap<Key, (String, Timestamp)>>,
    recorder: Recorder,
    /// Events about pods that leave tainted nodes.
    evictions: Recorder,
}

fn nodes() -> ApiResource {
    ApiResource::typed::<k8s_openapi::api::core::v1::Node>()
}

/// Runs until shutdown.
pub async fn run(context: Context) {
    let leases = ApiResource::typed::<k8s_openapi::api::coordination::v1::Lease>();
    let lease_scope = Scope { namespace: Some(LEASES.into()), ..Scope::default() };
    let (mut health, mut evictions) = (Builder::new(&context), Builder::new(&context));
    let c = Arc::new(Controller {
        nodes: health.watch(&nodes()),
        leases: health.watch_scope(&leases, &lease_scope),
        pods: health.watch(&pods()),
        heard: Mutex::default(),
        zones: Zones::default(),
        tolerating: Mutex::default(),
        recorder: context.recorder(),
        evictions: context.recorder_as("taint-eviction-controller"),
        context,
    });
    evictions.wait_for(&c.nodes);
    evictions.wait_for(&c.pods);
    c.pods.index("node", |p| match &*p.view.spec.node_name {
        "" => Vec::new(),
        n => vec![n.to_owned()],
    });
    health.enqueue(&c.nodes);
    evictions.handle(&c, &c.nodes, Controller::taints_changed);
    evictions.on_change(&c.pods, |change, queue| {
        if let Some(p) = &change.new
            && !p.view.spec.node_name.is_empty()
            && change.old.as_ref().is_none_or(|o| {
                o.view.spec.node_name != p.view.spec.node_name || o.view.spec.tolerations != p.view.spec.tolerations
            })
        {
            queue.add(p.key());
        }
    });
    let nodes = health.queue();
    let monitor = c.context.every(EVERY, || async {
        c.nodes.synced().await;
        c.heard.lock().retain(|k, _| c.nodes.get(k).is_some());
        c.count();
        let all: Vec<Key> = c.nodes.cache().entries().map(|n| n.key()).collect();
        all.into_iter().for_each(|k| nodes.add(k));
    });
    let evict = evictions.run_as("taint-eviction", 8, Arc::new(Evictions(c.clone())));
    tokio::join!(monitor, health.run(8, c.clone()), evict);
}

impl Reconcile for Controller {
    type Key = Key;

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(entry) = self.nodes.get(&key) else {
            self.zones.forget(&key);
            return Ok(Outcome::Done);
        };
        let mut conditions = entry.view.status.conditions.clone();
        let now = self.context.now();
        let api = self.context.client.dynamic(&nodes());
        if self.is_silent(&entry, &conditions) {
            let created = entry.meta.creation_timestamp.map(meta::time::format).unwrap_or_default();
            if let Some(next) = health::silenced(&conditions, &created, now) {
                let mut node = object(&nodes(), &entry)?;
                let about = Regarding { uid: key.name.to_string(), ..Regarding::from_meta("v1", "Node", &entry.meta) };
                node.set(&["status", "conditions"], next.clone());
                api.update_status(&key.name, &WriteOptions::default(), &node).await?;
                if health::ready(&conditions) == Some(Ready::True) {
                    self.recorder.normal(
                        about,
                        "NodeNotReady",
                        format!("Node {} status is now: NodeNotReady", key.name),
                    );
                }
                conditions = next;
            }
        }
        if health::ready(&conditions) == Some(Ready::True) {
            self.zones.forget(&key);
        }
        let spec = &entry.view.spec;
        let leave = || self.zones.leave(&key, &entry.meta);
        if let Some(next) = health::taints(&spec.taints, &conditions, spec.unschedulable, now, leave) {
            // Only if the taints are still those: others set taints too.
            let patch = json!({
                "metadata": {"uid": &*entry.meta.uid, "resourceVersion": self.fresh_version(&entry, &api).await?},
                "spec": {"taints": next},
            });
            match api.patch(&key.name, &WriteOptions::default(), &Patch::Merge(patch)).await {
                Err(e) if e.is_not_found() => return Ok(Outcome::Done),
                other => other?,
            };
        }
        if matches!(health::ready(&conditions), Some(Ready::False | Ready::Unknown)) {
            self.mark_pods(&key).await?;
        }
        Ok(Outcome::Done)
    }
}

/// Reconciles pods with the taints of their nodes.
struct Evictions(Arc<Controller>);

impl Reconcile for Evictions {
    type Key = Key;

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        self.0.evict(key).await
    }
}

impl Controller {
    /// Enqueues the pods of a node with other taints than before.
    fn taints_changed(&self, change: &Change<NodeView>, evictions: &WorkQueue<Key>) {
        let taints = |e: &Arc<client::Entry<NodeView>>| e.view.spec.taints.clone();
        if change.old.as_ref().map(taints) != change.new.as_ref().map(taints) {
            for p in self.pods.cache().by_index("node", &change.key().name) {
                evictions.add(p.key());
            }
        }
    }

    /// Counts which nodes are ready, by zone.
    fn count(&self) {
        let all: Vec<_> = self.nodes.cache().entries().cloned().collect();
        let ready = |n: &client::Entry<NodeView>| {
            let conditions = &n.view.status.conditions;
            health::ready(conditions) == Some(Ready::True) && !self.is_silent(n, conditions)
        };
        if self.zones.count(all.iter().map(|n| (&n.meta, ready(n)))) {
            tracing::warn!(
                "either all nodes have become not ready, or some are ready again: pods stay on them, or may leave again"
            );
        }
    }

    /// Whether the grace period passed without a heartbeat.
    fn is_silent(&self, node: &client::Entry<NodeView>, conditions: &[Value]) -> bool {
        let key = node.key();
        let heartbeat = conditions
            .iter()
            .find(|c| c["type"] == "Ready")
            // The controller's own writes are no heartbeats, so times that it sets are ignored.
            .map(|c| c["lastHeartbeatTime"].clone())
            .unwrap_or_default();
        let lease = self.leases.get(&Key::new(LEASES, key.name.clone()));
        let renewed = lease.map(|l| l.view.spec["renewTime"].clone()).unwrap_or_default();
        let never = heartbeat.is_null() && renewed.is_null();
        let mut heard = self.heard.lock();
        let uid = node.meta.uid.clone();
        let first = || Heard {
            uid: uid.clone(),
            heartbeat: heartbeat.clone(),
            renewed: renewed.clone(),
            at: Instant::now(),
            never,
        };
        let h = heard.entry(key).or_insert_with(first);
        // A node that was created again has not been silent before.
        if h.uid != uid {
            *h = first();
        }
        if h.renewed != renewed || (h.heartbeat != heartbeat && health::ready(conditions) != Some(Ready::Unknown)) {
            *h = Heard { uid, heartbeat, renewed, at: Instant::now(), never };
        }
        h.at.elapsed() > if h.never { STARTUP_GRACE } else { GRACE }
    }

    /// The node's version, if its taints are those of the cache.
    async fn fresh_version(&self, entry: &client::Entry<NodeView>, api: &client::Api<Object>) -> Result<String, Error> {
        let live = api.get(&entry.meta.name).await?;
        let taints = live.at(&["spec", "taints"]).and_then(Value::as_array).cloned().unwrap_or_default();
        if live.uid() != &*entry.meta.uid || taints != entry.view.spec.taints {
            return Err(Error::Waiting(format!("the taints of node {} have just changed", entry.meta.name)));
        }
        Ok(live.resource_version().to_owned())
    }

    /// Marks the pods of a node that is not ready as not ready.
    async fn mark_pods(&self, node: &Key) -> Result<(), Error> {
        let ready: Vec<Arc<PodEntry>> =
            self.pods.cache().by_index("node", &node.name).filter(|p| p.view.is_ready()).cloned().collect();
        for p in ready {
            let patch = json!({"metadata": {"uid": &*p.meta.uid}, "status": {"conditions": [{
                "type": "Ready", "status": "False", "reason": "NodeNotReady",
                "lastTransitionTime": meta::time::format(self.context.now()),
            }]}});
            let api = self.context.client.dynamic(&pods()).namespace(&p.meta.namespace);
            let r = api.patch_status(&p.meta.name, &WriteOptions::default(), &Patch::Strategic(patch)).await;
            optional(r)?;
        }
        Ok(())
    }

    async fn evict(&self, key: Key) -> Result<Outcome, Error> {
        let pod = self.pods.get(&key).filter(|p| !p.meta.is_deleting());
        let node = pod.as_ref().and_then(|p| self.nodes.get(&Key::new("", &*p.view.spec.node_name)));
        let Some((pod, node)) = pod.zip(node) else {
            self.tolerating.lock().remove(&key);
            return Ok(Outcome::Done);
        };
        let now = self.context.now();
        let taints = node.view.spec.taints.iter().filter(|t| t["effect"] == "NoExecute");
        let taints: Vec<Taint> = taints.filter_map(|t| Taint::deserialize(t).ok()).collect();
        let uid = &*pod.meta.uid;
        let seen = self.tolerating.lock().get(&key).filter(|(of, _)| of == uid).map(|(_, begun)| *begun);
        let begun = seen.unwrap_or(now);
        let stay = evict::stay(&taints, &pod.view.spec.tolerations, begun, now);
        match stay {
            Stay::Until(_) => drop(self.tolerating.lock().insert(key.clone(), (uid.to_owned(), begun))),
            _ => drop(self.tolerating.lock().remove(&key)),
        }
        match stay {
            Stay::Forever => {
                if seen.is_some() {
                    let about = Regarding::from_meta("v1", "Pod", &pod.meta);
                    let text = format!("Cancelling deletion of Pod {key}");
                    self.evictions.normal(about, "TaintManagerEviction", text);
                }
                Ok(Outcome::Done)
            }
            Stay::Until(at) => {
                let wait = at.duration_since(now);
                Ok(Outcome::After(wait.try_into().unwrap_or(EVERY)))
            }
            Stay::Not => {
                let about = Regarding::from_meta("v1", "Pod", &pod.meta);
                self.evictions.normal(about, "TaintManagerEviction", format!("Marking for deletion Pod {key}"));
                let api = self.context.client.dynamic(&pods()).namespace(&key.namespace);
                let patch = json!({"metadata": {"uid": &*pod.meta.uid}, "status": {"conditions": [{
                    "type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager",
                    "message": "Taint manager: deleting due to NoExecute taint",
                    "lastTransitionTime": meta::time::format(now),
                }]}});
                optional(api.patch_status(&key.name, &WriteOptions::default(), &Patch::Strategic(patch)).await)?;
                optional(api.delete(&key.name, &DeleteOptions::uid(&pod.meta.uid)).await)?;
                Ok(Outcome::Done)
            }
        }
    }
}
