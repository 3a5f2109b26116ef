//! `scheduling.k8s.io`.

mod priority_class;

kinds! { priority_class }
