//! Renders errors of the parser in the texts of kubectl.
//!
//! Scripts and people know the messages of Go's flag package and of cobra; clap reports the same errors in other texts.

use super::{ParseStop, command};
use crate::error::Error;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::any::TypeId;
use std::ffi::OsString;

/// Returns the path of the command that `words` name (`kubectl create job`), and its arguments that are no flags.
fn command_path(words: &[String]) -> (String, Vec<&str>) {
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
            if at.get_arguments().any(takes) || command().get_arguments().any(takes) {
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

/// Returns the names of required flags that are missing, in quotes.
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

/// The commands in upstream's order, which is the order of suggestions.
const ORDER: [&str; 43] = [
    "create",
    "expose",
    "run",
    "set",
    "explain",
    "get",
    "edit",
    "delete",
    "rollout",
    "scale",
    "autoscale",
    "certificate",
    "cluster-info",
    "top",
    "cordon",
    "uncordon",
    "drain",
    "taint",
    "describe",
    "logs",
    "attach",
    "exec",
    "port-forward",
    "proxy",
    "cp",
    "auth",
    "debug",
    "events",
    "diff",
    "apply",
    "patch",
    "replace",
    "wait",
    "kustomize",
    "label",
    "annotate",
    "completion",
    "config",
    "kuberc",
    "plugin",
    "version",
    "api-versions",
    "api-resources",
];

/// Common names of commands in other programs.
const SYNONYMS: [(&str, &[&str]); 4] =
    [("delete", &["rm", "remove"]), ("describe", &["inspect"]), ("get", &["list", "ls"]), ("top", &["stats"])];

/// Suggests commands within an edit distance of two, or with `word` as a prefix.
fn suggestions(word: &str) -> String {
    let word = word.to_lowercase();
    let all = command();
    let mut known: Vec<&str> = all.get_subcommands().map(clap::Command::get_name).collect();
    known.sort_by_key(|n| ORDER.iter().position(|o| o == n).unwrap_or(ORDER.len()));
    let similar: Vec<&str> = known
        .into_iter()
        .filter(|n| {
            let is_synonym = SYNONYMS.iter().any(|(context, words)| context == n && words.contains(&word.as_str()));
            is_synonym || n.starts_with(&word) || distance(n, &word) <= 2
        })
        .collect();
    match similar.is_empty() {
        true => String::new(),
        false => format!("\n\nDid you mean this?\n\t{}", similar.join("\n\t")),
    }
}

/// Returns the edit distance of two words.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// Explains an invalid value of a flag that takes a number, as Go does.
fn parse_int_error(value: &str) -> String {
    use std::num::IntErrorKind::{NegOverflow, PosOverflow};
    let why = match value.parse::<i64>().map_err(|e| *e.kind()) {
        Ok(_) | Err(NegOverflow | PosOverflow) => "value out of range",
        Err(_) => "invalid syntax",
    };
    format!("strconv.ParseInt: parsing {value:?}: {why}")
}

fn takes_number(arg: &clap::Arg) -> bool {
    let id = arg.get_value_parser().type_id();
    macro_rules! any_of {
        ($($t:ty)*) => { $(id == TypeId::of::<$t>())||* };
    }
    any_of!(i8 i16 i32 i64 isize u8 u16 u32 u64 usize)
}

/// Finds a flag of the command that `words` name, or a global flag.
fn find_flag(words: &[String], flag: &str) -> Option<clap::Arg> {
    let mut at = command();
    let global = at.get_arguments().find(|a| a.get_long() == flag.strip_prefix("--")).cloned();
    for w in words {
        match at.find_subcommand(w).cloned() {
            Some(s) => at = s,
            None => break,
        }
    }
    at.get_arguments().find(|a| a.get_long() == flag.strip_prefix("--")).cloned().or(global)
}

/// Renders the help of a command.
fn help(path: &[&str]) -> String {
    let mut at = command();
    at.build();
    let mut at = &mut at;
    for name in path {
        if at.find_subcommand(name).is_none() {
            break;
        }
        match at.find_subcommand_mut(name) {
            Some(sub) => at = sub,
            None => unreachable!("{name} was found"),
        }
    }
    at.render_help().to_string()
}

/// Renders `kubectl help WORDS…` where the parser does not know all words: the help of the longest known prefix.
fn topic(words: &[String]) -> ParseStop {
    let (path, _) = command_path(words);
    let path: Vec<&str> = path.split(' ').skip(1).collect();
    if !path.is_empty() {
        return ParseStop::Help(help(&path));
    }
    let quoted: Vec<String> = words.iter().map(|w| format!("`{w}`")).collect();
    let text = format!("Unknown help topic [{}]\n{}", quoted.join(" "), help(&[]));
    ParseStop::Error(Error::Code { code: 0, error: Box::new(Error::Bare(text)) })
}

/// Returns the error of an invalid flag beside `--help`, which replaces the help.
pub fn error_beside_help(args: &[OsString]) -> Option<clap::Error> {
    let mut ended = false;
    let keep = |w: &&OsString| {
        ended |= *w == "--";
        ended || *w != "-h" && *w != "--help"
    };
    let rest: Vec<OsString> = args.iter().filter(keep).cloned().collect();
    let command = command();
    let e = command.clone().try_get_matches_from(super::order::subcommands_first(&rest, &command)).err()?;
    let has = |kind| matches!(e.get(kind), Some(ContextValue::String(s)) if !s.is_empty());
    let flag = matches!(e.get(ContextKind::InvalidArg), Some(ContextValue::String(s)) if s.starts_with('-'));
    match e.kind() {
        ErrorKind::UnknownArgument if flag => Some(e),
        // A flag without its value.
        ErrorKind::InvalidValue if flag && !has(ContextKind::InvalidValue) => Some(e),
        _ => None,
    }
}

/// Renders an error of the parser, or the requested help.
pub fn render(e: &clap::Error, words: &[String]) -> ParseStop {
    let (command, rest) = command_path(words);
    let see_for_help = format!("See '{command} -h' for help and examples");
    let generates = command.starts_with("kubectl create ");
    let context = |kind: ContextKind| match e.get(kind) {
        Some(ContextValue::String(s)) => s.clone(),
        Some(ContextValue::Strings(s)) => s.join(" "),
        _ => String::new(),
    };
    let see = format!("See '{command} --help' for usage.");
    let arg = context(ContextKind::InvalidArg);
    // clap names a flag as `--flag <VALUE>`.
    let flag = arg.split([' ', '=', '[']).next().unwrap_or_default().to_owned();
    let text = match e.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand if command != "kubectl" => {
            let help = e.to_string();
            return match command.as_str() {
                "kubectl certificate" => ParseStop::Help(help),
                "kubectl rollout" => ParseStop::Error(Error::WithOutput { out: help, error: Box::new(Error::Exit(1)) }),
                _ => ParseStop::Error(Error::Bare(help)),
            };
        }
        ErrorKind::DisplayHelp | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::DisplayVersion => {
            return ParseStop::Help(e.to_string());
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
        // An unknown flag takes the next word as its value; the word after that may be the name of a plugin.
        ErrorKind::UnknownArgument
            if words.first().is_some_and(|w| w.starts_with('-'))
                && words
                    .iter()
                    .position(|w| *w == flag)
                    .is_some_and(|at| words[at + 1..].iter().skip(1).any(|w| !w.starts_with('-'))) =>
        {
            let why = format!("Error: flags cannot be placed before plugin name: {}", words[0]);
            return ParseStop::Error(Error::Bare(why));
        }
        ErrorKind::UnknownArgument if flag.starts_with("--") => format!("unknown flag: {flag}\n{see}"),
        ErrorKind::UnknownArgument if flag.starts_with('-') => {
            let c = flag.chars().nth(1).unwrap_or('-');
            let given = words.iter().find(|p| p.starts_with('-') && !p.starts_with("--") && p.contains(c));
            // The preceding letters are known flags.
            let rest = given.and_then(|g| g.find(c).map(|at| format!("-{}", &g[at..])));
            format!("unknown shorthand flag: '{c}' in {}\n{see}", rest.unwrap_or(flag))
        }
        ErrorKind::InvalidSubcommand => {
            let word = context(ContextKind::InvalidSubcommand);
            if words.first().is_some_and(|w| w == "help") {
                return topic(&words[1..]);
            }
            let wants_help = words.iter().take_while(|w| *w != "--").any(|w| w == "-h" || w == "--help");
            match command.as_str() {
                "kubectl" if word == "alpha" => {
                    let why = "No alpha commands are available in this version of kubectl".to_owned();
                    return ParseStop::Error(Error::Code { code: 0, error: Box::new(Error::Bare(why)) });
                }
                "kubectl certificate" => return ParseStop::Help(help(&["certificate"])),
                path if wants_help && path != "kubectl" => {
                    return ParseStop::Help(help(&path.split(' ').skip(1).collect::<Vec<_>>()));
                }
                "kubectl" if words.first().is_some_and(|w| w.starts_with('-')) => {
                    let why = format!("Error: flags cannot be placed before plugin name: {}", words[0]);
                    return ParseStop::Error(Error::Bare(why));
                }
                "kubectl" => format!("unknown command {word:?} for \"kubectl\"{}", suggestions(&word)),
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
            let value = context(ContextKind::InvalidValue);
            let short = find_flag(words, &flag).and_then(|a| a.get_short()).filter(|_| !words.contains(&flag));
            // `--since=` has a value, which is empty.
            let is_given = words.iter().any(|w| w.strip_suffix('=') == Some(flag.as_str()));
            if let (true, false, Some(c)) = (value.is_empty(), is_given, short) {
                let given = words.iter().rfind(|w| w.starts_with('-') && !w.starts_with("--") && w.ends_with(c));
                format!("flag needs an argument: '{c}' in {}\n{see}", given.map_or(flag.as_str(), |g| g))
            } else if value.is_empty() && !is_given {
                format!("flag needs an argument: {flag}\n{see}")
            } else {
                let source = std::error::Error::source(e);
                let number = find_flag(words, &flag).is_some_and(|a| takes_number(&a));
                let why = source.map(|e| if number { parse_int_error(&value) } else { e.to_string() });
                let why = why.map(|why| format!(": {why}"));
                let short =
                    find_flag(words, &flag).and_then(|a| a.get_short()).map(|s| format!("-{s}, ")).unwrap_or_default();
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
    ParseStop::Error(Error::Text(text))
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, snapshot};

    /// Expected output is that of upstream's program.
    #[tokio::test]
    async fn suggests_similar_commands() {
        for (line, expected) in [
            ("gte pods", "\n! \n! Did you mean this?\n! \tget"),
            ("gt", "\n! \n! Did you mean this?\n! \tset\n! \tget\n! \tcp"),
            ("foo", "\n! \n! Did you mean this?\n! \ttop"),
            ("Apply", "\n! \n! Did you mean this?\n! \tapply"),
            ("list", "\n! \n! Did you mean this?\n! \tget"),
            ("inspect", "\n! \n! Did you mean this?\n! \tdescribe"),
            ("notacommand", ""),
        ] {
            let word = line.split(' ').next().unwrap();
            let expected = format!("! error: unknown command {word:?} for \"kubectl\"{expected}\nexit 1\n");
            assert_eq!(snapshot(&Server::new(), line, "").await, expected, "{line}");
        }
    }

    /// A bad flag is an error even beside `--help`; an unknown word prints the help of the command before it.
    #[tokio::test]
    async fn help_does_not_hide_invalid_flags() {
        let s = Server::new();
        for (line, expected) in [
            ("get cm -h --nosuch", "! error: unknown flag: --nosuch\n! See 'kubectl get --help' for usage.\nexit 1\n"),
            (
                "apply --help -f",
                "! error: flag needs an argument: 'f' in -f\n! See 'kubectl apply --help' for usage.\nexit 1\n",
            ),
            ("alpha x", "! No alpha commands are available in this version of kubectl\n"),
            (
                "get cm -Awide",
                "! error: unknown shorthand flag: 'i' in -ide\n! See 'kubectl get --help' for usage.\nexit 1\n",
            ),
            ("--nosuch get pods", "! Error: flags cannot be placed before plugin name: --nosuch\nexit 1\n"),
        ] {
            assert_eq!(snapshot(&s, line, "").await, expected, "{line}");
        }
        for (line, begins, ends) in [
            ("certificate", "Approve or deny certificate signing requests", "\n"),
            ("certificate nosuch", "Approve or deny certificate signing requests", "\n"),
            ("rollout", "Show and control the rollout of a workload", "exit 1\n"),
            ("rollout nosuch -h", "Show and control the rollout of a workload", "\n"),
            ("help get nosuch", "List objects", "\n"),
            ("help nosuch", "! Unknown help topic [`nosuch`]\n", "\n"),
        ] {
            let output = snapshot(&s, line, "").await;
            assert!(output.starts_with(begins) && output.ends_with(ends), "{line}: {output}");
            assert_eq!(output.ends_with("exit 1\n"), ends == "exit 1\n", "{line}");
        }
    }
}
