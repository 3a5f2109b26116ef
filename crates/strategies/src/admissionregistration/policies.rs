//! Policies: what they are about, and the parts they are made of. Their expressions are compiled next door.

use super::{expressions, match_resources, mutable};
use crate::apiextensions::rules::types::RESERVED;
use crate::conditions;
use crate::read::{is_set, items, repeats, text};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value, names};

const ANNOTATIONS_MAX: usize = 20;
/// Bytes of an expression whose value is an annotation.
const VALUE_MAX: usize = 5 * 1024;
const PATCHES: [&str; 2] = ["ApplyConfiguration", "JSONPatch"];

fn policy(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
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
        wanted(v, "expression", "expression is not specified", &at, errors);
    }
    for (i, c) in items(spec, "matchConditions").iter().enumerate() {
        wanted(c, "expression", "", &path.child("matchConditions").index(i), errors);
    }
}

fn blank(s: &str) -> bool {
    s.trim().is_empty()
}

fn wanted(v: &Value, key: &str, why: &str, at: &FieldPath, errors: &mut ErrorList) {
    if blank(text(v, key)) {
        errors.push(FieldError::required(&at.child(key), why));
    }
}

/// The kind of a policy's parameters, which need not be served.
fn param_kind(v: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let (said, at) = (text(v, "apiVersion"), path.child("apiVersion"));
    let (group, version) = match said.split_once('/') {
        _ if said == "/" => ("", ""),
        Some((group, version)) => (group, version),
        None => ("", said),
    };
    if said.is_empty() {
        errors.push(FieldError::required(&at, ""));
    } else if version.contains('/') {
        errors.push(FieldError::invalid(&at, said, format!("unexpected GroupVersion string: {said}")));
    } else {
        let bad = names::dns_subdomain(group);
        if !group.is_empty() && !bad.is_empty() {
            errors.push(FieldError::invalid(&at, group, bad.join(",")));
        }
        let bad = names::dns_1035_label(version);
        if version.is_empty() {
            errors.push(FieldError::invalid(&at, said, "version must be specified"));
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

pub fn validating_policy(o: &Object, errors: &mut ErrorList) {
    let spec = o.get("spec").unwrap_or(&Value::Null);
    let path = FieldPath::new("spec");
    policy(spec, &path, errors);
    let (validations, annotations) = (items(spec, "validations"), items(spec, "auditAnnotations"));
    if validations.is_empty() && annotations.is_empty() {
        let why = "validations or auditAnnotations must contain at least one item";
        errors.push(FieldError::required(&path.child("validations"), why));
        errors.push(FieldError::required(&path.child("auditAnnotations"), why));
    }
    for (i, v) in validations.iter().enumerate() {
        let at = path.child("validations").index(i);
        wanted(v, "expression", "expression is not specified", &at, errors);
        for key in ["messageExpression", "message"] {
            let said = text(v, key);
            if !said.is_empty() && blank(said) {
                errors.push(FieldError::invalid(&at.child(key), said, "must be non-empty if specified"));
            } else if key == "message" && said.trim().contains(['\n', '\r']) {
                errors.push(FieldError::invalid(&at.child(key), said, "must not contain line breaks"));
            }
        }
    }
    let at = path.child("auditAnnotations");
    if annotations.len() > ANNOTATIONS_MAX {
        let why = format!("must not have more than {ANNOTATIONS_MAX} auditAnnotations");
        let shown = crate::read::shown_list(annotations, "io.k8s.api.admissionregistration.v1.AuditAnnotation", &at);
        errors.push(FieldError::invalid(&at, shown, &why));
    }
    let again = repeats(annotations.iter().map(|a| text(a, "key")));
    for (i, a) in annotations.iter().enumerate() {
        annotation(o.name(), a, &at.index(i), errors);
        if again[i] {
            errors.push(FieldError::duplicate(&at.index(i).child("key"), text(a, "key")));
        }
    }
    expressions::policy(spec, &path, errors);
}

/// An annotation's key comes after the name of the policy.
fn annotation(policy: &str, a: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let key = text(a, "key");
    if policy.is_empty() {
        errors.push(FieldError::invalid(&at.child("key"), key, "requires metadata.name be non-empty"));
    } else {
        let name = format!("{policy}/{key}");
        let bad = names::qualified_name(&name);
        errors.extend(bad.into_iter().map(|m| FieldError::invalid(&at.child("key"), name.as_str(), m)));
    }
    wanted(a, "valueExpression", "valueExpression is not specified", at, errors);
    if text(a, "valueExpression").trim().len() > VALUE_MAX {
        let why = format!("must not exceed {VALUE_MAX} bytes in length");
        errors.push(FieldError::required(&at.child("valueExpression"), &why));
    }
}

pub fn mutating_policy(o: &Object, errors: &mut ErrorList) {
    let spec = o.get("spec").unwrap_or(&Value::Null);
    let path = FieldPath::new("spec");
    policy(spec, &path, errors);
    mutable(&spec["matchConstraints"], &path.child("matchConstraints"), errors);
    for (i, m) in items(spec, "mutations").iter().enumerate() {
        mutation(m, &path.child("mutations").index(i), errors);
    }
    expressions::policy(spec, &path, errors);
}

/// One patch, of the type it says.
fn mutation(m: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let kind = text(m, "patchType");
    let (has, lacks) = match kind {
        "ApplyConfiguration" => ("applyConfiguration", "jsonPatch"),
        "JSONPatch" => ("jsonPatch", "applyConfiguration"),
        "" => return errors.push(FieldError::required(&at.child("patchType"), "")),
        _ => return errors.push(FieldError::not_supported(&at.child("patchType"), kind, &PATCHES)),
    };
    if is_set(m, has) {
        wanted(&m[has], "expression", "", &at.child(has), errors);
    } else {
        errors.push(FieldError::required(&at.child(has), &format!("must be specified when patchType is {kind}")));
    }
    if is_set(m, lacks) {
        let why = format!("must not be specified when patchType is {kind}");
        errors.push(FieldError::invalid(&at.child(lacks), format!("{{{lacks}}}"), why));
    }
}

/// What type checking found, and conditions.
pub fn status(o: &Object, _old: &Object, errors: &mut ErrorList) {
    let status = o.get("status").unwrap_or(&Value::Null);
    let path = FieldPath::new("status");
    let at = path.child("typeChecking").child("expressionWarnings");
    for (i, w) in items(&status["typeChecking"], "expressionWarnings").iter().enumerate() {
        if text(w, "warning").is_empty() {
            errors.push(FieldError::required(&at.index(i).child("warning"), ""));
        }
        wanted(w, "fieldRef", "", &at.index(i), errors);
    }
    conditions::validate(items(status, "conditions"), &path.child("conditions"), errors);
}

fn is_identifier(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
        && !RESERVED.contains(&name)
}
