//! Commands in containers, and their streams.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite};

use super::*;

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TerminalSize {
    /// The height.
    pub rows: u16,
    /// The width.
    pub columns: u16,
}

/// An output of a process.
pub type Reader = Box<dyn AsyncRead + Send + Unpin>;
/// An input of a process. Closing it is the end of the input.
pub type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// A command being run in a container. Streams that were not requested are `None`; with a terminal, stderr is part of stdout.
/// Dropping the session closes the streams, but the command keeps running; see [`ExecControl::kill`].
pub struct ExecSession {
    /// The input of the command.
    pub stdin: Option<Writer>,
    /// The standard output, or the terminal.
    pub stdout: Option<Reader>,
    /// The standard error.
    pub stderr: Option<Reader>,
    /// Waits for the command, resizes its terminal and kills it.
    pub control: Box<dyn ExecControl>,
}

/// Controls a command in a container.
#[async_trait]
pub trait ExecControl: Send + Sync {
    /// Waits for the command and returns its exit code (128 + signal when a signal ended it).
    async fn wait(&mut self) -> Result<i32>;
    /// Changes the size of the terminal; without a terminal nothing happens.
    fn resizer(&self) -> Resizer;
    /// Sends SIGKILL to the command.
    async fn kill(&mut self) -> Result<()>;
}

/// Sets the size of a terminal; cheap to clone and to use from another task.
pub type Resizer = Arc<dyn Fn(TerminalSize) + Send + Sync>;

/// The live output (and input) of a container's first process.
pub struct AttachSession {
    /// The input of the process, if it was requested.
    pub stdin: Option<Writer>,
    /// The standard output, or the terminal.
    pub stdout: Reader,
    /// `None` with a terminal.
    pub stderr: Option<Reader>,
    /// Sets the size of the terminal; without a terminal nothing happens.
    pub resizer: Resizer,
}

/// The result of a command that has ended.
#[derive(Clone, Debug)]
pub struct ExecResult {
    /// The standard output, cut off at the limit of the call.
    pub stdout: Vec<u8>,
    /// The standard error, cut off at the limit of the call.
    pub stderr: Vec<u8>,
    /// The exit code; 128 + signal when a signal ended the command.
    pub exit_code: i32,
}

/// A command to be run in a container.
#[derive(Clone, Debug, Default)]
pub struct ExecRequest {
    /// The program and its arguments. A program without a slash is searched for in `PATH` of the container.
    pub command: Vec<String>,
    /// Whether the command gets a terminal.
    pub tty: bool,
    /// Whether the caller provides an input.
    pub stdin: bool,
    /// Whether the caller reads the standard output.
    pub stdout: bool,
    /// Whether the caller reads the standard error; with a terminal there is none.
    pub stderr: bool,
}
