//! StatefulSets: pods with a name, an ordinal and claims of their own (upstream `pkg/controller/statefulset`).
//!
//! [`plan`] decides what to do next, [`identity`] what pods and claims look like, [`retention`] who owns claims; this module carries
//! it out. Invariant: at most one pod per ordinal, which its name guarantees even with a stale cache.

mod identity;
mod plan;
mod retention;
mod status;

use crate::context::{Context, Error, object, put_status};
use crate::controller::{Builder, Reconcile};
use crate::history::{self, History, Revisions, revisions};
use crate::meters;
use crate::ownership::{Claims, Owners, owner_references};
use crate::pod_control::{Supply, slow_start};
use crate::views::{Pod, Selector, pods};
use client::{
    Api, ApiResource, Change, DeleteOptions, Entry, Informer, Key, Outcome, Recorder, Regarding, WorkQueue,
    WriteOptions, optional,
};
use meta::{LabelSelector, Object};
use plan::{Action, Member, Spec};
use retention::{Policy, Verdict};
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;

/// The fields of a StatefulSet that its controller reads from the cache.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SetView {
    spec: SetSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct SetSpec {
    selector: Selector,
}

struct Controller {
    context: Context,
    sets: Informer<SetView>,
    owners: Owners<SetView>,
    pods: Informer<Pod>,
    claims: Informer<()>,
    revisions: Informer<()>,
    supply: Supply,
    recorder: Recorder,
}

fn stateful_sets() -> ApiResource {
    ApiResource::typed::<k8s_openapi::api::apps::v1::StatefulSet>()
}

fn claims() -> ApiResource {
    ApiResource::typed::<k8s_openapi::api::core::v1::PersistentVolumeClaim>()
}

/// Runs until shutdown.
pub async fn run(context: Context) {
    let mut builder = Builder::new(&context);
    let sets = builder.watch(&stateful_sets());
    let pods = builder.watch(&pods());
    let c = Arc::new(Controller {
        owners: Owners::new("StatefulSet", &sets, |s: &SetView| &s.spec.selector),
        sets,
        supply: Supply::new(&pods),
        pods,
        claims: builder.watch(&claims()),
        revisions: builder.watch(&revisions()),
        recorder: context.recorder(),
        context,
    });
    builder.enqueue(&c.sets);
    builder.handle(&c, &c.pods, Controller::pod_changed);
    builder.run(5, c).await;
}

impl Controller {
    fn pod_changed(&self, change: &Change<Pod>, queue: &WorkQueue<Key>) {
        self.owners.enqueue(change, queue);
    }
}

impl Reconcile for Controller {
    type Key = Key;

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(entry) = self.sets.get(&key) else {
            for policy in ["OrderedReady", "Parallel"] {
                for row in [meters::STATEFULSET_MAX_UNAVAILABLE, meters::STATEFULSET_UNAVAILABLE] {
                    meters::remove(&row, &[&key.namespace, &key.name, policy]);
                }
            }
            return Ok(Outcome::Done);
        };
        let set = object(&stateful_sets(), &entry)?;
        let selector = LabelSelector::from_value(set.at(&["spec", "selector"]))
            .map_err(|why| Error::Invalid { what: "selector", why })?;
        let client = &self.context.client;
        let sets = client.dynamic(&stateful_sets()).namespace(&key.namespace);
        let pod_api = client.dynamic(&pods()).namespace(&key.namespace);
        let is_member = |name: &str| identity::parent_and_ordinal(name).is_some_and(|(parent, _)| parent == set.name());
        let own = Claims::new(&set, &sets, &pod_api)
            .claim_all(|p| selector.matches(|k| p.label(k)) && is_member(&p.name), &self.pods)
            .await?;
        let history = Revisions::new(&set, &sets).sync(&selector, &self.revisions).await?;
        let work = Work {
            c: self,
            spec: Spec::read(&set),
            policy: Policy::read(&set),
            claim_api: client.dynamic(&claims()).namespace(&key.namespace),
            set,
            sets,
            pod_api,
            history,
        };
        work.reconcile(&own).await
    }
}

/// One reconcile of one set.
struct Work<'a> {
    c: &'a Controller,
    set: Object,
    spec: Spec,
    policy: Policy,
    history: History,
    sets: Api<Object>,
    pod_api: Api<Object>,
    claim_api: Api<Object>,
}

impl Work<'_> {
    async fn reconcile(&self, own: &[Arc<Entry<Pod>>]) -> Result<Outcome, Error> {
        let now = self.c.context.now();
        let members = own.iter().map(|p| self.member(p)).collect::<Result<Vec<_>, _>>()?;
        let current = self.current();
        let mut status = status::calculate(&self.set, own, current.name(), self.history.update.name(), now);
        let policy = if self.spec.parallel { "Parallel" } else { "OrderedReady" };
        let labels = [self.set.namespace(), self.set.name(), policy];
        let most = usize::try_from(self.spec.max_unavailable.unwrap_or(1)).unwrap_or(0);
        meters::set(&meters::STATEFULSET_MAX_UNAVAILABLE, &labels, most);
        let missing = usize::try_from(self.spec.replicas - status.available).unwrap_or(0);
        meters::set(&meters::STATEFULSET_UNAVAILABLE, &labels, missing);
        let result = if self.set.is_deleting() {
            Ok((0, None))
        } else {
            let blocked = |ordinal| self.is_blocked(ordinal);
            let steps = plan::plan(&self.spec, &members, blocked, self.history.update.name(), now);
            self.execute(steps, current).await
        };
        if let Ok((updated, _)) = &result {
            status::subtract_updated(&mut status, *updated);
        }
        status::complete(&self.set, &mut status);
        status.collisions = self.history.collisions;
        let written = self.write_status(&status).await;
        let used = |r: &Object| {
            let name = r.name();
            name == current.name() || own.iter().any(|p| identity::revision(&p.meta) == name)
        };
        let unused = self.history.others.iter().filter(|r| !used(r)).count();
        let excess = unused.saturating_sub(history::limit(&self.set));
        let truncated = Revisions::new(&self.set, &self.sets).truncate(&self.history.others, excess, used).await;
        let (_, wait) = result?;
        written?;
        truncated?;
        // Only time makes a ready pod available.
        let min_ready = self.spec.min_ready_seconds;
        let waiting = own.iter().filter(|p| p.view.is_ready() && !p.view.is_available(min_ready, now));
        let soonest = waiting.filter_map(|p| p.view.available_in(min_ready, now)).min();
        let soonest = soonest.map(|s| meta::time::seconds(s.max(1)));
        Ok(soonest.into_iter().chain(wait).min().map_or(Outcome::Done, Outcome::After))
    }

    /// The revision that replicas below the partition have.
    fn current(&self) -> &Object {
        let name = self.set.str_at(&["status", "currentRevision"]).unwrap_or_default();
        self.history.others.iter().find(|r| r.name() == name).unwrap_or(&self.history.update)
    }

    fn member(&self, pod: &Arc<Entry<Pod>>) -> Result<Member, Error> {
        let ordinal = identity::parent_and_ordinal(&pod.meta.name).map_or(-1, |(_, ordinal)| ordinal);
        let claims = identity::claim_names(&self.set, ordinal);
        let has_storage = claims.is_empty() || {
            let whole = object(&pods(), pod)?;
            identity::storage_matches(&self.set, &whole, ordinal)
        };
        let claims_match = claims.iter().all(|name| self.verdict(name, pod, ordinal).is_none_or(|(_, v)| v.is_fine()));
        Ok(Member {
            ordinal,
            pod: pod.clone(),
            matches: identity::identity_matches(&pod.meta) && has_storage,
            claims_match,
        })
    }

    fn claim(&self, name: &str) -> Option<Arc<Entry<()>>> {
        self.c.claims.get(&Key::new(self.set.namespace(), name))
    }

    /// A claim of a pod, if it exists, and how its owners compare with the retention policy.
    fn verdict(&self, claim: &str, pod: &Entry<Pod>, ordinal: i64) -> Option<(Arc<Entry<()>>, Verdict)> {
        let entry = self.claim(claim)?;
        let verdict = retention::check(self.policy, &entry.meta, &self.set, pod, self.spec.has_ordinal(ordinal));
        Some((entry, verdict))
    }

    /// Whether a claim of the ordinal is about to be deleted with an earlier pod.
    fn is_blocked(&self, ordinal: i64) -> bool {
        let pod = identity::pod_name(&self.set, ordinal);
        let claims = identity::claim_names(&self.set, ordinal);
        claims.iter().filter_map(|n| self.claim(n)).any(|c| retention::is_stale(self.policy, &c.meta, &pod, ""))
    }

    /// Carries out the steps; returns the number of pods that were deleted for an update, and how long to wait if not all that are
    /// missing may be created now.
    async fn execute(&self, steps: Vec<plan::Step>, current: &Object) -> Result<(usize, Option<Duration>), Error> {
        let (mut updated, mut wait) = (0, None);
        for mut step in steps {
            let creations = step.iter().filter(|a| matches!(a, Action::Create(_))).count();
            let allowance = match creations {
                0 | 1 => None,
                n => Some(self.c.supply.take(self.set.namespace(), n)),
            };
            if let Some(allowance) = &allowance {
                let mut left = allowance.as_ref().map_or(0, |a| a.count);
                wait = allowance.as_ref().err().copied();
                step.retain(|a| {
                    let is_creation = matches!(a, Action::Create(_));
                    let allowed = !is_creation || left > 0;
                    left -= usize::from(is_creation && allowed);
                    allowed
                });
            }
            let step = &step;
            updated += step.iter().filter(|a| matches!(a, Action::Update(_))).count();
            let (_, failure) = slow_start(step.len(), |i| self.act(&step[i], current)).await;
            if let Some(e) = failure {
                return Err(e);
            }
        }
        Ok((updated, wait))
    }

    async fn act(&self, action: &Action, current: &Object) -> Result<(), Error> {
        match action {
            Action::Create(ordinal) => self.create(*ordinal, current).await,
            Action::CreateClaims(m) => {
                self.create_claims(m.ordinal, &m.pod.meta.name).await?;
                self.update_claims(m).await
            }
            Action::Repair(m) => self.repair(m).await,
            Action::UpdateClaims(m) => self.update_claims(m).await,
            Action::Delete(m) | Action::Update(m) => self.delete(m).await,
        }
    }

    async fn create(&self, ordinal: i64, current: &Object) -> Result<(), Error> {
        let revision =
            if ordinal < self.spec.start.saturating_add(self.spec.partition) { current } else { &self.history.update };
        let pod = identity::new_pod(&history::restore(&self.set, revision), ordinal, revision.name());
        if let Err(e) = self.create_claims(ordinal, pod.name()).await {
            self.record("Create", pod.name(), Some(&e));
            return Err(e);
        }
        match self.pod_api.create(&WriteOptions::default(), &pod).await {
            Ok(made) => {
                self.record("Create", made.name(), None);
                Ok(())
            }
            // The cache does not have it yet, or it is another's.
            Err(e) if e.is_already_exists() => Err(e.into()),
            Err(e) => {
                let e = e.into();
                self.record("Create", pod.name(), Some(&e));
                Err(e)
            }
        }
    }

    /// Creates the claims of an ordinal that are missing.
    async fn create_claims(&self, ordinal: i64, pod: &str) -> Result<(), Error> {
        let mut failures = Vec::new();
        for claim in identity::claims(&self.set, ordinal) {
            if let Some(held) = self.claim(claim.name()) {
                if held.meta.is_deleting() {
                    failures.push(format!("pvc {} is being deleted", claim.name()));
                }
                continue;
            }
            match self.claim_api.create(&WriteOptions::default(), &claim).await {
                Ok(_) => self.record_claim(claim.name(), pod, None),
                Err(e) => {
                    if !e.is_already_exists() {
                        self.record_claim(claim.name(), pod, Some(&e));
                    }
                    failures.push(format!("failed to create PVC {}: {e}", claim.name()));
                }
            }
        }
        match failures.as_slice() {
            [] => Ok(()),
            [one] => Err(Error::Waiting(one.clone())),
            all => Err(Error::Waiting(format!("[{}]", all.join(", ")))),
        }
    }

    /// Gives the claims of a pod the owners of the retention policy.
    async fn update_claims(&self, m: &Member) -> Result<(), Error> {
        for name in identity::claim_names(&self.set, m.ordinal) {
            let Some((entry, verdict)) = self.verdict(&name, &m.pod, m.ordinal) else { continue };
            let owners = match verdict {
                Verdict::Fits => continue,
                Verdict::Replace(owners) => Some(owners),
                Verdict::Conflict(owners) => {
                    let text = format!(
                        "PersistentVolumeClaim {name} has a conflicting OwnerReference that acts as a manging controller, \
                         the retention policy is ignored for this claim"
                    );
                    self.c.recorder.warning(Regarding::object(&self.set), "ConflictingController", text);
                    owners
                }
            };
            let Some(owners) = owners else { continue };
            let mut claim = object(&claims(), &entry)?;
            claim.set(&["metadata", "ownerReferences"], owner_references(&owners));
            if let Err(e) = self.claim_api.update(&name, &WriteOptions::default(), &claim).await {
                let e = Error::Waiting(format!("could not update claim {name} for delete policy ownerRefs: {e}"));
                self.record("Update", &m.pod.meta.name, Some(&e));
                return Err(e);
            }
        }
        Ok(())
    }

    /// Gives a pod its labels, volumes and claims.
    async fn repair(&self, m: &Member) -> Result<(), Error> {
        if !m.claims_match {
            self.update_claims(m).await?;
        }
        if m.matches {
            // Upstream writes the unchanged pod, too.
            self.record("Update", &m.pod.meta.name, None);
            return Ok(());
        }
        let mut pod = object(&pods(), &m.pod)?;
        identity::conform(&self.set, &mut pod, m.ordinal);
        self.create_claims(m.ordinal, pod.name()).await?;
        let result = self.pod_api.update(pod.name(), &WriteOptions::default(), &pod).await;
        let result = result.map(|_| ()).map_err(Error::from);
        self.record("Update", pod.name(), result.as_ref().err());
        result
    }

    async fn delete(&self, m: &Member) -> Result<(), Error> {
        let name = &m.pod.meta.name;
        let result = optional(self.pod_api.delete(name, &DeleteOptions::uid(&m.pod.meta.uid)).await);
        let result = result.map(|_| ()).map_err(Error::from);
        self.record("Delete", name, result.as_ref().err());
        result
    }

    async fn write_status(&self, status: &status::Status) -> Result<(), Error> {
        if !status::differs(&self.set, status) {
            return Ok(());
        }
        Ok(put_status(&self.sets, &self.set, |set| status::write(set, status)).await?)
    }

    /// Records an event about a pod.
    fn record(&self, verb: &str, pod: &str, failure: Option<&Error>) {
        let (about, set) = (Regarding::object(&self.set), self.set.name());
        match failure {
            None => {
                let text = format!("{verb} Pod {pod} in StatefulSet {set} successful");
                self.c.recorder.normal(about, &format!("Successful{verb}"), text);
            }
            Some(e) => {
                let text = format!("{verb} Pod {pod} in StatefulSet {set} failed error: {e}");
                self.c.recorder.warning(about, &format!("Failed{verb}"), text);
            }
        }
    }

    /// Records an event about a claim that was created or not.
    fn record_claim(&self, claim: &str, pod: &str, failure: Option<&client::Error>) {
        let (about, set) = (Regarding::object(&self.set), self.set.name());
        match failure {
            None => {
                let text = format!("Create Claim {claim} Pod {pod} in StatefulSet {set} success");
                self.c.recorder.normal(about, "SuccessfulCreate", text);
            }
            Some(e) => {
                let text = format!("Create Claim {claim} for Pod {pod} in StatefulSet {set} failed error: {e}");
                self.c.recorder.warning(about, "FailedCreate", text);
            }
        }
    }
}
