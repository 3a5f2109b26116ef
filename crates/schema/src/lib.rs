//! The schema of a kind, the same for built-in kinds and custom resources: types, topology, defaults, enums.
//!
//! A schema is immutable and shared. Built-in definitions refer to one another by name, cycles included
//! (`JSONSchemaProps`); references become pointers when the table is loaded.

#![warn(missing_docs)]

pub mod decode;
mod enumeration;
pub mod fill;
pub mod form;
pub mod go_format;
mod pattern;
mod rule;
pub mod rules;
pub mod sent;
mod strings;
pub mod structural;
pub mod typed;
pub mod types;
mod walk_index;

pub use decode::{DecodeError, Decoded, MOST_REPORTED, decode};
pub use fill::{fill, fill_within, size};
pub use meta::depth::of_text as depth;
pub use rule::Rule;
pub use sent::Empties;
pub use typed::{Nulls, TypeError, Typed, base64, base64_decode, settle, typed, typed_with};
pub use types::{Definitions, Field, Fill, ListType, PatchStrategy, Presence, Schema, SchemaRef, Str, Type};
