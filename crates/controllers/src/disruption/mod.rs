//! Disruption budgets: how many pods may be evicted now (upstream `pkg/controller/disruption`).
//!
//! [`budget`] counts; this module reads pods and the sizes of their controllers. If they cannot be read, nothing may be evicted. It also
//! takes back the condition `DisruptionTarget` of pods that were not deleted after all.

mod budget;

use crate::context::{Context, Error, object};
use crate::controller::{Builder, Reconcile};
use crate::scale::Scalable;
use crate::views::{Pod, PodEntry, pods, selector_text};
use budget::Rule;
use client::informer::Owner;
use client::{
    ApiResource, Change, Informer, Key, Meta, Outcome, Patch, Recorder, Regarding, WorkQueue, WriteOptions, optional,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::ReplicationController;
use meta::{LabelSelector, Map, Object, Value};
use serde::Deserialize;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// How long a pod may have the condition `DisruptionTarget` without being deleted.
const STALE: SignedDuration = SignedDuration::from_mins(2);

/// The fields of a budget that its controller reads from the cache.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct BudgetView {
    spec: BudgetSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct BudgetSpec {
    selector: BudgetSelector,
}

/// The selector of a budget: an empty one selects all pods of the namespace, a missing one none.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "Value")]
struct BudgetSelector(LabelSelector);

impl Default for BudgetSelector {
    fn default() -> Self {
        Self(LabelSelector::none())
    }
}

impl From<Value> for BudgetSelector {
    fn from(v: Value) -> Self {
        let selector = if v.is_null() { Ok(LabelSelector::none()) } else { LabelSelector::from_value(Some(&v)) };
        Self(selector.unwrap_or_else(|_| LabelSelector::none()))
    }
}

/// The size of a workload.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SizeView {
    spec: SizeSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct SizeSpec {
    replicas: Option<i64>,
}

/// Workloads of a kind that a controller reference names.
struct Workloads {
    kind: &'static str,
    group: &'static str,
    informer: Informer<SizeView>,
}

struct Controller {
    context: Context,
    budgets: Informer<BudgetView>,
    pods: Informer<Pod>,
    workloads: Vec<Workloads>,
    recorder: Recorder,
}

fn budgets() -> ApiResource {
    ApiResource::typed::<k8s_openapi::api::policy::v1::PodDisruptionBudget>()
}

/// Runs until shutdown.
pub async fn run(context: Context) {
    let (mut builder, mut stale) = (Builder::new(&context), Builder::new(&context));
    let mut workloads = |kind, group, resource| Workloads { kind, group, informer: builder.watch(&resource) };
    let workloads = vec![
        workloads("ReplicationController", "", ApiResource::typed::<ReplicationController>()),
        workloads("ReplicaSet", "apps", ApiResource::typed::<ReplicaSet>()),
        workloads("Deployment", "apps", ApiResource::typed::<Deployment>()),
        workloads("StatefulSet", "apps", ApiResource::typed::<StatefulSet>()),
    ];
    let c = Arc::new(Controller {
        budgets: builder.watch(&budgets()),
        pods: builder.watch(&pods()),
        workloads,
        recorder: context.recorder_as("controllermanager"),
        context,
    });
    stale.wait_for(&c.pods);
    builder.enqueue(&c.budgets);
    builder.handle(&c, &c.pods, Controller::pod_changed);
    stale.on_change(&c.pods, |change, queue| {
        if change.new.as_ref().is_some_and(|p| disrupted_since(p).is_some()) {
            queue.add(change.key());
        }
    });
    let conditions = stale.run_as("stale-pod-disruption", 1, Arc::new(StaleConditions(c.clone())));
    tokio::join!(builder.run(1, c.clone()), conditions);
}

impl Controller {
    fn budgets_of(&self, pod: &Meta) -> Vec<Key> {
        let cache = self.budgets.cache();
        let all = cache.in_namespace(&pod.namespace);
        all.filter(|b| b.view.spec.selector.0.matches(|k| pod.label(k))).map(|b| b.key()).collect()
    }

    fn pod_changed(&self, change: &Change<Pod>, queue: &WorkQueue<Key>) {
        let latest = &change.latest().meta;
        let own = self.budgets_of(latest);
        if own.len() > 1 {
            let (ns, name) = (&latest.namespace, &latest.name);
            let text = format!(
                "Pod {ns:?}/{name:?} matches multiple PodDisruptionBudgets.  Chose {:?} arbitrarily.",
                &*own[0].name
            );
            self.recorder.warning(about_pod(latest), "MultiplePodDisruptionBudgets", text);
        }
        own.into_iter().for_each(|k| queue.add(k));
        if let Some(old) = change.old.as_ref().filter(|o| o.meta.labels != latest.labels) {
            self.budgets_of(&old.meta).into_iter().for_each(|k| queue.add(k));
        }
    }

    /// The sum of the sizes of the pods' controllers, and whether a pod has none.
    async fn scale(&self, pods: &[Arc<PodEntry>]) -> Result<(i64, bool), Error> {
        let mut known: BTreeSet<Arc<str>> = BTreeSet::new();
        let mut sizes: BTreeMap<Arc<str>, i64> = BTreeMap::new();
        let mut unmanaged = false;
        for pod in pods {
            let Some(owner) = pod.meta.controller() else {
                unmanaged = true;
                continue;
            };
            if !known.insert(owner.uid.clone()) {
                continue;
            }
            let Some((uid, size)) = self.size(owner, &pod.meta.namespace).await? else {
                return Err(Error::Waiting(format!("found no controllers for pod {:?}", &*pod.meta.name)));
            };
            sizes.insert(uid, size);
        }
        Ok((sizes.values().sum(), unmanaged))
    }

    /// The UID and size of the workload that decides how many pods there are: of a Deployment instead of its ReplicaSets.
    async fn size(&self, owner: &Owner, namespace: &str) -> Result<Option<(Arc<str>, i64)>, Error> {
        let key = Key::new(namespace, owner.name.as_str());
        if let Some(workloads) = self.workloads.iter().find(|w| is_of(owner, w)) {
            let Some(entry) = workloads.informer.get(&key).filter(|e| e.meta.uid == owner.uid) else {
                return Ok(None);
            };
            let above = entry.meta.controller().filter(|o| workloads.kind == "ReplicaSet" && o.kind == "Deployment");
            if let Some(above) = above {
                return Box::pin(self.size(above, namespace)).await;
            }
            return Ok(Some((entry.meta.uid.clone(), entry.view.spec.replicas.unwrap_or(1))));
        }
        let scalable = Scalable::find(&self.context.client, namespace, &owner.api_version, &owner.kind).await?;
        let Some(scale) = scalable.get(&owner.name).await?.filter(|s| s.uid() == &*owner.uid) else {
            return Ok(None);
        };
        Ok(Some((owner.uid.clone(), scale.int_at(&["spec", "replicas"]).unwrap_or(0))))
    }

    /// Counts the pods of a budget; returns its status and when to count again.
    async fn count(
        &self,
        budget: &Object,
        pods: &[Arc<PodEntry>],
    ) -> Result<(Map<String, Value>, Option<Timestamp>), Error> {
        let now = self.context.now();
        let about = || Regarding::object(budget);
        if pods.is_empty() {
            self.recorder.normal(about(), "NoPods", "No matching pods found");
        }
        let rule = Rule::read(budget);
        let mut scale = 0;
        if rule.needs_scale() {
            let counted = self.scale(pods).await.inspect_err(|e| {
                let text = format!("Failed to calculate the number of expected pods: {e}");
                self.recorder.warning(about(), "CalculateExpectedPodCountFailed", text);
            })?;
            if counted.1 {
                let text = format!(
                    "Pods selected by this PodDisruptionBudget (selector: {}) were found to be unmanaged. As a result, the status of the PDB cannot \
                     be calculated correctly, which may result in undefined behavior. To account for these pods please set \".spec.minAvailable\" \
                     field of the PDB to an integer value.",
                    selector_text(budget.at(&["spec", "selector"]))
                );
                self.recorder.warning(about(), "UnmanagedPods", text);
            }
            scale = counted.0;
        }
        let verdict = budget::check(budget, &rule, pods, scale, now);
        for pod in pods.iter().filter(|p| verdict.not_deleted.iter().any(|n| **n == *p.meta.name)) {
            let text =
                format!("Pod was expected by PDB {}/{} to be deleted but it wasn't", budget.namespace(), budget.name());
            self.recorder.warning(about_pod(&pod.meta), "NotDeleted", text);
        }
        Ok((budget::status(budget, &verdict, now), verdict.recheck))
    }

    /// Writes the status unless it is already there. A conflict is tried again with the next version, since evictions change it too.
    async fn write(&self, budget: &Object, status: Map<String, Value>) -> Result<(), Error> {
        if budget.get("status").and_then(Value::as_object) == Some(&status) {
            return Ok(());
        }
        let mut next = budget.clone();
        next.set(&["status"], status);
        let api = self.context.client.dynamic(&budgets()).namespace(budget.namespace());
        optional(api.update_status(budget.name(), &WriteOptions::default(), &next).await)?;
        Ok(())
    }
}

/// Whether a controller reference names a workload of this kind.
fn is_of(owner: &Owner, w: &Workloads) -> bool {
    let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
    owner.kind == w.kind && (group == w.group || group == "extensions" && w.group == "apps" && w.kind != "StatefulSet")
}

fn about_pod(pod: &Meta) -> Regarding {
    Regarding::from_meta("v1", "Pod", pod)
}

impl Reconcile for Controller {
    type Key = Key;

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(entry) = self.budgets.get(&key) else { return Ok(Outcome::Done) };
        let budget = object(&budgets(), &entry)?;
        let selector = &entry.view.spec.selector.0;
        let mut pods: Vec<Arc<PodEntry>> = {
            let cache = self.pods.cache();
            cache.in_namespace(&key.namespace).filter(|p| selector.matches(|k| p.meta.label(k))).cloned().collect()
        };
        pods.sort_by(|a, b| a.meta.name.cmp(&b.meta.name));
        match self.count(&budget, &pods).await {
            Ok((status, recheck)) => {
                self.write(&budget, status).await?;
                let now = self.context.now();
                Ok(recheck
                    .map_or(Outcome::Done, |at| Outcome::After(at.duration_since(now).try_into().unwrap_or_default())))
            }
            Err(e) => {
                let status = budget::failed(&budget, &e.to_string(), self.context.now());
                self.write(&budget, status).await?;
                match e {
                    // The cache may show a pod before its controller.
                    Error::Api(_) | Error::Waiting(_) => Err(e),
                    // The next change of the budget or of a pod may help, time does not: a DaemonSet has no scale.
                    Error::Invalid { .. } | Error::Unsupported(_) => Ok(Outcome::Done),
                }
            }
        }
    }
}

/// Since when a pod that is neither deleted nor finished has the condition `DisruptionTarget`. The one that its kubelet set stays.
fn disrupted_since(pod: &PodEntry) -> Option<Timestamp> {
    if pod.meta.is_deleting() || pod.view.is_terminal() {
        return None;
    }
    let condition = pod.view.condition("DisruptionTarget")?;
    if &*condition.status != "True" || &*condition.reason == "TerminationByKubelet" {
        return None;
    }
    condition.last_transition_time
}

/// Takes back the condition `DisruptionTarget` of pods that stay.
struct StaleConditions(Arc<Controller>);

impl Reconcile for StaleConditions {
    type Key = Key;

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let c = &self.0;
        let Some(pod) = c.pods.get(&key) else { return Ok(Outcome::Done) };
        let Some(since) = disrupted_since(&pod) else { return Ok(Outcome::Done) };
        let now = c.context.now();
        let left = STALE - now.duration_since(since);
        if left.is_positive() {
            return Ok(Outcome::After(left.try_into().unwrap_or_default()));
        }
        let condition = json!({"type": "DisruptionTarget", "status": "False", "reason": null, "message": null,
            "lastTransitionTime": meta::time::format(now)});
        let patch = json!({"metadata": {"uid": &*pod.meta.uid, "resourceVersion": pod.meta.resource_version},
            "status": {"conditions": [condition]}});
        let api = c.context.client.dynamic(&pods()).namespace(&key.namespace);
        let result = api.patch_status(&key.name, &WriteOptions::default(), &Patch::Strategic(patch)).await;
        optional(result)?;
        Ok(Outcome::Done)
    }
}
