//! `kubectl edit`: opens objects in an editor, and sends the changes as patches.
//!
//! If the server refuses a change, the editor opens again with the reasons at the top, until the file is saved unchanged or
//! empty.

pub mod editor;

use super::delete::MISSING_RESOURCES;
use crate::error::{Error, Result, text};
use crate::flags::{DryRunStrategy, FileFlags, PrintFlags, ValidateFlag};
use crate::kube::Kube;
use crate::printer::{Printer, object_name, without_managed_fields};
use crate::resource::Info;
use crate::resource::last_applied::annotate;
use crate::resource::select::{Selection, gather};
use client::{FieldValidation, Patch, WriteOptions};
use editor::{Form, Reason, Session};
use meta::{Map, Object, Reason as Why, Value};
use serde_json::json;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// TYPE NAME…, or TYPE/NAME….
    pub resources: Vec<String>,
    #[command(flatten)]
    pub files: FileFlags,
    /// Format in the editor: yaml (default), kyaml or json; managed fields are never shown.
    #[command(flatten)]
    pub print: PrintFlags,
    /// Print the patch.
    #[arg(long)]
    pub output_patch: bool,
    /// Subresource to edit: status or scale.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub subresource: String,
    /// Use Windows line endings.
    #[arg(long)]
    pub windows_line_endings: bool,
    /// Store the saved configuration in the annotation of `kubectl apply`.
    #[arg(long)]
    pub save_config: bool,
    /// Name of the field manager.
    #[arg(long, default_value = "kubectl-edit", hide_default_value = true)]
    pub field_manager: String,
    #[command(flatten)]
    pub validate: ValidateFlag,
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    if a.resources.is_empty() && a.files.is_empty() {
        return text(MISSING_RESOURCES);
    }
    let form = editor::Form::parse(&a.print.output)?;
    let s = Selection { bare_type_is_all: true, ..Selection::default() };
    let (mut found, errors) = gather(k, &a.resources, &a.files, &s).await?;
    Error::collect(errors)?;
    if found.is_empty() {
        return text("edit cancelled, no objects found");
    }
    if !a.subresource.is_empty() {
        for i in &mut found {
            let api = k.api(&i.resource, &i.namespace).await?;
            i.object = Some(api.get_subresource(&i.name, &a.subresource).await?);
        }
    }
    let options =
        WriteOptions { field_validation: a.validate.validation()?, ..WriteOptions::manager(&a.field_manager) };
    edit(&a, k, found, form, &options).await
}

fn editor_document(found: &[Info]) -> Value {
    let mut all: Vec<Object> = found.iter().filter_map(|i| i.object.clone()).collect();
    all.iter_mut().for_each(without_managed_fields);
    match all.len() {
        1 => all.remove(0).into_value(),
        _ => json!({"apiVersion": "v1", "items": all, "kind": "List", "metadata": {}}),
    }
}

async fn edit(a: &Arguments, k: &mut Kube, found: Vec<Info>, form: Form, options: &WriteOptions) -> Result {
    let what = found.first().map(named).unwrap_or_default();
    let mut session = Session::new(form, &editor_document(&found), what);
    session.windows_line_endings = a.windows_line_endings;
    session.validates = options.field_validation != FieldValidation::Ignore;
    let mut printer = Printer::new(&a.print, DryRunStrategy::None)?;
    while let Some((draft, read)) = session.edit(k).await? {
        let mut reasons: Vec<Reason> = Vec::new();
        let (mut retryable, mut missing) = (false, false);
        for d in read {
            let done = match find_original(&found, &d.object) {
                Some(i) => edit_object(a, k, i, d.object, options, &mut printer).await,
                None => {
                    let what = object_name(&d.object);
                    Err(Failure::Session(Error::Text(format!("no original object found for {what}"))))
                }
            };
            match done {
                Ok(()) => {}
                Err(Failure::Session(e)) => return draft.keep(k, e),
                Err(Failure::Object(what, e)) => match e.status().map(|s| s.reason) {
                    Some(Why::Invalid) => {
                        let causes = e.status().and_then(|s| s.details.as_ref()).map(|d| d.causes.clone());
                        let causes = causes.unwrap_or_default();
                        let causes = causes.iter().map(|c| format!("{}: {}", c.field, c.message)).collect();
                        reasons.push(Reason { head: format!("{what} was not valid"), causes });
                        k.warn(format!("error: {what} is invalid"));
                    }
                    Some(Why::NotFound) => {
                        missing = true;
                        k.warn(format!("error: {what} could not be found on the server"));
                    }
                    _ => {
                        retryable = true;
                        k.warn(format!("error: {what} could not be patched: {e}"));
                    }
                },
            }
        }
        if retryable {
            k.warn(format!("You can run `kubectl replace -f {}` to try this update again.", draft.keep_file()));
            return Err(Error::Exit(1));
        }
        if missing {
            let path = draft.keep_file();
            k.warn(format!("The edits you made on deleted resources have been saved to {path:?}"));
            return Err(Error::Exit(1));
        }
        if reasons.is_empty() {
            return Ok(());
        }
        session.reopen(&draft, reasons);
    }
    Ok(())
}

fn find_original<'a>(found: &'a [Info], edited: &Object) -> Option<&'a Info> {
    found.iter().find(|i| match i.object.as_ref().map_or("", Object::uid) {
        "" => edited.uid().is_empty() && i.name == edited.name() && i.resource.kind == edited.kind(),
        uid => uid == edited.uid(),
    })
}

/// `deployments.apps "web"`.
pub fn named(i: &Info) -> String {
    format!("{} {:?}", crate::discovery::dotted(&i.resource.plural, &i.resource.group), i.name)
}

enum Failure {
    /// Ends the whole edit.
    Session(Error),
    /// Concerns the named object.
    Object(String, Error),
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Self::Session(e)
    }
}

/// Sends the changes of one object, if there are any. Sending them again after a refusal of another object is harmless.
async fn edit_object(
    a: &Arguments,
    k: &mut Kube,
    i: &Info,
    mut edited: Object,
    options: &WriteOptions,
    printer: &mut Printer,
) -> std::result::Result<(), Failure> {
    let mut before = i.object.clone().unwrap_or_default();
    without_managed_fields(&mut before);
    without_managed_fields(&mut edited);
    if a.save_config {
        annotate(&mut edited);
    }
    k.record(&mut edited);
    if before == edited {
        return Ok(printer.print(k, &edited, "skipped")?);
    }
    if before.api_version() != edited.api_version() || before.kind() != edited.kind() || before.name() != edited.name()
    {
        return Err(Error::Text("At least one of apiVersion, kind and name was changed".into()).into());
    }
    let (was, is) = (before.namespace(), edited.namespace());
    if !is.is_empty() && is != was {
        return Err(crate::resource::other_namespace(is, was).into());
    }
    let patch = changes(&before.0, &edited.0, kinds::catalog().schema_of(&i.resource.gvk()).map(|s| &**s))?;
    if a.output_patch {
        k.println(format!("Patch: {}", codec::json::to_string(patch.document(), codec::json::Html::Escape)));
    }
    let api = k.api(&i.resource, &i.namespace).await?;
    let done = match a.subresource.as_str() {
        "" => api.patch(&i.name, options, &patch).await,
        sub => api.patch_subresource(&i.name, sub, options, &patch).await,
    };
    let done: Object = done.map_err(|e| Failure::Object(named(i), e.into()))?;
    Ok(printer.print(k, &done, "edited")?)
}

fn changes(before: &Map<String, Value>, after: &Map<String, Value>, schema: Option<&schema::Schema>) -> Result<Patch> {
    Ok(match schema {
        Some(s) => {
            let m = merge::strategic::two_way(before, after, Some(s)).map_err(|e| Error::Text(e.to_string()))?;
            Patch::Strategic(Value::Object(m))
        }
        None => Patch::Merge(Value::Object(merge::merge_patch::diff(before, after))),
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, run_in};
    use serde_json::json;
    use std::os::unix::fs::PermissionsExt as _;

    const A: &str = "/api/v1/namespaces/default/configmaps/a";

    fn config_map(v: &str) -> meta::Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"k": v}, "metadata": {"name": "a", "namespace": "default", "uid": "u", "managedFields": []}})
    }

    /// Runs a line with a shell script as the editor; `$1` is the edited file.
    async fn with_editor(s: &Server, line: &str, script: &str) -> (u8, String, String, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let editor = dir.path().join("editor");
        std::fs::write(&editor, format!("#!/bin/sh\ncd {}\n{script}\n", dir.path().display())).unwrap();
        std::fs::set_permissions(&editor, std::fs::Permissions::from_mode(0o755)).unwrap();
        let (editor, tmp) = (editor.display().to_string(), dir.path().display().to_string());
        let words: Vec<&str> = line.split(' ').collect();
        let (code, out, err) = run_in(s, &words, "", move |n| match n {
            "KUBE_EDITOR" => Some(editor.clone()),
            "TMPDIR" => Some(tmp.clone()),
            _ => None,
        })
        .await;
        (code, out, err, dir)
    }

    /// What is sent, what is printed, and which files are kept.
    #[tokio::test]
    async fn sends_changes_and_reports_them() {
        let patch = format!("PATCH {A}?fieldManager=kubectl-edit&fieldValidation=Strict");
        let s = Server::new().on(&format!("GET {A}"), 200, config_map("v")).on(&patch, 200, config_map("w"));
        let (code, out, err, dir) =
            with_editor(&s, "edit cm a --output-patch", "cp $1 saw; sed -i 's/k: v/k: w/' $1").await;
        assert_eq!((code, err.as_str()), (0, ""), "{out}");
        assert_eq!(out, "Patch: {\"data\":{\"k\":\"w\"}}\nconfigmap/a edited\n");
        assert_eq!(s.body_of(&patch), json!({"data": {"k": "w"}}));
        let edited_file = std::fs::read_to_string(dir.path().join("saw")).unwrap();
        assert!(
            edited_file.starts_with("# Please edit the object below.") && edited_file.contains("#\napiVersion: v1\n"),
            "{edited_file}"
        );
        assert!(!edited_file.contains("managedFields"), "{edited_file}");

        let no_changes = (0, String::new(), "Edit cancelled, no changes made.\n".to_owned());
        let (code, out, err, _) = with_editor(&s, "edit cm/a", "echo '# a comment' >> $1").await;
        assert_eq!((code, out, err), no_changes);
        let (code, out, err, _) = with_editor(&s, "edit cm/a --validate=false", ": > $1").await;
        assert_eq!((code, out, err.as_str()), (0, String::new(), "Edit cancelled, saved file was empty.\n"));
        // The file is opened again with the reason, and then emptied.
        let (code, out, err, dir) = with_editor(&s, "edit cm/a", "cp $1 saw; : > $1").await;
        assert_eq!((code, out.as_str()), (1, ""));
        assert!(err.starts_with("error: configmaps \"a\" is invalid\nA copy of your changes"), "{err}");
        assert!(err.ends_with("error: Edit cancelled, no valid changes were saved.\n"), "{err}");
        let edited_file = std::fs::read_to_string(dir.path().join("saw")).unwrap();
        assert!(edited_file.contains("# configmaps \"a\" was not valid:\n# * <nil>: Invalid value: "), "{edited_file}");
        let (code, _, err, _) = with_editor(&s, "edit cm/a -o json", "cp $1 saw; sed -i 's/\"a\"/\"b\"/' $1").await;
        assert!(code == 1 && err.ends_with("error: At least one of apiVersion, kind and name was changed\n"), "{err}");
        // The object is printed in the format of the editor.
        let (code, out, err, _) = with_editor(&s, "edit cm/a -o json", "sed -i 's/\"v\"/\"w\"/' $1").await;
        assert_eq!((code, err.as_str()), (0, ""), "{out}");
        assert!(out.starts_with("{\n    \"apiVersion\": \"v1\",\n    \"data\": {\n        \"k\": \"w\""), "{out}");
        // Reformatting is no change.
        let same = "printf '{\"kind\": \"ConfigMap\", \"apiVersion\": \"v1\", \"metadata\": {\"uid\": \"u\", \"name\": \"a\", \"namespace\": \"default\"}, \"data\": {\"k\": \"v\"}}' > $1";
        let (code, out, err, _) = with_editor(&s, "edit cm/a", same).await;
        assert_eq!((code, out, err.as_str()), (0, String::new(), "Edit cancelled, no changes made.\n"));
        // An object of an unserved kind is returned with the reason.
        let (code, out, err, dir) = with_editor(&s, "edit cm/a", "cp $1 saw; sed -i 's/ConfigMap/Nonesuch/' $1").await;
        assert_eq!((code, out.as_str()), (1, ""));
        assert!(err.starts_with("A copy of your changes") && err.ends_with("no valid changes were saved.\n"), "{err}");
        let edited_file = std::fs::read_to_string(dir.path().join("saw")).unwrap();
        assert!(
            edited_file.contains("# The edited file had a syntax error: resource mapping not found for name: \"a\""),
            "{edited_file}"
        );
        let (code, _, err, _) = with_editor(&s, "edit cm/a", "exit 3").await;
        assert!(code == 1 && err.contains("there was a problem with the editor"), "{err}");
    }

    /// An emptied or malformed file is opened again, whichever command edits it.
    #[tokio::test]
    async fn all_commands_reopen_invalid_files() {
        let applied = "{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"a\"}}\n";
        let live = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "a", "namespace": "default", "annotations": {crate::resource::last_applied::LAST_APPLIED: applied}}});
        let file = tempfile::NamedTempFile::with_suffix(".json").unwrap();
        std::fs::write(&file, config_map("v").to_string()).unwrap();
        let create = format!("create --edit -f {}", file.path().display());
        for line in [create.as_str(), "apply edit-last-applied cm a"] {
            let s = Server::new().on(&format!("GET {A}"), 200, live.clone());
            for script in [": > $1", "echo 'a: {' > $1"] {
                let (code, out, err, dir) = with_editor(&s, line, &format!("cp $1 saw-$$; {script}")).await;
                assert_eq!((code, out.as_str()), (1, ""), "{line}: {err}");
                assert!(err.starts_with("error: configmaps \"a\" is invalid\nA copy of your changes"), "{line}: {err}");
                assert!(err.ends_with("error: Edit cancelled, no valid changes were saved.\n"), "{line}: {err}");
                let seen = std::fs::read_dir(dir.path()).unwrap().map(|f| f.unwrap().file_name());
                assert_eq!(seen.filter(|f| f.to_string_lossy().starts_with("saw-")).count(), 2, "{line}: {script}");
            }
            let (code, out, err, _) = with_editor(&s, &format!("{line} --validate=false"), ": > $1").await;
            assert_eq!((code, out, err.as_str()), (0, String::new(), "Edit cancelled, saved file was empty.\n"));
        }
    }

    #[tokio::test]
    async fn reports_the_command_of_a_failing_editor() {
        let s = Server::new().on(&format!("GET {A}"), 200, config_map("v"));
        for (editor, expected) in [
            ("/nosuch/ed", "there was a problem with the editor \"/nosuch/ed\""),
            ("no-such-editor -x", "unable to launch the editor \"no-such-editor -x\""),
            ("sh -c \"exit 3\"", r#"there was a problem with the editor "/bin/sh -c sh -c \"exit 3\"""#),
        ] {
            let (code, _, err) = run_in(&s, &["edit", "cm/a"], "", move |n| match n {
                "KUBE_EDITOR" => Some(editor.into()),
                "SHELL" => Some("/bin/sh".into()),
                "PATH" => std::env::var(n).ok(),
                _ => None,
            })
            .await;
            assert_eq!((code, err), (1, format!("error: {expected}\n")));
        }
    }

    /// Saving the same mistake again ends the session, even if the comments differ.
    #[tokio::test]
    async fn repeated_mistake_ends_the_session() {
        let patch = format!("PATCH {A}?fieldManager=kubectl-edit&fieldValidation=Strict");
        let refused =
            json!({"kind": "Status", "status": "Failure", "reason": "Invalid", "code": 422, "message": "long"});
        let s = Server::new().on(&format!("GET {A}"), 200, config_map("v")).on(&patch, 422, refused);
        let script = "sed -i 's/^metadata:/metadata:\\n  foo: 3/' $1";
        let (code, _, err, _) = with_editor(&s, "edit cm/a", script).await;
        assert!(code == 1 && err.ends_with("error: Edit cancelled, no valid changes were saved.\n"), "{err}");
        assert_eq!(s.requests().iter().filter(|l| **l == patch).count(), 1);
    }

    #[tokio::test]
    async fn reopens_refused_changes_with_the_reasons() {
        let patch = format!("PATCH {A}?fieldManager=kubectl-edit&fieldValidation=Strict");
        let refused = json!({"kind": "Status", "status": "Failure", "reason": "Invalid", "code": 422, "message": "long",
            "details": {"kind": "ConfigMap", "name": "a", "causes": [{"field": "data.k", "message": "Invalid value"}]}});
        let s = Server::new().on(&format!("GET {A}"), 200, config_map("v")).on(&patch, 422, refused).on(
            &patch,
            200,
            config_map("x"),
        );
        let script =
            "if [ -f once ]; then cp $1 saw; sed -i 's/k: w/k: x/' $1; else touch once; sed -i 's/k: v/k: w/' $1; fi";
        let (code, out, err, dir) = with_editor(&s, "edit cm/a", script).await;
        assert_eq!((code, out.as_str()), (0, "configmap/a edited\n"));
        assert_eq!(err, "error: configmaps \"a\" is invalid\n");
        let edited_file = std::fs::read_to_string(dir.path().join("saw")).unwrap();
        assert!(
            edited_file.contains("#\n# configmaps \"a\" was not valid:\n# * data.k: Invalid value\n#\napiVersion"),
            "{edited_file}"
        );

        let (code, _, err, dir) = with_editor(&s, "edit cm/a", "sed -i 's/k: v/k: [/' $1").await;
        assert_eq!(code, 1);
        let output: Vec<&str> = err.lines().collect();
        assert_eq!(output[0], "error: configmaps \"a\" is invalid");
        assert!(output[1].starts_with("A copy of your changes has been stored to \""), "{err}");
        assert_eq!(format!("{}\n", output[2]), "error: Edit cancelled, no valid changes were saved.\n");
        assert!(
            std::fs::read_dir(dir.path()).unwrap().any(|f| f.unwrap().path().extension().is_some_and(|e| e == "yaml"))
        );
    }

    #[tokio::test]
    async fn keeps_the_file_if_the_object_is_gone_or_forbidden() {
        let patch = format!("PATCH {A}?fieldManager=kubectl-edit&fieldValidation=Strict");
        for (code, reason, expected) in [
            (
                404,
                "NotFound",
                "error: configmaps \"a\" could not be found on the server\nThe edits you made on deleted resources have been saved to \"",
            ),
            (403, "Forbidden", "error: configmaps \"a\" could not be patched: no\nYou can run `kubectl replace -f "),
        ] {
            let no = json!({"kind": "Status", "status": "Failure", "reason": reason, "code": code, "message": "no"});
            let s = Server::new().on(&format!("GET {A}"), 200, config_map("v")).on(&patch, code, no);
            let (exit, _, err, _dir) = with_editor(&s, "edit cm/a", "sed -i 's/k: v/k: w/' $1").await;
            assert!(exit == 1 && err.starts_with(expected), "{err}");
        }
    }
}
