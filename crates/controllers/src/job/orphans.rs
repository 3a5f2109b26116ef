//! Removes finalizers of pods that no job accounts for: their job was deleted or has finished, or they have no controller.

use super::pods::finalizer_patch;
use super::{Controller, has_finalizer, pod_resource};
use crate::context::Error;
use crate::controller::Reconcile;
use crate::views::PodEntry;
use client::{Key, Outcome, WriteOptions, optional};
use futures::future::join_all;
use std::sync::Arc;

/// Pods to look at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Orphan {
    Pod(Key),
    /// All pods of the job with this UID.
    OfJob(Arc<str>),
}

pub struct Sweeper(pub Arc<Controller>);

impl Reconcile for Sweeper {
    type Key = Orphan;

    async fn reconcile(&self, key: Orphan) -> Result<Outcome, Error> {
        let pods: Vec<Arc<PodEntry>> = match &key {
            Orphan::Pod(key) => self.0.pods.get(key).into_iter().collect(),
            Orphan::OfJob(uid) => self.0.pods.cache().controlled_by(uid).cloned().collect(),
        };
        let mut failure = None;
        for result in join_all(pods.iter().filter(|p| self.is_orphan(p)).map(|p| self.release(p))).await {
            failure = failure.or(result.err());
        }
        failure.map_or(Ok(Outcome::Done), Err)
    }
}

impl Sweeper {
    /// Whether the pod has the finalizer and no job will remove it.
    fn is_orphan(&self, pod: &PodEntry) -> bool {
        let unaccounted = match pod.meta.controller() {
            None => true,
            Some(o) if o.kind != "Job" || o.api_version != "batch/v1" => false,
            Some(_) => {
                let job = self.0.owner_of(&pod.meta);
                job.is_none_or(|job| !job.view.is_managed_by_other() && job.view.is_finished())
            }
        };
        unaccounted && has_finalizer(pod)
    }

    async fn release(&self, pod: &PodEntry) -> Result<(), Error> {
        let api = self.0.context.client.dynamic(&pod_resource()).namespace(&pod.meta.namespace);
        let patch = finalizer_patch(&pod.meta.uid);
        optional(api.patch(&pod.meta.name, &WriteOptions::default(), &patch).await)?;
        Ok(())
    }
}
