//! Local storage of a pod with limits: measured every few seconds, and the pod is evicted if it exceeds one.

use std::path::PathBuf;
use std::time::Duration;

use client::Severity;
use k8s_openapi::api::core::v1::{Pod, Volume};
use runtime::Container;
use supervisor::blocking;
use tokio::time::Instant;

use super::observe::Observed;
use super::{Failure, Worker};
use crate::eviction::EVICTED;
use crate::pod::local_storage::{ContainerStorage, Limits, Usage};
use crate::shared::Shared;

/// The pause between two measurements (upstream's `monitoringInterval`).
const INTERVAL: Duration = Duration::from_secs(10);
/// How much longer than a measurement the pause after it is at least.
const REST: u32 = 20;
/// The grace period of an eviction.
const GRACE: Duration = Duration::from_secs(1);

impl Worker {
    /// Evicts the pod if it exceeds a limit of local storage. Returns when the next round is due; `None` if the pod may run on.
    pub(super) async fn check_storage(&mut self, seen: &Observed) -> Option<Duration> {
        let limits = Limits::of(self.pod.spec.as_ref()?)?;
        if self.storage_due.is_some_and(|due| Instant::now() < due) {
            return None;
        }
        let begun = Instant::now();
        let containers: Vec<Container> = seen.newest.values().cloned().collect();
        let usage = self.shared.local_storage(&self.pod, &containers).await;
        // Users decide how many files there are to look at.
        self.storage_due = Some(Instant::now() + INTERVAL.max(begun.elapsed() * REST));
        let (signal, message) = limits.exceeded(&usage)?;
        self.event(None, Severity::Warning, EVICTED, message.clone());
        self.shared.known.evicted(signal);
        Some(self.fail_within(Failure::new(EVICTED, message), GRACE).await)
    }

    /// How long until the local storage is measured again; `None` for a pod without limits.
    pub(super) fn next_storage(&self) -> Option<Duration> {
        Some(self.storage_due?.saturating_duration_since(Instant::now()))
    }
}

impl Shared {
    /// What a pod with these containers uses of the node's disk. Walks all of it.
    pub(crate) async fn local_storage(&self, pod: &Pod, containers: &[Container]) -> Usage {
        let mut usage = Usage::default();
        for c in containers {
            let layer = self.options.runtime.container_layer(&c.id).await.unwrap_or_default();
            let log = c.log_path.clone();
            let log = blocking(move || runtime::rotation::size(&log)).await.unwrap_or(0);
            usage.containers.insert(c.name.clone(), ContainerStorage { layer, log });
        }
        let is_on_disk =
            |v: &&Volume| v.empty_dir.as_ref().is_some_and(|e| e.medium.as_deref().unwrap_or_default().is_empty());
        let specs = pod.spec.as_ref().and_then(|s| s.volumes.as_ref()).into_iter().flatten();
        let volumes: Vec<(String, PathBuf)> =
            specs.filter(is_on_disk).filter_map(|v| Some((v.name.clone(), self.volumes.directory(pod, v)?))).collect();
        usage.volumes = blocking(move || {
            volumes.into_iter().map(|(name, path)| (name, runtime::beneath::disk_usage(&path))).collect()
        })
        .await;
        usage
    }
}
