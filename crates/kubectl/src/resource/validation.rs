//! Client-side validation (`k8s.io/kubectl/pkg/validation`).
//!
//! The server validates each object that it receives. Lists and kinds that it does not validate itself are validated here
//! against its OpenAPI v2 document, so that no object of a list is created if one of its items is invalid.

use crate::error::Result;
use crate::kube::Kube;
use client::FieldValidation;
use client::client::{JSON, request};
use http::Method;
use meta::{GroupVersion, Gvk, Map, Value};

const OPENAPI: &str = "/openapi/v2";

/// Validates the documents of one command.
pub struct Validator {
    validation: FieldValidation,
    /// The server's OpenAPI document, once it was fetched.
    openapi: Option<Value>,
}

impl Validator {
    pub fn new(validation: FieldValidation) -> Self {
        Self { validation, openapi: None }
    }

    /// Validates a document. The inner error describes what is invalid, as one line; the outer one means that the server
    /// failed.
    pub async fn check(&mut self, k: &mut Kube, document: &Value) -> Result<std::result::Result<(), String>> {
        if self.validation == FieldValidation::Ignore {
            return Ok(Ok(()));
        }
        let gvk = match kind_of(document) {
            Ok(gvk) => gvk,
            Err(errors) => return Ok(aggregate(errors)),
        };
        let is_list = gvk == Gvk::new("", "v1", "List");
        if self.validation == FieldValidation::Warn {
            return Ok(Ok(()));
        }
        if !is_list {
            match k.resource_of(&gvk).await? {
                // The server validates kinds that it can patch.
                Some(r) if r.verbs.iter().any(|v| v == "patch") => return Ok(Ok(())),
                // An unserved kind has no schema, unless it is the list of a served one.
                None if !gvk.kind.ends_with("List") => return Ok(Ok(())),
                _ => {}
            }
        }
        let openapi = match self.openapi.take() {
            Some(known) => known,
            None => k.client().await?.json(request(Method::GET, OPENAPI, JSON, None)?).await?,
        };
        let models = Models { definitions: &openapi["definitions"] };
        let errors = if is_list { models.list(document) } else { models.object(document, &gvk) };
        self.openapi = Some(openapi);
        Ok(aggregate(errors))
    }
}

/// Joins errors into one, without duplicates.
fn aggregate(errors: Vec<String>) -> std::result::Result<(), String> {
    let mut all: Vec<String> = Vec::new();
    for e in errors {
        if !all.contains(&e) {
            all.push(e);
        }
    }
    match all.len() {
        0 => Ok(()),
        1 => Err(all.remove(0)),
        _ => Err(format!("[{}]", all.join(", "))),
    }
}

fn kind_of(v: &Value) -> std::result::Result<Gvk, Vec<String>> {
    let Some(fields) = v.as_object() else { return Err(vec!["invalid object to validate".into()]) };
    let mut errors = Vec::new();
    let mut text = |field: &str| match fields.get(field) {
        None | Some(Value::Null) => {
            errors.push(format!("{field} not set"));
            None
        }
        Some(Value::String(s)) => Some(s.as_str()),
        Some(_) => {
            errors.push(format!("{field} isn't string type"));
            None
        }
    };
    let (version, kind) = (text("apiVersion"), text("kind"));
    let parsed = version.and_then(GroupVersion::parse);
    if let (Some(version), None) = (version, &parsed) {
        errors.insert(0, format!("unexpected GroupVersion string: {version}"));
    }
    match (parsed, kind) {
        (Some(gv), Some(kind)) => Ok(gv.with_kind(kind)),
        _ => Err(errors),
    }
}

/// The definitions of an OpenAPI v2 document (`kube-openapi/pkg/util/proto/validation`).
struct Models<'a> {
    definitions: &'a Value,
}

/// What a schema allows.
enum Shape<'a> {
    Anything,
    Primitive(&'a str),
    List(&'a Value),
    /// A map, with the schema of its values if there is one.
    Map(Option<&'a Value>),
    /// An object with these fields.
    Kind(&'a Map<String, Value>),
}

impl<'a> Models<'a> {
    fn list(&self, document: &Value) -> Vec<String> {
        let Some(items) = document["items"].as_array() else { return vec!["invalid object to validate".into()] };
        let errors = items.iter().flat_map(|i| match kind_of(i) {
            Ok(gvk) => self.object(i, &gvk),
            Err(errors) => errors,
        });
        errors.collect()
    }

    /// Validates an object. A kind without a definition has no errors.
    fn object(&self, v: &Value, gvk: &Gvk) -> Vec<String> {
        let is = |s: &Value| {
            let mut all = s["x-kubernetes-group-version-kind"].as_array().into_iter().flatten();
            all.any(|g| {
                let has = |field: &str, value: &str| g[field].as_str().unwrap_or_default() == value;
                has("kind", &gvk.kind) && has("version", &gvk.version) && has("group", &gvk.group)
            })
        };
        let mut errors = Vec::new();
        if let Some((name, schema)) = self.definitions.as_object().and_then(|all| all.iter().find(|(_, s)| is(s))) {
            self.value(v, &gvk.kind, schema, name, &mut errors);
        }
        errors
    }

    /// Follows the references of a schema. Returns the schema and its name.
    fn resolve<'b>(&self, mut schema: &'a Value, mut name: &'b str) -> (&'a Value, &'b str)
    where
        'a: 'b,
    {
        // A reference cycle is cut after as many steps as there are types.
        for _ in 0..self.definitions.as_object().map_or(0, Map::len) {
            let Some(to) = schema["$ref"].as_str().and_then(|r| r.strip_prefix("#/definitions/")) else { break };
            (schema, name) = (&self.definitions[to], to);
        }
        (schema, name)
    }

    fn shape(schema: &'a Value) -> Shape<'a> {
        let properties = schema["properties"].as_object();
        match (schema["type"].as_str(), properties) {
            (None | Some("object"), Some(fields)) => Shape::Kind(fields),
            (None, None) => Shape::Anything,
            (Some("object"), None) => Shape::Map(Some(&schema["additionalProperties"]).filter(|s| s.is_object())),
            (Some("array"), _) => Shape::List(&schema["items"]),
            (Some(primitive), _) => Shape::Primitive(primitive),
        }
    }

    /// Validates a value at `path` against the schema called `name`.
    fn value(&self, v: &Value, path: &str, schema: &'a Value, name: &str, errors: &mut Vec<String>) {
        let (schema, name) = self.resolve(schema, name);
        let mut wrong = |what: String| errors.push(format!("ValidationError({path}): {what}"));
        let kind = type_of(v);
        let mistyped = |expected: &str| format!("invalid type for {name}: got {kind:?}, expected {expected:?}");
        match (Self::shape(schema), v) {
            (Shape::Anything, _) | (Shape::Map(None), Value::Object(_)) => {}
            (Shape::Primitive(_), Value::Array(_) | Value::Object(_))
            | (Shape::Primitive("boolean" | "integer" | "number"), _)
                if !fits(schema["type"].as_str().unwrap_or_default(), kind) =>
            {
                wrong(mistyped(schema["type"].as_str().unwrap_or_default()));
            }
            (Shape::Primitive(_), _) => {}
            (Shape::List(items), Value::Array(all)) => {
                for (i, v) in all.iter().enumerate() {
                    let at = format!("{path}[{i}]");
                    match v {
                        Value::Null => errors.push(format!("ValidationError({path}): {}", null(&at))),
                        v => self.value(v, &at, items, name, errors),
                    }
                }
            }
            (Shape::List(_), _) => wrong(mistyped("array")),
            (Shape::Map(Some(values)), Value::Object(all)) => {
                for (key, v) in all {
                    let at = format!("{path}.{key}");
                    match v {
                        Value::Null => errors.push(null(&at)),
                        v => self.value(v, &at, values, name, errors),
                    }
                }
            }
            (Shape::Kind(fields), Value::Object(all)) => {
                for (key, v) in all.iter().filter(|(_, v)| !v.is_null()) {
                    match fields.get(key) {
                        None => errors.push(format!("ValidationError({path}): unknown field {key:?} in {name}")),
                        Some(field) => {
                            self.value(v, &format!("{path}.{key}"), field, &format!("{name}.{key}"), errors);
                        }
                    }
                }
                let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
                for field in required.filter(|f| all.get(*f).is_none_or(Value::is_null)) {
                    errors.push(format!("ValidationError({path}): missing required field {field:?} in {name}"));
                }
            }
            (Shape::Map(_) | Shape::Kind(_), _) => wrong(mistyped("map")),
        }
    }
}

fn null(path: &str) -> String {
    format!("unknown object type \"nil\" in {path}")
}

fn type_of(v: &Value) -> &'static str {
    match v {
        Value::Null => "nil",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "map",
    }
}

/// Whether a value of one type is valid where another is expected. A string accepts any scalar.
fn fits(expected: &str, actual: &str) -> bool {
    match expected {
        "string" => !matches!(actual, "array" | "map"),
        "integer" | "number" => matches!(actual, "integer" | "number"),
        expected => expected == actual,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Server, snapshot};
    use serde_json::json;

    fn openapi() -> Value {
        let gvk = |kind: &str| json!([{"group": "", "kind": kind, "version": "v1"}]);
        json!({"definitions": {
            "a.ConfigMap": {
                "type": "object", "x-kubernetes-group-version-kind": gvk("ConfigMap"), "required": ["must"],
                "properties": {
                    "apiVersion": {"type": "string"}, "kind": {"type": "string"}, "must": {"type": "boolean"},
                    "metadata": {"$ref": "#/definitions/a.Meta"}, "any": {},
                    "size": {"$ref": "#/definitions/a.Quantity"}, "count": {"type": "integer"}, "free": {"type": "object"},
                    "data": {"type": "object", "additionalProperties": {"type": "string"}},
                    "list": {"type": "array", "items": {"$ref": "#/definitions/a.Meta"}},
                },
            },
            "a.Meta": {"type": "object", "properties": {"name": {"type": "string"}}},
            "a.Quantity": {"type": "string"},
            "a.ConfigMapList": {
                "x-kubernetes-group-version-kind": gvk("ConfigMapList"),
                "properties": {
                    "apiVersion": {"type": "string"}, "kind": {"type": "string"},
                    "items": {"type": "array", "items": {"$ref": "#/definitions/a.ConfigMap"}},
                },
            },
        }})
    }

    #[test]
    fn validates_items_by_their_schemas() {
        let openapi = openapi();
        let models = Models { definitions: &openapi["definitions"] };
        let wrong = |mut item: Value| {
            let fields = item.as_object_mut().unwrap();
            for (key, v) in [("apiVersion", json!("v1")), ("kind", json!("ConfigMap")), ("must", json!(true))] {
                fields.entry(key).or_insert(v);
            }
            models.list(&json!({"items": [item]}))
        };
        for good in [
            json!({}),
            json!({"metadata": {"name": 1}, "any": [{}], "size": 1.5, "count": 1.5, "free": {"x": null}, "data": {"a": true}}),
            json!({"kind": "Other"}),
            json!({"metadata": null}),
        ] {
            assert_eq!(wrong(good.clone()), Vec::<String>::new(), "{good}");
        }
        for (bad, why) in [
            (json!({"x": 1}), "ValidationError(ConfigMap): unknown field \"x\" in a.ConfigMap"),
            (json!({"must": null}), "ValidationError(ConfigMap): missing required field \"must\" in a.ConfigMap"),
            (
                json!({"must": 1}),
                "ValidationError(ConfigMap.must): invalid type for a.ConfigMap.must: got \"integer\", expected \"boolean\"",
            ),
            (
                json!({"count": "1"}),
                "ValidationError(ConfigMap.count): invalid type for a.ConfigMap.count: got \"string\", expected \"integer\"",
            ),
            (
                json!({"size": {}}),
                "ValidationError(ConfigMap.size): invalid type for a.Quantity: got \"map\", expected \"string\"",
            ),
            (
                json!({"metadata": [1]}),
                "ValidationError(ConfigMap.metadata): invalid type for a.Meta: got \"array\", expected \"map\"",
            ),
            (json!({"list": [{"q": 1}]}), "ValidationError(ConfigMap.list[0]): unknown field \"q\" in a.Meta"),
            (
                json!({"list": [null]}),
                "ValidationError(ConfigMap.list): unknown object type \"nil\" in ConfigMap.list[0]",
            ),
            (
                json!({"list": true}),
                "ValidationError(ConfigMap.list): invalid type for a.ConfigMap.list: got \"boolean\", expected \"array\"",
            ),
            (
                json!({"data": {"a": []}}),
                "ValidationError(ConfigMap.data.a): invalid type for a.ConfigMap.data: got \"array\", expected \"string\"",
            ),
            (json!({"data": {"a": null}}), "unknown object type \"nil\" in ConfigMap.data.a"),
            (json!({"kind": null}), "kind not set"),
            (json!({"kind": 1}), "kind isn't string type"),
            (json!({"apiVersion": "a/b/c"}), "unexpected GroupVersion string: a/b/c"),
        ] {
            assert_eq!(wrong(bad.clone()), [why], "{bad}");
        }
        assert_eq!(models.list(&json!({"items": {}})), ["invalid object to validate"]);
        assert_eq!(models.list(&json!({"items": [3]})), ["invalid object to validate"]);
    }

    /// No object of a list is created if one item is invalid.
    #[tokio::test]
    async fn invalid_item_stops_the_whole_list() {
        let made = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a", "namespace": "default"}});
        let s = Server::new()
            .on("GET /openapi/v2", 200, openapi())
            .on(
                "POST /api/v1/namespaces/default/configmaps?fieldManager=kubectl-create&fieldValidation=Strict",
                201,
                made,
            )
            .on("GET /api/v1/namespaces/default/configmaps/a", 404, json!({}));
        let good = "{apiVersion: v1, kind: ConfigMap, must: true, metadata: {name: a}}";
        let list = |kind: &str, item: &str| format!("apiVersion: v1\nkind: {kind}\nitems:\n- {good}\n- {item}\n");
        for (file, why) in [
            (list("List", "{apiVersion: v1}"), "kind not set"),
            (list("List", "{}"), "[apiVersion not set, kind not set]"),
            (
                list("ConfigMapList", "{must: true, x: 1}"),
                "ValidationError(ConfigMapList.items[1]): unknown field \"x\" in a.ConfigMap",
            ),
        ] {
            for verb in ["create", "apply", "replace"] {
                let expected = format!(
                    "! error: error validating \"STDIN\": error validating data: {why}; if you choose to ignore these errors, turn validation off with --validate=false\nexit 1\n"
                );
                assert_eq!(snapshot(&s, &format!("{verb} -f -"), &file).await, expected, "{verb} {file}");
            }
        }
        assert!(s.requests().iter().all(|l| l == "GET /openapi/v2"), "{:?}", s.requests());
        // Documents before it are created, later ones are not.
        let file = format!("{good}\n---\n{}---\n{good}\n", list("List", "{apiVersion: v1}"));
        assert!(snapshot(&s, "create -f -", &file).await.starts_with("configmap/a created\n! error: error validating"));
        // The server validates these.
        assert_eq!(
            snapshot(&s, "create -f -", &list("List", good)).await,
            "configmap/a created\nconfigmap/a created\n"
        );
        let requests = s.requests().len();
        assert_eq!(snapshot(&s, "create -f -", good).await, "configmap/a created\n");
        assert_eq!(s.requests().len(), requests + 1);
    }
}
