//! The command line: global flags, and which command is meant.

mod cause;
mod order;
mod refusal;
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

        /// Name, what it is for, and what adds its flags.
        const COMMANDS: &[(&str, &str, fn(clap::Command) -> clap::Command)] =
            &[$((name!($module $($name)?), $about, $module::Arguments::augment_args),)*];
    };
}

commands! {
    /// Show objects.
    Get(get),
    /// Make the cluster's objects what files say.
    Apply(apply),
    /// Create objects from files or arguments.
    Create(create),
    /// Delete objects.
    Delete(delete),
    /// Show objects with what belongs to them.
    Describe(describe),
    /// Run a command in a container.
    Exec(exec),
    /// Print what a container wrote.
    Logs(logs),
    /// See and steer the rollout of a workload.
    Rollout(rollout),
    /// Set the number of replicas.
    Scale(scale),
    /// Wait for a condition of objects.
    Wait(wait),
    /// Set or remove annotations.
    Annotate(annotate),
    /// List the resources of the server.
    ApiResources(api_resources "api-resources"),
    /// List the group versions of the server.
    ApiVersions(api_versions "api-versions"),
    /// Join the streams of a container that runs.
    Attach(attach),
    /// Ask what one may do, and who one is.
    Auth(auth),
    /// Let the number of replicas follow the load.
    Autoscale(autoscale),
    /// Show who wrote which field of an object, and when.
    Blame(blame),
    /// Approve or deny signing requests.
    Certificate(certificate),
    /// Show where the cluster is.
    ClusterInfo(cluster_info "cluster-info"),
    /// Print what a shell needs to complete command lines.
    Completion(completion),
    /// See and change the kubeconfig.
    Config(config),
    /// Take no more pods on a node.
    Cordon(cordon),
    /// Copy files to and from containers.
    Cp(cp),
    /// Look into a pod or node with a container of one's own.
    Debug(debug),
    /// Show what apply would change.
    Diff(diff),
    /// Take a node's pods away, and give it no more.
    Drain(drain),
    /// Change objects in an editor.
    Edit(edit),
    /// List events.
    Events(events),
    /// Show the fields of a kind.
    Explain(explain),
    /// Make a service for a workload or pod.
    Expose(expose),
    /// See and change aliases and defaults of one's own.
    Kuberc(kuberc),
    /// Build a kustomization directory and print its objects.
    Kustomize(kustomize),
    /// Set or remove labels.
    Label(label),
    /// List the flags that every command has.
    Options(options),
    /// Change fields of an object.
    Patch(patch),
    /// See which plugins there are.
    Plugin(plugin),
    /// Lead local ports to ports of a pod.
    PortForward(port_forward "port-forward"),
    /// Serve the API on a port of this machine.
    Proxy(proxy),
    /// Replace objects by what files say.
    Replace(replace),
    /// Run an image in a pod.
    Run(run),
    /// Change images of a workload.
    Set(set),
    /// Change the taints of nodes.
    Taint(taint),
    /// Show what nodes and pods use.
    Top(top),
    /// Take pods on a node again.
    Uncordon(uncordon),
    /// Take an atomic apply back.
    Undo(undo),
    /// Show the versions of client and server.
    Version(version),
}

/// Parses a command line, the program's name first.
pub fn parse(args: Vec<OsString>) -> Result<(GlobalFlags, Command), Refusal> {
    let words: Vec<String> = args.iter().skip(1).map(|a| a.to_string_lossy().into_owned()).collect();
    let with = |c: clap::Command| {
        let ordered = order::subcommands_first(&args, &c);
        let known = c.clone();
        let m = c.try_get_matches_from(ordered)?;
        shared::withheld(&m, &words)?;
        let mut global = GlobalFlags::from_arg_matches(&m)?;
        let given = |m: &clap::ArgMatches| -> Vec<String> {
            let on_line = |id: &&clap::Id| m.value_source(id.as_str()) == Some(clap::parser::ValueSource::CommandLine);
            let mut all: Vec<String> = m.ids().filter(on_line).map(ToString::to_string).collect();
            all.sort();
            all
        };
        (global.given, global.own) = (given(&m), given(shared::deepest(&m)));
        let (recorded, wanted) = shared::record(&m);
        global.dry_run = shared::deepest(&m).try_get_one::<String>("dry_run").ok().flatten().cloned();
        global.all_namespaces = shared::deepest(&m).try_get_one::<bool>("all_namespaces").ok().flatten() == Some(&true);
        global.stdin_in_use = shared::reads_stdin(&m);
        global.recorded = recorded;
        global.cause = wanted.then(|| cause::describe(&args, &known));
        Ok((global, Command::from_arg_matches(&m)?))
    };
    with(lean(&words)).or_else(|_| with(command())).map_err(|e: clap::Error| {
        let beside = (e.kind() == clap::error::ErrorKind::DisplayHelp).then(|| refusal::beside_help(&args)).flatten();
        let e = beside.unwrap_or(e);
        let ordered = order::subcommands_first(&args, &command());
        let words: Vec<String> = ordered.iter().skip(1).map(|a| a.to_string_lossy().into_owned()).collect();
        refusal::refuse(&e, &words)
    })
}

/// Why no command is run: help was asked for, or the line is wrong.
#[derive(Debug)]
pub enum Refusal {
    Help(String),
    Wrong(Error),
}

/// The whole command line: every command with its flags.
pub fn command() -> clap::Command {
    tree(|_| true)
}

/// The commands that words may mean: what parses with it parses with [`command`] alike, for a tenth of the time. Names are
/// looked at, not aliases; whoever finds nothing here asks the whole.
pub fn lean(words: &[impl AsRef<str>]) -> clap::Command {
    tree(|name| words.iter().any(|w| w.as_ref() == name))
}

fn tree(wanted: impl Fn(&str) -> bool) -> clap::Command {
    // Sets of flags bring texts of their own, hence what a command is for comes behind them.
    let mut top = GlobalFlags::augment_args(clap::Command::new("kubectl"))
        .about("Controls a Kubernetes cluster.")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .next_help_heading(None)
        .disable_version_flag(true);
    relax(&mut top);
    for (name, about, flags) in COMMANDS {
        if wanted(name) {
            let mut c = flags(clap::Command::new(*name)).about(about.trim().trim_end_matches('.')).long_about(None);
            relax(&mut c);
            shared::adjust(&mut c);
            top = top.subcommand(c);
        }
    }
    top
}

/// Gives flags the manners of Go's: `--flag=false`, values that begin with a dash.
fn relax(c: &mut clap::Command) {
    let taken = std::mem::take(c);
    let mut changed = taken.args_override_self(true).mut_args(|a| {
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
        relax(s);
    }
    *c = changed;
}

/// Whether the value of a flag is true or false, in the words of the parser alone.
fn is_bool(a: &clap::Arg) -> bool {
    a.get_action().takes_values() && a.get_value_parser().type_id() == clap::builder::ValueParser::bool().type_id()
}

#[cfg(test)]
mod tests {
    use super::{command, lean};

    /// A command has the same flags, below it too, whether it is built alone or with all.
    #[test]
    fn a_command_built_alone_is_the_one_of_the_whole() {
        let shown = |c: &mut clap::Command| {
            let below: Vec<String> = c.get_subcommands_mut().map(|s| s.render_long_help().to_string()).collect();
            format!("{}{below:?}", c.render_long_help())
        };
        for one in command().get_subcommands_mut() {
            let name = one.get_name().to_owned();
            let mut alone = lean(&["-n", &name]);
            assert_eq!(alone.get_subcommands().count(), 1, "{name}");
            assert_eq!(shown(alone.find_subcommand_mut(&name).unwrap()), shown(one), "{name}");
        }
        assert_eq!(lean(&["nothing"]).get_subcommands().count(), 0);
    }
}
