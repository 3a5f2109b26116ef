//! MutatingAdmissionPolicyBinding: operations are restricted to those that can be mutated.

use super::binding::{self, cells};
use super::mutable;
use crate::Config;
use crate::plain::Ruled;
use crate::table::Row;
use meta::field::ErrorList;
use meta::{FieldPath, Object, Value};

pub fn row(_: &Config) -> Row {
    Row::stored(Ruled::new(validate).with_warnings(super::warnings).with_cells(cells))
}

fn validate(o: &Object, errors: &mut ErrorList) {
    binding::validate(o, errors);
    let resources = o.at(&["spec", "matchResources"]).unwrap_or(&Value::Null);
    mutable(resources, &FieldPath::new("spec.matchResources"), errors);
}
