//! A control plane and simulated nodes in virtual time: the real API server, controllers and scheduler on one thread.
//!
//! Invariant: what happens depends on the seed and the scenario alone, so that a run can be repeated.

pub mod assumptions;
pub mod component;
pub mod container;
pub mod control_plane;
pub mod copy;
pub mod driver;
pub mod expectations;
mod html;
mod invariants;
mod journal;
mod level;
mod link;
mod load;
pub mod name;
mod node_spec;
pub mod nodes;
pub mod operations;
mod recorder;
mod references;
pub mod rehearsal;
pub mod report;
mod requests;
pub mod scenario;
pub mod snapshot;
mod span;
mod text;
pub mod timeline;
pub mod trace;
mod volumes;
mod workload;

pub use assumptions::Assumptions;
pub use component::{Caches, Component, Layer, Restart};
pub use control_plane::{ControlPlane, Options, SCHEDULER};
pub use copy::{Copy, Source};
pub use driver::{Failure, Reason, Report, Run, in_virtual_time, run};
pub use journal::Journal;
pub use link::{CrashPoint, WriteMatch};
pub use load::Load;
pub use nodes::{NodeSpec, Nodes};
pub use rehearsal::rehearse;
pub use report::{Rehearsal, Verdict};
pub use scenario::{Scenario, Step};
pub use span::{Offset, Span};
pub use text::clean as printable;
pub use trace::{Commit, ObjectChange, Trace};
