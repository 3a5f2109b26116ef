//! Unpacks the table that the build packed.

use crate::kind::{Column, Generation, Kind, MetadataCheck, Subresource};
use meta::GroupVersion;
use schema::types::Alternative;
use schema::{Definitions, Field, Fill, ListType, PatchStrategy, Presence, Rule, Schema, SchemaRef, Str, Type};
use serde::Deserialize;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;

pub const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

#[derive(Deserialize)]
struct Table<'a> {
    #[serde(borrow)]
    versions: Vec<RawVersion<'a>>,
    #[serde(borrow)]
    definitions: HashMap<&'a str, RawDefinition<'a>>,
}

#[derive(Deserialize)]
struct RawVersion<'a> {
    group: &'a str,
    version: &'a str,
    prefix: &'a str,
    kinds: Vec<RawKind>,
}

#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct RawKind {
    kind: Str,
    plural: Str,
    singular: Option<Str>,
    generation: Option<Str>,
    stored: Option<Str>,
    expires: bool,
    orphans: bool,
    revisioned: bool,
    put_creates: bool,
    any_finalizer: bool,
    answers_deleted: bool,
    metadata_checks: Vec<(Str, Vec<Str>)>,
    warning: Option<Str>,
    namespaced: bool,
    verbs: Option<Vec<Str>>,
    short: Vec<Str>,
    categories: Vec<Str>,
    sub: Vec<RawSub>,
    select: Vec<Str>,
    columns: Vec<(Str, Str, Str, i32, Vec<Str>)>,
}

#[derive(Deserialize)]
struct RawSub {
    name: Str,
    verbs: Vec<Str>,
    #[serde(rename = "as")]
    speaks: Option<(String, String)>,
}

#[derive(Deserialize)]
struct RawDefinition<'a> {
    t: &'a str,
    #[serde(borrow)]
    f: Vec<RawField<'a>>,
    #[serde(default)]
    atomic: bool,
    #[serde(default)]
    order: Vec<Str>,
    /// The alternatives, with their protobuf numbers.
    #[serde(default)]
    either: Vec<(String, u32)>,
}

#[derive(Deserialize)]
struct RawField<'a> {
    n: Str,
    t: &'a str,
    #[serde(default)]
    r: bool,
    #[serde(default)]
    p: u32,
    #[serde(default)]
    o: u16,
    go: Option<Str>,
    #[serde(default)]
    e: &'a str,
    i: Option<Str>,
    #[serde(default)]
    boxed: bool,
    default: Option<Value>,
    map: Option<Vec<Str>>,
    #[serde(default)]
    set: bool,
    #[serde(default)]
    atomic: bool,
    #[serde(default)]
    granular: bool,
    #[serde(default)]
    exact: bool,
    #[serde(rename = "enum", default)]
    enum_values: Vec<Str>,
    merge: Option<Value>,
    #[serde(rename = "retainKeys", default)]
    retain_keys: bool,
    #[serde(default)]
    replace: bool,
    fill: Option<Value>,
    when: Option<(Str, Vec<Str>)>,
    #[serde(default)]
    rules: Vec<&'a str>,
}

/// The prefix of the definitions of a group and version.
pub fn prefix(group: &str, version: &str) -> String {
    match group {
        "" => format!("io.k8s.api.core.{version}"),
        "apiextensions.k8s.io" => format!("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.{version}"),
        "apiregistration.k8s.io" => format!("io.k8s.kube-aggregator.pkg.apis.apiregistration.{version}"),
        g => format!("io.k8s.api.{}.{version}", g.split('.').next().unwrap_or(g)),
    }
}

pub fn load() -> (Vec<Kind>, Definitions) {
    let text = include_str!(concat!(env!("OUT_DIR"), "/table.json"));
    let table: Table = match serde_json::from_str(text) {
        Ok(t) => t,
        Err(e) => unreachable!("the build packed a table that cannot be read: {e}"),
    };
    let mut builder = Builder::default();
    for (name, d) in &table.definitions {
        let schema = builder.definition(name, d);
        builder.definitions.define(name, schema);
    }
    let mut kinds = Vec::new();
    for v in &table.versions {
        for k in &v.kinds {
            let schema = builder.definitions.get(&format!("{}.{}", v.prefix, k.kind)).cloned();
            let Some(schema) = schema else { unreachable!("{} has no definition", k.kind) };
            builder.list(v.prefix, &k.kind);
            kinds.push(kind(v, k, schema));
        }
    }
    let dangling = builder.definitions.dangling();
    assert!(dangling.is_empty(), "the table refers to definitions it does not have: {dangling:?}");
    (kinds, builder.definitions)
}

fn kind(v: &RawVersion<'_>, k: &RawKind, schema: Arc<Schema>) -> Kind {
    let standard = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
    let columns = k.columns.iter().map(|(name, ty, format, priority, value)| Column {
        name: name.clone(),
        ty: ty.clone(),
        format: format.clone(),
        description: "".into(),
        priority: *priority,
        value: value.clone(),
    });
    let sub = |s: &RawSub| Subresource {
        name: s.name.clone(),
        verbs: s.verbs.clone(),
        speaks: s.speaks.as_ref().and_then(|(gv, kind)| Some(GroupVersion::parse(gv)?.with_kind(kind.as_str()))),
    };
    let checks = |(part, names): &(Str, Vec<Str>)| {
        (part.clone(), names.iter().filter_map(|n| MetadataCheck::parse(n)).collect())
    };
    Kind {
        group: v.group.into(),
        version: v.version.into(),
        kind: k.kind.clone(),
        plural: k.plural.clone(),
        singular: k.singular.clone().unwrap_or_else(|| k.kind.to_lowercase().into()),
        list: None,
        namespaced: k.namespaced,
        generation: k.generation.as_deref().and_then(Generation::parse),
        stored: k
            .stored
            .as_deref()
            .and_then(GroupVersion::parse)
            .unwrap_or_else(|| GroupVersion::new(v.group, v.version)),
        expires: k.expires,
        orphans: k.orphans,
        needs_revision: k.revisioned,
        put_creates: k.put_creates,
        any_finalizer: k.any_finalizer,
        answers_deleted: k.answers_deleted,
        metadata_checks: k.metadata_checks.iter().map(checks).collect(),
        warning: k.warning.clone(),
        verbs: k.verbs.clone().unwrap_or_else(|| standard.iter().map(|s| (*s).into()).collect()),
        short_names: k.short.clone(),
        categories: k.categories.clone(),
        subresources: k.sub.iter().map(sub).collect(),
        selectable: k.select.iter().map(|s| s.split_once('=').map_or(&**s, |(name, _)| name).into()).collect(),
        stored_fields: k.select.iter().filter_map(|s| s.split_once('=')).map(|(n, p)| (n.into(), p.into())).collect(),
        columns: columns.collect(),
        schema,
    }
}

#[derive(Default)]
struct Builder {
    definitions: Definitions,
    scalars: HashMap<&'static str, Arc<Schema>>,
}

impl Builder {
    fn definition(&mut self, name: &str, d: &RawDefinition<'_>) -> Schema {
        let (_, ty) = scalar(d.t).unwrap_or(("struct", Type::Struct));
        let mut fields: Vec<Field> = d.f.iter().map(|f| self.field(f)).collect();
        fields.sort_by(|a, b| a.name.cmp(&b.name));
        let order = d.order.clone();
        let alternatives = d
            .either
            .iter()
            .map(|(t, number)| Alternative { number: *number, schema: self.schema(t, &ListType::Atomic, false, &[]) });
        let alternatives = alternatives.collect();
        Schema { name: Some(name.into()), fields, atomic: d.atomic, order, alternatives, ..Schema::new(ty) }
    }

    fn field(&mut self, f: &RawField<'_>) -> Field {
        let list = match (&f.map, f.set) {
            (Some(keys), _) => ListType::Map(keys.clone()),
            (None, true) => ListType::Set,
            _ => ListType::Atomic,
        };
        let is_list = f.t.starts_with('[');
        let atomic_map = f.atomic && f.t.starts_with('{');
        Field {
            name: f.n.clone(),
            schema: self.schema(f.t, &list, atomic_map, &f.enum_values),
            required: f.r,
            default: f.default.clone(),
            fill: f.fill.clone().map(|value| Box::new(Fill { value, when: f.when.clone() })),
            presence: match f.e {
                "*" | "*!" => Presence::Pointer,
                "!" => Presence::Always,
                "{}" => Presence::Struct,
                _ => Presence::OmitZero,
            },
            patch: PatchStrategy {
                merge: f.merge.is_some(),
                retain_keys: f.retain_keys,
                replace: f.replace,
                merge_key: f.merge.as_ref().and_then(Value::as_str).map(Into::into),
            },
            atomic: f.atomic && !is_list,
            granular: f.granular,
            null: f.e == "*!",
            in_milli: f.go.as_deref() == Some("v1.ResourceList") && !f.exact,
            rules: f.rules.iter().map(|r| rule(r)).collect(),
            number: f.p,
            place: f.o,
            go: f.go.clone(),
            boxed: f.boxed,
            inline_of: f.i.clone(),
        }
    }

    /// Reads a short type: `string`, `&definition`, `[type`, `{type`.
    fn schema(&mut self, t: &str, list: &ListType, atomic_map: bool, enum_values: &[Str]) -> SchemaRef {
        if let Some(name) = t.strip_prefix('&') {
            return self.definitions.reference(name);
        }
        if let Some(item) = t.strip_prefix('[') {
            let items = Some(self.schema(item, &ListType::Atomic, false, enum_values));
            return SchemaRef::Inline(Arc::new(Schema { items, list: list.clone(), ..Schema::new(Type::Array) }));
        }
        if let Some(value) = t.strip_prefix('{') {
            let additional = Some(self.schema(value, &ListType::Atomic, false, &[]));
            return SchemaRef::Inline(Arc::new(Schema { additional, atomic: atomic_map, ..Schema::new(Type::Map) }));
        }
        let (name, ty) = scalar(t).unwrap_or(("any", Type::Any));
        if !enum_values.is_empty() {
            return SchemaRef::Inline(Arc::new(Schema { enum_values: enum_values.to_vec(), ..Schema::new(ty) }));
        }
        SchemaRef::Inline(self.scalars.entry(name).or_insert_with(|| Arc::new(Schema::new(ty))).clone())
    }

    /// The list kind of a kind.
    fn list(&mut self, prefix: &str, kind: &str) {
        let name = format!("{prefix}.{kind}List");
        let string = self.schema("string", &ListType::Atomic, false, &[]);
        let items = self.schema(&format!("[&{prefix}.{kind}"), &ListType::Atomic, false, &[]);
        let metadata = self.definitions.reference(&format!("{META}.ListMeta"));
        let mut fields = vec![
            Field { presence: Presence::OmitZero, ..Field::new("apiVersion", string.clone()) },
            Field { presence: Presence::Always, required: true, number: 2, ..Field::new("items", items) },
            Field { presence: Presence::OmitZero, ..Field::new("kind", string) },
            Field { presence: Presence::Struct, number: 1, ..Field::new("metadata", metadata) },
        ];
        fields.sort_by(|a, b| a.name.cmp(&b.name));
        let schema = Schema { name: Some(name.as_str().into()), fields, ..Schema::new(Type::Struct) };
        self.definitions.define(&name, schema);
    }
}

fn rule(text: &str) -> Rule {
    match text.parse() {
        Ok(r) => r,
        Err(e) => unreachable!("data/ has an unknown rule: {e}"),
    }
}

fn scalar(t: &str) -> Option<(&'static str, Type)> {
    Some(match t {
        "string" => ("string", Type::String),
        "bytes" => ("bytes", Type::Bytes),
        "int32" => ("int32", Type::Int32),
        "int64" => ("int64", Type::Int64),
        "double" => ("double", Type::Double),
        "boolean" => ("boolean", Type::Boolean),
        "quantity" => ("quantity", Type::Quantity),
        "int-or-string" => ("int-or-string", Type::IntOrString),
        "time" => ("time", Type::Time),
        "micro-time" => ("micro-time", Type::MicroTime),
        "duration" => ("duration", Type::Duration),
        "raw" => ("raw", Type::Raw),
        "any" => ("any", Type::Any),
        "struct" => ("struct", Type::Struct),
        _ => return None,
    })
}
