//! End-to-end tests: one cluster with real containers, driven by `kemudi kubectl` and by the real `kubectl`.
//!
//! The cluster is started once, with the binary that was built, in a network namespace of its own. Every test works in a
//! namespace of its own on it, many at the same time; one that drives the cluster by commands runs once with each program.
//! With `--runtime containerd`, a part of them runs on Debian's containerd (`./x test` fetches it) instead of the embedded runtime.
//! At the end the cluster is removed, whatever became of the tests, and nothing of it may be left on the machine.
#![allow(clippy::unwrap_used)] // a broken setup is a failed test

mod apply;
mod applyset;
mod autoscaling;
mod claims;
mod clients;
mod cluster;
mod commands;
mod containerd;
mod cri;
mod csi;
mod debugging;
mod environment;
mod garbage;
mod handover;
mod image_volumes;
mod images;
mod imperative;
mod incluster;
mod inquiry;
mod kills;
mod kubeconfig;
mod kubelet;
mod lifecycle;
mod local_volumes;
mod merging;
mod namespaces;
mod node_shutdown;
mod policies;
mod preview;
mod probes;
mod recorder;
mod registries;
mod remains;
mod replicas;
mod resources;
mod restart;
mod rollout;
mod runner;
mod server_side;
mod services;
mod sidebyside;
mod sized_volumes;
mod states;
mod static_pods;
mod story;
mod streams;
mod terminal;
mod top;
mod undoing;
mod view;
mod volumes;
mod why;

use runner::{Test, alone, both, both_since, own, real};
use std::process::ExitCode;

fn tests() -> Vec<Test> {
    [
        // The longest come first, so that at the end no worker is left with one of them.
        own(clients::TESTS),
        own(resources::TESTS),
        own(sidebyside::TESTS),
        own(states::TESTS),
        own(static_pods::TESTS),
        own(image_volumes::TESTS),
        own(lifecycle::TESTS),
        own(probes::TESTS),
        both(rollout::TESTS),
        both(apply::TESTS),
        both_since(32, server_side::TESTS),
        both_since(32, merging::TESTS),
        both_since(32, handover::TESTS),
        both_since(32, imperative::TESTS),
        both_since(32, undoing::TESTS),
        both_since(36, inquiry::TESTS),
        both_since(36, kubeconfig::TESTS),
        both_since(36, incluster::TESTS),
        own(incluster::OWN),
        both_since(32, terminal::TESTS),
        both_since(32, debugging::TESTS),
        both_since(36, terminal::NEW),
        both_since(36, top::TESTS),
        own(terminal::OWN),
        both_since(32, preview::TESTS),
        both_since(36, applyset::TESTS),
        both(commands::TESTS),
        both(namespaces::TESTS),
        both(replicas::TESTS),
        both(garbage::TESTS),
        both(view::TESTS),
        own(view::OWN),
        both_since(32, streams::TESTS),
        own(streams::OWN),
        real(streams::REAL),
        own(images::TESTS),
        own(registries::TESTS),
        own(volumes::TESTS),
        own(claims::TESTS),
        own(sized_volumes::TESTS),
        own(local_volumes::TESTS),
        own(csi::TESTS),
        own(environment::TESTS),
        both_since(36, autoscaling::TESTS),
        own(services::TESTS),
        own(policies::TESTS),
        own(why::TESTS),
        own(kubelet::TESTS),
        alone(both_since(36, top::ALONE)),
        alone(own(restart::ALONE)),
        alone(own(static_pods::ALONE)),
        alone(own(node_shutdown::ALONE)),
        alone(own(claims::ALONE)),
        alone(own(sized_volumes::ALONE)),
        alone(own(local_volumes::ALONE)),
        alone(own(csi::ALONE)),
        alone(own(kills::ALONE)),
    ]
    .concat()
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, mode, name] = &arguments[..]
        && mode == csi::driver::MODE
    {
        csi::driver::run(name);
        return ExitCode::SUCCESS;
    }
    runner::main(tests(), tests_on_others)
}

/// The tests that also run on container runtimes behind the CRI, with what concerns those alone.
fn tests_on_others() -> Vec<Test> {
    [
        own(states::TESTS),
        own(static_pods::TESTS),
        own(lifecycle::TESTS),
        own(probes::TESTS),
        own(resources::TESTS),
        both(rollout::TESTS),
        both(commands::TESTS),
        both_since(32, terminal::TESTS),
        both_since(32, debugging::TESTS),
        both_since(36, top::TESTS),
        both_since(32, streams::ON_OTHERS),
        own(streams::OWN),
        real(streams::REAL),
        own(registries::ON_OTHERS),
        own(volumes::TESTS),
        own(claims::TESTS),
        own(sized_volumes::TESTS),
        own(local_volumes::TESTS),
        own(environment::TESTS),
        own(services::TESTS),
        own(policies::TESTS),
        own(kubelet::TESTS),
        own(cri::TESTS),
        alone(own(restart::ALONE)),
        alone(own(static_pods::ALONE)),
        alone(own(cri::ALONE)),
        alone(own(claims::ALONE)),
        alone(own(sized_volumes::ALONE)),
        alone(own(local_volumes::ALONE)),
        alone(own(kills::ALONE)),
    ]
    .concat()
}
