//! A Deployment never asks for more pods than its `maxSurge` allows, and never makes more unavailable than `maxUnavailable` allows.
//!
//! Like upstream's, the controller counts what it asks its ReplicaSets for: while their controller is down, there may be more pods.

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
}

impl Invariant for Rollouts {
    fn name(&self) -> &'static str {
        "rollouts stay within maxSurge and maxUnavailable"
    }

    fn observe(&mut self, commit: &Commit, objects: &Objects, excused: &Excused) -> Result<(), String> {
        for change in &commit.changes {
            match &*change.key.resource {
                DEPLOYMENTS => self.record(commit.at, change),
                REPLICA_SETS => self.check_scale(commit.at, change, objects)?,
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
            || self.ready.get(uid(pod)).is_none_or(|since| *since + SETTLED > at);
        if involuntary {
            self.lost.insert(uid(pod).to_owned(), (at, uid(deployment).to_owned()));
            return Ok(());
        }
        let ready = pods(objects, uid(deployment)).iter().filter(|p| is_ready(p)).count();
        let lost = self.lost.values().filter(|(when, of)| *when + RECENT >= at && of == uid(deployment)).count();
        let (available, minimum) = ((ready + lost) as i64, limits.available.minimum(at));
        if available < minimum {
            return Err(format!(
                "deployment {name} has {available} available pods instead of at least {minimum} after the deletion of {}",
                change.key.name
            ));
        }
        Ok(())
    }
}
