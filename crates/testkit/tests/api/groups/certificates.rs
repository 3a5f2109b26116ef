//! CertificateSigningRequests: requests, decisions and certificates.

use super::made;
use crate::field_errors::{FieldCase, check_errors};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
use testkit::Cluster;

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

fn request() -> Value {
    let key = KeyPair::generate().unwrap();
    let pem = CertificateParams::default().serialize_request(&key).unwrap().pem().unwrap();
    json!({"metadata": {"name": "r"}, "spec": {"request": STANDARD.encode(pem), "signerName": "example.com/s",
        "usages": ["client auth"]}})
}

#[tokio::test]
async fn requests_name_a_signer_and_usages() {
    let c = Cluster::start(1).await;
    let form = "spec.signerName: Invalid value: \"x\": must be a fully qualified domain and path of the form";
    let form: &'static [&'static str] = Box::leak(Box::new([form]));
    let cases: Vec<FieldCase> = vec![
        ("/spec/signerName", json!("x"), form),
        (
            "/spec/signerName",
            json!("example.com/s.t/u"),
            &["spec.signerName: Invalid value: \"example.com/s.t/u\": must be"],
        ),
        (
            "/spec/signerName",
            json!("Ex.com/s"),
            &["spec.signerName: Invalid value: \"Ex.com\": validating label \"Ex\": a lowercase RFC 1123 label"],
        ),
        (
            "/spec/signerName",
            json!("example/s"),
            &["spec.signerName: Invalid value: \"example\": should be a domain with at least two segments"],
        ),
        (
            "/spec/signerName",
            json!("a.b/S"),
            &["spec.signerName: Invalid value: \"S\": validating label \"S\": a lowercase RFC 1123 subdomain"],
        ),
        (
            "/spec/signerName",
            json!("kubernetes.io/legacy-unknown"),
            &[
                "spec.signerName: Invalid value: \"kubernetes.io/legacy-unknown\": the legacy signerName is not allowed via this API version",
            ],
        ),
        ("/spec/usages", json!([]), &["spec.usages: Required value"]),
        ("/spec/usages", json!(["any", "any"]), &["spec.usages[1]: Duplicate value: \"any\""]),
        (
            "/spec/usages",
            json!(["x"]),
            &["spec.usages[0]: Unsupported value: \"x\": supported values: \"any\", \"cert sign\""],
        ),
        (
            "/spec/expirationSeconds",
            json!(599),
            &["spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 600"],
        ),
        (
            "/spec/request",
            json!("eA=="),
            &["spec.request: Invalid value: \"eA==\": PEM block type must be CERTIFICATE REQUEST"],
        ),
        ("/metadata/name", json!("Any name: it is one"), &[]),
    ];
    check_errors(&c, "POST", REQUESTS, &request(), &cases).await;
}

#[tokio::test]
async fn decisions_and_certificates_stay() {
    let c = Cluster::start(1).await;
    let path = format!("{REQUESTS}/r");
    let mut body = made(&c, REQUESTS, request()).await;
    let condition = |kind: &str, status: &str| json!({"type": kind, "status": status});
    body["status"]["conditions"] = json!([]);
    let cases: Vec<FieldCase> = vec![
        ("/status/conditions", json!([condition("", "True")]), &["status.conditions[0].type: Required value"]),
        (
            "/status/conditions",
            json!([condition("Approved", "False")]),
            &["status.conditions[0].status: Unsupported value: \"False\": supported values: \"True\""],
        ),
        ("/status/conditions", json!([condition("X", "")]), &["status.conditions[0].status: Required value"]),
        (
            "/status/conditions",
            json!([condition("Approved", "True"), condition("Denied", "True")]),
            &["status.conditions: Invalid value: \"Denied\": Approved and Denied conditions are mutually exclusive"],
        ),
        (
            "/status/conditions",
            json!([condition("X", "True"), condition("X", "True")]),
            &["status.conditions[1].type: Duplicate value: \"X\""],
        ),
        ("/status/certificate", json!("eA=="), &[]),
    ];
    check_errors(&c, "PUT", &format!("{path}/approval"), &body, &cases).await;
    let key = KeyPair::generate().unwrap();
    let pem = CertificateParams::default().self_signed(&key).unwrap().pem();
    let headed = pem.replacen("-----\n", "-----\na: b\n", 1);
    let cases: Vec<FieldCase> = vec![
        (
            "/status/conditions",
            json!([condition("Approved", "True")]),
            &["status.conditions: Forbidden: updates may not add a condition of type \"Approved\""],
        ),
        (
            "/status/certificate",
            json!("eA=="),
            &[
                "status.certificate: Invalid value: \"<certificate data>\": must contain at least one CERTIFICATE PEM block",
            ],
        ),
        (
            "/status/certificate",
            json!(STANDARD.encode(headed)),
            &["status.certificate: Invalid value: \"<certificate data>\": no PEM block headers are permitted"],
        ),
        (
            "/status/certificate",
            json!(STANDARD.encode(key.serialize_pem())),
            &[
                "status.certificate: Invalid value: \"<certificate data>\": only CERTIFICATE PEM blocks are allowed, found \"PRIVATE KEY\"",
            ],
        ),
    ];
    check_errors(&c, "PUT", &format!("{path}/status"), &body, &cases).await;
    body["status"]["certificate"] = STANDARD.encode(&pem).into();
    let a = c.call("PUT", &format!("{path}/status"), body.clone()).await;
    assert_eq!(a.code, 200, "{}", a.body);
    let mut body = a.body;
    body["status"]["conditions"] = json!([condition("Approved", "True")]);
    let a = c.call("PUT", &format!("{path}/approval"), body).await;
    assert_eq!(a.code, 200, "{}", a.body);
    let other = CertificateParams::default().self_signed(&key).unwrap().pem();
    let cases: Vec<FieldCase> = vec![
        (
            "/status/certificate",
            json!(STANDARD.encode(other + &pem)),
            &["status.certificate: Forbidden: updates may not modify existing certificate content"],
        ),
        (
            "/status/conditions",
            json!([]),
            &["status.conditions: Forbidden: updates may not remove a condition of type \"Approved\""],
        ),
        // What was decided is not said anew through the status.
        ("/status/conditions/0/reason", json!("other"), &[]),
    ];
    check_errors(&c, "PUT", &format!("{path}/status"), &a.body, &cases).await;
}
