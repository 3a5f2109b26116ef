//! The agent: what it is given, and the task that hands pods to their workers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use client::panics::{Panicked, caught, caught_now, restarted};
use client::{ApiResource, Client, Informer, Informers, Lookups, Recorder, Scope, Shutdown, Source};
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use meta::{Clock, Rng};
use network::{HostPort, PodNetwork};
use parking_lot::Mutex;
use runtime::{Embedded, Resources, Runtime, beneath};
use scheduler::cluster::NodeEntry;
use tokio::sync::{Notify, broadcast, watch};

use crate::admission::{Admission, Admitted, Rejection};
use crate::blocking::blocking;
use crate::counts::Known;
use crate::env::ServiceView;
use crate::node::{Capacity, Reporter};
use crate::objects::{Objects, Whole};
use crate::pod::container::POD_UID;
use crate::pod::container::SeccompDefault;
use crate::pod::files::DnsOptions;
use crate::pod::resize::Allocation;
use crate::pod::starts::Starts;
use crate::pod::sysctls::Allowlist;
use crate::pod::users::Users;
use crate::pod::worker::Worker;
use crate::probe::Names;
use crate::resources::{Qos, qos};
use crate::server::Handle;
use crate::volumes::token::TokenRequests;
use crate::volumes::{Memory, Volumes};

/// What the agent asks of the machine besides running containers.
pub trait Host: Send + Sync {
    /// Finds an image by name.
    fn image(&self, name: &str) -> Result<runtime::image::Image, runtime::image::Error>;
    fn images(&self) -> Vec<runtime::image::Image>;
    /// Makes a cgroup below the runtime's prefix.
    fn set_cgroup(&self, path: &str, resources: &Resources) -> Result<(), runtime::Error>;
    /// Usage of a cgroup below the runtime's prefix; empty for all of it.
    fn usage(&self, path: &str) -> runtime::cgroup::Usage;
    /// What will not work on this machine, in plain sentences.
    fn complaints(&self) -> Vec<String>;
    /// Whether pods can have user namespaces of their own; if not, why.
    fn user_namespaces(&self) -> Result<(), String>;
}

impl Host for Embedded {
    fn image(&self, name: &str) -> Result<runtime::image::Image, runtime::image::Error> {
        self.images().resolve(name)
    }

    fn images(&self) -> Vec<runtime::image::Image> {
        Embedded::images(self).list()
    }

    fn set_cgroup(&self, path: &str, resources: &Resources) -> Result<(), runtime::Error> {
        Embedded::set_cgroup(self, path, resources)
    }

    fn usage(&self, path: &str) -> runtime::cgroup::Usage {
        self.cgroup_usage(path)
    }

    fn complaints(&self) -> Vec<String> {
        self.host_limits().complaints()
    }

    fn user_namespaces(&self) -> Result<(), String> {
        self.host_limits().no_user_namespaces.clone().map_or(Ok(()), Err)
    }
}

/// How an agent is set up.
pub struct Options {
    /// As `system:node:NAME`.
    pub client: Client,
    pub node_name: String,
    pub node_ip: Ipv4Addr,
    /// Host name of the machine, for pods in its network.
    pub hostname: String,
    pub runtime: Arc<dyn Runtime>,
    pub host: Arc<dyn Host>,
    /// `None`: pods have no network of their own.
    pub network: Option<PodNetwork>,
    /// The network namespace the node lives in, if it is not the process's.
    pub node_namespace: Option<PathBuf>,
    /// Pods' directories and volumes lie here.
    pub data_dir: PathBuf,
    pub log_dir: PathBuf,
    pub dns: DnsOptions,
    /// Told in the node's spec when it registers.
    pub pod_cidr: Option<String>,
    /// Most pods this node takes.
    pub max_pods: u32,
    /// The kernel parameters that pods may set.
    pub sysctls: Allowlist,
    /// The seccomp profile of containers that name none.
    pub seccomp_default: SeccompDefault,
    /// Most processes of a pod; `None` for no limit.
    pub pod_pids_limit: Option<i64>,
    /// Where the kubelet's service listens.
    pub address: IpAddr,
    /// Port at which the kubelet's service is reached, told in the node's status.
    pub port: u16,
    /// Ports that are the node's own, which lead to no pod.
    pub own_ports: Vec<HostPort>,
    /// Written as `kubeletVersion`, e.g. `v1.36.2`.
    pub version: String,
    /// More labels of the node.
    pub labels: BTreeMap<String, String>,
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("reading what this machine has: {0}")]
    Capacity(#[source] std::io::Error),
    #[error("runtime: {0}")]
    Runtime(#[from] runtime::Error),
    #[error("network: {0}")]
    Network(#[from] network::Error),
    #[error("user namespaces of pods: {0}")]
    Users(#[from] crate::pod::users::Error),
}

/// What workers share.
pub(crate) struct Shared {
    pub options: Arc<Options>,
    pub client: Client,
    pub recorder: Recorder,
    pub objects: Arc<Objects>,
    pub tokens: Arc<TokenRequests>,
    pub volumes: Volumes,
    pub users: Users,
    pub services: Informer<ServiceView>,
    pub allocatable: BTreeMap<String, String>,
    /// Bytes of memory of the node.
    pub memory: u64,
    pub starts: Starts,
    pub lookups: Arc<Lookups>,
    pub known: Arc<Known>,
    pub admission: Arc<Admission>,
    dirty: Arc<Mutex<BTreeSet<String>>>,
}

impl Shared {
    /// Whether something that the pod refers to has changed since this was asked last.
    pub fn take_dirty(&self, uid: &str) -> bool {
        self.dirty.lock().remove(uid)
    }

    /// The address an earlier agent gave the pod.
    pub async fn address(&self, uid: &str) -> Option<std::net::IpAddr> {
        let network = self.options.network.as_ref()?;
        network.attached().await.get(uid).copied().map(Into::into)
    }
}

pub struct Agent {
    options: Arc<Options>,
    known: Arc<Known>,
}

type Wakes = Arc<Mutex<BTreeMap<String, Arc<Notify>>>>;

fn wake(wakes: &Wakes, uid: &str) {
    if let Some(n) = wakes.lock().get(uid) {
        n.notify_one();
    }
}

struct Running {
    inbox: watch::Sender<Option<Arc<Pod>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Agent {
    pub fn new(options: Options) -> Self {
        let known = Arc::new(Known::new(&options.node_name, options.clock.now()));
        Self { options: Arc::new(options), known }
    }

    /// Answers the kubelet's HTTP requests; works while the agent runs and also without it.
    pub fn handle(&self) -> Handle {
        Handle::new(self.options.clone(), self.known.clone())
    }

    /// Runs until `shutdown`. Containers keep running after it.
    pub fn run(self: Arc<Self>, shutdown: Shutdown) -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send>> {
        Box::pin(self.work(shutdown))
    }

    async fn work(self: Arc<Self>, shutdown: Shutdown) -> Result<(), Error> {
        let (options, known) = (self.options.clone(), self.known.clone());
        let capacity = Capacity::read(&options.data_dir, options.max_pods).map_err(Error::Capacity)?;
        let client = options.client.clone();
        let source = Source::Core { component: "kubelet".into(), host: options.node_name.clone() };
        let recorder = Recorder::start(&client, source, options.clock.clone(), shutdown.clone());
        let informers = Informers::new(client.clone(), options.rng.clone(), shutdown.clone());
        let wakes: Wakes = Arc::default();
        let dirty: Arc<Mutex<BTreeSet<String>>> = Arc::default();
        let admission = {
            let wakes = wakes.clone();
            Arc::new(Admission::new(&options.node_name, Arc::new(move |uid: &str| wake(&wakes, uid))))
        };
        let changed = {
            let (wakes, dirty) = (wakes.clone(), dirty.clone());
            Arc::new(move |uid: &str| {
                dirty.lock().insert(uid.to_owned());
                wake(&wakes, uid);
            })
        };
        if let Err(error) = blocking(crate::pod::apparmor::load).await {
            tracing::warn!(%error, "AppArmor's default profile for containers cannot be loaded");
        }
        // Best-effort pods get what the others leave.
        let least = Resources { cpu_shares: Some(2), ..Resources::default() };
        let all = Resources { pids_limit: crate::node::pids_for_pods(), ..Resources::default() };
        for (path, resources) in
            [("kubepods", all), ("kubepods/burstable", Resources::default()), ("kubepods/besteffort", least)]
        {
            if let Err(error) = options.host.set_cgroup(path, &resources) {
                tracing::warn!(path, %error, "a cgroup cannot be set up");
            }
        }
        let shared = Arc::new(Shared {
            recorder: recorder.clone(),
            objects: Arc::new(Objects::new(informers.clone(), changed)),
            tokens: Arc::new(TokenRequests::new(client.clone(), options.clock.clone())),
            volumes: Volumes::new(
                options.data_dir.join("pods"),
                options.clock.clone(),
                Memory::Mounted,
                // An eighth of the machine's memory, where most of it lies.
                usize::try_from(capacity.memory / 8).unwrap_or(usize::MAX),
            ),
            users: Users::open(options.data_dir.join("pods"))?,
            services: informers.of::<Service, ServiceView>(),
            allocatable: capacity.allocatable(),
            memory: capacity.memory,
            starts: Starts::new(capacity.cpus as usize),
            lookups: Arc::new(Lookups::new(Names::MOST)),
            admission,
            client,
            dirty,
            known: known.clone(),
            options: options.clone(),
        });
        let reporter = Reporter::new(options.clone(), capacity, recorder, known.clone());
        let events = options.runtime.subscribe();
        let pods = informers.informer::<Whole>(
            &ApiResource::of::<Pod>(),
            &Scope { field_selector: format!("spec.nodeName={}", options.node_name), ..Scope::default() },
        );
        *known.pods.write() = Some(pods.clone());
        let node = informers.informer::<Whole>(
            &ApiResource::of::<Node>(),
            &Scope { field_selector: format!("metadata.name={}", options.node_name), ..Scope::default() },
        );
        let work = async {
            tokio::join!(
                restarted("node status", || reporter.run()),
                listen(events, wakes.clone(), &*options.runtime),
                dispatch(shared, pods, node, wakes.clone())
            )
        };
        shutdown.race(work).await;
        Ok(())
    }
}

/// Wakes the worker of a pod in which something happened.
async fn listen(mut events: broadcast::Receiver<runtime::Event>, wakes: Wakes, runtime: &dyn Runtime) {
    loop {
        match events.recv().await {
            Ok(event) => {
                let (runtime::Event::ContainerStarted { pod, .. }
                | runtime::Event::ContainerExited { pod, .. }
                | runtime::Event::PodStopped { pod }) = &event;
                // A sandbox is named after its pod, with the attempt.
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
                tracing::error!(runtime = runtime.version().0, "the runtime tells nothing any more");
                return std::future::pending().await;
            }
        }
    }
}

/// Pods by uid, and which uid a name has now.
#[derive(Default)]
struct Workers {
    running: BTreeMap<String, Running>,
    names: BTreeMap<client::Key, String>,
}

/// A pod that came.
struct Newcomer {
    uid: String,
    pod: Arc<Pod>,
    /// As the scheduler sees it.
    view: Arc<scheduler::pod::Pod>,
}

impl Newcomer {
    /// Whether an earlier agent took it already.
    fn is_known(&self) -> bool {
        self.pod.status.as_ref().is_some_and(|s| s.start_time.is_some())
    }

    fn is_ending(&self) -> bool {
        self.view.view.is_terminal() || self.view.meta.is_deleting()
    }
}

/// Gives every pod of this node a worker, and every change to its worker.
async fn dispatch(shared: Arc<Shared>, pods: Informer<Whole>, node: Informer<Whole>, wakes: Wakes) {
    let changes = Arc::new(Notify::new());
    let touched: Arc<Mutex<BTreeSet<client::Key>>> = Arc::default();
    {
        let (changes, touched) = (changes.clone(), touched.clone());
        pods.on_change(move |c| {
            touched.lock().insert(c.key());
            changes.notify_one();
        });
    }
    pods.synced().await;
    // Service variables and addresses must be right in the first container already.
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
        // What was taken before the agent was started again comes before what is new.
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

/// How long after a panic over a pod it is looked at again.
const AGAIN: std::time::Duration = std::time::Duration::from_secs(5);

/// Looks at a pod again after a while.
fn again(changes: &Arc<Notify>, touched: &Arc<Mutex<BTreeSet<client::Key>>>, key: client::Key) {
    let (changes, touched) = (changes.clone(), touched.clone());
    tokio::spawn(async move {
        tokio::time::sleep(AGAIN).await;
        touched.lock().insert(key);
        changes.notify_one();
    });
}

/// Tells admission of the node, as the API has it, from now on. Returns when it has been told the first time.
async fn follow_node(shared: &Arc<Shared>, node: &Informer<Whole>) {
    let known = Arc::new(Notify::new());
    let (admission, own, told) = (shared.admission.clone(), shared.allocatable.clone(), known.clone());
    node.on_change(move |change| match change.new.as_ref().map(|e| node_entry(&e.json(), &own)) {
        None => {}
        Some(Ok(entry)) => {
            admission.set_node(Arc::new(entry));
            told.notify_one();
        }
        Some(Err(error)) => tracing::warn!(%error, "the node cannot be read"),
    });
    known.notified().await;
}

/// Takes a pod, or says why not. Nothing is decided on one that is ending and was never taken.
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

/// Asks the API for the node, whose labels may be newer than what is known of them. Whether there was an answer.
async fn read_node(shared: &Shared) -> bool {
    let Ok(node) = shared.client.api::<Node>().get(&shared.options.node_name).await else { return false };
    let entry = serde_json::to_vec(&node).and_then(|json| node_entry(&json, &shared.allocatable));
    entry.map(|e| shared.admission.set_node(Arc::new(e))).is_ok()
}

/// The node as the API has it, save for what the machine has itself: the API may have that from an earlier agent, or from anybody.
fn node_entry(json: &[u8], own: &BTreeMap<String, String>) -> Result<NodeEntry, serde_json::Error> {
    let mut node: serde_json::Value = serde_json::from_slice(json)?;
    for (name, quantity) in own {
        node["status"]["allocatable"][name] = quantity.as_str().into();
    }
    NodeEntry::new(serde_json::to_vec(&node)?.into())
}

impl Workers {
    /// Brings a change of a pod to its worker. Gives back a pod that has none.
    fn update(&mut self, shared: &Shared, pods: &Informer<Whole>, key: client::Key) -> Option<Newcomer> {
        let entry = pods.get(&key);
        let pod = match entry.as_ref().map(|e| e.decode::<Pod>()).transpose() {
            Ok(pod) => pod.map(Arc::new),
            Err(error) => {
                tracing::warn!(%key, %error, "a pod cannot be read");
                return None;
            }
        };
        let uid = pod.as_ref().and_then(|p| p.metadata.uid.clone());
        // A pod of the same name made later is another pod.
        if let Some(before) = self.names.get(&key).filter(|b| uid.as_ref() != Some(*b)).cloned() {
            self.names.remove(&key);
            shared.admission.ends(&before);
            if let Some(w) = self.running.get(&before) {
                w.inbox.send_replace(None);
            }
        }
        let (entry, pod, uid) = (entry?, pod?, uid?);
        self.names.insert(key.clone(), uid.clone());
        // The scheduler gives away what such a pod had, although the last of it may still be about to end here.
        if matches!(pod.status.as_ref().and_then(|s| s.phase.as_deref()), Some("Succeeded" | "Failed")) {
            shared.admission.ends(&uid);
        }
        if let Some(w) = self.running.get(&uid) {
            w.inbox.send_replace(Some(pod));
            return None;
        }
        // What an earlier agent took counts with the resources that it had allocated.
        let allocation = Allocation::of_status(&pod);
        let json = match allocation.is_asked_by(&pod) {
            true => Ok(entry.json().into_owned()),
            false => serde_json::to_vec(&allocation.apply(&pod)),
        };
        match json.and_then(|json| scheduler::pod::Pod::new(json.into())) {
            Ok(view) => Some(Newcomer { uid, pod, view: Arc::new(view) }),
            Err(error) => {
                tracing::warn!(%key, %error, "what a pod requests cannot be read");
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

/// What the runtime, the network and the disk have of pods that the API does not know.
async fn remove_orphans(shared: &Shared, pods: &Informer<Whole>) {
    let known: BTreeSet<String> = pods.cache().all().map(|e| e.meta.uid.to_string()).collect();
    let mut orphans: BTreeSet<String> = shared.volumes.pods().await.into_iter().collect();
    match shared.options.runtime.list_pods().await {
        Ok(list) => orphans.extend(list.into_iter().filter_map(|p| p.config.labels.get(POD_UID).cloned())),
        Err(error) => tracing::warn!(%error, "the runtime's pods cannot be listed"),
    }
    if let Some(network) = &shared.options.network {
        orphans.extend(network.attached().await.into_keys());
    }
    for uid in orphans.difference(&known) {
        tracing::info!(uid, "removing what is left of a pod that is gone");
        shared.remove_orphan(uid).await;
    }
    remove_orphan_logs(&shared.options.log_dir, known).await;
}

/// Removes the logs of pods that went while the agent was away. Their directories are called `NAMESPACE_NAME_UID`.
async fn remove_orphan_logs(logs: &Path, known: BTreeSet<String>) {
    let logs = logs.to_owned();
    let removed = blocking(move || {
        for entry in std::fs::read_dir(&logs)? {
            let name = entry?.file_name();
            let parts: Vec<&str> = name.to_str().unwrap_or_default().split('_').collect();
            if let [_, _, uid] = parts.as_slice()
                && !known.contains(*uid)
            {
                beneath::remove_tree(&logs.join(&name))?;
            }
        }
        Ok::<_, std::io::Error>(())
    });
    if let Err(error) = removed.await {
        tracing::warn!(%error, "the logs of pods that are gone cannot be removed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn logs_go_with_their_pods() {
        let logs = tempfile::tempdir().unwrap();
        for name in ["ns_gone_uid-1", "ns_there_uid-2", "other"] {
            std::fs::create_dir_all(logs.path().join(name).join("container")).unwrap();
        }
        remove_orphan_logs(logs.path(), ["uid-2".to_owned()].into()).await;
        let mut left: Vec<_> = std::fs::read_dir(logs.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["ns_there_uid-2", "other"]);
    }
}
