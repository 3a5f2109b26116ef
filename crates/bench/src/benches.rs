//! The benchmarks. Each file defines its objects, its requests, and what it measures.

pub mod apply;
pub mod create;
pub mod exec;
pub mod get;
pub mod idle_pods;
pub mod large;
pub mod list;
pub mod run;
pub mod scale;
pub mod schedule;
pub mod services;
pub mod start;
pub mod watch;
