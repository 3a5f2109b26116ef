//! The suite of the store: one binary, so that crash tests can re-execute it.
#![allow(clippy::unwrap_used)]

mod conformance;
mod crash;
mod disk;
mod model;
mod support;
#[path = "../../examples/power/work.rs"]
mod work;
