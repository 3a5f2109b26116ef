//! Filters nodes where another pod uses a disk or claim that only one pod may use.

use crate::cluster::{Cluster, Node};
use crate::framework::{Event, NodeFilter, Plugin, Point, PreFilter, Read, Refusal};
use crate::pod::{Disk, Pod};

const NAME: &str = "VolumeRestrictions";

pub struct VolumeRestrictions;

#[derive(Clone)]
struct Check<'a> {
    pod: &'a Pod,
    disks: &'a [Disk],
    /// The claims of the pod that only one pod may use.
    exclusive: Vec<&'a str>,
    /// How many of their uses by other pods there are.
    conflicts: i64,
}

impl Check<'_> {
    fn change(&mut self, other: &Pod, delta: i64) {
        if other.meta.namespace == self.pod.meta.namespace {
            let used = other.view.claims.iter().filter(|c| !c.is_ephemeral && self.exclusive.contains(&&*c.name));
            self.conflicts += delta * used.count() as i64;
        }
    }
}

impl Plugin for VolumeRestrictions {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> &'static [Point] {
        &[Point::PreFilter, Point::Filter]
    }

    fn pre_filter<'a>(&'a self, pod: &'a Pod, cluster: &'a Cluster) -> PreFilter<'a> {
        let mut exclusive = Vec::new();
        for claim in pod.view.claims.iter().filter(|c| !c.is_ephemeral) {
            let Some(found) = cluster.storage().claim(&pod.meta.namespace, &claim.name) else {
                let why = format!("persistentvolumeclaim \"{}\" not found", claim.name);
                return Err(Refusal::unresolvable(NAME, why));
            };
            if found.view.modes.iter().any(|m| &**m == "ReadWriteOncePod") {
                exclusive.push(&*claim.name);
            }
        }
        let used = exclusive.iter().filter(|name| cluster.is_claim_used(&pod.meta.namespace, name));
        let conflicts = used.count() as i64;
        if pod.view.disks.is_empty() && conflicts == 0 {
            return Ok(None);
        }
        Ok(Some(Box::new(Check { pod, disks: &pod.view.disks, exclusive, conflicts })))
    }

    fn reads(&self) -> &'static [Read] {
        &[Read::Nodes, Read::GonePods, Read::Storage]
    }

    fn hint(&self, pod: &Pod, event: &Event<'_>) -> bool {
        match event {
            Event::PodGone(gone) => {
                let shared = |c: &crate::pod::ClaimUse| gone.view.claims.iter().any(|g| g.name == c.name);
                gone.meta.namespace == pod.meta.namespace
                    && (pod.view.claims.iter().any(shared)
                        || pod.view.disks.iter().any(|d| gone.view.disks.iter().any(|g| d.conflicts(g))))
            }
            _ => true,
        }
    }
}

impl NodeFilter for Check<'_> {
    fn check(&self, node: &Node) -> Result<(), Refusal> {
        let conflicts = |d: &Disk| node.pods.iter().any(|p| p.view.disks.iter().any(|other| d.conflicts(other)));
        if self.disks.iter().any(conflicts) {
            return Err(Refusal::resolvable(NAME, "node(s) had no available disk"));
        }
        if self.conflicts > 0 {
            let why = "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod";
            return Err(Refusal::resolvable(NAME, why));
        }
        Ok(())
    }

    fn fork(&self) -> Option<Box<dyn NodeFilter + '_>> {
        Some(Box::new(self.clone()))
    }

    fn add_pod(&mut self, pod: &Pod, _: &Node) {
        self.change(pod, 1);
    }

    fn remove_pod(&mut self, pod: &Pod, _: &Node) {
        self.change(pod, -1);
    }
}
