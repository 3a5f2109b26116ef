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
use crate::meters;
use crate::pod_control::{condition_patch, disruption_target};
use crate::views::{Pod, PodEntry, pods};
use client::{
    ApiResource, Change, DeleteOptions, Informer, Key, Outcome, Patch, Recorder, Regarding, Scope, WorkQueue,
    WriteOptions, optional,
};
use evict::{Since, Stay};
use health::{GRACE, Ready, STARTUP_GRACE};
use jiff::Timestamp;
use meta::{Object, Value};
use parking_lot::Mutex;
use placement::Taint;
use serde::Deserialize;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
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
    /// It has a Ready condition.
    reported: bool,
}

struct Controller {
    context: Context,
    nodes: Informer<NodeView>,
    leases: Informer<LeaseView>,
    pods: Informer<Pod>,
    heard: Mutex<BTreeMap<Key, Heard>>,
    /// The nodes whose registration was reported, with their UIDs.
    registered: Mutex<BTreeMap<Key, Arc<str>>>,
    /// Nodes that fell silent and whose pods are still to be marked as not ready.
    unmarked: Mutex<BTreeSet<Key>>,
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
    let (mut health, mut evictions, mut bound) =
        (Builder::new(&context), Builder::new(&context), Builder::new(&context));
    let c = Arc::new(Controller {
        nodes: health.watch(&nodes()),
        leases: health.watch_scope(&leases, &lease_scope),
        pods: health.watch(&pods()),
        heard: Mutex::default(),
        registered: Mutex::default(),
        unmarked: Mutex::default(),
        zones: Zones::default(),
        tolerating: Mutex::default(),
        recorder: context.recorder(),
        evictions: context.recorder_as("taint-eviction-controller"),
        context,
    });
    evictions.wait_for(&c.nodes);
    evictions.wait_for(&c.pods);
    bound.wait_for(&c.nodes);
    bound.wait_for(&c.pods);
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
    bound.on_change(&c.pods, |change, queue| {
        if let Some(p) = &change.new
            && !p.view.spec.node_name.is_empty()
            && change.old.as_ref().is_none_or(|o| o.view.spec.node_name != p.view.spec.node_name)
        {
            queue.add(p.key());
        }
    });
    let nodes = health.queue();
    let monitor = c.context.every(EVERY, || async {
        c.nodes.synced().await;
        c.heard.lock().retain(|k, _| c.nodes.get(k).is_some());
        c.report_registrations();
        c.count();
        let all: Vec<Key> = c.nodes.cache().entries().map(|n| n.key()).collect();
        all.into_iter().for_each(|k| nodes.add(k));
    });
    let evict = evictions.run_as("taint-eviction", 8, Arc::new(Evictions(c.clone())));
    let bound = bound.run_as("node_lifecycle_controller_pods", 4, Arc::new(BoundPods(c.clone())));
    tokio::join!(monitor, health.run(8, c.clone()), evict, bound);
}

impl Reconcile for Controller {
    type Key = Key;

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(entry) = self.nodes.get(&key) else {
            self.zones.forget(&key);
            self.unmarked.lock().remove(&key);
            return Ok(Outcome::Done);
        };
        let begun = Instant::now();
        let mut conditions = entry.view.status.conditions.clone();
        let now = self.context.now();
        let api = self.context.client.dynamic(&nodes());
        if self.is_silent(&entry) {
            let created = entry.meta.creation_timestamp.map(meta::time::format).unwrap_or_default();
            if let Some(next) = health::silenced(&conditions, &created, now) {
                let mut node = object(&nodes(), &entry)?;
                node.set(&["status", "conditions"], next.clone());
                api.update_status(&key.name, &WriteOptions::default(), &node).await?;
                if health::ready(&conditions) == Some(Ready::True) {
                    let about = Regarding::from_meta("v1", "Node", &entry.meta);
                    let text = format!("Node {} status is now: NodeNotReady", key.name);
                    self.recorder.normal(about, "NodeNotReady", text);
                    self.unmarked.lock().insert(key.clone());
                }
                conditions = next;
            }
        }
        if health::ready(&conditions) == Some(Ready::True) {
            self.zones.forget(&key);
            self.unmarked.lock().remove(&key);
        }
        self.reconcile_labels(&entry, &api).await?;
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
            if health::evicts(&next) && !health::evicts(&spec.taints) {
                meters::count(&meters::NODE_EVICTIONS, &[&zones::label(&zones::zone(&entry.meta))]);
            }
        }
        if self.unmarked.lock().contains(&key) {
            let pods: Vec<Arc<PodEntry>> = self.pods.cache().by_index("node", &key.name).cloned().collect();
            for pod in pods {
                self.mark_not_ready(&pod).await?;
            }
            self.unmarked.lock().remove(&key);
        }
        meters::took(&meters::NODE_HEALTH_SECONDS, &[], begun.elapsed());
        Ok(Outcome::Done)
    }
}

/// Marks pods that are bound to a node that is not ready.
struct BoundPods(Arc<Controller>);

impl Reconcile for BoundPods {
    type Key = Key;

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(pod) = self.0.pods.get(&key) else { return Ok(Outcome::Done) };
        let node = self.0.nodes.get(&Key::new("", &*pod.view.spec.node_name));
        let ready = node.and_then(|n| health::ready(&n.view.status.conditions));
        if matches!(ready, Some(Ready::False | Ready::Unknown)) {
            self.0.mark_not_ready(&pod).await?;
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

    /// Reports nodes that are new, and those that are gone.
    fn report_registrations(&self) {
        let present: BTreeMap<Key, Arc<str>> =
            self.nodes.cache().entries().map(|n| (n.key(), n.meta.uid.clone())).collect();
        let before = std::mem::replace(&mut *self.registered.lock(), present.clone());
        let report = |key: &Key, uid: &str, reason, text: String| {
            let about = Regarding {
                api_version: "v1".into(),
                kind: "Node".into(),
                name: key.name.to_string(),
                uid: uid.into(),
                ..Regarding::default()
            };
            self.recorder.normal(about, reason, format!("Node {} event: {text}", key.name));
        };
        for (key, uid) in present.iter().filter(|(key, _)| !before.contains_key(key)) {
            report(key, uid, "RegisteredNode", format!("Registered Node {} in Controller", key.name));
        }
        for (key, uid) in before.iter().filter(|(key, _)| !present.contains_key(key)) {
            report(key, uid, "RemovingNode", format!("Removing Node {} from Controller", key.name));
        }
    }

    /// Sets the older names of labels.
    async fn reconcile_labels(&self, node: &client::Entry<NodeView>, api: &client::Api<Object>) -> Result<(), Error> {
        let missing = health::labels(|k| node.meta.label(k));
        if !missing.is_empty() {
            let labels: Value = missing.into_iter().map(|(k, v)| (k.to_owned(), Value::from(v))).collect();
            let patch = Patch::Strategic(json!({"metadata": {"uid": &*node.meta.uid, "labels": labels}}));
            optional(api.patch(&node.meta.name, &WriteOptions::default(), &patch).await)?;
        }
        Ok(())
    }

    /// Counts which nodes are ready, by zone.
    fn count(&self) {
        let all: Vec<_> = self.nodes.cache().entries().cloned().collect();
        let ready = |n: &client::Entry<NodeView>| {
            health::ready(&n.view.status.conditions) == Some(Ready::True) && !self.is_silent(n)
        };
        if self.zones.count(all.iter().map(|n| (&n.meta, ready(n)))) {
            tracing::warn!(
                "either all nodes have become not ready, or some are ready again: pods stay on them, or may leave again"
            );
        }
    }

    /// Whether the grace period passed without a heartbeat.
    fn is_silent(&self, node: &client::Entry<NodeView>) -> bool {
        let (key, conditions) = (node.key(), &node.view.status.conditions);
        let reported = health::ready(conditions).is_some();
        let heartbeat = conditions
            .iter()
            .find(|c| c["type"] == "Ready")
            // The controller's own writes are no heartbeats, so times that it sets are ignored.
            .map(|c| c["lastHeartbeatTime"].clone())
            .unwrap_or_default();
        let lease = self.leases.get(&Key::new(LEASES, key.name.clone()));
        let renewed = lease.map(|l| l.view.spec["renewTime"].clone()).unwrap_or_default();
        let mut heard = self.heard.lock();
        let uid = node.meta.uid.clone();
        let first = || Heard {
            uid: uid.clone(),
            heartbeat: heartbeat.clone(),
            renewed: renewed.clone(),
            at: if reported { Instant::now() } else { self.created(&node.meta) },
            reported,
        };
        let h = heard.entry(key).or_insert_with(first);
        // A node that was created again has not been silent before.
        if h.uid != uid {
            *h = first();
        }
        let beat = h.heartbeat != heartbeat && health::ready(conditions) != Some(Ready::Unknown);
        if h.renewed != renewed || beat || h.reported != reported {
            *h = Heard { uid, heartbeat, renewed, at: Instant::now(), reported };
        }
        h.at.elapsed() > if reported { GRACE } else { STARTUP_GRACE }
    }

    /// The moment at which an object was created.
    fn created(&self, meta: &client::Meta) -> Instant {
        let age = meta.creation_timestamp.map(|t| self.context.now().duration_since(t));
        let age = age.and_then(|age| Duration::try_from(age).ok()).unwrap_or_default();
        let now = Instant::now();
        now.checked_sub(age).unwrap_or(now)
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

    /// Marks a pod of a node that is not ready as not ready.
    async fn mark_not_ready(&self, pod: &PodEntry) -> Result<(), Error> {
        if pod.view.condition("Ready").is_none_or(|c| &*c.status == "False") {
            return Ok(());
        }
        let patch = json!({"metadata": {"uid": &*pod.meta.uid}, "status": {"conditions": [{
            "type": "Ready", "status": "False", "lastTransitionTime": meta::time::format(self.context.now()),
        }]}});
        let api = self.context.client.dynamic(&pods()).namespace(&pod.meta.namespace);
        let patched = api.patch_status(&pod.meta.name, &WriteOptions::default(), &Patch::Strategic(patch)).await;
        if optional(patched)?.is_some() {
            let about = Regarding::from_meta("v1", "Pod", &pod.meta);
            self.recorder.warning(about, "NodeNotReady", "Node is not ready");
        }
        Ok(())
    }

    fn report_cancelled(&self, pod: &Key, uid: &str) {
        let about = Regarding {
            api_version: "v1".into(),
            kind: "Pod".into(),
            namespace: pod.namespace.to_string(),
            name: pod.name.to_string(),
            uid: uid.into(),
            ..Regarding::default()
        };
        self.evictions.normal(about, "TaintManagerEviction", format!("Cancelling deletion of Pod {pod}"));
    }

    async fn evict(&self, key: Key) -> Result<Outcome, Error> {
        let pod = self.pods.get(&key).filter(|p| !p.meta.is_deleting());
        let node = pod.as_ref().and_then(|p| self.nodes.get(&Key::new("", &*p.view.spec.node_name)));
        let Some((pod, node)) = pod.zip(node) else {
            if let Some((uid, _)) = self.tolerating.lock().remove(&key) {
                self.report_cancelled(&key, &uid);
            }
            return Ok(Outcome::Done);
        };
        let now = self.context.now();
        let taints = node.view.spec.taints.iter().filter(|t| t["effect"] == "NoExecute");
        let taints: Vec<Taint> = taints.filter_map(|t| Taint::deserialize(t).ok()).collect();
        let uid = &*pod.meta.uid;
        let seen = self.tolerating.lock().get(&key).filter(|(of, _)| of == uid).map(|(_, begun)| *begun);
        let bound = pod.view.condition("PodScheduled").and_then(|c| c.last_transition_time);
        let since = Since { bound: bound.or(pod.meta.creation_timestamp), seen: seen.unwrap_or(now) };
        let stay = evict::stay(&taints, &pod.view.spec.tolerations, since, now);
        match stay {
            Stay::Until(_) => drop(self.tolerating.lock().insert(key.clone(), (uid.to_owned(), since.seen))),
            _ => drop(self.tolerating.lock().remove(&key)),
        }
        match stay {
            Stay::Forever => {
                if seen.is_some() {
                    self.report_cancelled(&key, uid);
                }
                Ok(Outcome::Done)
            }
            Stay::Until(at) => {
                let wait = at.duration_since(now);
                Ok(Outcome::After(wait.try_into().unwrap_or(EVERY)))
            }
            Stay::Not(since) => {
                let about = Regarding::from_meta("v1", "Pod", &pod.meta);
                self.evictions.normal(about, "TaintManagerEviction", format!("Marking for deletion Pod {key}"));
                let api = self.context.client.dynamic(&pods()).namespace(&key.namespace);
                let message = "Taint manager: deleting due to NoExecute taint";
                let target = disruption_target(&pod, "DeletionByTaintManager", message, now);
                let status = condition_patch(&pod, target);
                let patch = json!({"metadata": {"uid": &*pod.meta.uid}, "status": status});
                optional(api.patch_status(&key.name, &WriteOptions::default(), &Patch::Strategic(patch)).await)?;
                if optional(api.delete(&key.name, &DeleteOptions::uid(&pod.meta.uid)).await)?.is_some() {
                    meters::count(&meters::TAINT_DELETIONS, &[]);
                    let late = now.duration_since(since).as_secs_f64().max(0.0);
                    meters::observe(&meters::TAINT_SECONDS, &[], late);
                }
                Ok(Outcome::Done)
            }
        }
    }
}
