//! No pod is bound to a node that has no room for it.

use super::objects::{Objects, in_resource, is_terminal, milli, requested};
use super::{Excused, Invariant};
use crate::trace::Commit;
use meta::Value;
use std::sync::Arc;
use store::Key;

pub(super) struct Overcommit;

impl Invariant for Overcommit {
    fn name(&self) -> &'static str {
        "nodes are not over-committed"
    }

    fn observe(&mut self, commit: &Commit, objects: &Objects, _: &Excused) -> Result<(), String> {
        for change in commit.changes.iter().filter(|c| &*c.key.resource == "pods") {
            let (Some(old), Some(new)) = (&change.old, &change.new) else { continue };
            let Some(node) = new["spec"]["nodeName"].as_str() else { continue };
            if !old["spec"]["nodeName"].is_null() {
                continue;
            }
            // A node that is gone refuses nothing.
            let Some(object) = objects.get(&Key::new("nodes", "", node)) else { continue };
            let bound: Vec<&Arc<Value>> = in_resource(objects, "pods")
                .map(|(_, p)| p)
                .filter(|p| p["spec"]["nodeName"] == node && !is_terminal(p))
                .collect();
            let allocatable = &object["status"]["allocatable"];
            for resource in ["cpu", "memory"] {
                let used: i64 = bound.iter().map(|p| requested(p, resource)).sum();
                let limit = milli(&allocatable[resource]);
                if used > limit {
                    return Err(format!("{} on node {node}: {used}m of {limit}m {resource}", change.key.name));
                }
            }
            let limit = milli(&allocatable["pods"]) / 1000;
            if bound.len() as i64 > limit {
                return Err(format!("{} on node {node}: {} pods instead of {limit}", change.key.name, bound.len()));
            }
        }
        Ok(())
    }
}
