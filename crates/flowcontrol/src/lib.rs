//! API priority and fairness (`k8s.io/apiserver/pkg/util/flowcontrol`, KEP-1040): FlowSchemas classify
//! requests into flows and assign them to priority levels, and each level has a number of seats. A request that finds no free seat waits in
//! one of a few queues of its flow. Queues are served fairly, so a noisy client delays only itself.
//!
//! `rules` matches requests, `queues` is fair queuing as a pure function of time, `level` holds the seats, `allocation` divides them among
//! levels, `config` combines all of it, and `bootstrap` has the objects of every cluster.
//!
//! Invariant: while there are free seats and no request waits, a request costs a few atomic operations and no lock. The queues do not
//! learn of such requests, so they are not charged to their flows: fairness starts when seats are short. Not implemented: seats that a write
//! keeps for the watchers it notifies.

mod allocation;
pub mod bootstrap;
mod config;
mod level;
mod queues;
mod retry;
mod rules;

pub use config::{Config, Flow, FlowSchema};
pub use level::{LevelSnapshot, Limits, PriorityLevel, Rejection, SeatGuard};
pub use queues::QueueSnapshot;
pub use rules::RequestDigest;
