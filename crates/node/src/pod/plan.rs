//! The next actions for a pod: a pure function of its specification and its containers.
//!
//! Follows kubelet's `computePodActions`: init containers one after the other, sidecars (init containers that restart always) before
//! what comes after them, app containers together, each restarted by its policy. Invariant: the plan depends on the present only, so
//! that a new agent continues where the old one stopped.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container as Spec, EphemeralContainer, Pod, PodSpec};
use runtime::{Container, ContainerState};

use super::backoff::{Backoffs, key_of};
use super::probes::Health;
use crate::resources::is_sidecar;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sandbox {
    Absent,
    /// Its shim is gone, and its containers with it.
    Dead,
    Ready,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    Init,
    Sidecar,
    App,
    Ephemeral,
}

/// The observed state of a pod.
pub struct Seen<'a> {
    pub sandbox: Sandbox,
    /// Id of the sandbox; containers of other sandboxes are old.
    pub sandbox_id: &'a str,
    /// The newest container of each name.
    pub newest: &'a BTreeMap<String, Container>,
    /// The containers before them.
    pub previous: &'a BTreeMap<String, Container>,
    /// Results of the probes of running containers, by name.
    pub health: &'a BTreeMap<String, Health>,
    pub backoffs: &'a Backoffs,
    /// Ids of the containers that the agent has killed so that they start again.
    pub killed: &'a BTreeSet<String>,
    pub now: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    pub name: String,
    pub role: Role,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kill {
    pub name: String,
    pub id: String,
    /// The message of the `Killing` event.
    pub message: String,
    /// Instead of the pod's grace period, from the probe that failed.
    pub grace: Option<i64>,
}

/// The actions, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub kill: Vec<Kill>,
    pub new_sandbox: bool,
    pub start: Vec<Start>,
    /// Containers that wait for their back-off, with its delay.
    pub backing_off: Vec<(String, Duration)>,
    /// All containers of the pod are about to start again, because of a restart rule.
    pub restarts_all: bool,
    /// The pod has finished: stop sidecars and the sandbox, keep the records.
    pub finished: bool,
    /// Plan again after this time, even without a change.
    pub wake: Option<Duration>,
}

/// Whether a container that ended with this code starts again.
pub fn restarts(pod: &Pod, c: &Spec, exit_code: i32) -> bool {
    let policy = match c.restart_policy.as_deref() {
        Some(own) => own,
        None => pod.spec.as_ref().and_then(|s| s.restart_policy.as_deref()).unwrap_or("Always"),
    };
    if let Some("Restart" | RESTART_ALL) = restart_rule(c, exit_code) {
        return true;
    }
    match policy {
        "Never" => false,
        "OnFailure" => exit_code != 0,
        _ => true,
    }
}

/// The action of the first restart rule of a container that matches an exit code.
fn restart_rule(c: &Spec, exit_code: i32) -> Option<&str> {
    let rule = c.restart_policy_rules.iter().flatten().find(|rule| {
        let Some(codes) = &rule.exit_codes else { return false };
        let has = codes.values.iter().flatten().any(|v| *v == exit_code);
        has == (codes.operator == "In")
    });
    rule.map(|r| r.action.as_str())
}

/// The action of restart rules that restarts all containers of the pod.
const RESTART_ALL: &str = "RestartAllContainers";

/// Whether a restart rule of a container may restart all containers of the pod.
pub fn may_restart_all(pod: &Pod) -> bool {
    let containers = pod.spec.iter().flat_map(|s| s.init_containers.iter().flatten().chain(&s.containers));
    containers.flat_map(|c| c.restart_policy_rules.iter().flatten()).any(|rule| rule.action == RESTART_ALL)
}

/// When the last of these containers ended by whose restart rules all containers of the pod start again. Older containers are stale:
/// they are stopped, and replaced in the order of a new pod.
pub fn restart_all_at<'a>(
    pod: &Pod,
    containers: impl Iterator<Item = &'a Container>,
    killed: &BTreeSet<String>,
) -> Option<runtime::Timestamp> {
    if !may_restart_all(pod) {
        return None;
    }
    let spec = pod.spec.as_ref()?;
    let find = |name: &str| spec.init_containers.iter().flatten().chain(&spec.containers).find(|c| c.name == name);
    let ended = containers.filter(|c| c.state == ContainerState::Exited && !killed.contains(&c.id));
    let triggers = ended.filter(|c| {
        let rule = find(&c.name).zip(c.exit_code).and_then(|(spec, code)| restart_rule(spec, code));
        rule == Some(RESTART_ALL)
    });
    triggers.filter_map(|c| c.finished_at).max()
}

/// The exit code of a container that the agent has killed. Its program may have exited with 0 on the signal, but has not succeeded.
pub const KILLED: i32 = 137;

/// The exit code of a container that has ended.
fn exit_code(c: &Container, killed: &BTreeSet<String>) -> Option<i32> {
    match c.state {
        ContainerState::Exited | ContainerState::Unknown if killed.contains(&c.id) => Some(KILLED),
        ContainerState::Exited => Some(c.exit_code.unwrap_or(128)),
        ContainerState::Unknown => Some(c.exit_code.unwrap_or(137)),
        ContainerState::Created | ContainerState::Running => None,
    }
}

/// When a container ended, for its back-off.
pub fn ended_at(c: &Container) -> Timestamp {
    crate::instant(c.finished_at.unwrap_or(c.created_at))
}

struct Planner<'a> {
    pod: &'a Pod,
    seen: &'a Seen<'a>,
    /// Containers that were created before are stale.
    restart_all_at: Option<runtime::Timestamp>,
    plan: Plan,
}

/// The plan for a pod that is to run. Pods that are being deleted or have ended are not planned: they are torn down.
pub fn plan(pod: &Pod, seen: &Seen<'_>) -> Plan {
    let known = seen.newest.values().chain(seen.previous.values());
    let restart_all_at = restart_all_at(pod, known, seen.killed);
    let mut planner = Planner { pod, seen, restart_all_at, plan: Plan::default() };
    planner.run();
    planner.plan
}

impl Planner<'_> {
    fn ended(&self, c: &Container) -> Option<i32> {
        exit_code(c, self.seen.killed)
    }

    /// The container of that name, if it belongs to the present sandbox and is not stale.
    fn present(&self, name: &str) -> Option<&Container> {
        let is_present = |c: &&Container| c.pod == self.seen.sandbox_id && self.seen.sandbox == Sandbox::Ready;
        self.seen.newest.get(name).filter(is_present).filter(|c| !self.is_stale(c))
    }

    /// Whether a restart rule requires a new container in place of this one.
    fn is_stale(&self, c: &Container) -> bool {
        self.restart_all_at.is_some_and(|at| c.created_at < at)
    }

    /// Kills stale containers. Returns whether there are any that run.
    fn kill_stale(&mut self, spec: &PodSpec) -> bool {
        for c in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
            let Some(stale) = self.seen.newest.get(&c.name).filter(|s| self.is_stale(s)) else { continue };
            self.plan.restarts_all |= self.ended(stale).is_some();
            if stale.state == ContainerState::Running && stale.pod == self.seen.sandbox_id {
                let (name, id) = (c.name.clone(), stale.id.clone());
                self.plan.kill.push(Kill { name, id, message: "killing".into(), grace: Some(0) });
            }
        }
        !self.plan.kill.is_empty()
    }

    fn run(&mut self) {
        let Some(spec) = &self.pod.spec else { return };
        let policy = spec.restart_policy.as_deref().unwrap_or("Always");
        if self.seen.sandbox != Sandbox::Ready {
            let ran = |c: &Spec| self.seen.newest.contains_key(&c.name);
            let over = |c: &Spec| {
                self.seen
                    .newest
                    .get(&c.name)
                    .and_then(|c| self.ended(c))
                    .is_some_and(|code| !restarts(self.pod, c, code))
            };
            let any = spec.containers.iter().any(ran);
            // A pod whose containers do not restart gets no new sandbox.
            if any && (policy == "Never" || spec.containers.iter().all(over)) {
                self.plan.finished = true;
                return;
            }
            let failed_init = |c: &Spec| {
                let last = self.seen.newest.get(&c.name).filter(|last| !is_sidecar(c) && !self.is_stale(last));
                last.and_then(|c| self.ended(c)).is_some_and(|code| code != 0 && !restarts(self.pod, c, code))
            };
            if spec.init_containers.iter().flatten().any(failed_init) {
                self.plan.finished = true;
                return;
            }
            self.plan.new_sandbox = true;
        }
        if self.seen.sandbox == Sandbox::Ready && self.kill_stale(spec) {
            return;
        }
        if self.seen.sandbox == Sandbox::Ready {
            // They do not wait for init containers.
            self.ephemeral(spec.ephemeral_containers.as_deref().unwrap_or_default());
        }
        let begun = spec.containers.iter().any(|c| self.present(&c.name).is_some());
        if !self.init(spec.init_containers.as_deref().unwrap_or_default(), begun) {
            return;
        }
        let mut over = !spec.containers.is_empty();
        for c in &spec.containers {
            over &= self.keep_running(c, Role::App);
        }
        if over {
            self.plan.start.clear();
            self.plan.finished = true;
        }
    }

    /// Whether the app containers may run.
    fn init(&mut self, containers: &[Spec], begun: bool) -> bool {
        for c in containers {
            if is_sidecar(c) {
                self.keep_running(c, Role::Sidecar);
                let up = self.present(&c.name).is_some_and(|s| s.state == ContainerState::Running)
                    && self.seen.health.get(&c.name).is_some_and(|h| h.started);
                if !up && !begun {
                    return false;
                }
                continue;
            }
            if begun {
                continue;
            }
            let state = self.present(&c.name).map(|s| (s.state, self.ended(s)));
            match state {
                None => {
                    // In a new sandbox an init container that succeeded runs again.
                    self.start(c, Role::Init);
                    return false;
                }
                Some((_, Some(0))) => {}
                Some((_, Some(code))) if !restarts(self.pod, c, code) => {
                    self.plan.start.clear();
                    self.plan.finished = true;
                    return false;
                }
                Some((_, Some(_))) => {
                    self.start(c, Role::Init);
                    return false;
                }
                Some((ContainerState::Created, None)) => {
                    self.start(c, Role::Init);
                    return false;
                }
                Some(_) => return false,
            }
        }
        true
    }

    /// Starts, restarts or kills one container as needed. Returns whether it has ended for good.
    fn keep_running(&mut self, c: &Spec, role: Role) -> bool {
        let Some(status) = self.present(&c.name) else {
            let last = self.seen.newest.get(&c.name).filter(|c| !self.is_stale(c)).and_then(|c| self.ended(c));
            if let Some(code) = last
                && !restarts(self.pod, c, code)
            {
                return true;
            }
            self.start(c, role);
            return false;
        };
        match self.ended(status) {
            Some(code) => {
                // A container that was killed because its image changed starts again in any case.
                let is_replaced = self.seen.killed.contains(&status.id) && is_changed(c, status);
                if !is_replaced && !restarts(self.pod, c, code) {
                    return true;
                }
                self.start(c, role);
            }
            // An earlier agent ended between creating and starting it.
            None if status.state == ContainerState::Created => self.start(c, role),
            None if is_changed(c, status) => {
                let message = format!("Container {} definition changed, will be restarted", c.name);
                self.plan.kill.push(Kill { name: c.name.clone(), id: status.id.clone(), message, grace: None });
            }
            None => {
                let id = status.id.clone();
                if let Some(failed) = self.seen.health.get(&c.name).and_then(|h| h.failed) {
                    let what = failed.name();
                    let again = restarts(self.pod, c, KILLED);
                    let then = if again { ", will be restarted" } else { "" };
                    let message = format!("Container {} failed {what} probe{then}", c.name);
                    let probe = match failed {
                        super::probes::Kind::Startup => &c.startup_probe,
                        _ => &c.liveness_probe,
                    };
                    let grace = probe.as_ref().and_then(|p| p.termination_grace_period_seconds);
                    self.plan.kill.push(Kill { name: c.name.clone(), id, message, grace });
                }
            }
        }
        false
    }

    fn ephemeral(&mut self, containers: &[EphemeralContainer]) {
        for c in containers {
            // An earlier agent may have ended between creating and starting it.
            let waits = self.present(&c.name).is_some_and(|s| s.state == ContainerState::Created);
            if waits || !self.seen.newest.contains_key(&c.name) {
                self.plan.start.push(Start { name: c.name.clone(), role: Role::Ephemeral });
            }
        }
    }

    fn start(&mut self, c: &Spec, role: Role) {
        // As upstream, a restart of the whole pod does not back off.
        let last = self.seen.newest.get(&c.name).filter(|s| self.ended(s).is_some() && !self.is_stale(s));
        if let Some(last) = last
            && let Some((delay, left)) =
                self.seen.backoffs.waiting(&key_of(&c.name, c.image.as_deref()), ended_at(last), self.seen.now)
        {
            self.plan.backing_off.push((c.name.clone(), delay));
            self.plan.wake = Some(self.plan.wake.map_or(left, |w| w.min(left)));
            return;
        }
        self.plan.start.push(Start { name: c.name.clone(), role });
    }
}

/// Whether the specification names another image than that of the container.
fn is_changed(c: &Spec, container: &Container) -> bool {
    c.image.as_deref().unwrap_or_default() != container.image
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
