//! Volumes, claims and their classes that were deleted stay until nothing uses them (upstream
//! `pkg/controller/volume/{pvcprotection,pvprotection,vacprotection}`).
//!
//! Each carries a finalizer from its creation on, which is taken off here. Invariant: whoever waits for its users is in
//! `waiting` before the users are looked at, so that none can go unnoticed in between.

use crate::context::{Context, Error};
use crate::views::{Pod, pods};
use client::informer::View;
use client::{ApiResource, Change, Informer, Informers, Key, ListOptions, Outcome, Scope, WorkQueue, WriteOptions};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::VolumeAttributesClass;
use meta::{Object, Value};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Objects of one kind, and what keeps them.
pub struct Guard {
    component: &'static str,
    resource: ApiResource,
    finalizer: &'static str,
    users: Vec<User>,
    /// Whether an object says itself that it is in use.
    bound: fn(&Object) -> bool,
}

/// Objects that may use guarded ones: by name, those of a namespace in the same namespace.
struct User {
    resource: ApiResource,
    uses: fn(&Object) -> Vec<String>,
    follow: fn(&Informers, &User, Left),
}

/// Told of the namespace of each object that changed or went, and how to learn what it used before.
type Left = Arc<dyn Fn(&str, &dyn Fn() -> Vec<String>) + Send + Sync>;

/// Claims, which scheduled pods use: no other is started with a claim that is going.
pub fn claims() -> Guard {
    Guard {
        component: "pvc-protection-controller",
        resource: ApiResource::of::<PersistentVolumeClaim>(),
        finalizer: "kubernetes.io/pvc-protection",
        users: vec![User { resource: pods(), uses: claims_of, follow: follow::<Pod> }],
        bound: |_| false,
    }
}

/// Volumes, while they are bound.
pub fn volumes() -> Guard {
    Guard {
        component: "pv-protection-controller",
        resource: ApiResource::of::<PersistentVolume>(),
        finalizer: "kubernetes.io/pv-protection",
        users: Vec::new(),
        bound: |o| o.str_at(&["status", "phase"]) == Some("Bound"),
    }
}

/// Classes of attributes, which claims and volumes have.
pub fn classes() -> Guard {
    let user = |resource, uses| User { resource, uses, follow: follow::<()> };
    Guard {
        component: "volumeattributesclass-protection-controller",
        resource: ApiResource::of::<VolumeAttributesClass>(),
        finalizer: "kubernetes.io/vac-protection",
        users: vec![
            user(ApiResource::of::<PersistentVolumeClaim>(), classes_of),
            user(ApiResource::of::<PersistentVolume>(), classes_of),
        ],
        bound: |_| false,
    }
}

fn claims_of(pod: &Object) -> Vec<String> {
    if pod.str_at(&["spec", "nodeName"]).unwrap_or_default().is_empty() {
        return Vec::new();
    }
    let all = pod.at(&["spec", "volumes"]).and_then(Value::as_array).into_iter().flatten();
    let name = |v: &Value| match v["persistentVolumeClaim"]["claimName"].as_str() {
        Some(n) => Some(n.to_owned()),
        // A volume that lives as long as its pod is a claim as well.
        None => {
            v["ephemeral"].is_object().then(|| format!("{}-{}", pod.name(), v["name"].as_str().unwrap_or_default()))
        }
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

fn follow<V: View>(informers: &Informers, user: &User, left: Left) {
    let informer: Informer<V> = informers.informer(&user.resource, &Scope::default());
    let uses = user.uses;
    informer.on_change(move |change: &Change<V>| {
        let Some(old) = &change.old else { return };
        left(&old.meta.namespace, &|| old.decode().map(|o| uses(&o)).unwrap_or_default());
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
    let queue: Arc<WorkQueue<Key>> = Arc::default();
    let objects = context.informers.informer(&guard.resource, &Scope::default());
    let c = Arc::new(Controller { guard, context, objects, waiting: Mutex::default() });
    for user in &c.guard.users {
        let (weak, q) = (Arc::downgrade(&c), queue.clone());
        let left = move |namespace: &str, uses: &dyn Fn() -> Vec<String>| {
            let Some(c) = weak.upgrade() else { return };
            let waiting = c.waiting.lock();
            let mut near = waiting.iter().filter(|k| k.namespace.is_empty() || *k.namespace == *namespace).peekable();
            if near.peek().is_none() {
                return;
            }
            let used = uses();
            near.filter(|k| used.iter().any(|u| **u == *k.name)).for_each(|k| q.add(k.clone()));
        };
        (user.follow)(&c.context.informers, user, Arc::new(left));
    }
    let q = queue.clone();
    c.objects.on_change(move |o| q.add(o.key()));
    c.objects.synced().await;
    let (component, shutdown) = (c.guard.component, c.context.shutdown.clone());
    client::queue::work(component, queue, 1, shutdown, move |key| {
        let c = c.clone();
        async move { c.reconcile(key).await }
    })
    .await;
}

impl Controller {
    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let finalizer = self.guard.finalizer;
        let entry = self.objects.get(&key);
        let wanted = entry.filter(|e| e.meta.is_deleting() == e.meta.finalizers.iter().any(|f| f == finalizer));
        let Some(entry) = wanted else {
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

    /// The server is asked: a cache may not know the newest user yet.
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
    fn what_is_used() {
        let of = |v: Value, uses: fn(&Object) -> Vec<String>| uses(&Object::from_value(v).unwrap());
        let volumes = json!([{"name": "a", "persistentVolumeClaim": {"claimName": "c"}}, {"name": "b", "emptyDir": {}},
            {"name": "e", "ephemeral": {"volumeClaimTemplate": {}}}]);
        let pod = |node: &str| json!({"metadata": {"name": "p"}, "spec": {"nodeName": node, "volumes": volumes}});
        assert_eq!(of(pod("n"), claims_of), ["c", "p-e"]);
        assert!(of(pod(""), claims_of).is_empty());
        let claim = json!({"metadata": {"name": "c"}, "spec": {"volumeAttributesClassName": "gold"},
            "status": {"currentVolumeAttributesClassName": "silver"}});
        assert_eq!(of(claim, classes_of), ["gold", "silver"]);
    }
}
