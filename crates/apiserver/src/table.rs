//! `Table` and `PartialObjectMetadata` representations of objects.

use crate::content::{Negotiated, Shape};
use kinds::Column;
use kinds::columns::{Cell, Columns};
use meta::{FieldError, FieldPath, Object, Status, Value};
use registry::Resource;
use serde_json::json;

/// Rejects an invalid `includeObject` parameter for tables.
pub fn check_include(negotiated: &Negotiated, include: &str) -> Result<(), Status> {
    if negotiated.shape != Shape::Table || matches!(include, "" | "None" | "Metadata" | "Object") {
        return Ok(());
    }
    let why = "must be 'Metadata', 'Object', 'None', or empty";
    let e = FieldError::invalid(&FieldPath::new("includeObject"), include, why);
    Err(Status::bad_request(format!("Unable to convert to Table as requested: {e}")))
}

/// How to build a table.
pub struct TableOptions<'a> {
    /// The version of the `Table`.
    pub meta: &'a str,
    /// The `includeObject` parameter.
    pub include: &'a str,
    /// Whether to include column definitions.
    pub headers: bool,
    pub now: &'a str,
}

/// Builds a table of objects.
pub fn table(row: &Resource, objects: &[Object], list: Value, how: &TableOptions<'_>) -> Value {
    let definitions: Vec<Value> = columns(row).iter().map(definition).collect();
    let mut t = json!({"kind": "Table", "apiVersion": how.meta, "metadata": list, "rows": rows(row, objects, how)});
    t["columnDefinitions"] = if how.headers { definitions.into() } else { Value::Null };
    t
}

/// The rows of a table.
pub fn rows(row: &Resource, objects: &[Object], how: &TableOptions<'_>) -> Vec<Value> {
    let columns = columns(row);
    let own = |cell: &Cell<'_>| row.strategy.cell(cell);
    let columns = Columns::new(&columns, how.now, &own);
    objects
        .iter()
        .map(|o| {
            let mut r = json!({"cells": columns.cells(o)});
            match how.include {
                "None" => {}
                "Object" => r["object"] = o.clone().into_value(),
                _ => r["object"] = partial(o, how.meta),
            }
            r
        })
        .collect()
}

/// The columns of a kind; name and age by default.
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

pub fn partial(o: &Object, meta: &str) -> Value {
    let metadata = o.get("metadata").cloned().unwrap_or_else(|| json!({}));
    json!({"kind": "PartialObjectMetadata", "apiVersion": meta, "metadata": metadata})
}

/// Rejects the partial metadata of one object for a list.
pub fn check_list(row: &Resource, negotiated: &Negotiated) -> Result<(), Status> {
    if negotiated.shape != Shape::PartialMetadata {
        return Ok(());
    }
    let name = go_type(row, &row.kind.group, &row.kind.list_kind(), "UnstructuredList");
    let why = format!("you requested PartialObjectMetadata, but the requested object is a list ({name})");
    Err(Status::not_acceptable(why))
}

/// Rejects a list of partial metadata for one object.
pub fn check_object(row: &Resource, negotiated: &Negotiated, object: &Object) -> Result<(), Status> {
    if negotiated.shape != Shape::PartialMetadataList || object.kind() == "Status" {
        return Ok(());
    }
    let group = object.api_version().rsplit_once('/').map_or("", |(g, _)| g);
    let name = go_type(row, group, object.kind(), "Unstructured");
    let why = format!("you requested PartialObjectMetadataList, but the requested object is not a list ({name})");
    Err(Status::not_acceptable(why))
}

/// The Go type in upstream's message: its package is named after the group; custom resources have none.
fn go_type(row: &Resource, group: &str, kind: &str, custom: &str) -> String {
    if !row.bare_items {
        return format!("*unstructured.{custom}");
    }
    let package = match group {
        "" | "events.k8s.io" => "core",
        "internal.apiserver.k8s.io" => "apiserverinternal",
        group => group.split('.').next().unwrap_or(group),
    };
    format!("*{package}.{kind}")
}
