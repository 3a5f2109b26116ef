//! Containers as data: mounts, security settings, devices, logs, states.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::*;

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
    /// What processes cannot do with its files.
    #[serde(default)]
    pub options: MountOptions,
}

/// What processes cannot do with the files of a mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MountOptions {
    /// Get the privileges of a file's owner or group.
    pub no_suid: bool,
    /// Execute them.
    pub no_exec: bool,
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
            options: MountOptions::default(),
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceRequest {
    /// The device node on the host; links are followed.
    pub host: PathBuf,
    /// Absolute path of the node in the container.
    pub target: PathBuf,
    /// `r` (read), `w` (write) and `m` (make nodes).
    pub permissions: String,
    /// The mode of the node in the container; `None`: that of the host's.
    pub mode: Option<u32>,
    /// The owner of the node, as the container sees it; `None`: that of the host's.
    pub uid: Option<u32>,
    /// The group of the node, as the container sees it; `None`: that of the host's.
    pub gid: Option<u32>,
    /// Whether a node without an owner or group of its own belongs to the container's user (`run_as_user`, `run_as_group`).
    pub for_user: bool,
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
    /// The id of the container of the same sandbox whose process-id namespace it joins; that one must be running. Without an effect where
    /// containers have none of their own ([`PidMode::Container`]).
    pub target_container: Option<String>,
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
    /// Programs of the machine that run at moments of the container's life.
    pub hooks: Hooks,
    /// Devices that the runtime itself applies ([`Runtime::applies_cdi`]), `vendor.com/class=name`.
    pub cdi_devices: Vec<String>,
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
    /// The signal that ends it (`SIGTERM`); `None` if the runtime does not report it.
    pub stop_signal: Option<String>,
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
