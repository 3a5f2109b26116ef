//! The benchmarks. Each file defines its objects, its requests, and what it measures.

pub mod apply;
pub mod create;
pub mod get;
pub mod large;
pub mod list;
pub mod run;
pub mod scale;
pub mod schedule;
pub mod start;
pub mod watch;
