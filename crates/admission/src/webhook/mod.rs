//! MutatingAdmissionWebhook and ValidatingAdmissionWebhook: call webhooks over HTTPS
//! (`k8s.io/apiserver/pkg/admission/plugin/webhook`).
//!
//! A kubeconfig holds the credentials for the calls ([`auth::Callers`]); an exec credential plugin runs again when
//! its credentials are rejected. `hook` parses the configurations, `select` selects the webhooks for a request,
//! `exchange` encodes and decodes the `AdmissionReview`. The transport is the [`Host`](crate::Host)'s. Not
//! implemented: audit annotations for the changes of a mutation.

mod call;
mod conditions;
mod exchange;
mod hook;
mod invocation;
mod mutating;
mod select;
mod validating;

pub use mutating::Mutating;
pub use validating::Validating;
