//! `kubectl rollout`: status, history, undo, pause, resume and restart of workloads.

pub mod history;
pub mod status;
mod undo;

use crate::error::{Error, Result, text};
use crate::flags::{DryRunFlag, DryRunStrategy, FileFlags, PrintFlags};
use crate::kube::Kube;
use crate::printer::Printer;
use crate::resource::Info;
use crate::resource::scheme;
use crate::resource::select::{Selection, gather};
use client::{Patch, WriteOptions};
use meta::{Object, Value};
use serde_json::json;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(clap::Subcommand, Clone, Debug)]
pub enum Command {
    /// Show the progress of a rollout, and wait for its end.
    Status(status::Arguments),
    /// List the revisions of a workload.
    History(history::Arguments),
    /// Roll back to an earlier revision.
    Undo(undo::Arguments),
    /// Pause the rollout of a deployment.
    Pause(ActionArguments),
    /// Resume a paused deployment.
    Resume(ActionArguments),
    /// Restart all pods with a rolling update.
    Restart(ActionArguments),
}

/// Which objects every subcommand selects.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct TargetFlags {
    /// TYPE NAME, or TYPE/NAME.
    pub resources: Vec<String>,
    #[command(flatten)]
    pub files: FileFlags,
    /// Only objects with these labels.
    #[arg(short = 'l', long, default_value = "", hide_default_value = true)]
    pub selector: String,
}

#[derive(clap::Args, Clone, Debug)]
pub struct ActionArguments {
    #[command(flatten)]
    pub which: TargetFlags,
    #[command(flatten)]
    pub print: PrintFlags,
    #[command(flatten)]
    pub dry: DryRunFlag,
    /// Name of the field manager.
    #[arg(long, default_value = "kubectl-rollout", hide_default_value = true)]
    pub field_manager: String,
}

/// The template annotation with the time of the last restart.
const RESTARTED: &str = "kubectl.kubernetes.io/restartedAt";

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    k.scheme = Some(scheme::KUBECTL);
    match a.command {
        Command::Status(a) => status::run(a, k).await,
        Command::History(a) => history::run(a, k).await,
        Command::Undo(a) => undo::run(a, k).await,
        Command::Pause(a) => run_action(a, k, "pause").await,
        Command::Resume(a) => run_action(a, k, "resume").await,
        Command::Restart(a) => run_action(a, k, "restart").await,
    }
}

impl TargetFlags {
    pub(super) async fn gather(&self, k: &mut Kube) -> Result<(Vec<Info>, Vec<Error>)> {
        if self.resources.is_empty() && self.files.is_empty() {
            return text("required resource not specified");
        }
        let s = Selection { labels: &self.selector, bare_type_is_all: true, ..Selection::default() };
        gather(k, &self.resources, &self.files, &s).await
    }
}

fn object(i: &Info) -> Object {
    i.object.clone().unwrap_or_default()
}

async fn run_action(a: ActionArguments, k: &mut Kube, verb: &'static str) -> Result {
    let dry = a.dry.strategy()?;
    let mut printer = Printer::new(&a.print, dry)?.typed();
    let (found, unread) = a.which.gather(k).await?;
    // Upstream joins the read errors into one list and prints it without the prefix `error:`.
    let unread = bare(unread, &a.which.files);
    let mut errors = Vec::new();
    if found.is_empty() && unread.is_empty() {
        let (namespace, _) = k.namespace()?;
        k.warn(format!("No resources found in {namespace} namespace."));
    }
    for i in found {
        match change(&i, verb, k) {
            Ok((patch, _)) if verb == "restart" && dry != DryRunStrategy::Client && changes_nothing(&i, &patch) => {
                errors.push(Error::Text(format!(
                    "failed to create patch for {}: if restart has already been triggered within the past second, please wait before attempting to trigger another",
                    i.name
                )));
            }
            Ok((patch, operation)) => {
                let api = k.api(&i.resource, &i.namespace).await?;
                let options = WriteOptions {
                    dry_run: dry.option(),
                    field_manager: a.field_manager.clone(),
                    ..WriteOptions::default()
                };
                if dry == DryRunStrategy::Client {
                    printer.print(k, &object(&i), operation)?;
                    continue;
                }
                match api.patch(&i.name, &options, &patch).await {
                    Ok(o) => printer.print(k, &o, operation)?,
                    Err(e) => errors.push(Error::Text(format!("failed to patch: {e}"))),
                }
            }
            Err(e) => errors.push(Error::Bare(format!("error: {e}"))),
        }
    }
    // Several of them count as one beside errors of another kind.
    let several = unread.len() > 1 && !errors.is_empty();
    let unread = if several { vec![Error::Bare(format!("[{}]", Error::Many(unread)))] } else { unread };
    Error::collect(unread.into_iter().chain(errors).collect())
}

/// Whether the object was already restarted in this second.
fn changes_nothing(i: &Info, patch: &Patch) -> bool {
    let path = ["spec", "template", "metadata", "annotations", RESTARTED];
    let Patch::Strategic(p) = patch else { return false };
    let new_value = path.iter().try_fold(p, |v, key| v.get(*key));
    new_value.is_some() && i.object.as_ref().and_then(|o| o.at(&path)) == new_value
}

/// Read errors are printed without prefix.
pub(super) fn bare(errors: Vec<Error>, files: &crate::flags::FileFlags) -> Vec<Error> {
    if files.is_empty() {
        return errors;
    }
    errors
        .into_iter()
        .map(|e| match e {
            Error::Text(t) => Error::Bare(t),
            e => e,
        })
        .collect()
}

fn change(i: &Info, verb: &str, k: &Kube) -> Result<(Patch, &'static str)> {
    let o = object(i);
    let paused = o.at(&["spec", "paused"]) == Some(&Value::Bool(true));
    let resource = i.resource.group_resource();
    let deployment = i.resource.kind == "Deployment";
    let made = match verb {
        "pause" | "resume" if !deployment => {
            return text(format!("{resource} {:?} {}ing is not supported", i.name, verb.trim_end_matches('e')));
        }
        "pause" if paused => return text(format!("{resource} {:?} is already paused", i.name)),
        "pause" => (json!({"spec": {"paused": true}}), "paused"),
        "resume" if !paused => return text(format!("{resource} {:?} is not paused", i.name)),
        "resume" => (json!({"spec": {"paused": null}}), "resumed"),
        _ if !matches!(i.resource.kind.as_str(), "Deployment" | "DaemonSet" | "StatefulSet") => {
            return text(format!("{resource} {:?} restarting is not supported", i.name));
        }
        _ if paused => {
            return text(format!("{resource} {:?} can't restart paused deployment (run rollout resume first)", i.name));
        }
        _ => {
            let now = meta::time::format(k.now());
            let annotations = json!({RESTARTED: now});
            (json!({"spec": {"template": {"metadata": {"annotations": annotations}}}}), "restarted")
        }
    };
    Ok((Patch::Strategic(made.0), made.1))
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, snapshot};
    use serde_json::json;

    /// Regression: the second of two restarts within a second changes nothing, but was reported as done.
    #[tokio::test]
    async fn rejects_a_second_restart_in_one_second() {
        let d = json!({"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {"name": "d"},
            "spec": {"template": {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "2026-11-21T12:00:00Z"}}}}});
        let s = Server::new().on("GET /apis/apps/v1/namespaces/default/deployments/d", 200, d);
        assert_eq!(
            snapshot(&s, "rollout restart deploy d", "").await,
            "! error: failed to create patch for d: if restart has already been triggered within the past second, please wait before attempting to trigger another\nexit 1\n"
        );
    }
}
