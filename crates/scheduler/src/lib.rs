//! The scheduler: which node a pod goes to, and why.
//!
//! [`cluster`] is the state, [`decide`] the decision (data to data), [`queue`] the pods that wait, [`service`] the events in and the
//! bindings out. Plugins filter and score, one file each under [`plugins`]. Invariant: a decision reads the state in place and
//! says of every node that was refused which plugin refused it and why. The node agent asks the same plugins whether it takes a pod
//! that was bound to it ([`admission_check`]).

mod admission;
pub mod affinity;
mod changes;
pub mod cluster;
pub mod decide;
pub mod framework;
pub mod plugins;
pub mod pod;
pub mod pod_affinity;
pub mod queue;
pub mod resources;
pub mod service;
pub mod spread;
pub mod taint;

pub use admission::{Failure, admission_check};
pub use cluster::{Cluster, Node, NodeInfo};
pub use decide::{Decision, decide};
pub use framework::{Plugin, Refusal};
pub use service::{Options, run};
