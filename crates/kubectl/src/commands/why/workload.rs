//! Why the rollout of a workload is not complete: from the workload to the pods that are not available.

use super::fields::{
    condition, has_condition, is_controlled_by, is_deleting, is_true, name, namespace, number, text, uid,
};
use super::finding::{Explanation, Finding, ObjectName, State, plural};
use super::pod_pending::Nodes;
use super::reader::Reader;
use super::{events, pod, pod_running};
use crate::error::Result;
use meta::Value;
use std::collections::BTreeMap;

/// How many groups of pods with the same problem are explained.
const MOST_GROUPS: usize = 3;

/// The desired number of replicas.
fn replicas(v: &Value) -> i64 {
    v.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(1)
}

/// Why the controller has not taken the newest generation.
fn unobserved(v: &Value, controller: &str) -> Option<Finding> {
    let (generation, observed) = (number(v, "/metadata/generation"), number(v, "/status/observedGeneration"));
    let message = || {
        format!(
            "the {controller} controller has not acted on generation {generation} yet (last: {observed}); it may not run"
        )
    };
    (generation > 0 && observed < generation).then(|| Finding::new("NotObserved", message()))
}

/// Why pods could not be created, according to a condition.
fn replica_failure(v: &Value, now: jiff::Timestamp) -> Option<Finding> {
    let failure = condition(v, "ReplicaFailure").filter(|c| c["status"] == "True")?;
    let since = match text(failure, "/lastTransitionTime") {
        "" => String::new(),
        time => format!(" for {}", pod_running::ago(time, now)),
    };
    let message = format!("pods cannot be created{since}: {}", text(failure, "/message"));
    Some(Finding::new("PodsRefused", message))
}

pub async fn deployment(r: &mut Reader<'_>, d: &Value, nodes: Nodes) -> Result<Explanation> {
    let desired = replicas(d);
    let status = |field: &str| number(d, &format!("/status/{field}"));
    let (total, updated, available) = (status("replicas"), status("updatedReplicas"), status("availableReplicas"));
    let mut findings: Vec<Finding> = unobserved(d, "deployment").into_iter().collect();
    let paused = is_true(d, "/spec/paused");
    let complete = findings.is_empty() && updated == desired && total == updated && available >= desired;
    if complete {
        let summary = match desired {
            0 => "is scaled to 0 replicas".to_owned(),
            n => format!("is healthy: {n} of {n} replicas are updated and available"),
        };
        return Ok(match paused {
            true => Explanation::new(State::Paused, format!("{summary}, and paused")),
            false => Explanation::new(State::Healthy, summary),
        });
    }
    if paused {
        let message = "its rollout is paused: changes of its pod template are not rolled out";
        let command = format!("kubectl rollout resume -n {} deployment/{}", namespace(d), name(d));
        findings.push(Finding::new("Paused", message).suggest(command));
    }
    let mut stuck = false;
    if let Some(c) = condition(d, "Progressing").filter(|c| c["status"] == "False") {
        stuck = true;
        let deadline = d.pointer("/spec/progressDeadlineSeconds").and_then(Value::as_i64).unwrap_or(600);
        let since = pod_running::ago(text(c, "/lastTransitionTime"), r.k.now());
        let message = match text(c, "/reason") {
            "ProgressDeadlineExceeded" => format!(
                "no replica became available within its progress deadline of {deadline}s, which ended {since} ago"
            ),
            reason => format!("it does not progress: {reason}: {}", text(c, "/message")),
        };
        findings.push(Finding::new("DeadlineExceeded", message));
    }
    let sets = r.list("apps/v1", namespace(d), "replicasets").await?;
    let mut own: Vec<&Value> = sets.iter().filter(|s| is_controlled_by(s, uid(d))).collect();
    let revision = |s: &Value| {
        let text = s.pointer("/metadata/annotations/deployment.kubernetes.io~1revision").and_then(Value::as_str);
        text.and_then(|t| t.parse::<i64>().ok()).unwrap_or(0)
    };
    let new = newest_set(d, &own).map(|set| uid(set).to_owned());
    let is_new = |set: &Value| new.as_deref() == Some(uid(set));
    own.sort_by_key(|s| (!is_new(s), std::cmp::Reverse(revision(s))));
    // The condition of the deployment repeats that of its sets.
    if !own.iter().any(|set| replica_failure(set, r.k.now()).is_some()) {
        findings.extend(replica_failure(d, r.k.now()));
    }
    if !r.is_unreadable("replicasets", namespace(d)) {
        let message = "the deployment controller has not created a ReplicaSet";
        match (own.is_empty(), new.is_none() && !paused) {
            (true, _) => findings.push(Finding::new("NoReplicaSet", message)),
            (false, true) => findings.push(Finding::new("NoReplicaSet", format!("{message} for its pod template yet"))),
            (false, false) => {}
        }
    }
    for set in own {
        let (desired_here, there) = (replicas(set), number(set, "/status/replicas"));
        let is_old = !is_new(set);
        if is_old && there == 0 && desired_here == 0 {
            continue;
        }
        let age = if is_old { "old" } else { "new" };
        let available = number(set, "/status/availableReplicas");
        let of_set = set_findings(r, set, desired_here, nodes).await?;
        if is_old && of_set.is_empty() && available == there && desired_here == there {
            let until = if paused { "while the rollout is paused" } else { "until new ones are available" };
            let replicas = format!("{there} replica{}", plural(there as usize));
            let message = format!("the {age} ReplicaSet {} keeps {replicas} {until}", name(set));
            findings.push(Finding::new("OldReplicas", message).about(name_of(set, "ReplicaSet")));
            continue;
        }
        let message =
            format!("the {age} ReplicaSet {}: {available} of {desired_here} replicas are available", name(set));
        findings.push(Finding::new("ReplicaSet", message).about(name_of(set, "ReplicaSet")).because(of_set));
    }
    let counts = format!("{updated} of {desired} replicas are updated, {available} available");
    Ok(match (stuck, paused) {
        (true, _) => Explanation::new(State::Failed, format!("is stuck: {counts}")),
        (_, true) => Explanation::new(State::Paused, format!("is paused: {counts}")),
        _ => Explanation::new(State::Progressing, format!("is not complete: {counts}")),
    }
    .because(findings))
}

/// The ReplicaSet with the pod template of a deployment, the oldest of several, as the deployment controller finds it.
fn newest_set<'a>(deployment: &Value, sets: &[&'a Value]) -> Option<&'a Value> {
    let template = bare_template(deployment);
    let same = sets.iter().copied().filter(|set| bare_template(set) == template);
    same.min_by_key(|set| (meta::time::parse(text(set, "/metadata/creationTimestamp")), name(set)))
}

/// The pod template of a workload without the label that the deployment controller adds, and without empty metadata.
fn bare_template(v: &Value) -> Value {
    let mut template = v["spec"]["template"].clone();
    if let Some(metadata) = template.get_mut("metadata").and_then(Value::as_object_mut) {
        if let Some(labels) = metadata.get_mut("labels").and_then(Value::as_object_mut) {
            labels.remove("pod-template-hash");
        }
        metadata.retain(|_, v| !v.is_null() && v.as_object().is_none_or(|fields| !fields.is_empty()));
    }
    template
}

fn name_of(v: &Value, kind: &str) -> ObjectName {
    super::fields::object_name(v, "apps/v1", kind)
}

/// What a ReplicaSet lacks.
async fn set_findings(r: &mut Reader<'_>, set: &Value, desired: i64, nodes: Nodes) -> Result<Vec<Finding>> {
    let mut findings: Vec<Finding> = replica_failure(set, r.k.now()).into_iter().collect();
    findings.extend(pods(r, set, desired, nodes).await?);
    Ok(findings)
}

pub async fn replica_set(r: &mut Reader<'_>, set: &Value, nodes: Nodes) -> Result<Explanation> {
    let desired = replicas(set);
    let available = number(set, "/status/availableReplicas");
    let unobserved = unobserved(set, "replica set");
    if unobserved.is_none() && available >= desired && number(set, "/status/replicas") == desired {
        return Ok(Explanation::new(State::Healthy, healthy(desired)));
    }
    let findings = set_findings(r, set, desired, nodes).await?;
    let summary = format!("is not complete: {available} of {desired} replicas are available");
    Ok(Explanation::new(State::Progressing, summary).because(unobserved).because(findings))
}

fn healthy(desired: i64) -> String {
    match desired {
        0 => "is scaled to 0 replicas".into(),
        n => format!("is healthy: {n} of {n} replicas are available"),
    }
}

pub async fn stateful_set(r: &mut Reader<'_>, set: &Value, nodes: Nodes) -> Result<Explanation> {
    let desired = replicas(set);
    let status = |field: &str| number(set, &format!("/status/{field}"));
    let (current, update) = (text(set, "/status/currentRevision"), text(set, "/status/updateRevision"));
    let partition = number(set, "/spec/updateStrategy/rollingUpdate/partition");
    let on_delete = set.pointer("/spec/updateStrategy/type") == Some(&Value::from("OnDelete"));
    let mut findings: Vec<Finding> = unobserved(set, "stateful set").into_iter().collect();
    let available = status("availableReplicas");
    let updating = !update.is_empty() && current != update;
    let outdated = (desired - status("updatedReplicas")).max(0);
    let held =
        updating && outdated > 0 && (on_delete || (partition > 0 && status("updatedReplicas") >= desired - partition));
    if findings.is_empty() && available >= desired && status("replicas") == desired && (!updating || outdated == 0) {
        return Ok(Explanation::new(State::Healthy, healthy(desired)));
    }
    if updating && on_delete && outdated > 0 {
        let message = format!(
            "{outdated} pod{} the old revision: with the strategy OnDelete a pod is updated when it is deleted",
            if outdated == 1 { " has" } else { "s have" }
        );
        findings.push(Finding::new("OnDelete", message));
    } else if updating && partition > 0 && outdated > 0 {
        let message = format!(
            "its partition {partition} keeps pods with lower ordinals at the old revision ({outdated} of {desired} pods)"
        );
        findings.push(Finding::new("Partition", message));
    }
    let ordered = text(set, "/spec/podManagementPolicy") != "Parallel";
    let mut of_pods = pods(r, set, desired, nodes).await?;
    if ordered && of_pods.iter().any(|f| f.reason == "PodsUnavailable") && status("replicas") < desired {
        of_pods.push(Finding::new(
            "Ordered",
            "further pods are created when the earlier ones are ready (podManagementPolicy OrderedReady)",
        ));
    }
    findings.extend(of_pods);
    let summary = format!("{available} of {desired} replicas are available, {} updated", status("updatedReplicas"));
    let state = if held && available >= desired { State::Paused } else { State::Progressing };
    let words = if state == State::Paused { "holds its update back" } else { "is not complete" };
    Ok(Explanation::new(state, format!("{words}: {summary}")).because(findings))
}

pub async fn daemon_set(r: &mut Reader<'_>, set: &Value, nodes: Nodes) -> Result<Explanation> {
    let status = |field: &str| number(set, &format!("/status/{field}"));
    let (desired, available) = (status("desiredNumberScheduled"), status("numberAvailable"));
    let updated = status("updatedNumberScheduled");
    let mut findings: Vec<Finding> = unobserved(set, "daemon set").into_iter().collect();
    if findings.is_empty() && desired == 0 {
        let message =
            "no node matches its node selector and affinity, or all of them have taints that it does not tolerate";
        let finding = Finding::new("NoEligibleNode", message);
        return Ok(Explanation::new(State::Healthy, "runs on no node").because([finding]));
    }
    let misplaced = status("numberMisscheduled");
    if findings.is_empty() && available >= desired && updated >= desired && misplaced == 0 {
        return Ok(Explanation::new(
            State::Healthy,
            format!("is healthy: {available} of {desired} nodes run an available pod"),
        ));
    }
    if misplaced > 0 {
        findings.push(Finding::new(
            "Misplaced",
            format!("{misplaced} node{} should not run one of its pods any more", plural(misplaced as usize)),
        ));
    }
    if set.pointer("/spec/updateStrategy/type") == Some(&Value::from("OnDelete")) && updated < desired {
        let message = format!(
            "{} pod{} the old template: with the strategy OnDelete a pod is updated when it is deleted",
            desired - updated,
            if desired - updated == 1 { " has" } else { "s have" }
        );
        findings.push(Finding::new("OnDelete", message));
    }
    findings.extend(pods(r, set, desired, nodes).await?);
    let summary =
        format!("is not complete: {available} of {desired} nodes run an available pod, {updated} an updated one");
    Ok(Explanation::new(State::Progressing, summary).because(findings))
}

/// Whether a pod counts as available: ready for `minReadySeconds`.
fn unavailable(pod: &Value) -> bool {
    !has_condition(pod, "Ready", "True") || is_deleting(pod)
}

/// The pods of a workload that are not available, grouped by their problem, and those that do not exist.
pub async fn pods(r: &mut Reader<'_>, owner: &Value, desired: i64, nodes: Nodes) -> Result<Vec<Finding>> {
    let all = r.list("v1", namespace(owner), "pods").await?;
    if r.is_unreadable("pods", namespace(owner)) {
        return Ok(Vec::new());
    }
    let ended = |p: &Value| matches!(text(p, "/status/phase"), "Succeeded" | "Failed");
    let own: Vec<&Value> = all.iter().filter(|p| is_controlled_by(p, uid(owner)) && !ended(p)).collect();
    let mut findings = grouped(r, own.iter().copied().filter(|p| unavailable(p)), nodes).await?;
    let missing = desired - own.len() as i64;
    if missing > 0 && condition(owner, "ReplicaFailure").is_none() {
        let message = format!("{missing} pod{} not been created", if missing == 1 { " has" } else { "s have" });
        let events = events::latest(r, namespace(owner), uid(owner)).await?;
        findings.push(Finding::new("PodsMissing", message).because(events));
    }
    let seconds = number(owner, "/spec/minReadySeconds").max(number(owner, "/spec/template/spec/minReadySeconds"));
    let now = r.k.now().as_second();
    let young = own.iter().filter(|p| {
        let since = condition(p, "Ready").and_then(|c| meta::time::parse(text(c, "/lastTransitionTime")));
        !unavailable(p) && since.is_some_and(|t| now - t.as_second() < seconds)
    });
    match young.count() {
        0 => {}
        n => findings.push(Finding::new(
            "MinReadySeconds",
            format!("{n} pod{} ready for less than minReadySeconds ({seconds}s)", if n == 1 { " is" } else { "s are" }),
        )),
    }
    Ok(findings)
}

/// Pods with the same problem: one finding for each group, with the explanation of its first pod.
async fn grouped<'a>(r: &mut Reader<'_>, pods: impl Iterator<Item = &'a Value>, nodes: Nodes) -> Result<Vec<Finding>> {
    let now = r.k.now();
    let mut groups: BTreeMap<String, Vec<&Value>> = BTreeMap::new();
    for p in pods {
        let key = match pod_running::containers(p, now) {
            _ if is_deleting(p) => "terminating".to_owned(),
            _ if text(p, "/spec/nodeName").is_empty() => {
                format!("pending {}", condition(p, "PodScheduled").map_or("", |c| text(c, "/message")))
            }
            Some((state, findings)) => {
                let reasons: Vec<&str> = findings.iter().map(|f| f.reason).collect();
                format!("{state:?} {}", reasons.join(" "))
            }
            None => "other".to_owned(),
        };
        groups.entry(key).or_default().push(p);
    }
    let mut groups: Vec<Vec<&Value>> = groups.into_values().collect();
    groups.sort_by_key(|members| std::cmp::Reverse(members.len()));
    let more = groups.len().saturating_sub(MOST_GROUPS);
    let mut findings = Vec::new();
    for members in groups.into_iter().take(MOST_GROUPS) {
        let Some(first) = members.first() else { continue };
        let e = Box::pin(pod::explain(r, first, nodes)).await?;
        let others = match members.len() - 1 {
            0 => String::new(),
            n => format!(", and {n} other pod{} like it", plural(n)),
        };
        let about = ObjectName::new("v1", "Pod", namespace(first), name(first));
        let message = format!("pod {} {}{others}", name(first), e.summary);
        findings.push(Finding::new("PodsUnavailable", message).about(about).because(e.findings));
    }
    if more > 0 {
        findings.push(Finding::new("MoreProblems", format!("and pods with {more} other problem{}", plural(more))));
    }
    Ok(findings)
}

#[cfg(test)]
#[path = "workload_tests.rs"]
mod tests;
