//! A server that is started for the measurement, and what its processes use.

use crate::Error;
use client::client::{JSON, request};
use client::https::Config;
use client::{Client, Https};
use http::Method;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, SysconfVar, sysconf};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

const NODE: &str = "bench";
/// The name of the process that holds a pod.
const SHIM: &str = "/pause";
/// How long a start or a stop may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// One data directory after the other, and the program that runs on it.
pub struct Cluster {
    program: PathBuf,
    work: PathBuf,
    args: Vec<String>,
    runs: u32,
    started: Instant,
    child: Option<Child>,
}

/// Usage of processes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    pub processes: u64,
    pub memory_bytes: u64,
    /// Of the server itself.
    pub server_bytes: u64,
    /// The share of the pods' shims, by their part of shared pages.
    pub shim_bytes: u64,
    pub cpu: Duration,
}

impl Cluster {
    pub fn new(program: PathBuf, work: Option<PathBuf>, args: Vec<String>) -> Result<Self, Error> {
        let own = || std::env::temp_dir().join(format!("kemudi-bench-{}", std::process::id()));
        let work = work.unwrap_or_else(own);
        fs::create_dir_all(&work).map_err(|source| Error::File { path: work.clone(), source })?;
        let program = fs::canonicalize(&program).map_err(|source| Error::File { path: program, source })?;
        Ok(Self { program, work, args, runs: 0, started: Instant::now(), child: None })
    }

    fn data_dir(&self) -> PathBuf {
        self.work.join(format!("run-{}", self.runs))
    }

    fn log(&self) -> PathBuf {
        self.work.join("log")
    }

    fn kubeconfig(&self) -> PathBuf {
        self.data_dir().join("kubeconfig")
    }

    /// The kubeconfig of the start before is gone; the new one is written while others already see the server ready.
    pub async fn wait_for_kubeconfig(&self) -> Result<PathBuf, Error> {
        let path = self.kubeconfig();
        let started = Instant::now();
        // It may be incomplete.
        while !fs::read_to_string(&path).is_ok_and(|t| t.contains("current-context:") && t.ends_with('\n')) {
            if started.elapsed() > PATIENCE {
                return Err(Error::Late { what: path.display().to_string(), limit: PATIENCE });
            }
            sleep(Duration::from_millis(1)).await;
        }
        Ok(path)
    }

    /// Whether the server brings a node of its own.
    pub fn has_node(&self) -> bool {
        !self.args.iter().any(|a| a == "--disable-agent")
    }

    /// The time since the program was started.
    pub fn age(&self) -> Duration {
        self.started.elapsed()
    }

    pub fn node(&self) -> &'static str {
        NODE
    }

    /// Starts with an empty directory and returns the time until it is ready.
    pub async fn start(&mut self) -> Result<Duration, Error> {
        self.runs += 1;
        let dir = self.data_dir();
        if dir.exists() {
            let source = std::io::Error::from(std::io::ErrorKind::AlreadyExists);
            return Err(Error::File { path: dir, source });
        }
        self.start_again().await
    }

    /// Starts with existing data and returns the time until `/readyz`.
    pub async fn start_again(&mut self) -> Result<Duration, Error> {
        let port = free_port()?;
        let _ = fs::remove_file(self.kubeconfig());
        let log = self.log();
        let file = |source| Error::File { path: log.clone(), source };
        let out = fs::File::create(&log).map_err(file)?;
        let copy = out.try_clone().map_err(file)?;
        let started = Instant::now();
        self.started = started;
        let child = Command::new(&self.program)
            .arg("up")
            .arg("--data-dir")
            .arg(self.data_dir())
            .args(["--bind-address", "127.0.0.1", "--node-name", NODE, "--secure-port", &port.to_string()])
            .args(&self.args)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(copy)
            // Ctrl-C ends the measurement, which then shuts the server down.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|source| Error::Start { program: self.program.display().to_string(), source })?;
        self.child = Some(child);
        // Its certificate is known only after it has started.
        let mut config = Config::new(format!("https://127.0.0.1:{port}"));
        config.insecure = true;
        let probe = Client::new(Https::new(&config)?, "kemudi-bench");
        loop {
            if probe.bytes(request(Method::GET, "/readyz", JSON, None)?).await.is_ok() {
                return Ok(started.elapsed());
            }
            if let Some(status) = self.child.as_mut().and_then(|c| c.try_wait().ok().flatten()) {
                self.child = None;
                let log = fs::read_to_string(&log).unwrap_or_default();
                return Err(Error::Ended { status: status.to_string(), log });
            }
            if started.elapsed() > PATIENCE {
                return Err(Error::Late { what: "/readyz".into(), limit: PATIENCE });
            }
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// Shuts the server down and keeps its data.
    pub async fn stop(&mut self) -> Result<(), Error> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        if let Some(pid) = child.id().and_then(|p| i32::try_from(p).ok()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        match timeout(PATIENCE, child.wait()).await {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::Late { what: "the end of the server".into(), limit: PATIENCE }),
        }
    }

    /// Stops the server and removes what it made.
    pub async fn purge(&mut self) -> Result<(), Error> {
        self.stop().await?;
        let dir = self.data_dir();
        if !dir.exists() {
            return Ok(());
        }
        let failed = |source| Error::Start { program: self.program.display().to_string(), source };
        let args = ["down", "--purge", "--data-dir"];
        let down = Command::new(&self.program).args(args).arg(&dir).output().await.map_err(failed)?;
        if down.status.success() {
            return Ok(());
        }
        let log = String::from_utf8_lossy(&down.stderr).into_owned();
        Err(Error::Ended { status: down.status.to_string(), log })
    }

    /// Purges, and removes the directory that all starts had.
    pub async fn remove(&mut self) -> Result<(), Error> {
        self.purge().await?;
        let _ = fs::remove_file(self.log());
        // Other files in it stay.
        let _ = fs::remove_dir(&self.work);
        Ok(())
    }

    /// Usage of all processes of the server: its children, and others that use its directory.
    pub fn usage(&self) -> Result<Usage, Error> {
        let root = self.child.as_ref().and_then(Child::id).unwrap_or_default();
        let all = processes();
        let dir = self.data_dir().display().to_string();
        let mut ours: Vec<u32> = vec![root];
        ours.extend(all.iter().filter(|(_, p)| p.command.contains(&dir)).map(|(pid, _)| *pid));
        loop {
            let more: Vec<u32> = all
                .iter()
                .filter(|(pid, p)| ours.contains(&p.parent) && !ours.contains(pid))
                .map(|(pid, _)| *pid)
                .collect();
            if more.is_empty() {
                break;
            }
            ours.extend(more);
        }
        ours.sort_unstable();
        ours.dedup();
        let mut total = Usage::default();
        for pid in ours {
            let Some(p) = all.get(&pid) else { continue };
            total.processes += 1;
            if pid == root {
                total.server_bytes = p.memory_bytes;
            }
            if p.command.trim_start().starts_with(SHIM) {
                total.shim_bytes += proportional(pid);
            }
            total.memory_bytes += p.memory_bytes;
            total.cpu += p.cpu;
        }
        if total.processes == 0 {
            return Err(Error::Answer("no process of the server is running".into()));
        }
        Ok(total)
    }
}

/// Memory of a process, of which shared pages count by their part (`Pss`).
fn proportional(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let kilobytes = text.lines().find_map(|l| l.strip_prefix("Pss:")?.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}

/// A port that was free a moment ago.
fn free_port() -> Result<u16, Error> {
    let any = std::net::TcpListener::bind(("127.0.0.1", 0)).and_then(|l| l.local_addr());
    any.map(|a| a.port()).map_err(|source| Error::File { path: "a free port".into(), source })
}

struct Process {
    parent: u32,
    command: String,
    memory_bytes: u64,
    cpu: Duration,
}

/// All processes of this machine that can be read.
fn processes() -> BTreeMap<u32, Process> {
    let ticks = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100).max(1) as f64;
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| Some((pid, read_process(&Path::new("/proc").join(pid.to_string()), ticks)?))).collect()
}

fn read_process(dir: &Path, ticks: f64) -> Option<Process> {
    let stat = fs::read_to_string(dir.join("stat")).ok()?;
    let (parent, spent) = parse_stat(&stat)?;
    let status = fs::read_to_string(dir.join("status")).ok()?;
    let resident = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap_or("0");
    let kilobytes: u64 = resident.split_whitespace().next()?.parse().ok()?;
    let command = fs::read(dir.join("cmdline")).ok()?;
    Some(Process {
        parent,
        command: String::from_utf8_lossy(&command).replace('\0', " "),
        memory_bytes: kilobytes * 1024,
        cpu: Duration::from_secs_f64(spent as f64 / ticks),
    })
}

/// The parent and the clock ticks spent, out of `/proc/PID/stat`. The name in it may contain anything, so parsing starts after its
/// last parenthesis.
fn parse_stat(stat: &str) -> Option<(u32, u64)> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let spent = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some((fields.get(1)?.parse().ok()?, spent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_may_hold_anything() {
        let stat = "12 (a) b (c) S 7 12 12 0 -1 4194560 100 0 0 0 30 12 0 0 20 0 1 0 5 6 7";
        assert_eq!(parse_stat(stat), Some((7, 42)));
        assert_eq!(parse_stat("garbage"), None);
    }

    #[test]
    fn this_process_uses_something() {
        let all = processes();
        let me = all.get(&std::process::id()).unwrap();
        assert!(me.memory_bytes > 100_000 && all.contains_key(&me.parent));
    }
}
