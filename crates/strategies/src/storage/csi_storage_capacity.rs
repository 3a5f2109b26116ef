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

/// Checks that free capacity and maximum volume size are not negative.
fn validate(o: &Object, errors: &mut ErrorList) {
    for key in ["capacity", "maximumVolumeSize"] {
        let Some(text) = o.str_at(&[key]) else { continue };
        if meta::Quantity::parse(text).is_ok_and(|q| q.sign() < 0) {
            errors.push(FieldError::invalid(&FieldPath::new(key), text, "must be greater than or equal to 0"));
        }
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
