//! Objects seen through their schema's topology: comparing, merging, and taking out fields by path.
//!
//! A value is a leaf (scalars, atomic lists and objects, empty containers) or a container with separately owned parts. Without
//! a schema, objects are granular and lists atomic. A value that does not fit its schema counts as a leaf, so that
//! live objects written under an older schema are tolerated; [`validate()`] is for what a client applies.

mod atomics;
mod compare;
mod fields;
mod merge;
mod remove;
mod shape;
mod validate;

pub use atomics::atomics;
pub use compare::{Comparison, compare, compare_objects};
pub use fields::{ensure_named, field_set, field_set_of_object, reconcile};
pub use merge::{merge, merge_objects};
pub use remove::{drop_emptied_lists, remove_items};
pub use shape::TypeRef;
pub use validate::{validate, validate_object};

#[cfg(test)]
#[path = "typed_tests.rs"]
mod tests;
