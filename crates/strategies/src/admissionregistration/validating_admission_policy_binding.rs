//! ValidatingAdmissionPolicyBinding: validation actions.

use super::binding::{self, cells};
use crate::Config;
use crate::plain::Ruled;
use crate::table::Row;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value};

pub fn row(_: &Config) -> Row {
    Row::stored(Ruled::new(validate).with_warnings(super::warnings).with_cells(cells))
}

/// Rejects the redundant combination of `Deny` and `Warn`.
fn validate(o: &Object, errors: &mut ErrorList) {
    binding::validate(o, errors);
    let list = o.at(&["spec", "validationActions"]).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if ["Deny", "Warn"].iter().all(|a| list.iter().any(|v| v == a)) {
        let why = "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)";
        errors.push(FieldError::invalid(&FieldPath::new("spec.validationActions"), list, why));
    }
}
