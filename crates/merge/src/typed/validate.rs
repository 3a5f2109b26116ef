//! Validates an applied configuration by its schema, before server-side apply merges it.

use super::shape::{MAX_DEPTH, TypeRef, item_element};
use meta::{Map, Object, Value};
use schema::{ListType, Type};
use std::collections::BTreeSet;

/// Reports undeclared fields, wrong types, and repeated items of sets and keyed lists. The text is upstream's: a single error, or an indented
/// list.
pub fn validate(v: &Value, t: TypeRef<'_>) -> Result<(), String> {
    let mut errors = Errors::default();
    check(v, t, &mut String::new(), &mut errors, 0);
    into_result(errors)
}

/// [`validate`] of an API object.
pub fn validate_object(o: &Object, t: TypeRef<'_>) -> Result<(), String> {
    let mut errors = Errors::default();
    members(&o.0, t, &mut String::new(), &mut errors, 0);
    into_result(errors)
}

/// Maximum bytes of all errors; further ones are not reported.
const MOST_SAID: usize = 256 << 10;

/// The errors found so far.
#[derive(Default)]
struct Errors {
    texts: Vec<String>,
    size: usize,
}

impl Errors {
    fn push(&mut self, text: String) {
        if !self.is_full() {
            self.size += text.len() + 1;
            self.texts.push(text);
        }
    }

    fn is_full(&self) -> bool {
        self.size > MOST_SAID
    }
}

fn into_result(Errors { texts: errors, .. }: Errors) -> Result<(), String> {
    match errors.as_slice() {
        [] => Ok(()),
        [one] => Err(one.clone()),
        many => Err(many.iter().fold("errors:".to_owned(), |s, e| s + "\n  " + e)),
    }
}

fn type_name(v: &Value) -> &'static str {
    match v {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_f64() => "float",
        Value::Number(_) => "int",
        Value::String(_) => "string",
        Value::Array(_) => "list",
        Value::Object(_) => "map",
    }
}

fn check(v: &Value, t: TypeRef<'_>, path: &mut String, errors: &mut Errors, depth: usize) {
    let Some(s) = t.schema else { return };
    if v.is_null() || depth > MAX_DEPTH || errors.is_full() {
        return;
    }
    let expected = match s.ty {
        Type::String | Type::Bytes | Type::Time | Type::MicroTime | Type::Duration => {
            (!v.is_string()).then_some("expected string")
        }
        Type::Int32 | Type::Int64 | Type::Double => (!v.is_number()).then_some("expected numeric (int or float)"),
        Type::Boolean => (!v.is_boolean()).then_some("expected boolean"),
        Type::Quantity | Type::IntOrString => (v.is_object() || v.is_array()).then_some("expected scalar"),
        Type::Array => (!v.is_array()).then_some("expected list"),
        Type::Map | Type::Struct => (!v.is_object()).then_some("expected map"),
        Type::Any | Type::Raw => None,
    };
    if let Some(what) = expected {
        errors.push(format!("{path}: {what}, got {}", type_name(v)));
        return;
    }
    let here = path.len();
    match v {
        Value::Object(m) => members(m, t, path, errors, depth),
        Value::Array(a) => {
            let mut seen = BTreeSet::new();
            for (i, item) in a.iter().enumerate() {
                if s.list == ListType::Atomic {
                    path.push_str(&format!("[{i}]"));
                } else {
                    match item_element(item, &s.list, t.items()) {
                        Ok(e) => {
                            if !seen.insert(e.clone()) {
                                errors.push(format!("{path}: duplicate entries for key {e}"));
                            }
                            path.push_str(&e.to_string());
                        }
                        Err(why) => {
                            errors.push(format!("{path}: element {i}: {why}"));
                            continue;
                        }
                    }
                }
                check(item, t.items(), path, errors, depth + 1);
                path.truncate(here);
            }
        }
        _ => {}
    }
}

fn members(m: &Map<String, Value>, t: TypeRef<'_>, path: &mut String, errors: &mut Errors, depth: usize) {
    let Some(s) = t.schema.filter(|s| s.is_object()) else { return };
    let closed = s.additional.is_none() && s.ty == Type::Struct && !s.preserve_unknown;
    let here = path.len();
    for (k, child) in m {
        path.push('.');
        path.push_str(k);
        let (below, declared) = t.declared(k);
        if errors.is_full() {
            return;
        }
        if closed && !declared {
            errors.push(format!("{path}: field not declared in schema"));
        } else {
            check(child, below, path, errors, depth + 1);
        }
        path.truncate(here);
    }
}
