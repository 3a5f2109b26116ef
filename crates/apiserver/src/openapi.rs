//! OpenAPI v3 and v2, derived from the rows and the definitions that their schemas reference.
//!
//! Schemas are serialized one at a time: the schemas of all stored definitions are never in memory as values
//! together.

mod custom;
mod descriptions;
mod operations;
mod paths;
mod protobuf;

use crate::Server;
use crate::answer;
use crate::body::Body;
use crate::discovery::change;
use crate::documents::Document;
use crate::path::Query;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, ETAG, EXPIRES, IF_NONE_MATCH, LOCATION, VARY};
use http::request::Parts;
use http::{HeaderValue, Response};
use kinds::Kind;
use meta::{GroupVersion, Status, Value};
use operations::Methods;
use registry::{Resource, Rows};
use schema::{Field, ListType, Presence, Schema, SchemaRef, Type};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The cache key of the v2 document in protobuf; not a path.
const PROTOBUF: &str = "/openapi/v2 as protobuf";

pub(crate) fn answer(server: &Server, parts: &Parts) -> Option<Result<Response<Body>, Status>> {
    let path = parts.uri.path().trim_end_matches('/');
    let rows = server.registry.rows();
    let others = server.aggregator.table();
    let change = change(server, &rows);
    let v2 = || {
        let mut v = v2(server, &rows);
        others.add_v2(&mut v);
        v
    };
    if path == "/openapi/v2" && protobuf::is_asked_for(parts) {
        let document = server.documents.get(PROTOBUF, change, || protobuf::encode(&v2()).into());
        return Some(Ok(answer::bytes(200, protobuf::MEDIA_TYPE, Body::Full(document.text))));
    }
    match path {
        "/openapi/v3" => {
            let make = || {
                let mut index = index(server, &rows);
                others.add_v3(&mut index);
                index
            };
            Some(Ok(answer::bytes(
                200,
                "application/json",
                Body::Full(server.documents.get_list(path, change, make).text),
            )))
        }
        "/openapi/v2" => Some(Ok(tagged(parts, server.documents.get(path, change, || text(&v2()))))),
        _ => {
            let path_key = path.strip_prefix("/openapi/v3/")?;
            if let Some(operations) = of_discovery(&rows).get(path_key) {
                let make = || document_v3(server, &rows, Needed::default(), operations, None);
                return Some(Ok(hashed(server, parts, server.documents.get(path, rows.change(None), make))));
            }
            let gv = group_version_of(path_key)?;
            if !rows.iter().any(|r| r.kind.group_version() == gv) {
                return Some(Err(Status::no_such_path()));
            }
            Some(Ok(hashed(
                server,
                parts,
                server.documents.get(path, rows.change(Some(&gv)), || v3(server, &rows, &gv)),
            )))
        }
    }
}

/// Responds with a document, or 304 if the client has it.
fn tagged(parts: &Parts, document: Document) -> Response<Body> {
    let etag = format!("\"{}\"", document.hash);
    let mut known = parts.headers.get_all(IF_NONE_MATCH).iter().filter_map(|v| v.to_str().ok());
    let is_it = |t: &str| t == "*" || t.trim_start_matches("W/") == etag;
    let same = known.any(|v| v.split(',').any(|t| is_it(t.trim())));
    let mut r = if same {
        answer::bytes(304, "application/json", Body::empty())
    } else {
        answer::bytes(200, "application/json", Body::Full(document.text))
    };
    if let Ok(t) = HeaderValue::from_str(&etag) {
        r.headers_mut().insert(ETAG, t);
    }
    r.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
    r
}

/// A document is immutable under a URL with its hash; another hash redirects.
fn hashed(server: &Server, parts: &Parts, document: Document) -> Response<Body> {
    let query = Query::parse(parts.uri.query());
    let hash = query.get("hash");
    if hash.is_empty() {
        return tagged(parts, document);
    }
    if hash != &*document.hash {
        let mut r = answer::bytes(301, "application/json", Body::empty());
        if let Ok(location) = HeaderValue::from_str(&format!("{}?hash={}", parts.uri.path(), document.hash)) {
            r.headers_mut().insert(LOCATION, location);
        }
        return r;
    }
    let mut r = tagged(parts, document);
    let now = server.registry.clock.now();
    let expires = now.checked_add(YEAR).unwrap_or(now).strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
    r.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
    if let Ok(v) = HeaderValue::from_str(&expires) {
        r.headers_mut().insert(EXPIRES, v);
    }
    r
}

const YEAR: std::time::Duration = std::time::Duration::from_secs(365 * 24 * 3600);

/// The group version of an OpenAPI v3 path.
pub(crate) fn version_of(path: &str) -> Option<GroupVersion> {
    group_version_of(path.trim_end_matches('/').strip_prefix("/openapi/v3/")?)
}

fn group_version_of(path_key: &str) -> Option<GroupVersion> {
    let parts: Vec<&str> = path_key.split('/').collect();
    match parts[..] {
        ["api", v] => Some(GroupVersion::new("", v)),
        ["apis", g, v] => Some(GroupVersion::new(g, v)),
        _ => None,
    }
}

fn place_of(gv: &GroupVersion) -> String {
    if gv.group.is_empty() { format!("api/{}", gv.version) } else { format!("apis/{}/{}", gv.group, gv.version) }
}

fn index(server: &Server, rows: &Rows) -> Value {
    let mut paths = Map::new();
    let mut add = |path_key: &str, change: Option<&GroupVersion>, make: &dyn Fn() -> Bytes| {
        let path = format!("/openapi/v3/{path_key}");
        let hash = server.documents.get(&path, rows.change(change), make).hash;
        paths.insert(path_key.to_owned(), json!({"serverRelativeURL": format!("{path}?hash={hash}")}));
    };
    for gv in versions(rows) {
        add(&place_of(&gv), Some(&gv), &|| v3(server, rows, &gv));
    }
    for (path_key, operations) in of_discovery(rows) {
        add(&path_key, None, &|| document_v3(server, rows, Needed::default(), &operations, None));
    }
    json!({"paths": paths})
}

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.";
const REF3: &str = "#/components/schemas/";
const REF2: &str = "#/definitions/";

const SECURITY: &str = "BearerToken";

/// How clients authenticate.
fn security() -> Value {
    json!({SECURITY: {"type": "apiKey", "in": "header", "name": "authorization", "description": "A bearer token"}})
}

fn information() -> Value {
    let version = crate::health::VERSION.trim_start_matches('v');
    // The emulated version has no patch.
    let version = version.rsplit_once('.').map_or(version, |(minor, _)| minor);
    json!({"title": "Kubernetes", "version": version})
}

/// Of the documents that upstream makes of CustomResourceDefinitions.
fn information_of_definitions() -> Value {
    json!({"title": "Kubernetes CRD Swagger", "version": "v0.1.0"})
}

/// Serialized schemas or paths by name.
pub(crate) type Texts = BTreeMap<String, Box<RawValue>>;

/// JSON serializes as is.
fn raw(v: &Value) -> Box<RawValue> {
    serde_json::value::to_raw_value(v).unwrap_or_default()
}

/// The OpenAPI v2 document.
#[derive(Serialize)]
pub(crate) struct V2 {
    swagger: &'static str,
    info: Value,
    pub paths: Texts,
    pub parameters: Value,
    pub definitions: Texts,
    #[serde(rename = "securityTexts")]
    security_definitions: Value,
    security: Value,
}

/// An OpenAPI v3 document.
#[derive(Serialize)]
struct V3 {
    openapi: &'static str,
    info: Value,
    paths: Texts,
    components: Components,
}

#[derive(Serialize)]
struct Components {
    schemas: Texts,
    #[serde(rename = "securitySchemes")]
    security_schemes: Value,
}

/// Serializes values to memory, which cannot fail.
fn text(v: &impl Serialize) -> Bytes {
    serde_json::to_vec(v).unwrap_or_default().into()
}

fn v3(server: &Server, rows: &Rows, gv: &GroupVersion) -> Bytes {
    let mut needed = Needed::default();
    for r in rows.iter().filter(|r| r.kind.group_version() == *gv) {
        needed.add_kind(r);
    }
    document_v3(server, rows, needed, &operations::of_version(rows, gv), Some(gv))
}

/// The v3 documents of discovery paths, by path.
fn of_discovery(rows: &Rows) -> BTreeMap<String, BTreeMap<String, Methods>> {
    operations::of_discovery(rows)
}

fn document_v3(
    server: &Server,
    rows: &Rows,
    mut needed: Needed<'_>,
    operations: &BTreeMap<String, Methods>,
    version: Option<&GroupVersion>,
) -> Bytes {
    let mut mentioned = BTreeSet::new();
    let paths = paths::v3(operations, &mut mentioned);
    needed.add_all(&mentioned);
    let is_custom = !needed.custom.is_empty();
    let schemas = needed.render(server, rows, REF3, Dialect::V3, &version.into_iter().cloned().collect());
    let components = Components { schemas, security_schemes: security() };
    let info = if is_custom { information_of_definitions() } else { information() };
    text(&V3 { openapi: "3.0.0", info, paths, components })
}

fn v2(server: &Server, rows: &Rows) -> V2 {
    let mut needed = Needed::default();
    let mut operations: BTreeMap<String, Methods> = of_discovery(rows).into_values().flatten().collect();
    for gv in versions(rows) {
        operations.extend(operations::of_version(rows, &gv));
    }
    for r in rows.iter() {
        needed.add_kind(r);
    }
    let mut mentioned = BTreeSet::new();
    let (paths, parameters) = paths::v2(&operations, &mut mentioned);
    needed.add_all(&mentioned);
    V2 {
        swagger: "2.0",
        info: information(),
        paths,
        parameters,
        definitions: needed.render(server, rows, REF2, Dialect::V2, &versions(rows)),
        security_definitions: security(),
        security: json!([{SECURITY: []}]),
    }
}

fn versions(rows: &Rows) -> BTreeSet<GroupVersion> {
    rows.iter().map(|r| r.kind.group_version()).collect()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Dialect {
    V2,
    V3,
}

/// The definitions that a document needs.
#[derive(Default)]
struct Needed<'a> {
    schemas: BTreeMap<String, Arc<Schema>>,
    /// Custom resources: their schemas are in the stored definitions.
    custom: BTreeMap<String, &'a Resource>,
}

impl<'a> Needed<'a> {
    fn add_kind(&mut self, r: &'a Resource) {
        if let (true, Some(name)) = (r.strategy.is_custom(), &r.kind.schema.name) {
            self.custom.insert(name.to_string(), r);
            for common in ["ObjectMeta", "ListMeta"].map(|n| format!("{META}{n}")) {
                if let Some(s) = kinds::catalog().definitions.get(&common) {
                    self.add(&common, s);
                }
            }
        } else if let Some(name) = &r.kind.schema.name {
            self.add(name, &r.kind.schema);
            let list = list_name(name, &r.kind);
            if let Some(s) = kinds::catalog().definitions.get(&list) {
                self.add(&list, s);
            }
        }
    }

    /// Adds the built-in definitions that operations reference.
    fn add_all(&mut self, names: &BTreeSet<String>) {
        for name in names {
            if let Some(s) = kinds::catalog().definitions.get(name) {
                self.add(name, s);
            }
        }
    }

    fn add(&mut self, name: &str, schema: &Arc<Schema>) {
        if self.schemas.insert(name.to_owned(), schema.clone()).is_none() {
            self.follow(schema);
        }
    }

    fn follow(&mut self, schema: &Schema) {
        let fields = schema.fields.iter().map(|f| &f.schema);
        for r in fields.chain(&schema.items).chain(&schema.additional) {
            match r {
                SchemaRef::Named(name, cell) => {
                    if let Some(s) = cell.get() {
                        self.add(name, s);
                    }
                }
                SchemaRef::Inline(s) => self.follow(s),
            }
        }
    }

    /// The definitions in a document about these versions.
    fn render(
        &self,
        server: &Server,
        rows: &Rows,
        prefix: &str,
        dialect: Dialect,
        versions: &BTreeSet<GroupVersion>,
    ) -> Texts {
        let texts = kinds::texts();
        let mut kinds_of: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        let mut lists: BTreeMap<String, &Kind> = BTreeMap::new();
        for r in rows.iter() {
            if let Some(n) = r.kind.schema.name.as_deref() {
                let k = &r.kind;
                let gvk = |kind: &str| json!({"group": &*k.group, "version": &*k.version, "kind": kind});
                kinds_of.entry(n.to_owned()).or_default().push(gvk(&k.kind));
                let list = list_name(n, k);
                if self.schemas.contains_key(&list) {
                    kinds_of.entry(list.clone()).or_default().push(gvk(&k.list_kind()));
                    lists.insert(list, k);
                }
            }
            // The kinds that subresources have for clients.
            for gvk in r.kind.subresources.iter().filter_map(|s| s.speaks.as_ref()) {
                let name = kinds::catalog().schema_of(gvk).and_then(|s| s.name.as_deref());
                let named = json!({"group": gvk.group, "version": gvk.version, "kind": gvk.kind});
                let known = name.map(|n| kinds_of.entry(n.to_owned()).or_default()).filter(|k| !k.contains(&named));
                known.into_iter().for_each(|k| k.push(named.clone()));
            }
        }
        let empty = BTreeMap::new();
        let mut out = Texts::new();
        let mut add = |name: &str, v: &Value| out.insert(name.to_owned(), raw(v));
        for (name, schema) in &self.schemas {
            let list_texts = lists.get(name).map(|k| descriptions::list_descriptions(&texts, k));
            let text = texts.get(name).or(list_texts.as_ref()).unwrap_or(&empty);
            let mut v = node(schema, prefix, dialect, text);
            let common = name.strip_prefix(META).map(|kind| common_kinds(kind, versions)).unwrap_or_default();
            if let Some(gvks) = kinds_of.get(name).cloned().or(Some(common)).filter(|k| !k.is_empty()) {
                v["x-kubernetes-group-version-kind"] = gvks.into();
            }
            add(name, &v);
        }
        let publisher = custom::Publisher { prefix, v2: dialect == Dialect::V2, texts: &texts };
        for (name, row) in &self.custom {
            // It may have been deleted a moment ago.
            let Some(schema) = row.strategy.published(server.registry.env()) else { continue };
            for (name, v) in publisher.definitions(name, &row.kind, schema) {
                add(&name, &v);
            }
        }
        out
    }
}

/// The kinds of a common type, some of which every version has.
fn common_kinds(kind: &str, versions: &BTreeSet<GroupVersion>) -> Vec<Value> {
    let core = GroupVersion::new("", "v1");
    let of_all = match kind {
        "DeleteOptions" | "WatchEvent" => true,
        "Status" | "APIResourceList" | "APIVersions" | "APIGroup" | "APIGroupList" => false,
        _ => return Vec::new(),
    };
    let others = versions.iter().filter(|gv| of_all && **gv != core);
    let named = |gv: &GroupVersion| json!({"group": gv.group, "version": gv.version, "kind": kind});
    [&core].into_iter().chain(others).map(named).collect()
}

/// The definition of a kind's list; `name`: of the kind's definition.
fn list_name(name: &str, kind: &Kind) -> String {
    let package = name.rsplit_once('.').map_or("", |(package, _)| package);
    format!("{package}.{}", kind.list_kind())
}

/// A reference to a definition, or an inline schema.
fn node(s: &Schema, prefix: &str, dialect: Dialect, texts: &BTreeMap<String, String>) -> Value {
    let mut v = match s.ty {
        Type::String => json!({"type": "string"}),
        Type::Bytes => json!({"type": "string", "format": "byte"}),
        Type::Int32 => json!({"type": "integer", "format": "int32"}),
        Type::Int64 => json!({"type": "integer", "format": "int64"}),
        Type::Double => json!({"type": "number", "format": "double"}),
        Type::Boolean => json!({"type": "boolean"}),
        Type::Time | Type::MicroTime => json!({"type": "string", "format": "date-time"}),
        Type::Duration => json!({"type": "string"}),
        Type::Quantity if dialect == Dialect::V2 => json!({"type": "string"}),
        Type::Quantity => json!({"oneOf": [{"type": "string"}, {"type": "number"}]}),
        Type::IntOrString if dialect == Dialect::V2 => json!({"type": "string", "format": "int-or-string"}),
        Type::IntOrString => json!({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]}),
        Type::Any => json!({}),
        Type::Raw | Type::Struct | Type::Map => json!({"type": "object"}),
        Type::Array => json!({"type": "array"}),
    };
    if let Some(d) = texts.get("") {
        v["description"] = d.as_str().into();
    }
    let none = BTreeMap::new();
    if let Some(items) = &s.items {
        v["items"] = reference(items, prefix, dialect, &none);
    }
    if let Some(a) = &s.additional {
        v["additionalProperties"] = reference(a, prefix, dialect, &none);
    }
    if !s.enum_values.is_empty() {
        v["enum"] = s.enum_values.iter().map(|e| Value::from(&**e)).collect();
    }
    if s.ty == Type::Struct {
        let mut properties = Map::new();
        for f in &s.fields {
            let mut p = property(f, prefix, dialect, texts);
            // The items of list kinds have no merge keys: lists are never applied.
            if &*f.name == "items" && s.name.as_deref().is_some_and(|n| n.ends_with("List")) {
                p.as_object_mut().map(|p| p.remove("x-kubernetes-list-type"));
            }
            properties.insert(f.name.to_string(), p);
        }
        if !properties.is_empty() {
            v["properties"] = properties.into();
        }
        let required: Vec<&str> = s.fields.iter().filter(|f| f.required).map(|f| &*f.name).collect();
        if !required.is_empty() {
            v["required"] = required.into();
        }
        if s.atomic {
            v["x-kubernetes-map-type"] = "atomic".into();
        }
    }
    v
}

fn reference(r: &SchemaRef, prefix: &str, dialect: Dialect, texts: &BTreeMap<String, String>) -> Value {
    match r.name() {
        Some(name) => json!({"$ref": format!("{prefix}{name}")}),
        None => node(r, prefix, dialect, texts),
    }
}

fn property(f: &Field, prefix: &str, dialect: Dialect, texts: &BTreeMap<String, String>) -> Value {
    let none = BTreeMap::new();
    // A reference without siblings needs no `allOf`.
    let bare = !texts.contains_key(&*f.name) && published_default(f).is_none();
    let mut v = match (f.schema.name(), dialect) {
        (Some(name), Dialect::V3) if !bare => json!({"allOf": [{"$ref": format!("{prefix}{name}")}]}),
        _ => reference(&f.schema, prefix, dialect, &none),
    };
    if let Some(d) = texts.get(&*f.name) {
        v["description"] = d.as_str().into();
    }
    if dialect == Dialect::V3
        && let Some(d) = published_default(f)
    {
        v["default"] = d;
    }
    if f.schema.ty == Type::Array && f.schema.name().is_none() {
        let (kind, keys) = match &f.schema.list {
            ListType::Atomic => ("atomic", None),
            ListType::Set => ("set", None),
            ListType::Map(keys) => ("map", Some(keys)),
        };
        v["x-kubernetes-list-type"] = kind.into();
        if let Some(keys) = keys {
            v["x-kubernetes-list-map-keys"] = keys.iter().map(|k| Value::from(&**k)).collect();
        }
    }
    if f.atomic || (f.schema.name().is_none() && f.schema.ty == Type::Map && f.schema.atomic) {
        v["x-kubernetes-map-type"] = "atomic".into();
    }
    if f.granular {
        v["x-kubernetes-map-type"] = "granular".into();
    }
    let p = &f.patch;
    let strategies: Vec<&str> = [(p.merge, "merge"), (p.retain_keys, "retainKeys"), (p.replace, "replace")]
        .into_iter()
        .filter(|(on, _)| *on)
        .map(|(_, s)| s)
        .collect();
    if !strategies.is_empty() {
        v["x-kubernetes-patch-strategy"] = strategies.join(",").into();
    }
    if let Some(k) = &p.merge_key {
        v["x-kubernetes-patch-merge-key"] = (**k).into();
    }
    v
}

/// The default of a field: declared, or the zero value that Go encodes.
fn published_default(f: &Field) -> Option<Value> {
    if f.default.is_some() {
        return f.default.clone();
    }
    match (f.presence, f.schema.ty) {
        (Presence::Struct, _) => Some(json!({})),
        (Presence::Always, Type::String) => Some("".into()),
        (Presence::Always, Type::Int32 | Type::Int64 | Type::Double) => Some(0.into()),
        (Presence::Always, Type::Boolean) => Some(false.into()),
        _ => None,
    }
}
