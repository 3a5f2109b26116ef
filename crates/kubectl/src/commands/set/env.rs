//! `kubectl set env`: sets variables from arguments, standard input, config maps and secrets, or lists them.

use super::references::{self, Sources};
use super::{Messages, SetFlags, change, containers, pod_spec, split};
use crate::error::{Error, Result, text};
use crate::flags::env_var_name;
use crate::kube::Kube;
use crate::resource::select::{Selection, gather};
use meta::{Map, Value};
use serde_json::json;
use std::io::Read as _;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// TYPE/NAME…, then NAME=VALUE to set and NAME- to remove.
    pub words: Vec<String>,
    /// Only objects with these labels.
    #[arg(short = 'l', long, default_value = "", hide_default_value = true)]
    pub selector: String,
    /// Only containers with this name; may contain `*`.
    #[arg(short = 'c', long, default_value = "*", hide_default_value = true)]
    pub containers: String,
    /// Config map or secret (TYPE/NAME) with keys that become variables.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub from: String,
    /// Prefix of every name.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub prefix: String,
    /// NAME=VALUE, or `-` to read such lines from standard input; may be repeated.
    #[arg(short = 'e', long)]
    pub env: Vec<String>,
    /// Only these keys of --from.
    #[arg(long, value_delimiter = ',')]
    pub keys: Vec<String>,
    /// List the variables.
    #[arg(long)]
    pub list: bool,
    /// List the values that references resolve to.
    #[arg(long)]
    pub resolve: bool,
    /// Overwrite existing variables.
    #[arg(long, default_value = "true", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set, hide_default_value = true)]
    pub overwrite: bool,
    #[command(flatten)]
    pub set: SetFlags,
}

/// The variables to set and to remove.
#[derive(Default)]
struct Changes {
    set: Vec<Value>,
    remove: Vec<String>,
}

fn variable(name: &str, value: &str) -> Value {
    if value.is_empty() { json!({"name": name}) } else { json!({"name": name, "value": value}) }
}

fn parse<'a>(specs: impl Iterator<Item = &'a String>, k: &mut Kube) -> Result<Changes> {
    let mut c = Changes::default();
    let mut given = Vec::new();
    for s in specs {
        if s == "-" {
            let mut lines = String::new();
            k.shell
                .input
                .read_to_string(&mut lines)
                .map_err(|e| Error::Text(format!("reading standard input: {e}")))?;
            for l in lines.lines() {
                if let Some((n, v)) = l.split('#').next().unwrap_or_default().split_once('=') {
                    c.set.push(variable(n, v));
                }
            }
        } else if let Some((n, v)) = s.split_once('=') {
            let wrong = env_var_name(n);
            if !wrong.is_empty() {
                return text(format!("{n:?} is not a valid key name: {}", wrong.join(";")));
            }
            given.push(n);
            c.set.push(variable(n, v));
        } else if let Some(n) = s.strip_suffix('-') {
            c.remove.push(n.to_owned());
        } else {
            return text(format!("unknown environment variable: {s}"));
        }
    }
    if c.remove.iter().any(|r| given.contains(&r.as_str())) {
        return text("can not both modify and remove the same environment variable in the same command");
    }
    Ok(c)
}

/// Returns the variables for a config map or secret, sorted by key.
async fn imported(a: &Arguments, k: &mut Kube) -> Result<Vec<Value>> {
    let (found, errors) = match a.set.local {
        true => crate::resource::select::gather_alone(k, &[], &a.set.files).await?,
        false => gather(k, std::slice::from_ref(&a.from), &a.set.files, &Selection::default()).await?,
    };
    Error::collect(errors)?;
    let mut out = Vec::new();
    for i in found {
        let o = i.object.unwrap_or_default();
        let reference = match o.kind() {
            "Secret" => "secretKeyRef",
            "ConfigMap" => "configMapKeyRef",
            _ => return text("unsupported resource specified in --from"),
        };
        for key in o.get("data").and_then(Value::as_object).into_iter().flat_map(Map::keys) {
            if !a.keys.is_empty() && !a.keys.contains(key) {
                continue;
            }
            let plain = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c.to_ascii_uppercase() } else { '_' };
            let name: String = key.chars().map(plain).collect();
            if name != *key {
                k.warn(format!("Warning: key {key} transferred to {name}"));
            }
            out.push(json!({"name": name, "valueFrom": {reference: {"name": o.name(), "key": key}}}));
        }
    }
    Ok(out)
}

/// Applies the changes: existing variables keep their positions, new ones are appended.
fn updated(old: &[Value], c: &Changes) -> Vec<Value> {
    let name = |v: &Value| v["name"].as_str().unwrap_or_default().to_owned();
    let mut covered = c.remove.clone();
    let mut out = Vec::new();
    for e in old {
        if covered.contains(&name(e)) {
            continue;
        }
        match c.set.iter().find(|n| n["name"] == e["name"]) {
            Some(new) => {
                covered.push(name(e));
                out.push(new.clone());
            }
            None => out.push(e.clone()),
        }
    }
    for e in &c.set {
        if !covered.contains(&name(e)) {
            covered.push(name(e));
            out.push(e.clone());
        }
    }
    out
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    if a.set.all && !a.selector.is_empty() {
        return text("cannot set --all and --selector at the same time");
    }
    let is_pair = |w: &str| w.split_once('=').is_some_and(|(n, _)| !n.is_empty()) || w.ends_with('-');
    let Ok((words, pairs)) = split(&a.words, "environment", is_pair) else {
        return text(format!("all resources must be specified before environment changes: {}", a.words.join(" ")));
    };
    a.set.check("")?;
    if words.is_empty() && a.set.files.is_empty() {
        return text("one or more resources must be specified as <resource> <name> or <resource>/<name>");
    }
    if a.list && !a.set.print.output.is_empty() {
        return text("--list and --output may not be specified together");
    }
    if !a.keys.is_empty() && a.from.is_empty() {
        return text("when specifying --keys, a configmap or secret must be provided with --from");
    }
    let reads = |all: &[String]| all.iter().any(|w| w == "-");
    if reads(&a.set.files.filename) && (reads(&a.env) || reads(pairs)) {
        return text("standard input cannot be used for multiple arguments");
    }
    let mut changes = parse(a.env.iter().chain(pairs), k)?;
    if !a.from.is_empty() {
        changes.set.extend(imported(&a, k).await?);
    }
    if !a.prefix.is_empty() {
        for e in &mut changes.set {
            let name = format!("{}{}", a.prefix, e["name"].as_str().unwrap_or_default());
            e["name"] = name.into();
        }
    }
    let (found, errors) = a.set.gather(k, &words, &a.selector).await?;
    Error::collect(errors)?;
    let mut sources = Sources::default();
    if a.list && a.resolve {
        for i in &found {
            let mut o = i.object.clone().unwrap_or_default();
            if let Ok(spec) = pod_spec(&mut o) {
                for c in containers(spec, &a.containers) {
                    sources.read(k, c.get("env")).await?;
                }
            }
        }
    }
    let (out, err) = (k.out.clone(), k.err.clone());
    let w =
        Messages { done: "env updated", failed: "failed to patch env update to pod template: ", skip_unchanged: true };
    let mut f = a.set.clone();
    // A list is printed and nothing else.
    f.local |= a.list;
    change(k, &f, &w, (found, Vec::new()), |o| {
        let object = o.clone();
        let all = containers(pod_spec(o)?, &a.containers);
        if all.is_empty() {
            err.write(
                format!(
                    "Warning: {}/{} does not have any containers matching {:?}\n",
                    object.kind(),
                    object.name(),
                    a.containers
                )
                .as_bytes(),
            );
        }
        for c in all {
            let old = c.get("env").and_then(Value::as_array).cloned().unwrap_or_default();
            if !a.overwrite {
                let other = |e: &&Value| changes.set.iter().any(|n| n["name"] == e["name"] && n["value"] != e["value"]);
                if let Some(e) = old.iter().find(other) {
                    let value = e["value"].as_str().unwrap_or_default();
                    let name = e["name"].as_str().unwrap_or_default();
                    return text(format!("'{name}' already has a value ({value}), and --overwrite is false"));
                }
            }
            let new = updated(&old, &changes);
            if a.list {
                // Unresolved references are reported, but do not change the exit code, as in upstream.
                let (listing, wrong) = references::list(&object, c, &new, a.resolve.then_some(&sources));
                out.write(listing.as_bytes());
                out.flush();
                err.write(wrong.as_bytes());
            } else if new.is_empty() {
                c.remove("env");
            } else {
                c.insert("env".into(), new.into());
            }
        }
        Ok(())
    })
    .await
}
