//! Many connections that send the same kind of request, one after the other each, for a while.

use crate::context::Context;
use crate::{Error, Row};
use bytes::Bytes;
use client::https::Dedicated;
use http::Request;
use http_body_util::BodyExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

/// Number of errors after which a worker stops.
const ENOUGH: u64 = 20;
/// The timeout of an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// The limits of a load.
pub struct Load {
    pub connections: usize,
    pub count: u64,
    pub duration: Duration,
}

/// The result of a load.
#[derive(Default)]
pub struct Samples {
    /// Latencies of successful answers.
    pub times: Vec<Duration>,
    pub elapsed: Duration,
    pub errors: u64,
    pub first_error: Option<String>,
}

impl Samples {
    fn error(&mut self, what: String) {
        self.errors += 1;
        self.first_error.get_or_insert(what);
    }

    fn join(&mut self, other: Self) {
        self.times.extend(other.times);
        self.errors += other.errors;
        if self.first_error.is_none() {
            self.first_error = other.first_error;
        }
    }

    pub fn row(self, name: &str) -> Row {
        Row::times(name, self.times).with_rate(self.elapsed).with_errors(self.errors, self.first_error)
    }
}

/// A request: its worker, and its index.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    pub worker: u64,
    pub number: u64,
}

/// Opens the connections, and then sends the requests of `make` until the count or the time is reached.
pub async fn drive<F>(cx: &Context, load: &Load, make: F) -> Result<Samples, Error>
where
    F: Fn(Turn) -> Result<Request<Bytes>, Error> + Send + Sync + 'static,
{
    let target = cx.target()?;
    let workers = load.connections.min(usize::try_from(load.count).unwrap_or(usize::MAX));
    let mut connections = Vec::with_capacity(workers);
    for _ in 0..workers {
        connections.push(target.connect().await?);
    }
    let shared = Arc::new((make, AtomicU64::new(0)));
    let (count, started) = (load.count, Instant::now());
    let end = started + load.duration;
    let mut tasks = JoinSet::new();
    for (worker, mut connection) in connections.into_iter().enumerate() {
        let (shared, target) = (shared.clone(), target.clone());
        tasks.spawn(async move {
            let mut samples = Samples::default();
            let (make, sent) = &*shared;
            for number in 0.. {
                if samples.errors >= ENOUGH || Instant::now() >= end || sent.fetch_add(1, Ordering::Relaxed) >= count {
                    break;
                }
                let request = match make(Turn { worker: worker as u64, number }) {
                    Ok(r) => r,
                    Err(e) => {
                        samples.error(e.to_string());
                        break;
                    }
                };
                let at = Instant::now();
                match answer(&mut connection, request).await {
                    Ok(_) => samples.times.push(at.elapsed()),
                    Err(e) => {
                        samples.error(e.to_string());
                        // A closed connection is opened again, and counts as one error.
                        if !matches!(e, Error::Answer(_)) {
                            match target.connect().await {
                                Ok(c) => connection = c,
                                Err(_) => break,
                            }
                        }
                    }
                }
            }
            samples
        });
    }
    let mut all = Samples::default();
    let work = async {
        while let Some(done) = tasks.join_next().await {
            match done {
                Ok(s) => all.join(s),
                Err(e) => all.error(e.to_string()),
            }
        }
    };
    let late = timeout(load.duration + PATIENCE, work).await.is_err();
    all.elapsed = started.elapsed();
    if late {
        all.error(format!("answers did not come within {PATIENCE:?}"));
    }
    Ok(all)
}

/// Sends a request, reads the answer to its end, and returns its length. An unsuccessful answer is an error with its message.
pub async fn answer(connection: &mut Dedicated, request: Request<Bytes>) -> Result<u64, Error> {
    let response = connection.send(request).await?;
    let code = response.status();
    let mut body = response.into_body();
    let (mut length, mut text) = (0, Vec::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| client::Error::Body(e.into()))?;
        if let Some(data) = frame.data_ref() {
            length += data.len() as u64;
            if !code.is_success() && text.len() < 1024 {
                text.extend_from_slice(data);
            }
        }
    }
    if code.is_success() { Ok(length) } else { Err(Error::Answer(refusal(code.as_u16(), &text))) }
}

/// The message of a `Status`, or the body.
fn refusal(code: u16, body: &[u8]) -> String {
    let status: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let text = String::from_utf8_lossy(body);
    format!("{code}: {}", status["message"].as_str().unwrap_or(&text))
}
