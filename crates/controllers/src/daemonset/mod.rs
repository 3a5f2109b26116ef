//! DaemonSets: a pod on every eligible node (upstream `pkg/controller/daemon`).
//!
//! [`template`] says what pods look like and where they belong, [`plan`] which are created and deleted; this module carries it out. The
//! scheduler binds the pods, each to the node that its affinity names. Invariant: no pod is created or deleted while the cache does not
//! show earlier creations and deletions.

mod plan;
mod template;

use crate::consistency::{CACHE_DELAY, Known};
use crate::context::{Context, Error, object, put_status};
use crate::controller::{Builder, Reconcile};
use crate::history::{self, HASH_LABEL, History, Revisions, revisions};
use crate::ownership::{Claims, Owners};
use crate::pod_control::{BURST, PodControl, slow_start};
use crate::views::{Pod, PodEntry, Selector, pods};
use client::{
    Api, ApiResource, Change, Entry, Expectations, Informer, Key, KeyedBackoff, Outcome, Patch, Recorder, Regarding,
    WorkQueue, WriteOptions, optional,
};
use futures::future::join_all;
use jiff::Timestamp;
use meta::{LabelSelector, Object, Value};
use placement::Taint;
use plan::{Cause, Counts, Daemon, NodeState, Observed, Plan, Spec};
use serde::Deserialize;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use template::{Eligibility, Eligible, Template, target_node};

/// Delays before failed pods of a node are deleted again.
const FAILED_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(15 * 60));

/// The fields of a DaemonSet that its controller reads from the cache.
#[derive(Debug, Deserialize)]
#[serde(from = "Value")]
pub struct SetView {
    selector: Selector,
    eligibility: Eligibility,
}

impl From<Value> for SetView {
    fn from(v: Value) -> Self {
        let selector = Selector::from(v["spec"]["selector"].clone());
        let set = Object::from_value(v).unwrap_or_default();
        Self { selector, eligibility: Eligibility::read(&set) }
    }
}

/// The fields of a node that decide where pods belong.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeView {
    spec: NodeSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct NodeSpec {
    #[serde(deserialize_with = "client::informer::or_default")]
    taints: Vec<Taint>,
}

/// A set, its generation and a node: what failed pods are counted by.
type FailureKey = (Arc<str>, i64, Box<str>);

struct Controller {
    context: Context,
    sets: Informer<SetView>,
    owners: Owners<SetView>,
    pods: Informer<Pod>,
    nodes: Informer<NodeView>,
    revisions: Informer<()>,
    expected: Expectations<Key>,
    known: Known,
    failures: KeyedBackoff<FailureKey>,
    recorder: Recorder,
}

fn daemon_sets() -> ApiResource {
    ApiResource::typed::<k8s_openapi::api::apps::v1::DaemonSet>()
}

/// Runs until shutdown.
pub async fn run(context: Context) {
    let mut builder = Builder::new(&context);
    let sets = builder.watch(&daemon_sets());
    let c = Arc::new(Controller {
        owners: Owners::new("DaemonSet", &sets, |s: &SetView| &s.selector),
        sets,
        pods: builder.watch(&pods()),
        nodes: builder.watch(&ApiResource::typed::<k8s_openapi::api::core::v1::Node>()),
        revisions: builder.watch(&revisions()),
        expected: Expectations::default(),
        known: Known::default(),
        failures: KeyedBackoff::new(FAILED_BACKOFF.0, FAILED_BACKOFF.1),
        recorder: context.recorder_as("daemonset-controller"),
        context,
    });
    builder.handle(&c, &c.sets, Controller::set_changed);
    builder.handle(&c, &c.pods, Controller::pod_changed);
    builder.handle(&c, &c.nodes, Controller::node_changed);
    builder.handle(&c, &c.revisions, Controller::revision_changed);
    builder.run(2, c).await;
}

impl Controller {
    fn set_changed(&self, change: &Change<SetView>, queue: &WorkQueue<Key>) {
        self.known.observe(change);
        self.owners.enqueue_owner(change, &self.expected, queue);
    }

    fn pod_changed(&self, change: &Change<Pod>, queue: &WorkQueue<Key>) {
        self.owners.observe(change, &self.expected);
        self.owners.enqueue(change, queue);
    }

    fn revision_changed(&self, change: &Change<()>, queue: &WorkQueue<Key>) {
        self.owners.enqueue(change, queue);
    }

    /// Enqueues the sets for which a node is eligible, or no longer.
    fn node_changed(&self, change: &Change<NodeView>, queue: &WorkQueue<Key>) {
        for set in self.sets.cache().entries() {
            let eligible = |n: &Option<Arc<Entry<NodeView>>>| n.as_ref().map(|n| check(&set.view.eligibility, n));
            let (old, new) = (eligible(&change.old), eligible(&change.new));
            if old != new && [old, new].iter().flatten().any(|e| *e != Eligible::No) {
                queue.add(set.key());
            }
        }
    }
}

fn check(eligibility: &Eligibility, node: &Entry<NodeView>) -> Eligible {
    eligibility.check(&node.meta.name, |k| node.meta.label(k), &node.view.spec.taints)
}

impl Reconcile for Controller {
    type Key = Key;

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        self.known.begin();
        let Some(entry) = self.sets.get(&key) else {
            self.expected.forget(&key);
            return Ok(Outcome::Done);
        };
        let set = object(&daemon_sets(), &entry)?;
        let selector = LabelSelector::from_value(set.at(&["spec", "selector"]))
            .map_err(|why| Error::Invalid { what: "selector", why })?;
        if selector.is_everything() {
            let text = "This daemon set is selecting all pods. A non-empty selector is required.";
            self.recorder.warning(Regarding::object(&set), "SelectingAll", text);
            return Ok(Outcome::Done);
        }
        if set.is_deleting() {
            return Ok(Outcome::Done);
        }
        let may_act = self.expected.satisfied(&key);
        let sets = self.context.client.dynamic(&daemon_sets()).namespace(&key.namespace);
        let history = Revisions::new(&set, &sets).sync(&selector, &self.revisions).await?;
        let pod_api = self.context.client.dynamic(&pods()).namespace(&key.namespace);
        if !self.known.is_current(&set, &selector, &pod_api, &self.pods).await? {
            return Ok(Outcome::After(CACHE_DELAY));
        }
        let work = Work { c: self, key: &key, set: &set, sets: &sets, pods: &pod_api, history };
        work.reconcile(&selector, &entry.view.eligibility, may_act).await
    }
}

/// One reconcile of one set.
struct Work<'a> {
    c: &'a Controller,
    key: &'a Key,
    set: &'a Object,
    sets: &'a Api<Object>,
    pods: &'a Api<Object>,
    history: History,
}

impl Work<'_> {
    async fn reconcile(
        &self,
        selector: &LabelSelector,
        eligibility: &Eligibility,
        may_act: bool,
    ) -> Result<Outcome, Error> {
        let now = self.c.context.now();
        let own = Claims::new(self.set, self.sets, self.pods)
            .claim_all(|p| selector.matches(|k| p.label(k)), &self.c.pods)
            .await?;
        self.unite(&own).await?;
        let template = Template::new(self.set, self.history.update.label(HASH_LABEL).unwrap_or_default());
        let seen = self.observe(&own, eligibility, &template)?;
        let spec = Spec::read(self.set, seen.desired());
        let mut wait = self.soonest(&own, &spec, now);
        let acted = if may_act { self.act(&spec, &seen, &template, &own, &mut wait).await } else { Ok(()) };
        let written = self.write_status(&plan::count(&spec, &seen, now), may_act).await;
        acted?;
        written?;
        Ok(wait.map_or(Outcome::Done, Outcome::After))
    }

    /// How long until the next ready pod is available.
    fn soonest(&self, own: &[Arc<PodEntry>], spec: &Spec, now: Timestamp) -> Option<Duration> {
        let min = spec.min_ready_seconds;
        let ready = own.iter().filter(|p| p.view.is_ready() && !p.view.is_available(min, now));
        ready.filter_map(|p| p.view.available_in(min, now)).min().map(|s| meta::time::seconds(s.max(1)))
    }

    /// Deletes other revisions with the present template, after their pods got the label of the one that stays.
    async fn unite(&self, own: &[Arc<PodEntry>]) -> Result<(), Error> {
        let present = history::template(&self.history.update);
        let twins: Vec<&Object> = self.history.others.iter().filter(|r| history::template(r) == present).collect();
        if twins.is_empty() {
            return Ok(());
        }
        let label = self.history.update.label(HASH_LABEL);
        for pod in own.iter().filter(|p| twins.iter().any(|t| p.meta.label(HASH_LABEL) == t.label(HASH_LABEL))) {
            let patch = json!({"metadata": {"uid": &*pod.meta.uid, "labels": {HASH_LABEL: label}}});
            optional(self.pods.patch(&pod.meta.name, &WriteOptions::default(), &Patch::Merge(patch)).await)?;
        }
        for twin in twins {
            Revisions::new(self.set, self.sets).delete(twin).await?;
        }
        // Continues when the cache has it.
        Err(Error::Waiting(format!("revisions of DaemonSet {} with the same template were united", self.key)))
    }

    fn observe(
        &self,
        own: &[Arc<PodEntry>],
        eligibility: &Eligibility,
        template: &Template,
    ) -> Result<Observed, Error> {
        let nodes = self.c.nodes.cache();
        let nodes = nodes.entries().map(|n| NodeState { name: n.meta.name.clone(), eligible: check(eligibility, n) });
        let mut seen = Observed { nodes: nodes.collect(), pods: BTreeMap::new() };
        for pod in own {
            if pod.view.is_terminal() && pod.meta.is_deleting() {
                continue;
            }
            let node = match &*pod.view.spec.node_name {
                "" => target_node(&object(&pods(), pod)?).map(str::to_owned),
                name => Some(name.to_owned()),
            };
            if let Some(node) = node {
                let updated = template.is_of(|k| pod.meta.label(k));
                seen.pods.entry(node).or_default().push(Daemon { pod: pod.clone(), updated });
            }
        }
        Ok(seen)
    }

    async fn act(
        &self,
        spec: &Spec,
        seen: &Observed,
        template: &Template,
        own: &[Arc<PodEntry>],
        wait: &mut Option<Duration>,
    ) -> Result<(), Error> {
        let now = self.c.context.now();
        let generation = self.set.int_at(&["status", "observedGeneration"]).unwrap_or(0);
        let failure = |node: &str| -> FailureKey { (self.set.uid().into(), generation, node.into()) };
        let waits = std::cell::Cell::new(*wait);
        let backed_off = |_: &PodEntry, node: &str| {
            let Some(left) = self.c.failures.remaining(&failure(node)) else {
                self.c.failures.failed(failure(node));
                return false;
            };
            waits.set(Some(waits.get().map_or(left, |w| w.min(left))));
            true
        };
        let mut plan = plan::manage(spec, seen, backed_off, now);
        *wait = waits.get();
        if plan.create.is_empty() && plan.delete.is_empty() && spec.rolling {
            plan = plan::roll(spec, seen, now);
        }
        self.execute(plan, template).await?;
        let live: BTreeSet<&str> = own.iter().filter_map(|p| p.meta.label(HASH_LABEL)).collect();
        let excess = self.history.others.len().saturating_sub(history::limit(self.set));
        let in_use = |r: &Object| r.label(HASH_LABEL).is_some_and(|h| live.contains(h));
        Revisions::new(self.set, self.sets).truncate(&self.history.others, excess, in_use).await
    }

    async fn execute(&self, mut plan: Plan, template: &Template) -> Result<(), Error> {
        for (pod, cause) in &plan.delete {
            let (about, node, key) = (Regarding::object(self.set), &pod.view.spec.node_name, pod.key());
            match cause {
                Cause::Failed => {
                    let text = format!("Found failed daemon pod {key} on node {node}, will try to kill it");
                    self.c.recorder.warning(about, "FailedDaemonPod", text);
                }
                Cause::Succeeded => {
                    let text = format!("Found succeeded daemon pod {key} on node {node}, will try to delete it");
                    self.c.recorder.normal(about, "SucceededDaemonPod", text);
                }
                Cause::Surplus => {}
            }
        }
        plan.create.truncate(BURST);
        plan.delete.truncate(BURST);
        let (expected, key) = (&self.c.expected, self.key);
        let control = PodControl { pods: self.pods, recorder: &self.c.recorder, owner: self.set };
        expected.expect(key, plan.create.len(), plan.delete.iter().map(|(p, _)| p.meta.uid.to_string()));
        let creations = async {
            let (done, failure) = slow_start(plan.create.len(), |i| {
                let pod = template.pod(&plan.create[i]);
                let control = &control;
                async move {
                    match control.create(&pod).await {
                        Ok(_) => Ok(()),
                        Err(e) if e.is_namespace_terminating() => {
                            expected.creation_observed(key);
                            Ok(())
                        }
                        Err(e) => Err(e),
                    }
                }
            })
            .await;
            (done..plan.create.len()).for_each(|_| expected.creation_observed(key));
            failure
        };
        let deletions = join_all(plan.delete.iter().map(|(p, _)| async {
            let r = control.delete(&p.meta.name, &p.meta.uid).await;
            if r.is_err() {
                expected.deletion_observed(key, &p.meta.uid);
            }
            r.err().filter(|e| !e.is_not_found() && !e.is_conflict())
        }));
        let (failure, failures) = tokio::join!(creations, deletions);
        match failure.into_iter().chain(failures.into_iter().flatten()).next() {
            Some(e) => Err(e.into()),
            None => Ok(()),
        }
    }

    /// Writes the status; `observed`: the present generation was acted on.
    async fn write_status(&self, c: &Counts, observed: bool) -> Result<(), Error> {
        let counts = [
            ("currentNumberScheduled", c.current),
            ("desiredNumberScheduled", c.desired),
            ("numberMisscheduled", c.misscheduled),
            ("numberReady", c.ready),
            ("updatedNumberScheduled", c.updated),
            ("numberAvailable", c.available),
            ("numberUnavailable", c.desired - c.available),
        ];
        let collisions = self.history.collisions;
        let int = |k: &str| self.set.int_at(&["status", k]);
        let same = counts.iter().all(|(k, n)| int(k).unwrap_or(0) == *n)
            && int("observedGeneration").unwrap_or(0) >= self.set.generation()
            && int("collisionCount") == collisions;
        if same {
            return Ok(());
        }
        let write = |set: &mut Object| {
            for (k, n) in counts {
                set.set(&["status", k], n);
            }
            if observed {
                set.set(&["status", "observedGeneration"], self.set.generation());
            }
            if let Some(n) = collisions {
                set.set(&["status", "collisionCount"], n);
            }
        };
        Ok(put_status(self.sets, self.set, write).await?)
    }
}
