//! Errors of requests to the API server.

use meta::{Reason, Status};

/// The source of an error, of any type.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A failed request. [`Error::Api`] is the server's response; all others occurred before or after it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server answered with a `Status`.
    #[error("{0}")]
    Api(Box<Status>),
    /// The request cannot be written as HTTP, for example because a name is no path segment.
    #[error("invalid request: {0}")]
    Request(String),
    /// The connection failed; the text is that of Go's `net` and `crypto/tls`, with the address.
    #[error("{source}")]
    Connect {
        /// Host and port.
        to: String,
        /// The error of the network or of TLS.
        source: BoxError,
    },
    /// The request was sent, or half sent; whether the server acted on it is unknown.
    #[error("sending the request: {0}")]
    Send(#[source] BoxError),
    /// The response ended before its end, or the connection failed meanwhile.
    #[error("reading the answer: {0}")]
    Body(#[source] BoxError),
    /// A request body cannot be encoded as JSON.
    #[error("encoding {what}: {source}")]
    Encode {
        /// The type of the body.
        what: &'static str,
        /// The error of the encoder.
        source: serde_json::Error,
    },
    /// A response body is not JSON of the expected form.
    #[error("decoding {what}: {source}")]
    Decode {
        /// Method and path of the request, or the part of the response.
        what: String,
        /// The error of the decoder.
        source: serde_json::Error,
    },
    /// The response is not of the API's form.
    #[error("unexpected answer: {0}")]
    Unexpected(String),
    /// The time limit of the client expired before the response.
    #[error("no answer within {0:?}")]
    Timeout(std::time::Duration),
    /// The client's time limit expired while the response arrived.
    #[error("context deadline exceeded (Client.Timeout or context cancellation while reading body)")]
    Cut,
    /// This transport cannot hand over its byte stream.
    #[error("this transport has no upgraded streams")]
    NoUpgrade,
    /// The server refused to switch protocols, with a response that is no `Status`.
    #[error("unable to upgrade connection: {0}")]
    UpgradeRefused(String),
    /// Credentials cannot be read or written as headers.
    #[error("credentials: {0}")]
    Credentials(String),
    /// The kubeconfig and flags are contradictory or name missing entries.
    #[error("invalid configuration: {}", .0.join(", "))]
    Configuration(Vec<String>),
    /// A credential plugin gave no credentials.
    #[error("getting credentials: {0}")]
    Plugin(String),
}

impl Error {
    /// The problem without its subject, as Go prints it.
    pub fn why(&self) -> String {
        match self {
            Self::Credentials(why) | Self::Plugin(why) => why.clone(),
            other => other.to_string(),
        }
    }

    /// The server's `Status`, if it answered with one.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Api(s) => Some(s),
            _ => None,
        }
    }

    fn is(&self, reason: Reason) -> bool {
        self.status().is_some_and(|s| s.is(reason))
    }

    /// Whether the reason is `NotFound`.
    pub fn is_not_found(&self) -> bool {
        self.is(Reason::NotFound)
    }

    /// Whether the reason is `AlreadyExists`.
    pub fn is_already_exists(&self) -> bool {
        self.is(Reason::AlreadyExists)
    }

    /// Whether the reason is `Conflict`.
    pub fn is_conflict(&self) -> bool {
        self.is(Reason::Conflict)
    }

    /// Whether the reason is `Forbidden`.
    pub fn is_forbidden(&self) -> bool {
        self.is(Reason::Forbidden)
    }

    /// Whether the reason is `Unauthorized`.
    pub fn is_unauthorized(&self) -> bool {
        self.is(Reason::Unauthorized)
    }

    /// Whether the reason is `Invalid`: the object has field errors.
    pub fn is_invalid(&self) -> bool {
        self.is(Reason::Invalid)
    }

    /// The requested revision is gone: `410` with either of its two reasons.
    pub fn is_expired(&self) -> bool {
        self.is(Reason::Expired) || self.is(Reason::Gone)
    }

    /// Whether the reason is `TooManyRequests`: a rate limit, or a disruption budget.
    pub fn is_too_many_requests(&self) -> bool {
        self.is(Reason::TooManyRequests)
    }

    /// Whether the same request may succeed later: the server is overloaded, starting or unreachable.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Api(s) => matches!(
                s.reason,
                Reason::ServerTimeout
                    | Reason::Timeout
                    | Reason::TooManyRequests
                    | Reason::InternalError
                    | Reason::ServiceUnavailable
            ),
            Self::Connect { .. } | Self::Send(_) | Self::Body(_) | Self::Timeout(_) => true,
            _ => false,
        }
    }

    /// Whether the connection failed before the complete response.
    pub fn is_unanswered(&self) -> bool {
        matches!(self, Self::Connect { .. } | Self::Send(_) | Self::Body(_) | Self::Timeout(_) | Self::Cut)
    }

    /// Nothing listens where the server should.
    pub fn is_connection_refused(&self) -> bool {
        let Self::Connect { source, .. } = self else { return false };
        source.downcast_ref().is_some_and(|e: &std::io::Error| e.kind() == std::io::ErrorKind::ConnectionRefused)
    }

    /// The namespace is being deleted, so creating objects in it is pointless (cause `NamespaceTerminating`).
    pub fn is_namespace_terminating(&self) -> bool {
        self.has_cause("NamespaceTerminating")
    }

    /// Whether the details of the `Status` have a cause with this reason.
    pub fn has_cause(&self, reason: &str) -> bool {
        self.status().and_then(|s| s.details.as_ref()).is_some_and(|d| d.causes.iter().any(|c| c.reason == reason))
    }
}

impl From<Status> for Error {
    fn from(s: Status) -> Self {
        Self::Api(Box::new(s))
    }
}

/// `Ok(None)` in place of *not found*.
pub fn optional<T>(r: Result<T, Error>) -> Result<Option<T>, Error> {
    match r {
        Ok(v) => Ok(Some(v)),
        Err(e) if e.is_not_found() => Ok(None),
        Err(e) => Err(e),
    }
}
