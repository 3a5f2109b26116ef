//! The pods that wait for a node (upstream `scheduling_queue.go`).
//!
//! *Active*: to be scheduled next, by rank (QueueSort) and then in the order of arrival. *Backing off*: failed a short while ago.
//! *Unschedulable*: until a change after which a plugin that refused the pod may accept it, or for five minutes. *Gated*: a plugin does not
//! let it into the queue (PreEnqueue), until it is changed.

use crate::framework::{Event, Framework};
use crate::pod::Pod;
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(10);
const FORGOTTEN: Duration = Duration::from_secs(5 * 60);

type Uid = Arc<str>;
/// Orders the active pods.
type Rank = (Reverse<i64>, u64, Uid);

enum Stage {
    Active(Rank),
    Backoff(Instant),
    Unschedulable(Instant),
    Gated,
}

struct Waiting {
    pod: Arc<Pod>,
    stage: Stage,
    arrival: u64,
    attempts: u32,
    last_try: Instant,
    refused_by: BTreeSet<&'static str>,
}

pub struct Queue {
    framework: Arc<Framework>,
    waiting: HashMap<Uid, Waiting>,
    active: BTreeSet<Rank>,
    backoff: BTreeSet<(Instant, Uid)>,
    unschedulable: BTreeSet<(Instant, Uid)>,
    arrivals: u64,
}

/// A pod that was taken out of the queue to be scheduled.
#[derive(Clone)]
pub struct Taken {
    pub pod: Arc<Pod>,
    arrival: u64,
    attempts: u32,
}

impl Queue {
    pub fn new(framework: Arc<Framework>) -> Self {
        Self {
            framework,
            waiting: HashMap::new(),
            active: BTreeSet::new(),
            backoff: BTreeSet::new(),
            unschedulable: BTreeSet::new(),
            arrivals: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    fn unlink(&mut self, uid: &str) -> Option<Waiting> {
        let w = self.waiting.remove(uid)?;
        match &w.stage {
            Stage::Active(rank) => self.active.remove(rank),
            Stage::Backoff(at) => self.backoff.remove(&(*at, uid.into())),
            Stage::Unschedulable(at) => self.unschedulable.remove(&(*at, uid.into())),
            Stage::Gated => true,
        };
        Some(w)
    }

    fn link(&mut self, mut w: Waiting, to: fn(&Self, &Waiting) -> Stage) {
        w.stage = to(self, &w);
        let uid = w.pod.meta.uid.clone();
        match &w.stage {
            Stage::Active(rank) => self.active.insert(rank.clone()),
            Stage::Backoff(at) => self.backoff.insert((*at, uid.clone())),
            Stage::Unschedulable(at) => self.unschedulable.insert((*at, uid.clone())),
            Stage::Gated => true,
        };
        self.waiting.insert(uid, w);
    }

    /// Adds a pod, or replaces it after a change. A change of what a refusing plugin reads makes the pod due at once.
    pub fn add(&mut self, pod: Arc<Pod>) {
        let Some(mut w) = self.unlink(&pod.meta.uid) else {
            self.arrivals += 1;
            let now = Instant::now();
            let w = Waiting {
                pod,
                stage: Stage::Gated,
                arrival: self.arrivals,
                attempts: 0,
                last_try: now,
                refused_by: BTreeSet::new(),
            };
            return self.ready(w);
        };
        let old = std::mem::replace(&mut w.pod, pod);
        match w.stage {
            Stage::Backoff(_) => self.link(w, backing_off),
            Stage::Unschedulable(_) => {
                let event = Event::OwnChanged { old: &old, new: &w.pod };
                let worth = self.framework.may_fit(&w.pod, &w.refused_by, &event);
                if worth { self.ready(w) } else { self.link(w, unschedulable) }
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
        let (_, _, uid) = self.active.first().cloned()?;
        let w = self.unlink(&uid)?;
        Some(Taken { pod: w.pod, arrival: w.arrival, attempts: w.attempts })
    }

    /// When the next pod becomes due without an event.
    pub fn next_due(&self) -> Option<Instant> {
        if !self.active.is_empty() {
            return Some(Instant::now());
        }
        let backoff = self.backoff.first().map(|(at, _)| *at);
        let forgotten = self.unschedulable.first().map(|(at, _)| *at + FORGOTTEN);
        backoff.into_iter().chain(forgotten).min()
    }

    fn move_due(&mut self) {
        let now = Instant::now();
        while let Some((at, uid)) = self.backoff.first().cloned() {
            if at > now {
                break;
            }
            if let Some(w) = self.unlink(&uid) {
                self.link(w, active);
            }
        }
        while let Some((at, uid)) = self.unschedulable.first().cloned() {
            if at + FORGOTTEN > now {
                break;
            }
            if let Some(w) = self.unlink(&uid) {
                self.ready(w);
            }
        }
    }

    /// Puts back a pod that no node fits. `refused_by`: the plugins that refused it.
    pub fn refused(&mut self, taken: Taken, refused_by: BTreeSet<&'static str>) {
        let w = self.again(taken, refused_by);
        self.link(w, unschedulable);
    }

    /// Puts back a pod whose binding failed. It is tried again after its back-off.
    pub fn failed(&mut self, taken: Taken) {
        let w = self.again(taken, BTreeSet::new());
        self.link(w, backing_off);
    }

    fn again(&mut self, taken: Taken, refused_by: BTreeSet<&'static str>) -> Waiting {
        let now = Instant::now();
        Waiting {
            pod: taken.pod,
            stage: Stage::Unschedulable(now),
            arrival: taken.arrival,
            attempts: taken.attempts + 1,
            last_try: now,
            refused_by,
        }
    }

    /// Moves a pod to the active ones or to those backing off, if all plugins admit it.
    fn ready(&mut self, w: Waiting) {
        if !self.framework.admits(&w.pod) {
            return self.link(w, gated);
        }
        let over = w.last_try + backoff(w.attempts) <= Instant::now();
        self.link(w, if over { active } else { backing_off });
    }

    /// Requeues unschedulable pods that may fit after the event.
    pub fn handle_event(&mut self, event: &Event<'_>) {
        if self.unschedulable.is_empty() || event.changes().is_empty() {
            return;
        }
        let woken: Vec<Uid> = self
            .unschedulable
            .iter()
            .filter_map(|(_, uid)| self.waiting.get(uid))
            .filter(|w| self.framework.may_fit(&w.pod, &w.refused_by, event))
            .map(|w| w.pod.meta.uid.clone())
            .collect();
        for uid in woken {
            if let Some(w) = self.unlink(&uid) {
                self.ready(w);
            }
        }
    }
}

fn backoff(attempts: u32) -> Duration {
    match attempts {
        0 => Duration::ZERO,
        n => FIRST_BACKOFF.saturating_mul(1 << (n - 1).min(10)).min(MAX_BACKOFF),
    }
}

fn active(queue: &Queue, w: &Waiting) -> Stage {
    Stage::Active((Reverse(queue.framework.queue_rank(&w.pod)), w.arrival, w.pod.meta.uid.clone()))
}

fn gated(_: &Queue, _: &Waiting) -> Stage {
    Stage::Gated
}

fn backing_off(_: &Queue, w: &Waiting) -> Stage {
    Stage::Backoff(w.last_try + backoff(w.attempts))
}

fn unschedulable(_: &Queue, w: &Waiting) -> Stage {
    Stage::Unschedulable(w.last_try)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::deciding_plugins;
    use serde_json::json;

    fn pod(name: &str, priority: i64) -> Arc<Pod> {
        let v = json!({"metadata": {"name": name, "uid": name}, "spec": {"priority": priority}});
        Arc::new(Pod::new(serde_json::to_vec(&v).unwrap().into()).unwrap())
    }

    /// Clauses: Q02.priority, Q02.backoff
    #[tokio::test(start_paused = true)]
    async fn pods_are_popped_by_priority_and_after_back_off() {
        let mut q = Queue::new(Arc::new(Framework::new(deciding_plugins())));
        for (n, p) in [("low", 0), ("first", 5), ("second", 5), ("high", 9)] {
            q.add(pod(n, p));
        }
        let mut order = Vec::new();
        while let Some(t) = q.pop() {
            order.push(t.pod.meta.name.to_string());
            if &*t.pod.meta.name == "high" {
                q.refused(t, ["NodeResourcesFit"].into());
            }
        }
        assert_eq!(order, ["high", "first", "second", "low"]);
        let gone = pod("gone", 0);
        q.handle_event(&Event::PodPlaced(&gone));
        assert!(q.pop().is_none(), "another pod does not make room");
        q.handle_event(&Event::PodGone(&gone));
        assert!(q.pop().is_none(), "backing off");
        let due = q.next_due().unwrap();
        assert_eq!(due - Instant::now(), Duration::from_secs(1));
        tokio::time::advance(Duration::from_secs(1)).await;
        let t = q.pop().unwrap();
        q.refused(t, ["NodeAffinity"].into());
        tokio::time::advance(FORGOTTEN).await;
        assert!(q.pop().is_some(), "no pod waits for ever");
    }

    fn changed(v: serde_json::Value) -> Arc<Pod> {
        Arc::new(Pod::new(serde_json::to_vec(&v).unwrap().into()).unwrap())
    }

    /// A gate keeps a pod out of the queue. A changed pod is retried at once only if a refusing plugin reads the change.
    #[tokio::test(start_paused = true)]
    async fn changes_of_a_pod_wake_it_where_plugins_read_them() {
        let mut q = Queue::new(Arc::new(Framework::new(deciding_plugins())));
        let with = |spec: serde_json::Value, labels: serde_json::Value| {
            changed(json!({"metadata": {"name": "p", "uid": "p", "labels": labels}, "spec": spec}))
        };
        q.add(with(json!({"schedulingGates": [{"name": "g"}]}), json!({})));
        assert!(q.pop().is_none() && q.next_due().is_none(), "gated");
        q.add(with(json!({}), json!({})));
        let taken = q.pop().expect("the gate is gone");
        q.refused(taken, ["TaintToleration"].into());
        tokio::time::advance(Duration::from_secs(20)).await;
        q.add(with(json!({}), json!({"a": "b"})));
        assert!(q.pop().is_none(), "taints do not read labels");
        q.add(with(json!({"tolerations": [{"key": "k"}]}), json!({"a": "b"})));
        assert!(q.pop().is_some(), "a toleration more");
    }

    #[tokio::test(start_paused = true)]
    async fn heartbeats_of_nodes_wake_no_pod() {
        let mut q = Queue::new(Arc::new(Framework::new(deciding_plugins())));
        q.add(pod("p", 0));
        let taken = q.pop().unwrap();
        q.refused(taken, ["NodeResourcesFit", "TaintToleration"].into());
        tokio::time::advance(Duration::from_secs(20)).await;
        let node = |version: &str, cpu: &str| {
            let v = json!({"metadata": {"name": "n", "resourceVersion": version},
                "status": {"allocatable": {"cpu": cpu, "memory": "4Gi", "pods": "10"}}});
            crate::cluster::NodeEntry::new(serde_json::to_vec(&v).unwrap().into()).unwrap()
        };
        q.handle_event(&Event::NodeChanged { old: &node("1", "1"), new: &node("2", "1") });
        assert!(q.pop().is_none(), "nothing that a filter reads");
        q.handle_event(&Event::NodeChanged { old: &node("2", "1"), new: &node("3", "2") });
        assert!(q.pop().is_some(), "more CPU");
    }
}
