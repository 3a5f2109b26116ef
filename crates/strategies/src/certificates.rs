//! CertificateSigningRequest: who asks is said by the server; nothing of it changes.

use crate::read::text;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value};
use registry::{Env, NameRule, Request, Strategy};
use serde_json::json;

pub struct CertificateSigningRequest;

impl Strategy for CertificateSigningRequest {
    fn name_rule(&self) -> NameRule {
        NameRule::PathSegment
    }

    fn prepare_for_create(&self, _env: Env<'_>, request: &Request, o: &mut Object) {
        o.set(&["status"], json!({}));
        let user = &request.user;
        for key in ["username", "uid", "groups", "extra"] {
            o.remove(&["spec", key]);
        }
        let mut set = |key: &str, v: Value| {
            let empty = match &v {
                Value::String(s) => s.is_empty(),
                Value::Array(a) => a.is_empty(),
                Value::Object(m) => m.is_empty(),
                _ => false,
            };
            if !empty {
                o.set(&["spec", key], v);
            }
        };
        set("username", user.name.clone().into());
        set("uid", user.uid.clone().into());
        set("groups", user.groups.clone().into());
        set("extra", json!(user.extra));
    }

    fn prepare_for_update(&self, _env: Env<'_>, _request: &Request, o: &mut Object, old: &Object) {
        match old.get("spec").cloned() {
            Some(spec) => o.set(&["spec"], spec),
            None => {
                o.remove(&["spec"]);
            }
        }
    }

    fn validate(&self, o: &Object, errors: &mut ErrorList) {
        let spec = o.get("spec").unwrap_or(&Value::Null);
        let path = FieldPath::new("spec");
        let pem = schema::base64_decode(text(spec, "request")).unwrap_or_default();
        let is_request = String::from_utf8_lossy(&pem).contains("-----BEGIN CERTIFICATE REQUEST-----");
        if !is_request {
            let why = "PEM block type must be CERTIFICATE REQUEST";
            errors.push(FieldError::invalid(&path.child("request"), spec["request"].clone(), why));
        }
        let signer = text(spec, "signerName");
        let at = path.child("signerName");
        if signer.is_empty() {
            errors.push(FieldError::required(&at, ""));
        } else {
            signer_name(signer, &at, errors);
        }
    }
}

/// `domain/path`, each of its own length.
fn signer_name(signer: &str, at: &FieldPath, errors: &mut ErrorList) {
    match signer.split_once('/') {
        Some((domain, path)) if !path.is_empty() && domain.contains('.') && !path.contains('/') => {
            for part in [domain, path] {
                for m in meta::names::dns_subdomain(part) {
                    errors.push(FieldError::invalid(at, signer, m));
                }
            }
        }
        _ => {
            let why = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
            errors.push(FieldError::invalid(at, signer, why));
        }
    }
}
