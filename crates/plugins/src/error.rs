//! Errors of calls.

use std::fmt;
use std::io;
use std::path::PathBuf;

use tonic::{Code, Status};

/// Characters of a plugin's message that are shown.
const MAX_MESSAGE: usize = 1024;

/// Why a call failed. Its text is that of Go's gRPC library, which users know from events.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The plugin could not be reached; it has not seen the request.
    #[error("rpc error: code = Unavailable desc = connection error: desc = \"transport: Error while dialing: dial unix {}: {source}\"", .socket.display())]
    Connect {
        /// The socket, as the plugin named it.
        socket: PathBuf,
        /// Why it cannot be opened.
        source: io::Error,
    },
    /// The call ended with an error of the plugin, of the connection, or by its deadline.
    #[error("{}", Shown(.0))]
    Status(Box<Status>),
}

impl Error {
    /// The code of the error.
    pub fn code(&self) -> Code {
        match self {
            Self::Connect { .. } => Code::Unavailable,
            Self::Status(status) => status.code(),
        }
    }

    /// The error of a call whose deadline has passed.
    pub(crate) fn deadline() -> Self {
        Status::deadline_exceeded("context deadline exceeded").into()
    }
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        Self::Status(Box::new(status))
    }
}

struct Shown<'a>(&'a Status);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.message();
        let shown: String = text.chars().take(MAX_MESSAGE).collect();
        let more = if shown.len() < text.len() { "…" } else { "" };
        write!(f, "rpc error: code = {} desc = {shown}{more}", code_name(self.0.code()))
    }
}

/// The name of a code, as Go's gRPC writes it.
pub fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}
