//! A process that runs while a test looks at it.

use bytes::Bytes;
use client::https::Https;
use client::kubeconfig::{Kubeconfig, Overrides};
use client::{Client, client::request};
use http::{Method, StatusCode};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::sync::mpsc;

pub const BINARY: &str = env!("CARGO_BIN_EXE_kemudi");

/// Longer than anything here takes, even on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Only a control plane, on any free port.
pub fn up(data: &Path) -> Command {
    up_on(data, 0)
}

pub fn up_on(data: &Path, port: u16) -> Command {
    let mut c = Command::new(BINARY);
    c.args(["up", "--disable-agent", "--secure-port", &port.to_string(), "--data-dir"]).arg(data);
    c
}

/// The process and a client of it. It is killed with this value.
pub struct Running {
    child: Child,
    client: Client,
    port: u16,
    log: Vec<String>,
}

/// A child that does not outlive its test.
struct Held(Option<Child>);

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(mut c) = self.0.take() {
            let _ = c.kill();
            let _ = c.wait();
        }
    }
}

/// The lines that the process writes to standard error.
fn spawn(command: &mut Command) -> (Held, mpsc::UnboundedReceiver<String>) {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let stderr = child.stderr.take().unwrap();
    let (tx, lines) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for l in BufReader::new(stderr).lines().map_while(Result::ok) {
            let _ = tx.send(l);
        }
    });
    (Held(Some(child)), lines)
}

async fn line(lines: &mut mpsc::UnboundedReceiver<String>) -> Option<String> {
    tokio::time::timeout(PATIENCE, lines.recv()).await.unwrap_or_else(|_| panic!("the process says nothing"))
}

/// Standard error of a process that is expected to fail.
pub async fn failed(command: &mut Command) -> String {
    let (mut held, mut lines) = spawn(command);
    let mut text = Vec::new();
    while let Some(l) = line(&mut lines).await {
        assert!(!l.starts_with("API ready"), "it started");
        text.push(l);
    }
    let status = held.0.take().unwrap().wait().unwrap();
    assert!(!status.success(), "{text:?}");
    text.join("\n")
}

impl Running {
    /// Waits until the API is ready; the error is the output of the process.
    pub async fn start(command: &mut Command) -> Result<Self, String> {
        let arguments: Vec<_> = command.get_args().collect();
        let data = arguments.iter().position(|a| *a == "--data-dir").map(|i| PathBuf::from(arguments[i + 1])).unwrap();
        Self::start_with(command, &data.join("kubeconfig")).await
    }

    pub async fn start_with(command: &mut Command, kubeconfig: &Path) -> Result<Self, String> {
        let (mut held, mut lines) = spawn(command);
        let mut text = Vec::new();
        loop {
            let Some(l) = line(&mut lines).await else { return Err(text.join("\n")) };
            let port = l.strip_prefix("API ready at https://127.0.0.1:").and_then(|r| r.split(' ').next());
            if let Some(port) = port.and_then(|p| p.parse().ok()) {
                let written = std::fs::read_to_string(kubeconfig).unwrap();
                let resolved = Kubeconfig::parse(&written).unwrap().resolve(&Overrides::default()).unwrap();
                let https = Https::new(&resolved.config().await.unwrap()).unwrap();
                let client = Client::new(https, "process-test");
                let child = held.0.take().unwrap();
                return Ok(Self { child, client, port, log: text });
            }
            text.push(l);
        }
    }

    /// The lines on its standard error until it was ready.
    pub fn log(&self) -> &[String] {
        &self.log
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sends JSON as the administrator.
    pub async fn call(&self, method: &str, path: &str, body: &Value) -> (StatusCode, Value) {
        let body = (!body.is_null()).then(|| ("application/json", body.to_string().into_bytes()));
        let r = request(Method::from_bytes(method.as_bytes()).unwrap(), path, "application/json", body).unwrap();
        let answer = self.client.raw(r).await.unwrap();
        let code = answer.status();
        let bytes: Bytes = client::client::collect(answer.into_body()).await.unwrap();
        (code, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }

    /// Asks it to stop; its exit code.
    pub fn stop(&mut self) -> Option<i32> {
        self.ask_to_stop();
        self.child.wait().unwrap().code()
    }

    /// Asks it to stop, and does not wait.
    pub fn ask_to_stop(&self) {
        let pid = nix::unistd::Pid::from_raw(self.child.id().try_into().unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    }

    /// Ends it at once.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
