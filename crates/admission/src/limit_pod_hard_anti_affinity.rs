//! LimitPodHardAntiAffinityTopology: required anti-affinity of pods may use only the topology key
//! `kubernetes.io/hostname`.

use crate::{Operation, Plugin, Review};
use meta::{Object, Status, Value};

pub struct LimitPodHardAntiAffinityTopology;

const ALLOWED: &str = "kubernetes.io/hostname";
const TERMS: [&str; 4] = ["spec", "affinity", "podAntiAffinity", "requiredDuringSchedulingIgnoredDuringExecution"];

impl Plugin for LimitPodHardAntiAffinityTopology {
    fn name(&self) -> &'static str {
        "LimitPodHardAntiAffinityTopology"
    }

    fn validate(&self, review: &Review<'_>, object: Option<&Object>) -> Result<(), Status> {
        let written = matches!(review.operation, Operation::Create | Operation::Update);
        let Some(pod) = object.filter(|_| written && review.is("", "pods")) else { return Ok(()) };
        let mut terms = pod.at(&TERMS).and_then(Value::as_array).into_iter().flatten();
        let Some(key) = terms.find_map(|t| t["topologyKey"].as_str().filter(|k| *k != ALLOWED)) else { return Ok(()) };
        Err(review.forbidden(&format!(
            "affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey {key} but only key {ALLOWED} is allowed"
        )))
    }
}
