//! `settings.k8s.io`.

mod pod_preset;

kinds! { pod_preset }
