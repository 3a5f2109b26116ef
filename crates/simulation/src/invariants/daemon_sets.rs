//! A DaemonSet never has two pods for one node, but those that replace each other in a surge.

use super::objects::{Objects, by_uid, controlled_by, controller, is_active, name, uid};
use super::{Excused, Invariant};
use crate::trace::Commit;
use meta::Value;

pub(super) struct OnePerNode;

/// The node that the pod of a DaemonSet is for.
fn target(pod: &Value) -> Option<&str> {
    let required = &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let fields = required["nodeSelectorTerms"][0]["matchFields"].as_array()?;
    fields.iter().find(|f| f["key"] == "metadata.name")?["values"][0].as_str()
}

impl Invariant for OnePerNode {
    fn name(&self) -> &'static str {
        "daemon sets have one pod per node"
    }

    fn observe(&mut self, commit: &Commit, objects: &Objects, _: &Excused) -> Result<(), String> {
        for change in commit.changes.iter().filter(|c| &*c.key.resource == "pods" && c.old.is_none()) {
            let Some(pod) = &change.new else { continue };
            let Some(owner) = controller(pod).filter(|o| o["kind"] == "DaemonSet") else { continue };
            let uid_of_set = owner["uid"].as_str().unwrap_or_default();
            let Some((_, set)) = by_uid(objects, "apps/daemonsets", uid_of_set) else { continue };
            let surge = &set["spec"]["updateStrategy"]["rollingUpdate"]["maxSurge"];
            let maximum = if surge.is_null() || *surge == 0 || *surge == "0%" { 1 } else { 2 };
            let pods = controlled_by(objects, "pods", uid(set)).filter(|p| is_active(p) && target(p) == target(pod));
            let n = pods.count();
            if n > maximum {
                let (name, node) = (name(set), target(pod).unwrap_or_default());
                return Err(format!("daemon set {name} has {n} pods for node {node}"));
            }
        }
        Ok(())
    }
}
