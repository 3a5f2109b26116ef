//! The interface of the runtime: the trait, its requests, and its results.
//!
//! The calls follow the CRI: a pod (sandbox) first, then containers in it, which are created, started, stopped and
//! removed. All calls are idempotent where the CRI asks for it (stop and remove of something that is gone succeed).

use std::collections::BTreeMap;
use std::net::IpAddr;
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
    /// Whole seconds.
    pub secs: u64,
    /// Nanoseconds within the second.
    pub nanos: u32,
}

/// The source of timestamps.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The error of a call of the runtime.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no pod or container with the id.
    #[error("{what} {id:?} not found")]
    NotFound {
        /// `pod` or `container`.
        what: &'static str,
        /// The id of the request.
        id: String,
    },
    /// The pod exists, or the pod has a container with the same name and attempt.
    #[error("{what} {id:?} already exists")]
    AlreadyExists {
        /// `pod` or `container`.
        what: &'static str,
        /// The id, or the name with the attempt.
        id: String,
    },
    /// A request has an invalid value; nothing was created.
    #[error("invalid {field}: {message}")]
    Invalid {
        /// The invalid setting.
        field: &'static str,
        /// Why it is invalid.
        message: String,
    },
    /// The image is not present. The caller pulls it before it creates a container.
    #[error("failed to pull image {image:?}: {message}")]
    ImagePull {
        /// The image as in the request.
        image: String,
        /// Why it is not available.
        message: String,
    },
    /// An image cannot be mounted as requested (the message begins with upstream's `ImageVolumeMountFailed`).
    #[error("ImageVolumeMountFailed: image {image:?}: {message}")]
    ImageVolume {
        /// The image as in the request.
        image: String,
        /// Why it cannot be mounted.
        message: String,
    },
    /// The image store failed.
    #[error("image: {0}")]
    Image(#[from] crate::image::Error),
    /// The pod's shim could not set the pod up.
    #[error("cannot start pod {pod:?}: {message}")]
    PodStart {
        /// The id of the sandbox.
        pod: String,
        /// The failed step and its cause.
        message: String,
    },
    /// The container's process could not be started (upstream reason `StartError`, exit code 128).
    #[error("failed to start container {container:?}: {message}")]
    Start {
        /// The name of the container.
        container: String,
        /// The failed step and its cause.
        message: String,
    },
    /// A command could not be started in a container.
    #[error("failed to exec in container {container:?}: {message}")]
    Exec {
        /// The name of the container.
        container: String,
        /// The failed step and its cause.
        message: String,
    },
    /// The call is not possible in the current state of the container.
    #[error("container {container:?} is {state:?}, not {expected}")]
    State {
        /// The id of the container.
        container: String,
        /// Its current state.
        state: ContainerState,
        /// The state that the call needs.
        expected: &'static str,
    },
    /// A command did not end within its timeout, and was killed.
    #[error("command {command:?} timed out after {after:?}")]
    Timeout {
        /// The command as text.
        command: String,
        /// The timeout.
        after: Duration,
    },
    /// The pod's shim has ended, so the pod has no running containers.
    #[error("the shim of pod {pod:?} is gone")]
    ShimGone {
        /// The id of the sandbox.
        pod: String,
    },
    /// The container runtime does not offer what the pod needs.
    #[error("the container runtime {runtime} does not support {feature}")]
    Unsupported {
        /// Name and version of the runtime.
        runtime: String,
        /// The feature, for users.
        feature: &'static str,
    },
    /// A call of the container runtime interface failed.
    #[error("{message}")]
    Service {
        /// The code of gRPC and the message of the runtime.
        message: String,
        /// Whether the runtime could not be reached.
        is_unavailable: bool,
    },
    /// A file, cgroup or mount of the runtime could not be read or changed.
    #[error("{what}")]
    Io {
        /// The object and the cause, for users.
        what: String,
        /// The error of the kernel.
        #[source]
        source: std::io::Error,
    },
    /// A record on disk is invalid.
    #[error("state file {path}: {message}")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Why it cannot be read.
        message: String,
    },
}

impl Error {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Error {
        let what = what.into();
        move |source| Error::Io { what: format!("{what}: {source}"), source }
    }
}

/// The result of a call of the runtime.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Which process-id namespace the containers of a pod live in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PidMode {
    /// One per container (the default).
    #[default]
    Container,
    /// One per pod; process 1 is a small reaper.
    Pod,
    /// The namespace of the host (`hostPID`).
    Host,
}

/// Users and groups of the host: `length` numbers from `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdRange {
    /// The first number.
    pub first: u32,
    /// How many numbers there are.
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
    /// Processors of the container, as a list of the kernel (`0-3,8`).
    pub cpuset_cpus: Option<String>,
    /// Memory nodes (NUMA) of the container, as a list of the kernel.
    pub cpuset_mems: Option<String>,
    /// Bytes.
    pub memory_limit: Option<i64>,
    /// Maximum number of processes and threads; a negative number means no limit.
    pub pids_limit: Option<i64>,
    /// Page size as the kernel writes it (`2MB`) → bytes.
    pub hugepage_limits: BTreeMap<String, u64>,
}

/// A pod sandbox to be made. `id` is chosen by the caller: letters, digits and `-`, unique for this runtime.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PodConfig {
    /// The id of the sandbox.
    pub id: String,
    /// The name of the pod in Kubernetes.
    pub name: String,
    /// The namespace of the pod in Kubernetes.
    pub namespace: String,
    /// The UID of the pod in Kubernetes.
    pub uid: String,
    /// How many sandboxes the pod had before this one.
    pub attempt: u32,
    /// The host name, at most 64 bytes. With the host network, containers find it only in `/etc/hostname` and `HOSTNAME`.
    pub hostname: String,
    /// Path of the pod's network namespace; `None` means the namespace of the agent (host network), or one of the runtime.
    pub netns: Option<PathBuf>,
    /// The address that the pod gets in the network namespace that the runtime creates (see [`Runtime::network_owner`]). `None`
    /// without such a namespace.
    pub address: Option<IpAddr>,
    /// The process-id namespace of the containers.
    pub pid: PidMode,
    /// Whether the containers share the host's IPC namespace and `/dev/shm` (`hostIPC`).
    pub host_ipc: bool,
    /// The ids on the host of the pod's users. The network namespace must belong to a user namespace with these ids (see
    /// [`crate::user_namespace::network`]). `None`: they are the host's users.
    pub user_namespace: Option<IdRange>,
    /// Whether a container of the pod is privileged.
    pub privileged: bool,
    /// Sysctls by dotted name. Unsafe ones must have been refused before.
    pub sysctls: BTreeMap<String, String>,
    /// Content of /etc/resolv.conf in the containers; `None` leaves the image's own.
    pub resolv_conf: Option<String>,
    /// Content of /etc/hosts in the containers; `None` leaves the image's own.
    pub hosts: Option<String>,
    /// The pod's cgroup below the runtime's prefix, e.g. `burstable/pod1234`. Containers get a child of it.
    pub cgroup_parent: String,
    /// Limits of the pod as a whole.
    pub resources: Resources,
    /// Labels, returned as they are.
    pub labels: BTreeMap<String, String>,
    /// Annotations, returned as they are.
    pub annotations: BTreeMap<String, String>,
    /// Directory of the pod's log files; relative log paths of containers start here.
    pub log_directory: PathBuf,
}

/// The state of a pod sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PodState {
    /// The shim runs, so containers can be created.
    Ready,
    /// The sandbox was stopped, or its shim has ended.
    NotReady,
}

/// The status of a pod sandbox.
#[derive(Clone, Debug)]
pub struct Pod {
    /// The id of the sandbox, as in its configuration.
    pub id: String,
    /// Whether containers can run in it.
    pub state: PodState,
    /// When the sandbox was created.
    pub created_at: Timestamp,
    /// Process id of the shim; its /proc/PID/ns is the pod's. `None` when it is gone.
    pub shim_pid: Option<i32>,
    /// The request that created it.
    pub config: PodConfig,
}

/// Whether mounts made later on one side of a mount appear on the other (`mountPropagation`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Propagation {
    /// On neither side (upstream `None`).
    #[default]
    Private,
    /// Mounts of the host appear in the container.
    HostToContainer,
    /// Mounts of either side appear on the other.
    Bidirectional,
}

/// What is mounted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MountSource {
    /// A file or directory of the host; must exist. Symlinks are resolved on the host.
    Host(PathBuf),
    /// `path` below the directory `root` of the host, in which containers may write; must exist. It is resolved when it is
    /// mounted, and a symlink that leads out of `root` is an error.
    Below {
        /// The directory of the host that the path does not leave.
        root: PathBuf,
        /// The path below `root`.
        path: PathBuf,
    },
    /// The files of an image, or those at `path` in it. Such a mount is read-only, and nothing on it can be executed.
    Image {
        /// An image that the image store resolves.
        image: String,
        /// The path in the image; empty for its root.
        path: PathBuf,
    },
    /// An empty memory file system, gone with the container.
    Tmpfs {
        /// Maximum bytes; `None` is the kernel's default, half of the memory.
        size: Option<u64>,
        /// The mode of its root directory; 1777 if `None`.
        mode: Option<u32>,
    },
}

/// Kinds of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileKind {
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// A Unix socket.
    Socket,
    /// A character device.
    CharacterDevice,
    /// A block device.
    BlockDevice,
    /// A named pipe.
    Pipe,
    /// A symbolic link.
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

/// A mount of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// What is mounted.
    pub source: MountSource,
    /// The required kind of the source when it is mounted; any if `None`.
    #[serde(default)]
    pub kind: Option<FileKind>,
    /// Absolute path in the container; created if missing, symlinks resolved inside the container. Not below /proc, but for
    /// the files that runtimes usually permit there.
    pub target: PathBuf,
    /// Whether the mount itself is read-only.
    pub read_only: bool,
    /// Read-only also for mounts below (`recursiveReadOnly`).
    pub recursive_read_only: bool,
    /// How mounts below it propagate.
    pub propagation: Propagation,
}

impl Mount {
    /// A private, writable bind mount of a file or directory of the host.
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

    /// The same mount, read-only.
    pub fn read_only(mut self) -> Mount {
        self.read_only = true;
        self
    }
}

/// The system call filter of a container (`seccompProfile`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Seccomp {
    /// No filter.
    #[default]
    Unconfined,
    /// The runtime's own profile (see [`crate::seccomp`]).
    RuntimeDefault,
    /// A profile in the JSON form of the OCI runtime specification.
    Oci(String),
}

/// The largest id of a user or group. The kernel reads the largest 32-bit number as "no change", and programs read those above this
/// one as negative.
pub const MAX_ID: u32 = i32::MAX as u32;

/// The security settings of a container (`securityContext`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Security {
    /// Numeric; `None` takes the image's user.
    pub run_as_user: Option<u32>,
    /// `None`: the primary group of the user in the image's /etc/passwd, else 0.
    pub run_as_group: Option<u32>,
    /// Groups of the process besides its primary group and those of the image.
    pub supplemental_groups: Vec<u32>,
    /// Do not add the user's groups in the image's /etc/group (`supplementalGroupsPolicy: Strict`).
    pub strict_groups: bool,
    /// All capabilities of the host and no system call filter; all devices too, unless the pod has users of its own.
    pub privileged: bool,
    /// Names without `CAP_`, or `ALL`.
    pub add_capabilities: Vec<String>,
    /// Capabilities to remove, named as those to add. `ALL` is applied before single names, of both lists.
    pub drop_capabilities: Vec<String>,
    /// Sets `no_new_privs`: a program gains no privileges from its file (`allowPrivilegeEscalation: false`).
    pub no_new_privileges: bool,
    /// Whether the container's root file system is read-only.
    pub read_only_rootfs: bool,
    /// Nothing in /proc is hidden or read-only (`procMount: Unmasked`). Only in a user namespace.
    pub unmasked_proc: bool,
    /// The system call filter; privileged containers have none.
    pub seccomp: Seccomp,
    /// The AppArmor profile of the program; it must be loaded.
    pub apparmor: Option<String>,
}

/// The user and groups of a process, as the container sees them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerUser {
    /// The user.
    pub uid: u32,
    /// The primary group.
    pub gid: u32,
    /// All groups.
    pub groups: Vec<u32>,
}

/// How large the log of a container becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLimits {
    /// Bytes of a file, after which a new one is started (`containerLogMaxSize`).
    pub max_size: u64,
    /// Files, including the current one (`containerLogMaxFiles`).
    pub max_files: usize,
}

impl Default for LogLimits {
    /// The kubelet's defaults: five files of 10 MiB.
    fn default() -> Self {
        Self { max_size: 10 << 20, max_files: 5 }
    }
}

/// A device of the host for a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceRequest {
    /// The device node on the host; links are followed.
    pub host: PathBuf,
    /// Absolute path of the node in the container.
    pub target: PathBuf,
    /// `r` (read), `w` (write) and `m` (make nodes).
    pub permissions: String,
}

/// A container to be created.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerConfig {
    /// The name of the container in its pod.
    pub name: String,
    /// How many containers of this name the pod had before this one.
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
    /// Mounts besides the runtime's own (`/proc`, `/dev`, `/etc/hosts`, …).
    pub mounts: Vec<Mount>,
    /// Devices of the host that the container gets besides the usual ones.
    pub devices: Vec<DeviceRequest>,
    /// User, capabilities and filters of the process.
    pub security: Security,
    /// Whether the process gets a terminal.
    pub tty: bool,
    /// Whether the process gets an input that clients can attach to; otherwise it is `/dev/null`.
    pub stdin: bool,
    /// Close stdin when the first attached client goes.
    pub stdin_once: bool,
    /// Limits of the container.
    pub resources: Resources,
    /// -1000..=1000; raised to what the host permits (see [`crate::HostLimits`]).
    pub oom_score_adj: i32,
    /// Path in the container whose content becomes the termination message.
    pub termination_message_path: Option<String>,
    /// Log file, absolute or below the pod's log directory.
    pub log_path: PathBuf,
    /// Limits of the log.
    pub log_limits: LogLimits,
    /// Overrides the image's stop signal (name or number).
    pub stop_signal: Option<String>,
    /// Labels, returned as they are.
    pub labels: BTreeMap<String, String>,
    /// Annotations, returned as they are.
    pub annotations: BTreeMap<String, String>,
}

/// The state of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ContainerState {
    /// The container has not been started.
    Created,
    /// The process runs.
    Running,
    /// The process has ended, or it could not be started.
    Exited,
    /// How the process ended is unknown, since its shim was killed.
    Unknown,
}

/// The status of a container.
#[derive(Clone, Debug)]
pub struct Container {
    /// The id that [`Runtime::create_container`] returned.
    pub id: String,
    /// The id of its sandbox.
    pub pod: String,
    /// The name of the container in its pod.
    pub name: String,
    /// How many containers of this name the pod had before this one.
    pub attempt: u32,
    /// The image as in the request.
    pub image: String,
    /// `repository@sha256:…` of a pulled image, else `sha256:…` of its configuration.
    pub image_id: String,
    /// The ids of its first process when it starts; `None` if its user cannot be found in the image.
    pub user: Option<ContainerUser>,
    /// The same as `image_id` of the images that it mounts.
    pub mounted_images: Vec<String>,
    /// The state.
    pub state: ContainerState,
    /// Process id on the host while it runs.
    pub pid: Option<i32>,
    /// When the container was created.
    pub created_at: Timestamp,
    /// When the process was started.
    pub started_at: Option<Timestamp>,
    /// When the process ended.
    pub finished_at: Option<Timestamp>,
    /// 128 + signal when a signal ended it; 128 when it could not be started.
    pub exit_code: Option<i32>,
    /// The number of the signal that ended the process.
    pub signal: Option<i32>,
    /// As in upstream's status: `Completed`, `Error`, `OOMKilled`, `StartError`, `ContainerStatusUnknown`.
    pub reason: Option<String>,
    /// Details of the reason, for users.
    pub message: Option<String>,
    /// Host file that holds the termination message, if the container requests one.
    pub termination_message_file: Option<PathBuf>,
    /// The log file on the host; empty if there is none.
    pub log_path: PathBuf,
    /// The labels of the request.
    pub labels: BTreeMap<String, String>,
    /// The annotations of the request.
    pub annotations: BTreeMap<String, String>,
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

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TerminalSize {
    /// The height.
    pub rows: u16,
    /// The width.
    pub columns: u16,
}

/// An output of a process.
pub type Reader = Box<dyn AsyncRead + Send + Unpin>;
/// An input of a process. Closing it is the end of the input.
pub type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// A command being run in a container. Streams that were not requested are `None`; with a terminal, stderr is part of stdout.
/// Dropping the session closes the streams, but the command keeps running; see [`ExecControl::kill`].
pub struct ExecSession {
    /// The input of the command.
    pub stdin: Option<Writer>,
    /// The standard output, or the terminal.
    pub stdout: Option<Reader>,
    /// The standard error.
    pub stderr: Option<Reader>,
    /// Waits for the command, resizes its terminal and kills it.
    pub control: Box<dyn ExecControl>,
}

/// The sandboxes of a pod, one for each attempt, and all of their containers, in no order.
#[derive(Clone, Debug, Default)]
pub struct PodRecords {
    /// The sandboxes, running or not.
    pub pods: Vec<Pod>,
    /// The containers of all these sandboxes.
    pub containers: Vec<Container>,
}

/// Controls a command in a container.
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
    /// The input of the process, if it was requested.
    pub stdin: Option<Writer>,
    /// The standard output, or the terminal.
    pub stdout: Reader,
    /// `None` with a terminal.
    pub stderr: Option<Reader>,
    /// Sets the size of the terminal; without a terminal nothing happens.
    pub resizer: Resizer,
}

/// The result of a command that has ended.
#[derive(Clone, Debug)]
pub struct ExecResult {
    /// The standard output, cut off at the limit of the call.
    pub stdout: Vec<u8>,
    /// The standard error, cut off at the limit of the call.
    pub stderr: Vec<u8>,
    /// The exit code; 128 + signal when a signal ended the command.
    pub exit_code: i32,
}

/// A command to be run in a container.
#[derive(Clone, Debug, Default)]
pub struct ExecRequest {
    /// The program and its arguments. A program without a slash is searched for in `PATH` of the container.
    pub command: Vec<String>,
    /// Whether the command gets a terminal.
    pub tty: bool,
    /// Whether the caller provides an input.
    pub stdin: bool,
    /// Whether the caller reads the standard output.
    pub stdout: bool,
    /// Whether the caller reads the standard error; with a terminal there is none.
    pub stderr: bool,
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

/// What runtimes need not offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// User namespaces of pods (`hostUsers: false`).
    pub user_namespaces: bool,
    /// Mounts that are read-only with all mounts below them.
    pub recursive_read_only_mounts: bool,
    /// `supplementalGroupsPolicy: Strict`.
    pub strict_groups: bool,
    /// Mounts of images.
    pub image_volumes: bool,
}

impl Features {
    /// Everything.
    pub const ALL: Features =
        Features { user_namespaces: true, recursive_read_only_mounts: true, strict_groups: true, image_volumes: true };
}

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

/// Usage of the processes of a cgroup and of the cgroups below it. Bytes and nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processor time since the cgroup was created, in nanoseconds.
    pub cpu_nanoseconds: u64,
    /// The part of it in user mode, in nanoseconds.
    pub cpu_user: u64,
    /// The part of it in the kernel, in nanoseconds.
    pub cpu_system: u64,
    /// Memory in use, pages of files included.
    pub memory: u64,
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
