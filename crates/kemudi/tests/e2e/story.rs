//! The context of a test: a namespace of its own, a client program, and access to the API.

use crate::cluster::{Cluster, KEMUDI};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The time limit of everything that tests wait for.
const PATIENCE: Duration = Duration::from_secs(90);

/// The client program of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    Kemudi,
    Kubectl,
}

impl Tool {
    /// Returns the command; the real kubectl is that of `KUBECTL`, or the one in `PATH`.
    pub fn program(self) -> Option<Command> {
        match self {
            Self::Kemudi => {
                let mut c = Command::new(KEMUDI);
                c.arg("kubectl");
                Some(c)
            }
            Self::Kubectl => {
                let given = std::env::var_os("KUBECTL").map(PathBuf::from);
                let path = std::env::var_os("PATH").unwrap_or_default();
                let found = || std::env::split_paths(&path).map(|d| d.join("kubectl")).find(|p| p.exists());
                given.or_else(found).map(Command::new)
            }
        }
    }
}

/// Returns the minor version of a kubectl: 36 for v1.36.
pub fn minor(program: impl AsRef<OsStr>) -> Option<u32> {
    let output = Command::new(program).args(["version", "--client", "-o", "json"]).output().ok()?;
    let v: Value = serde_json::from_slice(&output.stdout).ok()?;
    v["clientVersion"]["minor"].as_str()?.trim_end_matches('+').parse().ok()
}

pub struct Story {
    pub cluster: Arc<Cluster>,
    pub ns: String,
    pub tool: Tool,
    pub dir: PathBuf,
}

static NEXT: AtomicU32 = AtomicU32::new(1);

impl Story {
    pub fn begin(cluster: Arc<Cluster>, name: &str, tool: Tool) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let plain: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let ns: String = format!("t{number}-{plain}").chars().take(50).collect();
        let ns = ns.trim_end_matches('-').to_lowercase();
        let dir = cluster.directory.join(&ns);
        std::fs::create_dir_all(&dir).unwrap();
        let story = Self { cluster, ns: ns.clone(), tool, dir };
        story.post("/api/v1/namespaces", json!({"metadata": {"name": ns}}));
        // Pods cannot be created before it exists.
        story.until_at(&format!("/api/v1/namespaces/{ns}/serviceaccounts/default"), |s| !s.is_null());
        story
    }

    /// Deletes the namespace without waiting for it. After a failure, prints its objects and the log of the cluster.
    pub fn end(self, passed: bool) {
        if !passed {
            eprintln!("{}", self.report());
        }
        let path = format!("/api/v1/namespaces/{}", self.ns);
        let request = client::client::request(http::Method::DELETE, &path, client::client::JSON, None).unwrap();
        let _ = self.cluster.runtime.block_on(self.cluster.client.bytes(request));
    }

    fn report(&self) -> String {
        let mut text = format!("--- {} ---\n", self.ns);
        for what in [&["get", "all", "-o", "wide"][..], &["get", "events"]] {
            let o = self.k(what);
            let _ = writeln!(text, "{}{}", String::from_utf8_lossy(&o.stdout), String::from_utf8_lossy(&o.stderr));
        }
        let log = self.cluster.log();
        let mine: Vec<_> = log.lines().filter(|l| l.contains(&self.ns)).collect();
        let _ = writeln!(text, "{}", mine.join("\n"));
        text
    }

    // --- commands ---

    pub fn command(&self, args: &[&str]) -> Command {
        self.bare(&[&["-n", &self.ns], args].concat())
    }

    /// Returns a command without a namespace flag, so that `args` come first.
    pub fn bare(&self, args: &[&str]) -> Command {
        let mut c = self.tool.program().unwrap();
        c.args(args).env("KUBECONFIG", &self.cluster.kubeconfig).env("HOME", &self.dir).current_dir(&self.dir);
        c.stdin(Stdio::null());
        c
    }

    /// Runs a command in the namespace.
    pub fn k(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Returns a command that uses SPDY as before v1.31. Ours has only WebSockets and ignores the variables.
    pub fn spdy(&self, args: &[&str]) -> Command {
        let mut c = self.command(args);
        c.env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false").env("KUBECTL_PORT_FORWARD_WEBSOCKETS", "false");
        c
    }

    /// Runs a program in a pod.
    pub fn exec(&self, pod: &str, program: &[&str]) -> Output {
        self.k(&[&["exec", pod, "--"], program].concat())
    }

    /// Runs a script in a shell of the pod, and returns its output.
    pub fn sh(&self, pod: &str, script: &str) -> String {
        let o = self.exec(pod, &["sh", "-c", script]);
        assert!(o.status.success(), "{script}: {}", String::from_utf8_lossy(&o.stderr));
        String::from_utf8(o.stdout).unwrap()
    }

    /// Runs a command that must succeed, and returns its standard output.
    #[track_caller]
    pub fn ok(&self, args: &[&str]) -> String {
        text(args, &self.k(args))
    }

    /// Runs a command that must fail with exit code 1, and returns its standard error.
    #[track_caller]
    pub fn fails(&self, args: &[&str]) -> String {
        refused(args, &self.k(args))
    }

    /// Runs a command with standard input.
    pub fn with_input(&self, args: &[&str], input: &str) -> Output {
        Self::feed(self.command(args), input)
    }

    /// Runs a prepared command with standard input.
    pub fn feed(mut command: Command, input: &str) -> Output {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // The command may end before it reads everything.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap()
    }

    /// `apply -f -`.
    #[track_caller]
    pub fn apply(&self, manifest: &str) -> String {
        text(&["apply", manifest], &self.with_input(&["apply", "-f", "-"], manifest))
    }

    #[track_caller]
    pub fn apply_fails(&self, manifest: &str) -> String {
        refused(&["apply", manifest], &self.with_input(&["apply", "-f", "-"], manifest))
    }

    /// Writes a file into the test's directory, in which commands run.
    pub fn file(&self, name: &str, content: &str) {
        let path = self.dir.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    // --- the API ---

    /// Serves pages (path, status, and body or target of a redirect) until the process ends. Returns the URL of the server.
    pub fn serve(&self, pages: &[(&str, u16, String)]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let pages: Vec<(String, u16, String)> =
            pages.iter().map(|(p, s, b)| ((*p).to_owned(), *s, b.clone())).collect();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut line = String::new();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                reader.read_line(&mut line).unwrap();
                let mut header = String::new();
                while reader.read_line(&mut header).is_ok_and(|n| n > 2) {
                    header.clear();
                }
                let path = line.split(' ').nth(1).unwrap_or_default();
                let page = pages.iter().find(|(p, ..)| p == path);
                let (status, body) = page.map_or((404, String::new()), |(_, s, b)| (*s, b.clone()));
                let moved = if status == 302 { format!("Location: {body}\r\n") } else { String::new() };
                let head = format!(
                    "HTTP/1.1 {status} X\r\n{moved}Content-Length: {}\r\nConnection: close\r\n\r\n",
                    body.len()
                );
                let _ = stream.write_all((head + &body).as_bytes());
            }
        });
        format!("http://{address}")
    }

    /// Returns the object at a path of the API, or `null` if it does not exist.
    pub fn get_at(&self, path: &str) -> Value {
        let answer = self.cluster.runtime.block_on(self.cluster.client.get::<Value>(path));
        client::optional(answer).unwrap().unwrap_or_default()
    }

    fn path(&self, what: &str) -> String {
        let (resource, name) = what.split_once('/').unwrap_or((what, ""));
        let group = match resource {
            "deployments" | "replicasets" => "apis/apps/v1",
            "endpointslices" => "apis/discovery.k8s.io/v1",
            "horizontalpodautoscalers" => "apis/autoscaling/v2",
            _ => "api/v1",
        };
        format!("/{group}/namespaces/{}/{resource}/{name}", self.ns).trim_end_matches('/').to_owned()
    }

    /// Returns an object (`pods/a`) or a list (`pods`) of the namespace, or `null` if it does not exist.
    pub fn get(&self, what: &str) -> Value {
        self.get_at(&self.path(what))
    }

    pub fn items(&self, what: &str) -> Vec<Value> {
        self.get(what)["items"].as_array().cloned().unwrap_or_default()
    }

    /// Creates an object in the namespace.
    pub fn create(&self, resource: &str, object: Value) -> Value {
        self.post(&self.path(resource), object)
    }

    pub fn post(&self, path: &str, object: Value) -> Value {
        self.send(http::Method::POST, path, "application/json", &object)
    }

    /// Sends a merge patch of an object of the namespace.
    pub fn patch(&self, what: &str, patch: Value) -> Value {
        self.send(http::Method::PATCH, &self.path(what), "application/merge-patch+json", &patch)
    }

    /// Sends a merge patch to a path of the API.
    pub fn patch_at(&self, path: &str, patch: Value) -> Value {
        self.send(http::Method::PATCH, path, "application/merge-patch+json", &patch)
    }

    fn send(&self, method: http::Method, path: &str, media: &str, body: &Value) -> Value {
        let body = Some((media, body.to_string().into_bytes()));
        let request = client::client::request(method, path, client::client::JSON, body).unwrap();
        self.cluster.runtime.block_on(self.cluster.client.json(request)).unwrap_or_else(|e| panic!("{path}: {e}"))
    }

    /// Waits until an object or list of the namespace meets a condition, and returns it.
    #[track_caller]
    pub fn until(&self, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
        self.until_at(&self.path(what), condition)
    }

    #[track_caller]
    pub fn until_at(&self, path: &str, condition: impl Fn(&Value) -> bool) -> Value {
        let end = Instant::now() + PATIENCE;
        loop {
            let v = self.get_at(path);
            if condition(&v) {
                return v;
            }
            assert!(Instant::now() < end, "{path} did not meet the condition in time: {v:#}");
            self.pause();
        }
    }

    /// Waits until `look` returns a value.
    #[track_caller]
    pub fn eventually<T>(&self, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(t) = look() {
                return t;
            }
            assert!(Instant::now() < end, "{what}: did not happen in time");
            self.pause();
        }
    }

    fn pause(&self) {
        self.cluster.runtime.block_on(async { sleep(Duration::from_millis(50)).await });
    }

    #[track_caller]
    pub fn gone(&self, what: &str) {
        self.until(what, Value::is_null);
    }

    /// Returns reason and message of each event of an object.
    pub fn events(&self, name: &str) -> Vec<(String, String)> {
        let of = |e: &Value| {
            let word = |k: &str| e[k].as_str().unwrap_or_default().to_owned();
            (e["involvedObject"]["name"] == name).then(|| (word("reason"), word("message")))
        };
        self.items("events").iter().filter_map(of).collect()
    }

    /// Waits for an event of an object, and returns its message.
    #[track_caller]
    pub fn event(&self, name: &str, reason: &str) -> String {
        let what = format!("event {reason} of {name}");
        self.eventually(&what, || self.events(name).into_iter().find(|(r, _)| r == reason).map(|(_, m)| m))
    }

    // --- pods ---

    /// Creates a pod of one container with a shell; `spec` is merged into the pod's and `container` into its container.
    pub fn shell_pod(&self, name: &str, script: &str, spec: Value, container: Value) -> Value {
        let mut c = json!({"name": "c", "command": ["sh", "-c", script]});
        merge(&mut c, container);
        self.pod(name, spec, vec![c])
    }

    /// Creates a pod. Containers have the image of the demonstration by default, and the tools in `/bin`.
    pub fn pod(&self, name: &str, spec: Value, containers: Vec<Value>) -> Value {
        let mut pod = json!({
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": {"terminationGracePeriodSeconds": 1},
        });
        merge(&mut pod["spec"], spec);
        let tool = json!({"name": "tools", "mountPath": "/bin", "readOnly": true});
        let finish = |mut c: Value| {
            if c["image"].is_null() {
                c["image"] = IMAGE.into();
            }
            push(&mut c["volumeMounts"], tool.clone());
            c
        };
        pod["spec"]["containers"] = containers.into_iter().map(finish).collect();
        push(&mut pod["spec"]["volumes"], self.tools());
        self.create("pods", pod)
    }

    /// Returns the volume with the tools.
    pub fn tools(&self) -> Value {
        json!({"name": "tools", "hostPath": {"path": self.cluster.directory.join("bin")}})
    }

    #[track_caller]
    pub fn ready(&self, pod: &str) -> Value {
        self.until(&format!("pods/{pod}"), |p| condition(p, "Ready") == "True")
    }

    #[track_caller]
    pub fn phase(&self, pod: &str, phase: &str) -> Value {
        self.until(&format!("pods/{pod}"), |p| p["status"]["phase"] == phase)
    }

    /// Waits for the state of the pod's first container.
    #[track_caller]
    pub fn container(&self, pod: &str, condition: impl Fn(&Value) -> bool) -> Value {
        let p = self.until(&format!("pods/{pod}"), |p| condition(&p["status"]["containerStatuses"][0]));
        p["status"]["containerStatuses"][0].clone()
    }

    /// Returns the log of a pod.
    pub fn logs(&self, pod: &str) -> String {
        self.ok(&["logs", pod])
    }

    #[track_caller]
    pub fn logged(&self, pod: &str, text: &str) -> String {
        let what = format!("{text:?} in the log of {pod}");
        self.eventually(&what, || {
            let o = self.k(&["logs", pod]);
            let log = String::from_utf8_lossy(&o.stdout).into_owned();
            log.contains(text).then_some(log)
        })
    }
}

pub const IMAGE: &str = "kemudi.local/demo:latest";

#[track_caller]
pub fn text(args: &[&str], o: &Output) -> String {
    assert!(
        o.status.success(),
        "{args:?}: {}{}",
        String::from_utf8_lossy(&o.stdout),
        String::from_utf8_lossy(&o.stderr)
    );
    String::from_utf8_lossy(&o.stdout).into_owned()
}

#[track_caller]
pub fn refused(args: &[&str], o: &Output) -> String {
    let stderr = String::from_utf8_lossy(&o.stderr).into_owned();
    assert_eq!(o.status.code(), Some(1), "{args:?}: {}{stderr}", String::from_utf8_lossy(&o.stdout));
    stderr
}

/// Returns the status of a condition, or an empty text.
pub fn condition<'a>(object: &'a Value, kind: &str) -> &'a str {
    let all = object["status"]["conditions"].as_array();
    let found = all.and_then(|c| c.iter().find(|c| c["type"] == kind));
    found.and_then(|c| c["status"].as_str()).unwrap_or_default()
}

/// Returns the names of objects, sorted.
pub fn names(items: &[Value]) -> Vec<String> {
    let mut v: Vec<_> = items.iter().filter_map(|o| o["metadata"]["name"].as_str()).map(str::to_owned).collect();
    v.sort();
    v
}

fn merge(into: &mut Value, from: Value) {
    if let (Some(to), Value::Object(from)) = (into.as_object_mut(), from) {
        to.extend(from);
    }
}

fn push(list: &mut Value, item: Value) {
    match list.as_array_mut() {
        Some(l) => l.push(item),
        None => *list = json!([item]),
    }
}

/// Requests `http://address/path`, and returns the body of a response 200.
pub fn http_get(address: &str, path: &str) -> Option<String> {
    let address = if address.contains(':') { address.to_owned() } else { format!("{address}:80") };
    let to = address.parse().ok()?;
    let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(2)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: e2e\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    head.contains(" 200 ").then(|| body.to_owned())
}
