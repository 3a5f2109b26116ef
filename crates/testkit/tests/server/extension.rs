//! An extension API server over TLS for tests: it serves `wardle.example.com/v1` and trusts its front proxy.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use client::https::ClientIdentity;
use futures::{StreamExt as _, stream};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

pub const GROUP: &str = "wardle.example.com";

pub struct Extension {
    pub port: u16,
    /// PEM in base64, as an APIService has it.
    pub ca: String,
    /// By which the server knows its front proxy.
    pub proxy: ClientIdentity,
    /// Requests with their headers, but for those of the server's own checks.
    pub heard: Arc<Mutex<Vec<(String, http::HeaderMap, Bytes)>>>,
    /// It answers 500 to everything.
    pub broken: Arc<AtomicBool>,
    /// Answers that say nothing more and are waited for (`?silent=1`).
    pub open: Arc<AtomicUsize>,
}

/// Counts one answer for as long as it is there.
struct Open(Arc<AtomicUsize>);

impl Open {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Extension {
    pub async fn start() -> Self {
        let key = KeyPair::generate().unwrap();
        let cert = CertificateParams::new(["wardle.golden.svc".to_owned()]).unwrap().self_signed(&key).unwrap();
        let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let (front, proxy) = front_proxy();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(front).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build().unwrap();
        let mut tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![cert.der().clone()], der)
            .unwrap();
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (heard, broken) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let open: Arc<AtomicUsize> = Arc::default();
        let answers = open.clone();
        let (log, bad): (Arc<Mutex<Vec<_>>>, _) = (Arc::clone(&heard), broken.clone());
        tokio::spawn(async move {
            loop {
                let Ok((tcp, _)) = listener.accept().await else { return };
                let (acceptor, log, bad, open) = (acceptor.clone(), log.clone(), bad.clone(), answers.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(tcp).await else { return };
                    let service = service_fn(move |r| serve(r, log.clone(), bad.clone(), open.clone()));
                    let _ = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Self { port, ca: STANDARD.encode(cert.pem()), proxy, heard, broken, open }
    }
}

/// The certificate of a CA, and one for the front proxy that it has signed.
fn front_proxy() -> (rustls::pki_types::CertificateDer<'static>, ClientIdentity) {
    let ca_key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::default();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root = ca.self_signed(&ca_key).unwrap();
    let key = KeyPair::generate().unwrap();
    let mut p = CertificateParams::default();
    p.distinguished_name.push(DnType::CommonName, "front-proxy-client");
    let cert = p.signed_by(&key, &Issuer::new(ca, ca_key)).unwrap();
    let identity = ClientIdentity { certificates: cert.pem().into_bytes(), key: key.serialize_pem().into_bytes() };
    (root.der().clone(), identity)
}

type Answer = Response<BoxBody<Bytes, io::Error>>;

fn full(text: impl Into<Bytes>) -> BoxBody<Bytes, io::Error> {
    BodyExt::boxed(Full::new(text.into()).map_err(|e| match e {}))
}

fn document(media: &str, v: &Value) -> Answer {
    Response::builder().header("content-type", media).body(full(v.to_string())).unwrap()
}

fn flunder(name: &str) -> Value {
    json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Flunder", "metadata": {"name": name, "namespace": "default"}})
}

async fn serve(
    request: Request<Incoming>,
    log: Arc<Mutex<Vec<(String, http::HeaderMap, Bytes)>>>,
    broken: Arc<AtomicBool>,
    open: Arc<AtomicUsize>,
) -> Result<Answer, Infallible> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let (path, query) = (parts.uri.path().to_owned(), parts.uri.query().unwrap_or_default().to_owned());
    if parts.headers["x-remote-user"] != "system:kube-aggregator" {
        log.lock().push((format!("{} {}", parts.method, parts.uri), parts.headers.clone(), body.clone()));
    }
    if broken.load(Ordering::Relaxed) {
        return Ok(Response::builder().status(500).body(full("no")).unwrap());
    }
    let json = "application/json";
    let verbs = json!(["create", "get", "list", "watch"]);
    let kind = json!({"group": GROUP, "version": "v1", "kind": "Flunder"});
    let flunders = format!("/apis/{GROUP}/v1/namespaces/default/flunders");
    Ok(match path.as_str() {
        "/apis" => {
            let resource = json!({"resource": "flunders", "responseKind": kind, "scope": "Namespaced",
                "singularResource": "flunder", "verbs": verbs});
            let versions = json!([{"version": "v1", "resources": [resource], "freshness": "Current"}]);
            let v = json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {},
                "items": [{"metadata": {"name": GROUP}, "versions": versions}]});
            document("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", &v)
        }
        "/openapi/v2" => {
            let paths = json!({"/apis/wardle.example.com/v1/flunders": {}, "/api/v1/pods": {"stolen": true}});
            document(
                json,
                &json!({"swagger": "2.0", "paths": paths, "definitions": {"com.example.wardle.v1.Flunder": {}}}),
            )
        }
        "/openapi/v3" => {
            let url = format!("/openapi/v3/apis/{GROUP}/v1?hash=1234");
            document(json, &json!({"paths": {format!("apis/{GROUP}/v1"): {"serverRelativeURL": url}}}))
        }
        p if p == format!("/openapi/v3/apis/{GROUP}/v1") => {
            document(json, &json!({"openapi": "3.0.0", "theirs": true}))
        }
        p if p == format!("/apis/{GROUP}/v1") => {
            let resources = json!([{"name": "flunders", "singularName": "flunder", "namespaced": true, "kind": "Flunder", "verbs": verbs}]);
            document(
                json,
                &json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{GROUP}/v1"), "resources": resources}),
            )
        }
        p if p == flunders && query.contains("silent=1") => {
            let first = stream::iter([Ok::<_, io::Error>(Frame::data(Bytes::from("hello")))]);
            let counted = Open::new(&open);
            let silence = stream::poll_fn(move |_| {
                let _ = &counted;
                Poll::Pending
            });
            Response::new(BodyExt::boxed(StreamBody::new(first.chain(silence))))
        }
        p if p == flunders && query.contains("cut=1") => {
            let half = stream::once(async { Ok(Frame::data(Bytes::from("{\"kind\":"))) });
            // The error comes after what was sent has left.
            let error = stream::once(async {
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                Err(io::Error::other("cut"))
            });
            Response::new(BodyExt::boxed(StreamBody::new(half.chain(error))))
        }
        p if p == flunders && query.contains("watch=1") => {
            let events = ["a", "b"].map(|n| format!("{}\n", json!({"type": "ADDED", "object": flunder(n)})));
            let frames = events.map(|e| Ok::<_, io::Error>(Frame::data(Bytes::from(e))));
            Response::builder()
                .header("content-type", json)
                .body(BodyExt::boxed(StreamBody::new(stream::iter(frames))))
                .unwrap()
        }
        p if p == flunders && parts.method == "POST" => {
            let mut r = document(json, &serde_json::from_slice(&body).unwrap());
            *r.status_mut() = http::StatusCode::CREATED;
            r
        }
        p if p == flunders => document(
            json,
            &json!({"kind": "FlunderList", "apiVersion": format!("{GROUP}/v1"), "metadata": {}, "items": [flunder("a")]}),
        ),
        _ => Response::builder().status(404).body(full("{}")).unwrap(),
    })
}
