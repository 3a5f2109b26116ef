//! The suite of the store: one binary, so that crash tests can re-execute it.
#![allow(clippy::unwrap_used)] // a broken setup is a failed test

mod conformance;
mod crash;
mod disk;
mod etcd;
mod model;
mod past;
mod sealing;
mod support;
#[path = "../../examples/power/work.rs"]
mod work;
