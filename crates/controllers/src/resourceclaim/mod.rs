//! Claims of devices: generated for pods from templates, reserved for running pods, and released when pods end (upstream
//! `pkg/controller/resourceclaim`).
//!
//! [`reserve`] decides; this module has two queues, one of pods and one of claims. Invariant: a consumer is removed only if its pod is known
//! to be gone or finished.

mod reserve;

use crate::context::{Context, Error, object};
use crate::controller::{Builder, Reconcile};
use crate::meters;
use crate::views::{Pod, PodEntry, pods};
use client::{
    Api, ApiResource, Change, DeleteOptions, Entry, Informer, Key, Meta, Outcome, Patch, Recorder, Regarding,
    WorkQueue, WriteOptions, optional,
};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use meta::{Object, Value};
use parking_lot::Mutex;
use reserve::{FINALIZER, POD_CLAIM, PodClaim};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Owns the pod's list of generated claims.
const MANAGER: &str = "ResourceClaimController";
const BY_CLAIM: &str = "resource-claim";
const BY_TEMPLATE: &str = "resource-claim-template";

struct Controller {
    context: Context,
    pods: Informer<Pod>,
    claims: Informer<()>,
    templates: Informer<()>,
    /// Generated claims that pods may not show yet: the UID of the pod and the name in its spec.
    generated: Mutex<BTreeMap<(Arc<str>, String), String>>,
    recorder: Recorder,
}

fn claims() -> ApiResource {
    ApiResource::typed::<ResourceClaim>()
}

fn templates() -> ApiResource {
    ApiResource::typed::<ResourceClaimTemplate>()
}

/// Runs until shutdown.
pub async fn run(context: Context) {
    let (mut pod_builder, mut claim_builder) = (Builder::new(&context), Builder::new(&context));
    let c = Arc::new(Controller {
        pods: pod_builder.watch(&pods()),
        claims: pod_builder.watch(&claims()),
        templates: pod_builder.watch(&templates()),
        generated: Mutex::default(),
        recorder: context.recorder_as("resource_claim"),
        context,
    });
    c.pods.index(BY_CLAIM, |p| names(p).0);
    c.pods.index(BY_TEMPLATE, |p| names(p).1);
    claim_builder.wait_for(&c.pods);
    claim_builder.wait_for(&c.claims);
    pod_builder.on_change(&c.pods, |change, queue| {
        if change.new.as_ref().is_some_and(|p| p.view.spec.has_resource_claims && !p.meta.is_deleting()) {
            queue.add(change.key());
        }
    });
    pod_builder.handle(&c, &c.claims, Controller::pods_of_claim);
    pod_builder.handle(&c, &c.templates, Controller::pods_of_template);
    claim_builder.handle(&c, &c.pods, Controller::claims_of_pod);
    claim_builder.on_change(&c.claims, |change, queue| {
        if change.new.is_some() {
            queue.add(change.key());
        }
    });
    let claims = claim_builder.run_as("resource-claim", 5, Arc::new(Claims(c.clone())));
    tokio::join!(pod_builder.run(5, c.clone()), claims);
}

/// The claims and templates that a pod names, as values of the indexes.
fn names(pod: &PodEntry) -> (Vec<String>, Vec<String>) {
    if !pod.view.spec.has_resource_claims {
        return (Vec::new(), Vec::new());
    }
    let Ok(whole) = pod.decode::<Object>() else { return (Vec::new(), Vec::new()) };
    let all = reserve::pod_claims(&whole);
    let value = |name: &String| format!("{}/{name}", pod.meta.namespace);
    (
        all.iter().filter_map(|c| c.claim.as_ref()).map(value).collect(),
        all.iter().filter_map(|c| c.template.as_ref()).map(value).collect(),
    )
}

/// Whether a pod will not use its claims any more.
fn is_done(pod: &PodEntry) -> bool {
    pod.view.is_terminal() || pod.meta.is_deleting() && pod.view.spec.node_name.is_empty()
}

impl Controller {
    fn pods_of_claim(&self, change: &Change<()>, queue: &WorkQueue<Key>) {
        let key = change.key();
        self.pods.cache().by_index(BY_CLAIM, &key.to_string()).for_each(|p| queue.add(p.key()));
    }

    fn pods_of_template(&self, change: &Change<()>, queue: &WorkQueue<Key>) {
        let key = change.key();
        self.pods.cache().by_index(BY_TEMPLATE, &key.to_string()).for_each(|p| queue.add(p.key()));
    }

    /// A pod that is gone or done releases its claims.
    fn claims_of_pod(&self, change: &Change<Pod>, queue: &WorkQueue<Key>) {
        let pod = change.latest();
        if !(change.new.is_none() || is_done(pod)) {
            return;
        }
        let own: BTreeSet<String> = names(pod).0.into_iter().collect();
        let own = own.iter().filter_map(|n| n.split_once('/'));
        own.for_each(|(ns, name)| queue.add(Key::new(ns, name)));
        // With the claim that the scheduler makes for extended resources.
        self.claims.cache().controlled_by(&pod.meta.uid).for_each(|claim| queue.add(claim.key()));
        if change.new.is_none() {
            self.generated.lock().retain(|(uid, _), _| *uid != pod.meta.uid);
        }
    }

    fn api(&self, namespace: &str) -> Api<Object> {
        self.context.client.dynamic(&claims()).namespace(namespace)
    }

    /// A claim from the cache, or else from the server, since the cache may be late.
    async fn claim(&self, namespace: &str, name: &str) -> Result<Option<Object>, Error> {
        match self.claims.get(&Key::new(namespace, name)) {
            Some(entry) => Ok(Some(object(&claims(), &entry)?)),
            None => Ok(self.api(namespace).get_opt(name).await?),
        }
    }

    /// The name of the claim that is generated for a pod's claim, if it has to be recorded in the pod.
    async fn generate(&self, pod: &Object, wanted: &PodClaim) -> Result<Option<String>, Error> {
        let Some(template) = wanted.template.as_ref().filter(|_| !wanted.unneeded) else { return Ok(None) };
        if let Some(name) = &wanted.claim
            && self.claim(pod.namespace(), name).await?.is_some_and(|c| is_for(&c, pod))
        {
            return Ok(None);
        }
        let id = (Arc::from(pod.uid()), wanted.name.clone());
        let held = self.generated.lock().get(&id).cloned();
        if let Some(name) = held
            && self.claim(pod.namespace(), &name).await?.is_some()
        {
            return Ok(Some(name));
        }
        // One that was generated before a restart and not recorded.
        let own: Vec<Arc<Entry<()>>> = self.claims.cache().controlled_by(pod.uid()).cloned().collect();
        for entry in own {
            let claim = object(&claims(), &entry)?;
            if claim.annotation(POD_CLAIM) == Some(&wanted.name) {
                return Ok(Some(claim.name().to_owned()));
            }
        }
        let Some(template) = self.templates.get(&Key::new(pod.namespace(), template.as_str())) else {
            let why = format!(
                "resource claim template {template:?}: resourceclaimtemplate.resource.k8s.io {template:?} not found"
            );
            return Err(Error::Waiting(why));
        };
        let claim = reserve::generated(pod, &wanted.name, &object(&templates(), &template)?);
        let made = self.api(pod.namespace()).create(&WriteOptions::default(), &claim).await;
        let admin = match reserve::has_admin_access(&claim) {
            true => "true",
            false => "false",
        };
        meters::count(&meters::CLAIMS_CREATED, &[if made.is_ok() { "success" } else { "failure" }, admin]);
        let made = made.map_err(|e| Error::Waiting(format!("create ResourceClaim : {e}")))?;
        self.generated.lock().insert(id, made.name().to_owned());
        Ok(Some(made.name().to_owned()))
    }

    /// Reserves an allocated claim for a pod that was bound without the scheduler.
    async fn reserve(&self, pod: &Object, claim: Object) -> Result<(), Error> {
        if !reserve::needs_reservation(&claim, pod) {
            return Ok(());
        }
        let mut all = reserve::consumers(&claim).to_vec();
        all.push(json!({"resource": "pods", "name": pod.name(), "uid": pod.uid()}));
        let mut next = claim;
        next.set(&["status", "reservedFor"], all);
        let (api, name) = (self.api(pod.namespace()), next.name().to_owned());
        api.update_status(&name, &WriteOptions::default(), &next).await?;
        Ok(())
    }
}

/// Whether a generated claim belongs to a pod.
fn is_for(claim: &Object, pod: &Object) -> bool {
    claim.controller_of().is_some_and(|o| o.uid == pod.uid())
}

impl Reconcile for Controller {
    type Key = Key;

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        // A finished pod gets no claim again in place of the one that was deleted.
        let active = |p: &Arc<PodEntry>| !p.meta.is_deleting() && !p.view.is_terminal();
        let Some(entry) = self.pods.get(&key).filter(active) else { return Ok(Outcome::Done) };
        let pod = object(&pods(), &entry)?;
        let all = reserve::pod_claims(&pod);
        let mut statuses = Vec::new();
        for wanted in &all {
            match self.generate(&pod, wanted).await {
                Ok(Some(name)) => statuses.push(json!({"name": wanted.name, "resourceClaimName": name})),
                Ok(None) => {}
                Err(e) => {
                    let why = format!("PodResourceClaim {}: {e}", wanted.name);
                    self.recorder.warning(Regarding::object(&pod), "FailedResourceClaimCreation", why.clone());
                    return Err(Error::Waiting(format!("pod {key}, {why}")));
                }
            }
        }
        if !statuses.is_empty() {
            // Applying takes away what is not listed, so the others are repeated.
            let known = all.iter().filter(|c| c.template.is_some() && statuses.iter().all(|s| s["name"] != *c.name));
            let known = known.filter_map(|c| Some(json!({"name": c.name, "resourceClaimName": c.claim.as_ref()?})));
            let known: Vec<Value> = known.collect();
            statuses.extend(known);
            let apply = json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod.name(), "uid": pod.uid()},
                "status": {"resourceClaimStatuses": statuses},
            });
            let api = self.context.client.dynamic(&pods()).namespace(&key.namespace);
            let options = WriteOptions { force: true, ..WriteOptions::manager(MANAGER) };
            optional(api.patch_status(&key.name, &options, &Patch::Apply(apply)).await)?;
        }
        if entry.view.spec.node_name.is_empty() {
            // The scheduler reserves claims.
            return Ok(Outcome::Done);
        }
        for wanted in &all {
            let Some(name) = &wanted.claim else { continue };
            let Some(claim) = self.claims.get(&Key::new(key.namespace.clone(), name.as_str())) else { continue };
            let claim = object(&claims(), &claim)?;
            if wanted.template.is_none() || is_for(&claim, &pod) {
                self.reserve(&pod, claim).await?;
            }
        }
        Ok(Outcome::Done)
    }
}

/// Reconciles claims with their consumers.
struct Claims(Arc<Controller>);

impl Claims {
    /// Whether the pod that a consumer names is gone, replaced or done. A pod that the cache lacks is looked up on the server.
    async fn is_gone(&self, namespace: &str, consumer: &Value) -> Result<bool, Error> {
        let text = |k: &str| consumer[k].as_str().unwrap_or_default();
        if let Some(pod) = self.0.pods.get(&Key::new(namespace, text("name"))) {
            return Ok(&*pod.meta.uid != text("uid") || is_done(&pod));
        }
        let api = self.0.context.client.dynamic(&pods()).namespace(namespace);
        Ok(api.get_opt(text("name")).await?.is_none_or(|p| p.uid() != text("uid")))
    }

    /// The pod that a claim was generated for, and its UID.
    fn owner(claim: &Meta) -> Option<(&str, &str)> {
        let owner = claim.controller().filter(|o| o.kind == "Pod" && o.api_version == "v1")?;
        Some((&owner.name, &owner.uid))
    }
}

impl Reconcile for Claims {
    type Key = Key;

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(entry) = self.0.claims.get(&key) else { return Ok(Outcome::Done) };
        let mut claim = object(&claims(), &entry)?;
        let api = self.0.api(&key.namespace);
        let mut gone = BTreeSet::new();
        for consumer in reserve::consumers(&claim) {
            if self.is_gone(&key.namespace, consumer).await? {
                gone.insert(consumer["uid"].as_str().unwrap_or_default().to_owned());
            }
        }
        let options = WriteOptions::default();
        let released = reserve::released(&claim, |c| gone.contains(c["uid"].as_str().unwrap_or_default()));
        let is_unused = |c: &Object| reserve::consumers(c).is_empty();
        if let Some(next) = released {
            claim = api.update_status(&key.name, &options, &next).await?;
        } else if claim.is_deleting() && is_unused(&claim) && claim.remove(&["status", "allocation"]).is_some() {
            claim = api.update_status(&key.name, &options, &claim).await?;
        }
        let allocated = claim.at(&["status", "allocation"]).is_some();
        let protected = claim.finalizers().any(|f| f == FINALIZER);
        if protected && !allocated && is_unused(&claim) && (claim.is_deleting() || !gone.is_empty()) {
            let others = claim.finalizers().filter(|f| *f != FINALIZER).map(str::to_owned).collect();
            claim.set_finalizers(others);
            let Some(next) = optional(api.update(&key.name, &options, &claim).await)? else { return Ok(Outcome::Done) };
            claim = next;
        }
        if !is_unused(&claim) || claim.is_deleting() {
            return Ok(Outcome::Done);
        }
        // The garbage collector deletes claims of pods that are gone; a finished pod may stay for long.
        if let Some((name, uid)) = Self::owner(&entry.meta)
            && let Some(pod) = self.0.pods.get(&Key::new(key.namespace.clone(), name))
            && (&*pod.meta.uid != uid || is_done(&pod))
        {
            optional(api.delete(&key.name, &DeleteOptions::uid(claim.uid())).await)?;
        }
        Ok(Outcome::Done)
    }
}
