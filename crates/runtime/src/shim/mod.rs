//! The process that stands for a pod: holds its namespaces, is the parent of its containers, writes their logs and states.
//!
//! **Invariants.** One thread, no async runtime: it forks. It inherits nothing but the socket that is its standard input, and it is
//! not dumpable, nor is any child of it before it runs a container's program. It polls; every descriptor it reads is non-blocking or
//! known to be ready. It runs until a shutdown request; otherwise only SIGKILL ends it, and its containers with it (parent death
//! signal). It writes only to the pod's directory, log files and cgroups. What it reads of a container's secrets (variables, output,
//! commands) does not stay in its memory, since its copies enter other containers; and it accepts from a process that enters a
//! container only reports that the container cannot forge ([`live::Report`]).

mod command;
mod keyring;
mod live;
mod log;
mod namespaces;
mod pace;
mod process;
mod propagation;
mod reaper;
mod report;
mod rootfs;
mod streams;
mod user;

pub(crate) use rootfs::EMPTY_LAYER;
pub(crate) use user::{MAX_ACCOUNTS, resolve_user};

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr, accept4, bind, listen, socket};
use nix::sys::stat::{Mode, umask};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::{Pid, setsid};

use crate::api::{ContainerState, PidMode};
use crate::memory::wipe;
use crate::records::{self, VERSION};
use crate::spec::{self, Birth, Call, ContainerRecord, Message, Notice, PodRecord, Request, ShimContainer, ShimRecord};
use crate::{cgroup, descriptors, sys, wire};
use live::{Live, Progress, Report};
pub use log::rfc3339;
use pace::LogBudget;
use process::{PidNamespace, PodNamespaces, Role};
use reaper::{ProcMount, Reaper};
pub use report::{ReportPacket, read_report};
pub use rootfs::masked_paths;
use streams::Streams;

/// The name under which a program runs as shim, in lists of processes: that of the program that usually holds a pod's namespaces.
/// Processes of the pod may see it, so it contains nothing of the host.
pub const NAME: &str = "/pause";
pub(crate) const SOCKET: &str = "shim.sock";
/// The error of a start whose hooks nobody can run.
const NO_AGENT: &str = "the node agent ended while hooks of the container ran";

/// Runs the shim. Standard input is a socket to the agent that started it, which holds a [`Birth`]. The caller must not have started a
/// thread.
pub fn main() -> ExitCode {
    let Some(birth) = read_birth() else {
        eprintln!("the shim is started by the node agent");
        return ExitCode::from(2);
    };
    // The agent raises its limit of open files; containers get the original one.
    if let Some(Err(e)) = birth.open_files.map(crate::open_files::lower) {
        eprintln!("the limit of open files: {e}");
    }
    match Shim::start(&birth.directory) {
        Ok(mut shim) => match shim.run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => {
                shim.kill_everything();
                ExitCode::FAILURE
            }
        },
        Err(message) => {
            let packet = serde_json::to_vec(&Message::Notice(Notice::Failed(message))).unwrap_or_default();
            let _ = wire::send(io::stdin().as_fd(), &packet, &[], MsgFlags::empty());
            ExitCode::FAILURE
        }
    }
}

/// Whether this process was started as a shim.
pub fn is_requested() -> bool {
    std::env::args_os().next().is_some_and(|name| name == NAME)
}

fn read_birth() -> Option<Birth> {
    let (packet, _) = wire::receive(io::stdin().as_fd(), MsgFlags::MSG_DONTWAIT).ok()?;
    serde_json::from_slice(&packet).ok()
}

type ConnectionId = u64;

struct Connection {
    socket: OwnedFd,
    subscribed: bool,
}

/// A command run in a container besides its first process.
struct Extra {
    connection: ConnectionId,
    /// The helper until it has created the process.
    pid: Option<i32>,
    /// Open until the command runs. Then the client has its answer.
    report: Option<(Report, u64)>,
}

type ExtraId = u64;

/// The namespaces of a running container.
struct Target {
    pids: OwnedFd,
    mounts: OwnedFd,
}

struct Shim {
    directory: PathBuf,
    pod: PodRecord,
    signals: SignalFd,
    listener: OwnedFd,
    connections: BTreeMap<ConnectionId, Connection>,
    next_connection: ConnectionId,
    containers: BTreeMap<String, Live>,
    extras: BTreeMap<ExtraId, Extra>,
    next_extra: ExtraId,
    /// Process 1 of the pod's own pid namespace.
    reaper: Option<Reaper>,
    /// The pod's own user namespace.
    users: Option<OwnedFd>,
    /// The mount namespace for volumes with mount propagation ([`propagation`]).
    shared: Option<OwnedFd>,
    /// The budget of the logs of all containers.
    logs: LogBudget,
    stopping: bool,
}

/// The owner of a descriptor in the poll set.
#[derive(Clone)]
enum Token {
    Signals,
    Listener,
    Connection(ConnectionId),
    Report(String),
    ExtraReport(ExtraId),
    Container(String, live::Port),
}

impl Shim {
    fn start(directory: &Path) -> Result<Shim, String> {
        let say = |what: &'static str| move |e: nix::Error| format!("{what}: {e}");
        let say_io = |what: &'static str| move |e: io::Error| format!("{what}: {e}");
        descriptors::close_all_but(&[]).map_err(say_io("closing descriptors"))?;
        sys::prctl(libc::PR_SET_DUMPABLE, 0).map_err(say_io("dumpable"))?;
        // It is run from a descriptor, whose number would be its name.
        let _ = nix::sys::prctl::set_name(c"pause");
        let directory = std::path::absolute(directory).map_err(say_io("pod directory"))?;
        let pod: PodRecord = records::read(&directory.join("pod.json"))?
            .ok_or_else(|| format!("{}: no pod.json", directory.display()))?;
        let _ = setsid(); // fails if we lead a session already
        sys::prctl(libc::PR_SET_CHILD_SUBREAPER, 1).map_err(say_io("subreaper"))?;
        // Children inherit the agent's setting of huge pages; containers should have the default.
        let _ = sys::prctl(libc::PR_SET_THP_DISABLE, 0);
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None).map_err(say("signals"))?;
        let mut chld = SigSet::empty();
        chld.add(Signal::SIGCHLD);
        let signals =
            SignalFd::with_flags(&chld, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC).map_err(say("signals"))?;

        std::env::set_current_dir(&directory).map_err(say_io("pod directory"))?;
        // Only the owner may access the shim's socket and files; processes of containers set their own umask.
        umask(Mode::from_bits_truncate(0o177));
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let listener = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).map_err(say("socket"))?;
        let _ = std::fs::remove_file(SOCKET);
        // Relative, since the address has at most 108 bytes.
        let address = UnixAddr::new(SOCKET).map_err(say("socket"))?;
        bind(listener.as_raw_fd(), &address).map_err(say("binding the socket"))?;
        umask(Mode::from_bits_truncate(0o077));
        listen(&listener, Backlog::new(16).map_err(say("socket"))?).map_err(say("listening"))?;
        std::env::set_current_dir("/").map_err(say_io("/"))?;

        let users = namespaces::make(&pod.config)?;
        let shared = users.as_ref().map(|_| propagation::make(&directory)).transpose();
        let shared = shared.map_err(say_io("mount namespace of volumes"))?;
        let mut shim = Shim {
            directory,
            pod,
            signals,
            listener,
            connections: BTreeMap::new(),
            next_connection: 1,
            containers: BTreeMap::new(),
            extras: BTreeMap::new(),
            next_extra: 1,
            reaper: None,
            users,
            shared,
            logs: LogBudget::new(sys::uptime()),
            stopping: false,
        };
        if shim.pod.config.pid == PidMode::Pod {
            shim.reaper =
                Some(reaper::start(&shim.pod, shim.users.as_ref()).map_err(|e| format!("pod's pid namespace: {e}"))?);
        }
        let pid = std::process::id() as i32;
        let start_time = spec::start_time(pid).ok_or("cannot read own start time")?;
        let boot = spec::boot_id();
        let record = ShimRecord { version: VERSION, pid, start_time, boot, has_hooks: true, has_targets: true };
        records::write(&shim.directory.join("shim.json"), &record).map_err(say_io("shim.json"))?;
        let birth = io::stdin().as_fd().try_clone_to_owned().map_err(say_io("stdin"))?;
        // Detach from the agent's terminal. From here on errors go to the agent as messages.
        let null = File::options().read(true).write(true).open("/dev/null").map_err(say_io("/dev/null"))?;
        nix::unistd::dup2_stdin(&null).map_err(say("stdin"))?;
        nix::unistd::dup2_stdout(&null).map_err(say("stdout"))?;
        nix::unistd::dup2_stderr(&null).map_err(say("stderr"))?;
        let id = shim.add_connection(birth);
        shim.send(id, &Message::Notice(Notice::Ready), &[]);
        Ok(shim)
    }

    fn run(&mut self) -> io::Result<()> {
        while !self.stopping || !self.containers.values().all(|c| c.pid.is_none()) || !self.extras.is_empty() {
            for (token, events) in self.wait()? {
                self.handle(token, events)?;
            }
        }
        if let Some(Reaper { pid, .. }) = self.reaper.take() {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            let _ = waitpid(Pid::from_raw(pid), None);
        }
        let _ = std::fs::remove_file(self.directory.join(SOCKET));
        Ok(())
    }

    fn wait(&mut self) -> io::Result<Vec<(Token, PollFlags)>> {
        let pause = self.logs.pause(sys::uptime());
        // Rounded up, else it would wake too early again and again.
        let millis = |pause: Duration| u16::try_from(pause.as_millis() + 1).unwrap_or(u16::MAX);
        let timeout = pause.map_or(PollTimeout::NONE, |pause| PollTimeout::from(millis(pause)));
        let mut set: Vec<(BorrowedFd, PollFlags, Token)> = vec![
            (self.signals.as_fd(), PollFlags::POLLIN, Token::Signals),
            (self.listener.as_fd(), PollFlags::POLLIN, Token::Listener),
        ];
        for (id, connection) in &self.connections {
            set.push((connection.socket.as_fd(), PollFlags::POLLIN, Token::Connection(*id)));
        }
        for (id, extra) in &self.extras {
            if let Some((report, _)) = &extra.report {
                set.push((report.as_fd(), PollFlags::POLLIN, Token::ExtraReport(*id)));
            }
        }
        for (id, container) in &self.containers {
            if let Some(report) = &container.report {
                set.push((report.as_fd(), PollFlags::POLLIN, Token::Report(id.clone())));
            }
            container.ports(pause.is_some(), &mut |fd, events, port| {
                set.push((fd, events, Token::Container(id.clone(), port)))
            });
        }
        let mut fds: Vec<PollFd> = set.iter().map(|(fd, events, _)| PollFd::new(*fd, *events)).collect();
        loop {
            match poll(&mut fds, timeout) {
                Err(Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
                Ok(_) => break,
            }
        }
        let ready = |fd: &PollFd| fd.revents().filter(|r| !r.is_empty());
        Ok(fds.iter().zip(&set).filter_map(|(fd, (_, _, token))| Some((token.clone(), ready(fd)?))).collect())
    }

    /// Tokens may be stale: an earlier one of the same round may have removed their owner.
    fn handle(&mut self, token: Token, events: PollFlags) -> io::Result<()> {
        match token {
            Token::Signals => {
                while let Ok(Some(_)) = self.signals.read_signal() {}
                self.reap();
            }
            Token::Listener => {
                while let Ok(fd) = accept4(self.listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC) {
                    // SAFETY: accept4 has just given us this descriptor.
                    let socket = unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) };
                    self.add_connection(socket);
                }
            }
            Token::Connection(id) => self.receive(id),
            Token::Report(id) => self.report(&id),
            Token::ExtraReport(id) => self.extra_report(id),
            Token::Container(id, port) => {
                if let Some(container) = self.containers.get_mut(&id) {
                    container.ready(port, events, &mut self.logs);
                }
            }
        }
        Ok(())
    }

    fn add_connection(&mut self, socket: OwnedFd) -> ConnectionId {
        let id = self.next_connection;
        self.next_connection += 1;
        self.connections.insert(id, Connection { socket, subscribed: false });
        id
    }

    fn receive(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get(&id) else { return };
        match wire::receive(connection.socket.as_fd(), MsgFlags::MSG_DONTWAIT) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => self.disconnect(id),
            Ok((packet, _)) if packet.is_empty() => self.disconnect(id),
            Ok((mut packet, fds)) => {
                let request = serde_json::from_slice::<Request>(&packet);
                wipe(&mut packet);
                match request {
                    Ok(request) => self.call(id, request, fds),
                    Err(e) => self.reply(id, 0, Err(format!("bad request: {e}"))),
                }
            }
        }
    }

    fn call(&mut self, from: ConnectionId, Request { seq, call }: Request, fds: Vec<OwnedFd>) {
        let result = match call {
            Call::Subscribe => {
                if let Some(connection) = self.connections.get_mut(&from) {
                    connection.subscribed = true;
                }
                let states: Vec<_> = self.containers.values().map(|c| c.state.clone()).collect();
                for state in states {
                    self.send(from, &Message::Notice(Notice::State(state)), &[]);
                }
                Ok(())
            }
            Call::Start { container } => match self.start_container(&container, from, seq) {
                Ok(()) => return, // answered when the program runs
                Err(e) => Err(e),
            },
            Call::Proceed { container, error } => self.proceed(&container, error),
            Call::Signal { container, signal, all } => self.signal(&container, signal, all),
            Call::Forget { container } => match self.containers.get(&container) {
                Some(live) if live.pid.is_some() => Err(format!("container {container} is running")),
                _ => {
                    self.containers.remove(&container);
                    Ok(())
                }
            },
            Call::ReopenLog { container } => self
                .live(&container)
                .and_then(|live| live.log.reopen().map_err(|e| format!("log of container {container}: {e}"))),
            Call::Resize { container, rows, columns } => self.live(&container).map(|l| l.resize(rows, columns)),
            Call::Exec { container, argv, tty } => {
                let made = self.exec(&container, &argv, tty, fds, from, seq);
                argv.into_iter().for_each(|word| wipe(&mut word.into_bytes()));
                match made {
                    Ok(()) => return, // answered when the program runs
                    Err(e) => Err(e),
                }
            }
            Call::KillExec => {
                for pid in self.extras.values().filter(|e| e.connection == from).filter_map(|e| e.pid) {
                    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
                }
                Ok(())
            }
            Call::Attach { container, stdin } => self.live(&container).map(|l| l.attach(fds, stdin)),
            Call::Shutdown => {
                self.stopping = true;
                self.kill_everything();
                Ok(())
            }
        };
        self.reply(from, seq, result);
    }

    fn live(&mut self, id: &str) -> Result<&mut Live, String> {
        self.containers.get_mut(id).filter(|l| l.pid.is_some()).ok_or_else(|| format!("container {id} is not running"))
    }

    fn signal(&mut self, id: &str, signal: i32, all: bool) -> Result<(), String> {
        let live = self.live(id)?;
        if all && signal == libc::SIGKILL {
            cgroup::kill_all(&live.record.cgroups);
        }
        // This is its parent and has not reaped it, so the id still belongs to it.
        live.pid.map_or(Ok(()), |pid| sys::kill(pid, signal)).map_err(|e| e.to_string())
    }

    fn start_container(&mut self, id: &str, from: ConnectionId, seq: u64) -> Result<(), String> {
        if self.containers.contains_key(id) {
            return Err(format!("container {id} was started before"));
        }
        if self.stopping {
            return Err("the pod is being stopped".into());
        }
        let directory = self.directory.join("containers").join(id);
        let record: ShimContainer = records::read(&directory.join("config.json"))?
            .ok_or_else(|| format!("container {id} has not been created"))?;
        let target = match (self.pod.config.pid, &record.config.target_container) {
            (PidMode::Container, Some(target)) => Some(self.target(target)),
            _ => None,
        };
        let alone = self.pod.config.pid == PidMode::Container && target.is_none();
        let (mut live, child) = Live::new(record, alone, (from, seq)).map_err(|e| format!("container {id}: {e}"))?;
        let pid = sys::fork_into(0).map_err(|e| format!("fork: {e}"))?;
        if pid == 0 {
            let report = child.report.as_fd();
            let record = self.become_helper(id, report);
            let target = target.transpose().unwrap_or_else(|error| process::fail(report, &error));
            let pids = match (&self.reaper, &target) {
                (_, Some(Target { pids, mounts })) => {
                    PidNamespace::Join { pids, proc: Some(ProcMount { mounts, path: "/proc" }) }
                }
                (Some(reaper), None) => reaper.namespace(),
                (None, None) if alone => PidNamespace::New,
                (None, None) => PidNamespace::Host,
            };
            let pod = PodNamespaces { pids, users: self.users.as_ref(), shared: self.shared.as_ref() };
            process::launch(&record, &Role::First { state: &directory }, &pod, child.streams, report);
        }
        live.began(pid);
        live.directory = directory;
        self.containers.insert(id.to_owned(), live);
        Ok(())
    }

    /// The namespaces of a container that another one joins.
    fn target(&self, id: &str) -> Result<Target, String> {
        let running = self.containers.get(id).filter(|l| l.state.state == ContainerState::Running);
        let pid = running.and_then(|l| l.pid).ok_or_else(|| format!("target container {id} is not running"))?;
        // This is its parent and has not reaped it, so the id still belongs to it.
        let namespace = |name: &str| {
            let path = format!("/proc/{pid}/ns/{name}");
            File::open(&path).map(OwnedFd::from).map_err(|e| format!("target container {id}: {path}: {e}"))
        };
        Ok(Target { pids: namespace("pid")?, mounts: namespace("mnt")? })
    }

    /// In a copy of this process that enters a container: wipes data of other containers and reads the record of this one.
    fn become_helper(&mut self, id: &str, report: BorrowedFd) -> ContainerRecord {
        self.containers.values_mut().for_each(Live::wipe);
        let file = self.directory.join("containers").join(id).join("config.json");
        match records::read(&file) {
            Ok(Some(record)) => record,
            Ok(None) => process::fail(report, &format!("container {id} has been removed")),
            Err(error) => process::fail(report, &format!("container {id}: {error}")),
        }
    }

    fn report(&mut self, id: &str) {
        let Some(live) = self.containers.get_mut(id) else { return };
        let Some(progress) = live.progress() else { return };
        let (from, seq) = live.asked_by;
        match progress {
            Progress::Waiting => {}
            Progress::Runs => {
                live.started();
                let state = live.state.clone();
                self.publish(&Message::Notice(Notice::State(state)));
                self.reply(from, seq, Ok(()));
            }
            Progress::AtHooks => {
                live.at_hooks = true;
                match (live.pid, self.connections.contains_key(&from)) {
                    (Some(pid), true) => {
                        let notice = Notice::Hooks { container: id.to_owned(), pid };
                        self.send(from, &Message::Notice(notice), &[]);
                    }
                    _ => self.fail_start(id, NO_AGENT.into()),
                }
            }
            Progress::Failed(message) => {
                // It is finished when it ends (see `reap`). A process that reports a failure might continue, so it is killed.
                if let Some(pid) = live.pid {
                    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
                }
                self.reply(from, seq, Err(message));
            }
        }
    }

    /// Lets a container go on that waits for hooks, or ends its start.
    fn proceed(&mut self, id: &str, error: Option<String>) -> Result<(), String> {
        let live = self.live(id)?;
        if !std::mem::take(&mut live.at_hooks) {
            return Err(format!("container {id} waits for no hooks"));
        }
        let mut go = || live.report.as_mut().map_or(Ok(()), |report| report.go().map_err(|e| e.to_string()));
        if let Some(message) = error.or_else(|| go().err()) {
            self.fail_start(id, message);
        }
        Ok(())
    }

    /// Ends a start that has not failed by itself. It is finished when its process ends (see `reap`).
    fn fail_start(&mut self, id: &str, message: String) {
        let Some(live) = self.containers.get_mut(id) else { return };
        live.at_hooks = false;
        live.failed(message.clone());
        let (from, seq) = live.asked_by;
        cgroup::kill_all(&live.record.cgroups);
        if let Some(pid) = live.pid {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        self.reply(from, seq, Err(message));
    }

    fn exec(
        &mut self,
        id: &str,
        argv: &[String],
        tty: bool,
        fds: Vec<OwnedFd>,
        from: ConnectionId,
        seq: u64,
    ) -> Result<(), String> {
        let mode = self.pod.config.pid;
        let live = self.containers.get(id).filter(|l| l.pid.is_some());
        let live = live.ok_or_else(|| format!("container {id} is not running"))?;
        let Some(pid) = live.pid.filter(|_| live.state.state == ContainerState::Running) else {
            return Err(format!("container {id} is not running"));
        };
        // Processes of the container may have frozen it. Helpers that join would stop, and not even end when they are killed.
        if cgroup::is_frozen(&live.record.cgroups) {
            return Err("cannot exec in a paused container".into());
        }
        let namespace = |name: &str| -> Result<OwnedFd, String> {
            let path = format!("/proc/{pid}/ns/{name}");
            File::open(&path).map(OwnedFd::from).map_err(|e| format!("{path}: {e}"))
        };
        let namespaces = [namespace("cgroup")?, namespace("mnt")?];
        let pid_namespace = if mode == PidMode::Host { None } else { Some(namespace("pid")?) };
        let mut fds = fds.into_iter();
        let streams = if tty {
            Streams::Terminal
        } else {
            Streams::Pipes { stdin: fds.next(), stdout: fds.next(), stderr: fds.next() }
        };
        let (mut report, theirs) = Report::new(tty, false).map_err(|e| format!("socket: {e}"))?;
        let pid = sys::fork_into(0).map_err(|e| format!("fork: {e}"))?;
        if pid == 0 {
            let record = self.become_helper(id, theirs.as_fd());
            let pids =
                pid_namespace.as_ref().map_or(PidNamespace::Host, |pids| PidNamespace::Join { pids, proc: None });
            let pod = PodNamespaces { pids, users: self.users.as_ref(), shared: None };
            process::launch(&record, &Role::Another { argv, namespaces: &namespaces }, &pod, streams, theirs.as_fd());
        }
        report.helper = Some(pid);
        self.extras.insert(self.next_extra, Extra { connection: from, pid: Some(pid), report: Some((report, seq)) });
        self.next_extra += 1;
        Ok(())
    }

    fn extra_report(&mut self, id: ExtraId) {
        let Some(extra) = self.extras.get_mut(&id) else { return };
        let Some((report, _)) = &mut extra.report else { return };
        let result = match report.read(&mut extra.pid) {
            Progress::Waiting | Progress::AtHooks => return,
            Progress::Runs => Ok(()),
            Progress::Failed(message) => {
                // A process that reports a failure might continue, so it is killed.
                if let Some(pid) = extra.pid {
                    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
                }
                Err(message)
            }
        };
        if let Some((report, seq)) = extra.report.take() {
            let (to, fds) = (extra.connection, report.terminal.iter().map(AsRawFd::as_raw_fd).collect::<Vec<RawFd>>());
            self.send(to, &Message::Reply { seq, result }, &fds);
        }
    }

    /// Reads every report that is due. Afterwards the child of a helper that has ended is known.
    fn all_reports(&mut self) {
        let starting = self.containers.iter().filter(|(_, c)| c.report.is_some()).map(|(id, _)| id.clone());
        for id in starting.collect::<Vec<_>>() {
            self.report(&id);
        }
        for id in self.extras.keys().copied().collect::<Vec<_>>() {
            self.extra_report(id);
        }
    }

    /// A child that has ended. It is not reaped yet, so its id cannot be reused.
    fn next_ended(&self) -> Option<Pid> {
        let look = |id| match waitid(id, WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT) {
            Ok(WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, ..)) => Some(pid),
            _ => None,
        };
        let mut reports = self.containers.values().filter_map(|c| c.report.as_ref());
        let mut of_extras = self.extras.values().filter_map(|e| e.report.as_ref().map(|(report, _)| report));
        if !reports.any(Report::awaits_child) && !of_extras.any(Report::awaits_child) {
            return look(Id::All);
        }
        // An unknown child may be one that a helper is about to report. When that helper ends, this is called again.
        let known = self.containers.values().map(|c| c.pid).chain(self.extras.values().map(|e| e.pid));
        known.flatten().find_map(|pid| look(Id::Pid(Pid::from_raw(pid))))
    }

    /// Reaps every child that has ended. Containers are reported after their output is complete.
    fn reap(&mut self) {
        while let Some(ended) = self.next_ended() {
            // Its reports come first; afterwards the helper is replaced by its child.
            self.all_reports();
            let pid = Some(ended.as_raw());
            let container = self.containers.iter().find(|(_, c)| c.pid == pid).map(|(id, _)| id.clone());
            let extra = self.extras.iter().find(|(_, e)| e.pid == pid).map(|(id, _)| *id);
            let (exit_code, signal) = match waitpid(ended, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(_, code)) => (code, None),
                Ok(WaitStatus::Signaled(_, signal, _)) => (128 + signal as i32, Some(signal as i32)),
                _ => return,
            };
            if let Some(extra) = extra.and_then(|id| self.extras.remove(&id)) {
                if let Some((_, seq)) = extra.report {
                    self.reply(extra.connection, seq, Err(live::KILLED.into()));
                }
                self.send(extra.connection, &Message::Notice(Notice::ExecExited { exit_code }), &[]);
            }
            if let Some(live) = container.and_then(|id| self.containers.get_mut(&id)) {
                let unanswered = live.report.as_ref().map(|_| live.asked_by);
                if !live.alone {
                    cgroup::kill_all(&live.record.cgroups); // the kernel does it where it was process 1
                }
                live.exited(exit_code, signal, &mut self.logs);
                let state = live.state.clone();
                self.publish(&Message::Notice(Notice::State(state)));
                if let Some((from, seq)) = unanswered {
                    self.reply(from, seq, Err(live::KILLED.into()));
                }
            }
        }
    }

    fn kill_everything(&self) {
        for live in self.containers.values().filter(|l| l.pid.is_some()) {
            cgroup::kill_all(&live.record.cgroups);
            if let Some(pid) = live.pid {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
        for pid in self.extras.values().filter_map(|e| e.pid) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }

    fn reply(&mut self, to: ConnectionId, seq: u64, result: Result<(), String>) {
        self.send(to, &Message::Reply { seq, result }, &[]);
    }

    fn publish(&mut self, message: &Message) {
        let subscribed: Vec<ConnectionId> =
            self.connections.iter().filter(|(_, c)| c.subscribed).map(|(id, _)| *id).collect();
        for id in subscribed {
            self.send(id, message, &[]);
        }
    }

    /// A peer that does not read is dropped: it can connect again and gets every state anew.
    fn send(&mut self, to: ConnectionId, message: &Message, fds: &[RawFd]) {
        let Some(connection) = self.connections.get(&to) else { return };
        let Ok(packet) = serde_json::to_vec(message) else { return };
        if wire::send(connection.socket.as_fd(), &packet, fds, MsgFlags::MSG_DONTWAIT).is_err() {
            self.disconnect(to);
        }
    }

    /// Commands of the peer that have not started are killed: a container can delay a start for as long as it wants. So are containers
    /// whose hooks it runs.
    fn disconnect(&mut self, id: ConnectionId) {
        self.connections.remove(&id);
        let starting = self.extras.values().filter(|e| e.connection == id && e.report.is_some());
        for pid in starting.filter_map(|e| e.pid) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        let at_hooks = self.containers.iter().filter(|(_, c)| c.at_hooks && c.asked_by.0 == id);
        for container in at_hooks.map(|(id, _)| id.clone()).collect::<Vec<_>>() {
            self.fail_start(&container, NO_AGENT.into());
        }
    }
}
