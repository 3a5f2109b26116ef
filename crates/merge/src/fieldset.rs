//! Sets of field paths, and their JSON form `FieldsV1`.
//!
//! A [`Set`] is a tree that mirrors the object: every node is one [`PathElement`], may itself be in the set, and may have
//! nodes below. Invariant: nodes are sorted and none is empty, so that equal sets are equal values.

mod element;
mod json;
mod set;

pub use element::PathElement;
pub(crate) use element::compare_values;
pub use json::Error;
pub(crate) use set::Node;
pub use set::Set;

#[cfg(test)]
#[path = "fieldset_tests.rs"]
mod tests;
