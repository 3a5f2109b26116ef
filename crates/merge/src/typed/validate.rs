//! Validates an applied configuration by its schema, before server-side apply merges it.

use super::shape::{MAX_DEPTH, TypeRef, item_element};
use meta::{Map, Object, Value};
use schema::{ListType, Type, go_format};
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

/// How a value is shown: as Go prints upstream's wrapper of it.
#[derive(Clone, Copy)]
enum Shown {
    /// `%v`
    Plain,
    /// `%#v`
    Syntax,
    /// `%T`
    Type,
}

impl Shown {
    fn show(self, v: &Value) -> String {
        match self {
            Self::Plain => format!("&{{{}}}", go_format::plain(v)),
            Self::Syntax => format!("&value.valueUnstructured{{Value:{}}}", go_format::syntax(v)),
            Self::Type => go_format::type_name(v).to_owned(),
        }
    }
}

fn check(v: &Value, t: TypeRef<'_>, path: &mut String, errors: &mut Errors, depth: usize) {
    let Some(s) = t.schema else { return };
    if v.is_null() || depth > MAX_DEPTH || errors.is_full() {
        return;
    }
    let (fits, expected, shown) = match s.ty {
        Type::String | Type::Bytes | Type::Time | Type::MicroTime | Type::Duration => {
            (v.is_string(), "string", Shown::Syntax)
        }
        Type::Int32 | Type::Int64 | Type::Double => (v.is_number(), "numeric (int or float)", Shown::Type),
        Type::Boolean => (v.is_boolean(), "boolean", Shown::Plain),
        Type::Quantity => (!v.is_object() && !v.is_array(), "any scalar", Shown::Plain),
        Type::Array => (v.is_array(), "list", Shown::Plain),
        Type::Map | Type::Struct => (v.is_object(), "map", Shown::Plain),
        // Upstream deduces the type of what may be of several.
        Type::IntOrString | Type::Any | Type::Raw => (true, "", Shown::Plain),
    };
    if !fits {
        errors.push(format!("{path}: expected {expected}, got {}", shown.show(v)));
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
                        // Upstream does not read on either.
                        Err(why) => return errors.push(format!("{path}: element {i}: {why}")),
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
