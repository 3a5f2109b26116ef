//! The long-running parts of a process: how they are supervised, how they end, and how a panic ends none of them.
//!
//! Invariant: whatever runs for as long as the process does is a supervised service ([`Component::spawn`]). It has a name, its end is
//! noticed, it is started again with back-off or ends the process, and health checks and metrics show its state.

#![warn(missing_docs)]

mod blocking;
mod flag;
pub mod panics;
pub mod plain_http;
mod shutdown;
mod supervisor;

pub use blocking::blocking;
pub use flag::{Flag, Setter, flag};
pub use shutdown::{Shutdown, Trigger, shutdown};
pub use supervisor::{Component, End, Failure, OnEnd, State, Status, Supervisor};
