//! The commands, a file each.

pub mod apply;
pub mod create;
pub mod delete;
pub mod get;
