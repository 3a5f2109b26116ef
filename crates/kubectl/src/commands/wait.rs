//! `kubectl wait`: waits until a condition holds, a path has a value, or an object is created or deleted.

use crate::error::{Error, Result, text};
use crate::flags::{FileFlags, PrintFlags, duration};
use crate::kube::{Kube, POLL_INTERVAL};
use crate::printer::Printer;
use crate::resource::Info;
use crate::resource::deletion::wait_deleted;
use crate::resource::select::{Selection, gather, gather_alone};
use client::{ListOptions, WatchEvent, WatchOptions};
use codec::jsonpath::{Missing, Template};
use futures::StreamExt as _;
use meta::{Object, Value};
use std::time::Duration;
use tokio::time::Instant;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// TYPE NAME…, TYPE/NAME…, or TYPE with -l or --all.
    pub resources: Vec<String>,
    /// condition=NAME[=VALUE], jsonpath='{PATH}'[=VALUE], create or delete; may be repeated. Conditions are awaited in
    /// order, create first.
    #[arg(long = "for")]
    pub until: Vec<String>,
    /// Time limit for each object; negative is a week, 0 checks once.
    #[arg(long, default_value = "30s", hide_default_value = true, value_parser = crate::flags::duration_text)]
    pub timeout: String,
    #[command(flatten)]
    pub files: FileFlags,
    #[command(flatten)]
    pub print: PrintFlags,
    /// Only objects with these labels.
    #[arg(short = 'l', long, default_value = "", hide_default_value = true)]
    pub selector: String,
    /// Only objects with these fields.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub field_selector: String,
    /// All objects of the type.
    #[arg(long)]
    pub all: bool,
    /// In all namespaces.
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Check the objects of files without contacting the server.
    #[arg(long)]
    pub local: bool,
}

/// The pause between two checks for objects that do not exist yet.
const CREATION_POLL: Duration = Duration::from_millis(500);

#[derive(Clone, Debug)]
enum WaitFor {
    Created,
    Deleted,
    Condition { name: String, value: String },
    Path { template: Template, value: Option<String> },
}

/// Splits `PATH=VALUE` at its equal sign; `==` is an operator of the path.
fn path_and_value(given: &str) -> Result<(String, Option<String>)> {
    let mut parts = vec![String::new()];
    let mut rest = given.chars().peekable();
    while let Some(c) = rest.next() {
        let is_operator = c == '=' && rest.next_if_eq(&'=').is_some();
        match parts.last_mut() {
            Some(part) if is_operator => part.push_str("=="),
            Some(part) if c != '=' => part.push(c),
            _ => parts.push(String::new()),
        }
    }
    let mut parts = parts.into_iter();
    match (parts.next().unwrap_or_default(), parts.next(), parts.next()) {
        (path, None, _) => Ok((path, None)),
        (path, Some(value), None) => match value.trim_matches(['"', '\'']) {
            "" => text(
                "jsonpath wait has to have a value after equal sign, like --for=jsonpath='{.status.readyReplicas}'=3",
            ),
            value => Ok((path, Some(value.to_owned()))),
        },
        _ => text(
            "jsonpath wait format must be --for=jsonpath='{.status.readyReplicas}'=3 or --for=jsonpath='{.status.readyReplicas}'",
        ),
    }
}

impl WaitFor {
    fn parse(given: &str) -> Result<Self> {
        let lower = given.to_lowercase();
        match lower.as_str() {
            "delete" => return Ok(Self::Deleted),
            "create" => return Ok(Self::Created),
            _ => {}
        }
        if let Some(rest) = given.strip_prefix("condition=") {
            let (name, value) = rest.split_once('=').unwrap_or((rest, "true"));
            return Ok(Self::Condition { name: name.to_owned(), value: value.to_owned() });
        }
        if let Some(rest) = given.strip_prefix("jsonpath=") {
            if rest.is_empty() {
                return text("jsonpath expression cannot be empty");
            }
            let (path, value) = path_and_value(rest)?;
            return Ok(Self::Path { template: Template::relaxed(&path)?, value });
        }
        text(format!("unrecognized condition: {given:?}"))
    }

    fn holds(&self, o: &Object) -> Result<bool> {
        match self {
            Self::Created => Ok(true),
            Self::Deleted => Ok(false),
            Self::Condition { name, value } => {
                let all = o.at(&["status", "conditions"]).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
                let Some(c) = all.iter().find(|c| c["type"].as_str().is_some_and(|t| t.eq_ignore_ascii_case(name)))
                else {
                    return Ok(false);
                };
                // A condition about an older generation does not count.
                let observed = c["observedGeneration"].as_i64().or_else(|| o.int_at(&["status", "observedGeneration"]));
                if observed.is_some_and(|seen| seen < o.generation()) {
                    return Ok(false);
                }
                Ok(c["status"].as_str().is_some_and(|s| s.eq_ignore_ascii_case(value)))
            }
            Self::Path { template, value } => {
                let found = template.find(&o.clone().into_value(), Missing::Allowed)?.concat();
                match (found.as_slice(), value) {
                    ([], _) => Ok(false),
                    (_, None) => Ok(true),
                    ([v], Some(_)) if v.is_object() || v.is_array() => {
                        text("jsonpath leads to a nested object or list which is not supported")
                    }
                    ([v], Some(expected)) => {
                        Ok(codec::jsonpath::text(std::slice::from_ref(v)).trim() == expected.trim())
                    }
                    (_, Some(_)) => text("given jsonpath expression matches more than one value"),
                }
            }
        }
    }
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    crate::shell::interruptible(wait_all(a, k)).await
}

async fn wait_all(a: Arguments, k: &mut Kube) -> Result {
    if a.until.is_empty() {
        return text("unrecognized condition: []");
    }
    let all = a.until.iter().map(|u| WaitFor::parse(u)).collect::<Result<Vec<_>>>()?;
    let timeout = duration("timeout", &a.timeout)?.unwrap_or(Duration::from_secs(7 * 24 * 3600));
    let mut printer = Printer::new(&a.print, crate::flags::DryRunStrategy::None)?;
    if a.local {
        return check_files(&a, k, &all, &mut printer).await;
    }
    let selection = Selection {
        labels: &a.selector,
        fields: &a.field_selector,
        bare_type_is_all: a.all,
        all_namespaces: a.all_namespaces,
        ..Selection::default()
    };
    let deadline = Instant::now() + timeout;
    let (found, mut errors) = loop {
        let (found, errors) = gather(k, &a.resources, &a.files, &selection).await?;
        let missing = found.is_empty() || !errors.is_empty();
        if !all.iter().any(|u| matches!(u, WaitFor::Created)) || !missing || errors.iter().any(|e| !e.is_not_found()) {
            break (found, errors);
        }
        // Some objects do not exist yet: check again.
        if Instant::now() >= deadline {
            return text("timed out waiting for the condition");
        }
        tokio::time::sleep_until(deadline.min(Instant::now() + CREATION_POLL)).await;
    };
    let deletion = all.iter().any(|u| matches!(u, WaitFor::Deleted));
    if deletion {
        errors.retain(|e| !e.is_not_found());
    }
    if found.is_empty() && errors.is_empty() && !deletion {
        return text("no matching resources found");
    }
    for i in found {
        for until in &all {
            match wait_for_object(k, &i, until, deadline, timeout.is_zero()).await {
                Ok(o) => printer.print(k, &o, "condition met")?,
                Err(e) => {
                    errors.push(e);
                    break;
                }
            }
            k.out.flush();
        }
    }
    Error::collect(errors)
}

/// Checks the objects of files once.
async fn check_files(a: &Arguments, k: &mut Kube, all: &[WaitFor], printer: &mut Printer) -> Result {
    let (found, mut errors) = gather_alone(k, &a.resources, &a.files).await?;
    for i in found {
        let o = i.object.clone().unwrap_or_default();
        for until in all {
            match until.holds(&o) {
                Ok(true) => printer.print(k, &o, "condition met")?,
                failed => {
                    let unmet = || Error::Text(format!("condition not met for {}/{}", i.resource.plural, i.name));
                    errors.push(failed.err().unwrap_or_else(unmet));
                    break;
                }
            }
        }
    }
    Error::collect(errors)
}

async fn wait_for_object(k: &mut Kube, i: &Info, until: &WaitFor, deadline: Instant, once: bool) -> Result<Object> {
    let api = k.api(&i.resource, &i.namespace).await?;
    if matches!(until, WaitFor::Deleted) {
        // An object that was deleted after the list is printed like the others.
        let Some(there) = api.get_opt(&i.name).await? else { return Ok(i.object.clone().unwrap_or_default()) };
        if once {
            return text(format!("condition not met for {}/{}", i.resource.plural, i.name));
        }
        return wait_deleted(k, i, there.uid(), deadline).await.map(|()| there);
    }
    if matches!(until, WaitFor::Created) {
        return Ok(i.object.clone().unwrap_or_default());
    }
    let what = if once { "condition not met for" } else { "timed out waiting for the condition on" };
    let fields = format!("metadata.name={}", i.name);
    let poll = async {
        let mut seen = false;
        loop {
            let page = api.list(&ListOptions { field_selector: fields.clone(), ..ListOptions::default() }).await?;
            let version = page.resource_version.clone();
            if let Some(mut o) = page.items.into_iter().next() {
                seen = true;
                o.set_gvk(&i.resource.gvk());
                if until.holds(&o)? {
                    return Ok(o);
                }
            } else if !seen {
                // Requested by name, so that the server reports what is missing.
                i.found(k, api.get(&i.name).await).await?;
            }
            let options =
                WatchOptions { field_selector: fields.clone(), resource_version: version, ..WatchOptions::default() };
            let mut events = api.watch(&options).await?;
            while let Some(event) = events.next().await {
                match event {
                    Ok(WatchEvent::Added(o) | WatchEvent::Modified(o)) => {
                        seen = true;
                        if until.holds(&o)? {
                            return Ok(o);
                        }
                    }
                    Ok(_) => {}
                    Err(e) if e.is_expired() || e.is_transient() => break,
                    Err(e) => return Err(Error::from(e)),
                }
            }
            // The watch ended; pause before the next request to a failing server.
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    // Without time there is still one check.
    let limit = deadline.max(Instant::now() + Duration::from_millis(200));
    match tokio::time::timeout_at(limit, poll).await {
        Ok(r) => r,
        Err(_) => text(format!("{what} {}/{}", i.resource.plural, i.name)),
    }
}

#[cfg(test)]
mod tests {
    use super::WaitFor;
    use crate::testing::{Server, snapshot};
    use meta::Object;
    use serde_json::json;

    #[test]
    fn evaluates_conditions_and_paths() {
        let o = Object::from_value(json!({
            "metadata": {"generation": 2},
            "status": {"n": 3, "phase": "Running", "l": [1, 2], "conditions": [
                {"type": "Ready", "status": "True"},
                {"type": "Old", "status": "True", "observedGeneration": 1},
            ]},
        }))
        .unwrap();
        for (given, expected) in [
            ("condition=Ready", Ok(true)),
            ("condition=ready=True", Ok(true)),
            ("condition=Ready=false", Ok(false)),
            ("condition=Old", Ok(false)),
            ("condition=None", Ok(false)),
            ("jsonpath={.status.phase}=Running", Ok(true)),
            ("jsonpath={.status.n}=3", Ok(true)),
            ("jsonpath={.status.n}=4", Ok(false)),
            ("jsonpath={.status.phase}", Ok(true)),
            ("jsonpath={.status.x}", Ok(false)),
            ("jsonpath={.status.conditions[?(@.type==\"Ready\")].status}=True", Ok(true)),
            ("jsonpath={.status.l[*]}=1", Err(())),
            ("frob", Err(())),
            ("jsonpath={.status.phase}==Running", Err(())),
            ("jsonpath={.status.phase}=", Err(())),
            ("jsonpath={.status.phase}=a=b", Err(())),
            ("jsonpath=.status.conditions[?(@.type==\"Ready\")].status=True", Ok(true)),
            ("jsonpath=.status.conditions[?(@.type==\"Ready\")].status='False'", Ok(false)),
            ("jsonpath=.status.conditions[?(@.type==\"Ready\")].status", Ok(true)),
        ] {
            let got = WaitFor::parse(given).and_then(|u| u.holds(&o)).map_err(|_| ());
            assert_eq!(got, expected, "{given}");
        }
    }

    /// Objects of files are checked at once, without any request.
    #[tokio::test]
    async fn checks_files_without_a_server() {
        let pod = |name: &str, ready: &str| json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": name}, "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]}});
        let files = format!("{}{}", pod("a", "True"), pod("b", "False"));
        let s = Server::new();
        for (line, expected) in [
            (
                "wait --local -f - --for=condition=Ready",
                "pod/a condition met\n! error: condition not met for pods/b\nexit 1\n",
            ),
            ("wait --local -f - --for=jsonpath={.status.phase}=Running", "pod/a condition met\npod/b condition met\n"),
            ("wait --local -f - --for=create -o name", "pod/a\npod/b\n"),
        ] {
            assert_eq!(snapshot(&s, line, &files).await, expected, "{line}");
        }
        let output = snapshot(&s, "wait --local pod/a --for=condition=Ready", "").await;
        assert!(
            output.starts_with("! error: you must specify resources by --filename when --local is set."),
            "{output}"
        );
        assert!(s.requests.lock().unwrap().is_empty());
    }

    /// Every object that was found and deleted is printed; a named object that never existed is no error.
    #[tokio::test]
    async fn prints_deleted_objects() {
        let pods = "/api/v1/namespaces/default/pods";
        let pod = |n: &str| json!({"metadata": {"name": n, "namespace": "default", "uid": n}});
        let s = Server::new()
            .on(&format!("GET {pods}?limit=500"), 200, json!({"items": [pod("a"), pod("b")], "metadata": {}}))
            .on(&format!("GET {pods}?labelSelector=x%3Dy&limit=500"), 200, json!({"items": [], "metadata": {}}));
        for (line, expected) in [
            ("wait pods --all --for=delete", "pod/a condition met\npod/b condition met\n"),
            ("wait pods -l x=y --for=delete", ""),
            ("wait pod/c --for=delete", ""),
            ("wait pods -l x=y --for=condition=Ready", "! error: no matching resources found\nexit 1\n"),
        ] {
            assert_eq!(snapshot(&s, line, "").await, expected, "{line}");
        }
    }

    /// Creation is awaited first, by name and by labels; then one condition after the other.
    #[tokio::test(start_paused = true)]
    async fn waits_for_creation_first() {
        let pods = "/api/v1/namespaces/default/pods";
        let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a", "namespace": "default"}, "status": {"phase": "Running"}});
        let page = |items: meta::Value| json!({"items": items, "metadata": {"resourceVersion": "4"}});
        let none = json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404, "message": "pods \"a\" not found"});
        let server = || {
            Server::new()
                .on(&format!("GET {pods}?labelSelector=x%3Dy&limit=500"), 200, page(json!([])))
                .on(&format!("GET {pods}?labelSelector=x%3Dy&limit=500"), 200, page(json!([])))
                .on(&format!("GET {pods}?labelSelector=x%3Dy&limit=500"), 200, page(json!([pod])))
                .on(&format!("GET {pods}/a"), 404, none.clone())
                .on(&format!("GET {pods}/a"), 200, pod.clone())
                .on(&format!("GET {pods}?fieldSelector=metadata.name%3Da"), 200, page(json!([pod])))
        };
        let timeout_error = "! error: timed out waiting for the condition\nexit 1\n";
        for (line, expected) in [
            ("wait pods -l x=y --for=create", "pod/a condition met\n"),
            ("wait pod/a --for=create", "pod/a condition met\n"),
            (
                "wait pod/a --for=jsonpath=.status.phase=Running --for=create",
                "pod/a condition met\npod/a condition met\n",
            ),
            ("wait pods -l x=y --for=create --timeout=100ms", timeout_error),
            ("wait pod/a --for=create --timeout=0", timeout_error),
            ("wait pod/a --for=create --for=frob", "! error: unrecognized condition: \"frob\"\nexit 1\n"),
        ] {
            assert_eq!(snapshot(&server(), line, "").await, expected, "{line}");
        }
    }

    #[tokio::test]
    async fn waits_for_the_watch_event() {
        let pod = |status: &str| json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a"}, "status": {"conditions": [{"type": "Ready", "status": status}]}});
        let s = Server::new()
            .on("GET /api/v1/namespaces/default/pods/a", 200, pod("False"))
            .on(
                "GET /api/v1/namespaces/default/pods?fieldSelector=metadata.name%3Da",
                200,
                json!({"metadata": {"resourceVersion": "4"}, "items": [pod("False")]}),
            )
            .on_bytes(
                "GET /api/v1/namespaces/default/pods?watch=true&fieldSelector=metadata.name%3Da&resourceVersion=4",
                200,
                format!("{}\n", json!({"type": "MODIFIED", "object": pod("True")})).into_bytes(),
            );
        assert_eq!(snapshot(&s, "wait pod/a --for=condition=Ready", "").await, "pod/a condition met\n");
        assert_eq!(
            snapshot(&s, "wait pod/a --for=condition=Other --timeout=0s", "").await,
            "! error: condition not met for pods/a\nexit 1\n"
        );
        assert_eq!(
            snapshot(&s, "wait pod/a --for=frob", "").await,
            "! error: unrecognized condition: \"frob\"\nexit 1\n"
        );
    }
}
