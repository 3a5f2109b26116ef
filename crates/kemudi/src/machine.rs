//! The nodes of `kemudi up --nodes`: one `kemudi agent` per node, in a network namespace of its own. This process starts them again when
//! they end, and executes the commands of `kemudi node`, which arrive on a socket in the data directory.

use crate::agent::{self, Remains, tag};
use crate::bootstrap::JOINING;
use crate::cluster_network::ClusterNetwork;
use crate::components::Parts;
use crate::options::{KubeletOptions, NodeOptions};
use crate::token;
use client::Informers;
use meta::Clock;
use network::{Cidr, Egress, Family, NodeBridge, Protocol, Ranges, ServiceOptions, ServiceRules, namespace};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use supervisor::{OnEnd, Shutdown, Trigger};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::process::{Child, Command};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The directory of nodes in the data directory, one for each.
const NODES: &str = "nodes";
/// The directory of their network namespaces.
const NAMESPACES: &str = "node-netns";
const SOCKET: &str = "nodes.sock";
/// How long an agent may take to end.
const END: Duration = Duration::from_secs(20);
/// The pause before an agent that ended by itself is started again.
const AGAIN: Duration = Duration::from_secs(1);
/// The maximum length of a command.
const COMMAND: u64 = 4096;
/// How long the nodes may use their bootstrap token.
const TOKEN_TTL: jiff::SignedDuration = jiff::SignedDuration::from_hours(1);

/// Why nodes do not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the network of the nodes: {0}")]
    Network(#[from] network::Error),
    #[error(transparent)]
    Agent(#[from] agent::Error),
    #[error("--node-network {nodes} overlaps {what} {range}")]
    Overlap { nodes: Cidr, what: &'static str, range: Cidr },
    #[error(
        "--node-network {nodes} has no range of {family}, by which nodes of a cluster with --cluster-cidr {pods} and \
         --service-cluster-ip-range {services} reach each other and the API server"
    )]
    Family { nodes: Ranges, family: Family, pods: Ranges, services: Ranges },
    #[error("{path}: {source}")]
    File { path: PathBuf, source: std::io::Error },
    #[error("creating the bootstrap token of the nodes: {0}")]
    Token(meta::Status),
}

/// The bridge of the nodes, before they start.
pub struct Machine {
    bridge: NodeBridge,
    cluster: ClusterNetwork,
    data_dir: PathBuf,
    count: u32,
    /// Flags that are the same for all nodes.
    flags: Vec<OsString>,
}

fn file(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { path, source }
}

impl Machine {
    /// Checks the range of the nodes, before anything is created.
    pub fn check(options: &NodeOptions, cluster: &ClusterNetwork) -> Result<(), Error> {
        let nodes = options.node_network.unwrap_or_else(|| cluster.node_network());
        for (what, ranges) in [("--cluster-cidr", cluster.pods), ("--service-cluster-ip-range", cluster.services)] {
            for range in ranges.iter() {
                if let Some(nodes) = nodes.iter().find(|nodes| nodes.overlaps(&range)) {
                    return Err(Error::Overlap { nodes, what, range });
                }
            }
        }
        NodeBridge::check_ranges(nodes, options.nodes.unwrap_or(1))?;
        // Pods reach the API server at this machine's address of the first family of services.
        for family in [cluster.pods.of_tunnels(), cluster.services.first().family()] {
            if nodes.of(family).is_none() {
                return Err(Error::Family { nodes, family, pods: cluster.pods, services: cluster.services });
            }
        }
        Ok(())
    }

    /// Creates the bridge of the nodes. Their range is [checked](Self::check).
    pub async fn open(options: &NodeOptions, data_dir: &Path, cluster: &ClusterNetwork) -> Result<Self, Error> {
        let count = options.nodes.unwrap_or(1);
        let services = cluster.service_ranges();
        let egress = if options.pod_egress { Egress::Masquerade } else { Egress::Closed };
        let nodes = options.node_network.unwrap_or_else(|| cluster.node_network());
        let bridge = NodeBridge::open(&tag(data_dir), nodes, cluster.pods, &services, egress).await?;
        let cluster = *cluster;
        Ok(Self { bridge, cluster, data_dir: data_dir.to_owned(), count, flags: flags(&options.kubelet, data_dir) })
    }

    /// The addresses of this machine that nodes reach.
    pub fn gateways(&self) -> &[IpAddr] {
        self.bridge.gateways()
    }

    /// Starts the nodes. The API server serves at the gateway, on this port.
    pub async fn start(self, parts: &Parts, informers: &Informers, port: u16) -> Result<Nodes, Error> {
        let directory = self.data_dir.join(NODES);
        for path in [directory.clone(), self.data_dir.join(NAMESPACES)] {
            runtime::beneath::make_private(&path).map_err(file(&path))?;
        }
        for left in node_directories(&self.data_dir).iter().skip(usize::try_from(self.count).unwrap_or(usize::MAX)) {
            // A node of an earlier start with more nodes.
            agent::power_off(left).await?;
        }
        let new_token = token::generate(&*parts.rng);
        let token_file = directory.join("token");
        let joined = (0..self.count).all(|n| directory.join(name(n)).join("pki/client.pem").exists());
        if !joined {
            let expires = parts.clock.now() + TOKEN_TTL;
            let secret = token::secret(&new_token, JOINING, expires, "for the nodes of kemudi up --nodes");
            let created = crate::bootstrap::create(&parts.server.registry, "", "v1", "secrets", secret).await;
            created.map_err(Error::Token)?;
            crate::pki::write_private(&token_file, &new_token.bearer())
                .map_err(|e| file(&token_file)(std::io::Error::other(e)))?;
        }
        let family = self.cluster.pods.of_tunnels();
        let gateway = self.bridge.gateways().iter().copied().find(|gateway| Family::of(*gateway) == family);
        // A missing one was refused by `check`.
        let gateway = gateway.or(self.bridge.gateways().first().copied()).unwrap_or(IpAddr::from([127, 0, 0, 1]));
        let server = format!("https://{}", SocketAddr::new(gateway, port));
        let (trigger, shutdown) = supervisor::shutdown();
        let mut all = Vec::new();
        for number in 0..self.count {
            let namespace = self.data_dir.join(NAMESPACES).join(name(number));
            let addresses = self.bridge.connect(number, &namespace).await?;
            all.push(Arc::new(Node {
                number,
                name: name(number),
                addresses,
                namespace,
                directory: directory.join(name(number)),
                server: server.clone(),
                token_file: token_file.clone(),
                flags: self.flags.clone(),
                wanted: watch::Sender::new(Power::On),
                is: watch::Sender::new(None),
                is_cut: watch::Sender::new(false),
            }));
        }
        let shared = Arc::new(Shared { bridge: self.bridge, nodes: all });
        let (on, of_nodes, until) = (shared.clone(), informers.clone(), parts.shutdown.clone());
        let component = parts.component("nodes", &Handle::current());
        component.spawn("pod-routes", OnEnd::Restart, move || {
            let on = on.clone();
            node::follow_peers(of_nodes.clone(), None, until.clone(), move |peers| {
                let on = on.clone();
                async move { on.bridge.set_peers(&peers).await }
            })
        });
        let served =
            shared.bridge.gateways().iter().map(|gateway| agent::own_port(Some(*gateway), Protocol::Tcp, port));
        let mut options = service_options(&self.data_dir, &self.cluster);
        options.own_ports = served.collect();
        let rules = Arc::new(ServiceRules::open(options)?);
        let (informers, until) = (informers.clone(), parts.shutdown.clone());
        component.spawn("service-proxy", OnEnd::Restart, move || {
            proxy::run(proxy::Options {
                informers: informers.clone(),
                rules: rules.clone(),
                role: proxy::Role::Client,
                status: None,
                shutdown: until.clone(),
            })
        });
        let mut tasks = JoinSet::new();
        for node in &shared.nodes {
            tasks.spawn(node.clone().keep(shutdown.clone()));
        }
        let socket = self.data_dir.join(SOCKET);
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).map_err(file(&socket))?;
        tasks.spawn(listen(listener, shared, shutdown));
        let names = format!("{} to {}", name(0), name(self.count - 1));
        crate::output::note!("nodes {names} start; `kemudi node list` shows them");
        Ok(Nodes { trigger, tasks: tokio::sync::Mutex::new(tasks), socket })
    }
}

/// The options of the rules by which this machine, which runs no pods, reaches services.
fn service_options(data_dir: &Path, cluster: &ClusterNetwork) -> ServiceOptions {
    ServiceOptions {
        id: NodeBridge::rules_id(&tag(data_dir)),
        node_namespace: None,
        cluster_ranges: cluster.pods,
        service_ranges: cluster.services,
        load_balancer_ranges: cluster.load_balancers,
        own_ports: Vec::new(),
    }
}

fn name(number: u32) -> String {
    format!("node-{}", number + 1)
}

fn flags(kubelet: &KubeletOptions, data_dir: &Path) -> Vec<OsString> {
    let registries = kubelet.registries.clone().unwrap_or_else(|| data_dir.join(agent::REGISTRIES));
    let mut flags = vec!["--registries".into(), registries.into_os_string()];
    flags.push("--root-dir".into());
    flags.push((&kubelet.root_dir).into());
    if let Some(path) = &kubelet.kubelet_config {
        flags.push("--kubelet-config".into());
        flags.push(path.into());
    }
    if let Some(path) = &kubelet.pod_manifest_path {
        flags.push("--pod-manifest-path".into());
        flags.push(path.into());
    }
    if let Some(path) = &kubelet.image_credential_provider_config {
        flags.push("--image-credential-provider-config".into());
        flags.push(path.into());
    }
    if let Some(path) = &kubelet.image_credential_provider_bin_dir {
        flags.push("--image-credential-provider-bin-dir".into());
        flags.push(path.into());
    }
    flags.extend(kubelet.network.arguments());
    flags.push(format!("--proxy-healthz-port={}", kubelet.proxy.proxy_healthz_port).into());
    flags.push(format!("--proxy-metrics-port={}", kubelet.proxy.proxy_metrics_port).into());
    if let Some(port) = kubelet.kubelet_healthz_port {
        flags.push(format!("--kubelet-healthz-port={port}").into());
    }
    if let Some(pids) = kubelet.pod_max_pids {
        flags.push(format!("--pod-max-pids={pids}").into());
    }
    if let Some(seccomp) = kubelet.seccomp_default {
        flags.push(format!("--seccomp-default={seccomp}").into());
    }
    if !kubelet.allowed_unsafe_sysctls.is_empty() {
        flags.push(format!("--allowed-unsafe-sysctls={}", kubelet.allowed_unsafe_sysctls.join(",")).into());
    }
    flags
}

/// The running nodes.
pub struct Nodes {
    trigger: Trigger,
    tasks: tokio::sync::Mutex<JoinSet<()>>,
    socket: PathBuf,
}

impl Nodes {
    /// Stops the agents. Pods keep running.
    pub async fn stop(&self) {
        self.trigger.trigger();
        let mut tasks = self.tasks.lock().await;
        while tasks.join_next().await.is_some() {}
        let _ = std::fs::remove_file(&self.socket);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Power {
    On,
    Off,
}

struct Node {
    number: u32,
    name: String,
    addresses: Vec<IpAddr>,
    namespace: PathBuf,
    directory: PathBuf,
    server: String,
    token_file: PathBuf,
    flags: Vec<OsString>,
    wanted: watch::Sender<Power>,
    /// The state that is reached, with the process of the agent; none during a change.
    is: watch::Sender<Option<(Power, Option<u32>)>>,
    is_cut: watch::Sender<bool>,
}

impl Node {
    fn start(&self) -> std::io::Result<Child> {
        let log = std::fs::File::options().create(true).append(true).open(self.directory.with_extension("log"))?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("kemudi").arg("agent").arg("--join").arg(&self.server);
        command.arg("--token-file").arg(&self.token_file).arg("--data-dir").arg(&self.directory);
        let addresses: Vec<String> = self.addresses.iter().map(IpAddr::to_string).collect();
        command.args(["--node-name", &self.name, "--node-ip", &addresses.join(","), "--end-with-input"]);
        command.arg("--network-namespace").arg(&self.namespace).args(&self.flags);
        // Not killed with this value: pods and agents end in their own time.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log).spawn()
    }

    /// Runs the agent while the node is on, until shutdown.
    async fn keep(self: Arc<Self>, shutdown: Shutdown) {
        let mut wanted = self.wanted.subscribe();
        loop {
            if *wanted.borrow_and_update() == Power::Off {
                self.is.send_replace(Some((Power::Off, None)));
                match shutdown.race(wanted.changed()).await {
                    Some(Ok(())) => continue,
                    _ => return,
                }
            }
            let mut child = match self.start() {
                Ok(child) => child,
                Err(e) => {
                    crate::output::note!("error: starting the agent of {}: {e}; it is tried again", self.name);
                    if shutdown.race(tokio::time::sleep(AGAIN)).await.is_none() {
                        return;
                    }
                    continue;
                }
            };
            self.is.send_replace(Some((Power::On, child.id())));
            // Held until the end: the agent ends with it.
            let _input = child.stdin.take();
            tokio::select! {
                status = child.wait() => {
                    self.is.send_replace(None);
                    let status = status.map_or_else(|e| e.to_string(), |s| s.to_string());
                    let log = self.directory.with_extension("log");
                    crate::output::note!("the agent of {} ended ({status}) and is started again; its log is {}", self.name, log.display());
                    if shutdown.race(tokio::time::sleep(AGAIN)).await.is_none() {
                        return;
                    }
                }
                Ok(()) = wanted.changed() => {
                    self.is.send_replace(None);
                    let _ = child.kill().await;
                    if let Err(e) = agent::power_off(&self.directory).await {
                        crate::output::note!("error: ending the processes of {}: {e}", self.name);
                    }
                }
                () = shutdown.wait() => {
                    end(&mut child).await;
                    return;
                }
            }
        }
    }
}

/// Stops an agent; kills it if it takes too long.
async fn end(child: &mut Child) {
    if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM);
    }
    if tokio::time::timeout(END, child.wait()).await.is_err() {
        let _ = child.kill().await;
    }
}

struct Shared {
    bridge: NodeBridge,
    nodes: Vec<Arc<Node>>,
}

/// A command of `kemudi node`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "command", content = "node")]
pub enum Request {
    List,
    /// Ends all processes of a node, as if its machine had lost its power.
    Stop(String),
    Start(String),
    /// Takes the node off the network.
    Cut(String),
    Heal(String),
}

/// A node in an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    pub name: String,
    /// One of each family of the range of nodes.
    pub addresses: Vec<IpAddr>,
    pub is_running: bool,
    pub is_cut: bool,
    /// The process of its agent.
    pub pid: Option<u32>,
}

/// The answer: all nodes, or why the command was not executed.
pub type Answer = Result<Vec<State>, String>;

async fn listen(listener: UnixListener, shared: Arc<Shared>, shutdown: Shutdown) {
    while let Some(accepted) = shutdown.race(listener.accept()).await {
        match accepted {
            Ok((stream, _)) => {
                let (shared, shutdown) = (shared.clone(), shutdown.clone());
                tokio::spawn(async move { shutdown.race(answer(stream, &shared)).await });
            }
            Err(e) => {
                tracing::warn!("accepting a connection of `kemudi node` failed: {e}");
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

async fn answer(stream: UnixStream, shared: &Shared) {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    if BufReader::new(read.take(COMMAND)).read_line(&mut line).await.is_err() {
        return;
    }
    let answer: Answer = match serde_json::from_str(&line) {
        Ok(request) => shared.execute(&request).await,
        Err(e) => Err(format!("the command cannot be read: {e}")),
    };
    let text = serde_json::to_string(&answer).unwrap_or_default();
    let _ = write.write_all(format!("{text}\n").as_bytes()).await;
}

impl Shared {
    fn find(&self, name: &str) -> Result<&Node, String> {
        self.nodes.iter().find(|n| n.name == *name).map(|n| &**n).ok_or_else(|| {
            let names: Vec<&str> = self.nodes.iter().map(|n| n.name.as_str()).collect();
            format!("there is no node {name:?}; the nodes are {}", names.join(", "))
        })
    }

    async fn execute(&self, request: &Request) -> Answer {
        match request {
            Request::List => {}
            Request::Stop(name) => turn(self.find(name)?, Power::Off).await,
            Request::Start(name) => turn(self.find(name)?, Power::On).await,
            Request::Cut(name) => self.set_link(self.find(name)?, false).await?,
            Request::Heal(name) => self.set_link(self.find(name)?, true).await?,
        }
        Ok(self.nodes.iter().map(|n| n.state()).collect())
    }

    async fn set_link(&self, node: &Node, is_up: bool) -> Result<(), String> {
        self.bridge.set_link(node.number, is_up).await.map_err(|e| e.to_string())?;
        node.is_cut.send_replace(!is_up);
        Ok(())
    }
}

impl Node {
    fn state(&self) -> State {
        let is = *self.is.borrow();
        State {
            name: self.name.clone(),
            addresses: self.addresses.clone(),
            is_running: is.is_some_and(|(power, _)| power == Power::On),
            is_cut: *self.is_cut.borrow(),
            pid: is.and_then(|(_, pid)| pid),
        }
    }
}

/// Turns a node on or off, and waits until it is.
async fn turn(node: &Node, power: Power) {
    node.wanted.send_if_modified(|wanted| std::mem::replace(wanted, power) != power);
    let mut is = node.is.subscribe();
    let _ = is.wait_for(|is| is.is_some_and(|(reached, _)| reached == power)).await;
}

/// Sends a command to the process that runs the nodes of a data directory.
pub async fn send(data_dir: &Path, request: &Request) -> std::io::Result<Answer> {
    let mut stream = UnixStream::connect(data_dir.join(SOCKET)).await?;
    let text = serde_json::to_string(request)?;
    stream.write_all(format!("{text}\n").as_bytes()).await?;
    let mut line = String::new();
    stream.read_to_string(&mut line).await?;
    Ok(serde_json::from_str(&line)?)
}

/// The data directories of the nodes of a data directory, in the order of their numbers.
pub fn node_directories(data_dir: &Path) -> Vec<PathBuf> {
    let directory = |number| data_dir.join(NODES).join(name(number));
    (0..).map(directory).take_while(|d| d.is_dir()).collect()
}

/// Removes everything of the nodes of a data directory but their files. Works without running nodes.
pub async fn purge(data_dir: &Path, remains: Remains) -> Result<(), Error> {
    for entry in std::fs::read_dir(data_dir.join(NODES)).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            // Its network is in its own namespace, and goes with it.
            let own = data_dir.join(NAMESPACES).join(entry.file_name());
            let own = Some(own.as_path()).filter(|path| namespace::exists(path));
            agent::purge(&entry.path(), own, Remains::NoNetwork).await?;
        }
    }
    let namespaces = data_dir.join(NAMESPACES);
    for entry in std::fs::read_dir(&namespaces).into_iter().flatten().flatten() {
        namespace::remove(&entry.path())?;
    }
    if remains == Remains::All && namespaces.exists() {
        let cluster = ClusterNetwork::recorded(data_dir);
        ServiceRules::purge(&service_options(data_dir, &cluster)).await?;
        let closed: Vec<Cidr> = cluster.pods.iter().chain(cluster.service_ranges()).collect();
        NodeBridge::purge(&tag(data_dir), &closed).await?;
    }
    Ok(())
}
