//! A transport with the credentials of an exec plugin, which it renews when they expire or are refused
//! (`k8s.io/client-go/plugin/pkg/client/auth/exec`).

use super::exec::Exec;
use crate::error::Error;
use crate::https::{Config, Https};
use crate::transport::{Body, Transport, Upgrade};
use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use jiff::Timestamp;
use meta::Clock;
use std::sync::Arc;
use tokio::sync::Mutex;

/// Runs the plugin for the first request, when its credentials have expired, and after the server rejected them: the caller gets that
/// `401`, and the next request uses new credentials.
pub(super) struct ExecTransport {
    /// Has no credentials.
    base: Config,
    program: Exec,
    clock: Arc<dyn Clock>,
    host: String,
    /// Locked while the plugin runs; all waiting requests use its result.
    held: Mutex<Option<Held>>,
}

struct Held {
    https: Arc<Https>,
    until: Option<Timestamp>,
}

impl ExecTransport {
    /// Runs the plugin for the first time, so that its errors are reported at once.
    pub async fn open(base: Config, program: Exec, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        let host = Https::new(&base)?.host().to_owned();
        let this = Self { base, program, clock, host, held: Mutex::default() };
        this.current().await?;
        Ok(this)
    }

    async fn current(&self) -> Result<Arc<Https>, Error> {
        let mut held = self.held.lock().await;
        if let Some(h) = held.as_ref().filter(|h| h.until.is_none_or(|t| self.clock.now() <= t)) {
            return Ok(h.https.clone());
        }
        let mut config = self.base.clone();
        let until = self.program.apply(&mut config).await?;
        let https = Arc::new(Https::new(&config)?);
        *held = Some(Held { https: https.clone(), until });
        Ok(https)
    }

    /// Drops rejected credentials, unless they have been replaced already.
    async fn answered(&self, by: &Arc<Https>, code: StatusCode) {
        if code == StatusCode::UNAUTHORIZED {
            let mut held = self.held.lock().await;
            if held.as_ref().is_some_and(|h| Arc::ptr_eq(&h.https, by)) {
                *held = None;
            }
        }
    }
}

#[async_trait]
impl Transport for ExecTransport {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Body>, Error> {
        let https = self.current().await?;
        let answer = https.send(request).await?;
        self.answered(&https, answer.status()).await;
        Ok(answer)
    }

    fn host(&self) -> &str {
        &self.host
    }

    async fn upgrade(&self, request: Request<Bytes>) -> Result<Upgrade, Error> {
        let https = self.current().await?;
        let answer = https.upgrade(request).await?;
        if let Upgrade::Refused(r) = &answer {
            self.answered(&https, r.status()).await;
        }
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::sync::atomic::{AtomicI64, Ordering};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    struct Hands(AtomicI64);

    impl Clock for Hands {
        fn now(&self) -> Timestamp {
            Timestamp::from_second(self.0.load(Ordering::Relaxed)).unwrap()
        }
    }

    /// Answers with the token of the request, and with 401 if it is `refused`.
    async fn server(refused: &'static str) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                tokio::spawn(async move {
                    let mut read = vec![0; 4096];
                    while let Ok(n @ 1..) = stream.read(&mut read).await {
                        let head = String::from_utf8_lossy(&read[..n]).into_owned();
                        let token = head.lines().find_map(|l| l.split_once("Bearer ")).map_or("", |(_, t)| t);
                        let code = if token == refused { "401 Unauthorized" } else { "200 OK" };
                        let answer = format!("HTTP/1.1 {code}\r\ncontent-length: {}\r\n\r\n{token}", token.len());
                        stream.write_all(answer.as_bytes()).await.unwrap();
                    }
                });
            }
        });
        format!("http://{address}/")
    }

    /// A plugin whose token is the number of its runs, each valid for ten seconds of the clock's first minute.
    #[tokio::test]
    async fn credentials_are_renewed_when_they_expire_or_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let script = "echo x >> runs; n=$(wc -l < runs); printf '{\"apiVersion\":\"client.authentication.k8s.io/v1\",\
            \"status\":{\"token\":\"t%s\",\"expirationTimestamp\":\"1970-01-01T00:00:%s0Z\"}}' $n $n";
        let script = format!("cd {}; {script}", directory.path().display());
        let version = "client.authentication.k8s.io/v1";
        let exec = json!({"apiVersion": version, "command": "sh", "args": ["-c", script], "interactiveMode": "Never"});
        // Built by hand: a kubeconfig sends no credentials without TLS.
        let program: Exec = serde_json::from_value(exec).unwrap();
        let hands = Arc::new(Hands(AtomicI64::new(0)));
        let transport = ExecTransport::open(Config::new(server("t3").await), program, hands.clone()).await.unwrap();
        let get = async || {
            let answer = transport.send(Request::get("/").body(Bytes::new()).unwrap()).await.unwrap();
            let code = answer.status().as_u16();
            let text = http_body_util::BodyExt::collect(answer.into_body()).await.unwrap().to_bytes();
            (code, String::from_utf8(text.to_vec()).unwrap())
        };
        let want = |code: u16, token: &str| (code, token.to_owned());
        assert_eq!(get().await, want(200, "t1"));
        hands.0.store(10, Ordering::Relaxed);
        assert_eq!(get().await, want(200, "t1"), "the token is still valid");
        hands.0.store(11, Ordering::Relaxed);
        assert_eq!(get().await, want(200, "t2"), "the token has expired");
        hands.0.store(21, Ordering::Relaxed);
        assert_eq!(get().await, want(401, "t3"), "the caller gets the rejection");
        assert_eq!(get().await, want(200, "t4"), "the next request uses new credentials");
        assert_eq!(get().await, want(200, "t4"));
        assert_eq!(std::fs::read_to_string(directory.path().join("runs")).unwrap().lines().count(), 4);
    }
}
