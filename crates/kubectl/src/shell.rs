//! What a command has around it: streams, environment, time and chance. All of it is given, so that tests give their own.

use client::{Client, program};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use meta::{Clock, Rng};
use std::io::{Read, Write};
use std::process::{Command, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// A stream that several may write to: commands and the printer of warnings.
#[derive(Clone)]
pub struct Stream {
    writer: Arc<Mutex<Box<dyn Write + Send>>>,
    /// Whether the reader of the pipe is gone.
    broken: Arc<watch::Sender<bool>>,
}

impl Stream {
    pub fn new(w: impl Write + Send + 'static) -> Self {
        Self { writer: Arc::new(Mutex::new(Box::new(w))), broken: Arc::new(watch::Sender::new(false)) }
    }

    fn lock(&self) -> MutexGuard<'_, Box<dyn Write + Send>> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes as it is. A reader that is gone (`kubectl get pods | head -1`) is no error here: it ends the command.
    pub fn write(&self, bytes: &[u8]) {
        let written = self.lock().write_all(bytes);
        self.check(written);
    }

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

/// How a command gets to the server.
pub enum Connect {
    /// As kubeconfig and flags say.
    Configured,
    Given(Client),
}

pub struct Shell {
    pub out: Stream,
    pub err: Stream,
    pub input: Box<dyn Read + Send>,
    pub environment: Box<dyn Fn(&str) -> Option<String> + Send + Sync>,
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
    /// The time zone of the log.
    pub zone: TimeZone,
    pub connect: Connect,
    /// Whether a program that a command starts (a pager, an editor) gets the process's own streams; if not, what it says is
    /// copied to `out` and `err`.
    pub terminal: bool,
}

/// Does what may take for ever, until it is done or a signal asks for the end. Then the command ends with 1 and says nothing, as
/// upstream's does while it watches (`k8s.io/kubectl/pkg/util/interrupt`).
pub async fn interruptible<T>(work: impl Future<Output = crate::error::Result<T>>) -> crate::error::Result<T> {
    tokio::select! {
        done = work => done,
        () = interrupted() => Err(crate::error::Error::Exit(1)),
    }
}

/// Returns once a signal asks for the end of this program.
async fn interrupted() {
    use tokio::signal::unix::{SignalKind, signal};
    let all = [SignalKind::hangup(), SignalKind::interrupt(), SignalKind::quit(), SignalKind::terminate()];
    let caught: Vec<_> = all.into_iter().filter_map(|kind| signal(kind).ok()).collect();
    if caught.is_empty() {
        // Signals have their usual effect.
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
        // The kernel's device never fails once it is open; without it nothing secret is made here, only masks of frames.
        if let Ok(mut f) = std::fs::File::open("/dev/urandom") {
            let _ = f.read_exact(buffer);
        }
    }
}

/// The time zone that `TZ` names, or else that of the machine; UTC when there is none, as Go has it.
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
    /// The process's own.
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

    /// Runs a program to its end. As in Go, one that `PATH` has only relative to the current directory is not run.
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
    fn the_time_zone_is_that_of_the_environment() {
        let none = std::path::Path::new("/nowhere");
        let hour = |name: Option<&str>| {
            let noon: Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
            noon.to_zoned(zone(name, none)).hour()
        };
        for (name, want) in
            [(None, 12), (Some(""), 12), (Some("Asia/Tokyo"), 21), (Some(":Asia/Tokyo"), 21), (Some("No/Where"), 12)]
        {
            assert_eq!(hour(name), want, "{name:?}");
        }
    }
}
