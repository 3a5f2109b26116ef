//! Gives every pod of this node a worker, and every change of a pod to its worker.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use client::Informer;
use k8s_openapi::api::core::v1::{Node, Pod};
use parking_lot::Mutex;
use runtime::Runtime;
use scheduler::cluster::NodeEntry;
use supervisor::panics::{Panicked, caught, caught_now};
use tokio::sync::{Notify, broadcast, watch};

use crate::admission::{Admitted, Rejection};
use crate::objects::Whole;
use crate::orphans::remove_orphans;
use crate::pod::resize::Allocation;
use crate::pod::worker::Worker;
use crate::resources::{Qos, qos};
use crate::shared::Shared;

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

/// Starts a worker for every pod of this node and hands it every change of its pod.
pub async fn dispatch(shared: Arc<Shared>, pods: Informer<Whole>, node: Informer<Whole>, wakes: Wakes) {
    let changes = Arc::new(Notify::new());
    let touched: Arc<Mutex<BTreeSet<client::Key>>> = Arc::default();
    let _subscription = {
        let (changes, touched) = (changes.clone(), touched.clone());
        pods.subscribe(move |c| {
            touched.lock().insert(c.key());
            changes.notify_one();
        })
    };
    pods.synced().await;
    // The first container already needs the right variables of services.
    shared.services.synced().await;
    follow_node(&shared, &node).await;
    remove_orphans(&shared, &pods).await;
    let mut workers = Workers::default();
    loop {
        let keys = std::mem::take(&mut *touched.lock());
        let mut newcomers: Vec<Newcomer> = keys
            .into_iter()
            .filter_map(|key| {
                let updated = caught_now("pods", key.clone(), || workers.update(&shared, &pods, key.clone()));
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
        workers.forget_ended(&wakes);
        changes.notified().await;
    }
}

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
    match (newcomer.is_known(), newcomer.is_ending()) {
        (_, true) if view.view.is_terminal() => Ok(None),
        (true, _) => Ok(Some(admission.adopt(view.clone(), qos))),
        (false, true) => Ok(None),
        (false, false) => match admission.admit(view.clone(), qos) {
            Err(rejection) if rejection.by_labels && read_node(shared).await => admission.admit(view.clone(), qos),
            other => other,
        }
        .map(Some),
    }
}

/// Reads the node from the API, where its labels may be newer. Returns whether it could be read.
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
    fn update(&mut self, shared: &Shared, pods: &Informer<Whole>, key: client::Key) -> Option<Newcomer> {
        let entry = pods.get(&key);
        let pod = match entry.as_ref().map(|e| e.decode::<Pod>()).transpose() {
            Ok(pod) => pod.map(Arc::new),
            Err(error) => {
                tracing::warn!(%key, %error, "decoding a pod failed; it is ignored");
                return None;
            }
        };
        let uid = pod.as_ref().and_then(|p| p.metadata.uid.clone());
        // A later pod with the same name is another pod.
        if let Some(before) = self.names.get(&key).filter(|b| uid.as_ref() != Some(*b)).cloned() {
            self.names.remove(&key);
            shared.admission.ends(&before);
            if let Some(w) = self.running.get(&before) {
                w.inbox.send_replace(None);
            }
        }
        let (entry, pod, uid) = (entry?, pod?, uid?);
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
        let json = match allocation.is_desired_by(&pod) {
            true => Ok(entry.json().into_owned()),
            false => serde_json::to_vec(&allocation.apply(&pod)),
        };
        match json.and_then(|json| scheduler::pod::Pod::new(json.into())) {
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
        let worker = Worker::new(shared.clone(), pod, receiver, notify, admitted);
        let task = tokio::spawn(worker.run());
        self.running.insert(uid, Running { inbox, task });
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
