//! CertificateSigningRequest: the server sets the requester, and the spec is immutable. Decisions are written through
//! `approval`, results through `status`.

use super::conditions;
use crate::Config;
use crate::read::text;
use crate::table::Row;
use kinds::columns::{Cell, display, duration, list_at};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value, names};
use registry::{
    CreateStrategy, Env, NameRule, Request, ResetFieldsStrategy, TableConvertor, UpdateStrategy, take_field,
};
use serde_json::json;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::{FromDer, X509Certificate};

pub fn row(_: &Config) -> Row {
    Row::stored(CertificateSigningRequest)
}

pub struct CertificateSigningRequest;

impl CreateStrategy for CertificateSigningRequest {
    fn name_rule(&self) -> NameRule {
        NameRule::Unchecked
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

    fn validate(&self, o: &Object, errors: &mut ErrorList) {
        let spec = o.get("spec").unwrap_or(&Value::Null);
        let path = FieldPath::new("spec");
        if let Err(why) = request(&schema::base64_decode(text(spec, "request")).unwrap_or_default()) {
            errors.push(FieldError::invalid(&path.child("request"), &spec["request"], why));
        }
        let signer = text(spec, "signerName");
        let at = path.child("signerName");
        if signer.is_empty() {
            errors.push(FieldError::required(&at, ""));
        } else if signer == LEGACY {
            errors.push(FieldError::invalid(&at, signer, "the legacy signerName is not allowed via this API version"));
        } else {
            signer_name(signer, &at, errors);
        }
    }
}

impl UpdateStrategy for CertificateSigningRequest {
    fn prepare_for_update(&self, env: Env<'_>, request: &Request, o: &mut Object, old: &Object) {
        match old.get("spec").cloned() {
            Some(spec) => o.set(&["spec"], spec),
            None => {
                o.remove(&["spec"]);
            }
        }
        if request.subresource == "status" {
            conditions::keep_decisions(o, old);
        }
        if !request.subresource.is_empty() {
            conditions::set_times(o, old, &meta::time::format(env.clock().now()));
        }
    }

    fn take_part(&self, subresource: &str, object: &mut Object, old: &Object) {
        // Approval only changes conditions, not the certificate.
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
        conditions::validate(o, Some(old), errors);
        let (new, before) = (certificate(o), certificate(old));
        let at = FieldPath::new("status.certificate");
        if new != before
            && check_certificates(&before).is_ok()
            && let Err(why) = check_certificates(&new)
        {
            errors.push(FieldError::invalid(&at, "<certificate data>", why));
        }
        conditions::validate_update(subresource, o, old, errors);
        if new == before {
            return;
        }
        if subresource != "status" {
            errors.push(FieldError::forbidden(&at, "updates may not set certificate content"));
        } else if !before.is_empty() {
            errors.push(FieldError::forbidden(&at, "updates may not modify existing certificate content"));
        }
    }
}

impl ResetFieldsStrategy for CertificateSigningRequest {
    fn resets(&self, subresource: &str) -> Option<&'static [&'static [&'static str]]> {
        match subresource {
            "" => Some(&[&["spec"], &["status"]]),
            "status" => Some(&[&["spec"], &["status", "conditions"]]),
            "approval" => Some(&[&["spec"], &["status", "certificate"]]),
            _ => None,
        }
    }
}

impl TableConvertor for CertificateSigningRequest {
    fn cell(&self, cell: &Cell<'_>) -> Option<Value> {
        cells(cell)
    }
}

registry::strategy!(CertificateSigningRequest: CreateStrategy, UpdateStrategy, ResetFieldsStrategy, TableConvertor);

/// A signer of an older API version.
const LEGACY: &str = "kubernetes.io/legacy-unknown";

fn certificate(o: &Object) -> Vec<u8> {
    schema::base64_decode(o.str_at(&["status", "certificate"]).unwrap_or_default()).unwrap_or_default()
}

/// Checks that a request is PEM, signed by its own key.
fn request(text: &[u8]) -> Result<(), String> {
    const TYPE: &str = "PEM block type must be CERTIFICATE REQUEST";
    let (_, pem) = x509_parser::pem::parse_x509_pem(text).map_err(|_| TYPE)?;
    if pem.label != "CERTIFICATE REQUEST" {
        return Err(TYPE.into());
    }
    let (_, csr) = X509CertificationRequest::from_der(&pem.contents).map_err(|e| e.to_string())?;
    csr.verify_signature().map_err(|e| e.to_string())
}

/// Checks that a certificate is empty, or one or more PEM certificates and no other PEM block.
fn check_certificates(text: &[u8]) -> Result<(), String> {
    let mut some = text.is_empty();
    // PEM headers.
    if String::from_utf8_lossy(text).lines().any(|l| l.contains(": ")) {
        return Err("no PEM block headers are permitted".into());
    }
    for pem in x509_parser::pem::Pem::iter_from_buffer(text) {
        let pem = pem.map_err(|e| e.to_string())?;
        if pem.label != "CERTIFICATE" {
            return Err(format!("only CERTIFICATE PEM blocks are allowed, found {:?}", pem.label));
        }
        X509Certificate::from_der(&pem.contents).map_err(|e| e.to_string())?;
        some = true;
    }
    if some { Ok(()) } else { Err("must contain at least one CERTIFICATE PEM block".into()) }
}

const DOMAIN_MAX: usize = 253;
/// Maximum length: a domain, a slash, and a resource name with a label before it.
const SIGNER_MAX: usize = DOMAIN_MAX + 1 + DOMAIN_MAX + 1 + 63;

/// Validates a signer name, `domain/path`, with a length limit for each part.
pub fn signer_name(signer: &str, at: &FieldPath, errors: &mut ErrorList) {
    let (domain, path) = match signer.split_once('/') {
        Some((domain, path)) if !path.contains('/') => (domain, path),
        _ => {
            let why = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
            errors.push(FieldError::invalid(at, signer, why));
            return;
        }
    };
    if domain.len() > DOMAIN_MAX {
        errors.push(FieldError::too_long(at, DOMAIN_MAX));
    }
    labels(domain, names::dns_label, at, errors);
    if !domain.contains('.') {
        let why = "should be a domain with at least two segments separated by dots";
        errors.push(FieldError::invalid(at, domain, why));
    }
    labels(path, names::dns_subdomain, at, errors);
    if signer.len() > SIGNER_MAX {
        errors.push(FieldError::too_long(at, SIGNER_MAX));
    }
}

/// Adds the errors of the first invalid label of a name.
fn labels(name: &str, rule: fn(&str) -> Vec<String>, at: &FieldPath, errors: &mut ErrorList) {
    let mut all = name.split('.').map(|label| (label, rule(label)));
    if let Some((label, bad)) = all.find(|(_, bad)| !bad.is_empty()) {
        let invalid =
            bad.into_iter().map(|m| FieldError::invalid(at, name, format!("validating label {label:?}: {m}")));
        errors.extend(invalid);
    }
}

/// Evaluates the table cell functions of the kind.
fn cells(cell: &Cell<'_>) -> Option<Value> {
    let o = cell.object;
    Some(match cell.function {
        "csrDuration" => match o.int_at(&["spec", "expirationSeconds"]) {
            Some(s) => duration(s).into(),
            None => "<none>".into(),
        },
        "csrCondition" => {
            let mut all: Vec<String> =
                list_at(o, &["status", "conditions"]).iter().map(|c| display(&c["type"])).collect();
            if all.is_empty() {
                all.push("Pending".into());
            }
            if !o.str_at(&["status", "certificate"]).unwrap_or_default().is_empty() {
                all.push("Issued".into());
            }
            all.join(",").into()
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::check_part;

    #[test]
    fn validates_signer_names() {
        let qualified = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        let long = format!("{}.example/a", "a".repeat(253));
        for (name, expected) in [
            ("example.com/a.b", vec![]),
            ("example.com", vec![format!("s: Invalid value: \"example.com\": {qualified}")]),
            ("a.b/c/d", vec![format!("s: Invalid value: \"a.b/c/d\": {qualified}")]),
            (
                "com/a",
                vec![
                    "s: Invalid value: \"com\": should be a domain with at least two segments separated by dots".into(),
                ],
            ),
            ("a.B/c", vec!["s: Invalid value: \"a.B\": validating label \"B\": a lowercase RFC 1123 label…".into()]),
            ("a.b/C", vec!["s: Invalid value: \"C\": validating label \"C\": a lowercase RFC 1123 subdomain…".into()]),
            (&long, vec!["s: Too long: may not be more than 253 bytes".into(), "s: Invalid value: …".into()]),
        ] {
            let mut errors = ErrorList::new();
            signer_name(name, &FieldPath::new("s"), &mut errors);
            let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
            let fits = |(error, expected): (&String, &String)| {
                error.starts_with(expected.split('…').next().unwrap_or_default())
            };
            assert!(errors.len() == expected.len() && errors.iter().zip(&expected).all(fits), "{name}: {errors:#?}");
        }
    }

    /// Certificates are set once, by `status` alone.
    #[test]
    fn certificates_are_set_once() {
        let empty = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": "c"},
            "spec": {"signerName": "example.com/a", "request": "", "usages": ["client auth"]}, "status": {}});
        let mut issued = empty.clone();
        // Not a certificate, so that none is checked again.
        issued["status"]["certificate"] = "b2xk".into();
        let at = "/status/certificate";
        let block = "status.certificate: Invalid value: \"<certificate data>\": must contain at least one CERTIFICATE PEM block";
        check_part(
            &CertificateSigningRequest,
            "status",
            &empty,
            &[("", Value::Null, &[]), (at, json!("bmV3"), &[block])],
        );
        let modified = "status.certificate: Forbidden: updates may not modify existing certificate content";
        check_part(
            &CertificateSigningRequest,
            "status",
            &issued,
            &[("", Value::Null, &[]), (at, json!("bmV3"), &[modified])],
        );
        // An approval does not take it.
        check_part(&CertificateSigningRequest, "approval", &empty, &[(at, json!("bmV3"), &[])]);
    }
}
