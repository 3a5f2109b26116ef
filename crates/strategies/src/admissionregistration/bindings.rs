//! What binds a policy to parameters and resources.

use super::{match_resources, mutable};
use crate::read::text;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value, names};

fn binding(o: &Object, errors: &mut ErrorList) {
    let spec = o.get("spec").unwrap_or(&Value::Null);
    let path = FieldPath::new("spec");
    parameters(&spec["paramRef"], &path.child("paramRef"), errors);
    match_resources(&spec["matchResources"], &path.child("matchResources"), errors);
}

pub fn mutating_binding(o: &Object, errors: &mut ErrorList) {
    binding(o, errors);
    let resources = o.at(&["spec", "matchResources"]).unwrap_or(&Value::Null);
    mutable(resources, &FieldPath::new("spec.matchResources"), errors);
}

/// Who is refused need not be warned as well.
pub fn validating_binding(o: &Object, errors: &mut ErrorList) {
    binding(o, errors);
    let list = o.at(&["spec", "validationActions"]).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if ["Deny", "Warn"].iter().all(|a| list.iter().any(|v| v == a)) {
        let why = "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)";
        errors.push(FieldError::invalid(&FieldPath::new("spec.validationActions"), list, why));
    }
}

/// One object by its name, or some by their labels.
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
