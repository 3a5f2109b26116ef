//! Every command of the real kubectl has the same flags here: name, short name, default, and whether a value is required.
//!
//! The flags of the real program come from its help, ours from the definitions. `flags.txt` lists the exceptions, each with
//! its reason, and nothing else. Defaults are compared only where ours has one: other flags compute it, or are required.

use super::{OURS, listed, real};
use crate::story::Story;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Flag {
    letter: Option<char>,
    default: Option<String>,
    bare: bool,
}

type Flags = BTreeMap<String, Flag>;

fn help(program: &Path, words: &[&str], home: &Path) -> String {
    let o = Command::new(program).args(words).env("HOME", home).env_remove("KUBECONFIG").output().unwrap();
    String::from_utf8(o.stdout).unwrap()
}

/// Parses lines such as `    -f, --filename=[]:`.
fn parse_flags(help: &str) -> Flags {
    let form = regex::Regex::new(r"(?m)^    (?:-(\w), )?--([\w-]+)=(.*):$").unwrap();
    let flag = |c: regex::Captures<'_>| {
        let text = c[3].trim_matches(['[', ']']).trim_matches('\'').to_owned();
        let bare = matches!(&c[3], "true" | "false");
        (c[2].to_owned(), Flag { letter: c.get(1).and_then(|l| l.as_str().chars().next()), default: Some(text), bare })
    };
    form.captures_iter(help).map(flag).collect()
}

/// Returns the names below headings such as `Available Commands:`.
fn commands(help: &str) -> Vec<String> {
    let mut out = Vec::new();
    let mut inside = false;
    for l in help.lines() {
        if !l.starts_with(' ') {
            inside = l.contains("Commands") && l.trim_end().ends_with(':');
        } else if inside && l.starts_with("  ") && !l.starts_with("   ") {
            out.extend(l.split_whitespace().next().map(str::to_owned));
        }
    }
    out
}

fn defined(c: &clap::Command, global: bool) -> Flags {
    let all = c.get_arguments().filter(|a| !a.is_positional() && !a.is_hide_set() && a.is_global_set() == global);
    let flag = |a: &clap::Arg| {
        let default: Vec<_> = a.get_default_values().iter().map(|v| v.to_string_lossy().into_owned()).collect();
        let many = matches!(a.get_action(), clap::ArgAction::Append);
        // Without value it means true.
        let bare = a.is_require_equals_set() && (default.is_empty() || matches!(default[0].as_str(), "true" | "false"));
        let default = if default.is_empty() && !many { None } else { Some(default.join(",")) };
        (a.get_long().unwrap_or_default().to_owned(), Flag { letter: a.get_short(), default, bare })
    };
    all.map(flag).collect()
}

fn compare(path: &str, ours: &Flags, theirs: &Flags, everywhere: &Flags, found: &mut BTreeSet<String>) {
    for (name, real) in theirs {
        let say = |what: &str| format!("{path} --{name}: {what}");
        // Help may list a global flag as a command's own.
        let Some(flag) = ours.get(name).or_else(|| everywhere.get(name)) else {
            found.insert(say("missing"));
            continue;
        };
        if flag.letter != real.letter {
            found.insert(say("another letter"));
        }
        if flag.bare != real.bare {
            found.insert(say("another need of a value"));
        }
        if flag.default.is_some() && flag.default != real.default {
            found.insert(say("another default"));
        }
    }
    for name in ours.keys().filter(|n| !theirs.contains_key(*n)) {
        found.insert(format!("{path} --{name}: ours alone"));
    }
}

pub fn agree(s: &Story) {
    let Some((program, minor)) = real() else {
        println!("sidebyside::flags: skipped: there is no kubectl on this machine");
        return;
    };
    if minor != OURS {
        println!("sidebyside::flags: skipped: kubectl is v1.{minor}, and every version has other flags");
        return;
    }
    let home = &s.cluster.directory;
    let root = kubectl::command();
    let everywhere = defined(&root, true);
    let mut found = BTreeSet::new();
    compare("options", &everywhere, &parse_flags(&help(&program, &["options"], home)), &Flags::new(), &mut found);
    let mut paths = vec![Vec::new()];
    let mut visited = 0;
    while let Some(path) = paths.pop() {
        visited += 1;
        let shown = path.join(" ");
        let mut words: Vec<&str> = path.iter().map(String::as_str).collect();
        words.push("--help");
        let text = help(&program, &words, home);
        let mut own = Some(&root);
        for name in &path {
            own = own.and_then(|c| c.find_subcommand(name));
        }
        let Some(own) = own else {
            found.insert(format!("{shown}: no such command"));
            continue;
        };
        compare(&shown, &defined(own, false), &parse_flags(&text), &everywhere, &mut found);
        let below = commands(&text);
        let names = |c: &clap::Command| c.get_subcommands().map(|c| c.get_name().to_owned()).collect::<BTreeSet<_>>();
        let known = |n: &&String| !below.contains(n) && !matches!(n.as_str(), "help" | "options");
        found.extend(names(own).iter().filter(known).map(|n| format!("{shown} {n}: ours alone").trim().to_owned()));
        paths.extend(below.into_iter().map(|n| path.iter().cloned().chain([n]).collect()));
    }
    assert!(visited > 100, "the help of kubectl names {visited} commands only");
    let may = listed("flags.txt");
    let wrong: Vec<_> = found.iter().filter(|f| !may.contains_key(*f)).map(|f| format!("differs: {f}")).collect();
    let old: Vec<_> = may.keys().filter(|f| !found.contains(*f)).map(|f| format!("the same again: {f}")).collect();
    assert!(wrong.is_empty() && old.is_empty(), "\n{}\n{}", wrong.join("\n"), old.join("\n"));
}
