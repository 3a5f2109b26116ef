//! Why an object that is being deleted is still there: its finalizers, who removes them, and what those wait for.

use super::fields::{condition, has_condition, list, name, namespace, text, uid};
use super::finding::{Explanation, Finding, ObjectName, State, plural, some};
use super::pod_running::ago;
use super::reader::{Read, Reader};
use super::references;
use crate::discovery::Resource;
use crate::error::Result;
use jiff::Timestamp;
use meta::Value;
use serde_json::json;
use std::sync::Arc;

/// Finalizers of Kubernetes: the finalizer, or its prefix, who removes it, and when.
const KNOWN: &[(&str, &str, &str)] = &[
    ("kubernetes", "the namespace controller", "when nothing is left in the namespace"),
    ("foregroundDeletion", "the garbage collector", "when the dependents that block the deletion are gone"),
    ("orphan", "the garbage collector", "when its dependents have lost their references to it"),
    ("kubernetes.io/pvc-protection", "the PVC protection controller", "when no pod uses the claim"),
    ("kubernetes.io/pv-protection", "the PV protection controller", "when no claim is bound to the volume"),
    ("batch.kubernetes.io/job-tracking", "the job controller", "when it has counted the pod"),
    (
        "service.kubernetes.io/load-balancer-cleanup",
        "the service controller of the cloud provider",
        "when the load balancer is removed",
    ),
    ("customresourcecleanup.apiextensions.k8s.io", "the API server", "when no object of the definition is left"),
    ("resource.kubernetes.io/delete-protection", "the resource claim controller", "when no pod uses the claim"),
    (
        "external-provisioner.volume.kubernetes.io/finalizer",
        "the provisioner of the volume",
        "when the storage is deleted",
    ),
    ("external-attacher/", "the attacher of the volume's driver", "when the volume is detached"),
    ("snapshot.storage.kubernetes.io/", "the snapshot controller", "when the snapshot is not used any more"),
];

/// Explains the deletion of any object.
pub async fn explain(r: &mut Reader<'_>, object: &Value, resource: &Resource) -> Result<Explanation> {
    let since = ago(text(object, "/metadata/deletionTimestamp"), r.k.now());
    let is_namespace = resource.kind == "Namespace" && resource.group.is_empty();
    let mut findings = Vec::new();
    let own = |field: &str| list(object, field).iter().filter_map(Value::as_str);
    let finalizers: Vec<&str> =
        own("/metadata/finalizers").chain(own("/spec/finalizers").filter(|_| is_namespace)).collect();
    for finalizer in &finalizers {
        let mut finding = of_finalizer(object, resource, finalizer, r.k.now());
        finding.children.extend(match *finalizer {
            "kubernetes" if is_namespace => namespace_content(r, object).await?,
            "foregroundDeletion" => dependents(r, object).await?,
            "kubernetes.io/pvc-protection" => users_of_claim(r, object).await?,
            "kubernetes.io/pv-protection" => claim_of_volume(object),
            "customresourcecleanup.apiextensions.k8s.io" => custom_objects(r, object).await?,
            "batch.kubernetes.io/job-tracking" => job_of_pod(r, object).await?,
            _ => Vec::new(),
        });
        findings.push(finding);
    }
    let summary = match finalizers.len() {
        0 => format!("is being deleted for {since}"),
        n => {
            format!("is being deleted for {since}: {n} finalizer{} hold{} it", plural(n), if n == 1 { "s" } else { "" })
        }
    };
    Ok(Explanation::new(State::Terminating, summary).because(findings))
}

/// A finalizer: who removes it and when, or who set it. Pure.
fn of_finalizer(object: &Value, resource: &Resource, finalizer: &str, now: Timestamp) -> Finding {
    let known = KNOWN.iter().find(|(f, ..)| if f.ends_with('/') { finalizer.starts_with(f) } else { finalizer == *f });
    if let Some((_, remover, when)) = known {
        return Finding::new("Finalizer", format!("finalizer {finalizer}: {remover} removes it {when}"));
    }
    let setter = setter(object, finalizer);
    let since = |time: &str| if time.is_empty() { String::new() } else { format!(", {} ago", ago(time, now)) };
    if let Some((manager, time)) = setter.filter(|(manager, _)| !is_by_hand(manager)) {
        let message = format!("finalizer {finalizer}: set by {manager}{}; that program has to remove it", since(time));
        return Finding::new("ForeignFinalizer", message).suggest(
            "check that this program runs and what it logs; a finalizer that is removed by hand skips its clean-up",
        );
    }
    let (reason, origin) = match setter {
        Some((manager, time)) => ("ManualFinalizer", format!("set by hand with {manager}{}", since(time))),
        None => ("ForeignFinalizer", "not one of Kubernetes, and it is not recorded which program set it".to_owned()),
    };
    let message = format!("finalizer {finalizer}: {origin}; if no program removes it, it has to be removed by hand");
    let finding = Finding::new(reason, message);
    match removal(object, resource, finalizer) {
        Some(command) => finding.suggest(command),
        None => finding,
    }
}

/// Managers of people: programs that set what their user types. The version follows some of them.
const BY_HAND: [&str; 8] = ["kubectl", "curl", "Mozilla", "Postman", "k9s", "Lens", "before-first-apply", "unknown"];

/// Whether a field was set by a person, judged by its manager.
fn is_by_hand(manager: &str) -> bool {
    let starts = |name: &str| manager.strip_prefix(name).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric));
    BY_HAND.iter().any(|name| starts(name))
}

/// The command that removes a finalizer, and fails if the list of finalizers has changed.
fn removal(object: &Value, resource: &Resource, finalizer: &str) -> Option<String> {
    // Finalizers and names of a valid object need no quoting.
    let plain = |s: &str| s.chars().all(|c| c.is_ascii_alphanumeric() || "-._/:".contains(c));
    let index = list(object, "/metadata/finalizers").iter().position(|f| f == finalizer)?;
    let namespace = match namespace(object) {
        "" => String::new(),
        ns => format!(" -n {ns}"),
    };
    let target = format!("{}/{}", resource.group_kind(), name(object));
    let at = format!("/metadata/finalizers/{index}");
    let patch = json!([{"op": "test", "path": at, "value": finalizer}, {"op": "remove", "path": at}]);
    let command = format!("kubectl patch{namespace} {target} --type=json -p '{patch}'");
    [finalizer, &target, &namespace].iter().all(|s| plain(s.trim_start_matches(" -n "))).then_some(command)
}

/// The manager that set a finalizer, and when.
fn setter<'a>(object: &'a Value, finalizer: &str) -> Option<(&'a str, &'a str)> {
    let key = format!("v:\"{finalizer}\"");
    let owns = |m: &&Value| {
        m.pointer("/fieldsV1/f:metadata/f:finalizers").and_then(Value::as_object).is_some_and(|f| f.contains_key(&key))
    };
    let entry = list(object, "/metadata/managedFields").iter().find(owns)?;
    Some((text(entry, "/manager"), text(entry, "/time")))
}

pub async fn pod(r: &mut Reader<'_>, pod: &Value) -> Result<Explanation> {
    let resource = Resource { kind: "Pod".into(), ..Resource::default() };
    let mut e = explain(r, pod, &resource).await?;
    let now = r.k.now();
    // The timestamp of a pod is when its grace period ends.
    let left =
        meta::time::parse(text(pod, "/metadata/deletionTimestamp")).map_or(0, |t| t.as_second() - now.as_second());
    let grace = pod.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0);
    let running = list(pod, "/status/containerStatuses").iter().filter(|s| s.pointer("/state/running").is_some());
    let running: Vec<String> = running.map(|s| text(s, "/name").to_owned()).collect();
    let finalized = !e.findings.is_empty();
    e.summary = match left {
        1.. => format!("is terminating: its grace period of {grace}s ends in {left}s"),
        _ => format!("is terminating: its grace period of {grace}s ended {} ago", kinds::columns::duration(-left)),
    };
    let node = text(pod, "/spec/nodeName");
    if node.is_empty() {
        return Ok(e);
    }
    let mut findings: Vec<Finding> = super::node::of_pod(r, pod).await?.into_iter().collect();
    let node_fails = !findings.is_empty();
    if !running.is_empty() {
        findings
            .push(Finding::new("ContainersRunning", format!("these containers have not ended: {}", some(&running))));
    }
    if left <= 0 && !finalized {
        let waits = match node_fails {
            true => format!("the agent of node {node} has to report that its containers have ended"),
            false => format!("the agent of node {node} has not removed the pod after the end of its grace period"),
        };
        let mut finding = Finding::new("NodeAgent", waits);
        if node_fails {
            let command = format!("kubectl delete -n {} pod/{} --force --grace-period=0", namespace(pod), name(pod));
            finding = finding.suggest(format!("{command}, if the machine is certainly off"));
        }
        findings.push(finding);
    }
    findings.append(&mut e.findings);
    e.findings = findings;
    Ok(e)
}

/// What is left in a namespace, by kind, with finalizers of its own.
async fn namespace_content(r: &mut Reader<'_>, ns: &Value) -> Result<Vec<Finding>> {
    let mut findings = down_services(r).await?;
    let mut remaining = 0;
    for resource in listable(r).await? {
        let objects = r.list(&resource.group_version(), name(ns), &resource.plural).await?;
        if objects.is_empty() {
            continue;
        }
        remaining += objects.len();
        let held: Vec<&Value> = objects.iter().filter(|o| !list(o, "/metadata/finalizers").is_empty()).collect();
        let message = format!("{} left: {}", resource.group_resource(), objects.len());
        let mut finding = Finding::new("ContentRemaining", message);
        for object in held.iter().take(5) {
            let finalizers = list(object, "/metadata/finalizers").iter().filter_map(Value::as_str);
            let children = finalizers.map(|f| of_finalizer(object, &resource, f, r.k.now()));
            let about = ObjectName::new(&resource.group_version(), &resource.kind, name(ns), name(object));
            let mut held =
                Finding::new("HeldObject", format!("{}/{}:", resource.group_kind(), name(object))).about(about);
            held = held.because(children);
            if text(object, "/metadata/deletionTimestamp").is_empty() {
                held = held.because([Finding::new("NotDeleted", "it has not been deleted yet")]);
            }
            finding = finding.because([held]);
        }
        if held.len() > 5 {
            finding =
                finding.because([Finding::new("MoreObjects", format!("and {} more with finalizers", held.len() - 5))]);
        }
        findings.push(finding);
    }
    for kind in [
        "NamespaceDeletionDiscoveryFailure",
        "NamespaceDeletionGroupVersionParsingFailure",
        "NamespaceDeletionContentFailure",
    ] {
        if has_condition(ns, kind, "True") {
            let message = condition(ns, kind).map_or("", |c| text(c, "/message"));
            findings.push(Finding::new("NamespaceController", format!("the namespace controller wrote: {message}")));
        }
    }
    if remaining == 0 && findings.is_empty() {
        findings.push(Finding::new(
            "NoContent",
            "nothing is left in the namespace: the namespace controller has not noticed, or does not run",
        ));
    }
    Ok(findings)
}

/// The namespaced resources that can be listed, each once.
async fn listable(r: &mut Reader<'_>) -> Result<Vec<Arc<Resource>>> {
    let discovery = r.k.refresh().await?;
    let mut all: Vec<Arc<Resource>> = Vec::new();
    for resource in &discovery.resources {
        // Events are deleted with everything else and have no finalizers.
        let counts = resource.namespaced
            && resource.has_verb("list")
            && resource.has_verb("delete")
            && resource.plural != "events";
        let known = all.iter().any(|known| known.group == resource.group && known.plural == resource.plural);
        if counts && !known {
            all.push(resource.clone());
        }
    }
    Ok(all)
}

/// API services that do not answer: their resources cannot be listed, which stops the namespace controller and the garbage collector.
async fn down_services(r: &mut Reader<'_>) -> Result<Vec<Finding>> {
    let services = r.list("apiregistration.k8s.io/v1", "", "apiservices").await?;
    let down = services.iter().filter(|s| has_condition(s, "Available", "False"));
    let finding = |s: &Value| {
        let message = condition(s, "Available").map_or("", |c| text(c, "/message"));
        let about = ObjectName::new("apiregistration.k8s.io/v1", "APIService", "", name(s));
        Finding::new(
            "APIServiceDown",
            format!("the APIService {} does not answer, so its objects cannot be listed: {message}", name(s)),
        )
        .about(about)
    };
    Ok(down.map(finding).collect())
}

/// The dependents that block the deletion of an object in the foreground.
async fn dependents(r: &mut Reader<'_>, object: &Value) -> Result<Vec<Finding>> {
    let mut findings = down_services(r).await?;
    for resource in listable(r).await? {
        let objects = r.list(&resource.group_version(), namespace(object), &resource.plural).await?;
        let blocks = |o: &&Value| {
            let owners = list(o, "/metadata/ownerReferences").iter();
            owners.clone().any(|owner| owner["uid"] == uid(object) && owner["blockOwnerDeletion"] == true)
        };
        for blocking in objects.iter().filter(blocks).take(5) {
            let finalizers: Vec<String> =
                list(blocking, "/metadata/finalizers").iter().filter_map(Value::as_str).map(str::to_owned).collect();
            let state = match (text(blocking, "/metadata/deletionTimestamp"), finalizers.is_empty()) {
                ("", _) => "which has not been deleted yet".to_owned(),
                (_, true) => "which is being deleted".to_owned(),
                (_, false) => format!("which is being deleted and has the finalizers {}", some(&finalizers)),
            };
            let about = ObjectName::new(&resource.group_version(), &resource.kind, namespace(blocking), name(blocking));
            let message = format!("it waits for {}/{}, {state}", resource.group_kind(), name(blocking));
            let why = format!("kubectl why -n {} {}/{}", namespace(blocking), resource.group_kind(), name(blocking));
            findings.push(Finding::new("BlockingDependent", message).about(about).suggest(why));
        }
    }
    if findings.is_empty() {
        findings.push(Finding::new(
            "NoDependents",
            "no dependent blocks it: the garbage collector has not noticed, or does not run",
        ));
    }
    Ok(findings)
}

async fn users_of_claim(r: &mut Reader<'_>, claim: &Value) -> Result<Vec<Finding>> {
    let pods = r.list("v1", namespace(claim), "pods").await?;
    if r.is_unreadable("pods", namespace(claim)) {
        return Ok(Vec::new());
    }
    let ended = |p: &Value| matches!(text(p, "/status/phase"), "Succeeded" | "Failed");
    let uses = |p: &&Value| !ended(p) && references::claims(p).iter().any(|(used, _)| used == name(claim));
    let users: Vec<String> = pods.iter().filter(uses).map(|p| name(p).to_owned()).collect();
    Ok(vec![match users.is_empty() {
        true => Finding::new("NotUsed", "no pod uses it: the controller has not noticed, or does not run"),
        false => Finding::new("UsedByPods", format!("these pods use it: {}", some(&users))),
    }])
}

fn claim_of_volume(volume: &Value) -> Vec<Finding> {
    match text(volume, "/spec/claimRef/name") {
        "" => Vec::new(),
        claim => {
            let ns = text(volume, "/spec/claimRef/namespace");
            let about = ObjectName::new("v1", "PersistentVolumeClaim", ns, claim);
            let message = format!("it is {} by the claim {ns}/{claim}", text(volume, "/status/phase").to_lowercase());
            vec![Finding::new("ClaimBound", message).about(about)]
        }
    }
}

async fn custom_objects(r: &mut Reader<'_>, definition: &Value) -> Result<Vec<Finding>> {
    let versions = list(definition, "/spec/versions");
    let Some(version) = versions.iter().find(|v| v["served"] == true) else { return Ok(Vec::new()) };
    let (group, plural) = (text(definition, "/spec/group"), text(definition, "/spec/names/plural"));
    let objects = r.list(&format!("{group}/{}", text(version, "/name")), "", plural).await?;
    if objects.is_empty() {
        return Ok(Vec::new());
    }
    let names: Vec<String> = objects
        .iter()
        .map(|o| match namespace(o) {
            "" => name(o).to_owned(),
            ns => format!("{ns}/{}", name(o)),
        })
        .collect();
    let mut finding = Finding::new(
        "ObjectsRemaining",
        match names.len() {
            1 => format!("1 object is left: {}", some(&names)),
            n => format!("{n} objects are left: {}", some(&names)),
        },
    );
    let held = objects.iter().find(|o| !list(o, "/metadata/finalizers").is_empty());
    if let Some(object) = held {
        let finalizers = list(object, "/metadata/finalizers").iter().filter_map(Value::as_str);
        let now = r.k.now();
        let resource =
            Resource { group: group.into(), kind: text(definition, "/spec/names/kind").into(), ..Resource::default() };
        finding = finding.because(finalizers.map(|f| of_finalizer(object, &resource, f, now)));
    }
    Ok(vec![finding])
}

async fn job_of_pod(r: &mut Reader<'_>, pod: &Value) -> Result<Vec<Finding>> {
    let owner = list(pod, "/metadata/ownerReferences").iter().find(|o| o["kind"] == "Job");
    let Some(job) = owner.map(|o| text(o, "/name")) else {
        return Ok(vec![Finding::new("NoOwner", "no Job owns the pod, so no controller counts it")]);
    };
    Ok(match r.get("batch/v1", namespace(pod), "jobs", job).await? {
        Read::Missing => vec![Finding::new("OwnerGone", format!("its Job {job} does not exist any more"))],
        _ => Vec::new(),
    })
}

#[cfg(test)]
#[path = "deletion_tests.rs"]
mod tests;
