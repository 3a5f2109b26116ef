//! `kubectl delete`: deletes objects and waits for the end of the deletion.

use crate::error::{Error, Result, text};
use crate::flags::{DryRunFlag, DryRunStrategy, FileFlags, SelectFlags, duration};
use crate::kube::Kube;
use crate::resource::deletion::wait_deleted;
use crate::resource::select::{Selection, list, reject_both, targets};
use crate::resource::{Info, Target, from_files};
use client::{DeleteOptions, Propagation};
use http::Method;
use meta::Value;
use std::time::Duration;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// TYPE NAME…, TYPE/NAME…, or TYPE with -l or --all.
    pub resources: Vec<String>,
    #[command(flatten)]
    pub files: FileFlags,
    #[command(flatten)]
    pub which: SelectFlags,
    /// How to delete dependents: background, foreground or orphan.
    #[arg(long, default_value = "background", num_args = 0..=1, require_equals = true, default_missing_value = "background", hide_default_value = true)]
    pub cascade: String,
    #[command(flatten)]
    pub dry: DryRunFlag,
    /// Grace period of pods in seconds; negative is the pod's own.
    #[arg(long, default_value = "-1", hide_default_value = true)]
    pub grace_period: i64,
    /// With --grace-period=0, remove the objects immediately.
    #[arg(long)]
    pub force: bool,
    /// The same as --grace-period=1.
    #[arg(long)]
    pub now: bool,
    /// Missing objects are no error (always so with --all).
    #[arg(long)]
    pub ignore_not_found: bool,
    /// Ask for confirmation before anything is deleted.
    #[arg(short = 'i', long)]
    pub interactive: bool,
    /// Wait for the deletion to finish.
    #[arg(long, default_value = "true", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set, hide_default_value = true)]
    pub wait: bool,
    /// Time limit of the wait; 0 is a week.
    #[arg(long, default_value = "0s", hide_default_value = true, value_parser = crate::flags::duration_text)]
    pub timeout: String,
    /// Output format: name.
    #[arg(short = 'o', long, default_value = "", hide_default_value = true)]
    pub output: String,
    /// DELETE this URI of the server.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub raw: String,
}

/// The error of commands without objects.
pub const MISSING_RESOURCES: &str = "You must provide one or more resources by argument or filename.
Example resource specifications include:
   '-f rsrc.yaml'
   '--filename=rsrc.json'
   '<resource> <name>'
   '<resource>'";

pub async fn run(mut a: Arguments, k: &mut Kube) -> Result {
    if !a.raw.is_empty() {
        if !a.files.is_empty() {
            super::raw::check(&a.raw, &a.files, &[])?;
        }
        return super::raw::send(k, Method::DELETE, &a.raw, &a.files).await;
    }
    if !matches!(a.output.as_str(), "" | "name") {
        return text("unexpected -o output mode: ".to_owned() + &a.output + ". We only support '-o name'");
    }
    if a.which.all && !(a.which.selector.is_empty() && a.which.field_selector.is_empty()) {
        return text("setting 'all' parameter but found a non empty selector. ");
    }
    if a.now {
        if a.grace_period != -1 {
            return text("--now and --grace-period cannot be specified together");
        }
        a.grace_period = 1;
    }
    if a.grace_period == 0 && !a.force {
        a.grace_period = 1;
    }
    if a.force && a.grace_period < 0 {
        a.grace_period = 0;
    }
    if a.force && a.grace_period > 0 {
        return text("--force and --grace-period greater than 0 cannot be specified together");
    }
    for (boolean, word) in [("true", "background"), ("false", "orphan")] {
        if a.cascade == boolean {
            k.warn(format!(
                "warning: --cascade={boolean} is deprecated (boolean value) and can be replaced with --cascade={word}."
            ));
            a.cascade = word.to_owned();
        }
    }
    let propagation = cascade(&a.cascade)?;
    let dry = a.dry.strategy()?;
    let timeout = duration("timeout", &a.timeout)?.filter(|d| !d.is_zero());
    if a.resources.is_empty() && a.files.is_empty() {
        if a.which.all || a.which.selection().selects() {
            return text("at least one resource must be specified to use a selector");
        }
        return text(MISSING_RESOURCES);
    }
    if a.force && a.grace_period == 0 {
        k.warn("Warning: Immediate deletion does not wait for confirmation that the running resource has been terminated. The resource may continue to run on the cluster indefinitely.");
    }
    reject_both(&a.resources, &a.files)?;
    let selection = Selection { nothing_but_all: a.which.all, ..a.which.selection() };
    let mut errors = Vec::new();
    let mut all = Vec::new();
    let ignore = a.ignore_not_found || a.which.all;
    for t in targets(k, &a.resources, &selection).await? {
        match t {
            Target::Named(i) => all.push(i),
            Target::All(c) => match list(k, &c, &selection).await {
                Ok(found) => all.extend(found),
                Err(e) => errors.push(e),
            },
        }
    }
    let mut unread = Vec::new();
    for i in from_files(k, &a.files).await? {
        match i {
            Ok(i) => all.push(i),
            Err(e) => unread.push(e),
        }
    }
    if a.interactive && !all.is_empty() {
        k.println("You are about to delete the following ".to_owned() + &format!("{} resource(s):", all.len()));
        for i in &all {
            k.println(i.to_name());
        }
        k.out.write(b"Do you want to continue? (y/N): ");
        k.out.flush();
        if !confirm(k)? {
            k.println("deletion is cancelled");
            return Ok(());
        }
    }
    if k.namespace()?.1 && all.iter().any(|i| !i.resource.namespaced) {
        k.warn("Warning: deleting cluster-scoped resources, not scoped to the provided namespace");
    }
    let mut options = DeleteOptions::propagation(propagation);
    if a.grace_period >= 0 {
        options.grace_period_seconds = Some(a.grace_period);
    }
    options.dry_run = dry.option();
    let mut waiting = Vec::new();
    let mut found = 0;
    for i in all {
        let name = i.name.clone();
        if dry != DryRunStrategy::Client && i.resource.namespaced && i.namespace.is_empty() {
            found += 1;
            let why = "an empty namespace may not be set when a resource name is provided".to_owned();
            errors.push(Error::Text(why).about("deleting", &i.source));
            continue;
        }
        if dry != DryRunStrategy::Client {
            let api = k.api(&i.resource, &i.namespace).await?;
            match api.delete(&name, &options).await.map_err(Error::from) {
                Ok(confirm) => waiting.push((i.clone(), uid(&confirm))),
                Err(e) if e.is_not_found() && ignore => {
                    found += 1;
                    continue;
                }
                Err(e) => {
                    found += 1;
                    errors.push(if i.source.is_empty() { e } else { e.about("deleting", &i.source) });
                    continue;
                }
            }
        }
        found += 1;
        report(k, &i, &a.output, a.grace_period, dry);
    }
    k.out.flush();
    // Read errors are printed last, as in upstream.
    errors.extend(unread);
    if found == 0 && errors.is_empty() {
        k.println("No resources found");
    }
    if a.wait && dry == DryRunStrategy::None && !(a.force && a.grace_period == 0) {
        let limit = tokio::time::Instant::now() + timeout.unwrap_or(Duration::from_secs(7 * 24 * 3600));
        crate::shell::interruptible(async {
            for (i, uid) in waiting {
                errors.extend(wait_deleted(k, &i, &uid, limit).await.err());
            }
            Ok(())
        })
        .await?;
    }
    Error::collect(errors)
}

/// Reports the deletion of an object; with the format `name` only its name.
pub fn report(k: &Kube, i: &Info, output: &str, grace_period: i64, dry: DryRunStrategy) {
    if output == "name" {
        return k.println(i.to_name());
    }
    let what = if grace_period == 0 { "force deleted" } else { "deleted" };
    let from = if i.namespace.is_empty() { String::new() } else { format!(" from {} namespace", i.namespace) };
    k.println(format!("{} {:?} {what}{from}{}", i.resource.group_kind(), i.name, dry.suffix()));
}

/// Reads a line of input, and returns whether it confirms.
pub fn confirm(k: &mut Kube) -> Result<bool> {
    let mut line = Vec::new();
    let mut byte = [0u8];
    loop {
        match std::io::Read::read(&mut k.shell.input, &mut byte) {
            Ok(0) => break,
            Ok(_) if byte[0] == b'\n' => break,
            Ok(_) => line.push(byte[0]),
            Err(e) => return text(format!("reading the answer: {e}")),
        }
    }
    Ok(matches!(String::from_utf8_lossy(&line).trim(), "y" | "Y"))
}

/// Parses `--cascade`.
pub fn cascade(word: &str) -> Result<Propagation> {
    match word {
        "background" => Ok(Propagation::Background),
        "foreground" => Ok(Propagation::Foreground),
        "orphan" => Ok(Propagation::Orphan),
        other => {
            text(format!("invalid cascade value ({other}). Must be \"background\", \"foreground\", or \"orphan\""))
        }
    }
}

/// Returns the UID of the deleted object: the response is the object itself, or a `Status` about it.
pub fn uid(confirm: &Value) -> String {
    confirm["details"]["uid"].as_str().or_else(|| confirm["metadata"]["uid"].as_str()).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, snapshot};
    use serde_json::json;

    #[tokio::test]
    async fn deletes_by_name_and_selector() {
        let pod = |n: &str| json!({"metadata": {"name": n, "namespace": "default", "uid": n}});
        let ok = json!({"kind": "Status", "status": "Success", "details": {"uid": "u"}});
        let empty = json!({"items": [], "metadata": {"resourceVersion": "9"}});
        let s = Server::new()
            .on("DELETE /api/v1/namespaces/default/pods/web", 200, ok.clone())
            .on("DELETE /api/v1/namespaces/x", 200, ok.clone())
            .on("GET /api/v1/namespaces/default/pods?fieldSelector=metadata.name%3Dweb", 200, empty.clone())
            .on("GET /api/v1/namespaces?fieldSelector=metadata.name%3Dx", 200, empty.clone())
            .on(
                "GET /api/v1/namespaces/default/pods?labelSelector=app%3Dweb&limit=500",
                200,
                json!({"items": [pod("web")], "metadata": {}}),
            )
            .on("GET /api/v1/namespaces/default/pods?limit=500", 200, json!({"items": [], "metadata": {}}));
        for (line, expected) in [
            ("delete pod web", "pod \"web\" deleted from default namespace\n"),
            ("delete pod/web -o name", "pod/web\n"),
            ("delete ns x", "namespace \"x\" deleted\n"),
            ("delete pods -l app=web", "pod \"web\" deleted from default namespace\n"),
            ("delete pods --all", "No resources found\n"),
            ("delete pod nope", "! Error from server (NotFound): pods \"nope\" not found\nexit 1\n"),
            ("delete pod nope --ignore-not-found", ""),
            ("delete pods", "! error: resource(s) were provided, but no name was specified\nexit 1\n"),
            (
                "delete pod web --force",
                "pod \"web\" force deleted from default namespace\n! Warning: Immediate deletion does not wait for confirmation that the running resource has been terminated. The resource may continue to run on the cluster indefinitely.\n",
            ),
            (
                "delete pod web --now --grace-period=3",
                "! error: --now and --grace-period cannot be specified together\nexit 1\n",
            ),
            (
                "delete pod web --cascade=frob",
                "! error: invalid cascade value (frob). Must be \"background\", \"foreground\", or \"orphan\"\nexit 1\n",
            ),
            ("delete -f - --wait=false", "pod \"web\" deleted from default namespace\n"),
        ] {
            let input = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\n";
            assert_eq!(snapshot(&s, line, input).await, expected, "{line}");
        }
        snapshot(&s, "delete pod web --grace-period 3 --cascade=foreground", "").await;
        let body = s.body_of("DELETE /api/v1/namespaces/default/pods/web");
        assert_eq!((&body["gracePeriodSeconds"], &body["propagationPolicy"]), (&json!(3), &json!("Foreground")));
    }

    #[tokio::test]
    async fn waits_for_the_object_with_the_same_uid() {
        let existing =
            json!({"items": [{"metadata": {"name": "web", "uid": "u"}}], "metadata": {"resourceVersion": "9"}});
        let s = Server::new()
            .on("DELETE /api/v1/namespaces/default/pods/web", 200, json!({"metadata": {"uid": "u"}}))
            .on("GET /api/v1/namespaces/default/pods?fieldSelector=metadata.name%3Dweb", 200, existing)
            .on_bytes(
                "GET /api/v1/namespaces/default/pods?watch=true&fieldSelector=metadata.name%3Dweb&resourceVersion=9",
                200,
                b"{\"type\":\"DELETED\",\"object\":{\"metadata\":{\"name\":\"web\"}}}\n".to_vec(),
            );
        assert_eq!(snapshot(&s, "delete pod web", "").await, "pod \"web\" deleted from default namespace\n");
        assert_eq!(s.requests().len(), 3);
    }
}
