//! Asking others over HTTPS: the one way out of this crate.

use bytes::Bytes;
use client::https::{Config, Https};
use client::kubeconfig::{Kubeconfig, Overrides, Sources};
use client::{Error, Transport};
use http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT};
use http::{Method, Request};
use http_body_util::{BodyExt, Limited};
use meta::Value;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::Instant;

/// No answer is longer.
const MAX_ANSWER: usize = 1 << 20;

/// A server, and the path at which it answers.
pub struct Remote {
    https: Https,
    path: String,
    timeout: Duration,
}

impl Remote {
    pub fn new(config: &Config, timeout: Duration) -> Result<Self, Error> {
        let uri: http::Uri =
            config.server.parse().map_err(|e| Error::Request(format!("server {:?}: {e}", config.server)))?;
        let path = uri.path_and_query().map_or("/", |p| p.as_str()).to_owned();
        let (scheme, authority) = (uri.scheme_str().unwrap_or("https"), uri.authority().map_or("", |a| a.as_str()));
        let config = Config { server: format!("{scheme}://{authority}"), ..config.clone() };
        Ok(Self { https: Https::new(&config)?, path, timeout })
    }

    /// Where the current context of a kubeconfig file leads.
    pub async fn of_file(file: PathBuf, timeout: Duration) -> Result<Self, Error> {
        let kubeconfig: Kubeconfig = Sources::find(Some(file), |_| None).load()?;
        Self::new(&kubeconfig.resolve(&Overrides::default())?.config().await?, timeout)
    }

    pub async fn get(&self) -> Result<Value, String> {
        read(&self.exchange(Method::GET, Bytes::new()).await?)
    }

    pub async fn post(&self, body: &Value) -> Result<Value, String> {
        read(&self.exchange(Method::POST, body.to_string().into()).await?)
    }

    /// Posts JSON; what is answered does not matter, if it is a success.
    pub async fn tell(&self, body: Bytes) -> Result<(), String> {
        self.exchange(Method::POST, body).await.map(drop)
    }

    async fn exchange(&self, method: Method, body: Bytes) -> Result<Bytes, String> {
        let request = Request::builder()
            .method(method)
            .uri(&self.path)
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json")
            .header(USER_AGENT, "kube-apiserver")
            .body(body)
            .map_err(|e| e.to_string())?;
        let work = async {
            let answer = self.https.send(request).await.map_err(|e| e.to_string())?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await.map_err(|e| e.to_string())?;
            if !status.is_success() {
                return Err(format!("the server answered {status}"));
            }
            Ok(body.to_bytes())
        };
        tokio::time::timeout(self.timeout, work).await.unwrap_or_else(|_| Err("context deadline exceeded".into()))
    }
}

fn read(body: &[u8]) -> Result<Value, String> {
    serde_json::from_slice(body).map_err(|e| e.to_string())
}

/// Answers that are remembered for some time, each for its own.
pub struct Remembered<T> {
    held: Mutex<HashMap<String, (Instant, T)>>,
}

impl<T> Default for Remembered<T> {
    fn default() -> Self {
        Self { held: Mutex::default() }
    }
}

/// Beyond this many, what has ended is forgotten, and if that is not enough, everything.
const REMEMBERED: usize = 4_096;

impl<T: Clone> Remembered<T> {
    pub fn get(&self, key: &str) -> Option<T> {
        self.held.lock().get(key).filter(|(until, _)| *until > Instant::now()).map(|(_, v)| v.clone())
    }

    pub fn put(&self, key: String, value: T, lasts: Duration) {
        if lasts.is_zero() {
            return;
        }
        let mut held = self.held.lock();
        if held.len() >= REMEMBERED {
            let now = Instant::now();
            held.retain(|_, (until, _)| *until > now);
            if held.len() >= REMEMBERED {
                held.clear();
            }
        }
        held.insert(key, (Instant::now() + lasts, value));
    }
}
