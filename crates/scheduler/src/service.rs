//! The running scheduler: events in, bindings out.

use crate::changes::{Change, Changes};
use crate::cluster::{Cluster, NodeEntry, NodeInfo};
use crate::decide::{Decision, decide};
use crate::framework::{Event, Plugin};
use crate::plugins::default_plugins;
use crate::pod::{Pod, PodInfo};
use crate::queue::{Queue, Taken};
use client::{
    ApiResource, Client, Error, Informers, Patch, Recorder, Regarding, Scope, Severity, Shutdown, Source, WriteOptions,
};
use k8s_openapi::api::core::v1 as core;
use meta::{Clock, Object, Rng};
use serde_json::json;
use std::pin::Pin;
use std::sync::Arc;
use supervisor::panics::{caught, caught_now};
use tokio::sync::{Semaphore, mpsc};

/// What a scheduler is made of.
pub struct Options {
    /// Under the scheduler's own identity.
    pub client: Client,
    pub informers: Informers,
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
    /// The `schedulerName` of the pods it cares for.
    pub name: String,
    /// Where it runs, for its events.
    pub host: String,
    pub plugins: Vec<Box<dyn Plugin>>,
    /// Bindings on their way at a time.
    pub bindings: usize,
}

impl Options {
    pub fn new(client: Client, informers: Informers, clock: Arc<dyn Clock>, rng: Arc<dyn Rng>) -> Self {
        Self {
            client,
            informers,
            clock,
            rng,
            name: "default-scheduler".into(),
            host: "kemudi".into(),
            plugins: default_plugins(),
            bindings: 128,
        }
    }
}

/// A binding that failed.
struct Failed {
    taken: Taken,
    error: Error,
}

struct Scheduler {
    options: Arc<Options>,
    recorder: Recorder,
    cluster: Cluster,
    queue: Queue,
    /// Where the next decision begins among the nodes.
    start: usize,
    failures: mpsc::Sender<Failed>,
    permits: Arc<Semaphore>,
}

/// Runs until shutdown.
pub fn run(options: Options, shutdown: Shutdown) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(schedule(options, shutdown))
}

async fn schedule(options: Options, shutdown: Shutdown) {
    let changes = Arc::new(Changes::default());
    // A binding on its way fails at most once, and holds its permit until the failure is here.
    let (failures, mut failed) = mpsc::channel(options.bindings.max(1));
    let source = Source::scheduler(&options.name, &options.host);
    let recorder = Recorder::start(&options.client, source, options.clock.clone(), shutdown.clone());

    let pods = options.informers.of::<core::Pod, PodInfo>();
    let nodes = options.informers.of::<core::Node, NodeInfo>();
    let namespaces = options
        .informers
        .informer::<()>(&ApiResource::of::<core::Namespace>(), &Scope { metadata_only: true, ..Scope::default() });
    let all = changes.clone();
    nodes.on_change(move |c| {
        all.add(Change::Node { old: c.old.clone(), new: c.new.clone() });
    });
    let all = changes.clone();
    namespaces.on_change(move |c| {
        let new = c.new.as_ref().map(|n| n.meta.labels.clone());
        all.add(Change::Namespace { name: c.latest().meta.name.clone(), old: c.old.is_some(), new });
    });
    let all = changes.clone();
    pods.on_change(move |c| {
        all.add(Change::Pod { old: c.old.clone(), new: c.new.clone() });
    });
    let ready = async {
        nodes.synced().await;
        namespaces.synced().await;
        pods.synced().await;
    };
    if shutdown.race(ready).await.is_none() {
        return;
    }
    let mut s = Scheduler {
        permits: Arc::new(Semaphore::new(options.bindings)),
        options: Arc::new(options),
        recorder,
        cluster: Cluster::default(),
        queue: Queue::default(),
        start: 0,
        failures,
    };
    let work = async {
        loop {
            // Everything that is known goes before the next decision.
            while let Some(change) = changes.take() {
                s.take_caught(change);
            }
            while let Ok(failure) = failed.try_recv() {
                s.fail_caught(failure);
            }
            if let Some(taken) = s.queue.pop() {
                // A pod that cannot even be decided on comes again as after a failed binding, and keeps nobody else waiting.
                let (pod, again) = (taken.pod.key(), taken.clone());
                if caught("scheduler", pod, s.schedule(taken)).await.is_err() {
                    s.cluster.remove_pod(&again.pod.meta.uid);
                    s.queue.failed(again);
                }
                continue;
            }
            let due = s.queue.next_due();
            tokio::select! {
                biased;
                change = changes.next() => s.take_caught(change),
                failure = failed.recv() => match failure {
                    Some(failure) => s.fail_caught(failure),
                    None => return,
                },
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
}

impl Scheduler {
    fn take_caught(&mut self, change: Change) {
        let object = change.object();
        let _ = caught_now("scheduler", object, || self.take(change));
    }

    fn fail_caught(&mut self, Failed { taken, error }: Failed) {
        let pod = format!("pod {}", taken.pod.key());
        let _ = caught_now("scheduler", pod, || self.binding_failed(taken, &error));
    }

    fn take(&mut self, change: Change) {
        let plugins = &self.options.plugins;
        match change {
            Change::Node { old, new } => match (old, new) {
                (old, Some(new)) => {
                    self.cluster.set_node(new.clone());
                    match &old {
                        None => self.queue.happened(plugins, &Event::NodeAdded(&new)),
                        Some(old) if matters(old, &new) => {
                            self.queue.happened(plugins, &Event::NodeChanged { old, new: &new });
                        }
                        Some(_) => {}
                    }
                }
                (Some(old), None) => self.cluster.remove_node(&old.meta.name),
                (None, None) => {}
            },
            Change::Namespace { name, new, .. } => match new {
                Some(l) => self.cluster.set_namespace(&name, l),
                None => self.cluster.remove_namespace(&name),
            },
            Change::Pod { old, new } => self.pod_changed(old, new),
        }
    }

    fn pod_changed(&mut self, old: Option<Arc<Pod>>, new: Option<Arc<Pod>>) {
        let plugins = &self.options.plugins;
        match new {
            Some(p) if p.view.is_terminal() => self.gone(&p),
            Some(p) if !p.view.node_name.is_empty() => {
                self.queue.remove(&p.meta.uid);
                let known = self.cluster.is_placed(&p.meta.uid);
                let node = p.view.node_name.clone();
                let smaller =
                    old.as_ref().is_some_and(|o| o.view.requests != p.view.requests || o.meta.labels != p.meta.labels);
                self.cluster.place(p.clone(), &node);
                if !known {
                    self.queue.happened(plugins, &Event::PodPlaced(&p));
                } else if smaller {
                    self.queue.happened(plugins, &Event::PodChanged(&p));
                }
            }
            Some(p) => {
                let ours = *p.view.scheduler_name == *self.options.name && !p.view.gated && !p.meta.is_deleting();
                if !ours {
                    self.queue.remove(&p.meta.uid);
                } else if !self.cluster.is_placed(&p.meta.uid) {
                    let changed = old.is_some_and(|o| o.meta.labels != p.meta.labels || wishes_changed(&o, &p));
                    self.queue.add(p, changed);
                }
            }
            None => {
                if let Some(p) = old {
                    self.gone(&p);
                }
            }
        }
    }

    fn gone(&mut self, p: &Arc<Pod>) {
        self.queue.remove(&p.meta.uid);
        if self.cluster.remove_pod(&p.meta.uid) {
            self.queue.happened(&self.options.plugins, &Event::PodGone(p));
        }
    }

    async fn schedule(&mut self, taken: Taken) {
        let d = decide(&self.options.plugins, &taken.pod, &self.cluster, self.start, &*self.options.rng);
        let slots = self.cluster.nodes().len().max(1);
        self.start = (self.start + d.asked) % slots;
        match &d.node {
            Some(node) => {
                let node = node.clone();
                self.cluster.place(taken.pod.clone(), &node);
                self.bind(taken, node).await;
            }
            None => self.refuse(taken, &d).await,
        }
    }

    /// Sends the binding and goes on; the pod counts on its node meanwhile.
    async fn bind(&self, taken: Taken, node: Arc<str>) {
        let Ok(permit) = self.permits.clone().acquire_owned().await else { return };
        let (options, recorder, failures) = (self.options.clone(), self.recorder.clone(), self.failures.clone());
        tokio::spawn(async move {
            let m = &taken.pod.meta;
            let pods = options.client.api::<core::Pod>().namespace(&m.namespace);
            match pods.bind(&m.name, &m.uid, &node).await {
                Ok(_) => {
                    let text = format!("Successfully assigned {}/{} to {node}", m.namespace, m.name);
                    recorder.action(Regarding::of("v1", "Pod", m), Severity::Normal, "Scheduled", "Binding", text);
                }
                Err(error) => {
                    let _ = failures.send(Failed { taken, error }).await;
                }
            }
            drop(permit);
        });
    }

    fn binding_failed(&mut self, taken: Taken, error: &Error) {
        let pod = taken.pod.clone();
        // What is known of the pod by now is truer than what was assumed: it may be gone, or bound after all.
        let assumed = self.cluster.pod(&pod.meta.uid).is_some_and(|p| p.view.node_name.is_empty());
        if !assumed {
            return;
        }
        self.cluster.remove_pod(&pod.meta.uid);
        self.queue.happened(&self.options.plugins, &Event::PodGone(&pod));
        if error.is_not_found() {
            return;
        }
        let text = format!("running Bind plugin \"DefaultBinder\": {error}");
        let about = Regarding::of("v1", "Pod", &pod.meta);
        self.recorder.action(about, Severity::Warning, "FailedScheduling", "Scheduling", text);
        self.queue.failed(taken);
    }

    /// Tells why no node will do, on the pod and in an event.
    async fn refuse(&mut self, taken: Taken, d: &Decision) {
        let message = d.message();
        let pod = taken.pod.clone();
        self.queue.refused(taken, d.refused_by());
        let about = Regarding::of("v1", "Pod", &pod.meta);
        self.recorder.action(about, Severity::Warning, "FailedScheduling", "Scheduling", message.as_str());
        let (options, permits) = (self.options.clone(), self.permits.clone());
        let Ok(permit) = permits.acquire_owned().await else { return };
        tokio::spawn(async move {
            if let Err(e) = write_condition(&options, &pod, &message).await
                && !e.is_not_found()
            {
                tracing::debug!(pod = %pod.key(), "telling that it is unschedulable: {e}");
            }
            drop(permit);
        });
    }
}

async fn write_condition(options: &Options, pod: &Pod, message: &str) -> Result<(), Error> {
    let now: Object = pod.decode()?;
    let old = now
        .at(&["status", "conditions"])
        .and_then(|c| c.as_array()?.iter().find(|c| c["type"] == "PodScheduled").cloned());
    let same = |k: &str, v: &str| old.as_ref().is_some_and(|o| o[k] == v);
    if same("status", "False") && same("reason", "Unschedulable") && same("message", message) {
        return Ok(());
    }
    let mut condition = json!({
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
    });
    if pod.meta.generation > 0 {
        condition["observedGeneration"] = pod.meta.generation.into();
    }
    condition["lastTransitionTime"] = match &old {
        Some(o) if o["status"] == "False" => o["lastTransitionTime"].clone(),
        _ => meta::time::format(options.clock.now()).into(),
    };
    let patch = Patch::Strategic(json!({"metadata": {"uid": &*pod.meta.uid}, "status": {"conditions": [condition]}}));
    let pods = options.client.dynamic(&ApiResource::of::<core::Pod>()).namespace(&pod.meta.namespace);
    pods.patch_status(&pod.meta.name, &WriteOptions::default(), &patch).await.map(|_| ())
}

/// Whether a node changed in what decisions read; its heartbeats do not.
fn matters(old: &NodeEntry, new: &NodeEntry) -> bool {
    old.meta.labels != new.meta.labels
        || old.view.unschedulable != new.view.unschedulable
        || old.view.taints != new.view.taints
        || old.view.allocatable != new.view.allocatable
}

/// Whether an unassigned pod was changed in what may be changed then.
fn wishes_changed(old: &Pod, new: &Pod) -> bool {
    old.view.tolerations != new.view.tolerations
        || old.view.requests != new.view.requests
        || old.view.gated != new.view.gated
        || old.view.affinity != new.view.affinity
}
