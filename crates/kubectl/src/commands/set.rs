//! `kubectl set image`.

use super::rollout::Which;
use crate::error::{Error, Result, text};
use crate::flags::{Dry, DryRunFlag, PrintFlags};
use crate::kube::Kube;
use crate::printer::Printer;
use crate::resource::Info;
use crate::resource::select::{Selection, gather};
use client::{Patch, WriteOptions};
use meta::{Object, Value};
use serde_json::json;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    #[command(subcommand)]
    pub of: Of,
}

#[derive(clap::Subcommand, Clone, Debug)]
pub enum Of {
    /// TYPE/NAME, then CONTAINER=IMAGE (`*` is every container).
    Image(Image),
}

#[derive(clap::Args, Clone, Debug)]
pub struct Image {
    #[command(flatten)]
    pub which: Which,
    /// Everything of the type in the namespace.
    #[arg(long)]
    pub all: bool,
    #[arg(long, default_value = "kubectl-set", hide = true)]
    pub field_manager: String,
    #[command(flatten)]
    pub print: PrintFlags,
    #[command(flatten)]
    pub dry: DryRunFlag,
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    let Of::Image(a) = a.of;
    let dry = a.dry.strategy()?;
    let mut printer = Printer::new(&a.print, dry)?;
    let (pairs, words): (Vec<String>, Vec<String>) = a.which.resources.iter().cloned().partition(|w| w.contains('='));
    let pairs: Vec<(&str, &str)> = pairs.iter().filter_map(|p| p.split_once('=')).collect();
    if words.is_empty() && a.which.files.is_empty() {
        return text("one or more resources must be specified as <resource> <name> or <resource>/<name>");
    }
    if pairs.is_empty() {
        return text("at least one image update is required");
    }
    let s = Selection { labels: &a.which.selector, all: a.all, ..Selection::default() };
    let (found, mut errors) = gather(k, &words, &a.which.files, &s).await?;
    for i in found {
        match patch(&i, &pairs) {
            Ok(None) => {}
            Ok(Some(patch)) => {
                let before = i.object.clone().unwrap_or_default();
                let options = WriteOptions { dry_run: dry.option(), ..WriteOptions::manager(&a.field_manager) };
                let api = k.api(&i.resource, &i.namespace).await?;
                let done: std::result::Result<Object, _> = match dry {
                    Dry::Client => Ok(before),
                    _ => api.patch(&i.name, &options, &Patch::Strategic(patch)).await,
                };
                match done {
                    Ok(o) => printer.print(k, &o, "image updated")?,
                    Err(e) => errors.push(Error::Text(format!("failed to patch image update to pod template: {e}"))),
                }
            }
            Err(e) => errors.push(e),
        }
    }
    Error::collect(errors)
}

/// `None` when every image is as it should be.
fn patch(i: &Info, pairs: &[(&str, &str)]) -> Result<Option<Value>> {
    let o = i.object.clone().unwrap_or_default();
    let path: &[&str] = match i.resource.kind.as_str() {
        "Pod" => &["spec"],
        "CronJob" => &["spec", "jobTemplate", "spec", "template", "spec"],
        _ => &["spec", "template", "spec"],
    };
    let Some(spec) = o.at(path) else { return text(format!("{} has no containers", i.to_name())) };
    let mut changed = json!({});
    for (name, image) in pairs {
        let mut found = false;
        for of in ["containers", "initContainers"] {
            for c in spec[of].as_array().into_iter().flatten() {
                if c["name"] == *name || *name == "*" {
                    found = true;
                    if c["image"] != *image {
                        let list = changed.as_object_mut().map(|m| m.entry(of).or_insert_with(|| json!([])));
                        if let Some(Value::Array(list)) = list {
                            list.push(json!({"name": c["name"], "image": image}));
                        }
                    }
                }
            }
        }
        if !found {
            return text(format!("unable to find container named {name:?}"));
        }
    }
    if changed.as_object().is_none_or(meta::Map::is_empty) {
        return Ok(None);
    }
    Ok(Some(path.iter().rev().fold(changed, |v, k| json!({*k: v}))))
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, snapshot};
    use serde_json::json;

    #[tokio::test]
    async fn images_change() {
        let path = "/apis/apps/v1/namespaces/default/deployments/w";
        let d = json!({"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {"name": "w"}, "spec": {"template": {"spec": {"containers": [{"name": "c", "image": "a"}]}}}});
        let patch = format!("PATCH {path}?fieldManager=kubectl-set");
        let s = Server::new().on(&format!("GET {path}"), 200, d.clone()).on(&patch, 200, d);
        for (line, want) in [
            ("set image deploy/w c=b", "deployment.apps/w image updated\n"),
            ("set image deploy w *=a", ""),
            ("set image deploy/w x=b", "! error: unable to find container named \"x\"\nexit 1\n"),
        ] {
            assert_eq!(snapshot(&s, line, "").await, want, "{line}");
        }
        assert_eq!(
            s.body_of(&patch),
            json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "b"}]}}}})
        );
    }
}
