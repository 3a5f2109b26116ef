//! The command line: global flags, and which command is meant.

use crate::commands::*;
use crate::error::Error;
use crate::flags::go_bool;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgAction, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use std::ffi::OsString;

/// Flags that every command has.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Global options")]
pub struct GlobalFlags {
    /// The kubeconfig file to use, in place of KUBECONFIG and ~/.kube/config.
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    pub kubeconfig: String,
    /// The context of the kubeconfig to use.
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    pub context: String,
    /// The cluster of the kubeconfig to use.
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    pub cluster: String,
    /// The user of the kubeconfig to use.
    #[arg(long, global = true)]
    pub user: Vec<String>,
    /// The namespace to work in.
    #[arg(short = 'n', long, global = true, default_value = "", hide_default_value = true)]
    pub namespace: String,
    /// Address of the API server.
    #[arg(short = 's', long, global = true, default_value = "", hide_default_value = true)]
    pub server: String,
    /// Bearer token.
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    pub token: String,
    /// File with the certificates to trust.
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    pub certificate_authority: String,
    /// File with a client certificate.
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    pub client_certificate: String,
    /// File with the key of the client certificate.
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    pub client_key: String,
    /// Trust any certificate of the server. Whoever is in between can read and change everything.
    #[arg(long, global = true)]
    pub insecure_skip_tls_verify: bool,
    /// The name that the server's certificate must carry.
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    pub tls_server_name: String,
    #[arg(long, global = true, default_value = "", hide = true)]
    pub username: String,
    #[arg(long, global = true, default_value = "", hide = true)]
    pub password: String,
    /// The user to act as.
    #[arg(long = "as", global = true, default_value = "", hide_default_value = true)]
    pub impersonate: String,
    /// A group to act as; may be repeated.
    #[arg(long, global = true)]
    pub as_group: Vec<String>,
    /// The UID to act as.
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    pub as_uid: String,
    /// KEY=VALUE of the user to act as; may be repeated.
    #[arg(long, global = true)]
    pub as_user_extra: Vec<String>,
    /// A file with aliases and defaults of flags, in place of ~/.kube/kuberc.
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    pub kuberc: String,
    /// Answers are never compressed here.
    #[arg(long, global = true)]
    pub disable_compression: bool,
    /// How long one request may take; 0 is for ever.
    #[arg(long, global = true, default_value = "0", hide_default_value = true)]
    pub request_timeout: String,
    /// Where answers about the server's resources are kept.
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    pub cache_dir: String,
    /// How much to say about what goes on.
    #[arg(short = 'v', long = "v", global = true, default_value = "0", hide_default_value = true)]
    pub verbosity: i32,
    /// Refuse a server of another version than this program.
    #[arg(long, global = true)]
    pub match_server_version: bool,
    /// A warning of the server is an error.
    #[arg(long, global = true)]
    pub warnings_as_errors: bool,
    /// Which of these were on the command line, even if empty, by the names of the fields.
    #[arg(skip)]
    pub given: Vec<String>,
}

#[derive(Parser, Debug)]
#[command(name = "kubectl", about = "Controls a Kubernetes cluster.", disable_help_subcommand = false)]
struct Cli {
    #[command(flatten)]
    global: GlobalFlags,
    #[command(subcommand)]
    command: Command,
}

macro_rules! commands {
    ($($(#[$attribute:meta])* $variant:ident($module:ident),)*) => {
        #[derive(Subcommand, Debug)]
        pub enum Command {
            $($(#[$attribute])* $variant($module::Arguments),)*
        }

        impl Command {
            pub async fn run(self, k: &mut crate::kube::Kube) -> crate::error::Result {
                match self {
                    $(Self::$variant(a) => Box::pin($module::run(a, k)).await,)*
                }
            }
        }
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
    #[command(name = "api-resources")]
    ApiResources(api_resources),
    /// List the group versions of the server.
    #[command(name = "api-versions")]
    ApiVersions(api_versions),
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
    #[command(name = "cluster-info")]
    ClusterInfo(cluster_info),
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
    #[command(name = "kuberc")]
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
    #[command(name = "port-forward")]
    PortForward(port_forward),
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
    let matches = command().try_get_matches_from(args);
    let parsed = matches.and_then(|m| {
        let mut c = Cli::from_arg_matches(&m)?;
        let given = |id: &&clap::Id| m.value_source(id.as_str()) == Some(clap::parser::ValueSource::CommandLine);
        c.global.given = m.ids().filter(given).map(ToString::to_string).collect();
        Ok(c)
    });
    match parsed {
        Ok(c) => Ok((c.global, c.command)),
        Err(e) => Err(refuse(&e, &words)),
    }
}

/// Why no command is run: help was asked for, or the line is wrong.
#[derive(Debug)]
pub enum Refusal {
    Help(String),
    Wrong(Error),
}

pub fn command() -> clap::Command {
    let mut c = Cli::command().args_override_self(true).disable_version_flag(true);
    relax(&mut c);
    c
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

/// The command that words lead to (`kubectl create job`), and the words behind it that are no flags.
fn place(words: &[String]) -> (String, Vec<&str>) {
    let mut at = command();
    let mut path = String::from("kubectl");
    let mut rest = Vec::new();
    let mut words = words.iter();
    while let Some(w) = words.next() {
        if w == "--" {
            break;
        }
        if let Some(flag) = w.strip_prefix('-').filter(|f| !f.is_empty()) {
            let takes = |a: &clap::Arg| {
                let is = match flag.strip_prefix('-') {
                    Some(long) => a.get_long() == Some(long),
                    None => flag.len() == 1 && a.get_short() == flag.chars().next(),
                };
                is && a.get_action().takes_values() && !a.is_require_equals_set()
            };
            if at.get_arguments().any(takes) || Cli::command().get_arguments().any(takes) {
                words.next();
            }
            continue;
        }
        let sub = at.get_subcommands().find(|s| s.get_name() == w || s.get_all_aliases().any(|a| a == w)).cloned();
        match sub.filter(|_| rest.is_empty()) {
            Some(s) => {
                path.push(' ');
                path.push_str(s.get_name());
                at = s;
            }
            None => rest.push(w.as_str()),
        }
    }
    (path, rest)
}

/// The flags that are not there but have to be, in quotes.
fn missing_flags(e: &clap::Error) -> Vec<String> {
    let all = match e.get(ContextKind::InvalidArg) {
        Some(ContextValue::Strings(s)) => s.clone(),
        Some(ContextValue::String(s)) => vec![s.clone()],
        _ => Vec::new(),
    };
    let long = all.iter().filter_map(|a| a.strip_prefix("--"));
    let mut out: Vec<String> = long.map(|a| format!("{:?}", a.split([' ', '=']).next().unwrap_or_default())).collect();
    out.sort();
    out
}

/// Why a number is none, in the words of Go.
fn as_go(why: &str, value: &str) -> String {
    if why.contains("invalid digit") || why.contains("empty string") || why.contains("cannot parse integer") {
        return format!("strconv.ParseInt: parsing {value:?}: invalid syntax");
    }
    if why.contains("too large") || why.contains("too small") || why.contains("is not in") {
        return format!("strconv.ParseInt: parsing {value:?}: value out of range");
    }
    why.to_owned()
}

/// The letter of a flag of the command that is meant.
fn short_of(words: &[String], flag: &str) -> Option<char> {
    let mut at = command();
    let global = at.get_arguments().find(|a| a.get_long() == flag.strip_prefix("--")).and_then(clap::Arg::get_short);
    for w in words {
        match at.find_subcommand(w).cloned() {
            Some(s) => at = s,
            None => break,
        }
    }
    let own = at.get_arguments().find(|a| a.get_long() == flag.strip_prefix("--"));
    own.and_then(clap::Arg::get_short).or(global)
}

fn refuse(e: &clap::Error, words: &[String]) -> Refusal {
    let (command, rest) = place(words);
    let see_for_help = format!("See '{command} -h' for help and examples");
    let generates = command.starts_with("kubectl create ");
    let of = |kind: ContextKind| match e.get(kind) {
        Some(ContextValue::String(s)) => s.clone(),
        Some(ContextValue::Strings(s)) => s.join(" "),
        _ => String::new(),
    };
    let see = format!("See '{command} --help' for usage.");
    let arg = of(ContextKind::InvalidArg);
    // `--flag <VALUE>` is how the parser names a flag.
    let flag = arg.split([' ', '=', '[']).next().unwrap_or_default().to_owned();
    let text = match e.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand if command != "kubectl" => {
            return Refusal::Wrong(Error::Bare(e.to_string()));
        }
        ErrorKind::DisplayHelp | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::DisplayVersion => {
            return Refusal::Help(e.to_string());
        }
        ErrorKind::MissingRequiredArgument if generates && rest.is_empty() && missing_flags(e).is_empty() => {
            format!("exactly one NAME is required, got 0\n{see_for_help}")
        }
        ErrorKind::UnknownArgument if generates && !flag.starts_with('-') => {
            format!("exactly one NAME is required, got {}\n{see_for_help}", rest.len())
        }
        ErrorKind::UnknownArgument
            if !flag.starts_with('-')
                && matches!(command.as_str(), "kubectl api-resources" | "kubectl api-versions") =>
        {
            format!("unexpected arguments: [{}]\n{see_for_help}", rest.join(" "))
        }
        ErrorKind::UnknownArgument if flag.starts_with("--") => format!("unknown flag: {flag}\n{see}"),
        ErrorKind::UnknownArgument if flag.starts_with('-') => {
            let c = flag.chars().nth(1).unwrap_or('-');
            let given = words.iter().find(|p| p.starts_with('-') && !p.starts_with("--") && p.contains(c));
            format!("unknown shorthand flag: '{c}' in {}\n{see}", given.unwrap_or(&flag))
        }
        ErrorKind::InvalidSubcommand => {
            let word = of(ContextKind::InvalidSubcommand);
            match command.as_str() {
                "kubectl" => format!("unknown command {word:?} for \"kubectl\""),
                "kubectl create" | "kubectl apply" => {
                    format!("Unexpected args: [{}]\n{see_for_help}", rest.join(" "))
                }
                _ if rest.is_empty() => format!("unknown command {word:?}\n{see_for_help}"),
                _ => format!("unknown command {:?}\n{see_for_help}", rest.join(" ")),
            }
        }
        ErrorKind::MissingRequiredArgument => {
            let flags = missing_flags(e);
            if flags.is_empty() {
                format!("{arg} must be specified\n{see}")
            } else {
                format!("required flag(s) {} not set", flags.join(", "))
            }
        }
        ErrorKind::ValueValidation | ErrorKind::InvalidValue => {
            let value = of(ContextKind::InvalidValue);
            if value.is_empty() {
                format!("flag needs an argument: {flag}\n{see}")
            } else {
                let why = std::error::Error::source(e).map(|s| format!(": {}", as_go(&s.to_string(), &value)));
                let short = short_of(words, &flag).map(|s| format!("-{s}, ")).unwrap_or_default();
                let flag = format!("{short}{flag}");
                format!("invalid argument {value:?} for {flag:?} flag{}\n{see}", why.unwrap_or_default())
            }
        }
        _ => {
            let all = e.to_string();
            let line = all.lines().next().unwrap_or_default();
            format!("{}\n{see}", line.strip_prefix("error: ").unwrap_or(line))
        }
    };
    Refusal::Wrong(Error::Text(text))
}
