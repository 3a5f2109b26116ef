//! Which nodes a pod may run on: node selectors, node affinity, taints and tolerations (upstream `component-helpers/scheduling/corev1`).
//!
//! The scheduler and the controllers (DaemonSets, eviction by taints) decide with the same rules.

#![warn(missing_docs)]

mod affinity;
mod taint;

pub use affinity::{NodeAffinity, NodeSelectorTerm};
pub use taint::{EXCLUDING, Taint, Toleration, is_tolerated, untolerated};
