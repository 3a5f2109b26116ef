//! Structural schemas of custom resources (`k8s.io/apiextensions-apiserver/pkg/apiserver/schema`): read into the same
//! [`Schema`] as that of built-in kinds, with the additional constraints of validation beside it.
//!
//! Pruning is part of [`crate::typed()`], defaulting of [`crate::fill()`]; both use this module for schemas with [`Schema::custom`].
//! Invariant: reading a schema never fails. The validation of the definition rejects schemas that are not structural.

mod formats;
mod lists;
mod pool;
mod validate;

pub use crate::enumeration::Enumeration;
pub use crate::pattern::{Pattern, Work};
pub use crate::types::{Bounds, Constraints};
pub use formats::is_known as is_known_format;
pub use lists::duplicates;
pub use validate::validate;

use crate::types::{Field, Fill, ListType, Presence, Schema, SchemaRef, Str, Type};
use serde_json::{Map, Value};
use std::sync::Arc;

/// The schema of objects, from `openAPIV3Schema`. `metadata` is the schema of `ObjectMeta`, which definitions do not repeat.
pub fn root(name: &str, json: Option<&Value>, metadata: &Arc<Schema>) -> Schema {
    let mut s = json.map_or_else(
        || Schema { custom: true, preserve_unknown: true, ..Schema::new(Type::Struct) },
        |v| node(v, metadata),
    );
    s.ty = Type::Struct;
    s.name = Some(name.into());
    embed(&mut s, metadata);
    for f in s.fields.iter_mut().filter(|f| &*f.name == "metadata") {
        f.presence = Presence::Struct;
    }
    s
}

/// Maximum work per byte of an object: the schemas and pattern characters that it is compared with at the same time.
pub fn work_per_byte(schema: &Schema) -> usize {
    fn below(s: &Schema) -> impl Iterator<Item = &Schema> {
        let all = s.fields.iter().map(|f| &f.schema).chain(&s.items).chain(&s.additional);
        all.map(|s| &**s).filter(|s| s.custom)
    }
    /// Alternatives and enumerations apply to a value and everything below it.
    fn walk(s: &Schema, around: usize) -> usize {
        let constraints = s.constraints.as_deref();
        let around =
            around.saturating_add(constraints.map_or(0, alternatives)).saturating_add(constraints.map_or(0, whole));
        let below = below(s).map(|s| walk(s, around)).max().unwrap_or_default();
        below.max(around.saturating_add(constraints.map_or(0, own)).saturating_add(1))
    }
    fn own(c: &Constraints) -> usize {
        let pattern = c.pattern.as_ref().map_or(0, |p| p.size().positions);
        pattern.saturating_add(c.required.len()).saturating_add(usize::from(c.format.is_some()))
    }
    fn whole(c: &Constraints) -> usize {
        usize::from(!c.allowed.is_empty())
    }
    fn alternatives(c: &Constraints) -> usize {
        let all = c.all_of.iter().chain(&c.any_of).chain(&c.one_of).chain(c.not.as_deref());
        all.fold(0, |sum, s| sum.saturating_add(everything(s)))
    }
    fn everything(s: &Schema) -> usize {
        let own =
            s.constraints.as_deref().map_or(0, |c| alternatives(c).saturating_add(own(c)).saturating_add(whole(c)));
        below(s).fold(own.saturating_add(1), |sum, s| sum.saturating_add(everything(s)))
    }
    walk(schema, 0)
}

/// The number of parts of all patterns of a schema: about 100 ns each, if none is compiled yet.
pub fn pattern_parts(schema: &Schema) -> usize {
    let constraints = schema.constraints.as_deref();
    let own = constraints.and_then(|c| c.pattern.as_ref()).map_or(0, |p| p.size().parts);
    let alternatives =
        constraints.into_iter().flat_map(|c| c.all_of.iter().chain(&c.any_of).chain(&c.one_of).chain(c.not.as_deref()));
    let fields = schema.fields.iter().map(|f| &f.schema).chain(&schema.items).chain(&schema.additional);
    let below = fields.map(|s| &**s).filter(|s| s.custom).chain(alternatives);
    below.fold(own, |sum, s| sum.saturating_add(pattern_parts(s)))
}

/// The schema at one path.
pub fn node(v: &Value, metadata: &Arc<Schema>) -> Schema {
    let flag = |k: &str| v[k] == true;
    let int_or_string = flag("x-kubernetes-int-or-string");
    let object = |k: &str| v[k].as_object();
    let ty = match v["type"].as_str() {
        _ if int_or_string => Type::IntOrString,
        Some("string") => Type::String,
        Some("integer") => Type::Int64,
        Some("number") => Type::Double,
        Some("boolean") => Type::Boolean,
        Some("array") => Type::Array,
        Some("object") if v["additionalProperties"].is_object() => Type::Map,
        Some("object") => Type::Struct,
        _ => Type::Any,
    };
    let mut s = Schema {
        custom: true,
        preserve_unknown: flag("x-kubernetes-preserve-unknown-fields"),
        nullable: flag("nullable"),
        atomic: v["x-kubernetes-map-type"] == "atomic",
        ..Schema::new(ty)
    };
    s.list = match v["x-kubernetes-list-type"].as_str() {
        Some("set") => ListType::Set,
        Some("map") => ListType::Map(strings(&v["x-kubernetes-list-map-keys"])),
        _ => ListType::Atomic,
    };
    s.fields = object("properties").into_iter().flatten().map(|(k, p)| field(k, p, metadata)).collect();
    s.fields.shrink_to_fit();
    s.items = Some(&v["items"]).filter(|i| i.is_object()).map(|i| pool::shared(i, metadata));
    s.additional = match &v["additionalProperties"] {
        Value::Object(_) => Some(pool::shared(&v["additionalProperties"], metadata)),
        Value::Bool(true) => Some(pool::shared(&serde_json::json!({"nullable": true}), metadata)),
        _ => None,
    };
    if flag("x-kubernetes-embedded-resource") {
        embed(&mut s, metadata);
    }
    s.constraints = constraints(v, int_or_string, metadata).map(Box::new);
    s
}

fn field(name: &str, v: &Value, metadata: &Arc<Schema>) -> Field {
    let default = v.get("default").filter(|d| !d.is_null());
    Field {
        fill: default.map(|d| Box::new(Fill { value: d.clone(), when: None })),
        ..Field::new(pool::name(name), pool::shared(v, metadata))
    }
}

/// Adds the fields of every object (`kind`, `apiVersion`, `metadata`).
fn embed(s: &mut Schema, metadata: &Arc<Schema>) {
    let text = || pool::shared(&serde_json::json!({"type": "string"}), metadata);
    s.fields.retain(|f| &*f.name != "metadata");
    s.fields.push(Field::new("metadata", SchemaRef::Inline(metadata.clone())));
    for name in ["apiVersion", "kind"] {
        if !s.fields.iter().any(|f| &*f.name == name) {
            s.fields.push(Field::new(name, text()));
        }
    }
    s.fields.sort_by(|a, b| a.name.cmp(&b.name));
}

fn strings(v: &Value) -> Vec<Str> {
    v.as_array().into_iter().flatten().filter_map(Value::as_str).map(Into::into).collect()
}

fn constraints(v: &Value, int_or_string: bool, metadata: &Arc<Schema>) -> Option<Constraints> {
    const KEYS: [&str; 20] = [
        "format",
        "pattern",
        "minimum",
        "maximum",
        "multipleOf",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "minProperties",
        "maxProperties",
        "enum",
        "required",
        "allOf",
        "anyOf",
        "oneOf",
        "not",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "uniqueItems",
    ];
    let m: &Map<String, Value> = v.as_object()?;
    if !KEYS.iter().any(|k| m.get(*k).is_some_and(|v| !v.is_null())) {
        return None;
    }
    let bounds = |min: &str, max: &str| {
        let count = |k: &str| v[k].as_u64().map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        Bounds { min: count(min), max: count(max) }
    };
    let schemas =
        |k: &str| -> Vec<Schema> { v[k].as_array().into_iter().flatten().map(|s| node(s, metadata)).collect() };
    // Implied by the type.
    let any_of = if int_or_string && is_int_or_string(&v["anyOf"]) { Vec::new() } else { schemas("anyOf") };
    Some(Constraints {
        format: v["format"].as_str().filter(|f| formats::is_known(&v["type"], f)).map(Into::into),
        pattern: v["pattern"].as_str().filter(|p| !p.is_empty()).map(|p| Box::new(Pattern::new(p))),
        minimum: v["minimum"].as_f64(),
        maximum: v["maximum"].as_f64(),
        exclusive_minimum: v["exclusiveMinimum"] == true,
        exclusive_maximum: v["exclusiveMaximum"] == true,
        multiple_of: v["multipleOf"].as_f64(),
        length: bounds("minLength", "maxLength"),
        items: bounds("minItems", "maxItems"),
        properties: bounds("minProperties", "maxProperties"),
        allowed: Enumeration::new(v["enum"].as_array().cloned().unwrap_or_default()),
        required: strings(&v["required"]),
        all_of: schemas("allOf"),
        any_of,
        one_of: schemas("oneOf"),
        not: v["not"].is_object().then(|| Box::new(node(&v["not"], metadata))),
    })
}

/// `[{type: integer}, {type: string}]`, the only junctor that may have types.
pub fn is_int_or_string(any_of: &Value) -> bool {
    *any_of == serde_json::json!([{"type": "integer"}, {"type": "string"}])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Two requests of a few kilobytes stopped the API for half a minute: each item made a text of the whole enumeration.
    #[test]
    fn errors_list_only_what_they_keep() {
        let texts: Vec<Value> = (0..100_000).map(|i| format!("value-{i}").into()).collect();
        let s = node(
            &json!({"type": "array", "items": {"type": "string", "enum": texts}}),
            &Arc::new(Schema::new(Type::Struct)),
        );
        let all = Value::Array(vec!["none".into(); 50_000]);
        let errors = meta::field::bounded(|| {
            let mut errors = Vec::new();
            validate(&all, None, &s, &meta::FieldPath::root(), &Work::new(), &mut errors);
            errors
        });
        assert!(errors.len() > 1000 && errors[0].detail.contains("\"value-99999\""), "{}", errors.len());
    }

    /// A text of a megabyte against a pattern of a thousand characters that may all match next took a minute of a thread.
    #[test]
    fn validation_ends_when_its_work_is_used_up() {
        // A hundredth of what an object has, so that it ends soon in a test.
        const WORK: u64 = 1_000_000;
        let check = |text: usize, pattern: &str| {
            let s = node(&json!({"type": "string", "pattern": pattern}), &Arc::new(Schema::new(Type::Struct)));
            let mut errors = Vec::new();
            validate(&"a".repeat(text).into(), None, &s, &meta::FieldPath::root(), &Work::with(WORK), &mut errors);
            (work_per_byte(&s), errors.into_iter().map(|e| e.body().to_string()).collect::<Vec<_>>())
        };
        let (work, errors) = check(1 << 20, "(a?){900}b");
        assert!(work > 900, "{work}");
        assert!(errors.len() == 1 && errors[0].contains("takes too much work to validate"), "{errors:?}");
        // Everything that costs is counted: formats, required names, large enumerations, comparisons with what was before.
        let is_too_much = |schema: Value, old: Option<&Value>, v: &Value| {
            let s = node(&schema, &Arc::new(Schema::new(Type::Struct)));
            let mut errors = Vec::new();
            validate(v, old, &s, &meta::FieldPath::root(), &Work::with(WORK), &mut errors);
            errors.iter().any(|e| e.detail.contains("takes too much work")).then(|| work_per_byte(&s))
        };
        let long = Value::from("1".repeat(1 << 20));
        let formats = vec![json!({"format": "isbn"}); 5_000];
        let work = is_too_much(json!({"type": "string", "anyOf": formats}), None, &long);
        assert!(work.is_some_and(|w| w > 5_000), "{work:?}");
        let required: Vec<String> = (0..50_000).map(|i| i.to_string()).collect();
        let items = json!({"type": "array", "items": {"type": "object", "required": required}});
        let work = is_too_much(items, None, &vec![json!({}); 2_000].into());
        assert!(work.is_some_and(|w| w > 50_000), "{work:?}");
        let mut last: Vec<Value> = (0..100_000).map(Value::from).collect();
        let old = json!({"a": last});
        last.pop();
        last.push(0.into());
        let new = json!({"a": last});
        let same = json!({"properties": {"a": {"type": "array", "minItems": 100_001}}});
        assert!(is_too_much(json!({"type": "object", "anyOf": vec![same; 2_000]}), Some(&old), &new).is_some());
        // Large patterns are known before they are compiled.
        let s = node(
            &json!({"properties": {"a": {"anyOf": vec![json!({"pattern": "^\\pL{6}$"}); 10]}}}),
            &Arc::new(Schema::new(Type::Struct)),
        );
        assert!(pattern_parts(&s) > 50_000, "{}", pattern_parts(&s));
        // What definitions usually have is checked.
        assert_eq!(check(1 << 16, "^a+$").1, [""; 0]);
        let (_, errors) = check(100, "^[a-z0-9]([-a-z0-9]*[a-z0-9])?b$");
        assert!(errors.len() == 1 && errors[0].contains("should match"), "{errors:?}");
    }
}
