//! A cluster of three etcd members and three servers on loopback, of which each can be killed and started again.

use client::https::Https;
use client::kubeconfig::{Kubeconfig, Overrides};
use client::{Api, ApiResource, Client};
use meta::Object;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::time::Instant;

pub const BINARY: &str = env!("CARGO_BIN_EXE_kemudi");
/// Longer than anything here takes, even on a slow machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Whether etcd is on this machine.
pub fn has_etcd() -> bool {
    let found = Command::new("etcd").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !found {
        println!("skipped: etcd is not on this machine (Debian's etcd-server)");
    }
    found
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A process that can be killed and started again. It is killed with this value.
pub struct Process {
    start: Box<dyn Fn() -> Command + Send + Sync>,
    child: Option<Child>,
}

impl Process {
    pub fn new(start: impl Fn() -> Command + Send + Sync + 'static) -> Self {
        let mut process = Self { start: Box::new(start), child: None };
        process.start();
        process
    }

    pub fn start(&mut self) {
        assert!(self.child.is_none(), "it runs already");
        self.child = Some((self.start)().stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap());
    }

    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    pub fn is_running(&self) -> bool {
        self.child.is_some()
    }

    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = i32::try_from(self.child.as_ref().unwrap().id()).unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).unwrap();
    }

    /// Waits until no thread of the process runs any more, after a `SIGSTOP`: a thread on another
    /// core stops a moment later than the signal is sent.
    pub fn until_stopped(&self) {
        let tasks = format!("/proc/{}/task", self.child.as_ref().unwrap().id());
        let stopped = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = task.and_then(|t| std::fs::read_to_string(t.path().join("stat"))).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'))
        };
        let end = Instant::now() + PATIENCE;
        while !std::fs::read_dir(&tasks).unwrap().all(stopped) {
            assert!(Instant::now() < end, "the process stops");
            std::thread::yield_now();
        }
    }

    /// Waits for the end of the process; its exit code.
    pub fn wait(&mut self) -> Option<i32> {
        self.child.take().unwrap().wait().unwrap().code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The members of an etcd cluster.
pub struct Etcd {
    pub members: Vec<Process>,
    pub urls: Vec<String>,
}

impl Etcd {
    /// `flags` are further flags of every member. With `tls`, clients need certificates.
    pub fn start(directory: &Path, members: usize, tls: Option<&crate::tls::Files>, flags: &[&str]) -> Self {
        let ports: Vec<(u16, u16)> = (0..members).map(|_| (free_port(), free_port())).collect();
        let initial: Vec<String> =
            ports.iter().enumerate().map(|(n, (_, peer))| format!("m{n}=http://127.0.0.1:{peer}")).collect();
        let (initial, scheme) = (initial.join(","), if tls.is_some() { "https" } else { "http" });
        let urls: Vec<String> = ports.iter().map(|(client, _)| format!("{scheme}://127.0.0.1:{client}")).collect();
        let members = ports.iter().zip(&urls).enumerate().map(|(n, ((_, peer), url))| {
            let data = directory.join(format!("etcd-{n}"));
            let mut arguments: Vec<String> = vec!["--name".into(), format!("m{n}"), "--data-dir".into()];
            arguments.push(data.display().to_string());
            let peer = format!("http://127.0.0.1:{peer}");
            for (flag, value) in [
                ("--listen-client-urls", url),
                ("--advertise-client-urls", url),
                ("--listen-peer-urls", &peer),
                ("--initial-advertise-peer-urls", &peer),
                ("--initial-cluster", &initial),
                ("--log-level", &"fatal".to_owned()),
            ] {
                arguments.extend([flag.to_owned(), value.clone()]);
            }
            if let Some(tls) = tls {
                let path = |p: &PathBuf| p.display().to_string();
                arguments.extend(["--cert-file".into(), path(&tls.certificate), "--key-file".into(), path(&tls.key)]);
                arguments.extend(["--client-cert-auth".into(), "--trusted-ca-file".into(), path(&tls.authority)]);
            }
            arguments.extend(flags.iter().map(|f| (*f).to_owned()));
            Process::new(move || {
                let mut command = Command::new("etcd");
                command.args(&arguments).stderr(Stdio::null());
                command
            })
        });
        Self { members: members.collect(), urls }
    }
}

/// A server, and where it is.
pub struct Server {
    pub process: Process,
    pub data: PathBuf,
    address: String,
    log: PathBuf,
}

impl Server {
    /// The flags of a server of this name. The first one of a cluster creates its token, which the others are given.
    pub fn flags(directory: &Path, name: &str, port: u16, etcd: &[String], token: Option<&Path>) -> Vec<String> {
        let data = directory.join(name);
        let mut flags: Vec<String> = vec!["server".into(), "--secure-port".into(), port.to_string()];
        flags.extend(["--data-dir".into(), data.display().to_string()]);
        if !etcd.is_empty() {
            flags.extend(["--etcd-servers".into(), etcd.join(",")]);
        }
        if let Some(token) = token {
            flags.extend(["--cluster-token-file".into(), token.display().to_string()]);
        }
        flags
    }

    pub fn start(directory: &Path, name: &str, etcd: &[String], token: Option<&Path>, more: &[&str]) -> Self {
        Self::start_at(directory, name, etcd, token, more, ("127.0.0.1", free_port()))
    }

    /// The same, on this address and port.
    pub fn start_at(
        directory: &Path,
        name: &str,
        etcd: &[String],
        token: Option<&Path>,
        more: &[&str],
        (address, port): (&str, u16),
    ) -> Self {
        let mut flags = Self::flags(directory, name, port, etcd, token);
        flags.extend(more.iter().map(|f| (*f).to_owned()));
        let log = directory.join(format!("{name}.log"));
        let output = log.clone();
        let process = Process::new(move || {
            let stderr = std::fs::File::options().create(true).append(true).open(&output).unwrap();
            let mut command = Command::new(BINARY);
            command.args(&flags).env("KEMUDI_LOG", "info").stderr(stderr);
            command
        });
        Self { process, data: directory.join(name), address: format!("{address}:{port}"), log }
    }

    /// The lines that it wrote to standard error.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// A client of this server alone, which exists once the server has written its kubeconfig.
    pub async fn client(&self) -> Client {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Ok(text) = std::fs::read_to_string(self.data.join("kubeconfig"))
                && let Ok(config) = Kubeconfig::parse(&text)
            {
                let mut config = config.resolve(&Overrides::default()).unwrap().config().await.unwrap();
                config.server = format!("https://{}", self.address).parse().unwrap();
                return Client::new(Https::new(&config).unwrap(), "servers-test");
            }
            assert!(Instant::now() < end, "no kubeconfig: {}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until it is ready.
    pub async fn ready(&self) -> Client {
        let client = self.client().await;
        eventually("the server is ready", || async { maps(&client).get_opt("none").await.is_ok() }).await;
        client
    }
}

/// Runs a server that is expected to end with an error; what it wrote to standard error.
pub fn failed_start(directory: &Path, name: &str, etcd: &[String], token: Option<&Path>, more: &[&str]) -> String {
    let mut flags = Server::flags(directory, name, 0, etcd, token);
    flags.extend(more.iter().map(|f| (*f).to_owned()));
    let output = Command::new(BINARY).args(&flags).stdin(Stdio::null()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && !stderr.contains("API ready"), "{stderr}");
    stderr
}

/// Three members and three servers, which are ready.
pub struct Cluster {
    pub etcd: Etcd,
    pub servers: Vec<Server>,
    pub clients: Vec<Client>,
    _directory: tempfile::TempDir,
}

impl Cluster {
    pub async fn start() -> Self {
        let directory = tempfile::Builder::new().prefix("kemudi-servers-").tempdir().unwrap();
        let etcd = Etcd::start(directory.path(), 3, None, &[]);
        let mut servers = vec![Server::start(directory.path(), "server-0", &etcd.urls, None, &[])];
        let mut clients = vec![servers[0].ready().await];
        let token = servers[0].data.join("cluster.token");
        for n in 1..3 {
            let name = format!("server-{n}");
            servers.push(Server::start(directory.path(), &name, &etcd.urls, Some(&token), &[]));
            clients.push(servers[n].ready().await);
        }
        Self { etcd, servers, clients, _directory: directory }
    }
}

/// The ConfigMaps of the namespace `default`.
pub fn maps(client: &Client) -> Api<Object> {
    client.dynamic(&ApiResource::named("", "v1", "configmaps", "ConfigMap", true)).namespace("default")
}

/// Waits until a condition holds.
pub async fn eventually<F: Future<Output = bool>>(what: &str, holds: impl Fn() -> F) {
    let end = Instant::now() + PATIENCE;
    while !holds().await {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
