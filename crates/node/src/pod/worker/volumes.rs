//! The pod's volumes: set up before containers start, refreshed while they run.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use client::Severity;
use tokio::time::Instant;

use super::{RESYNC, Worker};
use crate::admission::Rejection;
use crate::pod::holds::{FIRST_RETRY, LAST_RETRY, VOLUMES};
use crate::pod::plan::Plan;
use crate::volumes;

impl Worker {
    /// Sets up the pod's volumes and returns their paths by name. `None` if one fails, which is reported.
    pub(super) async fn set_up_volumes(&mut self, plan: &Plan) -> Option<BTreeMap<String, PathBuf>> {
        let now = self.now();
        if self.holds.is_held(VOLUMES, now) {
            return None;
        }
        if volumes::may_wait(&self.pod) {
            // Others start meanwhile.
            self.start_permit = None;
        }
        let shared = self.shared.clone();
        let (node, inbox) = (self.node(), Some(self.inbox.clone()));
        match shared.volumes.set_up(&self.pod, &*shared.objects, &*shared.tokens, &node, inbox).await {
            Ok(v) => {
                self.holds.release(VOLUMES);
                Some(v)
            }
            Err(e) => {
                if let Some(reason) = e.rejection() {
                    self.rejected = Some(Rejection::new(reason, e.to_string()));
                    return None;
                }
                let now = self.now();
                self.holds.hold(VOLUMES, FIRST_RETRY, LAST_RETRY, now);
                self.event(None, Severity::Warning, e.reason(), e.to_string());
                tracing::debug!(pod = %self.name(), containers = plan.start.len(), "waiting for volumes: {e}");
                None
            }
        }
    }

    /// Refreshes volumes when an object or the pod's metadata has changed, and regularly for tokens. A change of an object also ends
    /// all holds.
    pub(super) async fn refresh(&mut self) {
        let dirty = self.shared.take_dirty(&self.uid);
        if dirty {
            self.holds.clear();
        }
        let spec = self.pod.spec.as_ref();
        let has_volumes = spec.is_some_and(|s| s.volumes.as_ref().is_some_and(|v| !v.is_empty()));
        let relabelled = self.next_labels().is_some_and(|left| left.is_zero());
        let due = match self.refreshed {
            Some(at) => at.elapsed() >= RESYNC || dirty || relabelled,
            None => self.was_running(),
        };
        if !has_volumes || !due {
            return;
        }
        self.refreshed = Some(Instant::now());
        self.relabelled = false;
        let (shared, node, inbox) = (self.shared.clone(), self.node(), Some(self.inbox.clone()));
        if let Err(e) = shared.volumes.refresh(&self.pod, &*shared.objects, &*shared.tokens, &node, inbox).await {
            self.event(None, Severity::Warning, e.reason(), e.to_string());
        }
    }

    /// Whether the status reports a running container. If this agent has not set up the volumes, an earlier one has.
    fn was_running(&self) -> bool {
        let status = &self.base.1;
        let lists = [&status.init_container_statuses, &status.container_statuses];
        let mut states = lists.into_iter().flatten().flatten().filter_map(|c| c.state.as_ref());
        states.any(|s| s.running.is_some())
    }

    /// How long until volumes that show changed labels or annotations are refreshed. A client may change them all the time.
    pub(super) fn next_labels(&self) -> Option<Duration> {
        const PACE: Duration = Duration::from_secs(2);
        let refreshed = self.refreshed.filter(|_| self.relabelled && volumes::shows_metadata(&self.pod))?;
        Some(PACE.saturating_sub(refreshed.elapsed()))
    }
}
