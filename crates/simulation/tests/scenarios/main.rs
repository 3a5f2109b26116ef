//! Scenarios in virtual time: their format, that they repeat, the invariants, and random schedules of crashes.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod bad_input;
mod broken;
mod format;
mod found;
mod objects;
mod repeatable;
mod schedules;
mod stories;
mod week;
