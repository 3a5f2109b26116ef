//! `kubectl cordon` and `uncordon`: mark nodes as unschedulable or schedulable.

use crate::error::{Error, Result, text};
use crate::flags::{DryRunFlag, DryRunStrategy};
use crate::kube::Kube;
use crate::resource::Info;
use crate::resource::scheme;
use crate::resource::select::{Selection, gather};
use client::{Patch, WriteOptions};
use meta::{Object, Value};
use serde_json::json;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// Node names.
    pub nodes: Vec<String>,
    /// Label selector for nodes.
    #[arg(short = 'l', long, default_value = "", hide_default_value = true)]
    pub selector: String,
    #[command(flatten)]
    pub dry: DryRunFlag,
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    run_for(a, k, true).await
}

/// Runs `cordon` or `uncordon`.
pub async fn run_for(a: Arguments, k: &mut Kube, unschedulable: bool) -> Result {
    k.scheme = Some(scheme::KUBECTL);
    let dry = a.dry.strategy()?;
    let verb = if unschedulable { "cordon" } else { "uncordon" };
    check_selection(k, verb, &a.nodes, &a.selector)?;
    let s = Selection { labels: &a.selector, ..Selection::default() };
    let found = nodes(k, &a.nodes, &s).await?;
    let mut errors = Vec::new();
    for i in found {
        if let Err(e) = cordon_node(k, &i, unschedulable, dry).await {
            errors.push(e);
        }
    }
    Error::collect(errors)
}

/// Checks that nodes are either named or selected.
pub fn check_selection(k: &Kube, verb: &str, nodes: &[String], selector: &str) -> Result {
    let wrong = match (nodes.is_empty(), selector.is_empty()) {
        // A selector flag without a value selects nothing.
        (true, true) if k.global.own.iter().any(|f| f == "selector") => return text(super::delete::MISSING_RESOURCES),
        (true, true) => format!("USAGE: {verb} NODE [flags]"),
        (false, false) => "error: cannot specify both a node name and a --selector option".to_owned(),
        _ => return Ok(()),
    };
    text(format!("{wrong}\nSee 'kubectl {verb} -h' for help and examples"))
}

/// Returns the nodes of a command line: names, or `TYPE/NAME`.
///
/// # Errors
/// The first argument that cannot be read or is no node; the others are not changed then.
pub async fn nodes(k: &mut Kube, names: &[String], s: &Selection<'_>) -> Result<Vec<Info>> {
    let words: Vec<String> = match names.iter().any(|n| n.contains('/')) {
        true => names.iter().map(|n| if n.contains('/') { n.clone() } else { format!("nodes/{n}") }).collect(),
        false => std::iter::once("nodes".to_owned()).chain(names.iter().cloned()).collect(),
    };
    let (found, errors) = gather(k, &words, &Default::default(), s).await?;
    if let Some(first) = errors.into_iter().next() {
        return Err(first);
    }
    match found.iter().find(|i| i.resource.kind != "Node" || !i.resource.group.is_empty()) {
        Some(_) if found.len() > 1 => text("you may only specify a single resource type"),
        Some(other) => {
            let r = &other.resource;
            let gvr = format!("{}, Resource={}", r.gvk().api_version(), r.plural);
            text(format!("error: expected resource of type node, got {gvr:?}"))
        }
        None => Ok(found),
    }
}

/// Marks one node as unschedulable or schedulable, and reports it.
pub async fn cordon_node(k: &mut Kube, i: &Info, unschedulable: bool, dry: DryRunStrategy) -> Result {
    let verb = if unschedulable { "cordon" } else { "uncordon" };
    let current = i.object.as_ref().and_then(|o| o.at(&["spec", "unschedulable"])) == Some(&Value::Bool(true));
    if current == unschedulable {
        k.println(format!("node/{} already {verb}ed{}", i.name, dry.suffix()));
        return Ok(());
    }
    if dry != DryRunStrategy::Client {
        let value = if unschedulable { Value::Bool(true) } else { Value::Null };
        let patch = Patch::Strategic(json!({"spec": {"unschedulable": value}}));
        let options = WriteOptions { dry_run: dry.option(), ..WriteOptions::default() };
        let patched: std::result::Result<Object, _> =
            k.api(&i.resource, "").await?.patch(&i.name, &options, &patch).await;
        patched.map_err(|e| Error::Text(format!("unable to {verb} node {:?}: {e}", i.name)))?;
    }
    k.println(format!("node/{} {verb}ed{}", i.name, dry.suffix()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, snapshot};
    use serde_json::json;

    #[tokio::test]
    async fn cordons_and_uncordons_nodes() {
        let node = |unschedulable: bool| json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n"}, "spec": {"unschedulable": unschedulable}});
        let s = Server::new().on("GET /api/v1/nodes/n", 200, node(false)).on("PATCH /api/v1/nodes/n", 200, node(true));
        assert_eq!(snapshot(&s, "cordon n", "").await, "node/n cordoned\n");
        assert_eq!(s.body_of("PATCH /api/v1/nodes/n"), json!({"spec": {"unschedulable": true}}));
        assert_eq!(snapshot(&s, "uncordon n", "").await, "node/n already uncordoned\n");
        for verb in ["cordon", "uncordon", "drain"] {
            let usage = format!(
                "! error: USAGE: {verb} NODE [flags]\n! See 'kubectl {verb} -h' for help and examples\nexit 1\n"
            );
            assert_eq!(snapshot(&s, verb, "").await, usage);
            let output = snapshot(&s, &format!("{verb} --selector="), "").await;
            assert!(
                output.starts_with("! error: You must provide one or more resources by argument or filename.\n"),
                "{output}"
            );
        }
    }
}
