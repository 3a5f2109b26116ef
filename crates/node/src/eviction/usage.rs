//! What pods use, read when one of them has to be evicted.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use runtime::{ContainerState, PodRecords};

use super::rank::{ContainerUsage, Disk, PodUsage};
use crate::pod::spec::text;
use crate::shared::Shared;

/// How long the walk through the files of a pod may take. A pod decides how many it has.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    /// Files are counted.
    Disk,
    Nothing,
}

fn disk((bytes, inodes): (u64, u64)) -> Disk {
    let amount = |n| i64::try_from(n).unwrap_or(i64::MAX);
    Disk { bytes: amount(bytes), inodes: amount(inodes) }
}

/// What a pod uses; `None` if it is unknown, as before it has a sandbox.
pub async fn of_pod(shared: &Shared, pod: &Pod, walk: Walk) -> Option<PodUsage> {
    let runtime = &shared.options.runtime;
    let PodRecords { pods, mut containers } = runtime.pod_records(text(&pod.metadata.uid)).await.ok()?;
    let sandbox = pods.into_iter().max_by_key(|p| p.config.attempt)?;
    let stats = runtime.pod_stats(&sandbox.id).await.ok()?;
    containers.retain(|c| c.pod == sandbox.id && c.state == ContainerState::Running);
    let amount = |n| i64::try_from(n).unwrap_or(i64::MAX);
    let mut usage = PodUsage {
        memory: amount(stats.usage.working_set),
        processes: amount(stats.usage.pids),
        ..PodUsage::default()
    };
    for c in &containers {
        let Ok(stats) = runtime.container_stats(&c.id).await else { continue };
        let memory = amount(stats.usage.working_set);
        usage.containers.push(ContainerUsage { name: c.name.clone(), memory, ..ContainerUsage::default() });
    }
    if walk == Walk::Disk {
        let storage = tokio::time::timeout(PATIENCE, shared.local_storage(pod, &containers)).await.ok()?;
        for (name, used) in storage.containers {
            if let Some(c) = usage.containers.iter_mut().find(|c| c.name == name) {
                (c.layer, c.log) = (disk(used.layer), disk((used.log, 1)));
            }
        }
        usage.volumes = storage.volumes.into_values().map(disk).fold(Disk::default(), |sum, d| sum + d);
    }
    Some(usage)
}
