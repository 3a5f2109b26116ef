//! `Table` and `PartialObjectMetadata`: other shapes of the same objects.

use crate::content::{Shape, Wanted};
use kinds::Column;
use meta::{FieldError, FieldPath, Object, Status, Value};
use registry::Resource;
use serde_json::json;

/// Refuses a value of the `includeObject` parameter that means nothing, where it would mean something.
pub fn check_include(wanted: &Wanted, include: &str) -> Result<(), Status> {
    if wanted.shape != Shape::Table || matches!(include, "" | "None" | "Metadata" | "Object") {
        return Ok(());
    }
    let why = "must be 'Metadata', 'Object', 'None', or empty";
    let e = FieldError::invalid(&FieldPath::new("includeObject"), include, why);
    Err(Status::bad_request(format!("Unable to convert to Table as requested: {e}")))
}

/// Makes a table of objects. `include` is the `includeObject` parameter.
pub fn table(row: &Resource, objects: &[Object], list: Value, include: &str, headers: bool, now: &str) -> Value {
    let columns = columns(row);
    let definitions: Vec<Value> = columns.iter().map(definition).collect();
    let rows: Vec<Value> = objects
        .iter()
        .map(|o| {
            let cells: Vec<Value> = columns.iter().map(|c| kinds::columns::cell(c, o, now)).collect();
            let mut r = json!({"cells": cells});
            match include {
                "None" => {}
                "Object" => r["object"] = o.clone().into_value(),
                _ => r["object"] = partial(o),
            }
            r
        })
        .collect();
    let mut t = json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": list, "rows": rows});
    t["columnDefinitions"] = if headers { definitions.into() } else { Value::Null };
    t
}

/// The columns of a kind; name and age where nothing is said.
fn columns(row: &Resource) -> Vec<Column> {
    if !row.kind.columns.is_empty() {
        return row.kind.columns.clone();
    }
    let column = |name: &str, ty: &str, format: &str, value: &str| Column {
        name: name.into(),
        ty: ty.into(),
        format: format.into(),
        description: "".into(),
        priority: 0,
        value: vec![value.into()],
    };
    vec![
        column("Name", "string", "name", ".metadata.name"),
        column("Created At", "date", "", ".metadata.creationTimestamp"),
    ]
}

fn definition(c: &Column) -> Value {
    json!({"name": &*c.name, "type": &*c.ty, "format": &*c.format, "description": &*c.description, "priority": c.priority})
}

pub fn partial(o: &Object) -> Value {
    let metadata = o.get("metadata").cloned().unwrap_or_else(|| json!({}));
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata})
}
