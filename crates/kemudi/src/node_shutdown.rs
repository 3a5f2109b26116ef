//! Graceful shutdown of a node: `kemudi node shutdown` sends SIGPWR to the process of the node, which ends the pods and then itself.

use crate::down::{self, is_running};
use crate::output::note;
use crate::signals::Stop;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{self, SignalKind, signal};

/// Requests to shut the node down. They are kept from the moment when this is created.
pub struct Requests(unix::Signal);

impl Requests {
    /// Begins to listen. Must be called within a tokio runtime.
    pub fn listen() -> io::Result<Self> {
        signal(SignalKind::from_raw(Signal::SIGPWR as i32)).map(Self)
    }

    /// Waits for the next request.
    pub async fn received(&mut self) {
        if self.0.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}

/// Ends the pods of a node. A signal to stop ends the wait for them.
pub async fn carry_out(node: &node::Handle, signals: &mut Stop) {
    note!("the node shuts down: its pods end");
    tokio::select! {
        () = node.shut_down() => note!("the pods of the node have ended"),
        () = signals.requested() => note!("stopping before all pods of the node have ended"),
    }
}

/// Shuts down the node whose process has this data directory, and waits for its end.
pub fn main(data_dir: &Path) -> ExitCode {
    const PAUSE: Duration = Duration::from_millis(100);
    let Some(pid) = down::running(data_dir) else {
        note!("error: no node runs on {}", data_dir.display());
        return ExitCode::FAILURE;
    };
    if let Err(error) = kill(Pid::from_raw(pid), Signal::SIGPWR) {
        note!("error: sending the process {pid} a signal: {error}");
        return ExitCode::FAILURE;
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => {
            note!("error: starting the runtime: {e}");
            return ExitCode::FAILURE;
        }
    };
    runtime.block_on(async {
        while is_running(pid) {
            tokio::time::sleep(PAUSE).await;
        }
    });
    ExitCode::SUCCESS
}
