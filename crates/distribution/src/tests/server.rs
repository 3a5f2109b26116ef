//! A registry in the process of the test, which decides each response.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::blob::digest_of;

pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// A request: its path with the query, and its headers in lower case.
pub struct Request {
    pub path: String,
    head: String,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(": "))
    }
}

pub struct Reply {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    /// Bytes of the body that are sent, and whether the connection then stays open.
    sent: Option<(usize, bool)>,
    hangs: bool,
}

impl Reply {
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Reply {
        Reply { status, headers: Vec::new(), body: body.into(), sent: None, hangs: false }
    }

    /// No response.
    pub fn hang() -> Reply {
        Reply { hangs: true, ..Reply::new(200, "") }
    }

    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Reply {
        self.headers.push((name, value.into()));
        self
    }

    /// The connection breaks after these bytes of the body.
    pub fn cut(self, after: usize) -> Reply {
        Reply { sent: Some((after, false)), ..self }
    }

    /// Nothing follows these bytes of the body.
    pub fn stall(self, after: usize) -> Reply {
        Reply { sent: Some((after, true)), ..self }
    }
}

pub struct Server {
    pub address: String,
    log: Arc<Mutex<Vec<String>>>,
}

type Handler = dyn Fn(&Request) -> Reply + Send + Sync;

impl Server {
    pub async fn start(handler: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Server {
        Self::start_with(handler, None).await
    }

    /// With TLS if there is an acceptor.
    pub async fn start_with(
        handler: impl Fn(&Request) -> Reply + Send + Sync + 'static,
        tls: Option<tokio_rustls::TlsAcceptor>,
    ) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let log: Arc<Mutex<Vec<String>>> = Arc::default();
        let (handler, entries): (Arc<Handler>, _) = (Arc::new(handler), log.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (handler, entries, tls) = (handler.clone(), entries.clone(), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => answer(stream, &*handler, &entries).await,
                        Some(tls) => match tls.accept(stream).await {
                            Ok(stream) => answer(stream, &*handler, &entries).await,
                            Err(_) => None,
                        },
                    }
                });
            }
        });
        Server { address, log }
    }

    /// The requests so far: path, and the header `Range` or the scheme of `Authorization` if there is one.
    pub fn log(&self) -> Vec<String> {
        self.log.lock().clone()
    }

    pub fn count(&self, part: &str) -> usize {
        self.log().iter().filter(|l| l.contains(part)).count()
    }
}

async fn answer(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    handler: &Handler,
    log: &Mutex<Vec<String>>,
) -> Option<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let text = String::from_utf8(head).ok()?;
    let path = text.split(' ').nth(1)?.to_owned();
    let head: String = text
        .lines()
        .skip(1)
        .filter_map(|l| l.split_once(": "))
        .fold(String::new(), |all, (n, v)| format!("{all}{}: {v}\n", n.to_ascii_lowercase()));
    let request = Request { path, head };
    let scheme = request.header("authorization").and_then(|a| a.split(' ').next());
    let notes: Vec<&str> =
        [Some(request.path.as_str()), request.header("range"), scheme].into_iter().flatten().collect();
    log.lock().push(notes.join(" "));
    let reply = handler(&request);
    if reply.hangs {
        std::future::pending::<()>().await;
    }
    let mut response =
        format!("HTTP/1.1 {} X\r\nconnection: close\r\ncontent-length: {}\r\n", reply.status, reply.body.len());
    for (name, value) in &reply.headers {
        response.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(format!("{response}\r\n").as_bytes()).await.ok()?;
    let (sent, stays) = reply.sent.unwrap_or((reply.body.len(), false));
    stream.write_all(&reply.body[..sent]).await.ok()?;
    stream.flush().await.ok()?;
    if stays {
        std::future::pending::<()>().await;
    }
    stream.shutdown().await.ok()
}

/// An image of one layer, with the blobs of a registry.
#[derive(Clone)]
pub struct Content {
    pub layer: Vec<u8>,
    pub config: Vec<u8>,
    pub manifest: Vec<u8>,
}

/// The architecture of this machine in the terms of images.
pub fn own() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
}

pub fn descriptor(media_type: &str, content: &[u8]) -> Value {
    json!({"mediaType": media_type, "digest": digest_of(content), "size": content.len()})
}

impl Content {
    /// With a file of this many bytes that cannot be compressed.
    pub fn new(size: usize) -> Content {
        Self::with_architecture(size, own())
    }

    pub fn with_architecture(size: usize, architecture: &str) -> Content {
        let mut tar = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(size as u64);
        let mut state = 1u64;
        let bytes: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u8
        })
        .take(size)
        .collect();
        tar.append_data(&mut header, "file", bytes.as_slice()).unwrap();
        let tar = tar.into_inner().unwrap();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&tar).unwrap();
        let layer = gzip.finish().unwrap();
        let config = json!({"architecture": architecture, "os": "linux", "config": {"Cmd": ["/file"]},
            "rootfs": {"type": "layers", "diff_ids": [digest_of(&tar)]}});
        let config = config.to_string().into_bytes();
        let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST,
            "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
            "layers": [descriptor("application/vnd.oci.image.layer.v1.tar+gzip", &layer)]});
        Content { layer, config, manifest: manifest.to_string().into_bytes() }
    }

    pub fn digest(&self) -> String {
        digest_of(&self.manifest)
    }

    /// What a registry answers that has this image as `a/b:1`.
    pub fn reply(&self, request: &Request) -> Reply {
        let path = request.path.split('?').next().unwrap();
        let rest = path.strip_prefix("/v2/a/b/").unwrap_or_default();
        let is_manifest = |v: &str| v == "1" || v == self.digest();
        match rest.split_once('/') {
            Some(("manifests", v)) if is_manifest(v) => {
                Reply::new(200, self.manifest.clone()).with("content-type", MANIFEST)
            }
            Some(("blobs", d)) if d == digest_of(&self.config) => Reply::new(200, self.config.clone()),
            Some(("blobs", d)) if d == digest_of(&self.layer) => ranged(request, &self.layer),
            _ => Reply::new(404, r#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}"#),
        }
    }

    pub fn is_layer(&self, request: &Request) -> bool {
        request.path.contains(&digest_of(&self.layer))
    }
}

/// The content from the requested byte on.
pub fn ranged(request: &Request, content: &[u8]) -> Reply {
    let start = request.header("range").and_then(|r| r.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
    match start {
        None => Reply::new(200, content),
        Some(start) => Reply::new(206, &content[start..])
            .with("content-range", format!("bytes {start}-{}/{}", content.len() - 1, content.len())),
    }
}

/// A certificate for 127.0.0.1, written to `path` as PEM, and a server with it.
pub fn tls(path: &Path) -> tokio_rustls::TlsAcceptor {
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(path, cert.pem()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let key = rustls::pki_types::PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    tokio_rustls::TlsAcceptor::from(Arc::new(config))
}
