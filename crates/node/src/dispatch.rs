//! Gives every pod of this node a worker, and every change of a pod to its worker.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use client::Informer;
use k8s_openapi::api::core::v1::{Node, Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use parking_lot::Mutex;
use runtime::Runtime;
use scheduler::cluster::NodeEntry;
use supervisor::panics::{Panicked, caught, caught_now};
use tokio::sync::{Notify, broadcast, watch};
use tokio::task::JoinSet;

use crate::admission::{self, Admitted, Rejection};
use crate::objects::Whole;
use crate::orphans::remove_orphans;
use crate::pod::resize::Allocation;
use crate::pod::spec::text;
use crate::pod::worker::{Origin, Worker};
use crate::resources::{Qos, qos};
use crate::shared::Shared;
use crate::shutdown;
use crate::static_pods::mirror::mirrored_uid;

pub type Wakes = Arc<Mutex<BTreeMap<String, Arc<Notify>>>>;

pub fn wake(wakes: &Wakes, uid: &str) {
    if let Some(n) = wakes.lock().get(uid) {
        n.notify_one();
    }
}

/// Wakes the worker of a pod in which something happened.
pub async fn listen(mut events: broadcast::Receiver<runtime::Event>, wakes: Wakes, runtime: &dyn Runtime) {
    loop {
        match events.recv().await {
            Ok(event) => {
                let (runtime::Event::ContainerStarted { pod, .. }
                | runtime::Event::ContainerExited { pod, .. }
                | runtime::Event::PodStopped { pod }) = &event;
                // The id of a sandbox is the UID of its pod and the attempt.
                if let Some((uid, _)) = pod.rsplit_once('-') {
                    wake(&wakes, uid);
                }
            }
            Err(broadcast::error::RecvError::Lagged(_)) => {
                for n in wakes.lock().values() {
                    n.notify_one();
                }
            }
            Err(broadcast::error::RecvError::Closed) => {
                tracing::error!(
                    runtime = runtime.version().0,
                    "the runtime's events ended; changes of containers are noticed late"
                );
                return std::future::pending().await;
            }
        }
    }
}

struct Running {
    inbox: watch::Sender<Option<Arc<Pod>>>,
    task: tokio::task::JoinHandle<()>,
}

/// Workers by the UIDs of their pods, and the UID of the pod that has a name now.
#[derive(Default)]
struct Workers {
    running: BTreeMap<String, Running>,
    names: BTreeMap<client::Key, String>,
}

/// A pod without a worker.
struct Newcomer {
    uid: String,
    pod: Arc<Pod>,
    /// The pod in the scheduler's representation.
    view: Arc<scheduler::pod::Pod>,
}

impl Newcomer {
    /// Whether an earlier agent admitted it.
    fn is_known(&self) -> bool {
        self.pod.status.as_ref().is_some_and(|s| s.start_time.is_some())
    }

    fn is_ending(&self) -> bool {
        self.view.view.is_terminal() || self.view.meta.is_deleting()
    }
}

/// Starts a worker for every pod of this node and hands it every change of its pod. `own_node` is the node as it registers, by which
/// static pods are admitted until the API has answered.
pub async fn dispatch(
    shared: Arc<Shared>,
    pods: Informer<Whole>,
    node: Informer<Whole>,
    own_node: serde_json::Value,
    wakes: Wakes,
) {
    let changes = Arc::new(Notify::new());
    let touched: Arc<Mutex<BTreeSet<client::Key>>> = Arc::default();
    let _subscription = {
        let (changes, touched) = (changes.clone(), touched.clone());
        pods.subscribe(move |c| {
            touched.lock().insert(c.key());
            changes.notify_one();
        })
    };
    let mut workers = Workers::default();
    let static_pods = shared.known.static_pods.clone();
    match serde_json::to_vec(&own_node).and_then(|json| node_entry(&json, &shared.allocatable)) {
        Ok(entry) => shared.admission.set_node(Arc::new(entry)),
        Err(error) => tracing::warn!(%error, "describing the node failed; static pods wait for the API server"),
    }
    let answered = async {
        pods.synced().await;
        // The first container already needs the right variables of services.
        shared.services.synced().await;
        follow_node(&shared, &node).await;
        // What belongs to static pods is known when their manifests have been read.
        let _ = tokio::time::timeout(MANIFESTS, static_pods.read()).await;
    };
    tokio::pin!(answered);
    loop {
        workers.update_static(&shared, &wakes).await;
        tokio::select! {
            () = &mut answered => break,
            () = static_pods.changed() => {}
        }
    }
    workers.update_static(&shared, &wakes).await;
    // They end with this function.
    let mut removals = JoinSet::new();
    if static_pods.desired().is_some() {
        removals = remove_orphans(&shared, &pods).await;
        let manifests = static_pods.desired().unwrap_or_default();
        let unfinished = unfinished(&pods, manifests.values());
        shared.managers.retain(&unfinished).await;
        // Pods whose end this agent did not see.
        for uid in shared.dra.stale(&unfinished) {
            let dra = shared.dra.clone();
            tokio::spawn(async move { dra.unprepare_until_done(&uid).await });
        }
    } else {
        tracing::warn!("the manifests of static pods cannot be read; what is left of deleted pods stays");
    }
    loop {
        while removals.try_join_next().is_some() {}
        let keys = std::mem::take(&mut *touched.lock());
        let mut newcomers: Vec<Newcomer> = keys
            .into_iter()
            .filter_map(|key| {
                let updated = caught_now("pods", key.clone(), || workers.update(&shared, &pods, key.clone(), &wakes));
                updated.unwrap_or_else(|Panicked| {
                    again(&changes, &touched, key);
                    None
                })
            })
            .collect();
        // Pods that an earlier agent admitted come before new ones.
        newcomers.sort_by_key(|n| (!n.is_known(), n.view.meta.creation_timestamp));
        for newcomer in newcomers {
            let key = client::Key::new(&*newcomer.view.meta.namespace, &*newcomer.view.meta.name);
            match caught("admission", key.clone(), admit(&shared, &newcomer)).await {
                Ok(admitted) => workers.start(&shared, newcomer, admitted, &wakes),
                Err(Panicked) => again(&changes, &touched, key),
            }
        }
        static_pods.set_listed();
        workers.update_static(&shared, &wakes).await;
        tokio::select! {
            () = changes.notified() => {}
            () = static_pods.changed() => {}
        }
    }
}

/// How long the agent waits for the manifests of static pods before it processes the pods of the API.
const MANIFESTS: Duration = Duration::from_secs(10);

/// The priority by which static pods are admitted: all of them are critical, as upstream.
const STATIC_PRIORITY: i64 = 2_000_001_000;

/// How long after a panic a pod is processed again.
const AGAIN: Duration = Duration::from_secs(5);

/// Processes a pod again after a while.
fn again(changes: &Arc<Notify>, touched: &Arc<Mutex<BTreeSet<client::Key>>>, key: client::Key) {
    let (changes, touched) = (changes.clone(), touched.clone());
    tokio::spawn(async move {
        tokio::time::sleep(AGAIN).await;
        touched.lock().insert(key);
        changes.notify_one();
    });
}

/// Passes the node, as the API has it, to admission from now on. Returns after the first time.
async fn follow_node(shared: &Arc<Shared>, node: &Informer<Whole>) {
    let known = Arc::new(Notify::new());
    let (admission, own, read) = (shared.admission.clone(), shared.allocatable.clone(), known.clone());
    node.on_change(move |change| match change.new.as_ref().map(|e| node_entry(&e.json(), &own)) {
        None => {}
        Some(Ok(entry)) => {
            admission.set_node(Arc::new(entry));
            read.notify_one();
        }
        Some(Err(error)) => tracing::warn!(%error, "decoding the node failed; the last known node is used"),
    });
    known.notified().await;
}

/// Admits a pod or returns why not. `Ok(None)` for one that is terminating and was never admitted.
async fn admit(shared: &Arc<Shared>, newcomer: &Newcomer) -> Result<Option<Admitted>, Rejection> {
    let (admission, view) = (&shared.admission, &newcomer.view);
    let qos = newcomer.pod.spec.as_ref().map_or(Qos::BestEffort, qos);
    let admitted = match (newcomer.is_known(), newcomer.is_ending()) {
        (_, true) if view.view.is_terminal() => Ok(None),
        (true, _) => Ok(Some(admission.adopt(view.clone(), qos))),
        (false, true) => Ok(None),
        (false, false) if shared.known.shutdown.is_active() => Err(shutdown::rejection()),
        (false, false) => {
            match shared.known.evictions.check(view, qos).and_then(|()| admission.admit(view.clone(), qos)) {
                Err(rejection) if rejection.node_may_be_newer && read_node(shared).await => {
                    admission.admit(view.clone(), qos)
                }
                other => other,
            }
            .map(Some)
        }
    }?;
    if admitted.is_some() && !newcomer.is_known() {
        shared.managers.admit(&newcomer.pod).await?;
    }
    Ok(admitted)
}

/// The UIDs of pods that have not ended.
fn unfinished<'a>(pods: &Informer<Whole>, manifests: impl Iterator<Item = &'a Arc<Pod>>) -> BTreeSet<String> {
    let cache = pods.cache();
    let from_api = cache.entries().filter_map(|entry| {
        let pod: Pod = entry.decode().ok()?;
        let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
        pod.metadata.uid.filter(|_| !matches!(phase, Some("Succeeded" | "Failed")))
    });
    from_api.chain(manifests.filter_map(|p| p.metadata.uid.clone())).collect()
}

/// Reads the node from the API, which may be newer: the pod and the node come by different watches. Returns whether it could be read.
async fn read_node(shared: &Shared) -> bool {
    let Ok(node) = shared.client.api::<Node>().get(&shared.options.node_name).await else { return false };
    let entry = serde_json::to_vec(&node).and_then(|json| node_entry(&json, &shared.allocatable));
    entry.map(|e| shared.admission.set_node(Arc::new(e))).is_ok()
}

/// Parses the node, with the machine's own allocatable resources: an earlier agent or another client may have written those of the
/// API.
fn node_entry(json: &[u8], own: &BTreeMap<String, String>) -> Result<NodeEntry, serde_json::Error> {
    let mut node: serde_json::Value = serde_json::from_slice(json)?;
    for (name, quantity) in own {
        node["status"]["allocatable"][name] = quantity.as_str().into();
    }
    NodeEntry::new(serde_json::to_vec(&node)?.into())
}

impl Workers {
    /// Hands a change of a pod to its worker. Returns the pod if it has no worker yet.
    fn update(&mut self, shared: &Shared, pods: &Informer<Whole>, key: client::Key, wakes: &Wakes) -> Option<Newcomer> {
        let entry = pods.get(&key);
        let pod = match entry.as_ref().map(|e| e.decode::<Pod>()).transpose() {
            Ok(pod) => pod.map(Arc::new),
            Err(error) => {
                tracing::warn!(%key, %error, "decoding a pod failed; it is ignored");
                return None;
            }
        };
        let static_pods = &shared.known.static_pods;
        if static_pods.set_mirror(&key, pod.as_ref())
            && let Some(uid) = static_pods.running_uid(&key)
        {
            wake(wakes, &uid);
        }
        let pod = pod.filter(|p| mirrored_uid(p).is_none());
        let uid = pod.as_ref().and_then(|p| p.metadata.uid.clone());
        // A later pod with the same name is another pod.
        if let Some(before) = self.names.get(&key).filter(|b| uid.as_ref() != Some(*b)).cloned() {
            self.names.remove(&key);
            shared.admission.ends(&before);
            if let Some(w) = self.running.get(&before) {
                w.inbox.send_replace(None);
            }
        }
        let (pod, uid) = (pod?, uid?);
        self.names.insert(key.clone(), uid.clone());
        // The scheduler reuses the resources of such a pod, although its last containers may still be terminating here.
        if matches!(pod.status.as_ref().and_then(|s| s.phase.as_deref()), Some("Succeeded" | "Failed")) {
            shared.admission.ends(&uid);
        }
        if let Some(w) = self.running.get(&uid) {
            w.inbox.send_replace(Some(pod));
            return None;
        }
        // A pod that an earlier agent admitted counts with the resources allocated to it.
        let allocation = Allocation::of_status(&pod);
        let view = match allocation.is_desired_by(&pod) {
            true => admission::view(&pod),
            false => admission::view(&allocation.apply(&pod)),
        };
        match view {
            Ok(view) => Some(Newcomer { uid, pod, view: Arc::new(view) }),
            Err(error) => {
                tracing::warn!(%key, %error, "decoding the requests of a pod failed; it is ignored");
                None
            }
        }
    }

    fn start(
        &mut self,
        shared: &Arc<Shared>,
        newcomer: Newcomer,
        admitted: Result<Option<Admitted>, Rejection>,
        wakes: &Wakes,
    ) {
        let Newcomer { uid, pod, .. } = newcomer;
        let (inbox, receiver) = watch::channel(Some(pod.clone()));
        let notify = Arc::new(Notify::new());
        wakes.lock().insert(uid.clone(), notify.clone());
        let worker = Worker::new(shared.clone(), pod, Origin::Api, receiver, notify, admitted);
        let task = tokio::spawn(worker.run());
        self.running.insert(uid, Running { inbox, task });
    }

    /// Ends static pods whose manifests are gone or changed, and starts those that do not run.
    async fn update_static(&mut self, shared: &Arc<Shared>, wakes: &Wakes) {
        self.forget_ended(wakes);
        let static_pods = &shared.known.static_pods;
        let Some(desired) = static_pods.desired() else { return };
        for (key, pod) in static_pods.running() {
            let uid = text(&pod.metadata.uid);
            if desired.get(&key) != Some(&pod) {
                shared.admission.ends(uid);
                if let Some(w) = self.running.get(uid) {
                    w.inbox.send_if_modified(|pod| pod.take().is_some());
                }
            }
        }
        for (key, pod) in desired {
            let uid = text(&pod.metadata.uid).to_owned();
            if static_pods.is_running(&key) || self.running.contains_key(&uid) {
                continue;
            }
            let newcomer = match static_newcomer(shared, &pod).await {
                Ok(newcomer) => newcomer,
                Err(error) => {
                    tracing::warn!(%key, error, "starting a static pod failed; it is tried again");
                    let known = shared.known.clone();
                    tokio::spawn(async move {
                        tokio::time::sleep(AGAIN).await;
                        known.static_pods.retry();
                    });
                    continue;
                }
            };
            let Ok(admitted) = caught("admission", key.clone(), admit(shared, &newcomer)).await else { continue };
            let (inbox, receiver) = watch::channel(Some(newcomer.pod.clone()));
            let notify = Arc::new(Notify::new());
            wakes.lock().insert(uid.clone(), notify.clone());
            let worker = Worker::new(shared.clone(), newcomer.pod, Origin::Manifest, receiver, notify, admitted);
            static_pods.started(key.clone(), pod);
            let known = shared.known.clone();
            let task = tokio::spawn(async move {
                worker.run().await;
                known.static_pods.ended(&key);
            });
            self.running.insert(uid, Running { inbox, task });
        }
    }

    fn forget_ended(&mut self, wakes: &Wakes) {
        let names = &mut self.names;
        self.running.retain(|uid, w| {
            let over = w.task.is_finished();
            if over {
                wakes.lock().remove(uid);
                names.retain(|_, u| u != uid);
            }
            !over
        });
    }
}

/// A static pod without a worker. One that an earlier agent started is known.
async fn static_newcomer(shared: &Shared, pod: &Arc<Pod>) -> Result<Newcomer, String> {
    let uid = text(&pod.metadata.uid).to_owned();
    let records = shared.options.runtime.pod_records(&uid).await.map_err(|e| e.to_string())?;
    let mut pod = pod.clone();
    if let Some(first) = records.pods.iter().map(|p| p.created_at).min() {
        let started = Some(Time(crate::instant(first)));
        Arc::make_mut(&mut pod).status = Some(PodStatus { start_time: started, ..PodStatus::default() });
    }
    let mut json = serde_json::to_value(&*pod).map_err(|e| e.to_string())?;
    let priority = json["spec"]["priority"].as_i64().unwrap_or_default();
    json["spec"]["priority"] = priority.max(STATIC_PRIORITY).into();
    let bytes = serde_json::to_vec(&json).map_err(|e| e.to_string())?;
    let view = scheduler::pod::Pod::new(bytes.into()).map_err(|e| e.to_string())?;
    Ok(Newcomer { uid, pod, view: Arc::new(view) })
}
