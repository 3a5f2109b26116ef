//! The basic types of the Kubernetes API: objects, names, selectors, quantities, field errors, users and `Status`.
//!
//! Invariant: everything here is data to data. No I/O, no clock, no async; time and randomness appear only as the traits
//! ([`Clock`], [`Rng`]) that the edge implements.

#![warn(missing_docs)]

pub mod address;
pub mod admission;
pub mod depth;
pub mod field;
pub mod gvk;
pub mod names;
pub mod object;
pub mod pool;
pub mod quantity;
pub mod random;
pub mod re2;
pub mod selector;
pub mod status;
pub mod time;
pub mod user;

/// The version of Kubernetes that client, server and node report.
pub const KUBERNETES_VERSION: &str = "v1.36.2";

pub use admission::{MutatedBy, Operation};
pub use field::{FieldError, FieldPath};
pub use gvk::{GroupKind, GroupResource, GroupVersion, Gvk, Gvr};
pub use object::{Map, Object, Value};
pub use pool::Pool;
pub use quantity::Quantity;
pub use random::Rng;
pub use selector::{FieldSelector, LabelSelector};
pub use status::{Reason, Status};
pub use time::Clock;
pub use user::User;
