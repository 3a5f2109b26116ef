//! Authentication and authorization.
//!
//! Invariant: an identity only comes from an authenticator or, within one process, from a request extension that no
//! socket can set.

#![warn(missing_docs)]

pub mod abac;
pub mod attributes;
mod callers;
pub mod claims;
pub mod conditions;
pub mod config;
pub mod endpoint;
mod expression;
pub mod jwt;
pub mod node;
pub mod oidc;
pub mod rbac;
pub mod reloaded;
pub mod remote;
pub mod token;
pub mod union;
pub mod webhook;

pub use attributes::{Attributes, Authorizer, Decision};
pub use callers::{Caller, Callers};
pub use endpoint::{Endpoint, EndpointAddress};
pub use meta::user::{self, GROUP_SERVICE_ACCOUNTS, User};
pub use node::NodeAuthorizer;
pub use rbac::cache::RbacCache;
pub use token::{Authenticated, TokenAuthenticator, Tokens};
