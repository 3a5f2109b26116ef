//! Kubernetes' protobuf: any object by its schema's field numbers, in the envelope `k8s\0` + `runtime.Unknown`.
//!
//! A field without a number is not written. Fields that lie in their parent in JSON but in a message of their own in protobuf
//! name that message in [`schema::Field::inline_of`] as `name#number`; their own number counts inside of it.
//!
//! Go's encoder writes zeros of fields that are no pointers; where the schema defines it (`Presence::OmitZero`) they are absent
//! again after reading, and a zero time always is. Unknown field numbers are skipped. Lists as values of maps are wrapped as
//! `{items=1}`. A value of several possible shapes is a message with a field for each ([`schema::types::Alternative`]).

mod read;
pub mod wire;
mod write;

pub use read::{decode, decode_message};
pub use write::{encode, encode_message, envelope, fields, watch_event};

/// What every encoded object starts with.
pub const MAGIC: &[u8; 4] = b"k8s\0";
/// How deep messages may be nested.
pub const DEPTH_LIMIT: usize = 256;
/// Messages in an object: an empty one takes two bytes, and a thousand times as much when it is read.
pub const MOST_MESSAGES: usize = 200_000;

/// The error of decoding or encoding protobuf.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The bytes do not start with Kubernetes' magic number.
    #[error("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")]
    NoMagic,
    /// The message ends within a field.
    #[error("protobuf: unexpected end of data")]
    Truncated,
    /// A field has an invalid value.
    #[error("protobuf: invalid {what} in field {field}")]
    Invalid {
        /// The number of the field.
        field: u32,
        /// What is invalid.
        what: &'static str,
    },
    /// The object has more messages than allowed.
    #[error("protobuf: an object has more than {MOST_MESSAGES} messages")]
    Many,
    /// Messages are nested too deep.
    #[error("protobuf: messages are nested more than {DEPTH_LIMIT} deep")]
    Depth,
    /// The kind has no protobuf message.
    #[error("no kind {kind:?} is registered for version {api_version:?}")]
    UnknownKind {
        /// The `apiVersion`.
        api_version: String,
        /// The kind.
        kind: String,
    },
    /// A JSON value cannot be encoded as the type of its field.
    #[error("{path}: cannot encode {value} as {ty:?}")]
    Value {
        /// The path of the field.
        path: String,
        /// The value.
        value: String,
        /// The type of the field.
        ty: schema::Type,
    },
    /// The message is compressed or encoded in an unknown way.
    #[error("unsupported content encoding {0:?}")]
    ContentEncoding(String),
}

impl Error {
    /// The error of a value that lies at this step below another. Only an error has a path: keys may be a megabyte long.
    fn below(self, step: std::fmt::Arguments<'_>) -> Self {
        match self {
            Self::Value { path, value, ty } => Self::Value { path: format!("{step}{path}"), value, ty },
            other => other,
        }
    }
}

#[cfg(test)]
#[path = "protobuf_tests.rs"]
mod tests;
