//! A pod of a job, with what its accounting reads.

use crate::context::Error;
use crate::views::PodEntry;
use client::informer::or_default;
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The finalizer of pods that are not accounted for yet.
pub const FINALIZER: &str = "batch.kubernetes.io/job-tracking";
/// Annotation and label with the completion index.
pub const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// How often pods of the index failed before this one.
pub const FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
/// How often pods of the index failed before this one without counting.
pub const IGNORED_FAILURES: &str = "batch.kubernetes.io/job-index-ignored-failure-count";

pub struct JobPod {
    pub entry: Arc<PodEntry>,
    pub index: Option<i64>,
    /// Whether it is not accounted for yet, as far as the cache shows.
    pub has_finalizer: bool,
    /// Decoded only where it matters: of pods that have ended or are being deleted, or whose containers restart.
    details: Details,
}

/// The fields of a pod that matter when it ends.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Details {
    metadata: Metadata,
    spec: Spec,
    status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    deletion_grace_period_seconds: Option<i64>,
    #[serde(deserialize_with = "or_default")]
    annotations: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    #[serde(deserialize_with = "or_default")]
    init_containers: Vec<InitContainer>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct InitContainer {
    name: String,
    restart_policy: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    #[serde(deserialize_with = "or_default")]
    container_statuses: Vec<ContainerStatus>,
    #[serde(deserialize_with = "or_default")]
    init_container_statuses: Vec<ContainerStatus>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ContainerStatus {
    name: String,
    restart_count: i64,
    state: State,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct State {
    terminated: Option<Terminated>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Terminated {
    exit_code: i64,
    finished_at: Option<Timestamp>,
}

impl JobPod {
    /// `adopted`: the finalizer was just added. `restarts`: the restarts of its containers matter.
    pub fn new(entry: Arc<PodEntry>, adopted: bool, restarts: bool) -> Result<Self, Error> {
        let ends = entry.view.is_terminal() || entry.meta.is_deleting();
        let details = if ends || restarts { entry.decode()? } else { Details::default() };
        let index = entry.view.metadata.annotations.completion_index.as_deref().and_then(|i| i.parse().ok());
        let has_finalizer = adopted || has_finalizer(&entry);
        Ok(Self { index: index.filter(|i| *i >= 0), has_finalizer, details, entry })
    }

    pub fn uid(&self) -> &str {
        &self.entry.meta.uid
    }

    pub fn phase(&self) -> &str {
        &self.entry.view.status.phase
    }

    pub fn has_succeeded(&self) -> bool {
        self.phase() == "Succeeded"
    }

    pub fn is_deleting(&self) -> bool {
        self.entry.meta.is_deleting()
    }

    pub fn is_active(&self) -> bool {
        crate::views::is_active(&self.entry)
    }

    pub fn is_terminating(&self) -> bool {
        self.is_deleting() && !self.entry.view.is_terminal()
    }

    /// Whether the pod counts as failed. A pod that is deleted does too, unless it still may end.
    pub fn has_failed(&self, only_replaces_failed: bool) -> bool {
        self.phase() == "Failed" || (!only_replaces_failed && self.is_deleting() && !self.has_succeeded())
    }

    /// Whether the index is one of a job with this number of completions.
    pub fn index_below(&self, completions: i64) -> Option<i64> {
        self.index.filter(|i| *i < completions)
    }

    pub fn failures(&self) -> i64 {
        self.count(FAILURES)
    }

    pub fn ignored_failures(&self) -> i64 {
        self.count(IGNORED_FAILURES)
    }

    fn count(&self, annotation: &str) -> i64 {
        let n = self.details.metadata.annotations.get(annotation).and_then(|n| n.parse().ok());
        n.filter(|n| (0..=i64::from(i32::MAX)).contains(n)).unwrap_or(0)
    }

    /// Restarts of all containers.
    pub fn restarts(&self) -> i64 {
        let status = &self.details.status;
        status.init_container_statuses.iter().chain(&status.container_statuses).map(|c| c.restart_count).sum()
    }

    /// The name and exit code of the first terminated container for which `matches` returns true; containers before init containers.
    pub fn exit_code(&self, matches: impl Fn(&str, i64) -> bool) -> Option<(&str, i64)> {
        let status = &self.details.status;
        let all = status.container_statuses.iter().chain(&status.init_container_statuses);
        let ended = all.filter_map(|c| Some((c.name.as_str(), c.state.terminated.as_ref()?.exit_code)));
        ended.into_iter().find(|(name, code)| matches(name, *code))
    }

    /// When the pod ended: when its last container did; or when it became not ready; or when its deletion was requested; or when it was
    /// created.
    pub fn finished_at(&self) -> Timestamp {
        let created = self.entry.meta.creation_timestamp.unwrap_or(Timestamp::UNIX_EPOCH);
        let not_ready = || {
            let ready = self.entry.view.condition("Ready").filter(|c| &*c.status == "False")?;
            ready.last_transition_time
        };
        let deleted = || {
            let grace = self.details.metadata.deletion_grace_period_seconds.unwrap_or(0);
            self.entry.meta.deletion_timestamp?.checked_sub(SignedDuration::from_secs(grace)).ok()
        };
        self.containers_finished_at().or_else(not_ready).or_else(deleted).unwrap_or(created)
    }

    fn containers_finished_at(&self) -> Option<Timestamp> {
        let Details { spec, status, .. } = &self.details;
        let always = |c: &&InitContainer| c.restart_policy.as_deref() == Some("Always");
        let sidecars: Vec<&str> = spec.init_containers.iter().filter(always).map(|c| c.name.as_str()).collect();
        let sidecars = status.init_container_statuses.iter().filter(|c| sidecars.contains(&c.name.as_str()));
        let all = status.container_statuses.iter().chain(sidecars);
        let times: Option<Vec<Timestamp>> = all.map(|c| c.state.terminated.as_ref()?.finished_at).collect();
        times?.into_iter().max()
    }
}

pub fn has_finalizer(pod: &PodEntry) -> bool {
    pod.meta.finalizers.iter().any(|f| f == FINALIZER)
}
