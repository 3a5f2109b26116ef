//! ValidatingAdmissionPolicy and MutatingAdmissionPolicy: in-process policies in CEL
//! (`k8s.io/apiserver/pkg/admission/plugin/policy`).
//!
//! `read` parses policies and bindings, `params` finds the parameters of a binding, `validating` and `mutating` are
//! the plugins. Audit annotations go to the audit log.

mod mutating;
mod params;
mod read;
mod validating;

pub use mutating::Mutating;
pub use validating::Validating;
