//! Flags of `kemudi up`, `kemudi server`, `kemudi agent` and `kemudi down`.

use crate::access;
use crate::cluster_network::LoadBalancers;
use clap::Args;
use jiff::SignedDuration;
use meta::Clock;
use network::{Family, Ranges};
use node::configuration::{CgroupVersion, ConfigurationError, KubeletConfiguration};
use node::credentials::Plugins;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;
use strategies::networking::Cidr;

/// Flags of `kemudi up`.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    pub server: ServerOptions,
    #[command(flatten)]
    pub node: NodeOptions,
}

/// Flags of the control plane.
#[derive(Args)]
pub struct ServerOptions {
    /// Directory of the store, keys and containers.
    #[arg(long, default_value = "/var/lib/kemudi")]
    pub data_dir: PathBuf,
    /// Bind address of the API server.
    #[arg(long, default_value = "127.0.0.1")]
    pub bind_address: IpAddr,
    /// Address of this server that others use, in the kubeconfig and in the service `kubernetes`. Default:
    /// the bind address, or the loopback address if that is unspecified.
    #[arg(long)]
    pub advertise_address: Option<IpAddr>,
    /// Port of the API server; 0 for any free port.
    #[arg(long, default_value_t = 6443)]
    pub secure_port: u16,
    /// Where to write the administrator's kubeconfig. Default: `kubeconfig` in the data directory.
    #[arg(long)]
    pub write_kubeconfig: Option<PathBuf>,
    /// Range of service addresses, or two ranges of different families. Services use the first unless they specify families.
    #[arg(long, value_delimiter = ',', default_value = "10.96.0.0/16")]
    pub service_cluster_ip_range: Vec<Cidr>,
    /// Range of pod addresses of the cluster, of IPv4 or IPv6, or one of each family separated by a comma (dual stack). The first one is the
    /// family of `status.podIP`. Each node gets a part of each range.
    #[arg(long, value_name = "CIDR[,CIDR]", default_value = "10.244.0.0/16")]
    pub cluster_cidr: Ranges,
    /// Prefix length of the IPv4 range of a node. Default: 24, or that of the cluster's range if it is smaller.
    #[arg(long, value_name = "BITS")]
    pub node_cidr_mask_size_ipv4: Option<u8>,
    /// Prefix length of the IPv6 range of a node. Default: 64, or that of the cluster's range if it is smaller.
    #[arg(long, value_name = "BITS")]
    pub node_cidr_mask_size_ipv6: Option<u8>,
    /// Range of addresses for services of type LoadBalancer, or an IPv4 and an IPv6 range separated by a comma, or `none`. All nodes and
    /// this machine reach them; for others, route the ranges to a node. Default: 10.97.0.0/24 and fd00:10:97::/112, as far as services have
    /// the family, there is a node, and no other range overlaps it.
    #[arg(long, value_name = "CIDR[,CIDR]")]
    pub load_balancer_cidr: Option<LoadBalancers>,
    /// Gives a range of pod addresses to every node, not only to those of Kemudi: for nodes of other programs that need one.
    #[arg(long)]
    pub allocate_node_cidrs: bool,
    /// EncryptionConfiguration: which resources are encrypted at rest and with which keys. Default: secrets,
    /// with a key in the data directory.
    #[arg(long)]
    pub encryption_provider_config: Option<PathBuf>,
    /// Admission plugins to enable in addition to the default ones.
    #[arg(long, value_delimiter = ',')]
    pub enable_admission_plugins: Vec<String>,
    /// Default admission plugins to disable.
    #[arg(long, value_delimiter = ',')]
    pub disable_admission_plugins: Vec<String>,
    /// AdmissionConfiguration: configurations of admission plugins.
    #[arg(long)]
    pub admission_control_config_file: Option<PathBuf>,
    /// KubeSchedulerConfiguration (kubescheduler.config.k8s.io/v1, or an older version or Policy): profiles, plugins and extenders of the scheduler.
    #[arg(long)]
    pub scheduler_config: Option<PathBuf>,
    #[command(flatten)]
    pub api: crate::api::Flags,
    /// All flags with their values (`/flagz`).
    #[arg(skip)]
    pub shown: BTreeMap<String, String>,
    /// Maximum lifetime of certificates that are requested by a CertificateSigningRequest.
    #[arg(long, default_value = "8760h")]
    pub cluster_signing_duration: SignedDuration,
    #[command(flatten)]
    pub access: access::Options,
    #[command(flatten)]
    pub etcd: crate::etcd::Flags,
}

/// Flags of the nodes on this machine.
#[derive(Args)]
pub struct NodeOptions {
    /// Runs only the control plane, without a node on this machine.
    #[arg(long)]
    pub disable_agent: bool,
    /// Runs so many nodes on this machine instead of one, each in a network namespace of its own (`kemudi node` stops, starts and cuts
    /// them off).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100), conflicts_with_all = ["disable_agent", "node_name", "node_ip", "kubelet_port", "kubelet_address"])]
    pub nodes: Option<u32>,
    /// Range of the addresses of such nodes, or an IPv4 and an IPv6 range separated by a comma. Default: 10.89.0.0/24 and
    /// fd00:10:89::/120, for the families of --cluster-cidr.
    #[arg(long, value_name = "CIDR[,CIDR]", requires = "nodes")]
    pub node_network: Option<Ranges>,
    /// Whether pods reach addresses outside of the cluster, by the address of this machine. This enables forwarding of packets between
    /// its devices (`net.ipv4.ip_forward`).
    #[arg(long, action = clap::ArgAction::Set, default_value_t = true, default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    pub pod_egress: bool,
    #[command(flatten)]
    pub kubelet: KubeletOptions,
}

/// The addresses of a node: one, or one of each family, in the order in which the node shows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeIps(Vec<IpAddr>);

/// The family by which nodes reach each other is not one of a node's.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "--node-ip {given}: nodes of a cluster with --cluster-cidr {pods} reach each other by {family}; give an {family} address, too"
)]
pub struct MissingFamily {
    given: NodeIps,
    pods: Ranges,
    family: Family,
}

impl NodeIps {
    /// The addresses, at most one of each family.
    pub fn new(addresses: Vec<IpAddr>) -> Option<Self> {
        match addresses.as_slice() {
            [_] => Some(Self(addresses)),
            [a, b] if a.is_ipv4() != b.is_ipv4() => Some(Self(addresses)),
            _ => None,
        }
    }

    pub fn all(&self) -> &[IpAddr] {
        &self.0
    }

    /// The address of a family.
    pub fn of(&self, family: Family) -> Option<IpAddr> {
        self.0.iter().copied().find(|address| Family::of(*address) == family)
    }

    /// Errors if other nodes of a cluster with these ranges of pods cannot reach the node.
    pub fn check(&self, pods: Ranges) -> Result<(), MissingFamily> {
        let family = pods.of_tunnels();
        self.of(family).map(drop).ok_or_else(|| MissingFamily { given: self.clone(), pods, family })
    }
}

impl std::str::FromStr for NodeIps {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = |part: &str| {
            let address: IpAddr = part.trim().parse().map_err(|_| format!("{part:?} is no IP address"))?;
            let is_local =
                matches!(address, IpAddr::V6(a) if a.is_unicast_link_local() || a.to_ipv4_mapped().is_some());
            let is_usable = !address.is_unspecified() && !address.is_loopback() && !address.is_multicast() && !is_local;
            if is_usable { Ok(address) } else { Err(format!("{address} is not an address of a machine")) }
        };
        let all = text.split(',').map(parse).collect::<Result<Vec<IpAddr>, String>>()?;
        Self::new(all)
            .ok_or_else(|| "give one address, or one IPv4 and one IPv6 address separated by a comma".to_owned())
    }
}

impl std::fmt::Display for NodeIps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(","))
    }
}

/// Flags of a node.
#[derive(Args)]
pub struct KubeletOptions {
    /// Name of this machine's node. Default: its host name.
    #[arg(long)]
    pub node_name: Option<String>,
    /// Address by which other nodes and servers reach this node, or an IPv4 and an IPv6 address separated by a comma. Pods of this node
    /// and of other nodes then reach each other.
    #[arg(long, value_name = "IP[,IP]")]
    pub node_ip: Option<NodeIps>,
    /// Bind address of the kubelet's API. Pods and the API server can always reach it at the
    /// node's own address.
    #[arg(long)]
    pub kubelet_address: Option<IpAddr>,
    /// Port of the kubelet's API; 0 for any free port. Default: 10250.
    #[arg(long)]
    pub kubelet_port: Option<u16>,
    /// Port on which programs of this machine ask the kubelet for its health (`/healthz`, without TLS); 0 for none. Default: 10248.
    #[arg(long, value_name = "PORT")]
    pub kubelet_healthz_port: Option<u16>,
    /// KubeletConfiguration (kubelet.config.k8s.io/v1beta1). Flags override its values. Fields that this node cannot honour are
    /// refused or named in a warning.
    #[arg(long, value_name = "FILE")]
    pub kubelet_config: Option<PathBuf>,
    /// Directory with the manifests of static pods, or a single manifest. The node runs these pods without the API server, which
    /// shows them as mirror pods.
    #[arg(long, value_name = "PATH")]
    pub pod_manifest_path: Option<PathBuf>,
    /// Configuration of image registries. Default: `registries.yaml` in the data directory.
    #[arg(long, value_name = "FILE")]
    pub registries: Option<PathBuf>,
    /// CredentialProviderConfig (kubelet.config.k8s.io), or a directory of such files: the programs that return credentials for images.
    #[arg(long, value_name = "PATH", requires = "image_credential_provider_bin_dir")]
    pub image_credential_provider_config: Option<PathBuf>,
    /// Directory of these programs.
    #[arg(long, value_name = "DIR", requires = "image_credential_provider_config")]
    pub image_credential_provider_bin_dir: Option<PathBuf>,
    /// Path by which pods and plugins know the kubelet's directory, as in manifests of CSI drivers. A hostPath volume below it is a
    /// part of this node's own directory.
    #[arg(long, value_name = "PATH", default_value = plugins::KubeletRoot::USUAL)]
    pub root_dir: PathBuf,
    /// Socket of the container runtime that runs pods (CRI v1), such as unix:///run/containerd/containerd.sock. Default: the runtime
    /// in this program.
    #[arg(long, value_name = "ENDPOINT")]
    pub container_runtime_endpoint: Option<String>,
    /// Socket of the image service of the container runtime, if it is another one.
    #[arg(long, value_name = "ENDPOINT")]
    pub image_service_endpoint: Option<String>,
    #[command(flatten)]
    pub network: crate::pod_network::NetworkFlags,
    #[command(flatten)]
    pub proxy: ProxyPorts,
    /// Unsafe sysctls that pods may set, by name or by a prefix that ends with '*'. Only
    /// namespaced sysctls can be allowed.
    #[arg(long, value_delimiter = ',')]
    pub allowed_unsafe_sysctls: Vec<String>,
    /// Maximum number of processes and threads of a pod; -1, the default, for no limit.
    #[arg(long, allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..))]
    pub pod_max_pids: Option<i64>,
    /// Default seccomp profile of containers: that of the container runtime (`RuntimeDefault`) instead of none. Privileged
    /// containers never have one.
    #[arg(long, action = clap::ArgAction::Set, default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    pub seccomp_default: Option<bool>,
}

/// The ports on which the service proxy says how it is, as kube-proxy does.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct ProxyPorts {
    /// Port on which load balancers ask the node's service proxy for its health (`/healthz`, `/livez`), on all addresses; 0 for none
    #[arg(long, value_name = "PORT", default_value_t = proxy::HEALTH_PORT)]
    pub proxy_healthz_port: u16,
    /// Port on 127.0.0.1 for the metrics of the node's service proxy (`/metrics`, `/proxyMode`); 0 for none
    #[arg(long, value_name = "PORT", default_value_t = proxy::METRICS_PORT)]
    pub proxy_metrics_port: u16,
}

impl ProxyPorts {
    /// What the proxy serves, for services of these families.
    pub fn status(self, ranges: Ranges, clock: Arc<dyn Clock>) -> proxy::StatusOptions {
        let used = |port: u16| Some(port).filter(|p| *p != 0);
        let name = |family| match family {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        };
        proxy::StatusOptions {
            health_port: used(self.proxy_healthz_port),
            metrics: used(self.proxy_metrics_port).map(|port| (Ipv4Addr::LOCALHOST, port).into()),
            families: ranges.families().map(name).collect(),
            clock,
        }
    }
}

/// The configuration of a node without a file: upstream's defaults, but for a disk that the machine's other programs fill. Those of
/// upstream would stop pods on many a laptop.
fn without_file() -> KubeletConfiguration {
    let mut configuration = KubeletConfiguration::default();
    for signal in ["nodefs.available", "imagefs.available"] {
        configuration.eviction_hard.insert(signal.into(), "5%".into());
    }
    configuration
}

/// The version of cgroups that limits containers of this machine.
fn cgroup_version() -> CgroupVersion {
    match runtime::cgroup::Hierarchies::detect() {
        Ok(found) if found.version() == "v2" => CgroupVersion::Two,
        _ => CgroupVersion::One,
    }
}

impl KubeletOptions {
    /// The programs that return credentials for images.
    pub fn credential_plugins(&self) -> Result<Plugins, node::credentials::ConfigurationError> {
        match (&self.image_credential_provider_config, &self.image_credential_provider_bin_dir) {
            (Some(path), Some(programs)) => Plugins::read(path, programs),
            _ => Ok(Plugins::default()),
        }
    }

    /// The configuration of the node: that of the file, with the values of flags. Warns of fields that have no effect.
    pub fn configuration(&self) -> Result<KubeletConfiguration, ConfigurationError> {
        let mut configuration = match &self.kubelet_config {
            None => without_file(),
            Some(path) => {
                let (configuration, ignored) = KubeletConfiguration::read(path)?;
                configuration.check_cgroups(cgroup_version())?;
                if !ignored.is_empty() {
                    crate::output::note!(
                        "warning: {}: these fields have no effect on this node: {}",
                        path.display(),
                        ignored.join(", ")
                    );
                }
                configuration
            }
        };
        if let Some(path) = &self.pod_manifest_path {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            configuration.static_pod_path = path.display().to_string();
        }
        if let Some(address) = self.kubelet_address {
            configuration.address = address.to_string();
        }
        if let Some(port) = self.kubelet_port {
            configuration.port = port.into();
        }
        if let Some(port) = self.kubelet_healthz_port {
            configuration.healthz_port = port.into();
        }
        if let Some(pids) = self.pod_max_pids {
            configuration.pod_pids_limit = pids;
        }
        if let Some(seccomp) = self.seccomp_default {
            configuration.seccomp_default = seccomp;
        }
        if let Some(endpoint) = &self.container_runtime_endpoint {
            configuration.container_runtime_endpoint = endpoint.clone();
        }
        if let Some(endpoint) = &self.image_service_endpoint {
            configuration.image_service_endpoint = endpoint.clone();
        }
        if !self.allowed_unsafe_sysctls.is_empty() {
            configuration.allowed_unsafe_sysctls = self.allowed_unsafe_sysctls.clone();
        }
        Ok(configuration)
    }
}

#[derive(Args)]
pub struct DownOptions {
    /// Data directory of the cluster to stop.
    #[arg(long, default_value = "/var/lib/kemudi")]
    pub data_dir: PathBuf,
    /// Also removes containers, network, packet rules and data.
    #[arg(long)]
    pub purge: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_an_address_of_each_family() {
        let check = |text: &str| text.parse::<NodeIps>().map(|ips| ips.to_string());
        for good in ["192.0.2.1", "2001:db8::1", "2001:db8::1,192.0.2.1"] {
            assert_eq!(check(good).as_deref(), Ok(good));
        }
        for bad in [
            "",
            "192.0.2.1,192.0.2.2",
            "192.0.2.1,::1",
            "0.0.0.0",
            "a",
            "1.2.3.4,fd00::1,fd00::2",
            "fe80::1",
            "::ffff:1.2.3.4",
        ] {
            assert!(check(bad).is_err(), "{bad}");
        }
        let fits = |ips: &str, pods: &str| ips.parse::<NodeIps>().unwrap().check(pods.parse().unwrap());
        for (ips, pods) in
            [("192.0.2.1", "10.0.0.0/8,fd00::/56"), ("fd01::1", "fd00::/56"), ("10.0.0.1,fd01::1", "fd00::/56")]
        {
            assert_eq!(fits(ips, pods), Ok(()));
        }
        let error = fits("192.0.2.1", "fd00::/56").unwrap_err().to_string();
        assert!(error.ends_with("reach each other by IPv6; give an IPv6 address, too"), "{error}");
        assert!(fits("2001:db8::1", "fd00::/56,10.0.0.0/8").is_err());
    }
}
