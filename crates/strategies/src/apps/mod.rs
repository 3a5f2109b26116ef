//! `apps`.

mod controller_revision;
mod daemon_set;
mod deployment;
mod replica_set;
mod stateful_set;
mod workload;

kinds! { controller_revision, daemon_set, deployment, replica_set, stateful_set }
