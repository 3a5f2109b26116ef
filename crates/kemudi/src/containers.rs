//! The container runtime of a node: the one in this program, or another one behind the CRI.

use crate::agent::{DEMO_IMAGE, REGISTRIES, tag};
use crate::data_dir::CNI;
use cri::{Cri, Endpoint, EndpointError, OpenError};
use distribution::{EmbeddedImages, Limits, Puller};
use network::PodNetwork;
use network::cni::Files;
use node::configuration::{KubeletConfiguration, Signal};
use runtime::beneath::make_private;
use runtime::image::{ImageService, Reserve, Room};
use runtime::{Embedded, Host, Runtime};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use supervisor::{Component, OnEnd};
use tokio::time::Instant;

/// The endpoint of the runtime that a node was started with, in its data directory.
const RECORD: &str = "container-runtime";
/// What images leave free of a disk that may be filled: these bytes and files, or 1 % of a small disk.
const LEAST_FREE: u64 = 1 << 30;
const LEAST_FREE_FILES: u64 = 10_000;
/// How long the runtime may take to notice the network configuration, before the node starts without.
const NETWORK_READY: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(50);

/// Why the pods of a node cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("containerRuntimeEndpoint: {0}")]
    Endpoint(#[source] EndpointError),
    #[error("imageServiceEndpoint: {0}")]
    ImageEndpoint(#[source] EndpointError),
    #[error("imageServiceEndpoint has no effect without containerRuntimeEndpoint: use both or neither")]
    ImagesAlone,
    #[error("--container-runtime-endpoint is for one node: it cannot be used with --nodes")]
    Nodes,
    #[error(
        "the pods of {directory} run in {before}: start it with that runtime again, or remove them with `kemudi down --purge --data-dir \
         {directory}`"
    )]
    Changed { directory: String, before: String },
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("starting the container runtime: {0}")]
    Runtime(#[from] runtime::Error),
    #[error("unpacking the built-in image: {0}")]
    Image(String),
    #[error("installing the CNI plugin: {0}")]
    Network(#[from] network::Error),
    #[error("{path}: {source}")]
    File { path: PathBuf, source: std::io::Error },
}

fn file(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { path, source }
}

/// The sockets of a container runtime behind the CRI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints {
    runtime: Endpoint,
    images: Option<Endpoint>,
}

/// The endpoints in a configuration; `None` for the runtime in this program.
pub fn endpoints(configuration: &KubeletConfiguration) -> Result<Option<Endpoints>, Error> {
    let (runtime, images) = (&configuration.container_runtime_endpoint, &configuration.image_service_endpoint);
    match (runtime.as_str(), images.as_str()) {
        ("", "") => Ok(None),
        ("", _) => Err(Error::ImagesAlone),
        (runtime, "") => Ok(Some(Endpoints { runtime: runtime.parse().map_err(Error::Endpoint)?, images: None })),
        (runtime, images) => Ok(Some(Endpoints {
            runtime: runtime.parse().map_err(Error::Endpoint)?,
            images: Some(images.parse().map_err(Error::ImageEndpoint)?),
        })),
    }
}

/// The endpoint of the runtime that a node was started with; `None` for that in this program.
pub fn recorded(data_dir: &Path) -> Option<Endpoint> {
    std::fs::read_to_string(data_dir.join(RECORD)).ok()?.trim().parse().ok()
}

/// Errors if the pods of a data directory are in another runtime. Containers that nobody watches would go on beside the new ones.
pub fn check(data_dir: &Path, endpoints: Option<&Endpoints>) -> Result<(), Error> {
    let now = endpoints.map(|e| &e.runtime);
    let before = match recorded(data_dir) {
        Some(before) if now != Some(&before) => before.to_string(),
        None if now.is_some() && has_embedded_pods(data_dir) => "the runtime of kemudi".into(),
        _ => return Ok(()),
    };
    Err(Error::Changed { directory: data_dir.display().to_string(), before })
}

fn has_embedded_pods(data_dir: &Path) -> bool {
    std::fs::read_dir(data_dir.join("runtime/pods")).is_ok_and(|mut entries| entries.next().is_some())
}

/// The container runtime of a node, by its parts.
pub struct Containers {
    pub runtime: Arc<dyn Runtime>,
    pub host: Arc<dyn Host>,
    pub images: Arc<dyn ImageService>,
}

/// What the runtimes need.
pub struct Settings<'a> {
    pub data_dir: &'a Path,
    pub configuration: &'a KubeletConfiguration,
    /// The configuration of registries, if not that of the data directory.
    pub registries: Option<&'a Path>,
    pub clock: runtime::Clock,
}

impl Settings<'_> {
    /// Opens the runtime in this program.
    pub async fn embedded(&self) -> Result<Containers, Error> {
        let options = runtime::Options {
            disk_reserve: disk_reserve(self.configuration),
            ..options(self.data_dir, self.clock.clone())
        };
        let embedded = Embedded::open(options).await?;
        let registries = self.registries.map_or_else(|| self.data_dir.join(REGISTRIES), Path::to_owned);
        let default = Limits::default();
        let limits = Limits { pulls: self.configuration.parallel_pulls().unwrap_or(default.pulls), ..default };
        let puller = Puller::new(embedded.images().clone(), registries, limits);
        let images = EmbeddedImages { runtime: embedded.clone(), puller };
        // First of all: they may fill the disk.
        if let Err(error) = images.remove_leftovers().await {
            tracing::warn!(%error, "removing what interrupted image imports left failed");
        }
        embedded.images().ensure_builtin(DEMO_IMAGE, &program()?).map_err(|e| Error::Image(e.to_string()))?;
        let runtime = Arc::new(embedded);
        Ok(Containers { runtime: runtime.clone(), host: runtime, images: Arc::new(images) })
    }

    /// Connects to a runtime, for which this program is the CNI plugin. `component` serves the plugin.
    pub async fn cri(
        &self,
        endpoints: &Endpoints,
        network: &PodNetwork,
        component: &Component,
    ) -> Result<Containers, Error> {
        let record = self.data_dir.join(RECORD);
        let cni = plugin_files(self.data_dir);
        let directory = self.data_dir.join(CNI);
        make_private(&directory).map_err(file(&directory))?;
        let runtime = Cri::open(cri_options(self, endpoints)).await?;
        std::fs::write(&record, endpoints.runtime.to_string()).map_err(file(&record))?;
        cni.install(&program()?)?;
        let network = network.clone();
        component.spawn("cni", OnEnd::Restart, move || network::cni::serve(network.clone(), cni.clone()));
        wait_for_network(&runtime).await;
        let runtime = Arc::new(runtime);
        Ok(Containers { runtime: runtime.clone(), host: runtime.clone(), images: runtime })
    }
}

/// Waits until the runtime has noticed the network configuration. A node whose runtime has none registers too, but is not ready.
async fn wait_for_network(runtime: &Cri) {
    let begun = Instant::now();
    while begun.elapsed() < NETWORK_READY && !runtime.status().await.is_ok_and(|s| s.network.is_ready) {
        tokio::time::sleep(PAUSE).await;
    }
}

fn program() -> Result<PathBuf, Error> {
    std::env::current_exe().map_err(file(Path::new("/proc/self/exe")))
}

/// The files of the CNI plugin of a node.
fn plugin_files(data_dir: &Path) -> Files {
    let directory = std::path::absolute(data_dir).unwrap_or_else(|_| data_dir.to_owned());
    Files::new(directory.join(CNI))
}

fn cgroup_prefix(data_dir: &Path) -> String {
    format!("kemudi-{}", tag(data_dir))
}

/// The options of the runtime in this program.
pub fn options(data_dir: &Path, clock: runtime::Clock) -> runtime::Options {
    runtime::Options::new(data_dir.join("runtime"), cgroup_prefix(data_dir), clock)
}

/// What images leave free on their disk: as much as keeps the node from evicting pods, and always a little for everything else.
fn disk_reserve(configuration: &KubeletConfiguration) -> Reserve {
    let thresholds = configuration.clone();
    let kept = move |signals: [Signal; 2], capacity: u64, least: u64| {
        let kept = signals.map(|signal| thresholds.hard_threshold(signal, capacity));
        kept.into_iter().fold(least.min(capacity / 100), u64::max)
    };
    Reserve::new(move |disk| Room {
        bytes: kept([Signal::NodeFsAvailable, Signal::ImageFsAvailable], disk.bytes, LEAST_FREE),
        files: kept([Signal::NodeFsInodesFree, Signal::ImageFsInodesFree], disk.files, LEAST_FREE_FILES),
    })
}

fn cri_options(settings: &Settings<'_>, endpoints: &Endpoints) -> cri::Options {
    cri::Options {
        endpoint: endpoints.runtime.clone(),
        image_endpoint: endpoints.images.clone(),
        directory: settings.data_dir.join("cri"),
        cgroup_prefix: cgroup_prefix(settings.data_dir),
        owner: tag(settings.data_dir),
        clock: settings.clock.clone(),
        timeout: settings.configuration.runtime_request_timeout.get(),
        log_limits: settings.configuration.log_limits(),
    }
}

/// Removes the pods of a node that does not run, with their images if they are in the runtime of this program. Pods in a runtime that does
/// not answer stay, with a note.
pub async fn purge(data_dir: &Path, clock: runtime::Clock) -> Result<(), Error> {
    if let Some(runtime) = recorded(data_dir) {
        let configuration = KubeletConfiguration::default();
        let settings = Settings { data_dir, configuration: &configuration, registries: None, clock: clock.clone() };
        match Cri::purge(&cri_options(&settings, &Endpoints { runtime: runtime.clone(), images: None })).await {
            Err(runtime::Error::Service { message, is_unavailable: true }) => crate::output::note!(
                "warning: the container runtime at {runtime} does not answer, and keeps what it has of this node (label kemudi.dev/node={}): \
                 {message}",
                tag(data_dir)
            ),
            result => result?,
        }
    }
    Ok(Embedded::purge(&options(data_dir, clock)).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_leave_free_what_evictions_begin_below() {
        let mut configuration = KubeletConfiguration::default();
        let room = |configuration: &KubeletConfiguration, gib: u64| {
            let room = disk_reserve(configuration).of_capacity(Room { bytes: gib << 30, files: 1_000_000 });
            (room.bytes >> 20, room.files)
        };
        assert_eq!(room(&configuration, 100), (15 << 10, 50_000));
        configuration.eviction_hard.insert("imagefs.available".into(), "1Gi".into());
        configuration.eviction_hard.insert("nodefs.available".into(), "3Gi".into());
        assert_eq!(room(&configuration, 100).0, 3 << 10);
        configuration.eviction_hard.clear();
        assert_eq!(room(&configuration, 1000), (1 << 10, 10_000));
        assert_eq!(room(&configuration, 10).0, 102);
    }

    fn configuration(runtime: &str, images: &str) -> KubeletConfiguration {
        KubeletConfiguration {
            container_runtime_endpoint: runtime.into(),
            image_service_endpoint: images.into(),
            ..KubeletConfiguration::default()
        }
    }

    #[test]
    fn endpoints_are_checked_before_anything_starts() {
        let of = |runtime, images| endpoints(&configuration(runtime, images));
        assert_eq!(of("", "").unwrap(), None);
        assert!(matches!(of("", "unix:///a"), Err(Error::ImagesAlone)));
        assert!(matches!(of("tcp://a:1", ""), Err(Error::Endpoint(_))));
        assert!(matches!(of("unix:///a", "b"), Err(Error::ImageEndpoint(_))));
        let both = of("unix:///a", "/b").unwrap().unwrap();
        assert_eq!(
            (both.runtime.to_string(), both.images.unwrap().to_string()),
            ("unix:///a".into(), "unix:///b".into())
        );
    }

    #[test]
    fn a_node_does_not_change_its_runtime_while_it_has_pods() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let cri = |socket: &str| endpoints(&configuration(socket, "")).unwrap();
        let is_refused = |endpoints: Option<Endpoints>| check(path, endpoints.as_ref()).is_err();
        assert!(!is_refused(None) && !is_refused(cri("/a")));
        std::fs::write(path.join(RECORD), "unix:///a").unwrap();
        assert!(!is_refused(cri("/a")));
        assert!(is_refused(None) && is_refused(cri("/b")));
        std::fs::remove_file(path.join(RECORD)).unwrap();
        std::fs::create_dir_all(path.join("runtime/pods/u-0")).unwrap();
        assert!(is_refused(cri("/a")) && !is_refused(None));
    }
}
