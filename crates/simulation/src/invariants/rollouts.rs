//! A Deployment never asks for more pods than its `maxSurge` allows, and never makes more unavailable than `maxUnavailable` allows.
//!
//! Like upstream's, the controller counts the `spec.replicas` of its ReplicaSets (`GetReplicaCountForReplicaSets` in `deployment_util.go`), and
//! believes their `status.availableReplicas` (`reconcileOldReplicaSets` in `rolling.go`): while their controller is down, there may be more pods,
//! and pods that became available since do not count.

use super::objects::{
    Objects, Window, by_uid, controlled_by, controller, count, is_deleting, is_ready, name, scaled, true_condition, uid,
};
use super::{Excused, Invariant, RECENT};
use crate::trace::{Commit, ObjectChange};
use meta::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const DEPLOYMENTS: &str = "apps/deployments";
const REPLICA_SETS: &str = "apps/replicasets";
/// The size of the Deployment for which a ReplicaSet was sized.
const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";

/// How long a pod must have been ready before its deletion counts: controllers prefer pods that they saw unready.
const SETTLED: Duration = Duration::from_secs(5);

#[derive(Default)]
struct Limits {
    /// The most pods it may have.
    pods: Window,
    /// The least pods that must be available.
    available: Window,
}

#[derive(Default)]
pub(super) struct Rollouts {
    /// By UID of the Deployment.
    limits: BTreeMap<String, Limits>,
    /// When a pod became ready, and when one was lost that the Deployment did not delete, by UID.
    ready: BTreeMap<String, Duration>,
    lost: BTreeMap<String, (Duration, String)>,
    /// How many pods ReplicaSets have to delete because the Deployment was scaled, by UID. Scaling distributes pods in proportion to the sizes of the
    /// sets, whether they are available or not, like upstream's `scale` in `sync.go`.
    scaled_down: BTreeMap<String, i64>,
}

impl Invariant for Rollouts {
    fn name(&self) -> &'static str {
        "rollouts stay within maxSurge and maxUnavailable"
    }

    fn observe(&mut self, commit: &Commit, objects: &Objects, excused: &Excused) -> Result<(), String> {
        for change in &commit.changes {
            match &*change.key.resource {
                DEPLOYMENTS => self.record(commit.at, change),
                REPLICA_SETS => {
                    self.check_scale(commit.at, change, objects)?;
                    self.check_step(commit.at, change, objects)?;
                }
                "pods" => self.check_pod(commit.at, change, objects, excused)?,
                _ => {}
            }
        }
        Ok(())
    }
}

/// The Deployment of a ReplicaSet, unless it is being deleted.
fn deployment<'a>(objects: &'a Objects, replica_set: &Value) -> Option<&'a Arc<Value>> {
    let owner = controller(replica_set).filter(|o| o["kind"] == "Deployment")?;
    by_uid(objects, DEPLOYMENTS, owner["uid"].as_str()?).map(|(_, d)| d).filter(|d| !is_deleting(d))
}

/// The pods of a Deployment.
fn pods<'a>(objects: &'a Objects, deployment: &'a str) -> Vec<&'a Arc<Value>> {
    let sets: Vec<_> = controlled_by(objects, REPLICA_SETS, deployment).map(|s| uid(s)).collect();
    sets.into_iter().flat_map(|set| controlled_by(objects, "pods", set)).collect()
}

/// Whether the ReplicaSets of a Deployment report the pods that were available before one was deleted.
fn reported(objects: &Objects, deployment: &str, deleted: &str) -> bool {
    controlled_by(objects, REPLICA_SETS, deployment).all(|set| {
        let available = |p: &&Arc<Value>| is_ready(p) || uid(p) == deleted;
        count(&set["status"]["availableReplicas"])
            == controlled_by(objects, "pods", uid(set)).filter(available).count() as i64
    })
}

impl Rollouts {
    fn record(&mut self, at: Duration, change: &ObjectChange) {
        let Some(deployment) = &change.new else { return };
        let (spec, limits) = (&deployment["spec"], self.limits.entry(uid(deployment).to_owned()).or_default());
        let replicas = spec["replicas"].as_i64().unwrap_or(1);
        let (surge, unavailable) = if spec["strategy"]["type"] == "Recreate" {
            (0, replicas)
        } else {
            let rolling = &spec["strategy"]["rollingUpdate"];
            let surge = scaled(&rolling["maxSurge"], replicas, true).unwrap_or(0);
            let unavailable = scaled(&rolling["maxUnavailable"], replicas, false).unwrap_or(0);
            (surge, if surge == 0 && unavailable == 0 { 1 } else { unavailable })
        };
        limits.pods.record(at, replicas + surge);
        limits.available.record(at, (replicas - unavailable).max(0));
    }

    /// A step of a rollout leaves as many pods as must be available, of those that the sets report as available. A set deletes others first.
    /// Not checked while a set reports more than it should have: the controller believes that, like upstream's (`reconcileOldReplicaSets`).
    fn check_step(&mut self, at: Duration, change: &ObjectChange, objects: &Objects) -> Result<(), String> {
        let (Some(old), Some(new)) = (&change.old, &change.new) else { return Ok(()) };
        let size = |set: &Value| count(&set["spec"]["replicas"]);
        let removed = size(old) - size(new);
        if old["metadata"]["annotations"][DESIRED] != new["metadata"]["annotations"][DESIRED] {
            let scaled_down = self.scaled_down.entry(uid(new).to_owned()).or_default();
            *scaled_down = (*scaled_down + removed).max(0);
            return Ok(());
        }
        let Some(deployment) = deployment(objects, new).filter(|_| removed > 0) else { return Ok(()) };
        let Some(limits) = self.limits.get(uid(deployment)) else { return Ok(()) };
        let available = |set: &Value| count(&set["status"]["availableReplicas"]);
        let before_step = |set: &Value| if uid(set) == uid(new) { size(old) } else { size(set) };
        if controlled_by(objects, REPLICA_SETS, uid(deployment)).any(|s| available(s) > before_step(s)) {
            return Ok(());
        }
        let left = |set: &Value| available(set).min(size(set));
        let after: i64 = controlled_by(objects, REPLICA_SETS, uid(deployment)).map(|s| left(s)).sum();
        let before = after - left(new) + left(old);
        let (minimum, lost) = (limits.available.minimum(at).min(before), self.recently_lost(at, deployment));
        if after + lost < minimum {
            return Err(format!(
                "deployment {} leaves {after} available pods instead of at least {minimum} when it scales {} down",
                name(deployment),
                change.key.name
            ));
        }
        Ok(())
    }

    /// The number of pods that a Deployment lost a moment ago otherwise than by its own doing.
    fn recently_lost(&self, at: Duration, deployment: &Value) -> i64 {
        self.lost.values().filter(|(when, of)| *when + RECENT >= at && of == uid(deployment)).count() as i64
    }

    /// A ReplicaSet is only scaled up within the limit.
    fn check_scale(&self, at: Duration, change: &ObjectChange, objects: &Objects) -> Result<(), String> {
        let Some(new) = &change.new else { return Ok(()) };
        let before = change.old.as_ref().map_or(0, |o| count(&o["spec"]["replicas"]));
        let Some(deployment) = deployment(objects, new) else { return Ok(()) };
        let Some(limits) = self.limits.get(uid(deployment)) else { return Ok(()) };
        let total: i64 =
            controlled_by(objects, REPLICA_SETS, uid(deployment)).map(|s| count(&s["spec"]["replicas"])).sum();
        let maximum = limits.pods.maximum(at);
        if count(&new["spec"]["replicas"]) > before && total > maximum {
            let name = name(deployment);
            return Err(format!("deployment {name} asks its sets for {total} pods instead of at most {maximum}"));
        }
        Ok(())
    }

    fn check_pod(
        &mut self,
        at: Duration,
        change: &ObjectChange,
        objects: &Objects,
        excused: &Excused,
    ) -> Result<(), String> {
        let Some(pod) = change.new.as_ref().or(change.old.as_ref()) else { return Ok(()) };
        let (was, is) =
            (change.old.as_ref().is_some_and(|p| is_ready(p)), change.new.as_ref().is_some_and(|p| is_ready(p)));
        if is && !was {
            self.ready.insert(uid(pod).to_owned(), at);
        }
        let Some(set) = controller(pod).filter(|o| o["kind"] == "ReplicaSet") else { return Ok(()) };
        let Some((_, set)) = by_uid(objects, REPLICA_SETS, set["uid"].as_str().unwrap_or_default()) else {
            return Ok(());
        };
        let Some(deployment) = deployment(objects, set) else { return Ok(()) };
        let Some(limits) = self.limits.get(uid(deployment)) else { return Ok(()) };
        let name = name(deployment);
        if !was || is {
            return Ok(());
        }
        // It was ready until now.
        let deleted = change.new.as_ref().is_none_or(|p| is_deleting(p));
        let involuntary = !deleted
            || true_condition(pod, "DisruptionTarget").is_some()
            || excused.contains(&(change.key.namespace.to_string(), change.key.name.to_string()))
            || self.ready.get(uid(pod)).is_none_or(|since| *since + SETTLED > at)
            || self.scaled_down.get_mut(uid(set)).is_some_and(|n| std::mem::replace(n, (*n - 1).max(0)) > 0);
        if involuntary {
            self.lost.insert(uid(pod).to_owned(), (at, uid(deployment).to_owned()));
            return Ok(());
        }
        let ready = pods(objects, uid(deployment)).iter().filter(|p| is_ready(p)).count() as i64;
        let (available, minimum) = (ready + self.recently_lost(at, deployment), limits.available.minimum(at));
        if available < minimum && reported(objects, uid(deployment), uid(pod)) {
            return Err(format!(
                "deployment {name} has {available} available pods instead of at least {minimum} after the deletion of {}",
                change.key.name
            ));
        }
        Ok(())
    }
}
