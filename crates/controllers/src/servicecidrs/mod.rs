//! Ranges of service addresses (upstream `pkg/controller/servicecidrs`). A deleted range keeps its finalizer until each of its addresses is
//! free, or is in another range too.
//!
//! [`ranges`] compares ranges. Invariant: the API server allocates nothing from a range that is being deleted, and allocations just before
//! the deletion are waited for.

pub mod ranges;

use crate::context::{Context, Error};
use crate::controller::{Builder, Reconcile};
use crate::ipallocator::{is_managed, ours};
use client::{ApiResource, Entry, Informer, Key, Outcome, Patch, Recorder, Regarding, WorkQueue, WriteOptions};
use k8s_openapi::api::networking::v1::IPAddress;
use meta::{Object, Value};
use ranges::{ServiceCidr, may_go, resource};
use serde_json::json;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";
/// How long a deleted range stays at least, so that every server knows of the deletion.
const GRACE: Duration = Duration::from_secs(10);
const READY: &str = "Kubernetes Service CIDR is ready";
const IN_USE: &str =
    "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR";

struct Controller {
    context: Context,
    recorder: Recorder,
    ranges: Informer<ServiceCidr>,
    addresses: Informer<()>,
}

/// Runs until shutdown.
pub async fn run(context: Context) {
    let mut builder = Builder::new(&context);
    let ranges = builder.watch::<ServiceCidr>(&resource());
    let addresses = builder.watch::<()>(&ApiResource::typed::<IPAddress>());
    let all = ranges.clone();
    builder.on_change(&ranges, move |change, queue| {
        queue.add(change.key());
        // Another range may release one that overlaps it, or hold it.
        if change.old.is_none() != change.new.is_none() {
            let changed = change.latest();
            enqueue_ranges(&all, queue, |other| other.overlaps(&changed.view));
        }
    });
    let all = ranges.clone();
    builder.on_change(&addresses, move |change, queue| {
        let is_new_or_gone = change.old.is_none() != change.new.is_none();
        if let Some(ip) = ours(change.latest()).filter(|_| is_new_or_gone) {
            enqueue_ranges(&all, queue, |range| range.has(ip));
        }
    });
    let recorder = context.recorder();
    builder.run(5, Arc::new(Controller { context, recorder, ranges, addresses })).await;
}

fn enqueue_ranges(ranges: &Informer<ServiceCidr>, queue: &WorkQueue<Key>, matches: impl Fn(&ServiceCidr) -> bool) {
    ranges.cache().entries().filter(|r| matches(&r.view)).for_each(|r| queue.add(r.key()));
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

impl Reconcile for Controller {
    type Key = Key;

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(entry) = self.ranges.get(&key) else { return Ok(Outcome::Done) };
        let held = entry.meta.finalizers.iter().any(|f| f == FINALIZER);
        let api = self.context.client.dynamic(&resource());
        let finalizers = |change: Value| Patch::Strategic(json!({"metadata": change}));
        let options = WriteOptions::default();
        if let Some(since) = entry.meta.deletion_timestamp {
            if !self.may_go(&entry) {
                self.set_ready(&entry, "False", Some("Terminating"), IN_USE).await?;
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
        if let Err(e) = self.set_ready(&entry, "True", None, READY).await {
            let about = Regarding::from_meta("networking.k8s.io/v1", "ServiceCIDR", &entry.meta);
            let message = "The ServiceCIDR Status can not be set to Ready=True";
            self.recorder.warning(about, "KubernetesServiceCIDRError", message);
            return Err(e);
        }
        Ok(Outcome::Done)
    }
}

impl Controller {
    /// Sets the condition if it differs.
    async fn set_ready(
        &self,
        entry: &Entry<ServiceCidr>,
        status: &str,
        reason: Option<&str>,
        message: &str,
    ) -> Result<(), Error> {
        if ready(&entry.decode()?) == Some((status, message)) {
            return Ok(());
        }
        let options = WriteOptions { force: true, ..WriteOptions::manager(self.context.name) };
        let patch = condition(&entry.meta.name, status, reason, message, self.context.now());
        let api = self.context.client.dynamic(&resource());
        client::optional(api.patch_status(&entry.meta.name, &options, &patch).await)?;
        Ok(())
    }

    fn may_go(&self, leaving: &Entry<ServiceCidr>) -> bool {
        let ranges = self.ranges.cache();
        let others: Vec<&ServiceCidr> =
            ranges.entries().filter(|r| r.meta.name != leaving.meta.name).map(|r| &r.view).collect();
        let addresses = self.addresses.cache();
        let used: Vec<IpAddr> = addresses.entries().filter(|a| is_managed(a)).filter_map(ours).collect();
        may_go(&leaving.view, &others, used.into_iter())
    }
}
