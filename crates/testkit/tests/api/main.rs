//! The API as clients see it: every verb of every kind, bad input, reading, and the documents that describe it.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod accept;
mod access;
mod authorization;
mod bad_input;
mod concurrency;
mod custom;
mod decisions;
mod deletions;
mod derived;
mod devices;
mod documents;
mod escalation;
mod events;
mod field_errors;
mod groups;
mod growth;
#[path = "../admission/hook.rs"]
#[allow(dead_code, reason = "admission needs more of it")]
mod hook;
mod matrix;
mod messages;
mod operations;
mod other_kinds;
mod parts;
mod patches;
mod placement;
mod pod_volumes;
mod pods;
mod reading;
mod rules;
mod served;
mod services;
mod stream;
mod streams;
