//! ValidatingAdmissionPolicy: validations, audit annotations, and type checking results in the status.

use super::expressions;
use super::policy::{self, blank, cells, required_expression};
use crate::Config;
use crate::conditions;
use crate::plain::Ruled;
use crate::read::{items, repeats, text};
use crate::table::Row;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value, names};

pub fn row(_: &Config) -> Row {
    Row::stored(
        Ruled::new(validate)
            .with_warnings(super::warnings)
            .with_cells(cells)
            .with_status(validate_status)
            .with_fixed_status_metadata(),
    )
}

const ANNOTATIONS_MAX: usize = 20;
/// Maximum length of an audit annotation's value expression, in bytes.
const VALUE_MAX: usize = 5 * 1024;

fn validate(o: &Object, errors: &mut ErrorList) {
    let spec = o.get("spec").unwrap_or(&Value::Null);
    let path = FieldPath::new("spec");
    policy::validate(spec, &path, errors);
    let (validations, annotations) = (items(spec, "validations"), items(spec, "auditAnnotations"));
    if validations.is_empty() && annotations.is_empty() {
        let why = "validations or auditAnnotations must contain at least one item";
        errors.push(FieldError::required(&path.child("validations"), why));
        errors.push(FieldError::required(&path.child("auditAnnotations"), why));
    }
    for (i, v) in validations.iter().enumerate() {
        let at = path.child("validations").index(i);
        required_expression(v, "expression", "expression is not specified", &at, errors);
        for key in ["messageExpression", "message"] {
            let value = text(v, key);
            if !value.is_empty() && blank(value) {
                errors.push(FieldError::invalid(&at.child(key), value, "must be non-empty if specified"));
            } else if key == "message" && value.trim().contains(['\n', '\r']) {
                errors.push(FieldError::invalid(&at.child(key), value, "must not contain line breaks"));
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

/// Validates an audit annotation. Its full key is prefixed with the policy's name.
fn annotation(policy: &str, a: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let key = text(a, "key");
    if policy.is_empty() {
        errors.push(FieldError::invalid(&at.child("key"), key, "requires metadata.name be non-empty"));
    } else {
        let name = format!("{policy}/{key}");
        let bad = names::qualified_name(&name);
        errors.extend(bad.into_iter().map(|m| FieldError::invalid(&at.child("key"), name.as_str(), m)));
    }
    required_expression(a, "valueExpression", "valueExpression is not specified", at, errors);
    if text(a, "valueExpression").trim().len() > VALUE_MAX {
        let why = format!("must not exceed {VALUE_MAX} bytes in length");
        errors.push(FieldError::required(&at.child("valueExpression"), &why));
    }
}

/// Validates type checking warnings and conditions.
fn validate_status(o: &Object, _old: &Object, errors: &mut ErrorList) {
    let status = o.get("status").unwrap_or(&Value::Null);
    let path = FieldPath::new("status");
    let at = path.child("typeChecking").child("expressionWarnings");
    for (i, w) in items(&status["typeChecking"], "expressionWarnings").iter().enumerate() {
        if text(w, "warning").is_empty() {
            errors.push(FieldError::required(&at.index(i).child("warning"), ""));
        }
        let (at, path) = (at.index(i).child("fieldRef"), text(w, "fieldRef").trim());
        if path.is_empty() {
            errors.push(FieldError::required(&at, ""));
        } else if let Err(e) = codec::jsonpath::Template::parse(&format!("{{{path}}}")) {
            errors.push(FieldError::invalid(&at, path, format!("invalid JSONPath: {e}")));
        }
    }
    conditions::validate(items(status, "conditions"), &path.child("conditions"), errors);
}
