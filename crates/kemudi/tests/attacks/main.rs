//! Attacks on a running cluster, with real containers and real sockets: each must fail, and leave the cluster working.
//!
//! One file per class of attacker. `containers`, `paths`, `users`, `network` and `kubelet` start from inside a pod; `requests`, `connections`,
//! `http2` and `audit` from a client without any role or without any credentials; `streams` from one that may look into a pod; `entry`
//! from credentials that allow less than what is tried; `backends` from what the server is led to; `client` from what the user's own
//! client talks to and runs.
//! `docs/security.md` lists the promises that these tests hold.
#![allow(clippy::unwrap_used)] // a broken setup is a failed test

#[path = "../e2e/cluster.rs"]
#[allow(dead_code, reason = "shared with the end-to-end tests, which use more of it")]
mod cluster;
#[path = "../e2e/containerd.rs"]
#[allow(dead_code, reason = "shared with the end-to-end tests, which use it")]
mod containerd;
#[path = "../../../network/tests/node/frames.rs"]
mod frames;
#[path = "../e2e/runner.rs"]
#[allow(dead_code, reason = "shared with the end-to-end tests, which use more of it")]
mod runner;
#[path = "../process/running.rs"]
#[allow(dead_code, reason = "shared with the tests of the process, which use more of it")]
mod running;
#[path = "../e2e/story.rs"]
#[allow(dead_code, reason = "shared with the end-to-end tests, which use more of it")]
mod story;

mod audit;
mod backends;
mod client;
mod connections;
mod containers;
mod entry;
mod http2;
mod kubelet;
mod network;
mod paths;
mod requests;
mod streams;
mod users;

use runner::{Test, alone, own};
use std::process::ExitCode;

fn tests() -> Vec<Test> {
    let inside = [containers::TESTS, paths::TESTS, users::TESTS, network::TESTS, kubelet::TESTS];
    let requests = [requests::TESTS, connections::TESTS, http2::TESTS, streams::TESTS, audit::TESTS];
    let outside = [entry::TESTS, backends::TESTS, client::TESTS];
    let together = inside.into_iter().chain(requests).chain(outside).flat_map(own);
    together.chain(alone(own(network::ALONE))).collect()
}

fn main() -> ExitCode {
    runner::main(tests(), Vec::new)
}
