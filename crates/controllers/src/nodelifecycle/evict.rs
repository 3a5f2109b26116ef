//! When a pod must leave a tainted node (upstream `tainteviction`). Pure: data to data.

use jiff::Timestamp;
use placement::{Taint, Toleration};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stay {
    Forever,
    Until(Timestamp),
    /// It has to leave, since this time.
    Not(Timestamp),
}

/// Since when a pod is subject to the taints of its node.
#[derive(Clone, Copy, Debug)]
pub struct Since {
    /// When the pod was bound to the node. The time of a taint that is older does not count.
    pub bound: Option<Timestamp>,
    /// When the pod was first seen to tolerate the taints; it counts for taints without a time.
    pub seen: Timestamp,
}

/// How long a pod may stay: the shortest time of the tolerations that it uses (of each taint the first that matches), or not at all if a
/// taint is not tolerated.
pub fn stay(taints: &[Taint], tolerations: &[Toleration], since: Since, now: Timestamp) -> Stay {
    let mut until: Option<Timestamp> = None;
    for taint in taints {
        let tainted = taint.time_added.unwrap_or(since.seen);
        let begun = since.bound.map_or(tainted, |b| b.max(tainted));
        let Some(used) = tolerations.iter().find(|t| t.tolerates(taint)) else { return Stay::Not(begun) };
        if let Some(seconds) = used.toleration_seconds {
            let end = meta::time::plus(begun, seconds.max(0));
            until = Some(until.map_or(end, |u| u.min(end)));
        }
    }
    match until {
        None => Stay::Forever,
        Some(end) if end <= now => Stay::Not(end),
        Some(end) => Stay::Until(end),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::SignedDuration;

    /// Clauses: C14.tolerationSeconds
    #[test]
    fn the_shortest_toleration_applies() {
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let taint =
            |key: &str| Taint { key: key.into(), value: "".into(), effect: "NoExecute".into(), time_added: Some(now) };
        let t = |key: &str, seconds| Toleration {
            key: key.into(),
            operator: "Exists".into(),
            toleration_seconds: seconds,
            ..Toleration::default()
        };
        let at = |s| Stay::Until(now + SignedDuration::from_secs(s));
        let stay = |taints: &[Taint], tolerations: &[Toleration], seen, now| {
            stay(taints, tolerations, Since { bound: None, seen }, now)
        };
        assert_eq!(stay(&[], &[], now, now), Stay::Forever);
        assert_eq!(stay(&[taint("a")], &[], now, now), Stay::Not(now));
        assert_eq!(stay(&[taint("a")], &[t("a", None)], now, now), Stay::Forever);
        assert_eq!(
            stay(&[taint("a")], &[t("a", Some(300)), t("", Some(10))], now, now),
            at(300),
            "the first that matches"
        );
        assert_eq!(stay(&[taint("a"), taint("b")], &[t("a", Some(300)), t("", Some(10))], now, now), at(10));
        assert_eq!(stay(&[taint("a"), taint("b")], &[t("a", Some(300))], now, now), Stay::Not(now));
        assert_eq!(stay(&[taint("a"), taint("b")], &[t("a", Some(300)), t("b", None)], now, now), at(300));
        assert_eq!(stay(&[taint("a")], &[t("a", Some(0))], now, now), Stay::Not(now));
        // A taint without a time counts from when it was first seen.
        let silent = Taint { time_added: None, ..taint("a") };
        let before = now - SignedDuration::from_secs(60);
        assert_eq!(stay(std::slice::from_ref(&silent), &[t("a", Some(90))], before, now), at(30));
        assert_eq!(stay(&[silent], &[t("a", Some(60))], before, now), Stay::Not(now));
        assert_eq!(stay(&[taint("a")], &[t("a", Some(i64::MIN))], now, now), Stay::Not(now));
        assert_eq!(stay(&[taint("a")], &[t("a", Some(i64::MAX))], now, now), Stay::Until(Timestamp::MAX));
    }

    /// A pod that came to a node that was tainted long ago had to leave at once.
    #[test]
    fn times_begin_with_the_binding() {
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let ago = |s| now - SignedDuration::from_secs(s);
        let taint = |added| Taint { key: "a".into(), value: "".into(), effect: "NoExecute".into(), time_added: added };
        let tolerations =
            [Toleration { operator: "Exists".into(), toleration_seconds: Some(60), ..Toleration::default() }];
        let until = |s| Stay::Until(now + SignedDuration::from_secs(s));
        let cases = [
            (Some(ago(3600)), Some(ago(10)), ago(0), until(50)),
            (Some(ago(10)), Some(ago(3600)), ago(0), until(50)),
            (Some(ago(3600)), None, ago(0), Stay::Not(ago(3540))),
            (None, Some(ago(3600)), ago(20), until(40)),
        ];
        for (i, (added, bound, seen, expect)) in cases.into_iter().enumerate() {
            assert_eq!(stay(&[taint(added)], &tolerations, Since { bound, seen }, now), expect, "{i}");
        }
    }
}
