//! Protects volumes, claims and volume attributes classes from deletion while they are in use (upstream
//! `pkg/controller/volume/{pvcprotection,pvprotection,vacprotection}`).
//!
//! Each has a finalizer from its creation on, which this controller removes. Invariant: an object is in `waiting` before its users are
//! read, so that no user can go unnoticed in between.

use crate::context::{Context, Error};
use crate::controller::{Builder, Reconcile};
use crate::views::{Pod, pods};
use client::informer::View;
use client::{ApiResource, Change, Informer, Informers, Key, ListOptions, Outcome, Scope, WriteOptions};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::VolumeAttributesClass;
use meta::{Object, Value};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The protection of one kind.
pub struct Guard {
    resource: ApiResource,
    finalizer: &'static str,
    users: Vec<User>,
    /// Whether the status of an object shows that it is in use.
    bound: fn(&Object) -> bool,
}

/// A kind of objects that may use protected ones. They name them; a namespaced one is in the namespace of its user.
struct User {
    resource: ApiResource,
    uses: fn(&Object) -> Vec<String>,
    follow: fn(&mut Builder, &Informers, &User, Released),
}

/// Called with the namespace of each user that changed or was deleted, and a function that returns what it used before.
type Released = Arc<dyn Fn(&str, &dyn Fn() -> Vec<String>) + Send + Sync>;

/// Claims, which scheduled pods use. A pod whose claim is being deleted is not scheduled.
pub fn claims() -> Guard {
    Guard {
        resource: ApiResource::typed::<PersistentVolumeClaim>(),
        finalizer: "kubernetes.io/pvc-protection",
        users: vec![User { resource: pods(), uses: claims_of, follow: follow::<Pod> }],
        bound: |_| false,
    }
}

/// Volumes that are bound.
pub fn volumes() -> Guard {
    Guard {
        resource: ApiResource::typed::<PersistentVolume>(),
        finalizer: "kubernetes.io/pv-protection",
        users: Vec::new(),
        bound: |o| o.str_at(&["status", "phase"]) == Some("Bound"),
    }
}

/// Volume attributes classes, which claims and volumes use.
pub fn classes() -> Guard {
    let user = |resource, uses| User { resource, uses, follow: follow::<()> };
    Guard {
        resource: ApiResource::typed::<VolumeAttributesClass>(),
        finalizer: "kubernetes.io/vac-protection",
        users: vec![
            user(ApiResource::typed::<PersistentVolumeClaim>(), classes_of),
            user(ApiResource::typed::<PersistentVolume>(), classes_of),
        ],
        bound: |_| false,
    }
}

fn claims_of(pod: &Object) -> Vec<String> {
    if pod.str_at(&["spec", "nodeName"]).unwrap_or_default().is_empty() {
        return Vec::new();
    }
    let stopped = pod.is_deleting() && pod.int_at(&["metadata", "deletionGracePeriodSeconds"]) == Some(0);
    let all = pod.at(&["spec", "volumes"]).and_then(Value::as_array).into_iter().flatten();
    let name = |v: &Value| match v["persistentVolumeClaim"]["claimName"].as_str() {
        Some(n) => Some(n.to_owned()),
        // An ephemeral volume is a claim with the name of its pod. A pod that has stopped does not use it any more: deleted in the
        // foreground, it waits for its claim.
        None => (v["ephemeral"].is_object() && !stopped)
            .then(|| format!("{}-{}", pod.name(), v["name"].as_str().unwrap_or_default())),
    };
    all.filter_map(name).collect()
}

fn classes_of(o: &Object) -> Vec<String> {
    let places: [&[&str]; 3] = [
        &["spec", "volumeAttributesClassName"],
        &["status", "currentVolumeAttributesClassName"],
        &["status", "modifyVolumeStatus", "targetVolumeAttributesClassName"],
    ];
    places.iter().filter_map(|p| o.str_at(p)).filter(|n| !n.is_empty()).map(str::to_owned).collect()
}

fn follow<V: View>(builder: &mut Builder, informers: &Informers, user: &User, released: Released) {
    let informer: Informer<V> = informers.informer(&user.resource, &Scope::default());
    let uses = user.uses;
    builder.on_change(&informer, move |change: &Change<V>, _| {
        let Some(old) = &change.old else { return };
        released(&old.meta.namespace, &|| old.decode().map(|o| uses(&o)).unwrap_or_default());
    });
}

struct Controller {
    guard: Guard,
    context: Context,
    objects: Informer<()>,
    waiting: Mutex<BTreeSet<Key>>,
}

/// Runs until shutdown.
pub async fn run(guard: Guard, context: Context) {
    let mut builder = Builder::new(&context);
    let objects = builder.watch::<()>(&guard.resource);
    let c = Arc::new(Controller { guard, context, objects, waiting: Mutex::default() });
    for user in &c.guard.users {
        let (weak, queue) = (Arc::downgrade(&c), builder.queue());
        let released = move |namespace: &str, uses: &dyn Fn() -> Vec<String>| {
            let Some(c) = weak.upgrade() else { return };
            let waiting = c.waiting.lock();
            let mut near = waiting.iter().filter(|k| k.namespace.is_empty() || *k.namespace == *namespace).peekable();
            if near.peek().is_none() {
                return;
            }
            let used = uses();
            near.filter(|k| used.iter().any(|u| **u == *k.name)).for_each(|k| queue.add(k.clone()));
        };
        (user.follow)(&mut builder, &c.context.informers, user, Arc::new(released));
    }
    builder.enqueue(&c.objects);
    builder.run(1, c).await;
}

impl Reconcile for Controller {
    type Key = Key;

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let finalizer = self.guard.finalizer;
        let entry = self.objects.get(&key);
        let changing = entry.filter(|e| e.meta.is_deleting() == e.meta.finalizers.iter().any(|f| f == finalizer));
        let Some(entry) = changing else {
            self.waiting.lock().remove(&key);
            return Ok(Outcome::Done);
        };
        let mut live: Object = entry.decode()?;
        live.set_gvk(&self.guard.resource.gvk());
        let mut finalizers: Vec<String> = live.finalizers().map(str::to_owned).collect();
        if entry.meta.is_deleting() {
            self.waiting.lock().insert(key.clone());
            if (self.guard.bound)(&live) || self.is_used(&key).await? {
                return Ok(Outcome::Done);
            }
            finalizers.retain(|f| f != finalizer);
        } else {
            finalizers.push(finalizer.to_owned());
        }
        live.set_finalizers(finalizers);
        let api = self.context.client.dynamic(&self.guard.resource);
        let api = if key.namespace.is_empty() { api } else { api.namespace(&key.namespace) };
        client::optional(api.update(&key.name, &WriteOptions::default(), &live).await)?;
        Ok(Outcome::Done)
    }
}

impl Controller {
    /// Reads from the server, because a cache may lack the newest user.
    async fn is_used(&self, key: &Key) -> Result<bool, Error> {
        for user in &self.guard.users {
            let api = self.context.client.dynamic(&user.resource);
            let api = if key.namespace.is_empty() { api } else { api.namespace(&key.namespace) };
            let all = api.list_all(&ListOptions::default()).await?;
            if all.items.iter().any(|o: &Object| (user.uses)(o).iter().any(|u| **u == *key.name)) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn users_of_claims_and_classes() {
        let used = |v: Value, uses: fn(&Object) -> Vec<String>| uses(&Object::from_value(v).unwrap());
        let volumes = json!([{"name": "a", "persistentVolumeClaim": {"claimName": "c"}}, {"name": "b", "emptyDir": {}},
            {"name": "e", "ephemeral": {"volumeClaimTemplate": {}}}]);
        let pod = |node: &str| json!({"metadata": {"name": "p"}, "spec": {"nodeName": node, "volumes": volumes}});
        assert_eq!(used(pod("n"), claims_of), ["c", "p-e"]);
        assert!(used(pod(""), claims_of).is_empty());
        let mut stopped = pod("n");
        stopped["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        stopped["metadata"]["deletionGracePeriodSeconds"] = 0.into();
        assert_eq!(used(stopped, claims_of), ["c"], "the claim of an ephemeral volume goes with its pod");
        let claim = json!({"metadata": {"name": "c"}, "spec": {"volumeAttributesClassName": "gold"},
            "status": {"currentVolumeAttributesClassName": "silver"}});
        assert_eq!(used(claim, classes_of), ["gold", "silver"]);
    }
}
