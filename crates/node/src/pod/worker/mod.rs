//! The task of one pod.
//!
//! A [`Worker`] receives the pod from the API through its [`Inbox`] and works in rounds: [`sync`] for a pod that runs, [`stop`] for
//! a deleted one. It keeps nothing that cannot be found again in the API and the runtime, save for back-offs and probe counts.

mod events;
mod image;
mod image_access;
mod mirror;
mod observe;
mod probing;
mod report;
mod resize;
mod sandbox;
mod start;
mod stop;
mod storage;
mod sync;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container as Spec, Pod, PodStatus};
use supervisor::panics::{Panicked, caught};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

pub(crate) use events::regarding as regarding_pod;

use super::backoff::Backoffs;
use super::holds::Holds;
use super::probes::Probes;
use super::pulls::Pulls;
use super::resize::{Allocation, Limits, Resize};
use super::spec::{containers, find_container, text};
use super::starts::StartPermit;
use super::status::{Details, Waiting};
use crate::admission::{Admitted, Rejection};
use crate::counts::PodLabels;
use crate::fields::NodeInfo;
use crate::shared::Shared;

/// The pod from the API; `None` after it is deleted there.
pub type Inbox = watch::Receiver<Option<Arc<Pod>>>;

/// The maximum time between rounds, and between refreshes of volumes and tokens.
const RESYNC: Duration = Duration::from_secs(60);

/// The delay after a panic, doubled with each further one up to [`RESYNC`].
const AFTER_PANIC: Duration = Duration::from_millis(500);

/// Where a pod comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Api,
    /// A manifest of the machine: a mirror pod of the API shows the pod.
    Manifest,
}

/// Why the agent ends a pod: reason and message of its status.
#[derive(Clone, Debug)]
struct Failure {
    reason: String,
    message: String,
    /// The message of the condition `DisruptionTarget`, if the pod ends for the sake of the node.
    disruption: Option<String>,
    /// The node does not take the pod.
    rejected: bool,
}

impl Failure {
    fn new(reason: &str, message: impl Into<String>) -> Self {
        Self { reason: reason.to_owned(), message: message.into(), disruption: None, rejected: false }
    }

    /// Of a pod that the node does not take.
    fn rejection(reason: &str, message: &str) -> Self {
        Self { rejected: true, ..Self::new(reason, format!("Pod was rejected: {message}")) }
    }

    /// For the sake of the node.
    fn disrupted(self, message: impl Into<String>) -> Self {
        Self { disruption: Some(message.into()), ..self }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Running,
    /// The pod has ended. Its records stay until it is deleted.
    Ended,
    /// The API has the last status of the pod, whose records may be removed.
    Reported,
    /// Everything is removed from the node.
    Removed,
}

pub(crate) struct Worker {
    shared: Arc<Shared>,
    origin: Origin,
    /// UID of the mirror pod that shows a static pod.
    mirror_uid: Option<String>,
    uid: String,
    /// The pod as the API has it.
    desired: Arc<Pod>,
    /// The pod with its allocated resources.
    pod: Arc<Pod>,
    resize: Resize,
    inbox: Inbox,
    wake: Arc<Notify>,
    /// The resource version and the status in the API.
    base: (u64, PodStatus),
    waiting: BTreeMap<String, Waiting>,
    holds: Holds,
    backoffs: Backoffs,
    pulls: Pulls,
    /// The id of the last lost sandbox, and when the loss was noticed.
    lost: Option<(String, Timestamp)>,
    probes: Probes,
    messages: BTreeMap<String, String>,
    /// Ids of the containers that were killed so that they start again.
    killed: BTreeSet<String>,
    /// Whether ends of containers are counted. Those before the first round were seen by an earlier agent.
    counts_ends: bool,
    /// One of each family of the cluster; empty without a network of its own.
    ips: Vec<IpAddr>,
    /// Whether the volumes of the pod, which has ended, are gone.
    volumes_ended: bool,
    /// Why the agent ended the pod.
    failed: Option<Failure>,
    stage: Stage,
    /// When this agent set up or refreshed the volumes last.
    refreshed: Option<Instant>,
    /// Labels or annotations have changed since the last refresh of the volumes.
    relabelled: bool,
    /// Held while something of the pod is started.
    start_permit: Option<StartPermit>,
    /// When the agent saw the pod first, until it runs; `None` for a pod of an earlier agent.
    seen: Option<Instant>,
    /// When the local storage is measured next; `None` before the first time, and for a pod without limits.
    storage_due: Option<Instant>,
    /// The admission of the pod, from before it starts until it has ended.
    admitted: Option<Admitted>,
    /// Why the node rejects the pod, until that is reported.
    rejected: Option<Rejection>,
    /// Panics in a row.
    panics: u32,
    details: Details,
    /// Failed reports of the status in a row.
    failed_reports: u32,
}

/// Whether the pod terminates: it is marked for deletion or gone from the API.
pub(crate) fn is_ending(pod: &Option<Arc<Pod>>) -> bool {
    pod.as_ref().is_none_or(|p| p.metadata.deletion_timestamp.is_some())
}

/// Runs work whose duration a container may determine. Returns `None`, and drops the work, as soon as the pod terminates.
async fn unless_ending<T>(mut inbox: Inbox, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        done = work => Some(done),
        _ = inbox.wait_for(is_ending) => None,
    }
}

fn revision(pod: &Pod) -> u64 {
    text(&pod.metadata.resource_version).parse().unwrap_or(0)
}

/// The pod with the resources that are allocated to it.
fn allocated(allocation: &Allocation, pod: &Arc<Pod>) -> Arc<Pod> {
    if allocation.is_desired_by(pod) { pod.clone() } else { Arc::new(allocation.apply(pod)) }
}

impl Worker {
    pub fn new(
        shared: Arc<Shared>,
        pod: Arc<Pod>,
        origin: Origin,
        inbox: Inbox,
        wake: Arc<Notify>,
        admitted: Result<Option<Admitted>, Rejection>,
    ) -> Self {
        let base = (revision(&pod), pod.status.clone().unwrap_or_default());
        let is_new = base.1.start_time.is_none();
        let (admitted, rejected) = match admitted {
            Ok(admitted) => (admitted, None),
            Err(rejection) => (None, Some(rejection)),
        };
        let allocation = if is_new { Allocation::of_spec(&pod) } else { Allocation::of_status(&pod) };
        Self {
            uid: text(&pod.metadata.uid).to_owned(),
            backoffs: Backoffs::new(
                shared.options.configuration.crash_loop_back_off.max_container_restart_period.get(),
            ),
            shared,
            origin,
            mirror_uid: None,
            pod: allocated(&allocation, &pod),
            desired: pod,
            resize: Resize::new(allocation, if is_new { Limits::Set } else { Limits::Adopted }),
            inbox,
            wake,
            base,
            waiting: BTreeMap::new(),
            holds: Holds::default(),
            pulls: Pulls::default(),
            lost: None,
            probes: Probes::default(),
            messages: BTreeMap::new(),
            killed: BTreeSet::new(),
            counts_ends: is_new,
            ips: Vec::new(),
            volumes_ended: false,
            failed: None,
            stage: Stage::Running,
            refreshed: None,
            relabelled: false,
            start_permit: None,
            seen: is_new.then(Instant::now),
            storage_due: None,
            admitted,
            rejected,
            panics: 0,
            details: Details::All,
            failed_reports: 0,
        }
    }

    /// Runs until the pod is gone from the API and from the node.
    pub async fn run(mut self) {
        loop {
            let latest = self.inbox.borrow_and_update().clone();
            let gone = latest.is_none();
            if let Some(pod) = latest {
                self.take(pod);
            }
            let key = self.pod.metadata.uid.clone().unwrap_or_default();
            let work = async {
                let ends = gone || self.pod.metadata.deletion_timestamp.is_some();
                if ends { self.end(gone).await } else { self.sync().await }
            };
            let sleep = match caught("pod-worker", key, work).await {
                Ok(sleep) => {
                    self.panics = 0;
                    sleep
                }
                Err(Panicked) => {
                    self.panics = self.panics.saturating_add(1);
                    AFTER_PANIC.saturating_mul(1 << self.panics.min(10))
                }
            };
            self.start_permit = None;
            if gone && self.stage == Stage::Removed {
                self.forget_counts();
                return;
            }
            tokio::select! {
                r = self.inbox.changed() => if r.is_err() { return },
                () = self.wake.notified() => {}
                () = tokio::time::sleep(sleep.min(RESYNC)) => {}
            }
        }
    }

    fn take(&mut self, pod: Arc<Pod>) {
        let rv = revision(&pod);
        if rv > self.base.0 {
            self.base = (rv, pod.status.clone().unwrap_or_default());
        }
        let (old, new) = (&self.pod.metadata, &pod.metadata);
        self.relabelled |= old.labels != new.labels || old.annotations != new.annotations;
        if old.generation != new.generation {
            // The new specification may have another image.
            self.holds.clear();
        }
        self.pod = allocated(&self.resize.allocation, &pod);
        self.desired = pod;
    }

    fn now(&self) -> Timestamp {
        self.shared.options.clock.now()
    }

    /// The pod's labels in metrics.
    fn labels(&self) -> PodLabels {
        let meta = &self.pod.metadata;
        PodLabels {
            name: text(&meta.name).to_owned(),
            namespace: text(&meta.namespace).to_owned(),
            uid: self.uid.clone(),
        }
    }

    /// Removes the pod's metrics.
    fn forget_counts(&self) {
        let spec = self.pod.spec.as_ref();
        let all = spec.into_iter().flat_map(containers);
        self.shared.known.forget(&self.labels(), all.map(|c| c.name.as_str()));
    }

    /// The specification of a container of any kind.
    fn spec_of(&self, name: &str) -> Option<Spec> {
        find_container(&self.pod, name)
    }

    /// The values of the node that fields of the pod show.
    fn node(&self) -> NodeInfo {
        NodeInfo {
            node_name: self.shared.options.node_name.clone(),
            host_ips: texts(&self.shared.options.node_ips),
            pod_ips: texts(&self.ips),
            allocatable: self.shared.allocatable.clone(),
        }
    }

    /// The pod with the newest status in the API, in which other components name its claims.
    fn with_status(&self) -> Pod {
        let status = self.base.1.clone();
        Pod { status: Some(status), ..(*self.pod).clone() }
    }

    /// Whether the pod terminates, of which this round may not know yet.
    fn is_ending(&self) -> bool {
        is_ending(&self.inbox.borrow())
    }

    fn name(&self) -> String {
        format!("{}/{}", text(&self.pod.metadata.namespace), text(&self.pod.metadata.name))
    }
}

/// Addresses as text.
fn texts(addresses: &[IpAddr]) -> Vec<String> {
    addresses.iter().map(IpAddr::to_string).collect()
}
