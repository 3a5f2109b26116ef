//! The benchmarks. Each is a file: what it makes, what it sends, and what it takes the time of.

pub mod apply;
pub mod create;
pub mod get;
pub mod list;
pub mod run;
pub mod schedule;
pub mod start;
pub mod watch;
