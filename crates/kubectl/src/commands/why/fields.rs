//! Access to fields of objects by JSON pointer. A missing field, or one of another type, is empty.

use meta::{LabelSelector, Value};

pub fn text<'a>(v: &'a Value, pointer: &str) -> &'a str {
    v.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

pub fn number(v: &Value, pointer: &str) -> i64 {
    v.pointer(pointer).and_then(Value::as_i64).unwrap_or_default()
}

pub fn list<'a>(v: &'a Value, pointer: &str) -> &'a [Value] {
    v.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

pub fn is_true(v: &Value, pointer: &str) -> bool {
    v.pointer(pointer) == Some(&Value::Bool(true))
}

pub fn name(v: &Value) -> &str {
    text(v, "/metadata/name")
}

pub fn namespace(v: &Value) -> &str {
    text(v, "/metadata/namespace")
}

pub fn uid(v: &Value) -> &str {
    text(v, "/metadata/uid")
}

pub fn is_deleting(v: &Value) -> bool {
    !text(v, "/metadata/deletionTimestamp").is_empty()
}

/// The condition of a type.
pub fn condition<'a>(v: &'a Value, kind: &str) -> Option<&'a Value> {
    list(v, "/status/conditions").iter().find(|c| c["type"] == kind)
}

/// Whether the condition of a type has a status.
pub fn has_condition(v: &Value, kind: &str, status: &str) -> bool {
    condition(v, kind).is_some_and(|c| c["status"] == status)
}

/// Whether a label selector selects an object. A selector that is invalid selects nothing.
pub fn selects(selector: &LabelSelector, v: &Value) -> bool {
    let labels = &v["metadata"]["labels"];
    selector.matches(|k| labels[k].as_str())
}

/// The label selector of an object at a pointer; one that is invalid or missing selects nothing.
pub fn selector(v: &Value, pointer: &str) -> LabelSelector {
    LabelSelector::from_value(v.pointer(pointer)).unwrap_or_else(|_| LabelSelector::none())
}

/// Whether an object is controlled by the owner with a UID.
pub fn is_controlled_by(v: &Value, owner: &str) -> bool {
    list(v, "/metadata/ownerReferences").iter().any(|o| o["uid"] == owner && o["controller"] == true)
}

/// `v1`, or `group/version`, and the kind, from an object; items of lists lack them.
pub fn object_name(v: &Value, api_version: &str, kind: &str) -> super::finding::ObjectName {
    super::finding::ObjectName::new(api_version, kind, namespace(v), name(v))
}
