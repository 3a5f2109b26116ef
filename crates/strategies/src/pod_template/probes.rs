//! Validation of probes and lifecycle hooks.

use crate::read::{delegated, is_set, items, text};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Value};

const CONTAINER: &str = "io.k8s.api.core.v1.Container";

pub const PROBES: [&str; 3] = ["livenessProbe", "readinessProbe", "startupProbe"];

/// Validates the probes and hooks of a container; `grace` is the pod's termination grace period.
pub fn rules(c: &Value, grace: Option<i64>, at: &FieldPath, errors: &mut ErrorList) {
    for probe in PROBES.into_iter().filter(|p| c[*p].is_object()) {
        let p = &c[probe];
        delegated(c, CONTAINER, probe, at, errors);
        let at = at.child(probe);
        handler(p, &["exec", "httpGet", "tcpSocket", "grpc"], "io.k8s.api.core.v1.Probe", grace, &at, errors);
        let success = p["successThreshold"].as_i64().unwrap_or(0);
        if probe != "readinessProbe" && success != 1 {
            errors.push(FieldError::invalid(&at.child("successThreshold"), success, "must be 1"));
        }
        if probe == "readinessProbe" && is_set(p, "terminationGracePeriodSeconds") {
            let value = p["terminationGracePeriodSeconds"].clone();
            let why = "must not be set for readinessProbes";
            errors.push(FieldError::invalid(&at.child("terminationGracePeriodSeconds"), value, why));
        }
    }
    delegated(c, CONTAINER, "lifecycle", at, errors);
    for hook in ["postStart", "preStop"] {
        let h = &c["lifecycle"][hook];
        if h.is_object() {
            let at = at.child("lifecycle").child(hook);
            let kinds = ["exec", "httpGet", "tcpSocket", "sleep"];
            handler(h, &kinds, "io.k8s.api.core.v1.LifecycleHandler", grace, &at, errors);
        }
    }
}

/// Validates a probe or hook, which has exactly one handler of `kinds`.
fn handler(h: &Value, kinds: &[&str], definition: &str, grace: Option<i64>, at: &FieldPath, errors: &mut ErrorList) {
    let found: Vec<&&str> = kinds.iter().filter(|k| h[**k].is_object()).collect();
    match found.first() {
        Some(kind) => delegated(h, definition, kind, at, errors),
        None => errors.push(FieldError::required(at, "must specify a handler type")),
    }
    for k in found.iter().skip(1) {
        errors.push(FieldError::forbidden(&at.child(k), "may not specify more than 1 handler type"));
    }
    let (http, sleep) = (found.first() == Some(&&"httpGet"), found.first() == Some(&&"sleep"));
    for header in items(&h["httpGet"], "httpHeaders").iter().filter(|_| http) {
        let name = text(header, "name");
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
            let why = "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')";
            errors.push(FieldError::invalid(&at.child("httpGet").child("httpHeaders"), name, why));
        }
    }
    if let (Some(grace), Some(seconds)) = (grace, h["sleep"]["seconds"].as_i64().filter(|_| sleep))
        && !(0..=grace).contains(&seconds)
    {
        let why = format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
        errors.push(FieldError::invalid(&at.child("sleep"), seconds, why));
    }
}
