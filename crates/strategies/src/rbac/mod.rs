//! Roles and bindings: names are path segments, and nobody grants what they do not hold.

mod escalation;
mod policy;
mod role;
mod role_binding;

pub use policy::{bootstrap, unserved};
use role as cluster_role;
use role_binding as cluster_role_binding;

kinds! { cluster_role, cluster_role_binding, role, role_binding }

const GROUP: &str = "rbac.authorization.k8s.io";
