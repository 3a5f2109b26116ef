//! OpenAPI v3 and v2, derived from the rows and the definitions their schemas refer to.

mod custom;
mod protobuf;

use crate::Server;
use crate::answer::bytes;
use crate::body::Body;
use crate::discovery::change;
use crate::documents::Document;
use crate::path::Query;
use http::header::{CACHE_CONTROL, ETAG, EXPIRES, IF_NONE_MATCH, LOCATION, VARY};
use http::request::Parts;
use http::{HeaderValue, Response};
use meta::{Status, Value};
use registry::{Resource, Rows};
use schema::{Field, ListType, Presence, Schema, SchemaRef, Type};
use serde_json::{Map, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Under which the document of v2 in protobuf is kept; no path.
const PROTOBUF: &str = "v2 as protobuf";

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
        let document = server.documents.get_bytes(PROTOBUF, change, || protobuf::encode(&v2()).into());
        return Some(Ok(bytes(200, protobuf::MEDIA_TYPE, Body::Full(document.text))));
    }
    match path {
        "/openapi/v3" => {
            let make = || {
                let mut index = index(server, &rows);
                others.add_v3(&mut index);
                index
            };
            Some(Ok(bytes(200, "application/json", Body::Full(server.documents.get_list(path, change, make).text))))
        }
        "/openapi/v2" => Some(Ok(tagged(parts, server.documents.get(path, change, v2)))),
        _ => {
            let place = path.strip_prefix("/openapi/v3/")?;
            let gv = of_place(place)?;
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

/// A document, or that it is still the one the client has.
fn tagged(parts: &Parts, document: Document) -> Response<Body> {
    let etag = format!("\"{}\"", document.hash);
    let mut known = parts.headers.get_all(IF_NONE_MATCH).iter().filter_map(|v| v.to_str().ok());
    let is_it = |t: &str| t == "*" || t.trim_start_matches("W/") == etag;
    let same = known.any(|v| v.split(',').any(|t| is_it(t.trim())));
    let mut r = if same {
        bytes(304, "application/json", Body::empty())
    } else {
        bytes(200, "application/json", Body::Full(document.text))
    };
    if let Ok(t) = HeaderValue::from_str(&etag) {
        r.headers_mut().insert(ETAG, t);
    }
    r.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
    r
}

/// With the hash in its address a document never changes; with another one the client is sent to the right address.
fn hashed(server: &Server, parts: &Parts, document: Document) -> Response<Body> {
    let query = Query::parse(parts.uri.query());
    let asked = query.get("hash");
    if asked.is_empty() {
        return tagged(parts, document);
    }
    if asked != &*document.hash {
        let mut r = bytes(301, "application/json", Body::empty());
        if let Ok(place) = HeaderValue::from_str(&format!("{}?hash={}", parts.uri.path(), document.hash)) {
            r.headers_mut().insert(LOCATION, place);
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

/// The version that a path of OpenAPI v3 is about.
pub(crate) fn version_of(path: &str) -> Option<meta::GroupVersion> {
    of_place(path.trim_end_matches('/').strip_prefix("/openapi/v3/")?)
}

fn of_place(place: &str) -> Option<meta::GroupVersion> {
    let parts: Vec<&str> = place.split('/').collect();
    match parts[..] {
        ["api", v] => Some(meta::GroupVersion::new("", v)),
        ["apis", g, v] => Some(meta::GroupVersion::new(g, v)),
        _ => None,
    }
}

fn place_of(gv: &meta::GroupVersion) -> String {
    if gv.group.is_empty() { format!("api/{}", gv.version) } else { format!("apis/{}/{}", gv.group, gv.version) }
}

fn index(server: &Server, rows: &Rows) -> Value {
    let gvs: BTreeSet<meta::GroupVersion> = rows.iter().map(|r| r.kind.group_version()).collect();
    let mut paths = Map::new();
    for gv in gvs {
        let place = place_of(&gv);
        let hash = server
            .documents
            .get(&format!("/openapi/v3/{place}"), rows.change(Some(&gv)), || v3(server, rows, &gv))
            .hash;
        paths.insert(place.clone(), json!({"serverRelativeURL": format!("/openapi/v3/{place}?hash={hash}")}));
    }
    json!({"paths": paths})
}

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.";
const REF3: &str = "#/components/schemas/";
const REF2: &str = "#/definitions/";

fn v3(server: &Server, rows: &Rows, gv: &meta::GroupVersion) -> Value {
    let mut needed = Needed::default();
    let mut paths = Map::new();
    for r in rows.iter().filter(|r| r.kind.group_version() == *gv) {
        needed.add_kind(server, r);
        add_paths(&mut paths, r, |name| json!({"$ref": format!("{REF3}{name}")}), true);
    }
    let schemas = needed.render(rows, REF3, Dialect::V3);
    json!({"openapi": "3.0.0", "info": {"title": "Kubernetes", "version": crate::health::VERSION}, "paths": paths,
        "components": {"schemas": schemas}})
}

fn v2(server: &Server, rows: &Rows) -> Value {
    let mut needed = Needed::default();
    let mut paths = Map::new();
    for r in rows.iter() {
        needed.add_kind(server, r);
        add_paths(&mut paths, r, |name| json!({"$ref": format!("{REF2}{name}")}), false);
    }
    let definitions = needed.render(rows, REF2, Dialect::V2);
    json!({"swagger": "2.0", "info": {"title": "Kubernetes", "version": crate::health::VERSION}, "paths": paths,
        "definitions": definitions})
}

fn add_paths(paths: &mut Map<String, Value>, r: &Resource, reference: impl Fn(&str) -> Value, v3: bool) {
    let k = &r.kind;
    let gvk = json!({"group": &*k.group, "version": &*k.version, "kind": &*k.kind});
    let root = format!("/{}", place_of(&k.group_version()));
    let base = if k.namespaced {
        format!("{root}/namespaces/{{namespace}}/{}", k.plural)
    } else {
        format!("{root}/{}", k.plural)
    };
    let name = k.schema.name.as_deref().unwrap_or_default();
    let body = |schema: Value| {
        if v3 {
            json!({"description": "OK", "content": {"application/json": {"schema": schema}}})
        } else {
            json!({"description": "OK", "schema": schema})
        }
    };
    let operation = |verb: &str, schema: &str| {
        let action = match verb {
            "create" => "post",
            "update" => "put",
            v => v,
        };
        let mut o = json!({"operationId": format!("{verb}{}{}", k.version, k.kind), "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": gvk, "responses": {"200": body(reference(schema))}});
        // Clients look here whether the server validates fields and tries without writing.
        if matches!(verb, "create" | "update" | "patch") {
            let parameter = |name: &str| match v3 {
                true => json!({"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": true}}),
                false => json!({"name": name, "in": "query", "type": "string", "uniqueItems": true}),
            };
            o["parameters"] = ["dryRun", "fieldManager", "fieldValidation", "force"].map(parameter).to_vec().into();
        }
        o
    };
    let mut collection = Map::new();
    let mut item = Map::new();
    for v in &k.verbs {
        match &**v {
            "list" => collection.insert("get".into(), operation("list", &format!("{name}List"))),
            "create" => collection.insert("post".into(), operation("create", name)),
            "deletecollection" => collection.insert("delete".into(), operation("deletecollection", name)),
            "get" => item.insert("get".into(), operation("get", name)),
            "update" => item.insert("put".into(), operation("update", name)),
            "patch" => item.insert("patch".into(), operation("patch", name)),
            "delete" => item.insert("delete".into(), operation("delete", name)),
            _ => None,
        };
    }
    if !collection.is_empty() {
        paths.insert(base.clone(), collection.into());
    }
    if !item.is_empty() {
        paths.insert(format!("{base}/{{name}}"), item.into());
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Dialect {
    V2,
    V3,
}

/// The definitions that a document needs.
#[derive(Default)]
struct Needed {
    schemas: BTreeMap<String, Arc<Schema>>,
    /// Of custom resources, as their definitions write them.
    custom: BTreeMap<String, Value>,
}

impl Needed {
    fn add_kind(&mut self, server: &Server, r: &Resource) {
        if let (Some(v), Some(name)) = (r.strategy.published(server.registry.env()), &r.kind.schema.name) {
            self.custom.insert(name.to_string(), v);
            for common in ["ObjectMeta", "ListMeta"].map(|n| format!("{META}{n}")) {
                if let Some(s) = kinds::catalog().definitions.get(&common) {
                    self.add(&common, s);
                }
            }
        } else if let Some(name) = &r.kind.schema.name {
            self.add(name, &r.kind.schema);
            let list = format!("{name}List");
            if let Some(s) = kinds::catalog().definitions.get(&list) {
                self.add(&list, s);
            }
        }
        for s in r.kind.subresources.iter().filter_map(|s| s.speaks.as_ref()) {
            if let Some(schema) = kinds::catalog().schema_of(s)
                && let Some(name) = schema.name.clone()
            {
                self.add(&name, schema);
            }
        }
        let meta = ["DeleteOptions", "Status", "WatchEvent", "APIResourceList", "Patch"];
        for name in meta.map(|n| format!("io.k8s.apimachinery.pkg.apis.meta.v1.{n}")) {
            if let Some(s) = kinds::catalog().definitions.get(&name) {
                self.add(&name, s);
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

    fn render(&self, rows: &Rows, prefix: &str, dialect: Dialect) -> Value {
        let texts = kinds::texts();
        let mut kinds_of: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
        for r in rows.iter() {
            if let Some(n) = r.kind.schema.name.as_deref() {
                let k = &r.kind;
                let gvk = json!({"group": &*k.group, "version": &*k.version, "kind": &*k.kind});
                kinds_of.entry(n).or_default().push(gvk);
            }
        }
        let empty = BTreeMap::new();
        let mut out = Map::new();
        for (name, schema) in &self.schemas {
            let text = texts.get(name).unwrap_or(&empty);
            let mut v = node(schema, prefix, dialect, text);
            if let Some(gvks) = kinds_of.get(name.as_str()) {
                v["x-kubernetes-group-version-kind"] = gvks.clone().into();
            }
            out.insert(name.clone(), v);
        }
        for (name, schema) in &self.custom {
            let gvks = kinds_of.get(name.as_str()).cloned().unwrap_or_default();
            custom::add(&mut out, name, schema, &gvks, prefix, dialect == Dialect::V2);
        }
        out.into()
    }
}

/// A definition, or an inline schema.
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
        let mut i = reference(items, prefix, dialect, &none);
        if items.ty == Type::String && items.name().is_none() && dialect == Dialect::V3 {
            i["default"] = "".into();
        }
        v["items"] = i;
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
            // The items of a list kind have no topology: nobody applies a list.
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
    // What has nothing to say beside the reference is the reference.
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

/// The default of the schema: what the field declares, or the zero that Go's encoder writes.
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
