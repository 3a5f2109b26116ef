//! Errors of pulls.

use std::io;
use std::time::Duration;

use runtime::image;

/// Why an image was not pulled. Messages shorten texts of registries.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The name of the image is invalid.
    #[error(transparent)]
    Name(image::Error),
    /// The configuration of the registries cannot be used.
    #[error("{path}: {message}")]
    Configuration {
        /// The file.
        path: String,
        /// What is wrong with it.
        message: String,
    },
    /// The registry has no such manifest or blob.
    #[error("{what}: not found{}", after(message))]
    NotFound {
        /// The reference or digest.
        what: String,
        /// The message of the registry.
        message: String,
    },
    /// The registry requires other credentials.
    #[error("{host}: authorization failed: {message}")]
    Unauthorized {
        /// The registry.
        host: String,
        /// Its message.
        message: String,
    },
    /// The registry cannot be reached.
    #[error("{host}: {source}")]
    Connect {
        /// The registry.
        host: String,
        /// The error of the network or of TLS.
        source: client::Error,
    },
    /// The registry is overloaded or out of order.
    #[error("{host}: unexpected status {status}{}", after(message))]
    Unavailable {
        /// The registry.
        host: String,
        /// The status of its response.
        status: http::StatusCode,
        /// Its message.
        message: String,
        /// When to try again, if the registry says it.
        retry_after: Option<Duration>,
    },
    /// The registry sent no response, or stopped in the middle of it.
    #[error("{host}: {what}: no data for {limit:?}")]
    Stalled {
        /// The registry.
        host: String,
        /// The part of the exchange.
        what: &'static str,
        /// How long nothing, or too little, arrived.
        limit: Duration,
    },
    /// The connection broke.
    #[error("{host}: {source}")]
    Broken {
        /// The registry.
        host: String,
        /// The error of the connection.
        source: client::Error,
    },
    /// The response breaks the protocol.
    #[error("{host}: {message}")]
    Response {
        /// The registry.
        host: String,
        /// What is wrong with it.
        message: String,
    },
    /// No image of an index is for this machine.
    #[error("no image for {platform}: there are images for {}", found.join(", "))]
    Platform {
        /// The platform of this machine.
        platform: String,
        /// The platforms of the index.
        found: Vec<String>,
    },
    /// The manifest is none of a container image, or has features that are not supported.
    #[error("the manifest cannot be used: {0}")]
    Manifest(String),
    /// A document or blob is larger than allowed.
    #[error("{what} is larger than {limit} bytes")]
    TooLarge {
        /// The document.
        what: String,
        /// The limit.
        limit: u64,
    },
    /// Other pulls have large documents in memory.
    #[error("too many large manifests are being read at a time")]
    TooManyDocuments,
    /// The content differs from its digest.
    #[error("{what}: the content has the digest {found}")]
    Digest {
        /// The reference or digest that was requested.
        what: String,
        /// The digest of what arrived.
        found: String,
    },
    /// The content is shorter or longer than its descriptor says.
    #[error("{what} has {found} bytes, and {expected} according to the manifest")]
    Size {
        /// The digest.
        what: String,
        /// The bytes that arrived.
        found: u64,
        /// The bytes of the descriptor.
        expected: u64,
    },
    /// The disk has too little room.
    #[error("the layers take {needed} bytes, and the disk has room for {room}")]
    NoRoom {
        /// The bytes still to be written.
        needed: u64,
        /// The bytes that may be written.
        room: u64,
    },
    /// The image store refused the image.
    #[error(transparent)]
    Store(image::Error),
    /// A file could not be written.
    #[error("{what}: {source}")]
    File {
        /// The path.
        what: String,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// Several credentials were tried, and each failed.
    #[error("[{}]", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    Several(Vec<Error>),
}

fn after(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(": {message}") }
}

impl Error {
    /// Whether the registry cannot be reached or does not work at the moment (kubelet's `RegistryUnavailable`).
    pub fn is_unavailable(&self) -> bool {
        use io::ErrorKind::{ConnectionRefused, ConnectionReset, HostUnreachable, NetworkUnreachable, TimedOut};
        match self {
            Self::Unavailable { .. } | Self::Stalled { .. } | Self::Broken { .. } => true,
            Self::Connect { source: client::Error::Connect { source, .. }, .. } => {
                let kind = source.downcast_ref().map(io::Error::kind);
                matches!(
                    kind,
                    Some(ConnectionRefused | ConnectionReset | HostUnreachable | NetworkUnreachable | TimedOut)
                )
            }
            _ => false,
        }
    }

    /// Whether the same request may succeed in a moment.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::Broken { .. })
    }

    /// Whether other credentials, or another endpoint, may have what this one refuses.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Self::Unauthorized { .. } | Self::NotFound { .. })
    }

    pub(crate) fn file(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        let what = what.into();
        move |source| Error::File { what, source }
    }
}

/// The start of a text from a registry, in one line.
pub(crate) fn brief(text: &str) -> String {
    const MOST: usize = 256;
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match clean.len() {
        0..=MOST => clean,
        _ => format!("{}[...]", &clean[..clean.floor_char_boundary(MOST)]),
    }
}
