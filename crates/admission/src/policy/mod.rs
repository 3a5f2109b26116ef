//! ValidatingAdmissionPolicy and MutatingAdmissionPolicy: rules of the cluster's administrators, in CEL, without anybody outside to be asked
//! (`k8s.io/apiserver/pkg/admission/plugin/policy`).
//!
//! `read` makes policies and bindings of objects, `params` finds what a binding refers to, `validating` and `mutating` are the
//! plugins. Audit annotations go to the audit log.

mod mutating;
mod params;
mod read;
mod validating;

pub use mutating::Mutating;
pub use validating::Validating;
