//! `kubectl apply view-last-applied` and `set-last-applied`: print and set the annotation.

use super::super::delete::MISSING_RESOURCES;
use crate::error::{Error, Result, text};
use crate::flags::{DryRunFlag, DryRunStrategy, FileFlags, PrintFlags};
use crate::kube::Kube;
use crate::printer::Printer;
use crate::resource::from_files;
use crate::resource::last_applied::LAST_APPLIED;
use crate::resource::select::{Selection, gather};
use client::{Patch, WriteOptions};
use meta::Value;
use serde_json::json;

#[derive(clap::Args, Clone, Debug)]
pub struct View {
    /// TYPE NAME, or TYPE/NAME.
    pub resources: Vec<String>,
    #[command(flatten)]
    pub files: FileFlags,
    /// Label selector.
    #[arg(short = 'l', long, default_value = "", hide_default_value = true)]
    pub selector: String,
    /// All objects of the type in the namespace.
    #[arg(long)]
    pub all: bool,
    /// Output format: yaml or json.
    #[arg(short = 'o', long, default_value = "yaml", hide_default_value = true)]
    pub output: String,
}

#[derive(clap::Args, Clone, Debug)]
pub struct Set {
    #[command(flatten)]
    pub files: FileFlags,
    /// Create the annotation if it does not exist.
    #[arg(long)]
    pub create_annotation: bool,
    #[command(flatten)]
    pub print: PrintFlags,
    #[command(flatten)]
    pub dry: DryRunFlag,
}

pub async fn view(a: View, k: &mut Kube) -> Result {
    if a.resources.is_empty() && a.files.is_empty() {
        return match a.selector.as_str() {
            "" => text(MISSING_RESOURCES),
            _ => text("at least one resource must be specified to use a selector"),
        };
    }
    let s = Selection { labels: &a.selector, all: a.all, nothing_but_all: a.all, ..Selection::default() };
    let (found, errors) = gather(k, &a.resources, &a.files, &s).await?;
    Error::collect(errors)?;
    for i in found {
        let o = i.object.unwrap_or_default();
        // An object without the annotation is skipped silently, as in upstream.
        let Some(applied) = o.annotation(LAST_APPLIED) else { continue };
        let v: Value = serde_json::from_str(applied)
            .map_err(|e| Error::Text(format!("reading the last applied configuration of {}: {e}", i.name)))?;
        k.out.write(
            match a.output.as_str() {
                // Two spaces, where other commands indent by four.
                "json" => format!("{v:#}\n"),
                "yaml" => codec::yaml::to_string(&v),
                other => {
                    return text(format!(
                        "Unexpected -o output mode: {other}, the flag 'output' must be one of yaml|json\nSee 'kubectl apply view-last-applied -h' for help and examples"
                    ));
                }
            }
            .as_bytes(),
        );
    }
    Ok(())
}

pub async fn set(a: Set, k: &mut Kube) -> Result {
    let dry = a.dry.strategy()?;
    if a.files.is_empty() {
        return text(MISSING_RESOURCES);
    }
    let mut printer = Printer::new(&a.print, dry)?;
    // Check all objects before writing anything.
    let mut changes = Vec::new();
    for i in from_files(k, &a.files).await? {
        let i = i?;
        // The object as in the file, while `apply` itself always adds annotations.
        let given = i.object.clone().unwrap_or_default().into_value();
        let configuration = format!("{}\n", codec::json::to_string(&given, codec::json::Html::Escape));
        let live = i.fetch(k).await?;
        let current = live.annotation(LAST_APPLIED);
        if current.is_none() && !a.create_annotation {
            return text(format!(
                "no last-applied-configuration annotation found on resource: {}, to create the annotation, run the command with --create-annotation",
                i.name
            ));
        }
        if current.is_some_and(|t| t.trim_end() == configuration.trim_end()) {
            k.println(format!("set-last-applied {}: no changes required.", i.name));
            continue;
        }
        changes.push((i, live, configuration));
    }
    for (i, mut live, configuration) in changes {
        // A dry run prints the live object, as upstream does.
        if dry != DryRunStrategy::Client {
            let patch = Patch::Merge(json!({"metadata": {"annotations": {LAST_APPLIED: configuration}}}));
            let options = WriteOptions { dry_run: dry.option(), ..WriteOptions::default() };
            live = k.api(&i.resource, &i.namespace).await?.patch(&i.name, &options, &patch).await?;
        }
        printer.print(k, &live, "configured")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::LAST_APPLIED;
    use crate::testing::{Server, snapshot};
    use serde_json::json;

    const A: &str = "/api/v1/namespaces/default/configmaps/a";
    const FILE: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {k: v}\n";
    const APPLIED: &str = "{\"apiVersion\":\"v1\",\"data\":{\"k\":\"v\"},\"kind\":\"ConfigMap\",\"metadata\":{\"annotations\":{},\"name\":\"a\",\"namespace\":\"default\"}}\n";

    /// The annotation is the file and nothing more.
    const SET: &str = "{\"apiVersion\":\"v1\",\"data\":{\"k\":\"v\"},\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"a\",\"namespace\":\"default\"}}\n";

    /// Prints and sets the annotation.
    #[tokio::test]
    async fn views_and_sets_the_annotation() {
        let live = |applied: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "annotations": {LAST_APPLIED: applied}}});
        let s = Server::new().on(&format!("GET {A}"), 200, live(APPLIED));
        assert_eq!(
            snapshot(&s, "apply view-last-applied cm a", "").await,
            "apiVersion: v1\ndata:\n  k: v\nkind: ConfigMap\nmetadata:\n  annotations: {}\n  name: a\n  namespace: default\n"
        );
        assert!(
            snapshot(&s, "apply view-last-applied cm/a -o json", "")
                .await
                .starts_with("{\n  \"apiVersion\": \"v1\",\n")
        );
        let unchanged = "set-last-applied a: no changes required.\n";
        let s = Server::new().on(&format!("GET {A}"), 200, live(SET));
        assert_eq!(snapshot(&s, "apply set-last-applied -f -", FILE).await, unchanged);

        let patch = format!("PATCH {A}");
        let s = Server::new().on(&format!("GET {A}"), 200, live("{}")).on(&patch, 200, live(APPLIED));
        assert_eq!(snapshot(&s, "apply set-last-applied -f -", FILE).await, "configmap/a configured\n");
        assert_eq!(s.body_of(&patch), json!({"metadata": {"annotations": {LAST_APPLIED: SET}}}));

        let bare = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
        let s = Server::new().on(&format!("GET {A}"), 200, bare);
        for (line, expected) in [
            (
                "apply set-last-applied -f -",
                "! error: no last-applied-configuration annotation found on resource: a, to create the annotation, run the command with --create-annotation\nexit 1\n",
            ),
            ("apply set-last-applied -f - --create-annotation --dry-run=client", "configmap/a configured (dry run)\n"),
            ("apply view-last-applied cm a", ""),
            // The format is checked only if there is something to print.
            ("apply view-last-applied cm a -o x", ""),
        ] {
            assert_eq!(snapshot(&s, line, FILE).await, expected, "{line}");
        }
    }
}
