//! What a job and its pods amount to: how many pods are active, have succeeded or failed, and whether that ends the job.

use super::backoff::Failures;
use super::intervals::Intervals;
use super::pod::JobPod;
use super::policy::{self, Verdict};
use super::spec::{Condition, Spec, Status};
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A job and its pods, as the caches show them.
pub struct Observed {
    pub spec: Spec,
    /// With the start time, if the job starts now.
    pub status: Status,
    pub deleting: bool,
    pub pods: Vec<JobPod>,
    /// Pods whose finalizer was removed, though the cache may not show it yet.
    pub removals: BTreeSet<String>,
    pub failures: Failures,
    pub now: Timestamp,
}

/// Pods are named by their position in [`Observed::pods`].
#[derive(Debug, Default)]
pub struct Evaluation {
    pub active: Vec<usize>,
    pub ready: i64,
    pub terminating: i64,
    pub succeeded: i64,
    pub failures: Failures,
    /// `FailureTarget` or `SuccessCriteriaMet` that begins now or has begun, `Failed` after an earlier `FailureTarget`.
    pub end: Option<Condition>,
    /// Succeeded indexes in the status, and with pods that have ended since.
    pub counted_indexes: Intervals,
    pub succeeded_indexes: Intervals,
    /// Of jobs with a back-off limit for each index.
    pub failed_indexes: Option<Intervals>,
    /// The failed pod of each index that keeps its finalizer until its successor has been created with its number of failures.
    pub delayed: BTreeMap<i64, usize>,
    /// When the active deadline passes.
    pub deadline: Option<Duration>,
}

impl Observed {
    pub fn has_failed(&self, pod: &JobPod) -> bool {
        pod.has_failed(self.spec.only_replaces_failed())
    }

    /// Whether the pod is not accounted for yet.
    pub fn is_tracked(&self, pod: &JobPod) -> bool {
        pod.has_finalizer && !self.removals.contains(pod.uid())
    }

    /// Pods that are neither accounted for nor in `uncounted`, of valid indexes.
    fn new_pods<'a>(
        &'a self,
        uncounted: &'a [String],
        ended: impl Fn(&JobPod) -> bool + 'a,
    ) -> impl Iterator<Item = (usize, &'a JobPod)> + 'a {
        let known: BTreeSet<&str> = uncounted.iter().map(String::as_str).collect();
        let valid = move |p: &JobPod| {
            let indexed = self.spec.is_indexed();
            self.is_tracked(p)
                && !known.contains(p.uid())
                && (!indexed || p.index_below(self.spec.indexes()).is_some())
                && ended(p)
        };
        self.pods.iter().enumerate().filter(move |(_, p)| valid(p))
    }
}

/// Evaluates the state of a job. Of several reasons to end the job the first applies: one that was recorded before, the pod failure
/// policy, the back-off limit, the active deadline, failed indexes, the success policy. Completions are evaluated after pods were created.
pub fn evaluate(o: &Observed) -> Evaluation {
    let (spec, status) = (&o.spec, &o.status);
    let uncounted = &status.uncounted_terminated_pods;
    let active: Vec<usize> = (0..o.pods.len()).filter(|i| o.pods[*i].is_active()).collect();
    let new_succeeded: Vec<&JobPod> = o.new_pods(&uncounted.succeeded, JobPod::has_succeeded).map(|(_, p)| p).collect();
    let new_failed: Vec<&JobPod> = o.new_pods(&uncounted.failed, |p| o.has_failed(p)).map(|(_, p)| p).collect();
    let policy = spec.pod_failure_policy.as_ref();
    let counted = new_failed.iter().filter(|p| policy::counts(policy, p)).count();
    let failed = status.failed + counted as i64 + uncounted.failed.len() as i64;
    let mut e = Evaluation {
        ready: active.iter().filter(|i| o.pods[**i].entry.view.is_ready()).count() as i64,
        terminating: o.pods.iter().filter(|p| p.is_terminating()).count() as i64,
        succeeded: status.succeeded + (new_succeeded.len() + uncounted.succeeded.len()) as i64,
        failures: o.failures.after(&new_succeeded, &new_failed),
        end: recorded_end(o).or_else(|| failed_by_policy(o)),
        active,
        ..Evaluation::default()
    };
    if e.end.is_none() {
        let deadline = spec.active_deadline_seconds.filter(|_| !spec.is_suspended()).zip(status.start_time);
        let left = deadline.map(|(seconds, start)| meta::time::left(o.now, meta::time::plus(start, seconds)));
        if failed > spec.backoff_limit() || restarted_too_often(o) {
            e.end = Some(failure(o, "BackoffLimitExceeded", "Job has reached the specified backoff limit"));
        } else if left == Some(Duration::ZERO) {
            e.end = Some(failure(o, "DeadlineExceeded", "Job was active longer than specified deadline"));
        } else {
            e.deadline = left;
        }
    }
    if spec.is_indexed() {
        evaluate_indexes(o, &mut e);
    }
    e
}

fn failure(o: &Observed, reason: &str, message: &str) -> Condition {
    Condition::new("FailureTarget", reason, message, o.now)
}

/// The end that an earlier sync recorded.
fn recorded_end(o: &Observed) -> Option<Condition> {
    let target = || {
        let target = o.status.true_condition("FailureTarget")?;
        Some(Condition::new("Failed", &target.reason, &target.message, o.now))
    };
    o.status.true_condition("SuccessCriteriaMet").cloned().or_else(target)
}

fn failed_by_policy(o: &Observed) -> Option<Condition> {
    let policy = o.spec.pod_failure_policy.as_ref()?;
    o.pods.iter().filter(|p| o.has_failed(p)).find_map(|p| match policy::match_failure(Some(policy), p) {
        Verdict::FailJob(message) => Some(failure(o, "PodFailurePolicy", &message)),
        _ => None,
    })
}

/// Whether containers that restart in their pods did so too often.
fn restarted_too_often(o: &Observed) -> bool {
    if o.spec.template.spec.restart_policy != "OnFailure" {
        return false;
    }
    let running = o.pods.iter().filter(|p| matches!(p.phase(), "Running" | "Pending"));
    let restarts: i64 = running.map(JobPod::restarts).sum();
    restarts > 0 && restarts >= o.spec.backoff_limit()
}

fn evaluate_indexes(o: &Observed, e: &mut Evaluation) {
    let (spec, completions) = (&o.spec, o.spec.indexes());
    let ended = |ended: &dyn Fn(&JobPod) -> bool| -> BTreeSet<i64> {
        let pods = o.pods.iter().filter(|p| p.has_finalizer && ended(p));
        pods.filter_map(|p| p.index_below(completions)).collect()
    };
    e.counted_indexes = Intervals::parse(&o.status.completed_indexes, completions);
    e.succeeded_indexes = e.counted_indexes.with(ended(&JobPod::has_succeeded));
    e.succeeded = e.succeeded_indexes.total();
    if let Some(limit) = spec.backoff_limit_per_index {
        let before = Intervals::parse(o.status.failed_indexes.as_deref().unwrap_or_default(), completions);
        let failed = before.with(ended(&|p| index_has_failed(o, p, limit)));
        if e.end.is_none() {
            if spec.max_failed_indexes.is_some_and(|max| failed.total() > max) {
                let message = "Job has exceeded the specified maximal number of failed indexes";
                e.end = Some(failure(o, "MaxFailedIndexesExceeded", message));
            } else if !failed.is_empty() && failed.total() + e.succeeded >= completions {
                e.end = Some(failure(o, "FailedIndexes", "Job has failed indexes"));
            }
        }
        e.delayed = delayed(o, e, &failed);
        e.failed_indexes = Some(failed);
    }
    if e.end.is_none()
        && let Some(message) = policy::match_success(spec.success_policy.as_ref(), completions, &e.succeeded_indexes)
    {
        e.end = Some(Condition::new("SuccessCriteriaMet", "SuccessPolicy", &message, o.now));
    }
}

/// Whether a pod's index fails with it.
fn index_has_failed(o: &Observed, pod: &JobPod, limit: i64) -> bool {
    if !o.has_failed(pod) {
        return false;
    }
    match policy::match_failure(o.spec.pod_failure_policy.as_ref(), pod) {
        Verdict::FailIndex => true,
        Verdict::Ignore => false,
        Verdict::Count | Verdict::FailJob(_) => pod.failures() >= limit,
    }
}

/// The last failed pod of each index that still has to get a successor.
fn delayed(o: &Observed, e: &Evaluation, failed: &Intervals) -> BTreeMap<i64, usize> {
    let active: BTreeSet<i64> = e.active.iter().filter_map(|i| o.pods[*i].index).collect();
    let mut last: BTreeMap<i64, usize> = BTreeMap::new();
    for (i, p) in o.new_pods(&[], |p| o.has_failed(p)) {
        let Some(index) = p.index else { continue };
        if e.succeeded_indexes.has(index) || failed.has(index) || active.contains(&index) {
            continue;
        }
        let all = |p: &JobPod| p.failures() + p.ignored_failures();
        let later = |held: &JobPod| all(held) <= all(p) && held.finished_at() <= p.finished_at();
        if last.get(&index).is_none_or(|held| later(&o.pods[*held])) {
            last.insert(index, i);
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::testing::{in_phase, observed, of_index, pod, time};
    use serde_json::{Value, json};

    /// The reason of the end, if there is one.
    fn end(o: &Observed) -> Option<String> {
        evaluate(o).end.map(|c| format!("{} {}", c.r#type, c.reason))
    }

    fn check_end(spec: Value, status: Value, pods: Vec<JobPod>, expect: &str) {
        let title = format!("{spec} {status}");
        let got = end(&observed(spec, status, pods));
        assert_eq!(got.unwrap_or_default(), expect, "{title}");
    }

    /// Clauses: C12.backoffLimit, C12.activeDeadlineSeconds
    #[test]
    fn a_job_fails_by_its_limits() {
        let failed = |n: usize| (0..n).map(|i| in_phase(&format!("p{i}"), "Failed")).collect::<Vec<_>>();
        let by_limit = "FailureTarget BackoffLimitExceeded";
        check_end(json!({"backoffLimit": 2}), json!({}), failed(2), "");
        check_end(json!({"backoffLimit": 2}), json!({}), failed(3), by_limit);
        check_end(json!({"backoffLimit": 2}), json!({"failed": 2}), failed(1), by_limit);
        let uncounted = json!({"uncountedTerminatedPods": {"failed": ["uid-p0"]}});
        check_end(json!({"backoffLimit": 1}), uncounted.clone(), failed(1), "");
        check_end(json!({"backoffLimit": 1}), uncounted, failed(2), by_limit);
        check_end(json!({"backoffLimit": 0}), json!({}), failed(1), by_limit);
        let deadline = |seconds: i64| json!({"backoffLimit": 6, "activeDeadlineSeconds": seconds});
        check_end(deadline(3600), json!({}), vec![], "FailureTarget DeadlineExceeded");
        check_end(deadline(3601), json!({}), vec![], "");
        assert_eq!(evaluate(&observed(deadline(3700), json!({}), vec![])).deadline, Some(Duration::from_secs(100)));
        let mut suspended = deadline(1);
        suspended["suspend"] = true.into();
        check_end(suspended, json!({}), vec![], "");
    }

    #[test]
    fn a_job_fails_by_restarts_of_its_containers() {
        let restarted = |n: i64| {
            pod(json!({"status": {"phase": "Running", "containerStatuses": [{"name": "c", "restartCount": n}],
                "initContainerStatuses": [{"name": "i", "restartCount": 1}]}}))
        };
        let spec = |limit: i64| json!({"backoffLimit": limit, "template": {"spec": {"restartPolicy": "OnFailure"}}});
        check_end(spec(3), json!({}), vec![restarted(1)], "");
        check_end(spec(3), json!({}), vec![restarted(2)], "FailureTarget BackoffLimitExceeded");
        check_end(spec(0), json!({}), vec![restarted(0)], "FailureTarget BackoffLimitExceeded");
        check_end(json!({"backoffLimit": 3}), json!({}), vec![restarted(9)], "");
    }

    #[test]
    fn an_end_that_was_recorded_stays() {
        let condition =
            |kind: &str, reason: &str| json!({"conditions": [{"type": kind, "status": "True", "reason": reason}]});
        let spec = || json!({"backoffLimit": 0, "podFailurePolicy": {"rules": []}});
        let pods = || vec![in_phase("p", "Failed")];
        check_end(spec(), condition("FailureTarget", "DeadlineExceeded"), pods(), "Failed DeadlineExceeded");
        check_end(spec(), condition("SuccessCriteriaMet", "SuccessPolicy"), pods(), "SuccessCriteriaMet SuccessPolicy");
    }

    /// Clauses: C12.backoffLimitPerIndex, C12.maxFailedIndexes
    #[test]
    fn indexes_fail_by_themselves() {
        let spec = |completions: i64, extra: Value| {
            let mut v = json!({"completionMode": "Indexed", "completions": completions, "backoffLimit": i32::MAX, "backoffLimitPerIndex": 1});
            v.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            v
        };
        let failed = |name: &str, index: i64, before: i64| {
            pod(json!({"metadata": {"name": name, "annotations": {
                "batch.kubernetes.io/job-completion-index": index.to_string(),
                "batch.kubernetes.io/job-index-failure-count": before.to_string(),
            }}, "status": {"phase": "Failed"}}))
        };
        let check =
            |spec: Value, status: Value, pods: Vec<JobPod>, indexes: &str, delayed: &[(i64, usize)], expect: &str| {
                let o = observed(spec, status, pods);
                let e = evaluate(&o);
                assert_eq!(e.failed_indexes.unwrap().to_string(), indexes);
                assert_eq!(e.delayed.into_iter().collect::<Vec<_>>(), delayed);
                assert_eq!(end(&o).unwrap_or_default(), expect);
            };
        let none = || json!({});
        check(spec(3, none()), none(), vec![failed("a", 0, 0), failed("b", 1, 1)], "1", &[(0, 0)], "");
        check(
            spec(3, none()),
            json!({"failedIndexes": "0", "completedIndexes": "2"}),
            vec![failed("b", 1, 1)],
            "0,1",
            &[],
            "FailureTarget FailedIndexes",
        );
        let max = spec(9, json!({"maxFailedIndexes": 1}));
        check(max.clone(), json!({"failedIndexes": "5"}), vec![failed("b", 1, 0)], "5", &[(1, 0)], "");
        check(
            max,
            json!({"failedIndexes": "5"}),
            vec![failed("b", 1, 1)],
            "1,5",
            &[],
            "FailureTarget MaxFailedIndexesExceeded",
        );
        // A successor is there, or the index is out of range: nothing is delayed.
        let pods = vec![failed("a", 0, 0), of_index("b", 0, "Running"), failed("c", 7, 0)];
        check(spec(3, none()), none(), pods, "", &[], "");
        // Of two failed pods the one with more failures is replaced.
        check(spec(3, none()), none(), vec![failed("a", 2, 0), failed("b", 2, 0)], "", &[(2, 1)], "");
        let by_policy = json!({"podFailurePolicy": {"rules": [{"action": "FailIndex", "onPodConditions": [{"type": "X", "status": "True"}]}]}});
        let matching =
            pod(json!({"metadata": {"name": "a", "annotations": {"batch.kubernetes.io/job-completion-index": "0"}},
            "status": {"phase": "Failed", "conditions": [{"type": "X", "status": "True"}]}}));
        check(spec(3, by_policy), none(), vec![matching], "0", &[], "");
    }

    /// Clauses: C12.tracking
    #[test]
    fn pods_are_counted_once() {
        let counts = |o: &Observed| {
            let e = evaluate(o);
            (e.active.len(), e.ready, e.terminating, e.succeeded, e.failures.count)
        };
        let gone = |name: &str, phase: &str| {
            pod(json!({"metadata": {"name": name, "finalizers": []}, "status": {"phase": phase}}))
        };
        let deleted = pod(
            json!({"metadata": {"name": "d", "deletionTimestamp": meta::time::format(time(50))}, "status": {"phase": "Running"}}),
        );
        let pods = vec![
            in_phase("a", "Succeeded"),
            in_phase("b", "Succeeded"),
            gone("c", "Succeeded"),
            in_phase("r", "Running"),
            in_phase("f", "Failed"),
            gone("g", "Failed"),
            deleted,
        ];
        let status = json!({"succeeded": 4, "uncountedTerminatedPods": {"succeeded": ["uid-a"]}});
        let mut o = observed(json!({"completions": 9}), status, pods);
        assert_eq!(counts(&o), (1, 0, 1, 6, 1), "the deleted pod has failed, after the success");
        o.removals.insert("uid-b".into());
        assert_eq!(counts(&o), (1, 0, 1, 5, 2), "its finalizer was removed, which the cache does not show yet");
        o.removals.clear();
        o.spec.pod_replacement_policy = Some("Failed".into());
        o.spec.pod_failure_policy = None;
        assert_eq!(counts(&o).4, 0, "the success came last");
    }
}
