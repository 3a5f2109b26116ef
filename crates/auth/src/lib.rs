//! Who is asking, and whether they may.
//!
//! Invariant: an identity only comes from an authenticator or, in one process, from a request extension that no socket can set.

pub mod attributes;
pub mod rbac;
pub mod user;

pub use attributes::{Attributes, Authorizer, Decision};
pub use user::{GROUP_SERVICE_ACCOUNTS, User};
