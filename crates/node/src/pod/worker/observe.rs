//! Observes the pod's sandbox and containers in the runtime.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Container as Spec;
use runtime::{Container, ContainerState, HandlerFeatures, PodRecords, PodState, Runtime};
use supervisor::blocking;

use super::Worker;
use crate::pod::plan::Sandbox;
use crate::pod::{messages, status};

/// The sandbox and containers of a pod.
#[derive(Default)]
pub(super) struct Observed {
    pub sandbox: Option<runtime::Pod>,
    /// Every container, oldest first.
    pub all: Vec<Container>,
    pub newest: BTreeMap<String, Container>,
    pub previous: BTreeMap<String, Container>,
}

impl Observed {
    pub fn state(&self) -> Sandbox {
        match &self.sandbox {
            None => Sandbox::Absent,
            Some(s) if s.state == PodState::Ready => Sandbox::Ready,
            Some(_) => Sandbox::Dead,
        }
    }

    /// What the handler of the sandbox offers.
    pub fn handler(&self, runtime: &dyn Runtime) -> HandlerFeatures {
        let name = self.sandbox.as_ref().map_or("", |s| s.config.runtime_handler.as_str());
        runtime.handlers().get(name).copied().unwrap_or_default()
    }

    pub fn id(&self) -> &str {
        self.sandbox.as_ref().map_or("", |s| s.id.as_str())
    }

    pub fn running(&self) -> impl Iterator<Item = &Container> {
        self.newest.values().filter(|c| matches!(c.state, ContainerState::Running | ContainerState::Created))
    }
}

impl Worker {
    pub(super) async fn observe(&mut self) -> Result<Observed, runtime::Error> {
        let PodRecords { pods: mut sandboxes, containers: mut all } =
            self.shared.options.runtime.pod_records(&self.uid).await?;
        sandboxes.sort_by_key(|p| p.config.attempt);
        all.sort_by_key(|c| (c.attempt, c.created_at));
        let mut out = Observed { sandbox: sandboxes.pop(), ..Observed::default() };
        for c in &all {
            if let Some(before) = out.newest.insert(c.name.clone(), c.clone()) {
                out.previous.insert(c.name.clone(), before);
            }
        }
        out.all = all;
        for c in out.newest.values().chain(out.previous.values()) {
            if matches!(c.state, ContainerState::Exited | ContainerState::Unknown) && !self.messages.contains_key(&c.id)
            {
                let policy = self.spec_of(&c.name).and_then(|s| s.termination_message_policy);
                let (ended, from_logs) = (c.clone(), policy.as_deref() == Some("FallbackToLogsOnError"));
                let message = blocking(move || messages::read(&ended, from_logs)).await;
                self.messages.insert(c.id.clone(), message);
                if self.counts_ends {
                    let (code, reason) = status::end(c);
                    self.shared.known.container_ended(self.kind_of(&c.name), code, reason);
                }
            }
        }
        self.counts_ends = true;
        let keep: Vec<&String> = out.all.iter().map(|c| &c.id).collect();
        self.messages.retain(|id, _| keep.contains(&id));
        self.killed.retain(|id| keep.contains(&id));
        Ok(out)
    }

    /// Removes old containers with this name. The newest and the one before it stay.
    pub(super) async fn drop_old(&mut self, name: &str, newest: &str) {
        let Ok(seen) = self.observe().await else { return };
        let previous = seen.previous.get(name).map(|c| c.id.clone()).unwrap_or_default();
        for old in seen.all.iter().filter(|c| c.name == name && c.id != newest && c.id != previous) {
            let log = old.log_path.clone();
            blocking(move || runtime::rotation::remove(&log)).await;
            if let Err(error) = self.shared.options.runtime.remove_container(&old.id).await {
                tracing::debug!(container = old.id, %error, "removing an old container failed");
            }
        }
    }

    /// The kind of a container in metrics.
    fn kind_of(&self, name: &str) -> &'static str {
        let spec = self.pod.spec.as_ref();
        let is = |list: Option<&Vec<Spec>>| list.is_some_and(|l| l.iter().any(|c| c.name == name));
        match spec {
            Some(s) if is(s.init_containers.as_ref()) => "init_container",
            Some(s) if is(Some(&s.containers)) => "container",
            _ => "ephemeral_container",
        }
    }
}
