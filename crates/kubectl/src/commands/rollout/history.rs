//! `kubectl rollout history`.

use super::{Which, object};
use crate::discovery::Resource;
use crate::error::{Error, Result, text};
use crate::flags::PrintFlags;
use crate::kube::Kube;
use crate::printer::{name_of, tabwriter};
use crate::resource::select::{Selection, list};
use crate::resource::{Collection, Info};
use meta::{LabelSelector, Object, Value};

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    #[command(flatten)]
    pub which: Which,
    /// Show the pod template of this revision.
    #[arg(long, default_value = "0", hide_default_value = true)]
    pub revision: i64,
    #[command(flatten)]
    pub print: PrintFlags,
}

const CHANGE_CAUSE: &str = "kubernetes.io/change-cause";
pub const REVISION: &str = "deployment.kubernetes.io/revision";

/// One revision: its number, and the object that keeps it (a replica set or a controller revision).
pub struct Revision {
    pub number: i64,
    pub keeper: Object,
}

impl Revision {
    fn kept(&self) -> Option<Value> {
        let path: &[&str] = if self.keeper.kind() == "ControllerRevision" {
            &["data", "spec", "template"]
        } else {
            &["spec", "template"]
        };
        self.keeper.at(path).cloned()
    }

    /// The pod template as it is kept, with the cause of the change.
    pub fn shown(&self) -> Value {
        let mut t = self.kept().unwrap_or_default();
        if let Some(cause) = self.keeper.annotation(CHANGE_CAUSE).filter(|c| !c.is_empty()) {
            t["metadata"]["annotations"][CHANGE_CAUSE] = cause.into();
        }
        t
    }

    /// The pod template, without what the controller added.
    pub fn template(&self) -> Option<Value> {
        let mut t = self.kept()?;
        if let Some(labels) = t["metadata"]["labels"].as_object_mut() {
            labels.remove("pod-template-hash");
        }
        Some(t)
    }
}

/// The revisions that a workload keeps, oldest first.
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
        .filter_map(|keeper| {
            let number = match keeper.kind() {
                "ControllerRevision" => keeper.int_at(&["revision"])?,
                _ => keeper.annotation(REVISION)?.parse().ok()?,
            };
            Some(Revision { number, keeper })
        })
        .collect();
    out.sort_by_key(|r| r.number);
    Ok(out)
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    if a.revision < 0 {
        return text(format!("revision must be a positive integer: {}", a.revision));
    }
    let (found, errors) = a.which.gather(k).await?;
    Error::collect(errors)?;
    for i in found {
        let all = revisions(k, &i).await?;
        let name = name_of(&object(&i));
        if a.revision > 0 && all.is_empty() && a.print.output.is_empty() {
            k.say(format!("{name} with revision #{}\nNo rollout history found.", a.revision));
            continue;
        }
        if a.revision > 0 {
            let Some(r) = all.iter().find(|r| r.number == a.revision) else {
                return text("unable to find the specified revision");
            };
            if !a.print.output.is_empty() {
                crate::printer::Printer::new(&a.print, crate::flags::Dry::None)?.typed().print(k, &r.keeper, "")?;
                continue;
            }
            k.say(format!("{name} with revision #{}", a.revision));
            let mut text = String::from("Pod Template:\n");
            crate::commands::describe::template(&mut text, &r.shown());
            // With its tabs, as upstream's.
            k.say(text);
            continue;
        }
        if !a.print.output.is_empty() || !a.print.template.is_empty() {
            let mut printer = crate::printer::Printer::new(&a.print, crate::flags::Dry::None)?.typed();
            all.iter().try_for_each(|r| printer.print(k, &r.keeper, ""))?;
            continue;
        }
        if all.is_empty() {
            k.say(format!("{name} \nNo rollout history found."));
            continue;
        }
        let mut text = String::from("REVISION\tCHANGE-CAUSE\n");
        for r in all {
            let cause = r.keeper.annotation(CHANGE_CAUSE).filter(|c| !c.is_empty()).unwrap_or("<none>");
            text.push_str(&format!("{}\t{cause}\n", r.number));
        }
        k.say(format!("{name} \n{}", tabwriter::describe(&text)));
    }
    Ok(())
}
