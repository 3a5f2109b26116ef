//! YAML as `sigs.k8s.io/yaml` (go-yaml v2, through JSON) reads and writes it.
//!
//! Events come from `libyaml-safer`; what a scalar means, merge keys, duplicates and limits are decided here, because they
//! decide whether a manifest means to us what it means to Kubernetes: `0644` is 420, `yes` and `on` are booleans (as keys
//! too: `"true"`), timestamps stay strings. Invariant: no input overflows the stack or expands without bound.
//!
//! Left out: comments, which the parser drops, and `"\/"`, which go-yaml refuses and we accept.

mod read;
mod resolve;
mod write;

pub use read::{DEPTH_LIMIT, Duplicate, parse, parse_first, parse_strict, parse_v3, parse_within};
pub use resolve::{float, reads_back_as_string};
pub use write::to_string;

/// Why a text is no YAML that Kubernetes would take.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is no YAML.
    #[error("yaml: {0}")]
    Syntax(String),
    /// The document is nested too deep.
    #[error("yaml: line {line}: exceeded max depth of {limit}")]
    Depth {
        /// The line at which it exceeds the limit.
        line: u64,
        /// The limit.
        limit: usize,
    },
    /// An alias refers to an anchor that does not exist.
    #[error("yaml: unknown anchor '{0}' referenced")]
    UnknownAnchor(String),
    /// The value of an anchor contains an alias of itself.
    #[error("yaml: anchor '{0}' value contains itself")]
    SelfReference(String),
    /// Aliases make the document too large.
    #[error("yaml: document contains excessive aliasing")]
    ExcessiveAliasing,
    /// A merge key has no map, or no list of maps.
    #[error("yaml: map merge requires map or sequence of maps as the value")]
    BadMerge,
    /// A value is invalid for its tag.
    #[error("yaml: line {line}: {what}")]
    Invalid {
        /// The line of the value.
        line: u64,
        /// What is invalid.
        what: String,
    },
    /// A number that JSON cannot hold.
    #[error("json: unsupported value: {0}")]
    Unsupported(&'static str),
    /// Only from [`parse_strict`]: every repeated key.
    #[error("yaml: unmarshal errors:{}", .0.iter().map(ToString::to_string).collect::<String>())]
    Duplicates(Vec<Duplicate>),
}
