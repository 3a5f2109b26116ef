//! Verification of server certificates and its error texts, in real handshakes on loopback.

#![allow(clippy::unwrap_used, reason = "a test may")]

use client::https::{Config, Https, Reach, Roots};
use client::{Error, Transport};
use http::Request;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, GeneralSubtree, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, NameConstraints, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

struct Made {
    params: CertificateParams,
    key: KeyPair,
    der: CertificateDer<'static>,
    pem: String,
}

fn params(name: &str, alter: impl Fn(&mut CertificateParams)) -> CertificateParams {
    let mut p = CertificateParams::new(vec!["hook.example".to_owned(), "10.0.0.1".to_owned()]).unwrap();
    p.distinguished_name.push(DnType::CommonName, name);
    p.not_before = date_time_ymd(2020, 1, 1);
    p.not_after = date_time_ymd(2120, 1, 1);
    alter(&mut p);
    p
}

fn own(name: &str, alter: impl Fn(&mut CertificateParams)) -> Made {
    let (params, key) = (params(name, alter), KeyPair::generate().unwrap());
    let made = params.self_signed(&key).unwrap();
    Made { params, key, der: made.der().clone(), pem: made.pem() }
}

fn by(issuer: &Made, name: &str, alter: impl Fn(&mut CertificateParams)) -> Made {
    let (params, key) = (params(name, alter), KeyPair::generate().unwrap());
    let made = params.signed_by(&key, &Issuer::from_params(&issuer.params, &issuer.key)).unwrap();
    Made { params, key, der: made.der().clone(), pem: made.pem() }
}

fn ca(p: &mut CertificateParams) {
    p.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    p.subject_alt_names.clear();
}

/// A server certificate that is marked as a CA, as `openssl req -x509` makes them.
fn server_ca(p: &mut CertificateParams) {
    p.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
}

fn plain(_: &mut CertificateParams) {}

/// The error of a client with these roots for a server with this certificate; empty if it trusts it.
async fn check(roots: &[&Made], leaf: &Made, between: &[&Made], name: &str) -> String {
    let chain = [leaf].iter().chain(between).map(|m| m.der.clone()).collect();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(leaf.key.serialize_der()));
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let acceptor =
        tokio_rustls::TlsAcceptor::from(Arc::new(tls.with_no_client_auth().with_single_cert(chain, key).unwrap()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = format!("https://{}", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move {
        let (tcp, _) = listener.accept().await.unwrap();
        let Ok(mut tls) = acceptor.accept(tcp).await else { return };
        let _ = tls.read_u8().await;
        let _ = tls.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
        let _ = tls.shutdown().await;
    });
    let pem: String = roots.iter().map(|r| r.pem.as_str()).collect();
    let config = Config {
        roots: Roots::Pem(pem.into_bytes()),
        server_name: Some(name.to_owned()),
        disable_http2: true,
        ..Config::new(server)
    };
    let error = request_error(&config).await;
    serving.await.unwrap();
    match error.strip_prefix("tls: failed to verify certificate: ") {
        Some(why) => why.to_owned(),
        None => error,
    }
}

/// The error of a request; empty if there is none.
async fn request_error(config: &Config) -> String {
    match Https::new(config).unwrap().send(Request::get("/").body(Default::default()).unwrap()).await {
        Ok(_) => String::new(),
        Err(e @ Error::Connect { .. }) => e.to_string(),
        Err(e) => panic!("{e}"),
    }
}

const UNKNOWN: &str = "x509: certificate signed by unknown authority";

#[tokio::test]
async fn a_root_is_accepted_as_a_server_certificate() {
    let (root, other) = (own("root", ca), own("other", ca));
    let leaf = by(&other, "leaf", plain);
    let alone = own("alone", server_ca);
    let simple = own("simple", plain);
    for (roots, leaf, what) in [
        (vec![&leaf], &leaf, "a leaf of another CA"),
        (vec![&root, &leaf], &leaf, "a leaf of another CA, and a CA"),
        (vec![&alone], &alone, "self-signed, marked as a CA"),
        (vec![&simple], &simple, "self-signed"),
    ] {
        assert_eq!(check(&roots, leaf, &[], "hook.example").await, "", "{what}");
        assert_eq!(check(&roots, leaf, &[], "10.0.0.1").await, "", "{what}");
    }
    assert_eq!(check(&[&root], &leaf, &[], "hook.example").await, UNKNOWN);
    assert_eq!(check(&[&simple], &leaf, &[&other], "hook.example").await, UNKNOWN);
}

#[tokio::test]
async fn only_a_ca_signs() {
    let root = own("root", ca);
    let middle = by(&root, "middle", ca);
    let below = by(&middle, "below", plain);
    assert_eq!(check(&[&root], &below, &[&middle], "hook.example").await, "");
    assert_eq!(check(&[&middle], &below, &[], "hook.example").await, "", "an intermediate CA is accepted as a root");
    assert_eq!(check(&[&root], &below, &[], "hook.example").await, UNKNOWN);
    let says_ca = by(&root, "says", server_ca);
    assert_eq!(check(&[&root], &says_ca, &[], "hook.example").await, "", "a leaf marked as a CA is accepted");

    // The key of a server certificate in the bundle signs no other certificate.
    let leaf = own("leaf", plain);
    for forged in [by(&leaf, "forged", plain), by(&leaf, "forged", server_ca), by(&leaf, "leaf", plain)] {
        assert_eq!(check(&[&leaf], &forged, &[&leaf], "hook.example").await, UNKNOWN);
    }
    // Nor does a CA that may not sign, nor another one of the same name.
    let mute = own("mute", |p| {
        ca(p);
        p.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    });
    assert_eq!(check(&[&mute], &by(&mute, "x", plain), &[], "hook.example").await, UNKNOWN);
    let twin = own("root", ca);
    for alter in [plain as fn(&mut CertificateParams), server_ca] {
        assert_eq!(check(&[&root], &by(&twin, "x", alter), &[], "hook.example").await, UNKNOWN);
    }
    let old = own("old", |p| {
        ca(p);
        p.not_after = date_time_ymd(2021, 2, 1);
    });
    for alter in [plain as fn(&mut CertificateParams), server_ca] {
        assert_eq!(check(&[&old, &root], &by(&old, "x", alter), &[], "hook.example").await, UNKNOWN);
        assert_eq!(check(&[&old, &root], &by(&root, "x", alter), &[], "hook.example").await, "");
    }
    let narrow = own("narrow", |p| {
        ca(p);
        let permitted_subtrees = vec![GeneralSubtree::DnsName("other.example".into())];
        p.name_constraints = Some(NameConstraints { permitted_subtrees, excluded_subtrees: Vec::new() });
    });
    for alter in [plain as fn(&mut CertificateParams), server_ca] {
        assert_ne!(check(&[&narrow], &by(&narrow, "x", alter), &[], "hook.example").await, "");
    }
}

#[tokio::test]
async fn roots_are_checked_like_other_leaves() {
    type Alter = fn(&mut CertificateParams);
    let cases: [(Alter, &str, &str); 8] = [
        (|p| p.not_after = date_time_ymd(2021, 9, 1), "hook.example", "is after 2021-09-01T00:00:00Z"),
        (|p| p.not_before = date_time_ymd(2110, 10, 1), "hook.example", "is before 2110-10-01T00:00:00Z"),
        (plain, "other.example", "x509: certificate is valid for hook.example, not other.example"),
        (plain, "10.0.0.2", "x509: certificate is valid for 10.0.0.1, not 10.0.0.2"),
        (
            |p| drop(p.subject_alt_names.pop()),
            "10.0.0.1",
            "x509: cannot validate certificate for 10.0.0.1 because it doesn't contain any IP SANs",
        ),
        (
            |p| drop(p.subject_alt_names.remove(0)),
            "hook.example",
            "x509: certificate is not valid for any names, but wanted to match hook.example",
        ),
        (
            |p| {
                p.subject_alt_names.clear();
                p.distinguished_name.push(DnType::CommonName, "hook.example");
            },
            "hook.example",
            "x509: certificate relies on legacy Common Name field, use SANs instead",
        ),
        (
            |p| p.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth],
            "hook.example",
            "x509: certificate specifies an incompatible key usage",
        ),
    ];
    let root = own("root", ca);
    for (alter, name, want) in cases {
        let self_signed = own("leaf", alter);
        let same = |error: String| {
            let (time, end) = ("x509: certificate has expired or is not yet valid: current time 20", want);
            assert!(
                error == want || want.starts_with("is ") && error.starts_with(time) && error.ends_with(end),
                "{error}"
            );
        };
        same(check(&[&self_signed], &self_signed, &[], name).await);
        same(check(&[&root], &by(&root, "leaf", alter), &[], name).await);
        let says_ca = by(&root, "leaf", |p| {
            alter(p);
            server_ca(p);
        });
        same(check(&[&root], &says_ca, &[], name).await);
        same(check(&[&says_ca], &says_ca, &[], name).await);
    }
    let server = |p: &mut CertificateParams| p.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let leaf = own("leaf", server);
    assert_eq!(check(&[&leaf], &leaf, &[], "hook.example").await, "");
}

#[tokio::test]
async fn connection_errors_have_the_texts_of_go() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let plain = tokio::spawn(async move {
        let (mut tcp, _) = listener.accept().await.unwrap();
        let _ = tcp.read_u8().await;
        let _ =
            tcp.write_all(b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n").await;
    });
    let at = |server: String| Config { disable_http2: true, ..Config::new(server) };
    assert_eq!(
        request_error(&at(format!("https://{address}"))).await,
        "http: server gave HTTP response to HTTPS client"
    );
    plain.await.unwrap();
    let refused = format!("dial tcp {address}: connect: connection refused");
    assert_eq!(request_error(&at(format!("https://{address}"))).await, refused);
    assert_eq!(
        request_error(&at("https://no-such-name.invalid".into())).await,
        "dial tcp: lookup no-such-name.invalid: no such host"
    );
    let guarded = Config { reach: Reach::Network, ..at(format!("https://{address}")) };
    assert_eq!(request_error(&guarded).await, format!("dial tcp {address}: address not allowed"));

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let silent = tokio::spawn(async move { drop(listener.accept().await.unwrap().0.read_u8().await) });
    let hung_up = request_error(&at(format!("https://{address}"))).await;
    assert!(matches!(&*hung_up, "EOF" | "read: connection reset by peer"), "{hung_up}");
    silent.await.unwrap();
}
