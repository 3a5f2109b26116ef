//! Rewrites a command line by the aliases and defaults of a user's preferences.
//!
//! A default is inserted behind the command, so that a flag of the user wins.

use super::{check, list, load, options, strings};
use crate::error::{Error, Result, text};
use crate::shell::Shell;
use meta::Value;

/// Returns the arguments of a command line (without the program) with the user's preferences applied.
pub fn apply(words: Vec<String>, shell: &Shell) -> Result<Vec<String>> {
    // Completion works on the line as it is.
    if words.first().is_none_or(|w| w.starts_with("__complete")) {
        return Ok(words);
    }
    let applied = || {
        let Some(preference) = load(&words, shell)? else { return Ok(words.clone()) };
        check(&preference)?;
        let (words, aliased) = alias(words.clone(), &preference)?;
        defaults(words, &preference, aliased.as_deref(), shell)
    };
    applied().map_err(|e: Error| Error::Bare(format!("error occurred while applying preferences {e}")))
}

/// Returns the built-in command that `words` begin with, its path, and the number of words in it.
fn command(words: &[&str]) -> Option<(clap::Command, Vec<String>, usize)> {
    let mut at = crate::cli::command();
    let (mut path, mut taken) = (Vec::new(), 0);
    for w in words {
        let sub = at.get_subcommands().find(|s| s.get_name() == *w || s.get_all_aliases().any(|a| a == *w)).cloned();
        let Some(s) = sub else { break };
        path.push(s.get_name().to_owned());
        at = s;
        taken += 1;
    }
    (taken > 0).then_some((at, path, taken))
}

fn has_flag(at: &clap::Command, name: &str) -> bool {
    let global = crate::cli::command();
    at.get_arguments().chain(global.get_arguments()).any(|a| a.get_long() == Some(name))
}

/// Whether a flag is on the line, in its long or short form.
fn given(at: &clap::Command, name: &str, words: &[String]) -> bool {
    let short = at.get_arguments().find(|a| a.get_long() == Some(name)).and_then(clap::Arg::get_short);
    words.iter().take_while(|w| *w != "--").any(|w| {
        w.strip_prefix("--").is_some_and(|l| l == name || l.starts_with(&format!("{name}=")))
            || short.is_some_and(|s| w.starts_with(&format!("-{s}")))
    })
}

/// Returns the index of the command: the first word that is no flag.
fn first(words: &[String]) -> Option<usize> {
    words.iter().position(|w| !w.starts_with('-'))
}

fn alias(words: Vec<String>, p: &Value) -> Result<(Vec<String>, Option<String>)> {
    let Some(at) = first(&words) else { return Ok((words, None)) };
    let name = words[at].clone();
    let mut all = p["aliases"].as_array().into_iter().flatten();
    let Some(a) = all.find(|a| a["name"] == name.as_str()) else { return Ok((words, None)) };
    if command(&[&name]).is_some() {
        return Ok((words, None));
    }
    let command_words: Vec<&str> = a["command"].as_str().unwrap_or_default().split_whitespace().collect();
    let Some((found, ..)) = command(&command_words).filter(|(_, _, n)| *n == command_words.len()) else {
        let shown = command_words.join(" ");
        return text(format!("command {shown:?} not found to set alias {name:?}: [{shown}]"));
    };
    let mut out: Vec<String> = words[..at].to_vec();
    out.extend(command_words.into_iter().map(str::to_owned));
    for (flag, value) in options(a) {
        if !has_flag(&found, flag) {
            return text(format!("invalid alias flag {flag} in alias {name}"));
        }
        if !given(&found, flag, &words) {
            out.push(format!("--{flag}={value}"));
        }
    }
    out.extend(strings(&a["prependArgs"]));
    out.extend(words[at + 1..].iter().cloned());
    out.extend(strings(&a["appendArgs"]));
    Ok((out, Some(name)))
}

fn defaults(words: Vec<String>, p: &Value, aliased: Option<&str>, shell: &Shell) -> Result<Vec<String>> {
    let Some(at) = first(&words).filter(|_| aliased.is_none()) else { return Ok(words) };
    let plain: Vec<&str> = words[at..].iter().take_while(|w| !w.starts_with('-')).map(String::as_str).collect();
    // Plugins and unknown commands have no defaults.
    let Some((found, path, taken)) = command(&plain).or_else(|| {
        let root = ["help", "options"].contains(plain.first()?);
        root.then(|| (crate::cli::command(), Vec::new(), 0))
    }) else {
        return Ok(words);
    };
    let mut extra = Vec::new();
    for d in list(p, "defaults", "overrides") {
        let name = d["command"].as_str().unwrap_or_default();
        let command_words: Vec<&str> = name.split_whitespace().collect();
        let Some((_, configured, n)) = command(&command_words).filter(|(_, _, n)| *n == command_words.len()) else {
            shell.err.write(format!("Warning: command {name:?} not found to set kuberc override\n").as_bytes());
            continue;
        };
        if configured != path || n != taken {
            continue;
        }
        for (flag, value) in options(d) {
            if !has_flag(&found, flag) {
                return Err(Error::Text(format!("invalid flag {flag} for command {name}")));
            }
            if !given(&found, flag, &words) {
                extra.push(format!("--{flag}={value}"));
            }
        }
    }
    let mut out = words;
    let insert_at = at + taken;
    out.splice(insert_at..insert_at, extra);
    Ok(out)
}
