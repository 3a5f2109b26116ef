//! The running scheduler: takes changes of the cluster, schedules pods and binds them.

use crate::changes::{Change, Changes};
use crate::cluster::Cluster;
use crate::configuration::{Configuration, ConfigurationError};
use crate::decisions::Decisions;
use crate::explainer::{self, Explainer, LastDecision};
use crate::extender::Extender;
use crate::framework::{Event, Plugin};
use crate::plugins::{Handle, Preempting, Reservations};
use crate::pod::Pod;
use crate::queue::{Frameworks, Queue};
use crate::scheduling::{Binding, Outcome};
use crate::subscriptions::Subscriptions;
use client::{Client, Informers, Recorder, Shutdown, Source};
use meta::{Clock, Rng};
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use supervisor::panics::{caught, caught_now};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// What a scheduler needs.
pub struct Options {
    /// A client with the scheduler's own identity.
    pub client: Client,
    pub informers: Informers,
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
    /// The host in its events.
    pub host: String,
    pub configuration: Configuration,
    /// Plugins that every profile calls before those of its configuration.
    pub plugins: Vec<Arc<dyn Plugin>>,
    /// Extenders that are called before those of the configuration.
    pub extenders: Vec<Extender>,
    /// The maximum number of concurrent bindings.
    pub bindings: usize,
    /// Takes the last decision about each pod that waits.
    pub decisions: Arc<Decisions>,
    /// Explains pods that wait, while the scheduler runs.
    pub explainer: Arc<Explainer>,
}

impl Options {
    pub fn new(client: Client, informers: Informers, clock: Arc<dyn Clock>, rng: Arc<dyn Rng>) -> Self {
        Self {
            client,
            informers,
            clock,
            rng,
            host: "kemudi".into(),
            configuration: Configuration::default(),
            plugins: Vec::new(),
            extenders: Vec::new(),
            bindings: 128,
            decisions: Arc::default(),
            explainer: Arc::default(),
        }
    }
}

pub(crate) struct Scheduler {
    pub options: Arc<Options>,
    pub frameworks: Arc<Frameworks>,
    /// In the order of their calls.
    pub extenders: Arc<[Extender]>,
    /// By scheduler name.
    pub recorders: Arc<HashMap<Arc<str>, Recorder>>,
    pub cluster: Cluster,
    pub queue: Queue,
    /// The index of the first node that the next decision filters.
    pub start: usize,
    /// The pods that count as placed until their binding is observed, by UID.
    pub bindings: HashMap<Arc<str>, Binding>,
    /// The pods whose victims are being evicted.
    pub preempting: Preempting,
    pub outcomes: mpsc::Sender<Outcome>,
    outcome: mpsc::Receiver<Outcome>,
    pub permits: Arc<Semaphore>,
}

/// Runs until shutdown.
pub fn run(options: Options, shutdown: Shutdown) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(async move {
        if let Err(e) = schedule(options, shutdown).await {
            tracing::error!("the scheduler cannot start: {e}");
        }
    })
}

/// Makes the frameworks of all profiles. Errors if the plugins of one do not make a framework.
pub fn frameworks(
    configuration: &Configuration,
    handle: &Handle,
    plugins: &[Arc<dyn Plugin>],
) -> Result<Frameworks, ConfigurationError> {
    let framework = |profile: &crate::configuration::Profile| {
        let mut framework = profile.framework(handle, plugins)?;
        framework.percentage = framework.percentage.or(configuration.percentage);
        Ok((profile.name.clone(), Arc::new(framework)))
    };
    configuration.profiles.iter().map(framework).collect()
}

async fn schedule(options: Options, shutdown: Shutdown) -> Result<(), ConfigurationError> {
    let changes = Arc::new(Changes::default());
    // A task sends one outcome, and holds its permit until that is in the channel.
    let (outcomes, outcome) = mpsc::channel(options.bindings.max(1));
    let preempting = Preempting::default();
    let recorder = |name: &Arc<str>| {
        let source = Source::scheduler(name, &options.host);
        (name.clone(), Recorder::start(&options.client, source, options.clock.clone(), shutdown.clone()))
    };
    let recorders: HashMap<_, _> = options.configuration.profiles.iter().map(|p| recorder(&p.name)).collect();
    let recorders = Arc::new(recorders);
    let handle = Handle {
        client: Some(options.client.clone()),
        preempting: preempting.clone(),
        clock: Some(options.clock.clone()),
        rng: Some(options.rng.clone()),
        recorders: recorders.clone(),
        reservations: Reservations::default(),
    };
    let frameworks = Arc::new(frameworks(&options.configuration, &handle, &options.plugins)?);
    let mut extenders = options.extenders.clone();
    extenders.extend(options.configuration.connect()?);
    // Until the scheduler ends: another one may be started after it.
    let mut subscriptions = Subscriptions::new(&options.informers, &changes);
    if shutdown.race(subscriptions.synced()).await.is_none() {
        return Ok(());
    }
    let mut profiles: Vec<String> = frameworks.keys().map(ToString::to_string).collect();
    profiles.sort_unstable();
    let mut requests = options.explainer.connect(profiles);
    let mut s = Scheduler {
        queue: Queue::new(frameworks.clone(), options.configuration.backoff),
        frameworks,
        permits: Arc::new(Semaphore::new(options.bindings)),
        options: Arc::new(options),
        extenders: extenders.into(),
        recorders,
        cluster: Cluster::default(),
        start: 0,
        bindings: HashMap::new(),
        preempting,
        outcomes,
        outcome,
    };
    let work = async {
        loop {
            // Apply all known changes before a decision.
            while let Some(change) = changes.take() {
                s.take_caught(change);
            }
            while let Ok(outcome) = s.outcome.try_recv() {
                s.finish_caught(outcome);
            }
            if let Ok(request) = requests.try_recv() {
                s.report_state(request);
            }
            if let Some(taken) = s.queue.pop() {
                // A pod whose scheduling panics is retried like one whose binding failed, and does not delay others.
                let (pod, again) = (taken.pod.key(), taken.clone());
                if caught("scheduler", pod, s.schedule(taken)).await.is_err() {
                    s.cluster.remove_pod(&again.pod.meta.uid);
                    s.bindings.remove(&again.pod.meta.uid);
                    s.queue.failed(again);
                }
                continue;
            }
            let due = s.queue.next_due();
            tokio::select! {
                biased;
                change = changes.next() => s.take_caught(change),
                outcome = s.outcome.recv() => match outcome {
                    Some(outcome) => s.finish_caught(outcome),
                    None => return,
                },
                Some(request) = requests.recv() => s.report_state(request),
                () = async {
                    match due {
                        Some(at) => tokio::time::sleep_until(at).await,
                        None => std::future::pending().await,
                    }
                } => {}
            }
        }
    };
    shutdown.race(work).await;
    Ok(())
}

impl Scheduler {
    fn take_caught(&mut self, change: Change) {
        let object = change.object();
        let _ = caught_now("scheduler", object, || self.take(change));
    }

    /// Copies what the scheduler knows of a pod, for an explanation.
    fn report_state(&self, request: explainer::Request) {
        let Some((pod, framework, position)) = self.queue.position(&request.uid) else { return };
        let last = self.options.decisions.get(&request.uid);
        let last = last.map(|(time, d)| LastDecision {
            time: meta::time::format(time),
            message: d.message(),
            extenders: d.extender_refusals.clone(),
        });
        let (cluster, time) = (self.cluster.clone(), self.options.clock.now());
        let state = explainer::State { cluster, pod, framework, time, position, last_decision: last };
        // The request may have timed out.
        let _ = request.reply.send(state);
    }

    fn finish_caught(&mut self, outcome: Outcome) {
        let pod = format!("pod {}", outcome.pod().key());
        let _ = caught_now("scheduler", pod, || self.finish(outcome));
    }

    /// Waits until another task may start. Takes outcomes meanwhile, whose senders hold permits.
    pub async fn permit(&mut self) -> Option<OwnedSemaphorePermit> {
        let permit = self.permits.clone().acquire_owned();
        tokio::pin!(permit);
        loop {
            tokio::select! {
                permit = &mut permit => return permit.ok(),
                Some(outcome) = self.outcome.recv() => self.finish_caught(outcome),
            }
        }
    }

    fn take(&mut self, change: Change) {
        match change {
            Change::Node { old, new } => match (old, new) {
                (old, Some(new)) => {
                    self.cluster.set_node(new.clone());
                    match &old {
                        None => self.queue.handle_event(&Event::NodeAdded(&new)),
                        Some(old) => self.queue.handle_event(&Event::NodeChanged { old, new: &new }),
                    }
                }
                (Some(old), None) => {
                    self.cancel_waits(&old.meta.name);
                    self.cluster.remove_node(&old.meta.name);
                }
                (None, None) => {}
            },
            Change::Namespace { name, new, .. } => match new {
                Some(labels) => {
                    self.cluster.set_namespace(&name, labels);
                    self.queue.handle_event(&Event::NamespaceChanged);
                }
                None => self.cluster.remove_namespace(&name),
            },
            Change::Pod { old, new } => self.pod_changed(old, new),
            Change::Dependency { old, new } => match (old, new) {
                (_, Some(new)) => {
                    let read = new.read();
                    new.set(&mut self.cluster);
                    if let Some(read) = read {
                        self.queue.handle_event(&Event::DependencyChanged(read));
                    }
                }
                (Some(old), None) => {
                    old.remove(&mut self.cluster);
                    if let Some(read) = old.read() {
                        self.queue.handle_event(&Event::DependencyChanged(read));
                    }
                }
                (None, None) => {}
            },
        }
    }

    /// Ends the wait of pods for Permit plugins whose node is gone.
    fn cancel_waits(&mut self, node: &str) {
        let pods = self.cluster.node(node).map_or(&[][..], |n| &n.pods);
        for pod in pods {
            if let Some(wait) = self.bindings.get_mut(&pod.meta.uid).and_then(|b| b.wait.take()) {
                let _ = wait.send("node is gone");
            }
        }
    }

    fn pod_changed(&mut self, old: Option<Arc<Pod>>, new: Option<Arc<Pod>>) {
        match new {
            Some(p) if p.view.is_terminal() => self.gone(&p),
            Some(p) if !p.view.node_name.is_empty() => {
                self.queue.remove(&p.meta.uid);
                self.bindings.remove(&p.meta.uid);
                self.options.decisions.remove(&p.meta.uid);
                self.cluster.nominations_mut().remove(&p.meta.uid);
                // An assumed pod counts as placed once the binding is observed.
                let known = self.cluster.pod(&p.meta.uid).is_some_and(|p| !p.view.node_name.is_empty());
                let node = p.view.node_name.clone();
                self.cluster.add_pod(p.clone(), &node);
                match &old {
                    _ if !known => self.queue.handle_event(&Event::PodPlaced(&p)),
                    Some(old) => self.queue.handle_event(&Event::PodChanged { old, new: &p }),
                    None => {}
                }
            }
            Some(p) => {
                self.renominate(old.as_deref(), &p);
                let ours = self.frameworks.contains_key(&*p.view.scheduler_name) && !p.meta.is_deleting();
                if !ours {
                    self.queue.remove(&p.meta.uid);
                    self.bindings.remove(&p.meta.uid);
                } else if let Some(binding) = self.bindings.get_mut(&p.meta.uid) {
                    binding.changed = Some(p);
                } else if !self.cluster.is_placed(&p.meta.uid) {
                    self.queue.add(p);
                }
            }
            None => {
                if let Some(p) = old {
                    self.gone(&p);
                }
            }
        }
    }

    /// Takes the nomination of a changed pod. A node that it gives up may have room for others.
    fn renominate(&mut self, old: Option<&Pod>, new: &Arc<Pod>) {
        if self.cluster.is_placed(&new.meta.uid) {
            return;
        }
        let before = self.cluster.nominations().node_of(&new.meta.uid).cloned();
        self.cluster.nominations_mut().update(old, new);
        if before.is_some() && before.as_ref() != self.cluster.nominations().node_of(&new.meta.uid) {
            self.queue.handle_event(&Event::PodGone(new));
        }
    }

    fn gone(&mut self, p: &Arc<Pod>) {
        self.options.decisions.remove(&p.meta.uid);
        self.queue.remove(&p.meta.uid);
        self.bindings.remove(&p.meta.uid);
        let nominated = self.cluster.nominations().node_of(&p.meta.uid).is_some();
        self.cluster.nominations_mut().remove(&p.meta.uid);
        if self.cluster.remove_pod(&p.meta.uid) || nominated {
            self.queue.handle_event(&Event::PodGone(p));
        }
    }
}
