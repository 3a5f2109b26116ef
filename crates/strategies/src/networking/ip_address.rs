//! IPAddress: the owner of a service address.

use crate::Config;
use crate::plain::Ruled;
use crate::read::text;
use crate::table::Row;
use kinds::columns::{Cell, display};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value, names};
use registry::NameRule;

pub fn row(_: &Config) -> Row {
    Row::stored(Ruled::new(validate).with_cells(cells).named(NameRule::IpAddress))
}

/// Validates the reference to the owner.
fn validate(o: &Object, errors: &mut ErrorList) {
    let parent = o.at(&["spec", "parentRef"]).unwrap_or(&Value::Null);
    let at = FieldPath::new("spec.parentRef");
    if parent.is_null() {
        errors.push(FieldError::required(&at, ""));
    }
    for key in ["group", "resource", "name", "namespace"] {
        let v = text(parent, key);
        let bad = if key == "group" && !v.is_empty() { names::dns_subdomain(v) } else { names::path_segment(v) };
        errors.extend(bad.into_iter().map(|m| FieldError::invalid(&at.child(key), v, m)));
    }
}

/// Evaluates the table cell functions of the kind.
fn cells(cell: &Cell<'_>) -> Option<Value> {
    let o = cell.object;
    Some(match cell.function {
        "parentRef" => {
            let p = o.at(&["spec", "parentRef"]).cloned().unwrap_or_default();
            let parts = ["group", "resource", "namespace", "name"].map(|k| display(&p[k]));
            parts.into_iter().filter(|s| !s.is_empty()).collect::<Vec<_>>().join("/").into()
        }
        _ => return None,
    })
}
