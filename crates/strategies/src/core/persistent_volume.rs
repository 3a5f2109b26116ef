//! PersistentVolume and PersistentVolumeClaim.

use crate::plain::said_twice;
use crate::read::{is_set, text};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Quantity, Value};

/// Fields of a volume's spec that are no source.
const NO_SOURCES: [&str; 9] = [
    "capacity",
    "accessModes",
    "claimRef",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "mountOptions",
    "volumeMode",
    "nodeAffinity",
    "volumeAttributesClassName",
];

fn sources(spec: &Value) -> Vec<(&String, &Value)> {
    spec.as_object().into_iter().flatten().filter(|(k, _)| !NO_SOURCES.contains(&k.as_str())).collect()
}

/// An amount of storage above zero.
fn positive(v: &Value, at: &FieldPath, errors: &mut ErrorList) {
    if v.as_str().and_then(|s| Quantity::parse(s).ok()).is_some_and(|q| q.sign() <= 0) {
        errors.push(FieldError::invalid(at, v.clone(), "must be greater than zero"));
    }
}

pub fn volume(o: &Object, errors: &mut ErrorList) {
    let spec = o.get("spec").unwrap_or(&Value::Null);
    let path = FieldPath::new("spec");
    let capacity = &spec["capacity"];
    let at = path.child("capacity");
    let only_storage = capacity.as_object().is_some_and(|c| c.len() == 1 && c.contains_key("storage"));
    if !only_storage {
        errors.push(FieldError::not_supported(&at, capacity.clone(), &["storage"]));
    }
    for (k, v) in capacity.as_object().into_iter().flatten() {
        positive(v, &at.key(k), errors);
    }
    match &sources(spec)[..] {
        [] => errors.push(FieldError::required(&path, "must specify a volume type")),
        [_] => {}
        [_, rest @ ..] => {
            for (k, _) in rest {
                errors.push(FieldError::forbidden(&path.child(k), "may not specify more than 1 volume type"));
            }
        }
    }
}

pub fn volume_update(o: &Object, old: &Object, errors: &mut ErrorList) {
    said_twice(errors, |e| e.path.starts_with("spec"));
    let null = Value::Null;
    let (new, was) = (o.get("spec").unwrap_or(&null), old.get("spec").unwrap_or(&null));
    if sources(new) != sources(was) {
        let why = "spec.persistentvolumesource is immutable after creation";
        errors.push(FieldError::forbidden(&FieldPath::new("spec.persistentvolumesource"), why));
    }
    if new["volumeMode"] != was["volumeMode"] {
        let why = "field is immutable";
        errors.push(FieldError::invalid(&FieldPath::new("spec.volumeMode"), new["volumeMode"].clone(), why));
    }
}

/// A claim asks for some storage.
pub fn claim_size(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let at = path.child("resources").key("storage");
    match &spec["resources"]["requests"]["storage"] {
        Value::Null => errors.push(FieldError::required(&at, "")),
        v => positive(v, &at, errors),
    }
}

pub fn claim(o: &Object, errors: &mut ErrorList) {
    let spec = o.get("spec").unwrap_or(&Value::Null);
    claim_size(spec, &FieldPath::new("spec"), errors);
}

pub fn claim_update(o: &Object, old: &Object, errors: &mut ErrorList) {
    // A size that is gone is no size to complain of twice.
    let mut allowed = old.get("spec").cloned().unwrap_or_default();
    let spec = o.get("spec").unwrap_or(&Value::Null);
    let bound = old.str_at(&["status", "phase"]) == Some("Bound");
    if is_set(spec, "resources") && bound {
        allowed["resources"]["requests"] = spec["resources"]["requests"].clone();
    }
    if text(&allowed, "volumeName").is_empty() && is_set(spec, "volumeName") {
        allowed["volumeName"] = spec["volumeName"].clone();
    }
    if bound && is_set(spec, "volumeAttributesClassName") {
        allowed["volumeAttributesClassName"] = spec["volumeAttributesClassName"].clone();
    }
    if !allowed["storageClassName"].is_string() && is_set(spec, "storageClassName") {
        allowed["storageClassName"] = spec["storageClassName"].clone();
    }
    if *spec != allowed {
        let why =
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
        errors.push(FieldError::forbidden(&FieldPath::new("spec"), why));
    }
    let size = |s: &Value| s["resources"]["requests"]["storage"].as_str().and_then(|q| Quantity::parse(q).ok());
    let was = old.get("spec").and_then(size);
    if let (Some(new), Some(was)) = (size(spec), was)
        && new < was
    {
        let at = FieldPath::new("spec.resources.requests.storage");
        errors.push(FieldError::forbidden(&at, "field can not be less than status.capacity"));
    }
}
