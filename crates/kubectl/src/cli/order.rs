//! Flags may stand anywhere, also between a command and its subcommand, as in upstream's parser (cobra).

use clap::{Arg, ArgAction, Command};
use std::ffi::OsString;

/// Moves the names of command and subcommands to the front, where clap requires them. The first of `args` is the name of
/// the program. Without a command nothing changes.
///
/// An argument is a value if the flag before it takes one. Flags that are unknown at that position (those of the
/// subcommand) take one, as in upstream's parser.
pub fn subcommands_first(args: &[OsString], top: &Command) -> Vec<OsString> {
    let Some((program, rest)) = args.split_first() else { return Vec::new() };
    let (mut names, mut rest) = (vec![program.clone()], rest.to_vec());
    let (mut command, mut global) = (top, Vec::new());
    loop {
        let known: Vec<&Arg> = global.iter().copied().chain(command.get_arguments()).collect();
        let Some(at) = first_word(&rest, &known) else { break };
        let Some(next) = rest[at].to_str().and_then(|w| command.find_subcommand(w)) else { break };
        names.push(rest.remove(at));
        global.extend(command.get_arguments().filter(|a| a.is_global_set()));
        command = next;
    }
    names.append(&mut rest);
    names
}

/// Returns the index of the first argument that is neither a flag nor its value.
fn first_word(args: &[OsString], known: &[&Arg]) -> Option<usize> {
    let mut i = 0;
    while i < args.len() {
        let word = args[i].to_string_lossy();
        if word == "--" {
            return None;
        }
        let takes_next = match word.strip_prefix('-') {
            None if word.is_empty() => false,
            None => return Some(i),
            Some(_) if word.contains('=') => false,
            Some(rest) => match rest.strip_prefix('-') {
                Some(long) => takes_next(known.iter().find(|a| a.get_long() == Some(long)), long == "help"),
                None if rest.chars().count() == 1 => {
                    takes_next(known.iter().find(|a| a.get_short() == rest.chars().next()), rest == "h")
                }
                None => false,
            },
        };
        i += if takes_next { 2 } else { 1 };
    }
    None
}

fn takes_next(flag: Option<&&Arg>, is_help: bool) -> bool {
    match flag {
        Some(a) => matches!(a.get_action(), ArgAction::Set | ArgAction::Append) && !a.is_require_equals_set(),
        None => !is_help,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_flags_between_command_and_subcommand() {
        let top = crate::command();
        for (line, expected) in [
            ("create -n default namespace q", "create namespace -n default q"),
            ("-n default create namespace q", "create namespace -n default q"),
            ("create -n default clusterrole r --verb=get", "create clusterrole -n default r --verb=get"),
            ("create --dry-run=client ns q", "create ns --dry-run=client q"),
            ("create --save-config ns q", "create ns --save-config q"),
            ("create -f ns secret generic q", "create secret generic -f ns q"),
            (
                "create secret -o yaml generic q --from-literal=a=b",
                "create secret generic -o yaml q --from-literal=a=b",
            ),
            ("--context c -v 3 rollout -n x status deploy/y", "rollout status --context c -v 3 -n x deploy/y"),
            ("config --kubeconfig=f set a b", "config set --kubeconfig=f a b"),
            ("-f file apply", "apply -f file"),
            ("exec -it p -- create ns", "exec -it p -- create ns"),
            ("create -- ns q", "create -- ns q"),
            ("-h create", "create -h"),
            ("get pods create", "get pods create"),
            ("unknown create ns", "unknown create ns"),
        ] {
            let args: Vec<OsString> = ["kubectl"].into_iter().chain(line.split(' ')).map(OsString::from).collect();
            let ordered: Vec<String> =
                subcommands_first(&args, &top).iter().skip(1).map(|w| w.to_string_lossy().into_owned()).collect();
            assert_eq!(ordered.join(" "), expected, "{line}");
        }
        assert_eq!(subcommands_first(&["kubectl".into()], &top), ["kubectl"]);
    }

    /// Collects the commands without subcommands, each with its path.
    fn leaves(c: &Command, path: &[&str], out: &mut Vec<(Vec<String>, Vec<Arg>)>) {
        for s in c.get_subcommands().filter(|s| s.get_name() != "help") {
            let path = [path, &[s.get_name()]].concat();
            leaves(s, &path, out);
            if s.get_subcommands().all(|s| s.get_name() == "help") {
                out.push((path.iter().map(|p| (*p).to_owned()).collect(), s.get_arguments().cloned().collect()));
            }
        }
    }

    /// Every flag of every command, and some global flags, have the same effect or error at every position.
    #[test]
    fn position_of_a_flag_does_not_matter() {
        let mut all = Vec::new();
        leaves(&crate::command(), &[], &mut all);
        assert!(all.len() > 70, "{}", all.len());
        let outcome = |words: &[&str]| {
            let args = ["kubectl"].iter().chain(words).map(OsString::from).collect();
            match crate::cli::parse(args) {
                // The line itself is recorded as the cause of a change.
                Ok((mut global, command)) => {
                    global.cause = None;
                    format!("{global:?} {command:?}")
                }
                Err(e) => format!("{e:?}"),
            }
        };
        for (path, flags) in &all {
            let path: Vec<&str> = path.iter().map(String::as_str).collect();
            // Some take no arguments.
            let takes_arguments = !outcome(&[&path[..], &["a"]].concat()).contains("unexpected argument");
            let arguments: &[&str] = if takes_arguments { &["a"] } else { &[] };
            let mut lines: Vec<Vec<String>> = vec![vec!["-n".into(), "x".into()], vec!["--context=c".into()]];
            for f in flags.iter().filter(|f| !f.is_positional()) {
                let Some(long) = f.get_long().filter(|l| *l != "help") else { continue };
                lines.push(vec![format!("--{long}=1")]);
                if takes_next(Some(&f), false) {
                    let apart = f.get_short().map_or_else(|| format!("--{long}"), |s| format!("-{s}"));
                    lines.push(vec![apart, "1".into()]);
                }
            }
            for flag in lines {
                let flag: Vec<&str> = flag.iter().map(String::as_str).collect();
                let after_arguments = outcome(&[&path[..], arguments, &flag].concat());
                // Before the command, between command and subcommand, and before the arguments.
                for at in 0..=path.len() {
                    let words = [&path[..at], &flag, &path[at..], arguments].concat();
                    assert_eq!(outcome(&words), after_arguments, "{words:?}");
                }
            }
        }
    }
}
