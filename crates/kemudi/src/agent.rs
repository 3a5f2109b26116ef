//! The node of this machine: runtime, pod network, agent, service proxy and DNS server.

use crate::cluster_network::ClusterNetwork;
use crate::containers;
use crate::kubelet::Sockets;
use crate::options::{NodeIps, ProxyPorts};
use crate::pod_network::{self, FileSystem, Plugins};
use crate::static_pods::Decoder;
use aws_lc_rs::digest::{SHA256, digest};
use client::{Client, Informers};
use meta::{Clock, Rng};
use network::policies::{Options as PolicyOptions, PolicyRules};
use network::{HostPort, PodInterfaces, PodNetwork, Protocol, Ranges, ServiceOptions, ServiceRules};
use node::configuration::KubeletConfiguration;
use node::join::POD_NETWORK;
use node::{Agent, Allowlist, DnsOptions, MachineObserver};
use runtime::Embedded;
use runtime::beneath::make_private;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use supervisor::{Component, OnEnd, Shutdown, Supervisor, blocking};
use tokio::runtime::Handle;

/// The domain of the cluster.
const DOMAIN: &str = "cluster.local";
/// Ports of the cluster's DNS server on the node.
const DNS_PORT: u16 = 53;

/// A port of the node's own, not of a pod or service.
pub fn own_port(address: Option<IpAddr>, protocol: Protocol, port: u16) -> HostPort {
    HostPort { address, protocol, port, target: port }
}
/// The configuration of image registries, in the data directory.
pub const REGISTRIES: &str = "registries.yaml";
/// The path of another configuration that the node was started with.
const REGISTRIES_RECORD: &str = "registries.path";
/// The name of the image inside this binary.
pub const DEMO_IMAGE: &str = "kemudi.local/demo:latest";
/// The tag of all kernel objects of a cluster, derived from its data directory, so that two clusters on one machine do not
/// remove each other's.
pub fn tag(data_dir: &Path) -> String {
    let dir = data_dir.canonicalize().unwrap_or_else(|_| data_dir.to_owned());
    let hash = digest(&SHA256, dir.as_os_str().as_encoded_bytes());
    let hex: String = hash.as_ref().iter().take(3).map(|b| format!("{b:02x}")).collect();
    format!("k{hex}")
}

/// Minimum limit of pseudo-terminals: enough for 256 containers.
const TERMINALS: u32 = 16_384 + 1024;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("setting up the pod network: {0}")]
    Network(#[from] network::Error),
    #[error(transparent)]
    Containers(#[from] containers::Error),
    #[error(transparent)]
    PodNetwork(#[from] pod_network::Error),
    #[error("the node cannot run: {0}")]
    Node(#[from] node::Error),
    #[error("stopping the containers of the node: {0}")]
    Runtime(#[from] runtime::Error),
    #[error("{path}: {source}")]
    File { path: PathBuf, source: std::io::Error },
    #[error("the port {0} of the agent cannot be used: {1}")]
    Port(SocketAddr, std::io::Error),
}

#[derive(Clone)]
pub struct Config {
    pub data_dir: PathBuf,
    /// Allowed unsafe sysctls.
    pub sysctls: Allowlist,
    /// The kubelet's configuration.
    pub configuration: KubeletConfiguration,
    /// The configuration of image registries, if not that of the data directory.
    pub registries: Option<PathBuf>,
    /// The programs that return credentials for images.
    pub credential_plugins: node::credentials::Plugins,
    /// The CNI plugins that connect pods; `None` for the network of kemudi.
    pub plugins: Option<Plugins>,
    /// Whether other nodes of this machine have the same file system.
    pub files: FileSystem,
    pub proxy: ProxyPorts,
    /// The path by which pods and plugins know the directory of the node's pods, volumes and plugins.
    pub kubelet_root: PathBuf,
    pub node_name: String,
    /// The addresses by which other nodes reach this one. None: there is only this node.
    pub node_ips: Option<NodeIps>,
    /// Whether pods reach addresses outside of the cluster. Those of a node among others always do: so they reach the API server.
    pub pod_egress: bool,
    /// The addresses of this node's pods.
    pub pod_ranges: Ranges,
    pub cluster: ClusterNetwork,
    /// Where other machines, or other parts of this one, serve the API to this node.
    pub servers: Vec<SocketAddr>,
    /// The port of the API server on this machine, if there is one.
    pub api_port: Option<u16>,
}

/// What the parts of a node use of their process.
pub struct Environment {
    /// Authenticates as the node.
    pub client: Client,
    /// For the service proxy, the DNS server and the routes to other nodes.
    pub informers: Informers,
    /// For network policies: reads the pods of all nodes, which the node itself may not.
    pub policy_informers: Informers,
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
    pub shutdown: Shutdown,
    pub supervisor: Supervisor,
}

impl Environment {
    fn component(&self, name: &'static str, runtime: &Handle) -> Component {
        self.supervisor.component(name, &self.shutdown, runtime)
    }
}

impl Config {
    /// The addresses that the node shows.
    pub fn addresses(&self, network: &PodNetwork) -> Vec<IpAddr> {
        self.node_ips.as_ref().map_or_else(|| network.gateways().to_vec(), |ips| ips.all().to_vec())
    }

    /// The node's end of the tunnels to other nodes, if there are any.
    fn tunnel(&self) -> Option<IpAddr> {
        let ips = self.node_ips.as_ref().filter(|_| self.plugins.is_none())?;
        ips.of(self.cluster.pods.of_tunnels())
    }

    fn network(&self) -> network::Options {
        network::Options {
            id: tag(&self.data_dir),
            state_directory: self.data_dir.join("network"),
            namespace_directory: self.data_dir.join("netns"),
            node_namespace: None,
            interfaces: match self.plugins {
                Some(_) => PodInterfaces::Plugins,
                None => PodInterfaces::Bridge,
            },
            pod_ranges: self.pod_ranges,
            cluster_ranges: self.cluster.pods,
            service_ranges: self.cluster.services,
            load_balancer_ranges: self.cluster.load_balancers,
            tunnel: self.tunnel(),
            mtu: None,
            // Pods of a node among others reach the API server and other nodes through their own node.
            masquerade: self.pod_egress || self.node_ips.is_some(),
            forward: self.pod_egress || self.node_ips.is_some(),
        }
    }

    fn services(&self, own_ports: Vec<HostPort>) -> ServiceOptions {
        ServiceOptions {
            id: tag(&self.data_dir),
            node_namespace: None,
            cluster_ranges: self.cluster.pods,
            service_ranges: self.cluster.services,
            load_balancer_ranges: self.cluster.load_balancers,
            own_ports,
        }
    }

    fn policies(&self) -> PolicyOptions {
        let network = self.network();
        PolicyOptions {
            families: network.pod_ranges.families().collect(),
            bridge: network.bridge(),
            id: network.id,
            node_namespace: network.node_namespace,
            dns: Some(self.cluster.dns),
        }
    }
}

/// A node that runs in this process.
pub struct RunningNode {
    /// The listeners of the agent's API, which end when the last request has been answered after the shutdown.
    pub listeners: Component,
    pub handle: node::Handle,
}

/// Refuses a configuration with which the node could not run, as the kubelet does: nothing that happens later would change that.
pub async fn check_node(data_dir: &Path, configuration: &KubeletConfiguration) -> Result<(), Error> {
    let (directory, configuration) = (data_dir.join("node"), configuration.clone());
    let check = move || node::check_machine(&configuration, &directory, &node::Sysfs::default());
    Ok(blocking(check).await?)
}

/// Errors if the pods of a data directory cannot be connected by these plugins, or by this program if there are none.
pub fn check_network(data_dir: &Path, plugins: Option<&Plugins>, has_endpoint: bool) -> Result<(), Error> {
    if plugins.is_some() && has_endpoint {
        return Err(pod_network::Error::Runtime.into());
    }
    Ok(pod_network::check(data_dir, plugins)?)
}

/// Opens the pod network. Its packet rules are in place before any address of the cluster can be used.
pub async fn open_network(config: &Config) -> Result<PodNetwork, Error> {
    for name in ["network", "netns"] {
        let directory = config.data_dir.join(name);
        make_private(&directory).map_err(|source| Error::File { path: directory, source })?;
    }
    Ok(PodNetwork::open(config.network()).await?)
}

/// Records the configuration of registries that the node was started with, for `kemudi image pull`.
pub fn record_registries(data_dir: &Path, registries: Option<&Path>) -> std::io::Result<()> {
    let record = data_dir.join(REGISTRIES_RECORD);
    match registries {
        Some(path) => std::fs::write(record, std::path::absolute(path)?.as_os_str().as_bytes()),
        None => match std::fs::remove_file(record) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        },
    }
}

/// The configuration of registries that the node of a data directory was started with, if it was given one.
pub fn recorded_registries(data_dir: &Path) -> Option<PathBuf> {
    let path = std::fs::read(data_dir.join(REGISTRIES_RECORD)).ok().filter(|path| !path.is_empty())?;
    Some(PathBuf::from(OsString::from_vec(path)))
}

/// Makes mounts below the directory visible to pods that request it (`mountPropagation`), and mounts of such pods to the node, whatever
/// the machine does with its own mounts. A failure is logged: drivers in pods cannot mount volumes then.
fn share_mounts(directory: &Path) {
    let failed = |error: &dyn std::fmt::Display| {
        tracing::warn!("sharing mounts with pods failed: {error}; drivers that run in pods cannot mount volumes");
    };
    match runtime::beneath::is_mount_point(directory) {
        Ok(true) => {}
        Ok(false) => match runtime::beneath::mounts_below(directory) {
            Ok(below) if below.is_empty() => {
                if let Err(e) = runtime::beneath::bind_to_itself(directory) {
                    return failed(&e);
                }
            }
            Ok(_) => {
                return failed(&"volumes of pods of an earlier release are mounted; it works after they have ended");
            }
            Err(e) => return failed(&e),
        },
        Err(e) => return failed(&e),
    }
    if let Err(e) = runtime::beneath::share(directory) {
        failed(&e);
    }
}

/// Starts the services of the node: its agent on the threads of `runtime`, the API of the agent, the service proxy and the DNS server.
pub async fn start(
    config: &Config,
    network: PodNetwork,
    sockets: Sockets,
    environment: &Environment,
    runtime: &Handle,
) -> Result<RunningNode, Error> {
    let listens = sockets.address().map_err(|e| Error::Port(SocketAddr::from(([0; 4], 0)), e))?;
    if let Err(e) = runtime::terminals::raise(TERMINALS) {
        tracing::warn!("raising the limit of pseudo-terminals failed: {e}");
    }
    // As kubelet does: when memory runs out, pods are killed first. Child processes inherit the score; containers get their own.
    if let Err(e) = std::fs::write("/proc/self/oom_score_adj", config.configuration.oom_score_adj.to_string()) {
        tracing::debug!("setting the out-of-memory score failed: {e}");
    }
    let clock = runtime_clock(environment.clock.clone());
    let settings = containers::Settings {
        data_dir: &config.data_dir,
        configuration: &config.configuration,
        registries: config.registries.as_deref(),
        clock,
    };
    let node = environment.component("node", &Handle::current());
    let endpoints = containers::endpoints(&config.configuration)?;
    containers::check(&config.data_dir, endpoints.as_ref())?;
    let containers = match &endpoints {
        None => settings.embedded().await?,
        Some(endpoints) => settings.cri(endpoints, &network, &node).await?,
    };
    if let Err(error) = record_registries(&config.data_dir, config.registries.as_deref()) {
        tracing::warn!(%error, "recording the configuration of registries failed; `kemudi image pull` may use another one");
    }
    let gateways = network.gateways().to_vec();
    let log_dir = config.data_dir.join("logs");
    let data_dir = config.data_dir.join("node");
    let file = |path: &Path, source| Error::File { path: path.to_owned(), source };
    for d in [&log_dir, &data_dir, &data_dir.join("pods")] {
        make_private(d).map_err(|e| file(d, e))?;
    }
    // Logs are opened without following symbolic links, so their own path must have none.
    let log_dir = log_dir.canonicalize().map_err(|e| file(&log_dir, e))?;
    let api_port = config.api_port.map(|port| own_port(None, Protocol::Tcp, port));
    let healthz = config.configuration.healthz();
    let plain = [healthz.map_or(0, |a| a.port()), config.proxy.proxy_healthz_port, config.proxy.proxy_metrics_port];
    let served = [listens.port()].into_iter().chain(plain.into_iter().filter(|port| *port != 0));
    let own_ports: Vec<HostPort> = api_port
        .into_iter()
        .chain(served.map(|port| own_port(None, Protocol::Tcp, port)))
        .chain(gateways.iter().flat_map(|gateway| {
            [Protocol::Tcp, Protocol::Udp].map(|protocol| own_port(Some(*gateway), protocol, DNS_PORT))
        }))
        .collect();
    let node_ips = config.addresses(&network);
    // The path is in volumes, and only a volume with this very path is removed.
    let data_dir = data_dir.canonicalize().map_err(|e| file(&data_dir, e))?;
    share_mounts(&data_dir);
    let volumes = data_dir.join("volumes");
    let file_volumes = Arc::new(node::FileVolumes::new(volumes.clone(), data_dir.join("pods")));
    file_volumes.recover().await;
    let gate = network.gate();
    let pods = match &config.plugins {
        None => {
            gate.close();
            node::Network::Own(network.clone())
        }
        Some(plugins) => {
            let limit = config.configuration.runtime_request_timeout.get();
            let ranges = config.pod_ranges.iter().map(|range| range.to_string()).collect();
            node::Network::Plugins(pod_network::open(&config.data_dir, plugins, ranges, config.files, limit).await?)
        }
    };
    let host = containers.host;
    let agent = Agent::new(node::Options {
        client: environment.client.clone(),
        node_name: config.node_name.clone(),
        node_ips: node_ips.clone(),
        hostname: config.node_name.clone(),
        observer: Arc::new(MachineObserver::new(
            data_dir.clone(),
            &config.data_dir.join("runtime"),
            config.configuration.reserved("memory"),
            host.clone(),
        )),
        topology: Arc::new(node::Sysfs::default()),
        host,
        credential_plugins: config.credential_plugins.clone(),
        runtime: containers.runtime,
        images: containers.images,
        network: Some(pods),
        node_namespace: None,
        data_dir,
        file_volumes: file_volumes.clone(),
        kubelet_root: config.kubelet_root.clone(),
        cdi_directories: node::CDI_DIRECTORIES.map(PathBuf::from).into(),
        log_dir,
        dns: dns(&config.configuration, config.cluster.dns),
        pod_cidrs: config.pod_ranges.iter().map(|range| range.to_string()).collect(),
        configuration: config.configuration.clone(),
        decoder: Arc::new(Decoder),
        sysctls: config.sysctls.clone(),
        address: listens.ip(),
        port: listens.port(),
        own_ports: own_ports.clone(),
        version: apiserver::VERSION.into(),
        labels: BTreeMap::new(),
        annotations: match config.tunnel() {
            Some(_) => [(POD_NETWORK.to_owned(), "vxlan".to_owned())].into(),
            None => BTreeMap::new(),
        },
        clock: environment.clock.clone(),
        rng: environment.rng.clone(),
    });
    let listeners = environment.component("kubelet-listeners", &Handle::current());
    let handle = agent.handle();
    let listening = sockets.serve(handle.clone(), &node_ips, &listeners).await;
    listening.map_err(|(socket, e)| Error::Port(socket, e))?;
    let (agent, shutdown) = (Arc::new(agent), environment.shutdown.clone());
    node.on(runtime).spawn("kubelet", OnEnd::Restart, move || agent.clone().run(shutdown.clone()));
    if let Some(address) = healthz {
        let shutdown = environment.shutdown.clone();
        node.spawn("kubelet-healthz", OnEnd::Restart, move || node::run_healthz(address, shutdown.clone()));
    }
    let provisioner = node::ProvisionerOptions {
        client: environment.client.clone(),
        informers: environment.informers.clone(),
        node_name: config.node_name.clone(),
        directory: volumes,
        files: file_volumes,
        clock: environment.clock.clone(),
        shutdown: environment.shutdown.clone(),
    };
    node.on(runtime).spawn("directory-provisioner", OnEnd::Restart, move || node::run_provisioner(provisioner.clone()));
    // No service receives what the node sends to the API server, whatever addresses that has.
    let servers = config.servers.iter().map(|server| own_port(Some(server.ip()), Protocol::Tcp, server.port()));
    let exempt = own_ports.into_iter().chain(servers).collect();
    let rules = Arc::new(ServiceRules::open(config.services(exempt))?);
    let (shared, name, shutdown) =
        (environment.informers.clone(), config.node_name.clone(), environment.shutdown.clone());
    let status = config.proxy.status(config.cluster.services, environment.clock.clone());
    node.spawn("service-proxy", OnEnd::Restart, move || {
        proxy::run(proxy::Options {
            informers: shared.clone(),
            rules: rules.clone(),
            role: proxy::Role::Node(name.clone()),
            status: Some(status.clone()),
            shutdown: shutdown.clone(),
        })
    });
    if config.plugins.is_none() {
        let policies = Arc::new(PolicyRules::open(config.policies())?);
        let (informers, shutdown) = (environment.policy_informers.clone(), environment.shutdown.clone());
        node.spawn("network-policies", OnEnd::Restart, move || {
            proxy::policies::run(proxy::policies::Options {
                informers: informers.clone(),
                gate: gate.clone(),
                rules: policies.clone(),
                shutdown: shutdown.clone(),
            })
        });
    }
    let (shared, shutdown) = (environment.informers.clone(), environment.shutdown.clone());
    node.spawn("dns", OnEnd::Restart, move || {
        dns::run(dns::Options {
            informers: shared.clone(),
            domain: DOMAIN.into(),
            addresses: gateways.iter().map(|gateway| SocketAddr::from((*gateway, DNS_PORT))).collect(),
            namespace: None,
            shutdown: shutdown.clone(),
        })
    });
    if config.tunnel().is_some() {
        let (shared, name, shutdown) =
            (environment.informers.clone(), config.node_name.clone(), environment.shutdown.clone());
        node.spawn("pod-routes", OnEnd::Restart, move || {
            let network = network.clone();
            node::follow_peers(shared.clone(), Some(name.clone()), shutdown.clone(), move |peers| {
                let network = network.clone();
                async move { network.set_peers(&peers).await }
            })
        });
    }
    Ok(RunningNode { listeners, handle })
}

/// Where pods resolve names: with the DNS server of the cluster and that of the node, unless configured otherwise.
fn dns(configuration: &KubeletConfiguration, cluster: IpAddr) -> DnsOptions {
    let servers = match configuration.cluster_dns.as_slice() {
        [] => vec![cluster.to_string()],
        servers => servers.to_vec(),
    };
    let domain = match configuration.cluster_domain.as_str() {
        "" => DOMAIN.into(),
        domain => domain.into(),
    };
    let node = match configuration.resolv_conf.as_str() {
        "" => String::new(),
        path => std::fs::read_to_string(path).unwrap_or_else(|error| {
            tracing::warn!(path, %error, "reading the resolver configuration of the node failed; pods have none of it");
            String::new()
        }),
    };
    DnsOptions { servers, domain, node }
}

fn runtime_clock(clock: Arc<dyn Clock>) -> runtime::Clock {
    Arc::new(move || {
        let now = clock.now();
        runtime::Timestamp { secs: now.as_second().unsigned_abs(), nanos: now.subsec_nanosecond().unsigned_abs() }
    })
}

/// Which parts of a node are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remains {
    All,
    /// The network namespace is gone, and with it the network and its rules.
    NoNetwork,
}

/// Removes everything that a node created on this machine: containers, network, rules. Works without a running node. `namespace`: the network
/// namespace of the node, if it is not that of this process.
pub async fn purge(data_dir: &Path, namespace: Option<&Path>, remains: Remains) -> Result<(), Error> {
    let config = recorded(data_dir);
    containers::purge(data_dir, no_clock()).await?;
    pod_network::purge(data_dir, namespace).await?;
    if remains == Remains::All {
        ServiceRules::purge(&config.services(Vec::new())).await?;
        PolicyRules::purge(&config.policies()).await?;
        PodNetwork::purge(&config.network()).await?;
    }
    // Volumes of pods that were not terminated.
    let failed = |source| Error::File { path: data_dir.to_owned(), source };
    runtime::beneath::unmount_below(data_dir).map_err(failed)?;
    runtime::loop_device::detach_all(&data_dir.join("node/volumes")).map_err(failed)
}

/// Kills all processes of a node's pods, as if its machine had lost its power. Its agent does not run.
pub async fn power_off(data_dir: &Path) -> Result<(), Error> {
    Ok(Embedded::power_off(&containers::options(data_dir, no_clock())).await?)
}

/// The options by which the parts of a node that does not run are found.
fn recorded(data_dir: &Path) -> Config {
    let cluster = ClusterNetwork::recorded(data_dir);
    Config {
        data_dir: data_dir.to_owned(),
        sysctls: Allowlist::default(),
        configuration: KubeletConfiguration::default(),
        registries: None,
        credential_plugins: node::credentials::Plugins::default(),
        plugins: None,
        files: FileSystem::Own,
        kubelet_root: plugins::KubeletRoot::USUAL.into(),
        proxy: ProxyPorts { proxy_healthz_port: 0, proxy_metrics_port: 0 },
        node_name: String::new(),
        node_ips: None,
        pod_egress: false,
        pod_ranges: cluster.first(),
        cluster,
        servers: Vec::new(),
        api_port: None,
    }
}

fn no_clock() -> runtime::Clock {
    Arc::new(|| runtime::Timestamp { secs: 0, nanos: 0 })
}
