//! PodTopologyLabels: copies zone and region labels of the node to the pod.

use crate::{Operation, Plugin, Review};
use meta::{Object, Status};

pub struct PodTopologyLabels;

const LABELS: [&str; 2] = ["topology.kubernetes.io/zone", "topology.kubernetes.io/region"];

impl Plugin for PodTopologyLabels {
    fn name(&self) -> &'static str {
        "PodTopologyLabels"
    }

    fn mutate(&self, review: &Review<'_>, object: &mut Object) -> Result<(), Status> {
        if review.operation != Operation::Create {
            return Ok(());
        }
        // Labels of the binding are copied to the pod.
        let node = if review.is("", "pods") {
            object.str_at(&["spec", "nodeName"])
        } else if review.is_part("", "pods", "binding") && object.str_at(&["target", "kind"]) == Some("Node") {
            object.str_at(&["target", "name"])
        } else {
            None
        };
        let Some(node) = node.filter(|n| !n.is_empty()).and_then(|n| review.lookup.labels("", "nodes", "", n)) else {
            return Ok(());
        };
        for key in LABELS {
            if let Some(value) = node.get(key).filter(|_| object.label(key).is_none()) {
                object.set(&["metadata", "labels", key], value);
            }
        }
        Ok(())
    }
}
