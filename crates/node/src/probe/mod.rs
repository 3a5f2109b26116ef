//! One attempt of a probe or a hook: exec, HTTP, TCP or gRPC. Messages of failures are upstream's.
//!
//! Sockets are made in the node's network namespace, from which pods are reached.

mod grpc;
mod http;
mod target;
mod url;

use std::time::Duration;

use k8s_openapi::api::core::v1::{ExecAction, GRPCAction, HTTPGetAction, TCPSocketAction};

pub use self::http::Purpose;
use self::target::{MAX_OUTPUT, Outcome};
pub use self::target::{Names, Target};

/// The result of a probe or hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attempt {
    Success,
    /// A success with a warning for the pod's events.
    Warning(String),
    Failure(String),
}

impl Attempt {
    /// Whether it counts as a success.
    pub fn is_good(&self) -> bool {
        !matches!(self, Self::Failure(_))
    }
}

/// What a probe or hook does.
pub enum Action<'a> {
    Exec(&'a ExecAction),
    Http(&'a HTTPGetAction, Purpose),
    Tcp(&'a TCPSocketAction),
    Grpc(&'a GRPCAction),
}

impl Target<'_> {
    /// Runs `action` once. A failure carries its message.
    pub async fn attempt(&self, action: &Action<'_>, timeout: Duration) -> Attempt {
        let result = match action {
            Action::Exec(a) => self.exec(a, timeout).await.map(|()| Outcome::Success),
            Action::Http(a, purpose) => http::get(self, a, *purpose, timeout).await,
            Action::Tcp(a) => self.tcp(a, timeout).await.map(|()| Outcome::Success),
            Action::Grpc(a) => grpc::check(self, a, timeout).await.map(|()| Outcome::Success),
        };
        match result {
            Ok(Outcome::Success) => Attempt::Success,
            Ok(Outcome::Warning(message)) => Attempt::Warning(message),
            Err(message) => Attempt::Failure(message),
        }
    }

    async fn exec(&self, a: &ExecAction, timeout: Duration) -> Result<(), String> {
        let command = a.command.clone().unwrap_or_default();
        match self.runtime.exec_sync(self.container_id, command.clone(), Some(timeout), MAX_OUTPUT as u64).await {
            Ok(r) if r.exit_code == 0 => Ok(()),
            Ok(r) => {
                let mut out = String::from_utf8_lossy(&r.stdout).into_owned();
                out.push_str(&String::from_utf8_lossy(&r.stderr));
                truncate(&mut out);
                Err(out)
            }
            Err(runtime::Error::Timeout { .. }) => {
                let secs = timeout.as_secs();
                Err(format!("command timed out: \"{}\" timed out after {secs}s", command.join(" ")))
            }
            Err(e) => Err(e.to_string()),
        }
    }

    async fn tcp(&self, a: &TCPSocketAction, timeout: Duration) -> Result<(), String> {
        let port = self.port(&a.port)?;
        let host = self.host(a.host.as_deref())?;
        let work = async { self.connect(&host, port).await.map(drop) };
        match tokio::time::timeout(timeout, work).await {
            Ok(r) => r,
            Err(_) => Err(format!("dial tcp {host}:{port}: i/o timeout")),
        }
    }
}

/// Cuts `out` to [`MAX_OUTPUT`] bytes.
fn truncate(out: &mut String) {
    if out.len() > MAX_OUTPUT {
        let cut = (0..=MAX_OUTPUT).rev().find(|i| out.is_char_boundary(*i)).unwrap_or(0);
        out.truncate(cut);
    }
}
