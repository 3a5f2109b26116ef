//! A cluster in a network namespace of its own, and commands in it.

use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::time::Instant;

pub const KEMUDI: &str = env!("CARGO_BIN_EXE_kemudi");
/// How long something may take: longer than the node controller waits for a node that is cut off. In a virtual machine everything takes
/// longer (`KEMUDI_PATIENCE`, in seconds).
fn patience() -> Duration {
    let seconds = std::env::var("KEMUDI_PATIENCE").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(90))
}

const PAUSE: Duration = Duration::from_millis(100);

/// A network namespace, a directory, and processes that end with this value.
pub struct Machine {
    pub name: String,
    /// What is released once the cluster is removed, before the directory.
    pub held: Option<Box<dyn std::any::Any>>,
    pub directory: tempfile::TempDir,
    /// Fields of the KubeletConfiguration of nodes.
    pub kubelet: String,
    processes: Vec<Child>,
    runtime: Runtime,
}

impl Machine {
    pub fn new(name: &str) -> Self {
        let name = format!("kemudi-{name}-{}", std::process::id());
        run(Command::new("ip").args(["netns", "add", &name]));
        // The disk of the machine may be fuller than a node's should be.
        let kubelet = "evictionHard: {memory.available: 10Mi}".to_owned();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let machine =
            Self { name, held: None, directory: tempfile::tempdir().unwrap(), kubelet, processes: Vec::new(), runtime };
        machine.ip("link set lo up");
        machine
    }

    pub fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    fn path(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.name)
    }

    /// A command in the namespace of this machine. Its file systems are those of this process.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path().display())).arg(program);
        command.env("KUBECONFIG", self.data().join("kubeconfig"));
        command
    }

    pub fn ip(&self, args: &str) -> String {
        run(self.command("ip").args(args.split(' ')))
    }

    /// Starts a process of kemudi. Its output is appended to the log.
    pub fn start(&mut self, args: &[&str]) -> u32 {
        let log = fs::File::options().create(true).append(true).open(self.directory.path().join("log")).unwrap();
        let mut command = self.command(KEMUDI);
        command.args(args).arg("--data-dir").arg(self.data());
        if matches!(args.first(), Some(&("up" | "agent"))) {
            let path = self.directory.path().join("kubelet.yaml");
            let fields = &self.kubelet;
            let text = format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{fields}\n");
            fs::write(&path, text).unwrap();
            command.arg("--kubelet-config").arg(path);
        }
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let pid = child.id();
        self.processes.push(child);
        pid
    }

    pub fn log(&self) -> String {
        let mut text = fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
        for entry in fs::read_dir(self.data().join("nodes")).into_iter().flatten().flatten() {
            if entry.path().extension().is_some_and(|e| e == "log") {
                text += &fs::read_to_string(entry.path()).unwrap_or_default();
            }
        }
        text
    }

    /// Kills a process that was started here, and waits for its end.
    pub fn kill(&mut self, pid: u32) {
        let index = self.processes.iter().position(|p| p.id() == pid).unwrap();
        let mut process = self.processes.remove(index);
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// Removes the cluster, and returns what was said.
    #[track_caller]
    pub fn purge(&self) -> String {
        let output = self.kemudi(&["down", "--purge"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        said
    }

    /// Runs `kemudi ARGS --data-dir DIR`.
    pub fn kemudi(&self, args: &[&str]) -> Output {
        self.command(KEMUDI).args(args).arg("--data-dir").arg(self.data()).output().unwrap()
    }

    pub fn kubectl(&self, args: &[&str]) -> Result<String, String> {
        let output = self.command(KEMUDI).arg("kubectl").args(args).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    #[track_caller]
    pub fn ok(&self, args: &[&str]) -> String {
        self.kubectl(args).unwrap_or_else(|e| panic!("kubectl {args:?}: {e}\n{}", self.log()))
    }

    pub fn apply(&self, objects: &str) {
        let mut command = self.command(KEMUDI);
        command.args(["kubectl", "apply", "-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(objects.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
    }

    pub fn json(&self, what: &[&str]) -> Value {
        let text = self.kubectl(&[&["get", "-o", "json"], what].concat());
        text.ok().and_then(|t| serde_json::from_str(&t).ok()).unwrap_or_default()
    }

    /// Waits until `look` returns something.
    #[track_caller]
    pub fn eventually<T>(&self, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let started = Instant::now();
        loop {
            if let Some(found) = look() {
                return found;
            }
            let state = || self.kubectl(&["get", "nodes,pods", "-A", "-o", "wide"]).unwrap_or_default();
            assert!(started.elapsed() < patience(), "{what}\n{}\n{}", state(), self.log());
            self.runtime.block_on(async { tokio::time::sleep(PAUSE).await });
        }
    }

    #[track_caller]
    pub fn ready(&self, nodes: &[&str]) {
        for node in nodes {
            self.eventually(&format!("{node} is ready"), || self.is_ready(node).then_some(()));
        }
    }

    /// A condition of a node.
    pub fn condition(&self, node: &str, kind: &str) -> Value {
        let node = self.json(&["node", node]);
        let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|c| c["type"] == kind).unwrap_or_default()
    }

    /// Waits for an event of an object whose message contains a text, and returns the message.
    #[track_caller]
    pub fn event(&self, name: &str, reason: &str, part: &str) -> String {
        self.eventually(&format!("event {reason} of {name} with {part:?}"), || {
            let list = self.json(&["events", "-A"]);
            let is = |e: &&Value| e["involvedObject"]["name"] == name && e["reason"] == reason;
            let mut messages = list["items"].as_array()?.iter().filter(is).filter_map(|e| e["message"].as_str());
            messages.find(|m| m.contains(part)).map(str::to_owned)
        })
    }

    pub fn is_ready(&self, node: &str) -> bool {
        let node = self.json(&["node", node]);
        let mut conditions = node["status"]["conditions"].as_array().into_iter().flatten();
        conditions.any(|c| c["type"] == "Ready" && c["status"] == "True")
    }

    /// Calls a function in the namespace of this machine.
    pub fn inside<T: Send>(&self, f: impl FnOnce() -> std::io::Result<T> + Send) -> std::io::Result<T> {
        network::namespace::run_in(Some(&self.path()), f)
    }

    /// The answer of an HTTP server.
    pub fn get(&self, address: impl Into<IpAddr>, port: u16, path: &str) -> std::io::Result<String> {
        let address = address.into();
        network::namespace::run_in(Some(&self.path()), || {
            let mut stream = TcpStream::connect_timeout(&SocketAddr::from((address, port)), Duration::from_secs(3))?;
            stream.set_read_timeout(Some(Duration::from_secs(3)))?;
            write!(stream, "GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text.split_once("\r\n\r\n").map(|(_, body)| body.trim().to_owned()).unwrap_or_default())
        })
    }

    /// What is left after `kemudi down --purge`.
    pub fn left(&self) -> Vec<String> {
        let data = self.data().display().to_string();
        let mut left = Vec::new();
        let mut look = |what: &str, text: String, is: &dyn Fn(&str) -> bool| {
            left.extend(text.lines().filter(|l| is(l)).map(|l| format!("{what}: {l}")));
        };
        look("mount", fs::read_to_string("/proc/self/mountinfo").unwrap(), &|l| l.contains(&data));
        look("device", self.ip("-o link"), &|l| !l.contains(": lo:"));
        look("rules", run(self.command("nft").args(["list", "tables"])), &|_| true);
        look("route", self.ip("route show table all"), &|l| !l.contains("dev lo"));
        look("route", self.ip("-6 route show table all"), &|l| !l.contains("dev lo"));
        look("process", run(Command::new("ps").args(["-eo", "pid,args"])), &|l| {
            l.contains(&data) && !l.contains("ps -eo")
        });
        left.extend(self.data().exists().then_some(data));
        left
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if self.data().exists() {
            let _ = self.kemudi(&["down", "--purge"]);
        }
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

/// A web server on every node.
pub const WEB: &str = "
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: web
        image: kemudi.local/demo:latest
        readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
";

/// Its service, at a port of every node.
pub const WEB_SERVICE: &str = "
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, selector: {app: web}, ports: [{port: 80, targetPort: 8080, nodePort: 30080}]}
";

pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
