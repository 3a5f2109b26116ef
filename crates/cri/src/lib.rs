//! A container runtime behind the container runtime interface (CRI) v1, such as containerd or CRI-O.
//!
//! [`Cri`] implements the traits of the crate `runtime` over gRPC, as the embedded runtime does in this process: pods and containers
//! ([`runtime::Runtime`]), images ([`runtime::image::ImageService`]), and the control groups above pods ([`runtime::Host`]). What the
//! interface leaves to the kubelet is done here: files that containers mount, rotation of logs, and listing for events.
//!
//! **Invariants.** Only sandboxes with the label of this node ([`Options::owner`]) are listed, changed and removed, so that several users
//! can share a runtime. Everything that is known of a sandbox or container is in its annotations, so the agent may start again at any time.
//! What the runtime does not offer is refused ([`runtime::Error::Unsupported`]), never left out.
//!
//! Left out: runtime handlers, checkpoints, the cgroup driver of systemd.
#![warn(missing_docs)]

mod connection;
mod containers;
mod endpoint;
mod events;
mod files;
mod images;
mod logs;
mod pods;
mod records;
mod security;
mod service;
mod signals;
mod stats;
mod streams;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_cri::v1;
use parking_lot::Mutex;
use runtime::cgroup::Hierarchies;
use runtime::{Clock, Error, Event, Features, HandlerFeatures, Handlers, HostLimits, LogLimits, Result};
use tokio::sync::broadcast;

use connection::Connection;
pub use endpoint::{Endpoint, EndpointError};
use files::Files;
use records::Ended;

/// The options of a [`Cri`].
#[derive(Clone)]
pub struct Options {
    /// The socket of the runtime service.
    pub endpoint: Endpoint,
    /// The socket of the image service, if it is another one.
    pub image_endpoint: Option<Endpoint>,
    /// The directory of files that containers mount.
    pub directory: PathBuf,
    /// The control group above those of pods: one path component.
    pub cgroup_prefix: String,
    /// Marks the sandboxes and containers of this node.
    pub owner: String,
    /// The clock of statistics and names of rotated logs.
    pub clock: Clock,
    /// The timeout of calls (`runtimeRequestTimeout`).
    pub timeout: Duration,
    /// Limits of logs.
    pub log_limits: LogLimits,
}

/// Why a runtime cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It does not answer, or has no CRI v1.
    #[error("validate CRI v1 {service} API for endpoint {endpoint:?}: {source}")]
    Service {
        /// `runtime` or `image`.
        service: &'static str,
        /// The endpoint.
        endpoint: String,
        /// The error of the first call.
        source: Error,
    },
    /// It uses another cgroup driver.
    #[error(
        "the container runtime at {endpoint:?} uses the cgroup driver \"systemd\": this node needs \"cgroupfs\" (in containerd, \
         SystemdCgroup = false)"
    )]
    CgroupDriver {
        /// The endpoint.
        endpoint: String,
    },
    /// The machine or a file cannot be used.
    #[error(transparent)]
    Runtime(#[from] Error),
}

/// A connection to a container runtime. Cheap to clone.
#[derive(Clone)]
pub struct Cri {
    inner: Arc<Inner>,
}

struct Inner {
    options: Options,
    connection: Connection,
    images: Connection,
    files: Files,
    hierarchies: Hierarchies,
    limits: HostLimits,
    /// Name and version.
    version: (String, String),
    features: Features,
    handlers: Handlers,
    applies_cdi: bool,
    events: broadcast::Sender<Event>,
    /// Containers that have ended, which do not change any more.
    ended: Mutex<Ended>,
    /// Held while the records of access to images are changed.
    access: tokio::sync::Mutex<()>,
    /// Shared by those that make sandboxes, which have files before the runtime has them.
    making: tokio::sync::RwLock<()>,
    /// The number of pulls that run.
    pulls: tokio::sync::Mutex<usize>,
}

impl Cri {
    /// Connects to a runtime and checks that it can be used. Follows its containers until the last clone is dropped.
    pub async fn open(options: Options) -> Result<Cri, OpenError> {
        Self::connect(options, events::Pace::default()).await
    }

    async fn connect(options: Options, pace: events::Pace) -> Result<Cri, OpenError> {
        let connection = Connection::new(&options.endpoint, options.timeout);
        let images = Connection::new(options.image_endpoint.as_ref().unwrap_or(&options.endpoint), options.timeout);
        let failed = |service, connection: &Connection| {
            let endpoint = connection.endpoint.to_string();
            move |source| OpenError::Service { service, endpoint, source }
        };
        let version = connection.version().await.map_err(failed("runtime", &connection))?;
        images.list_images().await.map_err(failed("image", &images))?;
        let status = connection.status(true).await.map_err(failed("runtime", &connection))?;
        if connection.uses_systemd(&status).await {
            return Err(OpenError::CgroupDriver { endpoint: connection.endpoint.to_string() });
        }
        let (features, handlers) = (features(&version, &status), handlers(&status));
        let applies_cdi = applies_cdi(&version);
        let files = Files::open(options.directory.clone())?;
        let inner = Inner {
            hierarchies: Hierarchies::detect().map_err(|source| io("cgroup hierarchies", source))?,
            limits: HostLimits::read().map_err(|source| io("limits of this host", source))?,
            files,
            connection,
            images,
            version,
            features,
            handlers,
            applies_cdi,
            events: broadcast::channel(4096).0,
            ended: Mutex::default(),
            access: tokio::sync::Mutex::default(),
            pulls: tokio::sync::Mutex::default(),
            making: tokio::sync::RwLock::default(),
            options,
        };
        let inner = Arc::new(inner);
        // Pulls that an earlier agent began.
        inner.settle().await.map_err(|e| Error::Service { message: e.to_string(), is_unavailable: false })?;
        inner.remove_leftovers().await?;
        tokio::spawn(events::follow(Arc::downgrade(&inner), pace));
        tokio::spawn(logs::follow(Arc::downgrade(&inner)));
        Ok(Cri { inner })
    }

    /// Stops and removes all sandboxes of a node, with their files and control groups. Images stay. Works while no agent runs. Errors if the
    /// runtime cannot be reached.
    pub async fn purge(options: &Options) -> Result<()> {
        pods::purge(options).await
    }
}

/// The number of the first two parts of a version.
fn release(version: &str) -> (u32, u32) {
    let number = |part: Option<&str>| part.and_then(|p| p.trim_start_matches('v').parse::<u32>().ok()).unwrap_or(0);
    let mut parts = version.split('.');
    (number(parts.next()), number(parts.next()))
}

/// Whether a runtime applies the CDI devices of requests. No runtime reports it; others ignore them. In containerd 1.7 it is off by default.
fn applies_cdi((name, version): &(String, String)) -> bool {
    match name.as_str() {
        "containerd" => release(version) >= (2, 0),
        "cri-o" => release(version) >= (1, 28),
        _ => false,
    }
}

/// What a runtime offers. Mounts of images are part of the interface since v1.31, but runtimes do not report them: containerd has them since
/// 2.1.
fn features((name, version): &(String, String), status: &v1::StatusResponse) -> Features {
    let release = release(version);
    Features {
        strict_groups: status.features.is_some_and(|f| f.supplemental_groups_policy),
        image_volumes: match name.as_str() {
            "containerd" => release >= (2, 1),
            "cri-o" => release >= (1, 31),
            _ => false,
        },
    }
}

fn handlers(status: &v1::StatusResponse) -> Handlers {
    let features = |h: &v1::RuntimeHandler| {
        h.features.map_or(HandlerFeatures::default(), |f| HandlerFeatures {
            user_namespaces: f.user_namespaces,
            recursive_read_only_mounts: f.recursive_read_only_mounts,
        })
    };
    status.runtime_handlers.iter().map(|h| (h.name.clone(), features(h))).collect()
}

fn io(what: impl Into<String>, source: std::io::Error) -> Error {
    let what = what.into();
    Error::Io { what: format!("{what}: {source}"), source }
}

impl Inner {
    /// The control group of a pod, relative to the hierarchies.
    fn cgroup(&self, path: &str) -> String {
        let (prefix, path) = (&self.options.cgroup_prefix, path.trim_matches('/'));
        if path.is_empty() { prefix.clone() } else { format!("{prefix}/{path}") }
    }

    /// What the handler offers; nothing for one that the runtime does not report.
    fn handler(&self, name: &str) -> HandlerFeatures {
        self.handlers.get(name).copied().unwrap_or_default()
    }

    fn unsupported(&self, feature: &'static str) -> Error {
        Error::Unsupported { runtime: format!("{} {}", self.version.0, self.version.1), feature }
    }
}

/// Runs file system work on a thread that may block.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    supervisor::blocking(work).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices_reach_runtimes_that_apply_them() {
        for (name, version, expected) in [
            ("containerd", "1.6.20~ds1", false),
            ("containerd", "v1.7.27", false),
            ("containerd", "v2.0.0", true),
            ("cri-o", "1.27.1", false),
            ("cri-o", "1.33.0", true),
            ("other", "9.0", false),
        ] {
            assert_eq!(applies_cdi(&(name.into(), version.into())), expected, "{name} {version}");
        }
    }

    #[test]
    fn features_are_those_that_the_runtime_reports() {
        let version = |name: &str, version: &str| (name.to_owned(), version.to_owned());
        let nothing = v1::StatusResponse::default();
        let old = features(&version("containerd", "1.6.20~ds1"), &nothing);
        assert_eq!(old, Features { strict_groups: false, image_volumes: false });
        assert_eq!(handlers(&nothing), Handlers::new());
        let handler = |name: &str, user_namespaces| v1::RuntimeHandler {
            name: name.into(),
            features: Some(v1::RuntimeHandlerFeatures { recursive_read_only_mounts: true, user_namespaces }),
        };
        let silent = v1::RuntimeHandler { name: "silent".into(), features: None };
        let status = v1::StatusResponse {
            runtime_handlers: vec![handler("other", true), handler("", false), silent],
            features: Some(v1::RuntimeFeatures { supplemental_groups_policy: true }),
            ..v1::StatusResponse::default()
        };
        assert_eq!(features(&version("containerd", "v2.1.4"), &status), Features::ALL);
        let expected = [
            ("other", HandlerFeatures::ALL),
            ("", HandlerFeatures { user_namespaces: false, ..HandlerFeatures::ALL }),
            ("silent", HandlerFeatures::default()),
        ];
        assert_eq!(handlers(&status), expected.map(|(name, features)| (name.to_owned(), features)).into());
    }
}
