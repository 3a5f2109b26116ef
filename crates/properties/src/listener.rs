//! The real listener of an API server in memory, on loopback, for properties of connections.

use apiserver::listen;
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::error::Error;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use supervisor::Trigger;
use testkit::Cluster;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// How long the server may take over what the bytes made it do.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long its answer is read: most of what a fuzzer sends leaves a connection open.
const LOOK: Duration = Duration::from_millis(5);

struct Listener {
    runtime: Runtime,
    port: u16,
    roots: RootCertStore,
    _stop: Trigger,
}

type Result<T> = std::result::Result<T, Box<dyn Error>>;

impl Listener {
    fn start() -> Result<Self> {
        let runtime = Runtime::new()?;
        let key = KeyPair::generate()?;
        let certificate = CertificateParams::new(["127.0.0.1".to_owned()])?.self_signed(&key)?;
        let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let mut tls = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], der)?;
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let mut roots = RootCertStore::empty();
        roots.add(certificate.der().clone())?;
        let (stop, shutdown) = supervisor::shutdown();
        let port = runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            let port = listener.local_addr()?.port();
            let server = Cluster::start(1).await.server;
            tokio::spawn(listen::serve(server, Arc::new(listener), watch::channel(Arc::new(tls)).1, shutdown));
            Ok::<_, std::io::Error>(port)
        })?;
        Ok(Self { runtime, port, roots, _stop: stop })
    }

    async fn connect(&self, protocol: &[u8]) -> Result<TlsStream<TcpStream>> {
        let mut tls = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(self.roots.clone())
            .with_no_client_auth();
        tls.alpn_protocols = vec![protocol.to_vec()];
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        Ok(TlsConnector::from(Arc::new(tls)).connect(ServerName::try_from("127.0.0.1")?, stream).await?)
    }

    /// Sends the bytes behind the preface, and reads what comes back for a moment.
    async fn attack(&self, data: &[u8]) -> Result<()> {
        let mut stream = self.connect(b"h2").await?;
        // The server may hang up before it has everything.
        let _ = stream.write_all(&[PREFACE, data].concat()).await;
        let _ = stream.flush().await;
        let mut answer = [0; 4096];
        while let Ok(Ok(1..)) = tokio::time::timeout(LOOK, stream.read(&mut answer)).await {}
        Ok(())
    }

    /// Returns the status line of a response on another connection.
    async fn status_line(&self) -> Result<String> {
        let mut stream = self.connect(b"http/1.1").await?;
        stream.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await?;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await; // the server may close without a TLS alert
        Ok(String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned())
    }
}

/// Sends the bytes as frames to a server, which must answer others afterwards.
///
/// # Panics
/// When it does not.
pub fn send(data: &[u8]) {
    static LISTENER: OnceLock<std::result::Result<Listener, String>> = OnceLock::new();
    let listener = match LISTENER.get_or_init(|| Listener::start().map_err(|e| e.to_string())) {
        Ok(l) => l,
        Err(e) => unreachable!("the server did not start: {e}"),
    };
    let answer = listener.runtime.block_on(async {
        let _ = tokio::time::timeout(PATIENCE, listener.attack(data)).await;
        tokio::time::timeout(PATIENCE, listener.status_line()).await.map(|a| a.map_err(|e| e.to_string()))
    });
    assert!(matches!(&answer, Ok(Ok(line)) if line.starts_with("HTTP/1.1 ")), "{answer:?}");
}
