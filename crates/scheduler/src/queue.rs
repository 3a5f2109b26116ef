//! The pods that wait for a node (upstream `scheduling_queue.go`).
//!
//! *Active*: by priority, then by time. *Backing off*: tried in vain not long ago. *Unschedulable*: until an event says that one of
//! the plugins that refused it might not any more, or five minutes have gone by.

use crate::framework::{Event, Plugin};
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

enum Place {
    Active(Rank),
    Backoff(Instant),
    Unschedulable(Instant),
}

struct Waiting {
    pod: Arc<Pod>,
    place: Place,
    arrival: u64,
    attempts: u32,
    last_try: Instant,
    refused_by: BTreeSet<&'static str>,
}

#[derive(Default)]
pub struct Queue {
    waiting: HashMap<Uid, Waiting>,
    active: BTreeSet<Rank>,
    backoff: BTreeSet<(Instant, Uid)>,
    unschedulable: BTreeSet<(Instant, Uid)>,
    arrivals: u64,
}

/// A pod taken out to be decided on.
#[derive(Clone)]
pub struct Taken {
    pub pod: Arc<Pod>,
    arrival: u64,
    attempts: u32,
}

impl Queue {
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    fn unlink(&mut self, uid: &str) -> Option<Waiting> {
        let w = self.waiting.remove(uid)?;
        match &w.place {
            Place::Active(rank) => self.active.remove(rank),
            Place::Backoff(at) => self.backoff.remove(&(*at, uid.into())),
            Place::Unschedulable(at) => self.unschedulable.remove(&(*at, uid.into())),
        };
        Some(w)
    }

    fn link(&mut self, mut w: Waiting, to: fn(&Waiting) -> Place) {
        w.place = to(&w);
        let uid = w.pod.meta.uid.clone();
        match &w.place {
            Place::Active(rank) => self.active.insert(rank.clone()),
            Place::Backoff(at) => self.backoff.insert((*at, uid.clone())),
            Place::Unschedulable(at) => self.unschedulable.insert((*at, uid.clone())),
        };
        self.waiting.insert(uid, w);
    }

    /// A pod that is new, or has changed. A change of its wishes is worth a try at once.
    pub fn add(&mut self, pod: Arc<Pod>, changed: bool) {
        match self.unlink(&pod.meta.uid) {
            None => {
                self.arrivals += 1;
                let now = Instant::now();
                let w = Waiting {
                    pod,
                    place: Place::Unschedulable(now),
                    arrival: self.arrivals,
                    attempts: 0,
                    last_try: now,
                    refused_by: BTreeSet::new(),
                };
                self.link(w, active);
            }
            Some(mut w) => {
                w.pod = pod;
                match w.place {
                    Place::Active(_) => self.link(w, active),
                    Place::Backoff(_) => self.link(w, backing_off),
                    Place::Unschedulable(_) if changed => self.ready(w),
                    Place::Unschedulable(_) => self.link(w, unschedulable),
                }
            }
        }
    }

    pub fn remove(&mut self, uid: &str) {
        self.unlink(uid);
    }

    /// The next pod to decide on, if one is due.
    pub fn pop(&mut self) -> Option<Taken> {
        self.ripen();
        let (_, _, uid) = self.active.first().cloned()?;
        let w = self.unlink(&uid)?;
        Some(Taken { pod: w.pod, arrival: w.arrival, attempts: w.attempts })
    }

    /// When the next pod becomes due by nothing but time.
    pub fn next_due(&self) -> Option<Instant> {
        if !self.active.is_empty() {
            return Some(Instant::now());
        }
        let backoff = self.backoff.first().map(|(at, _)| *at);
        let forgotten = self.unschedulable.first().map(|(at, _)| *at + FORGOTTEN);
        backoff.into_iter().chain(forgotten).min()
    }

    fn ripen(&mut self) {
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

    /// Puts back a pod that no node would have; `refused_by` are the plugins that said so.
    pub fn refused(&mut self, taken: Taken, refused_by: BTreeSet<&'static str>) {
        let w = self.again(taken, refused_by);
        self.link(w, unschedulable);
    }

    /// Puts back a pod whose binding failed: tried again after its back-off.
    pub fn failed(&mut self, taken: Taken) {
        let w = self.again(taken, BTreeSet::new());
        self.link(w, backing_off);
    }

    fn again(&mut self, taken: Taken, refused_by: BTreeSet<&'static str>) -> Waiting {
        let now = Instant::now();
        Waiting {
            pod: taken.pod,
            place: Place::Unschedulable(now),
            arrival: taken.arrival,
            attempts: taken.attempts + 1,
            last_try: now,
            refused_by,
        }
    }

    /// To the active pods, or to those backing off while its back-off lasts.
    fn ready(&mut self, w: Waiting) {
        let over = w.last_try + backoff(w.attempts) <= Instant::now();
        self.link(w, if over { active } else { backing_off });
    }

    /// Wakes the pods for which the event may have changed something.
    pub fn happened(&mut self, plugins: &[Box<dyn Plugin>], event: &Event<'_>) {
        if self.unschedulable.is_empty() {
            return;
        }
        let woken: Vec<Uid> = self
            .unschedulable
            .iter()
            .filter_map(|(_, uid)| self.waiting.get(uid))
            .filter(|w| {
                // Refused by nobody: there was no node at all.
                w.refused_by.is_empty()
                    || plugins.iter().any(|p| w.refused_by.contains(p.name()) && p.hint(&w.pod, event))
            })
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

fn active(w: &Waiting) -> Place {
    Place::Active((Reverse(w.pod.view.priority), w.arrival, w.pod.meta.uid.clone()))
}

fn backing_off(w: &Waiting) -> Place {
    Place::Backoff(w.last_try + backoff(w.attempts))
}

fn unschedulable(w: &Waiting) -> Place {
    Place::Unschedulable(w.last_try)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::default_plugins;
    use serde_json::json;

    fn pod(name: &str, priority: i64) -> Arc<Pod> {
        let v = json!({"metadata": {"name": name, "uid": name}, "spec": {"priority": priority}});
        Arc::new(Pod::new(serde_json::to_vec(&v).unwrap().into()).unwrap())
    }

    /// Clauses: Q02.priority, Q02.backoff
    #[tokio::test(start_paused = true)]
    async fn by_priority_and_after_a_back_off() {
        let plugins = default_plugins();
        let mut q = Queue::default();
        for (n, p) in [("low", 0), ("first", 5), ("second", 5), ("high", 9)] {
            q.add(pod(n, p), false);
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
        q.happened(&plugins, &Event::PodPlaced(&gone));
        assert!(q.pop().is_none(), "a pod more is no more room");
        q.happened(&plugins, &Event::PodGone(&gone));
        assert!(q.pop().is_none(), "backing off");
        let due = q.next_due().unwrap();
        assert_eq!(due - Instant::now(), Duration::from_secs(1));
        tokio::time::advance(Duration::from_secs(1)).await;
        let t = q.pop().unwrap();
        q.refused(t, ["NodeAffinity"].into());
        tokio::time::advance(FORGOTTEN).await;
        assert!(q.pop().is_some(), "nobody is forgotten");
    }
}
