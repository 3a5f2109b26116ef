//! Pods: where they are, whether they serve, and why they go.

use super::Recorder;
use crate::expectations::Expectation;
use crate::timeline::{Event, Kind, Subject};
use crate::trace::ObjectChange;
use crate::workload::{controller, is_deleting, is_terminal, true_condition, uid};
use meta::Value;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// What is known of a pod.
#[derive(Clone, Debug, Default)]
pub(super) struct Pod {
    /// Its namespace and name.
    pub key: (String, String),
    pub workload: Option<Subject>,
    pub node: String,
    pub labels: Arc<Value>,
    pub created: Duration,
    running: bool,
    ready: bool,
    leaving: bool,
    /// Its machine went down, and its containers have not started since.
    pub dead: bool,
    /// The message of the scheduler.
    pub unschedulable: String,
}

impl Pod {
    /// Whether it counts as available.
    pub fn serves(&self) -> bool {
        self.ready && !self.leaving && !self.dead
    }

    pub fn is_pending(&self) -> bool {
        !self.running && !self.leaving
    }

    /// The workload, or the pod if it has none.
    pub fn subject(&self) -> Subject {
        self.workload.clone().unwrap_or_else(|| Subject::new("Pod", &self.key.0, &self.key.1))
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

impl Recorder {
    pub(super) fn pod_changed(&mut self, at: Duration, change: &ObjectChange) {
        let Some(object) = change.new.as_ref().or(change.old.as_ref()) else { return };
        let id = uid(object).to_owned();
        // A pod of the same name may have been replaced in one commit.
        if let Some(old) = change.old.as_ref().filter(|old| uid(old) != id) {
            self.pod_gone(at, uid(old), old);
        }
        if change.new.is_none() {
            return self.pod_gone(at, &id, object);
        }
        let before = match self.pods.get(&id) {
            Some(pod) => pod.clone(),
            None => Pod {
                key: (change.key.namespace.to_string(), change.key.name.to_string()),
                workload: self.workload_of(object),
                labels: Arc::new(object["metadata"]["labels"].clone()),
                created: at,
                ..Pod::default()
            },
        };
        let phase = text(&object["status"]["phase"]);
        let ended = is_terminal(object);
        let scheduled =
            object["status"]["conditions"].as_array().into_iter().flatten().find(|c| c["type"] == "PodScheduled");
        let unschedulable = scheduled.filter(|c| c["status"] == "False" && c["reason"] == "Unschedulable");
        let after = Pod {
            node: text(&object["spec"]["nodeName"]).to_owned(),
            running: before.running || phase == "Running" || ended,
            ready: true_condition(object, "Ready").is_some(),
            leaving: is_deleting(object) || ended,
            unschedulable: unschedulable.map(|c| text(&c["message"]).to_owned()).unwrap_or_default(),
            ..before.clone()
        };
        self.set_pod(&id, Some(after.clone()));
        self.pod_events(at, &before, &after, object, ended);
    }

    fn pod_events(&mut self, at: Duration, before: &Pod, after: &Pod, object: &Value, ended: bool) {
        let (subject, name, node) = (after.subject(), &*after.key.1, &*after.node);
        let event =
            |node, text: &str, cause| Event { object: subject.clone(), node, text: text.to_owned(), cause, pod: name };
        if after.leaving && !before.leaving {
            let (kind, cause) = if ended && !is_deleting(object) {
                let message = text(&object["status"]["phase"]).to_lowercase();
                (Kind::Ended, Some(message))
            } else {
                self.reason_of_deletion(after, object)
            };
            self.lost(after, before.serves(), kind, cause.as_ref());
            self.event(at, kind, event(node, "", cause));
            return;
        }
        if after.leaving {
            return;
        }
        if after.unschedulable != before.unschedulable && !after.unschedulable.is_empty() {
            self.event(at, Kind::Pending, event("", &after.unschedulable, None));
        }
        if after.running && !before.running {
            self.event(at, Kind::Started, event("", "", None));
            self.check_pending(at, after);
        }
        if after.ready && !before.ready {
            self.event(at, Kind::Ready, event("", "", None));
        }
        if before.ready && !after.ready {
            let silent = self.nodes.get(node).is_some_and(|n| n.down || !n.ready);
            let cause = silent.then(|| format!("node {node} does not answer"));
            self.lost(after, before.serves(), Kind::NotReady, cause.as_ref());
            self.event(at, Kind::NotReady, event(node, "", cause));
        }
    }

    fn pod_gone(&mut self, at: Duration, id: &str, object: &Value) {
        let Some(pod) = self.set_pod(id, None) else { return };
        if pod.leaving {
            return;
        }
        let (kind, cause) = self.reason_of_deletion(&pod, object);
        self.lost(&pod, pod.serves(), kind, cause.as_ref());
        self.check_pending(at, &pod);
        let (object, text) = (pod.subject(), String::new());
        self.event(at, kind, Event { object, node: &pod.node, text, cause, pod: &pod.key.1 });
    }

    /// The machine of a node stops: its pods serve no more.
    pub(super) fn node_lost(&mut self, at: Duration, node: &str) {
        let mut lost: Vec<(String, Pod)> = self
            .pods
            .iter()
            .filter(|(_, p)| p.node == node && p.running && !p.leaving)
            .map(|(u, p)| (u.clone(), p.clone()))
            .collect();
        lost.sort_by(|a, b| a.1.key.cmp(&b.1.key));
        let cause = format!("the machine of node {node} is down");
        let ids: BTreeSet<&String> = lost.iter().map(|(id, _)| id).collect();
        self.touch_services(|pod| ids.contains(pod));
        for (id, pod) in lost {
            self.lost(&pod, pod.serves(), Kind::Lost, Some(&cause));
            if pod.serves() {
                self.machine_changed(&pod, 1);
            }
            self.set_pod(&id, Some(Pod { dead: true, ..pod.clone() }));
            let (object, text) = (pod.subject(), String::new());
            self.event(at, Kind::Lost, Event { object, node, text, cause: Some(cause.clone()), pod: &pod.key.1 });
        }
    }

    /// Remembers why a workload lost a pod.
    fn lost(&mut self, pod: &Pod, served: bool, kind: Kind, cause: Option<&String>) {
        let Some(workload) = pod.workload.as_ref().filter(|_| served).and_then(|w| self.workloads.get_mut(w)) else {
            return;
        };
        let why = cause.map(|c| format!(": {c}")).unwrap_or_default();
        workload.last_loss = Some(format!("pod {} {}{why}", pod.key.1, kind.label()));
    }

    /// Why a pod is deleted.
    fn reason_of_deletion(&self, pod: &Pod, object: &Value) -> (Kind, Option<String>) {
        let target = true_condition(object, "DisruptionTarget").map(|c| (text(&c["reason"]), text(&c["message"])));
        let silent = self.nodes.get(&pod.node).is_none_or(|n| n.down || !n.ready);
        match target {
            Some(("EvictionByEvictionAPI", _)) => {
                let drained = self.drains.iter().any(|d| d.node == pod.node && d.ended.is_none());
                let by = if drained {
                    format!("drain of node {}", pod.node)
                } else {
                    "an eviction was requested".to_owned()
                };
                return (Kind::Evicted, Some(by));
            }
            Some(("PreemptionByScheduler", message)) => return (Kind::Preempted, Some(message.to_owned())),
            Some((_, message)) if silent => {
                return (Kind::Deleted, Some(format!("node {} does not answer ({message})", pod.node)));
            }
            Some((_, message)) => return (Kind::Deleted, Some(message.to_owned())),
            None => {}
        }
        let Some(workload) = &pod.workload else { return (Kind::Deleted, None) };
        (Kind::Deleted, self.workloads.get(workload).and_then(|w| w.reason(workload)))
    }

    /// Checks how long a pod was pending.
    fn check_pending(&mut self, at: Duration, pod: &Pod) {
        if !self.begun || at <= pod.created {
            return;
        }
        for expectation in self.expectations.clone() {
            let Expectation::Pending { at_most } = &expectation else { continue };
            let waited = at - pod.created;
            if waited > at_most.0 {
                let problem = format!("pod {} was pending for {}", pod.key.1, crate::report::duration(waited));
                let silent = self.nodes.get(&pod.node).is_some_and(|n| n.down || !n.ready);
                let cause = match silent {
                    true => Some(format!("node {} does not answer", pod.node)),
                    false => (!pod.unschedulable.is_empty()).then(|| pod.unschedulable.clone()),
                };
                let since = pod.created;
                self.violations.add(since, at, &expectation.to_string(), pod.subject().to_string(), problem, cause);
            }
        }
    }

    pub(super) fn finish_pods(&mut self, at: Duration) {
        let mut pending: Vec<Pod> = self.pods.values().filter(|p| p.is_pending()).cloned().collect();
        pending.sort_by(|a, b| a.key.cmp(&b.key));
        pending.iter().for_each(|pod| self.check_pending(at, pod));
    }

    /// The workload of a pod.
    fn workload_of(&self, pod: &Value) -> Option<Subject> {
        let owner = controller(pod)?;
        if let Some(deployment) = self.owners.get(text(&owner["uid"])) {
            return Some(deployment.clone());
        }
        Some(Subject::new(text(&owner["kind"]), text(&pod["metadata"]["namespace"]), text(&owner["name"])))
    }

    /// Replaces what is known of a pod, and counts those that serve. Returns what was known.
    fn set_pod(&mut self, id: &str, pod: Option<Pod>) -> Option<Pod> {
        let workload = |pod: &Option<Pod>| pod.as_ref().filter(|p| p.serves()).and_then(|p| p.workload.clone());
        let after = workload(&pod);
        self.touched.extend(pod.as_ref().and_then(|p| p.workload.clone()));
        let old = match pod {
            Some(pod) => self.pods.insert(id.to_owned(), pod),
            None => self.pods.remove(id),
        };
        self.touched.extend(old.as_ref().and_then(|p| p.workload.clone()));
        if let Some(workload) = workload(&old) {
            *self.serving.entry(workload).or_default() -= 1;
        }
        if let Some(workload) = after {
            *self.serving.entry(workload).or_default() += 1;
        }
        old
    }

    /// The containers of a pod run.
    pub(super) fn containers_started(&mut self, id: &str) {
        let Some(pod) = self.pods.get(id).filter(|p| p.dead).cloned() else { return };
        let pod = Pod { dead: false, ..pod };
        if pod.serves() {
            self.machine_changed(&pod, -1);
        }
        self.set_pod(id, Some(pod));
        self.touch_services(|other| other == id);
    }

    /// Whether the containers of a pod can run.
    pub(super) fn is_alive(&self, id: &str) -> bool {
        self.pods.get(id).is_none_or(|p| !p.dead)
    }

    /// The budget that protects a pod.
    pub(super) fn budget_of(&self, namespace: &str, pod: &str) -> Option<String> {
        let pod = self.pods.values().find(|p| p.key.0 == namespace && p.key.1 == pod)?;
        let selects = |s: &meta::LabelSelector| s.matches(|key| pod.labels[key].as_str());
        let mut budgets = self.budgets.iter().filter(|(s, b)| s.namespace == namespace && selects(&b.selector));
        budgets.next().map(|(subject, _)| subject.to_string())
    }

    /// How many selected pods the API shows as ready although their machine is down.
    pub(super) fn unnoticed(&self, namespace: &str, selector: &meta::LabelSelector) -> i64 {
        let unnoticed = |p: &&Pod| p.key.0 == namespace && p.dead && p.ready && !p.leaving;
        let selected = |p: &&Pod| selector.matches(|key| p.labels[key].as_str());
        self.pods.values().filter(unnoticed).filter(selected).count() as i64
    }

    /// The workloads of the pods that a selector selects.
    pub(super) fn protected(&self, namespace: &str, selector: &meta::LabelSelector) -> BTreeSet<Subject> {
        let selected = |p: &&Pod| p.key.0 == namespace && selector.matches(|key| p.labels[key].as_str());
        self.pods.values().filter(selected).filter_map(|p| p.workload.clone()).collect()
    }
}
