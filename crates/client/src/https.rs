//! HTTPS transport: HTTP/2 or HTTP/1.1 with kept-alive connections over TLS, through a proxy if configured.
//!
//! Invariant: one provider of cryptography (aws-lc-rs), and every connection is verified unless `insecure` is set.

mod connect;
mod connection_trace;
mod dedicated;
mod dial;
mod go_errors;
mod tls;
mod trust;

pub use connect::Proxy;
pub use connection_trace::{ConnectionTrace, Step, traced};
pub use dedicated::Dedicated;
pub use dial::{dial, handshake_error};
pub use go_errors::os_error;
pub use tls::{ClientIdentity, Roots, mutual, unverified, verified};

use crate::error::Error;
use crate::transport::{Body, Transport, Upgrade};
use async_trait::async_trait;
use base64::Engine;
use bytes::Bytes;
use connect::Connector;
use http::header::{AUTHORIZATION, HeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::Instant;

/// How long a bearer token file is cached.
const TOKEN_TTL: Duration = Duration::from_secs(10);

/// Credentials other than a client certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Credentials {
    /// No credentials.
    #[default]
    None,
    /// A bearer token.
    Bearer(String),
    /// Re-read periodically, because service account tokens are renewed in place.
    BearerFile(PathBuf),
    /// HTTP basic authentication.
    Basic {
        /// User name, without a colon.
        user: String,
        /// Password.
        password: String,
    },
}

/// The addresses that may be dialled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// Any address.
    #[default]
    Anywhere,
    /// All but loopback, link-local and multicast addresses ([`meta::address::is_special`]): for servers that cluster users name.
    Network,
}

/// Address of a server and how to connect to it.
#[derive(Clone, Debug)]
pub struct Config {
    /// `https://host:port[/prefix]`; `http` is allowed.
    pub server: String,
    /// URLs of further replicas of the server, with the same scheme and prefix. A connection is made to the one that was reached last, or
    /// to the next that can be reached.
    pub replicas: Vec<String>,
    /// Certificate authorities that the server's certificate is verified with.
    pub roots: Roots,
    /// Client certificate, if any.
    pub identity: Option<ClientIdentity>,
    /// Credentials in the `Authorization` header.
    pub credentials: Credentials,
    /// The name that the certificate must have, if not the host of `server`.
    pub server_name: Option<String>,
    /// Accepts any server certificate.
    pub insecure: bool,
    /// Proxy to connect through, if any.
    pub proxy: Option<Proxy>,
    /// Checked after name resolution for each dialled address. A proxy resolves names itself.
    pub reach: Reach,
    /// Time limit of the TCP connect, and of the TLS handshake.
    pub connect_timeout: Duration,
    /// Uses HTTP/1.1 only.
    pub disable_http2: bool,
}

impl Config {
    /// Configuration with the system's certificate authorities and a time limit of 30 seconds.
    pub fn new(server: impl Into<String>) -> Self {
        Self {
            server: server.into(),
            replicas: Vec::new(),
            roots: Roots::System,
            identity: None,
            credentials: Credentials::None,
            server_name: None,
            insecure: false,
            proxy: None,
            reach: Reach::Anywhere,
            connect_timeout: Duration::from_secs(30),
            disable_http2: false,
        }
    }

    /// [`Self::new`] for a server with these URLs, one for each replica.
    pub fn replicated(servers: &[String]) -> Self {
        let (first, replicas) = servers.split_first().map_or(("", &[][..]), |(first, others)| (first, others));
        Self { replicas: replicas.to_vec(), ..Self::new(first) }
    }

    /// Whether the server is reached over TLS. Credentials are only sent over TLS.
    pub fn is_tls(&self) -> bool {
        self.server.split_once("://").is_some_and(|(scheme, _)| scheme.eq_ignore_ascii_case("https"))
    }
}

type Pool = legacy::Client<Connector, Full<Bytes>>;

/// A transport to one server.
pub struct Https {
    pool: Pool,
    /// HTTP/1.1 only: HTTP/2 has no upgrades.
    upgrades: Pool,
    connector: Connector,
    scheme: Scheme,
    authority: Authority,
    prefix: String,
    credentials: Credentials,
    token: Mutex<Option<(Instant, HeaderValue)>>,
}

impl Https {
    /// Reads certificates and keys; makes no connection yet.
    pub fn new(config: &Config) -> Result<Self, Error> {
        let uri: Uri = config.server.parse().map_err(|e| Error::Request(format!("server {:?}: {e}", config.server)))?;
        let Some(authority) = uri.authority().cloned() else {
            return Err(Error::Request(format!("server {:?} has no host", config.server)));
        };
        let scheme = uri.scheme().cloned().unwrap_or(Scheme::HTTPS);
        if scheme != Scheme::HTTPS && scheme != Scheme::HTTP {
            return Err(Error::Request(format!("server {:?}: only https and http are supported", config.server)));
        }
        let pool = |connector: Connector| -> Pool {
            legacy::Client::builder(TokioExecutor::new())
                .timer(TokioTimer::new())
                .pool_timer(TokioTimer::new())
                .pool_idle_timeout(Duration::from_secs(90))
                .http2_keep_alive_interval(Duration::from_secs(30))
                .http2_keep_alive_timeout(Duration::from_secs(15))
                .http2_adaptive_window(true)
                .build(connector)
        };
        for replica in &config.replicas {
            let other: Uri = replica.parse().map_err(|e| Error::Request(format!("server {replica:?}: {e}")))?;
            if other.host().is_none() || other.scheme() != uri.scheme() || other.path() != uri.path() {
                let server = &config.server;
                return Err(Error::Request(format!("server {replica:?}: scheme and path must be those of {server:?}")));
            }
        }
        let connector = Connector::new(config, false)?;
        Ok(Self {
            pool: pool(Connector::new(config, !config.disable_http2)?),
            upgrades: pool(connector.clone()),
            connector,
            scheme,
            authority,
            prefix: uri.path().trim_end_matches('/').to_owned(),
            credentials: config.credentials.clone(),
            token: Mutex::new(None),
        })
    }

    async fn authorization(&self) -> Result<Option<HeaderValue>, Error> {
        let bearer = |t: &str| {
            let mut v = HeaderValue::from_str(&format!("Bearer {}", t.trim())).map_err(|_| {
                Error::Credentials("the token contains characters that are not allowed in a header".into())
            })?;
            v.set_sensitive(true);
            Ok::<_, Error>(v)
        };
        match &self.credentials {
            Credentials::None => Ok(None),
            Credentials::Bearer(t) => bearer(t).map(Some),
            Credentials::Basic { user, password } => {
                let code = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
                HeaderValue::from_str(&format!("Basic {code}")).map(Some).map_err(|e| Error::Credentials(e.to_string()))
            }
            Credentials::BearerFile(path) => {
                let held = self.token.lock().clone();
                if let Some((at, v)) = &held
                    && at.elapsed() < TOKEN_TTL
                {
                    return Ok(Some(v.clone()));
                }
                match (tokio::fs::read_to_string(path).await, held) {
                    (Ok(t), _) => {
                        let v = bearer(&t)?;
                        *self.token.lock() = Some((Instant::now(), v.clone()));
                        Ok(Some(v))
                    }
                    // The token read before may still be valid.
                    (Err(_), Some((_, v))) => Ok(Some(v)),
                    (Err(e), None) => Err(Error::Credentials(format!("{}: {e}", path.display()))),
                }
            }
        }
    }

    async fn address(&self, request: Request<Bytes>) -> Result<Request<Full<Bytes>>, Error> {
        let (mut parts, body) = request.into_parts();
        if !parts.headers.contains_key(AUTHORIZATION)
            && let Some(v) = self.authorization().await?
        {
            parts.headers.insert(AUTHORIZATION, v);
        }
        let path = parts.uri.path_and_query().map_or("/", PathAndQuery::as_str);
        parts.uri = Uri::builder()
            .scheme(self.scheme.clone())
            .authority(self.authority.clone())
            .path_and_query(format!("{}{path}", self.prefix))
            .build()
            .map_err(|e| Error::Request(e.to_string()))?;
        parts.version = http::Version::default();
        Ok(Request::from_parts(parts, Full::new(body)))
    }

    async fn exchange(&self, pool: &Pool, request: Request<Bytes>) -> Result<Response<hyper::body::Incoming>, Error> {
        let request = self.address(request).await?;
        let answer = pool.request(request).await;
        // A rejected token may have been replaced in its file.
        if answer.as_ref().is_ok_and(|r| r.status() == StatusCode::UNAUTHORIZED) {
            *self.token.lock() = None;
        }
        answer.map_err(|e| {
            if e.is_connect() {
                let source = std::error::Error::source(&e).unwrap_or(&e);
                let source = std::io::Error::new(io_kind(source), chain(source)).into();
                Error::Connect { to: self.authority.to_string(), source }
            } else {
                Error::Send(go_errors::exchange(&chain(&e)).into())
            }
        })
    }
}

/// The kind of the first system error among an error and its causes.
fn io_kind(e: &(dyn std::error::Error + 'static)) -> std::io::ErrorKind {
    let kind = |e: &(dyn std::error::Error + 'static)| e.downcast_ref().map(std::io::Error::kind);
    std::iter::successors(Some(e), |e| e.source()).find_map(kind).unwrap_or(std::io::ErrorKind::Other)
}

/// An error and its causes in one line.
fn chain(e: &(dyn std::error::Error + 'static)) -> String {
    let mut text = e.to_string();
    let mut next = e.source();
    while let Some(cause) = next {
        let c = cause.to_string();
        if !text.ends_with(&c) {
            text = format!("{text}: {c}");
        }
        next = cause.source();
    }
    text
}

fn arriving(body: hyper::body::Incoming) -> Body {
    body.map_err(|e| Error::Body(chain(&e).into())).boxed_unsync()
}

#[async_trait]
impl Transport for Https {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Body>, Error> {
        Ok(self.exchange(&self.pool, request).await?.map(arriving))
    }

    fn host(&self) -> &str {
        self.authority.as_str()
    }

    async fn upgrade(&self, request: Request<Bytes>) -> Result<Upgrade, Error> {
        let mut response = self.exchange(&self.upgrades, request).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Ok(Upgrade::Refused(response.map(arriving)));
        }
        let stream = hyper::upgrade::on(&mut response).await.map_err(|e| Error::Send(e.into()))?;
        Ok(Upgrade::Switched(response.into_parts().0, Box::new(TokioIo::new(stream))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Client;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::task::JoinHandle;

    /// A server that answers each connection once with its number.
    async fn serve(listener: TcpListener, number: u32) {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 1024]).await;
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\n{number}");
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    }

    async fn start(number: u32, address: &str) -> (String, JoinHandle<()>) {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        (address, tokio::spawn(serve(listener, number)))
    }

    #[tokio::test]
    async fn another_replica_takes_over() {
        let (first, one) = start(1, "127.0.0.1:0").await;
        let (second, two) = start(2, "127.0.0.1:0").await;
        let urls = [&first, &second].map(|address| format!("http://{address}"));
        let client = Client::new(Https::new(&Config::replicated(&urls)).unwrap(), "test");
        let ask = async || client.get::<u32>("/").await;
        assert_eq!(ask().await.unwrap(), 1);
        one.abort();
        assert!(one.await.unwrap_err().is_cancelled());
        assert_eq!(ask().await.unwrap(), 2);
        let (_, again) = start(1, &first).await;
        assert_eq!(ask().await.unwrap(), 2, "a replica is kept while it can be reached");
        two.abort();
        assert!(two.await.unwrap_err().is_cancelled());
        assert_eq!(ask().await.unwrap(), 1);
        again.abort();
        assert!(again.await.unwrap_err().is_cancelled());
        let none = ask().await.unwrap_err().to_string();
        assert!(none.contains(&first), "{none}");
    }

    #[test]
    fn replicas_differ_in_their_host_alone() {
        for other in ["http://b", "https://b/prefix", "b", "https://"] {
            let urls = ["https://a".to_owned(), other.to_owned()];
            assert!(Https::new(&Config { insecure: true, ..Config::replicated(&urls) }).is_err(), "{other}");
        }
        let urls = ["https://a:1".to_owned(), "https://b:2/".to_owned()];
        Https::new(&Config { insecure: true, ..Config::replicated(&urls) }).unwrap();
    }
}
