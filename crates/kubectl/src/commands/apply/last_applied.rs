//! `kubectl apply view-last-applied` and `set-last-applied`: the annotation itself.

use super::super::delete::NOTHING_GIVEN;
use crate::error::{Error, Result, text};
use crate::flags::{Dry, DryRunFlag, FileFlags, PrintFlags};
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
    /// Only objects with these labels.
    #[arg(short = 'l', long, default_value = "", hide_default_value = true)]
    pub selector: String,
    /// Everything of the type in the namespace.
    #[arg(long)]
    pub all: bool,
    /// yaml or json.
    #[arg(short = 'o', long, default_value = "yaml", hide_default_value = true)]
    pub output: String,
}

#[derive(clap::Args, Clone, Debug)]
pub struct Set {
    #[command(flatten)]
    pub files: FileFlags,
    /// Also where there is no annotation yet.
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
            "" => text(NOTHING_GIVEN),
            _ => text("at least one resource must be specified to use a selector"),
        };
    }
    let s = Selection { labels: &a.selector, all: a.all, nothing_but_all: a.all, ..Selection::default() };
    let (found, errors) = gather(k, &a.resources, &a.files, &s).await?;
    Error::collect(errors)?;
    for i in found {
        let o = i.object.unwrap_or_default();
        // No error, and as upstream nothing is said of it.
        let Some(applied) = o.annotation(LAST_APPLIED) else { continue };
        let v: Value = serde_json::from_str(applied)
            .map_err(|e| Error::Text(format!("reading the last applied configuration of {}: {e}", i.name)))?;
        k.out.write(
            match a.output.as_str() {
                // Two spaces, where other commands have four.
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
        return text(NOTHING_GIVEN);
    }
    let mut printer = Printer::new(&a.print, dry)?;
    // Nothing is written before all is found well.
    let mut changes = Vec::new();
    for i in from_files(k, &a.files).await? {
        let i = i?;
        // The object as the file has it, where `apply` itself always notes annotations.
        let given = i.object.clone().unwrap_or_default().into_value();
        let wanted = format!("{}\n", codec::json::to_string(&given, codec::json::Html::Escape));
        let live = i.fetch(k).await?;
        let there = live.annotation(LAST_APPLIED);
        if there.is_none() && !a.create_annotation {
            return text(format!(
                "no last-applied-configuration annotation found on resource: {}, to create the annotation, run the command with --create-annotation",
                i.name
            ));
        }
        if there.is_some_and(|t| t.trim_end() == wanted.trim_end()) {
            k.say(format!("set-last-applied {}: no changes required.", i.name));
            continue;
        }
        changes.push((i, live, wanted));
    }
    for (i, mut live, wanted) in changes {
        // A rehearsal shows the object as it is, as upstream does.
        if dry != Dry::Client {
            let patch = Patch::Merge(json!({"metadata": {"annotations": {LAST_APPLIED: wanted}}}));
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

    /// What is set is the file and nothing more.
    const SET: &str = "{\"apiVersion\":\"v1\",\"data\":{\"k\":\"v\"},\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"a\",\"namespace\":\"default\"}}\n";

    /// Groundwork of A12.
    #[tokio::test]
    async fn the_annotation_is_shown_and_set() {
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
        for (line, want) in [
            (
                "apply set-last-applied -f -",
                "! error: no last-applied-configuration annotation found on resource: a, to create the annotation, run the command with --create-annotation\nexit 1\n",
            ),
            ("apply set-last-applied -f - --create-annotation --dry-run=client", "configmap/a configured (dry run)\n"),
            ("apply view-last-applied cm a", ""),
            // A format is looked at only when there is something to show.
            ("apply view-last-applied cm a -o x", ""),
        ] {
            assert_eq!(snapshot(&s, line, FILE).await, want, "{line}");
        }
    }
}
