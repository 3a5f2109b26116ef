//! `rbac.authorization.k8s.io`: names are path segments, and users cannot grant rules that they do not have.

mod escalation;
mod policy;
mod role;
mod role_binding;

pub use policy::{bootstrap, unserved};
use role as cluster_role;
use role_binding as cluster_role_binding;

kinds! { cluster_role, cluster_role_binding, role, role_binding }

const GROUP: &str = "rbac.authorization.k8s.io";
