//! Validation of the subresource `resize` (`ValidatePodResize`): changes CPU and memory of containers and of the pod,
//! but neither the set of containers nor the QoS class.
//!
//! The pod has been validated as if it were new; the rules here are those about changes.

use super::pod_fields::{POD, is_mirror, items};
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
        *errors = vec![FieldError::forbidden(&FieldPath::new(POD), "static pods cannot be resized")];
        return;
    }
    if old.str_at(&["spec", "os", "name"]) == Some("windows") {
        *errors = vec![FieldError::forbidden(&FieldPath::new(POD), "windows pods cannot be resized")];
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

/// Whether a container differs at most in amounts of CPU and memory. As upstream, none with resource claims does.
fn same_but_resized(is: &Value, was: &Value) -> bool {
    let rest = |c: &Value| -> Map<String, Value> {
        let all = c.as_object().into_iter().flatten().filter(|(k, v)| *k != "resources" && !v.is_null());
        all.map(|(k, v)| (k.clone(), v.clone())).collect()
    };
    let claims = was["resources"]["claims"].as_array().is_some_and(|c| !c.is_empty());
    !claims && rest(is) == rest(was) && others(&is["resources"]) == others(&was["resources"])
}

/// Checks that init containers change at most in CPU and memory, and that a resize does not require a restart of one
/// that is no sidecar.
fn init_containers(o: &Object, old: &Object, list: &FieldPath, errors: &mut ErrorList) {
    for (i, (is, was)) in items(o, "initContainers").iter().zip(items(old, "initContainers")).enumerate() {
        if !same_but_resized(is, was) {
            let why = "only cpu and memory resources for init or sidecar containers are mutable";
            errors.push(FieldError::forbidden(&list.index(i), why));
        }
        if is == was || text(is, "restartPolicy") == "Always" {
            continue;
        }
        let policies = is["resizePolicy"].as_array().into_iter().flatten();
        for _ in policies.filter(|p| p["restartPolicy"] == "RestartContainer") {
            let why = "non-sidecar init containers with a resize policy of RestartContainer cannot be resized";
            errors.push(FieldError::forbidden(&list.index(i), why));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::pod::Pod;
    use crate::testing::{Case, check_part, field};
    use serde_json::json;

    /// Returns a pod with an init container, a sidecar and two containers, which request CPU and huge pages.
    fn pod() -> Value {
        let resources =
            json!({"requests": {"cpu": "1", "hugepages-2Mi": "2Mi"}, "limits": {"cpu": "2", "hugepages-2Mi": "2Mi"}});
        let container = |name: &str| json!({"name": name, "image": "i", "resources": resources});
        let mut sidecar = container("sidecar");
        sidecar["restartPolicy"] = "Always".into();
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {
            "initContainers": [container("init"), sidecar], "containers": [container("a"), container("b")]}})
    }

    fn with(changes: &[(&str, Value)]) -> Value {
        let mut pod = pod();
        changes.iter().for_each(|(pointer, value)| *field(&mut pod, pointer) = value.clone());
        pod
    }

    fn check(old: &Value, cases: &[Case<'_>]) {
        check_part(&Pod, "resize", old, cases);
    }

    const IMMUTABLE: &str = "spec: Forbidden: only cpu and memory resources are mutable";

    #[test]
    fn changes_cpu_and_memory_alone() {
        let init = "only cpu and memory resources for init or sidecar containers are mutable";
        let (first, second) = (
            format!("spec.initContainers[0]: Forbidden: {init}"),
            format!("spec.initContainers[1]: Forbidden: {init}"),
        );
        let resources = |pages: &str| json!({"requests": {"cpu": "1", "hugepages-2Mi": pages}, "limits": {"cpu": "2", "hugepages-2Mi": pages}});
        let restart = |policy: &str| json!([{"resourceName": "cpu", "restartPolicy": policy}]);
        check(
            &pod(),
            &[
                ("", Value::Null, &[]),
                ("/spec/containers/1/resources/limits/cpu", json!("3"), &[]),
                ("/spec/containers/1/resources/requests/memory", json!("1Gi"), &[]),
                ("/spec/initContainers/0/resources/requests/cpu", json!("500m"), &[]),
                ("/spec/initContainers/1/resources/requests/cpu", json!("500m"), &[]),
                ("/spec/containers/1/resources", resources("2048Ki"), &[]),
                ("/spec/containers/1/resources", resources("4Mi"), &[IMMUTABLE]),
                ("/spec/containers/1/resizePolicy", restart("NotRequired"), &[IMMUTABLE]),
                ("/spec/initContainers/0/resources", resources("4Mi"), &[&first]),
                ("/spec/initContainers/1/resources", resources("4Mi"), &[&second]),
                ("/spec/initContainers/1/resizePolicy", restart("NotRequired"), &[&second]),
                // Other fields are not taken.
                ("/spec/containers/0/image", json!("j"), &[]),
                ("/spec/nodeName", json!("n"), &[]),
                ("/metadata/labels", json!({"a": "b"}), &[]),
            ],
        );
    }

    #[test]
    fn keeps_containers_and_their_resources() {
        let requests = "resources.requests: Forbidden: resource requests cannot be removed";
        let limits = "resources.limits: Forbidden: resource limits cannot be removed";
        let container = |name: &str| json!({"name": name, "image": "i"});
        check(
            &with(&[("/spec/containers/1/resources", json!({"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}}))]),
            &[
                (
                    "/spec/containers/1/resources",
                    json!({"requests": {"memory": "1Gi"}, "limits": {"memory": "1Gi"}}),
                    &[&format!("spec.containers[1].{requests}")],
                ),
                (
                    "/spec/containers/1/resources",
                    json!({"requests": {"cpu": "1", "memory": "1Gi"}}),
                    &[&format!("spec.containers[1].{limits}")],
                ),
                (
                    "/spec/containers/2",
                    container("c"),
                    &["spec.containers: Forbidden: containers may not be added or removed on resize"],
                ),
                (
                    "/spec/initContainers/2",
                    container("c"),
                    &["spec.initContainers: Forbidden: initContainers may not be added or removed on resize"],
                ),
                (
                    "/spec/containers/1/name",
                    json!("c"),
                    &["spec.containers[1].name: Forbidden: containers may not be renamed or reordered on resize"],
                ),
                (
                    "/spec/initContainers/0/name",
                    json!("c"),
                    &[
                        "spec.initContainers[0].name: Forbidden: initContainers may not be renamed or reordered on resize",
                    ],
                ),
            ],
        );
    }

    #[test]
    fn changes_pod_level_resources() {
        let other = "spec: Forbidden: only cpu and memory resources are mutable at pod-level";
        let removed =
            |what: &str| format!("spec.resources.{what}: Forbidden: pod-level resource {what} cannot be removed");
        let amounts = json!({"cpu": "4", "memory": "1Gi", "hugepages-2Mi": "8Mi"});
        let own = json!({"requests": amounts, "limits": amounts});
        let with_pages = |pages: &str| {
            let mut own = own.clone();
            own["requests"]["hugepages-2Mi"] = pages.into();
            own["limits"]["hugepages-2Mi"] = pages.into();
            own
        };
        check(
            &with(&[("/spec/resources", own.clone())]),
            &[
                (
                    "/spec/resources",
                    Value::Null,
                    &[
                        "spec: Invalid value: \"\": Pod QOS Class may not change as a result of resizing",
                        "spec.resources: Forbidden: pod-level resources cannot be removed",
                    ],
                ),
                ("/spec/resources", with_pages("10Mi"), &[other]),
                (
                    "/spec/resources/limits",
                    json!({"cpu": "4", "hugepages-2Mi": "8Mi"}),
                    &[
                        "spec: Invalid value: \"\": Pod QOS Class may not change as a result of resizing",
                        &removed("limits"),
                    ],
                ),
            ],
        );
        let burstable = with(&[("/spec/resources", json!({"requests": {"cpu": "4", "memory": "1Gi"}}))]);
        check(
            &burstable,
            &[
                ("/spec/resources/requests/cpu", json!("5"), &[]),
                ("/spec/resources/limits", json!({"cpu": "6"}), &[]),
                ("/spec/resources/requests", json!({"cpu": "4"}), &[&removed("requests")]),
            ],
        );
    }

    #[test]
    fn keeps_the_quality_of_service() {
        let class = |class: &str| {
            format!("spec: Invalid value: {class:?}: Pod QOS Class may not change as a result of resizing")
        };
        let amounts = json!({"cpu": "1", "memory": "1Gi"});
        let guaranteed = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {
            "containers": [{"name": "a", "image": "i", "resources": {"requests": amounts, "limits": amounts}}]}});
        let limits = "/spec/containers/0/resources/limits/cpu";
        check(&guaranteed, &[(limits, json!("2"), &[&class("")])]);
        let mut running = guaranteed;
        running["status"] = json!({"qosClass": "Guaranteed"});
        check(&running, &[(limits, json!("2"), &[&class("Guaranteed")])]);
        // The class of the status counts, if it is set.
        running["status"] = json!({"qosClass": "Burstable"});
        check(&running, &[(limits, json!("2"), &[]), ("", Value::Null, &[&class("Burstable")])]);
    }

    #[test]
    fn refuses_pods_that_cannot_be_resized() {
        let cpu = "/spec/containers/0/resources/requests/cpu";
        let refused = |changes: &[(&str, Value)], error: &str| check(&with(changes), &[(cpu, json!("2"), &[error])]);
        let mirror = json!({"kubernetes.io/config.mirror": "x"});
        refused(
            &[("/metadata/annotations", mirror), ("/spec/nodeName", json!("n"))],
            "[]: Forbidden: static pods cannot be resized",
        );
        refused(&[("/spec/os", json!({"name": "windows"}))], "[]: Forbidden: windows pods cannot be resized");
        let status = |resources: Value| json!({"containerStatuses": [{"name": "b", "state": {"waiting": {}}}, {"name": "a", "state": {"running": {}}, "resources": resources}]});
        let node = "spec: Forbidden: Pod running on node without support for resize";
        refused(&[("/status", status(Value::Null))], node);
        check(&with(&[("/status", status(json!({})))]), &[(cpu, json!("2"), &[])]);
        let claimed = json!({"nodeAllocatableResourceClaimStatuses": [{"resourceClaimName": "c"}]});
        refused(
            &[("/status", claimed)],
            "spec: Forbidden: pods with node allocatable resource claims cannot be resized",
        );
        let claims = [
            ("/spec/resourceClaims", json!([{"name": "c", "resourceClaimName": "c"}])),
            ("/spec/containers/0/resources/claims", json!([{"name": "c"}])),
        ];
        refused(&claims, IMMUTABLE);
    }

    #[test]
    fn init_containers_do_not_restart() {
        let policy = |list: &str, i: usize| {
            (
                format!("/spec/{list}/{i}/resizePolicy"),
                json!([
            {"resourceName": "cpu", "restartPolicy": "RestartContainer"}, {"resourceName": "memory", "restartPolicy": "RestartContainer"}]),
            )
        };
        let base = with(&[]);
        let mut old = base.clone();
        for (pointer, value) in [policy("initContainers", 0), policy("initContainers", 1), policy("containers", 0)] {
            *field(&mut old, &pointer) = value;
        }
        let restarts = "spec.initContainers[0]: Forbidden: non-sidecar init containers with a resize policy of RestartContainer cannot be resized";
        check(
            &old,
            &[
                ("", Value::Null, &[]),
                ("/spec/initContainers/0/resources/requests/cpu", json!("2"), &[restarts, restarts]),
                ("/spec/initContainers/1/resources/requests/cpu", json!("2"), &[]),
                ("/spec/containers/0/resources/requests/cpu", json!("2"), &[]),
            ],
        );
    }
}
