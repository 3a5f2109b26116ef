//! Nothing is left of deleted owners and namespaces.

use super::Invariant;
use super::objects::{Objects, in_resource, is_deleting, uid};
use std::collections::BTreeSet;

pub(super) struct Orphans;

impl Invariant for Orphans {
    fn name(&self) -> &'static str {
        "nothing is left of deleted owners"
    }

    fn settled(&mut self, objects: &Objects) -> Result<(), String> {
        let uids: BTreeSet<&str> = objects.values().map(|o| uid(o)).collect();
        let namespaces: BTreeSet<&str> = in_resource(objects, "namespaces").map(|(key, _)| &*key.name).collect();
        for (key, object) in objects {
            let owners = object["metadata"]["ownerReferences"].as_array();
            let known = |o: &&meta::Value| o["uid"].as_str().is_some_and(|uid| uids.contains(uid));
            if owners.is_some_and(|owners| !owners.is_empty() && !owners.iter().any(|o| known(&o))) {
                return Err(format!("{key} is left, but its owners are gone"));
            }
            if !key.namespace.is_empty() && !namespaces.contains(&*key.namespace) {
                return Err(format!("{key} is left, but its namespace is gone"));
            }
            let finalizers = object["metadata"]["finalizers"].as_array().is_some_and(|f| !f.is_empty());
            if is_deleting(object) && !finalizers && &*key.resource != "namespaces" {
                return Err(format!("{key} is deleted, but does not go"));
            }
        }
        Ok(())
    }
}
