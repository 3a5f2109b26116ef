//! API priority and fairness (`k8s.io/apiserver/pkg/util/flowcontrol`, KEP-1040): requests are sorted into flows by
//! FlowSchemas, flows into priority levels, and each level has its seats. A request that finds no seat waits in one of a few
//! queues of its flow, and queues are served in turn, so that a noisy client waits for itself.
//!
//! `rules` sorts, `queues` is the pure fair queuing over a clock that is told to it, `level` has the seats, `allocation` shares
//! them out and lends what is idle, `config` holds it all together, `bootstrap` is what every cluster has.
//!
//! Invariant: while there are free seats and nobody waits, a request costs a few atomics and no lock. What is thereby not known
//! to the queues is not charged to their flows: fairness begins when seats are short. Left out: seats that a write holds on
//! for the watchers it wakes.

mod allocation;
pub mod bootstrap;
mod config;
mod level;
mod queues;
mod retry;
mod rules;

pub use config::{Config, Flow, Schema};
pub use level::{Level, LevelDigest, Limits, Rejection, Seat};
pub use queues::QueueDigest;
pub use rules::Digest;
