//! The command line: which command runs, and with which flags.

mod cause;
mod order;
mod parse_stop;
mod shared;

pub use shared::profile;

use crate::commands::*;
use crate::error::Error;
use crate::flags::{GlobalFlags, go_bool};
use clap::{ArgAction, Args as _, FromArgMatches, Subcommand};
use std::ffi::OsString;

macro_rules! name {
    ($module:ident) => {
        stringify!($module)
    };
    ($module:ident $name:literal) => {
        $name
    };
}

macro_rules! commands {
    ($(#[doc = $about:literal] $variant:ident($module:ident $($name:literal)?),)*) => {
        #[derive(Subcommand, Debug)]
        pub enum Command {
            $(#[doc = $about] $variant($module::Arguments),)*
        }

        impl Command {
            pub async fn run(self, k: &mut crate::kube::Kube) -> crate::error::Result {
                match self {
                    $(Self::$variant(a) => Box::pin($module::run(a, k)).await,)*
                }
            }
        }

        /// Name, description, and the function that adds the arguments.
        const COMMANDS: &[(&str, &str, fn(clap::Command) -> clap::Command)] =
            &[$((name!($module $($name)?), $about, $module::Arguments::augment_args),)*];
    };
}

commands! {
    /// List objects.
    Get(get),
    /// Create or update objects to match manifests.
    Apply(apply),
    /// Create objects from files or arguments.
    Create(create),
    /// Delete objects.
    Delete(delete),
    /// Show the details of objects, with related objects and events.
    Describe(describe),
    /// Run a command in a container.
    Exec(exec),
    /// Print the log of a container.
    Logs(logs),
    /// Show and control the rollout of a workload.
    Rollout(rollout),
    /// Set the number of replicas.
    Scale(scale),
    /// Wait until objects meet a condition.
    Wait(wait),
    /// Set or remove annotations.
    Annotate(annotate),
    /// List the resource types of the server.
    ApiResources(api_resources "api-resources"),
    /// List the group versions of the server.
    ApiVersions(api_versions "api-versions"),
    /// Attach to the process of a running container.
    Attach(attach),
    /// Check permissions, and show the current user.
    Auth(auth),
    /// Create an autoscaler for a workload.
    Autoscale(autoscale),
    /// Show which manager owns each field of an object, and since when.
    Blame(blame),
    /// Approve or deny certificate signing requests.
    Certificate(certificate),
    /// Show the addresses of the control plane.
    ClusterInfo(cluster_info "cluster-info"),
    /// Print a completion script for a shell.
    Completion(completion),
    /// Show and change the kubeconfig.
    Config(config),
    /// Stop scheduling new pods to a node.
    Cordon(cordon),
    /// Copy files to and from containers.
    Cp(cp),
    /// Debug a pod or node with an additional container.
    Debug(debug),
    /// Show what apply would change.
    Diff(diff),
    /// Evict the pods of a node, and schedule no new ones to it.
    Drain(drain),
    /// Edit objects in an editor.
    Edit(edit),
    /// List events.
    Events(events),
    /// Describe the fields of a kind.
    Explain(explain),
    /// Create a service for a workload, pod or service.
    Expose(expose),
    /// Show and change the user preferences: aliases and default flags.
    Kuberc(kuberc),
    /// Build a kustomization directory and print its objects.
    Kustomize(kustomize),
    /// Set or remove labels.
    Label(label),
    /// List the flags that every command has.
    Options(options),
    /// Change fields of an object with a patch.
    Patch(patch),
    /// List the plugins in PATH.
    Plugin(plugin),
    /// Forward local ports to a pod.
    PortForward(port_forward "port-forward"),
    /// Serve the API on a local port, with the credentials of the kubeconfig.
    Proxy(proxy),
    /// Replace objects by those in files.
    Replace(replace),
    /// Run an image in a pod.
    Run(run),
    /// Change images, resources, environment and other fields of workloads.
    Set(set),
    /// Change the taints of nodes.
    Taint(taint),
    /// Show the CPU and memory usage of nodes and pods.
    Top(top),
    /// Allow new pods on a node again.
    Uncordon(uncordon),
    /// Undo an atomic apply.
    Undo(undo),
    /// Show the versions of client and server.
    Version(version),
    /// Explain why an object is pending, restarting, not ready, stuck or not deleted.
    Why(why),
}

/// Parses a command line. The first argument is the name of the program.
///
/// # Errors
/// Help is requested, or the command line is invalid.
pub fn parse(args: Vec<OsString>) -> Result<(GlobalFlags, Command), ParseStop> {
    let words: Vec<String> = args.iter().skip(1).map(|a| a.to_string_lossy().into_owned()).collect();
    let with = |c: clap::Command| {
        let ordered = order::subcommands_first(&args, &c);
        let known = c.clone();
        let m = c.try_get_matches_from(ordered)?;
        shared::reject_missing(&m, &words)?;
        let mut global = GlobalFlags::from_arg_matches(&m)?;
        let given = |m: &clap::ArgMatches| -> Vec<String> {
            let on_line = |id: &&clap::Id| m.value_source(id.as_str()) == Some(clap::parser::ValueSource::CommandLine);
            let mut all: Vec<String> = m.ids().filter(on_line).map(ToString::to_string).collect();
            all.sort();
            all
        };
        (global.given, global.own) = (given(&m), given(shared::innermost(&m)));
        let (recorded, sets_cause) = shared::record(&m);
        global.dry_run = shared::innermost(&m).try_get_one::<String>("dry_run").ok().flatten().cloned();
        global.all_namespaces =
            shared::innermost(&m).try_get_one::<bool>("all_namespaces").ok().flatten() == Some(&true);
        global.stdin_in_use = shared::reads_stdin(&m);
        global.recorded = recorded;
        global.cause = sets_cause.then(|| cause::describe(&args, &known));
        Ok((global, Command::from_arg_matches(&m)?))
    };
    with(partial_command(&words)).or_else(|_| with(command())).map_err(|e: clap::Error| {
        let flag_error =
            (e.kind() == clap::error::ErrorKind::DisplayHelp).then(|| parse_stop::error_beside_help(&args)).flatten();
        let e = flag_error.unwrap_or(e);
        let ordered = order::subcommands_first(&args, &command());
        let words: Vec<String> = ordered.iter().skip(1).map(|a| a.to_string_lossy().into_owned()).collect();
        parse_stop::render(&e, &words)
    })
}

/// Why a command line runs no command.
#[derive(Debug)]
pub enum ParseStop {
    Help(String),
    Error(Error),
}

/// Builds the parser for all commands.
pub fn command() -> clap::Command {
    tree(|_| true)
}

/// Builds the parser for the commands that `words` name. It accepts the same lines as [`command`] in a tenth of the time,
/// but knows no aliases: parse with [`command`] if it fails.
pub fn partial_command(words: &[impl AsRef<str>]) -> clap::Command {
    tree(|name| words.iter().any(|w| w.as_ref() == name))
}

fn tree(included: impl Fn(&str) -> bool) -> clap::Command {
    // Flattened flag groups overwrite the description, so it is set after them.
    let mut top = GlobalFlags::augment_args(clap::Command::new("kubectl"))
        .about("Controls a Kubernetes cluster.")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .next_help_heading(None)
        .disable_version_flag(true);
    accept_go_syntax(&mut top);
    for (name, about, flags) in COMMANDS {
        if included(name) {
            let mut c = flags(clap::Command::new(*name)).about(about.trim().trim_end_matches('.')).long_about(None);
            accept_go_syntax(&mut c);
            shared::adjust(&mut c);
            top = top.subcommand(c);
        }
    }
    top
}

/// Makes flags accept Go's syntax: `--flag=false`, and values that begin with a dash.
fn accept_go_syntax(c: &mut clap::Command) {
    let command = std::mem::take(c);
    let mut changed = command.args_override_self(true).mut_args(|a| {
        if matches!(a.get_action(), ArgAction::SetTrue) {
            a.action(ArgAction::Set)
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true")
                .default_value("false")
                .value_parser(go_bool)
                .hide_default_value(true)
                .hide_possible_values(true)
        } else if !a.is_positional() && is_bool(&a) {
            a.value_parser(go_bool).hide_possible_values(true)
        } else if !a.is_positional()
            && matches!(a.get_action(), ArgAction::Set | ArgAction::Append)
            && !a.is_require_equals_set()
        {
            a.allow_hyphen_values(true)
        } else {
            a
        }
    });
    for s in changed.get_subcommands_mut() {
        accept_go_syntax(s);
    }
    *c = changed;
}

/// Whether the flag takes a boolean value.
fn is_bool(a: &clap::Arg) -> bool {
    a.get_action().takes_values() && a.get_value_parser().type_id() == clap::builder::ValueParser::bool().type_id()
}

#[cfg(test)]
mod tests {
    use super::{command, partial_command};

    /// A command has the same flags, its subcommands too, in a partial and in the complete parser.
    #[test]
    fn partial_parser_has_the_flags_of_the_complete_one() {
        let shown = |c: &mut clap::Command| {
            let subcommand_help: Vec<String> =
                c.get_subcommands_mut().map(|s| s.render_long_help().to_string()).collect();
            format!("{}{subcommand_help:?}", c.render_long_help())
        };
        for one in command().get_subcommands_mut() {
            let name = one.get_name().to_owned();
            let mut alone = partial_command(&["-n", &name]);
            assert_eq!(alone.get_subcommands().count(), 1, "{name}");
            assert_eq!(shown(alone.find_subcommand_mut(&name).unwrap()), shown(one), "{name}");
        }
        assert_eq!(partial_command(&["nothing"]).get_subcommands().count(), 0);
    }
}
