//! ResourceClaim: which devices a pod wants, and those that are allocated.

use super::admin::admin_access;
use super::claim::{delegated_spec, spec};
use super::status::claim_status;
use crate::Config;
use crate::plain::Ruled;
use crate::table::Row;
use kinds::columns::{Cell, list_at};
use meta::field::ErrorList;
use meta::{FieldPath, Object, Value};

pub fn row(_: &Config) -> Row {
    Row::stored(rules())
}

pub(super) fn rules() -> Ruled {
    Ruled::new(|_, _| {})
        .with_cells(cells)
        .with_permit(admin_access)
        .with_since(validate_since)
        .with_status(claim_status)
        .with_whole_status()
}

/// A claim is validated on create only, as it may not change.
fn validate_since(o: &Object, old: Option<&Object>, errors: &mut ErrorList) {
    if old.is_some() {
        return;
    }
    delegated_spec(o, "io.k8s.api.resource.v1.ResourceClaim", errors);
    spec(o.get("spec").unwrap_or(&Value::Null), &FieldPath::new("spec"), errors);
}

/// The cells that only resource claims have.
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
