//! The options of an agent, and what it needs of the machine.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use client::Client;
use meta::{Clock, Rng};
use network::HostPort;
use runtime::image::ImageService;
use runtime::{Host, Runtime};

use crate::affinity::TopologySource;
use crate::configuration::KubeletConfiguration;
use crate::eviction::NodeObserver;
use crate::file_volumes::FileVolumes;
use crate::pod::files::DnsOptions;
use crate::pod::network::Network;
use crate::pod::sysctls::Allowlist;
use crate::static_pods::PodDecoder;

/// The options of an [`Agent`](crate::Agent).
pub struct Options {
    /// A client that authenticates as `system:node:NAME`.
    pub client: Client,
    pub node_name: String,
    /// The addresses of the node: one, or one of each family. The first is that of the cluster's first family.
    pub node_ips: Vec<IpAddr>,
    /// Host name of the machine, for pods in its network.
    pub hostname: String,
    pub runtime: Arc<dyn Runtime>,
    pub host: Arc<dyn Host>,
    /// Observes what the node has left of its resources.
    pub observer: Arc<dyn NodeObserver>,
    /// Reads the processors and NUMA nodes of the machine.
    pub topology: Arc<dyn TopologySource>,
    /// The images of the runtime.
    pub images: Arc<dyn ImageService>,
    /// `None`: pods have no network of their own.
    pub network: Option<Network>,
    /// The network namespace of the node, if it is not that of the process.
    pub node_namespace: Option<PathBuf>,
    /// The directory of pods, volumes and plugins: an absolute path without links.
    pub data_dir: PathBuf,
    /// Volumes in files, which the provisioner makes.
    pub file_volumes: Arc<FileVolumes>,
    /// The path by which pods and plugins know that directory (`/var/lib/kubelet`).
    pub kubelet_root: PathBuf,
    /// The directories of specifications of CDI devices; a later one wins.
    pub cdi_directories: Vec<PathBuf>,
    pub log_dir: PathBuf,
    pub dns: DnsOptions,
    /// `spec.podCIDRs` of a node that registers.
    pub pod_cidrs: Vec<String>,
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

/// The seccomp profile where neither container nor pod sets one (kubelet's `seccompDefault`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SeccompDefault {
    #[default]
    Unconfined,
    RuntimeDefault,
}
