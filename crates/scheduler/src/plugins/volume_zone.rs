//! Filters nodes outside the zones of the pod's volumes.

use crate::cluster::{Cluster, Node};
use crate::framework::{NodeFilter, Plugin, Point, PreFilter, Read, Refusal};
use crate::pod::Pod;

const NAME: &str = "VolumeZone";

/// Labels of zones and regions; the older ones mean the same as the newer.
const LABELS: [(&str, &str); 4] = [
    ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
    ("topology.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("topology.kubernetes.io/region", "topology.kubernetes.io/region"),
];

pub struct VolumeZone;

/// Labels of volumes: the key, its newer form, and the values that fit.
struct Check(Vec<(&'static str, &'static str, Vec<Box<str>>)>);

impl Plugin for VolumeZone {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> &'static [Point] {
        &[Point::PreFilter, Point::Filter]
    }

    fn pre_filter<'a>(&'a self, pod: &'a Pod, cluster: &'a Cluster) -> PreFilter<'a> {
        let storage = cluster.storage();
        let refused = |why: String| Err(Refusal::unresolvable(NAME, why));
        let mut zones = Vec::new();
        for claim in pod.view.claims.iter().filter(|c| !c.is_ephemeral) {
            let Some(found) = storage.claim(&pod.meta.namespace, &claim.name) else {
                return refused(format!("persistentvolumeclaim \"{}\" not found", claim.name));
            };
            let (name, class) = (&*found.view.volume, &*found.view.class);
            if name.is_empty() {
                if class.is_empty() {
                    return refused("PersistentVolumeClaim had no pv name and storageClass name".into());
                }
                match storage.class(class).map(|c| c.waits()) {
                    None => return refused(format!("storageclass.storage.k8s.io \"{class}\" not found")),
                    Some(None) => return refused(format!("VolumeBindingMode not set for StorageClass \"{class}\"")),
                    Some(Some(true)) => continue,
                    Some(Some(false)) => return refused("PersistentVolume had no name".into()),
                }
            }
            let Some(volume) = storage.volume(name) else {
                return refused(format!("persistentvolume \"{name}\" not found"));
            };
            for (key, newer) in LABELS {
                if let Some(value) = volume.meta.label(key) {
                    zones.push((key, newer, value.split("__").map(|z| z.trim().into()).collect()));
                }
            }
        }
        if zones.is_empty() { Ok(None) } else { Ok(Some(Box::new(Check(zones)))) }
    }

    fn reads(&self) -> &'static [Read] {
        &[Read::Nodes, Read::NodeLabels, Read::Storage]
    }
}

impl NodeFilter for Check {
    fn check(&self, node: &Node) -> Result<(), Refusal> {
        let Some(n) = &node.entry else { return Ok(()) };
        // A node without zones is in all of them.
        if LABELS.iter().all(|(key, _)| n.meta.label(key).is_none()) {
            return Ok(());
        }
        let fits = self.0.iter().all(|(key, newer, values)| {
            let here = n.meta.label(key).or_else(|| n.meta.label(newer));
            here.is_some_and(|here| values.iter().any(|v| **v == *here))
        });
        if fits { Ok(()) } else { Err(Refusal::unresolvable(NAME, "node(s) had no available volume zone")) }
    }
}
