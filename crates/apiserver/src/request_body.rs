//! Reads request bodies after authentication.
//!
//! Invariant: no byte of a body is buffered before the user's budget ([`crate::budget`]) has granted it, and a body
//! that arrives too slowly is aborted.

use crate::audit;
use crate::budget::{Budget, Share};
use crate::content::MAX_BODY;
use crate::deadline;
use bytes::Bytes;
use http::request::Parts;
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use meta::Status;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Budget for bodies of all users, and of one, until the response is sent.
pub(crate) const TOTAL: usize = 256 << 20;
pub(crate) const PER_USER: usize = 32 << 20;

/// A larger request head is charged to the budget.
pub(crate) const LARGE_HEAD: usize = 8 << 10;
/// Budget for large heads before authentication: of all addresses, and of one.
pub(crate) const HEADS: usize = 64 << 20;
pub(crate) const HEADS_PER_ADDRESS: usize = 16 << 20;

/// The approximate size of the request line and headers.
pub(crate) fn head_size(parts: &Parts) -> usize {
    let headers: usize = parts.headers.iter().map(|(k, v)| k.as_str().len() + v.len() + 32).sum();
    headers + parts.uri.path_and_query().map_or(0, |p| p.as_str().len())
}

/// Waits for budget for a large head before authentication, by address.
pub(crate) async fn room_for_head(heads: &Budget, parts: &Parts, head: usize) -> Result<Option<Share>, Status> {
    let Some(audit::Address(address)) = parts.extensions.get::<audit::Address>().filter(|_| head > LARGE_HEAD) else {
        return Ok(None);
    };
    let share = heads.take(&address.to_string(), head, Duration::ZERO).await;
    share.map(Some).ok_or_else(|| {
        Status::too_many_requests("too many bytes of request headers are being read from this address", 1)
    })
}

/// How long a request waits for budget.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time limit of every body; large ones get additional time for a slow connection.
const GRACE: Duration = Duration::from_secs(10);
const BYTES_PER_SECOND: f64 = 64.0 * 1024.0;
/// Budget granted at a time to a body without `Content-Length`.
const STEP: usize = 64 * 1024;
/// Maximum number of bytes read and discarded from a rejected request, so that its client reads the response (as Go's
/// server does).
const DISCARDED: usize = 256 * 1024;
const DISCARDING: Duration = Duration::from_secs(2);

pub(crate) enum RequestBody {
    /// The body of an in-process request.
    Whole(Bytes),
    Socket(Incoming),
}

/// A body with its share of the budget.
pub(crate) type ChargedBody = (Bytes, Vec<Share>);

pub(crate) fn too_large() -> Status {
    Status::too_large(format!("Request entity too large: limit is {MAX_BODY}"))
}

fn no_budget() -> Status {
    Status::too_many_requests("too many bytes of request bodies are being read for this user", 1)
}

impl RequestBody {
    /// Reads the body of an authenticated user's request. `head` is the size of the request head, which is charged
    /// too.
    pub async fn read(self, bodies: &Budget, user: &str, head: usize) -> Result<ChargedBody, Status> {
        let body = match self {
            Self::Whole(bytes) if bytes.len() > MAX_BODY => return Err(too_large()),
            Self::Whole(bytes) => return Ok((bytes, Vec::new())),
            Self::Socket(body) => body,
        };
        let mut reading = Reading { bodies, user, shares: Vec::new(), granted: 0 };
        if head > LARGE_HEAD {
            // Nothing waits while holding a large head.
            reading.grant(head, Duration::ZERO).await?;
            reading.granted = 0;
        }
        if body.is_end_stream() {
            return Ok((Bytes::new(), reading.shares));
        }
        let declared = body.size_hint().exact().map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        if declared.is_some_and(|n| n > MAX_BODY) {
            discard(body, MAX_BODY, GRACE).await;
            return Err(too_large());
        }
        reading.grant(declared.unwrap_or(STEP), PATIENCE).await?;
        reading.run(body, declared).await.map(|bytes| (bytes, reading.shares))
    }

    /// Discards the body of a rejected request, within limits, unless its head is large.
    pub async fn discard(self, head: usize) {
        if let Self::Socket(body) = self
            && !body.is_end_stream()
            && head <= LARGE_HEAD
        {
            discard(body, DISCARDED, DISCARDING).await;
        }
    }
}

async fn discard(mut body: Incoming, most: usize, time: Duration) {
    let mut seen = 0;
    let all = async {
        while let Some(Ok(frame)) = body.frame().await {
            seen += frame.data_ref().map_or(0, Bytes::len);
            if seen > most {
                return;
            }
        }
    };
    let _ = tokio::time::timeout(time, all).await;
}

struct Reading<'a> {
    bodies: &'a Budget,
    user: &'a str,
    shares: Vec<Share>,
    granted: usize,
}

impl Reading<'_> {
    async fn grant(&mut self, bytes: usize, patience: Duration) -> Result<(), Status> {
        let share = self.bodies.take(self.user, bytes, patience).await.ok_or_else(no_budget)?;
        self.shares.push(share);
        self.granted += bytes;
        Ok(())
    }

    async fn run(&mut self, mut body: Incoming, declared: Option<usize>) -> Result<Bytes, Status> {
        let begun = Instant::now();
        let mut first = Bytes::new();
        let mut all: Vec<u8> = Vec::new();
        let mut length = 0;
        loop {
            let due = begun + GRACE + Duration::from_secs_f64(length as f64 / BYTES_PER_SECOND);
            let Ok(frame) = timeout_at(due, body.frame()).await else { return Err(deadline::passed()) };
            let frame = match frame {
                None => break,
                Some(Ok(f)) => f,
                Some(Err(e)) => return Err(Status::bad_request(format!("reading the body: {e}"))),
            };
            let Ok(data) = frame.into_data() else { continue };
            length += data.len();
            if length > MAX_BODY {
                drop((first, all));
                discard(body, DISCARDED, DISCARDING).await;
                return Err(too_large());
            }
            while length > self.granted {
                self.grant(self.granted.min(MAX_BODY), PATIENCE).await?;
            }
            // Most bodies arrive in one piece, which is not copied.
            if length == data.len() {
                first = data;
                continue;
            }
            if all.is_empty() {
                all.reserve(declared.unwrap_or(length).min(STEP.max(length)));
                all.extend_from_slice(&std::mem::take(&mut first));
            }
            all.extend_from_slice(&data);
        }
        Ok(if all.is_empty() { first } else { all.into() })
    }
}
