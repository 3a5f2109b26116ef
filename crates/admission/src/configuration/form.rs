//! The schema of a configuration, checked as Go's strict decoder does (`k8s.io/apimachinery/pkg/runtime/serializer`):
//! known version, matching types, no unknown fields.

use meta::Value;
use schema::{Field, Schema, SchemaRef, Type};
use std::fmt::Display;
use std::sync::Arc;

/// Schemas of field values.
#[derive(Clone, Copy)]
pub(crate) enum Form {
    Plain(Type),
    List(&'static Form),
    Object(Fields),
}

pub(crate) const TEXT: Form = Form::Plain(Type::String);
pub(crate) const TEXTS: Form = Form::List(&TEXT);
pub(crate) const NUMBER: Form = Form::Plain(Type::Int32);
pub(crate) const LONG: Form = Form::Plain(Type::Int64);
pub(crate) const ANY: Form = Form::Plain(Type::Any);

/// The name of the Go struct, and its fields.
#[derive(Clone, Copy)]
pub(crate) struct Fields(pub &'static str, pub &'static [(&'static str, Form)]);

/// A kind of configuration and its accepted versions, which share one schema.
pub(crate) struct Kind {
    /// Each version, with the name of the Go type.
    pub versions: &'static [(&'static str, &'static str)],
    pub fields: Fields,
}

impl Kind {
    /// Decodes a document and drops nulls. Errors have Go's messages.
    pub fn read(&self, document: &Value) -> Result<Value, String> {
        self.registered(document)?;
        let mut read = document.clone();
        let mut schema = self.fields.schema();
        schema.fields.extend(["apiVersion", "kind"].map(|k| Field::new(k, TEXT.reference())));
        schema.fields.sort_by(|a, b| a.name.cmp(&b.name));
        let found = schema::typed(&mut read, &schema).map_err(|e| e.to_string())?;
        let unknown: Vec<String> = found.unknown.iter().map(|p| format!("unknown field {p:?}")).collect();
        if unknown.is_empty() { Ok(read) } else { Err(format!("strict decoding error: {}", unknown.join(", "))) }
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
pub(crate) fn aggregate(errors: &[impl Display]) -> Result<(), String> {
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
