//! What single kinds do that their schema cannot say: one file per kind that needs one, under its group.
//!
//! A kind without a file has no peculiarities; what can be said of one field is a rule in the description instead.

pub mod apiextensions;
pub mod apps;
pub mod authentication;
pub mod authorization;
pub mod autoscaling;
pub mod batch;
pub mod core;
pub mod networking;
mod plain;
pub mod pod_template;
pub mod rbac;
mod rows;

pub use rows::{Config, builtin_rows, selectable_fields};
