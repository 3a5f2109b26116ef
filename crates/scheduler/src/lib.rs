//! The scheduler: which node a pod goes to, and why.
//!
//! [`cluster`] is the state, [`mod@decide`] the decision (data to data), [`queue`] the waiting pods, [`service`] the loop, [`binding`] the binding
//! of one pod. [`framework`] has the extension points, [`plugins`] one file per plugin. Invariant: a decision reads the state in place and
//! names the plugin and the reason for each node that it refuses. The node agent checks pods that are bound to it with the same plugins
//! ([`admission_check`]).

mod admission;
pub mod allocation;
pub mod binding;
pub mod budgets;
mod capacity;
mod changes;
pub mod cluster;
pub mod configuration;
pub mod counts;
pub mod decide;
pub mod decision;
pub mod decisions;
pub mod dependency;
pub mod devices;
mod eviction;
pub mod explain;
mod explainer;
pub mod extender;
pub mod filters;
pub mod framework;
pub mod listing;
pub mod nominations;
pub mod plugins;
pub mod pod;
pub mod pod_affinity;
pub mod preemption;
pub mod profile;
pub mod queue;
pub mod resources;
mod scheduling;
pub mod service;
pub mod spread;
mod status;
pub mod storage;
mod subscriptions;
pub mod topology;
pub mod workloads;

pub use admission::{Failure, admission_check};
pub use cluster::{Cluster, Node, NodeInfo};
pub use configuration::{Configuration, ConfigurationError};
pub use decide::decide;
pub use decision::{Decision, ExtenderRefusal};
pub use decisions::Decisions;
pub use explainer::{Explained, Explainer, LastDecision, PodDecision};
pub use framework::{Framework, Plugin, Refusal};
pub use service::{Options, frameworks, run};
