//! `storage.k8s.io`: classes, attachments, drivers.

use crate::core::inline_volume;
use crate::pod_template::old_label;
use crate::read::{delegated, is_set, items, shown, text};
use kinds::columns::{Cell, display, list_at};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value, names};
use std::collections::HashSet;

/// What may become of a volume that a class made.
const RECLAIM: [&str; 2] = ["Delete", "Retain"];

pub fn storage_class(o: &Object, errors: &mut ErrorList) {
    parameters(o, errors);
    let policy = o.str_at(&["reclaimPolicy"]).unwrap_or_default();
    if !policy.is_empty() && !RECLAIM.contains(&policy) {
        errors.push(FieldError::not_supported(&FieldPath::new("reclaimPolicy"), policy, &RECLAIM));
    }
    let all = o.clone().into_value();
    let path = FieldPath::new("allowedTopologies");
    let mut terms: HashSet<String> = HashSet::new();
    for (i, t) in items(&all, "allowedTopologies").iter().enumerate() {
        let at = path.index(i).child("matchLabelExpressions");
        let expressions = items(t, "matchLabelExpressions");
        let mut keys = HashSet::new();
        for (j, e) in expressions.iter().enumerate() {
            let at = at.index(j);
            let key = text(e, "key");
            let values = items(e, "values");
            if values.is_empty() {
                errors.push(FieldError::required(&at.child("values"), ""));
            }
            for (k, v) in values.iter().enumerate() {
                if values[..k].contains(v) {
                    errors.push(FieldError::duplicate(&at.child("values").index(k), v));
                }
            }
            errors
                .extend(names::qualified_name(key).into_iter().map(|m| FieldError::invalid(&at.child("key"), key, m)));
            if !keys.insert(key) {
                errors.push(FieldError::duplicate(&at.child("key"), key));
            }
        }
        // Terms are sets: in whatever order, none may be there twice; nor may one be empty.
        let mut same: Vec<String> = expressions
            .iter()
            .map(|e| {
                let mut values: Vec<&str> = items(e, "values").iter().filter_map(Value::as_str).collect();
                values.sort_unstable();
                format!("{}={values:?}", text(e, "key"))
            })
            .collect();
        same.sort();
        if expressions.is_empty() || !terms.insert(same.join(";")) {
            errors.push(FieldError::duplicate(&at, ""));
        }
    }
    let provisioner = o.str_at(&["provisioner"]).unwrap_or_default().to_lowercase();
    if !provisioner.is_empty() {
        let at = FieldPath::new("provisioner");
        let why = names::qualified_name(&provisioner).into_iter();
        errors.extend(why.map(|m| FieldError::invalid(&at, provisioner.as_str(), m)));
    }
}

/// Labels of nodes that have other names today, where a class says where its volumes may be.
pub fn storage_class_warnings(o: &Object, _old: Option<&Object>) -> Vec<String> {
    let mut out = Vec::new();
    let terms = o.get("allowedTopologies").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    for (i, t) in terms.iter().enumerate() {
        let at = FieldPath::new("allowedTopologies").index(i).child("matchLabelExpressions");
        old_keys(items(t, "matchLabelExpressions"), &at, &mut out);
    }
    out
}

/// The same of nodes whose room is told.
pub fn capacity_warnings(o: &Object, _old: Option<&Object>) -> Vec<String> {
    let (nodes, at) = (o.get("nodeTopology").unwrap_or(&Value::Null), FieldPath::new("nodeTopology"));
    let mut out = Vec::new();
    old_keys(items(nodes, "matchExpressions"), &at.child("matchExpressions"), &mut out);
    let labels = nodes["matchLabels"].as_object().into_iter().flat_map(|m| m.keys());
    let at = at.child("matchLabels");
    out.extend(labels.filter_map(|k| Some(format!("{}: {}", at.child(k), old_label(k)?))));
    out
}

fn old_keys(expressions: &[Value], at: &FieldPath, out: &mut Vec<String>) {
    let keys = expressions.iter().map(|e| text(e, "key")).enumerate();
    out.extend(keys.filter_map(|(i, k)| Some(format!("{}: {}", at.index(i).child("key"), old_label(k)?))));
}

const PARAMETERS_MAX: usize = 512;
const PARAMETERS_SIZE_MAX: usize = 256 * 1024;

/// What a driver is told of a class: not too much, and nothing without a name.
fn parameters(o: &Object, errors: &mut ErrorList) {
    let at = FieldPath::new("parameters");
    let Some(all) = o.get("parameters").and_then(Value::as_object) else { return };
    if all.len() > PARAMETERS_MAX {
        errors.push(FieldError::too_long(&at, PARAMETERS_MAX));
        return;
    }
    if all.contains_key("") {
        errors.push(FieldError::invalid(&at, "", "field can not be empty."));
    }
    let size: usize = all.iter().map(|(k, v)| k.len() + v.as_str().unwrap_or_default().len()).sum();
    if size > PARAMETERS_SIZE_MAX {
        errors.push(FieldError::too_long(&at, PARAMETERS_SIZE_MAX));
    }
}

/// Ten minutes, in seconds.
const TOKEN_MIN: i64 = 600;
const TOKEN_MAX: i64 = 1 << 32;
const PERIOD_MIN: i64 = 10;

/// A driver: the tokens it asks for, each audience once.
pub fn csi_driver(o: &Object, errors: &mut ErrorList) {
    let spec = o.get("spec").unwrap_or(&Value::Null);
    let path = FieldPath::new("spec");
    let mut audiences = HashSet::new();
    for (i, t) in items(spec, "tokenRequests").iter().enumerate() {
        let at = path.child("tokenRequests").index(i);
        if !audiences.insert(text(t, "audience")) {
            errors.push(FieldError::duplicate(&at.child("audience"), text(t, "audience")));
            continue;
        }
        let Some(seconds) = t["expirationSeconds"].as_i64() else { continue };
        let why = match seconds {
            ..TOKEN_MIN => "may not specify a duration less than 10 minutes",
            TOKEN_MIN..=TOKEN_MAX => continue,
            _ => "may not specify a duration larger than 2^32 seconds",
        };
        errors.push(FieldError::invalid(&at.child("expirationSeconds"), seconds, why));
    }
    if let Some(n) = spec["nodeAllocatableUpdatePeriodSeconds"].as_i64().filter(|n| *n < PERIOD_MIN) {
        let at = path.child("nodeAllocatableUpdatePeriodSeconds");
        errors.push(FieldError::invalid(&at, n, "must be greater than or equal to 10 seconds"));
    }
    if is_set(spec, "serviceAccountTokenInSecrets") && items(spec, "tokenRequests").is_empty() {
        let why = "serviceAccountTokenInSecrets is set but no tokenRequests are specified";
        let at = path.child("serviceAccountTokenInSecrets");
        errors.push(FieldError::invalid(&at, &spec["serviceAccountTokenInSecrets"], why));
    }
}

/// Whether volumes are attached stays as it is; upstream says so of a name that is a little off.
pub fn csi_driver_update(o: &Object, old: &Object, errors: &mut ErrorList) {
    let attached = |o: &Object| o.at(&["spec", "attachRequired"]).cloned().unwrap_or_default();
    if attached(o) != attached(old) {
        errors.push(FieldError::invalid(&FieldPath::new("spec.attachedRequired"), attached(o), IMMUTABLE));
    }
}

/// Tokens that drivers are given among the attributes of volumes.
pub fn csi_driver_warnings(o: &Object, _old: Option<&Object>) -> Vec<String> {
    const UNSET: &str = "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible logging of tokens in volume attributes";
    let spec = o.get("spec").unwrap_or(&Value::Null);
    let asks = !items(spec, "tokenRequests").is_empty() && !is_set(spec, "serviceAccountTokenInSecrets");
    asks.then(|| UNSET.to_owned()).into_iter().collect()
}

/// How much room there is, and for how large a volume: never less than nothing.
pub fn capacity(o: &Object, errors: &mut ErrorList) {
    for key in ["capacity", "maximumVolumeSize"] {
        let Some(text) = o.str_at(&[key]) else { continue };
        if meta::Quantity::parse(text).is_ok_and(|q| q.sign() < 0) {
            errors.push(FieldError::invalid(&FieldPath::new(key), text, "must be greater than or equal to 0"));
        }
    }
}

const IMMUTABLE: &str = "field is immutable";

pub fn attributes_class(o: &Object, errors: &mut ErrorList) {
    parameters(o, errors);
    let driver = o.str_at(&["driverName"]).unwrap_or_default().to_lowercase();
    if !driver.is_empty() {
        let at = FieldPath::new("driverName");
        errors.extend(names::qualified_name(&driver).into_iter().map(|m| FieldError::invalid(&at, driver.as_str(), m)));
    }
}

pub fn attachment(o: &Object, errors: &mut ErrorList) {
    let spec = o.get("spec").unwrap_or(&Value::Null);
    let path = FieldPath::new("spec");
    driver_name(text(spec, "attacher"), &path.child("attacher"), errors);
    let source = &spec["source"];
    let at = path.child("source");
    match (is_set(source, "inlineVolumeSpec"), is_set(source, "persistentVolumeName")) {
        (false, false) => {
            let why = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
            errors.push(FieldError::required(&at, why));
        }
        (true, true) => {
            let why = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
            errors.push(FieldError::forbidden(&at, why));
        }
        (false, true) => {
            let name = text(source, "persistentVolumeName");
            let at = at.child("persistentVolumeName");
            if name.is_empty() {
                errors.push(FieldError::required(&at, "must specify non empty persistentVolumeName"));
            }
            errors.extend(names::dns_subdomain(name).into_iter().map(|m| FieldError::invalid(&at, name, m)));
        }
        (true, false) => {
            delegated(source, "io.k8s.api.storage.v1.VolumeAttachmentSource", "inlineVolumeSpec", &at, errors);
            inline_volume::validate(&source["inlineVolumeSpec"], &at.child("inlineVolumeSpec"), errors);
        }
    }
    let null = Value::Null;
    let status = o.get("status").unwrap_or(&null);
    let at = FieldPath::new("status");
    let size: usize = status["attachmentMetadata"]
        .as_object()
        .map_or(0, |m| m.iter().map(|(k, v)| k.len() + v.as_str().map_or(0, str::len)).sum());
    if size > METADATA_MAX {
        errors.push(FieldError::too_long(&at.child("attachmentMetadata"), METADATA_MAX));
    }
    for key in ["attachError", "detachError"] {
        let (e, at) = (&status[key], at.child(key));
        if text(e, "message").len() > MESSAGE_MAX {
            errors.push(FieldError::too_long(&at.child("message"), METADATA_MAX));
        }
        if let Some(n) = e["errorCode"].as_i64().filter(|n| *n < 0) {
            let why = format!("must be between 0 and {}, inclusive", i32::MAX);
            errors.push(FieldError::invalid(&at.child("errorCode"), n, why));
        }
    }
}

/// An update of the status is looked at as a whole.
pub fn attachment_status(o: &Object, _old: &Object, errors: &mut ErrorList) {
    attachment(o, errors);
}

const METADATA_MAX: usize = 256 * 1024;
const MESSAGE_MAX: usize = 1024;

/// The name of a CSI driver: a domain, in any case, of at most 63 bytes.
pub fn driver_name(name: &str, at: &FieldPath, errors: &mut ErrorList) {
    if name.is_empty() {
        return;
    }
    if name.len() > 63 {
        errors.push(FieldError::too_long(at, 63));
    }
    errors.extend(names::dns_subdomain(&name.to_lowercase()).into_iter().map(|m| FieldError::invalid(at, name, m)));
}

pub fn csi_node(o: &Object, errors: &mut ErrorList) {
    let spec = o.get("spec").unwrap_or(&Value::Null);
    let path = FieldPath::new("spec.drivers");
    let mut seen = HashSet::new();
    for (i, d) in items(spec, "drivers").iter().enumerate() {
        let at = path.index(i);
        let name = text(d, "name");
        driver_name(name, &at.child("name"), errors);
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(&at.child("name"), name));
        }
        let id = text(d, "nodeID");
        if id.len() > 256 {
            let why = "must be 256 characters or less";
            errors.push(FieldError::invalid(&at.child("nodeID"), id, why));
        }
        if d["allocatable"]["count"].as_i64().is_some_and(|n| n < 0) {
            let at = at.child("allocatable").child("count");
            errors.push(FieldError::invalid(&at, &d["allocatable"]["count"], "must be greater than or equal to 0"));
        }
        let mut keys = HashSet::new();
        for k in items(d, "topologyKeys").iter().filter_map(Value::as_str) {
            if k.is_empty() {
                errors.push(FieldError::required(&at, ""));
            }
            if !keys.insert(k) {
                errors.push(FieldError::duplicate(&at, k));
            }
            errors.extend(names::qualified_name(k).into_iter().map(|m| FieldError::invalid(&at, k, m)));
        }
    }
}

/// A driver that is there stays as it is; others come and go.
pub fn csi_node_update(o: &Object, old: &Object, errors: &mut ErrorList) {
    let null = Value::Null;
    let (new, was) = (o.get("spec").unwrap_or(&null), old.get("spec").unwrap_or(&null));
    let path = FieldPath::new("spec.drivers");
    for (i, d) in items(new, "drivers").iter().enumerate() {
        let before = items(was, "drivers").iter().find(|b| b["name"] == d["name"]);
        let differs = |b: &Value| {
            let mut b = b.clone();
            b["allocatable"] = d["allocatable"].clone();
            let mut d = d.clone();
            d["allocatable"] = b["allocatable"].clone();
            b != d
        };
        if before.is_some_and(differs) {
            // What may change is left out of the comparison, and so of what is shown.
            let mut d = d.clone();
            d["allocatable"] = Value::Null;
            let shown = shown(&d, "io.k8s.api.storage.v1.CSINodeDriver", &path.index(i));
            errors.push(FieldError::invalid(&path, shown, "field is immutable"));
        }
    }
}

/// The cells that only CSI drivers have.
pub fn cells(cell: &Cell<'_>) -> Option<Value> {
    let o = cell.object;
    Some(match cell.function {
        "tokenRequests" => {
            let all = list_at(o, &["spec", "tokenRequests"]).iter().map(|t| display(&t["audience"]));
            let audiences = all.collect::<Vec<_>>().join(",");
            if audiences.is_empty() { "<unset>".into() } else { audiences.into() }
        }
        _ => return None,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::*;
    use crate::rows::ruled;
    use crate::testing::check_create;
    use serde_json::json;

    #[test]
    fn storage_classes() {
        let strategy = ruled("storage.k8s.io", "storageclasses").unwrap();
        let base =
            json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": "example.com/disk"});
        check_create(
            &strategy,
            &base,
            &[
                ("/provisioner", json!("Example.com/Disk"), &[]),
                ("/provisioner", json!(""), &["provisioner: Required value"]),
                ("/provisioner", json!("A B"), &[r#"provisioner: Invalid value: "a b": name part must consist…"#]),
                (
                    "/reclaimPolicy",
                    json!("Recycle"),
                    &[r#"reclaimPolicy: Unsupported value: "Recycle": supported values: "Delete", "Retain""#],
                ),
            ],
        );
    }

    #[test]
    fn inline_volumes_of_attachments() {
        let strategy = ruled("storage.k8s.io", "volumeattachments").unwrap();
        let csi = json!({"driver": "a.example", "volumeHandle": "h"});
        let source = json!({"inlineVolumeSpec": {"accessModes": ["ReadWriteOnce"], "csi": csi}});
        let base = json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
            "spec": {"attacher": "a.example", "nodeName": "n", "source": source}});
        let at = "/spec/source/inlineVolumeSpec/";
        let forbidden = |field: &str, why: &str| format!("spec.source.inlineVolumeSpec.{field}: Forbidden: {why}");
        let capacity = forbidden("capacity", "may not be specified in the context of inline volumes");
        let mode = "may not specify volumeMode other than Filesystem in the context of inline volumes";
        check_create(
            &strategy,
            &base,
            &[
                ("", Value::Null, &[]),
                (&format!("{at}capacity"), json!({"storage": "1Gi"}), &[&capacity]),
                (&format!("{at}volumeMode"), json!("Other"), &[&forbidden("volumeMode", mode)]),
                (&format!("{at}accessModes"), json!([]), &["spec.source.inlineVolumeSpec.accessModes: Required value"]),
                (
                    "/spec/source/persistentVolumeName",
                    json!("v"),
                    &["spec.source: Forbidden: must specify exactly one of inlineVolumeSpec and persistentVolumeName"],
                ),
            ],
        );
    }
}
