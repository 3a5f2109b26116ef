//! Ranges that services have their addresses from (upstream `pkg/controller/servicecidrs`): who uses one can count on it, so one
//! that was deleted stays until each of its addresses is free, or in another range too.
//!
//! `ranges` says what is within what. Invariant: nothing is allocated from a range that is being deleted (the API server sees to
//! that), and whoever allocated just before is waited for.

pub mod ranges;

use crate::context::{Context, Error};
use crate::ipallocator::{is_managed, ours};
use client::{ApiResource, Entry, Informer, Key, Outcome, Patch, Recorder, Regarding, Scope, WorkQueue, WriteOptions};
use k8s_openapi::api::networking::v1::{IPAddress, ServiceCIDR};
use meta::{Object, Value};
use ranges::{ServiceCidr, may_go};
use serde_json::json;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

pub const COMPONENT: &str = "service-cidrs-controller";
const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";
/// How long a range that was deleted stays at least, so that every server knows of it.
const GRACE: Duration = Duration::from_secs(10);
const READY: &str = "Kubernetes Service CIDR is ready";
const IN_USE: &str =
    "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR";

pub fn resource() -> ApiResource {
    ApiResource::of::<ServiceCIDR>()
}

struct Controller {
    context: Context,
    recorder: Recorder,
    ranges: Informer<ServiceCidr>,
    addresses: Informer<()>,
}

/// Runs until shutdown.
pub async fn run(context: Context) {
    let ranges: Informer<ServiceCidr> = context.informers.informer(&resource(), &Scope::default());
    let addresses: Informer<()> = context.informers.informer(&ApiResource::of::<IPAddress>(), &Scope::default());
    let queue: Arc<WorkQueue<Key>> = Arc::default();
    let (q, all) = (queue.clone(), ranges.clone());
    let near = move |like: &dyn Fn(&ServiceCidr) -> bool| {
        all.cache().all().filter(|r| like(&r.view)).for_each(|r| q.add(r.key()));
    };
    let (q, of_addresses) = (queue.clone(), near.clone());
    ranges.on_change(move |change| {
        q.add(change.key());
        // Another range may set one free, or no longer do so.
        if change.old.is_none() != change.new.is_none() {
            let it = change.latest().clone();
            near(&|other| other.overlaps(&it.view));
        }
    });
    addresses.on_change(move |change| {
        let it = change.latest();
        if let Some(ip) = ours(it).filter(|_| change.old.is_none() != change.new.is_none()) {
            of_addresses(&|range| range.has(ip));
        }
    });
    ranges.synced().await;
    addresses.synced().await;
    let (recorder, shutdown) = (context.recorder(COMPONENT), context.shutdown.clone());
    let c = Arc::new(Controller { context, recorder, ranges, addresses });
    client::queue::work("servicecidrs", queue, 5, shutdown, move |key| {
        let c = c.clone();
        async move { c.reconcile(key).await }
    })
    .await;
}

/// The condition `Ready` of a range: its status and its message.
pub fn ready(o: &Object) -> Option<(&str, &str)> {
    let all = o.at(&["status", "conditions"])?.as_array()?;
    let it = all.iter().find(|c| c["type"] == "Ready")?;
    Some((it["status"].as_str()?, it["message"].as_str().unwrap_or_default()))
}

/// A patch that applies the condition `Ready`.
pub fn condition(name: &str, status: &str, reason: Option<&str>, message: &str, now: jiff::Timestamp) -> Patch {
    let mut c =
        json!({"type": "Ready", "status": status, "message": message, "lastTransitionTime": meta::time::format(now)});
    if let Some(reason) = reason {
        c["reason"] = reason.into();
    }
    Patch::Apply(json!({"kind": "ServiceCIDR", "apiVersion": "networking.k8s.io/v1", "metadata": {"name": name},
        "status": {"conditions": [c]}}))
}

impl Controller {
    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(entry) = self.ranges.get(&key) else { return Ok(Outcome::Done) };
        let held = entry.meta.finalizers.iter().any(|f| f == FINALIZER);
        let api = self.context.client.dynamic(&resource());
        let finalizers = |change: Value| Patch::Strategic(json!({"metadata": change}));
        let options = WriteOptions::default();
        if let Some(since) = entry.meta.deletion_timestamp {
            if !self.may_go(&entry) {
                self.say(&entry, "False", Some("Terminating"), IN_USE).await?;
                return Ok(Outcome::Done);
            }
            let waited = Duration::try_from(self.context.now().duration_since(since)).unwrap_or_default();
            if waited < GRACE {
                return Ok(Outcome::After(GRACE - waited));
            }
            if held {
                let off = finalizers(json!({"$deleteFromPrimitiveList/finalizers": [FINALIZER]}));
                client::optional(api.patch(&key.name, &options, &off).await)?;
            }
            return Ok(Outcome::Done);
        }
        if !held {
            client::optional(api.patch(&key.name, &options, &finalizers(json!({"finalizers": [FINALIZER]}))).await)?;
        }
        if let Err(e) = self.say(&entry, "True", None, READY).await {
            let about = Regarding::of("networking.k8s.io/v1", "ServiceCIDR", &entry.meta);
            let message = "The ServiceCIDR Status can not be set to Ready=True";
            self.recorder.warning(about, "KubernetesServiceCIDRError", message);
            return Err(e);
        }
        Ok(Outcome::Done)
    }

    /// Sets the condition, unless it says so already.
    async fn say(
        &self,
        entry: &Entry<ServiceCidr>,
        status: &str,
        reason: Option<&str>,
        message: &str,
    ) -> Result<(), Error> {
        if ready(&entry.decode()?) == Some((status, message)) {
            return Ok(());
        }
        let options = WriteOptions { force: true, ..WriteOptions::manager(COMPONENT) };
        let patch = condition(&entry.meta.name, status, reason, message, self.context.now());
        let api = self.context.client.dynamic(&resource());
        client::optional(api.patch_status(&entry.meta.name, &options, &patch).await)?;
        Ok(())
    }

    fn may_go(&self, leaving: &Entry<ServiceCidr>) -> bool {
        let ranges = self.ranges.cache();
        let others: Vec<&ServiceCidr> =
            ranges.all().filter(|r| r.meta.name != leaving.meta.name).map(|r| &r.view).collect();
        let addresses = self.addresses.cache();
        let used: Vec<IpAddr> = addresses.all().filter(|a| is_managed(a)).filter_map(ours).collect();
        may_go(&leaving.view, &others, used.into_iter())
    }
}
