//! When a pod must leave a tainted node (upstream `tainteviction`). Pure: data to data.

use jiff::Timestamp;
use placement::{Taint, Toleration};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stay {
    Forever,
    Until(Timestamp),
    Not,
}

/// How long a pod may stay: the shortest time of the tolerations that it uses (of each taint the first that matches), or not at all if a
/// taint is not tolerated. `begun` is when
/// the pod was first seen to tolerate the taints; it counts for taints without a time.
pub fn stay(taints: &[Taint], tolerations: &[Toleration], begun: Timestamp, now: Timestamp) -> Stay {
    let mut until: Option<Timestamp> = None;
    for taint in taints {
        let Some(used) = tolerations.iter().find(|t| t.tolerates(taint)) else { return Stay::Not };
        if let Some(seconds) = used.toleration_seconds {
            let end = meta::time::plus(taint.time_added.unwrap_or(begun), seconds.max(0));
            until = Some(until.map_or(end, |u| u.min(end)));
        }
    }
    match until {
        None => Stay::Forever,
        Some(end) if end <= now => Stay::Not,
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
        assert_eq!(stay(&[], &[], now, now), Stay::Forever);
        assert_eq!(stay(&[taint("a")], &[], now, now), Stay::Not);
        assert_eq!(stay(&[taint("a")], &[t("a", None)], now, now), Stay::Forever);
        assert_eq!(
            stay(&[taint("a")], &[t("a", Some(300)), t("", Some(10))], now, now),
            at(300),
            "the first that matches"
        );
        assert_eq!(stay(&[taint("a"), taint("b")], &[t("a", Some(300)), t("", Some(10))], now, now), at(10));
        assert_eq!(stay(&[taint("a"), taint("b")], &[t("a", Some(300))], now, now), Stay::Not);
        assert_eq!(stay(&[taint("a"), taint("b")], &[t("a", Some(300)), t("b", None)], now, now), at(300));
        assert_eq!(stay(&[taint("a")], &[t("a", Some(0))], now, now), Stay::Not);
        // A taint without a time counts from when it was first seen.
        let silent = Taint { time_added: None, ..taint("a") };
        let before = now - SignedDuration::from_secs(60);
        assert_eq!(stay(std::slice::from_ref(&silent), &[t("a", Some(90))], before, now), at(30));
        assert_eq!(stay(&[silent], &[t("a", Some(60))], before, now), Stay::Not);
        assert_eq!(stay(&[taint("a")], &[t("a", Some(i64::MIN))], now, now), Stay::Not);
        assert_eq!(stay(&[taint("a")], &[t("a", Some(i64::MAX))], now, now), Stay::Until(Timestamp::MAX));
    }
}
