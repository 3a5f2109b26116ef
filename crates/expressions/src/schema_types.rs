//! The CEL types of structural schemas: types with their size bounds, and shapes (`k8s.io/apiserver/pkg/cel/common/schemas.go`).

use cel::{Decl, Field, ListKind, Object, Shape, Type};
use meta::Value;
use std::sync::Arc;

/// The limit of a request body in bytes, and thus of every value in one.
const REQUEST: u64 = 3 * 1024 * 1024;

/// A type with the minimum length of its values.
pub struct Typed {
    /// The type and its maximum size.
    pub decl: Decl,
    /// The minimum number of characters of a value in JSON.
    pub least: u64,
}

/// The maximum number of values in a request, if each has at least `least` characters.
pub fn max_occurrences(least: u64) -> u64 {
    REQUEST / (least + 1)
}

/// The type of objects of a schema without references; none where the schema has no type.
pub fn schema_type(schema: &Value) -> Option<Type> {
    typed(schema, false).map(|t| t.decl.ty)
}

/// The type of a part of a schema; none where the schema has no type. `root`: the part is a whole object with metadata.
pub fn typed(s: &Value, root: bool) -> Option<Typed> {
    let limit = |k: &str| s[k].as_u64();
    let made = |ty: Type, max: u64, least: u64| Some(Typed { decl: Decl::new(ty, max), least });
    if s["x-kubernetes-int-or-string"] == true {
        return made(Type::Dyn, limit("maxLength").map_or(REQUEST - 2, |n| n * 4), 1);
    }
    match s["type"].as_str().unwrap_or_default() {
        "array" => {
            let items = typed(&s["items"], false)?;
            let max = limit("maxItems").unwrap_or((REQUEST - 2) / (items.least + 1));
            made(Type::List(Arc::new(items.decl)), max, 2)
        }
        "object" => object(s, root || s["x-kubernetes-embedded-resource"] == true),
        "string" => string(s),
        // Upstream gives these no size.
        "boolean" => made(Type::Bool, 0, 4),
        "number" => made(Type::Double, 0, 1),
        "integer" => made(Type::Int, 0, 1),
        _ => None,
    }
}

fn string(s: &Value) -> Option<Typed> {
    let longest = s["maxLength"].as_u64();
    let (ty, max, least) = match s["format"].as_str().unwrap_or_default() {
        "byte" => (Type::Bytes, longest.unwrap_or(REQUEST - 2), 2),
        "duration" => (Type::Duration, 32, 3),
        "date" => (Type::Timestamp, 12, 12),
        "date-time" => (Type::Timestamp, 32, 21),
        _ => {
            let of_enum = || {
                let all = s["enum"].as_array().filter(|e| !e.is_empty())?;
                all.iter().map(|v| v.as_str().map_or(0, str::len) as u64).max()
            };
            // A character may take four bytes.
            (Type::String, longest.map(|n| n * 4).or_else(of_enum).unwrap_or(REQUEST - 2), 2)
        }
    };
    Some(Typed { decl: Decl::new(ty, max), least })
}

fn object(s: &Value, resource: bool) -> Option<Typed> {
    if s["additionalProperties"].is_object() {
        let values = typed(&s["additionalProperties"], false)?;
        let max = s["maxProperties"].as_u64().unwrap_or((REQUEST - 2) / (values.least + 6));
        // Nor has it a size for keys.
        let ty = Type::map(Decl::new(Type::String, 0), values.decl);
        return Some(Typed { decl: Decl::new(ty, max), least: 2 });
    }
    let mut o = Object { name: "object".into(), ..Object::default() };
    let mut least = 2;
    for (name, p) in s["properties"].as_object().into_iter().flatten() {
        if resource && matches!(&**name, "apiVersion" | "kind" | "metadata") {
            continue;
        }
        let Some(t) = typed(p, false) else { continue };
        let required = s["required"].as_array().is_some_and(|r| r.iter().any(|r| *r == **name));
        if required && p["default"].is_null() {
            least += name.len() as u64 + t.least + 4;
        }
        if let Some(escaped) = escape(name) {
            o.fields.insert(escaped, Field { json: name.clone(), decl: t.decl });
        }
    }
    if resource {
        let text = || Decl::new(Type::String, REQUEST - 2);
        let mut add = |name: &str, decl: Decl| o.fields.insert(name.into(), Field { json: name.into(), decl });
        add("apiVersion", text());
        add("kind", text());
        let mut meta = Object { name: "metadata".into(), ..Object::default() };
        for name in ["name", "generateName"] {
            meta.fields.insert(name.into(), Field { json: name.into(), decl: text() });
        }
        add("metadata", Decl::new(Type::Object(Arc::new(meta)), 0));
    }
    Some(Typed { decl: Decl::new(Type::Object(Arc::new(o)), 0), least })
}

/// The name of a property in expressions; none if an expression cannot contain it.
pub fn escape(name: &str) -> Option<String> {
    if cel::is_reserved(name) {
        return Some(format!("__{name}__"));
    }
    let first = name.chars().next()?;
    let well = name.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c));
    if first.is_ascii_digit() || !well {
        return None;
    }
    Some(
        name.replace("__", "__underscores__")
            .replace('.', "__dot__")
            .replace('-', "__dash__")
            .replace('/', "__slash__"),
    )
}

/// How expressions see JSON values of a schema, where that is not as JSON has them.
pub fn shape(s: &Value) -> Option<Shape> {
    if s["x-kubernetes-int-or-string"] == true {
        return None;
    }
    match s["type"].as_str().unwrap_or_default() {
        "number" => Some(Shape::Double),
        "string" => match s["format"].as_str().unwrap_or_default() {
            "byte" => Some(Shape::Bytes),
            "duration" => Some(Shape::Duration),
            "date" | "date-time" => Some(Shape::Timestamp),
            _ => None,
        },
        "array" => {
            let items = shape(&s["items"]).map(Box::new);
            let kind = match s["x-kubernetes-list-type"].as_str() {
                Some("set") => ListKind::Set,
                Some("map") => ListKind::Map(keys(s)),
                _ => ListKind::Atomic,
            };
            (items.is_some() || kind != ListKind::Atomic).then_some(Shape::List(kind, items))
        }
        "object" if s["additionalProperties"].is_object() => {
            shape(&s["additionalProperties"]).map(|v| Shape::Values(Box::new(v)))
        }
        "object" => {
            let all = s["properties"].as_object().into_iter().flatten();
            let fields: Vec<_> = all.filter_map(|(n, p)| Some((n.as_str().into(), shape(p)?))).collect();
            (!fields.is_empty()).then_some(Shape::Fields(fields))
        }
        _ => None,
    }
}

/// The keys of a list of the type `map`.
pub fn keys(s: &Value) -> Vec<Box<str>> {
    s["x-kubernetes-list-map-keys"].as_array().into_iter().flatten().filter_map(|k| Some(k.as_str()?.into())).collect()
}
