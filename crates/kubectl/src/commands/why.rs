//! `kubectl why`: explains why an object is in its state: pending, waiting, restarting, not ready, stuck, being deleted. Upstream has no
//! such command.
//!
//! [`finding`] is the data, [`reader`] reads other objects, and there is a file for each kind of explanation. They decide on the current
//! state; events are a last resort and shown with their age. The exit code is 0 for every explanation, also of an object that is not
//! healthy; `-o json` has `healthy` and `state`.

mod autoscaler;
mod budget;
mod decision;
mod deletion;
mod events;
mod eviction;
mod fields;
mod finding;
mod job;
mod node;
mod pod;
mod pod_pending;
mod pod_running;
mod quota;
mod reader;
mod references;
mod rules;
mod service;
mod storage;
mod workload;

use super::delete::MISSING_RESOURCES;
use crate::error::{Error, Result, text};
use crate::flags::FileFlags;
use crate::kube::Kube;
use crate::resource::Info;
use crate::resource::select::{Selection, gather};
use finding::{Explanation, Finding, ObjectName, State};
use meta::Value;
use pod_pending::Nodes;
use reader::Reader;
use serde_json::json;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// TYPE NAME…, or TYPE/NAME….
    pub resources: Vec<String>,
    #[command(flatten)]
    pub files: FileFlags,
    /// Output format: json, yaml, or by default text.
    #[arg(short = 'o', long, default_value = "", hide_default_value = true)]
    pub output: String,
    /// Label selector.
    #[arg(short = 'l', long, default_value = "", hide_default_value = true)]
    pub selector: String,
    /// Objects of all namespaces.
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// For a pending pod, print every node instead of groups of nodes that lack the same.
    #[arg(long)]
    pub nodes: bool,
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    if a.resources.is_empty() && a.files.is_empty() {
        return text(MISSING_RESOURCES);
    }
    if !matches!(a.output.as_str(), "" | "json" | "yaml") {
        return text(format!(
            "unable to match a printer suitable for the output format {:?}, allowed formats are: json,yaml",
            a.output
        ));
    }
    let s = Selection {
        labels: &a.selector,
        all_namespaces: a.all_namespaces,
        bare_type_is_all: true,
        ..Selection::default()
    };
    let (found, mut errors) = gather(k, &a.resources, &a.files, &s).await?;
    if found.is_empty() && errors.is_empty() && !a.output.is_empty() {
        print_list(&a, k, Vec::new());
        return Ok(());
    }
    if found.is_empty() && errors.is_empty() {
        let (namespace, _) = k.namespace()?;
        k.warn(if a.all_namespaces {
            "No resources found".into()
        } else {
            format!("No resources found in {namespace} namespace.")
        });
        return Ok(());
    }
    let nodes = if a.nodes { Nodes::Each } else { Nodes::Grouped };
    let mut documents = Vec::new();
    let mut reader = Reader::new(k);
    for i in &found {
        let explanation = match explain(&mut reader, i, nodes).await {
            Ok(explanation) => explanation,
            Err(e) => {
                errors.push(e);
                continue;
            }
        };
        let unreadable = reader.take_unreadable();
        if a.output.is_empty() {
            let name = if a.all_namespaces && !i.namespace.is_empty() {
                format!("{} in {}", i.to_name(), i.namespace)
            } else {
                i.to_name()
            };
            let mut text = explanation.text(&name, reader.k.now());
            for what in &unreadable {
                text.push_str(&format!("  (you may not read {what}: what depends on that is not explained)\n"));
            }
            reader.k.out.write(text.as_bytes());
        } else {
            let r = &i.resource;
            let object = ObjectName::new(&r.gvk().api_version(), &r.kind, &i.namespace, &i.name);
            documents.push(explanation.document(&object, &unreadable));
        }
    }
    print(&a, k, documents);
    Error::collect(errors)
}

/// Prints the documents, several as a list.
fn print(a: &Arguments, k: &Kube, mut documents: Vec<Value>) {
    match documents.len() {
        0 => {}
        1 => print_document(a, k, &documents.remove(0)),
        _ => print_list(a, k, documents),
    }
}

fn print_list(a: &Arguments, k: &Kube, documents: Vec<Value>) {
    print_document(a, k, &json!({"apiVersion": "v1", "kind": "List", "items": documents}));
}

fn print_document(a: &Arguments, k: &Kube, document: &Value) {
    let text =
        if a.output == "json" { codec::json::to_string_indent(document) } else { codec::yaml::to_string(document) };
    k.out.write(text.as_bytes());
}

async fn explain(r: &mut Reader<'_>, i: &Info, nodes: Nodes) -> Result<Explanation> {
    let object = i.object.clone().unwrap_or_default().into_value();
    let resource = &i.resource;
    let (group, kind) = (resource.group.as_str(), resource.kind.as_str());
    match (group, kind) {
        ("", "Pod") => pod::explain(r, &object, nodes).await,
        _ if fields::is_deleting(&object) => deletion::explain(r, &object, resource).await,
        ("apps", "Deployment") => workload::deployment(r, &object, nodes).await,
        ("apps", "ReplicaSet") | ("", "ReplicationController") => workload::replica_set(r, &object, nodes).await,
        ("apps", "StatefulSet") => workload::stateful_set(r, &object, nodes).await,
        ("apps", "DaemonSet") => workload::daemon_set(r, &object, nodes).await,
        ("batch", "Job") => job::job(r, &object, nodes).await,
        ("batch", "CronJob") => Ok(job::cron_job(&object, r.k.now())),
        ("", "Service") => service::explain(r, &object).await,
        ("", "PersistentVolumeClaim") => storage::claim(r, &object).await,
        ("", "Node") => Ok(node::explain(&object, r.k.now())),
        ("policy", "PodDisruptionBudget") => budget::explain(r, &object).await,
        ("", "ResourceQuota") => Ok(quota::explain(&object)),
        ("autoscaling", "HorizontalPodAutoscaler") => Ok(autoscaler::explain(&object)),
        _ => Ok(rules::explain(r, group, kind, &object).await?.unwrap_or_else(|| by_conditions(&object))),
    }
}

/// The state of an object of any other kind, by its conditions. Pure.
fn by_conditions(object: &Value) -> Explanation {
    let conditions = fields::list(object, "/status/conditions");
    let failing = conditions.iter().filter(|c| {
        let good = matches!(c["type"].as_str(), Some("Ready" | "Available" | "Established" | "Accepted" | "Approved"));
        good && c["status"] != "True"
    });
    let failing: Vec<Finding> = failing
        .map(|c| {
            let field = |name: &str| fields::text(c, name);
            let message = format!(
                "the condition {} is {}: {}: {}",
                field("/type"),
                field("/status"),
                field("/reason"),
                field("/message")
            );
            Finding::new("Condition", message)
        })
        .collect();
    match failing.is_empty() {
        true if conditions.is_empty() => Explanation::new(State::Healthy, "exists, and reports no conditions"),
        true => Explanation::new(State::Healthy, "is healthy, by its conditions"),
        false => Explanation::new(State::NotReady, "is not ready").because(failing),
    }
}

#[cfg(test)]
mod tests;
