//! The `AdmissionReview` request and response.

use super::invocation::Invocation;
use crate::plugin::Review;
use crate::request::request;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use meta::{Object, Status, Value};
use serde_json::json;

const KIND: &str = "AdmissionReview";

/// A pending request.
pub(super) struct ReviewRequest {
    pub uid: String,
    pub body: Vec<u8>,
    version: String,
}

/// The decoded response of a webhook.
pub(super) struct ReviewResponse {
    pub allowed: bool,
    pub result: Option<Value>,
    /// A JSON patch.
    pub patch: Option<Vec<u8>>,
    pub warnings: Vec<String>,
    /// Audit annotations.
    pub annotations: Vec<(String, String)>,
}

pub(super) fn question(
    invocation: &Invocation<'_>,
    review: &Review<'_>,
    object: Option<&Object>,
    old: Option<&Object>,
) -> Result<ReviewRequest, String> {
    let known = |v: &&String| matches!(v.as_str(), "v1" | "v1beta1");
    let Some(version) = invocation.hook.versions.iter().find(known) else {
        let why = "webhook does not accept known AdmissionReview versions (v1, v1beta1)";
        return Err(format!("could not create admission objects: {why}"));
    };
    let uid = review.host.uid();
    let to_value = |o: Option<&Object>| o.map_or(Value::Null, |o| o.clone().into_value());
    let mut request = request(&invocation.resource, &invocation.kind, review);
    request["uid"] = uid.clone().into();
    request["object"] = to_value(object);
    request["oldObject"] = to_value(old);
    let whole = json!({"kind": KIND, "apiVersion": format!("admission.k8s.io/{version}"), "request": request});
    Ok(ReviewRequest { uid, body: whole.to_string().into_bytes(), version: version.clone() })
}

/// Decodes a response and checks that it answers the request. Only `mutating` webhooks may return a patch.
pub(super) fn answer(question: &ReviewRequest, body: &[u8], mutating: bool) -> Result<ReviewResponse, String> {
    let invalid = |why: String| format!("received invalid webhook response: {why}");
    if body.is_empty() {
        return Err("failed to call webhook: 0-length response with status code: 200 and content type: ".to_owned());
    }
    let v: Value = meta::depth::from_slice(body)
        .map_err(|e| format!("failed to call webhook: couldn't get version/kind; json parse error: {e}"))?;
    let r = &v["response"];
    if !r.is_object() {
        return Err(invalid("webhook response was absent".into()));
    }
    let text = |k: &str| r[k].as_str().unwrap_or_default();
    if question.version == "v1" {
        if text("uid") != question.uid {
            return Err(invalid(format!("expected response.uid={:?}, got {:?}", question.uid, text("uid"))));
        }
        let (version, kind) = (v["apiVersion"].as_str().unwrap_or_default(), v["kind"].as_str().unwrap_or_default());
        if version != "admission.k8s.io/v1" || kind != KIND {
            let version = if version.is_empty() { "/" } else { version };
            return Err(invalid(format!(
                "expected webhook response of admission.k8s.io/v1, Kind={KIND}, got {version}, Kind={kind}"
            )));
        }
        let (patch, kind) = (text("patch"), r.get("patchType").filter(|t| !t.is_null()));
        match (mutating, patch, kind) {
            (false, p, _) if !p.is_empty() => {
                return Err(invalid("validating webhook may not return response.patch".into()));
            }
            (false, _, Some(_)) => {
                return Err(invalid("validating webhook may not return response.patchType".into()));
            }
            (true, p, None) if !p.is_empty() => {
                return Err(invalid("webhook returned response.patch but not response.patchType".into()));
            }
            (true, "", Some(_)) => {
                return Err(invalid("webhook returned response.patchType but not response.patch".into()));
            }
            (true, _, Some(t)) if *t == "" => {
                return Err(invalid("webhook returned invalid response.patchType of \"\"".into()));
            }
            (true, _, Some(t)) if *t != "JSONPatch" => {
                return Err(format!("unsupported patch type {t}"));
            }
            _ => {}
        }
    }
    let patch = match text("patch") {
        p if !p.is_empty() && mutating => {
            Some(STANDARD.decode(p).map_err(|e| format!("failed to call webhook: illegal base64 data: {e}"))?)
        }
        _ => None,
    };
    let warnings = r["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
    let annotations = r["auditAnnotations"].as_object().into_iter().flatten();
    let annotations = annotations.filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned())));
    Ok(ReviewResponse {
        allowed: r["allowed"] == true,
        result: r.get("status").filter(|s| s.is_object()).cloned(),
        patch,
        warnings: warnings.collect(),
        annotations: annotations.collect(),
    })
}

/// The `Status` that the client receives for a denial.
pub(super) fn refusal(hook: &str, result: Option<&Value>) -> Status {
    let by = format!("admission webhook {hook:?} denied the request");
    let none = json!({});
    let v = result.unwrap_or(&none);
    let text = |k: &str| v[k].as_str().unwrap_or_default();
    let message = match (text("message"), text("reason")) {
        ("", "") => format!("{by} without explanation"),
        ("", r) => format!("{by}: {r}"),
        (m, _) => format!("{by}: {m}"),
    };
    let mut status = v.clone();
    status["kind"] = "Status".into();
    status["status"] = "Failure".into();
    let code = v["code"].as_u64().and_then(|c| u16::try_from(c).ok()).filter(|c| (400..600).contains(c)).unwrap_or(400);
    status["code"] = code.into();
    let mut s = Status::from_value(&status).unwrap_or_else(|| Status::bad_request(""));
    s.code = code;
    s.message = message;
    s
}
