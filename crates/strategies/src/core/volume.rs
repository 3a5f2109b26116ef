//! Rules and table cells that PersistentVolumes and PersistentVolumeClaims share.

use crate::read::items;
use kinds::columns::{Cell, display, list_at};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Quantity, Value};

pub const CLASS: &str = "volume.beta.kubernetes.io/storage-class";

pub const OLD_CLASS: (&str, &str) = (CLASS, "deprecated since v1.8; use \"storageClassName\" attribute instead");

/// Checks that `ReadWriteOncePod` is the only access mode.
pub fn access_modes(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let modes = items(spec, "accessModes");
    let other = |m: &&Value| matches!(m.as_str(), Some("ReadWriteOnce" | "ReadOnlyMany" | "ReadWriteMany"));
    if modes.iter().any(|m| m == "ReadWriteOncePod") && modes.iter().any(|m| other(&m)) {
        let why = "may not use ReadWriteOncePod with other access modes";
        errors.push(FieldError::forbidden(&path.child("accessModes"), why));
    }
}

pub fn quantity(v: &Value) -> Option<Quantity> {
    v.as_str().and_then(|s| Quantity::parse(s).ok())
}

/// Checks that an amount is above zero.
pub fn positive(v: &Value, at: &FieldPath, errors: &mut ErrorList) {
    if quantity(v).is_some_and(|q| q.sign() <= 0) {
        errors.push(FieldError::invalid(at, v, "must be greater than zero"));
    }
}

/// Checks that an amount is not negative. The error shows the amount as a number.
pub fn basic(v: &Value, at: &FieldPath, errors: &mut ErrorList) {
    if let Some(q) = quantity(v).filter(|q| q.value() < 0) {
        errors.push(FieldError::invalid(at, q.value(), "must be a valid resource quantity"));
    }
}

/// Checks that the volume mode is unchanged. Upstream reports the path without `spec`.
pub fn immutable_mode(new: &Value, was: &Value, errors: &mut ErrorList) {
    if new["volumeMode"] != was["volumeMode"] {
        let at = FieldPath::new("volumeMode");
        errors.push(FieldError::invalid(&at, &new["volumeMode"], "field is immutable"));
    }
}

pub fn annotations(o: &Object, known: &[(&str, &str)]) -> Vec<String> {
    let at = FieldPath::new("metadata.annotations");
    let present = known.iter().filter(|(k, _)| o.annotation(k).is_some());
    present.map(|(k, why)| format!("{}: {why}", at.key(k))).collect()
}

/// Evaluates the table cell functions of the kind.
pub fn cells(cell: &Cell<'_>) -> Option<Value> {
    let o = cell.object;
    Some(match cell.function {
        "accessModes" => modes(list_at(o, &["spec", "accessModes"])).into(),
        "claimModes" => {
            if bound(o) {
                modes(list_at(o, &["status", "accessModes"])).into()
            } else {
                "".into()
            }
        }
        "claimCapacity" => {
            let c = o.str_at(&["status", "capacity", "storage"]).unwrap_or_default();
            if bound(o) { c.into() } else { "".into() }
        }
        "volumeStatus" => {
            let phase = o.str_at(&["status", "phase"]).unwrap_or_default();
            if o.is_deleting() { "Terminating" } else { phase }.into()
        }
        "volumeClaim" => match o.at(&["spec", "claimRef"]) {
            Some(c) => format!("{}/{}", display(&c["namespace"]), display(&c["name"])).into(),
            None => "".into(),
        },
        "storageClass" => {
            let old = o.annotation(CLASS);
            old.or_else(|| o.str_at(&["spec", "storageClassName"])).unwrap_or_default().into()
        }
        _ => return None,
    })
}

fn bound(o: &Object) -> bool {
    !o.str_at(&["spec", "volumeName"]).unwrap_or_default().is_empty()
}

/// The modes in their fixed order, each once.
fn modes(list: &[Value]) -> String {
    let all =
        [("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")];
    let present = all.into_iter().filter(|(mode, _)| list.iter().any(|m| m == mode));
    present.map(|(_, short)| short).collect::<Vec<_>>().join(",")
}
