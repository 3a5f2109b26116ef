//! What administrators do in several requests: drains, upgrades of nodes, and rollouts, as steps that take time.
//!
//! A drain evicts as `kubectl drain --ignore-daemonsets --delete-emptydir-data` does. What fails is written to the journal, and the run goes on.

use crate::control_plane::ControlPlane;
use crate::journal::{DrainEnd, Journal, Note};
use crate::name::ObjectName;
use crate::node_spec::node_info;
use crate::scenario::Step;
use crate::span::Span;
use crate::workload;
use client::{Api, DeleteOptions, ListOptions, Patch, WriteOptions};
use meta::{LabelSelector, Object, Value};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

/// How often refused evictions are repeated.
const EVICT_AGAIN: Duration = Duration::from_secs(5);
/// How often the end of something is checked.
const POLL: Duration = Duration::from_secs(1);
/// How long a node has to become ready after its upgrade.
const NODE_READY: Duration = Duration::from_secs(600);
const MIRROR: &str = "kubernetes.io/config.mirror";
/// The annotation with the controller of a copied pod that was not copied.
pub(crate) const FOREIGN_OWNER: &str = "sim.kemudi/owner";

/// A drain of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Drain {
    pub node: String,
    /// When it gives up.
    #[serde(default = "timeout")]
    pub timeout: Span,
    /// The grace period of evicted pods; none: each pod's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_period: Option<Span>,
    /// Also evicts pods without a controller, which nothing creates again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
    /// Later steps happen meanwhile.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub background: bool,
}

impl Drain {
    /// A drain of all pods, while later steps happen.
    pub fn in_background(node: &str) -> Self {
        Self {
            node: node.into(),
            timeout: Span(Duration::from_secs(86_400)),
            grace_period: None,
            force: true,
            background: true,
        }
    }
}

/// An upgrade of nodes: each is drained, is down for a while, and comes back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UpgradeNodes {
    /// The nodes, in order. Empty: those that `selector` selects, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// How many are drained or down at a time.
    #[serde(default = "one")]
    pub max_unavailable: u32,
    /// How long the machine of a node is down.
    #[serde(default = "down")]
    pub down: Span,
    /// The version of the kubelet afterwards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// When a drain gives up, which ends the upgrade.
    #[serde(default = "timeout")]
    pub timeout: Span,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_period: Option<Span>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub background: bool,
}

/// A rollout of a Deployment, StatefulSet or DaemonSet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rollout {
    pub object: ObjectName,
    /// The new image; none: the same pods are started again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The container that gets the image; none: the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// How long the step waits for its end.
    #[serde(default = "timeout")]
    pub timeout: Span,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub background: bool,
}

/// The timeout of a drain that has none.
const NO_LIMIT: std::time::Duration = std::time::Duration::from_secs(365 * 86_400);

fn timeout() -> Span {
    Span(Duration::from_secs(600))
}

fn down() -> Span {
    Span(Duration::from_secs(180))
}

fn one() -> u32 {
    1
}

impl UpgradeNodes {
    /// The field and the problem of a value that makes no sense.
    pub(crate) fn problem(&self) -> Option<(&'static str, String)> {
        if self.max_unavailable == 0 {
            return Some(("upgradeNodes.maxUnavailable", "must be at least 1".into()));
        }
        match &self.selector {
            Some(text) if text.trim().is_empty() => Some(("upgradeNodes.selector", "must not be empty".into())),
            Some(_) if !self.nodes.is_empty() => Some(("upgradeNodes", "must have either nodes or selector".into())),
            Some(text) => LabelSelector::parse(text).err().map(|e| ("upgradeNodes.selector", e)),
            None if self.nodes.is_empty() => Some(("upgradeNodes", "must have either nodes or selector".into())),
            None => None,
        }
    }
}

impl Rollout {
    /// The problem of a rollout that can never happen.
    pub(crate) fn problem(&self) -> Option<String> {
        if !matches!(&*self.object.kind, "Deployment" | "StatefulSet" | "DaemonSet") {
            return Some(format!("{} has no rollouts", self.object.kind));
        }
        (self.container.is_some() && self.image.is_none()).then(|| "container needs an image".into())
    }
}

/// Starts a step that takes time. Returns its task, and whether later steps wait for it; none for other steps.
pub(crate) fn start(plane: &Arc<ControlPlane>, journal: &Arc<Journal>, step: &Step) -> Option<(JoinHandle<()>, bool)> {
    let operator = Operator { plane: plane.clone(), journal: journal.clone() };
    Some(match step.clone() {
        Step::Drain(d) => {
            let wait = !d.background;
            let task = async move {
                if let Err(problem) = operator.drain(&d).await {
                    operator.journal.write(Note::Failed(problem));
                }
            };
            (tokio::spawn(task), wait)
        }
        Step::UpgradeNodes(u) => {
            let wait = !u.background;
            (tokio::spawn(async move { operator.upgrade(&u).await }), wait)
        }
        Step::Rollout(r) => {
            let wait = !r.background;
            let task = async move {
                if let Err(problem) = operator.roll_out(&r).await {
                    operator.journal.write(Note::Failed(problem));
                }
            };
            (tokio::spawn(task), wait)
        }
        _ => return None,
    })
}

#[derive(Clone)]
struct Operator {
    plane: Arc<ControlPlane>,
    journal: Arc<Journal>,
}

/// How a pod takes part in a drain.
#[derive(Debug, PartialEq, Eq)]
enum Part {
    Stays,
    Evicted,
    Refused,
}

fn part(pod: &Value, force: bool) -> Part {
    let meta = &pod["metadata"];
    let owner = workload::controller(pod);
    let ended = workload::is_terminal(pod);
    if !meta["annotations"][MIRROR].is_null() || !ended && owner.is_some_and(|o| o["kind"] == "DaemonSet") {
        return Part::Stays;
    }
    let managed = owner.is_some() || !meta["annotations"][FOREIGN_OWNER].is_null();
    if managed || force || ended { Part::Evicted } else { Part::Refused }
}

impl Operator {
    fn nodes(&self) -> Result<Api<Object>, String> {
        self.plane.api(&ObjectName::new("v1", "Node", "").gvk(), "").ok_or_else(|| "there are no nodes".into())
    }

    async fn set_unschedulable(&self, node: &str, unschedulable: bool) -> Result<(), String> {
        let patch = Patch::Merge(json!({"spec": {"unschedulable": unschedulable}}));
        let patched = self.nodes()?.patch(node, &WriteOptions::default(), &patch).await;
        patched.map(drop).map_err(|e| format!("cordon {node}: {e}"))
    }

    async fn is_cordoned(&self, node: &str) -> bool {
        let Ok(nodes) = self.nodes() else { return false };
        nodes.get_opt(node).await.ok().flatten().is_some_and(|n| n.at(&["spec", "unschedulable"]) == Some(&true.into()))
    }

    /// The pods of a node that a drain evicts, or the names of those that forbid it.
    async fn pods(&self, d: &Drain) -> Result<Vec<Object>, String> {
        let resource = self.plane.resource(&ObjectName::new("v1", "Pod", "").gvk()).ok_or("there are no pods")?;
        let options = ListOptions { field_selector: format!("spec.nodeName={}", d.node), ..ListOptions::default() };
        let all =
            self.plane.client.dynamic(&resource).list_all(&options).await.map_err(|e| format!("list pods: {e}"))?;
        let (mut evicted, mut refused) = (Vec::new(), Vec::new());
        for pod in all.items {
            match part(&pod.clone().into_value(), d.force) {
                Part::Stays => {}
                Part::Evicted => evicted.push(pod),
                Part::Refused => refused.push(format!("{}/{}", pod.namespace(), pod.name())),
            }
        }
        if refused.is_empty() {
            return Ok(evicted);
        }
        Err(format!("cannot delete Pods that declare no controller (use force to override): {}", refused.join(", ")))
    }

    /// Drains a node. Errors with what is left.
    async fn drain(&self, d: &Drain) -> Result<(), String> {
        self.set_unschedulable(&d.node, true).await?;
        self.journal.write(Note::DrainBegan(d.node.clone()));
        let end = self.evict_all(d).await;
        self.journal.write(Note::DrainEnded(d.node.clone(), end.clone()));
        match end {
            DrainEnd::Done => Ok(()),
            DrainEnd::Refused(why) => Err(format!("drain of {}: {why}", d.node)),
            DrainEnd::TimedOut { left } => {
                let pods = if left == 1 { "1 pod is".to_owned() } else { format!("{left} pods are") };
                Err(format!("drain of {} did not end within {}: {pods} left", d.node, d.timeout))
            }
        }
    }

    async fn evict_all(&self, d: &Drain) -> DrainEnd {
        // As in kubectl, zero is no limit.
        let timeout = if d.timeout.0.is_zero() { NO_LIMIT } else { d.timeout.0 };
        let end = Instant::now() + timeout;
        loop {
            let left = match self.pods(d).await {
                Ok(left) if left.is_empty() => return DrainEnd::Done,
                Ok(left) => left,
                Err(why) => return DrainEnd::Refused(why),
            };
            let mut refused = false;
            for pod in left.iter().filter(|p| !p.is_deleting()) {
                refused |= !self.evict(d, pod).await;
            }
            if Instant::now() >= end {
                return DrainEnd::TimedOut { left: left.len() };
            }
            let pause = if refused { EVICT_AGAIN } else { POLL };
            tokio::time::sleep(pause.min(end - Instant::now())).await;
            // Somebody stopped it.
            if !self.is_cordoned(&d.node).await {
                return DrainEnd::Done;
            }
        }
    }

    /// Evicts a pod. False if it must be tried again.
    async fn evict(&self, d: &Drain, pod: &Object) -> bool {
        let Some(api) = self.plane.api(&ObjectName::new("v1", "Pod", "").gvk(), pod.namespace()) else { return true };
        let mut options = DeleteOptions::uid(pod.uid());
        options.grace_period_seconds = d.grace_period.and_then(|g| i64::try_from(g.0.as_secs()).ok());
        let error = match api.evict(pod.name(), &options).await {
            Ok(_) => return true,
            // It is gone, or another pod has its name.
            Err(e) if e.is_not_found() || e.is_conflict() => return true,
            Err(e) => e,
        };
        let causes = error.status().and_then(|s| s.details.as_ref()).map(|d| &d.causes);
        let cause = causes.into_iter().flatten().map(|c| c.message.clone()).next();
        self.journal.write(Note::EvictionRefused {
            node: d.node.clone(),
            namespace: pod.namespace().to_owned(),
            pod: pod.name().to_owned(),
            message: cause.unwrap_or_else(|| error.to_string()),
        });
        false
    }

    async fn upgrade(&self, u: &UpgradeNodes) {
        let nodes = match self.selected(u).await {
            Ok(nodes) => nodes,
            Err(problem) => return self.journal.write(Note::Failed(problem)),
        };
        let total = nodes.len();
        let mut waiting = nodes.into_iter();
        let (mut running, mut done, mut stopped) = (JoinSet::new(), 0, false);
        loop {
            while !stopped && running.len() < u.max_unavailable as usize {
                let Some(node) = waiting.next() else { break };
                let (operator, u) = (self.clone(), u.clone());
                running.spawn(async move { operator.upgrade_node(&node, &u).await });
            }
            match running.join_next().await {
                Some(Ok(Ok(()))) => done += 1,
                Some(Ok(Err(problem))) => {
                    stopped = true;
                    self.journal.write(Note::Failed(format!("the upgrade stops: {problem}")));
                }
                Some(Err(_)) => stopped = true,
                None => break,
            }
        }
        self.journal.write(Note::Remark(format!("{done} of {total} nodes are upgraded")));
    }

    async fn selected(&self, u: &UpgradeNodes) -> Result<Vec<String>, String> {
        let Some(selector) = &u.selector else { return Ok(u.nodes.clone()) };
        let options = ListOptions { label_selector: selector.clone(), ..ListOptions::default() };
        let all = self.nodes()?.list_all(&options).await.map_err(|e| format!("list nodes: {e}"))?;
        if all.items.is_empty() {
            return Err(format!("no node has the labels {selector}"));
        }
        Ok(all.items.iter().map(|n| n.name().to_owned()).collect())
    }

    async fn upgrade_node(&self, node: &str, u: &UpgradeNodes) -> Result<(), String> {
        let before = self.is_cordoned(node).await;
        let (timeout, grace_period, force) = (u.timeout, u.grace_period, u.force);
        self.drain(&Drain { node: node.into(), timeout, grace_period, force, background: false }).await?;
        self.plane.nodes.fail(node);
        tokio::time::sleep(u.down.0).await;
        let nodes = self.nodes()?;
        if let Some(version) = &u.version {
            let patch = Patch::Merge(json!({"status": {"nodeInfo": node_info(version)}}));
            nodes
                .patch_status(node, &WriteOptions::default(), &patch)
                .await
                .map_err(|e| format!("upgrade {node}: {e}"))?;
        }
        self.plane.nodes.heal(node);
        let end = Instant::now() + NODE_READY;
        loop {
            let ready = nodes
                .get_opt(node)
                .await
                .ok()
                .flatten()
                .is_some_and(|n| workload::true_condition(&n.into_value(), "Ready").is_some());
            if ready {
                break;
            }
            if Instant::now() >= end {
                return Err(format!("{node} is not ready after its upgrade"));
            }
            tokio::time::sleep(POLL).await;
        }
        if before { Ok(()) } else { self.set_unschedulable(node, false).await }
    }

    async fn roll_out(&self, r: &Rollout) -> Result<(), String> {
        let failed = |e: client::Error| format!("rollout of {}: {e}", r.object);
        let api = self.plane.api(&r.object.gvk(), &r.object.namespace).ok_or("there is no such kind")?;
        let object = api.get(&r.object.name).await.map_err(failed)?.into_value();
        let patch = match &r.image {
            Some(image) => {
                let mut containers = object["spec"]["template"]["spec"]["containers"].clone();
                let all = containers.as_array_mut().into_iter().flatten();
                let mut chosen = all.filter(|c| r.container.as_ref().is_none_or(|name| c["name"] == name.as_str()));
                let container = chosen.next().ok_or_else(|| format!("{} has no such container", r.object))?;
                container["image"] = image.clone().into();
                json!({"containers": containers})
            }
            None => Value::Null,
        };
        let patch = if patch.is_null() {
            let now = meta::time::format(meta::Clock::now(&*self.plane.cluster.clock));
            json!({"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": now}}})
        } else {
            json!({"spec": patch})
        };
        let patch = Patch::Merge(json!({"spec": {"template": patch}}));
        api.patch(&r.object.name, &WriteOptions::default(), &patch).await.map_err(failed)?;
        if r.background {
            return Ok(());
        }
        let end = Instant::now() + r.timeout.0;
        loop {
            let object = api.get(&r.object.name).await.map_err(failed)?.into_value();
            if workload::is_rolled_out(&object) {
                return Ok(());
            }
            if Instant::now() >= end {
                let status = workload::progress(&object);
                return Err(format!("rollout of {} did not end within {}: {status}", r.object, r.timeout));
            }
            tokio::time::sleep(POLL.min(end - Instant::now())).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_take_part_in_drains_as_with_kubectl() {
        let pod = |annotation: &str, owner: &str, phase: &str| {
            let owners = if owner.is_empty() { json!([]) } else { json!([{"kind": owner, "controller": true}]) };
            json!({"metadata": {"annotations": {annotation: "x"}, "ownerReferences": owners}, "status": {"phase": phase}})
        };
        for (annotation, owner, phase, force, expected) in [
            ("a", "ReplicaSet", "Running", false, Part::Evicted),
            ("a", "DaemonSet", "Running", true, Part::Stays),
            ("a", "DaemonSet", "Failed", false, Part::Evicted),
            (MIRROR, "Node", "Running", true, Part::Stays),
            ("a", "", "Running", false, Part::Refused),
            ("a", "", "Running", true, Part::Evicted),
            ("a", "", "Succeeded", false, Part::Evicted),
            (FOREIGN_OWNER, "", "Running", false, Part::Evicted),
        ] {
            assert_eq!(part(&pod(annotation, owner, phase), force), expected, "{annotation} {owner} {phase} {force}");
        }
    }
}
