//! Validates values by the schema of a custom resource, with the messages of upstream's validator (`k8s.io/kube-openapi/pkg/validation`).

use super::{Bounds, Constraints, formats};
use crate::pattern::Work;
use crate::types::{ListType, Schema, Str, Type};
use meta::field::BadValue;
use meta::field::{ErrorList, limited};
use meta::{FieldError, FieldPath};
use serde_json::{Number, Value};
use std::collections::HashMap;

/// Validates a value. Parts that equal the old value are not validated again (ratcheting), so that objects stored before a rule was tightened
/// can still be changed elsewhere. Reports an error if the work is used up before the end.
pub fn validate(
    v: &Value,
    old: Option<&Value>,
    schema: &Schema,
    base: &FieldPath,
    work: &Work,
    errors: &mut ErrorList,
) {
    Check { base, errors, work }.value(v, old, schema, &FieldPath::root());
    if work.is_over() {
        errors.push(FieldError::forbidden(
            base,
            "the object takes too much work to validate against patterns and alternatives of its schema",
        ));
    }
}

/// Work of visiting a value.
const LOOK: u64 = 10;
/// Work of comparing two values.
const COMPARE: u64 = 4;
/// Bytes of a string that are counted or compared in a unit of work.
const BYTES_EACH: u64 = 16;

struct Check<'a> {
    base: &'a FieldPath,
    errors: &'a mut ErrorList,
    work: &'a Work,
}

impl Check<'_> {
    fn path(&self, name: &FieldPath) -> FieldPath {
        self.base.join(name)
    }

    fn invalid(&mut self, name: &FieldPath, v: impl Into<BadValue>, why: &str) {
        let why = limited(format_args!("{} in body {why}", name.plain()));
        self.errors.push(FieldError::invalid(&self.path(name), v, why));
    }

    fn value(&mut self, v: &Value, old: Option<&Value>, s: &Schema, name: &FieldPath) {
        if s.custom && !old.is_some_and(|old| self.work.is_equal(old, v)) {
            self.changed(v, old, s, name);
        }
    }

    /// Validates a new or changed value.
    fn changed(&mut self, v: &Value, old: Option<&Value>, s: &Schema, name: &FieldPath) {
        if !self.work.take(LOOK) || !s.custom {
            return;
        }
        let c = s.constraints.as_deref();
        if let Some(types) = wrong_type(v, s) {
            let have = type_of(v);
            let why = limited(format_args!("{} in body must be of type {types}: {have:?}", name.plain()));
            self.errors.push(FieldError::type_invalid(&self.path(name), have, why));
        }
        if let Some(c) = c.filter(|_| !v.is_null()) {
            self.junctors(v, old, c, name);
        }
        match v {
            Value::String(text) => {
                if let Some(c) = c {
                    self.text(text, c, name);
                }
            }
            Value::Number(n) => self.number(n, s, c, name),
            Value::Array(a) => self.array(a, old, s, c, name),
            _ => {}
        }
        if let Some(c) = c.filter(|c| !c.allowed.is_empty())
            && self.work.take_value(v)
            && !c.allowed.has(v)
        {
            self.errors.push(FieldError::not_supported_of(&self.path(name), v.clone(), c.allowed.texts()));
        }
        if let Value::Object(m) = v {
            self.object(m, old, s, c, name);
        }
    }

    fn text(&mut self, text: &str, c: &Constraints, name: &FieldPath) {
        let bytes = text.len() as u64;
        if !self.work.take(bytes / BYTES_EACH + c.format.as_ref().map_or(0, |_| bytes)) {
            return;
        }
        let length = text.chars().count();
        if let Some(max) = c.length.max.filter(|m| length > *m as usize) {
            self.errors.push(FieldError::too_long(&self.path(name), max as usize));
        }
        if let Some(min) = c.length.min.filter(|m| length < *m as usize) {
            self.invalid(name, text, &format!("should be at least {min} chars long"));
        }
        if let Some(p) = c.pattern.as_ref().filter(|p| !p.matches(text, self.work)) {
            self.invalid(name, text, &format!("should match '{}'", p.text));
        }
        if let Some(f) = c.format.as_ref().filter(|f| !formats::fits(f, text)) {
            let why = limited(format_args!("{} in body must be of type {f}: {text:?}", name.plain()));
            self.errors.push(FieldError::type_invalid(&self.path(name), text, why));
        }
    }

    fn number(&mut self, n: &Number, s: &Schema, c: Option<&Constraints>, name: &FieldPath) {
        let format = c.and_then(|c| c.format.as_deref()).unwrap_or_default();
        let fits = match (s.ty, format) {
            (Type::Int64, "int32") => n.as_i64().is_some_and(|n| i32::try_from(n).is_ok()),
            (Type::Int64, _) => n.as_i64().is_some() || integral(n).is_some(),
            (_, "float") => n.as_f64().is_some_and(|f| f.abs() <= f64::from(f32::MAX)),
            _ => true,
        };
        if !fits {
            let ty = if s.ty == Type::Int64 { "integer" } else { "number" };
            let format = if format.is_empty() { "(default format)".into() } else { format!("with format {format}") };
            let why = limited(format_args!("Checked value must be of type {ty} {format} in {}", name.plain()));
            self.errors.push(FieldError::invalid(self.base, "", why));
        }
        let (Some(c), Some(f)) = (c, n.as_f64()) else { return };
        for (what, bound) in
            [("MultipleOf", c.multiple_of), ("Maximum boundary", c.maximum), ("Minimum boundary", c.minimum)]
        {
            if s.ty == Type::Int64 && bound.is_some_and(|b| b.fract() != 0.0) {
                let name = name.plain();
                let why = limited(format_args!("{what} value must be of type integer (default format) in {name}"));
                self.errors.push(FieldError::invalid(self.base, "", why));
            }
        }
        let v = || Value::Number(n.clone());
        // As upstream, bounds lose their fraction for a whole number, unless they are reported above.
        let whole = n.is_i64() && s.ty != Type::Int64;
        let bound = |b: Option<f64>| b.map(|b| if whole { b.trunc() } else { b });
        match bound(c.multiple_of) {
            Some(by) if by <= 0.0 => {
                let by = go_float(by);
                let why =
                    limited(format_args!("factor MultipleOf declared for {} must be positive: {by}", name.plain()));
                self.errors.push(FieldError::invalid(&self.path(name), BadValue::formatted(&by), why));
            }
            Some(by) if (f / by).fract() != 0.0 => {
                self.invalid(name, v(), &format!("should be a multiple of {}", go_float(by)));
            }
            _ => {}
        }
        if let Some(max) = bound(c.maximum).filter(|max| f > *max || (c.exclusive_maximum && f >= *max)) {
            let or = if c.exclusive_maximum { "" } else { "or equal to " };
            self.invalid(name, v(), &format!("should be less than {or}{}", go_float(max)));
        }
        if let Some(min) = bound(c.minimum).filter(|min| f < *min || (c.exclusive_minimum && f <= *min)) {
            let or = if c.exclusive_minimum { "" } else { "or equal to " };
            self.invalid(name, v(), &format!("should be greater than {or}{}", go_float(min)));
        }
    }

    fn array(&mut self, a: &[Value], old: Option<&Value>, s: &Schema, c: Option<&Constraints>, name: &FieldPath) {
        if let Some(items) = s.items.as_deref() {
            let past = Past::new(old, s);
            for (i, v) in a.iter().enumerate() {
                self.value(v, past.item(v), items, &name.index(i));
            }
        }
        let Some(Bounds { min, max }) = c.map(|c| c.items) else { return };
        if let Some(min) = min.filter(|m| a.len() < *m as usize) {
            self.invalid(name, a.len(), &format!("should have at least {min} items"));
        }
        if let Some(max) = max.filter(|m| a.len() > *m as usize) {
            self.errors.push(FieldError::too_many(&self.path(name), a.len(), max as usize));
        }
    }

    fn object(
        &mut self,
        m: &serde_json::Map<String, Value>,
        old: Option<&Value>,
        s: &Schema,
        c: Option<&Constraints>,
        name: &FieldPath,
    ) {
        if let Some(Bounds { min, max }) = c.map(|c| c.properties) {
            if let Some(min) = min.filter(|n| m.len() < *n as usize) {
                self.invalid(name, m.len(), &format!("should have at least {min} properties"));
                return;
            }
            if let Some(max) = max.filter(|n| m.len() > *n as usize) {
                self.errors.push(FieldError::too_many(&self.path(name), m.len(), max as usize));
                return;
            }
        }
        for (k, v) in m {
            if let Some(member) = s.member(k) {
                self.value(v, old.and_then(|o| o.get(k)), member, &name.child(k));
            }
        }
        let required = c.map(|c| c.required.as_slice()).unwrap_or_default();
        if !self.work.take(required.len() as u64 * LOOK) {
            return;
        }
        for k in required.iter().filter(|k| !m.contains_key(&***k)) {
            self.errors.push(FieldError::required(&self.path(&name.child(k)), ""));
        }
    }

    /// Errors of the value by another schema at the same path (`allOf` and the like).
    fn against(&self, v: &Value, old: Option<&Value>, s: &Schema, name: &FieldPath) -> ErrorList {
        let mut errors = Vec::new();
        Check { base: self.base, errors: &mut errors, work: self.work }.changed(v, old, s, name);
        errors
    }

    fn junctors(&mut self, v: &Value, old: Option<&Value>, c: &Constraints, name: &FieldPath) {
        let composite = |check: &mut Self, why: String| {
            let name = limited(format_args!("{}", name.plain()));
            check.errors.push(FieldError::invalid(check.base, "", format!("{name:?} must {why}")));
        };
        if !c.any_of.is_empty() {
            let mut failed = c.any_of.iter().map(|s| self.against(v, old, s, name)).peekable();
            let first = failed.peek().cloned().unwrap_or_default();
            if !failed.any(|e| e.is_empty()) {
                composite(self, "validate at least one schema (anyOf)".into());
                self.errors.extend(first);
            }
        }
        if !c.one_of.is_empty() {
            let all: Vec<ErrorList> = c.one_of.iter().map(|s| self.against(v, old, s, name)).collect();
            match all.iter().filter(|e| e.is_empty()).count() {
                1 => {}
                0 => {
                    composite(self, "validate one and only one schema (oneOf). Found none valid".into());
                    self.errors.extend(all.into_iter().next().unwrap_or_default());
                }
                n => composite(self, format!("validate one and only one schema (oneOf). Found {n} valid alternatives")),
            }
        }
        if !c.all_of.is_empty() {
            let all: Vec<ErrorList> = c.all_of.iter().map(|s| self.against(v, old, s, name)).collect();
            if all.iter().any(|e| !e.is_empty()) {
                let none = if all.iter().all(|e| !e.is_empty()) { ". None validated" } else { "" };
                self.errors.extend(all.into_iter().flatten());
                composite(self, format!("validate all the schemas (allOf){none}"));
            }
        }
        if c.not.as_deref().is_some_and(|s| self.against(v, None, s, name).is_empty()) {
            composite(self, "not validate the schema (not)".into());
        }
    }
}

impl Work {
    /// Whether two values are equal. False if no work is left.
    fn is_equal(&self, a: &Value, b: &Value) -> bool {
        let at_least = |bytes: usize| self.take(COMPARE + bytes as u64 / BYTES_EACH);
        match (a, b) {
            (Value::String(a), Value::String(b)) => a.len() == b.len() && at_least(a.len()) && a == b,
            (Value::Array(a), Value::Array(b)) => {
                a.len() == b.len() && at_least(0) && a.iter().zip(b).all(|(a, b)| self.is_equal(a, b))
            }
            (Value::Object(a), Value::Object(b)) => {
                // Both are sorted.
                let mut members = a.iter().zip(b);
                a.len() == b.len()
                    && at_least(0)
                    && members.all(|((k, v), (l, w))| at_least(k.len()) && k == l && self.is_equal(v, w))
            }
            _ => at_least(0) && a == b,
        }
    }

    /// Whether enough work is left to visit the whole value.
    fn take_value(&self, v: &Value) -> bool {
        let bytes = |text: &str| 1 + text.len() as u64 / BYTES_EACH;
        match v {
            Value::String(s) => self.take(bytes(s)),
            Value::Array(a) => self.take(1) && a.iter().all(|v| self.take_value(v)),
            Value::Object(m) => self.take(1) && m.iter().all(|(k, v)| self.take(bytes(k)) && self.take_value(v)),
            _ => self.take(1),
        }
    }
}

/// The old items of a map-like list by their keys, for ratcheting. Other lists have none.
struct Past<'a> {
    keys: &'a [Str],
    items: HashMap<Vec<Option<&'a Value>>, &'a Value>,
}

impl<'a> Past<'a> {
    fn new(old: Option<&'a Value>, s: &'a Schema) -> Self {
        let ListType::Map(keys) = &s.list else { return Self { keys: &[], items: HashMap::new() } };
        let mut items = HashMap::new();
        for item in old.and_then(Value::as_array).into_iter().flatten() {
            // The first of several items with the same keys.
            items.entry(keys.iter().map(|k| item.get(&**k)).collect()).or_insert(item);
        }
        Self { keys, items }
    }

    fn item<'b>(&'b self, v: &'b Value) -> Option<&'b Value> {
        if self.items.is_empty() {
            return None;
        }
        self.items.get(&self.keys.iter().map(|k| v.get(&**k)).collect::<Vec<_>>()).copied()
    }
}

/// The types that the schema allows, if the value has another one.
fn wrong_type(v: &Value, s: &Schema) -> Option<&'static str> {
    let (types, fits) = match s.ty {
        Type::String => ("string", v.is_string()),
        Type::Int64 => ("integer", v.as_number().is_some_and(|n| integral(n).is_some())),
        Type::Double => ("number", v.is_number()),
        Type::Boolean => ("boolean", v.is_boolean()),
        Type::Array => ("array", v.is_array()),
        Type::Struct | Type::Map => ("object", v.is_object()),
        Type::IntOrString => ("integer,string", v.is_string() || v.as_number().is_some_and(|n| integral(n).is_some())),
        _ => return None,
    };
    let fine = fits || (v.is_null() && s.nullable);
    (!fine).then_some(types)
}

fn integral(n: &Number) -> Option<f64> {
    n.as_f64().filter(|f| f.fract() == 0.0)
}

fn type_of(v: &Value) -> &'static str {
    match v {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_f64() && integral(n).is_none() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// A number as Go prints a float.
fn go_float(f: f64) -> String {
    if f != 0.0 && (f.abs() >= 1e21 || f.abs() < 1e-4) {
        let text = format!("{f:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let n: i32 = exponent.parse().unwrap_or_default();
        return format!("{digits}e{}{:02}", if n < 0 { '-' } else { '+' }, n.abs());
    }
    format!("{f}")
}
