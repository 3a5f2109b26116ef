//! ReplicaSet.

use super::workload::Workload;
use crate::Config;
use crate::replicas::Counts;
use crate::table::Row;

pub fn row(_: &Config) -> Row {
    Row::stored(Workload::new("io.k8s.api.apps.v1.ReplicaSetSpec", &COUNTS))
}

const COUNTS: Counts = Counts {
    all: &[
        "replicas",
        "fullyLabeledReplicas",
        "readyReplicas",
        "availableReplicas",
        "terminatingReplicas",
        "observedGeneration",
    ],
    parts: &["fullyLabeledReplicas", "readyReplicas", "availableReplicas"],
    ready: Some("cannot be greater than readyReplicas"),
};
