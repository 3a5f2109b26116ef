//! Removes what no pod needs from the disks of the node before pods are evicted (upstream `reclaimNodeLevelResources`).

use k8s_openapi::api::core::v1::Pod;
use runtime::ContainerState;
use supervisor::blocking;

use super::observe::Layout;
use crate::configuration::Signal;
use crate::image_gc::ImageCollector;
use crate::pod::spec::text;
use crate::shared::Shared;

/// What is removed to relieve a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Garbage {
    pub containers: bool,
    pub images: bool,
}

impl Garbage {
    pub const NONE: Self = Self { containers: false, images: false };

    /// The garbage on the file system of a signal.
    pub fn of(signal: Signal, layout: Layout) -> Self {
        use Signal::{ContainerFsAvailable, ContainerFsInodesFree, ImageFsAvailable, ImageFsInodesFree};
        use Signal::{NodeFsAvailable, NodeFsInodesFree};
        let (is_node, is_image) = match signal {
            NodeFsAvailable | NodeFsInodesFree => (true, false),
            ImageFsAvailable | ImageFsInodesFree => (false, true),
            ContainerFsAvailable | ContainerFsInodesFree => (false, false),
            Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable | Signal::PidAvailable => return Self::NONE,
        };
        match layout {
            Layout::OneFileSystem => Self { containers: true, images: true },
            Layout::ImagesApart if is_node => Self::NONE,
            Layout::ImagesApart => Self { containers: true, images: true },
            Layout::ContainersApart => Self { containers: !is_image, images: is_image },
        }
    }
}

impl Shared {
    /// Removes garbage. Returns when everything that could be removed is.
    pub(super) async fn reclaim(&self, garbage: Garbage, images: &ImageCollector) {
        if garbage.containers {
            self.remove_dead_containers().await;
        }
        if garbage.images
            && let Err(error) = images.delete_unused().await
        {
            tracing::warn!(%error, "removing unused images failed");
        }
    }

    /// Removes the containers of pods that have ended, with their logs.
    async fn remove_dead_containers(&self) {
        let Some(pods) = self.known.pods.read().clone() else { return };
        let entries: Vec<_> = pods.cache().entries().cloned().collect();
        for entry in entries {
            let Ok(pod) = entry.decode::<Pod>() else { continue };
            let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
            // The status of others is made from their containers.
            if !matches!(phase, Some("Succeeded" | "Failed")) {
                continue;
            }
            let Ok(records) = self.options.runtime.pod_records(text(&pod.metadata.uid)).await else { continue };
            for c in records.containers {
                if matches!(c.state, ContainerState::Running | ContainerState::Created) {
                    continue;
                }
                let log = c.log_path.clone();
                blocking(move || runtime::rotation::remove(&log)).await;
                if let Err(error) = self.options.runtime.remove_container(&c.id).await {
                    tracing::debug!(container = c.id, %error, "removing a dead container failed");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn garbage_is_where_the_signal_measures() {
        use Layout::{ContainersApart, ImagesApart, OneFileSystem};
        for (signal, layout, containers, images) in [
            (Signal::MemoryAvailable, OneFileSystem, false, false),
            (Signal::PidAvailable, ImagesApart, false, false),
            (Signal::NodeFsAvailable, OneFileSystem, true, true),
            (Signal::ImageFsInodesFree, OneFileSystem, true, true),
            (Signal::ContainerFsAvailable, OneFileSystem, true, true),
            (Signal::NodeFsInodesFree, ImagesApart, false, false),
            (Signal::ImageFsAvailable, ImagesApart, true, true),
            (Signal::ContainerFsInodesFree, ImagesApart, true, true),
            (Signal::NodeFsAvailable, ContainersApart, true, false),
            (Signal::ImageFsAvailable, ContainersApart, false, true),
            (Signal::ContainerFsAvailable, ContainersApart, true, false),
        ] {
            assert_eq!(Garbage::of(signal, layout), Garbage { containers, images }, "{signal:?} {layout:?}");
        }
    }
}
