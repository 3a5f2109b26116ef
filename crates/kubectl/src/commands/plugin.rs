//! `kubectl plugin list`, and programs `kubectl-…` in `PATH` that run as commands.

use crate::error::{Error, Result, os_message};
use crate::kube::Kube;
use crate::shell::Shell;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(clap::Subcommand, Clone, Debug)]
pub enum Command {
    /// List the plugins in PATH.
    List(List),
}

#[derive(clap::Args, Clone, Debug)]
pub struct List {
    /// Print only names.
    #[arg(long)]
    pub name_only: bool,
}

/// Returns the directories of `PATH` without duplicates.
fn directories(environment: &dyn Fn(&str) -> Option<String>) -> Vec<PathBuf> {
    let mut out: Vec<PathBuf> = Vec::new();
    for d in environment("PATH").unwrap_or_default().split(':').filter(|d| !d.trim().is_empty()) {
        if !out.iter().any(|o| o == Path::new(d)) {
            out.push(d.into());
        }
    }
    out
}

fn executable(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// Returns the built-in command that all `words` name.
fn builtin(words: &[&str]) -> Option<String> {
    resolve_builtin(crate::cli::partial_command(words), words).or_else(|| resolve_builtin(crate::cli::command(), words))
}

/// Returns the built-in command that a plugin overwrites. As in upstream, words after a command without subcommands (or
/// after `create`, which is also a command itself) are its arguments, except for the first word.
fn overwritten(words: &[&str]) -> Option<String> {
    let mut at = crate::cli::command();
    let mut path = String::from("kubectl");
    for w in words {
        let sub = at.get_subcommands().find(|s| s.get_name() == *w || s.get_all_aliases().any(|a| a == *w)).cloned();
        let Some(sub) = sub else { break };
        path = format!("{path} {}", sub.get_name());
        at = sub;
    }
    (path != "kubectl").then_some(path)
}

fn resolve_builtin(mut at: clap::Command, words: &[&str]) -> Option<String> {
    let mut path = String::from("kubectl");
    for w in words {
        let sub = at.get_subcommands().find(|s| s.get_name() == *w || s.get_all_aliases().any(|a| a == *w)).cloned()?;
        path = format!("{path} {}", sub.get_name());
        at = sub;
    }
    Some(path)
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    let Command::List(a) = a.command;
    let mut plugins = Vec::new();
    for d in directories(&*k.shell.environment) {
        let mut entries: Vec<_> = match std::fs::read_dir(&d) {
            Ok(all) => all.flatten().collect(),
            Err(e) => {
                k.warn(format!(
                    "Unable to read directory {:?} from your PATH: open {}: {}. Skipping...",
                    d,
                    d.display(),
                    os_message(&e)
                ));
                continue;
            }
        };
        entries.sort_by_key(std::fs::DirEntry::file_name);
        let named = |e: &std::fs::DirEntry| e.file_name().to_string_lossy().starts_with("kubectl-");
        let file = |e: &std::fs::DirEntry| e.file_type().is_ok_and(|t| !t.is_dir());
        plugins.extend(entries.into_iter().filter(|e| named(e) && file(e)).map(|e| e.path()));
    }
    let mut wrong = Vec::new();
    match plugins.is_empty() {
        true => wrong.push("error: unable to find any kubectl plugins in your PATH".to_owned()),
        false => k.println("The following compatible plugins are available:\n"),
    }
    let (mut seen, mut warnings) = (Vec::<(String, PathBuf)>::new(), 0);
    for p in plugins {
        let name = p.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        k.println(if a.name_only { name.clone() } else { p.display().to_string() });
        let mut warn = |t: String| {
            warnings += 1;
            k.warn(format!("  - {t}"));
        };
        if !executable(&p) {
            warn(format!("warning: {} identified as a kubectl plugin, but it is not executable", p.display()));
        }
        match seen.iter().find(|(n, _)| *n == name) {
            Some((_, first)) => warn(format!(
                "warning: {} is overshadowed by a similarly named plugin: {}",
                p.display(),
                first.display()
            )),
            None => seen.push((name.clone(), p.clone())),
        }
        let words: Vec<&str> = name.split('-').skip(1).collect();
        if let Some(command) = overwritten(&words) {
            warn(format!("warning: {name} overwrites existing command: {command:?}"));
        }
    }
    match warnings {
        0 => {}
        1 => wrong.push("error: one plugin warning was found".into()),
        n => wrong.push(format!("error: {n} plugin warnings were found")),
    }
    if wrong.is_empty() { Ok(()) } else { Err(Error::Text(wrong.join("\n"))) }
}

/// Finds the plugin for a command line that no built-in command handles: the program with the longest name made of the
/// words before the first flag.
fn find(words: &[String], environment: &dyn Fn(&str) -> Option<String>) -> Option<(PathBuf, usize)> {
    let plain: Vec<&str> = words.iter().take_while(|w| !w.starts_with('-')).map(String::as_str).collect();
    let directories = directories(environment);
    (1..=plain.len()).rev().find_map(|n| {
        let name = format!("kubectl-{}", plain[..n].iter().map(|w| w.replace('-', "_")).collect::<Vec<_>>().join("-"));
        directories.iter().map(|d| d.join(&name)).find(|p| executable(p)).map(|p| (p, n))
    })
}

/// Runs the plugin that a command line names, if any.
pub fn run_plugin(words: &[String], shell: &Shell) -> Option<u8> {
    let first = words.first().filter(|w| !w.starts_with('-'))?;
    // Completion handles every command line itself.
    if matches!(first.as_str(), "help" | "__complete" | "__completeNoDesc") {
        return None;
    }
    let plain: Vec<&str> = words.iter().take_while(|w| !w.starts_with('-')).map(String::as_str).collect();
    // Plugins may also extend `create`, but no other built-in command.
    let known = if first == "create" {
        plain.get(..2).is_none_or(|w| builtin(w).is_some())
    } else {
        builtin(&plain[..1]).is_some()
    };
    if known {
        return None;
    }
    let (path, word_count) = find(words, &*shell.environment)?;
    if first == "create" && word_count < 2 {
        return None;
    }
    let mut program = std::process::Command::new(&path);
    program.args(&words[word_count..]);
    if shell.terminal {
        // The plugin replaces this process, so that it owns signals and terminal.
        let e = program.exec();
        shell.err.write(format!("error: fork/exec {}: {}\n", path.display(), os_message(&e)).as_bytes());
        return Some(1);
    }
    match shell.status(&mut program) {
        Ok(s) => Some(s.code().and_then(|c| u8::try_from(c).ok()).unwrap_or(1)),
        Err(e) => {
            shell.err.write(format!("error: fork/exec {}: {}\n", path.display(), os_message(&e)).as_bytes());
            Some(1)
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, run_in};
    use std::os::unix::fs::PermissionsExt as _;

    #[tokio::test]
    async fn finds_and_runs_plugins() {
        let dir = tempfile::tempdir().unwrap();
        let d = dir.path().to_string_lossy().into_owned();
        let script = |name: &str, mode: u32| {
            let path = dir.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\necho {name} \"$@\"\nexit 3\n")).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        script("kubectl-foo", 0o755);
        script("kubectl-foo-bar_baz", 0o755);
        script("kubectl-create-thing", 0o755);
        let run = |line: &'static str| {
            let d = d.clone();
            async move {
                let words: Vec<&str> = line.split_whitespace().collect();
                let path = d.clone();
                let (code, out, err) =
                    run_in(&Server::new(), &words, "", move |n| (n == "PATH").then(|| format!("{path}:/nowhere")))
                        .await;
                format!("{out}{err}{code}").replace(&d, "D")
            }
        };
        for (line, expected) in [
            ("foo a -n x", "kubectl-foo a -n x\n3"),
            ("foo bar-baz --flag c", "kubectl-foo-bar_baz --flag c\n3"),
            ("create thing x", "kubectl-create-thing x\n3"),
            ("nothing", "error: unknown command \"nothing\" for \"kubectl\"\n1"),
            (
                "plugin list",
                "The following compatible plugins are available:\n\nD/kubectl-create-thing\nD/kubectl-foo\nD/kubectl-foo-bar_baz\nUnable to read directory \"/nowhere\" from your PATH: open /nowhere: no such file or directory. Skipping...\n  - warning: kubectl-create-thing overwrites existing command: \"kubectl create\"\nerror: one plugin warning was found\n1",
            ),
        ] {
            assert_eq!(run(line).await, expected, "{line}");
        }
        script("kubectl-get", 0o644);
        let output = run("plugin list --name-only").await;
        assert!(
            output.ends_with("  - warning: D/kubectl-get identified as a kubectl plugin, but it is not executable\n  - warning: kubectl-get overwrites existing command: \"kubectl get\"\nerror: 3 plugin warnings were found\n1"),
            "{output}"
        );
    }
}
