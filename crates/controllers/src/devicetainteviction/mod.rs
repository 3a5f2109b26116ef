//! Deletes pods that use devices with a `NoExecute` taint which they do not tolerate (upstream `device_taint_eviction.go`).
//!
//! Taints are those that drivers publish in ResourceSlices; rules of administrators (`DeviceTaintRule`) are off by default upstream.

mod decide;

use crate::context::{Context, Error, object};
use crate::controller::{Builder, Reconcile};
use crate::meters;
use crate::pod_control::condition_patch;
use crate::views::{Pod, PodEntry, pods};
use client::{
    ApiResource, Change, DeleteOptions, Entry, Informer, Key, Outcome, Patch, Recorder, Regarding, WorkQueue,
    WriteOptions, optional,
};
use decide::{AllocatedDevice, ClaimView, SliceView, Taint, claim_names, eviction_time, pool_taints};
use jiff::Timestamp;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use parking_lot::Mutex;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// The index of slices by driver and pool.
const BY_POOL: &str = "pool";
const WORKERS: usize = 10;

struct Controller {
    context: Context,
    pods: Informer<Pod>,
    claims: Informer<ClaimView>,
    slices: Informer<SliceView>,
    /// Pods that will be deleted, with their UIDs.
    pending: Mutex<BTreeMap<Key, Arc<str>>>,
    recorder: Recorder,
}

fn pool_index(driver: &str, pool: &str) -> String {
    format!("{driver}/{pool}")
}

/// Runs until shutdown.
pub async fn run(context: Context) {
    let mut builder = Builder::new(&context);
    let c = Arc::new(Controller {
        pods: builder.watch(&pods()),
        claims: builder.watch(&ApiResource::typed::<ResourceClaim>()),
        slices: builder.watch(&ApiResource::typed::<ResourceSlice>()),
        pending: Mutex::default(),
        recorder: context.recorder_as("device-taint-eviction-controller"),
        context,
    });
    c.slices.index(BY_POOL, |s| vec![pool_index(&s.view.spec.driver, &s.view.spec.pool.name)]);
    builder.on_change(&c.pods, |change, queue| {
        let uses = |p: &Option<Arc<PodEntry>>| p.as_ref().is_some_and(|p| p.view.spec.has_resource_claims);
        if uses(&change.old) || uses(&change.new) {
            queue.add(change.key());
        }
    });
    builder.on_change(&c.claims, |change, queue| {
        for claim in [&change.old, &change.new].into_iter().flatten() {
            enqueue_consumers(claim, queue);
        }
    });
    builder.handle(&c, &c.slices, Controller::slice_changed);
    builder.run(WORKERS, c).await;
}

/// Enqueues the pods that use a claim.
fn enqueue_consumers(claim: &Entry<ClaimView>, queue: &WorkQueue<Key>) {
    for consumer in claim.view.status.reserved_for.iter().filter(|c| c.is_pod()) {
        queue.add(Key::new(claim.meta.namespace.clone(), consumer.name.as_str()));
    }
}

fn devices(claim: &Entry<ClaimView>) -> impl Iterator<Item = &AllocatedDevice> {
    claim.view.status.allocation.iter().flat_map(|a| &a.devices.results)
}

impl Controller {
    /// Enqueues the pods that use devices of the pool of a slice, if it has or had taints.
    fn slice_changed(&self, change: &Change<SliceView>, queue: &WorkQueue<Key>) {
        let entries = [&change.old, &change.new];
        let tainted = |s: &Entry<SliceView>| !pool_taints(std::iter::once(&s.view.spec)).is_empty();
        let pools: BTreeSet<(&str, &str)> = entries
            .into_iter()
            .flatten()
            .map(|s| (s.view.spec.driver.as_str(), s.view.spec.pool.name.as_str()))
            .collect();
        let newer = change.old.as_ref().map(|s| s.view.spec.pool.generation)
            != change.new.as_ref().map(|s| s.view.spec.pool.generation);
        if !newer && !entries.into_iter().flatten().any(|s| tainted(s)) {
            return;
        }
        for claim in self.claims.cache().entries() {
            if devices(claim).any(|d| pools.contains(&(d.driver.as_str(), d.pool.as_str()))) {
                enqueue_consumers(claim, queue);
            }
        }
    }

    /// The taints of a device that evict.
    fn taints(&self, device: &AllocatedDevice) -> Vec<Taint> {
        let cache = self.slices.cache();
        let slices: Vec<Arc<Entry<SliceView>>> =
            cache.by_index(BY_POOL, &pool_index(&device.driver, &device.pool)).cloned().collect();
        pool_taints(slices.iter().map(|s| &s.view.spec)).remove(&device.device).unwrap_or_default()
    }

    /// When a pod must leave.
    fn eviction_time(&self, pod: &PodEntry) -> Result<Option<Timestamp>, Error> {
        if pod.view.spec.node_name.is_empty() {
            return Ok(None);
        }
        let whole = object(&pods(), pod)?;
        let uid = &*pod.meta.uid;
        let used = claim_names(&whole).into_iter().filter_map(|(name, owned)| {
            let claim = self.claims.get(&Key::new(pod.meta.namespace.clone(), name))?;
            let reserved = claim.view.status.reserved_for.iter().any(|c| c.is_pod() && c.uid == uid);
            let is_own = || claim.meta.controller().is_some_and(|o| &*o.uid == uid);
            (reserved && (!owned || is_own())).then_some(claim)
        });
        let used: Vec<Arc<Entry<ClaimView>>> = used.collect();
        let unknown = pod.meta.creation_timestamp.unwrap_or_else(|| self.context.now());
        Ok(eviction_time(used.iter().flat_map(|c| devices(c)), |d| self.taints(d), unknown))
    }

    fn report(&self, key: &Key, uid: &str, text: &str) {
        let about = Regarding {
            api_version: "v1".into(),
            kind: "Pod".into(),
            namespace: key.namespace.to_string(),
            name: key.name.to_string(),
            uid: uid.into(),
            ..Regarding::default()
        };
        self.recorder.normal(about, "DeviceTaintManagerEviction", text);
    }
}

impl Reconcile for Controller {
    type Key = Key;

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(pod) = self.pods.get(&key).filter(|p| !p.meta.is_deleting()) else {
            self.pending.lock().remove(&key);
            return Ok(Outcome::Done);
        };
        let uid = pod.meta.uid.clone();
        let Some(time) = self.eviction_time(&pod)? else {
            if self.pending.lock().remove(&key).is_some_and(|pending| pending == uid) {
                self.report(&key, &uid, "Cancelling deletion");
            }
            return Ok(Outcome::Done);
        };
        self.pending.lock().insert(key.clone(), uid.clone());
        let now = self.context.now();
        if time > now {
            return Ok(Outcome::After(Duration::try_from(time.duration_since(now)).unwrap_or_default()));
        }
        self.report(&key, &uid, "Marking for deletion");
        let api = self.context.client.dynamic(&pods()).namespace(&key.namespace);
        let status = condition_patch(&pod, decide::disruption_target(now));
        let patch = Patch::Strategic(json!({"metadata": {"uid": &*uid}, "status": status}));
        optional(api.patch_status(&key.name, &WriteOptions::default(), &patch).await)?;
        if optional(api.delete(&key.name, &DeleteOptions::uid(&uid)).await)?.is_some() {
            meters::count(&meters::DEVICE_TAINT_DELETIONS, &[]);
            meters::observe(&meters::DEVICE_TAINT_SECONDS, &[], now.duration_since(time).as_secs_f64());
        }
        self.pending.lock().remove(&key);
        Ok(Outcome::Done)
    }
}
