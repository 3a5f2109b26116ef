//! A webhook server over TLS, on loopback.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use meta::Value;
use parking_lot::Mutex;
use rcgen::{Certificate, CertificateParams, KeyPair};
use rustls::RootCertStore;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use serde_json::json;
use std::convert::Infallible;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// The response of a webhook: the `response` of the review, without its UID, or under `whole` the complete review. None: no response.
pub type Replies = dyn Fn(&str, &Value) -> Option<Value> + Send + Sync;

pub struct Hook {
    pub port: u16,
    /// PEM in base64, as configurations have it.
    pub ca: String,
    /// The paths and requests that came.
    pub heard: Arc<Mutex<Vec<(String, Value)>>>,
    /// As whom.
    pub callers: Arc<Mutex<Vec<Caller>>>,
    /// A certificate that the hook believes, and its key: PEM in base64.
    pub client: (String, String),
}

/// The credentials of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Caller {
    pub authorization: String,
    pub acts_as: String,
    pub certificate: bool,
}

impl Hook {
    /// Serves `says` until the test ends, under the names of loopback and of the service `hook` in `golden`.
    pub async fn start(reply: impl Fn(&str, &Value) -> Option<Value> + Send + Sync + 'static) -> Self {
        let names = ["127.0.0.1", "localhost", "hook.golden.svc"].map(str::to_owned);
        let key = KeyPair::generate().unwrap();
        let cert = CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
        Self::with_certificate(cert, &key, reply).await
    }

    /// As [`Hook::start`], under a certificate, which is also what a configuration trusts.
    pub async fn with_certificate(
        cert: Certificate,
        key: &KeyPair,
        reply: impl Fn(&str, &Value) -> Option<Value> + Send + Sync + 'static,
    ) -> Self {
        let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let own = KeyPair::generate().unwrap();
        let client = CertificateParams::new(vec!["client".to_owned()]).unwrap().self_signed(&own).unwrap();
        let mut believed = RootCertStore::empty();
        believed.add(client.der().clone()).unwrap();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(believed), provider.clone());
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier.allow_unauthenticated().build().unwrap())
            .with_single_cert(vec![cert.der().clone()], der)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let heard: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
        let callers: Arc<Mutex<Vec<Caller>>> = Arc::default();
        let (reply, log, seen): (Arc<Replies>, _, _) = (Arc::new(reply), heard.clone(), callers.clone());
        tokio::spawn(async move {
            loop {
                let Ok((tcp, _)) = listener.accept().await else { return };
                let (acceptor, reply, log, seen) = (acceptor.clone(), reply.clone(), log.clone(), seen.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(tcp).await else { return };
                    let certificate = stream.get_ref().1.peer_certificates().is_some();
                    let service = service_fn(move |r: Request<Incoming>| {
                        let header = |name: &str| r.headers().get(name).map_or("", |v| v.to_str().unwrap()).to_owned();
                        let (authorization, acts_as) = (header("authorization"), header("impersonate-user"));
                        seen.lock().push(Caller { authorization, acts_as, certificate });
                        serve(r, reply.clone(), log.clone())
                    });
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        let client = (STANDARD.encode(client.pem()), STANDARD.encode(own.serialize_pem()));
        Self { port, ca: STANDARD.encode(cert.pem()), heard, callers, client }
    }

    pub fn url(&self, path: &str) -> Value {
        json!({"url": format!("https://127.0.0.1:{}{path}", self.port), "caBundle": self.ca})
    }

    /// The requests to a path.
    pub fn heard(&self, path: &str) -> Vec<Value> {
        let all = self.heard.lock();
        all.iter().filter(|(p, _)| p == path).map(|(_, v)| v["request"].clone()).collect()
    }
}

async fn serve(
    request: Request<Incoming>,
    reply: Arc<Replies>,
    log: Arc<Mutex<Vec<(String, Value)>>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let v: Value = serde_json::from_slice(&body).unwrap();
    log.lock().push((path.clone(), v.clone()));
    // An AdmissionReview asks with its request, others with all they have.
    let asked = if v["request"].is_null() { &v } else { &v["request"] };
    let Some(mut response) = reply(&path, asked) else { return std::future::pending().await };
    if response["http"].is_u64() {
        let code = response["http"].as_u64().unwrap() as u16;
        return Ok(Response::builder().status(code).body(Full::from("no")).unwrap());
    }
    if response["uid"].is_null() {
        response["uid"] = v["request"]["uid"].clone();
    }
    if let Some(whole) = response.get("whole") {
        return Ok(Response::new(Full::from(whole.to_string())));
    }
    let answer = json!({"apiVersion": v["apiVersion"], "kind": v["kind"], "response": response});
    Ok(Response::new(Full::from(answer.to_string())))
}

pub fn allow() -> Option<Value> {
    Some(json!({"allowed": true}))
}

pub fn patch(patch: &Value) -> Option<Value> {
    Some(json!({"allowed": true, "patchType": "JSONPatch", "patch": STANDARD.encode(patch.to_string())}))
}
