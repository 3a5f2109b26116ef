//! ResourceClaim: requested and allocated devices.

use super::admin::admin_access;
use super::claim::{delegated_spec, spec};
use super::status::{claim_status, drop_deallocated};
use super::status_access;
use crate::Config;
use crate::plain::Ruled;
use crate::table::Row;
use kinds::columns::{Cell, list_at};
use meta::field::ErrorList;
use meta::{FieldPath, Object, Value};

pub fn row(config: &Config) -> Row {
    let authorizer = config.authorizer.clone();
    Row::stored(rules().with_permit(move |env, request, o, old| {
        admin_access(env, request, o, old)?;
        status_access::check(&*authorizer, request, o, old)
    }))
}

pub(super) fn rules() -> Ruled {
    Ruled::new(|_, _| {})
        .with_cells(cells)
        .with_since(validate_since)
        .with_status(claim_status)
        .with_prepare_status(|_, o, old| drop_deallocated(o, old))
        .with_fixed_status_metadata()
}

/// Validates the spec on create only, as it is immutable.
fn validate_since(o: &Object, old: Option<&Object>, errors: &mut ErrorList) {
    if old.is_some() {
        return;
    }
    delegated_spec(o, "io.k8s.api.resource.v1.ResourceClaim", errors);
    spec(o.get("spec").unwrap_or(&Value::Null), &FieldPath::new("spec"), errors);
}

/// Evaluates the table cell functions of the kind.
fn cells(cell: &Cell<'_>) -> Option<Value> {
    let o = cell.object;
    Some(match cell.function {
        "claimState" => claim_state(o).into(),
        _ => return None,
    })
}

fn claim_state(o: &Object) -> String {
    let mut states = Vec::new();
    if o.is_deleting() {
        states.push("deleted");
    }
    if o.at(&["status", "allocation"]).is_none() {
        states.push("pending");
    } else if list_at(o, &["status", "reservedFor"]).is_empty() {
        states.push("allocated");
    } else {
        states.extend(["allocated", "reserved"]);
    }
    states.join(",")
}
