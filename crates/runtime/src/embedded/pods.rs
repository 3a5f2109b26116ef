//! Pods: starts shims, receives their notices, adopts and ends them.

use std::os::fd::AsFd;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, socketpair};
use nix::unistd::Pid;

use super::cleaning::{CleanUp, Found, retry, set_aside};
use super::shim_link::{Link, Peer};
use super::{ContainerEntry, Embedded, Inner, PodEntry, blocking};
use crate::api::*;
use crate::records::{self, VERSION};
use crate::spec::{self, Birth, Call, ContainerSummary, Message, Notice, PodRecord, ShimRecord, StateRecord};
use crate::{cgroup, shim, sysctl, wire};

/// The timeout of a shim's start.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How long after a shutdown request a shim is killed, and its containers with it.
pub(super) const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// The cgroup of shims. It is not below the agent's, whose end must not end them, nor the pod's, whose limits belong to the user.
const SHIM_CGROUP: &str = "shims";
/// Smaller ids are users of the host.
const MIN_FIRST_ID: u32 = 65536;
/// The cgroup, below a pod's, of processes that belong to no container.
const REAPER_CGROUP: &str = "sandbox";

impl PodEntry {
    pub(super) fn describe(&self) -> Pod {
        let alive = self.link.is_some();
        Pod {
            id: self.record.config.id.clone(),
            state: if alive { PodState::Ready } else { PodState::NotReady },
            created_at: self.record.created_at,
            shim_pid: self.shim.as_ref().filter(|_| alive).map(|s| s.pid),
            config: self.record.config.clone(),
        }
    }
}

impl ShimRecord {
    /// Whether this very process still runs.
    pub(super) fn alive(&self) -> bool {
        self.boot == spec::boot_id() && spec::start_time(self.pid) == Some(self.start_time)
    }

    pub(super) fn kill(&self) {
        if self.alive() {
            let _ = kill(Pid::from_raw(self.pid), Signal::SIGKILL);
        }
    }
}

fn check(config: &PodConfig) -> Result<()> {
    let name = |text: &str| {
        !text.is_empty() && text.len() <= 128 && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    if !name(&config.id) || config.id.starts_with('.') {
        return Err(Error::Invalid { field: "pod id", message: format!("{:?}", config.id) });
    }
    let parts = config.cgroup_parent.split('/');
    if config.cgroup_parent.is_empty() || !parts.clone().all(|p| name(p) && !p.starts_with('.')) {
        return Err(Error::Invalid { field: "cgroup parent", message: format!("{:?}", config.cgroup_parent) });
    }
    if !config.runtime_handler.is_empty() {
        return Err(Error::NoHandler { handler: config.runtime_handler.clone() });
    }
    if config.hostname.len() > 64 {
        return Err(Error::Invalid { field: "hostname", message: "longer than 64 bytes".into() });
    }
    if let Some(IdRange { first, length }) = config.user_namespace {
        let invalid = |message: &str| Err(Error::Invalid { field: "user namespace", message: message.into() });
        // Users of the host are never users of a pod, whatever the request.
        if first < MIN_FIRST_ID || length == 0 || first.checked_add(length).is_none() {
            return invalid(&format!("users {first} to {first}+{length}"));
        }
        if config.netns.is_none() || config.host_ipc || config.pid == PidMode::Host {
            return invalid("not together with the host's network, IPC or pid namespace");
        }
    }
    for name in config.sysctls.keys() {
        // A parameter of the whole machine is never set for a pod, whatever the request.
        let invalid = |message: String| Err(Error::Invalid { field: "sysctl", message });
        let dotted = sysctl::dotted(name);
        if dotted.split('.').any(|p| p.is_empty() || p.starts_with('/')) {
            return invalid(format!("{name:?}"));
        }
        let own = match sysctl::namespace(&dotted) {
            Some(sysctl::Namespace::Ipc) => !config.host_ipc,
            Some(sysctl::Namespace::Net) => config.netns.is_some(),
            None => false,
        };
        if !own {
            return invalid(format!("{name:?} is not in a separate kernel namespace"));
        }
    }
    Ok(())
}

impl Embedded {
    pub(super) async fn run_pod(&self, config: PodConfig) -> Result<Pod> {
        check(&config)?;
        let id = config.id.clone();
        let inner = self.inner.clone();
        let cgroup = inner.cgroup(&config.cgroup_parent);
        let reaper_cgroups = match config.pid {
            PidMode::Pod => inner.hierarchies.directories(&format!("{cgroup}/{REAPER_CGROUP}")),
            PidMode::Container | PidMode::Host => Vec::new(),
        };
        let record = Arc::new(PodRecord { version: VERSION, created_at: inner.now(), cgroup, reaper_cgroups, config });
        inner.keep_cgroup(&record.cgroup).await;
        {
            let mut state = inner.state();
            if state.pods.contains_key(&id) {
                return Err(Error::AlreadyExists { what: "pod", id });
            }
            let entry = PodEntry { record: record.clone(), shim: None, link: None, leftovers: Arc::default() };
            state.add_pod(entry);
        }
        match self.start_shim(&record).await {
            Ok(()) => Ok(inner.pod(&id)?.describe()),
            Err(e) => {
                inner.state().remove_pod(&id);
                if let Err(clean) = inner.clean_pod(&record, CleanUp::Everything).await {
                    tracing::warn!(pod = id, error = %clean, "cleaning up a pod that could not start failed");
                }
                Err(e)
            }
        }
    }

    async fn start_shim(&self, record: &Arc<PodRecord>) -> Result<()> {
        let (inner, prepared) = (self.inner.clone(), record.clone());
        blocking(move || inner.prepare_pod(&prepared)).await?;
        let id = &record.config.id;
        let directory = self.inner.pod_directory(id);
        let fail = |message: String| Error::PodStart { pod: id.clone(), message };
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)
            .map_err(|e| fail(format!("socket: {e}")))?;
        let birth = Birth { directory: directory.clone(), open_files: crate::open_files::before() };
        let birth = serde_json::to_vec(&birth).map_err(|e| fail(format!("its directory: {e}")))?;
        wire::send(ours.as_fd(), &birth, &[], MsgFlags::empty()).map_err(|e| fail(format!("socket: {e}")))?;
        let mut child = tokio::process::Command::new(self.inner.program.path())
            .arg0(shim::NAME)
            .arg(id)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| fail(format!("{}: {e}", self.inner.options.shim_program.display())))?;
        let pid = child.id().unwrap_or_default();
        // Between two pods it is empty, and whoever tidies the machine may have removed it.
        let cgroup = self.inner.cgroup(SHIM_CGROUP);
        let created = self.inner.hierarchies.create(&cgroup, &Resources::default());
        created.map_err(|e| fail(format!("cgroup {cgroup}: {e}")))?;
        for directory in self.inner.hierarchies.directories(&cgroup) {
            let procs = directory.directory.join("cgroup.procs");
            std::fs::write(&procs, pid.to_string()).map_err(|e| fail(format!("{}: {e}", procs.display())))?;
        }
        // It is a child of this process as long as this runs; waiting for it needs no thread. A shim whose agent ends early exits.
        let (keep, kept) = tokio::sync::oneshot::channel::<()>();
        tokio::spawn(async move {
            if kept.await.is_err() {
                let _ = child.start_kill(); // it may have ended
            }
            child.wait().await
        });
        let peer = Peer::new(ours).map_err(|e| fail(e.to_string()))?;
        let first = tokio::time::timeout(START_TIMEOUT, peer.receive()).await;
        match first.map_err(|_| fail("the shim did not answer".into()))?.map_err(|e| fail(e.to_string()))? {
            Some((Message::Notice(Notice::Ready), _)) => {}
            Some((Message::Notice(Notice::Failed(message)), _)) => return Err(fail(message)),
            _ => return Err(fail("the shim ended".into())),
        }
        let shim = records::read(&directory.join("shim.json"))
            .map_err(|message| Error::Corrupt { path: directory.join("shim.json"), message })?;
        self.inner.listen(record, shim, peer).await?;
        let _ = keep.send(()); // the receiver always waits
        Ok(())
    }

    /// Reads every pod of the root directory and connects to the shims that live.
    pub(super) async fn adopt(&self) -> Result<()> {
        let inner = self.inner.clone();
        let prefix = inner.cgroup(SHIM_CGROUP);
        inner.hierarchies.create(&prefix, &Resources::default()).map_err(Error::io(format!("cgroup {prefix}")))?;
        let hooks = inner.clone();
        blocking(move || {
            hooks.end_abandoned_hooks();
            Ok(())
        })
        .await?;
        let pods = inner.root.join("pods");
        let entries = std::fs::read_dir(&pods).map_err(Error::io(pods.display().to_string()))?;
        let mut found = Vec::new();
        for directory in entries.flatten().map(|e| e.path()) {
            if let Err(error) = inner.adopt_pod(&directory, &mut found).await {
                tracing::warn!(directory = %directory.display(), %error, "adopting a pod failed");
            }
        }
        tokio::spawn(inner.clone().remove_found(found));
        Ok(())
    }

    pub(super) async fn stop_pod(&self, id: &str) -> Result<()> {
        let Ok(entry) = self.inner.pod(id) else { return Ok(()) };
        let shut_down = async |link: &Link| {
            let _ = link.call(Call::Shutdown).await;
            link.wait_gone().await;
        };
        let ended = match &entry.link {
            Some(link) => tokio::time::timeout(STOP_TIMEOUT, shut_down(link)).await.is_ok(),
            None => false,
        };
        if !ended {
            self.inner.end_shim(&entry.record.config.id, entry.shim).await;
            if let Some(link) = &entry.link {
                let _ = tokio::time::timeout(STOP_TIMEOUT, link.wait_gone()).await;
            }
        }
        self.inner.clean_stopped(&entry.record, &entry.leftovers).await
    }

    pub(super) async fn remove_pod(&self, id: &str) -> Result<()> {
        let Ok(entry) = self.inner.pod(id) else { return Ok(()) };
        self.stop_pod(id).await?;
        let containers: Vec<_> = self.inner.state().containers_in(id).map(|c| c.record.clone()).collect();
        for container in &containers {
            self.inner.run_poststop(container).await?;
        }
        self.inner.clean_pod(&entry.record, CleanUp::Everything).await?;
        self.inner.state().remove_pod(id);
        Ok(())
    }
}

impl Inner {
    fn prepare_pod(&self, record: &PodRecord) -> Result<()> {
        let config = &record.config;
        let directory = self.pod_directory(&config.id);
        let shm = directory.join("shm");
        for path in [&directory.join("containers"), &shm] {
            std::fs::create_dir_all(path).map_err(Error::io(path.display().to_string()))?;
        }
        let files = [("hostname", Some(format!("{}\n", config.hostname)))];
        for (name, content) in
            files.into_iter().chain([("resolv.conf", config.resolv_conf.clone()), ("hosts", config.hosts.clone())])
        {
            if let Some(content) = content {
                std::fs::write(directory.join(name), content).map_err(Error::io(name))?;
            }
        }
        if !config.host_ipc {
            let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
            mount(Some("shm"), &shm, Some("tmpfs"), flags, Some("mode=1777,size=65536k"))
                .map_err(|e| Error::io("mounting the pod's shared memory")(e.into()))?;
        }
        self.hierarchies
            .create(&record.cgroup, &config.resources)
            .and_then(|()| self.hierarchies.bound_descendants(&record.cgroup))
            .map_err(Error::io(format!("cgroup {}", record.cgroup)))?;
        if !record.reaper_cgroups.is_empty() {
            let cgroup = format!("{}/{REAPER_CGROUP}", record.cgroup);
            self.hierarchies.create(&cgroup, &Resources::default()).map_err(Error::io(format!("cgroup {cgroup}")))?;
        }
        records::write(&directory.join("pod.json"), record).map_err(Error::io("pod.json"))
    }

    /// Ends the recorded shim of a pod to which there is no connection.
    async fn end_shim(&self, pod: &str, known: Option<ShimRecord>) {
        let recorded = || records::read::<ShimRecord>(&self.pod_directory(pod).join("shim.json")).ok().flatten();
        let Some(shim) = known.or_else(recorded) else { return };
        shim.kill();
        let pid = shim.pid;
        let ended = move || if shim.alive() { Err(std::io::ErrorKind::ResourceBusy.into()) } else { Ok(()) };
        if retry(ended).await.is_err() {
            tracing::warn!(pod, pid, "a shim does not end");
        }
    }

    /// Adopts a pod. What has to be removed is added to `found`.
    async fn adopt_pod(self: &Arc<Self>, directory: &Path, found: &mut Vec<Found>) -> Result<()> {
        let corrupt = |path: &Path, message| Error::Corrupt { path: path.to_owned(), message };
        let path = directory.join("pod.json");
        let Some(record) = records::read::<PodRecord>(&path).map_err(|m| corrupt(&path, m))? else {
            // Its creation or its removal was interrupted, and nothing runs.
            found.push(set_aside(directory)?);
            return Ok(());
        };
        let record = Arc::new(record);
        let path = directory.join("shim.json");
        let shim = records::read::<ShimRecord>(&path).map_err(|m| corrupt(&path, m))?;
        let pod = &record.config.id;
        let entry = PodEntry { record: record.clone(), shim: shim.clone(), link: None, leftovers: Arc::default() };
        self.state().add_pod(entry);
        for entry in std::fs::read_dir(directory.join("containers")).into_iter().flatten().flatten() {
            let path = entry.path().join("config.json");
            let Some(config) = records::read_part::<ContainerSummary>(&path).map_err(|m| corrupt(&path, m))? else {
                found.push(set_aside(&entry.path())?);
                continue;
            };
            let path = entry.path().join("state.json");
            let state = records::read::<StateRecord>(&path).map_err(|m| corrupt(&path, m))?;
            let state = state.unwrap_or_else(|| StateRecord::created(&config.id));
            self.state().add_container(ContainerEntry::new(Arc::new(config), state));
        }
        match shim.as_ref().filter(|s| s.alive()).map(|_| Peer::connect(directory)) {
            Some(Ok(peer)) => {
                self.listen(&record, shim, peer).await?;
                self.resume_poststart(pod);
                Ok(())
            }
            other => {
                if let Some(Err(error)) = other {
                    tracing::warn!(pod, %error, "the shim runs but does not answer; it is killed");
                    if let Some(shim) = shim {
                        shim.kill();
                    }
                }
                self.pod_is_gone(pod);
                self.clean_later(pod).await;
                found.push(Found::Dead(pod.clone()));
                Ok(())
            }
        }
    }

    /// Subscribes to a shim: receives every state, then notices until the shim ends.
    async fn listen(self: &Arc<Self>, record: &Arc<PodRecord>, shim: Option<ShimRecord>, peer: Peer) -> Result<()> {
        let pod = record.config.id.clone();
        let link = Arc::new(Link::new(peer));
        let (inner, reader, name, process) = (self.clone(), link.clone(), pod.clone(), shim.clone());
        tokio::spawn(async move {
            loop {
                match reader.peer.receive().await {
                    Ok(Some((Message::Reply { seq, result }, _))) => reader.answer(seq, result),
                    Ok(Some((Message::Notice(Notice::State(state)), _))) => inner.handle_notice(&name, state),
                    Ok(Some((Message::Notice(Notice::Hooks { container, pid }), _))) => {
                        tokio::spawn(inner.clone().run_create_hooks(container, pid, reader.clone()));
                    }
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(error) => {
                        tracing::warn!(pod = name, %error, "the connection to a shim is lost; it is killed");
                        if let Some(process) = &process {
                            process.kill();
                        }
                        break;
                    }
                }
            }
            inner.kill_running(&name).await;
            inner.pod_is_gone(&name);
            reader.close();
            inner.emit(Event::PodStopped { pod: name });
        });
        let answer = link.call(Call::Subscribe).await;
        if let Some(Err(message)) = answer {
            return Err(Error::PodStart { pod, message });
        }
        let mut state = self.state();
        if *link.gone.borrow() {
            return Err(Error::ShimGone { pod });
        }
        if let Some(entry) = state.pods.get_mut(&pod) {
            entry.shim = shim;
            entry.link = Some(link);
        }
        Ok(())
    }

    fn handle_notice(&self, pod: &str, state: StateRecord) {
        let Ok(entry) = self.container(&state.id) else { return };
        let (container, now, exit_code) = (state.id.clone(), state.state, state.exit_code);
        let before = entry.state.send_replace(state).state;
        if before == now {
            return;
        }
        let pod = pod.to_owned();
        match now {
            ContainerState::Running => self.emit(Event::ContainerStarted { pod, container }),
            ContainerState::Exited => {
                self.emit(Event::ContainerExited { pod, container, exit_code: exit_code.unwrap_or(128) });
            }
            ContainerState::Created | ContainerState::Unknown => {}
        }
    }

    /// Kills processes that may outlive a shim: those of containers that it did not report as exited.
    async fn kill_running(&self, pod: &str) {
        let running: Vec<_> = {
            let state = self.state();
            let of_pod = state.containers_in(pod);
            of_pod.filter(|c| c.state.borrow().state == ContainerState::Running).map(|c| c.record.clone()).collect()
        };
        if !running.is_empty() {
            let killed = blocking(move || {
                running.iter().for_each(|record| cgroup::kill_all(&record.cgroups));
                Ok(())
            });
            let _ = killed.await; // nothing of it fails
        }
    }

    /// Handles the end of a shim. Containers that it did not report as exited have ended with it in an unknown way.
    fn pod_is_gone(&self, pod: &str) {
        let containers: Vec<ContainerEntry> = {
            let mut state = self.state();
            if let Some(entry) = state.pods.get_mut(pod) {
                entry.link = None;
            }
            state.containers_in(pod).cloned().collect()
        };
        for entry in containers {
            let id = &entry.record.id;
            let path = self.container_directory(pod, id).join("state.json");
            let mut known = match records::read::<StateRecord>(&path) {
                Ok(Some(known)) => known,
                _ => entry.state.borrow().clone(),
            };
            if known.state == ContainerState::Running {
                known.state = ContainerState::Unknown;
                known.pid = None;
                known.finished_at = Some(self.now());
                known.exit_code = Some(137);
                known.reason = Some("ContainerStatusUnknown".into());
                known.message = Some("the process that watched the container was killed".into());
                if let Err(error) = records::write(&path, &known) {
                    tracing::warn!(container = id, %error, "writing the state of a container failed");
                }
            }
            let running = entry.state.borrow().state == ContainerState::Running;
            let exit_code = known.exit_code.unwrap_or(137);
            entry.state.send_replace(known);
            if running {
                self.emit(Event::ContainerExited { pod: pod.to_owned(), container: id.clone(), exit_code });
            }
        }
    }
}
