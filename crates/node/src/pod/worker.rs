//! The task of one pod.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use client::panics::{Panicked, caught};
use client::{DeleteOptions, Patch, Regarding, Severity, WriteOptions};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container as Spec, Pod, PodStatus};
use runtime::{Container, ContainerState, PodRecords, PodState};
use tokio::sync::{Notify, watch};

use super::backoff::{Backoffs, go_duration};
use super::plan::{self, Plan, Role, Sandbox, Seen};
use super::probes::{Context, Probes};
use super::pulls::Pulls;
use super::resize::{Allocation, Resize};
use super::start::SANDBOX;
use super::status::{self, Details, Facts, Waiting};
use super::stop::Stopped;
use super::{container, messages, security, starts};
use crate::admission::{Admitted, PREEMPTING, Rejection};
use crate::agent::Shared;
use crate::blocking::blocking;
use crate::counts::PodLabels;
use crate::fields::NodeInfo;
use crate::probe::Names;
use crate::{env, volumes};

/// The pod as the API has it; `None` when it is gone from there.
pub type Inbox = watch::Receiver<Option<Arc<Pod>>>;

/// How long a worker sleeps at most; volumes and tokens are refreshed then.
const RESYNC: Duration = Duration::from_secs(60);
/// Doubled with each panic in a row, up to [`RESYNC`].
const AFTER_PANIC: Duration = Duration::from_millis(500);
/// A round that does not come to an end in so many steps reports and goes on later.
const MAX_STEPS: usize = 32;

/// What the runtime has of this pod.
#[derive(Default)]
pub(super) struct Observed {
    pub sandbox: Option<runtime::Pod>,
    /// Every container, oldest first.
    pub all: Vec<Container>,
    pub newest: BTreeMap<String, Container>,
    pub previous: BTreeMap<String, Container>,
}

impl Observed {
    pub fn state(&self) -> Sandbox {
        match &self.sandbox {
            None => Sandbox::Absent,
            Some(s) if s.state == PodState::Ready => Sandbox::Ready,
            Some(_) => Sandbox::Dead,
        }
    }

    pub fn id(&self) -> &str {
        self.sandbox.as_ref().map_or("", |s| s.id.as_str())
    }

    pub fn running(&self) -> impl Iterator<Item = &Container> {
        self.newest.values().filter(|c| matches!(c.state, ContainerState::Running | ContainerState::Created))
    }
}

/// Why a container that should start may not be tried again yet.
pub(super) struct Hold {
    pub until: Timestamp,
    pub delay: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Running,
    /// Nothing runs any more, and nothing will; the records are kept until the pod is deleted.
    Over,
    /// Everything is removed from the node.
    Removed,
}

pub(crate) struct Worker {
    pub(super) shared: Arc<Shared>,
    pub(super) uid: String,
    /// As the API has it.
    pub(super) desired: Arc<Pod>,
    /// With the resources that are allocated to it.
    pub(super) pod: Arc<Pod>,
    pub(super) resize: Resize,
    pub(super) inbox: Inbox,
    pub(super) wake: Arc<Notify>,
    /// The status as the API has it, and its revision.
    pub(super) base: (u64, PodStatus),
    pub(super) waiting: BTreeMap<String, Waiting>,
    pub(super) holds: BTreeMap<String, Hold>,
    pub(super) backoffs: Backoffs,
    pub(super) pulls: Pulls,
    /// The sandbox that was lost last, and when that was seen.
    pub(super) lost: Option<(String, Timestamp)>,
    pub(super) probes: Probes,
    pub(super) messages: BTreeMap<String, String>,
    /// Containers that end from now on are counted: not those that an earlier agent saw.
    counts_ends: bool,
    pub(super) ip: Option<IpAddr>,
    /// Why the agent ended the pod.
    pub(super) failed: Option<(String, String)>,
    pub(super) stage: Stage,
    /// When volumes were made or brought up to date.
    pub(super) refreshed: Option<tokio::time::Instant>,
    /// Labels or annotations changed, which files of volumes may show.
    pub(super) relabelled: bool,
    /// Held while something of the pod is started.
    pub(super) place: Option<starts::Place>,
    /// When the pod was seen first, until it runs; `None` for one that an earlier agent took.
    pub(super) seen: Option<tokio::time::Instant>,
    /// Among the pods of the node, from before anything of it runs until all of it has ended.
    admitted: Option<Admitted>,
    /// Why the node does not take it, until that has been told.
    rejected: Option<Rejection>,
    /// How often in a row the work for the pod panicked.
    panics: u32,
    details: Details,
    /// How often in a row the API did not take the status.
    untold: u32,
}

/// A status that the API did not take.
pub(super) struct Untold {
    /// When to try again.
    retry: Duration,
    too_large: bool,
    /// The same status will not be taken later either.
    for_good: bool,
}

/// Whether the pod is to be ended: it is being deleted, or is gone.
fn is_ending(pod: &Option<Arc<Pod>>) -> bool {
    pod.as_ref().is_none_or(|p| p.metadata.deletion_timestamp.is_some())
}

/// Does work that may take as long as a container wants, unless the pod is to be ended before: then `None`, and the work is left where
/// it is.
pub(super) async fn unless_ending<T>(mut inbox: Inbox, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        done = work => Some(done),
        _ = inbox.wait_for(is_ending) => None,
    }
}

pub(super) fn text(o: &Option<String>) -> &str {
    o.as_deref().unwrap_or_default()
}

fn revision(pod: &Pod) -> u64 {
    text(&pod.metadata.resource_version).parse().unwrap_or(0)
}

/// The pod with the resources that are allocated to it.
fn allocated(allocation: &Allocation, pod: &Arc<Pod>) -> Arc<Pod> {
    if allocation.is_asked_by(pod) { pod.clone() } else { Arc::new(allocation.apply(pod)) }
}

impl Worker {
    pub fn new(
        shared: Arc<Shared>,
        pod: Arc<Pod>,
        inbox: Inbox,
        wake: Arc<Notify>,
        admitted: Result<Option<Admitted>, Rejection>,
    ) -> Self {
        let base = (revision(&pod), pod.status.clone().unwrap_or_default());
        let is_new = base.1.start_time.is_none();
        let (admitted, rejected) = match admitted {
            Ok(admitted) => (admitted, None),
            Err(rejection) => (None, Some(rejection)),
        };
        let allocation = if is_new { Allocation::of_spec(&pod) } else { Allocation::of_status(&pod) };
        Self {
            uid: text(&pod.metadata.uid).to_owned(),
            shared,
            pod: allocated(&allocation, &pod),
            desired: pod,
            resize: Resize::new(allocation),
            inbox,
            wake,
            base,
            waiting: BTreeMap::new(),
            holds: BTreeMap::new(),
            backoffs: Backoffs::default(),
            pulls: Pulls::default(),
            lost: None,
            probes: Probes::default(),
            messages: BTreeMap::new(),
            counts_ends: is_new,
            ip: None,
            failed: None,
            stage: Stage::Running,
            refreshed: None,
            relabelled: false,
            place: None,
            seen: is_new.then(tokio::time::Instant::now),
            admitted,
            rejected,
            panics: 0,
            details: Details::All,
            untold: 0,
        }
    }

    /// Runs until the pod is gone from the API and from the node.
    pub async fn run(mut self) {
        loop {
            let latest = self.inbox.borrow_and_update().clone();
            let gone = latest.is_none();
            if let Some(pod) = latest {
                self.take(pod);
            }
            let key = self.pod.metadata.uid.clone().unwrap_or_default();
            let work = async {
                let ends = gone || self.pod.metadata.deletion_timestamp.is_some();
                if ends { self.end(gone).await } else { self.sync().await }
            };
            let sleep = match caught("pod-worker", key, work).await {
                Ok(sleep) => {
                    self.panics = 0;
                    sleep
                }
                Err(Panicked) => {
                    self.panics = self.panics.saturating_add(1);
                    AFTER_PANIC.saturating_mul(1 << self.panics.min(10))
                }
            };
            self.place = None;
            if gone && self.stage == Stage::Removed {
                self.forget_counts();
                return;
            }
            tokio::select! {
                r = self.inbox.changed() => if r.is_err() { return },
                () = self.wake.notified() => {}
                () = tokio::time::sleep(sleep.min(RESYNC)) => {}
            }
        }
    }

    pub(super) fn take(&mut self, pod: Arc<Pod>) {
        let rv = revision(&pod);
        if rv > self.base.0 {
            self.base = (rv, pod.status.clone().unwrap_or_default());
        }
        let (old, new) = (&self.pod.metadata, &pod.metadata);
        self.relabelled |= old.labels != new.labels || old.annotations != new.annotations;
        if old.generation != new.generation {
            // Another image, perhaps.
            self.holds.clear();
        }
        self.pod = allocated(&self.resize.allocation, &pod);
        self.desired = pod;
    }

    pub(super) fn now(&self) -> Timestamp {
        self.shared.options.clock.now()
    }

    pub(super) fn event(&self, container: Option<&str>, severity: Severity, reason: &str, message: impl Into<String>) {
        let mut about = regarding(&self.pod);
        if let Some(c) = container {
            about.field_path = self.field_path(c);
        }
        self.shared.recorder.event(about, severity, reason, message);
    }

    fn field_path(&self, name: &str) -> String {
        let spec = self.pod.spec.as_ref();
        let has = |list: Option<&Vec<Spec>>| list.is_some_and(|l| l.iter().any(|c| c.name == name));
        if has(spec.and_then(|s| s.init_containers.as_ref())) {
            format!("spec.initContainers{{{name}}}")
        } else if has(spec.map(|s| &s.containers)) {
            format!("spec.containers{{{name}}}")
        } else {
            format!("spec.ephemeralContainers{{{name}}}")
        }
    }

    /// The pod as metrics name it.
    fn labels(&self) -> PodLabels {
        let meta = &self.pod.metadata;
        PodLabels {
            name: text(&meta.name).to_owned(),
            namespace: text(&meta.namespace).to_owned(),
            uid: self.uid.clone(),
        }
    }

    /// Forgets what was counted of the pod.
    fn forget_counts(&self) {
        let spec = self.pod.spec.as_ref();
        let all = spec.into_iter().flat_map(|s| s.init_containers.iter().flatten().chain(&s.containers));
        self.shared.known.forget(&self.labels(), all.map(|c| c.name.as_str()));
    }

    /// The spec of a container of any role.
    pub(super) fn spec_of(&self, name: &str) -> Option<Spec> {
        let spec = self.pod.spec.as_ref()?;
        let plain = spec.init_containers.iter().flatten().chain(&spec.containers).find(|c| c.name == name);
        plain.cloned().or_else(|| {
            spec.ephemeral_containers.iter().flatten().find(|c| c.name == name).map(container::of_ephemeral)
        })
    }

    /// The kind of a container, as metrics name it.
    fn kind_of(&self, name: &str) -> &'static str {
        let spec = self.pod.spec.as_ref();
        let is = |list: Option<&Vec<Spec>>| list.is_some_and(|l| l.iter().any(|c| c.name == name));
        match spec {
            Some(s) if is(s.init_containers.as_ref()) => "init_container",
            Some(s) if is(Some(&s.containers)) => "container",
            _ => "ephemeral_container",
        }
    }

    /// The node as fields of a pod show it.
    pub(super) fn node(&self) -> NodeInfo {
        NodeInfo {
            node_name: self.shared.options.node_name.clone(),
            host_ip: self.shared.options.node_ip.to_string(),
            pod_ip: self.ip.map(|ip| ip.to_string()),
            allocatable: self.shared.allocatable.clone(),
        }
    }

    pub(super) async fn observe(&mut self) -> Result<Observed, runtime::Error> {
        let PodRecords { pods: mut sandboxes, containers: mut all } =
            self.shared.options.runtime.pod_records(&self.uid).await?;
        sandboxes.sort_by_key(|p| p.config.attempt);
        all.sort_by_key(|c| (c.attempt, c.created_at));
        let mut out = Observed { sandbox: sandboxes.pop(), ..Observed::default() };
        for c in &all {
            if let Some(before) = out.newest.insert(c.name.clone(), c.clone()) {
                out.previous.insert(c.name.clone(), before);
            }
        }
        out.all = all;
        for c in out.newest.values().chain(out.previous.values()) {
            if matches!(c.state, ContainerState::Exited | ContainerState::Unknown) && !self.messages.contains_key(&c.id)
            {
                let policy = self.spec_of(&c.name).and_then(|s| s.termination_message_policy);
                let (ended, from_logs) = (c.clone(), policy.as_deref() == Some("FallbackToLogsOnError"));
                let message = blocking(move || messages::read(&ended, from_logs)).await;
                self.messages.insert(c.id.clone(), message);
                if self.counts_ends {
                    let (code, reason) = status::end(c);
                    self.shared.known.container_ended(self.kind_of(&c.name), code, reason);
                }
            }
        }
        self.counts_ends = true;
        let keep: Vec<&String> = out.all.iter().map(|c| &c.id).collect();
        self.messages.retain(|id, _| keep.contains(&id));
        Ok(out)
    }

    /// Sees to it that what runs is probed.
    fn probe(&mut self, seen: &Observed) {
        self.probes
            .retain(|name, id| seen.newest.get(name).is_some_and(|c| c.id == id && c.state == ContainerState::Running));
        let (recorder, about) = (self.shared.recorder.clone(), regarding(&self.pod));
        let paths: BTreeMap<String, String> =
            seen.newest.keys().map(|name| (name.clone(), self.field_path(name))).collect();
        let (known, labels) = (self.shared.known.clone(), self.labels());
        let context = Arc::new(Context {
            runtime: self.shared.options.runtime.clone(),
            node_namespace: self.shared.options.node_namespace.clone(),
            clock: self.shared.options.clock.clone(),
            pod_ip: self.probe_ip(),
            names: self.names(),
            wake: self.wake.clone(),
            unhealthy: Arc::new(move |name, reason, message| {
                let about = about.clone().field(paths.get(name).map_or("", String::as_str));
                recorder.warning(about, reason, message);
            }),
            probed: Arc::new(move |kind, name, good, took| known.probed(kind, good, name, &labels, took)),
        });
        let status = &self.base.1;
        let told: Vec<_> =
            status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten()).collect();
        let spec = self.pod.spec.as_ref();
        for c in spec.into_iter().flat_map(|s| s.init_containers.iter().flatten().chain(&s.containers)) {
            let Some(running) = seen.newest.get(&c.name).filter(|r| r.state == ContainerState::Running) else {
                continue;
            };
            let id = status::container_id(&running.id);
            let before = told.iter().find(|s| s.container_id.as_deref() == Some(id.as_str()));
            let was = |f: fn(&k8s_openapi::api::core::v1::ContainerStatus) -> bool| before.is_some_and(|s| f(s));
            self.probes.watch(&context, c, running, was(|s| s.started == Some(true)), was(|s| s.ready));
        }
    }

    pub(super) fn names(&self) -> Names {
        let namespace = text(&self.pod.metadata.namespace).to_owned();
        Names { lookups: self.shared.lookups.clone(), namespace, uid: self.uid.clone() }
    }

    pub(super) fn probe_ip(&self) -> Option<IpAddr> {
        let host = self.pod.spec.as_ref().is_some_and(|s| s.host_network == Some(true));
        if host { Some(IpAddr::V4(self.shared.options.node_ip)) } else { self.ip }
    }

    /// How much is left of `activeDeadlineSeconds`.
    fn deadline(&self) -> Option<Duration> {
        let seconds = self.pod.spec.as_ref()?.active_deadline_seconds?;
        let start = self.base.1.start_time.as_ref()?.0;
        Some(meta::time::left(self.now(), meta::time::plus(start, seconds.max(0))))
    }

    /// One round: observe, plan, act, until there is nothing to do but wait. Gives how long.
    async fn sync(&mut self) -> Duration {
        let terminal = matches!(self.base.1.phase.as_deref(), Some("Succeeded" | "Failed"));
        if self.stage == Stage::Over || terminal {
            if self.stage != Stage::Over {
                self.stop_everything(self.grace()).await;
                self.stage = Stage::Over;
                self.admitted = None;
            }
            // What the API has not heard of yet.
            return if terminal { RESYNC } else { self.report(true).await.map_or(RESYNC, |u| u.retry) };
        }
        if let Some(ended) = self.refuse().await {
            return ended;
        }
        let mut references = env::references(&self.pod);
        references.extend(volumes::references(&self.pod));
        self.shared.objects.register(&self.uid, &references);
        self.refresh().await;
        for _ in 0..MAX_STEPS {
            if self.is_ending() {
                return Duration::ZERO;
            }
            let seen = match self.observe().await {
                Ok(seen) => seen,
                Err(error) => {
                    tracing::warn!(pod = %self.name(), %error, "cannot read the runtime's state");
                    return Duration::from_secs(5);
                }
            };
            if seen.state() == Sandbox::Ready && self.ip.is_none() {
                self.ip = self.shared.address(&self.uid).await;
            }
            self.probe(&seen);
            let deadline = self.deadline();
            if deadline == Some(Duration::ZERO) {
                let message = "Pod was active on the node longer than the specified deadline";
                self.event(None, Severity::Normal, "DeadlineExceeded", message);
                return self.fail("DeadlineExceeded", message).await;
            }
            let mut plan = self.plan(&seen);
            // Before anything of it runs, and not again: what runs has been taken.
            if plan.new_sandbox
                && let Some(refusal) = {
                    let shared = self.shared.clone();
                    let host = blocking(move || security::Host::read(&shared.options)).await;
                    security::refusal(&self.pod, &host, &self.shared.options.sysctls)
                }
            {
                self.event(None, Severity::Warning, refusal.reason, refusal.message.clone());
                return self.fail(refusal.reason, &format!("Pod was rejected: {}", refusal.message)).await;
            }
            if let Some(left) = deadline {
                plan.wake = Some(plan.wake.map_or(left, |w| w.min(left)));
            }
            self.resize(&seen, &mut plan).await;
            let acted = self.act(&plan, &seen).await;
            if plan.finished {
                return self.finish().await;
            }
            if !acted {
                self.place = None;
                let retry = self.report(false).await.map(|u| u.retry);
                let waits = [plan.wake, retry, self.next_hold(), self.next_labels()];
                return waits.into_iter().flatten().min().unwrap_or(RESYNC);
            }
        }
        self.report(false).await.map_or(Duration::from_millis(100), |u| u.retry)
    }

    /// Ends a pod that the node does not take, or that has to go for a critical one. One that waits for others to end waits here. Gives
    /// how long.
    async fn refuse(&mut self) -> Option<Duration> {
        if let Some(rejection) = self.rejected.take() {
            self.event(None, Severity::Warning, &rejection.reason, rejection.message.clone());
            return Some(self.fail(&rejection.reason, &format!("Pod was rejected: {}", rejection.message)).await);
        }
        if self.shared.admission.is_preempted(&self.uid) {
            let (reason, message) = PREEMPTING;
            self.event(None, Severity::Warning, reason, message);
            return Some(self.fail(reason, message).await);
        }
        if self.admitted.as_ref().is_some_and(Admitted::waits) {
            // Nothing is reported: for an agent that starts again it is not taken yet.
            return Some(RESYNC);
        }
        None
    }

    /// Brings volumes up to date when something they are made from has changed, and once in a while for tokens and the pod's
    /// own labels. What waited for an object need not wait longer.
    async fn refresh(&mut self) {
        let dirty = self.shared.take_dirty(&self.uid);
        if dirty {
            self.holds.clear();
        }
        let spec = self.pod.spec.as_ref();
        let has_volumes = spec.is_some_and(|s| s.volumes.as_ref().is_some_and(|v| !v.is_empty()));
        let relabelled = self.next_labels().is_some_and(|left| left.is_zero());
        let due = match self.refreshed {
            Some(at) => at.elapsed() >= RESYNC || dirty || relabelled,
            None => self.was_running(),
        };
        if !has_volumes || !due {
            return;
        }
        self.refreshed = Some(tokio::time::Instant::now());
        self.relabelled = false;
        let (shared, node) = (self.shared.clone(), self.node());
        if let Err(e) = shared.volumes.refresh(&self.pod, &*shared.objects, &*shared.tokens, &node).await {
            self.event(None, Severity::Warning, "FailedMount", e.to_string());
        }
    }

    /// Whether the status reports a container that runs. With volumes that this agent has not touched, an earlier agent set them up.
    fn was_running(&self) -> bool {
        let status = &self.base.1;
        let lists = [&status.init_container_statuses, &status.container_statuses];
        let mut states = lists.into_iter().flatten().flatten().filter_map(|c| c.state.as_ref());
        states.any(|s| s.running.is_some())
    }

    /// How long until volumes that show labels and annotations are to show others. Somebody may change them all the time.
    fn next_labels(&self) -> Option<Duration> {
        const PACE: Duration = Duration::from_secs(2);
        let refreshed = self.refreshed.filter(|_| self.relabelled && volumes::shows_metadata(&self.pod))?;
        Some(PACE.saturating_sub(refreshed.elapsed()))
    }

    /// Whether the pod is to be ended, of which this round does not know yet.
    pub(super) fn is_ending(&self) -> bool {
        is_ending(&self.inbox.borrow())
    }

    fn next_hold(&self) -> Option<Duration> {
        let now = self.now();
        let left = |h: &Hold| meta::time::left(now, h.until);
        self.holds.values().map(left).min().map(|d| d.max(Duration::from_millis(10)))
    }

    fn plan(&mut self, seen: &Observed) -> Plan {
        let now = self.now();
        let health = self.probes.health();
        let mut plan = plan::plan(
            &self.pod,
            &Seen {
                sandbox: seen.state(),
                sandbox_id: seen.id(),
                newest: &seen.newest,
                health: &health,
                backoffs: &self.backoffs,
                now,
            },
        );
        self.back_off_sandbox(&mut plan, seen, now);
        let held: Vec<String> = self.holds.iter().filter(|(_, h)| h.until > now).map(|(n, _)| n.clone()).collect();
        plan.start.retain(|s| !held.contains(&s.name));
        if held.iter().any(|n| n == SANDBOX) {
            plan.new_sandbox = false;
            plan.start.clear();
        }
        // What is neither held nor backing off waits for nothing in particular.
        let backing: Vec<&String> = plan.backing_off.iter().map(|(n, _)| n).collect();
        self.waiting.retain(|n, _| held.contains(n) || backing.contains(&n));
        for (name, delay) in &plan.backing_off {
            let message = format!(
                "back-off {} restarting failed container={name} pod={}_{}({})",
                go_duration(*delay),
                text(&self.pod.metadata.name),
                text(&self.pod.metadata.namespace),
                self.uid
            );
            let waiting = Waiting { reason: "CrashLoopBackOff".into(), message };
            if self.waiting.get(name) != Some(&waiting) {
                let m = &self.pod.metadata;
                let said = format!(
                    "Back-off restarting failed container {name} in pod {}_{}({})",
                    text(&m.name),
                    text(&m.namespace),
                    self.uid
                );
                self.event(Some(name), Severity::Warning, "BackOff", said);
                self.waiting.insert(name.clone(), waiting);
            }
        }
        plan
    }

    /// Makes a sandbox that is lost again and again wait as containers do that end again and again: the first new one comes at once.
    /// (Upstream leaves this to its sandboxes being hard to kill.)
    fn back_off_sandbox(&mut self, plan: &mut Plan, seen: &Observed, now: Timestamp) {
        let Some(dead) = seen.sandbox.as_ref().filter(|_| plan.new_sandbox) else { return };
        let known = self.lost.as_ref().filter(|(id, _)| *id == dead.id).map(|(_, at)| *at);
        let lost = known.unwrap_or(now);
        self.lost = Some((dead.id.clone(), lost));
        let Some((delay, left)) = self.backoffs.waiting(SANDBOX, lost, now) else { return };
        plan.new_sandbox = false;
        let waiting = plan.start.drain(..).filter(|s| seen.newest.contains_key(&s.name));
        plan.backing_off.extend(waiting.map(|s| (s.name, delay)));
        plan.wake = Some(plan.wake.map_or(left, |w| w.min(left)));
        if known.is_none() {
            let message =
                format!("Back-off {} re-creating the lost sandbox of pod {}", go_duration(delay), self.name());
            self.event(None, Severity::Warning, "BackOff", message);
        }
    }

    /// Does what the plan says. Whether anything was done.
    async fn act(&mut self, plan: &Plan, seen: &Observed) -> bool {
        let mut acted = false;
        if !plan.kill.is_empty() || plan.finished {
            // Ending may take as long as the grace period.
            self.place = None;
        }
        for kill in &plan.kill {
            self.event(Some(&kill.name), Severity::Normal, "Killing", kill.message.clone());
            let grace = kill.grace.map_or(self.grace(), meta::time::seconds);
            self.probes.stop(&kill.name);
            acted = true;
            if let Some(spec) = self.spec_of(&kill.name)
                && self.stop_container(&kill.id, &spec, grace).await == Stopped::PodEnds
            {
                return acted;
            }
        }
        if plan.finished || !plan.new_sandbox && plan.start.is_empty() {
            return acted;
        }
        if !self.take_place().await {
            return acted;
        }
        if plan.new_sandbox {
            return self.make_sandbox(seen).await || acted;
        }
        let Some(volumes) = self.volumes(plan).await else { return acted };
        self.refreshed = Some(tokio::time::Instant::now());
        for s in &plan.start {
            if !self.take_place().await {
                break;
            }
            acted |= self.start(&s.name, s.role, seen, &volumes).await;
            if self.is_ending() {
                break;
            }
            // Init containers are one after the other; app containers do not wait for each other's failures.
            if s.role == Role::Init {
                break;
            }
        }
        acted
    }

    /// Waits until the pod may start something. `false` if it is to end instead.
    async fn take_place(&mut self) -> bool {
        if self.place.is_none() {
            self.place = self.shared.starts.try_place();
        }
        if self.place.is_none() {
            // Whoever looks at the pod meanwhile sees that it is known here.
            self.report(false).await;
            let (inbox, shared) = (self.inbox.clone(), self.shared.clone());
            self.place = unless_ending(inbox, shared.starts.place(text(&self.pod.metadata.namespace))).await;
        }
        self.place.is_some()
    }

    /// The pod ran to its end: what still runs (sidecars) is ended, the records stay.
    async fn finish(&mut self) -> Duration {
        self.stop_everything(self.grace()).await;
        self.stage = Stage::Over;
        self.admitted = None;
        self.waiting.clear();
        self.report(true).await.map_or(RESYNC, |u| u.retry)
    }

    async fn fail(&mut self, reason: &str, message: &str) -> Duration {
        self.failed = Some((reason.to_owned(), message.to_owned()));
        self.stop_everything(self.grace()).await;
        self.stage = Stage::Over;
        self.admitted = None;
        self.report(true).await.map_or(RESYNC, |u| u.retry)
    }

    pub(super) fn grace(&self) -> Duration {
        let seconds = self.pod.metadata.deletion_grace_period_seconds;
        let seconds = seconds.or(self.pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds)).unwrap_or(30);
        meta::time::seconds(seconds)
    }

    pub(super) fn name(&self) -> String {
        format!("{}/{}", text(&self.pod.metadata.namespace), text(&self.pod.metadata.name))
    }

    /// Tells the API what has changed. `Some` is when to try again.
    /// Writes the status into the API, with fewer details if it is too large with all. `None` when the API has it, or has no such pod.
    pub(super) async fn report(&mut self, over: bool) -> Option<Untold> {
        let mut untold = self.write_status(over).await;
        if untold.as_ref().is_some_and(|u| u.too_large) && self.details == Details::All {
            self.details = Details::Few;
            untold = self.write_status(over).await;
        }
        match &mut untold {
            None => self.untold = 0,
            Some(untold) => {
                untold.retry = Duration::from_secs(1 << self.untold.min(8)).min(RESYNC);
                self.untold += 1;
            }
        }
        untold
    }

    async fn write_status(&mut self, over: bool) -> Option<Untold> {
        let seen = self.observe().await.ok()?;
        self.probe(&seen);
        let health = self.probes.health();
        let host_ip = self.shared.options.node_ip.to_string();
        let mut pod = (*self.pod).clone();
        pod.status = Some(self.base.1.clone());
        let ip = self.ip.map(|ip| ip.to_string());
        let resizing = if over { Vec::new() } else { self.resize.conditions() };
        let new = status::status(&Facts {
            pod: &pod,
            actuated: &self.resize.actuated,
            resizing: &resizing,
            newest: &seen.newest,
            previous: &seen.previous,
            waiting: &self.waiting,
            health: &health,
            messages: &self.messages,
            sandbox_ready: seen.state() == Sandbox::Ready && !over,
            pod_ip: ip.as_deref(),
            host_ip: &host_ip,
            now: self.now(),
            failed: self.failed.as_ref().map(|(r, m)| (r.as_str(), m.as_str())),
            over,
            details: self.details,
        });
        let patch = status::patch(&self.uid, Some(&self.base.1), &new)?;
        let m = &self.pod.metadata;
        let api = self.shared.client.api::<Pod>().namespace(text(&m.namespace));
        let patch = Patch::Strategic(patch);
        match api.patch_subresource::<Pod>(text(&m.name), "status", &WriteOptions::default(), &patch).await {
            Ok(p) => {
                self.base = (revision(&p), p.status.unwrap_or_default());
                if self.base.1.phase.as_deref() == Some("Running")
                    && let Some(seen) = self.seen.take()
                {
                    self.shared.known.pod_started(seen.elapsed());
                }
                None
            }
            Err(e) if e.is_not_found() || e.is_conflict() => None,
            Err(error) => {
                tracing::warn!(pod = %self.name(), %error, "the status was not taken");
                let too_large = error.status().is_some_and(|s| s.code == 413);
                Some(Untold {
                    retry: Duration::ZERO,
                    too_large,
                    for_good: error.status().is_some() && !error.is_transient(),
                })
            }
        }
    }

    /// The pod is being deleted, or is gone: end it, clean up, and let the API forget it.
    async fn end(&mut self, gone: bool) -> Duration {
        if self.stage != Stage::Removed {
            if self.stage == Stage::Running {
                self.stop_everything(if gone { Duration::from_secs(1) } else { self.grace() }).await;
                self.stage = Stage::Over;
            }
            // What the API never takes keeps nothing from being removed.
            if !gone && let Some(untold) = self.report(true).await.filter(|u| !u.for_good) {
                return untold.retry;
            }
            if let Err(error) = self.remove().await {
                tracing::warn!(pod = %self.name(), %error, "cleaning up");
                return Duration::from_secs(2);
            }
            self.stage = Stage::Removed;
            self.admitted = None;
        }
        if gone {
            return RESYNC;
        }
        let m = &self.pod.metadata;
        let api = self.shared.client.api::<Pod>().namespace(text(&m.namespace));
        match api.delete(text(&m.name), &DeleteOptions::uid(&self.uid).with_grace(0)).await {
            Ok(_) => RESYNC,
            Err(e) if e.is_not_found() || e.is_conflict() => RESYNC,
            Err(error) => {
                tracing::warn!(pod = %self.name(), %error, "the pod cannot be deleted from the API");
                Duration::from_secs(1)
            }
        }
    }
}

pub(crate) fn regarding(pod: &Pod) -> Regarding {
    let m = &pod.metadata;
    Regarding {
        api_version: "v1".into(),
        kind: "Pod".into(),
        namespace: text(&m.namespace).into(),
        name: text(&m.name).into(),
        uid: text(&m.uid).into(),
        resource_version: text(&m.resource_version).into(),
        field_path: String::new(),
    }
}
