//! CertificateSigningRequest: who asks is said by the server; nothing of it changes. What is decided is said through `approval`,
//! what came of it through `status`.

use crate::read::text;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value};
use registry::{Env, NameRule, Request, Strategy, take_field};
use serde_json::json;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::{FromDer, X509Certificate};

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

    fn prepare_for_update(&self, env: Env<'_>, request: &Request, o: &mut Object, old: &Object) {
        match old.get("spec").cloned() {
            Some(spec) => o.set(&["spec"], spec),
            None => {
                o.remove(&["spec"]);
            }
        }
        if request.subresource == "status" {
            keep_decisions(o, old);
        }
        if !request.subresource.is_empty() {
            date_conditions(o, old, &meta::time::format(env.clock().now()));
        }
    }

    fn resets(&self, subresource: &str) -> Option<&'static [&'static [&'static str]]> {
        match subresource {
            "" => Some(&[&["spec"], &["status"]]),
            "status" => Some(&[&["spec"], &["status", "conditions"]]),
            "approval" => Some(&[&["spec"], &["status", "certificate"]]),
            _ => None,
        }
    }

    fn take_part(&self, subresource: &str, object: &mut Object, old: &Object) {
        // What is approved is said in conditions, and the certificate is not touched by it.
        let certificate = old.at(&["status", "certificate"]).cloned();
        if subresource == "approval" {
            match certificate {
                Some(c) => object.set(&["status", "certificate"], c),
                None => {
                    object.remove(&["status", "certificate"]);
                }
            }
        }
        take_field("status", object, old, &[]);
    }

    fn validate_part(&self, subresource: &str, o: &Object, old: &Object, errors: &mut ErrorList) {
        let at = FieldPath::new("status.conditions");
        let (new, before) = (conditions(o), conditions(old));
        let said = |list: &[Value], kind: &str| list.iter().any(|c| text(c, "type") == kind);
        for kind in DECISIONS.iter().chain(&["Failed"]) {
            if said(&before, kind) && !said(&new, kind) {
                errors
                    .push(FieldError::forbidden(&at, &format!("updates may not remove a condition of type {kind:?}")));
            }
            if subresource == "status" && *kind != "Failed" && !said(&before, kind) && said(&new, kind) {
                errors.push(FieldError::forbidden(&at, &format!("updates may not add a condition of type {kind:?}")));
            }
        }
        let mut seen: Vec<&str> = Vec::new();
        for (i, c) in new.iter().enumerate() {
            let (kind, at) = (text(c, "type"), at.index(i));
            if kind.is_empty() {
                errors.push(FieldError::required(&at.child("type"), ""));
            }
            let decides = DECISIONS.contains(&kind) || kind == "Failed";
            let allowed: &[&str] = if decides { &["True"] } else { &["False", "True", "Unknown"] };
            match text(c, "status") {
                "" => errors.push(FieldError::required(&at.child("status"), "")),
                s if !allowed.contains(&s) => {
                    errors.push(FieldError::not_supported(&at.child("status"), s, allowed));
                }
                _ => {}
            }
            let other = DECISIONS.iter().find(|d| DECISIONS.contains(&kind) && **d != kind);
            if other.is_some_and(|other| seen.contains(other)) {
                let why = "Approved and Denied conditions are mutually exclusive";
                errors.push(FieldError::invalid(&at.child("type"), kind, why));
            }
            if seen.contains(&kind) {
                errors.push(FieldError::duplicate(&at.child("type"), kind));
            }
            seen.push(kind);
        }
        let (new, before) = (certificate(o), certificate(old));
        let at = FieldPath::new("status.certificate");
        if new != before
            && !new.is_empty()
            && let Err(why) = readable(&new)
        {
            let value = o.at(&["status", "certificate"]).cloned().unwrap_or_default();
            errors.push(FieldError::invalid(&at, value, why));
        }
        if !before.is_empty() && new != before {
            errors.push(FieldError::forbidden(&at, "updates may not change a certificate that is there"));
        }
    }

    fn validate(&self, o: &Object, errors: &mut ErrorList) {
        let spec = o.get("spec").unwrap_or(&Value::Null);
        let path = FieldPath::new("spec");
        if let Err(why) = request(&schema::base64_decode(text(spec, "request")).unwrap_or_default()) {
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

/// What only its own subresource says.
const DECISIONS: [&str; 2] = ["Approved", "Denied"];

fn conditions(o: &Object) -> Vec<Value> {
    o.at(&["status", "conditions"]).and_then(Value::as_array).cloned().unwrap_or_default()
}

fn certificate(o: &Object) -> Vec<u8> {
    schema::base64_decode(o.str_at(&["status", "certificate"]).unwrap_or_default()).unwrap_or_default()
}

/// Who writes the status changes nothing of what was decided.
fn keep_decisions(o: &mut Object, old: &Object) {
    let before = conditions(old);
    let mut new = conditions(o);
    for c in &mut new {
        let same = before.iter().find(|b| DECISIONS.contains(&text(c, "type")) && b["type"] == c["type"]);
        if let Some(b) = same {
            *c = b.clone();
        }
    }
    if !new.is_empty() {
        o.set(&["status", "conditions"], new);
    }
}

/// When a condition was said, and when it last became another.
fn date_conditions(o: &mut Object, old: &Object, now: &str) {
    let before = conditions(old);
    let mut new = conditions(o);
    for c in &mut new {
        let same = before.iter().find(|b| b["type"] == c["type"]);
        if text(c, "lastUpdateTime").is_empty() {
            let kept = same.filter(|b| ["status", "reason", "message"].iter().all(|k| b[*k] == c[*k]));
            c["lastUpdateTime"] = kept.map_or_else(|| now.into(), |b| b["lastUpdateTime"].clone());
        }
        if text(c, "lastTransitionTime").is_empty() {
            let kept = same.filter(|b| b["status"] == c["status"]);
            c["lastTransitionTime"] = kept.map_or_else(|| now.into(), |b| b["lastTransitionTime"].clone());
        }
    }
    if !new.is_empty() {
        o.set(&["status", "conditions"], new);
    }
}

/// A request in PEM that is signed by the key it names.
fn request(text: &[u8]) -> Result<(), String> {
    const TYPE: &str = "PEM block type must be CERTIFICATE REQUEST";
    let (_, pem) = x509_parser::pem::parse_x509_pem(text).map_err(|_| TYPE)?;
    if pem.label != "CERTIFICATE REQUEST" {
        return Err(TYPE.into());
    }
    let (_, csr) = X509CertificationRequest::from_der(&pem.contents).map_err(|e| e.to_string())?;
    csr.verify_signature().map_err(|e| e.to_string())
}

/// One or more certificates in PEM, and nothing else that is marked as PEM.
fn readable(text: &[u8]) -> Result<(), String> {
    let mut some = false;
    for pem in x509_parser::pem::Pem::iter_from_buffer(text) {
        let pem = pem.map_err(|e| e.to_string())?;
        if pem.label != "CERTIFICATE" {
            return Err("only CERTIFICATE PEM blocks are allowed".into());
        }
        X509Certificate::from_der(&pem.contents).map_err(|e| e.to_string())?;
        some = true;
    }
    if some { Ok(()) } else { Err("must contain one or more CERTIFICATE PEM blocks".into()) }
}

/// `domain/path`, each of its own length.
pub fn signer_name(signer: &str, at: &FieldPath, errors: &mut ErrorList) {
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
