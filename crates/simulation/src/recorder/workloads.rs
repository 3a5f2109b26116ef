//! Workloads: how many of their pods are available, and their rollouts.

use super::Recorder;
use crate::expectations::Expectation;
use crate::level::{Level, Turn};
use crate::report::duration;
use crate::timeline::{Event, Kind, Subject};
use crate::trace::ObjectChange;
use crate::workload::{self, controller, uid};
use std::time::Duration;

/// What is known of a workload.
#[derive(Debug, Default)]
pub(crate) struct Workload {
    pub level: Level,
    desired: u64,
    deleted: bool,
    /// The last change of the number of replicas.
    scaled: Option<(u64, u64)>,
    /// When the current rollout began.
    rollout: Option<Duration>,
    stuck: bool,
    progress: String,
    /// Why it lost a pod the last time.
    pub last_loss: Option<String>,
    /// The open entry of the timeline while pods are missing.
    entry: Option<usize>,
    /// The fewest pods meanwhile.
    lowest: u64,
}

impl Workload {
    /// Why its controller deletes pods.
    pub fn reason(&self, subject: &Subject) -> Option<String> {
        if self.deleted {
            return Some(format!("{subject} was deleted"));
        }
        if self.rollout.is_some() {
            return Some(format!("rollout of {subject}"));
        }
        let (from, to) = self.scaled.filter(|(from, to)| to < from)?;
        Some(format!("{subject} was scaled from {from} to {to}"))
    }
}

impl Recorder {
    pub(super) fn workload_changed(&mut self, at: Duration, kind: &str, change: &ObjectChange) {
        let (namespace, name) = (&*change.key.namespace, &*change.key.name);
        let Some(object) = change.new.as_ref().or(change.old.as_ref()) else { return };
        if let Some(owner) = controller(object).filter(|_| kind == "ReplicaSet") {
            let owner_kind = owner["kind"].as_str().unwrap_or_default();
            let deployment = Subject::new(owner_kind, namespace, owner["name"].as_str().unwrap_or_default());
            // Its pods may outlive it for a moment.
            self.owners.insert(uid(object).to_owned(), deployment);
            return;
        }
        let subject = Subject::new(kind, namespace, name);
        self.touched.insert(subject.clone());
        let workload = self.workloads.entry(subject.clone()).or_default();
        workload.deleted = change.new.as_ref().is_none_or(|o| workload::is_deleting(o));
        let Some(new) = change.new.as_ref().filter(|_| !workload.deleted) else {
            workload.desired = 0;
            workload.rollout = None;
            return;
        };
        let desired = workload::desired(kind, new).max(0).unsigned_abs();
        if desired != workload.desired && change.old.is_some() {
            workload.scaled = Some((workload.desired, desired));
        }
        workload.desired = desired;
        workload.progress = workload::progress(new);
        let changed = change.old.as_ref().is_some_and(|old| old["spec"]["template"] != new["spec"]["template"]);
        let done = !changed && workload.rollout.is_some() && workload::is_rolled_out(new);
        let conditions = new["status"]["conditions"].as_array().into_iter().flatten();
        let stuck = conditions.into_iter().any(|c| c["reason"] == "ProgressDeadlineExceeded");
        let newly_stuck = stuck && !std::mem::replace(&mut workload.stuck, stuck);
        let event = |text: String| Event { object: subject.clone(), text, ..Event::default() };
        if changed {
            workload.rollout = Some(at);
            self.event(at, Kind::RolloutBegan, event("its pods change".into()));
        } else if done {
            let took = at.saturating_sub(workload.rollout.take().unwrap_or(at));
            self.event(at, Kind::RolloutEnded, event(format!("after {}", duration(took))));
            self.check_rollout(at, &subject, took, None);
        } else if newly_stuck && workload.rollout.is_some() {
            let text = format!("the progress deadline passed: {}", workload.progress);
            self.event(at, Kind::RolloutStuck, event(text));
        }
    }

    fn check_rollout(&mut self, at: Duration, subject: &Subject, took: Duration, open: Option<&str>) {
        if !self.begun {
            return;
        }
        for expectation in self.expectations.clone() {
            let Expectation::Rollout { object, within } = &expectation else { continue };
            let applies = object.as_ref().is_none_or(|o| subject.is_named(o));
            if applies && (took > within.0 || open.is_some()) {
                let problem = match open {
                    Some(progress) => format!("it did not end within {}: {progress}", duration(took)),
                    None => format!("it took {}", duration(took)),
                };
                let begun = at.saturating_sub(took);
                self.violations.add(begun, at, &expectation.to_string(), subject.to_string(), problem, None);
            }
        }
    }

    pub(super) fn finish_rollouts(&mut self, at: Duration) {
        let open: Vec<(Subject, Duration, String)> =
            self.workloads.iter().filter_map(|(s, w)| Some((s.clone(), w.rollout?, w.progress.clone()))).collect();
        for (subject, begun, progress) in open {
            self.check_rollout(at, &subject, at.saturating_sub(begun), Some(&progress));
        }
    }

    pub(super) fn evaluate_workload(&mut self, at: Duration, subject: &Subject) {
        let serving = self.serving.get(subject).copied().unwrap_or(0);
        let Some(workload) = self.workloads.get_mut(subject) else { return };
        let turn = workload.level.set(at, serving, workload.desired);
        if !self.begun {
            return;
        }
        let (level, cause) = (workload.level.clone(), workload.last_loss.clone());
        let below = level.value < level.base;
        let text = |lowest: u64, base: u64| format!("{lowest} of {base} available");
        match turn {
            Some(Turn::Recovered) => {
                let (entry, lowest) = (workload.entry.take(), workload.lowest);
                self.timeline.end(entry, at, text(lowest, level.base));
            }
            // Also what was missing at the beginning.
            _ if below && workload.entry.is_none() => {
                workload.lowest = level.value;
                let object = subject.clone();
                let text = text(level.value, level.base);
                let entry =
                    self.event(at, Kind::Unavailable, Event { object, text, cause: cause.clone(), ..Event::default() });
                if let Some(workload) = self.workloads.get_mut(subject) {
                    workload.entry = entry;
                }
            }
            _ if below && level.value < workload.lowest => {
                workload.lowest = level.value;
                let entry = workload.entry;
                self.timeline.describe(entry, text(level.value, level.base));
            }
            _ => {}
        }
        for expectation in &self.expectations {
            let Expectation::Available { object, at_least } = expectation else { continue };
            // On nodes that are down, the pods of a DaemonSet are missing in any case.
            if object.as_ref().map_or(subject.kind != "DaemonSet", |o| subject.is_named(o)) {
                let mut required = at_least.of_total(level.base);
                if object.is_none() {
                    // A workload with fewer replicas than the number cannot have more.
                    required = required.min(level.base);
                }
                let problem = format!("{} available instead of {required}", level.value);
                let shortage = required.checked_sub(level.value).filter(|n| *n > 0).map(|n| (n, problem));
                self.violations.update(at, expectation.to_string(), subject, shortage, cause.as_ref());
            }
        }
    }
}
