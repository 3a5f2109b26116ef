//! Which pods to create and delete.

use super::backoff::remaining_for_index;
use super::pod::JobPod;
use super::policy;
use super::state::{Evaluation, Observed};
use crate::pod_control::BURST;
use crate::pod_order::by_activity;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What to do with the pods of a job that goes on.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    Nothing,
    /// Delete these pods, without counting them as failed.
    Delete(Vec<usize>),
    Create(Vec<NewPod>),
    /// Back-off: create pods later.
    Wait(Duration),
}

/// A pod to create.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewPod {
    pub index: Option<i64>,
    /// How often pods of the index failed, and failed without counting.
    pub failures: Option<(i64, i64)>,
}

/// Decides which pods to delete, or else which to create.
pub fn manage(o: &Observed, e: &Evaluation) -> Action {
    let (spec, active) = (&o.spec, e.active.len() as i64);
    if spec.is_suspended() {
        let all = to_delete(o, &e.active, e.active.len());
        return if all.is_empty() { Action::Nothing } else { Action::Delete(all) };
    }
    let desired = match spec.completions {
        // The first success ends a work queue: pods that run may finish.
        None if e.succeeded > 0 => active,
        None => spec.parallelism(),
        Some(n) => (n - e.succeeded).min(spec.parallelism()).max(0),
    };
    let mut delete = to_delete(o, &e.active, usize::try_from(active - desired).unwrap_or(0));
    delete.truncate(BURST);
    if !delete.is_empty() {
        return Action::Delete(delete);
    }
    let terminating = if spec.only_replaces_failed() { e.terminating } else { 0 };
    let missing = usize::try_from(desired - terminating - active).unwrap_or(0).min(BURST);
    if missing == 0 {
        return Action::Nothing;
    }
    if spec.backoff_limit_per_index.is_none() {
        let wait = e.failures.remaining(o.now);
        if !wait.is_zero() {
            return Action::Wait(wait);
        }
    }
    if !spec.is_indexed() {
        return Action::Create(vec![NewPod::default(); missing]);
    }
    create_indexes(o, e, first_pending(o, e, missing))
}

fn create_indexes(o: &Observed, e: &Evaluation, indexes: Vec<i64>) -> Action {
    let per_index = o.spec.backoff_limit_per_index.is_some();
    let last = |index: &i64| e.delayed.get(index).map(|i| &o.pods[*i]);
    let mut soonest = None;
    let mut create = Vec::with_capacity(indexes.len());
    for index in indexes {
        let wait = if per_index { remaining_for_index(last(&index), o.now) } else { Duration::ZERO };
        if wait.is_zero() {
            let failures = per_index.then(|| failures_after(o, last(&index)));
            create.push(NewPod { index: Some(index), failures });
        } else {
            soonest = Some(soonest.map_or(wait, |s: Duration| s.min(wait)));
        }
    }
    match soonest {
        Some(wait) if create.is_empty() => Action::Wait(wait),
        _ if create.is_empty() => Action::Nothing,
        _ => Action::Create(create),
    }
}

/// The failures of an index after its last pod.
fn failures_after(o: &Observed, last: Option<&JobPod>) -> (i64, i64) {
    let Some(last) = last else { return (0, 0) };
    let counts = policy::counts(o.spec.pod_failure_policy.as_ref(), last);
    (last.failures() + i64::from(counts), last.ignored_failures() + i64::from(!counts))
}

/// The first `count` indexes that have not ended and have no pod.
fn first_pending(o: &Observed, e: &Evaluation, count: usize) -> Vec<i64> {
    let indexes = |pods: &mut dyn Iterator<Item = &JobPod>| pods.filter_map(|p| p.index).collect::<BTreeSet<i64>>();
    let mut held = e.succeeded_indexes.with(indexes(&mut e.active.iter().map(|i| &o.pods[*i])));
    if o.spec.only_replaces_failed() {
        held = held.with(indexes(&mut o.pods.iter().filter(|p| p.is_terminating())));
    }
    if let Some(failed) = &e.failed_indexes {
        held = held.merged(failed);
    }
    held.first_missing(count, o.spec.indexes())
}

/// Active pods to delete: at least `count`, and those of an indexed job whose index is invalid or that of another pod.
fn to_delete(o: &Observed, active: &[usize], count: usize) -> Vec<usize> {
    let (mut delete, mut left) = (Vec::new(), active.to_vec());
    let order = |a: &usize, b: &usize| by_activity(&o.pods[*a].entry, &o.pods[*b].entry);
    if o.spec.is_indexed() {
        let mut of_index: BTreeMap<Option<i64>, Vec<usize>> = BTreeMap::new();
        for i in left.drain(..) {
            of_index.entry(o.pods[i].index_below(o.spec.indexes())).or_default().push(i);
        }
        for (index, mut pods) in of_index {
            pods.sort_by(order);
            if index.is_some() {
                left.extend(pods.pop());
            }
            delete.extend(pods);
        }
    }
    if delete.len() < count {
        left.sort_by(order);
        delete.extend(left.into_iter().take(count - delete.len()));
    }
    delete
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::backoff::Failures;
    use crate::job::state::evaluate;
    use crate::job::testing::{in_phase, observed, of_index, pod, time};
    use serde_json::{Value, json};

    fn decide(o: &Observed) -> Action {
        manage(o, &evaluate(o))
    }

    fn running(n: usize) -> Vec<JobPod> {
        (0..n).map(|i| in_phase(&format!("r{i}"), "Running")).collect()
    }

    /// Clauses: C12.single, C12.completions, C12.work-queue, C12.parallelism
    #[test]
    fn pods_are_created_up_to_parallelism_and_completions() {
        let create = |n: usize| Action::Create(vec![NewPod::default(); n]);
        let check = |spec: Value, status: Value, active: usize, expect: Action| {
            let title = format!("{spec} {status} {active}");
            assert_eq!(decide(&observed(spec, status, running(active))), expect, "{title}");
        };
        let counted =
            |parallelism: i64, completions: i64| json!({"parallelism": parallelism, "completions": completions});
        let succeeded = |n: i64| json!({"succeeded": n});
        check(counted(1, 1), json!({}), 0, create(1));
        check(counted(1, 1), json!({}), 1, Action::Nothing);
        check(counted(3, 5), json!({}), 1, create(2));
        check(counted(3, 5), succeeded(3), 1, create(1));
        check(counted(3, 5), succeeded(3), 2, Action::Nothing);
        check(counted(3, 5), succeeded(5), 0, Action::Nothing);
        check(counted(3, 5), succeeded(6), 0, Action::Nothing);
        check(counted(0, 5), json!({}), 0, Action::Nothing);
        check(counted(0, 5), json!({}), 2, Action::Delete(vec![0, 1]));
        check(counted(1, 5), succeeded(4), 2, Action::Delete(vec![0]));
        check(counted(1000, 1000), json!({}), 0, create(BURST));
        // A work queue starts no pods after the first success, and lets the others finish.
        let queue = || json!({"parallelism": 3});
        check(queue(), json!({}), 1, create(2));
        check(queue(), succeeded(1), 2, Action::Nothing);
        check(queue(), succeeded(1), 0, Action::Nothing);
        check(json!({"parallelism": 3, "completions": 3, "suspend": true}), json!({}), 2, Action::Delete(vec![0, 1]));
        check(json!({"parallelism": 3, "suspend": true}), json!({}), 0, Action::Nothing);
    }

    /// Clauses: C12.backoff
    #[test]
    fn pods_are_not_created_during_back_off() {
        let mut o = observed(json!({"parallelism": 2, "completions": 2, "backoffLimit": 9}), json!({}), running(1));
        o.failures = Failures { count: 3, last: Some(time(3590)) };
        assert_eq!(decide(&o), Action::Wait(Duration::from_secs(30)));
        o.now = time(3630);
        assert_eq!(decide(&o), Action::Create(vec![NewPod::default()]));
    }

    /// Clauses: C12.podReplacementPolicy
    #[test]
    fn pods_are_replaced_when_they_are_deleted_or_have_failed() {
        let terminating = || {
            pod(
                json!({"metadata": {"deletionTimestamp": meta::time::format(time(10))}, "status": {"phase": "Running"}}),
            )
        };
        let spec = |policy: &str| json!({"parallelism": 1, "completions": 1, "backoffLimit": 6, "podReplacementPolicy": policy});
        let decide = |policy: &str| decide(&observed(spec(policy), json!({}), vec![terminating()]));
        assert_eq!(decide("TerminatingOrFailed"), Action::Create(vec![NewPod::default()]));
        assert_eq!(decide("Failed"), Action::Nothing);
        let indexed = |policy: &str| {
            let mut spec = spec(policy);
            (spec["completionMode"], spec["completions"], spec["parallelism"]) = ("Indexed".into(), 3.into(), 3.into());
            let old = pod(json!({"metadata": {"deletionTimestamp": meta::time::format(time(10)),
                "annotations": {"batch.kubernetes.io/job-completion-index": "1"}}, "status": {"phase": "Running"}}));
            match super::tests::decide(&observed(spec, json!({}), vec![old])) {
                Action::Create(pods) => pods.iter().filter_map(|p| p.index).collect::<Vec<_>>(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!((indexed("TerminatingOrFailed"), indexed("Failed")), (vec![0, 1, 2], vec![0, 2]));
    }

    /// Clauses: C12.indexed
    #[test]
    fn each_index_has_one_pod() {
        let spec = |completions: i64, parallelism: i64| json!({"completionMode": "Indexed", "completions": completions, "parallelism": parallelism});
        let create = |indexes: &[i64]| {
            Action::Create(indexes.iter().map(|i| NewPod { index: Some(*i), failures: None }).collect())
        };
        let check = |spec: Value, completed: &str, pods: Vec<JobPod>, expect: Action| {
            assert_eq!(decide(&observed(spec, json!({"completedIndexes": completed}), pods)), expect);
        };
        check(spec(5, 3), "", vec![], create(&[0, 1, 2]));
        check(spec(5, 3), "0-2", vec![of_index("a", 4, "Running")], create(&[3]));
        check(spec(5, 2), "1", vec![of_index("a", 0, "Succeeded")], create(&[2, 3]));
        // Repeated, invalid and missing indexes, and those out of range after the job was made smaller, are deleted.
        let pods = vec![
            of_index("a", 1, "Pending"),
            of_index("b", 1, "Running"),
            of_index("c", 3, "Running"),
            in_phase("d", "Running"),
            pod(
                json!({"metadata": {"annotations": {"batch.kubernetes.io/job-completion-index": "-1"}}, "status": {"phase": "Running"}}),
            ),
        ];
        check(spec(3, 3), "", pods, Action::Delete(vec![2, 3, 4, 0]));
        let pods = (0..3).map(|i| of_index(&format!("p{i}"), i, "Running")).collect();
        check(spec(3, 2), "", pods, Action::Delete(vec![0]));
    }

    /// Clauses: C12.backoffLimitPerIndex
    #[test]
    fn each_index_has_its_own_back_off() {
        let failed = |name: &str, index: i64, failures: i64, ignored: i64, at: i64| {
            pod(json!({"metadata": {"name": name, "annotations": {
                "batch.kubernetes.io/job-completion-index": index.to_string(),
                "batch.kubernetes.io/job-index-failure-count": failures.to_string(),
                "batch.kubernetes.io/job-index-ignored-failure-count": ignored.to_string(),
            }}, "status": {"phase": "Failed", "conditions": [{"type": "Ready", "status": "False",
                "lastTransitionTime": meta::time::format(time(at))}]}}))
        };
        let spec = || {
            json!({"completionMode": "Indexed", "completions": 3, "parallelism": 3, "backoffLimit": i32::MAX, "backoffLimitPerIndex": 5,
            "podReplacementPolicy": "TerminatingOrFailed"})
        };
        let new = |index: i64, failures: (i64, i64)| NewPod { index: Some(index), failures: Some(failures) };
        let o = observed(spec(), json!({}), vec![failed("a", 0, 1, 0, 3590), failed("b", 2, 0, 1, 3500)]);
        assert_eq!(decide(&o), Action::Create(vec![new(1, (0, 0)), new(2, (1, 1))]));
        let o = observed(spec(), json!({"completedIndexes": "1,2"}), vec![failed("a", 0, 1, 1, 3590)]);
        assert_eq!(decide(&o), Action::Wait(Duration::from_secs(30)));
    }
}
