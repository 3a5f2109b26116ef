//! Accounting for pods that have ended (upstream `trackJobStatusAndRemoveFinalizers`).
//!
//! A pod that has ended is first recorded in `uncountedTerminatedPods`, then its finalizer is removed, then it is added to the counters and
//! removed from the record. A controller that is interrupted between any two of these steps continues with the next one. An index that
//! has succeeded is its own record.

use super::policy;
use super::spec::{Condition, Status};
use super::state::{Evaluation, Observed};
use jiff::Timestamp;
use std::collections::BTreeSet;

/// The maximum number of pods to account for at a time.
const MAX_UNCOUNTED: usize = 500;

/// A status to write before finalizers are removed, and what follows.
#[derive(Debug)]
pub struct Record {
    pub status: Status,
    /// Whether the status differs from the one that is stored.
    pub changed: bool,
    /// Pods whose finalizers are to be removed when the status has been written.
    pub remove: Vec<usize>,
    /// The actions of rules that matched pods that are recorded now.
    pub handled: Vec<&'static str>,
    /// UIDs of the pods that have their finalizer.
    held: BTreeSet<String>,
    /// `Complete` or `Failed`, when no pod is left.
    end: Option<Condition>,
}

/// Records pods that have ended. `status` has the counts of running pods already; `changed`: it differs from the stored one.
pub fn record(o: &Observed, e: &Evaluation, status: Status, end: Option<Condition>, changed: bool) -> Record {
    let held = o.pods.iter().filter(|p| o.is_tracked(p)).map(|p| p.uid().to_owned()).collect();
    let mut r = Record { status, changed, remove: Vec::new(), handled: Vec::new(), held, end: None };
    r.count_removed();
    let complete = r.record_pods(o, e, end.as_ref());
    if o.spec.is_indexed() {
        let counted = r.status.completed_indexes.clone();
        r.status.completed_indexes = complete.indexes.to_string();
        r.status.succeeded = complete.indexes.total();
        let failed = e.failed_indexes.as_ref().map(ToString::to_string);
        r.changed |= counted != r.status.completed_indexes || failed != r.status.failed_indexes;
        r.status.failed_indexes = failed;
    }
    let Some(end) = end else { return r };
    // An interim condition is written before finalizers are removed, the final one afterwards.
    let terminal = match end.r#type.as_str() {
        "FailureTarget" => "Failed",
        "SuccessCriteriaMet" => "Complete",
        other => other,
    };
    if terminal != end.r#type && r.status.true_condition(&end.r#type).is_none() {
        r.status.conditions.push(end.clone());
        r.changed = true;
    }
    r.end = (!complete.more).then(|| Condition::new(terminal, &end.reason, &end.message, o.now));
    r
}

struct Recorded {
    indexes: super::intervals::Intervals,
    /// More pods have ended than can be recorded at a time.
    more: bool,
}

impl Record {
    fn record_pods(&mut self, o: &Observed, e: &Evaluation, end: Option<&Condition>) -> Recorded {
        let spec = &o.spec;
        let mut order: Vec<usize> = (0..o.pods.len()).collect();
        if spec.is_indexed() {
            order.sort_by_key(|i| o.pods[*i].index);
        }
        let failing = end.is_some_and(|c| !c.is("SuccessCriteriaMet"));
        let before = self.status.uncounted_terminated_pods.clone();
        let known = |uids: &[String], uid: &str| uids.iter().any(|u| u == uid);
        let (mut indexes, mut more) = (Vec::new(), false);
        for i in order {
            let pod = &o.pods[i];
            let failed = o.has_failed(pod);
            let delayed = pod.index.is_some_and(|index| e.delayed.get(&index) == Some(&i));
            let ends = o.deleting || end.is_some() || pod.has_succeeded() || (failed && !delayed);
            if !o.is_tracked(pod) || !ends {
                continue;
            }
            self.remove.push(i);
            let uncounted = &mut self.status.uncounted_terminated_pods;
            let index = pod.index_below(spec.indexes());
            if pod.has_succeeded() && !known(&before.failed, pod.uid()) {
                if spec.is_indexed() {
                    indexes.extend(index.filter(|i| !e.counted_indexes.has(*i)));
                } else if !known(&before.succeeded, pod.uid()) {
                    uncounted.succeeded.push(pod.uid().to_owned());
                    self.changed = true;
                }
            } else if (failed || failing)
                && !known(&before.failed, pod.uid())
                && (!spec.is_indexed() || index.is_some())
            {
                let verdict = policy::match_rule(spec.pod_failure_policy.as_ref(), pod);
                self.handled.extend(verdict.as_ref().map(policy::Verdict::action));
                if verdict != Some(policy::Verdict::Ignore) {
                    uncounted.failed.push(pod.uid().to_owned());
                    self.changed = true;
                }
            }
            if indexes.len() + uncounted.succeeded.len() + uncounted.failed.len() >= MAX_UNCOUNTED {
                more = true;
                break;
            }
        }
        self.changed |= !indexes.is_empty();
        Recorded { indexes: e.succeeded_indexes.with(indexes), more }
    }

    /// Counts the recorded pods that have lost their finalizers. Returns whether there were any.
    fn count_removed(&mut self) -> bool {
        let held = &self.held;
        let count = |uids: &mut Vec<String>, counter: &mut i64| {
            let before = uids.len();
            uids.retain(|uid| held.contains(uid));
            *counter += (before - uids.len()) as i64;
            before != uids.len()
        };
        let Status { uncounted_terminated_pods: uncounted, succeeded, failed, .. } = &mut self.status;
        let any = count(&mut uncounted.succeeded, succeeded) | count(&mut uncounted.failed, failed);
        self.changed |= any;
        any
    }

    /// The status was written: counts pods whose finalizers were removed meanwhile.
    pub fn removed<'a>(&mut self, uids: impl Iterator<Item = &'a str>) {
        self.changed = false;
        for uid in uids {
            self.held.remove(uid);
        }
        self.count_removed();
    }

    /// Ends the job if all pods are accounted for and have stopped. Returns the final condition.
    pub fn finish(&mut self, now: Timestamp) -> Option<Condition> {
        let uncounted = &self.status.uncounted_terminated_pods;
        let left = uncounted.succeeded.len() + uncounted.failed.len();
        if left > 0 || self.status.terminating.is_some_and(|n| n > 0) {
            return None;
        }
        let end = self.end.take()?;
        if end.is("Complete") {
            // The clock may have been set back since the start.
            self.status.completion_time = Some(self.status.start_time.map_or(now, |start| start.max(now)));
        }
        self.status.set_condition(end.clone());
        self.changed = true;
        Some(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::pod::JobPod;
    use crate::job::state::evaluate;
    use crate::job::testing::{in_phase, observed, of_index, pod, time};
    use serde_json::{Value, json};

    /// A job in a store, whose controller may end before any write.
    struct Stored {
        spec: Value,
        status: Status,
        /// Phase, index, and whether it has its finalizer.
        pods: Vec<(&'static str, Option<i64>, bool)>,
        /// Writes until the controller ends.
        left: usize,
    }

    struct Ended;

    fn is_finished(status: &Status) -> bool {
        ["Complete", "Failed"].iter().any(|end| status.true_condition(end).is_some())
    }

    impl Stored {
        fn write(&mut self) -> Result<(), Ended> {
            self.left = self.left.checked_sub(1).ok_or(Ended)?;
            Ok(())
        }

        fn pod(&self, i: usize) -> JobPod {
            let (phase, index, tracked) = self.pods[i];
            let mut v = json!({"metadata": {"name": format!("p{i}")}, "status": {"phase": phase}});
            if let Some(index) = index {
                v["metadata"]["annotations"] = json!({"batch.kubernetes.io/job-completion-index": index.to_string()});
            }
            if !tracked {
                v["metadata"]["finalizers"] = json!([]);
            }
            pod(v)
        }

        /// One sync, as the controller does it. Fails when the controller ends.
        fn sync(&mut self) -> Result<(), Ended> {
            let pods = (0..self.pods.len()).map(|i| self.pod(i)).collect();
            let o = observed(self.spec.clone(), serde_json::to_value(&self.status).unwrap(), pods);
            let e = evaluate(&o);
            let complete = o.spec.completions.is_some_and(|n| e.succeeded >= n);
            let end = e.end.clone().or_else(|| complete.then(|| Condition::new("SuccessCriteriaMet", "r", "m", o.now)));
            let mut r = record(&o, &e, o.status.clone(), end, false);
            if r.changed {
                self.write()?;
                self.status = r.status.clone();
            }
            for i in r.remove.clone() {
                self.write()?;
                self.pods[i].2 = false;
            }
            r.removed(r.remove.clone().iter().map(|i| o.pods[*i].uid()));
            r.finish(o.now);
            if r.changed {
                self.write()?;
                self.status = r.status.clone();
            }
            Ok(())
        }
    }

    /// Clauses: C12.tracking, C12.interim-conditions
    #[test]
    fn counts_are_exact_wherever_the_controller_ends() {
        let fixed = |n: i64| json!({"completions": n, "parallelism": n, "backoffLimit": 1});
        let indexed = json!({"completionMode": "Indexed", "completions": 3, "parallelism": 3, "backoffLimit": 9});
        let done = |index| ("Succeeded", index, true);
        let failed = |index| ("Failed", index, true);
        for (spec, pods, succeeded, failures, indexes, end) in [
            (fixed(3), vec![done(None), failed(None), done(None), done(None)], 3, 1, "", "Complete"),
            (fixed(3), vec![done(None), failed(None), failed(None)], 1, 2, "", "Failed"),
            (
                indexed,
                vec![done(Some(0)), failed(Some(1)), done(Some(2)), done(Some(1)), done(Some(1))],
                3,
                1,
                "0-2",
                "Complete",
            ),
        ] {
            for first in 0..12 {
                for second in 0..12 {
                    let mut s =
                        Stored { spec: spec.clone(), status: Status::default(), pods: pods.clone(), left: first };
                    s.status.start_time = Some(time(0));
                    let mut syncs = 0;
                    for left in [second, 1000] {
                        while s.sync().is_ok() && !is_finished(&s.status) {
                            syncs += 1;
                            assert!(syncs < 10, "the job does not end");
                        }
                        s.left = left;
                    }
                    if !is_finished(&s.status) {
                        assert!(s.sync().is_ok());
                    }
                    let status = &s.status;
                    let got = (status.succeeded, status.failed, status.completed_indexes.as_str());
                    assert_eq!(got, (succeeded, failures, indexes), "ended after {first} and {second} writes");
                    assert!(
                        status.true_condition(end).is_some() && status.uncounted_terminated_pods == Default::default()
                    );
                    let interim = if end == "Complete" { "SuccessCriteriaMet" } else { "FailureTarget" };
                    assert_eq!(status.conditions.iter().filter(|c| c.is(interim)).count(), 1);
                    assert_eq!(status.completion_time.is_some(), end == "Complete");
                }
            }
        }
    }

    #[test]
    fn pods_are_recorded_in_portions() {
        let pods = (0..700).map(|i| in_phase(&format!("p{i:03}"), "Succeeded")).collect();
        let o = observed(json!({"completions": 700}), json!({}), pods);
        let r = record(
            &o,
            &evaluate(&o),
            o.status.clone(),
            Some(Condition::new("SuccessCriteriaMet", "r", "m", o.now)),
            false,
        );
        assert_eq!((r.remove.len(), r.status.uncounted_terminated_pods.succeeded.len()), (500, 500));
        assert!(r.end.is_none(), "the others are left");
    }

    #[test]
    fn pods_that_run_end_with_a_job_that_fails() {
        let pods = || vec![in_phase("a", "Running"), of_index("b", 0, "Succeeded")];
        let condition = |kind: &str| Some(Condition::new(kind, "r", "m", time(0)));
        for (end, failed, removed) in
            [(condition("FailureTarget"), 1, 2), (condition("SuccessCriteriaMet"), 0, 2), (None, 0, 1)]
        {
            let o = observed(json!({"completions": 9}), json!({}), pods());
            let r = record(&o, &evaluate(&o), o.status.clone(), end.clone(), false);
            assert_eq!((r.status.uncounted_terminated_pods.failed.len(), r.remove.len()), (failed, removed), "{end:?}");
        }
    }

    #[test]
    fn a_job_does_not_complete_before_it_started() {
        let o = observed(json!({"completions": 0}), json!({"startTime": meta::time::format(time(9000))}), vec![]);
        let end = Some(Condition::new("SuccessCriteriaMet", "r", "m", o.now));
        let mut r = record(&o, &evaluate(&o), o.status.clone(), end, false);
        r.removed([].into_iter());
        assert!(r.finish(o.now).is_some());
        assert_eq!(r.status.completion_time, Some(time(9000)));
    }

    #[test]
    fn a_job_with_terminating_pods_is_not_finished_yet() {
        let o = observed(json!({"completions": 0}), json!({"terminating": 1}), vec![]);
        let end = Some(Condition::new("SuccessCriteriaMet", "r", "m", o.now));
        let mut r = record(&o, &evaluate(&o), o.status.clone(), end, false);
        r.removed([].into_iter());
        assert!(r.finish(o.now).is_none() && !is_finished(&r.status));
    }
}
