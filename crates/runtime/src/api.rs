//! The interface of the runtime: the trait, its requests, and its results.
//!
//! The calls follow the CRI: a pod (sandbox) first, then containers in it, which are created, started, stopped and
//! removed. All calls are idempotent where the CRI asks for it (stop and remove of something that is gone succeed).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::broadcast;

/// Wall-clock time since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timestamp {
    pub secs: u64,
    pub nanos: u32,
}

/// The source of timestamps.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{what} {id:?} not found")]
    NotFound { what: &'static str, id: String },
    #[error("{what} {id:?} already exists")]
    AlreadyExists { what: &'static str, id: String },
    #[error("invalid {field}: {message}")]
    Invalid { field: &'static str, message: String },
    /// The image is not present, and this runtime has no way to fetch it (upstream reason `ErrImagePull`).
    #[error("failed to pull image {image:?}: {message}")]
    ImagePull { image: String, message: String },
    #[error("image: {0}")]
    Image(#[from] crate::image::Error),
    /// The pod's shim could not set the pod up.
    #[error("cannot start pod {pod:?}: {message}")]
    PodStart { pod: String, message: String },
    /// The container's process could not be started (upstream reason `StartError`, exit code 128).
    #[error("failed to start container {container:?}: {message}")]
    Start { container: String, message: String },
    /// A command could not be started in a container.
    #[error("failed to exec in container {container:?}: {message}")]
    Exec { container: String, message: String },
    #[error("container {container:?} is {state:?}, not {expected}")]
    State { container: String, state: ContainerState, expected: &'static str },
    #[error("command {command:?} timed out after {after:?}")]
    Timeout { command: String, after: Duration },
    #[error("the shim of pod {pod:?} is gone")]
    ShimGone { pod: String },
    #[error("{what}")]
    Io {
        what: String,
        #[source]
        source: std::io::Error,
    },
    #[error("state file {path}: {message}")]
    Corrupt { path: PathBuf, message: String },
}

impl Error {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Error {
        let what = what.into();
        move |source| Error::Io { what: format!("{what}: {source}"), source }
    }
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Which process-id namespace the containers of a pod live in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PidMode {
    /// One per container (the default).
    #[default]
    Container,
    /// One per pod; process 1 is a small reaper.
    Pod,
    Host,
}

/// Users and groups of the host: `length` numbers from `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdRange {
    pub first: u32,
    pub length: u32,
}

/// Limits as cgroup values. `None` leaves the kernel's default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Resources {
    /// Relative weight, 2..=262144 (1024 per core upstream); converted to `cpu.weight` on cgroup v2.
    pub cpu_shares: Option<u64>,
    /// Microseconds per period; -1 means no quota.
    pub cpu_quota: Option<i64>,
    /// Microseconds; 100 000 by default.
    pub cpu_period: Option<u64>,
    pub cpuset_cpus: Option<String>,
    pub cpuset_mems: Option<String>,
    /// Bytes.
    pub memory_limit: Option<i64>,
    pub pids_limit: Option<i64>,
    /// Page size as the kernel writes it (`2MB`) → bytes.
    pub hugepage_limits: BTreeMap<String, u64>,
}

/// A pod sandbox to be made. `id` is chosen by the caller: letters, digits and `-`, unique for this runtime.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PodConfig {
    pub id: String,
    pub name: String,
    pub namespace: String,
    pub uid: String,
    pub attempt: u32,
    pub hostname: String,
    /// Path of the pod's network namespace; `None` means the namespace of the agent (host network).
    pub netns: Option<PathBuf>,
    pub pid: PidMode,
    pub host_ipc: bool,
    /// The ids on the host of the pod's users. The network namespace must belong to a user namespace with these ids (see
    /// [`crate::user_namespace::network`]). `None`: they are the host's users.
    pub user_namespace: Option<IdRange>,
    /// Sysctls by dotted name. Unsafe ones must have been refused before.
    pub sysctls: BTreeMap<String, String>,
    /// Content of /etc/resolv.conf in the containers; `None` leaves the image's own.
    pub resolv_conf: Option<String>,
    /// Content of /etc/hosts in the containers; `None` leaves the image's own.
    pub hosts: Option<String>,
    /// The pod's cgroup below the runtime's prefix, e.g. `burstable/pod1234`. Containers get a child of it.
    pub cgroup_parent: String,
    pub resources: Resources,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// Directory of the pod's log files; relative log paths of containers start here.
    pub log_directory: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PodState {
    Ready,
    NotReady,
}

#[derive(Clone, Debug)]
pub struct Pod {
    pub id: String,
    pub state: PodState,
    pub created_at: Timestamp,
    /// Process id of the shim; its /proc/PID/ns is the pod's. `None` when it is gone.
    pub shim_pid: Option<i32>,
    pub config: PodConfig,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Propagation {
    #[default]
    Private,
    HostToContainer,
    Bidirectional,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MountSource {
    /// A file or directory of the host; must exist. Symlinks are resolved on the host.
    Host(PathBuf),
    /// `path` below the directory `root` of the host, in which containers may write; must exist. It is resolved when it is
    /// mounted, and a symlink that leads out of `root` is an error.
    Below { root: PathBuf, path: PathBuf },
    /// An empty memory file system, gone with the container.
    Tmpfs { size: Option<u64>, mode: Option<u32> },
}

/// Kinds of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileKind {
    Directory,
    File,
    Socket,
    CharacterDevice,
    BlockDevice,
    /// A named pipe.
    Pipe,
    Link,
}

impl FileKind {
    /// The kind of file in a mode (`st_mode`).
    pub fn from_mode(mode: u32) -> Self {
        match mode & libc::S_IFMT {
            libc::S_IFDIR => Self::Directory,
            libc::S_IFSOCK => Self::Socket,
            libc::S_IFCHR => Self::CharacterDevice,
            libc::S_IFBLK => Self::BlockDevice,
            libc::S_IFIFO => Self::Pipe,
            libc::S_IFLNK => Self::Link,
            _ => Self::File,
        }
    }
}

impl std::fmt::Display for FileKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Directory => "directory",
            Self::File => "file",
            Self::Socket => "socket file",
            Self::CharacterDevice => "character device",
            Self::BlockDevice => "block device",
            Self::Pipe => "named pipe",
            Self::Link => "symbolic link",
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    pub source: MountSource,
    /// The required kind of the source when it is mounted; any if `None`.
    #[serde(default)]
    pub kind: Option<FileKind>,
    /// Absolute path in the container; created if missing, symlinks resolved inside the container. Not below /proc, but for
    /// the files that runtimes usually permit there.
    pub target: PathBuf,
    pub read_only: bool,
    /// Read-only also for mounts below (`recursiveReadOnly`).
    pub recursive_read_only: bool,
    pub propagation: Propagation,
}

impl Mount {
    pub fn bind(source: impl Into<PathBuf>, target: impl Into<PathBuf>) -> Mount {
        Mount {
            source: MountSource::Host(source.into()),
            kind: None,
            target: target.into(),
            read_only: false,
            recursive_read_only: false,
            propagation: Propagation::Private,
        }
    }

    pub fn read_only(mut self) -> Mount {
        self.read_only = true;
        self
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Seccomp {
    #[default]
    Unconfined,
    /// The runtime's own profile (see [`crate::seccomp`]).
    RuntimeDefault,
    /// A profile in the JSON form of the OCI runtime specification.
    Oci(String),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Security {
    /// Numeric; `None` takes the image's user.
    pub run_as_user: Option<u32>,
    /// `None`: the primary group of the user in the image's /etc/passwd, else 0.
    pub run_as_group: Option<u32>,
    pub supplemental_groups: Vec<u32>,
    /// Do not add the user's groups in the image's /etc/group (`supplementalGroupsPolicy: Strict`).
    pub strict_groups: bool,
    pub privileged: bool,
    /// Names without `CAP_`, or `ALL`.
    pub add_capabilities: Vec<String>,
    pub drop_capabilities: Vec<String>,
    pub no_new_privileges: bool,
    pub read_only_rootfs: bool,
    /// Nothing in /proc is hidden or read-only (`procMount: Unmasked`). Only in a user namespace.
    pub unmasked_proc: bool,
    pub seccomp: Seccomp,
    /// The AppArmor profile of the program; it must be loaded.
    pub apparmor: Option<String>,
}

/// A container to be created.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerConfig {
    pub name: String,
    pub attempt: u32,
    /// An image that the image store resolves.
    pub image: String,
    /// Replaces the image's entrypoint (and then also its arguments), as Kubernetes does.
    pub command: Vec<String>,
    /// Replaces the image's arguments.
    pub args: Vec<String>,
    /// Added to, and winning over, the image's environment.
    pub env: Vec<(String, String)>,
    /// `None`: the image's, else `/`.
    pub working_dir: Option<String>,
    pub mounts: Vec<Mount>,
    pub security: Security,
    pub tty: bool,
    pub stdin: bool,
    /// Close stdin when the first attached client goes.
    pub stdin_once: bool,
    pub resources: Resources,
    /// -1000..=1000; raised to what the host permits (see [`crate::HostLimits`]).
    pub oom_score_adj: i32,
    /// Path in the container whose content becomes the termination message.
    pub termination_message_path: Option<String>,
    /// Log file, absolute or below the pod's log directory.
    pub log_path: PathBuf,
    /// Overrides the image's stop signal (name or number).
    pub stop_signal: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ContainerState {
    Created,
    Running,
    Exited,
    /// How the process ended is unknown, since its shim was killed.
    Unknown,
}

#[derive(Clone, Debug)]
pub struct Container {
    pub id: String,
    pub pod: String,
    pub name: String,
    pub attempt: u32,
    pub image: String,
    /// `sha256:…` of the image's configuration.
    pub image_id: String,
    pub state: ContainerState,
    pub pid: Option<i32>,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    /// 128 + signal when a signal ended it; 128 when it could not be started.
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    /// As in upstream's status: `Completed`, `Error`, `OOMKilled`, `StartError`, `ContainerStatusUnknown`.
    pub reason: Option<String>,
    pub message: Option<String>,
    /// Host file that holds the termination message, if the container asked for one.
    pub termination_message_file: Option<PathBuf>,
    pub log_path: PathBuf,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
}

/// An event, in order per pod. After `Lagged` on the channel, list again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    ContainerStarted {
        pod: String,
        container: String,
    },
    ContainerExited {
        pod: String,
        container: String,
        exit_code: i32,
    },
    /// The shim is gone; its containers went with it.
    PodStopped {
        pod: String,
    },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TerminalSize {
    pub rows: u16,
    pub columns: u16,
}

pub type Reader = Box<dyn AsyncRead + Send + Unpin>;
pub type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// A command being run in a container. Streams that were not requested are `None`; with a terminal, stderr is part of stdout.
/// Dropping the session closes the streams, but the command keeps running; see [`ExecControl::kill`].
pub struct ExecSession {
    pub stdin: Option<Writer>,
    pub stdout: Option<Reader>,
    pub stderr: Option<Reader>,
    pub control: Box<dyn ExecControl>,
}

/// The sandboxes of a pod, one for each attempt, and all of their containers, in no order.
#[derive(Clone, Debug, Default)]
pub struct PodRecords {
    pub pods: Vec<Pod>,
    pub containers: Vec<Container>,
}

#[async_trait]
pub trait ExecControl: Send + Sync {
    /// Waits for the command and returns its exit code (128 + signal when a signal ended it).
    async fn wait(&mut self) -> Result<i32>;
    /// Changes the size of the terminal; without a terminal nothing happens.
    fn resizer(&self) -> Resizer;
    /// Sends SIGKILL to the command.
    async fn kill(&mut self) -> Result<()>;
}

/// Sets the size of a terminal; cheap to clone and to use from another task.
pub type Resizer = Arc<dyn Fn(TerminalSize) + Send + Sync>;

/// The live output (and input) of a container's first process.
pub struct AttachSession {
    pub stdin: Option<Writer>,
    pub stdout: Reader,
    /// `None` with a terminal.
    pub stderr: Option<Reader>,
    pub resizer: Resizer,
}

#[derive(Clone, Debug)]
pub struct ExecResult {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub exit_code: i32,
}

#[derive(Clone, Debug, Default)]
pub struct ExecRequest {
    pub command: Vec<String>,
    pub tty: bool,
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub at: Timestamp,
    pub usage: Usage,
}

/// A container runtime, as a node agent uses it.
#[async_trait]
pub trait Runtime: Send + Sync {
    /// Name and version, e.g. `("kemudi", "0.1.0")`.
    fn version(&self) -> (String, String);
    async fn run_pod(&self, config: PodConfig) -> Result<Pod>;
    /// Kills what still runs in the pod and frees its namespaces, except the network namespace, which belongs to the caller.
    async fn stop_pod(&self, pod: &str) -> Result<()>;
    /// Stops the pod if needed and removes it with its containers (log files stay).
    async fn remove_pod(&self, pod: &str) -> Result<()>;
    async fn list_pods(&self) -> Result<Vec<Pod>>;
    /// The sandboxes and containers of the pod with a UID. Unlike a listing, its cost does not depend on other pods.
    async fn pod_records(&self, uid: &str) -> Result<PodRecords>;
    async fn pod_status(&self, pod: &str) -> Result<Pod>;

    /// Creates a container and returns its id.
    async fn create_container(&self, pod: &str, config: ContainerConfig) -> Result<String>;
    async fn start_container(&self, container: &str) -> Result<()>;
    /// Sends the stop signal, and SIGKILL after `grace`; returns when the container has exited.
    async fn stop_container(&self, container: &str, grace: Duration) -> Result<()>;
    /// Kills the container if it runs.
    async fn remove_container(&self, container: &str) -> Result<()>;
    async fn container_status(&self, container: &str) -> Result<Container>;
    async fn list_containers(&self) -> Result<Vec<Container>>;
    /// Changes limits of a running container.
    async fn update_container(&self, container: &str, resources: Resources) -> Result<()>;
    /// Opens a new log file after the old one was moved away.
    async fn reopen_log(&self, container: &str) -> Result<()>;

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

    async fn container_stats(&self, container: &str) -> Result<Stats>;
    /// Bytes and inodes of the container's writable layer. Walks all of it.
    async fn container_layer(&self, container: &str) -> Result<(u64, u64)>;
    async fn pod_stats(&self, pod: &str) -> Result<Stats>;
    fn subscribe(&self) -> broadcast::Receiver<Event>;
}

/// Usage of the processes of a cgroup and of the cgroups below it. Bytes and nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub cpu_nanoseconds: u64,
    pub cpu_user: u64,
    pub cpu_system: u64,
    pub memory: u64,
    /// Usage less inactive file pages, as upstream reports it.
    pub working_set: u64,
    pub rss: u64,
    /// Pages of files.
    pub cache: u64,
    pub swap: u64,
    pub memory_limit: Option<u64>,
    /// Cumulative.
    pub page_faults: u64,
    pub major_page_faults: u64,
    /// Processes and threads.
    pub pids: u64,
}
