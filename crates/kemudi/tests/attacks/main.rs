//! Attacks on a running cluster, with real containers and real sockets: each must fail, and leave the cluster working.
//!
//! One file per class of attacker. `containers`, `paths` and `users` start from inside a pod; `requests`, `connections`, `frames` and
//! `audit` from a client without any role or without any credentials; `streams` from one that may look into a pod; `entry` from
//! credentials that allow less than what is tried; `client` from what the user's own client talks to and runs.
//! `docs/security.md` lists the promises that these tests hold.
#![allow(clippy::unwrap_used)] // a broken setup is a failed test

#[path = "../e2e/cluster.rs"]
#[allow(dead_code, reason = "shared with the end-to-end tests, which use more of it")]
mod cluster;
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
mod client;
mod connections;
mod containers;
mod entry;
mod frames;
mod paths;
mod requests;
mod streams;
mod users;

use runner::{Test, own};
use std::process::ExitCode;

fn tests() -> Vec<Test> {
    let inside = [containers::TESTS, paths::TESTS, users::TESTS];
    let outside =
        [requests::TESTS, connections::TESTS, frames::TESTS, streams::TESTS, audit::TESTS, entry::TESTS, client::TESTS];
    inside.into_iter().chain(outside).flat_map(own).collect()
}

fn main() -> ExitCode {
    runner::main(tests())
}
