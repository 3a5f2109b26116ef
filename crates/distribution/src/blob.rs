//! Downloads of blobs to files, verified while they arrive and resumed when the connection breaks.

use std::path::Path;
use std::time::Duration;

use aws_lc_rs::digest::{Context, SHA256, digest};
use client::Body;
use http::header::{CONTENT_RANGE, HeaderMap, RANGE};
use http::{Response, StatusCode};
use http_body_util::BodyExt;
use tokio::fs::File;
use tokio::io::{AsyncSeekExt, AsyncWriteExt};
use tokio::time::{Instant, sleep, timeout_at};

use crate::account::Reservation;
use crate::error::Error;
use crate::manifest::Descriptor;
use crate::pace::Pace;
use crate::puller::Limits;
use crate::session::{Session, single};

/// `sha256:…` of the bytes.
pub(crate) fn digest_of(bytes: &[u8]) -> String {
    shown(digest(&SHA256, bytes).as_ref())
}

fn shown(hash: &[u8]) -> String {
    let hex: String = hash.iter().map(|b| format!("{b:02x}")).collect();
    format!("sha256:{hex}")
}

/// A blob that is partly on the disk.
struct Partial<'a> {
    file: File,
    hash: Context,
    written: u64,
    /// The most that was written at a time.
    furthest: u64,
    /// How often a server ignored what was written, and started again.
    restarts: u32,
    pace: Pace,
    reservation: &'a Reservation,
}

impl Partial<'_> {
    /// Starts again from the first byte.
    async fn clear(&mut self) -> std::io::Result<()> {
        self.file.flush().await?;
        self.file.set_len(0).await?;
        self.file.rewind().await?;
        self.hash = Context::new(&SHA256);
        self.reservation.rewrite(self.written);
        self.written = 0;
        Ok(())
    }
}

/// Downloads a blob to `path`, within the room of a reservation and the progress that limits require.
pub(crate) async fn download(
    session: &Session<'_>,
    blob: &Descriptor,
    path: &Path,
    limits: &Limits,
    reservation: &Reservation,
) -> Result<(), Error> {
    let failed = || Error::file(path.display().to_string());
    let file = File::create(path).await.map_err(failed())?;
    let (hash, pace) = (Context::new(&SHA256), Pace::start(limits));
    let mut partial = Partial { file, hash, written: 0, furthest: 0, restarts: 0, pace, reservation };
    let (mut failures, mut delay) = (0, limits.retry_delay);
    loop {
        let before = partial.furthest;
        let error = match transfer(session, blob, &mut partial, limits, path).await {
            Ok(()) => break,
            Err(error) => error,
        };
        if partial.furthest >= before + limits.progress {
            (failures, delay) = (0, limits.retry_delay);
        }
        failures += 1;
        let can_resume = error.is_transient() || matches!(error, Error::Stalled { .. });
        if !can_resume || failures >= limits.tries {
            return Err(error);
        }
        partial.pace.check(session.host(), partial.furthest)?;
        tracing::debug!(blob = blob.digest, at = partial.written, %error, "resuming the download of a layer");
        sleep(delay).await;
        delay *= 2;
    }
    partial.file.flush().await.map_err(failed())?;
    let found = shown(partial.hash.finish().as_ref());
    if found != blob.digest {
        return Err(Error::Digest { what: blob.digest.clone(), found });
    }
    Ok(())
}

/// Downloads what is missing of a blob in one response.
async fn transfer(
    session: &Session<'_>,
    blob: &Descriptor,
    partial: &mut Partial<'_>,
    limits: &Limits,
    path: &Path,
) -> Result<(), Error> {
    let failed = || Error::file(path.display().to_string());
    if partial.written == blob.size && blob.size > 0 {
        return Ok(());
    }
    let headers = match partial.written {
        0 => HeaderMap::new(),
        written => single(RANGE, &format!("bytes={written}-")),
    };
    let response = session.get_once(&format!("blobs/{}", blob.digest), &headers).await?;
    if !continues(&response, partial.written) {
        if partial.written > 0 {
            partial.restarts += 1;
        }
        if partial.restarts >= limits.tries {
            return Err(Error::Restarts { host: session.host().to_owned(), times: partial.restarts });
        }
        partial.clear().await.map_err(failed())?;
    }
    let mut body = Arriving::new(response.into_body(), session, limits);
    while let Some(data) = body.next().await? {
        let total = partial.written + data.len() as u64;
        if total > blob.size {
            return Err(Error::Size { what: blob.digest.clone(), found: total, expected: blob.size });
        }
        partial.reservation.write(data.len() as u64)?;
        partial.file.write_all(&data).await.map_err(failed())?;
        partial.hash.update(&data);
        partial.written = total;
        partial.furthest = partial.furthest.max(total);
        partial.pace.check(session.host(), partial.furthest)?;
    }
    if partial.written < blob.size {
        return Err(Error::Size { what: blob.digest.clone(), found: partial.written, expected: blob.size });
    }
    Ok(())
}

/// Whether the response continues at this byte.
fn continues(response: &Response<Body>, at: u64) -> bool {
    if at == 0 || response.status() != StatusCode::PARTIAL_CONTENT {
        return at == 0 && response.status() == StatusCode::OK;
    }
    let range = response.headers().get(CONTENT_RANGE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let start = range.strip_prefix("bytes ").and_then(|r| r.split('-').next()).and_then(|n| n.parse().ok());
    start == Some(at)
}

/// A body that fails when too little of it arrives.
struct Arriving<'a> {
    body: Body,
    host: &'a str,
    limits: &'a Limits,
    /// The end of the current period, and what has arrived in it.
    deadline: Instant,
    arrived: u64,
}

impl<'a> Arriving<'a> {
    fn new(body: Body, session: &'a Session<'_>, limits: &'a Limits) -> Self {
        Self { body, host: session.host(), limits, deadline: Instant::now() + limits.stall, arrived: 0 }
    }

    async fn next(&mut self) -> Result<Option<bytes::Bytes>, Error> {
        loop {
            let frame = match timeout_at(self.deadline, self.body.frame()).await {
                Ok(None) => return Ok(None),
                Ok(Some(Ok(frame))) => frame,
                Ok(Some(Err(source))) => return Err(Error::Broken { host: self.host.to_owned(), source }),
                Err(_) => return Err(self.stalled(self.limits.stall)),
            };
            let Ok(data) = frame.into_data() else { continue };
            self.arrived += data.len() as u64;
            let now = Instant::now();
            if self.arrived >= self.limits.progress {
                self.deadline = now + self.limits.stall;
                self.arrived = 0;
            } else if now >= self.deadline {
                return Err(self.stalled(self.limits.stall));
            }
            return Ok(Some(data));
        }
    }

    fn stalled(&self, limit: Duration) -> Error {
        Error::Stalled { host: self.host.to_owned(), what: "downloading a layer", limit }
    }
}
