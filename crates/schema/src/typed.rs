//! Reads a value as the typed decoder of the API: rejects wrong types, drops and reports unknown fields, and normalizes the rest to the form of
//! Go's encoder (zero values by [`Presence`], canonical quantities, times in UTC).
//!
//! Invariant: `typed(typed(x)) == typed(x)`.

mod wrong;

use wrong::illegal;
pub use wrong::{TypeError, have, illegal_in_url, time as time_error};

use crate::decode::{MOST_REPORTED, MOST_WRITTEN};
use crate::sent::Empties;
use crate::types::{Field, Presence, Schema, SchemaRef, Type};
use base64::Engine;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};
use meta::Quantity;
use serde_json::{Map, Value};

/// The findings of a typed reading beside the value.
#[derive(Debug, Default)]
pub struct Typed {
    /// Full paths of fields that the schema does not know.
    pub unknown: Vec<String>,
    /// Lists and maps that were sent empty.
    pub empty: Empties,
}

/// Brings `value` into the form of the schema, in place.
pub fn typed(value: &mut Value, schema: &Schema) -> Result<Typed, TypeError> {
    typed_with(value, schema, Nulls::Prune)
}

/// What happens to `null` in custom resources where the schema has no such value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nulls {
    /// It is removed, unless a default replaces it.
    Prune,
    /// It stays, for validation.
    Keep,
}

/// As [`typed()`].
pub fn typed_with(value: &mut Value, schema: &Schema, nulls: Nulls) -> Result<Typed, TypeError> {
    let mut w = Walk { path: Vec::new(), found: Typed::default(), written: 0, nulls };
    w.value(value, schema)?;
    Ok(w.found)
}

/// Removes empty lists that are always written, as conversions do.
pub fn settle(m: &mut Map<String, Value>, schema: &Schema) {
    for (f, v) in schema.some_beside(&schema.walk_index().always_written, m.iter_mut()) {
        let Some(v) = v else { continue };
        match v {
            Value::Array(a) if a.is_empty() && f.presence == Presence::Always => *v = Value::Null,
            Value::Array(a) => {
                if let Some(s) = f.schema.items.as_deref().filter(|s| s.ty == Type::Struct) {
                    a.iter_mut().filter_map(Value::as_object_mut).for_each(|m| settle(m, s));
                }
            }
            Value::Object(m) if f.schema.ty == Type::Struct => settle(m, &f.schema),
            _ => {}
        }
    }
}

enum Step<'a> {
    /// A field, and its parent.
    Field(&'a Field, &'a Schema),
    Key(String),
    Index(usize),
}

struct Walk<'a> {
    path: Vec<Step<'a>>,
    found: Typed,
    /// Bytes of all reported paths.
    written: usize,
    nulls: Nulls,
}

/// Maximum bytes of paths of empty lists and maps. Beyond it, errors show such a value as absent.
const EMPTIES: usize = 1 << 20;

impl<'a> Walk<'a> {
    fn path(&self, last: Option<&str>) -> String {
        let mut out = String::new();
        let name = |out: &mut String, n: &str| {
            if !out.is_empty() {
                out.push('.');
            }
            out.push_str(n);
        };
        for s in &self.path {
            match s {
                Step::Field(f, _) => name(&mut out, &f.name),
                Step::Key(k) => name(&mut out, k),
                Step::Index(i) => out.push_str(&format!("[{i}]")),
            }
        }
        if let Some(l) = last {
            name(&mut out, l);
        }
        out
    }

    /// Reports an unknown field, within the limit.
    fn unknown(&mut self, name: &str) {
        if self.found.unknown.len() < MOST_REPORTED && self.written <= MOST_WRITTEN {
            let path = self.path(Some(name));
            self.written += path.len();
            self.found.unknown.push(path);
        }
    }

    /// Records a list or map that was sent empty.
    fn empty(&mut self, v: &Value) {
        if self.found.empty.written() <= EMPTIES {
            let path = self.error_path();
            self.found.empty.note(path, v);
        }
    }

    /// The path in the form of field errors.
    fn error_path(&self) -> String {
        let mut out = String::new();
        for s in &self.path {
            match s {
                Step::Field(f, _) => {
                    if !out.is_empty() {
                        out.push('.');
                    }
                    out.push_str(&f.name);
                }
                Step::Key(k) => out.extend(["[", k, "]"]),
                Step::Index(i) => out.push_str(&format!("[{i}]")),
            }
        }
        out
    }

    fn value(&mut self, v: &mut Value, schema: &'a Schema) -> Result<(), TypeError> {
        if schema.custom {
            return self.custom(v, Some(schema));
        }
        match schema.ty {
            Type::Any if !schema.alternatives.is_empty() => self.alternative(v, schema),
            Type::Struct => match v {
                Value::Object(m) => self.fields(m, schema),
                Value::Null => {
                    let mut m = Map::new();
                    self.fields(&mut m, schema)?;
                    *v = m.into();
                    Ok(())
                }
                other => Err(self.wrong(other, schema)),
            },
            Type::Map => match v {
                Value::Object(m) => self.map(m, schema),
                Value::Null => Ok(()),
                other => Err(self.wrong(other, schema)),
            },
            Type::Array => match v {
                Value::Array(a) => {
                    let Some(items) = schema.items.as_ref().map(SchemaRef::get) else { return Ok(()) };
                    for (i, item) in a.iter_mut().enumerate() {
                        self.path.push(Step::Index(i));
                        if item.is_null() {
                            *item = zero(items);
                        }
                        self.value(item, items)?;
                        self.path.pop();
                    }
                    Ok(())
                }
                Value::Null => Ok(()),
                other => Err(self.wrong(other, schema)),
            },
            _ => self.scalar(v, schema),
        }
    }

    /// Reads a value of several possible shapes. Upstream's types have decoders of their own for these: they report no unknown
    /// fields, and read a shape they do not have as nothing, except for one with a boolean, which is an error.
    fn alternative(&mut self, v: &mut Value, schema: &'a Schema) -> Result<(), TypeError> {
        let of = |ty| schema.alternative(ty).map(|a| a.schema.get());
        let reported = self.found.unknown.len();
        match (&mut *v, of(Type::Struct), of(Type::Array), of(Type::Boolean)) {
            (Value::Null | Value::Bool(_), _, _, Some(_)) => {}
            (Value::Object(m), Some(s), ..) => self.fields(m, s)?,
            (Value::Array(a), _, Some(s), _) if !a.is_empty() => self.value(v, s)?,
            (_, _, _, Some(_)) => return Err(self.bad("boolean or JSON schema expected".to_owned())),
            _ => *v = Value::Null,
        }
        self.found.unknown.truncate(reported);
        Ok(())
    }

    /// Prunes what a custom resource's schema does not know, and `null` where it is no value and no default replaces it
    /// (`k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning`). Types are left to validation; metadata is Go's.
    fn custom(&mut self, v: &mut Value, schema: Option<&'a Schema>) -> Result<(), TypeError> {
        if let Some(s) = schema.filter(|s| !s.custom) {
            return self.value(v, s);
        }
        match v {
            Value::Object(m) => self.custom_members(m, schema),
            Value::Array(a) => {
                let items = schema.and_then(|s| s.items.as_deref());
                if items.is_none() && schema.is_some_and(|s| s.preserve_unknown) {
                    return Ok(());
                }
                for (i, item) in a.iter_mut().enumerate() {
                    self.path.push(Step::Index(i));
                    self.custom(item, items)?;
                    self.path.pop();
                }
                Ok(())
            }
            // Go reads integers of 64 bits, and floats.
            Value::Number(n) if n.is_u64() && !n.is_i64() => {
                *v = n.as_f64().into();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn custom_members(&mut self, m: &mut Map<String, Value>, schema: Option<&'a Schema>) -> Result<(), TypeError> {
        let preserved = schema.is_some_and(|s| s.preserve_unknown);
        let mut gone = Vec::new();
        for (k, v) in m.iter_mut() {
            let field = schema.and_then(|s| s.field(k));
            let member = field.map(|f| f.schema.get()).or(schema.and_then(|s| s.additional.as_deref()));
            match member {
                Some(s) if v.is_null() && s.custom && !s.nullable => {
                    if self.nulls == Nulls::Prune && field.is_none_or(|f| f.fill.is_none()) {
                        gone.push(k.clone());
                    }
                }
                Some(s) => {
                    let step = field.zip(schema).map(|(f, s)| Step::Field(f, s));
                    self.path.push(step.unwrap_or_else(|| Step::Key(k.clone())));
                    self.custom(v, Some(s))?;
                    self.path.pop();
                }
                None if preserved => {}
                None => {
                    self.unknown(k);
                    gone.push(k.clone());
                }
            }
        }
        for k in gone {
            m.remove(&k);
        }
        for f in schema.into_iter().flat_map(|s| &s.fields).filter(|f| f.presence == Presence::Struct) {
            if !m.contains_key(&*f.name) {
                let mut inner = Map::new();
                self.fields(&mut inner, &f.schema)?;
                m.insert(f.name.to_string(), inner.into());
            }
        }
        Ok(())
    }

    fn map(&mut self, m: &mut Map<String, Value>, schema: &'a Schema) -> Result<(), TypeError> {
        let Some(values) = schema.additional.as_ref().map(SchemaRef::get) else { return Ok(()) };
        for (k, v) in m.iter_mut() {
            if v.is_null() {
                *v = zero(values);
            }
            // Strings, the most common by far, need no path.
            if values.ty == Type::String && v.is_string() {
                continue;
            }
            self.path.push(Step::Key(k.clone()));
            self.value(v, values)?;
            self.path.pop();
        }
        Ok(())
    }

    fn fields(&mut self, m: &mut Map<String, Value>, schema: &'a Schema) -> Result<(), TypeError> {
        if !schema.preserve_unknown && !schema.has_fields(m.keys()) {
            let unknown: Vec<String> = m.keys().filter(|k| schema.field(k).is_none()).cloned().collect();
            for k in unknown {
                self.unknown(&k);
                m.remove(&k);
            }
        }
        // What comes in its place; nothing for what goes.
        let mut changed: Vec<(&Field, Option<Value>)> = Vec::new();
        for (f, v) in schema.beside(m.iter_mut()) {
            match v {
                Some(v) if !v.is_null() => {
                    self.path.push(Step::Field(f, schema));
                    self.value(v, &f.schema)?;
                    let list_or_map = matches!(f.schema.ty, Type::Array | Type::Map);
                    if list_or_map && f.presence != Presence::Pointer && is_zero(v, f) {
                        self.empty(v);
                    }
                    self.path.pop();
                    // A slice or map behind a pointer does not exist in the API. A value of none of its type's shapes became null.
                    if f.presence == Presence::OmitZero && is_zero(v, f)
                        || f.presence == Presence::Pointer && v.is_null()
                    {
                        changed.push((f, None));
                    }
                }
                null => match f.presence {
                    Presence::Struct => {
                        let mut inner = Map::new();
                        self.fields(&mut inner, &f.schema)?;
                        changed.push((f, Some(inner.into())));
                    }
                    Presence::Always => changed.push((f, Some(zero_of(&f.schema)))),
                    Presence::Pointer if f.null => changed.push((f, Some(Value::Null))),
                    Presence::OmitZero | Presence::Pointer if null.is_some() => changed.push((f, None)),
                    Presence::OmitZero | Presence::Pointer => {}
                },
            }
        }
        for (f, v) in changed {
            match v {
                Some(v) => m.insert(f.name.to_string(), v),
                None => m.remove(&*f.name),
            };
        }
        Ok(())
    }

    fn scalar(&mut self, v: &mut Value, schema: &Schema) -> Result<(), TypeError> {
        if v.is_null() {
            return Ok(());
        }
        let fits = match schema.ty {
            Type::String | Type::Duration => v.is_string(),
            Type::Boolean => v.is_boolean(),
            Type::Int32 => v.as_i64().is_some_and(|n| i32::try_from(n).is_ok()),
            Type::Int64 => v.as_i64().is_some(),
            Type::Double => v.is_number(),
            Type::IntOrString if v.is_string() => true,
            Type::IntOrString => {
                if v.as_i64().is_none_or(|n| i32::try_from(n).is_err()) {
                    return Err(self.cannot(v, Type::Int32, "int32"));
                }
                true
            }
            Type::Bytes => match v {
                Value::String(s) => return self.bytes(s),
                _ => false,
            },
            Type::Quantity => {
                let text = v.as_str().map_or_else(|| v.to_string(), str::to_owned);
                let q = Quantity::parse(text.trim()).map_err(|e| self.bad(e.to_string()))?;
                *v = q.to_string().into();
                true
            }
            Type::Time | Type::MicroTime => {
                let Value::String(s) = v else { return Err(self.cannot(v, Type::String, "string")) };
                let micro = schema.ty == Type::MicroTime;
                let t = meta::time::parse(s).filter(|_| !micro || wrong::has_six_digits(s));
                let t = t.ok_or_else(|| self.bad(wrong::time(s, micro)))?;
                *s = if micro { meta::time::format_micro(t) } else { meta::time::format(t) };
                true
            }
            Type::Raw | Type::Any | Type::Array | Type::Map | Type::Struct => true,
        };
        if fits { Ok(()) } else { Err(self.wrong(v, schema)) }
    }

    /// Go's decoder skips line breaks, and does not look at the bits that the last character has too many.
    fn bytes(&self, s: &mut String) -> Result<(), TypeError> {
        if STANDARD.decode(s.as_bytes()).is_ok() {
            return Ok(());
        }
        match LENIENT.decode(s.replace(['\n', '\r'], "")) {
            Ok(bytes) => *s = STANDARD.encode(bytes),
            Err(_) => {
                let why = format!("illegal base64 data at input byte {}", illegal(s.as_bytes()));
                return Err(TypeError { of_value: format!("error decoding from json: {why}"), ..self.bad(why) });
            }
        }
        Ok(())
    }
}

const LENIENT: GeneralPurpose =
    GeneralPurpose::new(&base64::alphabet::STANDARD, GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true));

/// Go's zero value of a list item or map value that was written as `null`.
fn zero(s: &Schema) -> Value {
    match s.ty {
        Type::Struct => Value::Object(Map::new()),
        Type::Bytes => "".into(),
        _ => zero_of_type(s.ty),
    }
}

/// The value of an absent field that is always written.
fn zero_of(s: &Schema) -> Value {
    zero_of_type(s.ty)
}

fn zero_of_type(ty: Type) -> Value {
    match ty {
        Type::String => "".into(),
        Type::Duration => "0s".into(),
        Type::Int32 | Type::Int64 | Type::Double | Type::IntOrString => 0.into(),
        Type::Boolean => false.into(),
        Type::Quantity => "0".into(),
        _ => Value::Null,
    }
}

fn is_zero(v: &Value, f: &Field) -> bool {
    match v {
        Value::Null => true,
        Value::Bool(b) => !b,
        Value::Number(n) => n.as_f64() == Some(0.0) && !matches!(f.schema.ty, Type::IntOrString | Type::Quantity),
        Value::String(s) => s.is_empty() && !matches!(f.schema.ty, Type::IntOrString),
        Value::Array(a) => a.is_empty() && !matches!(f.schema.ty, Type::Raw),
        Value::Object(m) => m.is_empty() && matches!(f.schema.ty, Type::Map),
    }
}

/// Bytes as the JSON of the API writes them.
pub fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Decodes base64. None if it is invalid.
pub fn base64_decode(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}
