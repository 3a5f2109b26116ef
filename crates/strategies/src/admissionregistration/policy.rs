//! Validation and table cells that policies share. `expressions` compiles their expressions.

use super::match_resources;
use crate::read::{is_set, items, text};
use kinds::columns::{Cell, display};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Value, names};

pub fn validate(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    if is_set(spec, "paramKind") {
        param_kind(&spec["paramKind"], &path.child("paramKind"), errors);
    }
    let (constraints, at) = (&spec["matchConstraints"], path.child("matchConstraints"));
    if constraints.is_null() {
        errors.push(FieldError::required(&at, ""));
    } else {
        if items(constraints, "resourceRules").is_empty() {
            errors.push(FieldError::required(&at.child("resourceRules"), ""));
        }
        match_resources(constraints, &at, errors);
    }
    for (i, v) in items(spec, "variables").iter().enumerate() {
        let (name, at) = (text(v, "name"), path.child("variables").index(i));
        if blank(name) {
            errors.push(FieldError::required(&at.child("name"), "name is not specified"));
        } else if !is_identifier(name) {
            errors.push(FieldError::invalid(&at.child("name"), name, "must be a valid CEL identifier"));
        }
        required_expression(v, "expression", "expression is not specified", &at, errors);
    }
    for (i, c) in items(spec, "matchConditions").iter().enumerate() {
        required_expression(c, "expression", "", &path.child("matchConditions").index(i), errors);
    }
}

pub fn blank(s: &str) -> bool {
    s.trim().is_empty()
}

pub fn required_expression(v: &Value, key: &str, why: &str, at: &FieldPath, errors: &mut ErrorList) {
    if blank(text(v, key)) {
        errors.push(FieldError::required(&at.child(key), why));
    }
}

/// Validates the kind of a policy's parameters, which need not be served.
fn param_kind(v: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let (api_version, at) = (text(v, "apiVersion"), path.child("apiVersion"));
    let (group, version) = match api_version.split_once('/') {
        _ if api_version == "/" => ("", ""),
        Some((group, version)) => (group, version),
        None => ("", api_version),
    };
    if api_version.is_empty() {
        errors.push(FieldError::required(&at, ""));
    } else if version.contains('/') {
        errors.push(FieldError::invalid(&at, api_version, format!("unexpected GroupVersion string: {api_version}")));
    } else {
        let bad = names::dns_subdomain(group);
        if !group.is_empty() && !bad.is_empty() {
            errors.push(FieldError::invalid(&at, group, bad.join(",")));
        }
        let bad = names::dns_1035_label(version);
        if version.is_empty() {
            errors.push(FieldError::invalid(&at, api_version, "version must be specified"));
        } else if !bad.is_empty() {
            errors.push(FieldError::invalid(&at, version, bad.join(",")));
        }
    }
    let (kind, at) = (text(v, "kind"), path.child("kind"));
    let bad = names::dns_1035_label(&kind.to_lowercase());
    if kind.is_empty() {
        errors.push(FieldError::required(&at, ""));
    } else if !bad.is_empty() {
        let why = format!("may have mixed case, but should otherwise match: {}", bad.join(","));
        errors.push(FieldError::invalid(&at, kind, why));
    }
}

fn is_identifier(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
        && !cel::is_reserved(name)
}

/// Evaluates the table cell functions of the kind.
pub fn cells(cell: &Cell<'_>) -> Option<Value> {
    let o = cell.object;
    Some(match cell.function {
        "paramKind" => match o.at(&["spec", "paramKind"]) {
            Some(p) => format!("{}/{}", display(&p["apiVersion"]), display(&p["kind"])).into(),
            None => "<unset>".into(),
        },
        _ => return None,
    })
}
