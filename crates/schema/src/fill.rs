//! Defaulting: the values that the server fills into absent fields.

use crate::types::{Fill, Presence, Schema, Type};
use meta::Quantity;
use serde_json::{Map, Value};

/// Fills in the defaults of a schema, at every depth.
///
/// A default is only filled into an object that is there (`Presence::Struct` fields always are, after [`crate::typed()`]), as
/// Go's defaulting functions do.
pub fn fill(value: &mut Value, schema: &Schema) {
    fill_within(value, schema, usize::MAX);
}

/// As [`fill`], with a limit on the bytes of a custom resource's defaults: its author may define a default of any size for each item of a
/// list. False if the limit is exceeded; then further defaults are left out.
pub fn fill_within(value: &mut Value, schema: &Schema, most: usize) -> bool {
    if schema.custom {
        let mut room = Room { left: most, suffices: true };
        if schema.walk_index().has_defaults {
            fill_custom(value, schema, &mut room);
        }
        return room.suffices;
    }
    fill_built_in(value, schema);
    true
}

/// A lower bound on the bytes of a value as JSON, without escapes and numbers.
pub fn size(value: &Value) -> usize {
    match value {
        Value::String(s) => s.len() + 2,
        Value::Array(a) => 2 + a.iter().map(|v| 1 + size(v)).sum::<usize>(),
        Value::Object(m) => 2 + m.iter().map(|(k, v)| k.len() + 4 + size(v)).sum::<usize>(),
        _ => 1,
    }
}

/// The bytes of defaults that may still be filled in.
struct Room {
    left: usize,
    suffices: bool,
}

impl Room {
    fn take(&mut self, bytes: usize) -> bool {
        let left = self.left.checked_sub(bytes);
        self.left = left.unwrap_or(self.left);
        self.suffices &= left.is_some();
        left.is_some()
    }
}

fn fill_built_in(value: &mut Value, schema: &Schema) {
    if !schema.walk_index().has_defaults {
        return;
    }
    match (value, schema.ty) {
        (Value::Object(m), Type::Struct) => fill_struct(m, schema),
        (Value::Object(m), Type::Map) => {
            if let Some(s) = schema.additional.as_deref() {
                m.values_mut().for_each(|v| fill_built_in(v, s));
            }
        }
        (Value::Array(a), Type::Array) => {
            if let Some(s) = schema.items.as_deref() {
                a.iter_mut().for_each(|v| fill_built_in(v, s));
            }
        }
        _ => {}
    }
}

/// Defaults of a custom resource (`k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting`): for what is absent, and
/// for a `null` that is no value.
fn fill_custom(value: &mut Value, schema: &Schema, room: &mut Room) {
    // Embedded parts may be of built-in kinds.
    let below = |v: &mut Value, s: &Schema, room: &mut Room| match s.custom {
        true => fill_custom(v, s, room),
        false => fill_built_in(v, s),
    };
    match value {
        Value::Object(m) => {
            for f in &schema.fields {
                let Some(d) = &f.fill else { continue };
                let absent = m.get(&*f.name).is_none_or(|v| v.is_null() && !f.schema.nullable);
                if absent && room.take(f.name.len() + 4 + size(&d.value)) {
                    m.insert(f.name.to_string(), d.value.clone());
                }
            }
            for (k, v) in m.iter_mut() {
                if let Some(s) = schema.member(k) {
                    below(v, s, room);
                }
            }
        }
        Value::Array(a) => {
            if let Some(s) = schema.items.as_deref() {
                a.iter_mut().for_each(|v| below(v, s, room));
            }
        }
        _ => {}
    }
}

fn round_up(v: &mut Value) {
    if let Some(q) = v.as_str().and_then(|s| Quantity::parse(s).ok())
        && q.nano_value() % 1_000_000 != 0
    {
        *v = q.round_up_to_milli().to_string().into();
    }
}

/// The order of defaults: one that requires a sibling to be absent comes before the sibling's own default.
#[derive(PartialEq)]
enum Turn {
    SiblingAbsent,
    Always,
    SiblingIs,
}

impl Turn {
    fn new(f: &Fill) -> Self {
        match &f.when {
            None => Self::Always,
            Some((_, values)) if values.iter().any(|v| v.is_empty()) => Self::SiblingAbsent,
            Some(_) => Self::SiblingIs,
        }
    }
}

fn fill_struct(m: &mut Map<String, Value>, schema: &Schema) {
    let index = schema.walk_index();
    for turn in [Turn::SiblingAbsent, Turn::Always, Turn::SiblingIs] {
        for f in index.with_default.iter().filter_map(|i| schema.fields.get(usize::from(*i))) {
            let Some(default) = f.fill.as_ref().filter(|d| Turn::new(d) == turn) else { continue };
            // Without a pointer, zero and absent are the same.
            let set = m.get(&*f.name).is_some_and(|v| match f.presence {
                Presence::Pointer => !v.is_null(),
                _ => !is_zero(v),
            });
            if set {
                continue;
            }
            let applies = match &default.when {
                None => true,
                Some((sibling, values)) => {
                    let v = m.get(&**sibling).and_then(Value::as_str).unwrap_or_default();
                    values.iter().any(|x| **x == *v)
                }
            };
            if applies {
                m.insert(f.name.to_string(), default.value.clone());
            }
        }
    }
    for (f, v) in schema.some_beside(&index.with_defaults_below, m.iter_mut()) {
        match v {
            Some(Value::Object(m)) if f.in_milli => m.values_mut().for_each(round_up),
            Some(v) => fill_built_in(v, &f.schema),
            None => {}
        }
    }
}

fn is_zero(v: &Value) -> bool {
    match v {
        Value::Null => true,
        Value::Bool(b) => !b,
        Value::Number(n) => n.as_i64() == Some(0),
        Value::String(s) => s.is_empty(),
        Value::Array(a) => a.is_empty(),
        Value::Object(m) => m.is_empty(),
    }
}
