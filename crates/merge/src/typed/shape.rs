//! The structure of a value as ownership sees it.

use crate::fieldset::PathElement;
use crate::fieldset::compare_values;
use meta::{Map, Value};
use schema::{ListType, Schema, Type};
use std::cmp::Ordering;

/// Depth below which a value is a single leaf. Real objects stay far above it.
pub const MAX_DEPTH: usize = 512;

/// A schema with the merge options of its field.
#[derive(Clone, Copy, Default)]
pub struct TypeRef<'a> {
    /// None: the type is deduced from the value.
    pub schema: Option<&'a Schema>,
    /// The field is owned as a whole.
    pub atomic: bool,
    /// Members are owned apart, whatever the type is.
    pub granular: bool,
}

impl<'a> TypeRef<'a> {
    /// The shape of a value with this schema.
    pub fn new(schema: Option<&'a Schema>) -> Self {
        Self { schema, ..Self::default() }
    }

    /// The type of an object's member.
    pub(super) fn member(self, name: &str) -> Self {
        self.declared(name).0
    }

    /// The type of an object's member, and whether it is a field of its own.
    pub(super) fn declared(self, name: &str) -> (Self, bool) {
        let Some(s) = self.schema else { return (Self::default(), false) };
        match s.field(name) {
            Some(f) => (Self { schema: Some(f.schema.get()), atomic: f.atomic, granular: f.granular }, true),
            None => (Self::new(s.additional.as_deref()), false),
        }
    }

    /// The type of a list's items.
    pub(super) fn items(self) -> Self {
        Self::new(self.schema.and_then(|s| s.items.as_deref()))
    }
}

pub(super) enum Shape<'a> {
    Leaf,
    /// Members are owned apart.
    Object,
    /// Items are owned apart.
    List(&'a ListType),
}

impl<'a> Shape<'a> {
    pub(super) fn read(t: TypeRef<'a>, v: &Value) -> Self {
        if t.atomic {
            return Self::Leaf;
        }
        match (v, t.schema) {
            (Value::Object(_), None) => Self::Object,
            (Value::Object(_), Some(s)) => match s.ty {
                Type::Map | Type::Struct if s.atomic && !t.granular => Self::Leaf,
                Type::Map | Type::Struct | Type::Any | Type::Raw => Self::Object,
                _ => Self::Leaf,
            },
            (Value::Array(_), Some(s)) if s.ty == Type::Array && s.list != ListType::Atomic => Self::List(&s.list),
            _ => Self::Leaf,
        }
    }
}

pub(super) fn object(v: Option<&Value>) -> Option<&Map<String, Value>> {
    v.and_then(Value::as_object)
}

pub(super) fn list(v: Option<&Value>) -> &[Value] {
    v.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

pub(super) fn is_empty(v: Option<&Value>) -> bool {
    match v {
        None | Some(Value::Null) => true,
        Some(Value::Object(m)) => m.is_empty(),
        Some(Value::Array(a)) => a.is_empty(),
        Some(_) => false,
    }
}

/// A key's value in an item, or its default: the published one, which for custom resources is what is filled in.
fn key_value<'a>(item: &'a Value, key: &str, items: TypeRef<'a>) -> Option<&'a Value> {
    item.get(key).or_else(|| {
        let schema = items.schema?;
        let field = schema.field(key)?;
        let filled = field.fill.as_ref().filter(|_| schema.custom).map(|f| &f.value);
        field.default.as_ref().or(filled)
    })
}

/// Whether two items of an associative list are the same item. No allocation.
pub(super) fn same_item(a: &Value, b: &Value, kind: &ListType, items: TypeRef<'_>) -> bool {
    let equal = |x: &Value, y: &Value| compare_values(x, y) == Ordering::Equal;
    match kind {
        ListType::Map(keys) => {
            a.is_object()
                && b.is_object()
                && keys.iter().all(|k| match (key_value(a, k, items), key_value(b, k, items)) {
                    (Some(x), Some(y)) => equal(x, y),
                    (None, None) => true,
                    _ => false,
                })
        }
        _ => equal(a, b),
    }
}

/// The path element that identifies an item in its list, or why there is none.
pub(super) fn item_element(item: &Value, kind: &ListType, items: TypeRef<'_>) -> Result<PathElement, String> {
    match kind {
        ListType::Map(keys) => {
            if item.is_null() {
                return Err("associative list with keys may not have a null element".to_owned());
            }
            if !item.is_object() {
                return Err("associative list with keys may not have non-map elements".to_owned());
            }
            let mut found: Vec<(Box<str>, Value)> =
                keys.iter().filter_map(|k| Some(((**k).into(), key_value(item, k, items)?.clone()))).collect();
            if found.is_empty() {
                let names: Vec<&str> = keys.iter().map(|k| &**k).collect();
                return Err(format!(
                    "associative list with keys has an element that omits all key fields {names:?} (and doesn't have default values for any key fields)"
                ));
            }
            found.sort_by(|a, b| a.0.cmp(&b.0));
            Ok(PathElement::Key(found.into()))
        }
        _ => match item {
            Value::Object(_) => Err("associative list without keys has an element that's a map type".to_owned()),
            Value::Array(_) => Err("not supported: associative list with lists as elements".to_owned()),
            Value::Null => Err("associative list without keys has an element that's an explicit null".to_owned()),
            v => Ok(PathElement::Value(Box::new(v.clone()))),
        },
    }
}
