//! PersistentVolumeClaim: requested size, data source and expansion.

use super::volume::{CLASS, OLD_CLASS, access_modes, annotations, basic, cells, immutable_mode, positive, quantity};
use crate::Config;
use crate::core::pod_shape;
use crate::plain::Ruled;
use crate::pod_template::{amount, claim_sizes};
use crate::read::{is_set, text};
use crate::table::Row;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Map, Object, Quantity, Value, names};

pub fn row(_: &Config) -> Row {
    Row::stored(
        Ruled::new(validate)
            .with_cells(cells)
            .with_update(validate_update)
            .with_status(validate_status)
            .with_prepare(|_, o, old| same_sources(o, old))
            .with_warnings(warnings),
    )
}

fn validate(o: &Object, errors: &mut ErrorList) {
    claim_spec(o.get("spec").unwrap_or(&Value::Null), &FieldPath::new("spec"), errors);
}

/// Validates the spec of a claim or claim template.
pub fn claim_spec(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    access_modes(spec, path, errors);
    let at = path.child("resources").key("storage");
    match &spec["resources"]["requests"]["storage"] {
        Value::Null => errors.push(FieldError::required(&at, "")),
        v if quantity(v).is_some_and(|q| q.sign() <= 0) => positive(v, &at, errors),
        v => amount("storage", v, &at, errors),
    }
    let (source, reference) = (&spec["dataSource"], &spec["dataSourceRef"]);
    for (s, key) in [(source, "dataSource"), (reference, "dataSourceRef")] {
        if s.is_object() {
            data_source(s, &path.child(key), errors);
        }
    }
    let elsewhere = !text(reference, "namespace").is_empty();
    let same = ["apiGroup", "kind", "name"].iter().all(|k| source[*k] == reference[*k]);
    let why = match source.is_object() && reference.is_object() {
        true if elsewhere => "may not be specified when dataSourceRef.namespace is specified",
        true if !same => "must match dataSourceRef",
        _ => "",
    };
    if !why.is_empty() {
        // The value is a path in upstream, which it formats as a struct without fields.
        errors.push(FieldError::invalid(path, Map::new(), why));
    }
    let class = text(spec, "volumeAttributesClassName");
    if !class.is_empty() {
        let at = path.child("volumeAttributesClassName");
        errors.extend(names::dns_subdomain(class).into_iter().map(|m| FieldError::invalid(&at, class, m)));
    }
}

/// Validates the data source of a claim.
fn data_source(s: &Value, at: &FieldPath, errors: &mut ErrorList) {
    for k in ["name", "kind"] {
        if text(s, k).is_empty() {
            errors.push(FieldError::required(&at.child(k), ""));
        }
    }
    let (group, kind, namespace) = (text(s, "apiGroup"), text(s, "kind"), text(s, "namespace"));
    if group.is_empty() && kind != "PersistentVolumeClaim" {
        let why = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
        errors.push(FieldError::invalid(at, kind, why));
    }
    if !group.is_empty() {
        let bad = names::dns_subdomain(group);
        errors.extend(bad.into_iter().map(|m| FieldError::invalid(&at.child("apiGroup"), group, m)));
    }
    if !namespace.is_empty() {
        let bad = names::dns_label(namespace);
        errors.extend(bad.into_iter().map(|m| FieldError::invalid(&at.child("namespace"), namespace, m)));
    }
}

/// Synchronizes `dataSource` and the newer `dataSourceRef`. Drops a `dataSource` of a kind that only `dataSourceRef`
/// supports, unless the claim has a source already.
fn same_sources(o: &mut Object, old: Option<&Object>) {
    const OLD: [&str; 2] = ["spec", "dataSource"];
    const NEW: [&str; 2] = ["spec", "dataSourceRef"];
    // Cross-namespace data sources are not supported.
    if o.str_at(&["spec", "dataSourceRef", "namespace"]).is_some_and(|n| !n.is_empty()) {
        o.remove(&NEW);
    }
    let (source, reference) = (o.at(&OLD).cloned(), o.at(&NEW).cloned());
    match (source, reference) {
        (Some(s), None) => {
            let known = matches!(
                (text(&s, "apiGroup"), text(&s, "kind")),
                ("", "PersistentVolumeClaim") | ("snapshot.storage.k8s.io", "VolumeSnapshot")
            );
            let in_use = old.is_some_and(|old| old.at(&OLD).or_else(|| old.at(&NEW)).is_some());
            if known || in_use {
                o.set(&NEW, s);
            } else {
                o.remove(&OLD);
            }
        }
        (None, Some(mut r)) => {
            if let Some(m) = r.as_object_mut() {
                m.remove("namespace");
            }
            o.set(&OLD, r);
        }
        _ => {}
    }
}

fn validate_update(o: &Object, old: &Object, errors: &mut ErrorList) {
    let mut allowed = old.get("spec").cloned().unwrap_or_default();
    let spec = o.get("spec").unwrap_or(&Value::Null);
    let bound = o.str_at(&["status", "phase"]) == Some("Bound");
    if bound && is_set(&spec["resources"], "requests") {
        match &spec["resources"]["requests"]["storage"] {
            Value::Null => {
                allowed["resources"]["requests"].as_object_mut().map(|m| m.remove("storage"));
            }
            v => allowed["resources"]["requests"]["storage"] = v.clone(),
        }
    }
    if text(&allowed, "volumeName").is_empty() && is_set(spec, "volumeName") {
        allowed["volumeName"] = spec["volumeName"].clone();
    }
    if bound && let Some(allowed) = allowed.as_object_mut() {
        match spec.get("volumeAttributesClassName").filter(|c| c.is_string()) {
            Some(class) => allowed.insert("volumeAttributesClassName".into(), class.clone()),
            None => allowed.remove("volumeAttributesClassName"),
        };
    }
    // A storage class from the annotation, or an absent one, may be set as a field.
    let (was_class, is_class) = (old.annotation(CLASS), o.annotation(CLASS));
    let class = spec["storageClassName"].as_str();
    let unset = !allowed["storageClassName"].is_string();
    let moved = unset && was_class.is_some() && class == was_class && (is_class.is_none() || is_class == was_class);
    if let Some(c) = class.filter(|c| unset && was_class.is_none_or(|w| w == *c)) {
        allowed["storageClassName"] = c.into();
    }
    if !moved && was_class != is_class {
        let at = FieldPath::new("metadata.annotations").child(CLASS);
        errors.push(FieldError::invalid(&at, is_class.unwrap_or_default(), "field is immutable"));
    }
    if *spec != allowed {
        let why =
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
        let difference = pod_shape::difference_of(&allowed, spec, "io.k8s.api.core.v1.PersistentVolumeClaimSpec");
        errors.push(FieldError::forbidden(&FieldPath::new("spec"), &format!("{why}\n{difference}")));
    }
    let zero = Quantity::from_int(0);
    let size = |s: &Value| quantity(&s["resources"]["requests"]["storage"]).unwrap_or(zero);
    let has = o.at(&["status", "capacity", "storage"]).and_then(quantity).unwrap_or(zero);
    let was = old.get("spec").map_or(zero, size);
    // A failed expansion can be reduced, but not below the current capacity.
    if size(spec) < was && size(spec) <= has {
        let at = FieldPath::new("spec.resources.requests.storage");
        errors.push(FieldError::forbidden(&at, "field can not be less than status.capacity"));
    }
    let null = Value::Null;
    let before = old.get("spec").unwrap_or(&null);
    immutable_mode(spec, before, errors);
    // A class that is applied cannot be taken away.
    let class = |s: &Value| s["volumeAttributesClassName"].as_str().map(str::to_owned);
    if class(spec) != class(before)
        && old.at(&["status", "currentVolumeAttributesClassName"]).is_some_and(Value::is_string)
    {
        let at = FieldPath::new("spec.volumeAttributesClassName");
        let to = match class(spec).as_deref() {
            None => "nil",
            Some("") => "empty string",
            Some(_) => return,
        };
        let why = format!("update to {to} is forbidden when status.currentVolumeAttributesClassName is not nil");
        errors.push(FieldError::forbidden(&at, &why));
    }
}

const RESIZES: [&str; 5] = [
    "ControllerResizeInProgress",
    "ControllerResizeInfeasible",
    "NodeResizeInProgress",
    "NodeResizeInfeasible",
    "NodeResizePending",
];

/// Validates the status of a claim: capacities, and the progress of expansion.
fn validate_status(o: &Object, _old: &Object, errors: &mut ErrorList) {
    let null = Value::Null;
    let part = |key: &str| o.at(&["status", key]).unwrap_or(&null).as_object().cloned().unwrap_or_default();
    let status = FieldPath::new("status");
    for (k, v) in &part("capacity") {
        basic(v, &status.child("capacity").key(k), errors);
    }
    let of_storage = |k: &str, at: &FieldPath, errors: &mut ErrorList| -> bool {
        let before = errors.len();
        errors.extend(names::qualified_name(k).into_iter().map(|m| FieldError::invalid(at, k, m)));
        if errors.len() == before && k != "storage" && (!k.contains('/') || k.contains("kubernetes.io/")) {
            errors.push(FieldError::not_supported(at, k, &["storage"]));
        }
        errors.len() == before
    };
    let at = status.child("allocatedResourceStatuses");
    for (k, v) in &part("allocatedResourceStatuses") {
        of_storage(k, &at, errors);
        if !v.as_str().is_some_and(|v| RESIZES.contains(&v)) {
            errors.push(FieldError::not_supported(&at, k.as_str(), &RESIZES));
        }
    }
    let at = status.child("allocatedResources");
    for (k, v) in &part("allocatedResources") {
        if of_storage(k, &at, errors) {
            let before = errors.len();
            basic(v, &at.key(k), errors);
            if errors.len() == before {
                amount("storage", v, &at.key(k), errors);
            }
        }
    }
}

fn warnings(o: &Object, _old: Option<&Object>) -> Vec<String> {
    let mut out = annotations(o, &[OLD_CLASS]);
    out.extend(claim_sizes(o.get("spec").unwrap_or(&Value::Null), &FieldPath::new("spec")));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check_create, check_update};
    use serde_json::json;

    fn claim(phase: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "c"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}, "storageClassName": "s"},
            "status": {"phase": phase, "capacity": {"storage": "2Gi"}}})
    }

    #[test]
    fn validates_a_new_claim() {
        let mode = "spec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes";
        let kind = "spec.dataSource: Invalid value: \"Other\": must be 'PersistentVolumeClaim' when referencing the default apiGroup";
        let size = "spec.resources[storage]";
        check_create(
            &Ruled::new(validate),
            &claim("Pending"),
            &[
                ("", Value::Null, &[]),
                (
                    "/spec/accessModes",
                    json!([]),
                    &["spec.accessModes: Required value: at least 1 access mode is required"],
                ),
                ("/spec/accessModes", json!(["ReadWriteOncePod", "ReadWriteMany"]), &[mode]),
                (
                    "/spec/accessModes",
                    json!(["Other"]),
                    &[
                        r#"spec.accessModes: Unsupported value: "Other": supported values: "ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod""#,
                    ],
                ),
                ("/spec/resources", json!({}), &[&format!("{size}: Required value")]),
                (
                    "/spec/resources/requests/storage",
                    json!("0"),
                    &[&format!("{size}: Invalid value: \"0\": must be greater than zero")],
                ),
                ("/spec/dataSource", json!({"kind": "Other", "name": "n"}), &[kind]),
                (
                    "/spec/dataSource",
                    json!({"kind": "PersistentVolumeClaim", "name": ""}),
                    &["spec.dataSource.name: Required value"],
                ),
                (
                    "/spec/volumeMode",
                    json!("Other"),
                    &[r#"spec.volumeMode: Unsupported value: "Other": supported values: "Block", "Filesystem""#],
                ),
            ],
        );
    }

    #[test]
    fn validates_an_update() {
        let immutable = "spec: Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n…";
        let strategy = Ruled::new(validate).with_update(validate_update);
        let mut classed = claim("Bound");
        classed["spec"]["volumeAttributesClassName"] = "a".into();
        let class = "/spec/volumeAttributesClassName";
        check_update(
            &strategy,
            &classed,
            &[(class, Value::Null, &[]), (class, json!(""), &[]), (class, json!("b"), &[])],
        );
        classed["status"]["currentVolumeAttributesClassName"] = "a".into();
        let applied = |to: &str| {
            format!(
                "spec.volumeAttributesClassName: Forbidden: update to {to} is forbidden when status.currentVolumeAttributesClassName is not nil"
            )
        };
        check_update(
            &strategy,
            &classed,
            &[
                (class, Value::Null, &[&applied("nil")]),
                (class, json!(""), &[&applied("empty string")]),
                (class, json!("b"), &[]),
            ],
        );
        let storage = "/spec/resources/requests/storage";
        let less = "spec.resources.requests.storage: Forbidden: field can not be less than status.capacity";
        check_update(
            &strategy,
            &claim("Bound"),
            &[
                (storage, json!("3Gi"), &[]),
                (storage, json!("1Gi"), &[less]),
                ("/spec/accessModes", json!(["ReadWriteMany"]), &[immutable]),
                ("/spec/storageClassName", json!("t"), &[immutable]),
            ],
        );
        check_update(
            &strategy,
            &claim("Pending"),
            &[
                (storage, json!("3Gi"), &[immutable]),
                ("/spec/volumeName", json!("v"), &[]),
                (
                    "/spec/volumeMode",
                    json!("Block"),
                    &[immutable, "volumeMode: Invalid value: \"Block\": field is immutable"],
                ),
            ],
        );
    }

    #[test]
    fn synchronizes_data_sources() {
        let check = |mut spec: Value, source: &Value, reference: &Value| {
            spec = json!({"spec": spec});
            let mut claim = Object::from_value(spec).expect("an object");
            same_sources(&mut claim, None);
            let at = |key: &str| claim.at(&["spec", key]).cloned().unwrap_or_default();
            assert_eq!((&at("dataSource"), &at("dataSourceRef")), (source, reference));
        };
        let (volume, other) = (
            json!({"kind": "PersistentVolumeClaim", "name": "n"}),
            json!({"apiGroup": "a.example", "kind": "K", "name": "n"}),
        );
        check(json!({"dataSource": volume}), &volume, &volume);
        check(json!({"dataSource": other}), &Value::Null, &Value::Null);
        check(json!({"dataSourceRef": other}), &other, &other);
        check(json!({"dataSourceRef": {"kind": "K", "name": "n", "namespace": "m"}}), &Value::Null, &Value::Null);
    }
}
