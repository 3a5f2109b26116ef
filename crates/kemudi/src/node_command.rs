//! `kemudi node`: stops, starts, cuts off and heals the nodes of `kemudi up --nodes`, and shuts down a node with its pods.

use crate::images::DataDir;
use crate::machine::{self, Request, State};
use crate::node_shutdown;
use crate::output::{note, print_line};
use std::path::Path;
use std::process::ExitCode;

#[derive(clap::Subcommand)]
pub enum Command {
    /// Lists the nodes.
    #[command(alias = "ls")]
    List {
        #[command(flatten)]
        directory: DataDir,
    },
    /// Ends all processes of a node, as if its machine had lost its power.
    Stop(Target),
    /// Starts a node that was stopped.
    Start(Target),
    /// Cuts a node off from the network: its pods run on, and it reaches neither the API server nor other nodes.
    Cut(Target),
    /// Connects a node to the network again.
    Heal(Target),
    /// Ends the pods of the node of this data directory in the order of their priority, and then the process of the node
    /// (`shutdownGracePeriod` in the KubeletConfiguration). Waits for its end.
    Shutdown {
        #[command(flatten)]
        directory: DataDir,
    },
}

#[derive(clap::Args)]
pub struct Target {
    /// Name of the node.
    node: String,
    #[command(flatten)]
    directory: DataDir,
}

pub fn main(command: &Command) -> ExitCode {
    let (request, data_dir): (_, &Path) = match command {
        Command::List { directory } => (Request::List, &directory.data_dir),
        Command::Stop(t) => (Request::Stop(t.node.clone()), &t.directory.data_dir),
        Command::Start(t) => (Request::Start(t.node.clone()), &t.directory.data_dir),
        Command::Cut(t) => (Request::Cut(t.node.clone()), &t.directory.data_dir),
        // Of several nodes, none listens for it.
        Command::Shutdown { directory } => (Request::List, &directory.data_dir),
        Command::Heal(t) => (Request::Heal(t.node.clone()), &t.directory.data_dir),
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => {
            note!("error: starting the runtime: {e}");
            return ExitCode::FAILURE;
        }
    };
    let sent = runtime.block_on(machine::send(data_dir, &request));
    if matches!(command, Command::Shutdown { .. }) {
        if matches!(sent, Ok(Ok(_))) {
            note!(
                "error: the nodes of `kemudi up --nodes` cannot be shut down one by one; `kemudi node stop NAME` ends one at once"
            );
            return ExitCode::FAILURE;
        }
        return node_shutdown::main(data_dir);
    }
    match sent {
        Ok(Ok(nodes)) => {
            if matches!(command, Command::List { .. }) {
                print_line!("{}", table(&nodes));
            }
            ExitCode::SUCCESS
        }
        Ok(Err(message)) => {
            note!("error: {message}");
            ExitCode::FAILURE
        }
        Err(e) => {
            let reason = match e.kind() {
                std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => {
                    "no `kemudi up --nodes` runs there".into()
                }
                _ => e.to_string(),
            };
            note!("error: {}: {reason}", data_dir.display());
            ExitCode::FAILURE
        }
    }
}

fn table(nodes: &[State]) -> String {
    let width = nodes.iter().map(|n| n.name.len()).max().unwrap_or(0).max(4);
    let mut lines = vec![format!("{:width$}   ADDRESS           STATE     NETWORK   AGENT", "NAME")];
    for node in nodes {
        let state = if node.is_running { "running" } else { "stopped" };
        let network = if node.is_cut { "cut" } else { "up" };
        let agent = node.pid.map_or_else(|| "-".to_owned(), |pid| format!("pid {pid}"));
        let address = node.addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        lines.push(format!("{:width$}   {address:15}   {state:7}   {network:7}   {agent}", node.name));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_listed() {
        let node = |name: &str, is_running, is_cut, pid| State {
            name: name.into(),
            addresses: vec!["10.89.0.11".parse().unwrap()],
            is_running,
            is_cut,
            pid,
        };
        let text = table(&[node("node-1", true, false, Some(7)), node("node-2", false, true, None)]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "NAME     ADDRESS           STATE     NETWORK   AGENT");
        assert_eq!(lines[1], "node-1   10.89.0.11        running   up        pid 7");
        assert_eq!(lines[2], "node-2   10.89.0.11        stopped   cut       -");
    }
}
