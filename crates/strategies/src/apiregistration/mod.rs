//! `apiregistration.k8s.io`.

mod api_service;

kinds! { api_service }
