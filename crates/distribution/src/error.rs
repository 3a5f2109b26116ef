//! Errors of pulls.
//!
//! **Invariant.** Pod authors read these errors, and an image name or a redirect chooses which server answers. So an error quotes nothing
//! of an answer but what this crate knows ([`known_code`], platforms), digests and host names; and its `Display` bounds its length,
//! whatever a variant contains.

use std::time::Duration;
use std::{fmt, io};

use runtime::image;

/// Why an image was not pulled.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The name of the image is invalid.
    Name(image::Error),
    /// The configuration of the registries cannot be used.
    Configuration {
        /// The file.
        path: String,
        /// What is wrong with it.
        message: String,
    },
    /// The registry has no such manifest or blob.
    NotFound {
        /// The reference or digest.
        what: String,
        /// The meaning of its error code, if it is a known one.
        message: &'static str,
    },
    /// The registry requires other credentials.
    Unauthorized {
        /// The registry.
        host: String,
        /// Why.
        message: String,
    },
    /// The registry cannot be reached.
    Connect {
        /// The registry.
        host: String,
        /// The error of the network or of TLS.
        source: client::Error,
    },
    /// The registry is overloaded or out of order.
    Unavailable {
        /// The registry.
        host: String,
        /// The status of its response.
        status: http::StatusCode,
        /// The meaning of its error code, if it is a known one.
        message: &'static str,
        /// When to try again, if the registry says it.
        retry_after: Option<Duration>,
    },
    /// The registry sent no response, or stopped in the middle of it.
    Stalled {
        /// The registry.
        host: String,
        /// The part of the exchange.
        what: &'static str,
        /// How long nothing, or too little, arrived.
        limit: Duration,
    },
    /// A layer arrives too slowly as a whole.
    TooSlow {
        /// The registry.
        host: String,
        /// The bytes that have arrived.
        bytes: u64,
        /// The bytes that should have arrived by now.
        required: u64,
        /// The time since the beginning of the download.
        elapsed: Duration,
    },
    /// The registry does not continue a layer where it stopped.
    Restarts {
        /// The registry.
        host: String,
        /// How often it started again.
        times: u32,
    },
    /// The connection broke.
    Broken {
        /// The registry.
        host: String,
        /// The error of the connection.
        source: client::Error,
    },
    /// The response breaks the protocol.
    Response {
        /// The registry.
        host: String,
        /// What is wrong with it.
        message: String,
    },
    /// No image of an index is for this machine.
    Platform {
        /// The platform of this machine.
        platform: String,
        /// The platforms of the index.
        found: Vec<String>,
    },
    /// The manifest is none of a container image, or has features that are not supported.
    Manifest(String),
    /// A document or blob is larger than allowed.
    TooLarge {
        /// The document.
        what: String,
        /// The limit.
        limit: u64,
    },
    /// Other pulls have large documents in memory.
    TooManyDocuments,
    /// The content differs from its digest.
    Digest {
        /// The reference or digest that was requested.
        what: String,
        /// The digest of what arrived.
        found: String,
    },
    /// The content is shorter or longer than its descriptor says.
    Size {
        /// The digest.
        what: String,
        /// The bytes that arrived.
        found: u64,
        /// The bytes of the descriptor.
        expected: u64,
    },
    /// The disk has too little room.
    NoRoom {
        /// The bytes still to be written.
        needed: u64,
        /// The bytes that may be written.
        room: u64,
    },
    /// The disk has too few files left.
    NoFiles {
        /// The files that the download creates.
        needed: u64,
        /// The files that may be created.
        room: u64,
    },
    /// The image store refused the image.
    Store(image::Error),
    /// A file could not be written.
    File {
        /// The path.
        what: String,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// Several credentials were tried, and each failed.
    Several(Vec<Error>),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&brief(&self.message()))
    }
}

/// The text after the start of a message; nothing if there is none.
fn after(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(": {message}") }
}

impl Error {
    fn message(&self) -> String {
        match self {
            Self::Name(error) | Self::Store(error) => error.to_string(),
            Self::Configuration { path, message } => format!("{path}: {message}"),
            Self::NotFound { what, message } => format!("{what}: not found{}", after(message)),
            Self::Unauthorized { host, message } => format!("{host}: authorization failed: {message}"),
            Self::Connect { host, source } | Self::Broken { host, source } => format!("{host}: {source}"),
            Self::Unavailable { host, status, message, .. } => {
                format!("{host}: unexpected status {status}{}", after(message))
            }
            Self::Stalled { host, what, limit } => format!("{host}: {what}: no data for {limit:?}"),
            Self::TooSlow { host, bytes, required, elapsed } => {
                let seconds = elapsed.as_secs();
                format!(
                    "{host}: downloading a layer: {bytes} bytes in {seconds}s are too few, at least {required} are required"
                )
            }
            Self::Restarts { host, times } => {
                format!("{host}: downloading a layer: the server started again {times} times instead of continuing")
            }
            Self::Response { host, message } => format!("{host}: {message}"),
            Self::Platform { platform, found } => {
                format!("no image for {platform}: there are images for {}", found.join(", "))
            }
            Self::Manifest(message) => format!("the manifest cannot be used: {message}"),
            Self::TooLarge { what, limit } => format!("{what} is larger than {limit} bytes"),
            Self::TooManyDocuments => "too many large manifests are being read at a time".into(),
            Self::Digest { what, found } => format!("{what}: the content has the digest {found}"),
            Self::Size { what, found, expected } => {
                format!("{what} has {found} bytes, and {expected} according to the manifest")
            }
            Self::NoRoom { needed, room } => {
                format!("the layers take {needed} bytes, and the disk has room for {room}")
            }
            Self::NoFiles { needed, room } => {
                format!("the layers take {needed} files, and the disk has room for {room}")
            }
            Self::File { what, source } => format!("{what}: {source}"),
            Self::Several(errors) => {
                let messages: Vec<String> = errors.iter().map(ToString::to_string).collect();
                format!("[{}]", messages.join(", "))
            }
        }
    }

    /// Whether the registry cannot be reached or does not work at the moment (kubelet's `RegistryUnavailable`).
    pub fn is_unavailable(&self) -> bool {
        use io::ErrorKind::{ConnectionRefused, ConnectionReset, HostUnreachable, NetworkUnreachable, TimedOut};
        match self {
            Self::Unavailable { .. }
            | Self::Stalled { .. }
            | Self::TooSlow { .. }
            | Self::Restarts { .. }
            | Self::Broken { .. } => true,
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

/// What an error code of the OCI distribution specification means, with the code.
pub(crate) fn known_code(code: &str) -> Option<&'static str> {
    let known = [
        ("BLOB_UNKNOWN", "BLOB_UNKNOWN: blob unknown to registry"),
        ("DENIED", "DENIED: requested access to the resource is denied"),
        ("MANIFEST_UNKNOWN", "MANIFEST_UNKNOWN: manifest unknown"),
        ("NAME_INVALID", "NAME_INVALID: invalid repository name"),
        ("NAME_UNKNOWN", "NAME_UNKNOWN: repository name not known to registry"),
        ("TOOMANYREQUESTS", "TOOMANYREQUESTS: too many requests"),
        ("UNAUTHORIZED", "UNAUTHORIZED: authentication required"),
        ("UNSUPPORTED", "UNSUPPORTED: the operation is unsupported"),
    ];
    known.into_iter().find(|(name, _)| *name == code).map(|(_, message)| message)
}

/// The start of a text, in one line.
pub(crate) fn brief(text: &str) -> String {
    const MOST: usize = 1024;
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match clean.len() {
        0..=MOST => clean,
        _ => format!("{}[...]", &clean[..clean.floor_char_boundary(MOST)]),
    }
}
