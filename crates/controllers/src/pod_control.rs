//! Creating and deleting pods for a controller, with events (upstream `RealPodControl`).

use crate::ownership::controller_reference;
use crate::views::{Pod, PodEntry};
use client::{Api, DeleteOptions, Error, Informer, Recorder, Regarding, Tokens, WriteOptions};
use futures::future::join_all;
use jiff::Timestamp;
use meta::Object;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// The maximum number of pods created or deleted in one reconcile.
pub const BURST: usize = 500;

/// Up to this many pods of a namespace that do not run (pending or failed) are created without delay; further ones at upstream's rate.
/// This keeps pods that cannot be scheduled or run from filling the store.
const AHEAD: usize = 1000;
/// Rate and burst at which upstream's controllers create pods (`--kube-api-qps`, `--kube-api-burst`).
const RATE: (u32, Duration) = (30, Duration::from_millis(50));
const WAITING: &str = "waiting";

/// Limits how many pods a controller may create in a namespace.
pub struct Supply {
    pods: Informer<Pod>,
    promised: Promised,
    tokens: Tokens<Box<str>>,
}

/// Pods being created, by namespace. The cache does not have them yet, and other workers must count them.
#[derive(Default)]
struct Promised(Mutex<BTreeMap<Box<str>, usize>>);

impl Promised {
    /// Reserves up to `n` of the pods that may still be created in a namespace with `waiting` pods.
    fn reserve(&self, namespace: &str, waiting: usize, n: usize) -> usize {
        let mut all = self.0.lock();
        let promised = all.get(namespace).copied().unwrap_or(0);
        let n = n.min(AHEAD.saturating_sub(waiting.saturating_add(promised)));
        if n > 0 {
            all.insert(namespace.into(), promised + n);
        }
        n
    }

    fn give_back(&self, namespace: &str, n: usize) {
        let mut all = self.0.lock();
        if let Some(promised) = all.get_mut(namespace) {
            *promised = promised.saturating_sub(n);
            if *promised == 0 {
                all.remove(namespace);
            }
        }
    }
}

/// A reservation of pods to create; dropping it releases them.
pub struct Allowance<'a> {
    pub count: usize,
    reserved: Option<(&'a Promised, Box<str>)>,
}

impl Drop for Allowance<'_> {
    fn drop(&mut self) {
        if let Some((promised, namespace)) = &self.reserved {
            promised.give_back(namespace, self.count);
        }
    }
}

impl Supply {
    pub fn new(pods: &Informer<Pod>) -> Self {
        // Failed ones too: a node may reject every pod of a set as soon as it is bound.
        pods.index(WAITING, |p| {
            match !matches!(&*p.view.status.phase, "Running" | "Succeeded") && !p.meta.is_deleting() {
                true => vec![p.meta.namespace.to_string()],
                false => Vec::new(),
            }
        });
        Self { pods: pods.clone(), promised: Promised::default(), tokens: Tokens::new(RATE.0, RATE.1) }
    }

    /// Reserves `n` pods or fewer; or returns how long to wait if none may be created now.
    pub fn take(&self, namespace: &str, n: usize) -> Result<Allowance<'_>, Duration> {
        let waiting = self.pods.cache().by_index(WAITING, namespace).count();
        let count = self.promised.reserve(namespace, waiting, n);
        if count > 0 {
            return Ok(Allowance { count, reserved: Some((&self.promised, namespace.into())) });
        }
        let count = n.min(RATE.0 as usize / 2);
        match self.tokens.take(&namespace.into(), count as u32) {
            None => Ok(Allowance { count, reserved: None }),
            Some(wait) => Err(wait),
        }
    }
}

/// Maximum length of the prefix of a generated name, with its dash.
const MAX_PREFIX: usize = 253;

/// The prefix of names that the server generates for objects of an owner.
pub fn name_prefix(owner: &str) -> String {
    let mut prefix = format!("{owner}-");
    if prefix.len() > MAX_PREFIX {
        prefix.pop();
    }
    prefix
}

/// The pod of a template for an owner. The server generates its name.
pub fn pod_from_template(template: &Value, owner: &Object) -> Object {
    let prefix = name_prefix(owner.name());
    let mut metadata = json!({
        "namespace": owner.namespace(),
        "generateName": prefix,
        "ownerReferences": [controller_reference(owner)],
    });
    for k in ["labels", "annotations", "finalizers"] {
        if let Some(v) = template["metadata"].get(k) {
            metadata[k] = v.clone();
        }
    }
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]});
    Object::from_value(pod).unwrap_or_default()
}

/// The condition `DisruptionTarget` of a pod that is deleted for this reason. It shows the generation only for pods whose kubelet does.
pub fn disruption_target(pod: &PodEntry, reason: &str, message: &str, now: Timestamp) -> Value {
    let mut c = json!({
        "type": "DisruptionTarget", "status": "True", "reason": reason, "message": message,
        "lastTransitionTime": meta::time::format(now),
    });
    if pod.view.status.observed_generation != 0 {
        c["observedGeneration"] = pod.meta.generation.into();
    }
    c
}

/// The status of a strategic merge patch that sets a condition of a pod.
pub fn condition_patch(pod: &PodEntry, condition: Value) -> Map<String, Value> {
    client::condition_patch(pod.view.status.conditions.iter().map(|c| &*c.r#type), condition)
}

/// Creates and deletes pods on behalf of one owner.
pub struct PodControl<'a> {
    pub pods: &'a Api<Object>,
    pub recorder: &'a Recorder,
    pub owner: &'a Object,
}

impl PodControl<'_> {
    pub async fn create(&self, pod: &Object) -> Result<Object, Error> {
        let about = Regarding::object(self.owner);
        match self.pods.create(&WriteOptions::default(), pod).await {
            Ok(made) => {
                self.recorder.normal(about, "SuccessfulCreate", format!("Created pod: {}", made.name()));
                Ok(made)
            }
            Err(e) => {
                if !e.is_namespace_terminating() {
                    self.recorder.warning(about, "FailedCreate", format!("Error creating: {e}"));
                }
                Err(e)
            }
        }
    }

    /// Deletes a pod. *Not found* is returned without an event.
    pub async fn delete(&self, name: &str, uid: &str) -> Result<(), Error> {
        let about = Regarding::object(self.owner);
        match self.pods.delete(name, &DeleteOptions::uid(uid)).await {
            Ok(_) => {
                self.recorder.normal(about, "SuccessfulDelete", format!("Deleted pod: {name}"));
                Ok(())
            }
            Err(e) => {
                if !e.is_not_found() {
                    self.recorder.warning(about, "FailedDelete", format!("Error deleting: {e}"));
                }
                Err(e)
            }
        }
    }
}

/// Calls `f` `count` times in batches of 1, 2, 4, …, and stops after a batch with a failure, so that a create that always fails (because
/// of a quota) is tried once, not five hundred times. Returns the number of successes and the first failure.
pub async fn slow_start<F, Fut, E>(count: usize, f: F) -> (usize, Option<E>)
where
    F: Fn(usize) -> Fut,
    Fut: Future<Output = Result<(), E>>,
{
    let (mut done, mut tried, mut batch) = (0, 0, 1);
    while tried < count {
        let n = batch.min(count - tried);
        let results = join_all((tried..tried + n).map(&f)).await;
        tried += n;
        let mut failure = None;
        for r in results {
            match r {
                Ok(()) => done += 1,
                Err(e) => failure = failure.or(Some(e)),
            }
        }
        if failure.is_some() {
            return (done, failure);
        }
        batch *= 2;
    }
    (done, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every worker reserved all remaining pods, because none saw the reservations of the others.
    #[test]
    fn workers_share_the_limit() {
        let promised = Promised::default();
        assert_eq!(promised.reserve("a", AHEAD - 700, BURST), BURST);
        assert_eq!(promised.reserve("a", AHEAD - 700, BURST), 200);
        assert_eq!(promised.reserve("a", AHEAD - 700, BURST), 0);
        assert_eq!(promised.reserve("b", 0, BURST), BURST, "another namespace has its own");
        let first = Allowance { count: BURST, reserved: Some((&promised, "a".into())) };
        drop(first);
        assert_eq!(
            promised.reserve("a", AHEAD - 300, BURST),
            100,
            "those that were made are counted where they are seen"
        );
        promised.give_back("a", 300);
        promised.give_back("b", BURST);
        assert!(promised.0.lock().is_empty());
    }

    #[test]
    fn prefixes_of_pods_are_valid_names() {
        for (owner, expect) in [("web", "web-"), (&*"x".repeat(252), &*format!("{}-", "x".repeat(252)))] {
            let mut o = Object::default();
            o.set_name(owner);
            assert_eq!(pod_from_template(&json!({}), &o).str_at(&["metadata", "generateName"]), Some(expect));
        }
        let mut o = Object::default();
        o.set_name(&"x".repeat(253));
        let pod = pod_from_template(&json!({}), &o);
        assert_eq!(pod.str_at(&["metadata", "generateName"]), Some(o.name()));
    }

    #[tokio::test]
    async fn batches_double_and_stop_at_a_failure() {
        let seen = std::cell::RefCell::new(Vec::new());
        let (done, failure) = slow_start(20, |i| {
            seen.borrow_mut().push(i);
            async move { if i == 4 { Err("no") } else { Ok(()) } }
        })
        .await;
        assert_eq!((done, failure, seen.borrow().len()), (6, Some("no"), 7), "1 + 2 + 4");
        assert_eq!(slow_start(5, |_| async { Ok::<_, ()>(()) }).await, (5, None));
    }
}
