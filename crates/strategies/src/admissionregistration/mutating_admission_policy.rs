//! MutatingAdmissionPolicy: mutations.

use super::policy::{self, cells, required_expression};
use super::{expressions, mutable};
use crate::Config;
use crate::plain::Ruled;
use crate::read::{is_set, items, text};
use crate::table::Row;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value};

pub fn row(_: &Config) -> Row {
    Row::stored(Ruled::new(validate).with_warnings(super::warnings).with_cells(cells))
}

const PATCHES: [&str; 2] = ["ApplyConfiguration", "JSONPatch"];

fn validate(o: &Object, errors: &mut ErrorList) {
    let spec = o.get("spec").unwrap_or(&Value::Null);
    let path = FieldPath::new("spec");
    policy::validate(spec, &path, errors);
    mutable(&spec["matchConstraints"], &path.child("matchConstraints"), errors);
    for (i, m) in items(spec, "mutations").iter().enumerate() {
        mutation(m, &path.child("mutations").index(i), errors);
    }
    expressions::policy(spec, &path, errors);
}

/// Validates a mutation, which has the patch of its type.
fn mutation(m: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let kind = text(m, "patchType");
    let (has, lacks) = match kind {
        "ApplyConfiguration" => ("applyConfiguration", "jsonPatch"),
        "JSONPatch" => ("jsonPatch", "applyConfiguration"),
        "" => return errors.push(FieldError::required(&at.child("patchType"), "")),
        _ => return errors.push(FieldError::not_supported(&at.child("patchType"), kind, &PATCHES)),
    };
    if is_set(m, has) {
        required_expression(&m[has], "expression", "", &at.child(has), errors);
    } else {
        errors.push(FieldError::required(&at.child(has), &format!("must be specified when patchType is {kind}")));
    }
    if is_set(m, lacks) {
        let why = format!("must not be specified when patchType is {kind}");
        errors.push(FieldError::invalid(&at.child(lacks), format!("{{{lacks}}}"), why));
    }
}
