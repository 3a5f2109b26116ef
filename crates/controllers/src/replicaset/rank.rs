//! The order in which pods are deleted on scale-down (upstream `ActivePodsWithRanks`).

use crate::views::PodEntry;
use jiff::Timestamp;
use std::cmp::{Ordering, Reverse};
use std::sync::Arc;

/// A pod and what it is compared by.
#[derive(Clone)]
pub struct Weighed<'a> {
    pub pod: &'a PodEntry,
    /// The number of related pods on the same node.
    pub doubled: usize,
}

/// Orders pods to delete first: not assigned, not running, not ready, lower deletion cost, more related pods on the node, ready for
/// a shorter time, more restarts, younger. Times are compared by magnitude only, so that the (random) UID decides among pods of about the
/// same age.
pub fn order(a: &Weighed<'_>, b: &Weighed<'_>, now: Timestamp) -> Ordering {
    let (pa, pb) = (&a.pod.view, &b.pod.view);
    let by = (!pa.spec.node_name.is_empty()).cmp(&!pb.spec.node_name.is_empty());
    let by = by.then_with(|| phase(&pa.status.phase).cmp(&phase(&pb.status.phase)));
    let by = by.then_with(|| pa.is_ready().cmp(&pb.is_ready()));
    let by = by.then_with(|| cost(a.pod).cmp(&cost(b.pod)));
    let by = by.then_with(|| b.doubled.cmp(&a.doubled));
    let by = by.then_with(|| {
        if !pa.is_ready() {
            return Ordering::Equal;
        }
        age_order(pa.ready_since(), pb.ready_since(), now)
    });
    let by = by.then_with(|| Reverse(pa.max_restarts()).cmp(&Reverse(pb.max_restarts())));
    let by = by.then_with(|| age_order(a.pod.meta.creation_timestamp, b.pod.meta.creation_timestamp, now));
    by.then_with(|| a.pod.meta.uid.cmp(&b.pod.meta.uid))
}

/// The ages of the ready pods among `going` in relation to the age of the youngest ready one of all.
pub fn age_ratios(all: &[Arc<PodEntry>], going: &[Arc<PodEntry>], now: Timestamp) -> Vec<f64> {
    let age = |p: &PodEntry| Some(now.duration_since(p.meta.creation_timestamp?).as_secs_f64().max(0.001));
    let ready = |p: &&Arc<PodEntry>| p.view.is_ready();
    let youngest = all.iter().filter(ready).filter_map(|p| age(p)).reduce(f64::min);
    let Some(youngest) = youngest else { return Vec::new() };
    going.iter().filter(ready).filter_map(|p| Some(age(p)? / youngest)).collect()
}

fn phase(p: &str) -> u8 {
    match p {
        "Unknown" => 1,
        "Running" => 2,
        _ => 0,
    }
}

/// The annotation `controller.kubernetes.io/pod-deletion-cost`; 0 if missing or invalid.
fn cost(p: &PodEntry) -> i32 {
    p.view.metadata.annotations.deletion_cost.as_deref().and_then(parse_cost).unwrap_or(0)
}

/// A number without a plus sign and leading zeros.
fn parse_cost(text: &str) -> Option<i32> {
    match text.as_bytes().first() {
        Some(b'-' | b'1'..=b'9') => text.parse().ok(),
        Some(b'0') if text == "0" => Some(0),
        _ => None,
    }
}

/// Younger first, by powers of two. A missing time is the youngest.
fn age_order(a: Option<Timestamp>, b: Option<Timestamp>, now: Timestamp) -> Ordering {
    let magnitude = |t: Timestamp| {
        let ns = now.duration_since(t).as_nanos();
        if ns <= 0 { -1 } else { i64::from(ns.ilog2()) }
    };
    match (a, b) {
        (None, None) => Ordering::Equal,
        (None, Some(_)) => Ordering::Less,
        (Some(_), None) => Ordering::Greater,
        (Some(a), Some(b)) => magnitude(a).cmp(&magnitude(b)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(uid: &str, phase: &str, node: &str, ready_at: Option<&str>, cost: Option<&str>, restarts: i64) -> PodEntry {
        let mut v = json!({
            "metadata": {"name": uid, "uid": uid, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"nodeName": node},
            "status": {"phase": phase, "containerStatuses": [{"restartCount": restarts}]},
        });
        if let Some(at) = ready_at {
            v["status"]["conditions"] = json!([{"type": "Ready", "status": "True", "lastTransitionTime": at}]);
        }
        if let Some(c) = cost {
            v["metadata"]["annotations"] = json!({"controller.kubernetes.io/pod-deletion-cost": c});
        }
        PodEntry::new(serde_json::to_vec(&v).unwrap().into()).unwrap()
    }

    /// Clauses: C01.scale-down-order
    #[test]
    fn pods_are_ordered_for_deletion() {
        let now = "2026-01-02T00:00:00Z".parse().unwrap();
        let old = Some("2026-01-01T00:00:00Z");
        let pods = [
            pod("h-old", "Running", "n", old, None, 0),
            pod("g-restarted", "Running", "n", old, None, 3),
            pod("f-young", "Running", "n", Some("2026-01-01T23:59:00Z"), None, 0),
            pod("d-cheap", "Running", "n", old, Some("-5"), 0),
            pod("c-unready", "Running", "n", None, None, 0),
            pod("b-pending", "Pending", "n", None, None, 0),
            pod("a-unassigned", "Pending", "", None, None, 0),
            pod("e-doubled", "Running", "m", old, None, 0),
        ];
        let mut w: Vec<_> =
            pods.iter().map(|p| Weighed { pod: p, doubled: usize::from(&*p.meta.name == "e-doubled") }).collect();
        w.sort_by(|a, b| order(a, b, now));
        let names: Vec<_> = w.iter().map(|w| &w.pod.meta.name[..1]).collect();
        assert_eq!(names.concat(), "abcdefgh");
    }

    /// Upstream compares UIDs as soon as two times of one magnitude differ, and restarts only if they are equal. That is no order: of three
    /// pods each could come before the next. Here restarts come before UIDs.
    #[test]
    fn the_order_has_no_rings() {
        let now = "2026-01-02T00:00:00Z".parse().unwrap();
        let (old, later) = (Some("2026-01-01T00:00:00Z"), Some("2026-01-01T00:00:10Z"));
        let pods = [
            pod("c", "Running", "n", old, None, 5),
            pod("a", "Running", "n", old, None, 0),
            pod("b", "Running", "n", later, None, 0),
        ];
        let less = |i: usize, j: usize| {
            let weighed = |pod| Weighed { pod, doubled: 0 };
            order(&weighed(&pods[i]), &weighed(&pods[j]), now) == Ordering::Less
        };
        assert!(less(0, 1) && less(1, 2) && less(0, 2));
    }

    #[test]
    fn costs_are_plain_numbers() {
        let cases =
            [("5", 5), ("-5", -5), ("0", 0), ("+5", 0), ("05", 0), ("", 0), ("x", 0), ("2147483648", 0), ("-0", 0)];
        for (text, expect) in cases {
            assert_eq!(parse_cost(text).unwrap_or(0), expect, "{text}");
        }
    }
}
