//! What can go wrong between a caller and the API server.

use meta::{Reason, Status};

pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A failed request. [`Error::Api`] is the server's own answer; everything else happened on the way.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server answered with a `Status`.
    #[error("{0}")]
    Api(Box<Status>),
    /// The request could not be written as HTTP: a name that is no path segment, a header that is no header.
    #[error("invalid request: {0}")]
    Request(String),
    /// No connection: why, in the words of Go's `net` and `crypto/tls`, the address included.
    #[error("{source}")]
    Connect { to: String, source: BoxError },
    /// The request was sent, or half sent; whether the server acted on it is unknown.
    #[error("sending the request: {0}")]
    Send(#[source] BoxError),
    #[error("reading the answer: {0}")]
    Body(#[source] BoxError),
    #[error("encoding {what}: {source}")]
    Encode { what: &'static str, source: serde_json::Error },
    #[error("decoding {what}: {source}")]
    Decode { what: String, source: serde_json::Error },
    /// The server answered, but not in the form of the API.
    #[error("unexpected answer: {0}")]
    Unexpected(String),
    #[error("no answer within {0:?}")]
    Timeout(std::time::Duration),
    /// The time for the request was over while its answer arrived.
    #[error("context deadline exceeded (Client.Timeout or context cancellation while reading body)")]
    Cut,
    /// This transport cannot hand over its byte stream.
    #[error("this transport has no upgraded streams")]
    NoUpgrade,
    /// The server did not switch protocols, and explained it with something other than a `Status`.
    #[error("unable to upgrade connection: {0}")]
    UpgradeRefused(String),
    #[error("credentials: {0}")]
    Credentials(String),
    /// What a kubeconfig and flags say does not go together, or names what is not there.
    #[error("invalid configuration: {}", .0.join(", "))]
    Configuration(Vec<String>),
    /// A credential plugin gave no credentials.
    #[error("getting credentials: {0}")]
    Plugin(String),
}

impl Error {
    /// What is wrong, without a word of what it is about, as Go says it.
    pub fn why(&self) -> String {
        match self {
            Self::Credentials(why) | Self::Plugin(why) => why.clone(),
            other => other.to_string(),
        }
    }

    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Api(s) => Some(s),
            _ => None,
        }
    }

    fn is(&self, reason: Reason) -> bool {
        self.status().is_some_and(|s| s.is(reason))
    }

    pub fn is_not_found(&self) -> bool {
        self.is(Reason::NotFound)
    }

    pub fn is_already_exists(&self) -> bool {
        self.is(Reason::AlreadyExists)
    }

    pub fn is_conflict(&self) -> bool {
        self.is(Reason::Conflict)
    }

    pub fn is_forbidden(&self) -> bool {
        self.is(Reason::Forbidden)
    }

    pub fn is_unauthorized(&self) -> bool {
        self.is(Reason::Unauthorized)
    }

    pub fn is_invalid(&self) -> bool {
        self.is(Reason::Invalid)
    }

    /// The revision asked for is gone: `410` in either of its two reasons.
    pub fn is_expired(&self) -> bool {
        self.is(Reason::Expired) || self.is(Reason::Gone)
    }

    pub fn is_too_many_requests(&self) -> bool {
        self.is(Reason::TooManyRequests)
    }

    /// Whether the same request may succeed later: the server was overloaded, starting or not in reach.
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

    /// Nothing listens where the server should.
    pub fn is_connection_refused(&self) -> bool {
        let Self::Connect { source, .. } = self else { return false };
        source.downcast_ref().is_some_and(|e: &std::io::Error| e.kind() == std::io::ErrorKind::ConnectionRefused)
    }

    /// The namespace is being deleted, so that creating in it is pointless (cause `NamespaceTerminating`).
    pub fn is_namespace_terminating(&self) -> bool {
        self.has_cause("NamespaceTerminating")
    }

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
