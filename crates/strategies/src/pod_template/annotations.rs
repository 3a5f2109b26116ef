//! Validation of pod annotations: deprecated forms of fields, mirror pods and deletion costs.

use crate::read::{is_sent, items, text};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Value, names};
use schema::rules::descending_path;
use std::cell::LazyCell;
use std::collections::HashSet;

const MIRROR: &str = "kubernetes.io/config.mirror";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP: &str = "container.seccomp.security.alpha.kubernetes.io/";
const APPARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
const LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// Maximum total size of all annotations, in bytes.
const TOTAL_MAX: usize = 256 * 1024;

fn each(annotations: &Value) -> impl Iterator<Item = (&str, &str)> {
    annotations.as_object().into_iter().flatten().map(|(k, v)| (k.as_str(), v.as_str().unwrap_or_default()))
}

/// Validates annotation keys and total size, as for any object.
pub fn keys(annotations: &Value, at: &FieldPath, errors: &mut ErrorList) {
    for (k, _) in each(annotations) {
        errors.extend(names::qualified_name(&k.to_lowercase()).into_iter().map(|m| FieldError::invalid(at, k, m)));
    }
    if each(annotations).map(|(k, v)| k.len() + v.len()).sum::<usize>() > TOTAL_MAX {
        errors.push(FieldError::too_long(at, TOTAL_MAX));
    }
}

/// Fields of metadata that templates may not have: their names, and those in errors, which upstream derives from Go's names.
const NOT_IN_TEMPLATES: [(&str, &str); 13] = [
    ("name", "name"),
    ("generateName", "generateName"),
    ("namespace", "namespace"),
    ("selfLink", "selfLink"),
    ("uid", "uID"),
    ("resourceVersion", "resourceVersion"),
    ("generation", "generation"),
    ("creationTimestamp", "creationTimestamp"),
    ("deletionTimestamp", "deletionTimestamp"),
    ("deletionGracePeriodSeconds", "deletionGracePeriodSeconds"),
    ("ownerReferences", "ownerReferences"),
    ("finalizers", "finalizers"),
    ("managedFields", "managedFields"),
];

/// Validates template metadata for objects other than pods, which may only have labels and annotations.
pub fn template_metadata(metadata: &Value, at: &FieldPath, errors: &mut ErrorList) {
    keys(&metadata["annotations"], &at.child("annotations"), errors);
    schema::rules::labels(&metadata["labels"], &at.child("labels"), errors);
    for (k, reported) in NOT_IN_TEMPLATES {
        if is_sent(metadata, k, at) {
            errors.push(FieldError::forbidden(&at.child(reported), "cannot be set").ordered_at(at));
        }
    }
}

/// Validates the annotations of a pod or pod template.
pub fn rules(annotations: &Value, spec: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let names = LazyCell::new(|| -> HashSet<&str> {
        LISTS.iter().flat_map(|l| items(spec, l)).map(|c| text(c, "name")).collect()
    });
    for (k, v) in each(annotations) {
        if k == MIRROR && text(spec, "nodeName").is_empty() {
            let why = "must set spec.nodeName if mirror pod annotation is set";
            errors.push(FieldError::invalid(&at.key(k), v, why));
        }
        if k == DELETION_COST && !is_cost(v) {
            errors.push(FieldError::invalid(&at.key(k), v, "must be a 32bit integer"));
        }
        if k == SECCOMP_POD || k.starts_with(SECCOMP) {
            seccomp(v, &at.child(k), errors);
        }
        if let Some(container) = k.strip_prefix(APPARMOR) {
            if !names.contains(container) {
                errors.push(FieldError::invalid(&at.key(k), container, "container not found"));
            }
            if !matches!(v, "" | "runtime/default" | "unconfined") && !v.starts_with("localhost/") {
                errors.push(FieldError::invalid(&at.key(k), v, format!("invalid AppArmor profile name: {v:?}")));
            }
        }
    }
}

/// Whether a value is a 32-bit integer without plus sign and leading zeros.
fn is_cost(v: &str) -> bool {
    let first = v.bytes().next().unwrap_or_default();
    (first == b'-' || v == "0" || (b'1'..=b'9').contains(&first)) && v.parse::<i32>().is_ok()
}

fn seccomp(profile: &str, at: &FieldPath, errors: &mut ErrorList) {
    match (profile, profile.strip_prefix("localhost/")) {
        ("runtime/default" | "docker/default" | "unconfined", _) => {}
        (_, Some(file)) => descending_path(file, at, errors),
        _ => errors.push(FieldError::invalid(at, profile, "must be a valid seccomp profile")),
    }
}

/// Checks that profiles in annotations match those in fields.
pub fn agree_with_fields(annotations: &Value, spec: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let annotation = |key: String| annotations[key.as_str()].as_str();
    let own = &spec["securityContext"];
    let context = at.child("securityContext");
    if let Some(a) = annotation(SECCOMP_POD.into()) {
        agree(a, &own["seccompProfile"], "seccomp", &context.child("seccompProfile"), errors);
    }
    for list in LISTS {
        for (i, c) in items(spec, list).iter().enumerate() {
            let at = at.child(list).index(i).child("securityContext");
            let name = text(c, "name");
            if let Some(a) = annotation(format!("{SECCOMP}{name}")) {
                agree(a, &c["securityContext"]["seccompProfile"], "seccomp", &at.child("seccompProfile"), errors);
            }
            let mine = &c["securityContext"]["appArmorProfile"];
            let mine = if mine.is_object() { mine } else { &own["appArmorProfile"] };
            if let Some(a) = annotation(format!("{APPARMOR}{name}")).filter(|_| spec["os"]["name"] != "windows") {
                agree(a, mine, "apparmor", &at.child("appArmorProfile"), errors);
            }
        }
    }
}

fn agree(annotation: &str, field: &Value, what: &str, at: &FieldPath, errors: &mut ErrorList) {
    let file = annotation.strip_prefix("localhost/");
    let same = match text(field, "type") {
        "Unconfined" => annotation == "unconfined",
        "RuntimeDefault" => annotation == "runtime/default" || (what == "seccomp" && annotation == "docker/default"),
        "Localhost" if file.is_some() => {
            if file != field["localhostProfile"].as_str() {
                let why = format!("{what} profile in annotation and field must match");
                errors.push(FieldError::forbidden(&at.child("localhostProfile"), &why));
            }
            true
        }
        "Localhost" => false,
        _ => true,
    };
    if !same {
        let why = format!("{what} type in annotation and field must match");
        errors.push(FieldError::forbidden(&at.child("type"), &why));
    }
}

/// Rejects updates of mirror and AppArmor annotations.
pub fn update(new: &Value, old: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let of = |k: &str| match k {
        MIRROR => Some("mirror pod annotation"),
        k if k.starts_with(APPARMOR) => Some("AppArmor annotations"),
        _ => None,
    };
    for (k, _) in each(old).filter(|(k, was)| new[*k].as_str() != Some(*was)) {
        if let Some(what) = of(k) {
            errors.push(FieldError::forbidden(&at.key(k), &format!("may not remove or update {what}")));
        }
    }
    for (k, _) in each(new).filter(|(k, _)| old.get(k).is_none()) {
        if let Some(what) = of(k) {
            errors.push(FieldError::forbidden(&at.key(k), &format!("may not add {what}")));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::core::pod::Pod;
    use crate::testing::{check_create, check_update};
    use serde_json::{Value, json};

    #[test]
    fn validates_annotations_of_pods() {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "annotations": {}},
            "spec": {"containers": [{"name": "c", "image": "i", "securityContext": {"seccompProfile": {"type": "Unconfined"}}}]}});
        let apparmor = "container.apparmor.security.beta.kubernetes.io/";
        let one = |k: &str, v: &str| json!({k: v});
        let at = "metadata.annotations";
        check_create(
            &Pod,
            &pod,
            &[
                ("/metadata/annotations", one("controller.kubernetes.io/pod-deletion-cost", "-1"), &[]),
                (
                    "/metadata/annotations",
                    one("controller.kubernetes.io/pod-deletion-cost", "01"),
                    &[&format!(
                        "{at}[controller.kubernetes.io/pod-deletion-cost]: Invalid value: \"01\": must be a 32bit integer"
                    )],
                ),
                (
                    "/metadata/annotations",
                    one("kubernetes.io/config.mirror", "a"),
                    &[&format!(
                        "{at}[kubernetes.io/config.mirror]: Invalid value: \"a\": must set spec.nodeName if mirror pod annotation is set"
                    )],
                ),
                (
                    "/metadata/annotations",
                    one(&format!("{apparmor}d"), "unconfined"),
                    &[&format!("{at}[{apparmor}d]: Invalid value: \"d\": container not found")],
                ),
                (
                    "/metadata/annotations",
                    one(&format!("{apparmor}c"), "other"),
                    &[&format!(
                        "{at}[{apparmor}c]: Invalid value: \"other\": invalid AppArmor profile name: \"other\""
                    )],
                ),
                (
                    "/metadata/annotations",
                    one("container.seccomp.security.alpha.kubernetes.io/c", "runtime/default"),
                    &[
                        "spec.containers[0].securityContext.seccompProfile.type: Forbidden: seccomp type in annotation and field must match",
                    ],
                ),
            ],
        );
        let mirror = |v: &str| one("kubernetes.io/config.mirror", v);
        let mut old = pod;
        old["metadata"]["annotations"] = mirror("a");
        old["spec"]["nodeName"] = "n".into();
        let forbidden =
            format!("{at}[kubernetes.io/config.mirror]: Forbidden: may not remove or update mirror pod annotation");
        check_update(
            &Pod,
            &old,
            &[
                ("", Value::Null, &[]),
                ("/metadata/annotations", mirror("b"), &[&forbidden]),
                ("/metadata/annotations", json!({}), &[&forbidden]),
            ],
        );
    }
}
