//! Writing the pod's status into the API.

use std::time::Duration;

use client::{Patch, WriteOptions};
use k8s_openapi::api::core::v1::{Container as Spec, Pod};

use super::{RESYNC, Worker, revision};
use crate::pod::plan::Sandbox;
use crate::pod::spec::text;
use crate::pod::status::{self, Details, Facts};

/// A status that the API did not accept.
pub(super) struct FailedReport {
    /// How long until it is reported again.
    pub retry: Duration,
    pub too_large: bool,
    /// The API will not accept the same status later either.
    pub permanent: bool,
}

impl Worker {
    /// Writes the status into the API, with fewer details if it is too large. Returns `None` when the API has it, or has no such pod.
    /// `has_ended`: nothing of the pod runs any more, and nothing will.
    pub(super) async fn report(&mut self, has_ended: bool) -> Option<FailedReport> {
        let mut failed = self.write_status(has_ended).await;
        if failed.as_ref().is_some_and(|u| u.too_large) && self.details == Details::All {
            self.details = Details::Few;
            failed = self.write_status(has_ended).await;
        }
        match &mut failed {
            None => self.failed_reports = 0,
            Some(failed) => {
                failed.retry = Duration::from_secs(1 << self.failed_reports.min(8)).min(RESYNC);
                self.failed_reports += 1;
            }
        }
        failed
    }

    async fn write_status(&mut self, has_ended: bool) -> Option<FailedReport> {
        let seen = self.observe().await.ok()?;
        self.probe(&seen);
        let health = self.probes.health();
        let host_ips = super::texts(&self.shared.options.node_ips);
        let mut pod = (*self.pod).clone();
        pod.status = Some(self.base.1.clone());
        let ips = super::texts(&self.ips);
        let resizing = if has_ended { Vec::new() } else { self.resize.conditions() };
        let specs = pod.spec.iter().flat_map(|s| &s.containers);
        let of_devices = |c: &Spec| {
            let of_plugins = self.shared.managers.devices.health(&self.uid, &c.name);
            let claimed = self.shared.dra.health(&pod, c);
            (c.name.clone(), of_plugins.into_iter().chain(claimed).collect())
        };
        let devices = specs.map(of_devices).collect();
        let new = status::status(&Facts {
            pod: &pod,
            actuated: &self.resize.actuated,
            of_pod: self.resize.of_pod(),
            resizing: &resizing,
            newest: &seen.newest,
            previous: &seen.previous,
            waiting: &self.waiting,
            health: &health,
            killed: &self.killed,
            devices: &devices,
            messages: &self.messages,
            sandbox_ready: seen.state() == Sandbox::Ready && !has_ended,
            pod_ips: &ips,
            host_ips: &host_ips,
            now: self.now(),
            failed: self.failed.as_ref().map(|f| (f.reason.as_str(), f.message.as_str())),
            rejected: self.failed.as_ref().is_some_and(|f| f.rejected) && seen.newest.is_empty(),
            disruption: self.failed.as_ref().and_then(|f| f.disruption.as_deref()),
            has_ended,
            details: self.details,
            runtime: &self.facts(&seen),
        });
        let patch = status::patch(self.api_uid()?, Some(&self.base.1), &new)?;
        let m = &self.pod.metadata;
        let api = self.shared.client.api::<Pod>().namespace(text(&m.namespace));
        let patch = Patch::Strategic(patch);
        match api.patch_subresource::<Pod>(text(&m.name), "status", &WriteOptions::default(), &patch).await {
            Ok(p) => {
                self.base = (revision(&p), p.status.unwrap_or_default());
                if self.base.1.phase.as_deref() == Some("Running")
                    && let Some(seen) = self.seen.take()
                {
                    self.shared.known.pod_started(seen.elapsed());
                }
                None
            }
            Err(e) if e.is_not_found() || e.is_conflict() => None,
            Err(error) => {
                tracing::warn!(pod = %self.name(), %error, "the API did not accept the status; it is reported again");
                let too_large = error.status().is_some_and(|s| s.code == 413);
                Some(FailedReport {
                    retry: Duration::ZERO,
                    too_large,
                    permanent: error.status().is_some() && !error.is_transient(),
                })
            }
        }
    }
}
