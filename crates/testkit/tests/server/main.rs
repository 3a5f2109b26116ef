//! Tests of the server itself: time limits, concurrency limits, metrics, logs and shutdown.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod aggregation;
mod audit;
mod audit_webhook;
mod cbor;
mod depth;
mod dialer;
mod expiry;
mod extension;
mod fairness;
#[path = "../admission/hook.rs"]
#[allow(dead_code, reason = "admission needs more of it")]
mod hook;
mod limits;
mod metrics;
mod paths;
mod socket;
mod supervision;
mod usage;
mod zpages;
