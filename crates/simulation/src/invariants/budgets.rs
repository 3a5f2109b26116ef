//! Evictions never leave fewer healthy pods than a PodDisruptionBudget demands.

use super::objects::{Objects, count, in_resource, is_deleting, is_ready, name, scaled, selects, true_condition, uid};
use super::{Excused, Invariant, RECENT};
use crate::trace::Commit;
use meta::Value;
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Default)]
pub(super) struct Budgets {
    /// Pods that were healthy and were lost otherwise than by eviction: when, and the last object.
    lost: BTreeMap<String, (Duration, std::sync::Arc<Value>)>,
}

fn is_evicted(pod: &Value) -> bool {
    is_deleting(pod) && true_condition(pod, "DisruptionTarget").is_some_and(|c| c["reason"] == "EvictionByEvictionAPI")
}

impl Invariant for Budgets {
    fn name(&self) -> &'static str {
        "evictions stay within disruption budgets"
    }

    fn observe(&mut self, commit: &Commit, objects: &Objects, _: &Excused) -> Result<(), String> {
        for change in commit.changes.iter().filter(|c| &*c.key.resource == "pods") {
            let Some(old) = change.old.as_ref().filter(|p| is_ready(p)) else { continue };
            if change.new.as_ref().is_some_and(|p| is_ready(p)) {
                continue;
            }
            if !change.new.as_ref().is_some_and(|p| is_evicted(p)) {
                self.lost.insert(uid(old).to_owned(), (commit.at, old.clone()));
                continue;
            }
            self.lost.retain(|_, (when, _)| *when + RECENT >= commit.at);
            for (key, budget) in in_resource(objects, "policy/poddisruptionbudgets") {
                if key.namespace == change.key.namespace && selects(&budget["spec"]["selector"], old) {
                    self.check(budget, objects, name(old))?;
                }
            }
        }
        Ok(())
    }
}

impl Budgets {
    fn check(&self, budget: &Value, objects: &Objects, evicted: &str) -> Result<(), String> {
        let (spec, expected) = (&budget["spec"], count(&budget["status"]["expectedPods"]));
        let desired =
            match (scaled(&spec["minAvailable"], expected, true), scaled(&spec["maxUnavailable"], expected, true)) {
                (Some(minimum), _) => minimum,
                (None, Some(unavailable)) => expected - unavailable,
                (None, None) => expected - 1,
            };
        let selected =
            |p: &Value| p["metadata"]["namespace"] == budget["metadata"]["namespace"] && selects(&spec["selector"], p);
        let healthy = in_resource(objects, "pods").filter(|(_, p)| is_ready(p) && selected(p)).count();
        let lost = self.lost.values().filter(|(_, p)| selected(p)).count();
        let healthy = (healthy + lost) as i64;
        if healthy < desired {
            let name = name(budget);
            return Err(format!(
                "budget {name}: {healthy} healthy pods instead of {desired} after the eviction of {evicted}"
            ));
        }
        Ok(())
    }
}
