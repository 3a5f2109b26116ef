//! A value for every field of a schema, no two alike.

use meta::{Map, Value};
use schema::{Schema, Type};
use serde_json::json;

/// How often a definition may be inside of itself.
const AGAIN: usize = 1;

/// A value with every field set. A value of several shapes has the one of this number.
pub fn full(schema: &Schema, variant: usize) -> Value {
    Sampler { variant, count: 0, inside: Vec::new() }.value(schema)
}

struct Sampler<'a> {
    variant: usize,
    count: i64,
    /// The definitions on the way here.
    inside: Vec<&'a str>,
}

impl<'a> Sampler<'a> {
    fn value(&mut self, s: &'a Schema) -> Value {
        self.count += 1;
        let n = self.count;
        match s.ty {
            Type::String => format!("text-{n}").into(),
            Type::Bytes => schema::base64(format!("bytes-{n}").as_bytes()).into(),
            Type::Int32 => (-n).into(),
            Type::Int64 => (n << 33).into(),
            Type::Double => (n as f64 + 0.5).into(),
            Type::Boolean => true.into(),
            Type::Time => format!("2026-11-23T{:02}:{:02}:{:02}Z", n / 3600 % 24, n / 60 % 60, n % 60).into(),
            Type::MicroTime => format!("2026-11-23T10:00:{:02}.{:06}Z", n % 60, n).into(),
            Type::Duration => format!("{n}ns").into(),
            Type::Quantity => format!("{n}m").into(),
            Type::IntOrString if n % 2 == 0 => n.into(),
            Type::IntOrString => format!("port-{n}").into(),
            Type::Raw => json!({"a": n, "b": ["x", null, 1.5]}),
            Type::Any if s.alternatives.is_empty() => json!([n, {"any": "x"}]),
            Type::Any => {
                let shape = &s.alternatives[self.variant % s.alternatives.len()].schema;
                // The same boolean twice would hide which of them is read.
                if shape.ty == Type::Boolean { (n % 2 == 0).into() } else { self.value(shape) }
            }
            Type::Array => {
                let items = s.items.as_deref().unwrap();
                json!([self.value(items), self.value(items)])
            }
            Type::Map => {
                let values = s.additional.as_deref().unwrap();
                json!({"one": self.value(values), "two": self.value(values)})
            }
            Type::Struct => {
                let name = s.name.as_deref().unwrap_or_default();
                let deep = self.inside.iter().filter(|i| **i == name).count() > AGAIN;
                let mut m = Map::new();
                self.inside.push(name);
                for f in s.fields.iter().filter(|f| !matches!(&*f.name, "apiVersion" | "kind") || f.number != 0) {
                    if !(deep && is_nested(&f.schema)) {
                        m.insert(f.name.to_string(), self.value(&f.schema));
                    }
                }
                self.inside.pop();
                m.into()
            }
        }
    }
}

fn is_nested(s: &Schema) -> bool {
    match s.ty {
        Type::Struct => true,
        Type::Any => !s.alternatives.is_empty(),
        Type::Array => s.items.as_deref().is_some_and(is_nested),
        Type::Map => s.additional.as_deref().is_some_and(is_nested),
        _ => false,
    }
}
