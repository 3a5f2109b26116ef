//! Validation of users and device health in container statuses (`validateContainerStatusUsers`,
//! `validateContainerStatusAllocatedResourcesStatus`).

use crate::read::{items, text};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value};
use std::collections::HashSet;

/// Checks the numeric user and group IDs, which only Linux pods may have.
pub fn users(o: &Object, all: &[Value], list: &FieldPath, errors: &mut ErrorList) {
    let windows = o.str_at(&["spec", "os", "name"]) == Some("windows");
    for (i, user) in all.iter().map(|c| &c["user"]["linux"]).enumerate().filter(|(_, u)| u.is_object()) {
        let at = list.index(i).child("user").child("linux");
        if windows {
            errors.push(FieldError::forbidden(&at, "cannot be set for a windows pod"));
            continue;
        }
        let mut id = |v: &Value, at: &FieldPath| {
            if v.as_i64().is_some_and(|n| !(0..=i64::from(i32::MAX)).contains(&n)) {
                errors.push(FieldError::invalid(at, v, "must be between 0 and 2147483647, inclusive"));
            }
        };
        id(&user["uid"], &at.child("uid"));
        id(&user["gid"], &at.child("gid"));
        for (j, g) in items(user, "supplementalGroups").iter().enumerate() {
            id(g, &at.child("supplementalGroups").index(j));
        }
    }
}

/// Maximum length of a message about the health of a device, in bytes.
const MESSAGE_MAX: usize = 1024;
const HEALTH: [&str; 3] = ["Healthy", "Unhealthy", "Unknown"];

/// Checks that allocated devices match the requests of the container and are unique. `containers` is empty if no
/// request is to be matched.
pub fn devices(containers: &[Value], all: &[Value], list: &FieldPath, errors: &mut ErrorList) {
    for (i, c) in all.iter().enumerate() {
        let at = list.index(i).child("allocatedResourcesStatus");
        let resources = items(c, "allocatedResourcesStatus");
        if list.text().ends_with("ephemeralContainerStatuses") {
            if !resources.is_empty() {
                errors.push(FieldError::forbidden(&at, "must not be specified in container status"));
            }
            continue;
        }
        let own = containers.iter().find(|o| o["name"] == c["name"]);
        for (j, r) in resources.iter().enumerate() {
            let at = at.index(j);
            if let Some(why) = own.and_then(|own| not_requested(own, text(r, "name"))) {
                errors.push(FieldError::invalid(&at.child("name"), text(r, "name"), why));
            }
            health(r, &at.child("resources"), errors);
        }
    }
}

/// Returns the error for a device that the container did not request.
fn not_requested(container: &Value, name: &str) -> Option<&'static str> {
    let resources = &container["resources"];
    let Some(claim) = name.strip_prefix("claim:") else {
        let requested = resources["requests"].get(name).is_some();
        return (!requested).then_some("must match one of the container's resource requests");
    };
    let requested = items(resources, "claims").iter().any(|c| match text(c, "request") {
        "" => text(c, "name") == claim,
        request => format!("{}/{request}", text(c, "name")) == claim,
    });
    (!requested).then_some("must match one of the container's resource claims in a format 'claim:<claimName>/<request>' or 'claim:<claimName>' if request is empty")
}

fn health(resource: &Value, list: &FieldPath, errors: &mut ErrorList) {
    let mut seen = HashSet::new();
    for (k, r) in items(resource, "resources").iter().enumerate() {
        let (health, id) = (text(r, "health"), text(r, "resourceID"));
        if !HEALTH.contains(&health) {
            errors.push(FieldError::not_supported(&list.index(k).child("health"), health, &HEALTH));
        }
        let message = list.index(k).child("message");
        match r["message"].as_str() {
            Some("") => errors.push(FieldError::required(&message, "must be non-empty if specified")),
            Some(m) if m.len() > MESSAGE_MAX => errors.push(FieldError::too_long(&message, MESSAGE_MAX)),
            _ => {}
        }
        if !seen.insert(id) {
            errors.push(FieldError::duplicate(&list.index(k).child("resourceID"), id));
        }
    }
}
