//! `kemudi agent`: a node of a cluster whose server runs elsewhere.

use crate::agent::{self, Environment};
use crate::cluster_network::{self, ClusterNetwork};
use crate::kubelet::Sockets;
use crate::options::{KubeletOptions, NodeIps};
use crate::pod_network::FileSystem;
use crate::signals::Stop;
use crate::system::{SystemClock, SystemRng};
use crate::up::{self, PID_FILE};
use crate::{background, bootstrap, containers, data_dir, down, node_shutdown, pki, privileges};
use apiserver::Certificates;
use client::{Client, Impersonation, Informers};
use meta::{Clock, Rng};
use network::{Family, Ranges};
use node::join::{self, CaHash, Identity, Settings, Token};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use supervisor::{OnEnd, Supervisor};
use tokio::runtime::Handle;
use tokio::sync::watch;

/// Flags of `kemudi agent`.
#[derive(clap::Args)]
pub struct Options {
    /// URL of the API server, such as https://192.0.2.1:6443. Several, separated by commas, for a cluster with several servers.
    #[arg(long, value_name = "URL", value_delimiter = ',', required = true)]
    join: Vec<String>,
    /// Bootstrap token (`kemudi token create`). Needed for the first start only.
    #[arg(long, conflicts_with = "token_file")]
    token: Option<String>,
    /// File with the bootstrap token.
    #[arg(long)]
    token_file: Option<PathBuf>,
    /// Hash of the cluster's CA (sha256:HEX), which is then trusted only if it has this hash. Without it, the bootstrap token alone
    /// protects against a false server.
    #[arg(long, value_name = "HASH")]
    ca_hash: Vec<String>,
    /// Directory of the node's certificates and containers.
    #[arg(long, default_value = "/var/lib/kemudi")]
    data_dir: PathBuf,
    #[command(flatten)]
    kubelet: KubeletOptions,
    /// Ends when its standard input ends, which its parent process holds.
    #[arg(long, hide = true)]
    end_with_input: bool,
    /// File of the network namespace to run in.
    #[arg(long, hide = true)]
    network_namespace: Option<PathBuf>,
}

/// Why a node does not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Join(#[from] join::Error),
    #[error(transparent)]
    Network(#[from] cluster_network::Error),
    #[error("{0} is in use by another kemudi; give this node another --data-dir")]
    InUse(String),
    #[error(
        "--join: cannot find the {family} address by which {server} is reached, which other nodes need to reach this one: {source}; give it \
         with --node-ip"
    )]
    Address { server: String, family: Family, source: std::io::Error },
    #[error("--join: listing the addresses of this machine: {0}")]
    Addresses(network::Error),
    #[error("TLS: {0}")]
    Certificates(String),
}

/// How long a server that does not answer yet, or has not signed a new token, is waited for silently.
const SILENT: Duration = Duration::from_secs(3);
/// How long a token may be unsigned: it may have been created just now.
const SIGNED: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(500);

/// Runs the node until it is stopped.
pub fn run(options: Options) -> Result<(), up::Error> {
    if let Some(path) = &options.network_namespace {
        let file = std::fs::File::open(path).map_err(|source| up::Error::File { path: path.clone(), source })?;
        crate::namespace::enter(&file).map_err(up::Error::Namespace)?;
        // Pods in the host's network have the host name of the node, as on a machine of its own.
        crate::namespace::rename_host(&options.kubelet.node_name()?).map_err(up::Error::HostName)?;
    }
    up::set_up_process();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(up::Error::Runtime)?;
    let threads = background::node().map_err(up::Error::Runtime)?;
    let result = runtime.block_on(serve(options, threads.handle()));
    up::end([threads, runtime]);
    result
}

async fn serve(options: Options, threads: &Handle) -> Result<(), up::Error> {
    let started = tokio::time::Instant::now();
    let missing = privileges::of_this_process();
    if !missing.is_empty() {
        return Err(up::Error::Privileges(missing));
    }
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let configuration = options.kubelet.configuration()?;
    let credential_plugins = options.kubelet.credential_plugins()?;
    let endpoints = containers::endpoints(&configuration).map_err(agent::Error::from)?;
    containers::check(&options.data_dir, endpoints.as_ref()).map_err(agent::Error::from)?;
    let plugins = options.kubelet.network.plugins().map_err(agent::Error::from)?;
    agent::check_network(&options.data_dir, plugins.as_ref(), endpoints.is_some())?;
    agent::check_node(&options.data_dir, &configuration).await?;
    let sysctls = node::Allowlist::new(&configuration.allowed_unsafe_sysctls, &kernel)?;
    let node_name = options.kubelet.node_name()?;
    let token = token(&options)?;
    join::check_servers(&options.join).map_err(Error::Join)?;
    let ca_hashes =
        options.ca_hash.iter().map(|h| h.parse()).collect::<Result<Vec<CaHash>, _>>().map_err(Error::Join)?;
    let (max_connections, of_agent) = up::connections(runtime::open_files::raise(), true);
    let mut signals = Stop::listen().map_err(up::Error::Runtime)?;
    let mut shutdowns = node_shutdown::Requests::listen().map_err(up::Error::Runtime)?;
    if options.end_with_input {
        std::thread::Builder::new().name("input".into()).spawn(end_with_input).map_err(up::Error::Runtime)?;
    }
    up::end_in_time(up::LAST_TASKS + up::END).map_err(up::Error::Runtime)?;
    let directory = |source| up::Error::File { path: options.data_dir.clone(), source };
    data_dir::prepare(&options.data_dir).map_err(directory)?;
    let Some(_lock) = down::take_lock(&options.data_dir).await.map_err(directory)? else {
        return Err(Error::InUse(options.data_dir.display().to_string()).into());
    };
    let listening = up::listen_for_kubelet(&configuration).await;
    let listener = listening?;
    crate::namespace::record(&options.data_dir).map_err(directory)?;
    let (clock, rng): (Arc<dyn Clock>, Arc<dyn Rng>) = (Arc::new(SystemClock), Arc::new(SystemRng));
    let settings = || Settings {
        servers: options.join.clone(),
        token: token.clone(),
        ca_hashes: ca_hashes.clone(),
        node_name: node_name.clone(),
        directory: options.data_dir.join("pki"),
        clock: clock.clone(),
        rng: rng.clone(),
    };
    let servers = options.join.join(", ");
    let joined = async {
        let identity = patiently(&servers, || join::join(settings())).await?;
        let identity = Arc::new(identity);
        let client = identity.client("kubelet");
        let ranges = || async { ClusterNetwork::read(&client).await.map_err(Failure::from) };
        let ranges = patiently(&servers, ranges).await?;
        let node_ips = match options.kubelet.node_ip.clone() {
            Some(addresses) => addresses,
            None => own_addresses(&options.join, ranges.pods).await?,
        };
        node_ips.check(ranges.pods)?;
        let families = ranges.pods.iter().count();
        let range = patiently(&servers, || join::await_ranges(&client, &node_name, node_ips.all(), families)).await?;
        let pair = patiently(&servers, || identity.serving(node_ips.all())).await?;
        Ok::<_, up::Error>((identity, ranges, node_ips, range, pair))
    };
    let (identity, ranges, node_ips, pod_ranges, pair) = tokio::select! {
        joined = joined => joined?,
        () = signals.requested() => return Ok(()),
    };
    ranges.record(&options.data_dir).map_err(directory)?;
    let config = agent::Config {
        servers: options.join.iter().flat_map(|server| targets(server).unwrap_or_default()).collect(),
        api_port: None,
        data_dir: options.data_dir.clone(),
        sysctls,
        configuration,
        registries: options.kubelet.registries.clone(),
        credential_plugins,
        plugins,
        // That of `kemudi up --nodes`.
        files: if options.network_namespace.is_some() { FileSystem::Shared } else { FileSystem::Own },
        kubelet_root: options.kubelet.root_dir.clone(),
        proxy: options.kubelet.proxy,
        node_name: node_name.clone(),
        node_ips: Some(node_ips.clone()),
        pod_egress: true,
        pod_ranges,
        cluster: ranges,
    };
    let network = agent::open_network(&config).await?;
    let (trigger, shutdown) = supervisor::shutdown();
    let supervisor = Supervisor::default();
    let certificates = Certificates::new(&identity.ca, None).map_err(|e| Error::Certificates(e.to_string()))?;
    let (tls, serving) = certificates_of(&identity, pair, &options.data_dir)?;
    let sockets =
        Sockets::with(listener, certificates, clock.clone(), tls.clone(), (max_connections / 16).max(of_agent));
    let pid = options.data_dir.join(PID_FILE);
    std::fs::write(&pid, std::process::id().to_string())
        .map_err(|source| up::Error::File { path: pid.clone(), source })?;
    let environment = Environment {
        client: identity.client("kubelet"),
        informers: Informers::new(identity.client("kemudi-informers"), rng.clone(), shutdown.clone()),
        policy_informers: Informers::new(policy_client(&identity), rng.clone(), shutdown.clone()),
        clock,
        rng,
        shutdown: shutdown.clone(),
        supervisor: supervisor.clone(),
    };
    let component = supervisor.component("certificates", &shutdown, &Handle::current());
    let (of_node, until) = (identity.clone(), shutdown.clone());
    component.spawn("kubelet-certificates", OnEnd::Restart, {
        let serving = serving.clone();
        move || {
            let (identity, serving, shutdown) = (of_node.clone(), serving.clone(), until.clone());
            let addresses = node_ips.clone();
            async move { identity.renew(&serving, addresses.all(), &shutdown).await }
        }
    });
    let (data_dir, ca) = (options.data_dir.clone(), identity.ca.clone());
    component.spawn("kubelet-tls", OnEnd::Restart, move || {
        follow(serving.subscribe(), tls.clone(), ca.clone(), data_dir.clone())
    });
    let node = agent::start(&config, network, sockets, &environment, threads).await?;
    crate::output::note!("node {node_name} joined {servers} after {} ms", started.elapsed().as_millis());
    let failure = tokio::select! {
        () = signals.requested() => None,
        failure = supervisor.failure() => Some(failure),
        () = shutdowns.received() => {
            node_shutdown::carry_out(&node.handle, &mut signals).await;
            None
        }
    };
    trigger.trigger();
    node.listeners.ended().await;
    let _ = std::fs::remove_file(&pid);
    failure.map_or(Ok(()), |failure| Err(failure.into()))
}

/// A client that reads what network policies depend on.
fn policy_client(identity: &Identity) -> Client {
    let who = Impersonation { user: bootstrap::POLICY_READER.into(), ..Impersonation::default() };
    let client = identity.client("kemudi-network-policies").with_impersonation(&who);
    client.unwrap_or_else(|e| unreachable!("a constant name: {e}"))
}

/// Stops this process at the end of its standard input.
fn end_with_input() {
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    let _ = nix::sys::signal::kill(nix::unistd::getpid(), nix::sys::signal::Signal::SIGTERM);
}

type Tls = watch::Sender<Arc<rustls::ServerConfig>>;

/// The TLS configuration of the kubelet's API, and the certificate in it.
fn certificates_of(
    identity: &Identity,
    pair: join::Pair,
    data_dir: &std::path::Path,
) -> Result<(Tls, watch::Sender<join::Pair>), up::Error> {
    let config = tls(&pair, &identity.ca, data_dir)?;
    Ok((watch::Sender::new(config), watch::Sender::new(pair)))
}

fn tls(pair: &join::Pair, ca: &str, data_dir: &std::path::Path) -> Result<Arc<rustls::ServerConfig>, pki::Error> {
    let pair = pki::Pair { certificate: pair.certificate.clone(), key: pair.key.clone() };
    pki::tls(&pair, &[ca], &data_dir.join("pki"))
}

/// Serves with each new certificate.
async fn follow(mut pairs: watch::Receiver<join::Pair>, config: Tls, ca: String, data_dir: PathBuf) {
    while pairs.changed().await.is_ok() {
        let pair = pairs.borrow_and_update().clone();
        match tls(&pair, &ca, &data_dir) {
            Ok(new) => _ = config.send_replace(new),
            Err(e) => tracing::warn!("the new serving certificate cannot be used: {e}"),
        }
    }
}

/// An error of a step that is tried again while it is transient.
enum Failure {
    Join(join::Error),
    Network(cluster_network::Error),
}

impl From<join::Error> for Failure {
    fn from(e: join::Error) -> Self {
        Self::Join(e)
    }
}

impl From<cluster_network::Error> for Failure {
    fn from(e: cluster_network::Error) -> Self {
        Self::Network(e)
    }
}

impl Failure {
    fn text(&self) -> String {
        match self {
            Self::Join(e) => e.to_string(),
            Self::Network(e) => e.to_string(),
        }
    }

    /// Whether another try may succeed, after this time.
    fn passes(&self, elapsed: Duration) -> bool {
        match self {
            Self::Join(join::Error::Unsigned) => elapsed < SIGNED,
            Self::Join(e) => e.is_transient(),
            // A server that starts has not published its ranges yet.
            Self::Network(cluster_network::Error::Client(e)) if e.is_not_found() => elapsed < SIGNED,
            Self::Network(cluster_network::Error::Client(client::Error::Api(s))) => s.code >= 500 || s.code == 429,
            Self::Network(e) => matches!(e, cluster_network::Error::Client(_)),
        }
    }
}

/// Tries again while the server cannot be reached.
async fn patiently<T, E: Into<Failure>, F: Future<Output = Result<T, E>>>(
    server: &str,
    step: impl Fn() -> F,
) -> Result<T, up::Error> {
    let started = tokio::time::Instant::now();
    let mut noted = false;
    loop {
        let failure: Failure = match step().await {
            Ok(value) => return Ok(value),
            Err(e) => e.into(),
        };
        if !failure.passes(started.elapsed()) {
            return Err(match failure {
                Failure::Join(e) => Error::Join(e).into(),
                Failure::Network(e) => Error::Network(e).into(),
            });
        }
        if started.elapsed() > SILENT && !noted {
            noted = true;
            crate::output::note!("waiting for {server}: {}", failure.text());
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn token(options: &Options) -> Result<Option<Token>, up::Error> {
    let text = match (&options.token, &options.token_file) {
        (Some(text), _) => text.clone(),
        (None, Some(path)) => {
            std::fs::read_to_string(path).map_err(|source| up::Error::File { path: path.clone(), source })?
        }
        (None, None) => return Ok(None),
    };
    Ok(Some(text.trim().parse().map_err(Error::Join)?))
}

/// The addresses of this machine by which others reach it, one of each family of `pods`. Without one of the family by which nodes reach each
/// other, an error; without one of another family, a note.
async fn own_addresses(servers: &[String], pods: Ranges) -> Result<NodeIps, Error> {
    let all = network::host_addresses().await.map_err(Error::Addresses)?;
    let mut failure = None;
    let mut towards = |family| {
        servers.iter().find_map(|server| match address_towards(server, family) {
            Ok(address) => Some(address),
            Err(e) => {
                failure.get_or_insert_with(|| Error::Address { server: server.clone(), family, source: e });
                None
            }
        })
    };
    // By the route to a server, or of the same device as an address that is, or by the default route.
    let towards = Family::ALL.map(|family| (family, towards(family)));
    let mut found = Vec::new();
    for family in pods.families() {
        let on = towards.iter().filter(|(of, _)| *of == family).chain(towards.iter().filter(|(of, _)| *of != family));
        let on = on.filter_map(|(_, address)| *address).chain(source_of(ELSEWHERE[family as usize].into()).ok());
        match on.into_iter().find_map(|on| network::address_of_family(&all, on, family)) {
            Some(address) => found.push(address),
            None if family == pods.of_tunnels() => {
                let other = || Error::Address {
                    server: servers.join(", "),
                    family,
                    source: std::io::ErrorKind::AddrNotAvailable.into(),
                };
                return Err(failure.unwrap_or_else(other));
            }
            None => crate::output::note!(
                "this machine has no lasting {family} address that others reach: the node shows none (give one with --node-ip)"
            ),
        }
    }
    Ok(NodeIps::new(found).unwrap_or_else(|| unreachable!("one address of each of one or two families")))
}

/// Addresses of documentation, to which the default route leads.
const ELSEWHERE: [(IpAddr, u16); 2] =
    [(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 9), (IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)), 9)];

/// The address of this machine that a server sees: that of the route to it. Sends nothing.
fn address_towards(server: &str, family: Family) -> std::io::Result<IpAddr> {
    let target = targets(server)?.into_iter().find(|target| Family::of(target.ip()) == family);
    source_of(target.ok_or_else(|| invalid(format!("it has no {family} address")))?)
}

/// The addresses and ports of a server by its URL. Asks DNS for its name.
fn targets(server: &str) -> std::io::Result<Vec<SocketAddr>> {
    use std::net::ToSocketAddrs;
    let uri: http::Uri = server.parse().map_err(|_| invalid("it is no URL".into()))?;
    let host = uri.host().ok_or_else(|| invalid("the URL has no host".into()))?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Ok((host, uri.port_u16().unwrap_or(443)).to_socket_addrs()?.collect())
}

fn invalid(why: String) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidInput, why)
}

/// The address with which this machine sends to a target.
fn source_of(target: SocketAddr) -> std::io::Result<IpAddr> {
    let any: IpAddr = if target.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(target)?;
    match socket.local_addr()?.ip() {
        address if !address.is_loopback() => Ok(address),
        _ => {
            let why = "it is on the loopback device of this machine";
            Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, why))
        }
    }
}
