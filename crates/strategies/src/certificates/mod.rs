//! `certificates.k8s.io`.

pub mod certificate_signing_request;
mod conditions;

kinds! { certificate_signing_request }
