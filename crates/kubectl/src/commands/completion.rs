//! `kubectl completion`: prints scripts that call `kubectl __complete`, and serves that call: commands and flags of the
//! parser; types, names and namespaces of the server.
//!
//! The protocol is cobra's, which other tools use as well: a line per candidate with its description, and a number of
//! directives for the shell. Left out: ports, and files in containers.

use super::pods;
use crate::cli::command;
use crate::error::{Result, text};
use crate::flags::GlobalFlags;
use crate::kube::Kube;
use crate::resource::Info;
use crate::shell::Shell;
use clap::FromArgMatches as _;
use client::ListOptions;
use client::client::PARTIAL_METADATA_LIST;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// The shell: bash, zsh, fish or powershell.
    pub shell: Vec<String>,
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    const SEE: &str = "See 'kubectl completion -h' for help and examples";
    let script = match a.shell.as_slice() {
        [] => return text(format!("Shell not specified.\n{SEE}")),
        [s] => match s.as_str() {
            "bash" => include_str!("completion/bash"),
            "zsh" => include_str!("completion/zsh"),
            "fish" => include_str!("completion/fish"),
            "powershell" => include_str!("completion/powershell"),
            other => return text(format!("Unsupported shell type {other:?}.\n{SEE}")),
        },
        _ => return text(format!("Too many arguments. Expected only the shell type.\n{SEE}")),
    };
    k.out.write(script.as_bytes());
    Ok(())
}

/// Directives for the shell (cobra's `ShellCompDirective`).
const NO_SPACE: u8 = 2;
const NO_FILES: u8 = 4;
/// The candidates are file extensions.
const FILE_EXTENSIONS: u8 = 8;

#[derive(Default)]
struct Completion {
    /// Candidates with their descriptions.
    found: Vec<(String, String)>,
    directive: u8,
}

impl Completion {
    fn words(all: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let found = all.into_iter().map(|w| (w.into(), String::new())).collect();
        Self { found, directive: NO_FILES }
    }

    fn files() -> Self {
        Self::default()
    }

    fn nothing() -> Self {
        Self { found: Vec::new(), directive: NO_FILES }
    }
}

/// What the arguments of a command are.
#[derive(Clone, Copy, PartialEq)]
enum ArgumentKind {
    /// TYPE NAME…, TYPE/NAME….
    Objects,
    /// TYPE.
    Types,
    /// NAME… of one type.
    Names(&'static str),
    /// A type of these, then names of it.
    Kinds(&'static [&'static str]),
    /// A single POD or TYPE/NAME.
    Pod,
    /// A POD or TYPE/NAME, then one of its containers.
    Logs,
    /// Local files, or files in pods.
    Copies,
    /// What the shell completes itself.
    Files,
    /// Names from the kubeconfig.
    Kubeconfig(&'static str),
    Shells,
    Nothing,
}

fn argument_kind(path: &str) -> ArgumentKind {
    match path {
        "get"
        | "describe"
        | "delete"
        | "edit"
        | "label"
        | "annotate"
        | "patch"
        | "wait"
        | "debug"
        | "apply view-last-applied"
        | "apply edit-last-applied" => ArgumentKind::Objects,
        "set image" => ArgumentKind::Kinds(&[
            "daemonsets",
            "deployments",
            "pods",
            "cronjobs",
            "replicasets",
            "replicationcontrollers",
            "statefulsets",
        ]),
        p if p.starts_with("set ") => ArgumentKind::Files,
        "rollout pause" | "rollout resume" => ArgumentKind::Kinds(&["deployment"]),
        p if p.starts_with("rollout ") => ArgumentKind::Kinds(&["deployment", "daemonset", "statefulset"]),
        "scale" | "autoscale" => {
            ArgumentKind::Kinds(&["deployment", "replicaset", "replicationcontroller", "statefulset"])
        }
        "expose" => ArgumentKind::Kinds(&["pod", "service", "replicationcontroller", "deployment", "replicaset"]),
        "taint" => ArgumentKind::Kinds(&["node"]),
        "cp" => ArgumentKind::Copies,
        "explain" => ArgumentKind::Types,
        "cordon" | "uncordon" | "drain" | "top node" => ArgumentKind::Names("nodes"),
        "top pod" => ArgumentKind::Names("pods"),
        "certificate approve" | "certificate deny" => ArgumentKind::Names("certificatesigningrequests"),
        "create token" => ArgumentKind::Names("serviceaccounts"),
        "logs" => ArgumentKind::Logs,
        "exec" | "attach" | "port-forward" => ArgumentKind::Pod,
        "config use-context"
        | "config delete-context"
        | "config rename-context"
        | "config set-context"
        | "config get-contexts" => ArgumentKind::Kubeconfig("context"),
        "config delete-cluster" | "config set-cluster" => ArgumentKind::Kubeconfig("cluster"),
        "config delete-user" | "config set-credentials" => ArgumentKind::Kubeconfig("user"),
        "completion" => ArgumentKind::Shells,
        _ => ArgumentKind::Nothing,
    }
}

/// Runs `__complete WORD…`, with the word to complete at the end. Returns `None` for other command lines.
pub async fn run_hidden_command(words: &[String], shell: Shell) -> Option<u8> {
    let descriptions = match words.first()?.as_str() {
        "__complete" => true,
        "__completeNoDesc" => false,
        _ => return None,
    };
    let (current, before) = words[1..].split_last().map(|(c, b)| (c.as_str(), b)).unwrap_or(("", &[]));
    let current = if current == "\"\"" { "" } else { current };
    let (out, err) = (shell.out.clone(), shell.err.clone());
    let line = std::iter::once("kubectl".to_owned()).chain(before.iter().cloned());
    let matches = command().ignore_errors(true).try_get_matches_from(line);
    let global = matches.ok().and_then(|m| GlobalFlags::from_arg_matches(&m).ok()).unwrap_or_default();
    let mut k = Kube::new(shell, global);
    let a = complete_line(&mut k, before, current).await;
    let mut candidates = String::new();
    for (word, about) in a.found.iter().filter(|(w, _)| w.starts_with(current)) {
        candidates.push_str(word);
        if descriptions && !about.is_empty() {
            candidates.push('\t');
            candidates.push_str(about);
        }
        candidates.push('\n');
    }
    out.write(format!("{candidates}:{}\n", a.directive).as_bytes());
    out.flush();
    let bits = [
        (NO_SPACE, "ShellCompDirectiveNoSpace"),
        (NO_FILES, "ShellCompDirectiveNoFileComp"),
        (FILE_EXTENSIONS, "ShellCompDirectiveFilterFileExt"),
    ];
    let names: Vec<&str> = bits.iter().filter(|(bit, _)| a.directive & bit != 0).map(|(_, n)| *n).collect();
    let names = if names.is_empty() { "ShellCompDirectiveDefault".to_owned() } else { names.join(", ") };
    err.write(format!("Completion ended with directive: {names}\n").as_bytes());
    Some(0)
}

fn flag<'a>(at: &'a clap::Command, global: &'a clap::Command, word: &str) -> Option<&'a clap::Arg> {
    let is = |a: &&clap::Arg| match word.strip_prefix("--") {
        Some(long) => a.get_long() == Some(long),
        None => word.len() == 2 && a.get_short() == word.chars().nth(1),
    };
    at.get_arguments().find(is).or_else(|| global.get_arguments().find(is))
}

fn takes_value(a: &clap::Arg) -> bool {
    a.get_action().takes_values() && !a.is_require_equals_set()
}

async fn complete_line(k: &mut Kube, before: &[String], current: &str) -> Completion {
    let parser = command();
    let mut at = parser.clone();
    let (mut path, mut rest) = (Vec::new(), Vec::new());
    let mut waiting: Option<clap::Arg> = None;
    for w in before {
        if waiting.take().is_some() {
            continue;
        }
        if w == "--" {
            return Completion::files();
        }
        if w.starts_with('-') && w.len() > 1 {
            waiting = flag(&at, &parser, w).filter(|a| takes_value(a)).cloned();
            continue;
        }
        let sub = at.get_subcommands().find(|s| s.get_name() == w || s.get_all_aliases().any(|a| a == w)).cloned();
        match sub.filter(|_| rest.is_empty()) {
            Some(s) => {
                path.push(s.get_name().to_owned());
                at = s;
            }
            None => rest.push(w.clone()),
        }
    }
    if let Some(a) = waiting {
        return value(k, &a, "", &path, &rest).await;
    }
    if current.starts_with('-') {
        if let Some((name, _)) = current.split_once('=') {
            return match flag(&at, &parser, name).cloned() {
                Some(a) => value(k, &a, &format!("{name}="), &path, &rest).await,
                None => Completion::nothing(),
            };
        }
        return flags(&at, &parser);
    }
    if rest.is_empty() {
        let about = |s: &clap::Command| s.get_about().map(ToString::to_string).unwrap_or_default();
        let shown = at.get_subcommands().filter(|s| !s.is_hide_set() && s.get_name() != "help");
        let subs: Vec<(String, String)> = shown.map(|s| (s.get_name().to_owned(), about(s))).collect();
        if !subs.is_empty() {
            return Completion { found: subs, directive: NO_FILES };
        }
    }
    arguments(k, argument_kind(&path.join(" ")), &rest, current).await
}

fn flags(at: &clap::Command, global: &clap::Command) -> Completion {
    let mut found: Vec<(String, String)> = Vec::new();
    for a in at.get_arguments().chain(global.get_arguments().filter(|a| a.is_global_set())) {
        let Some(long) = a.get_long().filter(|_| !a.is_hide_set()) else { continue };
        let word = format!("--{long}");
        if !found.iter().any(|(w, _)| *w == word) {
            found.push((word, a.get_help().map(ToString::to_string).unwrap_or_default()));
        }
    }
    found.sort();
    Completion { found, directive: NO_FILES }
}

/// Commands with a flag for a container of the pod in their first argument.
const TAKES_CONTAINER: [&str; 5] = ["exec", "logs", "attach", "cp", "debug"];

/// Returns the names of the containers of the pod in the first argument: `web`, `deploy/web`, or `web:/file` of `cp`.
async fn containers(k: &mut Kube, rest: &[String]) -> Vec<String> {
    let Some(pod) = rest.iter().map(|w| w.split(':').next().unwrap_or_default()).find(|w| !w.is_empty()) else {
        return Vec::new();
    };
    let pod = [pod.to_owned()];
    let found = async {
        let info = pods::target(k, &pod).await?;
        let pod = pods::find_now(k, &info, pods::Purpose::Attaching).await?.into_iter().next();
        Ok::<_, crate::error::Error>(match pod {
            Some(Info { object: Some(o), .. }) if !o.kind().is_empty() => Some(o),
            Some(i) => Some(i.fetch(k).await?),
            None => None,
        })
    };
    let Ok(Some(pod)) = found.await else { return Vec::new() };
    let of = |field| pods::names(&pod, field).into_iter().map(str::to_owned);
    of("initContainers").chain(of("containers")).collect()
}

/// Completes the value of a flag; each candidate gets `prefix` (`--output=`).
async fn value(k: &mut Kube, a: &clap::Arg, prefix: &str, path: &[String], rest: &[String]) -> Completion {
    let words: Vec<String> = match a.get_long().unwrap_or_default() {
        "namespace" => names(k, "namespaces", true).await,
        "context" | "cluster" | "user" => kubeconfig(k, a.get_long().unwrap_or_default()),
        "output" => {
            if *path != ["get"] {
                return Completion::files();
            }
            let all = "json yaml kyaml name go-template go-template-file template templatefile jsonpath jsonpath-as-json jsonpath-file custom-columns custom-columns-file wide";
            all.split(' ').map(str::to_owned).collect()
        }
        // `rollout undo` and others have no pod.
        "container" | "target" if TAKES_CONTAINER.iter().any(|c| *path == [*c]) => containers(k, rest).await,
        "dry-run" => ["client", "none", "server"].map(str::to_owned).to_vec(),
        "cascade" => ["background", "foreground", "orphan"].map(str::to_owned).to_vec(),
        "validate" => ["ignore", "strict", "warn"].map(str::to_owned).to_vec(),
        "filename" => return Completion { directive: FILE_EXTENSIONS, ..Completion::words(["json", "yaml", "yml"]) },
        "kubeconfig"
        | "certificate-authority"
        | "client-certificate"
        | "client-key"
        | "from-file"
        | "from-env-file"
        | "patch-file"
        | "kustomize"
        | "cert"
        | "key"
        | "custom"
        | "output-directory"
        | "cache-dir"
        | "www" => return Completion::files(),
        _ => Vec::new(),
    };
    Completion::words(words.into_iter().map(|w| format!("{prefix}{w}")))
}

fn kubeconfig(k: &Kube, what: &str) -> Vec<String> {
    let Ok(all) = k.sources().load() else { return Vec::new() };
    let mut names: Vec<String> = match what {
        "context" => all.contexts.into_iter().map(|c| c.name).collect(),
        "cluster" => all.clusters.into_iter().map(|c| c.name).collect(),
        _ => all.users.into_iter().map(|c| c.name).collect(),
    };
    names.sort();
    names
}

/// Returns the names of the server's objects of a type; none if the server does not answer.
async fn names(k: &mut Kube, word: &str, everywhere: bool) -> Vec<String> {
    let found = async {
        let r = k.resource(word).await?;
        let (namespace, _) = k.namespace()?;
        let namespace = if everywhere || !r.namespaced { String::new() } else { namespace };
        let api = k.api(&r, &namespace).await?.accept(PARTIAL_METADATA_LIST);
        let all = api.list_all(&ListOptions { limit: 500, ..ListOptions::default() }).await?;
        Ok::<_, crate::error::Error>(all.items.iter().map(|o| o.name().to_owned()).collect())
    };
    found.await.unwrap_or_default()
}

async fn types(k: &mut Kube) -> Vec<String> {
    let Ok(d) = k.discovery().await else { return Vec::new() };
    let mut all: Vec<_> = d.resources.iter().filter(|r| r.preferred && r.has_verb("list")).collect();
    all.sort_by_key(|r| (&r.group, &r.plural));
    let mut names: Vec<String> = all.into_iter().map(|r| r.group_resource()).collect();
    names.dedup();
    names
}

/// Completes `TYPE/NAME` if the word begins with a type.
async fn type_and_name(k: &mut Kube, current: &str) -> Option<Completion> {
    let (ty, _) = current.split_once('/')?;
    let all = names(k, ty, false).await;
    Some(Completion::words(all.into_iter().map(|n| format!("{ty}/{n}"))))
}

/// Types with pods, by which a pod may be named.
const WITH_PODS: [&str; 8] =
    ["daemonsets", "deployments", "pods", "jobs", "replicasets", "replicationcontrollers", "services", "statefulsets"];

async fn arguments(k: &mut Kube, place: ArgumentKind, rest: &[String], current: &str) -> Completion {
    let fresh = |all: Vec<String>| Completion::words(all.into_iter().filter(|n| !rest.contains(n)));
    match (place, rest) {
        (ArgumentKind::Types, []) => Completion::words(types(k).await),
        (ArgumentKind::Objects, _) if current.contains('/') => {
            type_and_name(k, current).await.unwrap_or_else(Completion::nothing)
        }
        (ArgumentKind::Objects, []) => match current.rsplit_once(',') {
            // Complete the last of several types.
            Some((before, _)) => Completion::words(types(k).await.into_iter().map(|t| format!("{before},{t}"))),
            None => Completion::words(types(k).await),
        },
        (ArgumentKind::Objects, [ty, ..]) if !ty.contains('/') => fresh(names(k, ty, false).await),
        (ArgumentKind::Names(ty), _) => fresh(names(k, ty, false).await),
        (ArgumentKind::Pod, []) if current.contains('/') => {
            type_and_name(k, current).await.unwrap_or_else(Completion::nothing)
        }
        (ArgumentKind::Kinds(_), _) if current.contains('/') => {
            type_and_name(k, current).await.unwrap_or_else(Completion::nothing)
        }
        (ArgumentKind::Kinds(kinds), []) => Completion::words(kinds.iter().copied()),
        (ArgumentKind::Kinds(_), [ty, ..]) if !ty.contains('/') => fresh(names(k, ty, false).await),
        (ArgumentKind::Pod, []) => {
            let mut all = names(k, "pods", false).await;
            let none = !all.iter().any(|n| n.starts_with(current));
            all.extend(WITH_PODS.map(|ty| format!("{ty}/")));
            let mut a = Completion::words(all);
            // A name follows the slash.
            a.directive |= if none { NO_SPACE } else { 0 };
            a
        }
        (ArgumentKind::Logs, []) => Box::pin(arguments(k, ArgumentKind::Pod, rest, current)).await,
        (ArgumentKind::Logs, [_]) => Completion::words(containers(k, rest).await),
        (ArgumentKind::Copies, [] | [_]) if !current.contains(['/', ':']) => {
            let mut all: Vec<String> = names(k, "namespaces", true).await.iter().map(|n| format!("{n}/")).collect();
            all.extend(names(k, "pods", false).await.iter().map(|n| format!("{n}:")));
            all.extend(["./".to_owned(), "/".to_owned()]);
            Completion { directive: NO_SPACE, ..Completion::words(all) }
        }
        (ArgumentKind::Copies | ArgumentKind::Files, _) => Completion::files(),
        (ArgumentKind::Kubeconfig(what), _) => fresh(kubeconfig(k, what)),
        (ArgumentKind::Shells, []) => Completion::words(["bash", "fish", "powershell", "zsh"]),
        _ => Completion::nothing(),
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, run_with, snapshot};
    use serde_json::json;

    async fn complete(words: &[&str]) -> String {
        let list = |names: &[&str]| json!({"items": names.iter().map(|n| json!({"metadata": {"name": n}})).collect::<Vec<_>>()});
        let s = Server::new()
            .on("GET /api/v1/namespaces/default/pods?limit=500", 200, list(&["web-1", "web-2", "db"]))
            .on(
                "GET /api/v1/namespaces/default/pods/web-1",
                200,
                json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "web-1"},
                "spec": {"initContainers": [{"name": "setup"}], "containers": [{"name": "app"}, {"name": "agent"}]}}),
            )
            .on("GET /api/v1/namespaces/x/pods?limit=500", 200, list(&["other"]))
            .on("GET /api/v1/namespaces?limit=500", 200, list(&["default", "x"]));
        let line: Vec<&str> = std::iter::once("__completeNoDesc").chain(words.iter().copied()).collect();
        let (code, out, _) = run_with(&s, &line, "").await;
        assert_eq!(code, 0);
        out.replace('\n', " ")
    }

    #[tokio::test]
    async fn completes_commands_flags_types_and_names() {
        for (words, expected) in [
            (&["cor"][..], "cordon :4 "),
            (&["get", "dep"], "deployments.apps :4 "),
            (&["get", "pods", "web-1", "w"], "web-2 :4 "),
            (&["get", "pod/d"], "pod/db :4 "),
            (&["-n", "x", "logs", "o"], "other :4 "),
            (&["-n", "x", "logs", "dep"], "deployments/ :6 "),
            (&["exec", "d"], "db daemonsets/ deployments/ :4 "),
            (&["rollout", "status", "dep"], "deployment :4 "),
            (&["set", "image", "c"], "cronjobs :4 "),
            (&["exec", "web-1", "-c", "a"], "app agent :4 "),
            (&["exec", "web-1", "--container="], "--container=setup --container=app --container=agent :4 "),
            (&["exec", "pod/web-1", "-c", "s"], "setup :4 "),
            (&["exec", "absent", "-c", ""], ":4 "),
            (&["exec", "-c", ""], ":4 "),
            (&["logs", "web-1", "ag"], "agent :4 "),
            (&["logs", "d"], "db daemonsets/ deployments/ :4 "),
            (&["debug", "web-1", "--target", "app"], "app :4 "),
            (&["cp", "web-1:/x", "y", "-c", "app"], "app :4 "),
            (&["cp", "d"], "default/ db: :2 "),
            (&["describe", "pods", "-n", ""], "default x :4 "),
            (&["get", "pods", "--namespace=d"], "--namespace=default :4 "),
            (&["get", "--show-l"], "--show-labels :4 "),
            (&["get", "pods", "-o", "js"], "json jsonpath jsonpath-as-json jsonpath-file :4 "),
            (&["apply", "-f", ""], "json yaml yml :8 "),
            (&["create", "-o", ""], ":0 "),
            (&["exec", "web-1", "--", ""], ":0 "),
            (&["rollout", "re"], "resume restart :4 "),
            (&["completion", "b"], "bash :4 "),
            (&["delete", "pods,se"], "pods,secrets pods,serviceaccounts pods,services :4 "),
        ] {
            assert_eq!(complete(words).await, expected, "{words:?}");
        }
        let s = Server::new();
        let (_, out, err) = run_with(&s, &["__complete", "uncord"], "").await;
        assert_eq!(out, "uncordon\tAllow new pods on a node again\n:4\n");
        assert_eq!(err, "Completion ended with directive: ShellCompDirectiveNoFileComp\n");
    }

    #[tokio::test]
    async fn prints_scripts() {
        let s = Server::new();
        for shell in ["bash", "zsh", "fish", "powershell"] {
            let output = snapshot(&s, &format!("completion {shell}"), "").await;
            assert!(output.contains(&format!("{shell} completion for kubectl")), "{output}");
        }
        for (line, expected) in [
            ("completion", "Shell not specified."),
            ("completion foo", "Unsupported shell type \"foo\"."),
            ("completion bash zsh", "Too many arguments. Expected only the shell type."),
        ] {
            let expected =
                format!("! error: {expected}\n! See 'kubectl completion -h' for help and examples\nexit 1\n");
            assert_eq!(snapshot(&s, line, "").await, expected, "{line}");
        }
    }
}
