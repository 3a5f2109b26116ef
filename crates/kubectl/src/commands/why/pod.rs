//! Why a pod is in its state.

use super::decision::{Decided, Served, decide, served};
use super::fields::{condition, has_condition, is_deleting, list, namespace, text, uid};
use super::finding::{Explanation, Finding, ObjectName, State, plural, some};
use super::pod_pending::{self, Nodes};
use super::pod_running::{self, ago};
use super::reader::{Read, Reader, escaped};
use super::{deletion, events, eviction, references, storage};
use crate::error::Result;
use meta::Value;

/// How long a pod may be without any word of a scheduler, in seconds.
const SCHEDULER_DELAY: i64 = 5;

pub async fn explain(r: &mut Reader<'_>, pod: &Value, nodes: Nodes) -> Result<Explanation> {
    if is_deleting(pod) {
        return deletion::pod(r, pod).await;
    }
    let phase = text(pod, "/status/phase");
    match phase {
        "Succeeded" => return Ok(Explanation::new(State::Completed, "has completed")),
        "Failed" => return Ok(failed(pod)),
        _ => {}
    }
    if text(pod, "/spec/nodeName").is_empty() {
        return pending(r, pod, nodes).await;
    }
    running(r, pod).await
}

fn failed(pod: &Value) -> Explanation {
    let (reason, message) = (text(pod, "/status/reason"), text(pod, "/status/message"));
    let colon = if message.is_empty() { String::new() } else { format!(": {message}") };
    let summary = if reason.is_empty() { "has failed".to_owned() } else { format!("has failed: {reason}{colon}") };
    let disrupted = condition(pod, "DisruptionTarget").filter(|c| c["status"] == "True");
    let disrupted =
        disrupted.map(|c| Finding::new("Disrupted", format!("{}: {}", text(c, "/reason"), text(c, "/message"))));
    Explanation::new(State::Failed, summary).because(disrupted).because(pod_running::failures(pod))
}

async fn pending(r: &mut Reader<'_>, pod: &Value, nodes: Nodes) -> Result<Explanation> {
    if let Some(gated) = pod_pending::gates(pod) {
        return gated_pod(r, pod, gated, nodes).await;
    }
    if let Some(unserved) = unserved_scheduler(r, pod).await? {
        return Ok(Explanation::new(State::Pending, "is pending: no scheduler takes it").because([unserved]));
    }
    let mut e = Explanation::new(State::Pending, "is pending");
    e.findings.extend(preemption(r, pod).await?);
    e.findings.extend(storage::of_pod(r, pod, false).await?);
    e.findings.extend(device_claims(r, pod).await?);
    let decided = decide(r, pod).await?;
    match decided.explanation() {
        Some(explanation) => {
            let (summary, findings) = pod_pending::explained(explanation, nodes);
            e.summary = format!("is pending: {summary}");
            e.findings.extend(findings);
        }
        None => e.findings.extend(pod_pending::written_condition(pod)),
    }
    if let Decided::Server(d) = &decided {
        let refusals = d.last_decision.iter().flat_map(|last| &last.extenders);
        e.findings.extend(refusals.map(pod_pending::of_extender));
    }
    // The filters pass, and something else fails: an extender, a volume, the binding.
    if let Decided::Server(d) = &decided
        && d.explanation.fitting_count > 0
        && let Some(last) = &d.last_decision
    {
        e.findings.push(Finding::new("LastAttempt", format!("the last attempt of the scheduler: {}", last.message)));
    }
    let now = r.k.now();
    e.findings.push(match &decided {
        Decided::Server(d) => pod_pending::provenance(Some(d), now),
        Decided::Here { .. } => pod_pending::provenance(None, now),
        Decided::Unknown => Finding::new(
            "NotDecided",
            "the decision cannot be computed: you may not list the nodes and pods of the cluster",
        ),
    });
    let fits = decided.explanation().is_some_and(|x| x.fitting_count > 0);
    if matches!(&decided, Decided::Here { .. }) && (fits || condition(pod, "PodScheduled").is_none()) {
        let absent = matches!(&decided, Decided::Here { absent: true, .. });
        e.findings.extend(absent_scheduler(r, pod, absent).await?);
    }
    e.decision = match &decided {
        Decided::Server(d) => serde_json::to_value(d).ok(),
        Decided::Here { explanation, .. } => Some(serde_json::json!({"computed": true, "explanation": explanation})),
        Decided::Unknown => None,
    };
    Ok(e)
}

/// A pod with scheduling gates, and what would hold it back without them.
async fn gated_pod(r: &mut Reader<'_>, pod: &Value, gated: Finding, nodes: Nodes) -> Result<Explanation> {
    let mut ungated = pod.clone();
    ungated["spec"]["schedulingGates"] = serde_json::json!([]);
    let mut after: Vec<Finding> = unserved_scheduler(r, &ungated).await?.into_iter().collect();
    let mut summary = "no scheduler takes it".to_owned();
    if after.is_empty() {
        after.extend(storage::of_pod(r, &ungated, false).await?);
        after.extend(device_claims(r, &ungated).await?);
        if let Some(explanation) = decide(r, &ungated).await?.explanation() {
            let (decided, findings) = pod_pending::explained(explanation, nodes);
            summary = if explanation.fitting_count > 0 { "a node can be chosen".into() } else { decided };
            after.extend(findings);
        }
    }
    let e = Explanation::new(State::Pending, "is pending: scheduling gates hold it back").because([gated]);
    if after.is_empty() {
        return Ok(e);
    }
    Ok(e.because([Finding::new("AfterGates", format!("without its gates: {summary}")).because(after)]))
}

/// Why no scheduler has taken a pod: none of its name runs. None if one has, or may.
async fn unserved_scheduler(r: &mut Reader<'_>, pod: &Value) -> Result<Option<Finding>> {
    let scheduler = text(pod, "/spec/schedulerName");
    if condition(pod, "PodScheduled").is_some() {
        return Ok(None);
    }
    let Served::Unqueued(running) = served(r, pod).await? else { return Ok(None) };
    // A server that does not say has the default scheduler.
    let may_run = matches!(scheduler, "" | "default-scheduler") && running.is_empty();
    if may_run || running.iter().any(|name| name == scheduler) {
        return Ok(None);
    }
    let pods = r.list("v1", "", "pods").await?;
    let acted = |p: &&Value| !text(p, "/spec/nodeName").is_empty() || condition(p, "PodScheduled").is_some();
    let scheduled = pods.iter().filter(|p| condition(p, "PodScheduled").is_some());
    let mut known: Vec<String> = scheduled.map(|p| text(p, "/spec/schedulerName").to_owned()).collect();
    known.retain(|name| !name.is_empty() && name != scheduler);
    known.sort();
    known.dedup();
    let message = match pods.iter().filter(|p| text(p, "/spec/schedulerName") == scheduler).filter(acted).count() {
        0 => format!("its schedulerName is {scheduler}; no scheduler of this name has acted on any pod"),
        n => format!(
            "its schedulerName is {scheduler}, which has scheduled {n} other pod{} and has not taken this one",
            plural(n)
        ),
    };
    let finding = Finding::new("UnservedScheduler", message);
    let start = format!("start a scheduler named {scheduler}");
    Ok(Some(match (running.is_empty(), known.is_empty()) {
        (false, _) => {
            finding.suggest(format!("create the pod with a scheduler that runs ({}), or {start}", some(&running)))
        }
        (true, false) => {
            let names = some(&known);
            finding.suggest(format!("create the pod with a scheduler that has acted on pods ({names}), or {start}"))
        }
        (true, true) => finding.suggest(start),
    }))
}

/// Why the scheduler has not acted on a pod: it does not run, or does not lead.
async fn absent_scheduler(r: &mut Reader<'_>, pod: &Value, absent: bool) -> Result<Option<Finding>> {
    let now = r.k.now();
    let created = meta::time::parse(text(pod, "/metadata/creationTimestamp"));
    if created.is_some_and(|t| now.as_second() - t.as_second() < SCHEDULER_DELAY) {
        return Ok(Some(Finding::new("New", "the pod was created a moment ago")));
    }
    let lease = r.get("coordination.k8s.io/v1", "kube-system", "leases", "kube-scheduler").await?;
    let message = match lease {
        Read::Found(lease) => {
            let (holder, renewed) = (text(&lease, "/spec/holderIdentity"), text(&lease, "/spec/renewTime"));
            let duration = lease.pointer("/spec/leaseDurationSeconds").and_then(Value::as_i64).unwrap_or(15);
            let age = meta::time::parse(renewed).map_or(i64::MAX, |t| now.as_second() - t.as_second());
            match age > duration {
                true => {
                    format!("the scheduler does not run: its lease was renewed {} ago, by {holder}", ago(renewed, now))
                }
                false => format!("the scheduler that leads is {holder}; it has not decided about the pod yet"),
            }
        }
        _ if absent => {
            "the scheduler of this server does not have the pod in its queue: it is starting, or binds the pod"
                .to_owned()
        }
        _ => "no scheduler has acted on the pod".to_owned(),
    };
    Ok(Some(Finding::new("SchedulerAbsent", message)))
}

async fn preemption(r: &mut Reader<'_>, pod: &Value) -> Result<Option<Finding>> {
    let node = text(pod, "/status/nominatedNodeName");
    if node.is_empty() {
        return Ok(None);
    }
    let on_node = r.select("v1", "", "pods", &format!("fieldSelector=spec.nodeName%3D{}", escaped(node))).await?;
    Ok(pod_pending::preemption(pod, &on_node, r.is_unreadable("pods", "")))
}

/// The claims of devices that do not exist.
async fn device_claims(r: &mut Reader<'_>, pod: &Value) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for claim in list(pod, "/spec/resourceClaims") {
        let of = text(claim, "/name");
        let (plural, name) = match text(claim, "/resourceClaimName") {
            "" => ("resourceclaimtemplates", text(claim, "/resourceClaimTemplateName")),
            name => ("resourceclaims", name),
        };
        if name.is_empty() {
            continue;
        }
        if matches!(r.get("resource.k8s.io/v1", namespace(pod), plural, name).await?, Read::Missing) {
            let kind = if plural == "resourceclaims" { "ResourceClaim" } else { "ResourceClaimTemplate" };
            let about = ObjectName::new("resource.k8s.io/v1", kind, namespace(pod), name);
            findings.push(
                Finding::new("ReferenceNotFound", format!("{kind} {name} does not exist (claim {of})")).about(about),
            );
        }
    }
    Ok(findings)
}

async fn running(r: &mut Reader<'_>, pod: &Value) -> Result<Explanation> {
    let now = r.k.now();
    let node = super::node::of_pod(r, pod).await?;
    let Some((state, mut findings)) = pod_running::containers(pod, now) else {
        return healthy_or_gated(r, pod, node).await;
    };
    // Events supply only what the state of objects does not show.
    let mut needs_events = state == State::NotReady;
    if state == State::Waiting {
        let mut causes = references::missing(r, pod).await?;
        causes.extend(storage::of_pod(r, pod, true).await?);
        needs_events = causes.is_empty() && node.is_none() && findings.iter().all(|f| f.reason == "ContainerCreating");
        findings.extend(causes);
    }
    if state == State::Restarting {
        let probed = |c: &Value| c["livenessProbe"].is_object() || c["startupProbe"].is_object();
        needs_events =
            list(pod, "/spec/containers").iter().any(probed) && findings.iter().any(|f| f.reason == "Restarting");
    }
    if state == State::NotReady {
        findings.extend(pod_running::readiness_gates(pod));
    }
    if needs_events {
        findings.extend(events::latest(r, namespace(pod), uid(pod)).await?);
    }
    findings.extend(blocking_budgets(r, pod).await?);
    let summary = match state {
        State::Waiting => "is waiting: it has a node, and its containers have not started",
        State::Restarting => "is restarting",
        _ => "is not ready",
    };
    Ok(Explanation::new(state, summary).because(node).because(findings))
}

/// The budgets that refuse the eviction of a pod.
async fn blocking_budgets(r: &mut Reader<'_>, pod: &Value) -> Result<Vec<Finding>> {
    let budgets = r.list("policy/v1", namespace(pod), "poddisruptionbudgets").await?;
    if budgets.is_empty() {
        return Ok(Vec::new());
    }
    let pods = r.list("v1", namespace(pod), "pods").await?;
    Ok(eviction::blocking(pod, &budgets, &pods))
}

/// A pod whose containers are ready.
async fn healthy_or_gated(r: &mut Reader<'_>, pod: &Value, node: Option<Finding>) -> Result<Explanation> {
    if list(pod, "/status/containerStatuses").is_empty() {
        let waiting = Finding::new("NotStarted", "the node agent has not reported any container");
        let mut e = Explanation::new(State::Waiting, "is waiting: it has a node, and its containers have not started");
        e.findings.extend(node);
        e.findings.push(waiting);
        e.findings.extend(references::missing(r, pod).await?);
        e.findings.extend(storage::of_pod(r, pod, true).await?);
        e.findings.extend(events::latest(r, namespace(pod), uid(pod)).await?);
        return Ok(e);
    }
    if !has_condition(pod, "Ready", "True") {
        let mut findings: Vec<Finding> = node.into_iter().chain(pod_running::readiness_gates(pod)).collect();
        if findings.is_empty() {
            let ready = condition(pod, "Ready").map(|c| [text(c, "/reason"), text(c, "/message")].join(": "));
            let ready = ready.unwrap_or_else(|| "the condition Ready is missing".into());
            findings.push(Finding::new("NotReady", format!("its containers are ready, and the pod is not: {ready}")));
        }
        return Ok(Explanation::new(State::NotReady, "is not ready").because(findings));
    }
    let blocking = blocking_budgets(r, pod).await?;
    let summary = match blocking.is_empty() {
        true => "is healthy",
        false => "is healthy, and cannot be evicted now",
    };
    let e = Explanation::new(State::Healthy, summary).because(node).because(blocking);
    Ok(e.because(pod_running::past_restarts(pod, r.k.now())))
}
