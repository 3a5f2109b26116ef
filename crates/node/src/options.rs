//! How an agent is set up, and what it needs of the machine.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;

use client::Client;
use meta::{Clock, Rng};
use network::{HostPort, PodNetwork};
use runtime::{Embedded, Resources, Runtime};

use crate::pod::files::DnsOptions;
use crate::pod::sysctls::Allowlist;

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

/// What the agent asks of the machine besides running containers.
pub trait Host: Send + Sync {
    /// Finds an image by name.
    fn image(&self, name: &str) -> Result<runtime::image::Image, runtime::image::Error>;
    fn images(&self) -> Vec<runtime::image::Image>;
    /// Makes a cgroup below the runtime's prefix.
    fn set_cgroup(&self, path: &str, resources: &Resources) -> Result<(), runtime::Error>;
    /// Usage of a cgroup below the runtime's prefix; empty for all of it.
    fn usage(&self, path: &str) -> runtime::Usage;
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

    fn usage(&self, path: &str) -> runtime::Usage {
        self.cgroup_usage(path)
    }

    fn complaints(&self) -> Vec<String> {
        self.host_limits().complaints()
    }

    fn user_namespaces(&self) -> Result<(), String> {
        self.host_limits().no_user_namespaces.clone().map_or(Ok(()), Err)
    }
}

/// The seccomp profile where neither container nor pod names one, as kubelet's `seccompDefault` has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SeccompDefault {
    #[default]
    Unconfined,
    RuntimeDefault,
}
