//! A command line of kubectl in this process, over a transport that fails once, or from some request on.

use async_trait::async_trait;
use bytes::Bytes;
use client::{Body, Client, Error, InProcess, Transport};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use kemudi_testkit::{Cluster, SeededRng, VirtualClock};
use kubectl::Shell;
use kubectl::shell::{Connect, Stream};
use serde_json::json;
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No connection: the server never hears of it.
    Unreached,
    /// The server does it, and its answer is lost.
    Lost,
    /// The server does it, and says that it had no time.
    TimedOut,
    /// The server refuses it.
    Forbidden,
    /// From this request on nobody is in reach.
    Gone,
}

pub const FAULTS: [Fault; 5] = [Fault::Unreached, Fault::Lost, Fault::TimedOut, Fault::Forbidden, Fault::Gone];

/// Counts requests besides discovery, and makes one fail.
struct Faulty<T> {
    server: T,
    count: Arc<AtomicUsize>,
    at: usize,
    fault: Fault,
}

fn broken() -> Box<dyn std::error::Error + Send + Sync> {
    "connection reset by peer".into()
}

fn status(code: u16, reason: &str) -> Response<Body> {
    let text = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code, "message": reason});
    let body = Full::new(Bytes::from(text.to_string())).map_err(|e| match e {}).boxed_unsync();
    Response::builder().status(code).header("content-type", "application/json").body(body).unwrap()
}

#[async_trait]
impl<T: Transport> Transport for Faulty<T> {
    async fn send(&self, r: Request<Bytes>) -> Result<Response<Body>, Error> {
        let path = r.uri().path();
        if matches!(path, "/api" | "/apis") || path.starts_with("/openapi") {
            return self.server.send(r).await;
        }
        let n = self.count.fetch_add(1, Ordering::SeqCst);
        if n != self.at && !(n > self.at && self.fault == Fault::Gone) {
            return self.server.send(r).await;
        }
        match self.fault {
            Fault::Unreached | Fault::Gone => Err(Error::Connect { to: "the server".into(), source: broken() }),
            Fault::Forbidden => Ok(status(403, "Forbidden")),
            Fault::Lost => {
                self.server.send(r).await?;
                Err(Error::Send(broken()))
            }
            Fault::TimedOut => {
                self.server.send(r).await?;
                Ok(status(504, "Timeout"))
            }
        }
    }
}

#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, b: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(b);
        Ok(b.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// What a command did.
pub struct Ran {
    pub code: u8,
    pub said: String,
    pub requests: usize,
}

/// Runs words of kubectl with this standard input. Request `at`, counted from 0, fails.
pub async fn run(cluster: &Cluster, line: &[&str], input: &str, at: usize, fault: Fault, tmp: &std::path::Path) -> Ran {
    let server = cluster.server.clone();
    let handler = move |request: Request<Bytes>| {
        let server = server.clone();
        async move { server.handle(kemudi_testkit::as_administrator(request)).await }
    };
    let count = Arc::new(AtomicUsize::new(0));
    let transport = Faulty { server: InProcess(handler), count: count.clone(), at, fault };
    let said = Sink::default();
    let tmp = tmp.display().to_string();
    let shell = Shell {
        out: Stream::new(said.clone()),
        err: Stream::new(said.clone()),
        input: Box::new(std::io::Cursor::new(input.as_bytes().to_vec())),
        environment: Box::new(move |name| (name == "TMPDIR").then(|| tmp.clone())),
        clock: VirtualClock::new(),
        rng: SeededRng::new(7),
        zone: jiff::tz::TimeZone::UTC,
        connect: Connect::Given(Client::new(transport, "kubectl")),
        terminal: false,
    };
    let words = std::iter::once("kubectl").chain(line.iter().copied()).map(Into::into).collect();
    let code = kubectl::run(words, shell).await;
    let said = String::from_utf8(said.0.lock().unwrap().clone()).unwrap();
    Ran { code, said, requests: count.load(Ordering::SeqCst) }
}
