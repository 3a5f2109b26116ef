//! The single description of every built-in kind: its names, versions, fields and table columns.
//! Discovery, OpenAPI, strict decoding, defaulting, merging, `explain`, tables and protobuf are derived from it.
//!
//! Names, types and texts come from the schemas of `k8s-openapi` when this crate is built; what they lack lies in `data/`, one
//! file per group. Invariant: this crate does not know how a kind is served, and no other code describes a kind.

#![warn(missing_docs)]

pub mod catalog;
pub mod columns;
mod kind;
mod table;

pub use catalog::{Catalog, catalog, texts};
pub use kind::{Column, Generation, Kind, MetadataCheck, Subresource};
