//! Sets and removes keys of a string map in the metadata, for `label` and `annotate`.

use crate::error::{Error, Result, text};
use crate::flags::{DryRunFlag, DryRunStrategy, FileFlags, PrintFlags, SelectFlags};
use crate::kube::{CHANGE_CAUSE, Kube};
use crate::printer::Printer;
use crate::resource::select::{gather, gather_alone};
use client::{Patch, WriteOptions};
use meta::{Map, Object, Value};
use serde_json::json;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// TYPE NAME… or TYPE/NAME…, then KEY=VALUE to set and KEY- to remove.
    pub words: Vec<String>,
    #[command(flatten)]
    pub files: FileFlags,
    #[command(flatten)]
    pub which: SelectFlags,
    /// Overwrite existing values.
    #[arg(long)]
    pub overwrite: bool,
    /// Only if the object has this resource version.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub resource_version: String,
    /// List the current values.
    #[arg(long)]
    pub list: bool,
    /// Change the objects of files without contacting the server, and print them.
    #[arg(long)]
    pub local: bool,
    /// Name of the field manager.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub field_manager: String,
    #[command(flatten)]
    pub print: PrintFlags,
    #[command(flatten)]
    pub dry: DryRunFlag,
}

/// The two maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    Labels,
    Annotations,
}

impl Keys {
    fn field(self) -> &'static str {
        if self == Self::Labels { "labels" } else { "annotations" }
    }

    fn word(self) -> &'static str {
        if self == Self::Labels { "label" } else { "annotation" }
    }
}

/// A key and its new value; `None` removes the key.
type Change = (String, Option<String>);

fn changes(words: &[String], keys: Keys) -> Result<(Vec<String>, Vec<Change>)> {
    let mut out: Vec<Change> = Vec::new();
    let mut resources = Vec::new();
    for w in words {
        let change = match (w.split_once('='), w.strip_suffix('-')) {
            (Some((_, v)), _) if keys == Keys::Labels && v.contains('=') => {
                return text(format!("invalid label spec: {w}"));
            }
            (Some((k, v)), _) if !k.is_empty() => Some((k.to_owned(), Some(v.to_owned()))),
            (None, Some(k)) if !k.is_empty() => Some((k.to_owned(), None)),
            _ => None,
        };
        match change {
            None if out.is_empty() => resources.push(w.clone()),
            None => return text(format!("all resources must be specified before {} changes: {w}", keys.word())),
            Some((k, v)) => {
                if keys == Keys::Labels
                    && let Some(v) = &v
                {
                    // The server validates keys.
                    if let Some(why) = meta::names::label_value(v).first() {
                        return text(format!("invalid label value: {w:?}: {why}"));
                    }
                }
                // The last value of a repeated key counts.
                match out.iter_mut().find(|(o, was)| *o == k && was.is_some() && v.is_some()) {
                    Some(twice) => twice.1 = v,
                    None => out.push((k, v)),
                }
            }
        }
    }
    Ok((resources, out))
}

/// Returns the keys that a command both sets and removes.
fn contradictory(changes: &[Change]) -> Vec<&str> {
    let set = |key: &str| changes.iter().any(|(k, v)| k == key && v.is_some());
    changes.iter().filter(|(k, v)| v.is_none() && set(k)).map(|(k, _)| k.as_str()).collect()
}

pub async fn run(a: Arguments, k: &mut Kube, keys: Keys) -> Result {
    let dry = a.dry.strategy()?;
    let (resources, changes) = changes(&a.words, keys)?;
    let contradictory = contradictory(&changes);
    if keys == Keys::Labels && !contradictory.is_empty() {
        return text("can not both modify and remove a label in the same command");
    }
    if resources.is_empty() && a.files.is_empty() {
        return text("one or more resources must be specified as <resource> <name> or <resource>/<name>");
    }
    if changes.is_empty() && !a.list {
        return text(format!("at least one {} update is required", keys.word()));
    }
    if a.list && !a.print.output.is_empty() {
        return text("--list and --output may not be specified together");
    }
    for (given, flag) in [(&a.which.selector, "--selector"), (&a.which.field_selector, "--field-selector")] {
        if a.which.all && !given.is_empty() {
            return text(format!("cannot set --all and {flag} at the same time"));
        }
    }
    if !contradictory.is_empty() {
        return text(format!(
            "can not both modify and remove the following annotation(s) in the same command: {}",
            contradictory.join(", ")
        ));
    }
    let mut printer = Printer::new(&a.print, dry)?;
    if a.local && dry == DryRunStrategy::Server {
        return text("cannot specify --local and --dry-run=server - did you mean --dry-run=client?");
    }
    let (found, mut errors) = match a.local {
        true if !resources.is_empty() && keys == Keys::Labels => {
            return text("can only use local files by -f pod.yaml or --filename=pod.json when --local=true is set");
        }
        true if !resources.is_empty() => {
            return text("can only use local files by -f rsrc.yaml or --filename=rsrc.json when --local=true is set");
        }
        true => gather_alone(k, &resources, &a.files).await?,
        false => gather(k, &resources, &a.files, &a.which.selection()).await?,
    };
    let chosen = a.which.all || !a.which.selector.is_empty() || !a.which.field_selector.is_empty();
    let single = match a.files.is_empty() {
        true => !chosen && found.len() + errors.len() == 1,
        false => a.files.is_one(),
    };
    if !single && !a.resource_version.is_empty() {
        Error::collect(errors)?;
        return text("--resource-version may only be used with a single resource");
    }
    for i in found {
        let o = i.object.clone().unwrap_or_default();
        match update_object(&a, k, &i, &o, &changes, keys, dry).await {
            Ok((o, _)) if a.list => {
                let all = if keys == Keys::Labels { o.labels().collect::<Vec<_>>() } else { o.annotations().collect() };
                let indent = if single { "" } else { " " };
                if !single {
                    let group = o.gvk().unwrap_or_default().group;
                    k.println(format!("Listing {} for {}.{group}/{}:", keys.field(), o.kind(), i.name));
                }
                all.iter().for_each(|(key, v)| k.println(format!("{indent}{key}={v}")));
            }
            Ok((o, operation)) => printer.print(k, &o, operation)?,
            Err(e) => errors.push(e),
        }
    }
    Error::collect(errors)
}

async fn update_object(
    a: &Arguments,
    k: &mut Kube,
    i: &crate::resource::Info,
    o: &Object,
    changes: &[Change],
    keys: Keys,
    dry: DryRunStrategy,
) -> Result<(Object, &'static str)> {
    // Nothing is sent: the object in memory is changed.
    let alone = a.local || a.list || dry == DryRunStrategy::Client;
    let now = |key: &str| if keys == Keys::Labels { o.label(key) } else { o.annotation(key) };
    let mut map = Map::new();
    let (mut set, mut removed) = (false, false);
    for (key, v) in changes {
        match (now(key), v) {
            (Some(old), Some(new)) if old != new && !a.overwrite && key != CHANGE_CAUSE => {
                return text(match keys {
                    Keys::Labels => format!("'{key}' already has a value ({old}), and --overwrite is false"),
                    Keys::Annotations => format!(
                        "--overwrite is false but found the following declared annotation(s): '{key}' already has a value ({old})"
                    ),
                });
            }
            (Some(old), Some(new)) if old == new => {}
            (None, None) if keys == Keys::Annotations => {}
            (None, None) if alone => {}
            (None, None) => k.println(format!("{} {key:?} not found.", keys.word())),
            (_, None) => {
                removed = true;
                map.insert(key.clone(), Value::Null);
            }
            (_, Some(v)) => {
                set = true;
                map.insert(key.clone(), v.as_str().into());
            }
        }
    }
    let operation = match (keys, set, removed) {
        (Keys::Annotations, ..) => "annotated",
        (Keys::Labels, false, true) => "unlabeled",
        (Keys::Labels, true, _) => "labeled",
        (Keys::Labels, false, false) => "not labeled",
    };
    if map.is_empty() && (keys == Keys::Labels || k.global.cause.is_none()) {
        return Ok((o.clone(), operation));
    }
    if alone {
        let mut o = o.clone();
        for (key, v) in &map {
            match v {
                Value::Null => _ = o.remove(&["metadata", keys.field(), key]),
                v => o.set(&["metadata", keys.field(), key], v.clone()),
            }
        }
        return Ok((o, operation));
    }
    let mut patch = json!({"metadata": {keys.field(): map}});
    if let Some(cause) = &k.global.cause {
        let annotations = &mut patch["metadata"]["annotations"];
        // A cause that the command line sets itself is kept.
        if annotations.get(CHANGE_CAUSE).is_none() {
            annotations[CHANGE_CAUSE] = cause.as_str().into();
        }
    }
    if !a.resource_version.is_empty() {
        patch["metadata"]["resourceVersion"] = a.resource_version.clone().into();
    }
    let options = WriteOptions { dry_run: dry.option(), ..WriteOptions::manager(&a.field_manager) };
    let api = k.api(&i.resource, &i.namespace).await?;
    Ok((api.patch(&i.name, &options, &Patch::Merge(patch)).await?, operation))
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, snapshot};
    use serde_json::json;

    #[tokio::test]
    async fn checks_flags() {
        let pod = |n: &str| json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": n, "namespace": "default", "labels": {"l": "1"}}});
        let list = json!({"kind": "PodList", "apiVersion": "v1", "items": [pod("a"), pod("b")]});
        let s = Server::new().on("GET /api/v1/namespaces/default/pods?limit=500", 200, list);
        let single = "! error: --resource-version may only be used with a single resource\nexit 1\n";
        for (line, expected) in [
            ("label pods --all --resource-version=1 x=y", single),
            ("annotate pods --all --resource-version=1 x=y", single),
            (
                "label pods --all --field-selector=a=b x=y",
                "! error: cannot set --all and --field-selector at the same time\nexit 1\n",
            ),
            ("label pods --all -l a=b x=y", "! error: cannot set --all and --selector at the same time\nexit 1\n"),
            ("label pods --all --list", "Listing labels for Pod./a:\n l=1\nListing labels for Pod./b:\n l=1\n"),
            ("annotate pods --all --list", "Listing annotations for Pod./a:\nListing annotations for Pod./b:\n"),
        ] {
            assert_eq!(snapshot(&s, line, "").await, expected, "{line}");
        }
        assert!(s.requests().iter().all(|l| l.starts_with("GET ")), "{:?}", s.requests());
    }

    #[tokio::test]
    async fn changes_files_without_a_server() {
        let s = Server::default();
        let file = "apiVersion: v1\nkind: Pod\nmetadata: {name: p, labels: {a: b}}\n";
        for (line, expected) in [
            ("label --local -f - x=1 a- -o jsonpath={.metadata.labels}", "{\"x\":\"1\"}"),
            ("annotate --local -f - x=1", "pod/p annotated\n"),
            (
                "label --local --dry-run=server -f - x=1",
                "! error: cannot specify --local and --dry-run=server - did you mean --dry-run=client?\nexit 1\n",
            ),
        ] {
            assert_eq!(snapshot(&s, line, file).await, expected, "{line}");
        }
        assert!(s.requests().is_empty());
    }

    /// `--record` stores the command line with the change; unchanged labels leave the object alone.
    #[tokio::test]
    async fn records_the_command_line_as_cause() {
        let path = "/api/v1/namespaces/default/pods/a";
        let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a", "labels": {"x": "1"}, "annotations": {"kubernetes.io/change-cause": "old"}}});
        let output = "! Flag --record has been deprecated, --record will be removed in the future\n";
        for (line, word, annotations) in [
            (
                "label pod a y=2 --record",
                "labeled",
                json!({"kubernetes.io/change-cause": "kubectl label pod a y=2 --record=true"}),
            ),
            ("label pod a x=1 --record", "not labeled", json!(null)),
            ("label pod a y=2 --record=false", "labeled", json!(null)),
            (
                "annotate pod a y=2 --record",
                "annotated",
                json!({"y": "2", "kubernetes.io/change-cause": "kubectl annotate pod a y=2 --record=true"}),
            ),
            (
                "annotate pod a kubernetes.io/change-cause=mine --record",
                "annotated",
                json!({"kubernetes.io/change-cause": "mine"}),
            ),
            ("annotate pod a y=2 --dry-run=client --record", "annotated (dry run)", json!(null)),
        ] {
            let patch = format!("PATCH {path}?fieldManager=kubectl-{}", line.split(' ').next().unwrap());
            let s = Server::new().on(&format!("GET {path}"), 200, pod.clone()).on(&patch, 200, pod.clone());
            assert_eq!(snapshot(&s, line, "").await, format!("pod/a {word}\n{output}"), "{line}");
            assert_eq!(s.body_of(&patch)["metadata"]["annotations"], annotations, "{line}");
        }
    }

    #[tokio::test]
    async fn sets_and_removes_labels() {
        let path = "/api/v1/namespaces/default/pods/a";
        let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a", "labels": {"x": "1"}}});
        let patch = format!("PATCH {path}?fieldManager=kubectl-label");
        let s = Server::new().on(&format!("GET {path}"), 200, pod.clone()).on(&patch, 200, pod.clone()).on(
            &format!("PATCH {path}?fieldManager=kubectl-annotate"),
            200,
            pod,
        );
        for (line, expected) in [
            ("label pod a y=2", "pod/a labeled\n"),
            ("label pod/a x-", "pod/a unlabeled\n"),
            ("label pod a x=1", "pod/a not labeled\n"),
            ("label pod a x=2", "! error: 'x' already has a value (1), and --overwrite is false\nexit 1\n"),
            ("label pod a --list", "x=1\n"),
            ("label pod a --list y=2", "x=1\ny=2\n"),
            ("label pod a y=3 y=4 --list", "x=1\ny=4\n"),
            ("label pod a y=3 y-", "! error: can not both modify and remove a label in the same command\nexit 1\n"),
            (
                "annotate pod a y=3 z- y- z=1",
                "! error: can not both modify and remove the following annotation(s) in the same command: z, y\nexit 1\n",
            ),
            ("label pod a", "! error: at least one label update is required\nexit 1\n"),
            ("annotate pod a y=2", "pod/a annotated\n"),
            ("label pod a --overwrite x=2 z-", "label \"z\" not found.\npod/a labeled\n"),
        ] {
            assert_eq!(snapshot(&s, line, "").await, expected, "{line}");
        }
        assert_eq!(s.body_of(&patch), json!({"metadata": {"labels": {"x": "2"}}}));
    }
}
