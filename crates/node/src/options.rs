//! The options of an agent, and what it needs of the machine.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;

use client::Client;
use meta::{Clock, Rng};
use network::{HostPort, PodNetwork};
use runtime::{Embedded, Resources, Runtime};

use crate::affinity::TopologySource;
use crate::configuration::KubeletConfiguration;
use crate::eviction::NodeObserver;
use crate::pod::files::DnsOptions;
use crate::pod::sysctls::Allowlist;
use crate::static_pods::PodDecoder;

/// The options of an [`Agent`](crate::Agent).
pub struct Options {
    /// A client that authenticates as `system:node:NAME`.
    pub client: Client,
    pub node_name: String,
    pub node_ip: Ipv4Addr,
    /// Host name of the machine, for pods in its network.
    pub hostname: String,
    pub runtime: Arc<dyn Runtime>,
    pub host: Arc<dyn Host>,
    /// Observes what the node has left of its resources.
    pub observer: Arc<dyn NodeObserver>,
    /// Reads the processors and NUMA nodes of the machine.
    pub topology: Arc<dyn TopologySource>,
    /// Pulls images into the store of the runtime.
    pub puller: distribution::Puller,
    /// `None`: pods have no network of their own.
    pub network: Option<PodNetwork>,
    /// The network namespace of the node, if it is not that of the process.
    pub node_namespace: Option<PathBuf>,
    /// The directory of pods, volumes and plugins: an absolute path without links.
    pub data_dir: PathBuf,
    /// The path by which pods and plugins know that directory (`/var/lib/kubelet`).
    pub kubelet_root: PathBuf,
    /// The directories of specifications of CDI devices; a later one wins.
    pub cdi_directories: Vec<PathBuf>,
    pub log_dir: PathBuf,
    pub dns: DnsOptions,
    /// `spec.podCIDR` of a node that registers.
    pub pod_cidr: Option<String>,
    /// The kubelet's configuration.
    pub configuration: KubeletConfiguration,
    /// The programs that return credentials for images.
    pub credential_plugins: crate::credentials::Plugins,
    /// Decodes the manifests of static pods.
    pub decoder: Arc<dyn PodDecoder>,
    /// The kernel parameters that pods may set.
    pub sysctls: Allowlist,
    /// The address on which the kubelet's HTTP API listens.
    pub address: IpAddr,
    /// The port of the kubelet's HTTP API, in the node's status.
    pub port: u16,
    /// Ports that the node itself uses. Pods cannot have them as host ports.
    pub own_ports: Vec<HostPort>,
    /// `kubeletVersion` in the node's status, for example `v1.36.2`.
    pub version: String,
    /// Additional labels of the node.
    pub labels: BTreeMap<String, String>,
    /// Additional annotations of the node.
    pub annotations: BTreeMap<String, String>,
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
}

/// What the agent needs of the machine besides a container runtime. Calls may block.
pub trait Host: Send + Sync {
    /// Finds an image by name.
    fn image(&self, name: &str) -> Result<runtime::image::Image, runtime::image::Error>;
    fn images(&self) -> Vec<runtime::image::Image>;
    /// Removes an image by its id. Errors if a container that has not ended uses it.
    fn remove_image(&self, id: &str) -> Result<(), runtime::image::Error>;
    /// Removes what interrupted imports of images left.
    fn remove_image_leftovers(&self) -> Result<(), runtime::image::Error>;
    /// Records who may use an image by the name of a repository.
    fn record_image_access(
        &self,
        id: &str,
        repository: &str,
        access: runtime::image::Access,
    ) -> Result<(), runtime::image::Error>;
    /// Creates or updates a cgroup below the runtime's prefix.
    fn set_cgroup(&self, path: &str, resources: &Resources) -> Result<(), runtime::Error>;
    /// Usage of a cgroup below the runtime's prefix; empty for all of it.
    fn usage(&self, path: &str) -> runtime::Usage;
    /// What does not work on this machine, as sentences for users.
    fn complaints(&self) -> Vec<String>;
    /// Errors with the reason if pods cannot have user namespaces.
    fn user_namespaces(&self) -> Result<(), String>;
}

impl Host for Embedded {
    fn image(&self, name: &str) -> Result<runtime::image::Image, runtime::image::Error> {
        self.images().resolve(name)
    }

    fn images(&self) -> Vec<runtime::image::Image> {
        Embedded::images(self).list()
    }

    fn remove_image(&self, id: &str) -> Result<(), runtime::image::Error> {
        Embedded::remove_image(self, id)
    }

    fn remove_image_leftovers(&self) -> Result<(), runtime::image::Error> {
        Embedded::remove_image_leftovers(self)
    }

    fn record_image_access(
        &self,
        id: &str,
        repository: &str,
        access: runtime::image::Access,
    ) -> Result<(), runtime::image::Error> {
        Embedded::images(self).record_access(id, repository, access).map(drop)
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

/// The seccomp profile where neither container nor pod sets one (kubelet's `seccompDefault`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SeccompDefault {
    #[default]
    Unconfined,
    RuntimeDefault,
}
