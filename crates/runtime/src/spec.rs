//! The protocol of agent and shim: files below the pod directory, and messages over the shim's socket.
//!
//! ```text
//! ROOT/pods/POD/pod.json                      PodRecord, written by the agent
//! ROOT/pods/POD/shim.json                     ShimRecord, written by the shim when the pod is ready
//! ROOT/pods/POD/shim.sock                     the shim's socket
//! ROOT/pods/POD/{hostname,hosts,resolv.conf}  bound into the containers
//! ROOT/pods/POD/shm                           the pod's /dev/shm
//! ROOT/pods/POD/containers/ID/config.json     ContainerRecord, written by the agent before start
//! ROOT/pods/POD/containers/ID/state.json      StateRecord, written by the shim (by the agent if there is none)
//! ROOT/pods/POD/containers/ID/{upper,work,rootfs}
//! ROOT/pods/POD/containers/ID/bundle/config.json  what hooks may know of the container, as the OCI runtime specification has it
//! ```
//! Every file is a versioned record ([`crate::records`]).

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::api::{
    ContainerConfig, ContainerState, ContainerUser, Hooks, IdRange, LogLimits, Mount, PodConfig, Timestamp,
};
use crate::cgroup::CgroupDirectory;
use crate::devices::DeviceNode;
use crate::records::VERSION;
use crate::seccomp::Program;

/// The directory of a container that hooks get as its bundle, below that of its record.
pub const BUNDLE: &str = "bundle";

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PodRecord {
    pub version: u32,
    pub config: PodConfig,
    pub created_at: Timestamp,
    /// The pod's cgroup, relative to the hierarchies' roots.
    pub cgroup: String,
    /// The cgroup below the pod's of process 1 of the pod's pid namespace, if it has one.
    #[serde(default)]
    pub reaper_cgroups: Vec<CgroupDirectory>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShimRecord {
    pub version: u32,
    pub pid: i32,
    /// Field 22 of /proc/PID/stat: with the pid it identifies a process until the next boot.
    pub start_time: u64,
    /// `boot_id` of the kernel, since pid and start time may occur again after a reboot.
    pub boot: String,
    /// Whether it runs hooks. Those of earlier releases would start containers without.
    #[serde(default)]
    pub has_hooks: bool,
    /// Whether it starts containers in the process-id namespace of another one. Those of earlier releases would give them one of their own.
    #[serde(default)]
    pub has_targets: bool,
}

/// A container for the shim: everything is resolved except the user.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ContainerRecord {
    pub version: u32,
    pub id: String,
    pub pod: String,
    pub created_at: Timestamp,
    pub image_id: String,
    /// The request, without command, arguments, environment and mounts: they are `argv`, `env` and `mounts`.
    pub config: ContainerConfig,
    /// Layer directories, topmost first, below `layers_root`.
    pub layers_root: PathBuf,
    pub layers: Vec<String>,
    pub argv: Vec<String>,
    pub env: Vec<(String, String)>,
    pub cwd: String,
    /// `user[:group]` of the image, used where the request has no numbers.
    pub image_user: String,
    pub hostname: String,
    /// The request's mounts and the runtime's own, in mounting order.
    pub mounts: Vec<Mount>,
    /// The ids of the first process, as far as they are known from the image.
    #[serde(default)]
    pub user: Option<ContainerUser>,
    /// The images among the sources of mounts, by their names in the request.
    #[serde(default)]
    pub mounted_images: BTreeMap<String, MountedImage>,
    pub shm: PathBuf,
    /// The pod's.
    #[serde(default)]
    pub user_namespace: Option<IdRange>,
    pub cgroups: Vec<CgroupDirectory>,
    pub capabilities: Vec<u8>,
    pub oom_score_adj: i32,
    pub seccomp: Option<Program>,
    pub stop_signal: i32,
    pub log_path: PathBuf,
    pub termination_message_file: Option<PathBuf>,
    /// The devices of the request, as they are on the host.
    #[serde(default)]
    pub devices: Vec<DeviceNode>,
    /// Bytes that `argv`, `env` and `mounts` count for in the budget of the pod.
    #[serde(default)]
    pub weight: usize,
}

/// An image that a container mounts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MountedImage {
    /// `repository@sha256:…` of a pulled image, else `sha256:…` of its configuration.
    pub id: String,
    /// Layer directories, topmost first, below the `layers_root` of the container.
    pub layers: Vec<String>,
}

/// The part of a [`ContainerRecord`] that the agent keeps in memory, without environment, arguments and mounts. The rest is read
/// from the file when it is needed.
#[derive(Clone, Debug, Deserialize)]
pub struct ContainerSummary {
    pub id: String,
    pub pod: String,
    pub created_at: Timestamp,
    pub image_id: String,
    #[serde(default)]
    pub user: Option<ContainerUser>,
    #[serde(default)]
    pub mounted_images: BTreeMap<String, MountedImage>,
    pub config: ConfigSummary,
    pub cgroups: Vec<CgroupDirectory>,
    pub stop_signal: i32,
    pub log_path: PathBuf,
    pub termination_message_file: Option<PathBuf>,
    #[serde(default)]
    pub weight: usize,
}

/// The part of a [`ContainerConfig`] that the agent keeps in memory.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ConfigSummary {
    pub name: String,
    pub attempt: u32,
    pub image: String,
    pub tty: bool,
    pub stdin: bool,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub hooks: Hooks,
}

impl ContainerRecord {
    pub fn summary(&self) -> ContainerSummary {
        let config = &self.config;
        ContainerSummary {
            id: self.id.clone(),
            pod: self.pod.clone(),
            created_at: self.created_at,
            image_id: self.image_id.clone(),
            user: self.user.clone(),
            mounted_images: self.mounted_images.clone(),
            config: ConfigSummary {
                name: config.name.clone(),
                attempt: config.attempt,
                image: config.image.clone(),
                tty: config.tty,
                stdin: config.stdin,
                labels: config.labels.clone(),
                annotations: config.annotations.clone(),
                hooks: config.hooks.clone(),
            },
            cgroups: self.cgroups.clone(),
            stop_signal: self.stop_signal,
            log_path: self.log_path.clone(),
            termination_message_file: self.termination_message_file.clone(),
            weight: self.weight,
        }
    }
}

/// The layers in a [`ContainerRecord`].
#[derive(Clone, Debug, Deserialize)]
pub struct ContainerLayers {
    pub id: String,
    pub layers: Vec<String>,
    #[serde(default)]
    pub mounted_images: BTreeMap<String, MountedImage>,
}

impl ContainerLayers {
    /// Whether the container needs a layer.
    pub fn has(&self, layer: &str) -> bool {
        let mounted = self.mounted_images.values().flat_map(|image| &image.layers);
        self.layers.iter().chain(mounted).any(|l| l == layer)
    }
}

/// The part of a [`ContainerRecord`] that the shim keeps in memory. It keeps no more, since every process that enters a container is
/// a copy of it, in which data of other containers could be found.
#[derive(Clone, Debug, Deserialize)]
pub struct ShimContainer {
    pub id: String,
    pub config: ShimConfig,
    pub cgroups: Vec<CgroupDirectory>,
    pub log_path: PathBuf,
}

/// The part of a [`ContainerConfig`] that the shim keeps in memory.
#[derive(Clone, Debug, Deserialize)]
pub struct ShimConfig {
    pub tty: bool,
    pub stdin: bool,
    pub stdin_once: bool,
    #[serde(default)]
    pub log_limits: LogLimits,
    #[serde(default)]
    pub target_container: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StateRecord {
    pub version: u32,
    pub id: String,
    pub state: ContainerState,
    pub pid: Option<i32>,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub reason: Option<String>,
    pub message: Option<String>,
}

impl StateRecord {
    pub fn created(id: &str) -> StateRecord {
        StateRecord {
            version: VERSION,
            id: id.to_owned(),
            state: ContainerState::Created,
            pid: None,
            started_at: None,
            finished_at: None,
            exit_code: None,
            signal: None,
            reason: None,
            message: None,
        }
    }
}

/// The first message on the socket of a new shim.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Birth {
    /// The pod's directory.
    pub directory: PathBuf,
    /// The soft limit of open files of shim and containers, if it is not the agent's.
    pub open_files: Option<u64>,
}

/// Agent → shim. The reply has the same `seq`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    /// The number of the request on its connection.
    pub seq: u64,
    /// The call.
    pub call: Call,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Call {
    /// Send [`Notice`]s on this connection from now on, beginning with the state of every container.
    Subscribe,
    Start {
        container: String,
    },
    /// The answer to [`Notice::Hooks`].
    Proceed {
        container: String,
        /// Why the container must not start.
        error: Option<String>,
    },
    Signal {
        container: String,
        signal: i32,
        /// Every process in the container's cgroup, not only the first.
        all: bool,
    },
    /// Drop a container that is not running.
    Forget {
        container: String,
    },
    ReopenLog {
        container: String,
    },
    Resize {
        container: String,
        rows: u16,
        columns: u16,
    },
    /// Run a command; its stdin, stdout and stderr come as descriptors (none with a terminal, whose master is sent back).
    /// This connection gets [`Notice::ExecExited`] in the end, and may send [`Call::KillExec`].
    Exec {
        container: String,
        argv: Vec<String>,
        tty: bool,
    },
    KillExec,
    /// Copy output to the first descriptors sent (stdout, stderr), which are pipes; the last, if `stdin`, is read for input.
    Attach {
        container: String,
        stdin: bool,
    },
    /// Kill everything and exit.
    Shutdown,
}

/// Shim → agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Message {
    /// The answer to a request.
    Reply {
        /// The number of the request.
        seq: u64,
        /// Why the call failed, for users.
        result: Result<(), String>,
    },
    /// A notice that is not an answer.
    Notice(Notice),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Notice {
    /// The first message of a new shim on its inherited socket.
    Ready,
    Failed(String),
    State(StateRecord),
    /// Asks who started the container to run its hooks `prestart` and `createRuntime`; the container waits.
    Hooks {
        container: String,
        /// A process in the namespaces of the container.
        pid: i32,
    },
    ExecExited {
        exit_code: i32,
    },
}

/// Start time of a process in clock ticks since boot, `None` if there is no such process (or it is a zombie).
pub fn start_time(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    if matches!(fields.first(), Some(&"Z" | &"X")) {
        return None;
    }
    fields.get(19)?.parse().ok()
}

/// The kernel's name of this boot.
pub fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}
