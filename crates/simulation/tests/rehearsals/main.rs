//! Rehearsals of scenarios against manifests and against copies of running clusters.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod clusters;
mod docs;
mod inputs;
mod large;
mod pages;
mod stories;
mod support;
