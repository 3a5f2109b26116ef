//! Decodes JSON into structs as Go's decoder does: field names in any case, `null` for absent, and the first mismatch
//! reported in Go's words.
//!
//! A struct is described once, by [`go_struct!`]: its fields with their names in JSON, and the structs that it embeds.

use meta::{Map, Value};
use std::collections::BTreeMap;

/// How unknown fields are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    Refused,
    Ignored,
}

/// The state of decoding: how unknown fields are handled, and the first error.
pub struct Decoder {
    unknown: Unknown,
    first: Option<String>,
}

/// The location of a value: Go's name of the struct, and the path from the root.
#[derive(Clone, Debug)]
pub struct Location {
    pub owner: &'static str,
    pub path: String,
}

impl Location {
    /// Returns the location of a field.
    pub fn field(owner: &'static str, path: &str, key: &str) -> Self {
        Self { owner, path: if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") } }
    }
}

impl Decoder {
    fn record_error(&mut self, text: String) {
        self.first.get_or_insert(text);
    }

    fn mismatch(&mut self, v: &Value, at: &Location, expected: &str) {
        let found = match v {
            Value::Null => "null".to_owned(),
            Value::Bool(_) => "bool".to_owned(),
            Value::Number(n) if expected.starts_with("int") => format!("number {n}"),
            Value::Number(_) => "number".to_owned(),
            Value::String(_) => "string".to_owned(),
            Value::Array(_) => "array".to_owned(),
            Value::Object(_) => "object".to_owned(),
        };
        let location = if at.path.is_empty() {
            "Go value".to_owned()
        } else {
            format!("Go struct field {}.{}", at.owner, at.path)
        };
        self.record_error(format!("json: cannot unmarshal {found} into {location} of type {expected}"));
    }
}

/// A type that can be decoded from JSON as in Go.
pub trait Decode: Sized {
    fn type_name() -> String;
    /// Returns `None` for null and for a value of another type.
    fn decode(v: Value, at: &Location, d: &mut Decoder) -> Option<Self>;
}

/// The fields of a struct.
pub trait Fields {
    /// Returns the value if no field has the name.
    fn set(&mut self, key: &str, v: Value, path: &str, owner: &'static str, d: &mut Decoder) -> Result<(), Value>;
}

/// Decodes a document.
pub fn decode<T: Decode + Default>(v: Value, unknown: Unknown) -> Result<T, String> {
    let mut d = Decoder { unknown, first: None };
    let out = T::decode(v, &Location { owner: "", path: String::new() }, &mut d);
    match d.first {
        Some(why) => Err(why),
        None => Ok(out.unwrap_or_default()),
    }
}

/// Decodes a struct from its fields.
pub fn fields<T: Fields + Default>(
    v: Value,
    at: &Location,
    name: &'static str,
    full: &str,
    d: &mut Decoder,
) -> Option<T> {
    let members = match v {
        Value::Null => return None,
        Value::Object(m) => m,
        other => {
            d.mismatch(&other, at, full);
            return None;
        }
    };
    let mut out = T::default();
    for (k, v) in members {
        if out.set(&k, v, &at.path, name, d).is_err() && d.unknown == Unknown::Refused {
            d.record_error(format!("json: unknown field {k:?}"));
        }
    }
    Some(out)
}

macro_rules! scalar {
    ($ty:ty, $name:literal, $v:ident => $take:expr) => {
        impl Decode for $ty {
            fn type_name() -> String {
                $name.to_owned()
            }

            fn decode($v: Value, at: &Location, d: &mut Decoder) -> Option<Self> {
                let out = $take;
                if out.is_none() && !$v.is_null() {
                    d.mismatch(&$v, at, $name);
                }
                out
            }
        }
    };
}

scalar!(String, "string", v => v.as_str().map(str::to_owned));
scalar!(bool, "bool", v => v.as_bool());
scalar!(i64, "int64", v => v.as_i64());

/// Any value, unchanged.
impl Decode for Value {
    fn type_name() -> String {
        "interface {}".to_owned()
    }

    fn decode(v: Value, _: &Location, _: &mut Decoder) -> Option<Self> {
        Some(v)
    }
}

impl<T: Decode> Decode for Option<T> {
    fn type_name() -> String {
        T::type_name()
    }

    fn decode(v: Value, at: &Location, d: &mut Decoder) -> Option<Self> {
        T::decode(v, at, d).map(Some)
    }
}

impl<T: Decode + Default> Decode for Vec<T> {
    fn type_name() -> String {
        format!("[]{}", T::type_name())
    }

    fn decode(v: Value, at: &Location, d: &mut Decoder) -> Option<Self> {
        match v {
            Value::Null => None,
            Value::Array(items) => Some(items.into_iter().map(|i| T::decode(i, at, d).unwrap_or_default()).collect()),
            other => {
                d.mismatch(&other, at, &Self::type_name());
                None
            }
        }
    }
}

impl Decode for BTreeMap<String, String> {
    fn type_name() -> String {
        "map[string]string".to_owned()
    }

    fn decode(v: Value, at: &Location, d: &mut Decoder) -> Option<Self> {
        match v {
            Value::Null => None,
            Value::Object(m) => {
                Some(m.into_iter().map(|(k, v)| (k, String::decode(v, at, d).unwrap_or_default())).collect())
            }
            other => {
                d.mismatch(&other, at, &Self::type_name());
                None
            }
        }
    }
}

impl Decode for Map<String, Value> {
    fn type_name() -> String {
        "map[string]interface {}".to_owned()
    }

    fn decode(v: Value, at: &Location, d: &mut Decoder) -> Option<Self> {
        match v {
            Value::Null => None,
            Value::Object(m) => Some(m),
            other => {
                d.mismatch(&other, at, &Self::type_name());
                None
            }
        }
    }
}

/// Defines a struct with Go's name, fields with their names in JSON, and (after a semicolon) an embedded struct.
macro_rules! go_struct {
    ($(#[$meta:meta])* $name:ident $go:literal {
        $($(#[$field_meta:meta])* $field:ident: $ty:ty = $key:literal,)*
        $(; $inner:ident: $inner_ty:ty,)?
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $ty,)*
            $(pub $inner: $inner_ty,)?
        }

        impl $crate::go::Fields for $name {
            #[allow(unused_variables, unused_mut, reason = "a type may have no fields of its own")]
            fn set(
                &mut self,
                key: &str,
                v: ::meta::Value,
                path: &str,
                owner: &'static str,
                d: &mut $crate::go::Decoder,
            ) -> Result<(), ::meta::Value> {
                $(if key.eq_ignore_ascii_case($key) {
                    let at = $crate::go::Location::field(owner, path, $key);
                    if let Some(x) = <$ty as $crate::go::Decode>::decode(v, &at, d) {
                        self.$field = x;
                    }
                    return Ok(());
                })*
                $(let v = match $crate::go::Fields::set(&mut self.$inner, key, v, path, owner, d) {
                    Ok(()) => return Ok(()),
                    Err(v) => v,
                };)?
                Err(v)
            }
        }

        impl $crate::go::Decode for $name {
            fn type_name() -> String {
                concat!("types.", $go).to_owned()
            }

            fn decode(v: ::meta::Value, at: &$crate::go::Location, d: &mut $crate::go::Decoder) -> Option<Self> {
                $crate::go::fields(v, at, $go, concat!("types.", $go), d)
            }
        }
    };
}
pub(crate) use go_struct;
