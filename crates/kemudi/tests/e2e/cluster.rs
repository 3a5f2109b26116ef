//! The cluster that all tests share: started apart from everything else on this machine, and removed with all its traces.

use crate::containerd::Containerd;
use serde_json::json;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::time::{Instant, sleep};

pub const KEMUDI: &str = env!("CARGO_BIN_EXE_kemudi");
/// The applets of busybox that containers find in `/bin`.
const APPLETS: [&str; 20] = [
    "sh", "cat", "ls", "sleep", "echo", "hostname", "touch", "rm", "env", "stat", "wget", "nslookup", "id", "grep",
    "head", "tail", "dd", "mount", "test", "true",
];
/// The directory of static pods, in that of the cluster.
pub const MANIFESTS: &str = "manifests";
const PATIENCE: Duration = Duration::from_secs(30);

/// Where the pods of the cluster run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// In the runtime of kemudi.
    Embedded,
    /// In containerd, behind the CRI.
    Containerd,
}

pub struct Cluster {
    child: Mutex<Option<Child>>,
    /// The container runtime, if it is another program.
    pub containerd: Mutex<Option<Containerd>>,
    pub engine: Engine,
    pub directory: PathBuf,
    netns: String,
    pub kubeconfig: PathBuf,
    pub client: client::Client,
    pub runtime: Runtime,
}

impl Cluster {
    /// Must be called before there are threads: the network namespace is that of the whole process from here on.
    pub fn start(engine: Engine) -> Result<Self, String> {
        let id = std::process::id();
        let netns = format!("kemudi-e2e-{id}");
        let directory = std::env::temp_dir().join(&netns);
        fs::create_dir_all(&directory).map_err(|e| format!("{}: {e}", directory.display()))?;
        tools(&directory.join("bin")).map_err(|e| format!("the tools of the containers: {e}"))?;
        run("ip", &["netns", "add", &netns])?;
        let started = Self::start_in(&netns, &directory, engine);
        if started.is_err() {
            let _ = run(KEMUDI, &["down", "--purge", "--data-dir", &data_dir(&directory)]);
            let _ = run("ip", &["netns", "del", &netns]);
            let _ = fs::remove_dir_all(&directory);
        }
        started
    }

    fn start_in(netns: &str, directory: &Path, engine: Engine) -> Result<Self, String> {
        enter(netns)?;
        run("ip", &["link", "set", "lo", "up"])?;
        let runtime = Runtime::new().map_err(|e| e.to_string())?;
        let kubeconfig = directory.join("kubeconfig");
        let containerd = match engine {
            Engine::Embedded => None,
            Engine::Containerd => Some(runtime.block_on(Containerd::start(directory))?),
        };
        let child = spawn(directory, engine)?;
        let child = Mutex::new(Some(child));
        let containerd = Mutex::new(containerd);
        let client = runtime.block_on(ready(&kubeconfig)).map_err(|e| {
            let log = fs::read_to_string(directory.join("log")).unwrap_or_default();
            format!("the cluster did not start: {e}\n{log}")
        })?;
        Ok(Self {
            child,
            containerd,
            engine,
            directory: directory.into(),
            netns: netns.into(),
            kubeconfig,
            client,
            runtime,
        })
    }

    /// Stops the server in order, and leaves everything else.
    pub fn stop(&self) {
        let mut child = self.child.lock().unwrap().take().unwrap();
        let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        assert!(child.wait().unwrap().success());
    }

    /// Waits until the server has ended by itself. Returns whether it ended well.
    pub fn wait_for_end(&self) -> bool {
        let mut child = self.child.lock().unwrap().take().unwrap();
        child.wait().unwrap().success()
    }

    /// Kills the server, which leaves everything as it is at that moment.
    pub fn kill(&self) {
        let mut child = self.child.lock().unwrap().take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    pub fn start_again(&self) {
        *self.child.lock().unwrap() = Some(spawn(&self.directory, self.engine).unwrap());
        self.runtime.block_on(ready(&self.kubeconfig)).unwrap();
    }

    /// Returns the log of the server.
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }

    /// Removes the cluster. Returns descriptions of everything that it leaves behind.
    pub fn end(&self) -> Vec<String> {
        let mut left = Vec::new();
        let data = data_dir(&self.directory);
        let pods = fs::read_dir(Path::new(&data).join("runtime/pods")).into_iter().flatten().flatten();
        let pods: Vec<String> = pods.filter_map(|e| e.file_name().into_string().ok()).collect();
        if let Err(e) = run(KEMUDI, &["down", "--purge", "--data-dir", &data]) {
            left.push(e);
        }
        if let Some(mut child) = self.child.lock().ok().and_then(|mut c| c.take()) {
            match child.try_wait() {
                Ok(Some(status)) if status.success() => {}
                other => left.push(format!("the server: {other:?}")),
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        for p in shims(&pods) {
            left.push(format!("process {p}"));
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        left.extend(mounts.lines().filter(|l| l.contains(&data)).map(|l| format!("mount {l}")));
        let loops =
            fs::read_dir("/sys/block").into_iter().flatten().flatten().map(|d| d.path().join("loop/backing_file"));
        let files = loops.filter_map(|f| fs::read_to_string(f).ok()).filter(|f| f.contains(&data));
        left.extend(files.map(|f| format!("loop device of {f}")));
        if Path::new(&data).exists() {
            left.push(data);
        }
        let rules = output("nft", &["list", "tables"]);
        left.extend(rules.lines().filter(|l| l.contains("kemudi")).map(|l| format!("packet rules {l}")));
        let devices = output("ip", &["-o", "link"]);
        left.extend(devices.lines().filter(|l| !l.contains(": lo:")).map(|l| format!("device {l}")));
        if let Some(mut containerd) = self.containerd.lock().ok().and_then(|mut c| c.take()) {
            left.extend(containerd.end());
        }
        let _ = run("ip", &["netns", "del", &self.netns]);
        let _ = fs::remove_dir_all(&self.directory);
        left
    }
}

/// Starts the server, which appends its log to a file. Like careless parents, it leaves two descriptors open for the server:
/// a secret file and a directory. No container may get them.
fn spawn(directory: &Path, engine: Engine) -> Result<Child, String> {
    let wrong = |e: std::io::Error| format!("{KEMUDI}: {e}");
    let secret = directory.join("secret");
    fs::write(&secret, "nobody's business").map_err(wrong)?;
    let left_open = [fs::File::open(&secret).map_err(wrong)?, fs::File::open(directory).map_err(wrong)?];
    for file in &left_open {
        let inherited = nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty());
        nix::fcntl::fcntl(file, inherited).map_err(|e| wrong(e.into()))?;
    }
    fs::create_dir_all(directory.join(MANIFESTS)).map_err(wrong)?;
    let configuration = directory.join("kubelet.yaml");
    let mut fields = kubelet_configuration(directory);
    let plugins = write_credential_plugin(directory).map_err(wrong)?;
    let log = fs::File::options().create(true).append(true).open(directory.join("log")).map_err(wrong)?;
    let again = log.try_clone().map_err(wrong)?;
    let endpoint = match engine {
        Engine::Embedded => Vec::new(),
        Engine::Containerd => {
            // To see what becomes of fields that the runtime does not know.
            fields += &format!("featureGates: {{{STOP_SIGNALS}: true}}\n");
            let flags = ["--feature-gates", &format!("{STOP_SIGNALS}=true"), "--container-runtime-endpoint"];
            [flags.map(str::to_owned).as_slice(), &[Containerd::endpoint(directory)]].concat()
        }
    };
    fs::write(&configuration, fields).map_err(wrong)?;
    Command::new(KEMUDI)
        .args(["up", "--node-name", "e2e", "--data-dir", &data_dir(directory), "--write-kubeconfig"])
        .arg(directory.join("kubeconfig"))
        .arg("--kubelet-config")
        .arg(configuration)
        .arg("--image-credential-provider-config")
        .arg(plugins.join("config.yaml"))
        .arg("--image-credential-provider-bin-dir")
        .arg(&plugins)
        .args(endpoint)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(again)
        .spawn()
        .map_err(wrong)
}

const STOP_SIGNALS: &str = "ContainerStopSignals";

/// The configuration of the node. The disk of the machine may be fuller than a node's should be.
fn kubelet_configuration(directory: &Path) -> String {
    format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\npodPidsLimit: 512\nstaticPodPath: {}\n\
         shutdownGracePeriod: 20s\nshutdownGracePeriodCriticalPods: 10s\nnodeStatusMaxImages: 40\n\
         kubeReserved: {{memory: 64Mi}}\nsyncFrequency: 1m\n\
         evictionHard: {{memory.available: 100Mi, nodefs.available: 1%}}\n",
        directory.join(MANIFESTS).display()
    )
}

/// The registry that has a credential provider.
pub const PLUGIN_REGISTRY: &str = "127.0.0.77:5077";

/// Writes a credential provider for [`PLUGIN_REGISTRY`], and its configuration. Returns their directory.
fn write_credential_plugin(directory: &Path) -> std::io::Result<PathBuf> {
    let plugins = directory.join("credentials");
    fs::create_dir_all(&plugins)?;
    let configuration = json!({"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig", "providers": [{
        "name": "provider", "matchImages": [PLUGIN_REGISTRY], "defaultCacheDuration": "0s",
        "apiVersion": "credentialprovider.kubelet.k8s.io/v1", "args": ["user"], "env": [{"name": "PASSWORD", "value": "right"}],
    }]});
    fs::write(plugins.join("config.yaml"), configuration.to_string())?;
    let response = json!({"apiVersion": "credentialprovider.kubelet.k8s.io/v1", "kind": "CredentialProviderResponse",
        "cacheKeyType": "Image", "auth": {PLUGIN_REGISTRY: {"username": "USER", "password": "PASS"}}});
    let response = response.to_string().replace("USER", "$1").replace("PASS", "$PASSWORD").replace('"', "\\\"");
    let program = plugins.join("provider");
    fs::write(&program, format!("#!/bin/sh\ncat > {}\necho \"{response}\"\n", plugins.join("request").display()))?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    Ok(plugins)
}

pub fn data_dir(directory: &Path) -> String {
    directory.join("data").display().to_string()
}

/// Enters the network namespace with this thread and everything that it starts.
fn enter(netns: &str) -> Result<(), String> {
    let path = format!("/run/netns/{netns}");
    let file = fs::File::open(&path).map_err(|e| format!("{path}: {e}"))?;
    nix::sched::setns(file, nix::sched::CloneFlags::CLONE_NEWNET).map_err(|e| format!("{path}: {e}"))
}

/// A directory that containers mount: the image of the demonstration has no shell.
fn tools(directory: &Path) -> std::io::Result<()> {
    fs::create_dir_all(directory)?;
    fs::copy("/bin/busybox", directory.join("busybox"))?;
    for a in APPLETS {
        symlink("busybox", directory.join(a))?;
    }
    // It asks for names as every program does, which busybox, being static, cannot.
    fs::copy("/usr/bin/getent", directory.join("getent"))?;
    Ok(())
}

async fn ready(kubeconfig: &Path) -> Result<client::Client, String> {
    use client::https::Https;
    use client::kubeconfig::{Overrides, Sources};
    let end = Instant::now() + PATIENCE;
    let mut last = "nothing was answered".to_owned();
    while Instant::now() < end {
        sleep(Duration::from_millis(20)).await;
        let sources = Sources { explicit: Some(kubeconfig.to_owned()), files: Vec::new() };
        let Ok(resolved) = sources.resolve(&Overrides::default(), |_| None) else { continue };
        let config = resolved.config().await.map_err(|e| e.to_string())?;
        let https = Https::new(&config).map_err(|e| e.to_string())?;
        let client = client::Client::new(https, "e2e");
        match client.get::<serde_json::Value>("/api/v1/nodes/e2e").await {
            Ok(n) if crate::story::condition(&n, "Ready") == "True" => return Ok(client),
            Ok(n) => last = n["status"]["conditions"].to_string(),
            Err(e) => last = e.to_string(),
        }
    }
    Err(last)
}

fn run(program: &str, args: &[&str]) -> Result<(), String> {
    let said = Command::new(program).args(args).stdin(Stdio::null()).output();
    match said {
        Ok(o) if o.status.success() => Ok(()),
        Ok(o) => Err(format!("{program} {args:?}: {}", String::from_utf8_lossy(&o.stderr))),
        Err(e) => Err(format!("{program}: {e}")),
    }
}

fn output(program: &str, args: &[&str]) -> String {
    let said = Command::new(program).args(args).stdin(Stdio::null()).output();
    said.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default()
}

/// Processes that hold one of the pods.
fn shims(ids: &[String]) -> Vec<String> {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let lines = pids.filter_map(|e| {
        let pid = e.file_name().into_string().ok()?;
        pid.parse::<u32>().ok()?;
        let command = fs::read(e.path().join("cmdline")).ok()?;
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        let pod = command.strip_prefix("/pause ")?.trim();
        ids.iter().any(|id| id == pod).then(|| format!("{pid} {command}"))
    });
    lines.collect()
}
