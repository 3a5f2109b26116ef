//! Filters nodes to which no more volumes of a CSI driver can be attached.

use crate::cluster::{Cluster, Node};
use crate::framework::{NodeFilter, Plugin, Point, PreFilter, Read, Refusal};
use crate::pod::Pod;
use crate::storage::Storage;
use std::collections::{HashMap, HashSet};

const NAME: &str = "NodeVolumeLimits";

pub struct NodeVolumeLimits;

/// A volume by driver and handle.
type Handle<'a> = (&'a str, &'a str);

struct Check<'a> {
    storage: &'a Storage,
    volumes: HashSet<Handle<'a>>,
}

/// The CSI volumes of a pod. A claim without a volume counts as a volume of its class.
fn volumes<'a>(storage: &'a Storage, pod: &Pod) -> impl Iterator<Item = Handle<'a>> {
    pod.view.claims.iter().filter_map(move |claim| {
        let claim = storage.claim(&pod.meta.namespace, &claim.name)?;
        match storage.volume(&claim.view.volume) {
            Some(volume) => volume.view.csi.as_ref().map(|(driver, handle)| (&**driver, &**handle)),
            None => Some((&*storage.class(&claim.view.class)?.provisioner, &*claim.meta.uid)),
        }
    })
}

impl Plugin for NodeVolumeLimits {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> &'static [Point] {
        &[Point::PreFilter, Point::Filter]
    }

    fn pre_filter<'a>(&'a self, pod: &'a Pod, cluster: &'a Cluster) -> PreFilter<'a> {
        let storage = cluster.storage();
        let volumes: HashSet<Handle<'a>> = volumes(storage, pod).collect();
        if volumes.is_empty() { Ok(None) } else { Ok(Some(Box::new(Check { storage, volumes }))) }
    }

    fn reads(&self) -> &'static [Read] {
        &[Read::Nodes, Read::GonePods, Read::Storage]
    }
}

impl NodeFilter for Check<'_> {
    fn check(&self, node: &Node) -> Result<(), Refusal> {
        let Some(limits) = self.storage.csi_node(&node.name).map(|n| &n.limits) else { return Ok(()) };
        if limits.is_empty() {
            return Ok(());
        }
        let mut attached: HashSet<Handle<'_>> =
            node.pods.iter().flat_map(|p| volumes(self.storage, p).collect::<Vec<_>>()).collect();
        let new: Vec<Handle<'_>> = self.volumes.iter().filter(|v| !attached.contains(*v)).copied().collect();
        for a in self.storage.attached(&node.name) {
            if let Some((driver, handle)) = self.storage.volume(&a.volume).and_then(|v| v.view.csi.as_ref()) {
                attached.insert((driver, handle));
            }
        }
        let mut counts: HashMap<&str, (i64, i64)> = HashMap::new();
        attached.iter().for_each(|(driver, _)| counts.entry(driver).or_default().0 += 1);
        new.iter().for_each(|(driver, _)| counts.entry(driver).or_default().1 += 1);
        let exceeded = counts
            .iter()
            .any(|(driver, (there, more))| *more > 0 && limits.get(*driver).is_some_and(|limit| there + more > *limit));
        if exceeded { Err(Refusal::resolvable(NAME, "node(s) exceed max volume count")) } else { Ok(()) }
    }
}
