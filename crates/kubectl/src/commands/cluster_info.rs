//! `kubectl cluster-info`: shows the addresses of the control plane.

mod dump;

use crate::error::Result;
use crate::kube::Kube;
use crate::resource::Collection;
use crate::resource::select::{Selection, list};

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Other arguments are ignored, as in upstream.
    #[arg(hide = true)]
    pub words: Vec<String>,
}

#[derive(clap::Subcommand, Clone, Debug)]
pub enum Command {
    /// Dump objects and logs for debugging.
    Dump(dump::Arguments),
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    if let Some(Command::Dump(a)) = &a.command {
        return dump::run(a, k).await;
    }
    let server = k.server()?;
    let resource = k.resource("services").await?;
    let c = Collection { resource, namespace: "kube-system".into() };
    let labels = "kubernetes.io/cluster-service=true";
    let all = list(k, &c, &Selection { labels, ..Selection::default() }).await?;
    k.println(format!("Kubernetes control plane is running at {server}"));
    for i in all {
        let Some(o) = i.object else { continue };
        let name = o.label("kubernetes.io/name").unwrap_or(o.name());
        let port = o.at(&["spec", "ports", "0"]).or_else(|| o.at(&["spec", "ports"])?.get(0));
        let port = port.and_then(|p| p["name"].as_str()).map(|n| format!(":{n}")).unwrap_or_default();
        k.println(format!(
            "{name} is running at {server}/api/v1/namespaces/{}/services/{}{port}/proxy",
            o.namespace(),
            o.name()
        ));
    }
    k.println("\nTo further debug and diagnose cluster problems, use 'kubectl cluster-info dump'.");
    Ok(())
}
