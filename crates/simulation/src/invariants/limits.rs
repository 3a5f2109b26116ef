//! Sets never create more pods than they are asked for, and a StatefulSet none beyond its ordinals.

use super::objects::{Objects, Window, by_uid, controlled_by, controller, count, is_active, name, uid};
use super::{Excused, Invariant};
use crate::trace::Commit;
use meta::Value;
use std::collections::BTreeMap;

const SETS: [(&str, &str); 3] = [
    ("ReplicaSet", "apps/replicasets"),
    ("ReplicationController", "replicationcontrollers"),
    ("StatefulSet", "apps/statefulsets"),
];

#[derive(Default)]
pub(super) struct ReplicaLimits {
    /// By UID of the set.
    replicas: BTreeMap<String, Window>,
}

impl Invariant for ReplicaLimits {
    fn name(&self) -> &'static str {
        "sets have no more pods than replicas"
    }

    fn observe(&mut self, commit: &Commit, objects: &Objects, _: &Excused) -> Result<(), String> {
        for change in &commit.changes {
            let Some(new) = &change.new else { continue };
            if SETS.iter().any(|(_, resource)| **resource == *change.key.resource) {
                let replicas = new["spec"]["replicas"].as_i64().unwrap_or(1);
                self.replicas.entry(uid(new).to_owned()).or_default().record(commit.at, replicas);
            }
            if &*change.key.resource != "pods" || change.old.is_some() {
                continue;
            }
            let Some(owner) = controller(new) else { continue };
            let Some((kind, resource)) = SETS.iter().find(|(kind, _)| owner["kind"] == *kind) else { continue };
            let Some((_, set)) = by_uid(objects, resource, owner["uid"].as_str().unwrap_or_default()) else { continue };
            let maximum = self.replicas.get(uid(set)).map_or(0, |w| w.maximum(commit.at));
            if *kind == "StatefulSet" {
                check_ordinal(new, set, maximum)?;
                continue;
            }
            let active = controlled_by(objects, "pods", uid(set)).filter(|p| is_active(p)).count() as i64;
            if active > maximum {
                return Err(format!("{kind} {} has {active} pods instead of at most {maximum}", name(set)));
            }
        }
        Ok(())
    }
}

fn check_ordinal(pod: &Value, set: &Value, replicas: i64) -> Result<(), String> {
    let start = count(&set["spec"]["ordinals"]["start"]);
    let ordinal = name(pod).rsplit('-').next().and_then(|o| o.parse::<i64>().ok());
    match ordinal {
        Some(o) if (start..start + replicas).contains(&o) => Ok(()),
        _ => Err(format!("StatefulSet {} of {replicas} replicas created {}", name(set), name(pod))),
    }
}
