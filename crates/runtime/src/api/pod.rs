//! Pods (sandboxes) as data.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::*;

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
    /// Bytes of swap. Without an effect on cgroup v1.
    pub swap_limit: Option<u64>,
    /// Whether all processes are killed if one is killed for lack of memory. Without an effect on cgroup v1, where only that one is.
    pub oom_group: Option<bool>,
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
    /// The handler that runs the containers, of the pod's RuntimeClass. Empty for the default one.
    #[serde(default)]
    pub runtime_handler: String,
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
