//! The suite of the store: one binary, so that crash tests can re-execute it.

mod conformance;
mod support;
