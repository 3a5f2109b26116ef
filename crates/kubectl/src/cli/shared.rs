//! How single commands change the flags that they share with others.
//!
//! A set of flags ([`crate::flags`]) is flattened into many commands. One of them may have another default for a flag, lack
//! it, or accept it without effect. The tables here say so once, so that parser, help, completion and manual pages agree. A
//! flag that a command lacks is rejected as unknown.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgMatches, Command};

/// Command, flag, default.
const DEFAULTS: [(&str, &str, &str); 10] = [
    ("annotate", "field_manager", "kubectl-annotate"),
    ("autoscale", "field_manager", "kubectl-autoscale"),
    ("cluster-info dump", "output", "json"),
    ("config view", "output", "yaml"),
    ("expose", "field_manager", "kubectl-expose"),
    ("kuberc view", "output", "yaml"),
    ("label", "field_manager", "kubectl-label"),
    ("run", "field_manager", "kubectl-run"),
    ("set selector", "recursive", "true"),
    ("wait", "recursive", "true"),
];

/// Command, and shared flags that it lacks.
const MISSING: [(&str, &[&str]); 10] = [
    ("apply set-last-applied", &["kustomize", "recursive"]),
    ("autoscale", &["validate"]),
    ("debug", &["kustomize", "recursive"]),
    ("expose", &["validate"]),
    ("rollout pause", &["dry_run"]),
    ("rollout restart", &["dry_run"]),
    ("rollout resume", &["dry_run"]),
    ("run", &["validate"]),
    ("set selector", &["kustomize"]),
    ("wait", &["kustomize"]),
];

/// Command, and flags that it accepts without effect.
const IGNORED: [(&str, &[&str]); 1] = [("run", &["filename", "kustomize", "recursive"])];

/// Commands with `--record`, which store the reason of a change in the object.
const RECORD: [&str; 16] = [
    "annotate",
    "apply",
    "apply edit-last-applied",
    "autoscale",
    "create",
    "edit",
    "expose",
    "label",
    "patch",
    "replace",
    "run",
    "scale",
    "set image",
    "set resources",
    "set selector",
    "set serviceaccount",
];

/// Finds the command at a path that begins with the command itself.
fn at<'a>(c: &'a mut Command, path: &str) -> Option<&'a mut Command> {
    let mut names = path.split(' ');
    let own = names.next() == Some(c.get_name());
    names.try_fold(own.then_some(c)?, |c, name| c.find_subcommand_mut(name))
}

/// Writes the rows into a command and those below it.
pub fn adjust(c: &mut Command) {
    for path in RECORD {
        if let Some(sub) = at(c, path) {
            let flag = clap::Arg::new("record")
                .long("record")
                .hide(true)
                .help("Keep this command line as the cause of the change; deprecated");
            let flag =
                flag.num_args(0..=1).require_equals(true).default_missing_value("true").action(clap::ArgAction::Append);
            *sub = std::mem::take(sub).arg(flag.value_parser(crate::flags::go_bool).hide_possible_values(true));
        }
    }
    let mut change = |path: &str, flag: &str, to: &dyn Fn(clap::Arg) -> clap::Arg| {
        if let Some(sub) = at(c, path) {
            *sub = std::mem::take(sub).mut_arg(flag, to);
        }
    };
    for (path, flag, default) in DEFAULTS {
        change(path, flag, &|a| a.default_value(default).hide_default_value(true));
    }
    for (path, flags) in MISSING {
        flags.iter().for_each(|f| change(path, f, &|a| a.hide(true)));
    }
    for (path, flags) in IGNORED {
        flags.iter().for_each(|f| change(path, f, &|a| a.help("Kept for scripts: without effect here")));
    }
}

/// Refuses flags that the command lacks.
pub fn reject_missing(m: &ArgMatches, words: &[String]) -> Result<(), clap::Error> {
    let (mut m, mut path) = (m, Vec::new());
    while let Some((name, sub)) = m.subcommand() {
        path.push(name);
        m = sub;
    }
    let path = path.join(" ");
    let lacks = MISSING.iter().find(|(p, _)| *p == path).map_or(&[][..], |(_, flags)| flags);
    let given = |id: &&&str| m.value_source(id) == Some(ValueSource::CommandLine);
    let Some(id) = lacks.iter().find(given) else { return Ok(()) };
    let long = format!("--{}", id.replace('_', "-"));
    // Those of them that have a letter.
    let letter = if *id == "recursive" { "-R" } else { "-k" };
    let is_long = words.iter().any(|w| *w == long || w.starts_with(&format!("{long}=")));
    let flag = if is_long { long } else { letter.to_owned() };
    let mut e = clap::Error::new(ErrorKind::UnknownArgument);
    e.insert(ContextKind::InvalidArg, ContextValue::String(flag));
    Err(e)
}

/// Returns the matches of the innermost subcommand.
pub fn innermost(mut m: &ArgMatches) -> &ArgMatches {
    while let Some((_, sub)) = m.subcommand() {
        m = sub;
    }
    m
}

/// Whether the command reads objects, or the variables of `set env`, from standard input.
pub fn reads_stdin(m: &ArgMatches) -> bool {
    let command = innermost(m);
    let dash = |flag: &str| command.try_get_many::<String>(flag).ok().flatten().into_iter().flatten().any(|f| f == "-");
    let variables = m.subcommand().and_then(|(n, m)| Some((n, m.subcommand_name()?))) == Some(("set", "env"));
    dash("filename") || (variables && dash("words"))
}

/// Returns how many times `--record` is given, and its last value.
pub fn record(m: &ArgMatches) -> (usize, bool) {
    let given: Vec<bool> = match innermost(m).try_get_many::<bool>("record") {
        Ok(Some(all)) => all.copied().collect(),
        _ => Vec::new(),
    };
    (given.len(), given.last() == Some(&true))
}

/// Checks `--profile`: this program has no Go runtime to profile. The flag of `debug` has the same name and another
/// meaning.
pub fn profile(name: &str, command: &super::Command) -> crate::error::Result {
    match name {
        _ if matches!(command, super::Command::Debug(_)) => Ok(()),
        "none" => Ok(()),
        "cpu" | "trace" | "heap" | "allocs" | "goroutine" | "threadcreate" | "block" | "mutex" => crate::error::text(
            format!("--profile={name} asks for a profile of a Go runtime, and this program has none"),
        ),
        other => crate::error::text(format!("unknown profile '{other}'")),
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, snapshot};

    #[test]
    fn tables_name_existing_commands_and_flags() {
        let mut c = crate::cli::command();
        let rows = super::DEFAULTS.iter().map(|(p, f, _)| (*p, *f));
        let lacks = super::MISSING.iter().chain(&super::IGNORED).flat_map(|(p, all)| all.iter().map(|f| (*p, *f)));
        for (path, flag) in rows.chain(lacks).chain(super::RECORD.map(|p| (p, "record"))) {
            let first = path.split(' ').next().unwrap();
            let found = c
                .find_subcommand_mut(first)
                .and_then(|c| super::at(c, path))
                .is_some_and(|c| c.get_arguments().any(|a| a.get_id() == flag));
            assert!(found, "{path} {flag}");
        }
    }

    #[tokio::test]
    async fn rejects_flags_that_a_command_lacks() {
        let s = Server::new();
        for (line, expected) in [
            (
                "wait -k x",
                "! error: unknown shorthand flag: 'k' in -k\n! See 'kubectl wait --help' for usage.\nexit 1\n",
            ),
            (
                "rollout pause deploy/x --dry-run=client",
                "! error: unknown flag: --dry-run\n! See 'kubectl rollout pause --help' for usage.\nexit 1\n",
            ),
            ("get pods --profile=x", "! error: unknown profile 'x'\nexit 1\n"),
            (
                "get pods --profile=heap",
                "! error: --profile=heap asks for a profile of a Go runtime, and this program has none\nexit 1\n",
            ),
        ] {
            assert_eq!(snapshot(&s, line, "").await, expected, "{line}");
        }
    }
}
