//! Changes of objects: JSON patch, merge patch, strategic merge patch, and structured merge with managed fields.
//!
//! Invariant: all functions are from data to data. Schemas, times, versions and managers' names come from the caller;
//! nothing here knows a kind, a request or the clock.

#![warn(missing_docs)]

pub mod fieldset;
pub mod json_patch;
pub mod kyaml;
pub mod managed;
pub mod merge_patch;
pub mod strategic;
pub mod typed;

#[cfg(test)]
mod test_schema;
