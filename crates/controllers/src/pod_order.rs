//! The order in which controllers delete pods that are alike to them (upstream `ActivePods`). Replica sets have one of their own.

use crate::views::PodEntry;
use jiff::Timestamp;
use std::cmp::{Ordering, Reverse};

/// Orders pods that have made less progress first: not assigned, pending, not ready, ready for a shorter time, restarted more often,
/// younger.
pub fn by_activity(a: &PodEntry, b: &PodEntry) -> Ordering {
    let key = |p: &PodEntry| {
        let phase = match &*p.view.status.phase {
            "Unknown" => 1,
            "Running" => 2,
            _ => 0,
        };
        let ready = p.view.is_ready();
        let assigned = !p.view.spec.node_name.is_empty();
        (assigned, phase, ready, newest_first(p.view.ready_since().filter(|_| ready)), Reverse(p.view.max_restarts()))
    };
    let created = |p: &PodEntry| newest_first(p.meta.creation_timestamp);
    key(a).cmp(&key(b)).then_with(|| created(a).cmp(&created(b)))
}

/// A missing time is the newest.
fn newest_first(t: Option<Timestamp>) -> Reverse<Timestamp> {
    Reverse(t.unwrap_or(Timestamp::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pods_with_less_progress_come_first() {
        let pod = |name: &str, node: &str, phase: &str, ready: Option<u8>, restarts: u8, created: u8| {
            let at = |hour: u8| format!("2026-01-01T{hour:02}:00:00Z");
            let conditions = ready.map(|h| json!([{"type": "Ready", "status": "True", "lastTransitionTime": at(h)}]));
            let v = json!({
                "metadata": {"name": name, "creationTimestamp": at(created)}, "spec": {"nodeName": node},
                "status": {"phase": phase, "conditions": conditions, "containerStatuses": [{"restartCount": restarts}]},
            });
            PodEntry::new(v.to_string().into()).unwrap()
        };
        let mut all = [
            pod("i", "n", "Running", Some(5), 0, 1),
            pod("h", "n", "Running", Some(5), 0, 2),
            pod("g", "n", "Running", Some(5), 3, 1),
            pod("f", "n", "Running", Some(6), 0, 1),
            pod("e", "n", "Running", None, 0, 1),
            pod("d", "n", "Unknown", None, 0, 1),
            pod("c", "n", "Pending", None, 0, 1),
            pod("b", "", "Pending", None, 0, 1),
            pod("a", "", "Pending", None, 0, 2),
        ];
        all.sort_by(by_activity);
        assert_eq!(all.iter().map(|p| &*p.meta.name).collect::<String>(), "abcdefghi");
    }
}
