//! Validation of webhooks: client configuration, rules and match conditions.

use super::{expressions, rule};
use crate::read::{is_set, items, text};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value, names};

/// Supported versions of AdmissionReview.
const REVIEWS: [&str; 2] = ["v1", "v1beta1"];

pub fn validate(o: &Object, errors: &mut ErrorList) {
    let all = o.clone().into_value();
    for (i, w) in items(&all, "webhooks").iter().enumerate() {
        let at = FieldPath::new("webhooks").index(i);
        let name = text(w, "name");
        if !name.is_empty() && names::dns_subdomain(name).is_empty() && name.split('.').count() < 3 {
            let why = "should be a domain with at least three segments separated by dots";
            errors.push(FieldError::invalid(&at.child("name"), name, why));
        }
        let versions = items(w, "admissionReviewVersions");
        if !versions.is_empty() && !versions.iter().any(|v| v.as_str().is_some_and(|v| REVIEWS.contains(&v))) {
            let why = "must include at least one of v1, v1beta1";
            errors.push(FieldError::invalid(&at.child("admissionReviewVersions"), versions, why));
        }
        for (j, v) in versions.iter().enumerate().filter(|(j, v)| versions[..*j].contains(v)) {
            let at = at.child("admissionReviewVersions").index(j);
            errors.push(FieldError::invalid(&at, v, "duplicate version"));
        }
        client_config(&w["clientConfig"], &at.child("clientConfig"), errors);
        for (j, r) in items(w, "rules").iter().enumerate() {
            rule(r, &at.child("rules").index(j), errors);
        }
        expressions::webhook(w, &at, errors);
    }
}

/// Validates a client configuration: a URL, or a service.
pub fn client_config(c: &Value, at: &FieldPath, errors: &mut ErrorList) {
    match (is_set(c, "url"), is_set(c, "service")) {
        (true, true) | (false, false) => {
            errors.push(FieldError::required(at, "exactly one of url or service is required"));
        }
        (true, false) => url(text(c, "url"), &at.child("url"), errors),
        (false, true) => {
            let s = &c["service"];
            let at = at.child("service");
            // Upstream reports a missing name at the namespace, and vice versa.
            for (key, reported) in [("namespace", "name"), ("name", "namespace")] {
                if text(s, key).is_empty() {
                    errors.push(FieldError::required(&at.child(reported), ""));
                }
            }
            let port = s["port"].as_i64().unwrap_or(443);
            for m in names::port_number(port) {
                errors.push(FieldError::invalid(&at.child("port"), port, format!("port is not valid: {m}")));
            }
            if let Some(path) = s["path"].as_str() {
                service_path(path, &at.child("path"), errors);
            }
        }
    }
}

const FORM: &str = "desired format: https://host[/path]";

fn url(text: &str, at: &FieldPath, errors: &mut ErrorList) {
    let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
    if scheme != "https" {
        let why = format!("'https' is the only allowed URL scheme; {FORM}");
        errors.push(FieldError::invalid(at, scheme, why));
    }
    let host = if scheme.is_empty() { "" } else { rest.split(['/', '?', '#']).next().unwrap_or_default() };
    if host.is_empty() {
        errors.push(FieldError::invalid(at, host, format!("host must be specified; {FORM}")));
    }
    if let Some((user, _)) = host.split_once('@') {
        errors.push(FieldError::invalid(at, user, "user information is not permitted in the URL"));
    }
    let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
    let query = rest.split_once('?').map_or("", |(_, query)| query);
    for (part, what) in
        [(fragment, "fragments are not permitted in the URL"), (query, "query parameters are not permitted in the URL")]
    {
        if !part.is_empty() {
            errors.push(FieldError::invalid(at, part, what));
        }
    }
}

fn service_path(path: &str, at: &FieldPath, errors: &mut ErrorList) {
    if matches!(path, "" | "/") {
        return;
    }
    if path == "//" {
        errors.push(FieldError::invalid(at, path, "segment[0] may not be empty"));
        return;
    }
    if !path.starts_with('/') {
        errors.push(FieldError::invalid(at, path, "must start with a '/'"));
    }
    // Upstream skips the first character, also if it is no slash.
    let mut inner = path.chars();
    inner.next();
    let inner = inner.as_str();
    let inner = inner.strip_suffix('/').unwrap_or(inner);
    for (i, step) in inner.split('/').enumerate() {
        if step.is_empty() {
            errors.push(FieldError::invalid(at, path, format!("segment[{i}] may not be empty")));
        }
        for m in names::dns_subdomain(step).into_iter().filter(|_| !step.is_empty()) {
            errors.push(FieldError::invalid(at, path, format!("segment[{i}]: {m}")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plain::Ruled;
    use crate::testing::check_create;
    use serde_json::json;

    #[test]
    fn validates_webhooks() {
        let base = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "w"}, "webhooks": [{"name": "a.b.example", "admissionReviewVersions": ["v1"], "sideEffects": "None",
                "clientConfig": {"url": "https://a/b"}, "rules": [{"operations": ["CREATE"], "apiGroups": [""],
                    "apiVersions": ["v1"], "resources": ["pods"]}]}]});
        let url = "webhooks[0].clientConfig.url: Invalid value:";
        let form = "desired format: https://host[/path]";
        let field = "/webhooks/0/clientConfig";
        let service = |extra: Value| {
            let mut s = json!({"name": "s", "namespace": "n"});
            extra.as_object().into_iter().flatten().for_each(|(k, v)| s[k] = v.clone());
            json!({"service": s})
        };
        check_create(
            &Ruled::new(validate),
            &base,
            &[
                ("", Value::Null, &[]),
                (
                    "/webhooks/0/name",
                    json!("a.b"),
                    &[
                        "webhooks[0].name: Invalid value: \"a.b\": should be a domain with at least three segments separated by dots",
                    ],
                ),
                (
                    "/webhooks/0/admissionReviewVersions",
                    json!(["v2"]),
                    &[
                        "webhooks[0].admissionReviewVersions: Invalid value: [\"v2\"]: must include at least one of v1, v1beta1",
                    ],
                ),
                (
                    "/webhooks/0/admissionReviewVersions",
                    json!(["v1", "v1"]),
                    &["webhooks[0].admissionReviewVersions[1]: Invalid value: \"v1\": duplicate version"],
                ),
                (
                    field,
                    json!({}),
                    &["webhooks[0].clientConfig: Required value: exactly one of url or service is required"],
                ),
                (
                    field,
                    json!({"url": "http://a"}),
                    &[&format!("{url} \"http\": 'https' is the only allowed URL scheme; {form}")],
                ),
                (field, json!({"url": "https:///a"}), &[&format!("{url} \"\": host must be specified; {form}")]),
                (
                    field,
                    json!({"url": "https://u@a"}),
                    &[&format!("{url} \"u\": user information is not permitted in the URL")],
                ),
                (
                    field,
                    json!({"url": "https://a?b=c"}),
                    &[&format!("{url} \"b=c\": query parameters are not permitted in the URL")],
                ),
                (field, service(json!({})), &[]),
                (
                    field,
                    service(json!({"port": 0})),
                    &[
                        "webhooks[0].clientConfig.service.port: Invalid value: 0: port is not valid: must be between 1 and 65535, inclusive",
                    ],
                ),
                (
                    field,
                    service(json!({"path": "a"})),
                    &[
                        "webhooks[0].clientConfig.service.path: Invalid value: \"a\": must start with a '/'",
                        "webhooks[0].clientConfig.service.path: Invalid value: \"a\": segment[0] may not be empty",
                    ],
                ),
                (
                    field,
                    service(json!({"path": "/a//b"})),
                    &["webhooks[0].clientConfig.service.path: Invalid value: \"/a//b\": segment[1] may not be empty"],
                ),
                (field, service(json!({"name": ""})), &["webhooks[0].clientConfig.service.namespace: Required value"]),
                (
                    "/webhooks/0/rules/0/operations",
                    json!(["OTHER"]),
                    &[
                        r#"webhooks[0].rules[0].operations[0]: Unsupported value: "OTHER": supported values: "*", "CONNECT", "CREATE", "DELETE", "UPDATE""#,
                    ],
                ),
                (
                    "/webhooks/0/rules/0/resources",
                    json!(["*", "pods"]),
                    &[
                        "webhooks[0].rules[0].resources: Invalid value: [\"*\",\"pods\"]: if '*' is present, must not specify other resources without subresources",
                    ],
                ),
                (
                    "/webhooks/0/matchConditions",
                    json!([{"name": "a", "expression": "1"}]),
                    &[
                        "webhooks[0].matchConditions[0].expression: Invalid value: \"1\": must evaluate to bool but got int",
                    ],
                ),
            ],
        );
    }
}
