//! CSINode: drivers.

use super::driver_name;
use crate::Config;
use crate::plain::Ruled;
use crate::read::{items, shown, text};
use crate::table::Row;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value, names};
use std::collections::HashSet;

pub fn row(_: &Config) -> Row {
    Row::stored(Ruled::new(validate).with_update(validate_update))
}

fn validate(o: &Object, errors: &mut ErrorList) {
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

/// Checks that existing drivers are unchanged; drivers may be added and removed.
fn validate_update(o: &Object, old: &Object, errors: &mut ErrorList) {
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
            // Mutable fields are excluded from comparison and error.
            let mut d = d.clone();
            d["allocatable"] = Value::Null;
            let shown = shown(&d, "io.k8s.api.storage.v1.CSINodeDriver", &path.index(i));
            errors.push(FieldError::invalid(&path, shown, "field is immutable"));
        }
    }
}
