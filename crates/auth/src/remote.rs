//! Webhook calls over HTTPS: the only outbound connections of this crate.

use aws_lc_rs::digest::{Context, SHA256};
use bytes::Bytes;
use client::https::{Config, Https};
use client::kubeconfig::{Kubeconfig, Overrides, Sources};
use client::{Error, Transport};
use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER, USER_AGENT};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use meta::{Clock, Value};
use quick_cache::sync::Cache;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum size of a response.
const MAX_ANSWER: usize = 1 << 20;

/// A server and the request path.
pub struct Remote {
    transport: Arc<dyn Transport>,
    path: String,
    timeout: Duration,
}

impl Remote {
    /// A client of the server in a kubeconfig. Errors if its TLS configuration is invalid.
    pub fn new(config: &Config, timeout: Duration) -> Result<Self, Error> {
        let transport = Https::new(&Config { server: origin(config)?, ..config.clone() })?;
        Self::over(Arc::new(transport), config, timeout)
    }

    /// Loads the server and user of a kubeconfig's current context.
    pub async fn of_file(file: PathBuf, timeout: Duration, clock: &Arc<dyn Clock>) -> Result<Self, Error> {
        let kubeconfig: Kubeconfig = Sources::find(Some(file), |_| None).load()?;
        let mut resolved = kubeconfig.resolve(&Overrides::default())?;
        let config = resolved.https.clone();
        resolved.https.server = origin(&config)?;
        Self::over(resolved.transport(clock).await?, &config, timeout)
    }

    fn over(transport: Arc<dyn Transport>, config: &Config, timeout: Duration) -> Result<Self, Error> {
        let path = server(config)?.path_and_query().map_or("/", |p| p.as_str()).to_owned();
        Ok(Self { transport, path, timeout })
    }

    /// Sends a GET request. Returns the JSON of the response.
    pub async fn get(&self) -> Result<Value, String> {
        read(&self.exchange(Method::GET, Bytes::new()).await.map_err(|f| f.to_string())?)
    }

    /// Sends a POST request with JSON. Returns the JSON of the response.
    pub async fn post(&self, body: &Value) -> Result<Value, String> {
        self.call(body).await.map_err(|f| f.to_string())
    }

    /// Posts JSON. The caller decides about retries.
    pub async fn call(&self, body: &Value) -> Result<Value, Failure> {
        read(&self.exchange(Method::POST, body.to_string().into()).await?).map_err(Failure::Answer)
    }

    /// Posts JSON and ignores the body of a successful response.
    pub async fn tell(&self, body: Bytes) -> Result<(), String> {
        self.exchange(Method::POST, body).await.map(drop).map_err(|f| f.to_string())
    }

    async fn exchange(&self, method: Method, body: Bytes) -> Result<Bytes, Failure> {
        let request = Request::builder()
            .method(method)
            .uri(&self.path)
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json")
            .header(USER_AGENT, "kube-apiserver")
            .body(body)
            .map_err(|e| Failure::Sending(e.to_string()))?;
        let work = async {
            let answer = self.transport.send(request).await.map_err(|e| Failure::Sending(e.to_string()))?;
            let (code, waits) = (answer.status(), answer.headers().contains_key(RETRY_AFTER));
            let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
            let body = body.map_err(|e| Failure::Sending(e.to_string()))?.to_bytes();
            if !code.is_success() {
                return Err(Failure::Refused { code, waits, why: refusal(code, &body) });
            }
            Ok(body)
        };
        let late = |_| Err(Failure::Sending("context deadline exceeded".into()));
        tokio::time::timeout(self.timeout, work).await.unwrap_or_else(late)
    }
}

fn server(config: &Config) -> Result<http::Uri, Error> {
    config.server.parse().map_err(|e| Error::Request(format!("server {:?}: {e}", config.server)))
}

/// The URL of the server without its path.
fn origin(config: &Config) -> Result<String, Error> {
    let uri = server(config)?;
    Ok(format!("{}://{}", uri.scheme_str().unwrap_or("https"), uri.authority().map_or("", |a| a.as_str())))
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The request could not be sent.
    #[error("{0}")]
    Sending(String),
    /// An unsuccessful response; `waits`: it has a `Retry-After`.
    #[error("{why}")]
    Refused {
        /// The status code.
        code: StatusCode,
        /// Whether the response has a `Retry-After`.
        waits: bool,
        /// The message.
        why: String,
    },
    /// The response is invalid.
    #[error("{0}")]
    Answer(String),
}

impl Failure {
    /// Whether a retry may succeed (`k8s.io/apiserver/pkg/util/webhook`).
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Refused { code, waits, .. } if *waits || matches!(code.as_u16(), 429 | 500 | 504))
    }
}

/// The error of Go's client for a response that is not a `Status`.
pub fn refusal(code: StatusCode, body: &[u8]) -> String {
    let message = String::from_utf8_lossy(body);
    match code.as_u16() {
        401 => "the server has asked for the client to provide credentials".into(),
        404 => "the server could not find the requested resource".into(),
        405 => "the server does not allow this method on the requested resource".into(),
        429 => "the server has received too many requests and has asked us to try again later".into(),
        503 => "the server is currently unable to handle the request".into(),
        c if c >= 500 => {
            format!("an error on the server ({:?}) has prevented the request from succeeding", message.trim())
        }
        _ => "the server rejected our request for an unknown reason".into(),
    }
}

fn read(body: &[u8]) -> Result<Value, String> {
    serde_json::from_slice(body).map_err(|e| e.to_string())
}

/// A cache key: the SHA-256 digest of the request's parts, so that its size is fixed and no token is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheKey([u8; 32]);

impl CacheKey {
    /// Hashes each part with its length, so that different lists of parts have different keys.
    pub fn new<'a>(parts: impl IntoIterator<Item = &'a str>) -> Self {
        let mut digest = Context::new(&SHA256);
        for part in parts {
            digest.update(&(part.len() as u64).to_be_bytes());
            digest.update(part.as_bytes());
        }
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest.finish().as_ref());
        Self(bytes)
    }
}

/// Caches responses, each with its own expiry.
pub struct AnswerCache<T> {
    held: Cache<CacheKey, (Instant, T)>,
}

impl<T: Clone> Default for AnswerCache<T> {
    fn default() -> Self {
        Self { held: Cache::new(REMEMBERED) }
    }
}

/// How many responses are cached.
const REMEMBERED: usize = 4_096;

impl<T: Clone> AnswerCache<T> {
    /// The cached response, if it has not expired.
    pub fn get(&self, question: CacheKey) -> Option<T> {
        self.held.get(&question).filter(|(until, _)| *until > Instant::now()).map(|(_, v)| v)
    }

    /// Caches a response for a time.
    pub fn put(&self, question: CacheKey, value: T, lasts: Duration) {
        if !lasts.is_zero() {
            self.held.insert(question, (Instant::now() + lasts, value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_told_apart_by_their_parts() {
        let questions =
            [vec!["T", "a", "b"], vec!["T", "a b"], vec!["T a", "b"], vec!["Ta", "b"], vec!["T", "a", "b", ""]];
        let distinct: std::collections::HashSet<CacheKey> = questions.map(CacheKey::new).into_iter().collect();
        assert_eq!(distinct.len(), 5);
        assert_eq!(CacheKey::new(["T", "a"]), CacheKey::new(["T", "a"]));
    }

    #[test]
    fn an_answer_is_forgotten_when_its_time_is_over() {
        let (known, question) = (AnswerCache::default(), CacheKey::new(["T"]));
        known.put(question, 1, Duration::ZERO);
        assert_eq!(known.get(question), None);
        known.put(question, 1, Duration::from_secs(600));
        assert_eq!(known.get(question), Some(1));
        for n in 0..REMEMBERED {
            known.put(CacheKey::new([n.to_string().as_str()]), 2, Duration::from_secs(600));
        }
        assert!(known.held.len() <= REMEMBERED);
    }
}
