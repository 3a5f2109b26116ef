//! Claims and volumes are bound to each other, one to one.

use super::objects::{Objects, in_resource, is_deleting, name, uid};
use super::{Excused, Invariant};
use crate::trace::Commit;
use meta::Value;
use store::Key;

const COMPLETED: &str = "pv.kubernetes.io/bind-completed";

pub(super) struct Claims;

fn is_complete(claim: &Value) -> bool {
    claim["metadata"]["annotations"][COMPLETED].is_string()
}

/// The volume that a claim names, if its binding is complete.
fn volume(claim: &Value) -> Option<&str> {
    claim["spec"]["volumeName"].as_str().filter(|_| is_complete(claim))
}

impl Invariant for Claims {
    fn name(&self) -> &'static str {
        "claims and volumes are bound one to one"
    }

    /// A claim whose binding becomes complete has a volume that refers to no other claim. The volume may refer to none: an administrator may
    /// clear the reference between the two writes of a binding, and the binder sets it again.
    fn observe(&mut self, commit: &Commit, objects: &Objects, _: &Excused) -> Result<(), String> {
        for change in commit.changes.iter().filter(|c| &*c.key.resource == "persistentvolumeclaims") {
            let Some(claim) = &change.new else { continue };
            let Some(of_claim) = volume(claim) else { continue };
            if change.old.as_ref().is_some_and(|old| is_complete(old)) {
                continue;
            }
            let key = &change.key;
            let reference =
                objects.get(&Key::new("persistentvolumes", "", of_claim)).map(|v| &v["spec"]["claimRef"]["uid"]);
            if reference.and_then(Value::as_str).is_some_and(|reference| reference != uid(claim)) {
                return Err(format!("{key} is bound to the volume {of_claim}, which refers to another claim"));
            }
        }
        Ok(())
    }

    fn settled(&mut self, objects: &Objects) -> Result<(), String> {
        for (key, claim) in in_resource(objects, "persistentvolumeclaims") {
            if claim["status"]["phase"] != "Bound" {
                continue;
            }
            let of_claim = claim["spec"]["volumeName"].as_str().unwrap_or_default();
            let found = objects.get(&Key::new("persistentvolumes", "", of_claim));
            if found.is_none_or(|v| v["spec"]["claimRef"]["uid"].as_str() != Some(uid(claim))) {
                return Err(format!("{key} is bound to the volume {of_claim}, which does not refer to it"));
            }
        }
        for (key, volume) in in_resource(objects, "persistentvolumes") {
            if volume["status"]["phase"] != "Bound" || is_deleting(volume) {
                continue;
            }
            let of_volume = volume["spec"]["claimRef"]["uid"].as_str().unwrap_or_default();
            let claim = in_resource(objects, "persistentvolumeclaims").find(|(_, c)| uid(c) == of_volume);
            if claim.is_none_or(|(_, c)| c["spec"]["volumeName"].as_str() != Some(name(volume))) {
                return Err(format!("{key} is bound, but no claim names it"));
            }
        }
        Ok(())
    }
}
