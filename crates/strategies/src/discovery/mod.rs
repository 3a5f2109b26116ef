//! `discovery.k8s.io`.

mod endpoint_slice;

kinds! { endpoint_slice }
