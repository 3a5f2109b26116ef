//! Validation of the subresource `resize` (`ValidatePodResize`): changes CPU and memory of containers and of the pod,
//! but neither the set of containers nor the QoS class.
//!
//! The pod has been validated as if it were new; the rules here are those about changes.

use super::pod_fields::{is_mirror, items};
use super::pod_qos::qos_class;
use crate::read::text;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Map, Object, Value};

/// Resizable container lists.
const LISTS: [&str; 2] = ["containers", "initContainers"];
const TAKEN: [&str; 2] = ["resources", "resizePolicy"];
const PARTS: [&str; 2] = ["requests", "limits"];
const RESIZED: [&str; 2] = ["cpu", "memory"];

/// Copies the resources of containers and of the pod from `sent` and ignores other fields. If the containers differ,
/// copies the lists, so that validation reports the difference.
pub fn take_resources(o: &mut Object, sent: &Object) {
    if LISTS.iter().any(|l| items(o, l).len() != items(sent, l).len()) {
        if let Some(spec) = sent.get("spec").cloned() {
            o.set(&["spec"], spec);
        }
        return;
    }
    for list in LISTS {
        let others = items(sent, list);
        if others.iter().zip(items(o, list)).any(|(s, c)| text(s, "name") != text(c, "name")) {
            o.set(&["spec", list], others.to_vec());
            continue;
        }
        let Some(Value::Array(mut all)) = o.at(&["spec", list]).cloned() else { continue };
        for (c, mine) in others.iter().zip(all.iter_mut().filter_map(Value::as_object_mut)) {
            for key in TAKEN {
                match c.get(key) {
                    Some(v) => mine.insert(key.into(), v.clone()),
                    None => mine.remove(key),
                };
            }
        }
        o.set(&["spec", list], all);
    }
    match sent.at(&["spec", "resources"]).cloned() {
        Some(r) => o.set(&["spec", "resources"], r),
        None => {
            o.remove(&["spec", "resources"]);
        }
    }
}

pub fn validate(o: &Object, old: &Object, errors: &mut ErrorList) {
    if is_mirror(old) {
        *errors = vec![FieldError::forbidden(&FieldPath::root(), "static pods cannot be resized")];
        return;
    }
    if old.str_at(&["spec", "os", "name"]) == Some("windows") {
        *errors = vec![FieldError::forbidden(&FieldPath::root(), "windows pods cannot be resized")];
        return;
    }
    let spec = FieldPath::new("spec");
    let class = old.str_at(&["status", "qosClass"]).filter(|c| !c.is_empty()).unwrap_or_else(|| qos_class(old));
    if qos_class(o) != class {
        let class = o.str_at(&["status", "qosClass"]).unwrap_or_default();
        errors.push(FieldError::invalid(&spec, class, "Pod QOS Class may not change as a result of resizing"));
    }
    if !node_resizes(old) {
        errors.push(FieldError::forbidden(&spec, "Pod running on node without support for resize"));
    }
    of_pod(o, old, &spec, errors);
    if !same_containers(o, old, &spec, errors) {
        return;
    }
    for list in ["initContainers", "containers"] {
        for (i, (is, was)) in items(o, list).iter().zip(items(old, list)).enumerate() {
            let at = spec.child(list).index(i).child("resources");
            removed(&is["resources"], &was["resources"], "resource", &at, errors);
        }
    }
    for (is, was) in items(o, "containers").iter().zip(items(old, "containers")) {
        if !same_but_resized(is, was) {
            errors.push(FieldError::forbidden(&spec, "only cpu and memory resources are mutable"));
        }
    }
    init_containers(o, old, &spec.child("initContainers"), errors);
}

/// Whether the node supports resize: it reports the resources of running containers.
fn node_resizes(o: &Object) -> bool {
    let all = o.at(&["status", "containerStatuses"]).and_then(Value::as_array);
    let running = all.into_iter().flatten().find(|c| c["state"]["running"].is_object());
    running.is_none_or(|c| c["resources"].is_object())
}

fn of_pod(o: &Object, old: &Object, spec: &FieldPath, errors: &mut ErrorList) {
    let resources = |p: &Object| p.at(&["spec", "resources"]).cloned().unwrap_or_default();
    let (is, was) = (resources(o), resources(old));
    let at = spec.child("resources");
    if is.is_null() && PARTS.iter().any(|p| !amounts(&was, p).is_empty()) {
        errors.push(FieldError::forbidden(&at, "pod-level resources cannot be removed"));
    } else if is.is_object() || was.is_object() {
        removed(&is, &was, "pod-level resource", &at, errors);
        if others(&is) != others(&was) {
            errors.push(FieldError::forbidden(spec, "only cpu and memory resources are mutable at pod-level"));
        }
    }
    let claimed = old.at(&["status", "nodeAllocatableResourceClaimStatuses"]).and_then(Value::as_array);
    if claimed.is_some_and(|c| !c.is_empty()) {
        let why = "pods with node allocatable resource claims cannot be resized";
        errors.push(FieldError::forbidden(spec, why));
    }
}

/// Checks that the containers are the same, in the same order. Returns false if further rules do not apply.
fn same_containers(o: &Object, old: &Object, spec: &FieldPath, errors: &mut ErrorList) -> bool {
    let before = errors.len();
    for list in LISTS {
        let (is, was, at) = (items(o, list), items(old, list), spec.child(list));
        if is.len() != was.len() {
            errors.push(FieldError::forbidden(&at, &format!("{list} may not be added or removed on resize")));
            continue;
        }
        for i in (0..is.len()).filter(|i| is[*i]["name"] != was[*i]["name"]) {
            let why = format!("{list} may not be renamed or reordered on resize");
            errors.push(FieldError::forbidden(&at.index(i).child("name"), &why));
        }
    }
    errors.len() == before
}

fn amounts(resources: &Value, part: &str) -> Map<String, Value> {
    resources[part].as_object().cloned().unwrap_or_default()
}

/// Rejects the removal of requests and limits.
fn removed(is: &Value, was: &Value, what: &str, at: &FieldPath, errors: &mut ErrorList) {
    for part in PARTS {
        let now = amounts(is, part);
        if amounts(was, part).keys().any(|k| !now.contains_key(k)) {
            errors.push(FieldError::forbidden(&at.child(part), &format!("{what} {part} cannot be removed")));
        }
    }
}

/// Returns the resources that a resize must not change.
fn others(resources: &Value) -> [Map<String, Value>; 2] {
    PARTS.map(|p| amounts(resources, p).into_iter().filter(|(k, _)| !RESIZED.contains(&k.as_str())).collect())
}

/// Whether a container differs at most in amounts of CPU and memory.
fn same_but_resized(is: &Value, was: &Value) -> bool {
    let rest = |c: &Value| -> Map<String, Value> {
        let all = c.as_object().into_iter().flatten().filter(|(k, v)| *k != "resources" && !v.is_null());
        all.map(|(k, v)| (k.clone(), v.clone())).collect()
    };
    rest(is) == rest(was) && others(&is["resources"]) == others(&was["resources"])
}

/// Checks that init containers change at most in CPU and memory, and that a resize does not require a restart of one
/// that is no sidecar.
fn init_containers(o: &Object, old: &Object, list: &FieldPath, errors: &mut ErrorList) {
    for (i, (is, was)) in items(o, "initContainers").iter().zip(items(old, "initContainers")).enumerate() {
        if !same_but_resized(is, was) {
            let why = "only cpu and memory resources for init or sidecar containers are mutable";
            errors.push(FieldError::forbidden(&list.index(i), why));
        }
        let policies = is["resizePolicy"].as_array().into_iter().flatten();
        let restarts = policies.into_iter().any(|p| p["restartPolicy"] == "RestartContainer");
        if is != was && restarts && text(is, "restartPolicy") != "Always" {
            let why = "non-sidecar init containers with a resize policy of RestartContainer cannot be resized";
            errors.push(FieldError::forbidden(&list.index(i), why));
        }
    }
}
