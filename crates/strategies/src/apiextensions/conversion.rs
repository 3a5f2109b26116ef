//! Conversion by webhook: the `ConversionReview` request, and validation of the response
//! (`k8s.io/apiextensions-apiserver/pkg/apiserver/conversion`).
//!
//! A webhook may change everything but kind and metadata; of the metadata, it may change labels and annotations.

use super::strings;
use async_trait::async_trait;
use auth::Endpoint;
use meta::{FieldPath, Gvk, Object, Reason, Status, Value, random};
use registry::convert::Conversion;
use registry::{Converter, Env, metadata};
use serde_json::json;
use std::time::Duration;
use tokio::time::Instant;

const GROUP: &str = "apiextensions.k8s.io";
const KIND: &str = "ConversionReview";
/// Timeout of a call. Unlike that of admission webhooks, it cannot be configured.
const TIMEOUT: Duration = Duration::from_secs(30);

pub struct Webhook {
    definition: String,
    endpoint: Option<Endpoint>,
    /// Supported review versions, in order of preference.
    versions: Vec<String>,
}

/// The type of a failure in upstream's metrics, and its text after `conversion webhook for … `.
type Failure = (&'static str, String);

const CALL: &str = "conversion_webhook_call_failure";
const MALFORMED: &str = "conversion_webhook_malformed_response_failure";
const PARTIAL: &str = "conversion_webhook_partial_response_failure";
const INVALID: &str = "conversion_webhook_invalid_converted_object_failure";

impl Webhook {
    /// Returns the webhook of a definition; `None` if its conversion strategy is `None`.
    pub fn read(definition: &Object) -> Option<Self> {
        if definition.str_at(&["spec", "conversion", "strategy"]) != Some("Webhook") {
            return None;
        }
        let webhook = definition.at(&["spec", "conversion", "webhook"])?;
        Some(Self {
            definition: definition.name().into(),
            endpoint: Endpoint::read(&webhook["clientConfig"]),
            versions: strings(webhook.get("conversionReviewVersions")),
        })
    }

    async fn call(&self, env: Env<'_>, objects: &[Object], to: &Gvk) -> Result<Vec<Object>, Failure> {
        let malformed = |why: String| (MALFORMED, format!("failed: {why}"));
        let known = self.versions.iter().find(|v| matches!(v.as_str(), "v1" | "v1beta1"));
        let version = known.ok_or_else(|| malformed("no supported conversion review versions".into()))?;
        let uid = random::uuid(env.rng());
        let sent: Vec<&serde_json::Map<String, Value>> = objects.iter().map(|o| &o.0).collect();
        let review = json!({"kind": KIND, "apiVersion": format!("{GROUP}/{version}"),
            "request": {"uid": uid, "desiredAPIVersion": to.api_version(), "objects": sent}});
        let failed = |why: String| (CALL, format!("failed: {why}"));
        let (Some(endpoint), Some(transport)) = (&self.endpoint, env.registry.webhooks.get()) else {
            return Err(failed("webhook configuration must have either service or URL".into()));
        };
        let body = review.to_string().into_bytes();
        let answer = transport.post(env.registry, endpoint, TIMEOUT, body).await.map_err(failed)?;
        let answer: Value = meta::depth::from_slice(&answer)
            .map_err(|e| failed(format!("couldn't get version/kind; json parse error: {e}")))?;
        let converted = read(answer, version, &uid).map_err(malformed)?;
        if converted.len() != objects.len() {
            return Err((PARTIAL, format!("returned {} objects, expected {}", converted.len(), objects.len())));
        }
        let single = objects.len() == 1;
        let pairs = objects.iter().zip(converted).enumerate();
        pairs.map(|(i, (o, c))| take(o, c, to, Position { index: i, single }).map_err(|why| (INVALID, why))).collect()
    }
}

#[async_trait]
impl Converter for Webhook {
    async fn convert(&self, env: Env<'_>, objects: Vec<Object>, to: &Gvk) -> Result<Vec<Object>, Status> {
        let begun = Instant::now();
        let result = self.call(env, &objects, to).await;
        let first = objects.first().map(|o| (o.api_version(), o.kind())).unwrap_or_default();
        if let Some(transport) = env.registry.webhooks.get() {
            let (from, took) = (first.0.rsplit('/').next().unwrap_or_default(), begun.elapsed());
            let failure = result.as_ref().err().map(|f| f.0);
            transport.converted(&Conversion { definition: &self.definition, from, to: &to.version, took, failure });
        }
        result.map_err(|(_, why)| {
            let message = format!("conversion webhook for {}, Kind={} {why}", first.0, first.1);
            Status::new(500, Reason::Unknown, message)
        })
    }
}

/// Returns the converted objects of a response. Errors if it does not match the request.
fn read(mut answer: Value, version: &str, uid: &str) -> Result<Vec<Value>, String> {
    if version == "v1" {
        let (have, kind) = (answer["apiVersion"].as_str().unwrap_or_default(), &answer["kind"]);
        if have != format!("{GROUP}/v1") || *kind != KIND {
            let (have, kind) = (if have.is_empty() { "/" } else { have }, kind.as_str().unwrap_or_default());
            return Err(format!("expected webhook response of {GROUP}/v1, Kind={KIND}, got {have}, Kind={kind}"));
        }
    }
    let response = &mut answer["response"];
    if !response.is_object() {
        return Err("no response provided".into());
    }
    let have = response["uid"].as_str().unwrap_or_default();
    if version == "v1" && have != uid {
        return Err(format!("expected response.uid={uid:?}, got {have:?}"));
    }
    let result = &response["result"];
    let status = result["status"].as_str().unwrap_or_default();
    if status != "Success" {
        return Err(match result["message"].as_str().filter(|m| !m.is_empty()) {
            Some(m) => m.to_owned(),
            None => format!("response.result.status was '{status}', not 'Success'"),
        });
    }
    match response["convertedObjects"].take() {
        Value::Array(all) => Ok(all),
        _ => Ok(Vec::new()),
    }
}

/// The position of an object among those converted together, for errors.
#[derive(Clone, Copy)]
struct Position {
    index: usize,
    single: bool,
}

impl Position {
    fn object(self, why: impl std::fmt::Display) -> String {
        let converted = if self.single { "" } else { "converted " };
        format!("returned invalid {converted}object at index {}: {why}", self.index)
    }

    fn unlike(self, why: impl std::fmt::Display) -> String {
        match self.single {
            true => format!("returned invalid object: {why}"),
            false => format!("returned invalid converted object at index {}: {why}", self.index),
        }
    }

    fn metadata(self, why: impl std::fmt::Display) -> String {
        match self.single {
            true => format!("returned invalid metadata: {why}"),
            false => format!("returned invalid metadata in object at index {}: {why}", self.index),
        }
    }
}

/// Returns the converted object with the metadata of the original, except for its own labels and annotations.
fn take(original: &Object, converted: Value, to: &Gvk, position: Position) -> Result<Object, String> {
    let mut converted = match Object::from_value(converted) {
        Some(o) if !o.kind().is_empty() => o,
        Some(o) => {
            let text = Value::Object(o.0).to_string();
            return Err(position.object(format!("Object 'Kind' is missing in '{text}'")));
        }
        None => return Err(position.object("it is no object")),
    };
    let (want, have) = (to.api_version(), converted.api_version());
    if have != want {
        return Err(position.object(format!("invalid groupVersion (expected {want}, received {have})")));
    }
    if converted.kind() != original.kind() {
        let (want, have) = (original.kind(), converted.kind());
        return Err(position.object(format!("invalid kind (expected {want}, received {have})")));
    }
    let kept = [
        ("name", original.name(), converted.name()),
        ("namespace", original.namespace(), converted.namespace()),
        ("UID", original.uid(), converted.uid()),
    ];
    if let Some((what, want, have)) = kept.into_iter().find(|(_, want, have)| want != have) {
        return Err(position.unlike(format!("must have the same {what}: {want} != {have}")));
    }
    let Some(answered) = converted.get("metadata") else {
        return Err(position.metadata("missing metadata in converted object"));
    };
    let answered = match answered {
        Value::Object(m) => m.clone(),
        other => {
            return Err(position.metadata(format!("invalid metadata of type {} in converted object", go_type(other))));
        }
    };
    let mut metadata = original.metadata().cloned().unwrap_or_default();
    for field in ["labels", "annotations"] {
        match answered.get(field) {
            None | Some(Value::Null) => {
                metadata.remove(field);
            }
            Some(v) => {
                if metadata.get(field) != Some(v) {
                    check(field, v).map_err(|why| position.metadata(why))?;
                }
                metadata.insert(field.into(), v.clone());
            }
        }
    }
    *converted.metadata_mut() = metadata;
    Ok(converted)
}

/// Validates new labels or annotations.
fn check(field: &str, v: &Value) -> Result<(), String> {
    let Some(map) = v.as_object() else {
        return Err(format!("invalid metadata.{field} of type {} in converted object", go_type(v)));
    };
    if let Some((k, v)) = map.iter().find(|(_, v)| !v.is_string()) {
        let ty = go_type(v);
        return Err(format!("metadata.{field}[{k}] must be a string, but is {ty} in converted object"));
    }
    let mut errors = Vec::new();
    match field {
        "labels" => metadata::labels(Some(v), &FieldPath::new("metadata.labels"), &mut errors),
        _ => metadata::annotations(Some(v), &FieldPath::new("metadata.annotation"), &mut errors),
    }
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    match texts.as_slice() {
        [] => Ok(()),
        [one] => Err(one.clone()),
        many => Err(format!("[{}]", many.join(", "))),
    }
}

/// Returns Go's type of a JSON value.
fn go_type(v: &Value) -> &'static str {
    match v {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_match_their_request() {
        let response =
            |response: Value| json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": KIND, "response": response});
        let success = json!({"uid": "u", "result": {"status": "Success"}, "convertedObjects": [{}]});
        for (answer, version, expected) in [
            (response(success.clone()), "v1", Ok(vec![json!({})])),
            (
                json!({"kind": KIND, "response": success}),
                "v1",
                Err(
                    "expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got /, Kind=ConversionReview",
                ),
            ),
            (json!({"response": success}), "v1beta1", Ok(vec![json!({})])),
            (response(Value::Null), "v1", Err("no response provided")),
            (
                response(json!({"uid": "x", "result": {"status": "Success"}})),
                "v1",
                Err("expected response.uid=\"u\", got \"x\""),
            ),
            (response(json!({"uid": "x", "result": {"status": "Success"}})), "v1beta1", Ok(vec![])),
            (response(json!({"uid": "u", "result": {"status": "Failure", "message": "m"}})), "v1", Err("m")),
            (response(json!({"uid": "u", "result": {}})), "v1", Err("response.result.status was '', not 'Success'")),
        ] {
            assert_eq!(read(answer.clone(), version, "u"), expected.map_err(str::to_owned), "{answer} {version}");
        }
    }

    #[test]
    fn conversion_changes_labels_and_annotations_alone() {
        let original = Object::from_value(json!({"apiVersion": "e.example/v1", "kind": "K", "metadata": {
            "name": "n", "namespace": "s", "uid": "u", "labels": {"a": "b"}, "finalizers": ["e.example/f"]}}))
        .expect("an object");
        let to = Gvk::new("e.example", "v2", "K");
        let converted = |kind: &str, version: &str, metadata: Value| json!({"apiVersion": version, "kind": kind, "metadata": metadata});
        let metadata = |labels: Value| json!({"name": "n", "namespace": "s", "uid": "u", "labels": labels});
        let convert = |v: Value| take(&original, v, &to, Position { index: 0, single: true });
        let result = convert(converted("K", "e.example/v2", metadata(json!({"c": "d"})))).expect("an object");
        assert_eq!(
            result.0["metadata"],
            json!({"name": "n", "namespace": "s", "uid": "u", "labels": {"c": "d"}, "finalizers": ["e.example/f"]})
        );
        for (v, expected) in [
            (
                converted("", "e.example/v2", metadata(json!({}))),
                "returned invalid object at index 0: Object 'Kind' is missing in ",
            ),
            (
                converted("K", "e.example/v3", metadata(json!({}))),
                "returned invalid object at index 0: invalid groupVersion (expected e.example/v2, received e.example/v3)",
            ),
            (
                converted("L", "e.example/v2", metadata(json!({}))),
                "returned invalid object at index 0: invalid kind (expected K, received L)",
            ),
            (
                converted("K", "e.example/v2", json!({"name": "m", "namespace": "s", "uid": "u"})),
                "returned invalid object: must have the same name: n != m",
            ),
            (
                converted("K", "e.example/v2", json!({"name": "n", "namespace": "s", "uid": "v"})),
                "returned invalid object: must have the same UID: u != v",
            ),
            (
                converted("K", "e.example/v2", metadata(json!({"a": 1}))),
                "returned invalid metadata: metadata.labels[a] must be a string, but is int64 in converted object",
            ),
            (
                converted("K", "e.example/v2", metadata(json!({"a b": "c"}))),
                "returned invalid metadata: metadata.labels: Invalid value: \"a b\": ",
            ),
        ] {
            let error = convert(v.clone()).expect_err("an error");
            assert!(error.starts_with(expected), "{v}: {error}");
        }
    }
}
