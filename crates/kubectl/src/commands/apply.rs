//! `kubectl apply`: client-side with a three-way patch of the last applied, the new and the live configuration; or
//! server-side.

mod applyset;
pub mod atomic;
mod conflict;
mod edit_last_applied;
mod last_applied;
mod migrate;
pub mod object;
pub mod patch;
pub mod prune;

use super::delete::cascade;
use crate::error::{Error, Result, text};
use crate::flags::{DryRunFlag, DryRunStrategy, FileFlags, PrintFlags, ValidateFlag};
use crate::kube::Kube;
use crate::printer::{Formats, Output, Printer, document};
use crate::resource::from_files_validated;
use client::WriteOptions;
use meta::Object;
use object::Apply;
use serde_json::json;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    #[command(subcommand)]
    pub subcommand: Option<Subcommand>,
    #[command(flatten)]
    pub files: FileFlags,
    #[command(flatten)]
    pub print: PrintFlags,
    #[command(flatten)]
    pub dry: DryRunFlag,
    #[command(flatten)]
    pub validate: ValidateFlag,
    /// Let the server merge the fields and track their managers.
    #[arg(long)]
    pub server_side: bool,
    /// With --server-side, take over fields of other managers.
    #[arg(long)]
    pub force_conflicts: bool,
    /// Name of the field manager.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub field_manager: String,
    /// Delete and recreate objects that cannot be patched.
    #[arg(long)]
    pub force: bool,
    /// With --force, the grace period of the deletion in seconds.
    #[arg(long, default_value = "-1", hide_default_value = true)]
    pub grace_period: i64,
    /// With --force, how to delete dependents: background, foreground or orphan.
    #[arg(long, default_value = "background", num_args = 0..=1, require_equals = true, default_missing_value = "background", hide_default_value = true)]
    pub cascade: String,
    /// With --force, wait for the deletion to finish.
    #[arg(long)]
    pub wait: bool,
    /// With --force, time limit for the deletion; with --atomic, time limit until all objects are ready.
    #[arg(long, default_value = "0s", hide_default_value = true, value_parser = crate::flags::duration_text)]
    pub timeout: String,
    /// Overwrite changes of others to fields in the manifest.
    #[arg(long, default_value = "true", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set, hide_default_value = true)]
    pub overwrite: bool,
    /// With --server-side, the subresource to apply to.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub subresource: String,
    /// Only objects of the files with these labels.
    #[arg(short = 'l', long, default_value = "", hide_default_value = true)]
    pub selector: String,
    /// Apply all objects or none, in dependency order, and wait until they are ready (--timeout, by default 5m).
    #[arg(long)]
    pub atomic: bool,
    /// With --atomic, show all differences and ask for confirmation.
    #[arg(long)]
    pub confirm: bool,
    #[command(flatten)]
    pub pruning: prune::Flags,
    /// Accepted without effect: merge keys of lists are always known.
    #[arg(long, default_value = "true", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set, hide_default_value = true)]
    pub openapi_patch: bool,
}

#[derive(clap::Subcommand, Clone, Debug)]
pub enum Subcommand {
    /// Edit the last applied configuration in an editor.
    #[command(name = "edit-last-applied")]
    Edit(edit_last_applied::Arguments),
    /// Print the last applied configuration.
    #[command(name = "view-last-applied")]
    View(last_applied::View),
    /// Set the last applied configuration from a file, without changing anything else.
    #[command(name = "set-last-applied")]
    Set(last_applied::Set),
}

/// The field manager of client-side apply.
pub const CLIENT_SIDE: &str = "kubectl-client-side-apply";

/// How many times a patch is tried when others write at the same time.
const ATTEMPTS: usize = 5;

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    match a.subcommand {
        Some(Subcommand::Edit(e)) => return edit_last_applied::run(e, k).await,
        Some(Subcommand::View(v)) => return last_applied::view(v, k).await,
        Some(Subcommand::Set(s)) => return last_applied::set(s, k).await,
        None => {}
    }
    let dry = a.dry.strategy()?;
    if a.files.is_empty() {
        return text("must specify one of -f and -k");
    }
    if a.force_conflicts && !a.server_side {
        return text("--force-conflicts only works with --server-side");
    }
    if a.server_side && a.force {
        return text("--force cannot be used with --server-side");
    }
    if a.server_side && dry == DryRunStrategy::Client {
        return text("--dry-run=client doesn't work with --server-side (did you mean --dry-run=server instead?)");
    }
    if a.force && dry == DryRunStrategy::Server {
        return text("--dry-run=server cannot be used with --force");
    }
    let mut set = applyset::Set::open(k, &a).await?;
    a.pruning.check(&a.selector, a.force, a.server_side)?;
    if !a.subresource.is_empty() && !a.server_side {
        return text("--subresource can only be specified for --server-side");
    }
    if a.confirm && !a.atomic {
        return text("--confirm only works with --atomic");
    }
    cascade(&a.cascade)?;
    let selector = meta::LabelSelector::parse(&a.selector).map_err(Error::Text)?;
    let output = Output::parse(&a.print, Formats::Objects, true)?;
    let apply = Apply { dry, options: options(&a, dry)?, a };
    if apply.a.atomic {
        return atomic::run(&apply, k).await;
    }
    let mut printer = Printer::new(&apply.a.print, dry)?;
    let mut errors = Vec::new();
    let mut results = Vec::new();
    let prunable = apply.a.pruning.resources(k).await?;
    let mut seen = prune::Visited::default();
    let mut count = 0;
    let mut files = from_files_validated(k, &apply.a.files, apply.options.field_validation).await?;
    if let Some(s) = &mut set
        && !files.is_empty()
    {
        s.begin(k, &mut files, &apply).await?;
    }
    for i in files {
        let i = match i {
            Ok(i) => i,
            Err(e) => {
                count += 1;
                errors.push(e);
                continue;
            }
        };
        if let Some(o) = &i.object
            && !selector.matches(|key| o.label(key))
        {
            continue;
        }
        count += 1;
        let done = apply.apply(k, &i).await;
        if let Ok((o, _)) = &done {
            seen.record(o);
        }
        match done {
            Ok((o, what)) if output.is_human() || matches!(output, Output::Name) => printer.print(k, &o, what)?,
            Ok((o, _)) => results.push(o),
            Err(e) => errors.push(e),
        }
    }
    if count == 0 {
        return text("no objects passed to apply");
    }
    print_objects(k, &output, &apply.a.print, results)?;
    Error::collect(errors)?;
    if let Some(s) = &set {
        return s.prune(k, &seen, &apply, &mut printer).await;
    }
    let a = &apply.a;
    match a.pruning.prune {
        true => {
            a.pruning
                .run(k, &prunable, &seen, &a.selector, (cascade(&a.cascade)?, a.grace_period), dry, &mut printer)
                .await
        }
        false => Ok(()),
    }
}

/// Prints one object as it is, several as a list.
fn print_objects(k: &Kube, output: &Output, flags: &PrintFlags, mut results: Vec<Object>) -> Result {
    let output_object = match results.len() {
        0 => return Ok(()),
        1 => results.remove(0),
        _ => {
            let list = json!({"apiVersion": "v1", "items": results, "kind": "List", "metadata": {}});
            Object::from_value(list).unwrap_or_default()
        }
    };
    k.out.write(document(output, output_object, flags.show_managed_fields)?.as_bytes());
    Ok(())
}

fn options(a: &Arguments, dry: DryRunStrategy) -> Result<WriteOptions> {
    let manager = match (a.field_manager.as_str(), a.server_side) {
        ("", true) => "kubectl",
        ("", false) => CLIENT_SIDE,
        (m, _) => m,
    };
    Ok(WriteOptions {
        field_manager: manager.to_owned(),
        dry_run: dry.option(),
        field_validation: a.validate.validation()?,
        force: a.force_conflicts,
    })
}

#[cfg(test)]
mod tests {
    use crate::resource::last_applied::LAST_APPLIED;
    use crate::testing::{Server, snapshot};
    use serde_json::json;

    const PATH: &str = "/api/v1/namespaces/default/configmaps";
    const OPTIONS: &str = "fieldManager=kubectl-client-side-apply&fieldValidation=Strict";
    const FILE: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {k: v}\n";
    const APPLIED: &str = "{\"apiVersion\":\"v1\",\"data\":{\"k\":\"v\"},\"kind\":\"ConfigMap\",\"metadata\":{\"annotations\":{},\"name\":\"a\",\"namespace\":\"default\"}}\n";

    fn live(data: meta::Value, applied: Option<&str>) -> meta::Value {
        let mut v = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": data, "metadata": {"name": "a", "namespace": "default", "resourceVersion": "3"}});
        if let Some(a) = applied {
            v["metadata"]["annotations"] = json!({LAST_APPLIED: a});
        }
        v
    }

    /// What is sent and what is printed.
    #[tokio::test]
    async fn creates_configures_and_leaves_unchanged() {
        let post = format!("POST {PATH}?{OPTIONS}");
        let get = format!("GET {PATH}/a");
        let patch = format!("PATCH {PATH}/a?{OPTIONS}");
        let s = Server::new().on(&post, 201, live(json!({"k": "v"}), Some(APPLIED)));
        assert_eq!(snapshot(&s, "apply -f -", FILE).await, "configmap/a created\n");
        assert_eq!(s.body_of(&post)["metadata"]["annotations"][LAST_APPLIED], APPLIED);

        let s = Server::new().on(&get, 200, live(json!({"k": "v", "other": "x"}), Some(APPLIED)));
        assert_eq!(snapshot(&s, "apply -f -", FILE).await, "configmap/a unchanged\n");
        assert_eq!(s.requests(), [get.as_str()]);

        let before = APPLIED.replace("\"k\":\"v\"", "\"gone\":\"1\",\"k\":\"old\"");
        let s = Server::new().on(&get, 200, live(json!({"k": "old", "gone": "1", "other": "x"}), Some(&before))).on(
            &patch,
            200,
            live(json!({"k": "v"}), Some(APPLIED)),
        );
        assert_eq!(snapshot(&s, "apply -f -", FILE).await, "configmap/a configured\n");
        assert_eq!(
            s.body_of(&patch),
            json!({"data": {"gone": null, "k": "v"}, "metadata": {"annotations": {LAST_APPLIED: APPLIED}}})
        );

        let s = Server::new().on(&get, 200, live(json!({"k": "v"}), None)).on(&patch, 200, live(json!({}), None));
        let output = snapshot(&s, "apply -f -", FILE).await;
        assert!(output.starts_with("configmap/a configured\n! Warning: resource configmaps/a is missing"), "{output}");
    }

    /// A null in the file is left out of a creation: sent as a value, a quantity would become 0.
    #[tokio::test]
    async fn creation_omits_nulls() {
        let post = format!("POST {PATH}?{OPTIONS}");
        let file = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, labels: null}\ndata: {k: v, m: null}\nx: [{w: null, z: 1}, null]\n";
        let s = Server::new().on(&post, 201, live(json!({"k": "v"}), None));
        assert_eq!(snapshot(&s, "apply -f -", file).await, "configmap/a created\n");
        let sent = s.body_of(&post);
        assert_eq!(sent["data"], json!({"k": "v"}));
        assert_eq!(sent["x"], json!([{"z": 1}, null]));
        assert!(sent["metadata"].get("labels").is_none());
        let kept = sent["metadata"]["annotations"][LAST_APPLIED].as_str().unwrap();
        assert!(kept.contains("\"m\":null"), "{kept}");
        assert_eq!(snapshot(&s, "apply -f - --dry-run=client -o jsonpath={.data}", file).await, "{\"k\":\"v\"}");
    }

    #[tokio::test]
    async fn continues_after_an_invalid_object() {
        let post = format!("POST {PATH}?{OPTIONS}");
        let s = Server::new().on(&post, 201, live(json!({}), None));
        let files = format!("kind: Frob\napiVersion: v1\nmetadata: {{name: x}}\n---\n{FILE}");
        assert_eq!(
            snapshot(&s, "apply -f -", &files).await,
            "configmap/a created\n! error: resource mapping not found for name: \"x\" namespace: \"\" from \"STDIN\": no matches for kind \"Frob\" in version \"v1\"\n! ensure CRDs are installed first\nexit 1\n"
        );
    }

    #[tokio::test]
    async fn server_side_apply_sends_an_apply_patch() {
        let patch = format!("PATCH {PATH}/a?fieldManager=me&fieldValidation=Strict&force=true");
        let s = Server::new().on(&patch, 200, live(json!({}), None));
        let line = "apply --server-side --force-conflicts --field-manager=me -f -";
        assert_eq!(snapshot(&s, line, FILE).await, "configmap/a serverside-applied\n");
        assert_eq!(s.body_of(&patch)["data"], json!({"k": "v"}));
        let conflict = json!({"kind": "Status", "status": "Failure", "reason": "Conflict", "code": 409, "message": "Apply failed with 1 conflict: conflict with \"x\": .data.k"});
        let s = Server::new().on(&format!("PATCH {PATH}/a?fieldManager=kubectl&fieldValidation=Strict"), 409, conflict);
        let output = snapshot(&s, "apply --server-side -f -", FILE).await;
        assert!(
            output.starts_with("! error: Apply failed with 1 conflict: conflict with \"x\": .data.k\n! Please review"),
            "{output}"
        );
        for (line, expected) in [
            (
                "apply --server-side --dry-run=client -f -",
                "! error: --dry-run=client doesn't work with --server-side (did you mean --dry-run=server instead?)\nexit 1\n",
            ),
            ("apply", "! error: must specify one of -f and -k\nexit 1\n"),
        ] {
            assert_eq!(snapshot(&s, line, FILE).await, expected, "{line}");
        }
    }
}
