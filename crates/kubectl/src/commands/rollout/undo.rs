//! `kubectl rollout undo`: rolls back to an earlier revision.

use super::history::{Revision, revisions};
use super::{TargetFlags, object};
use crate::error::{Error, Result, text};
use crate::flags::{DryRunFlag, DryRunStrategy, PrintFlags};
use crate::kube::Kube;
use crate::printer::Printer;
use crate::resource::Info;
use crate::resource::last_applied::LAST_APPLIED;
use client::{Patch, WriteOptions};
use meta::{Object, Value};
use serde_json::json;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    #[command(flatten)]
    pub which: TargetFlags,
    /// Revision to roll back to; 0 is the previous one.
    #[arg(long, default_value = "0", hide_default_value = true)]
    pub to_revision: i64,
    #[command(flatten)]
    pub print: PrintFlags,
    #[command(flatten)]
    pub dry: DryRunFlag,
}

/// The annotations of the deployment itself, which a rollback keeps.
const KEPT_ANNOTATIONS: [&str; 6] = [
    LAST_APPLIED,
    "deployment.kubernetes.io/revision",
    "deployment.kubernetes.io/revision-history",
    "deployment.kubernetes.io/desired-replicas",
    "deployment.kubernetes.io/max-replicas",
    "deprecated.deployment.rollback.to",
];

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    let dry = a.dry.strategy()?;
    let mut printer = Printer::new(&a.print, dry)?.typed();
    let (found, unread) = a.which.gather(k).await?;
    let mut errors = Vec::new();
    for i in found {
        match undo_object(&a, k, &i, dry).await {
            Ok(output) => printer.print(k, &object(&i), &output)?,
            Err(e) => errors.push(e),
        }
    }
    // Read errors are printed last, as in upstream.
    errors.extend(unread);
    Error::collect(errors)
}

async fn undo_object(a: &Arguments, k: &mut Kube, i: &Info, dry: DryRunStrategy) -> Result<String> {
    let o = object(i);
    if o.annotation(LAST_APPLIED).is_some() {
        let name = format!("{}/{}", i.resource.plural, i.name);
        k.warn(format!(
            "Warning: resource {name} was previously managed with 'kubectl apply'. Rolling back will not update the {LAST_APPLIED} annotation, which may cause unexpected behavior on future 'kubectl apply' operations. Consider using 'kubectl apply' with your previous configuration file instead."
        ));
    }
    let all = match i.resource.kind.as_str() {
        "Deployment" | "DaemonSet" | "StatefulSet" => revisions(k, i).await?,
        other => return text(format!("no rollbacker has been implemented for {other:?}")),
    };
    let to = pick(&all, a.to_revision, i)?;
    let template = to.template().unwrap_or_default();
    let paused = i.resource.kind == "Deployment" && o.at(&["spec", "paused"]) == Some(&Value::Bool(true));
    if dry == DryRunStrategy::Client && (paused || Some(&template) != o.at(&["spec", "template"])) {
        let mut text = String::from("Pod Template:\n");
        crate::commands::describe::pod::template(&mut text, &to.stored_template().unwrap_or_default());
        return Ok(text);
    }
    if paused {
        return text(
            "you cannot rollback a paused deployment; resume it first with 'kubectl rollout resume' and try again",
        );
    }
    if Some(&template) == o.at(&["spec", "template"]) {
        return Ok(format!("skipped rollback (current template already matches revision {})", to.number));
    }
    let patch = if i.resource.kind == "Deployment" {
        let mut annotations: meta::Map<String, Value> = o
            .annotations()
            .filter(|(k, _)| KEPT_ANNOTATIONS.contains(k))
            .map(|(k, v)| (k.to_owned(), v.into()))
            .collect();
        for (k, v) in to.stored_in.annotations().filter(|(k, _)| !KEPT_ANNOTATIONS.contains(k)) {
            annotations.insert(k.to_owned(), v.into());
        }
        Patch::Json(json!([
            {"op": "replace", "path": "/spec/template", "value": template},
            {"op": "replace", "path": "/metadata/annotations", "value": annotations},
        ]))
    } else {
        Patch::Strategic(to.stored_in.get("data").cloned().unwrap_or_default())
    };
    let api = k.api(&i.resource, &i.namespace).await?;
    let options = WriteOptions { dry_run: dry.option(), ..WriteOptions::default() };
    let _: Object = api
        .patch(&i.name, &options, &patch)
        .await
        .map_err(|e| Error::Text(format!("failed restoring revision {}: {e}", a.to_revision)))?;
    Ok("rolled back".into())
}

fn pick<'a>(all: &'a [Revision], to: i64, i: &Info) -> Result<&'a Revision> {
    let found = match to {
        // The revision before the newest.
        0 => all.len().checked_sub(2).map(|n| &all[n]),
        n => match all.iter().find(|r| r.number == n) {
            Some(r) => Some(r),
            None => return text(format!("unable to find specified revision {n} in history")),
        },
    };
    match found {
        Some(r) => Ok(r),
        None if i.resource.kind != "Deployment" => text("no last revision to roll back to"),
        None => text(format!("no rollout history found for {} {:?}", i.resource.kind.to_lowercase(), i.name)),
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, snapshot};
    use serde_json::json;

    #[tokio::test]
    async fn shows_history_and_rolls_back() {
        let path = "/apis/apps/v1/namespaces/default/deployments/w";
        let template = |image: &str| json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": image}]}});
        let rs = |n: &str, image: &str, cause: Option<&str>| {
            let mut t = template(image);
            t["metadata"]["labels"]["pod-template-hash"] = "x".into();
            let mut annotations = json!({"deployment.kubernetes.io/revision": n});
            if let Some(c) = cause {
                annotations["kubernetes.io/change-cause"] = c.into();
            }
            json!({"metadata": {"name": n, "annotations": annotations, "ownerReferences": [{"uid": "u", "controller": true}]}, "spec": {"template": t}})
        };
        let d = json!({"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {"name": "w", "namespace": "default", "uid": "u", "annotations": {"deployment.kubernetes.io/revision": "2", "z": "1"}}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template("new")}});
        let s = Server::new()
            .on(&format!("GET {path}"), 200, d.clone())
            .on(
                "GET /apis/apps/v1/namespaces/default/replicasets?labelSelector=a%3Db&limit=500",
                200,
                json!({"items": [rs("2", "new", Some("because")), rs("1", "old", None)]}),
            )
            .on(&format!("PATCH {path}"), 200, d.clone())
            .on(&format!("PATCH {path}?fieldManager=kubectl-rollout"), 200, d.clone());
        for (line, expected) in [
            (
                "rollout history deploy/w",
                "deployment.apps/w \nREVISION  CHANGE-CAUSE\n1         <none>\n2         because\n\n",
            ),
            ("rollout undo deploy/w", "deployment.apps/w rolled back\n"),
            (
                "rollout undo deploy/w --to-revision=2",
                "deployment.apps/w skipped rollback (current template already matches revision 2)\n",
            ),
            (
                "rollout undo deploy/w --to-revision=7",
                "! error: unable to find specified revision 7 in history\nexit 1\n",
            ),
            (
                "rollout undo deploy/w --to-revision=-1",
                "! error: unable to find specified revision -1 in history\nexit 1\n",
            ),
            ("rollout pause deploy/w", "deployment.apps/w paused\n"),
            ("rollout resume deploy/w", "! error: deployments.apps \"w\" is not paused\nexit 1\n"),
            ("rollout restart deploy/w", "deployment.apps/w restarted\n"),
        ] {
            assert_eq!(snapshot(&s, line, "").await, expected, "{line}");
        }
        let mut applied = d;
        applied["metadata"]["annotations"][super::LAST_APPLIED] = "{}".into();
        s.replace(&format!("GET {path}"), 200, applied);
        let warning = "! Warning: resource deployments/w was previously managed with 'kubectl apply'. Rolling back will not update the kubectl.kubernetes.io/last-applied-configuration annotation, which may cause unexpected behavior on future 'kubectl apply' operations. Consider using 'kubectl apply' with your previous configuration file instead.\n";
        let expected = format!("{warning}! error: unable to find specified revision 7 in history\nexit 1\n");
        assert_eq!(snapshot(&s, "rollout undo deploy/w --to-revision=7", "").await, expected);
        assert_eq!(
            s.body_of(&format!("PATCH {path}")),
            json!([
                {"op": "replace", "path": "/spec/template", "value": template("old")},
                {"op": "replace", "path": "/metadata/annotations", "value": {"deployment.kubernetes.io/revision": "2"}},
            ])
        );
    }
}
