//! CSIStorageCapacity: free capacity.

use super::old_keys;
use crate::Config;
use crate::plain::Ruled;
use crate::pod_template::old_label;
use crate::read::items;
use crate::table::Row;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value};

pub fn row(_: &Config) -> Row {
    Row::stored(Ruled::new(validate).with_warnings(warnings))
}

/// Checks that the free capacity is not negative. As upstream, the maximum volume size may be.
fn validate(o: &Object, errors: &mut ErrorList) {
    let Some(text) = o.str_at(&["capacity"]) else { return };
    if meta::Quantity::parse(text).is_ok_and(|q| q.sign() < 0) {
        errors.push(FieldError::invalid(&FieldPath::new("capacity"), text, "must be greater than or equal to 0"));
    }
}

/// Returns warnings for deprecated node labels.
fn warnings(o: &Object, _old: Option<&Object>) -> Vec<String> {
    let (nodes, at) = (o.get("nodeTopology").unwrap_or(&Value::Null), FieldPath::new("nodeTopology"));
    let mut out = Vec::new();
    old_keys(items(nodes, "matchExpressions"), &at.child("matchExpressions"), &mut out);
    let labels = nodes["matchLabels"].as_object().into_iter().flat_map(|m| m.keys());
    let at = at.child("matchLabels");
    out.extend(labels.filter_map(|k| Some(format!("{}: {}", at.child(k), old_label(k)?))));
    out
}
