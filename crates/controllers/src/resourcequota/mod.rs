//! The usage in the status of quotas (upstream `pkg/controller/resourcequota`). Admission charges each write; this controller counts
//! objects that existed before the quota, and those that were deleted.
//!
//! Invariant: a quota is read before the objects are listed, and written at the revision that was read. A charge in between makes the
//! write fail, so that no object is missed.

use crate::context::{Context, Error};
use crate::controller::{Builder, Reconcile};
use crate::discovery;
use crate::views::{Pod, pods};
use client::{ApiResource, Informer, Key, ListOptions, Outcome, Scope, WorkQueue, WriteOptions};
use k8s_openapi::api::core::v1::{
    ConfigMap, PersistentVolumeClaim, ReplicationController, ResourceQuota, Secret, Service,
};
use meta::{Gvr, Object, Quantity};
use parking_lot::Mutex;
use quota::{self, Amounts, Quota};
use serde_json::json;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// How often usage is counted without a change.
const RESYNC: Duration = Duration::from_secs(300);

struct Controller {
    context: Context,
    quotas: Informer<()>,
    queue: Arc<WorkQueue<Key>>,
    /// The informers of resources that quotas count beside pods and services. They start with the first such quota.
    watched: Mutex<HashMap<Gvr, Informer<()>>>,
}

/// The resources that quotas count under names of their own.
fn known() -> [ApiResource; 7] {
    [
        pods(),
        ApiResource::typed::<Service>(),
        ApiResource::typed::<ConfigMap>(),
        ApiResource::typed::<PersistentVolumeClaim>(),
        ApiResource::typed::<Secret>(),
        ApiResource::typed::<ReplicationController>(),
        ApiResource::typed::<ResourceQuota>(),
    ]
}

/// Runs until shutdown.
pub async fn run(context: Context) {
    let mut builder = Builder::new(&context);
    let c = Arc::new(Controller {
        quotas: builder.watch(&ApiResource::typed::<ResourceQuota>()),
        queue: builder.queue(),
        watched: Mutex::default(),
        context,
    });
    builder.enqueue(&c.quotas);
    // Not waited for: usage is counted with the server's lists.
    let pod_cache: Informer<Pod> = c.context.informers.informer(&pods(), &Scope::default());
    let services: Informer<()> = c.context.informers.informer(&ApiResource::typed::<Service>(), &Scope::default());
    let recount = c.recount();
    builder.on_change(&pod_cache, move |change, _| {
        let ended = |p: &Option<Arc<client::Entry<Pod>>>| p.as_ref().is_none_or(|p| p.view.is_terminal());
        if change.old.is_some() && ended(&change.new) && !ended(&change.old) || change.new.is_none() {
            recount(&change.key().namespace);
        }
    });
    let recount = c.recount();
    // The type of a service may change, and with it what the service counts for.
    builder.on_change(&services, move |change, _| {
        if change.old.is_some() {
            recount(&change.key().namespace);
        }
    });
    builder.run(5, c).await;
}

impl Controller {
    /// Returns a function that enqueues all quotas of a namespace.
    fn recount(&self) -> impl Fn(&str) + Send + Sync + use<> {
        let (quotas, queue) = (self.quotas.clone(), self.queue.clone());
        move |namespace| quotas.cache().in_namespace(namespace).for_each(|q| queue.add(q.key()))
    }

    /// Enqueues quotas when objects of a resource are deleted.
    fn watch(&self, resource: &ApiResource) {
        if *resource == pods() || *resource == ApiResource::typed::<Service>() {
            return;
        }
        let mut watched = self.watched.lock();
        if watched.contains_key(resource.gvr()) {
            return;
        }
        let informer: Informer<()> = self.context.informers.informer(resource, &Scope::default());
        let recount = self.recount();
        informer.on_change(move |change| {
            if change.new.is_none() {
                recount(&change.key().namespace);
            }
        });
        watched.insert(resource.gvr().clone(), informer);
    }
}

impl Reconcile for Controller {
    type Key = Key;

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let client = &self.context.client;
        let api = client.dynamic(&ApiResource::typed::<ResourceQuota>()).namespace(&key.namespace);
        let Some(mut live) = api.get_opt(&key.name).await? else { return Ok(Outcome::Done) };
        let quota = Quota::read(&live);
        let resources = self.counted(&quota).await?;
        let now = meta::time::format(self.context.now());
        let counted = quota.desired.keys().filter(|k| !quota::is_idle(k));
        let mut used: Amounts = counted.map(|k| (k.clone(), Quantity::from_int(0))).collect();
        for r in resources {
            self.watch(&r);
            let gvr = r.gvr();
            let count = |o: Object| {
                if quota.covers(&gvr.group, &gvr.resource, &o) {
                    quota::add(&mut used, quota::usage(&gvr.group, &gvr.resource, &o, Some(&now)));
                }
            };
            client.dynamic(&r).namespace(&key.namespace).each(&ListOptions::default(), count).await?;
        }
        used.retain(|k, _| quota.desired.contains_key(k));
        if quota.hard != quota.desired || quota.used != used {
            live.set(&["status"], json!({"hard": quota::to_value(&quota.desired), "used": quota::to_value(&used)}));
            api.update_status(&key.name, &WriteOptions::default(), &live).await?;
        }
        Ok(Outcome::After(RESYNC))
    }
}

impl Controller {
    /// The resources whose objects a quota counts.
    async fn counted(&self, quota: &Quota) -> Result<Vec<ApiResource>, Error> {
        let tracked = |r: &ApiResource, k: &String| quota::tracks(&r.gvr().group, &r.gvr().resource, k);
        let mut out: Vec<ApiResource> =
            known().into_iter().filter(|r| quota.desired.keys().any(|k| tracked(r, k))).collect();
        let others: Vec<&String> = quota.desired.keys().filter(|k| !out.iter().any(|r| tracked(r, k))).collect();
        if others.iter().any(|k| quota::counted(k).is_some()) {
            let found = discovery::preferred(&self.context.client).await?;
            // Objects of a group that does not answer are not counted as none.
            if let Some(why) = found.failure()
                && others.iter().any(|k| found.failed_groups().any(|group| k.ends_with(&format!(".{group}"))))
            {
                return Err(Error::Waiting(why));
            }
            for s in found.served {
                if s.can("list") && others.iter().any(|k| tracked(&s.resource, k)) {
                    out.push(s.resource);
                }
            }
        }
        Ok(out)
    }
}
