//! Back-off of pods that are created after failures (upstream `backoff_utils.go`).

use super::pod::JobPod;
use jiff::{SignedDuration, Timestamp};
use std::time::Duration;

const FIRST: Duration = Duration::from_secs(10);
const MAX: Duration = Duration::from_secs(600);

/// Failures of a job since its last success.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    pub count: i64,
    pub last: Option<Timestamp>,
}

impl Failures {
    /// The failures after pods have ended since. A success ends the count of earlier failures.
    #[must_use]
    pub fn after(self, succeeded: &[&JobPod], failed: &[&JobPod]) -> Self {
        let success = succeeded.iter().map(|p| p.finished_at()).max();
        let times = failed.iter().map(|p| p.finished_at()).filter(|t| success.is_none_or(|s| *t > s));
        let before = if success.is_some() { Self::default() } else { self };
        let new = times.clone().count() as i64;
        Self { count: before.count.saturating_add(new), last: times.max().or(before.last) }
    }

    /// How long no pod may be created.
    pub fn remaining(self, now: Timestamp) -> Duration {
        self.last.map_or(Duration::ZERO, |last| remaining(self.count, last, now))
    }
}

/// How long no pod may be created for the index whose last pod failed.
pub fn remaining_for_index(last: Option<&JobPod>, now: Timestamp) -> Duration {
    let left = |p: &JobPod| remaining(p.failures() + p.ignored_failures() + 1, p.finished_at(), now);
    last.map_or(Duration::ZERO, left)
}

/// The delay doubles with each failure. A pod that seems to have failed in the far future has failed before the clock was set back.
fn remaining(failures: i64, last: Timestamp, now: Timestamp) -> Duration {
    if failures <= 0 {
        return Duration::ZERO;
    }
    let doublings = u32::try_from(failures - 1).unwrap_or(u32::MAX);
    let delay = FIRST.saturating_mul(1u32.checked_shl(doublings).unwrap_or(u32::MAX)).min(MAX);
    let left =
        meta::time::left(now, last.saturating_add(SignedDuration::try_from(delay).unwrap_or_default()).unwrap_or(last));
    if left > delay * 2 { Duration::ZERO } else { left }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::testing::{pod, time};
    use serde_json::json;

    /// A pod that ended this many seconds after the start.
    fn ended(second: i64) -> JobPod {
        pod(json!({"status": {"phase": "Failed", "containerStatuses": [
            {"name": "c", "state": {"terminated": {"exitCode": 1, "finishedAt": meta::time::format(time(second))}}},
        ]}}))
    }

    /// Clauses: C12.backoff
    #[test]
    fn the_delay_doubles_up_to_its_maximum() {
        for (failures, expect) in
            [(0, 0), (1, 10), (2, 20), (3, 40), (6, 320), (7, 600), (8, 600), (40, 600), (i64::MAX, 600)]
        {
            let f = Failures { count: failures, last: Some(time(0)) };
            assert_eq!(f.remaining(time(0)), Duration::from_secs(expect), "{failures}");
        }
        let f = Failures { count: 2, last: Some(time(100)) };
        for (now, expect) in [(100, 20), (105, 15), (120, 0), (121, 0), (95, 25), (50, 0)] {
            assert_eq!(f.remaining(time(now)), Duration::from_secs(expect), "at {now}");
        }
        assert_eq!(Failures::default().remaining(time(0)), Duration::ZERO);
    }

    #[test]
    fn a_success_ends_the_count() {
        let failures = Failures { count: 2, last: Some(time(5)) };
        let (a, b, c) = (ended(10), ended(20), ended(30));
        let check = |succeeded: &[&JobPod], failed: &[&JobPod], count: i64, last: Option<i64>| {
            assert_eq!(failures.after(succeeded, failed), Failures { count, last: last.map(time) });
        };
        check(&[], &[], 2, Some(5));
        check(&[], &[&b, &a], 4, Some(20));
        check(&[&a], &[], 0, None);
        check(&[&b], &[&a, &c], 1, Some(30));
        check(&[&b], &[&b], 0, None);
    }

    #[test]
    fn a_pod_ends_with_its_last_container_or_its_readiness_or_its_deletion() {
        let start = meta::time::format(time(0));
        let at = |v: serde_json::Value| pod(v).finished_at();
        let done = |name: &str, s: i64| json!({"name": name, "state": {"terminated": {"exitCode": 0, "finishedAt": meta::time::format(time(s))}}});
        let not_ready =
            json!([{"type": "Ready", "status": "False", "lastTransitionTime": meta::time::format(time(7))}]);
        let failed = |containers: serde_json::Value, init: serde_json::Value| {
            json!({"metadata": {"creationTimestamp": start},
                "spec": {"initContainers": [{"name": "side", "restartPolicy": "Always"}, {"name": "once"}]},
                "status": {"phase": "Failed", "conditions": not_ready, "containerStatuses": containers, "initContainerStatuses": init}})
        };
        assert_eq!(at(failed(json!([done("a", 3), done("b", 5)]), json!([done("once", 9)]))), time(5));
        assert_eq!(at(failed(json!([done("a", 3)]), json!([done("side", 6)]))), time(6));
        assert_eq!(at(failed(json!([done("a", 3), {"name": "b", "state": {}}]), json!([]))), time(7));
        assert_eq!(at(failed(json!([]), json!([]))), time(7));
        let deleted = json!({"metadata": {"creationTimestamp": start, "deletionTimestamp": meta::time::format(time(40)),
            "deletionGracePeriodSeconds": 30}, "status": {"phase": "Running"}});
        assert_eq!(at(deleted), time(10));
        assert_eq!(at(json!({"metadata": {"creationTimestamp": start}, "status": {"phase": "Failed"}})), time(0));
    }
}
