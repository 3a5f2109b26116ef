//! The interface of the runtime: the traits; their requests and results are in the files beside.
//!
//! The calls follow the CRI: a pod (sandbox) first, then containers in it, which are created, started, stopped and
//! removed. All calls are idempotent where the CRI asks for it (stop and remove of something that is gone succeed).

mod container;
mod error;
mod hooks;
mod pod;
mod session;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::broadcast;

pub use container::*;
pub use error::*;
pub use hooks::*;
pub use pod::*;
pub use session::*;

/// Wall-clock time since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timestamp {
    /// Whole seconds.
    pub secs: u64,
    /// Nanoseconds within the second.
    pub nanos: u32,
}

/// The source of timestamps.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The sandboxes of a pod, one for each attempt, and all of their containers, in no order.
#[derive(Clone, Debug, Default)]
pub struct PodRecords {
    /// The sandboxes, running or not.
    pub pods: Vec<Pod>,
    /// The containers of all these sandboxes.
    pub containers: Vec<Container>,
}

/// An event, in order per pod. After `Lagged` on the channel, list again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The container's program runs.
    ContainerStarted {
        /// The id of the sandbox.
        pod: String,
        /// The id of the container.
        container: String,
    },
    /// The container has ended.
    ContainerExited {
        /// The id of the sandbox.
        pod: String,
        /// The id of the container.
        container: String,
        /// As [`Container::exit_code`].
        exit_code: i32,
    },
    /// The shim is gone; its containers went with it.
    PodStopped {
        /// The id of the sandbox.
        pod: String,
    },
}

/// The usage of a pod or container at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// When the usage was read.
    pub at: Timestamp,
    /// The usage.
    pub usage: Usage,
}

/// Who creates the network namespaces of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkOwner {
    /// The caller of [`Runtime::run_pod`], which has connected the namespace in [`PodConfig::netns`].
    Caller,
    /// The runtime, which has CNI plugins connect the namespace with [`PodConfig::address`].
    Runtime,
}

/// What runtimes need not offer, whichever handler runs a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// `supplementalGroupsPolicy: Strict`.
    pub strict_groups: bool,
    /// Mounts of images.
    pub image_volumes: bool,
}

impl Features {
    /// Everything.
    pub const ALL: Features = Features { strict_groups: true, image_volumes: true };
}

/// What a handler of a runtime offers. A handler is a program, or a configuration of it, that runs the containers of pods whose
/// RuntimeClass names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandlerFeatures {
    /// User namespaces of pods (`hostUsers: false`).
    pub user_namespaces: bool,
    /// Mounts that are read-only with all mounts below them.
    pub recursive_read_only_mounts: bool,
}

impl HandlerFeatures {
    /// Everything.
    pub const ALL: HandlerFeatures = HandlerFeatures { user_namespaces: true, recursive_read_only_mounts: true };
}

/// The handlers of a runtime by name. The default one has no name.
pub type Handlers = BTreeMap<String, HandlerFeatures>;

/// Whether a part of the runtime is ready.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    /// Whether it is ready.
    pub is_ready: bool,
    /// A word for the state that is not ready.
    pub reason: String,
    /// Details for users.
    pub message: String,
}

/// The state of the runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeStatus {
    /// Whether it runs containers.
    pub runtime: Condition,
    /// Whether it connects pods to the network.
    pub network: Condition,
}

impl RuntimeStatus {
    /// All parts are ready.
    pub fn ready() -> RuntimeStatus {
        let ready = Condition { is_ready: true, ..Condition::default() };
        RuntimeStatus { runtime: ready.clone(), network: ready }
    }
}

/// A connection to a port of a pod.
pub trait PortStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> PortStream for T {}

/// The way to the ports of a pod.
pub enum PortForward {
    /// The caller connects to the loopback of a network namespace; `None` is that of the agent.
    Namespace(Option<PathBuf>),
    /// The runtime has connected.
    Stream(Box<dyn PortStream>),
}

/// A container runtime, as a node agent uses it.
#[async_trait]
pub trait Runtime: Send + Sync {
    /// Name and version, e.g. `("kemudi", "0.1.0")`.
    fn version(&self) -> (String, String);
    /// What the runtime offers.
    fn features(&self) -> Features {
        Features::ALL
    }
    /// The handlers that the runtime reports; it may have others.
    fn handlers(&self) -> Handlers {
        BTreeMap::from([(String::new(), HandlerFeatures::ALL)])
    }
    /// Whether the runtime applies CDI devices itself, by their names ([`ContainerConfig::cdi_devices`]); else the caller does.
    fn applies_cdi(&self) -> bool {
        false
    }
    /// Who creates the network namespaces of pods.
    fn network_owner(&self) -> NetworkOwner {
        NetworkOwner::Caller
    }
    /// The state of the runtime. Errors if it cannot be reached.
    async fn status(&self) -> Result<RuntimeStatus> {
        Ok(RuntimeStatus::ready())
    }
    /// Creates a sandbox and starts its shim. Errors if the id exists, or a value is invalid. A sandbox
    /// that could not be started is removed.
    async fn run_pod(&self, config: PodConfig) -> Result<Pod>;
    /// Kills what still runs in the pod and frees its namespaces, except the network namespace, which belongs to the caller.
    async fn stop_pod(&self, pod: &str) -> Result<()>;
    /// Stops the pod if needed and removes it with its containers (log files stay).
    async fn remove_pod(&self, pod: &str) -> Result<()>;
    /// All sandboxes, in any state.
    async fn list_pods(&self) -> Result<Vec<Pod>>;
    /// The sandboxes and containers of the pod with a UID. Unlike a listing, its cost does not depend on other pods.
    async fn pod_records(&self, uid: &str) -> Result<PodRecords>;
    /// The status of a sandbox. [`Error::NotFound`] if there is none.
    async fn pod_status(&self, pod: &str) -> Result<Pod>;

    /// Creates a container and returns its id.
    async fn create_container(&self, pod: &str, config: ContainerConfig) -> Result<String>;
    /// Starts the program of a created container and returns when it runs. [`Error::Start`] if it cannot be run; its status has
    /// the reason then.
    async fn start_container(&self, container: &str) -> Result<()>;
    /// Sends the stop signal, and SIGKILL after `grace`; returns when the container has exited.
    async fn stop_container(&self, container: &str, grace: Duration) -> Result<()>;
    /// Kills the container if it runs.
    async fn remove_container(&self, container: &str) -> Result<()>;
    /// The status of a container. [`Error::NotFound`] if there is none.
    async fn container_status(&self, container: &str) -> Result<Container>;
    /// All containers, in any state.
    async fn list_containers(&self) -> Result<Vec<Container>>;
    /// Changes limits of a running container.
    async fn update_container(&self, container: &str, resources: Resources) -> Result<()>;
    /// Opens a new log file after the old one was moved away.
    async fn reopen_log(&self, container: &str) -> Result<()>;

    /// Starts a command in a running container. [`Error::Exec`] if it cannot be run.
    async fn exec(&self, container: &str, request: ExecRequest) -> Result<ExecSession>;
    /// Runs a command and returns its output, at most `most` bytes each of standard output and standard error. On timeout the
    /// command is killed and [`Error::Timeout`] returned.
    async fn exec_sync(
        &self,
        container: &str,
        command: Vec<String>,
        timeout: Option<Duration>,
        most: u64,
    ) -> Result<ExecResult>;
    /// With `stdin` (only for a container with `stdin`), the end of the input ends the session, as in containerd. With `stdin_once`
    /// and no terminal, the container gets the end of the input and the session lasts until the container ends.
    async fn attach(&self, container: &str, stdin: bool) -> Result<AttachSession>;
    /// Connects to a port on the loopback of a pod.
    async fn forward_port(&self, pod: &str, port: u16) -> Result<PortForward>;

    /// The current usage of a container.
    async fn container_stats(&self, container: &str) -> Result<Stats>;
    /// Bytes and inodes of the container's writable layer. Walks all of it.
    async fn container_layer(&self, container: &str) -> Result<(u64, u64)>;
    /// The current usage of a pod with all of its containers.
    async fn pod_stats(&self, pod: &str) -> Result<Stats>;
    /// Events from now on.
    fn subscribe(&self) -> broadcast::Receiver<Event>;
}

/// What the agent needs of the machine besides a container runtime. Calls may block.
pub trait Host: Send + Sync {
    /// Creates or updates a cgroup below the runtime's prefix.
    fn set_cgroup(&self, path: &str, resources: &Resources) -> Result<()>;
    /// Usage of a cgroup below the runtime's prefix; empty for all of it.
    fn usage(&self, path: &str) -> Usage;
    /// What does not work on this machine, as sentences for users.
    fn complaints(&self) -> Vec<String>;
    /// Errors with the reason if pods cannot have user namespaces.
    fn user_namespaces(&self) -> std::result::Result<(), String>;
}

/// A limit of processor time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuLimit {
    /// Microseconds of processor time in each period.
    pub quota: u64,
    /// Microseconds.
    pub period: u64,
}

/// Usage of the processes of a cgroup and of the cgroups below it. Bytes and nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processor time since the cgroup was created, in nanoseconds.
    pub cpu_nanoseconds: u64,
    /// The part of it in user mode, in nanoseconds.
    pub cpu_user: u64,
    /// The part of it in the kernel, in nanoseconds.
    pub cpu_system: u64,
    /// Periods in which processes were ready to run under a limit, those in which the limit stopped them, and for how long in
    /// nanoseconds. Cumulative; of the cgroup itself.
    pub cpu_periods: u64,
    /// See [`Self::cpu_periods`].
    pub cpu_throttled_periods: u64,
    /// See [`Self::cpu_periods`].
    pub cpu_throttled: u64,
    /// The limit of processor time in each period; `None` without one.
    pub cpu_limit: Option<CpuLimit>,
    /// The weight against other cgroups, as shares of v1; `None` if it is not known.
    pub cpu_shares: Option<u64>,
    /// Memory in use, pages of files included.
    pub memory: u64,
    /// The most that [`Self::memory`] has been; `None` if the kernel does not know.
    pub memory_peak: Option<u64>,
    /// Usage less inactive file pages, as upstream reports it.
    pub working_set: u64,
    /// Memory that is not of files.
    pub rss: u64,
    /// Pages of files.
    pub cache: u64,
    /// Memory that was swapped out.
    pub swap: u64,
    /// The limit of memory; `None` without one.
    pub memory_limit: Option<u64>,
    /// Cumulative.
    pub page_faults: u64,
    /// The page faults that needed a disk. Cumulative.
    pub major_page_faults: u64,
    /// Processes and threads.
    pub pids: u64,
}
