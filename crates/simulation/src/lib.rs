//! A control plane and simulated nodes in virtual time: the real API server, controllers and scheduler on one thread.
//!
//! Invariant: what happens depends on the seed and the scenario alone, so that a run can be repeated.

pub mod component;
pub mod container;
pub mod control_plane;
pub mod driver;
mod invariants;
mod link;
mod load;
pub mod nodes;
pub mod scenario;
mod span;
pub mod trace;

pub use component::{Caches, Component, Layer, Restart};
pub use control_plane::{ControlPlane, Options, SCHEDULER};
pub use driver::{Failure, Reason, Report, Run, in_virtual_time, run};
pub use link::{CrashPoint, WriteMatch};
pub use load::Load;
pub use nodes::{NodeSpec, Nodes};
pub use scenario::{Scenario, Step};
pub use span::{Offset, Span};
pub use trace::{Commit, ObjectChange, Trace};
