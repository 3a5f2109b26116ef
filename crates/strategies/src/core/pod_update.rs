//! Validation of pod updates (`ValidatePodUpdate`): images, deadlines, added tolerations, removed gates, and scheduling
//! fields of a gated pod may change. Also merges label keys on create.

use super::pod_fields::items;
use crate::read::text;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value};
use serde_json::json;
use std::collections::{HashMap, HashSet};

const LISTS: [&str; 2] = ["containers", "initContainers"];
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

pub fn validate(o: &Object, old: &Object, errors: &mut ErrorList) {
    let spec = FieldPath::new("spec");
    for list in LISTS {
        let at = spec.child(list);
        if items(o, list).len() != items(old, list).len() {
            errors.push(FieldError::forbidden(&at, "pod updates may not add or remove containers"));
            return;
        }
        for (i, c) in items(o, list).iter().enumerate() {
            let (image, at) = (text(c, "image"), at.index(i).child("image"));
            if image.is_empty() {
                errors.push(FieldError::required(&at, ""));
            }
            if image.trim() != image {
                let why = "must not have leading or trailing whitespace";
                errors.push(FieldError::invalid(&at, image, why));
            }
        }
    }
    if !deadline_shortened(o, old, errors) {
        return;
    }
    tolerations(o, old, errors);
    gates(o, old, errors);
    // After the mutable fields are reset to their old values, nothing may differ.
    let mut rest = o.clone();
    let mut keep = |path: &[&str]| match old.at(path).cloned() {
        Some(v) => rest.set(path, v),
        None => {
            rest.remove(path);
        }
    };
    keep(&["spec", "activeDeadlineSeconds"]);
    keep(&["spec", "tolerations"]);
    keep(&["spec", "schedulingGates"]);
    let grace = |p: &Object| p.int_at(&["spec", "terminationGracePeriodSeconds"]);
    if grace(old).is_some_and(|g| g < 0) && grace(o) == Some(1) {
        keep(&["spec", "terminationGracePeriodSeconds"]);
    }
    if !items(old, "schedulingGates").is_empty() {
        gated_scheduling(o, old, errors);
        keep(&["spec", "nodeSelector"]);
        take_node_affinity(old, &mut rest);
    }
    for list in LISTS {
        take_images(old, &mut rest, list);
    }
    if rest.get("spec") != old.get("spec") {
        let why = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";
        let of = |o: &Object| o.get("spec").cloned().unwrap_or_default();
        let difference = super::pod_shape::difference(&of(old), &of(&rest));
        errors.push(FieldError::forbidden(&spec, &format!("{why}\n{difference}")));
    }
}

fn take_images(o: &Object, allowed: &mut Object, list: &str) {
    let images: Vec<Option<Value>> = items(o, list).iter().map(|c| c.get("image").cloned()).collect();
    if let Some(Value::Array(mut all)) = allowed.remove(&["spec", list]) {
        for (c, image) in all.iter_mut().zip(images).filter_map(|(c, i)| Some((c.as_object_mut()?, i))) {
            match image {
                Some(i) => c.insert("image".into(), i),
                None => c.remove("image"),
            };
        }
        allowed.set(&["spec", list], all);
    }
}

/// Checks that a deadline is only set or shortened. Returns false if further rules do not apply.
fn deadline_shortened(o: &Object, old: &Object, errors: &mut ErrorList) -> bool {
    let path = FieldPath::new("spec.activeDeadlineSeconds");
    let deadline = |p: &Object| p.int_at(&["spec", "activeDeadlineSeconds"]);
    match (deadline(old), deadline(o)) {
        (_, Some(is)) if !(0..=i64::from(i32::MAX)).contains(&is) => {
            errors.push(FieldError::invalid(&path, is, "must be between 0 and 2147483647, inclusive"));
            false
        }
        (Some(was), Some(is)) if is > was => {
            errors.push(FieldError::invalid(&path, is, "must be less than or equal to previous value"));
            false
        }
        (Some(_), None) => {
            let why = "must not update from a positive integer to nil value";
            errors.push(FieldError::invalid(&path, Value::Null, why));
            true
        }
        _ => true,
    }
}

/// Checks that tolerations are only added, except for `tolerationSeconds`, and validates them again as upstream does.
fn tolerations(o: &Object, old: &Object, errors: &mut ErrorList) {
    let but_seconds = |t: &Value| ["key", "operator", "value", "effect"].map(|k| t.get(k).map(Value::to_string));
    let now: HashSet<_> = items(o, "tolerations").iter().map(but_seconds).collect();
    if items(old, "tolerations").iter().any(|t| !now.contains(&but_seconds(t))) {
        let why = "existing toleration can not be modified except its tolerationSeconds";
        errors.push(FieldError::forbidden(&FieldPath::new("spec.tolerations"), why));
        return;
    }
    let again: ErrorList = errors.iter().filter(|e| e.path.starts_with("spec.tolerations[")).cloned().collect();
    errors.extend(again);
}

fn gates(o: &Object, old: &Object, errors: &mut ErrorList) {
    let at = FieldPath::new("spec.schedulingGates");
    let was: HashSet<String> = items(old, "schedulingGates").iter().map(Value::to_string).collect();
    for (i, g) in items(o, "schedulingGates").iter().enumerate().filter(|(_, g)| !was.contains(&g.to_string())) {
        let why = format!("only deletion is allowed, but found new scheduling gate '{}'", text(g, "name"));
        errors.push(FieldError::forbidden(&at.index(i).child("name"), &why));
    }
}

/// Checks that scheduling fields of a gated pod are only narrowed.
fn gated_scheduling(o: &Object, old: &Object, errors: &mut ErrorList) {
    let at = FieldPath::new("spec.nodeSelector");
    let selector = |p: &Object| p.at(&["spec", "nodeSelector"]).and_then(Value::as_object).cloned().unwrap_or_default();
    let now = selector(o);
    if selector(old).iter().any(|(k, v)| now.get(k) != Some(v)) {
        let why = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
        errors.push(FieldError::invalid(&at, Value::Object(now), why));
    }
    let terms = |p: &Object| {
        let path = ["spec", "affinity", "nodeAffinity", REQUIRED, "nodeSelectorTerms"];
        p.at(&path).and_then(Value::as_array).cloned().unwrap_or_default()
    };
    let (now, was) = (terms(o), terms(old));
    let at = FieldPath::new("spec.affinity.nodeAffinity").child(REQUIRED).child("nodeSelectorTerms");
    if !was.is_empty() && was.len() != now.len() {
        let why = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
        errors.push(FieldError::invalid(&at, now, why));
        return;
    }
    for (i, (n, _)) in now.iter().zip(&was).enumerate().filter(|(_, (n, w))| !only_adds(n, w)) {
        let why = "only additions are allowed (no mutations or deletions)";
        errors.push(FieldError::invalid(&at.index(i), n, why));
    }
}

/// Whether a term only adds requirements. An empty term matches nothing, and may not change.
fn only_adds(new: &Value, old: &Value) -> bool {
    let list = |t: &Value, k: &str| t[k].as_array().cloned().unwrap_or_default();
    let parts = ["matchExpressions", "matchFields"];
    if parts.iter().all(|k| list(old, k).is_empty()) {
        return parts.iter().all(|k| list(new, k).is_empty());
    }
    parts.iter().all(|k| list(new, k).starts_with(&list(old, k)))
}

fn take_node_affinity(o: &Object, allowed: &mut Object) {
    const AT: [&str; 3] = ["spec", "affinity", "nodeAffinity"];
    match o.at(&AT).cloned() {
        Some(v) => allowed.set(&AT, v),
        None => {
            allowed.remove(&AT);
        }
    }
    // An empty affinity is equivalent to none.
    let empty = |p: &Object| p.at(&["spec", "affinity"]).and_then(Value::as_object).is_some_and(|a| a.is_empty());
    if o.at(&["spec", "affinity"]).is_none() && empty(allowed) {
        allowed.remove(&["spec", "affinity"]);
    } else if empty(o) && allowed.at(&["spec", "affinity"]).is_none() {
        allowed.set(&["spec", "affinity"], json!({}));
    }
}

/// Merges `matchLabelKeys` and `mismatchLabelKeys` into the label selectors, with the values of the pod.
pub fn merge_label_keys(o: &mut Object) {
    let labels: HashMap<String, String> = o.labels().map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
    let merge = |t: &mut Value| {
        if !t["labelSelector"].is_object() {
            return;
        }
        for (list, operator) in [("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")] {
            for key in t[list].as_array().cloned().unwrap_or_default() {
                if let Some((k, v)) = key.as_str().and_then(|k| labels.get_key_value(k)) {
                    let one = json!({"key": k, "operator": operator, "values": [v]});
                    match t["labelSelector"]["matchExpressions"].as_array_mut() {
                        Some(all) => all.push(one),
                        None => t["labelSelector"]["matchExpressions"] = json!([one]),
                    }
                }
            }
        }
    };
    let each = |v: Option<&mut Value>, f: &dyn Fn(&mut Value)| {
        v.and_then(Value::as_array_mut).into_iter().flatten().for_each(f);
    };
    let Some(mut spec) = o.remove(&["spec"]) else { return };
    each(spec.get_mut("topologySpreadConstraints"), &merge);
    for side in ["podAffinity", "podAntiAffinity"] {
        let Some(terms) = spec.get_mut("affinity").and_then(|a| a.get_mut(side)) else { continue };
        each(terms.get_mut(REQUIRED), &merge);
        each(terms.get_mut(PREFERRED), &|t| {
            if let Some(t) = t.get_mut("podAffinityTerm") {
                merge(t);
            }
        });
    }
    o.set(&["spec"], spec);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::pod::Pod;
    use crate::testing::check_update;

    #[test]
    fn merges_label_keys_into_selectors() {
        let term = |keys: &[&str], other: &[&str]| json!({"matchLabelKeys": keys, "mismatchLabelKeys": other, "labelSelector": {}});
        let mut pod = Object::from_value(json!({"metadata": {"labels": {"a": "1", "b": "2"}}, "spec": {
            "topologySpreadConstraints": [{"matchLabelKeys": ["a", "absent"], "labelSelector": {}}, {"matchLabelKeys": ["a"]}],
            "affinity": {"podAffinity": {REQUIRED: [term(&["a"], &["b"])]},
                "podAntiAffinity": {PREFERRED: [{"podAffinityTerm": term(&["b"], &[])}]}}}}))
        .expect("an object");
        merge_label_keys(&mut pod);
        let expressions = |at: &str| pod.0["spec"].pointer(&format!("{at}/labelSelector/matchExpressions")).cloned();
        let requirement =
            |key: &str, operator: &str, value: &str| json!({"key": key, "operator": operator, "values": [value]});
        assert_eq!(expressions("/topologySpreadConstraints/0"), Some(json!([requirement("a", "In", "1")])));
        assert_eq!(pod.0["spec"].pointer("/topologySpreadConstraints/1/labelSelector"), None);
        assert_eq!(
            expressions(&format!("/affinity/podAffinity/{REQUIRED}/0")),
            Some(json!([requirement("a", "In", "1"), requirement("b", "NotIn", "2")]))
        );
        assert_eq!(
            expressions(&format!("/affinity/podAntiAffinity/{PREFERRED}/0/podAffinityTerm")),
            Some(json!([requirement("b", "In", "2")]))
        );
    }

    #[test]
    fn deadlines_and_images() {
        let old = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {
            "activeDeadlineSeconds": 60, "initContainers": [{"name": "i", "image": "i"}],
            "containers": [{"name": "c", "image": "i"}]}});
        let nil =
            "spec.activeDeadlineSeconds: Invalid value: null: must not update from a positive integer to nil value";
        check_update(
            &Pod,
            &old,
            &[
                ("/spec/activeDeadlineSeconds", Value::Null, &[nil]),
                ("/spec/initContainers/0/image", json!("j"), &[]),
                (
                    "/spec/initContainers",
                    json!([]),
                    &["spec.initContainers: Forbidden: pod updates may not add or remove containers"],
                ),
            ],
        );
    }

    /// A pod of a version before v1.27 may have a negative grace period.
    #[test]
    fn a_negative_grace_period_becomes_one_second() {
        let pod = |grace: i64| {
            Object::from_value(
                json!({"spec": {"terminationGracePeriodSeconds": grace, "containers": [{"name": "c", "image": "i"}]}}),
            )
            .expect("an object")
        };
        let check = |grace: i64, old: i64, valid: bool| {
            let mut errors = ErrorList::new();
            validate(&pod(grace), &pod(old), &mut errors);
            assert_eq!(errors.is_empty(), valid, "{grace} after {old}: {errors:?}");
        };
        check(1, -5, true);
        check(2, -5, false);
        check(1, 5, false);
    }
}
