//! kubectl against the server in memory, with a fault in every request of a command, one after the other.
#![allow(clippy::unwrap_used)] // a broken setup is a failed test

mod faults;
mod foreign;
mod shell;
