//! What must hold after every commit, and what must hold when nothing is written any more.
//!
//! Each invariant is a file. It sees every commit in order, with the objects as they are after it. Controllers act on what they saw a moment
//! ago: a limit that a user changed less than [`RECENT`] ago also counts as it was before, and a pod that was lost less than that ago still
//! counts as available. Left out: what only upstream's defaults promise, such as an even spread.

mod budgets;
mod claims;
mod converged;
mod cron_jobs;
mod daemon_sets;
mod hot_loops;
mod job_counts;
mod limits;
mod objects;
mod orphans;
mod overcommit;
mod rollouts;

use crate::driver::Reason;
use crate::trace::Commit;
use meta::Value;
pub use objects::{Objects, controller, is_deleting, is_terminal, true_condition, uid};
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

/// How long a controller may act on what was true before.
const RECENT: Duration = Duration::from_secs(20);

/// Something that must hold.
trait Invariant: Send {
    fn name(&self) -> &'static str;

    /// Checks a commit. Errors with what contradicts the invariant.
    fn observe(&mut self, commit: &Commit, objects: &Objects, excused: &Excused) -> Result<(), String> {
        let _ = (commit, objects, excused);
        Ok(())
    }

    /// Checks the objects when nothing is written any more.
    fn settled(&mut self, objects: &Objects) -> Result<(), String> {
        let _ = objects;
        Ok(())
    }
}

/// Pods that the scenario deletes itself, by namespace and name.
type Excused = BTreeSet<(String, String)>;

/// Checks all invariants.
pub(crate) struct Checker {
    invariants: Vec<Box<dyn Invariant>>,
    excused: Excused,
    revision: u64,
    last_change: Duration,
    last_changes: VecDeque<String>,
}

impl Default for Checker {
    fn default() -> Self {
        Self {
            invariants: vec![
                Box::new(budgets::Budgets::default()),
                Box::new(rollouts::Rollouts::default()),
                Box::new(limits::ReplicaLimits::default()),
                Box::new(overcommit::Overcommit),
                Box::new(daemon_sets::OnePerNode),
                Box::new(job_counts::JobCounts::default()),
                Box::new(cron_jobs::OneJobPerTime),
                Box::new(claims::Claims),
                Box::new(hot_loops::HotLoops::default()),
                Box::new(orphans::Orphans),
                Box::new(converged::Converged),
            ],
            excused: Excused::new(),
            revision: 0,
            last_change: Duration::ZERO,
            last_changes: VecDeque::new(),
        }
    }
}

impl Checker {
    /// A checker that only knows when something was written last.
    pub fn without_invariants() -> Self {
        Self { invariants: Vec::new(), ..Self::default() }
    }

    pub fn observe(&mut self, commit: &Commit, objects: &Objects) -> Result<(), Reason> {
        self.revision = commit.revision;
        for change in commit.changes.iter().filter(|c| is_material(c)) {
            self.last_change = commit.at;
            self.last_changes.push_back(format!("{} at {:?}", change.key, commit.at));
            if self.last_changes.len() > 8 {
                self.last_changes.pop_front();
            }
        }
        for invariant in &mut self.invariants {
            invariant.observe(commit, objects, &self.excused).map_err(|problem| Reason::Invariant {
                invariant: invariant.name(),
                revision: commit.revision,
                problem,
            })?;
        }
        Ok(())
    }

    pub fn settled(&mut self, objects: &Objects) -> Result<(), Reason> {
        let revision = self.revision;
        for invariant in &mut self.invariants {
            let name = invariant.name();
            invariant.settled(objects).map_err(|problem| Reason::Invariant { invariant: name, revision, problem })?;
        }
        Ok(())
    }

    /// A pod that the scenario deletes is not lost through the cluster's own doing.
    pub fn excuse(&mut self, namespace: &str, name: &str) {
        self.excused.insert((namespace.to_owned(), name.to_owned()));
    }

    /// When something other than a heartbeat or an event was written last.
    pub fn last_change(&self) -> Duration {
        self.last_change
    }

    pub fn last_changes(&self) -> String {
        self.last_changes.iter().cloned().collect::<Vec<_>>().join(", ")
    }
}

/// Whether a change is neither a heartbeat nor an event.
pub(crate) fn is_material(change: &crate::trace::ObjectChange) -> bool {
    match &*change.key.resource {
        "events" | "events.k8s.io/events" | "coordination.k8s.io/leases" => false,
        "nodes" => match (&change.old, &change.new) {
            (Some(old), Some(new)) => without_heartbeat(old) != without_heartbeat(new),
            _ => true,
        },
        _ => true,
    }
}

fn without_heartbeat(node: &Value) -> Value {
    let mut node = node.clone();
    node["metadata"]["managedFields"] = Value::Null;
    for condition in node["status"]["conditions"].as_array_mut().into_iter().flatten() {
        condition["lastHeartbeatTime"] = Value::Null;
    }
    node
}
