//! The status of a StatefulSet. Pure: data to data.

use super::identity;
use crate::views::Pod;
use client::Entry;
use jiff::Timestamp;
use meta::Object;
use std::sync::Arc;

/// The counts and revisions of a set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    pub observed_generation: i64,
    pub replicas: i64,
    pub ready: i64,
    pub available: i64,
    pub current: i64,
    pub updated: i64,
    pub current_revision: String,
    pub update_revision: String,
    pub collisions: Option<i64>,
}

/// Counts the pods of a set.
pub fn calculate(set: &Object, pods: &[Arc<Entry<Pod>>], current: &str, update: &str, now: Timestamp) -> Status {
    let min_ready = set.int_at(&["spec", "minReadySeconds"]).unwrap_or(0);
    let mut s = Status {
        observed_generation: set.generation(),
        current_revision: current.into(),
        update_revision: update.into(),
        ..Status::default()
    };
    for p in pods {
        let view = &p.view;
        s.replicas += 1;
        if &*view.status.phase == "Running" && view.is_ready() {
            s.ready += 1;
            s.available += i64::from(view.is_available(min_ready, now));
        }
        if !p.meta.is_deleting() {
            let revision = identity::revision(&p.meta);
            s.current += i64::from(revision == current);
            s.updated += i64::from(revision == update);
        }
    }
    s
}

/// Subtracts pods that were deleted to be updated.
pub fn subtract_updated(s: &mut Status, deleted: usize) {
    s.current = s.current.saturating_sub(deleted as i64).max(0);
}

/// When all replicas of a rolling update have the new template, it becomes the current one.
pub fn complete(set: &Object, s: &mut Status) {
    let rolling = set.str_at(&["spec", "updateStrategy", "type"]).unwrap_or("RollingUpdate") == "RollingUpdate";
    let replicas = set.int_at(&["spec", "replicas"]).unwrap_or(1);
    if rolling && [s.updated, s.ready, s.replicas].iter().all(|n| *n == replicas) {
        s.current = s.updated;
        s.current_revision.clone_from(&s.update_revision);
    }
}

const COUNTS: [(&str, fn(&Status) -> i64); 5] = [
    ("replicas", |s| s.replicas),
    ("readyReplicas", |s| s.ready),
    ("availableReplicas", |s| s.available),
    ("currentReplicas", |s| s.current),
    ("updatedReplicas", |s| s.updated),
];

/// Whether the status has to be written.
pub fn differs(set: &Object, s: &Status) -> bool {
    let int = |k: &str| set.int_at(&["status", k]).unwrap_or(0);
    let text = |k: &str| set.str_at(&["status", k]).unwrap_or_default();
    s.observed_generation > int("observedGeneration")
        || COUNTS.iter().any(|(k, count)| int(k) != count(s))
        || text("currentRevision") != s.current_revision
        || text("updateRevision") != s.update_revision
        || set.int_at(&["status", "collisionCount"]).unwrap_or(0) != s.collisions.unwrap_or(0)
}

/// Writes the status into an object; its conditions stay.
pub fn write(set: &mut Object, s: &Status) {
    for (k, count) in COUNTS {
        set.set(&["status", k], count(s));
    }
    set.set(&["status", "observedGeneration"], s.observed_generation);
    set.set(&["status", "currentRevision"], s.current_revision.clone());
    set.set(&["status", "updateRevision"], s.update_revision.clone());
    set.set(&["status", "collisionCount"], s.collisions.unwrap_or(0));
}
