//! The commands, a file each.

pub mod apply;
pub mod create;
pub mod delete;
pub mod describe;
pub mod exec;
pub mod get;
pub mod logs;
pub mod pods;
pub mod rollout;
pub mod scale;
pub mod wait;
