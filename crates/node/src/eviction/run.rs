//! The loop that observes the node and evicts pods.

use std::sync::Arc;
use std::time::Duration;

use client::{Key, Severity};
use futures::stream::{self, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use supervisor::blocking;
use tokio::time::Instant;

use super::decide::Decider;
use super::observe::{Layout, Observations};
use super::rank::{Candidate, PodUsage, rank};
use super::reclaim::Garbage;
use super::usage::{Walk, of_pod};
use super::{EVICTED, Eviction, message::message};
use crate::admission::preemption::is_critical;
use crate::configuration::{Starved, Threshold};
use crate::dispatch::{Wakes, wake};
use crate::image_gc::ImageCollector;
use crate::node::regarding;
use crate::pod::worker::regarding_pod;
use crate::shared::Shared;

/// How often the node is observed (`evictionMonitoringPeriod`).
const PERIOD: Duration = Duration::from_secs(10);
/// How long the end of an evicted pod is waited for, and how often it is looked for.
const CLEANUP: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_secs(1);
/// The grace period in seconds of an eviction under a hard threshold.
const HARD_GRACE: i64 = 1;
/// Pods whose usage is read at a time.
const PARALLEL: usize = 4;

/// Evicts pods while the node lacks resources, for ever.
pub(crate) async fn run(shared: Arc<Shared>, images: Arc<ImageCollector>, wakes: Wakes) {
    let configuration = &shared.options.configuration;
    let observer = shared.options.observer.clone();
    let layout = blocking(move || observer.layout()).await;
    let period = configuration.eviction_pressure_transition_period.get();
    let decider = Decider::new(configuration.thresholds(), period, layout);
    if decider.is_idle() {
        return std::future::pending().await;
    }
    let mut evictor = Evictor { shared, images, wakes, layout, decider };
    loop {
        match evictor.step().await {
            Some(uid) => evictor.wait_for_end(&uid).await,
            None => tokio::time::sleep(PERIOD).await,
        }
    }
}

struct Evictor {
    shared: Arc<Shared>,
    images: Arc<ImageCollector>,
    wakes: Wakes,
    layout: Layout,
    decider: Decider,
}

/// A pod of the node that may be evicted, with its specification.
struct Active {
    view: Arc<scheduler::pod::Pod>,
    pod: Pod,
}

impl Evictor {
    async fn observe(&self) -> Observations {
        let observer = self.shared.options.observer.clone();
        blocking(move || observer.observe()).await
    }

    /// Observes the node, and evicts at most one pod. Returns the UID of that pod.
    async fn step(&mut self) -> Option<String> {
        let observations = self.observe().await;
        let verdict = self.decider.decide(&observations, Instant::now());
        self.shared.known.evictions.set_pressures(verdict.pressures);
        let first = verdict.due.first()?;
        self.relieve(first, &verdict.due, &observations).await
    }

    async fn relieve(&self, first: &Threshold, due: &[Threshold], observations: &Observations) -> Option<String> {
        let (shared, starved) = (&self.shared, first.signal.starved());
        let about = regarding(&shared.options.node_name);
        let what = format!("Attempting to reclaim {}", starved.as_str());
        shared.recorder.warning(about, "EvictionThresholdMet", what);
        let garbage = Garbage::of(first.signal, self.layout);
        if garbage != Garbage::NONE {
            shared.reclaim(garbage, &self.images).await;
            if self.decider.is_resolved(&self.observe().await) {
                tracing::info!(resource = starved.as_str(), "removing what no pod needs was enough; no pod is evicted");
                return None;
            }
        }
        let pods = self.active().await;
        if pods.is_empty() {
            tracing::warn!(resource = starved.as_str(), "the node lacks a resource, and has no pod to evict");
        }
        let walk = if matches!(starved, Starved::Storage | Starved::Inodes) { Walk::Disk } else { Walk::Nothing };
        let read = |p: &Active| {
            let (shared, pod) = (shared.clone(), p.pod.clone());
            async move { of_pod(&shared, &pod, walk).await }
        };
        let reads: Vec<_> = pods.iter().map(read).collect();
        let usages: Vec<Option<PodUsage>> = stream::iter(reads).buffered(PARALLEL).collect().await;
        let mut ranked: Vec<Candidate> = pods
            .iter()
            .zip(usages)
            .map(|(Active { view, .. }, usage)| Candidate {
                uid: view.meta.uid.to_string(),
                priority: view.view.priority,
                memory: view.view.requests.memory,
                storage: view.view.requests.ephemeral,
                usage,
            })
            .collect();
        rank(&mut ranked, first.signal, self.layout);
        let chosen = ranked.iter().find(|c| !is_critical(c.priority))?;
        let Active { pod, .. } = pods.iter().find(|p| *p.view.meta.uid == *chosen.uid)?;
        let (message, annotations) = message(starved, pod, chosen.usage.as_ref(), due, observations);
        let grace = self.grace_period(first, pod);
        tracing::info!(uid = chosen.uid, resource = starved.as_str(), ?grace, "evicting a pod");
        shared.recorder.annotated(regarding_pod(pod), Severity::Warning, EVICTED, message.clone(), annotations);
        shared.known.evictions.evict(&chosen.uid, Eviction { message, grace_period: grace });
        shared.known.evicted(first.signal.as_str());
        wake(&self.wakes, &chosen.uid);
        Some(chosen.uid.clone())
    }

    fn grace_period(&self, threshold: &Threshold, pod: &Pod) -> Duration {
        if threshold.is_hard() {
            return meta::time::seconds(HARD_GRACE);
        }
        let most = i64::from(self.shared.options.configuration.eviction_max_pod_grace_period);
        let own = pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds);
        meta::time::seconds(own.map_or(most, |own| own.min(most)))
    }

    /// The admitted pods that have not ended. Static pods are left out: they are never evicted.
    async fn active(&self) -> Vec<Active> {
        let Some(informer) = self.shared.known.pods.read().clone() else { return Vec::new() };
        let mut out = Vec::new();
        for view in self.shared.admission.running() {
            let key = Key::new(&*view.meta.namespace, &*view.meta.name);
            let Some(entry) = informer.get(&key).filter(|e| e.meta.uid == view.meta.uid) else { continue };
            match entry.decode::<Pod>() {
                Ok(pod) => out.push(Active { view, pod }),
                Err(error) => tracing::warn!(%key, %error, "decoding a pod failed; it is not evicted"),
            }
        }
        out
    }

    /// Waits until an evicted pod has ended and its volumes are gone, but not for long. Another pod would be evicted too early.
    async fn wait_for_end(&self, uid: &str) {
        let begun = Instant::now();
        while self.shared.admission.holds(uid) || self.shared.volumes.has_volumes(uid).await {
            if begun.elapsed() >= CLEANUP {
                tracing::warn!(uid, "an evicted pod has not ended in time");
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}
