//! The last decision about each pod that waits, with the reasons of all nodes.

use crate::decision::Decision;
use jiff::Timestamp;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// How many refusals of nodes are kept, over all pods. The oldest decisions give way.
const MOST_REFUSALS: usize = 500_000;

#[derive(Default)]
struct Inner {
    by_pod: HashMap<Arc<str>, (u64, Timestamp, Arc<Decision>)>,
    /// The pods in the order of their decisions.
    order: BTreeMap<u64, Arc<str>>,
    next: u64,
    refusals: usize,
}

/// The last decisions, by UID of the pod. A pod that is placed or gone has none.
#[derive(Default)]
pub struct Decisions(Mutex<Inner>);

impl Decisions {
    /// The last decision, and when it was made.
    pub fn get(&self, uid: &str) -> Option<(Timestamp, Arc<Decision>)> {
        self.0.lock().by_pod.get(uid).map(|(_, time, decision)| (*time, decision.clone()))
    }

    pub(crate) fn set(&self, uid: &Arc<str>, time: Timestamp, decision: Decision) {
        let mut inner = self.0.lock();
        inner.remove(uid);
        let number = inner.next;
        inner.next += 1;
        inner.refusals += decision.diagnosis.refusals.len();
        inner.by_pod.insert(uid.clone(), (number, time, Arc::new(decision)));
        inner.order.insert(number, uid.clone());
        while inner.refusals > MOST_REFUSALS && inner.order.len() > 1 {
            let Some(oldest) = inner.order.values().next().cloned() else { break };
            inner.remove(&oldest);
        }
    }

    pub(crate) fn remove(&self, uid: &str) {
        self.0.lock().remove(uid);
    }
}

impl Inner {
    fn remove(&mut self, uid: &str) {
        if let Some((number, _, decision)) = self.by_pod.remove(uid) {
            self.order.remove(&number);
            self.refusals -= decision.diagnosis.refusals.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::{Diagnosis, Refusal};

    #[test]
    fn the_oldest_decisions_give_way() {
        let decisions = Decisions::default();
        let refusal = Refusal::unresolvable("NodeName", "why");
        let refusals = vec![(Arc::from("n"), refusal); MOST_REFUSALS / 2];
        let diagnosis = Diagnosis { nodes: refusals.len(), refusals, others: None };
        let decision = Decision { diagnosis, ..Decision::default() };
        for uid in ["a", "b", "a", "c"] {
            decisions.set(&uid.into(), Timestamp::UNIX_EPOCH, decision.clone());
        }
        assert!(decisions.get("b").is_none(), "the oldest");
        assert!(decisions.get("a").is_some() && decisions.get("c").is_some());
        decisions.remove("a");
        assert!(decisions.get("a").is_none());
        assert_eq!(decisions.0.lock().refusals, MOST_REFUSALS / 2);
    }
}
