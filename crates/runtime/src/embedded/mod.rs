//! The agent's side of the embedded runtime. It prepares directories, cgroups and records, and sends requests to shims.
//!
//! **Invariant.** The shims and the state files hold the state. This side only mirrors it, so it may end and start again at any time
//! ([`Embedded::open`] adopts running pods).

mod arguments;
mod cleaning;
mod containers;
mod hooks;
mod pods;
mod purge;
mod shim_link;
mod streams;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{broadcast, watch};

use crate::api::*;
use crate::cgroup::Hierarchies;
use crate::host::HostLimits;
use crate::image::{ImageStore, Reserve};
use crate::program::Program;
use crate::records;
use crate::spec::{ContainerLayers, ContainerSummary, PodRecord, ShimRecord, StateRecord};
use crate::{beneath, user_namespace};
#[cfg(test)]
pub(crate) use cleaning::retry_here as retry;
use shim_link::Link;

/// The options of an [`Embedded`].
#[derive(Clone)]
pub struct Options {
    /// Directory of all data; created if missing. It must not be on overlayfs.
    pub root: PathBuf,
    /// One path component. All cgroups of the runtime are below it.
    pub cgroup_prefix: String,
    /// The program that runs as shim under the name [`crate::shim::NAME`].
    pub shim_program: PathBuf,
    /// The clock of times that the agent records; shims use that of the host.
    pub clock: Clock,
    /// The timeout of a start of a container or command, which other containers of the pod can delay (kubelet's
    /// `--runtime-request-timeout`).
    pub start_timeout: Duration,
    /// What images leave free on their disk.
    pub disk_reserve: Reserve,
}

impl Options {
    /// Options with the running program as shim.
    pub fn new(root: impl Into<PathBuf>, cgroup_prefix: impl Into<String>, clock: Clock) -> Options {
        Options {
            root: root.into(),
            cgroup_prefix: cgroup_prefix.into(),
            shim_program: "/proc/self/exe".into(),
            clock,
            start_timeout: Duration::from_secs(120),
            disk_reserve: Reserve::default(),
        }
    }
}

/// Cheap to clone. Needs root and a tokio runtime with IO and time.
#[derive(Clone)]
pub struct Embedded {
    inner: Arc<Inner>,
}

struct Inner {
    root: PathBuf,
    options: Options,
    program: Program,
    limits: HostLimits,
    hierarchies: Hierarchies,
    images: ImageStore,
    events: broadcast::Sender<Event>,
    state: Mutex<State>,
}

/// Known pods and containers, with indexes, so that the cost of reading one pod does not depend on others.
#[derive(Default)]
struct State {
    pods: BTreeMap<String, PodEntry>,
    containers: BTreeMap<String, ContainerEntry>,
    /// The ids of pods by their UIDs, and of containers by the ids of their pods.
    pods_by_uid: BTreeMap<String, BTreeSet<String>>,
    containers_by_pod: BTreeMap<String, BTreeSet<String>>,
}

impl State {
    fn add_pod(&mut self, entry: PodEntry) {
        let config = &entry.record.config;
        self.pods_by_uid.entry(config.uid.clone()).or_default().insert(config.id.clone());
        self.pods.insert(config.id.clone(), entry);
    }

    /// Removes a pod and its containers.
    fn remove_pod(&mut self, id: &str) {
        let Some(entry) = self.pods.remove(id) else { return };
        remove_id(&mut self.pods_by_uid, &entry.record.config.uid, id);
        for container in self.containers_by_pod.remove(id).unwrap_or_default() {
            self.containers.remove(&container);
        }
    }

    fn add_container(&mut self, entry: ContainerEntry) {
        let record = &entry.record;
        self.containers_by_pod.entry(record.pod.clone()).or_default().insert(record.id.clone());
        self.containers.insert(record.id.clone(), entry);
    }

    fn remove_container(&mut self, id: &str) {
        let Some(entry) = self.containers.remove(id) else { return };
        remove_id(&mut self.containers_by_pod, &entry.record.pod, id);
    }

    fn pods_with_uid(&self, uid: &str) -> impl Iterator<Item = &PodEntry> {
        self.pods_by_uid.get(uid).into_iter().flatten().filter_map(|id| self.pods.get(id))
    }

    fn containers_in(&self, pod: &str) -> impl Iterator<Item = &ContainerEntry> {
        self.containers_by_pod.get(pod).into_iter().flatten().filter_map(|id| self.containers.get(id))
    }
}

fn remove_id(index: &mut BTreeMap<String, BTreeSet<String>>, key: &str, id: &str) {
    if let Some(ids) = index.get_mut(key) {
        ids.remove(id);
        if ids.is_empty() {
            index.remove(key);
        }
    }
}

#[derive(Clone)]
struct PodEntry {
    record: Arc<PodRecord>,
    shim: Option<ShimRecord>,
    link: Option<Arc<Link>>,
    leftovers: Arc<cleaning::Leftovers>,
}

#[derive(Clone)]
struct ContainerEntry {
    record: Arc<ContainerSummary>,
    state: watch::Sender<StateRecord>,
    /// Held while the `poststart` hooks run.
    poststart: Arc<tokio::sync::Mutex<()>>,
}

impl ContainerEntry {
    fn new(record: Arc<ContainerSummary>, state: StateRecord) -> Self {
        Self { record, state: watch::channel(state).0, poststart: Arc::default() }
    }
}

impl Embedded {
    /// Opens a root directory, adopts running shims and determines how the others ended.
    pub fn open(options: Options) -> Pin<Box<dyn Future<Output = Result<Embedded>> + Send>> {
        Box::pin(Self::opened(options))
    }

    async fn opened(options: Options) -> Result<Embedded> {
        let root = std::path::absolute(&options.root).map_err(Error::io("root directory"))?;
        std::fs::create_dir_all(&root).map_err(Error::io(root.display().to_string()))?;
        // They contain files of other users: secrets, tokens, set-user-id programs.
        let root = std::fs::canonicalize(&root).map_err(Error::io(root.display().to_string()))?;
        for directory in [root.clone(), root.join("pods"), root.join("images")] {
            private_directory(&directory)?;
        }
        let prefix = &options.cgroup_prefix;
        if prefix.is_empty() || prefix.contains('/') || prefix.starts_with('.') {
            return Err(Error::Invalid { field: "cgroup prefix", message: format!("{prefix:?} is not one path part") });
        }
        let hierarchies = Hierarchies::detect().map_err(Error::io("cgroup hierarchies"))?;
        let mut limits = HostLimits::read().map_err(Error::io("limits of this host"))?;
        let directories = [root.join("pods"), root.join("images")];
        limits.no_user_namespaces = user_namespace::probe(&directories.each_ref().map(PathBuf::as_path)).err();
        let inner = Inner {
            limits,
            images: ImageStore::open(root.join("images"))?.with_reserve(options.disk_reserve.clone()),
            hierarchies,
            root,
            program: Program::open(&options.shim_program)
                .map_err(Error::io(format!("a read-only mount of {}", options.shim_program.display())))?,
            options,
            events: broadcast::channel(4096).0,
            state: Mutex::default(),
        };
        let embedded = Embedded { inner: Arc::new(inner) };
        embedded.adopt().await?;
        Ok(embedded)
    }

    /// Opens the images below a root directory, also while another process runs containers from it.
    pub fn images_at(root: &Path) -> Result<ImageStore> {
        for directory in [root, &root.join("images")] {
            std::fs::create_dir_all(directory).map_err(Error::io(directory.display().to_string()))?;
            private_directory(directory)?;
        }
        Ok(ImageStore::open(root.join("images"))?)
    }

    /// A container on disk below a root directory that has not ended and uses this layer of an image.
    pub fn user_of_layer(root: &Path, layer: &str) -> Option<String> {
        let entries = |path: std::path::PathBuf| std::fs::read_dir(path).into_iter().flatten().flatten();
        entries(root.join("pods")).flat_map(|pod| entries(pod.path().join("containers"))).find_map(|container| {
            let record: ContainerLayers = records::read_part(&container.path().join("config.json")).ok()??;
            let state = records::read::<StateRecord>(&container.path().join("state.json")).ok().flatten();
            let ended = state.is_some_and(|s| s.state == ContainerState::Exited);
            (!ended && record.has(layer)).then_some(record.id)
        })
    }

    /// Removes an image. Errors if a container that has not ended uses a layer that no other image has.
    pub fn remove_image(&self, name: &str) -> std::result::Result<(), crate::image::Error> {
        let root = &self.inner.options.root;
        self.images().remove(name, |layer| Self::user_of_layer(root, layer)).map(drop)
    }

    /// Removes what interrupted imports of images left, but no layer of a container that has not ended. Blocks.
    pub fn remove_image_leftovers(&self) -> std::result::Result<(), crate::image::Error> {
        let root = &self.inner.options.root;
        self.images().remove_leftovers(|layer| Self::user_of_layer(root, layer))
    }

    /// The directory of all data.
    pub fn root(&self) -> &Path {
        &self.inner.root
    }

    /// The image store of the runtime.
    pub fn images(&self) -> &ImageStore {
        &self.inner.images
    }

    /// The limits of the host, as they were when the runtime was opened.
    pub fn host_limits(&self) -> &HostLimits {
        &self.inner.limits
    }

    /// Creates or changes a cgroup below the prefix, for the levels above pods (`burstable`, `besteffort`); the empty path is the
    /// prefix itself.
    pub fn set_cgroup(&self, path: &str, resources: &Resources) -> Result<()> {
        let path = self.inner.cgroup(path);
        self.inner.hierarchies.create(&path, resources).map_err(Error::io(format!("cgroup {path}")))
    }

    /// Usage of a cgroup below the prefix; the empty path is the prefix itself.
    pub fn cgroup_usage(&self, path: &str) -> crate::api::Usage {
        self.inner.hierarchies.usage(&self.inner.cgroup(path))
    }

    /// Kills all processes of all pods, and removes their cgroups, without a trace in the records: as if the machine had lost its power.
    /// No runtime with these options may be open.
    pub fn power_off(options: &Options) -> Pin<Box<dyn Future<Output = Result<()>> + Send + '_>> {
        Box::pin(purge::power_off(options))
    }

    /// Ends every process of the runtime under `options` and removes its mounts, cgroups, pods and images. Works without
    /// [`Embedded::open`], and after an interrupted purge. Log files stay.
    pub fn purge(options: &Options) -> Pin<Box<dyn Future<Output = Result<()>> + Send + '_>> {
        Box::pin(purge::purge(options))
    }
}

impl Inner {
    fn cgroup(&self, path: &str) -> String {
        let path = path.trim_matches('/');
        if path.is_empty() {
            self.options.cgroup_prefix.clone()
        } else {
            format!("{}/{path}", self.options.cgroup_prefix)
        }
    }

    fn pod_directory(&self, pod: &str) -> PathBuf {
        self.root.join("pods").join(pod)
    }

    fn container_directory(&self, pod: &str, container: &str) -> PathBuf {
        self.pod_directory(pod).join("containers").join(container)
    }

    fn now(&self) -> Timestamp {
        (self.options.clock)()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change is one insertion or removal, so a panic leaves the data consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pod(&self, id: &str) -> Result<PodEntry> {
        self.state().pods.get(id).cloned().ok_or_else(|| Error::NotFound { what: "pod", id: id.to_owned() })
    }

    fn container(&self, id: &str) -> Result<ContainerEntry> {
        self.state().containers.get(id).cloned().ok_or_else(|| Error::NotFound { what: "container", id: id.to_owned() })
    }

    fn link(&self, pod: &str) -> Result<Arc<Link>> {
        self.pod(pod)?.link.ok_or_else(|| Error::ShimGone { pod: pod.to_owned() })
    }

    fn emit(&self, event: Event) {
        let _ = self.events.send(event); // without receivers nothing is sent
    }
}

/// Runs file system work on a thread that may block.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(e) if e.is_panic() => std::panic::resume_unwind(e.into_panic()),
        Err(e) => Err(Error::io("runtime is shutting down")(std::io::Error::other(e))),
    }
}

fn remove_directory(path: &Path) -> Result<()> {
    beneath::remove_tree(path).map_err(Error::io(path.display().to_string()))
}

/// Creates a directory with mode 0700, or sets that mode of an existing one.
fn private_directory(path: &Path) -> Result<()> {
    beneath::make_private(path).map_err(Error::io(path.display().to_string()))
}

#[async_trait]
impl Runtime for Embedded {
    fn version(&self) -> (String, String) {
        ("kemudi".into(), env!("CARGO_PKG_VERSION").into())
    }

    fn handlers(&self) -> Handlers {
        let user_namespaces = self.host_limits().no_user_namespaces.is_none();
        Handlers::from([(String::new(), HandlerFeatures { user_namespaces, ..HandlerFeatures::ALL })])
    }

    async fn run_pod(&self, config: PodConfig) -> Result<Pod> {
        self.run_pod(config).await
    }

    async fn stop_pod(&self, pod: &str) -> Result<()> {
        self.stop_pod(pod).await
    }

    async fn remove_pod(&self, pod: &str) -> Result<()> {
        self.remove_pod(pod).await
    }

    async fn list_pods(&self) -> Result<Vec<Pod>> {
        Ok(self.inner.state().pods.values().map(PodEntry::describe).collect())
    }

    async fn pod_records(&self, uid: &str) -> Result<PodRecords> {
        let state = self.inner.state();
        let pods: Vec<Pod> = state.pods_with_uid(uid).map(PodEntry::describe).collect();
        let containers = pods.iter().flat_map(|p| state.containers_in(&p.id)).map(ContainerEntry::describe).collect();
        Ok(PodRecords { pods, containers })
    }

    async fn pod_status(&self, pod: &str) -> Result<Pod> {
        Ok(self.inner.pod(pod)?.describe())
    }

    async fn create_container(&self, pod: &str, config: ContainerConfig) -> Result<String> {
        let (inner, pod) = (self.inner.clone(), pod.to_owned());
        blocking(move || inner.create_container(&pod, config)).await
    }

    async fn start_container(&self, container: &str) -> Result<()> {
        self.inner.start_container(container).await
    }

    async fn stop_container(&self, container: &str, grace: Duration) -> Result<()> {
        self.inner.stop_container(container, grace).await
    }

    async fn remove_container(&self, container: &str) -> Result<()> {
        self.inner.clone().remove_container(container).await
    }

    async fn container_status(&self, container: &str) -> Result<Container> {
        Ok(self.inner.container(container)?.describe())
    }

    async fn list_containers(&self) -> Result<Vec<Container>> {
        Ok(self.inner.state().containers.values().map(ContainerEntry::describe).collect())
    }

    async fn update_container(&self, container: &str, resources: Resources) -> Result<()> {
        let entry = self.inner.container(container)?;
        let path = self.inner.container_cgroup(&entry.record)?;
        self.inner.hierarchies.update(&path, &resources).map_err(Error::io("container limits"))
    }

    async fn reopen_log(&self, container: &str) -> Result<()> {
        self.inner.reopen_log(container).await
    }

    async fn exec(&self, container: &str, request: ExecRequest) -> Result<ExecSession> {
        self.inner.exec(container, request).await
    }

    async fn exec_sync(
        &self,
        container: &str,
        command: Vec<String>,
        timeout: Option<Duration>,
        most: u64,
    ) -> Result<ExecResult> {
        self.inner.exec_sync(container, command, timeout, most).await
    }

    async fn attach(&self, container: &str, stdin: bool) -> Result<AttachSession> {
        self.inner.attach(container, stdin).await
    }

    async fn forward_port(&self, pod: &str, _port: u16) -> Result<PortForward> {
        Ok(PortForward::Namespace(self.inner.pod(pod)?.record.config.netns.clone()))
    }

    async fn container_stats(&self, container: &str) -> Result<Stats> {
        let inner = self.inner.clone();
        let entry = inner.container(container)?;
        blocking(move || inner.container_stats(&entry)).await
    }

    async fn container_layer(&self, container: &str) -> Result<(u64, u64)> {
        let inner = self.inner.clone();
        let entry = inner.container(container)?;
        blocking(move || Ok(inner.container_layer(&entry))).await
    }

    async fn pod_stats(&self, pod: &str) -> Result<Stats> {
        let record = self.inner.pod(pod)?.record;
        Ok(Stats { at: self.inner.now(), usage: self.inner.hierarchies.usage(&record.cgroup) })
    }

    fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.inner.events.subscribe()
    }
}

impl Host for Embedded {
    fn set_cgroup(&self, path: &str, resources: &Resources) -> Result<()> {
        Embedded::set_cgroup(self, path, resources)
    }

    fn usage(&self, path: &str) -> Usage {
        self.cgroup_usage(path)
    }

    fn complaints(&self) -> Vec<String> {
        self.host_limits().complaints()
    }

    fn user_namespaces(&self) -> std::result::Result<(), String> {
        self.host_limits().no_user_namespaces.clone().map_or(Ok(()), Err)
    }
}
