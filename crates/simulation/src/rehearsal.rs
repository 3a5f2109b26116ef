//! Rehearsals: a scenario against a copy of a user's objects, and what would become unavailable.
//!
//! The copy is loaded and comes to rest first; what happens then is measured from the first step on.

use crate::assumptions::Assumptions;
use crate::copy::{Copy, calls_out, left_out, may_call_out};
use crate::driver::{Failure, Reason, Rehearsed, Run, in_virtual_time};
use crate::journal::{Journal, Note};
use crate::node_spec::{NodeSpec, ZONE};
use crate::recorder::Recorder;
use crate::references;
use crate::report::{Basis, Rehearsal, Verdict, duration};
use crate::requests;
use crate::scenario::{Scenario, Step};
use crate::trace::Trace;
use crate::volumes;
use auth::user::GROUP_MASTERS;
use meta::Value;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long nothing must be written before the first step, and how long that is waited for.
const CALM: Duration = Duration::from_secs(30);
const CALM_WITHIN: Duration = Duration::from_secs(1800);
/// How long nothing must be written at the end: more than the five minutes for which pods tolerate silent nodes.
const QUIET: Duration = Duration::from_secs(360);
/// How often nodes report their status, as kubelets do.
const STATUS: Duration = Duration::from_secs(300);
const HOST: &str = "kubernetes.io/hostname";
/// The nodes if neither the scenario nor the copy has any.
const DEFAULT_NODES: u32 = 3;

/// How a rehearsal is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// How much virtual time the steps may take.
    pub timeout: Duration,
    /// How far it is; stops it early.
    pub progress: Arc<Progress>,
}

/// How far a rehearsal is. Another thread may read it, and stop the rehearsal.
#[derive(Debug, Default)]
pub struct Progress {
    stopped: AtomicBool,
    phase: Mutex<String>,
}

impl Progress {
    /// Stops the rehearsal at the next check, as unfinished.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Sets what it does now.
    pub fn set_phase(&self, phase: String) {
        *self.phase.lock() = phase;
    }

    /// What it does now, such as `loading object 5 of 10`.
    pub fn phase(&self) -> String {
        self.phase.lock().clone()
    }
}

impl Default for Options {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(4 * 3600), progress: Arc::default() }
    }
}

/// Why nothing was rehearsed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The scenario or the copy is wrong.
    #[error("{}", .0.join("\n"))]
    Input(Vec<String>),
    /// It was stopped before its first step.
    #[error("stopped while {0}")]
    Stopped(String),
    #[error("cannot start a runtime: {0}")]
    Runtime(#[from] std::io::Error),
}

fn input(problem: impl ToString) -> Error {
    Error::Input(vec![problem.to_string()])
}

/// Rehearses a scenario in virtual time, on this thread.
pub fn rehearse(scenario: Scenario, copy: &Copy, options: &Options) -> Result<Rehearsal, Error> {
    in_virtual_time(rehearse_here(scenario, copy, options))?
}

async fn rehearse_here(mut scenario: Scenario, copy: &Copy, options: &Options) -> Result<Rehearsal, Error> {
    let mut notes = copy.notes.clone();
    let assumptions = scenario.assume.get_or_insert_default().clone();
    if let Some(taken) = copy.taken {
        // Then no time of the copy lies in the future, and schedules are due when they are due in the cluster.
        scenario.start.get_or_insert(taken);
    }
    if scenario.nodes.is_empty() && !copy.is_live() {
        let zones = ["zone-1", "zone-2", "zone-3"].map(str::to_owned).to_vec();
        let spec = NodeSpec { count: Some(DEFAULT_NODES), memory: "32Gi".into(), zones, ..NodeSpec::new("node", "8") };
        notes.push(format!(
            "the scenario has no nodes: {DEFAULT_NODES} are assumed, node-1 to node-{DEFAULT_NODES}, each with 8 CPUs and 32 GiB in a zone of its own"
        ));
        scenario.nodes.push(spec);
    }
    let live: Vec<&str> = copy.sources.iter().filter(|s| s.object.kind() == "Node").map(|s| s.object.name()).collect();
    let names: Vec<String> =
        scenario.node_specs().iter().map(|n| n.name.clone()).chain(live.iter().map(|n| (*n).to_owned())).collect();
    scenario.validate_with(&names).map_err(input)?;
    label_nodes(&mut scenario);
    let specs = scenario.node_specs();
    references::check(&scenario, copy, &specs).map_err(input)?;
    for (i, step) in scenario.steps.iter().enumerate() {
        let object =
            scenario.objects(step).into_iter().find(|o| calls_out(o)).map(|o| o["kind"].as_str().unwrap_or_default());
        let patched = match step {
            Step::Patch { object, patch } if may_call_out(&object.kind, patch) => Some(&*object.kind),
            _ => None,
        };
        if let Some(kind) = object.or(patched) {
            return Err(input(format!("steps[{i}]: {kind}: nothing outside the simulation is called")));
        }
    }
    if let Some(twice) = specs.iter().find(|n| live.contains(&&*n.name)) {
        return Err(input(format!("nodes: the cluster has a node {:?} already", twice.name)));
    }
    if names.is_empty() {
        notes.push("there are no nodes: no pod can run".into());
    }

    let (cluster, mut plane) = Run::prepare(&scenario).await;
    let trace = Trace::start(&cluster.server.registry, false);
    let journal = Journal::since(trace.begun());
    let client = cluster.client(auth::User::new("system:admin", &[GROUP_MASTERS])).with_user_agent("scenario");
    let loaded = copy.load(&cluster, client.clone(), &options.progress).await;
    if options.progress.is_stopped() {
        return Err(Error::Stopped(options.progress.phase()));
    }
    let loaded = loaded.map_err(Error::Input)?;
    notes.extend(loaded.notes);
    notes.extend(left_out_of_steps(&scenario, &cluster));
    plane.journal = Some(journal.clone());
    plane.status_period = STATUS;
    let recorder = Recorder::new(journal.clone(), scenario.expect.clone(), scenario.ignore_budgets);
    let progress = options.progress.clone();
    progress.set_phase("bringing the copy to rest".into());
    let rehearsed = Rehearsed { recorder, journal: journal.clone(), limit: Duration::MAX, begun: None, progress };
    let mut run = Run::begin(&scenario, cluster, plane, trace, Some(rehearsed)).await;
    run.plane.nodes.adopt(loaded.running);
    for spec in &specs {
        run.plane.add_node(spec).await.map_err(|e| input(format!("node {}: {e}", spec.name)))?;
    }
    loaded.nodes.iter().for_each(|node| run.plane.attach_node(node));
    loaded.down.iter().for_each(|node| run.plane.attach_failed_node(node));
    if assumptions.bind_volumes {
        tokio::spawn(volumes::bind(client, run.plane.informers().clone()));
    }

    if let Err(failure) = run.wait_until_quiet(CALM, CALM_WITHIN).await {
        if options.progress.is_stopped() {
            return Err(Error::Stopped(options.progress.phase()));
        }
        notes.push(format!("the copy had not come to rest before the first step: {}", failure.reason));
    }
    for (i, expectation) in scenario.expect.iter().enumerate() {
        if let Some((field, name)) = expectation.object() {
            let api = run.plane.api(&name.gvk(), &name.namespace);
            let exists = match api {
                Some(api) => api.get_opt(&name.name).await.ok().flatten().is_some(),
                None => false,
            };
            if !exists {
                return Err(input(format!("expect[{i}].{field}: there is no {name}")));
            }
        }
    }
    let begun = run.trace.elapsed();
    journal.write(Note::Begin);
    run.begin_steps(begun, begun.saturating_add(options.timeout));
    let ended = finish(&mut run, &scenario, begun, options).await;
    let elapsed = run.trace.elapsed();
    let mut stopped = false;
    let problem = match ended {
        Ok(()) => None,
        Err(failure) => match failure.reason {
            Reason::Request(problem) => return Err(input(format!("steps[{}]: {problem}", failure.step))),
            Reason::Unmet { condition, within, .. } => {
                let step = failure.step;
                journal.write(Note::Failed(format!(
                    "steps[{step}]: {condition} does not hold within {}",
                    duration(within)
                )));
                None
            }
            Reason::Stopped(phase) => {
                stopped = true;
                Some(format!("The rehearsal was stopped before its end, {phase}."))
            }
            Reason::TooManyPods(_) | Reason::Invariant { .. } => Some(failure.reason.to_string()),
            Reason::Restless { last, .. } => Some(unfinished(&scenario, failure.step, options, &last)),
        },
    };
    let basis = basis(copy, &scenario, &assumptions, notes);
    let Some(recorder) = run.take_recorder() else { return Err(input("nothing was recorded")) };
    let mut rehearsal = Rehearsal::new(recorder, begun, elapsed, scenario.seed, basis);
    if problem.is_some() {
        rehearsal.verdict = Verdict::Unfinished;
        rehearsal.problem = problem;
        rehearsal.stopped = stopped;
    }
    Ok(rehearsal)
}

/// The custom resources of steps that no definition of the copy or of a step serves.
fn left_out_of_steps(scenario: &Scenario, cluster: &testkit::Cluster) -> Vec<String> {
    let objects: Vec<&Value> = scenario.steps.iter().flat_map(|step| scenario.objects(step)).collect();
    let groups = objects.iter().filter(|o| o["kind"] == "CustomResourceDefinition");
    let groups: BTreeSet<&str> = groups.filter_map(|o| o["spec"]["group"].as_str()).collect();
    let mut undefined: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for object in objects {
        let gvk = requests::gvk(object);
        if !groups.contains(&*gvk.group) && requests::is_undefined_custom(cluster, &gvk) {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            undefined.entry(format!("{} of {}", gvk.kind, gvk.api_version())).or_default().push(name.to_owned());
        }
    }
    undefined.iter().map(|(kind, names)| left_out(kind, names)).collect()
}

/// Executes the steps, and lets time pass until nothing more happens unless the last step did.
async fn finish(run: &mut Run, scenario: &Scenario, begun: Duration, options: &Options) -> Result<(), Box<Failure>> {
    run.steps().await?;
    match scenario.steps.last() {
        Some(Step::Advance(_) | Step::WaitFor(_) | Step::Settle { .. } | Step::Rest { .. }) => Ok(()),
        _ => {
            let left = begun.saturating_add(options.timeout).saturating_sub(run.trace.elapsed());
            run.wait_until_quiet(QUIET, left).await
        }
    }
}

fn unfinished(scenario: &Scenario, step: usize, options: &Options, last: &str) -> String {
    let step = scenario.steps.get(step).map(|s| format!("steps[{step}] ({})", s.describe())).unwrap_or_default();
    let timeout = duration(options.timeout);
    format!(
        "After {timeout}, the timeout, the rehearsal had not come to rest; it was at {step}. A longer timeout allows more. The last writes: {last}"
    )
}

/// Nodes have the labels that kubelets set.
fn label_nodes(scenario: &mut Scenario) {
    scenario.nodes = scenario.node_specs();
    for node in &mut scenario.nodes {
        let name = node.name.clone();
        node.labels.entry(HOST.into()).or_insert(name);
        node.labels.entry("kubernetes.io/os".into()).or_insert_with(|| "linux".into());
        node.labels.entry("kubernetes.io/arch".into()).or_insert_with(|| "amd64".into());
        node.version.get_or_insert_with(|| meta::KUBERNETES_VERSION.to_owned());
    }
}

fn basis(copy: &Copy, scenario: &Scenario, assumptions: &Assumptions, notes: Vec<String>) -> Basis {
    let mut copied = copy.described.clone();
    if !scenario.nodes.is_empty() {
        let zone = |n: &NodeSpec| n.labels.get(ZONE).cloned();
        let mut zones: Vec<String> = scenario.nodes.iter().filter_map(zone).collect();
        zones.sort();
        zones.dedup();
        let zones = if zones.is_empty() { String::new() } else { format!(" in {}", zones.join(", ")) };
        copied.push(format!("{} nodes of the scenario{zones}", scenario.nodes.len()));
    }
    let text = |lines: &[&str]| lines.iter().map(|l| (*l).to_owned()).collect();
    let version = meta::KUBERNETES_VERSION;
    Basis {
        copied,
        real: vec![format!(
            "API server, admission, controllers and scheduler of Kubernetes {version}, in virtual time"
        )],
        assumed: assumptions.lines(),
        missing: text(&[
            "images are not run: no probes, no crashes other than those that are assumed, no restarts of containers",
            "the network: services have endpoints, but no traffic flows",
            "CPU and memory use: autoscalers keep their replicas unless the scenario sets a load",
            "admission webhooks, aggregated APIs, operators and controllers of custom resources",
            "the autoscaling of nodes",
        ]),
        notes,
    }
}
