//! `kemudi up` and `kemudi down`.

use crate::cluster_network::{self, ClusterNetwork, NodeMasks};
use crate::components::{self, Membership, Parts, PodRanges};
use crate::control_plane::{self, Config, ControlPlane};
use crate::kubelet::Sockets;
use crate::machine::Machine;
use crate::options::{KubeletOptions, MissingFamily, NodeOptions, Options, ServerOptions};
use crate::pki;
use crate::pod_network::FileSystem;
use crate::signals::Stop;
use crate::system::{SystemClock, SystemRng};
use crate::{
    access, agent, background, bootstrap, containers, data_dir, dns_endpoints, down, join, machine, node_shutdown,
    privileges, second_family,
};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use meta::Clock;
use network::Family;
use node::configuration::{ConfigurationError, KubeletConfiguration};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use strategies::networking::Cidr;
use supervisor::{OnEnd, Supervisor};
use tokio::net::TcpListener;
use tokio::runtime::Handle;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    KubeletConfiguration(#[from] ConfigurationError),
    #[error(transparent)]
    CredentialPlugins(#[from] node::credentials::ConfigurationError),
    #[error(transparent)]
    ControlPlane(#[from] control_plane::Error),
    #[error(transparent)]
    Pki(#[from] pki::Error),
    #[error("{path}: {source}")]
    File { path: PathBuf, source: std::io::Error },
    #[error("starting the runtime: {0}")]
    Runtime(std::io::Error),
    #[error(transparent)]
    Agent(#[from] agent::Error),
    #[error(transparent)]
    Join(#[from] join::Error),
    #[error(transparent)]
    Machine(#[from] machine::Error),
    #[error(transparent)]
    Service(#[from] supervisor::Failure),
    #[error("{0}")]
    Admission(String),
    #[error("--scheduler-config: {0}")]
    Scheduler(#[from] scheduler::ConfigurationError),
    #[error("--etcd-servers: a server of several runs no node; use `kemudi server`, or --disable-agent")]
    NodeOnEtcd,
    #[error("{0}")]
    Ranges(&'static str),
    #[error(transparent)]
    ClusterRanges(#[from] cluster_network::InvalidRanges),
    #[error(transparent)]
    LoadBalancers(#[from] cluster_network::InvalidLoadBalancers),
    #[error(transparent)]
    Changed(#[from] cluster_network::Changed),
    #[error(transparent)]
    NodeIps(#[from] MissingFamily),
    #[error(
        "service IP family \"{services}\" must match public address family \"{public}\": --advertise-address {address} is not of the first \
         family of --service-cluster-ip-range"
    )]
    Advertise { services: Family, public: Family, address: IpAddr },
    #[error("--node-name: invalid value {name:?}: {}", .errors.join(", "))]
    NodeName { name: String, errors: Vec<String> },
    #[error(
        "the address {0} of the DNS server is in use, perhaps by another cluster with the same --cluster-cidr; give this \
         one another range"
    )]
    DnsAddress(std::net::SocketAddr),
    #[error("--allowed-unsafe-sysctls: {0}")]
    Sysctls(#[from] node::SysctlError),
    #[error("--runtime-config: {0}")]
    RuntimeConfig(String),
    #[error(transparent)]
    Api(#[from] crate::flag_error::Error),
    #[error("creating the service of the DNS server: {0}")]
    Dns(meta::Status),
    #[error("adding the second ranges to nodes and ServiceCIDRs: {0}")]
    Extend(meta::Status),
    #[error("publishing the cluster's address ranges: {0}")]
    Publish(meta::Status),
    #[error(
        "this process lacks capabilities to run containers:{}\nRun it as root, or only the control plane with --disable-agent; nothing was changed",
        privileges::listed(.0)
    )]
    Privileges(Vec<(&'static str, &'static str)>),
    #[error("{0} is not a data directory of kemudi; nothing was removed")]
    NotOurs(String),
    #[error("no cluster runs on {0}")]
    NotRunning(String),
    #[error("{0} is in use by a program of another name than this one; stop it with that program")]
    InUse(String),
    #[error(
        "the port {0} of the kubelet's API cannot be used: {1}; choose another one with --kubelet-port, or 0 for any free one"
    )]
    KubeletPort(std::net::SocketAddr, std::io::Error),
    #[error("setting the host name of the node: {0}")]
    HostName(nix::Error),
    #[error("entering the network namespace of the cluster: {0}")]
    Namespace(nix::Error),
    #[error("the process {0} did not stop within a minute")]
    Stuck(i32),
}

/// Maximum number of connections of the kubelet's API.
const MAX_AGENT_CONNECTIONS: usize = 4096;
pub const PID_FILE: &str = "kemudi.pid";
/// How long the shutdown waits for the audit webhook.
const LAST_EVENTS: Duration = Duration::from_secs(10);
/// How long the shutdown waits for running tasks.
pub const LAST_TASKS: Duration = Duration::from_secs(2);
/// Maximum duration of the shutdown in addition to the limits of its parts.
pub const END: Duration = Duration::from_secs(10);
/// When the start has surely completed and its code can be paged out.
const SETTLED: Duration = Duration::from_secs(30);

/// Runs a command of its own runtime.
pub fn block_on(command: impl Future<Output = Result<(), control_plane::Error>>) -> Result<(), Error> {
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Error::Runtime)?;
    Ok(runtime.block_on(command)?)
}

/// The nodes in or below this process.
pub enum Local {
    None,
    /// One node in this process.
    Node(NodeOptions),
    /// Nodes in processes and network namespaces of their own.
    Nodes(NodeOptions),
}

/// Runs a cluster on this machine.
pub fn up(options: Options) -> Result<(), Error> {
    let Options { server, node } = options;
    if server.etcd.is_used() && !node.disable_agent {
        return Err(Error::NodeOnEtcd);
    }
    let local = match node {
        NodeOptions { disable_agent: true, .. } => Local::None,
        NodeOptions { nodes: Some(_), .. } => Local::Nodes(node),
        node => Local::Node(node),
    };
    serve(server, local)
}

/// Settings of a process that runs until it is stopped.
pub fn set_up_process() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("KEMUDI_LOG").unwrap_or_else(|_| "warn".into());
    // Reporting a failed log write on the same stream would panic.
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).log_internal_errors(false).init();
    // Makes the modes of created files independent of the caller's umask.
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
    no_huge_pages();
}

/// Zeroing huge pages for little use makes writes three times slower.
pub fn no_huge_pages() {
    if let Err(e) = nix::sys::prctl::set_thp_disable(true) {
        tracing::debug!("turning huge pages off failed: {e}");
    }
}

/// Runs a control plane, and the nodes if there are any, until it is stopped.
pub fn serve(options: ServerOptions, local: Local) -> Result<(), Error> {
    set_up_process();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Error::Runtime)?;
    let controllers = background::controllers().map_err(Error::Runtime)?;
    let scheduler = background::scheduler().map_err(Error::Runtime)?;
    let node_threads = background::node().map_err(Error::Runtime)?;
    let workers = apiserver::workers::runtime().map_err(Error::Runtime)?;
    let threads = Threads {
        controllers: controllers.handle(),
        scheduler: scheduler.handle(),
        node: node_threads.handle(),
        workers: workers.handle(),
    };
    let result = runtime.block_on(run(options, local, threads));
    end([node_threads, controllers, scheduler, workers, runtime]);
    result
}

/// Ends the threads of a process. Requests that were answered are stored; remaining work is abandoned. No thread may run on beside the end
/// of the process, because the crypto library has released its locks by then, and aborts whoever still asks for random numbers.
pub fn end<const N: usize>(runtimes: [tokio::runtime::Runtime; N]) {
    std::thread::scope(|s| {
        for runtime in runtimes {
            s.spawn(|| runtime.shutdown_timeout(LAST_TASKS));
        }
    });
}

/// Ends the process if it does not stop in time after a signal, whatever its threads do. Answered requests
/// are stored.
pub fn end_in_time(bound: Duration) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut stop = {
        let _runtime = runtime.enter();
        Stop::listen()?
    };
    std::thread::Builder::new().name("end-in-time".into()).spawn(move || {
        runtime.block_on(async {
            stop.requested().await;
            tokio::time::sleep(bound).await;
        });
        crate::output::note!("error: did not stop within {} s; requests were cut off", bound.as_secs());
        std::process::exit(1);
    })?;
    Ok(())
}

/// Runtimes besides that of the API server.
struct Threads<'a> {
    controllers: &'a Handle,
    scheduler: &'a Handle,
    node: &'a Handle,
    workers: &'a Handle,
}

async fn run(options: ServerOptions, local: Local, threads: Threads<'_>) -> Result<(), Error> {
    let started = tokio::time::Instant::now();
    let advertise = match (options.advertise_address, options.bind_address) {
        (Some(address), _) => address,
        (None, address) if address.is_unspecified() => IpAddr::from([127, 0, 0, 1]),
        (None, address) => address,
    };
    let identity = format!("{}_{}", host_name(), meta::random::uuid(&SystemRng));
    let scheduling = match &options.scheduler_config {
        Some(file) => scheduler::Configuration::read(file)?,
        None => scheduler::Configuration::default(),
    };
    for warning in &scheduling.warnings {
        crate::output::note!("warning: --scheduler-config: {warning}");
    }
    scheduling.check()?;
    let plugins = plugins(&options).await.map_err(Error::Admission)?;
    let runtime = strategies::RuntimeConfig::parse(options.api.runtime_config.iter().map(String::as_str));
    let runtime = strategies::metrics::serve(runtime.map_err(Error::RuntimeConfig)?);
    let ranges = options.service_cluster_ip_range.clone();
    check_ranges(&ranges)?;
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let has_node = !matches!(local, Local::None);
    let (services, dns) = node_ranges(&ranges)?;
    let cluster = ClusterNetwork {
        pods: options.cluster_cidr,
        services,
        node_masks: NodeMasks { v4: options.node_cidr_mask_size_ipv4, v6: options.node_cidr_mask_size_ipv6 },
        dns,
        load_balancers: None,
    };
    match cluster.check() {
        Err(e) if has_node => return Err(e.into()),
        // Nodes of other programs have other networks.
        Err(e) => tracing::warn!("no node of kemudi can join: {e}"),
        Ok(()) => {}
    }
    let nodes: Vec<_> = match &local {
        Local::Nodes(o) => {
            let nodes = o.node_network.unwrap_or_else(|| cluster.node_network());
            nodes.iter().map(|range| ("--node-network", range)).collect()
        }
        _ => Vec::new(),
    };
    let cluster = cluster.with_load_balancers(options.load_balancer_cidr, has_node, &nodes)?;
    match &local {
        Local::Node(NodeOptions { kubelet: KubeletOptions { node_ip: Some(ips), .. }, .. }) => {
            ips.check(cluster.pods)?
        }
        // Pods reach the server at its public address.
        Local::None if !advertise.is_loopback() => {
            let (services, public) = (cluster.services.first().family(), Family::of(advertise));
            if services != public {
                return Err(Error::Advertise { services, public, address: advertise });
            }
        }
        _ => {}
    }
    if let Local::Nodes(o) = &local {
        Machine::check(o, &cluster)?;
    }
    let configuration = match &local {
        Local::Node(o) | Local::Nodes(o) => o.kubelet.configuration()?,
        Local::None => KubeletConfiguration::default(),
    };
    let credential_plugins = match &local {
        // The agents of several nodes read them again. An error is reported before anything is started.
        Local::Node(o) | Local::Nodes(o) => o.kubelet.credential_plugins()?,
        Local::None => node::credentials::Plugins::default(),
    };
    let endpoints = containers::endpoints(&configuration).map_err(agent::Error::from)?;
    match &local {
        Local::Nodes(_) if endpoints.is_some() => return Err(agent::Error::from(containers::Error::Nodes).into()),
        _ => containers::check(&options.data_dir, endpoints.as_ref()).map_err(agent::Error::from)?,
    }
    let plugins_of_pods = match &local {
        Local::Node(o) | Local::Nodes(o) => o.kubelet.network.plugins().map_err(agent::Error::from)?,
        Local::None => None,
    };
    if let Local::Node(_) | Local::Nodes(_) = &local {
        agent::check_node(&options.data_dir, &configuration).await?;
    }
    if let Local::Node(_) = &local {
        agent::check_network(&options.data_dir, plugins_of_pods.as_ref(), endpoints.is_some())?;
    }
    let sysctls = match &local {
        Local::Node(_) | Local::Nodes(_) => node::Allowlist::new(&configuration.allowed_unsafe_sysctls, &kernel)?,
        Local::None => node::Allowlist::default(),
    };
    let node_name = match &local {
        Local::Node(o) => o.kubelet.node_name()?,
        _ => String::new(),
    };
    if has_node {
        let missing = privileges::of_this_process();
        if !missing.is_empty() {
            return Err(Error::Privileges(missing));
        }
    }
    let (max_connections, of_agent) = connections(runtime::open_files::raise(), has_node);
    let server_options = apiserver::Options {
        flags: options.shown.clone(),
        workers: Some(threads.workers.clone()),
        max_connections,
        node_streams: if !has_node { (max_connections / 16).clamp(8, MAX_AGENT_CONNECTIONS) } else { of_agent * 3 / 4 },
        ..options.api.server().await?
    };
    let last_request = options.api.shutdown_delay_duration + server_options.request_timeout;
    // Listen before anything slow: a signal during the start is handled after it.
    let mut signals = Stop::listen().map_err(Error::Runtime)?;
    let mut shutdowns = node_shutdown::Requests::listen().map_err(Error::Runtime)?;
    end_in_time(last_request + LAST_EVENTS + LAST_TASKS + END).map_err(Error::Runtime)?;
    let directory = |source| Error::File { path: options.data_dir.clone(), source };
    // Declared before the lock, because it is dropped after it.
    let mut fresh = Fresh((!options.data_dir.exists()).then(|| options.data_dir.clone()));
    data_dir::prepare(&options.data_dir).map_err(directory)?;
    // First everything that can fail without a trace: later steps change the network of this machine.
    let Some(_lock) = down::take_lock(&options.data_dir).await.map_err(directory)? else {
        return Err(control_plane::Error::InUse(options.data_dir.display().to_string()).into());
    };
    if let Some(former) = ClusterNetwork::former(&options.data_dir) {
        cluster.check_change(&former, &options.data_dir)?;
    }
    let listener = control_plane::listen(options.bind_address, options.secure_port).await?;
    let api_port = listener.local_addr().map_or(options.secure_port, |a| a.port());
    let (node, kubelet) = match &local {
        Local::Node(o) => {
            let listener = listen_for_kubelet(&configuration).await?;
            let node = agent::Config {
                servers: Vec::new(),
                api_port: Some(api_port),
                data_dir: options.data_dir.clone(),
                sysctls,
                configuration,
                registries: o.kubelet.registries.clone(),
                credential_plugins,
                kubelet_root: o.kubelet.root_dir.clone(),
                proxy: o.kubelet.proxy,
                plugins: plugins_of_pods,
                files: FileSystem::Own,
                node_name,
                node_ips: o.kubelet.node_ip.clone(),
                pod_egress: o.pod_egress,
                pod_ranges: cluster.first(),
                cluster,
            };
            (Some(node), Some(listener))
        }
        _ => (None, None),
    };
    cluster.record(&options.data_dir).map_err(directory)?;
    crate::namespace::record(&options.data_dir).map_err(directory)?;
    let (trigger, shutdown) = supervisor::shutdown();
    let supervisor = Supervisor::default();
    let component = supervisor.component("apiserver", &shutdown, &Handle::current());
    let encryption = options.encryption_provider_config.clone();
    let store = control_plane::open(&options.data_dir, &options.etcd, encryption, &component).await?;
    let (leave, leaving) = supervisor::shutdown();
    let membership = store.is_shared().then(|| Membership { identity, leaving: leaving.clone() });
    for gateway in node.iter().flat_map(|n| n.pod_ranges.iter()).filter_map(|range| range.nth(1)) {
        check_free(std::net::SocketAddr::from((gateway, 53)))?;
    }
    if has_node {
        // From here on `kemudi down --purge` needs the directory, to find what is made in the kernel.
        fresh.0 = None;
    }
    let network = match &node {
        Some(n) => Some(agent::open_network(n).await?),
        None => None,
    };
    let machine = match &local {
        Local::Nodes(o) => Some(Machine::open(o, &options.data_dir, &cluster).await?),
        _ => None,
    };
    let gateways = network.as_ref().map(network::PodNetwork::gateways).unwrap_or_default().to_vec();
    // Where pods reach the server: first by an address of the family of its service.
    let is_first = |ip: &IpAddr| ranges.first().is_some_and(|range| range.is_ipv6() == ip.is_ipv6());
    let given = node.as_ref().and_then(|n| n.node_ips.clone());
    let own = given.iter().flat_map(|ips| ips.all()).chain(&gateways).copied().find(is_first);
    let mut inside: Vec<IpAddr> = match &machine {
        Some(machine) => machine.gateways().to_vec(),
        None => own.into_iter().collect(),
    };
    inside.sort_by_key(|ip| !is_first(ip));
    let config = Config {
        features: options.api.features()?,
        data_dir: options.data_dir.clone(),
        bind: options.bind_address,
        advertise,
        inside,
        service_cidrs: ranges.clone(),
        event_ttl: Some(options.api.event_ttl).filter(|t| !t.is_zero()),
        runtime,
        access: options.access.clone(),
    };
    let plane = ControlPlane::start(&config, listener, store, plugins, server_options, &component, &supervisor).await?;
    let own_node = node.as_ref().map(|node| node.node_name.as_str());
    second_family::extend(&plane.server.registry, &cluster, own_node).await.map_err(Error::Extend)?;
    let pid = options.data_dir.join(PID_FILE);
    std::fs::write(&pid, std::process::id().to_string()).map_err(|source| Error::File { path: pid.clone(), source })?;
    let path = options.write_kubeconfig.clone().unwrap_or_else(|| options.data_dir.join("kubeconfig"));
    write_kubeconfig(&path, &plane, advertise)?;
    fresh.0 = None;
    crate::output::note!("API ready at https://{} after {} ms", plane.address, started.elapsed().as_millis());
    crate::output::print_line!("export KUBECONFIG={}", path.display());
    crate::output::note!("{}", crate::missing::table());
    cluster.publish(&plane.server.registry).await.map_err(Error::Publish)?;
    let parts = Parts {
        server: plane.server.clone(),
        clock: plane.clock.clone(),
        rng: plane.rng.clone(),
        shutdown,
        ca_pem: plane.pki.ca_pem.clone(),
        server_hosts: plane.hosts.clone(),
        authority: Arc::new(plane.pki.authority(options.cluster_signing_duration)?),
        accounts: plane.accounts.clone(),
        service_ranges: ranges.iter().map(Cidr::to_string).collect(),
        load_balancers: cluster.load_balancers.and_then(|ranges| ranges.to_string().parse().ok()),
        membership,
        scheduling,
        pod_ranges: Some(PodRanges {
            network: cluster,
            // That of the node in the server's process, even if it runs without one today.
            reserved: (!options.etcd.is_used()).then(|| cluster.first()),
            for_all: options.allocate_node_cidrs,
        }),
    };
    let informers = components::start(&parts, threads.controllers, threads.scheduler);
    if let Some(membership) = &parts.membership {
        let address =
            std::net::SocketAddr::new(config.inside.first().copied().unwrap_or(advertise), plane.address.port());
        components::follow_peers(&parts, membership, address, threads.controllers);
    }
    let mut running_node = None;
    if let (Some(node), Some(network), Some(listener)) = (&node, network, kubelet) {
        let sockets = Sockets::new(listener, &plane, &node.node_name, &node.addresses(&network), of_agent)?;
        let own: Vec<_> = own_dns(&gateways, &node.cluster, &node.node_name).into_iter().collect();
        bootstrap::dns(&plane.server.registry, node.cluster.dns, &own).await.map_err(Error::Dns)?;
        let environment = parts.node(&node.node_name, &informers);
        running_node = Some(agent::start(node, network, sockets, &environment, threads.node).await?);
        crate::output::note!("node {} started after {} ms", node.node_name, started.elapsed().as_millis());
    }
    let follow = dns_endpoints::Options {
        registry: parts.server.registry.clone(),
        informers: informers.clone(),
        own: node.as_ref().and_then(|node| own_dns(&gateways, &cluster, &node.node_name)),
        dns: cluster.dns,
        shutdown: parts.shutdown.clone(),
    };
    let component = parts.component("cluster-dns", threads.controllers);
    component.spawn("dns-endpoints", OnEnd::Restart, move || dns_endpoints::run(follow.clone()));
    let nodes = match machine {
        Some(machine) => Some(machine.start(&parts, &informers, api_port).await?),
        None => None,
    };
    tokio::spawn(async {
        tokio::time::sleep(SETTLED).await;
        if let Err(e) = runtime::memory::let_go_of_code() {
            tracing::debug!("paging out the program's code failed: {e}");
        }
    });
    let failure = tokio::select! {
        () = signals.requested() => None,
        failure = supervisor.failure() => Some(failure),
        // Without a node, the signal has no effect.
        Some(node) = async {
            shutdowns.received().await;
            running_node.as_ref()
        } => {
            node_shutdown::carry_out(&node.handle, &mut signals).await;
            None
        }
    };
    plane.server.leave();
    if has_node {
        crate::output::note!("stopping; pods keep running. `kemudi down --purge` removes them and all data");
    }
    // A second signal stops at once.
    tokio::select! {
        () = tokio::time::sleep(options.api.shutdown_delay_duration) => {}
        () = signals.requested() => {}
    }
    leave.trigger();
    // Without the backend, leases cannot be released.
    let membership = supervisor.component(components::MEMBERSHIP, &leaving, threads.controllers);
    let _ = tokio::time::timeout(LAST_TASKS, membership.ended()).await;
    if let Some(nodes) = &nodes {
        nodes.stop().await;
    }
    trigger.trigger();
    plane.listeners.ended().await;
    if let Some(node) = running_node {
        node.listeners.ended().await;
    }
    // Undeliverable audit events delay the end only for a limited time.
    let _ = tokio::time::timeout(LAST_EVENTS, plane.server.flush_audit()).await;
    plane.server.registry.store.clone().close().await;
    let _ = std::fs::remove_file(&pid);
    failure.map_or(Ok(()), |failure| Err(failure.into()))
}

async fn plugins(options: &ServerOptions) -> Result<admission::Chain, String> {
    let configuration = match &options.admission_control_config_file {
        Some(file) => admission::Configuration::read(file, read)?,
        None => admission::Configuration::default(),
    };
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let (mut enable, disable) = (options.enable_admission_plugins.clone(), &options.disable_admission_plugins);
    // Required by the Node authorizer, which trusts what nodes write.
    let restriction = "NodeRestriction".to_owned();
    let listed = enable.contains(&restriction) || disable.contains(&restriction);
    if !listed && access::authorizes_nodes(&options.access).map_err(|e| e.to_string())? {
        enable.push(restriction);
    }
    admission::configured(&enable, disable, &configuration)?.open(&clock).await
}

/// Reads a file; the error is Go's.
fn read(file: &Path) -> Result<String, String> {
    let doing = if file.is_dir() { "read" } else { "open" };
    std::fs::read_to_string(file)
        .map_err(|e| format!("{doing} {}: {}", file.display(), client::kubeconfig::os_error(&e)))
}

/// The maximum connections of the API server and of the agent (a sixteenth, if there is an agent), from the limit of open files.
/// A quarter of the limit, and at least 160 files, are left for other uses.
pub fn connections(limit: nix::Result<u64>, agent: bool) -> (usize, usize) {
    let limit = limit.inspect_err(|e| tracing::warn!("raising the limit of open files failed: {e}")).unwrap_or(1024);
    let limit = usize::try_from(limit.min(1 << 20)).unwrap_or(1 << 20);
    let all = limit.saturating_sub(160.max(limit / 4)).max(16);
    let of_agent = if agent { (all / 16).clamp(8, MAX_AGENT_CONNECTIONS) } else { 0 };
    (all - of_agent.min(all / 2), of_agent)
}

/// The host name in the form of a node name.
fn host_name() -> String {
    let name = nix::unistd::gethostname().ok().and_then(|n| n.into_string().ok()).unwrap_or_default();
    let name = name.to_lowercase();
    if meta::names::dns_subdomain(&name).is_empty() { name } else { "kemudi".into() }
}

fn check_ranges(ranges: &[Cidr]) -> Result<(), Error> {
    match ranges {
        [_] => Ok(()),
        [a, b] if a.is_ipv6() != b.is_ipv6() => Ok(()),
        [_, _] => Err(Error::Ranges(
            "--service-cluster-ip-range[0] and --service-cluster-ip-range[1] must be of different IP family",
        )),
        _ => Err(Error::Ranges("--service-cluster-ip-range must not contain more than two entries")),
    }
}

impl KubeletOptions {
    /// The name of the node: the flag, or the name of this machine.
    pub fn node_name(&self) -> Result<String, Error> {
        let Some(name) = &self.node_name else { return Ok(host_name()) };
        let errors = meta::names::dns_subdomain(name);
        if errors.is_empty() { Ok(name.clone()) } else { Err(Error::NodeName { name: name.clone(), errors }) }
    }
}

/// Listens for requests to the kubelet's API.
pub async fn listen_for_kubelet(configuration: &KubeletConfiguration) -> Result<TcpListener, Error> {
    let address = configuration.address.parse().unwrap_or(IpAddr::from([0; 4]));
    let port = u16::try_from(configuration.port).unwrap_or_default();
    control_plane::listen(address, port).await.map_err(kubelet_port)
}

/// The error of the listener of the kubelet's API.
fn kubelet_port(e: control_plane::Error) -> Error {
    match e {
        control_plane::Error::Port(address, why) => Error::KubeletPort(address, why),
        e => e.into(),
    }
}

/// The DNS server of the node in this process, by its address of the family of the DNS service.
fn own_dns(gateways: &[IpAddr], cluster: &ClusterNetwork, node: &str) -> Option<dns_endpoints::Endpoint> {
    let address = gateways.iter().copied().find(|ip| ip.is_ipv4() == cluster.dns.is_ipv4())?;
    Some(dns_endpoints::Endpoint { address, node: node.to_owned() })
}

/// A data directory created by this start, which is removed if the start fails.
struct Fresh(Option<PathBuf>);

impl Drop for Fresh {
    fn drop(&mut self) {
        if let Some(path) = &self.0
            && let Err(e) = data_dir::remove(path)
            && e.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!("removing {}: {e}", path.display());
        }
    }
}

/// Checks that the address is not in use; an address that no device has yet is free.
fn check_free(address: std::net::SocketAddr) -> Result<(), Error> {
    match std::net::UdpSocket::bind(address) {
        Err(e) if e.kind() == std::io::ErrorKind::AddrInUse => Err(Error::DnsAddress(address)),
        _ => Ok(()),
    }
}

/// The service ranges of the node's proxy, and the address of the DNS service: in the first one.
fn node_ranges(ranges: &[Cidr]) -> Result<(network::Ranges, IpAddr), Error> {
    let texts: Vec<String> = ranges.iter().map(Cidr::to_string).collect();
    match (texts.join(",").parse(), ranges.first()) {
        (Ok(all), Some(first)) => Ok((all, first.nth(bootstrap::DNS_HOST))),
        _ => Err(Error::Ranges("--service-cluster-ip-range must contain at least one valid cidr")),
    }
}

fn write_kubeconfig(path: &Path, plane: &ControlPlane, advertise: IpAddr) -> Result<(), Error> {
    let ca = STANDARD.encode(&plane.pki.ca_pem);
    let server = format!("https://{}", std::net::SocketAddr::new(advertise, plane.address.port()));
    let text = format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: kemudi\n  cluster:\n    server: {server}\n    certificate-authority-data: {ca}\n\
users:\n- name: kemudi-admin\n  user:\n    token: {}\ncontexts:\n- name: kemudi\n  context:\n    cluster: kemudi\n    user: kemudi-admin\n\
current-context: kemudi\n",
        plane.admin_token
    );
    pki::write_private(path, &text)?;
    Ok(())
}

#[cfg(test)]
mod start_tests {
    use super::*;

    #[test]
    fn a_failed_start_removes_its_directory() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("data");
        for (made_here, stays) in [(true, false), (false, true)] {
            data_dir::prepare(&path).unwrap();
            std::fs::create_dir_all(path.join("store")).unwrap();
            drop(Fresh(made_here.then(|| path.clone())));
            assert_eq!(path.exists(), stays);
        }
    }

    #[test]
    fn an_address_in_use_is_rejected() {
        let other = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = other.local_addr().unwrap();
        assert!(matches!(check_free(address), Err(Error::DnsAddress(a)) if a == address));
        drop(other);
        assert!(check_free(address).is_ok());
        assert!(check_free("192.0.2.1:53".parse().unwrap()).is_ok(), "no device has it");
    }
}

#[cfg(test)]
mod end_tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    /// Set in the process that the test starts.
    const STUCK: &str = "KEMUDI_TEST_STUCK";

    /// A process whose runtime threads are all blocked, so that nothing handles the signal.
    fn stuck() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.spawn(async {
            loop {
                std::thread::park();
            }
        });
        runtime.block_on(async {
            end_in_time(Duration::from_millis(200)).unwrap();
            println!("stuck");
            loop {
                std::thread::park();
            }
        });
    }

    /// The test program runs itself again with the test above only.
    #[test]
    fn a_stuck_process_ends_in_time() {
        if std::env::var_os(STUCK).is_some() {
            return stuck();
        }
        let name = format!("{}::a_stuck_process_ends_in_time", module_path!().split_once("::").unwrap().1);
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &name, "--nocapture"]).env(STUCK, "1").stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.by_ref().map_while(Result::ok).any(|l| l.contains("stuck")), "it started");
        let pid = nix::unistd::Pid::from_raw(child.id().try_into().unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        let (done, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(child.wait_with_output()));
        let output = ended.recv_timeout(Duration::from_secs(30)).inspect_err(|_| {
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        });
        let output = output.expect("it ends").unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(1) && stderr.contains("did not stop within"),
            "{}: {stderr}",
            output.status
        );
    }
}
