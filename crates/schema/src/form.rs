//! The schema of a configuration file, checked as Go's strict decoder does (`k8s.io/apimachinery/pkg/runtime/serializer`):
//! known version, matching types, no unknown fields.

use crate::types::{Field, Schema, SchemaRef, Type};
use meta::Value;
use std::fmt::Display;
use std::sync::Arc;

/// Schemas of field values.
#[derive(Clone, Copy)]
pub enum Form {
    /// A scalar, or any value.
    Plain(Type),
    /// A list.
    List(&'static Form),
    /// An object.
    Object(Fields),
}

/// A string.
pub const TEXT: Form = Form::Plain(Type::String);
/// A list of strings.
pub const TEXTS: Form = Form::List(&TEXT);
/// A 32-bit integer.
pub const NUMBER: Form = Form::Plain(Type::Int32);
/// A 64-bit integer.
pub const LONG: Form = Form::Plain(Type::Int64);
/// A boolean.
pub const BOOLEAN: Form = Form::Plain(Type::Boolean);
/// Any value.
pub const ANY: Form = Form::Plain(Type::Any);

/// The name of the Go struct, and its fields.
#[derive(Clone, Copy)]
pub struct Fields(pub &'static str, pub &'static [(&'static str, Form)]);

/// A kind of configuration and its accepted versions, which share one schema.
pub struct Kind {
    /// Each version, with the name of the Go type.
    pub versions: &'static [(&'static str, &'static str)],
    /// The fields.
    pub fields: Fields,
}

/// Why a document is not of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FormError {
    /// Another kind or version, or a value of the wrong type.
    Malformed(String),
    /// Fields that the kind does not have: only a strict decoder refuses them.
    Unknown(Vec<String>),
}

impl std::fmt::Display for FormError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Malformed(why) => f.write_str(why),
            Self::Unknown(paths) => {
                let unknown: Vec<String> = paths.iter().map(|p| format!("unknown field {p:?}")).collect();
                write!(f, "strict decoding error: {}", unknown.join(", "))
            }
        }
    }
}

impl Kind {
    /// Decodes a document and drops nulls. Errors have Go's messages.
    pub fn read(&self, document: &Value) -> Result<Value, String> {
        self.decode(document).map_err(|e| e.to_string())
    }

    /// Decodes a document and drops nulls.
    pub fn decode(&self, document: &Value) -> Result<Value, FormError> {
        self.registered(document).map_err(FormError::Malformed)?;
        let mut read = document.clone();
        let mut schema = self.fields.schema();
        schema.fields.extend(["apiVersion", "kind"].map(|k| Field::new(k, TEXT.reference())));
        schema.fields.sort_by(|a, b| a.name.cmp(&b.name));
        let found = crate::typed(&mut read, &schema).map_err(|e| FormError::Malformed(e.to_string()))?;
        let unknown: Vec<String> = found.unknown.iter().map(ToString::to_string).collect();
        if unknown.is_empty() { Ok(read) } else { Err(FormError::Unknown(unknown)) }
    }

    /// Whether the document declares this kind.
    pub fn registered(&self, document: &Value) -> Result<(), String> {
        let text = |k: &str| document[k].as_str().unwrap_or_default();
        for k in ["kind", "apiVersion"] {
            if text(k).is_empty() {
                return Err(format!("Object '{}' is missing in '{document}'", if k == "kind" { "Kind" } else { k }));
            }
        }
        if self.versions.contains(&(text("apiVersion"), text("kind"))) {
            return Ok(());
        }
        Err(format!("no kind {:?} is registered for version {:?}", text("kind"), text("apiVersion")))
    }
}

impl Fields {
    fn schema(self) -> Schema {
        let field = |(name, form): &(&'static str, Form)| Field::new(*name, form.reference());
        let mut schema = Schema::new(Type::Struct);
        schema.name = Some(format!("v1.{}", self.0).into());
        schema.fields = self.1.iter().map(field).collect();
        schema.fields.sort_by(|a, b| a.name.cmp(&b.name));
        schema
    }
}

impl Form {
    fn reference(self) -> SchemaRef {
        SchemaRef::Inline(Arc::new(match self {
            Self::Plain(ty) => Schema::new(ty),
            Self::List(items) => Schema { items: Some(items.reference()), ..Schema::new(Type::Array) },
            Self::Object(fields) => fields.schema(),
        }))
    }
}

/// Aggregates all errors of a validation (`k8s.io/apimachinery/pkg/util/errors`); `Ok` if there are none.
pub fn aggregate(errors: &[impl Display]) -> Result<(), String> {
    let mut all: Vec<String> = Vec::new();
    for e in errors.iter().map(ToString::to_string) {
        if !all.contains(&e) {
            all.push(e);
        }
    }
    match &all[..] {
        [] => Ok(()),
        [error] => Err(error.clone()),
        more => Err(format!("[{}]", more.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const KIND: Kind = Kind {
        versions: &[("g/v1", "Thing"), ("old/v1alpha1", "Configuration")],
        fields: Fields("Thing", &[("names", TEXTS), ("inner", Form::Object(Fields("Inner", &[("n", NUMBER)])))]),
    };

    #[test]
    fn a_configuration_is_read_as_go_reads_it() {
        let whole = json!({"apiVersion": "g/v1", "kind": "Thing", "names": ["a"], "inner": {"n": 1}});
        assert_eq!(KIND.read(&whole).unwrap(), whole);
        let old = json!({"apiVersion": "old/v1alpha1", "kind": "Configuration", "names": null});
        assert_eq!(KIND.read(&old).unwrap()["names"], Value::Null);
        let head = |more: Value| {
            let mut v = json!({"apiVersion": "g/v1", "kind": "Thing"});
            v.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            KIND.read(&v).unwrap_err()
        };
        let cases = [
            (
                head(json!({"x": 1, "inner": {"y": 1}})),
                "strict decoding error: unknown field \"x\", unknown field \"inner.y\"",
            ),
            (
                head(json!({"names": "a"})),
                "json: cannot unmarshal string into Go struct field Thing.names of type []string",
            ),
            (
                head(json!({"inner": {"n": "a"}})),
                "json: cannot unmarshal string into Go struct field Inner.inner.n of type int32",
            ),
            (head(json!({"apiVersion": "g/v2"})), "no kind \"Thing\" is registered for version \"g/v2\""),
            (head(json!({"kind": "Configuration"})), "no kind \"Configuration\" is registered for version \"g/v1\""),
            (KIND.read(&json!({"a": 1})).unwrap_err(), "Object 'Kind' is missing in '{\"a\":1}'"),
        ];
        for (is, expected) in cases {
            assert_eq!(is, expected);
        }
    }

    #[test]
    fn errors_are_said_together_once_each() {
        assert_eq!(aggregate(&[] as &[&str]), Ok(()));
        assert_eq!(aggregate(&["a", "a"]).unwrap_err(), "a");
        assert_eq!(aggregate(&["a", "b", "a"]).unwrap_err(), "[a, b]");
    }
}
