//! kubectl against the server in memory.
#![allow(clippy::unwrap_used)] // a broken setup is a failed test

mod faults;
mod foreign;
mod shell;
