//! Deployments: replica sets that replace each other (upstream `pkg/controller/deployment`).
//!
//! [`rolling`] decides sizes and [`status`] statuses; this module carries them out. Invariant: at most one step of a rollout per
//! reconcile, each decided from a cache that shows all earlier steps, so that a stale cache delays a rollout and never lets it exceed its
//! limits. (Upstream's controller does not wait for its cache: it can forget a set that it created a moment ago.)

pub mod rollback;
pub mod rolling;
pub mod sets;
pub mod status;

use crate::consistency::{CACHE_DELAY, DependentWrites, Known};
use crate::context::{Context, Error, object};
use crate::controller::{Builder, Reconcile};
use crate::ownership::{Claims, Owners};
use crate::views::{Pod, Selector, pods};
use client::{
    Api, ApiResource, Change, DeleteOptions, Informer, Key, Outcome, Pace, Recorder, Regarding, WorkQueue, WriteOptions,
};
use meta::{LabelSelector, Map, Object, Value};
use rolling::{max_surge, total};
use serde::Deserialize;
use sets::{replicas, revision};
use status::Condition;
use std::sync::Arc;

/// The fields of deployments that the controller reads from the cache.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DeploymentView {
    spec: DeploymentSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct DeploymentSpec {
    selector: Selector,
    strategy: Strategy,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Strategy {
    r#type: String,
}

struct Controller {
    context: Context,
    deployments: Informer<DeploymentView>,
    owners: Owners<DeploymentView>,
    sets: Informer<()>,
    pods: Informer<Pod>,
    pace: Pace<Key>,
    writes: DependentWrites,
    known: Known,
    recorder: Recorder,
}

fn deployments() -> ApiResource {
    ApiResource::typed::<k8s_openapi::api::apps::v1::Deployment>()
}

fn replica_sets() -> ApiResource {
    ApiResource::typed::<k8s_openapi::api::apps::v1::ReplicaSet>()
}

/// Runs until shutdown.
pub async fn run(context: Context) {
    let mut builder = Builder::new(&context);
    let deployments = builder.watch(&deployments());
    let c = Arc::new(Controller {
        owners: Owners::new("Deployment", &deployments, |d: &DeploymentView| &d.spec.selector),
        deployments,
        sets: builder.watch(&replica_sets()),
        pods: builder.watch(&pods()),
        pace: Pace::default(),
        writes: DependentWrites::default(),
        known: Known::default(),
        recorder: context.recorder(),
        context,
    });
    builder.handle(&c, &c.deployments, Controller::deployment_changed);
    builder.handle(&c, &c.sets, Controller::set_changed);
    builder.handle(&c, &c.pods, Controller::pod_changed);
    builder.run(5, c).await;
}

/// The replica sets of one deployment in one reconcile.
struct Owned {
    new: Option<Object>,
    old: Vec<Object>,
}

impl Owned {
    fn sets(&self) -> impl Iterator<Item = &Object> {
        self.old.iter().chain(&self.new)
    }
}

impl Controller {
    fn deployment_changed(&self, c: &Change<DeploymentView>, queue: &WorkQueue<Key>) {
        self.known.observe(c);
        queue.add(c.key());
    }

    fn set_changed(&self, c: &Change<()>, queue: &WorkQueue<Key>) {
        self.owners.enqueue(c, queue);
    }

    /// The Recreate strategy waits until the last old pod is gone.
    fn pod_changed(&self, c: &Change<Pod>, queue: &WorkQueue<Key>) {
        let (Some(old), None) = (&c.old, &c.new) else { return };
        let Some(owner) = old.meta.controller().filter(|o| o.kind == "ReplicaSet") else { return };
        let Some(set) = self.sets.get(&Key::new(old.meta.namespace.clone(), owner.name.as_str())) else { return };
        let Some(key) = self.owners.owner(&set.meta) else { return };
        if self.deployments.get(&key).is_some_and(|d| d.view.spec.strategy.r#type == "Recreate") {
            queue.add(key);
        }
    }
}

impl Reconcile for Controller {
    type Key = Key;

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        self.known.begin();
        let Some(entry) = self.deployments.get(&key) else {
            self.pace.forget(&key);
            self.writes.forget(&key);
            return Ok(Outcome::Done);
        };
        if let Some(delay) = self.pace.wait(&key, entry.meta.generation) {
            return Ok(Outcome::After(delay));
        }
        let d = object(&deployments(), &entry)?;
        let api = self.context.client.dynamic(&deployments()).namespace(&key.namespace);
        let set_api = self.context.client.dynamic(&replica_sets()).namespace(&key.namespace);
        let mut w = Work { c: self, key, d, api, set_api };
        w.reconcile().await
    }
}

/// One reconcile of one deployment. `d` is updated by each write.
struct Work<'a> {
    c: &'a Controller,
    key: Key,
    d: Object,
    api: Api<Object>,
    set_api: Api<Object>,
}

impl Work<'_> {
    async fn reconcile(&mut self) -> Result<Outcome, Error> {
        let selector = LabelSelector::from_value(self.d.at(&["spec", "selector"]))
            .map_err(|why| Error::Invalid { what: "selector", why })?;
        if selector.is_everything() {
            self.c.recorder.warning(
                Regarding::object(&self.d),
                "SelectingAll",
                "This deployment is selecting all pods. A non-empty selector is required.",
            );
            if sets::status(&self.d, "observedGeneration") < self.d.generation() {
                let mut s = status::status_of(&self.d);
                s.insert("observedGeneration".into(), self.d.generation().into());
                self.write_status(s).await?;
            }
            return Ok(Outcome::Done);
        }
        let (writes, known, sets) = (&self.c.writes, &self.c.known, &self.c.sets);
        if !writes.are_shown(&self.key, sets) || !known.is_current(&self.d, &selector, &self.set_api, sets).await? {
            return Ok(Outcome::After(CACHE_DELAY));
        }
        let all = self.claimed(&selector).await?;
        let (new, old) = sets::split(&self.d, all);
        let mut owned = Owned { new, old };
        let now = self.c.context.now();
        if self.d.is_deleting() {
            self.sync_new(&mut owned, Make::No).await?;
            let s = status::calculate(&self.d, owned.new.as_ref(), &owned.old, now);
            self.write_status(s).await?;
            return Ok(Outcome::Done);
        }
        self.check_paused().await?;
        let paused = self.d.at(&["spec", "paused"]) == Some(&Value::Bool(true));
        if paused {
            return self.scale_only(&mut owned, paused).await;
        }
        if let Some(to) = rollback::requested(&self.d) {
            return self.roll_back(owned, to).await;
        }
        if self.is_scaling(&owned) {
            return self.scale_only(&mut owned, paused).await;
        }
        if rolling::is_rolling(&self.d) { self.roll(owned).await } else { self.recreate(owned).await }
    }

    /// The replica sets of the deployment, after adopting and releasing.
    async fn claimed(&self, selector: &LabelSelector) -> Result<Vec<Object>, Error> {
        let owned = Claims::new(&self.d, &self.api, &self.set_api)
            .claim_all(|s| selector.matches(|k| s.label(k)), &self.c.sets)
            .await?;
        Ok(owned.iter().map(|s| object(&replica_sets(), s)).collect::<Result<_, _>>()?)
    }

    /// Sets the Progressing condition when a rollout is paused or resumed, so that paused time does not count for the deadline.
    async fn check_paused(&mut self) -> Result<(), Error> {
        if status::progress_deadline(&self.d).is_none() {
            return Ok(());
        }
        let mut s = status::status_of(&self.d);
        let reason = status::find(&s, "Progressing").and_then(|c| c["reason"].as_str()).unwrap_or_default();
        if reason == status::TIMED_OUT {
            return Ok(());
        }
        let paused = self.d.at(&["spec", "paused"]) == Some(&Value::Bool(true));
        let was_paused = reason == status::PAUSED;
        let c = match (paused, was_paused) {
            (true, false) => Condition::new("Progressing", "Unknown", status::PAUSED, "Deployment is paused"),
            (false, true) => Condition::new("Progressing", "Unknown", status::RESUMED, "Deployment is resumed"),
            _ => return Ok(()),
        };
        status::set_condition(&mut s, &c, self.c.context.now());
        self.write_status(s).await
    }

    fn is_scaling(&self, owned: &Owned) -> bool {
        owned
            .sets()
            .filter(|s| replicas(s) > 0)
            .any(|s| sets::annotated_count(s, sets::DESIRED_REPLICAS).is_some_and(|n| n != replicas(&self.d)))
    }

    /// Scales without a rollout: a paused deployment, or one whose size changed.
    async fn scale_only(&mut self, owned: &mut Owned, paused: bool) -> Result<Outcome, Error> {
        self.sync_new(owned, Make::No).await?;
        self.scale(owned).await?;
        if paused && rollback::requested(&self.d).is_none() {
            self.clean_up(owned).await?;
        }
        let now = self.c.context.now();
        let s = status::calculate(&self.d, owned.new.as_ref(), &owned.old, now);
        self.write_status(s).await?;
        Ok(Outcome::Done)
    }

    async fn scale(&mut self, owned: &mut Owned) -> Result<(), Error> {
        let active: Vec<&Object> = owned.sets().filter(|s| replicas(s) > 0).collect();
        let wish = replicas(&self.d);
        // One active set, or only a latest: it gets the whole size.
        let single = match active.as_slice() {
            [] => owned.new.as_ref().or_else(|| owned.old.iter().max_by(|a, b| sets::by_age(a, b))),
            [one] => Some(*one),
            _ => None,
        };
        if active.len() <= 1 {
            if let Some(s) = single.cloned()
                && replicas(&s) != wish
            {
                let s = self.resize(&s, wish).await?;
                replace(owned, s);
            }
            return Ok(());
        }
        let saturated = owned.new.as_ref().is_some_and(|n| {
            replicas(n) == wish
                && n.annotation(sets::DESIRED_REPLICAS).and_then(|v| v.parse().ok()) == Some(wish)
                && sets::status(n, "availableReplicas") == wish
        });
        if saturated {
            for s in owned.old.clone().iter().filter(|s| replicas(s) > 0) {
                let s = self.resize(s, 0).await?;
                replace(owned, s);
            }
            return Ok(());
        }
        if rolling::is_rolling(&self.d) {
            let sizes = rolling::proportional(&self.d, &active);
            let active: Vec<Object> = active.into_iter().cloned().collect();
            for (s, size) in active.iter().zip(sizes) {
                let s = self.resize(s, size).await?;
                replace(owned, s);
            }
        }
        Ok(())
    }

    /// Returns the deployment to a former revision, and ends the request for it.
    async fn roll_back(&mut self, mut owned: Owned, to: i64) -> Result<Outcome, Error> {
        self.sync_new(&mut owned, Make::Yes).await?;
        let all: Vec<&Object> = owned.sets().collect();
        let (mut next, report) = rollback::decide(&self.d, &all, to);
        next.remove(&["metadata", "annotations", sets::ROLLBACK_TO]);
        self.api.update(self.d.name(), &WriteOptions::default(), &next).await?;
        let about = Regarding::object(&self.d);
        match report {
            Ok(done) => self.c.recorder.normal(about, rollback::DONE, done),
            Err((reason, why)) => self.c.recorder.warning(about, reason, why),
        }
        Ok(Outcome::Done)
    }

    async fn roll(&mut self, mut owned: Owned) -> Result<Outcome, Error> {
        self.sync_new(&mut owned, Make::Yes).await?;
        let Some(new) = owned.new.clone() else { return Ok(Outcome::Done) };
        if let Some(size) = rolling::reconcile_new(&self.d, &new, &owned.old) {
            let s = self.resize(&new, size).await?;
            replace(&mut owned, s);
            return self.rollout_status(&owned).await;
        }
        let steps = rolling::reconcile_old(&self.d, &new, &owned.old);
        if !steps.is_empty() {
            for (i, size) in steps {
                owned.old[i] = self.resize(&owned.old[i], size).await?;
            }
            return self.rollout_status(&owned).await;
        }
        if status::is_complete(&self.d, &status::status_of(&self.d)) {
            self.clean_up(&owned).await?;
        }
        self.rollout_status(&owned).await
    }

    async fn recreate(&mut self, mut owned: Owned) -> Result<Outcome, Error> {
        self.sync_new(&mut owned, Make::No).await?;
        let mut stepped = false;
        for s in owned.old.clone().iter().filter(|s| replicas(s) > 0) {
            let s = self.resize(s, 0).await?;
            replace(&mut owned, s);
            stepped = true;
        }
        if stepped || self.old_pods_run(&owned) {
            return self.rollout_status(&owned).await;
        }
        if owned.new.is_none() {
            self.sync_new(&mut owned, Make::Yes).await?;
        }
        if let Some(n) = owned.new.clone()
            && replicas(&n) != replicas(&self.d)
        {
            owned.new = Some(self.resize(&n, replicas(&self.d)).await?);
            return self.rollout_status(&owned).await;
        }
        if status::is_complete(&self.d, &status::status_of(&self.d)) {
            self.clean_up(&owned).await?;
        }
        self.rollout_status(&owned).await
    }

    fn old_pods_run(&self, owned: &Owned) -> bool {
        if owned.old.iter().any(|s| sets::status(s, "replicas") > 0) {
            return true;
        }
        let cache = self.c.pods.cache();
        owned.old.iter().any(|s| cache.controlled_by(s.uid()).any(|p| !p.view.is_terminal()))
    }

    /// Updates the new set's annotations, or creates it (upstream `getNewReplicaSet`).
    async fn sync_new(&mut self, owned: &mut Owned, make: Make) -> Result<(), Error> {
        let next = owned.old.iter().map(revision).max().unwrap_or(0).saturating_add(1);
        let mut progress = None;
        if let Some(held) = &owned.new {
            let mut n = held.clone();
            let mut changed = sets::annotate_new(&mut n, &self.d, next, true, max_surge(&self.d));
            if sets::min_ready(&n) != sets::min_ready(&self.d) {
                n.set(&["spec", "minReadySeconds"], sets::min_ready(&self.d));
                changed = true;
            }
            if changed {
                owned.new = Some(self.update_set(&n).await?);
                // Continues when the cache has it.
                return Ok(());
            }
            let missing = status::find(&status::status_of(&self.d), "Progressing").is_none();
            if missing {
                let text = format!("Found new replica set \"{}\"", held.name());
                progress = Some(Condition::new("Progressing", "True", "FoundNewReplicaSet", text));
            }
        } else if make == Make::Yes {
            let (made, fresh) = self.make_new(owned, next).await?;
            if fresh {
                let text = format!("Created new replica set \"{}\"", made.name());
                progress = Some(Condition::new("Progressing", "True", "NewReplicaSetCreated", text));
            }
            owned.new = Some(made);
        }
        let Some(n) = &owned.new else { return Ok(()) };
        let mut s = status::status_of(&self.d);
        let before = s.clone();
        if let Some(c) = progress.filter(|_| status::progress_deadline(&self.d).is_some()) {
            status::set_condition(&mut s, &c, self.c.context.now());
        }
        let revision = n.annotation(sets::REVISION).unwrap_or_default().to_owned();
        let revised = !revision.is_empty() && self.d.annotation(sets::REVISION) != Some(&*revision);
        if revised {
            self.d.set_annotation(sets::REVISION, &revision);
        }
        if revised || s != before {
            self.put_status(s).await?;
        }
        Ok(())
    }

    /// Returns the new set, and whether it was created now.
    async fn make_new(&mut self, owned: &Owned, next: i64) -> Result<(Object, bool), Error> {
        let template = self.d.at(&["spec", "template"]).cloned().unwrap_or_default();
        let collisions = self.d.int_at(&["status", "collisionCount"]);
        let mut set = sets::new_set(&self.d, &sets::template_hash(&template, collisions));
        let selector = LabelSelector::from_value(self.d.at(&["spec", "selector"]));
        if !selector.is_ok_and(|s| s.matches(|k| set.label(k))) {
            // A set that the selector does not match would be released at once, and created again without end.
            let why = format!("it does not select its own replica sets: they have the label {}", sets::TEMPLATE_HASH);
            let mut s = status::status_of(&self.d);
            let text = format!("Failed to create new replica set \"{}\": the selector: {why}", set.name());
            self.c.recorder.warning(Regarding::object(&self.d), status::CREATE_ERROR, text.clone());
            let c = Condition::new("Progressing", "False", status::CREATE_ERROR, text);
            status::set_condition(&mut s, &c, self.c.context.now());
            self.write_status(s).await?;
            return Err(Error::Invalid { what: "selector", why });
        }
        let size = rolling::new_size(&self.d, &set, total(owned.old.iter()));
        set.set(&["spec", "replicas"], size);
        sets::annotate_new(&mut set, &self.d, next, false, max_surge(&self.d));
        match self.set_api.create(&WriteOptions::default(), &set).await {
            Ok(made) => {
                self.c.writes.written(&self.key, &made);
                if size > 0 {
                    let text = format!("Scaled up replica set {} from 0 to {size}", made.name());
                    self.c.recorder.normal(Regarding::object(&self.d), "ScalingReplicaSet", text);
                }
                Ok((made, true))
            }
            Err(e) if e.is_already_exists() => {
                let held = self.set_api.get(set.name()).await?;
                let ours = held.controller_of().is_some_and(|o| o.uid == self.d.uid());
                if ours && sets::same_template(&held, &self.d) {
                    self.c.writes.written(&self.key, &held);
                    return Ok((held, false));
                }
                // A different template with the same hash: the next try uses another hash.
                let mut s = status::status_of(&self.d);
                s.insert("collisionCount".into(), (collisions.unwrap_or(0) + 1).into());
                self.write_status(s).await?;
                Err(e.into())
            }
            Err(e) if e.is_namespace_terminating() => Err(e.into()),
            Err(e) => {
                let text = format!("Failed to create new replica set \"{}\": {e}", set.name());
                self.c.recorder.warning(Regarding::object(&self.d), status::CREATE_ERROR, text.clone());
                if status::progress_deadline(&self.d).is_some() {
                    let mut s = status::status_of(&self.d);
                    let c = Condition::new("Progressing", "False", status::CREATE_ERROR, text);
                    status::set_condition(&mut s, &c, self.c.context.now());
                    let _ = self.write_status(s).await;
                }
                Err(e.into())
            }
        }
    }

    /// Sets the size of a set, and the annotations that proportional scaling reads later.
    async fn resize(&self, set: &Object, size: i64) -> Result<Object, Error> {
        let mut next = set.clone();
        let wish = replicas(&self.d);
        let annotated = sets::annotate_replicas(&mut next, wish, wish + max_surge(&self.d));
        let before = replicas(set);
        if before == size && !annotated {
            return Ok(next);
        }
        next.set(&["spec", "replicas"], size);
        let next = self.update_set(&next).await?;
        if before != size {
            let way = if size > before { "up" } else { "down" };
            let text = format!("Scaled {way} replica set {} from {before} to {size}", set.name());
            self.c.recorder.normal(Regarding::object(&self.d), "ScalingReplicaSet", text);
        }
        Ok(next)
    }

    async fn update_set(&self, set: &Object) -> Result<Object, Error> {
        let set = self.set_api.update(set.name(), &WriteOptions::default(), set).await?;
        self.c.writes.written(&self.key, &set);
        Ok(set)
    }

    async fn clean_up(&self, owned: &Owned) -> Result<(), Error> {
        for s in sets::beyond_history(&self.d, &owned.old) {
            match self.set_api.delete(s.name(), &DeleteOptions::uid(s.uid())).await {
                Err(e) if !e.is_not_found() => return Err(e.into()),
                _ => {}
            }
        }
        Ok(())
    }

    async fn rollout_status(&mut self, owned: &Owned) -> Result<Outcome, Error> {
        let now = self.c.context.now();
        let s = status::rollout(&self.d, owned.new.as_ref(), &owned.old, now);
        let again = status::check_again_in(&self.d, &s, now);
        self.write_status(s).await?;
        Ok(again.map_or(Outcome::Done, |s| Outcome::After(meta::time::seconds(s))))
    }

    async fn write_status(&mut self, s: Map<String, Value>) -> Result<(), Error> {
        if status::status_of(&self.d) == s { Ok(()) } else { self.put_status(s).await }
    }

    async fn put_status(&mut self, s: Map<String, Value>) -> Result<(), Error> {
        self.d.set(&["status"], s);
        self.d = self.api.update_status(self.d.name(), &WriteOptions::default(), &self.d).await?;
        Ok(())
    }
}

/// Whether a new replica set is made when there is none.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Make {
    Yes,
    No,
}

fn replace(owned: &mut Owned, set: Object) {
    let at = owned.sets().position(|s| s.uid() == set.uid());
    match at {
        Some(i) if i < owned.old.len() => owned.old[i] = set,
        Some(_) => owned.new = Some(set),
        None => {}
    }
}
