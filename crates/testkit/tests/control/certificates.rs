//! Approving and signing of CertificateSigningRequests.

use super::harness::Plane;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use meta::Value;
use rcgen::{CertificateParams, DnType, KeyPair, SanType};
use serde_json::json;
use std::time::Duration;
use x509_parser::prelude::{FromDer, X509Certificate};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

/// A request for a subject, in PEM and base64.
fn request(name: &str, organization: &str, dns: &[&str]) -> String {
    let mut p = CertificateParams::default();
    p.distinguished_name = rcgen::DistinguishedName::new();
    p.distinguished_name.push(DnType::CommonName, name);
    p.distinguished_name.push(DnType::OrganizationName, organization);
    p.subject_alt_names = dns.iter().map(|n| SanType::DnsName((*n).try_into().unwrap())).collect();
    STANDARD.encode(p.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap())
}

async fn asked(p: &Plane, name: &str, request: String, signer: &str, more: Value) -> Value {
    let mut spec = json!({"request": request, "signerName": format!("kubernetes.io/{signer}"),
        "usages": ["digital signature", "client auth"]});
    for (k, v) in more.as_object().into_iter().flatten() {
        spec[k] = v.clone();
    }
    let a = p.cluster.call("POST", REQUESTS, json!({"metadata": {"name": name}, "spec": spec})).await;
    assert_eq!(a.code, 201, "{}", a.body);
    a.body
}

/// Decides through the subresource as `kubectl certificate` does.
async fn decide(p: &Plane, name: &str, kind: &str) -> u16 {
    let mut o = p.cluster.call("GET", &format!("{REQUESTS}/{name}"), Value::Null).await.body;
    let condition = json!({"type": kind, "status": "True", "reason": "Test", "message": "by hand"});
    match o["status"]["conditions"].as_array_mut() {
        Some(all) => all.push(condition),
        None => o["status"]["conditions"] = json!([condition]),
    }
    p.cluster.call("PUT", &format!("{REQUESTS}/{name}/approval"), o).await.code
}

async fn issued(p: &Plane, name: &str) -> Vec<u8> {
    p.until(&format!("a certificate for {name}"), async || {
        let o = p.cluster.call("GET", &format!("{REQUESTS}/{name}"), Value::Null).await.body;
        Some(STANDARD.decode(o["status"]["certificate"].as_str().filter(|c| !c.is_empty())?).unwrap())
    })
    .await
}

/// Clauses: C14.certificate-signing
#[tokio::test(start_paused = true)]
async fn approved_requests_are_signed() {
    let p = Plane::start().await;
    asked(
        &p,
        "jane",
        request("jane", "team", &["a.test"]),
        "kube-apiserver-client",
        json!({"expirationSeconds": 3600}),
    )
    .await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let o = p.cluster.call("GET", &format!("{REQUESTS}/jane"), Value::Null).await.body;
    assert_eq!(o["status"], json!({}), "nobody has approved it");
    assert_eq!(o["spec"]["username"], "admin");
    assert_eq!(decide(&p, "jane", "Approved").await, 200);
    let now = meta::Clock::now(&*p.cluster.clock).as_second();
    let pem = issued(&p, "jane").await;
    let (_, pem) = x509_parser::pem::parse_x509_pem(&pem).unwrap();
    let (_, c) = X509Certificate::from_der(&pem.contents).unwrap();
    let (_, ca) = x509_parser::pem::parse_x509_pem(p.ca.as_bytes()).unwrap();
    let (_, ca) = X509Certificate::from_der(&ca.contents).unwrap();
    c.verify_signature(Some(ca.public_key())).unwrap();
    assert_eq!(c.issuer(), ca.subject());
    assert_eq!(c.subject().to_string(), "CN=jane, O=team");
    let v = c.validity();
    assert!((3600..3700).contains(&(v.not_after.timestamp() - now)), "an hour, as was asked");
    assert!((290..310).contains(&(now - v.not_before.timestamp())), "clocks may be behind");
    let usage = c.key_usage().unwrap().unwrap().value;
    assert!(usage.digital_signature() && !usage.key_encipherment() && !usage.key_cert_sign());
    let purposes = c.extended_key_usage().unwrap().unwrap().value;
    assert!(purposes.client_auth && !purposes.server_auth);
    assert!(!c.is_ca() && c.basic_constraints().unwrap().is_some());
    assert_eq!(c.subject_alternative_name().unwrap().unwrap().value.general_names.len(), 1);
    let o = p.cluster.call("GET", &format!("{REQUESTS}/jane"), Value::Null).await.body;
    let condition = &o["status"]["conditions"][0];
    assert!(condition["lastUpdateTime"].is_string() && condition["lastTransitionTime"].is_string());
    // What was decided stays, and so does the certificate.
    assert_eq!(decide(&p, "jane", "Denied").await, 422);
    let mut other = o.clone();
    other["status"]["conditions"] = json!([]);
    assert_eq!(p.cluster.call("PUT", &format!("{REQUESTS}/jane/approval"), other).await.code, 422);
    let mut other = o.clone();
    other["status"]["certificate"] = "".into();
    assert_eq!(p.cluster.call("PUT", &format!("{REQUESTS}/jane/status"), other).await.code, 422);

    asked(&p, "no", request("no", "team", &[]), "kube-apiserver-client", Value::Null).await;
    assert_eq!(decide(&p, "no", "Denied").await, 200);
    // Not what the signer is for.
    let usages = json!({"usages": ["server auth"]});
    asked(&p, "bad", request("bad", "team", &[]), "kube-apiserver-client", usages).await;
    assert_eq!(decide(&p, "bad", "Approved").await, 200);
    p.until("the failure", async || {
        let o = p.cluster.call("GET", &format!("{REQUESTS}/bad"), Value::Null).await.body;
        let c = o["status"]["conditions"].as_array()?.iter().find(|c| c["type"] == "Failed")?.clone();
        assert_eq!((&c["reason"], &c["status"]), (&json!("SignerValidationFailure"), &json!("True")));
        assert_eq!(c["message"], "invalid usage for client certificate: server auth");
        Some(())
    })
    .await;
}

/// Clauses: C14.kubelet-certificates
#[tokio::test(start_paused = true)]
async fn requests_of_kubelets_are_approved_and_signed() {
    let p = Plane::start().await;
    // Who asks may ask for any node; that it would be approved is asked of authorization.
    let signer = "kube-apiserver-client-kubelet";
    asked(&p, "n1", request("system:node:n1", "system:nodes", &[]), signer, Value::Null).await;
    issued(&p, "n1").await;
    let o = p.cluster.call("GET", &format!("{REQUESTS}/n1"), Value::Null).await.body;
    let c = &o["status"]["conditions"][0];
    assert_eq!((&c["type"], &c["reason"]), (&json!("Approved"), &json!("AutoApproved")));
    assert_eq!(c["message"], "Auto approving kubelet client certificate after SubjectAccessReview.");
    // What is no certificate of a node waits for somebody, as does one that a node serves with.
    asked(&p, "not", request("jane", "system:nodes", &[]), signer, Value::Null).await;
    let usages = json!({"usages": ["digital signature", "server auth"]});
    asked(&p, "serving", request("system:node:n1", "system:nodes", &["n1"]), "kubelet-serving", usages).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    for name in ["not", "serving"] {
        let o = p.cluster.call("GET", &format!("{REQUESTS}/{name}"), Value::Null).await.body;
        assert_eq!(o["status"], json!({}), "{name}");
    }
    assert_eq!(decide(&p, "serving", "Approved").await, 200);
    issued(&p, "serving").await;
}
