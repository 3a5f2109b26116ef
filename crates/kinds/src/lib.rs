//! The one description of every built-in kind: what it is called, where it is served, what its fields are, how it is printed.
//! Discovery, OpenAPI, strict decoding, defaulting, merging, `explain`, tables and protobuf are derived from it.
//!
//! Names, types and texts come from the schemas of `k8s-openapi` when this crate is built; what they lack lies in `data/`, one
//! file per group. Invariant: nothing here knows how a kind is served, and nobody else describes a kind again.

pub mod catalog;
pub mod columns;
mod table;

pub use catalog::{Catalog, Column, Generation, Kind, Subresource, catalog, texts};
