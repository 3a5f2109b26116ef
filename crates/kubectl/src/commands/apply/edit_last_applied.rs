//! `kubectl apply edit-last-applied`: edits the annotation in an editor.

use super::super::delete::MISSING_RESOURCES;
use super::super::edit::editor::{Explanation, Form, Session};
use super::super::edit::named;
use crate::error::{Error, Result, text};
use crate::flags::{DryRunStrategy, FileFlags, PrintFlags, ValidateFlag};
use crate::kube::Kube;
use crate::printer::{Printer, object_name};
use crate::resource::last_applied::LAST_APPLIED;
use crate::resource::select::{Selection, gather};
use client::{FieldValidation, Patch, WriteOptions};
use meta::{Object, Value};
use serde_json::json;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// TYPE NAME…, or TYPE/NAME….
    pub resources: Vec<String>,
    #[command(flatten)]
    pub files: FileFlags,
    /// Format in the editor: yaml (default), kyaml or json.
    #[command(flatten)]
    pub print: PrintFlags,
    #[command(flatten)]
    pub validate: ValidateFlag,
    /// Use Windows line endings.
    #[arg(long)]
    pub windows_line_endings: bool,
    /// Name of the field manager.
    #[arg(long, default_value = super::CLIENT_SIDE, hide_default_value = true)]
    pub field_manager: String,
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    let validation = a.validate.validation()?;
    if a.resources.is_empty() && a.files.is_empty() {
        return text(MISSING_RESOURCES);
    }
    let s = Selection { bare_type_is_all: true, ..Selection::default() };
    let (found, errors) = gather(k, &a.resources, &a.files, &s).await?;
    Error::collect(errors)?;
    let mut applied = Vec::new();
    for i in found {
        let o = i.object.clone().unwrap_or_default();
        if let Some(t) = o.annotation(LAST_APPLIED) {
            let v: Value = serde_json::from_str(t)
                .map_err(|e| Error::Text(format!("reading the last applied configuration of {}: {e}", i.name)))?;
            applied.push((i, v));
        }
    }
    let shown = match applied.as_slice() {
        [] => {
            return text(
                "no last-applied-configuration annotation found on resources, to create the annotation, use command `kubectl apply set-last-applied --create-annotation`",
            );
        }
        [(_, one)] => one.clone(),
        all => {
            let items: Vec<&Value> = all.iter().map(|(_, v)| v).collect();
            json!({"apiVersion": "v1", "items": items, "kind": "List", "metadata": {}})
        }
    };
    let form = Form::parse(&a.print.output)?;
    let what = applied.first().map(|(i, _)| named(i)).unwrap_or_default();
    let mut session = Session::new(form, &shown, what);
    session.explanation = Explanation::LastApplied;
    session.windows_line_endings = a.windows_line_endings;
    session.validates = validation != FieldValidation::Ignore;
    let Some((draft, read)) = session.edit(k).await? else { return Ok(()) };
    let mut printer = Printer::new(&a.print, DryRunStrategy::None)?;
    for d in read {
        let same = |o: &Object, v: &Value| {
            v["apiVersion"] == o.api_version() && v["kind"] == o.kind() && v["metadata"]["name"] == o.name()
        };
        let Some((i, before)) = applied.iter().find(|(_, v)| same(&d.object, v)) else {
            let what = object_name(&d.object);
            return draft.keep(k, Error::Text(format!("no original object found for {what}")));
        };
        if d.object.clone().into_value() == *before {
            printer.print(k, &d.object, "skipped")?;
            continue;
        }
        let configuration = format!("{}\n", codec::json::to_string(&d.object.into_value(), codec::json::Html::Escape));
        let patch = Patch::Merge(json!({"metadata": {"annotations": {LAST_APPLIED: configuration}}}));
        let api = k.api(&i.resource, &i.namespace).await?;
        let options = WriteOptions { field_validation: validation, ..WriteOptions::manager(&a.field_manager) };
        match api.patch(&i.name, &options, &patch).await {
            Ok(o) => printer.print(k, &o, "edited")?,
            Err(e) => return draft.keep(k, e.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::LAST_APPLIED;
    use crate::testing::{Server, run_in};
    use serde_json::json;
    use std::os::unix::fs::PermissionsExt as _;

    #[tokio::test]
    async fn edits_the_annotation() {
        let path = "/api/v1/namespaces/default/configmaps/a";
        let text =
            "{\"apiVersion\":\"v1\",\"data\":{\"k\":\"v\"},\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"a\"}}\n";
        let cm = |annotations| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "default", "annotations": annotations}});
        let patch = format!("PATCH {path}?fieldManager=kubectl-client-side-apply&fieldValidation=Strict");
        let s = Server::new().on(&format!("GET {path}"), 200, cm(json!({LAST_APPLIED: text}))).on(
            &patch,
            200,
            cm(json!({})),
        );
        let run = |s: Server, script: &'static str| async move {
            let dir = tempfile::tempdir().unwrap();
            let editor = dir.path().join("editor");
            std::fs::write(&editor, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&editor, std::fs::Permissions::from_mode(0o755)).unwrap();
            let (editor, tmp) = (editor.display().to_string(), dir.path().display().to_string());
            run_in(&s, &["apply", "edit-last-applied", "cm/a"], "", move |n| match n {
                "KUBE_EDITOR" => Some(editor.clone()),
                "TMPDIR" => Some(tmp.clone()),
                _ => None,
            })
            .await
        };
        assert_eq!(run(s.clone(), "sed -i 's/k: v/k: w/' $1").await, (0, "configmap/a edited\n".into(), String::new()));
        assert_eq!(s.body_of(&patch)["metadata"]["annotations"][LAST_APPLIED], text.replace("\"v\"}", "\"w\"}"));
        assert_eq!(run(s, "true").await, (0, String::new(), "Edit cancelled, no changes made.\n".into()));
        let bare = Server::new().on(&format!("GET {path}"), 200, cm(json!({})));
        let (code, _, err) = run(bare, "true").await;
        assert!(
            code == 1 && err.starts_with("error: no last-applied-configuration annotation found on resources"),
            "{err}"
        );
    }
}
