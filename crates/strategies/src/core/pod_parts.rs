//! What of a running pod may be written through its subresources `ephemeralcontainers` and `resize`
//! (`ValidatePodEphemeralContainersUpdate`, `ValidatePodResize`).
//!
//! The whole pod is looked at before, as if it were new; here is only what one of them may not change.

use super::pod::{items, qos_class};
use crate::read::text;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value};

/// Says that the kubelet made this pod of a file, and that the API only shows it.
const MIRROR: &str = "kubernetes.io/config.mirror";

fn is_mirror(o: &Object) -> bool {
    o.at(&["metadata", "annotations", MIRROR]).is_some()
}

/// Ephemeral containers only ever come.
pub fn ephemeral_containers(o: &Object, old: &Object, errors: &mut ErrorList) {
    if is_mirror(old) {
        *errors = vec![FieldError::forbidden(&FieldPath::root(), "static pods do not support ephemeral containers")];
        return;
    }
    let at = FieldPath::new("spec.ephemeralContainers");
    for was in items(old, "ephemeralContainers") {
        let name = text(was, "name");
        let why = match items(o, "ephemeralContainers").iter().find(|c| text(c, "name") == name) {
            None => "removed",
            Some(is) if is != was => "changed",
            Some(_) => continue,
        };
        let why = format!("existing ephemeral containers {name:?} may not be {why}\n");
        errors.push(FieldError::forbidden(&at, &why));
    }
}

/// Lists of containers that may be resized, and what of a container a resize writes.
const LISTS: [&str; 2] = ["containers", "initContainers"];
const TAKEN: [&str; 2] = ["resources", "resizePolicy"];

/// Takes the resources of containers, found by name, and of the pod itself; what else was sent is passed over.
pub fn take_resources(o: &mut Object, sent: &Object) {
    for list in LISTS {
        let Some(Value::Array(mut all)) = o.at(&["spec", list]).cloned() else { continue };
        for c in items(sent, list) {
            let Some(Value::Object(mine)) = all.iter_mut().find(|m| text(m, "name") == text(c, "name")) else {
                continue;
            };
            for key in TAKEN {
                match c.get(key) {
                    Some(v) => mine.insert(key.into(), v.clone()),
                    None => mine.remove(key),
                };
            }
        }
        o.set(&["spec", list], all);
    }
    if let Some(r) = sent.at(&["spec", "resources"]).cloned() {
        o.set(&["spec", "resources"], r);
    }
}

/// A resize changes amounts of CPU and memory, not which of them are there, and not the class of the pod.
pub fn resize(o: &Object, old: &Object, errors: &mut ErrorList) {
    if is_mirror(old) {
        *errors = vec![FieldError::forbidden(&FieldPath::root(), "static pods cannot be resized")];
        return;
    }
    if old.str_at(&["spec", "os", "name"]) == Some("windows") {
        *errors = vec![FieldError::forbidden(&FieldPath::root(), "windows pods cannot be resized")];
        return;
    }
    let spec = FieldPath::new("spec");
    if qos_class(o) != qos_class(old) {
        let class = o.str_at(&["status", "qosClass"]).unwrap_or_default();
        errors.push(FieldError::invalid(&spec, class, "Pod QOS Class may not change as a result of resizing"));
    }
    let mut others = false;
    for list in LISTS {
        for (i, (is, was)) in items(o, list).iter().zip(items(old, list)).enumerate() {
            let at = spec.child(list).index(i).child("resources");
            for part in ["limits", "requests"] {
                let amounts = |c: &Value| c["resources"][part].as_object().cloned().unwrap_or_default();
                let (is, was) = (amounts(is), amounts(was));
                if ["cpu", "memory"].iter().any(|k| was.contains_key(*k) && !is.contains_key(*k)) {
                    let why = format!("resource {part} cannot be removed");
                    errors.push(FieldError::forbidden(&at.child(part), &why));
                }
                others |= is.keys().chain(was.keys()).any(|k| !resizable(k) && is.get(k) != was.get(k));
            }
        }
    }
    if others {
        errors.push(FieldError::forbidden(&spec, "only cpu and memory resources are mutable"));
    }
}

fn resizable(resource: &str) -> bool {
    matches!(resource, "cpu" | "memory")
}
