//! A TLS server on loopback that stands for an issuer or a webhook.

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::Value;
use std::convert::Infallible;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// Its answer to a path and a document.
pub enum Reply {
    Document(Value),
    /// Status 500.
    Broken,
    /// It keeps the connection and never answers.
    Never,
}

type Replies = dyn Fn(&str, &Value) -> Reply + Send + Sync;

pub struct Somebody {
    pub url: String,
    /// PEM.
    pub ca: String,
    /// What it was asked.
    pub heard: Arc<Mutex<Vec<Value>>>,
}

impl Somebody {
    /// Answers with documents; with status 500 where there is none.
    pub async fn start(reply: impl Fn(&str, &Value) -> Option<Value> + Send + Sync + 'static) -> Self {
        Self::replying(move |path, v| reply(path, v).map_or(Reply::Broken, Reply::Document)).await
    }

    pub async fn replying(reply: impl Fn(&str, &Value) -> Reply + Send + Sync + 'static) -> Self {
        let key = KeyPair::generate().unwrap();
        let cert = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap().self_signed(&key).unwrap();
        let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let tls = tls.with_no_client_auth().with_single_cert(vec![cert.der().clone()], der).unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let heard: Arc<Mutex<Vec<Value>>> = Arc::default();
        let (reply, log): (Arc<Replies>, _) = (Arc::new(reply), heard.clone());
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let (acceptor, reply, log) = (acceptor.clone(), reply.clone(), log.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(tcp).await else { return };
                    let service = service_fn(move |r| serve(r, reply.clone(), log.clone()));
                    let io = TokioIo::new(stream);
                    let _ = hyper::server::conn::http1::Builder::new().serve_connection(io, service).await;
                });
            }
        });
        Self { url, ca: cert.pem(), heard }
    }

    /// The way to it at a path.
    pub fn remote(&self, path: &str) -> auth::remote::Remote {
        let mut config = client::https::Config::new(format!("{}{path}", self.url));
        config.roots = client::https::Roots::Pem(self.ca.clone().into_bytes());
        auth::remote::Remote::new(&config, std::time::Duration::from_secs(10)).unwrap()
    }
}

async fn serve(
    request: Request<Incoming>,
    reply: Arc<Replies>,
    log: Arc<Mutex<Vec<Value>>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let v: Value = serde_json::from_slice(&body).unwrap_or_default();
    log.lock().push(v.clone());
    Ok(match reply(&path, &v) {
        Reply::Document(answer) => Response::new(Full::from(answer.to_string())),
        Reply::Never => std::future::pending().await,
        Reply::Broken => Response::builder().status(500).body(Full::from("no")).unwrap(),
    })
}
