//! ReplicaSets and ReplicationControllers keep the desired number of pods (upstream `replica_set.go`).
//!
//! Two controllers share this module; a [`Family`] has their differences. Invariant: no pod is created or deleted while the cache does
//! not show earlier creations and deletions.

mod rank;
mod status;

use crate::consistency::{CACHE_DELAY, Known};
use crate::context::{Context, Error, object, put_status};
use crate::controller::{Builder, Reconcile};
use crate::meters;
use crate::ownership::{Claims, Owners, candidates};
use crate::pod_control::{BURST, PodControl, Supply, pod_from_template, slow_start};
use crate::views::{Pod, PodEntry, Selector, is_active, pods};
use client::{Api, ApiResource, Change, Entry, Expectations, Informer, Key, Outcome, Recorder, WorkQueue};
use futures::future::join_all;
use meta::{LabelSelector, Object, Value};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub use rank::{Weighed, order};
pub use status::{Failure, calculate};

/// One of the two kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    ReplicaSet,
    ReplicationController,
}

impl Family {
    pub fn resource(self) -> ApiResource {
        match self {
            Self::ReplicaSet => ApiResource::typed::<k8s_openapi::api::apps::v1::ReplicaSet>(),
            Self::ReplicationController => ApiResource::typed::<k8s_openapi::api::core::v1::ReplicationController>(),
        }
    }

    fn kind(self) -> &'static str {
        match self {
            Self::ReplicaSet => "ReplicaSet",
            Self::ReplicationController => "ReplicationController",
        }
    }

    /// An empty selector of a ReplicationController selects nothing.
    fn selector(self, selector: Option<&Value>) -> Result<LabelSelector, Error> {
        match self {
            Self::ReplicaSet => {
                LabelSelector::from_value(selector).map_err(|why| Error::Invalid { what: "selector", why })
            }
            Self::ReplicationController => {
                let map = selector.and_then(Value::as_object).filter(|m| !m.is_empty());
                Ok(map.map_or_else(LabelSelector::none, |m| {
                    LabelSelector::from_map(m.iter().map(|(k, v)| (k.as_str(), v.as_str().unwrap_or_default())))
                }))
            }
        }
    }
}

/// The fields of a replica set that its controller reads from the cache.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SetView {
    spec: SetSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SetSpec {
    selector: Selector,
}

struct Controller {
    family: Family,
    context: Context,
    resource: ApiResource,
    sets: Informer<SetView>,
    owners: Owners<SetView>,
    pods: Informer<Pod>,
    expected: Arc<Expectations<Key>>,
    known: Known,
    supply: Supply,
    recorder: Recorder,
}

/// Runs until shutdown.
pub async fn run(family: Family, context: Context) {
    let mut builder = Builder::new(&context);
    let resource = family.resource();
    let pods = builder.watch(&pods());
    let sets = builder.watch(&resource);
    let c = Arc::new(Controller {
        family,
        owners: Owners::new(family.kind(), &sets, |s: &SetView| &s.spec.selector),
        sets,
        supply: Supply::new(&pods),
        pods,
        expected: Arc::default(),
        known: Known::default(),
        recorder: context.recorder(),
        resource,
        context,
    });
    builder.handle(&c, &c.sets, Controller::set_changed);
    builder.handle(&c, &c.pods, Controller::pod_changed);
    builder.run(5, c).await;
}

impl Controller {
    fn set_changed(&self, c: &Change<SetView>, queue: &WorkQueue<Key>) {
        self.known.observe(c);
        self.owners.enqueue_owner(c, &self.expected, queue);
    }

    fn pod_changed(&self, c: &Change<Pod>, queue: &WorkQueue<Key>) {
        self.owners.observe(c, &self.expected);
        self.owners.enqueue(c, queue);
    }
}

impl Reconcile for Controller {
    type Key = Key;

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        self.known.begin();
        let Some(entry) = self.sets.get(&key) else {
            self.expected.forget(&key);
            return Ok(Outcome::Done);
        };
        let set = object(&self.resource, &entry)?;
        let may_act = self.expected.satisfied(&key);
        let selector = self.family.selector(set.at(&["spec", "selector"]))?;
        let pod_api = self.context.client.dynamic(&pods()).namespace(&key.namespace);
        let set_api = self.context.client.dynamic(&self.resource).namespace(&key.namespace);

        let candidates: Vec<Arc<PodEntry>> =
            candidates(&self.pods, &key.namespace, &entry.meta.uid, |pod| selector.matches(|k| pod.label(k)));
        let mut active = Vec::new();
        let mut terminating = 0;
        let mut claims = Claims::new(&set, &set_api, &pod_api);
        for p in candidates {
            if p.view.is_terminal() {
                continue;
            }
            if p.meta.is_deleting() {
                let ours = p.meta.controller().is_some_and(|o| o.uid == entry.meta.uid);
                terminating += usize::from(ours && selector.matches(|k| p.meta.label(k)));
            } else if claims.claim(selector.matches(|k| p.meta.label(k)), &p.meta).await? {
                active.push(p);
            }
        }
        active.sort_by(|a, b| a.meta.name.cmp(&b.meta.name));
        let acts =
            may_act && !set.is_deleting() && active.len() as i64 != set.int_at(&["spec", "replicas"]).unwrap_or(1);
        if acts && !self.known.has(&set) {
            let current = self.known.is_current(&set, &selector, &pod_api, &self.pods).await?;
            // Pods were read from the cache before.
            return Ok(Outcome::After(if current { Duration::ZERO } else { CACHE_DELAY }));
        }

        let managed =
            if may_act && !set.is_deleting() { self.manage(&key, &set, &active, &pod_api).await } else { Ok(None) };
        let failure = managed.as_ref().err().map(|(f, _)| f);
        let now = self.context.now();
        let views: Vec<&PodEntry> = active.iter().map(|p| &**p).collect();
        let status = calculate(&set, &views, terminating, failure, now);
        self.write_status(&set_api, &set, status).await?;
        match managed {
            Err((_, e)) => return Err(e.into()),
            Ok(Some(wait)) => return Ok(Outcome::After(wait)),
            Ok(None) => {}
        }
        // Only time makes a ready pod available.
        let min_ready = set.int_at(&["spec", "minReadySeconds"]).unwrap_or(0);
        let soonest = views
            .iter()
            .filter(|p| p.view.is_ready() && !p.view.is_available(min_ready, now))
            .filter_map(|p| p.view.available_in(min_ready, now))
            .min();
        Ok(match soonest {
            Some(s) if min_ready > 0 => Outcome::After(meta::time::seconds(s.max(1))),
            _ => Outcome::Done,
        })
    }
}

impl Controller {
    /// Creates or deletes pods until the desired number is reached. Returns how long to wait if none may be created now.
    async fn manage(
        &self,
        key: &Key,
        set: &Object,
        active: &[Arc<PodEntry>],
        pod_api: &Api<Object>,
    ) -> Result<Option<Duration>, (Failure, client::Error)> {
        let wish = set.int_at(&["spec", "replicas"]).unwrap_or(1).max(0) as usize;
        let control = PodControl { pods: pod_api, recorder: &self.recorder, owner: set };
        if active.len() < wish {
            let allowance = match self.supply.take(&key.namespace, (wish - active.len()).min(BURST)) {
                Ok(allowance) => allowance,
                Err(wait) => return Ok(Some(wait)),
            };
            let n = allowance.count;
            let template = set.at(&["spec", "template"]).cloned().unwrap_or_default();
            let pod = pod_from_template(&template, set);
            self.expected.expect_creations(key, n);
            let (done, failure) = slow_start(n, |_| async {
                match control.create(&pod).await {
                    Ok(_) => Ok(()),
                    // The namespace is being deleted.
                    Err(e) if e.is_namespace_terminating() => {
                        self.expected.creation_observed(key);
                        Ok(())
                    }
                    Err(e) => Err(e),
                }
            })
            .await;
            for _ in done..n {
                self.expected.creation_observed(key);
            }
            if let Some(e) = failure {
                return Err((Failure { reason: "FailedCreate", message: e.to_string() }, e));
            }
        } else if active.len() > wish {
            let n = (active.len() - wish).min(BURST);
            let going = self.choose(set, active, n);
            self.expected.expect_deletions(key, going.iter().map(|p| p.meta.uid.to_string()));
            let results = join_all(going.iter().map(|p| async {
                let r = control.delete(&p.meta.name, &p.meta.uid).await;
                if r.is_err() {
                    self.expected.deletion_observed(key, &p.meta.uid);
                }
                r
            }))
            .await;
            if let Some(e) = results.into_iter().filter_map(Result::err).find(|e| !e.is_not_found() && !e.is_conflict())
            {
                return Err((Failure { reason: "FailedDelete", message: e.to_string() }, e));
            }
        }
        Ok(None)
    }

    /// The `n` pods to delete.
    fn choose(&self, set: &Object, active: &[Arc<PodEntry>], n: usize) -> Vec<Arc<PodEntry>> {
        if n >= active.len() {
            return active.to_vec();
        }
        // Pods of the sets of the same deployment count as siblings. Upstream knows none for a set without an owner.
        let mut on_node: BTreeMap<Box<str>, usize> = BTreeMap::new();
        {
            let sets = self.sets.cache();
            let cache = self.pods.cache();
            let uids: Vec<Arc<str>> = match set.controller_of() {
                Some(o) => sets.controlled_by(o.uid).map(|s: &Arc<Entry<SetView>>| s.meta.uid.clone()).collect(),
                None => Vec::new(),
            };
            for uid in uids {
                for p in cache.controlled_by(&uid).filter(|p| is_active(p)) {
                    *on_node.entry(p.view.spec.node_name.clone()).or_default() += 1;
                }
            }
        }
        let now = self.context.now();
        let mut weighed: Vec<(Weighed<'_>, &Arc<PodEntry>)> = active
            .iter()
            .map(|p| (Weighed { pod: p, doubled: on_node.get(&p.view.spec.node_name).copied().unwrap_or(0) }, p))
            .collect();
        weighed.sort_by(|a, b| order(&a.0, &b.0, now));
        let going: Vec<Arc<PodEntry>> = weighed.into_iter().take(n).map(|(_, p)| p.clone()).collect();
        for ratio in rank::age_ratios(active, &going, now) {
            meters::observe(&meters::DELETION_AGE_RATIO, &[], ratio);
        }
        going
    }

    async fn write_status(
        &self,
        api: &Api<Object>,
        set: &Object,
        status: meta::Map<String, Value>,
    ) -> Result<(), client::Error> {
        if set.get("status").and_then(Value::as_object) == Some(&status) {
            return Ok(());
        }
        put_status(api, set, |s| s.set(&["status"], status.clone())).await
    }
}
