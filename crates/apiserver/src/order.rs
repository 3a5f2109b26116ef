//! JSON in the form of upstream's encoders: fields in the order of the Go types, and a trailing newline unless
//! indented.
//!
//! The order comes from the API description; types missing in it (tables, aggregated discovery) are listed here.

use codec::json::write_typed;
use meta::Value;
use schema::{Field, Schema, SchemaRef, Type};
use std::sync::{Arc, OnceLock};

/// Indentation of pretty output.
const INDENT: &str = "  ";

/// Encodes an object with a known kind.
pub(crate) fn json(v: &Value, pretty: bool) -> Vec<u8> {
    let named = |k: &str| v[k].as_str().unwrap_or_default();
    let (version, kind) = (named("apiVersion"), named("kind"));
    let schema = special(kind).or_else(|| schema_of(if version.is_empty() { "v1" } else { version }, kind));
    write(v, schema, pretty)
}

/// Encodes a value of a definition, without `kind`.
pub(crate) fn json_as(v: &Value, definition: &str) -> Vec<u8> {
    write(v, kinds::catalog().definitions.get(definition).map(|s| &**s), true)
}

/// Encodes a document without a definition, with its fields in the given order.
pub(crate) fn json_listed(v: &Value, fields: &[&str]) -> Vec<u8> {
    let any = || inline(Schema::new(Type::Any));
    let schema = record(fields.iter().map(|f| (*f, any())).collect());
    write(v, Some(&schema), false).trim_ascii_end().to_vec()
}

/// The schema of the objects in a list, for encoding; none for custom resources.
pub(crate) fn schema_of_items(version: &str, list_kind: &str) -> Option<&'static Schema> {
    schema_of(version, list_kind)?.field("items")?.schema.get().items.as_deref()
}

/// The schema of a kind in any version, for encoding.
pub(crate) fn schema_of(version: &str, kind: &str) -> Option<&'static schema::Schema> {
    let gv = meta::GroupVersion::parse(version)?;
    kinds::catalog().schema_of(&gv.with_kind(kind)).map(|s| &**s)
}

fn write(v: &Value, schema: Option<&Schema>, pretty: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(1024);
    write_typed(&mut out, v, schema, pretty.then_some(INDENT));
    out
}

/// Encodes a watch event as one line.
pub(crate) fn write_event(out: &mut Vec<u8>, kind: &str, object: &Value) {
    out.extend_from_slice(b"{\"type\":\"");
    out.extend_from_slice(kind.as_bytes());
    out.extend_from_slice(b"\",\"object\":");
    out.extend_from_slice(json(object, false).trim_ascii_end());
    out.extend_from_slice(b"}\n");
}

/// Types without a definition.
fn special(kind: &str) -> Option<&'static Schema> {
    static SPECIAL: OnceLock<Special> = OnceLock::new();
    let all = SPECIAL.get_or_init(Special::new);
    match kind {
        "Table" => Some(&all.table),
        "PartialObjectMetadata" => Some(&all.partial),
        "PartialObjectMetadataList" => Some(&all.partial_list),
        "APIGroupDiscoveryList" => Some(&all.discovery),
        _ => None,
    }
}

struct Special {
    table: Arc<Schema>,
    partial: Arc<Schema>,
    partial_list: Arc<Schema>,
    discovery: Arc<Schema>,
}

impl Special {
    fn new() -> Self {
        let plain = || inline(Schema::new(Type::Any));
        let defined = |name: &str| {
            let found = kinds::catalog().definitions.get(&format!("io.k8s.apimachinery.pkg.apis.meta.v1.{name}"));
            found.map_or_else(plain, |s| SchemaRef::Inline(s.clone()))
        };
        let kind = || ("kind", plain());
        let version = || ("apiVersion", plain());
        let partial = record(vec![kind(), version(), ("metadata", defined("ObjectMeta"))]);
        let list = |items: &Arc<Schema>| {
            let meta = ("metadata", defined("ListMeta"));
            record(vec![kind(), version(), meta, ("items", list_of(items))])
        };
        let column = ["name", "type", "format", "description", "priority"].map(|n| (n, plain())).to_vec();
        // The object in a table row is metadata only, unless it is complete.
        let row =
            record(vec![("cells", plain()), ("conditions", plain()), ("object", SchemaRef::Inline(partial.clone()))]);
        let table = record(vec![
            kind(),
            version(),
            ("metadata", defined("ListMeta")),
            ("columnDefinitions", list_of(&record(column))),
            ("rows", list_of(&row)),
        ]);
        let response = || SchemaRef::Inline(record(["group", "version", "kind"].map(|n| (n, plain())).to_vec()));
        let part = record(vec![
            ("subresource", plain()),
            ("responseKind", response()),
            ("acceptedTypes", plain()),
            ("verbs", plain()),
        ]);
        let resource = record(vec![
            ("resource", plain()),
            ("responseKind", response()),
            ("scope", plain()),
            ("singularResource", plain()),
            ("verbs", plain()),
            ("shortNames", plain()),
            ("categories", plain()),
            ("subresources", list_of(&part)),
        ]);
        let version_of = record(vec![("version", plain()), ("resources", list_of(&resource)), ("freshness", plain())]);
        let group = record(vec![("metadata", defined("ObjectMeta")), ("versions", list_of(&version_of))]);
        Self { table, partial_list: list(&partial), partial, discovery: list(&group) }
    }
}

fn inline(s: Schema) -> SchemaRef {
    SchemaRef::Inline(Arc::new(s))
}

fn list_of(items: &Arc<Schema>) -> SchemaRef {
    inline(Schema { items: Some(SchemaRef::Inline(items.clone())), ..Schema::new(Type::Array) })
}

/// A struct with these fields, in this order.
fn record(fields: Vec<(&str, SchemaRef)>) -> Arc<Schema> {
    let numbered = fields.into_iter().zip(0..);
    let mut fields: Vec<Field> = numbered.map(|((n, s), place)| Field { place, ..Field::new(n, s) }).collect();
    fields.sort_by(|a, b| a.name.cmp(&b.name));
    Arc::new(Schema { fields, ..Schema::new(Type::Struct) })
}
