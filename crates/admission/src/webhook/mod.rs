//! MutatingAdmissionWebhook and ValidatingAdmissionWebhook: others are asked, over HTTPS
//! (`k8s.io/apiserver/pkg/admission/plugin/webhook`).
//!
//! A kubeconfig says as whom they are asked ([`auth::Callers`]); a program that makes credentials is run again once they are refused.
//! `hook` reads the configurations, `select` says which hooks a request concerns, `exchange` is the `AdmissionReview` to and fro.
//! The transport is the [`Host`](crate::Host)'s. Left out: audit annotations of what a mutation changed.

mod call;
mod conditions;
mod exchange;
mod hook;
mod mutating;
mod select;
mod validating;

pub use mutating::Mutating;
pub use validating::Validating;
