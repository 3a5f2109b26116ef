//! Validation rules of single fields, which are data of the description. Rules of several fields are code.

mod addresses;
mod formats;
mod gates;
mod order;

use crate::types::{Field, Presence, Schema, Str, Type};
use meta::field::{BadValue, ErrorList};
use meta::{FieldError, FieldPath, Map, Quantity, Value, names};
use std::collections::HashSet;

pub use crate::rule::Rule;
pub use addresses::{canonical_cidr, canonical_ip, cidr, cidr_warning, ip, ip_warning, is_range, ratchet, sloppy};
pub use formats::{descending_path, int_or_percent, labels, local_path, no_backsteps, selector};
pub use gates::{Gates, leave_out};
pub use order::{Found, arrange};

/// Validates an object, at every depth.
pub fn validate(object: &Map<String, Value>, schema: &Schema, errors: &mut ErrorList) {
    fields(object, schema, &FieldPath::root(), errors);
}

/// Validates a field with [`Rule::Delegated`], at every depth. `path` is that of its struct.
pub fn validate_field(
    parent: &Map<String, Value>,
    schema: &Schema,
    name: &str,
    path: &FieldPath,
    errors: &mut ErrorList,
) {
    if let Some(f) = schema.field(name) {
        field(parent.get(name), f, path, errors);
    }
}

/// Validates immutable fields of an update, at every depth of structs.
pub fn validate_update(new: &Map<String, Value>, old: &Map<String, Value>, schema: &Schema, errors: &mut ErrorList) {
    unchanged(new, old, schema, &FieldPath::root(), errors);
}

fn fields(m: &Map<String, Value>, schema: &Schema, path: &FieldPath, errors: &mut ErrorList) {
    for (f, v) in schema.some_beside(&schema.walk_index().with_rules, m.iter()) {
        if !f.rules.iter().any(|r| matches!(r, Rule::Delegated)) {
            field(v, f, path, errors);
        }
    }
}

fn field(v: Option<&Value>, f: &Field, parent: &FieldPath, errors: &mut ErrorList) {
    let v = v.filter(|v| !v.is_null());
    let deeper = matches!(f.schema.ty, Type::Struct | Type::Array | Type::Map);
    if f.rules.is_empty() && (!deeper || v.is_none()) {
        return;
    }
    let at = parent.child(&f.name);
    if let (Some(Value::Array(a)), Some(most)) = (v, f.rules.iter().find_map(Rule::at_most))
        && a.len() > most
    {
        errors.push(FieldError::too_many(&at, a.len(), most));
        return;
    }
    check(v, f, &at, errors);
    if let Some(v) = v.filter(|_| deeper) {
        descend(v, &f.schema, &at, errors);
    }
}

fn descend(v: &Value, schema: &Schema, path: &FieldPath, errors: &mut ErrorList) {
    match (v, schema.ty) {
        (Value::Object(m), Type::Struct) => fields(m, schema, path, errors),
        (Value::Array(a), Type::Array) => {
            if let Some(s) = schema.items.as_deref().filter(|s| s.ty == Type::Struct) {
                let items = a.iter().enumerate().take_while(|_| !meta::field::is_full());
                items.for_each(|(i, v)| descend(v, s, &path.index(i), errors));
            }
        }
        (Value::Object(m), Type::Map) => {
            if let Some(s) = schema.additional.as_deref().filter(|s| s.ty == Type::Struct) {
                m.iter().for_each(|(k, v)| descend(v, s, &path.key(k), errors));
            }
        }
        _ => {}
    }
}

fn empty(v: Option<&Value>) -> bool {
    match v {
        None | Some(Value::Null) => true,
        Some(Value::String(s)) => s.is_empty(),
        Some(Value::Array(a)) => a.is_empty(),
        Some(Value::Object(m)) => m.is_empty(),
        Some(_) => false,
    }
}

fn check(v: Option<&Value>, f: &Field, path: &FieldPath, errors: &mut ErrorList) {
    for rule in &f.rules {
        match (rule, v) {
            (Rule::Required(detail), _) => {
                // The target of a pointer is present, even if it is zero.
                let missing = match v {
                    Some(Value::String(_)) if f.presence == Presence::Pointer => false,
                    v => empty(v),
                };
                if missing {
                    errors.push(FieldError::required(path, detail));
                    return;
                }
            }
            (Rule::NonZero, v) => {
                if v.is_none_or(|v| v.as_i64() == Some(0)) {
                    errors.push(FieldError::required(path, ""));
                    return;
                }
            }
            (Rule::LabelKey | Rule::Valid(..), None) => {
                value(rule, &Value::String(String::new()), &f.schema, path, errors)
            }
            (Rule::Supported(_) | Rule::Even(_), None) => {
                if f.presence != Presence::Pointer && f.schema.ty != Type::Array {
                    value(rule, &Value::String(String::new()), &f.schema, path, errors);
                }
            }
            (_, None) => {}
            (Rule::Enum, Some(Value::String(s))) if f.presence == Presence::Pointer => {
                supported(s, &f.schema.enum_values, path, errors);
            }
            (Rule::OneOf(values), Some(Value::String(s))) if f.presence == Presence::Pointer => {
                supported(s, values, path, errors);
            }
            (Rule::Unique(key), Some(Value::Array(a))) => unique(a, key.as_deref(), Named::Field, path, errors),
            (Rule::UniqueItems(key), Some(Value::Array(a))) => unique(a, Some(key), Named::Item, path, errors),
            (Rule::MaxItems(max), Some(Value::Array(a))) => {
                if a.len() > *max {
                    errors.push(FieldError::too_many(path, a.len(), *max));
                }
            }
            (Rule::AtMost(_), Some(Value::Array(_))) => {}
            (Rule::Listed(values), Some(Value::Array(a))) => {
                let all = f.schema.items.as_deref().map(|s| &s.enum_values).unwrap_or(&f.schema.enum_values);
                for v in a.iter().filter_map(Value::as_str) {
                    supported(v, if values.is_empty() { all } else { values }, path, errors);
                }
            }
            (_, Some(Value::Array(a))) => {
                for (i, v) in a.iter().enumerate() {
                    value(rule, v, f.schema.items.as_deref().unwrap_or(&f.schema), &path.index(i), errors);
                }
            }
            (_, Some(v)) => value(rule, v, &f.schema, path, errors),
        }
    }
}

/// Which of two equal items an error names.
#[derive(PartialEq)]
enum Named {
    Field,
    Item,
}

fn unique(a: &[Value], key: Option<&str>, named: Named, path: &FieldPath, errors: &mut ErrorList) {
    let mut seen = HashSet::new();
    for (i, item) in a.iter().enumerate() {
        let v = match key {
            Some(k) => &item[k],
            None => item,
        };
        if empty(Some(v)) {
            continue;
        }
        if !seen.insert(v.to_string()) {
            let at = path.index(i);
            let at = key.filter(|_| named == Named::Field).map_or(at.clone(), |k| at.child(k));
            errors.push(FieldError::duplicate(&at, v));
        }
    }
}

fn value(rule: &Rule, v: &Value, schema: &Schema, path: &FieldPath, errors: &mut ErrorList) {
    let (rule, even) = match rule {
        Rule::Even(r) => (&**r, true),
        r => (r, false),
    };
    let text = v.as_str().unwrap_or_default();
    let mut each = |messages: Vec<String>| {
        if even || !text.is_empty() {
            errors.extend(messages.into_iter().map(|m| FieldError::invalid(path, v, m)));
        }
    };
    match rule {
        Rule::Enum => allowed(text, &schema.enum_values, path, errors),
        Rule::OneOf(values) => allowed(text, values, path, errors),
        Rule::Supported(values) => {
            let values = if values.is_empty() { &schema.enum_values } else { values };
            supported(text, values, path, errors);
        }
        Rule::IntOrPercent => int_or_percent(v, path, errors),
        Rule::Min(min) => {
            if v.as_i64().is_some_and(|n| n < *min) {
                let why = format!("must be greater than or equal to {min}");
                errors.push(FieldError::invalid(path, v, why));
            }
        }
        Rule::Max(max) => {
            if v.as_i64().is_some_and(|n| n > *max) {
                errors.push(FieldError::invalid(path, v, format!("must be less than or equal to {max}")));
            }
        }
        Rule::Within(low, high) => {
            bounded(v, *low, *high, path, errors, || format!("must be between {low} and {high}, inclusive"));
        }
        Rule::Range(low, high) => {
            bounded(v, *low, *high, path, errors, || format!("must be in the range {low}-{high}"));
        }
        Rule::Bounds(low, high, why) => bounded(v, *low, *high, path, errors, || why.to_string()),
        Rule::Above(bound) => {
            bounded(v, bound + 1, i64::MAX, path, errors, || format!("must be greater than {bound}"));
        }
        Rule::Positive => bounded(v, 1, i64::MAX, path, errors, || "must be greater than zero".into()),
        Rule::FileMode => {
            bounded(v, 0, 0o777, path, errors, || "must be a number between 0 and 0777 (octal), both inclusive".into());
        }
        Rule::Valid(values, why) => {
            if !values.iter().any(|x| **x == *text) {
                errors.push(FieldError::invalid(path, v, why));
            }
        }
        Rule::Ip => ip(text, path, errors),
        Rule::Cidr => cidr(text, path, errors),
        Rule::LabelKey => {
            errors.extend(names::qualified_name(text).into_iter().map(|m| FieldError::invalid(path, v, m)));
        }
        Rule::PathSegment => each(names::path_segment(text)),
        Rule::Port => match v.as_i64() {
            Some(n) => errors.extend(names::port_number(n).into_iter().map(|m| FieldError::invalid(path, v, m))),
            None => errors.extend(names::port_name(text).into_iter().map(|m| FieldError::invalid(path, v, m))),
        },
        Rule::DnsLabel => each(names::dns_label(text)),
        Rule::Dns1035 => each(names::dns_1035_label(text)),
        Rule::DnsSubdomain => each(names::dns_subdomain(text)),
        Rule::QualifiedName => each(names::qualified_name(text)),
        Rule::LabelValue => each(names::label_value(text)),
        Rule::PortName => each(names::port_name(text)),
        Rule::EnvName => each(names::env_var_name(text)),
        Rule::ConfigMapKey => each(names::config_map_key(text)),
        Rule::LocalPath => local_path(text, path, errors),
        Rule::NoBacksteps => no_backsteps(text, path, errors),
        Rule::Labels => labels(v, path, errors),
        Rule::Annotations => {
            for k in v.as_object().into_iter().flatten().map(|(k, _)| k) {
                for m in names::qualified_name(&k.to_lowercase()) {
                    errors.push(FieldError::invalid(path, k.as_str(), m));
                }
            }
        }
        Rule::Selector => selector(v, path, errors),
        Rule::NotNegative => not_negative(v, path, errors),
        Rule::MaxLength(max) => {
            if text.len() > *max {
                errors.push(FieldError::too_long(path, *max));
            }
        }
        Rule::Required(_)
        | Rule::NonZero
        | Rule::Unique(_)
        | Rule::UniqueItems(_)
        | Rule::Even(_)
        | Rule::Listed(_)
        | Rule::MaxItems(_)
        | Rule::AtMost(_)
        | Rule::Immutable
        | Rule::Delegated
        | Rule::Off(_)
        | Rule::Frozen(_) => {}
    }
}

fn bounded(v: &Value, low: i64, high: i64, path: &FieldPath, errors: &mut ErrorList, why: impl Fn() -> String) {
    if v.as_i64().is_some_and(|n| !(low..=high).contains(&n)) {
        errors.push(FieldError::invalid(path, v, why()));
    }
}

fn allowed(text: &str, values: &[Str], path: &FieldPath, errors: &mut ErrorList) {
    if !text.is_empty() && !values.iter().any(|v| **v == *text) {
        errors.push(FieldError::not_supported(path, text, values));
    }
}

fn supported(text: &str, values: &[Str], path: &FieldPath, errors: &mut ErrorList) {
    if !values.iter().any(|v| **v == *text) {
        errors.push(FieldError::not_supported(path, text, values));
    }
}

fn not_negative(v: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let mut one = |v: &Value, path: &FieldPath| {
        if v.as_str().and_then(|s| Quantity::parse(s).ok()).is_some_and(|q| q.sign() < 0) {
            errors.push(FieldError::invalid(path, v, "must be greater than or equal to 0"));
        }
    };
    match v {
        Value::Object(m) => m.iter().for_each(|(k, v)| one(v, &path.key(k))),
        v => one(v, path),
    }
}

fn unchanged(
    new: &Map<String, Value>,
    old: &Map<String, Value>,
    schema: &Schema,
    path: &FieldPath,
    errors: &mut ErrorList,
) {
    for ((f, n), (_, o)) in schema.beside(new.iter()).zip(schema.beside(old.iter())) {
        if n == o {
            continue;
        }
        let at = path.child(&f.name);
        if f.rules.contains(&Rule::Immutable) {
            errors.push(FieldError::invalid(
                &at,
                BadValue::formatted(&crate::go_format::show_field(n, f, &at)),
                "field is immutable",
            ));
        } else if let Some(why) = f.rules.iter().find_map(Rule::frozen) {
            errors.push(FieldError::forbidden(&at, why));
        } else if let (Some(Value::Object(n)), Some(Value::Object(o)), Type::Struct) = (n, o, f.schema.ty) {
            unchanged(n, o, &f.schema, &at, errors);
        }
    }
}
