//! Validation and table cells of policy bindings.

use super::match_resources;
use crate::read::text;
use kinds::columns::{Cell, display, selector};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value, names};

pub fn validate(o: &Object, errors: &mut ErrorList) {
    let spec = o.get("spec").unwrap_or(&Value::Null);
    let path = FieldPath::new("spec");
    parameters(&spec["paramRef"], &path.child("paramRef"), errors);
    match_resources(&spec["matchResources"], &path.child("matchResources"), errors);
}

/// Validates a parameter reference: by name, or by selector.
fn parameters(r: &Value, at: &FieldPath, errors: &mut ErrorList) {
    if r.is_null() {
        return;
    }
    let (name, selects) = (text(r, "name"), !r["selector"].is_null());
    if !name.is_empty() {
        errors.extend(names::path_segment(name).into_iter().map(|m| FieldError::invalid(&at.child("name"), name, m)));
    }
    if selects {
        schema::rules::selector(&r["selector"], &at.child("selector"), errors);
    }
    match (name.is_empty(), selects) {
        (false, true) => {
            for k in ["name", "selector"] {
                errors.push(FieldError::forbidden(&at.child(k), "name and selector are mutually exclusive"));
            }
        }
        (true, false) => errors.push(FieldError::required(at, "one of name or selector must be specified")),
        _ => {}
    }
    let at = at.child("parameterNotFoundAction");
    match text(r, "parameterNotFoundAction") {
        "" => errors.push(FieldError::required(&at, "")),
        "Allow" | "Deny" => {}
        other => errors.push(FieldError::not_supported(&at, other, &["Deny", "Allow"])),
    }
}

/// Evaluates the table cell functions of the kind.
pub fn cells(cell: &Cell<'_>) -> Option<Value> {
    let o = cell.object;
    Some(match cell.function {
        "paramRef" => match o.at(&["spec", "paramRef"]) {
            Some(p) => {
                let ns = display(&p["namespace"]);
                let name = if p["name"].is_string() { display(&p["name"]) } else { selector(p.get("selector")) };
                if ns.is_empty() { name.into() } else { format!("{ns}/{name}").into() }
            }
            None => "<unset>".into(),
        },
        _ => return None,
    })
}
