//! Turns the commits and the journal of a rehearsal into a timeline, levels of availability and violations.
//!
//! Invariant: what is recorded depends on the commits and notes alone. A pod on a machine that is down is not available, even while the API
//! still shows it as ready. Nothing counts before [`Note::Begin`].

mod pods;
mod services;
mod workloads;

use crate::expectations::{Expectation, Violations};
use crate::invariants::{Objects, is_material};
use crate::journal::{DrainEnd, Journal, Note};
use crate::timeline::{Event, Kind, Subject, Timeline};
use crate::trace::{Commit, ObjectChange};
use crate::workload;
use meta::Value;
use pods::Pod;
use services::{Budget, Service};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use store::Key;
use workloads::Workload;

/// A drain of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainRow {
    pub node: String,
    pub began: Duration,
    pub ended: Option<Duration>,
    /// How it ended, in words.
    pub outcome: String,
    /// The budgets that refused evictions, and from when to when.
    pub blocked_by: BTreeMap<String, (Duration, Duration)>,
}

/// The state of a node.
#[derive(Default)]
struct Node {
    down: bool,
    ready: bool,
    cordoned: bool,
}

/// Records a rehearsal.
pub(crate) struct Recorder {
    journal: Arc<Journal>,
    expectations: Vec<Expectation>,
    ignore_budgets: bool,
    begun: bool,
    pub timeline: Timeline,
    pub violations: Violations,
    /// By UID.
    pods: HashMap<String, Pod>,
    /// How many pods of a workload serve.
    serving: HashMap<Subject, u64>,
    pub workloads: BTreeMap<Subject, Workload>,
    /// The Deployments of ReplicaSets, by UID.
    owners: HashMap<String, Subject>,
    pub services: BTreeMap<Subject, Service>,
    /// The service and the UIDs of ready pods of each endpoint slice.
    slices: BTreeMap<Key, (Subject, Vec<String>)>,
    pub budgets: BTreeMap<Subject, Budget>,
    nodes: BTreeMap<String, Node>,
    pub drains: Vec<DrainRow>,
    last_change: Duration,
    /// What the current commit changed.
    touched: BTreeSet<Subject>,
    touched_services: BTreeSet<Subject>,
    touched_budgets: BTreeSet<Subject>,
}

impl Recorder {
    pub fn new(journal: Arc<Journal>, expectations: Vec<Expectation>, ignore_budgets: bool) -> Self {
        Self {
            journal,
            expectations,
            ignore_budgets,
            begun: false,
            timeline: Timeline::default(),
            violations: Violations::default(),
            pods: HashMap::new(),
            serving: HashMap::new(),
            workloads: BTreeMap::new(),
            owners: HashMap::new(),
            services: BTreeMap::new(),
            slices: BTreeMap::new(),
            budgets: BTreeMap::new(),
            nodes: BTreeMap::new(),
            drains: Vec::new(),
            last_change: Duration::ZERO,
            touched: BTreeSet::new(),
            touched_services: BTreeSet::new(),
            touched_budgets: BTreeSet::new(),
        }
    }

    /// The number of pods.
    pub fn pod_count(&self) -> u64 {
        self.pods.len() as u64
    }

    /// When something was written last, other than heartbeats, events, and the jobs of CronJobs.
    pub fn last_change(&self) -> Duration {
        self.last_change
    }

    /// Records a commit, and the notes before it.
    pub fn observe(&mut self, commit: &Commit, objects: &Objects) {
        self.catch_up(commit.at);
        let at = commit.at;
        for change in &commit.changes {
            if is_material(change) && !is_recurring(change, objects) {
                self.last_change = at;
            }
            match &*change.key.resource {
                "pods" => self.pod_changed(at, change),
                "nodes" => self.node_changed(at, change),
                "services" => self.service_changed(change),
                "discovery.k8s.io/endpointslices" => self.slice_changed(change),
                "policy/poddisruptionbudgets" => self.budget_changed(change),
                resource => {
                    if let Some((_, kind)) = workload::KINDS.iter().find(|(r, _)| *r == resource) {
                        self.workload_changed(at, kind, change);
                    }
                }
            }
        }
        self.evaluate(at);
    }

    /// Records the notes up to a time.
    pub fn catch_up(&mut self, at: Duration) {
        while let Some((when, note)) = self.journal.take_until(at) {
            self.note(when, note);
            self.evaluate(when);
        }
    }

    /// Updates the levels of everything that changed.
    fn evaluate(&mut self, at: Duration) {
        for subject in std::mem::take(&mut self.touched) {
            self.evaluate_workload(at, &subject);
        }
        for subject in std::mem::take(&mut self.touched_services) {
            self.evaluate_service(at, &subject);
        }
        for subject in std::mem::take(&mut self.touched_budgets) {
            self.evaluate_budget(at, &subject);
        }
    }

    /// Adds an event, once the steps have begun.
    fn event(&mut self, at: Duration, kind: Kind, event: Event<'_>) -> Option<usize> {
        if self.begun { self.timeline.add(at, kind, event) } else { None }
    }

    fn note(&mut self, at: Duration, note: Note) {
        let about = |object: Subject, text: &str| Event { object, text: text.to_owned(), ..Event::default() };
        let node_subject = |node: &str| Subject::new("Node", "", node);
        match note {
            Note::Begin => self.begin(at),
            Note::Step(i, text) => {
                self.timeline.step = Some(i);
                self.event(at, Kind::Step, about(Subject::default(), &text));
            }
            Note::NodeDown(node) => {
                self.nodes.entry(node.clone()).or_default().down = true;
                self.event(at, Kind::NodeDown, about(node_subject(&node), "its machine stops"));
                self.node_lost(at, &node);
            }
            Note::NodeUp(node) => {
                self.nodes.entry(node.clone()).or_default().down = false;
                self.event(at, Kind::NodeUp, about(node_subject(&node), "its machine starts"));
            }
            Note::Started(uid) => {
                self.containers_started(&uid);
            }
            Note::DrainBegan(node) => {
                let outcome = "did not end".to_owned();
                let row = DrainRow { node: node.clone(), began: at, ended: None, outcome, blocked_by: BTreeMap::new() };
                self.drains.push(row);
                self.event(at, Kind::DrainBegan, about(node_subject(&node), ""));
            }
            Note::EvictionRefused { node, namespace, pod, message } => {
                let by = self.budget_of(&namespace, &pod).unwrap_or_else(|| message.clone());
                if let Some(row) = self.drains.iter_mut().rev().find(|d| d.node == node && d.ended.is_none()) {
                    row.blocked_by.entry(by).or_insert((at, at)).1 = at;
                }
                let pod = format!("{namespace}/{pod}");
                let event = Event { object: node_subject(&node), cause: Some(message), pod: &pod, ..Event::default() };
                self.event(at, Kind::DrainBlocked, event);
            }
            Note::DrainEnded(node, end) => {
                let outcome = match end {
                    DrainEnd::Done => "done".to_owned(),
                    DrainEnd::Refused(why) => why,
                    DrainEnd::TimedOut { left } => format!("timed out, pods left: {left}"),
                };
                let Some(row) = self.drains.iter_mut().rev().find(|d| d.node == node && d.ended.is_none()) else {
                    return;
                };
                (row.ended, row.outcome) = (Some(at), outcome.clone());
                let (began, took) = (row.began, at.saturating_sub(row.began));
                self.timeline.end_blocked(&node_subject(&node), at);
                self.event(at, Kind::DrainEnded, about(node_subject(&node), &outcome));
                for expectation in self.expectations.clone() {
                    if let Expectation::Drain { within } = &expectation
                        && took > within.0
                    {
                        let problem = format!("it took {}", crate::report::duration(took));
                        let object = node_subject(&node).to_string();
                        self.violations.add(began, at, &expectation.to_string(), object, problem, None);
                    }
                }
            }
            Note::Failed(problem) => {
                self.event(at, Kind::Failed, about(Subject::default(), &problem));
                self.violations.add(at, at, "every step succeeds", String::new(), problem, None);
            }
            Note::Remark(text) => _ = self.event(at, Kind::Remark, about(Subject::default(), &text)),
        }
    }

    fn begin(&mut self, at: Duration) {
        self.begun = true;
        self.workloads.values_mut().for_each(|w| w.level.begin(at));
        self.services.values_mut().for_each(|s| s.level.begin(at));
        self.budgets.values_mut().for_each(Budget::begin);
        self.pods.values_mut().for_each(|p| p.created = p.created.max(at));
        self.touched = self.workloads.keys().cloned().collect();
        self.touched_services = self.services.keys().cloned().collect();
        let waiting: Vec<(Subject, String, String)> = self
            .pods
            .values()
            .filter(|p| p.is_pending() && !p.unschedulable.is_empty())
            .map(|p| (p.subject(), p.key.1.clone(), p.unschedulable.clone()))
            .collect();
        let mut waiting = waiting;
        waiting.sort();
        for (object, pod, message) in waiting {
            self.event(at, Kind::Pending, Event { object, text: message, pod: &pod, ..Event::default() });
        }
    }

    fn node_changed(&mut self, at: Duration, change: &ObjectChange) {
        let name = change.key.name.to_string();
        let subject = Subject::new("Node", "", &name);
        let Some(node) = &change.new else {
            self.nodes.remove(&name);
            self.event(
                at,
                Kind::NodeDown,
                Event { object: subject, text: "it was deleted".into(), ..Event::default() },
            );
            return;
        };
        let ready = workload::true_condition(node, "Ready").is_some();
        let cordoned = node["spec"]["unschedulable"] == true;
        let state = self.nodes.entry(name).or_default();
        let before = (std::mem::replace(&mut state.ready, ready), std::mem::replace(&mut state.cordoned, cordoned));
        if change.old.is_none() {
            return;
        }
        if before.0 != ready {
            let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
            let condition = conditions.into_iter().find(|c| c["type"] == "Ready");
            let message =
                condition.filter(|_| !ready).and_then(|c| c["message"].as_str()).unwrap_or_default().to_owned();
            let kind = if ready { Kind::NodeReady } else { Kind::NodeNotReady };
            self.event(at, kind, Event { object: subject.clone(), text: message, ..Event::default() });
        }
        if before.1 != cordoned {
            let kind = if cordoned { Kind::Cordoned } else { Kind::Uncordoned };
            self.event(at, kind, Event { object: subject, ..Event::default() });
        }
    }

    /// Ends the recording.
    pub fn finish(&mut self, at: Duration) {
        self.catch_up(at);
        self.finish_pods(at);
        self.finish_rollouts(at);
        for drain in self.drains.iter().filter(|d| d.ended.is_none()) {
            self.timeline.end_blocked(&Subject::new("Node", "", &drain.node), at);
        }
        for expectation in self.expectations.clone() {
            let Expectation::Drain { within } = &expectation else { continue };
            let late = self.drains.iter().filter(|d| d.ended.is_none() && at.saturating_sub(d.began) > within.0);
            for (node, began) in late.map(|d| (d.node.clone(), d.began)).collect::<Vec<_>>() {
                let object = Subject::new("Node", "", &node).to_string();
                self.violations.add(began, at, &expectation.to_string(), object, "it did not end".into(), None);
            }
        }
        self.workloads.values_mut().for_each(|w| _ = w.level.finish(at));
        self.services.values_mut().for_each(|s| _ = s.level.finish(at));
        self.budgets.values_mut().for_each(|b| b.finish(at));
    }
}

/// Whether a change belongs to a CronJob, which writes again and again.
fn is_recurring(change: &ObjectChange, objects: &Objects) -> bool {
    let object = change.new.as_ref().or(change.old.as_ref());
    let owner = |o: &Value, kind: &str| workload::controller(o).filter(|c| c["kind"] == kind).cloned();
    match (&*change.key.resource, object) {
        ("batch/cronjobs", _) => true,
        ("batch/jobs", Some(job)) => owner(job, "CronJob").is_some(),
        ("pods", Some(pod)) => owner(pod, "Job").is_some_and(|job| {
            let key = Key::new("batch/jobs", &change.key.namespace, job["name"].as_str().unwrap_or_default());
            objects.get(&key).is_none_or(|job| owner(job, "CronJob").is_some())
        }),
        _ => false,
    }
}
