//! The surroundings of a command: streams, environment, clock and random numbers. Tests pass their own.

use client::{Client, program};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use meta::{Clock, Rng};
use std::io::{Read, Write};
use std::process::{Command, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// An output stream that commands and the printer of warnings share.
#[derive(Clone)]
pub struct Stream {
    writer: Arc<Mutex<Box<dyn Write + Send>>>,
    /// Whether the pipe has no reader any more.
    broken: Arc<watch::Sender<bool>>,
}

impl Stream {
    pub fn new(w: impl Write + Send + 'static) -> Self {
        Self { writer: Arc::new(Mutex::new(Box::new(w))), broken: Arc::new(watch::Sender::new(false)) }
    }

    fn lock(&self) -> MutexGuard<'_, Box<dyn Write + Send>> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the bytes unchanged. A pipe without a reader (`kubectl get pods | head -1`) is no error here: it ends the
    /// command.
    pub fn write(&self, bytes: &[u8]) {
        let written = self.lock().write_all(bytes);
        self.check(written);
    }

    /// Flushes the stream.
    pub fn flush(&self) {
        let flushed = self.lock().flush();
        self.check(flushed);
    }

    fn check(&self, result: std::io::Result<()>) {
        if result.is_err_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe) {
            self.broken.send_replace(true);
        }
    }

    /// Whether a write has found a pipe without a reader.
    pub fn is_broken(&self) -> bool {
        *self.broken.borrow()
    }

    /// Returns once a write has found a pipe without a reader.
    pub async fn broken(&self) {
        let mut broken = self.broken.subscribe();
        // The sender lives as long as `self`.
        let _ = broken.wait_for(|b| *b).await;
    }
}

/// How a command connects to the server.
pub enum Connect {
    /// As kubeconfig and flags specify.
    Configured,
    Given(Client),
}

/// The surroundings of a command.
pub struct Shell {
    pub out: Stream,
    pub err: Stream,
    pub input: Box<dyn Read + Send>,
    pub environment: Box<dyn Fn(&str) -> Option<String> + Send + Sync>,
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
    /// The time zone of log lines.
    pub zone: TimeZone,
    pub connect: Connect,
    /// Whether a program that a command starts (a pager, an editor) inherits the streams of the process. If not, its output
    /// is copied to `out` and `err`.
    pub terminal: bool,
}

/// Does work that may take forever, until it is done or a signal requests the end. Then the command exits with 1 and prints
/// nothing, as upstream does while it watches (`k8s.io/kubectl/pkg/util/interrupt`).
pub async fn interruptible<T>(work: impl Future<Output = crate::error::Result<T>>) -> crate::error::Result<T> {
    tokio::select! {
        done = work => done,
        () = interrupted() => Err(crate::error::Error::Exit(1)),
    }
}

/// Returns once a signal requests the end of this program.
async fn interrupted() {
    use tokio::signal::unix::{SignalKind, signal};
    let all = [SignalKind::hangup(), SignalKind::interrupt(), SignalKind::quit(), SignalKind::terminate()];
    let caught: Vec<_> = all.into_iter().filter_map(|kind| signal(kind).ok()).collect();
    if caught.is_empty() {
        // Without handlers signals keep their default effect.
        return std::future::pending().await;
    }
    let each = caught.into_iter().map(|mut s| Box::pin(async move { s.recv().await }));
    futures::future::select_all(each).await;
}

struct System;

impl Clock for System {
    #[allow(clippy::disallowed_methods)] // The edge: where the wall clock comes in.
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

impl Rng for System {
    fn next_u64(&self) -> u64 {
        let mut b = [0u8; 8];
        self.fill(&mut b);
        u64::from_le_bytes(b)
    }

    fn fill(&self, buffer: &mut [u8]) {
        // The device never fails once it is open. Without it only masks of frames are predictable; no secrets are made
        // here.
        if let Ok(mut f) = std::fs::File::open("/dev/urandom") {
            let _ = f.read_exact(buffer);
        }
    }
}

/// Returns the time zone that `TZ` names, or else that of the machine; UTC if there is none, as in Go.
fn zone(named: Option<&str>, machine: &std::path::Path) -> TimeZone {
    let file = |path: &std::path::Path| TimeZone::tzif("Local", &std::fs::read(path).ok()?).ok();
    let found = match named.map(|n| n.trim_start_matches(':')) {
        None => file(machine),
        Some("") => None,
        Some(path) if path.starts_with('/') => file(std::path::Path::new(path)),
        Some(name) => TimeZone::get(name).ok(),
    };
    found.unwrap_or(TimeZone::UTC)
}

impl Shell {
    /// Returns the surroundings of this process.
    pub fn process() -> Self {
        Self {
            out: Stream::new(std::io::BufWriter::new(std::io::stdout())),
            err: Stream::new(std::io::stderr()),
            input: Box::new(std::io::stdin()),
            environment: Box::new(|n| std::env::var(n).ok()),
            clock: Arc::new(System),
            rng: Arc::new(System),
            zone: zone(std::env::var("TZ").ok().as_deref(), std::path::Path::new("/etc/localtime")),
            connect: Connect::Configured,
            terminal: true,
        }
    }

    /// Runs a program to its end. As in Go, a program that `PATH` contains only relative to the current directory is not
    /// run.
    pub fn status(&self, program: &mut Command) -> std::io::Result<ExitStatus> {
        let name = program.get_program().to_string_lossy().into_owned();
        let path = (self.environment)("PATH").map(std::ffi::OsString::from);
        if let Err(e @ program::Error::Relative(_)) = program::look_path(&name, path.as_deref()) {
            return Err(std::io::Error::other(e));
        }
        self.out.flush();
        if self.terminal {
            return program.status();
        }
        let o = program.stdin(std::process::Stdio::null()).output()?;
        self.out.write(&o.stdout);
        self.err.write(&o.stderr);
        Ok(o.status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_zone_comes_from_the_environment() {
        let none = std::path::Path::new("/nowhere");
        let hour = |name: Option<&str>| {
            let noon: Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
            noon.to_zoned(zone(name, none)).hour()
        };
        for (name, expected) in
            [(None, 12), (Some(""), 12), (Some("Asia/Tokyo"), 21), (Some(":Asia/Tokyo"), 21), (Some("No/Where"), 12)]
        {
            assert_eq!(hour(name), expected, "{name:?}");
        }
    }
}
