//! `node.k8s.io`.

mod runtime_class;

kinds! { runtime_class }
