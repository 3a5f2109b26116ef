//! Why a volume is not bound, or is not freed.

use super::{Facts, Finding, Query, Rule, Topic, finding};
use crate::commands::why::fields::{list, name, text, uid};
use crate::commands::why::finding::{ObjectName, State};
use crate::commands::why::reader::Read;
use meta::Value;
use placement::NodeSelectorTerm;

pub(super) const TOPIC: Topic = Topic {
    group: "",
    kind: "PersistentVolume",
    reads,
    rules: &[
        Rule { reason: "Failed", state: State::Failed, summary: "has failed", find: failed },
        Rule {
            reason: "ClaimLost",
            state: State::NotReady,
            summary: "belongs to a claim that does not have it",
            find: claim,
        },
        Rule {
            reason: "Released",
            state: State::Waiting,
            summary: "is released: no claim can have it",
            find: released,
        },
        Rule { reason: "NodeGone", state: State::NotReady, summary: "can be used on no node", find: nodes },
        Rule { reason: "Reserved", state: State::Waiting, summary: "waits for its claim", find: reserved },
        Rule {
            reason: "StorageClassNotFound",
            state: State::Healthy,
            summary: "is available: no claim has it",
            find: class,
        },
    ],
    healthy,
};

fn reads(volume: &Value) -> Vec<Query> {
    let mut all = vec![Query::list("v1", "", "nodes")];
    let claim = text(volume, "/spec/claimRef/name");
    if !claim.is_empty() {
        let ns = text(volume, "/spec/claimRef/namespace");
        all.push(Query::get("v1", ns, "persistentvolumeclaims", claim));
    }
    let class = text(volume, "/spec/storageClassName");
    if !class.is_empty() {
        all.push(Query::get("storage.k8s.io/v1", "", "storageclasses", class));
    }
    all
}

fn phase(volume: &Value) -> &str {
    text(volume, "/status/phase")
}

/// The claim of a volume: its name in words, and the object that it has.
fn claim_of<'a>(facts: &'a Facts<'_>) -> Option<(String, ObjectName, &'a Read)> {
    let (ns, name) = (text(facts.object, "/spec/claimRef/namespace"), text(facts.object, "/spec/claimRef/name"));
    let read = facts.get("v1", ns, "persistentvolumeclaims", name);
    let about = ObjectName::new("v1", "PersistentVolumeClaim", ns, name);
    (!name.is_empty()).then(|| (format!("{ns}/{name}"), about, read))
}

fn failed(facts: &Facts<'_>) -> Vec<Finding> {
    match phase(facts.object) {
        "Failed" => vec![finding(match text(facts.object, "/status/message") {
            "" => "the volume controller could not reclaim it".to_owned(),
            message => message.to_owned(),
        })],
        _ => Vec::new(),
    }
}

fn claim(facts: &Facts<'_>) -> Vec<Finding> {
    if phase(facts.object) != "Bound" {
        return Vec::new();
    }
    let Some((claim, about, read)) = claim_of(facts) else { return Vec::new() };
    let message = match read {
        Read::Missing => format!("its claim {claim} does not exist; the volume controller has to release the volume"),
        Read::Found(found) => match text(found, "/spec/volumeName") {
            volume if volume == name(facts.object) => return Vec::new(),
            "" => format!("its claim {claim} is not bound to it yet"),
            other => format!("its claim {claim} has the volume {other}"),
        },
        Read::Unreadable => return Vec::new(),
    };
    vec![finding(message).about(about)]
}

fn released(facts: &Facts<'_>) -> Vec<Finding> {
    if phase(facts.object) != "Released" {
        return Vec::new();
    }
    let volume = name(facts.object);
    let claim = claim_of(facts).map_or_else(|| "its claim".to_owned(), |(claim, ..)| format!("its claim {claim}"));
    vec![match text(facts.object, "/spec/persistentVolumeReclaimPolicy") {
        "Delete" => {
            let provisioner = text(facts.object, "/metadata/annotations/pv.kubernetes.io~1provisioned-by");
            let who = if provisioner.is_empty() { "its provisioner" } else { provisioner };
            finding(format!("{claim} was deleted; {who} has to delete the storage (reclaim policy Delete)"))
        }
        policy => {
            let message = format!(
                "{claim} was deleted; with the reclaim policy {policy} the volume keeps its data until somebody decides"
            );
            finding(message)
                .suggest(format!("kubectl patch pv/{volume} --type=json -p '[{{\"op\":\"remove\",\"path\":\"/spec/claimRef\"}}]' makes it available, with its data"))
                .suggest(format!("kubectl delete pv/{volume} forgets it; the storage stays"))
        }
    }]
}

fn nodes(facts: &Facts<'_>) -> Vec<Finding> {
    let Some(required) = facts.object.pointer("/spec/nodeAffinity/required") else { return Vec::new() };
    let Some(nodes) = facts.list("v1", "", "nodes") else { return Vec::new() };
    let terms: Vec<NodeSelectorTerm> =
        list(required, "/nodeSelectorTerms").iter().map(NodeSelectorTerm::read).collect();
    let admits = |n: &Value| terms.iter().any(|t| t.matches(name(n), |key| n["metadata"]["labels"][key].as_str()));
    if nodes.iter().any(admits) {
        return Vec::new();
    }
    let named = required.pointer("/nodeSelectorTerms/0/matchExpressions/0").map(|e| {
        let values = e["values"].as_array().into_iter().flatten().filter_map(Value::as_str);
        format!(" ({} in {})", text(e, "/key"), values.collect::<Vec<_>>().join(", "))
    });
    vec![finding(format!("no node matches its node affinity{}", named.unwrap_or_default()))]
}

fn reserved(facts: &Facts<'_>) -> Vec<Finding> {
    let is_waiting = matches!(phase(facts.object), "Available" | "Pending" | "");
    let Some((claim, about, read)) = claim_of(facts).filter(|_| is_waiting) else { return Vec::new() };
    let wanted = text(facts.object, "/spec/claimRef/uid");
    let message = match read {
        Read::Missing => format!("it is reserved for the claim {claim}, which does not exist"),
        Read::Found(found) if !wanted.is_empty() && uid(found) != wanted => {
            format!("it is reserved for an earlier claim {claim}, which was deleted")
        }
        Read::Found(_) => format!("it is reserved for the claim {claim}, which is not bound to it yet"),
        Read::Unreadable => return Vec::new(),
    };
    vec![finding(message).about(about)]
}

fn class(facts: &Facts<'_>) -> Vec<Finding> {
    let class = text(facts.object, "/spec/storageClassName");
    match facts.get("storage.k8s.io/v1", "", "storageclasses", class) {
        Read::Missing if phase(facts.object) == "Available" => {
            vec![finding(format!(
                "its StorageClass {class} does not exist; claims of this class can have it nevertheless"
            ))]
        }
        _ => Vec::new(),
    }
}

fn healthy(volume: &Value) -> String {
    match phase(volume) {
        "Bound" => {
            let (ns, claim) = (text(volume, "/spec/claimRef/namespace"), text(volume, "/spec/claimRef/name"));
            format!("is healthy: bound to the claim {ns}/{claim}")
        }
        _ => "is available: no claim has it".into(),
    }
}
