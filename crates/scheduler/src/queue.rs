//! The pods that wait for a node (upstream `scheduling_queue.go`).
//!
//! *Active*: to be scheduled next, by rank (QueueSort) and then in the order of arrival. *Backing off*: failed a short while ago; one whose
//! attempt was refused is taken early while no pod is active. *Unschedulable*: until a change after which a plugin that refused the pod may
//! accept it, or for five minutes. *Gated*: a plugin does not let it into the queue (PreEnqueue), until it is changed.
//!
//! Invariant: an event costs as much as there are pods that were refused by a plugin that reads what the event changes.

use crate::extender;
use crate::framework::{Event, Framework, Read};
use crate::pod::Pod;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const FORGOTTEN: Duration = Duration::from_secs(5 * 60);

/// The key of pods that no plugin refused, among those refused by plugins: every event may help them.
const NO_PLUGIN: &str = "";

/// How long a pod backs off after its first failed attempt, and at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    pub initial: Duration,
    pub max: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { initial: Duration::from_secs(1), max: Duration::from_secs(10) }
    }
}

impl Backoff {
    fn after(self, attempts: u32) -> Duration {
        match attempts {
            0 => Duration::ZERO,
            n => self.initial.saturating_mul(1 << (n - 1).min(30)).min(self.max),
        }
    }
}

/// The frameworks by `schedulerName`.
pub type Frameworks = HashMap<Arc<str>, Arc<Framework>>;

type Uid = Arc<str>;
/// Orders the active pods.
type Rank = (Reverse<i64>, u64, Uid);

enum Stage {
    Active(Rank),
    Backoff(Instant, Rank),
    /// Backs off after an error, which waiting may mend: not taken early.
    ErrorBackoff(Instant, Rank),
    Unschedulable(Instant),
    Gated,
}

struct Waiting {
    pod: Arc<Pod>,
    framework: Arc<Framework>,
    stage: Stage,
    arrival: u64,
    attempts: u32,
    last_try: Instant,
    refused_by: BTreeSet<&'static str>,
}

impl Waiting {
    fn rank(&self) -> Rank {
        (Reverse(self.framework.queue_rank(&self.pod)), self.arrival, self.pod.meta.uid.clone())
    }
}

pub struct Queue {
    frameworks: Arc<Frameworks>,
    limits: Backoff,
    waiting: HashMap<Uid, Waiting>,
    active: BTreeSet<Rank>,
    backoff: BTreeSet<(Instant, Rank)>,
    error_backoff: BTreeSet<(Instant, Rank)>,
    unschedulable: BTreeSet<(Instant, Uid)>,
    /// The unschedulable pods by the plugins that refused them.
    refused: HashMap<&'static str, HashSet<Uid>>,
    arrivals: u64,
    /// The number of events, and of the last one that changed each thing.
    events: u64,
    last: HashMap<Read, u64>,
}

/// Where a pod is in the queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Position {
    pub stage: StageName,
    /// How often no node was found.
    pub attempts: u32,
    /// When it is tried again without a change of the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_to_retry: Option<u64>,
    /// The plugins whose changes it waits for.
    pub refused_by: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StageName {
    Active,
    Backoff,
    Unschedulable,
    Gated,
}

/// A pod that was taken out of the queue to be scheduled.
#[derive(Clone)]
pub struct Taken {
    pub pod: Arc<Pod>,
    pub framework: Arc<Framework>,
    arrival: u64,
    attempts: u32,
    /// The number of events before it was taken.
    events: u64,
}

impl Queue {
    pub fn new(frameworks: Arc<Frameworks>, limits: Backoff) -> Self {
        Self {
            frameworks,
            limits,
            waiting: HashMap::new(),
            active: BTreeSet::new(),
            backoff: BTreeSet::new(),
            error_backoff: BTreeSet::new(),
            unschedulable: BTreeSet::new(),
            refused: HashMap::new(),
            arrivals: 0,
            events: 0,
            last: HashMap::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// A pod, its framework, and its position. None if it is not in the queue.
    pub fn position(&self, uid: &str) -> Option<(Arc<Pod>, Arc<Framework>, Position)> {
        let w = self.waiting.get(uid)?;
        let (stage, due) = match &w.stage {
            Stage::Active(_) => (StageName::Active, None),
            Stage::Backoff(at, _) | Stage::ErrorBackoff(at, _) => (StageName::Backoff, Some(*at)),
            // Held back when it was taken from the queue.
            Stage::Unschedulable(at) if w.attempts == 0 => (StageName::Gated, Some(*at + FORGOTTEN)),
            Stage::Unschedulable(at) => (StageName::Unschedulable, Some(*at + FORGOTTEN)),
            Stage::Gated => (StageName::Gated, None),
        };
        let seconds = |at: Instant| at.saturating_duration_since(Instant::now()).as_secs();
        let position = Position {
            stage,
            attempts: w.attempts,
            seconds_to_retry: due.map(seconds),
            refused_by: w.refused_by.iter().map(ToString::to_string).collect(),
        };
        Some((w.pod.clone(), w.framework.clone(), position))
    }

    fn unlink(&mut self, uid: &str) -> Option<Waiting> {
        let w = self.waiting.remove(uid)?;
        match &w.stage {
            Stage::Active(rank) => drop(self.active.remove(rank)),
            Stage::Backoff(at, rank) => drop(self.backoff.remove(&(*at, rank.clone()))),
            Stage::ErrorBackoff(at, rank) => drop(self.error_backoff.remove(&(*at, rank.clone()))),
            Stage::Unschedulable(at) => {
                self.unschedulable.remove(&(*at, uid.into()));
                for plugin in keys(&w.refused_by) {
                    if let Some(pods) = self.refused.get_mut(plugin) {
                        pods.remove(uid);
                    }
                }
            }
            Stage::Gated => {}
        }
        Some(w)
    }

    fn link(&mut self, mut w: Waiting, stage: Stage) {
        let uid = w.pod.meta.uid.clone();
        match &stage {
            Stage::Active(rank) => drop(self.active.insert(rank.clone())),
            Stage::Backoff(at, rank) => drop(self.backoff.insert((*at, rank.clone()))),
            Stage::ErrorBackoff(at, rank) => drop(self.error_backoff.insert((*at, rank.clone()))),
            Stage::Unschedulable(at) => {
                self.unschedulable.insert((*at, uid.clone()));
                for plugin in keys(&w.refused_by) {
                    self.refused.entry(plugin).or_default().insert(uid.clone());
                }
            }
            Stage::Gated => {}
        }
        w.stage = stage;
        self.waiting.insert(uid, w);
    }

    /// Adds a pod, or replaces it after a change. A change of what a refusing plugin reads makes the pod due at once. A pod of an
    /// unknown scheduler is ignored.
    pub fn add(&mut self, pod: Arc<Pod>) {
        let Some(framework) = self.frameworks.get(&*pod.view.scheduler_name).cloned() else { return };
        let Some(mut w) = self.unlink(&pod.meta.uid) else {
            self.arrivals += 1;
            let w = Waiting {
                pod,
                framework,
                stage: Stage::Gated,
                arrival: self.arrivals,
                attempts: 0,
                last_try: Instant::now(),
                refused_by: BTreeSet::new(),
            };
            return self.ready(w);
        };
        let old = std::mem::replace(&mut w.pod, pod);
        match w.stage {
            Stage::Backoff(at, _) => {
                let rank = w.rank();
                self.link(w, Stage::Backoff(at, rank));
            }
            Stage::ErrorBackoff(at, _) => {
                let rank = w.rank();
                self.link(w, Stage::ErrorBackoff(at, rank));
            }
            Stage::Unschedulable(at) => {
                let event = Event::OwnChanged { old: &old, new: &w.pod };
                let worth = w.framework.may_fit(&w.pod, &w.refused_by, &event, &event.changes());
                if worth { self.ready(w) } else { self.link(w, Stage::Unschedulable(at)) }
            }
            Stage::Active(_) | Stage::Gated => self.ready(w),
        }
    }

    pub fn remove(&mut self, uid: &str) {
        self.unlink(uid);
    }

    /// Returns the next pod to schedule, if one is due.
    pub fn pop(&mut self) -> Option<Taken> {
        self.move_due();
        let early = || self.backoff.first().map(|(_, rank)| rank);
        let (_, _, uid) = self.active.first().or_else(early).cloned()?;
        let w = self.unlink(&uid)?;
        let Waiting { pod, framework, arrival, attempts, .. } = w;
        Some(Taken { pod, framework, arrival, attempts, events: self.events })
    }

    /// When the next pod becomes due without an event.
    pub fn next_due(&self) -> Option<Instant> {
        if !self.active.is_empty() || !self.backoff.is_empty() {
            return Some(Instant::now());
        }
        let backoff = self.error_backoff.first().map(|(at, _)| *at);
        let forgotten = self.unschedulable.first().map(|(at, _)| *at + FORGOTTEN);
        backoff.into_iter().chain(forgotten).min()
    }

    fn move_due(&mut self) {
        let now = Instant::now();
        let mut due = Vec::new();
        for backoff in [&self.backoff, &self.error_backoff] {
            due.extend(backoff.iter().take_while(|(at, _)| *at <= now).map(|(_, (.., uid))| uid.clone()));
        }
        for uid in due {
            if let Some(w) = self.unlink(&uid) {
                let rank = w.rank();
                self.link(w, Stage::Active(rank));
            }
        }
        while let Some((at, uid)) = self.unschedulable.first().cloned() {
            if at + FORGOTTEN > now {
                break;
            }
            match self.unlink(&uid) {
                Some(w) => self.ready(w),
                None => drop(self.unschedulable.pop_first()),
            }
        }
    }

    /// Puts back a pod that no node fits. `refused_by`: the plugins that refused it. It is tried again soon if what they read has changed
    /// since it was taken.
    pub fn refused(&mut self, taken: Taken, refused_by: BTreeSet<&'static str>) {
        let since = taken.events;
        self.wait(again(taken, refused_by), since);
    }

    /// Puts back a pod that a plugin does not let be scheduled yet. That is no attempt.
    pub fn gated(&mut self, taken: Taken, by: &'static str) {
        let (since, attempts) = (taken.events, taken.attempts);
        self.wait(Waiting { attempts, ..again(taken, [by].into()) }, since);
    }

    /// Lets a pod wait for a change of what the plugins that refused it read, unless there was one since the event `since`.
    fn wait(&mut self, w: Waiting, since: u64) {
        let changed = |read: &Read| self.last.get(read).is_some_and(|event| *event > since);
        let reads = |plugin: &&str| w.framework.plugin(plugin).is_some_and(|p| p.reads().iter().any(changed));
        let outdated = match w.refused_by.is_empty() || w.refused_by.contains(extender::NAME) {
            true => self.events > since,
            false => w.refused_by.iter().any(reads),
        };
        if outdated {
            self.ready(w);
        } else {
            let at = w.last_try;
            self.link(w, Stage::Unschedulable(at));
        }
    }

    /// Puts back a pod whose scheduling or binding failed. It is tried again after its back-off.
    pub fn failed(&mut self, taken: Taken) {
        let w = again(taken, BTreeSet::new());
        let (at, rank) = (w.last_try + self.limits.after(w.attempts), w.rank());
        self.link(w, Stage::ErrorBackoff(at, rank));
    }

    /// Lets a waiting pod go on, if all plugins admit it: the reason for which one did not is gone.
    pub fn admit(&mut self, uid: &str) {
        if self.waiting.get(uid).is_some_and(|w| matches!(w.stage, Stage::Gated))
            && let Some(w) = self.unlink(uid)
        {
            self.ready(w);
        }
    }

    /// Lets an unschedulable pod go on, whatever refused it.
    pub fn activate(&mut self, uid: &str) {
        if let Some(w) = self.unlink(uid) {
            self.ready(w);
        }
    }

    /// Moves a pod to the active ones or to those backing off, if all plugins admit it.
    fn ready(&mut self, w: Waiting) {
        if !w.framework.admits(&w.pod) {
            return self.link(w, Stage::Gated);
        }
        let (at, rank) = (w.last_try + self.limits.after(w.attempts), w.rank());
        let over = at <= Instant::now();
        self.link(w, if over { Stage::Active(rank) } else { Stage::Backoff(at, rank) });
    }

    /// Requeues unschedulable pods that may fit after the event.
    pub fn handle_event(&mut self, event: &Event<'_>) {
        let changes = event.changes();
        if changes.is_empty() {
            return;
        }
        self.events += 1;
        for read in &changes {
            self.last.insert(*read, self.events);
        }
        if self.unschedulable.is_empty() {
            return;
        }
        let mut woken: HashSet<Uid> = HashSet::new();
        for framework in self.frameworks.values() {
            let concerned = framework.plugins().filter(|p| p.reads().iter().any(|r| changes.contains(r)));
            let refused = concerned
                .map(|p| p.name())
                .chain([NO_PLUGIN, extender::NAME])
                .filter_map(|name| self.refused.get(name));
            for w in refused.flatten().filter_map(|uid| self.waiting.get(uid)) {
                if Arc::ptr_eq(&w.framework, framework)
                    && !woken.contains(&w.pod.meta.uid)
                    && framework.may_fit(&w.pod, &w.refused_by, event, &changes)
                {
                    woken.insert(w.pod.meta.uid.clone());
                }
            }
        }
        for uid in woken {
            if let Some(w) = self.unlink(&uid) {
                self.ready(w);
            }
        }
    }
}

/// The keys under which an unschedulable pod is found.
fn keys(refused_by: &BTreeSet<&'static str>) -> impl Iterator<Item = &'static str> {
    let none = refused_by.is_empty().then_some(NO_PLUGIN);
    refused_by.iter().copied().chain(none)
}

fn again(taken: Taken, refused_by: BTreeSet<&'static str>) -> Waiting {
    let now = Instant::now();
    Waiting {
        pod: taken.pod,
        framework: taken.framework,
        stage: Stage::Gated,
        arrival: taken.arrival,
        attempts: taken.attempts + 1,
        last_try: now,
        refused_by,
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
