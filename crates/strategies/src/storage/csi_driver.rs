//! CSIDriver: token requests and attachment.

use crate::Config;
use crate::plain::Ruled;
use crate::read::{is_set, items, text};
use crate::table::Row;
use kinds::columns::{Cell, display, list_at};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value};
use std::collections::HashSet;

pub fn row(_: &Config) -> Row {
    Row::stored(Ruled::new(validate).with_cells(cells).with_update(validate_update).with_warnings(warnings))
}

/// Minimum token lifetime: ten minutes, in seconds.
const TOKEN_MIN: i64 = 600;
const TOKEN_MAX: i64 = 1 << 32;
const PERIOD_MIN: i64 = 10;

/// Validates token requests, with unique audiences.
fn validate(o: &Object, errors: &mut ErrorList) {
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

/// Checks that `attachRequired` is unchanged. Upstream misspells the field.
fn validate_update(o: &Object, old: &Object, errors: &mut ErrorList) {
    let attached = |o: &Object| o.at(&["spec", "attachRequired"]).cloned().unwrap_or_default();
    if attached(o) != attached(old) {
        errors.push(FieldError::invalid(&FieldPath::new("spec.attachedRequired"), attached(o), "field is immutable"));
    }
}

/// Returns the warning for tokens in volume attributes, if they are new.
fn warnings(o: &Object, old: Option<&Object>) -> Vec<String> {
    const UNSET: &str = "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible logging of tokens in volume attributes";
    let spec = o.get("spec").unwrap_or(&Value::Null);
    let is_new = old.is_none_or(|old| old.at(&["spec", "tokenRequests"]) != spec.get("tokenRequests"));
    let requests_tokens =
        is_new && !items(spec, "tokenRequests").is_empty() && !is_set(spec, "serviceAccountTokenInSecrets");
    requests_tokens.then(|| UNSET.to_owned()).into_iter().collect()
}

/// Evaluates the table cell functions of the kind.
fn cells(cell: &Cell<'_>) -> Option<Value> {
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
