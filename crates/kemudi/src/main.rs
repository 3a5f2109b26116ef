//! The binary: parses the command line and assembles the other crates.

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

mod access;
mod agent;
mod api;
mod audit;
mod authorities;
mod background;
mod backup;
mod bootstrap;
mod cluster_keys;
mod cluster_network;
mod components;
mod containers;
mod control_plane;
mod data_dir;
mod dns_endpoints;
mod down;
mod etcd;
mod flag_error;
mod images;
mod join;
mod kubelet;
mod leadership;
mod lock;
mod machine;
mod man;
mod missing;
mod namespace;
mod node_command;
mod node_shutdown;
mod options;
mod output;
mod peers;
mod pki;
mod pod_network;
mod privileges;
mod reload;
mod second_family;
mod signals;
mod sim;
mod static_pods;
mod system;
mod token;
mod tokens;
mod up;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "kemudi", version, about = "Kubernetes in one binary")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs a cluster on this machine until it is stopped: with one node, or several (--nodes).
    #[command(after_help = missing::table())]
    Up(options::Options),
    /// Runs a control plane without a node until it is stopped. Several servers with the same etcd form one cluster.
    Server(options::ServerOptions),
    /// Runs a node of a cluster whose server is on another machine, until it is stopped.
    Agent(join::Options),
    /// Creates bootstrap tokens, with which machines join a cluster.
    #[command(subcommand)]
    Token(token::Command),
    /// Lists, stops, starts, cuts off and heals the nodes of `kemudi up --nodes`.
    #[command(subcommand)]
    Node(node_command::Command),
    /// Measures the cluster of a kubeconfig, or one that it starts.
    Bench(BenchCommand),
    /// The Kubernetes client, like kubectl.
    Kubectl,
    /// Stops the cluster of a data directory.
    Down(options::DownOptions),
    /// Writes the state and the keys of a cluster to a directory. The cluster may run.
    Backup(backup::BackupOptions),
    /// Restores a backup into a new data directory, or into etcd.
    Restore(backup::RestoreOptions),
    /// Rehearses a rollout, a drain, an upgrade or a failure against manifests or a copy of a cluster, in virtual time.
    Sim(sim::SimOptions),
    /// Imports, lists and removes images of this machine's node.
    #[command(subcommand)]
    Image(images::Command),
    /// Writes manual pages of all commands to a directory.
    Man(man::Options),
}

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
struct BenchCommand {
    #[command(subcommand)]
    scheduler: Option<Scheduler>,
    #[command(flatten)]
    options: bench::Options,
}

#[derive(Subcommand)]
enum Scheduler {
    /// Measures the scheduler with an API server in memory, modelled on upstream's scheduler_perf.
    Sched(bench_scheduler::Options),
}

fn main() -> ExitCode {
    // A shim needs no runtime and no threads.
    if runtime::shim::is_requested() {
        return runtime::shim::main();
    }
    // The program of the built-in image.
    if std::env::args_os().nth(1).is_some_and(|a| a == "demo-app") {
        let args: Vec<String> = std::env::args_os().skip(2).map(|a| a.to_string_lossy().into_owned()).collect();
        return node::demo::main(&args);
    }
    // `kemudi kubectl …`, or a link named kubectl.
    let own = std::env::args_os().next().map(std::path::PathBuf::from);
    if own.as_deref().and_then(std::path::Path::file_name).is_some_and(|n| n == "kubectl") {
        return kubectl::main(std::env::args_os().collect());
    }
    if std::env::args_os().nth(1).is_some_and(|a| a == "kubectl") {
        return kubectl::main(std::env::args_os().skip(1).collect());
    }
    // The CNI plugin, which container runtimes execute by a link in the data directory of the node.
    let name = own.as_deref().and_then(std::path::Path::file_name).and_then(std::ffi::OsStr::to_str);
    if let Some(plugin @ (network::cni::PLUGIN | network::cni::LOOPBACK)) = name {
        return ExitCode::from(network::cni::plugin(plugin));
    }
    // Programs must not inherit descriptors of the parent process.
    if let Err(e) = runtime::descriptors::close_on_exec() {
        crate::output::note!("error: marking inherited descriptors close-on-exec: {e}");
        return ExitCode::FAILURE;
    }
    let matches = Cli::command().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|e| e.exit());
    let result = match cli.command {
        Command::Up(mut o) => {
            o.server.shown = matches.subcommand().map(|(_, m)| api::shown(m)).unwrap_or_default();
            up::up(o)
        }
        Command::Server(mut o) => {
            o.shown = matches.subcommand().map(|(_, m)| api::shown(m)).unwrap_or_default();
            up::serve(o, up::Local::None)
        }
        Command::Agent(o) => join::run(o),
        Command::Token(c) => return token::main(&c),
        Command::Node(c) => return node_command::main(&c),
        Command::Down(o) => down::down(&o),
        Command::Backup(o) => up::block_on(backup::backup(&o)),
        Command::Restore(o) => up::block_on(backup::restore(&o)),
        Command::Bench(BenchCommand { scheduler: Some(Scheduler::Sched(o)), .. }) => {
            // As a server does.
            up::no_huge_pages();
            return bench_scheduler::main(&o);
        }
        Command::Bench(b) => return bench::main(&b.options),
        Command::Sim(o) => return sim::main(&o),
        Command::Image(c) => return images::main(&c),
        Command::Man(o) => return man::main(&o, Cli::command()),
        Command::Kubectl => return kubectl::main(std::env::args_os().skip(1).collect()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            crate::output::note!("error: {}", with_causes(&e));
            ExitCode::FAILURE
        }
    }
}

/// An error with its causes, unless its text already contains them.
fn with_causes(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut cause = e.source();
    while let Some(c) = cause {
        let more = c.to_string();
        if !text.contains(&more) {
            text += &format!(": {more}");
        }
        cause = c.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::Cli;
    use clap::CommandFactory;

    /// Flags of different modules must not conflict.
    #[test]
    fn the_command_line_is_valid() {
        Cli::command().debug_assert();
    }
}
