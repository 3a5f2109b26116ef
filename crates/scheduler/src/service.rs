//! The running scheduler: takes changes of the cluster, schedules pods and binds them.

use crate::binding::{self, BindingError};
use crate::changes::{Change, Changes};
use crate::cluster::{Cluster, NodeInfo};
use crate::decide::decide;
use crate::decision::Decision;
use crate::framework::{Event, Framework, Nomination, Plugin};
use crate::plugins::default_plugins;
use crate::pod::{Pod, PodInfo};
use crate::queue::{Queue, Taken};
use client::{
    ApiResource, Client, DeleteOptions, Error, Informers, Patch, Recorder, Regarding, Scope, Severity, Shutdown,
    Source, WriteOptions,
};
use k8s_openapi::api::core::v1 as core;
use meta::{Clock, Object, Rng};
use serde_json::json;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use supervisor::panics::{caught, caught_now};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

/// What a scheduler needs.
pub struct Options {
    /// A client with the scheduler's own identity.
    pub client: Client,
    pub informers: Informers,
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
    /// The `schedulerName` of the pods that it schedules.
    pub name: String,
    /// The host in its events.
    pub host: String,
    pub plugins: Vec<Box<dyn Plugin>>,
    /// The maximum number of concurrent bindings.
    pub bindings: usize,
}

impl Options {
    pub fn new(client: Client, informers: Informers, clock: Arc<dyn Clock>, rng: Arc<dyn Rng>) -> Self {
        Self {
            plugins: default_plugins(&client),
            client,
            informers,
            clock,
            rng,
            name: "default-scheduler".into(),
            host: "kemudi".into(),
            bindings: 128,
        }
    }
}

/// A binding that failed.
struct Failed {
    taken: Taken,
    node: Arc<str>,
    error: BindingError,
}

/// The binding of a pod.
struct Binding {
    /// Dropped when the pod needs no binding any more.
    _wait: oneshot::Sender<()>,
    /// The pod as it was changed since.
    changed: Option<Arc<Pod>>,
}

struct Scheduler {
    options: Arc<Options>,
    framework: Arc<Framework>,
    recorder: Recorder,
    cluster: Cluster,
    queue: Queue,
    /// The index of the first node that the next decision filters.
    start: usize,
    /// The pods that count as placed until their binding is observed, by UID.
    bindings: HashMap<Arc<str>, Binding>,
    failures: mpsc::Sender<Failed>,
    failed: mpsc::Receiver<Failed>,
    permits: Arc<Semaphore>,
}

/// Runs until shutdown.
pub fn run(options: Options, shutdown: Shutdown) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(schedule(options, shutdown))
}

async fn schedule(mut options: Options, shutdown: Shutdown) {
    let changes = Arc::new(Changes::default());
    // A binding fails at most once, and holds its permit until the failure is in the channel.
    let (failures, failed) = mpsc::channel(options.bindings.max(1));
    let source = Source::scheduler(&options.name, &options.host);
    let recorder = Recorder::start(&options.client, source, options.clock.clone(), shutdown.clone());

    let pods = options.informers.typed::<core::Pod, PodInfo>();
    let nodes = options.informers.typed::<core::Node, NodeInfo>();
    let namespaces = options
        .informers
        .informer::<()>(&ApiResource::typed::<core::Namespace>(), &Scope { metadata_only: true, ..Scope::default() });
    // Until the scheduler ends: another one may be started after it.
    let all = changes.clone();
    let _nodes = nodes.subscribe(move |c| {
        all.add(Change::Node { old: c.old.clone(), new: c.new.clone() });
    });
    let all = changes.clone();
    let _namespaces = namespaces.subscribe(move |c| {
        let new = c.new.as_ref().map(|n| n.meta.labels.clone());
        all.add(Change::Namespace { name: c.latest().meta.name.clone(), old: c.old.is_some(), new });
    });
    let all = changes.clone();
    let _pods = pods.subscribe(move |c| {
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
    let framework = Arc::new(Framework::new(std::mem::take(&mut options.plugins)));
    let mut s = Scheduler {
        queue: Queue::new(framework.clone()),
        framework,
        permits: Arc::new(Semaphore::new(options.bindings)),
        options: Arc::new(options),
        recorder,
        cluster: Cluster::default(),
        start: 0,
        bindings: HashMap::new(),
        failures,
        failed,
    };
    let work = async {
        loop {
            // Apply all known changes before a decision.
            while let Some(change) = changes.take() {
                s.take_caught(change);
            }
            while let Ok(failure) = s.failed.try_recv() {
                s.fail_caught(failure);
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
                failure = s.failed.recv() => match failure {
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

    fn fail_caught(&mut self, failed: Failed) {
        let pod = format!("pod {}", failed.taken.pod.key());
        let _ = caught_now("scheduler", pod, || self.binding_failed(failed));
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
        match new {
            Some(p) if p.view.is_terminal() => self.gone(&p),
            Some(p) if !p.view.node_name.is_empty() => {
                self.queue.remove(&p.meta.uid);
                self.bindings.remove(&p.meta.uid);
                let known = self.cluster.is_placed(&p.meta.uid);
                let node = p.view.node_name.clone();
                self.cluster.add_pod(p.clone(), &node);
                match &old {
                    _ if !known => self.queue.handle_event(&Event::PodPlaced(&p)),
                    Some(old) => self.queue.handle_event(&Event::PodChanged { old, new: &p }),
                    None => {}
                }
            }
            Some(p) => {
                let ours = *p.view.scheduler_name == *self.options.name && !p.meta.is_deleting();
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

    fn gone(&mut self, p: &Arc<Pod>) {
        self.queue.remove(&p.meta.uid);
        self.bindings.remove(&p.meta.uid);
        if self.cluster.remove_pod(&p.meta.uid) {
            self.queue.handle_event(&Event::PodGone(p));
        }
    }

    async fn schedule(&mut self, taken: Taken) {
        let pod = taken.pod.clone();
        let mut d = decide(&self.framework, &pod, &self.cluster, self.start, &*self.options.rng);
        let slots = self.cluster.nodes().len().max(1);
        self.start = (self.start + d.evaluated) % slots;
        let Some(node) = d.node.clone() else {
            let nomination = self.framework.plugins().find_map(|p| p.post_filter(&pod, &self.cluster, &d));
            return self.refuse(taken, &d, nomination).await;
        };
        match self.framework.reserve(&pod, &node) {
            Ok(()) => {
                self.cluster.add_pod(pod, &node);
                self.bind(taken, node).await;
            }
            Err(refusal) => {
                d.pod_refusal = Some(refusal);
                self.refuse(taken, &d, None).await;
            }
        }
    }

    /// Starts the binding. The pod counts as placed meanwhile. One that waits for a Permit plugin takes no place among the bindings.
    async fn bind(&mut self, taken: Taken, node: Arc<str>) {
        let (wait, cancelled) = oneshot::channel();
        self.bindings.insert(taken.pod.meta.uid.clone(), Binding { _wait: wait, changed: None });
        let waits = caught_now("scheduler", taken.pod.key(), || binding::permits(&self.framework, &taken.pod, &node));
        let Ok(waits) = waits else {
            return self.binding_failed(Failed { taken, node, error: BindingError::Panicked });
        };
        let permit = match waits.is_empty() {
            true => Some(self.permit().await),
            false => None,
        };
        let permits = self.permits.clone();
        let (framework, recorder, failures) = (self.framework.clone(), self.recorder.clone(), self.failures.clone());
        tokio::spawn(async move {
            let pod = &taken.pod;
            let bound = async {
                let (permit, permitted) = match permit {
                    Some(permit) => (permit, Ok(())),
                    None => {
                        let permitted = caught("scheduler", pod.key(), binding::permitted(waits, cancelled)).await;
                        (permits.acquire_owned().await.ok(), permitted.unwrap_or(Err(BindingError::Panicked)))
                    }
                };
                let bound = match permitted {
                    Ok(()) => caught("scheduler", pod.key(), binding::bind(&framework, pod, &node)).await,
                    refused => Ok(refused),
                };
                (permit, bound.unwrap_or(Err(BindingError::Panicked)))
            };
            let (permit, bound) = bound.await;
            let m = &pod.meta;
            match bound {
                Ok(()) => {
                    let text = format!("Successfully assigned {}/{} to {node}", m.namespace, m.name);
                    recorder.action(
                        Regarding::from_meta("v1", "Pod", m),
                        Severity::Normal,
                        "Scheduled",
                        "Binding",
                        text,
                    );
                }
                Err(error) => {
                    let _ = failures.send(Failed { taken, node, error }).await;
                }
            }
            drop(permit);
        });
    }

    /// Waits until another binding may start. Takes failures meanwhile, whose senders hold permits.
    async fn permit(&mut self) -> Option<OwnedSemaphorePermit> {
        let permit = self.permits.clone().acquire_owned();
        tokio::pin!(permit);
        loop {
            tokio::select! {
                permit = &mut permit => return permit.ok(),
                Some(failure) = self.failed.recv() => self.fail_caught(failure),
            }
        }
    }

    fn binding_failed(&mut self, Failed { mut taken, node, error }: Failed) {
        let pod = taken.pod.clone();
        let binding = self.bindings.remove(&pod.meta.uid);
        if caught_now("scheduler", pod.key(), || self.framework.unreserve(&pod, &node)).is_err() {
            tracing::warn!(pod = %pod.key(), "a plugin may not have returned its reservation");
        }
        // A change of the pod overrides the assumption: it may be gone, or bound after all.
        let assumed = self.cluster.pod(&pod.meta.uid).is_some_and(|p| p.view.node_name.is_empty());
        if !assumed {
            return;
        }
        self.cluster.remove_pod(&pod.meta.uid);
        self.queue.handle_event(&Event::PodGone(&pod));
        let Some(binding) = binding.filter(|_| !error.pod_is_gone()) else { return };
        let about = Regarding::from_meta("v1", "Pod", &pod.meta);
        self.recorder.action(about, Severity::Warning, "FailedScheduling", "Scheduling", error.to_string());
        match error {
            // Its plugins have not seen the change.
            _ if binding.changed.is_some() => {
                taken.pod = binding.changed.unwrap_or(pod);
                self.queue.failed(taken);
            }
            BindingError::Refused(refusal) => self.queue.refused(taken, [refusal.plugin].into()),
            _ => self.queue.failed(taken),
        }
    }

    /// Reports why no node fits, in the status of the pod and in an event, and deletes the victims of a nomination.
    async fn refuse(&mut self, taken: Taken, d: &Decision, nomination: Option<Nomination>) {
        let message = d.message();
        let pod = taken.pod.clone();
        self.queue.refused(taken, d.refused_by());
        let about = Regarding::from_meta("v1", "Pod", &pod.meta);
        self.recorder.action(about, Severity::Warning, "FailedScheduling", "Scheduling", message.as_str());
        let options = self.options.clone();
        let permit = self.permit().await;
        tokio::spawn(async move {
            for victim in nomination.iter().flat_map(|n| &n.victims) {
                let pods = options.client.api::<core::Pod>().namespace(&victim.meta.namespace);
                let deleted = pods.delete(&victim.meta.name, &DeleteOptions::uid(&victim.meta.uid)).await;
                if let Err(e) = client::optional(deleted) {
                    tracing::warn!(victim = %victim.key(), "deleting a pod for one of higher priority failed: {e}");
                }
            }
            let node = nomination.as_ref().map(|n| &*n.node);
            if let Err(e) = write_condition(&options, &pod, &message, node).await
                && !e.is_not_found()
            {
                tracing::debug!(pod = %pod.key(), "writing the condition of an unschedulable pod failed: {e}");
            }
            drop(permit);
        });
    }
}

/// Writes the condition `PodScheduled`, and the node that the pod is nominated for.
async fn write_condition(options: &Options, pod: &Pod, message: &str, node: Option<&str>) -> Result<(), Error> {
    let now: Object = pod.decode()?;
    let old = now
        .at(&["status", "conditions"])
        .and_then(|c| c.as_array()?.iter().find(|c| c["type"] == "PodScheduled").cloned());
    let same = |k: &str, v: &str| old.as_ref().is_some_and(|o| o[k] == v);
    if same("status", "False") && same("reason", "Unschedulable") && same("message", message) && node.is_none() {
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
    let mut status = json!({"conditions": [condition]});
    if let Some(node) = node {
        status["nominatedNodeName"] = node.into();
    }
    let patch = Patch::Strategic(json!({"metadata": {"uid": &*pod.meta.uid}, "status": status}));
    let pods = options.client.dynamic(&ApiResource::typed::<core::Pod>()).namespace(&pod.meta.namespace);
    pods.patch_status(&pod.meta.name, &WriteOptions::default(), &patch).await.map(|_| ())
}
