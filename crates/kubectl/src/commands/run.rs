//! `kubectl run`: an image in a pod of its own.

use super::create::{WriteFlags, annotate, submit};
use crate::error::{Error, Result, text};
use crate::kube::Kube;
use crate::printer::Printer;
use meta::{Map, Object, Value};
use serde_json::json;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    pub name: String,
    #[arg(long, default_value = "", hide_default_value = true)]
    pub image: String,
    /// NAME=VALUE; may be repeated.
    #[arg(long)]
    pub env: Vec<String>,
    /// KEY=VALUE,….
    #[arg(short = 'l', long, default_value = "", hide_default_value = true)]
    pub labels: String,
    /// KEY=VALUE; may be repeated.
    #[arg(long)]
    pub annotations: Vec<String>,
    #[arg(long, default_value = "", hide_default_value = true)]
    pub port: String,
    /// Always, OnFailure or Never.
    #[arg(long, default_value = "Always", hide_default_value = true)]
    pub restart: String,
    /// What stands behind `--` is the command, not its arguments.
    #[arg(long)]
    pub command: bool,
    #[arg(long, default_value = "", hide_default_value = true)]
    pub image_pull_policy: String,
    #[arg(long)]
    pub privileged: bool,
    /// A merge patch of the pod, JSON.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub overrides: String,
    #[arg(short = 'i', long)]
    pub stdin: bool,
    #[arg(short = 't', long)]
    pub tty: bool,
    #[arg(last = true)]
    pub args: Vec<String>,
    #[command(flatten)]
    pub write: WriteFlags,
}

fn map(all: impl Iterator<Item = String>, what: &str) -> Result<Map<String, Value>> {
    let mut out = Map::new();
    for l in all.filter(|l| !l.is_empty()) {
        match l.split_once('=') {
            Some((k, v)) if !k.is_empty() => out.insert(k.to_owned(), v.into()),
            _ => return text(format!("unexpected {what} spec: {l}")),
        };
    }
    Ok(out)
}

pub async fn run(mut a: Arguments, k: &mut Kube) -> Result {
    if a.image.is_empty() {
        return text("--image is required");
    }
    if a.write.field_manager == "kubectl-create" {
        a.write.field_manager = "kubectl-run".into();
    }
    let dry = a.write.dry.strategy()?;
    let labels = match a.labels.as_str() {
        "" => json!({"run": a.name}),
        l => map(l.split(',').map(str::to_owned), "label")?.into(),
    };
    let mut c = json!({"name": a.name, "image": a.image, "resources": {}});
    if !a.args.is_empty() {
        c[if a.command { "command" } else { "args" }] = a.args.clone().into();
    }
    if !a.env.is_empty() {
        let mut all = Vec::new();
        for e in &a.env {
            match e.split_once('=') {
                Some((n, v)) if !n.is_empty() => {
                    all.push(if v.is_empty() { json!({"name": n}) } else { json!({"name": n, "value": v}) });
                }
                _ => return text(format!("invalid env: {e}")),
            }
        }
        c["env"] = all.into();
    }
    if !a.port.is_empty() {
        let n: i64 =
            a.port.parse().map_err(|_| Error::Text(format!("strconv.Atoi: parsing {:?}: invalid syntax", a.port)))?;
        c["ports"] = json!([{"containerPort": n}]);
    }
    if !a.image_pull_policy.is_empty() {
        c["imagePullPolicy"] = a.image_pull_policy.clone().into();
    }
    if a.privileged {
        c["securityContext"] = json!({"privileged": true});
    }
    if a.stdin {
        c["stdin"] = true.into();
        c["stdinOnce"] = true.into();
    }
    if a.tty {
        c["tty"] = true.into();
    }
    if !matches!(a.restart.as_str(), "Always" | "OnFailure" | "Never") {
        return text(format!("invalid restart policy: {}", a.restart));
    }
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": a.name, "labels": labels},
        "spec": {"containers": [c], "dnsPolicy": "ClusterFirst", "restartPolicy": a.restart}, "status": {},
    });
    let annotations = map(a.annotations.iter().cloned(), "annotation")?;
    if !annotations.is_empty() {
        pod["metadata"]["annotations"] = annotations.into();
    }
    if !a.overrides.is_empty() {
        let patch = serde_json::from_str(&a.overrides).map_err(|e| Error::Text(format!("invalid overrides: {e}")))?;
        merge::merge_patch::apply(&mut pod, patch).map_err(|e| Error::Text(e.to_string()))?;
    }
    let (namespace, explicit) = k.namespace()?;
    let mut o = Object::from_value(pod).unwrap_or_default();
    if explicit {
        o.set_namespace(&namespace);
    }
    if a.write.save_config {
        annotate(&mut o);
    }
    let mut printer = Printer::new(&a.write.print, dry)?;
    let made = submit(k, &a.write, o, &namespace).await?;
    printer.print(k, &made, "created")
}
