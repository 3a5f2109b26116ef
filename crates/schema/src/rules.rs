//! Rules of validation that can be said of one field, as data of the description. What takes two fields to say is code.

use crate::types::{Field, Presence, Schema, Str, Type};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Map, Quantity, Value, names};
use std::collections::HashSet;
use std::str::FromStr;

#[derive(Clone, Debug, PartialEq)]
pub enum Rule {
    /// Neither absent nor empty.
    Required,
    /// Neither absent nor zero.
    NonZero,
    /// One of the values the schema lists.
    Enum,
    /// One of these.
    OneOf(Vec<Str>),
    /// One of the values the schema lists, or of these; nothing is not among them.
    Supported(Vec<Str>),
    /// The rule holds for the empty string as well, and for an absent field that is no pointer.
    Even(Box<Rule>),
    /// A count that is not negative, or a percentage.
    IntOrPercent,
    /// The same of every item, said of the list.
    Listed,
    /// One of these; anything else is said to be invalid, not unsupported.
    Valid(Vec<Str>),
    Min(i64),
    Max(i64),
    /// 1 to 65535; a port's name too where the type allows.
    Port,
    /// 0 to 65535.
    PortOrZero,
    Ip,
    /// An address range.
    Cidr,
    /// A path from the root.
    Absolute,
    /// A qualified name, also when it is empty.
    LabelKey,
    /// One segment of a URL path.
    PathSegment,
    DnsLabel,
    Dns1035,
    DnsSubdomain,
    QualifiedName,
    LabelValue,
    PortName,
    EnvName,
    ConfigMapKey,
    /// A path without `..`.
    LocalPath,
    /// A map of labels.
    Labels,
    Annotations,
    /// A `metav1.LabelSelector`.
    Selector,
    /// A quantity (or a map of them) that is not negative.
    NotNegative,
    /// Items (of structs: by this key) that must differ.
    Unique(Option<Str>),
    /// The same, where it is the item that is said to be a duplicate.
    UniqueItems(Str),
    MaxItems(usize),
    MaxLength(usize),
    /// May not change.
    Immutable,
    /// May not change, said as `Forbidden`.
    Frozen,
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(rule) = text.strip_suffix('!') {
            return Ok(Self::Even(Box::new(rule.parse()?)));
        }
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        let number = || value.parse::<i64>().map_err(|e| format!("{text}: {e}"));
        Ok(match name {
            "required" => Self::Required,
            "nonzero" => Self::NonZero,
            "supported" if value.is_empty() => Self::Supported(Vec::new()),
            "supported" => Self::Supported(value.split(',').map(Into::into).collect()),
            "listed" => Self::Listed,
            "int-or-percent" => Self::IntOrPercent,
            "unique-items" => Self::UniqueItems(value.into()),
            "valid" => Self::Valid(value.split(',').map(Into::into).collect()),
            "port-or-zero" => Self::PortOrZero,
            "ip" => Self::Ip,
            "cidr" => Self::Cidr,
            "absolute" => Self::Absolute,
            "label-key" => Self::LabelKey,
            "path-segment" => Self::PathSegment,
            "enum" if value.is_empty() => Self::Enum,
            "enum" => Self::OneOf(value.split(',').map(Into::into).collect()),
            "min" => Self::Min(number()?),
            "max" => Self::Max(number()?),
            "port" => Self::Port,
            "dns-label" => Self::DnsLabel,
            "dns-1035" => Self::Dns1035,
            "dns-subdomain" => Self::DnsSubdomain,
            "qualified-name" => Self::QualifiedName,
            "label-value" => Self::LabelValue,
            "port-name" => Self::PortName,
            "env-name" => Self::EnvName,
            "config-key" => Self::ConfigMapKey,
            "local-path" => Self::LocalPath,
            "labels" => Self::Labels,
            "annotations" => Self::Annotations,
            "selector" => Self::Selector,
            "not-negative" => Self::NotNegative,
            "unique" => Self::Unique(Some(value).filter(|v| !v.is_empty()).map(Into::into)),
            "max-items" => Self::MaxItems(number()?.unsigned_abs() as usize),
            "max-length" => Self::MaxLength(number()?.unsigned_abs() as usize),
            "immutable" => Self::Immutable,
            "frozen" => Self::Frozen,
            _ => return Err(format!("no rule is called {text}")),
        })
    }
}

/// Checks an object, at every depth.
pub fn validate(object: &Map<String, Value>, schema: &Schema, errors: &mut ErrorList) {
    fields(object, schema, &FieldPath::root(), errors);
}

/// Checks what may not change between two objects, at every depth of structs.
pub fn validate_update(new: &Map<String, Value>, old: &Map<String, Value>, schema: &Schema, errors: &mut ErrorList) {
    unchanged(new, old, schema, &FieldPath::root(), errors);
}

fn fields(m: &Map<String, Value>, schema: &Schema, path: &FieldPath, errors: &mut ErrorList) {
    for (f, v) in schema.beside(m.iter()) {
        let v = v.filter(|v| !v.is_null());
        let deeper = matches!(f.schema.ty, Type::Struct | Type::Array | Type::Map);
        if f.rules.is_empty() && (!deeper || v.is_none()) {
            continue;
        }
        let at = path.child(&f.name);
        check(v, f, &at, errors);
        if let Some(v) = v.filter(|_| deeper) {
            descend(v, &f.schema, &at, errors);
        }
    }
}

fn descend(v: &Value, schema: &Schema, path: &FieldPath, errors: &mut ErrorList) {
    match (v, schema.ty) {
        (Value::Object(m), Type::Struct) => fields(m, schema, path, errors),
        (Value::Array(a), Type::Array) => {
            if let Some(s) = schema.items.as_deref().filter(|s| s.ty == Type::Struct) {
                a.iter().enumerate().for_each(|(i, v)| descend(v, s, &path.index(i), errors));
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
            (Rule::Required, _) => {
                // What a pointer points to is there, even when it is nothing.
                let missing = match v {
                    Some(Value::String(_)) if f.presence == Presence::Pointer => false,
                    v => empty(v),
                };
                if missing {
                    errors.push(FieldError::required(path, ""));
                    return;
                }
            }
            (Rule::NonZero, v) => {
                if v.is_none_or(|v| v.as_i64() == Some(0)) {
                    errors.push(FieldError::required(path, ""));
                    return;
                }
            }
            (Rule::LabelKey | Rule::Valid(_), None) => {
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
            (Rule::Listed, Some(Value::Array(a))) => {
                let known = f.schema.items.as_deref().map(|s| &s.enum_values).unwrap_or(&f.schema.enum_values);
                for v in a.iter().filter_map(Value::as_str) {
                    supported(v, known, path, errors);
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

/// What of two equal items is named.
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
            errors.push(FieldError::duplicate(&at, v.clone()));
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
            errors.extend(messages.into_iter().map(|m| FieldError::invalid(path, v.clone(), m)));
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
                errors.push(FieldError::invalid(path, v.clone(), why));
            }
        }
        Rule::Max(max) => {
            if v.as_i64().is_some_and(|n| n > *max) {
                errors.push(FieldError::invalid(path, v.clone(), format!("must be less than or equal to {max}")));
            }
        }
        Rule::Valid(values) => {
            if !values.iter().any(|x| **x == *text) {
                errors.push(FieldError::invalid(path, v.clone(), format!("must be one of {}", values.join(", "))));
            }
        }
        Rule::PortOrZero => {
            if v.as_i64().is_some_and(|n| !(0..=65535).contains(&n)) {
                errors.push(FieldError::invalid(path, v.clone(), "must be between 0 and 65535, inclusive"));
            }
        }
        Rule::Ip => {
            if text.parse::<std::net::IpAddr>().is_err() {
                let why = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
                errors.push(FieldError::invalid(path, v.clone(), why));
            }
        }
        Rule::Cidr => cidr(text, path, errors),
        Rule::Absolute => {
            if !text.is_empty() && !text.starts_with('/') {
                errors.push(FieldError::invalid(path, v.clone(), "must be an absolute path"));
            }
        }
        Rule::LabelKey => {
            errors.extend(names::qualified_name(text).into_iter().map(|m| FieldError::invalid(path, v.clone(), m)));
        }
        Rule::PathSegment => each(names::path_segment(text)),
        Rule::Port => match v.as_i64() {
            Some(n) => {
                errors.extend(names::port_number(n).into_iter().map(|m| FieldError::invalid(path, v.clone(), m)))
            }
            None => errors.extend(names::port_name(text).into_iter().map(|m| FieldError::invalid(path, v.clone(), m))),
        },
        Rule::DnsLabel => each(names::dns_label(text)),
        Rule::Dns1035 => each(names::dns_1035_label(text)),
        Rule::DnsSubdomain => each(names::dns_subdomain(text)),
        Rule::QualifiedName => each(names::qualified_name(text)),
        Rule::LabelValue => each(names::label_value(text)),
        Rule::PortName => each(names::port_name(text)),
        Rule::EnvName => each(names::env_var_name(text)),
        Rule::ConfigMapKey => each(names::config_map_key(text)),
        Rule::LocalPath => {
            if text.split('/').any(|s| s == "..") {
                errors.push(FieldError::invalid(path, v.clone(), "must not contain '..'"));
            }
        }
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
        Rule::Required
        | Rule::NonZero
        | Rule::Unique(_)
        | Rule::UniqueItems(_)
        | Rule::Even(_)
        | Rule::Listed
        | Rule::MaxItems(_)
        | Rule::Immutable
        | Rule::Frozen => {}
    }
}

/// A count or a share such as `25%` (`intstr.IntOrString`), not negative.
pub fn int_or_percent(v: &Value, path: &FieldPath, errors: &mut ErrorList) {
    match v {
        Value::Number(n) if n.as_i64().is_some_and(|n| n < 0) => {
            errors.push(FieldError::invalid(path, v.clone(), "must be greater than or equal to 0"));
        }
        Value::String(s)
            if !s.strip_suffix('%').is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit())) =>
        {
            let why = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')";
            errors.push(FieldError::invalid(path, v.clone(), why));
        }
        _ => {}
    }
}

/// An address range.
pub fn cidr(text: &str, path: &FieldPath, errors: &mut ErrorList) {
    if !is_cidr(text) {
        let why = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
        errors.push(FieldError::invalid(path, text, why));
    }
}

fn is_cidr(text: &str) -> bool {
    let Some((ip, bits)) = text.split_once('/') else { return false };
    let max = match ip.parse::<std::net::IpAddr>() {
        Ok(std::net::IpAddr::V4(_)) => 32,
        Ok(std::net::IpAddr::V6(_)) => 128,
        Err(_) => return false,
    };
    bits.parse::<u8>().is_ok_and(|b| b <= max)
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
            errors.push(FieldError::invalid(path, v.clone(), "must be greater than or equal to 0"));
        }
    };
    match v {
        Value::Object(m) => m.iter().for_each(|(k, v)| one(v, &path.key(k))),
        v => one(v, path),
    }
}

pub fn labels(v: &Value, path: &FieldPath, errors: &mut ErrorList) {
    for (k, v) in v.as_object().into_iter().flatten() {
        errors.extend(names::qualified_name(k).into_iter().map(|m| FieldError::invalid(path, k.as_str(), m)));
        let v = v.as_str().unwrap_or_default();
        errors.extend(names::label_value(v).into_iter().map(|m| FieldError::invalid(path, v, m)));
    }
}

/// `metav1.LabelSelector` (`k8s.io/apimachinery/pkg/apis/meta/v1/validation`).
pub fn selector(v: &Value, path: &FieldPath, errors: &mut ErrorList) {
    if let Some(l) = v.get("matchLabels") {
        labels(l, &path.child("matchLabels"), errors);
    }
    for (i, e) in v["matchExpressions"].as_array().into_iter().flatten().enumerate() {
        let at = path.child("matchExpressions").index(i);
        let values = e["values"].as_array().map(Vec::as_slice).unwrap_or_default();
        match e["operator"].as_str().unwrap_or_default() {
            "In" | "NotIn" if values.is_empty() => {
                let why = "must be specified when `operator` is 'In' or 'NotIn'";
                errors.push(FieldError::required(&at.child("values"), why));
            }
            "In" | "NotIn" => {}
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.push(FieldError::forbidden(&at.child("values"), why));
            }
            "Exists" | "DoesNotExist" => {}
            other => errors.push(FieldError::invalid(&at.child("operator"), other, "not a valid selector operator")),
        }
        let key = e["key"].as_str().unwrap_or_default();
        let bad_key = names::qualified_name(key);
        errors.extend(bad_key.into_iter().map(|m| FieldError::invalid(&at.child("key"), key, m)));
        for (j, v) in values.iter().enumerate() {
            let text = v.as_str().unwrap_or_default();
            let place = at.child("values").index(j);
            errors.extend(names::label_value(text).into_iter().map(|m| FieldError::invalid(&place, text, m)));
        }
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
            errors.push(FieldError::invalid(&at, n.cloned().unwrap_or_default(), "field is immutable"));
        } else if f.rules.contains(&Rule::Frozen) {
            errors.push(FieldError::forbidden(&at, "field is immutable"));
        } else if let (Some(Value::Object(n)), Some(Value::Object(o)), Type::Struct) = (n, o, f.schema.ty) {
            unchanged(n, o, &f.schema, &at, errors);
        }
    }
}
