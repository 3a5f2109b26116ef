//! Runs a scenario: executes its steps in virtual time, and checks the invariants after every commit.

use crate::component::Restart;
use crate::control_plane::{ControlPlane, Options};
use crate::invariants::{Checker, Objects};
use crate::journal::{Journal, Note};
use crate::operations;
use crate::recorder::Recorder;
use crate::references::MOST_PODS;
use crate::rehearsal::Progress;
use crate::requests;
use crate::scenario::{Condition, ObjectName, Propagation, Scenario, Step};
use crate::trace::{Commit, Trace};
use client::{DeleteOptions, FieldValidation, Patch, WriteOptions};
use jiff::SignedDuration;
use meta::{Object, Value};
use serde_json::json;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use testkit::{Access, Cluster};

/// How often the commits are checked while time passes.
const SLICE: Duration = Duration::from_secs(5);
/// The least time that a request and its response take, each.
const MIN_LATENCY: Duration = Duration::from_millis(1);
/// How often the end of a step that takes time is checked.
const POLL: Duration = Duration::from_millis(250);

/// How a scenario ended well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The number of writes to the store.
    pub writes: u64,
    /// A hash over all commits: equal runs have equal hashes.
    pub hash: u64,
    /// How much virtual time passed.
    pub elapsed: Duration,
    /// How often components were killed.
    pub crashes: u32,
}

/// Why a scenario failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Reason {
    #[error("invariant {invariant} broken at revision {revision}: {problem}")]
    Invariant { invariant: &'static str, revision: u64, problem: String },
    #[error("{0}")]
    Request(String),
    #[error("{condition} does not hold after {within:?}: {found}")]
    Unmet { condition: String, within: Duration, found: String },
    #[error("stopped {0}")]
    Stopped(String),
    #[error("there are {0} pods; a rehearsal has at most {MOST_PODS}")]
    TooManyPods(u64),
    #[error("still writing after {within:?}; the last writes: {last}")]
    Restless { within: Duration, last: String },
}

/// A scenario that failed, with everything that repeats it.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The index of the step that was executed.
    pub step: usize,
    /// The virtual time since the start.
    pub at: Duration,
    pub reason: Reason,
    /// The components that are down.
    pub down: Vec<&'static str>,
    /// The scenario as YAML.
    pub scenario: String,
}

impl std::error::Error for Failure {}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, at, reason, down, scenario } = self;
        write!(f, "{reason}\nin steps[{step}], {at:?} after the start; components that are down: {down:?}. ")?;
        write!(f, "This scenario repeats it:\n{scenario}")
    }
}

/// A scenario that runs, for callers that look at the cluster between its steps.
pub struct Run {
    pub plane: Arc<ControlPlane>,
    pub trace: Trace,
    checker: Checker,
    scenario: Scenario,
    step: usize,
    rehearsal: Option<Rehearsed>,
}

/// What a rehearsal adds to a run.
pub(crate) struct Rehearsed {
    pub recorder: Recorder,
    pub journal: Arc<Journal>,
    /// When the run ends, whatever it waits for.
    pub limit: Duration,
    /// When the first step began.
    pub begun: Option<Duration>,
    pub progress: Arc<Progress>,
}

impl Run {
    /// Starts the control plane and the nodes of a scenario.
    pub async fn start(scenario: &Scenario) -> Result<Self, Box<Failure>> {
        Self::start_recording(scenario, false).await
    }

    /// The same; the trace keeps a line for each write.
    pub async fn start_recording(scenario: &Scenario, lines: bool) -> Result<Self, Box<Failure>> {
        let (cluster, options) = Self::prepare(scenario).await;
        let trace = Trace::start(&cluster.server.registry, lines);
        let run = Self::begin(scenario, cluster, options, trace, None).await;
        for node in &scenario.node_specs() {
            run.plane.add_node(node).await.map_err(|e| run.failure(request("create node", &e)))?;
        }
        Ok(run)
    }

    /// The API server of a scenario, and what its control plane consists of.
    pub(crate) async fn prepare(scenario: &Scenario) -> (Cluster, Options) {
        let usage = Arc::<usage::Usage>::default();
        let cluster = Cluster::with_access(scenario.seed, Access { usage: usage.clone(), ..Access::default() }).await;
        if let Some(start) = scenario.start {
            cluster.clock.set(start);
        }
        let latency = scenario.latency.map_or_else(Default::default, |l| (l.minimum.0, l.maximum.0));
        // Something that goes round and round must not do so without time passing.
        let latency = (latency.0.max(MIN_LATENCY), latency.1.max(MIN_LATENCY));
        let options = Options {
            components: (!scenario.components.is_empty()).then(|| scenario.components.iter().cloned().collect()),
            isolated: scenario.faulty().cloned().collect(),
            server_stops: scenario.stops_server(),
            latency,
            seed: scenario.seed,
            assumptions: scenario.assume.clone(),
            usage: Some(usage),
            ..Options::default()
        };
        (cluster, options)
    }

    /// Starts the control plane on a server.
    pub(crate) async fn begin(
        scenario: &Scenario,
        cluster: Cluster,
        options: Options,
        trace: Trace,
        rehearsal: Option<Rehearsed>,
    ) -> Self {
        let plane = Arc::new(ControlPlane::start(cluster, options).await);
        let checker = if rehearsal.is_some() { Checker::without_invariants() } else { Checker::default() };
        Self { plane, trace, checker, scenario: scenario.clone(), step: 0, rehearsal }
    }

    /// Executes the steps of the scenario.
    pub async fn steps(&mut self) -> Result<(), Box<Failure>> {
        for (i, step) in self.scenario.steps.clone().iter().enumerate() {
            self.step = i;
            if let Some(r) = &self.rehearsal {
                r.journal.write(Note::Step(i, step.describe()));
            }
            self.execute(step).await?;
        }
        Ok(())
    }

    /// Begins the steps of a rehearsal, which end at `limit`, whatever they wait for.
    pub(crate) fn begin_steps(&mut self, begun: Duration, limit: Duration) {
        if let Some(r) = &mut self.rehearsal {
            (r.begun, r.limit) = (Some(begun), limit);
        }
    }

    /// Ends a rehearsal.
    pub(crate) fn take_recorder(&mut self) -> Option<Recorder> {
        self.rehearsal.take().map(|r| r.recorder)
    }

    /// What happened so far.
    pub fn report(&self) -> Report {
        Report {
            writes: self.trace.writes(),
            hash: self.trace.hash(),
            elapsed: self.trace.elapsed(),
            crashes: self.plane.components().map(|c| c.deaths()).sum(),
        }
    }

    fn failure(&self, reason: Reason) -> Box<Failure> {
        let (step, at) = (self.step, self.trace.elapsed());
        let down = self.plane.components().filter(|c| c.is_down()).map(|c| c.name()).collect();
        Box::new(Failure { step, at, reason, down, scenario: self.scenario.to_yaml() })
    }

    /// Checks the commits since the last time.
    async fn check(&mut self) -> Result<(), Box<Failure>> {
        let (checker, rehearsal) = (&mut self.checker, &mut self.rehearsal);
        let observe = |commit: &Commit, objects: &Objects| {
            if let Some(r) = rehearsal {
                r.recorder.observe(commit, objects);
            }
            checker.observe(commit, objects)
        };
        let taken = self.trace.take(observe).await;
        if let Some(r) = rehearsal {
            r.recorder.catch_up(self.trace.elapsed());
            if let Some(begun) = r.begun {
                let step = self.scenario.steps.get(self.step).map(Step::describe).unwrap_or_default();
                let time = crate::report::duration(self.trace.elapsed().saturating_sub(begun));
                r.progress.set_phase(format!(
                    "at steps[{}] ({step}), {time} of virtual time after the first step",
                    self.step
                ));
            }
            if r.progress.is_stopped() {
                let phase = r.progress.phase();
                return Err(self.failure(Reason::Stopped(phase)));
            }
            let pods = r.recorder.pod_count();
            if pods > MOST_PODS {
                return Err(self.failure(Reason::TooManyPods(pods)));
            }
            if self.trace.elapsed() > r.limit {
                let (within, last) = (r.limit, self.checker.last_changes());
                return Err(self.failure(Reason::Restless { within, last }));
            }
        }
        let contradictions = self.plane.nodes.take_violations();
        let twice = contradictions.into_iter().next().map(|problem| Reason::Invariant {
            invariant: "one container per pod name",
            revision: self.plane.cluster.server.registry.store.revision(),
            problem,
        });
        match taken.err().or(twice) {
            Some(reason) => Err(self.failure(reason)),
            None => Ok(()),
        }
    }

    /// Lets time pass.
    pub async fn advance(&mut self, time: Duration) -> Result<(), Box<Failure>> {
        let end = self.trace.elapsed() + time;
        while let left = end.saturating_sub(self.trace.elapsed())
            && !left.is_zero()
        {
            tokio::time::sleep(left.min(SLICE)).await;
            self.check().await?;
        }
        Ok(())
    }

    /// Executes one step.
    pub async fn execute(&mut self, step: &Step) -> Result<(), Box<Failure>> {
        let done = match step {
            Step::Advance(time) => return self.advance(time.0).await,
            Step::StopServer(time) => {
                self.plane.set_server_stopped(true);
                self.advance(time.0).await?;
                self.plane.set_server_stopped(false);
                return Ok(());
            }
            Step::WaitFor(condition) => return self.wait_for(condition).await,
            Step::Settle { quiet, within } => return self.settle(quiet.0, within.0).await,
            Step::Rest { quiet, within } => return self.wait_until_quiet(quiet.0, within.0).await,
            Step::Drain(_) | Step::UpgradeNodes(_) | Step::Rollout(_) => return self.operate(step).await,
            step => self.change(step).await,
        };
        done.map_err(|reason| self.failure(reason))?;
        self.check().await
    }

    /// Executes a step that takes time.
    async fn operate(&mut self, step: &Step) -> Result<(), Box<Failure>> {
        let journal = self.rehearsal.as_ref().map_or_else(Journal::off, |r| r.journal.clone());
        let Some((task, wait)) = operations::start(&self.plane, &journal, step) else { return Ok(()) };
        while wait && !task.is_finished() {
            tokio::time::sleep(POLL).await;
            self.check().await?;
        }
        self.check().await
    }

    fn api(&self, name: &ObjectName) -> Result<client::Api<Object>, Reason> {
        let unknown = || Reason::Request(format!("the server has no {} in {}", name.kind, name.api_version));
        self.plane.api(&name.gvk(), &name.namespace).ok_or_else(unknown)
    }

    /// Whether a rehearsal leaves an object out: a custom resource that nothing defines.
    fn is_left_out(&self, object: &Value) -> bool {
        self.rehearsal.is_some() && requests::is_undefined_custom(&self.plane.cluster, &requests::gvk(object))
    }

    async fn apply(&self, value: &Value) -> Result<(), Reason> {
        let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        let namespace = text(&value["metadata"]["namespace"]);
        let name = ObjectName {
            api_version: text(&value["apiVersion"]),
            kind: text(&value["kind"]),
            namespace: if namespace.is_empty() { "default".into() } else { namespace },
            name: text(&value["metadata"]["name"]),
        };
        let mut options = WriteOptions::manager("scenario");
        options.force = self.rehearsal.is_some();
        let object = Object::from_value(value.clone()).unwrap_or_default();
        let applied = requests::apply(&self.api(&name)?, &options, &object).await;
        applied.map_err(|why| Reason::Request(shorten(&format!("apply: {why}"))))
    }

    async fn change(&mut self, step: &Step) -> Result<(), Reason> {
        let plane = self.plane.clone();
        let unknown = |e: crate::control_plane::UnknownComponent| Reason::Request(e.to_string());
        match step {
            Step::Create(object) if self.is_left_out(object) => {}
            Step::Create(object) => {
                let object = Object::from_value(object.clone()).unwrap_or_default();
                plane.create(&object).await.map_err(|e| request("create", &e))?;
            }
            Step::Apply(value) if self.is_left_out(value) => {}
            Step::Apply(value) => self.apply(value).await?,
            Step::Patch { object, patch } => {
                let patch = Patch::Merge(patch.clone());
                let options = WriteOptions { field_validation: FieldValidation::Strict, ..WriteOptions::default() };
                let patched = self.api(object)?.patch(&object.name, &options, &patch).await;
                patched.map_err(|e| request("patch", &e))?;
            }
            Step::Scale { object, replicas } => {
                let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
                let patched = self.api(object)?.patch(&object.name, &WriteOptions::default(), &patch).await;
                patched.map_err(|e| request("scale", &e))?;
            }
            Step::Delete { object, propagation } => {
                let policy = match propagation {
                    Propagation::Background => client::Propagation::Background,
                    Propagation::Foreground => client::Propagation::Foreground,
                    Propagation::Orphan => client::Propagation::Orphan,
                };
                if object.kind == "Pod" {
                    self.checker.excuse(&object.namespace, &object.name);
                }
                let deleted = self.api(object)?.delete(&object.name, &DeleteOptions::propagation(policy)).await;
                deleted.map_err(|e| request("delete", &e))?;
            }
            Step::FailNode(node) => node_exists(plane.nodes.fail(node), node)?,
            Step::HealNode(node) => node_exists(plane.nodes.heal(node), node)?,
            Step::CutNode(node) => node_exists(plane.nodes.cut(node), node)?,
            Step::FlapNode { node, times, down, up } => {
                let (node, times, down, up) = (node.clone(), *times, down.0, up.0);
                tokio::spawn(async move {
                    for _ in 0..times {
                        plane.nodes.fail(&node);
                        tokio::time::sleep(down).await;
                        plane.nodes.heal(&node);
                        tokio::time::sleep(up).await;
                    }
                });
            }
            Step::FailZone(zone) => {
                plane.nodes_in_zone(zone).await?.iter().for_each(|node| _ = plane.nodes.fail(node));
            }
            Step::HealZone(zone) => {
                plane.nodes_in_zone(zone).await?.iter().for_each(|node| _ = plane.nodes.heal(node));
            }
            Step::ApplyFiles(files) => {
                for file in files {
                    let unread = || Reason::Request(format!("applyFiles: {file} was not read"));
                    let objects = self.scenario.files.get(file).ok_or_else(unread)?;
                    for object in objects.iter().filter(|o| !self.is_left_out(o)) {
                        self.apply(object).await.map_err(|e| Reason::Request(format!("{file}: {e}")))?;
                    }
                }
            }
            Step::Uncordon(node) => set_unschedulable(&plane, node, false).await?,
            Step::BreakImage(image) => plane.nodes.break_image(image),
            Step::Load { app, milli_cores } => plane.load.set(app, *milli_cores),
            Step::Cut(name) => plane.component(name).map_err(unknown)?.set_cut(true),
            Step::Heal(name) => plane.component(name).map_err(unknown)?.set_cut(false),
            Step::DelayWatches { component, by } => plane.component(component).map_err(unknown)?.set_lag(by.0),
            Step::JumpClock { of, by } => {
                let by = SignedDuration::from_millis(by.0);
                match plane.nodes.clock(of) {
                    _ if of == "server" => plane.cluster.clock.jump(by),
                    Some(clock) => clock.jump(by),
                    None => plane.component(of).map_err(unknown)?.clock.jump(by),
                }
            }
            Step::Crash(crash) => {
                let restart = crash.restart_after.map(|after| Restart { after: after.0, caches: crash.caches });
                plane.component(&crash.component).map_err(unknown)?.crash(crash.point.clone(), restart, crash.times);
            }
            Step::Restart { component, caches } => plane.component(component).map_err(unknown)?.restart(*caches),
            Step::Advance(_) | Step::StopServer(_) | Step::WaitFor(_) | Step::Settle { .. } | Step::Rest { .. } => {}
            Step::Drain(_) | Step::UpgradeNodes(_) | Step::Rollout(_) => {}
        }
        Ok(())
    }

    async fn wait_for(&mut self, condition: &Condition) -> Result<(), Box<Failure>> {
        let api = self.api(&condition.object).map_err(|r| self.failure(r))?;
        let end = self.trace.elapsed() + condition.within.0;
        loop {
            let object = api.get_opt(&condition.object.name).await.map_err(|e| self.failure(request("get", &e)))?;
            self.check().await?;
            if holds(condition, object.as_ref()) {
                return Ok(());
            }
            if self.trace.elapsed() >= end {
                let mut found = object.map_or(Value::Null, Object::into_value);
                found["metadata"]["managedFields"] = Value::Null;
                return Err(self.failure(Reason::Unmet {
                    condition: condition.to_string(),
                    within: condition.within.0,
                    found: found.to_string(),
                }));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn settle(&mut self, quiet: Duration, within: Duration) -> Result<(), Box<Failure>> {
        self.heal();
        self.wait_until_quiet(quiet, within).await?;
        self.checker.settled(self.trace.objects()).map_err(|reason| self.failure(reason))
    }

    fn heal(&self) {
        for component in self.plane.components() {
            component.spare();
            component.set_cut(false);
            component.set_lag(Duration::ZERO);
            component.restart(crate::Caches::Empty);
        }
        for node in self.plane.nodes.names() {
            self.plane.nodes.heal(&node);
        }
    }

    /// Lets time pass until nothing but heartbeats and events was written for a while.
    pub(crate) async fn wait_until_quiet(&mut self, quiet: Duration, within: Duration) -> Result<(), Box<Failure>> {
        let begun = self.trace.elapsed();
        loop {
            self.advance(SLICE).await?;
            let now = self.trace.elapsed();
            let last = self.rehearsal.as_ref().map_or_else(|| self.checker.last_change(), |r| r.recorder.last_change());
            if now.saturating_sub(last.max(begun)) >= quiet {
                return Ok(());
            }
            if now - begun > within {
                return Err(self.failure(Reason::Restless { within, last: self.checker.last_changes() }));
            }
        }
    }
}

fn request(what: &str, error: &client::Error) -> Reason {
    Reason::Request(shorten(&format!("{what}: {}", requests::message(error))))
}

/// Leaves out the middle of a long message: the server repeats the whole object between the field and the reason.
fn shorten(message: &str) -> String {
    const ENDS: usize = 200;
    let chars: Vec<char> = message.chars().collect();
    if chars.len() <= 3 * ENDS {
        return message.to_owned();
    }
    let (start, end) = (&chars[..ENDS], &chars[chars.len() - ENDS..]);
    start.iter().chain(&[' ', '…', ' ']).chain(end).collect()
}

fn node_exists(exists: bool, node: &str) -> Result<(), Reason> {
    if exists { Ok(()) } else { Err(Reason::Request(format!("there is no node {node:?}"))) }
}

fn holds(condition: &Condition, object: Option<&Object>) -> bool {
    let Some(object) = object else { return condition.absent };
    if condition.absent {
        return false;
    }
    let has_condition = condition.condition.as_ref().is_none_or(|kind| {
        let all = object.at(&["status", "conditions"]).and_then(Value::as_array);
        all.into_iter().flatten().any(|c| c["type"] == kind.as_str() && c["status"] == "True")
    });
    let field = |path: &str| object.at(&path.split('.').collect::<Vec<_>>()).unwrap_or(&Value::Null);
    has_condition && condition.fields.iter().all(|(path, value)| field(path) == value)
}

async fn set_unschedulable(plane: &ControlPlane, node: &str, unschedulable: bool) -> Result<(), Reason> {
    let name = ObjectName::new("v1", "Node", node);
    let Some(api) = plane.api(&name.gvk(), "") else { return Ok(()) };
    let patch = Patch::Merge(json!({"spec": {"unschedulable": unschedulable}}));
    api.patch(node, &WriteOptions::default(), &patch).await.map(|_| ()).map_err(|e| request("cordon", &e))
}

/// Runs a scenario to its end. Must be called inside a runtime of one thread whose time is paused; see [`run`].
pub async fn run_here(scenario: &Scenario) -> Result<Report, Box<Failure>> {
    let mut run = Run::start(scenario).await?;
    run.steps().await?;
    Ok(run.report())
}

/// Runs a future in virtual time, on this thread.
pub fn in_virtual_time<T>(work: impl Future<Output = T>) -> std::io::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    Ok(runtime.block_on(work))
}

/// Runs a scenario to its end, in virtual time on this thread.
pub fn run(scenario: &Scenario) -> Result<Report, Box<Failure>> {
    match in_virtual_time(run_here(scenario)) {
        Ok(done) => done,
        Err(e) => Err(Box::new(Failure {
            step: 0,
            at: Duration::ZERO,
            down: Vec::new(),
            reason: Reason::Request(format!("cannot start a runtime: {e}")),
            scenario: scenario.to_yaml(),
        })),
    }
}
