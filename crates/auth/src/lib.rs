//! Authentication and authorization.
//!
//! Invariant: an identity only comes from an authenticator or, within one process, from a request extension that no
//! socket can set.

#![warn(missing_docs)]

pub mod abac;
pub mod aside;
pub mod attributes;
mod callers;
pub mod claims;
pub mod conditions;
pub mod config;
pub mod endpoint;
mod expression;
pub mod jwt;
pub mod oidc;
pub mod rbac;
pub mod reloaded;
pub mod remote;
pub mod token;
pub mod union;
pub mod user;
pub mod webhook;

pub use attributes::{Attributes, Authorizer, Decision};
pub use callers::{Caller, Callers};
pub use endpoint::{Endpoint, EndpointAddress};
pub use token::{Authenticated, TokenAuthenticator, Tokens};
pub use user::{GROUP_SERVICE_ACCOUNTS, User};
