//! `kuberc`: the user's aliases and default flags (`kubectl.config.k8s.io`, `Preference`), and which credential plugins may
//! run.
//!
//! [`rewrite`] applies them to the command line before it is parsed.

pub mod rewrite;

use crate::error::{Result, text};
use crate::shell::Shell;
use meta::Value;
use std::path::PathBuf;

/// Returns the path of the preferences, whether or not the file exists; `None` if they are turned off.
pub fn path(given: Option<String>, shell: &Shell) -> Option<PathBuf> {
    let variable = |n: &str| (shell.environment)(n).filter(|v| !v.is_empty());
    if variable("KUBECTL_KUBERC").as_deref() == Some("false") {
        return None;
    }
    match given.or_else(|| variable("KUBERC")).as_deref() {
        Some("off") => None,
        Some(p) => Some(PathBuf::from(p)),
        None => variable("HOME").map(|home| PathBuf::from(home).join(".kube/kuberc")),
    }
}

/// Whether a document is a `Preference` in a known version.
pub fn usable(d: &Value) -> bool {
    let known = ["kubectl.config.k8s.io/v1beta1", "kubectl.config.k8s.io/v1alpha1"];
    d["kind"] == "Preference" && known.iter().any(|v| d["apiVersion"] == *v)
}

/// Returns the value of `--kuberc`, which must not be empty.
fn explicit(words: &[String]) -> Result<Option<String>> {
    let mut all = words.iter().take_while(|w| *w != "--");
    while let Some(w) = all.next() {
        let given = match w.strip_prefix("--kuberc") {
            Some("") => all.next().cloned(),
            Some(v) => v.strip_prefix('=').map(str::to_owned),
            None => continue,
        };
        return match given.filter(|g| !g.is_empty()) {
            Some(g) => Ok(Some(g)),
            None => text("kuberc file is not found"),
        };
    }
    Ok(None)
}

fn load(words: &[String], shell: &Shell) -> Result<Option<Value>> {
    let variable = |n: &str| (shell.environment)(n).filter(|v| !v.is_empty());
    let (given, set) = (explicit(words)?, variable("KUBERC"));
    if variable("KUBECTL_KUBERC").as_deref() == Some("false") {
        return Ok(None);
    }
    if set.as_deref() == Some("off") {
        return match given {
            None => Ok(None),
            Some(_) => {
                text("kuberc error disabling kuberc via KUBERC=off and passing kuberc flag are mutually exclusive")
            }
        };
    }
    let named = given.or(set);
    let path = match (&named, variable("HOME")) {
        (Some(p), _) => PathBuf::from(p),
        (None, Some(home)) => PathBuf::from(home).join(".kube/kuberc"),
        (None, None) => return Ok(None),
    };
    let wrong = |why: String| -> Result<Option<Value>> {
        if named.is_some() {
            return text(format!("kuberc error kuberc: {why}"));
        }
        shell.err.write(format!("kuberc: no preferences loaded from {}: {why}", path.display()).as_bytes());
        Ok(None)
    };
    let read = match std::fs::read_to_string(&path) {
        Ok(t) => t,
        Err(e) if named.is_none() && e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return wrong(format!("open {}: {}", path.display(), crate::error::os_message(&e))),
    };
    let log = |line: u32, what: String| {
        if verbosity(words) >= 5 {
            let head = client::log::head('I', shell.clock.now(), &shell.zone, &format!("marshal.go:{line}"));
            shell.err.write(format!("{head}kuberc: {what}\n").as_bytes());
        }
    };
    let useless = || wrong(format!("no valid preferences found in {}, use --v=5 to see details", path.display()));
    let documents = match codec::yaml::parse(&read) {
        Ok(all) => all,
        Err(e) => {
            log(72, format!("decoding {}: {e}", path.display()));
            return useless();
        }
    };
    let all: Vec<Value> = documents.into_iter().filter(|d| !d.is_null()).collect();
    if all.is_empty() {
        log(103, format!("no preferences found in {}", path.display()));
        return Ok(None);
    }
    match all.iter().position(usable) {
        Some(n) => {
            let version = all[n]["apiVersion"].as_str().unwrap_or_default();
            log(94, format!("using entry {} ({version}) in {}", n + 1, path.display()));
            let unknown = unknown(&all[n]);
            if !unknown.is_empty() {
                let why = format!("strict decoding error: {}", unknown.join(", "));
                let message = format!("kuberc: ignoring strict decoding error in {}: {why}", path.display());
                shell.err.write(message.as_bytes());
            }
            Ok(all.into_iter().nth(n))
        }
        None => useless(),
    }
}

/// Reports fields that no version of the preferences has, as Go's strict decoder does.
fn unknown(p: &Value) -> Vec<String> {
    let top = ["apiVersion", "kind", "defaults", "overrides", "aliases"];
    let plugins = ["credentialPluginPolicy", "credentialPluginAllowlist"];
    let lists: [(&str, &[&str]); 4] = [
        ("defaults", &["command", "options"]),
        ("overrides", &["command", "flags"]),
        ("aliases", &["name", "command", "prependArgs", "appendArgs", "options", "flags"]),
        ("credentialPluginAllowlist", &["name", "command"]),
    ];
    let mut out = Vec::new();
    let mut collect = |v: &Value, path: &str, known: &[&str]| {
        let unknown = v.as_object().into_iter().flatten().map(|(k, _)| k).filter(|k| !known.contains(&k.as_str()));
        out.extend(unknown.map(|k| format!("unknown field \"{path}{k}\"")));
    };
    collect(p, "", &[&top[..], &plugins].concat());
    for (list, known) in lists {
        for (n, e) in p[list].as_array().into_iter().flatten().enumerate() {
            collect(e, &format!("{list}[{n}]."), known);
            for options in ["options", "flags"] {
                for (m, o) in e[options].as_array().into_iter().flatten().enumerate() {
                    collect(o, &format!("{list}[{n}].{options}[{m}]."), &["name", "default"]);
                }
            }
        }
    }
    out
}

/// Returns the log level before the command line is parsed.
fn verbosity(words: &[String]) -> i32 {
    let mut all = words.iter().take_while(|w| *w != "--");
    let mut level = 0;
    while let Some(w) = all.next() {
        let rest = match w.strip_prefix("--v").or_else(|| w.strip_prefix("-v")) {
            Some("") => all.next().map(String::as_str).unwrap_or_default(),
            Some(rest) => rest.strip_prefix('=').unwrap_or(rest),
            None => continue,
        };
        level = rest.parse().unwrap_or(level);
    }
    level
}

/// Checks whether a credential plugin may run.
pub fn allows(plugin: &str, given: &str, shell: &Shell) -> std::result::Result<(), String> {
    let words: Vec<String> = if given.is_empty() { Vec::new() } else { vec![format!("--kuberc={given}")] };
    let Some(p) = load(&words, shell).map_err(|e| e.to_string())? else { return Ok(()) };
    let resolve = |program: &str| -> String {
        if program.contains('/') {
            return program.to_owned();
        }
        let path = (shell.environment)("PATH").unwrap_or_default();
        let mut found = std::env::split_paths(&path).map(|d| d.join(program)).filter(|f| f.is_file());
        found.next().map_or_else(|| program.to_owned(), |f| f.display().to_string())
    };
    misconfigured(&p)?;
    let program_path = resolve(plugin);
    match p["credentialPluginPolicy"].as_str().unwrap_or_default() {
        "" | "AllowAll" => Ok(()),
        "Allowlist" => {
            let list = p["credentialPluginAllowlist"].as_array().into_iter().flatten();
            // `name` is the older name of `command`.
            let mut programs = list.filter_map(|e| e["command"].as_str().or_else(|| e["name"].as_str()));
            if programs.any(|entry| resolve(entry) == program_path) {
                return Ok(());
            }
            Err(format!("plugin path {program_path:?} is not permitted by the credential plugin allowlist"))
        }
        other => Err(format!("plugin {program_path:?} not allowed: policy set to {other:?}")),
    }
}

/// Rejects a policy that contradicts its list: the author's intent is unclear.
fn misconfigured(p: &Value) -> std::result::Result<(), String> {
    let (policy, list) = (p["credentialPluginPolicy"].as_str().unwrap_or_default(), &p["credentialPluginAllowlist"]);
    match (policy, list.as_array()) {
        ("" | "AllowAll" | "DenyAll", None) => Ok(()),
        ("" | "AllowAll" | "DenyAll", Some(_)) => Err(format!(
            "misconfigured credential plugin allowlist: plugin policy is {policy:?} but allowlist is non-nil"
        )),
        ("Allowlist", None) => {
            Err("credential plugin policy set to \"Allowlist\", but allowlist is unspecified".into())
        }
        ("Allowlist", Some(all)) if all.is_empty() => {
            Err("credential plugin policy set to \"Allowlist\", but allowlist is empty; use \"DenyAll\" policy instead"
                .into())
        }
        ("Allowlist", Some(all)) => {
            let empty = |e: &Value| ["command", "name"].iter().all(|k| e[*k].as_str().is_none_or(str::is_empty));
            match all.iter().position(empty) {
                Some(i) => Err(format!("misconfigured credential plugin allowlist: empty allowlist entry #{}", i + 1)),
                None => Ok(()),
            }
        }
        (other, _) => Err(format!("unknown plugin policy: {other:?}")),
    }
}

/// Returns a list by its name in v1beta1, or else by its name in v1alpha1.
fn list<'a>(v: &'a Value, name: &str, older: &str) -> &'a [Value] {
    v[name].as_array().or_else(|| v[older].as_array()).map_or(&[], Vec::as_slice)
}

fn options(v: &Value) -> impl Iterator<Item = (&str, &str)> {
    list(v, "options", "flags")
        .iter()
        .filter_map(|o| Some((o["name"].as_str()?, o["default"].as_str().unwrap_or_default())))
}

fn strings(v: &Value) -> Vec<String> {
    v.as_array().into_iter().flatten().filter_map(|s| s.as_str().map(str::to_owned)).collect()
}

/// Checks the names of aliases and flags.
pub fn check(p: &Value) -> Result {
    let mut seen = Vec::new();
    for a in p["aliases"].as_array().into_iter().flatten() {
        let name = a["name"].as_str().unwrap_or_default();
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphabetic()) {
            return text("invalid alias name, can only include alphabetical characters");
        }
        if seen.contains(&name) {
            return text(format!("duplicate alias name {name}"));
        }
        seen.push(name);
    }
    let aliases = p["aliases"].as_array().into_iter().flatten();
    for v in aliases.chain(list(p, "defaults", "overrides")) {
        if let Some((name, _)) = options(v).find(|(n, _)| n.starts_with('-')) {
            return text(format!("flag name {name} should be in long form without dashes"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, run_in};
    use serde_json::json;

    const PREFERENCE: &str = "apiVersion: kubectl.config.k8s.io/v1beta1
kind: Preference
defaults:
- command: delete
  options: [{name: dry-run, default: client}]
aliases:
- name: getn
  command: get
  options: [{name: output, default: name}]
  prependArgs: [namespaces]
  appendArgs: [--ignore-not-found]
";

    /// A list without the policy `Allowlist` is a mistake that must not allow every program.
    #[test]
    fn rejects_policies_that_contradict_their_list() {
        let list = json!([{"command": "a"}]);
        for (policy, list, expected) in [
            ("", json!(null), ""),
            ("AllowAll", json!(null), ""),
            (
                "AllowAll",
                list.clone(),
                "misconfigured credential plugin allowlist: plugin policy is \"AllowAll\" but allowlist is non-nil",
            ),
            (
                "",
                json!([]),
                "misconfigured credential plugin allowlist: plugin policy is \"\" but allowlist is non-nil",
            ),
            ("Allowlist", list, ""),
            ("Allowlist", json!(null), "credential plugin policy set to \"Allowlist\", but allowlist is unspecified"),
            (
                "Allowlist",
                json!([]),
                "credential plugin policy set to \"Allowlist\", but allowlist is empty; use \"DenyAll\" policy instead",
            ),
            ("Allowlist", json!([{}]), "misconfigured credential plugin allowlist: empty allowlist entry #1"),
            ("Other", json!(null), "unknown plugin policy: \"Other\""),
        ] {
            let p = json!({"credentialPluginPolicy": policy, "credentialPluginAllowlist": list});
            assert_eq!(super::misconfigured(&p).err().unwrap_or_default(), expected, "{p}");
        }
    }

    /// Unknown fields are reported once per command, and the rest is used.
    #[tokio::test]
    async fn warns_about_unknown_fields() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rc").display().to_string();
        let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p"}});
        let s = Server::new().on("GET /api/v1/namespaces/default/pods/p", 200, pod);
        let name = "defaults: [{command: get, options: [{name: output, default: name}]}]\n";
        let head = "apiVersion: kubectl.config.k8s.io/v1beta1\nkind: Preference\n";
        for (content, level, expected) in [
            (format!("---\n{head}{name}"), "0", String::new()),
            (
                format!("{head}{name}odd: 1\naliases: [{{name: a, command: get, even: 2}}]\n---\nkind: Other\n"),
                "0",
                format!(
                    "kuberc: ignoring strict decoding error in {path}: strict decoding error: unknown field \"odd\", unknown field \"aliases[0].even\""
                ),
            ),
            (
                format!("{head}{name}"),
                "5",
                format!("kuberc: using entry 1 (kubectl.config.k8s.io/v1beta1) in {path}\n"),
            ),
            (String::new(), "5", format!("kuberc: no preferences found in {path}\n")),
        ] {
            std::fs::write(&path, &content).unwrap();
            for flags in [["-v", level], ["--v", level]] {
                let line = [&["get", "pod", "p", "-o", "name", "--kuberc", &path], &flags[..]].concat();
                let (code, out, err) = run_in(&s, &line, "", |_| None).await;
                assert_eq!((code, out.as_str()), (0, "pod/p\n"), "{content} {err}");
                assert!(err.ends_with(&expected) && err.is_empty() == expected.is_empty(), "{content}: {err}");
            }
        }
    }

    #[tokio::test]
    async fn applies_aliases_and_defaults() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rc");
        let s = Server::new().on(
            "GET /api/v1/namespaces/a",
            200,
            json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "a"}}),
        );
        let run = |content: String, line: &'static str| {
            std::fs::write(&path, content).unwrap();
            let (rc, s) = (path.to_string_lossy().into_owned(), s.clone());
            async move {
                let words: Vec<&str> = line.split_whitespace().collect();
                let (code, out, err) = run_in(&s, &words, "", move |n| (n == "KUBERC").then(|| rc.clone())).await;
                format!("{out}{err}{code}")
            }
        };
        let p = PREFERENCE.to_owned();
        assert_eq!(run(p.clone(), "getn a").await, "namespace/a\n0");
        assert_eq!(run(p.clone(), "getn a -o jsonpath={.kind}").await, "Namespace0");
        assert_eq!(run(p.clone(), "delete ns a").await, "namespace \"a\" deleted (dry run)\n0");
        let wrong = p.replace("name: getn", "name: get-n");
        assert_eq!(
            run(wrong, "get ns").await,
            "error occurred while applying preferences invalid alias name, can only include alphabetical characters\n1"
        );
        let wrong = p.replace("name: dry-run", "name: nope");
        assert_eq!(
            run(wrong, "delete ns a").await,
            "error occurred while applying preferences invalid flag nope for command delete\n1"
        );
        let (code, _, err) = run_in(&s, &["get", "ns", "--kuberc=/nowhere"], "", |_| None).await;
        assert_eq!(
            (code, err.as_str()),
            (
                1,
                "error occurred while applying preferences kuberc error kuberc: open /nowhere: no such file or directory\n"
            )
        );
    }
}
