//! `kubectl rollout history`: lists revisions and shows their pod templates.

use super::{TargetFlags, object};
use crate::discovery::Resource;
use crate::error::{Error, Result, text};
use crate::flags::{DryRunStrategy, PrintFlags};
use crate::kube::{CHANGE_CAUSE, Kube};
use crate::printer::{Printer, object_name, tabwriter};
use crate::resource::select::{Selection, list};
use crate::resource::{Collection, Info};
use meta::{LabelSelector, Object, Value};

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    #[command(flatten)]
    pub which: TargetFlags,
    /// Show the pod template of this revision.
    #[arg(long, default_value = "0", hide_default_value = true)]
    pub revision: i64,
    #[command(flatten)]
    pub print: PrintFlags,
}

/// The annotation with the revision of a deployment.
pub const REVISION: &str = "deployment.kubernetes.io/revision";

/// A revision: its number, and the replica set or controller revision that stores it.
pub struct Revision {
    pub number: i64,
    pub stored_in: Object,
}

impl Revision {
    /// Returns the stored pod template.
    pub fn stored_template(&self) -> Option<Value> {
        let path: &[&str] = if self.stored_in.kind() == "ControllerRevision" {
            &["data", "spec", "template"]
        } else {
            &["spec", "template"]
        };
        self.stored_in.at(path).cloned()
    }

    /// Returns the stored pod template with the cause of the change.
    pub fn template_with_cause(&self) -> Value {
        let mut t = self.stored_template().unwrap_or_default();
        if let Some(cause) = self.stored_in.annotation(CHANGE_CAUSE).filter(|c| !c.is_empty()) {
            t["metadata"]["annotations"][CHANGE_CAUSE] = cause.into();
        }
        t
    }

    /// Returns the pod template without the additions of the controller.
    pub fn template(&self) -> Option<Value> {
        let mut t = self.stored_template()?;
        if let Some(labels) = t["metadata"]["labels"].as_object_mut() {
            labels.remove("pod-template-hash");
        }
        Some(t)
    }
}

/// Returns the revisions of a workload, the oldest first.
pub async fn revisions(k: &mut Kube, i: &Info) -> Result<Vec<Revision>> {
    let o = object(i);
    let word = match i.resource.kind.as_str() {
        "Deployment" => "replicasets.apps",
        "DaemonSet" | "StatefulSet" => "controllerrevisions.apps",
        kind @ ("Pod" | "ReplicaSet" | "ReplicationController" | "Job" | "CronJob") => {
            return text(format!("no history viewer has been implemented for {kind:?}"));
        }
        other => {
            let group = &i.resource.group;
            return text(format!(
                "error retrieving history for {other:?}, no visitor method exists for {{{group} {other}}}"
            ));
        }
    };
    let resource: std::sync::Arc<Resource> = k.resource(word).await?;
    let selector = LabelSelector::from_value(o.at(&["spec", "selector"])).map_err(Error::Text)?.to_string();
    let c = Collection { resource, namespace: i.namespace.clone() };
    let all = list(k, &c, &Selection { labels: &selector, ..Selection::default() }).await?;
    let mut out: Vec<Revision> = all
        .into_iter()
        .filter_map(|r| r.object)
        .filter(|r| r.controller_of().is_some_and(|c| c.uid == o.uid()))
        .filter_map(|stored_in| {
            let number = match stored_in.kind() {
                "ControllerRevision" => stored_in.int_at(&["revision"])?,
                _ => stored_in.annotation(REVISION)?.parse().ok()?,
            };
            Some(Revision { number, stored_in })
        })
        .collect();
    out.sort_by_key(|r| r.number);
    Ok(out)
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    if a.revision < 0 {
        return text(format!("revision must be a positive integer: {}", a.revision));
    }
    let (found, mut errors) = a.which.gather(k).await?;
    for i in found {
        errors.extend(show(&a, k, &i).await.err());
    }
    Error::collect(errors)
}

async fn show(a: &Arguments, k: &mut Kube, i: &Info) -> Result {
    let mut all = revisions(k, i).await?;
    let workload = object(i);
    let name = object_name(&workload);
    let printer = || Ok::<_, Error>(Printer::new(&a.print, DryRunStrategy::None)?.typed());
    if !a.print.output.is_empty() {
        if a.revision > 0 {
            all.retain(|r| r.number == a.revision);
            if all.is_empty() {
                return text("unable to find the specified revision");
            }
        }
        let mut printer = printer()?;
        return all.iter().try_for_each(|r| printer.print(k, &r.stored_in, ""));
    }
    let mut out = format!("{name} \n");
    if a.revision > 0 {
        out = format!("{name} with revision #{}\n", a.revision);
        match all.iter().find(|r| r.number == a.revision) {
            Some(r) => {
                out.push_str("Pod Template:\n");
                // Upstream's text contains tabs.
                crate::commands::describe::pod::template(&mut out, &r.template_with_cause());
            }
            None if all.is_empty() => out.push_str("No rollout history found."),
            None => return text("unable to find the specified revision"),
        }
    } else if all.is_empty() {
        out.push_str("No rollout history found.");
    } else {
        let mut table = String::from("REVISION\tCHANGE-CAUSE\n");
        for r in all {
            let cause = r.stored_in.annotation(CHANGE_CAUSE).filter(|c| !c.is_empty()).unwrap_or("<none>");
            table.push_str(&format!("{}\t{cause}\n", r.number));
        }
        out.push_str(&tabwriter::describe(&table));
    }
    // A template without a format gets the workload; only formats get the object that stores the revisions.
    if !a.print.template.is_empty() {
        return printer()?.print(k, &workload, "");
    }
    k.println(out);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, snapshot};
    use serde_json::json;

    fn server() -> Server {
        let owned = |name: &str, revision: &str| {
            json!({
                "metadata": {"name": name, "annotations": {"deployment.kubernetes.io/revision": revision, "kubernetes.io/change-cause": format!("by {name}")},
                    "ownerReferences": [{"uid": "u", "controller": true, "apiVersion": "apps/v1", "kind": "Deployment", "name": "w"}]},
                "spec": {"template": {"metadata": {"labels": {"a": "b"}}}},
            })
        };
        let sets = json!({"kind": "ReplicaSetList", "apiVersion": "apps/v1", "metadata": {}, "items": [owned("w-1", "1"), owned("w-2", "2")]});
        let d = json!({"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {"name": "w", "uid": "u"},
            "spec": {"selector": {"matchLabels": {"a": "b"}}}});
        Server::new().on("GET /apis/apps/v1/namespaces/default/deployments/w", 200, d).on(
                "GET /apis/apps/v1/namespaces/default/deployments?fieldSelector=metadata.name%3Dw",
                200,
                json!({"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "w"}, "spec": {"replicas": 0}}]}),
            ).on(
            "GET /apis/apps/v1/namespaces/default/replicasets?labelSelector=a%3Db&limit=500",
            200,
            sets,
        )
    }

    /// A template without a format gets the workload, a format the object that stores the revisions.
    #[tokio::test]
    async fn template_gets_the_workload() {
        let s = server();
        for (line, expected) in [
            (
                "rollout history deploy/w",
                "deployment.apps/w \nREVISION  CHANGE-CAUSE\n1         by w-1\n2         by w-2\n\n",
            ),
            ("rollout history deploy/w --template={{.metadata.name}}", "w"),
            ("rollout history deploy/w --template={{.metadata.name}} --revision=2", "w"),
            ("rollout history deploy/w --output=go-template --template={{.metadata.name}}", "w-1w-2"),
            ("rollout history deploy/w -o name --revision=2", "replicaset.apps/w-2\n"),
            (
                "rollout history deploy/w --template={{.metadata.name}} --revision=3",
                "! error: unable to find the specified revision\nexit 1\n",
            ),
        ] {
            assert_eq!(snapshot(&s, line, "").await, expected, "{line}");
        }
    }

    /// A malformed file does not hide the others.
    #[tokio::test]
    async fn shows_all_valid_files_of_a_directory() {
        let d = tempfile::tempdir().unwrap();
        let web = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: w}\n";
        for (name, text) in [("a.yaml", "apiVersion: v9\nkind: None\nmetadata: {name: x}\n"), ("b.yaml", web)] {
            std::fs::write(d.path().join(name), text).unwrap();
        }
        let path = d.path().display().to_string();
        for (line, first) in [
            (format!("rollout history -f {path}"), "deployment.apps/w \nREVISION  CHANGE-CAUSE\n"),
            (format!("rollout status -f {path}"), "deployment \"w\" successfully rolled out\n"),
        ] {
            let output = snapshot(&server(), &line, "").await;
            assert!(output.starts_with(first) && output.ends_with("exit 1\n"), "{line}: {output}");
            assert!(output.contains("no kind \"None\" is registered for version \"v9\""), "{line}: {output}");
        }
    }
}
