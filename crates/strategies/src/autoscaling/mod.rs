//! `autoscaling`.

mod horizontal_pod_autoscaler;
mod rules;
mod versions;

kinds! { horizontal_pod_autoscaler }
