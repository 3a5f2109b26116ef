//! A started container: its streams, log, attached clients, and state file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::PollFlags;
use nix::sys::socket::sockopt::PassCred;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, setsockopt, socketpair};
use nix::unistd::pipe2;

use super::log::{LogFile, Stream};
use super::pace::LogBudget;
use super::report::{GO, MAX_ERROR, ReportPacket, read_report};
use super::streams::Streams;
use crate::api::ContainerState;
use crate::cgroup;
use crate::memory::wipe;
use crate::records;
use crate::spec::{ShimContainer, StateRecord};
use crate::sys;
use crate::wire::{self, Room};

const CHUNK: usize = 16 * 1024;
/// Bytes of output that are read after the end of a process: a few times the size of a pipe.
const MAX_CHUNKS: usize = 256;
/// The error of a process that ended before its program ran, without a report.
pub const KILLED: &str = "killed while it was started";

/// A descriptor of a container.
#[derive(Clone, Copy, Debug)]
pub enum Port {
    Output(Stream),
    /// Output to an attached client, by its unique key.
    ClientOutput(u64, Stream),
    ClientInput(u64),
    Input,
}

/// The progress of a start.
pub enum Progress {
    Waiting,
    Runs,
    /// It waits until hooks of the machine have run.
    AtHooks,
    Failed(String),
}

/// Packets that are read at a time, and in all before the child is known. Only an attacker sends more.
const MAX_PACKETS: usize = 1024;

/// The receiving end of the reports of helper and child.
///
/// **Invariant.** A container that may trace can write into the socket as soon as the child exists. The child's process id and
/// terminal are accepted from the helper alone, which the kernel identifies as the sender; afterwards only an error is accepted.
pub struct Report {
    socket: OwnedFd,
    /// The process id of the helper.
    pub helper: Option<i32>,
    /// The child's process id, once the helper has made it.
    child: Option<i32>,
    /// No other process sees the child before it runs the program.
    alone: bool,
    wants_terminal: bool,
    /// The hooks of the machine were reported as due.
    at_hooks: bool,
    /// They have not run yet.
    waits: bool,
    /// The master of its terminal.
    pub terminal: Option<OwnedFd>,
    /// Unexpected packets.
    ignored: usize,
}

/// What the child needs for its side.
pub struct Child {
    pub streams: Streams,
    pub report: OwnedFd,
}

struct Client {
    output: [Option<Pending>; 2],
    input: Option<File>,
}

/// A non-blocking descriptor, and the bytes that wait for it.
struct Pending {
    file: File,
    rest: Vec<u8>,
}

pub struct Live {
    pub record: ShimContainer,
    pub directory: PathBuf,
    pub state: StateRecord,
    /// The first process, or the helper until it has created it. `None` when it has ended.
    pub pid: Option<i32>,
    /// It is process 1 of its pid namespace, with which the kernel ends the others.
    pub alone: bool,
    pub asked_by: (u64, u64),
    pub report: Option<Report>,
    /// It waits for hooks that the agent runs.
    pub at_hooks: bool,
    pub log: LogFile,
    output: [Option<File>; 2],
    input: Option<Pending>,
    terminal: Option<OwnedFd>,
    clients: BTreeMap<u64, Client>,
    attached: u64,
    error: Option<String>,
}

impl Report {
    /// Returns the receiving and the sending end. The helper's process id must be set before anything is read.
    pub fn new(wants_terminal: bool, alone: bool) -> nix::Result<(Report, OwnedFd)> {
        let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        setsockopt(&ours, PassCred, &true)?;
        let (helper, child, terminal) = (None, None, None);
        Ok((
            Report {
                socket: ours,
                helper,
                child,
                alone,
                wants_terminal,
                at_hooks: false,
                waits: false,
                terminal,
                ignored: 0,
            },
            theirs,
        ))
    }

    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether the helper has yet to report its child.
    pub fn awaits_child(&self) -> bool {
        self.child.is_none()
    }

    /// Reads the reports. `pid` becomes that of the child as soon as it is known.
    pub fn read(&mut self, pid: &mut Option<i32>) -> Progress {
        let mut buffer = vec![0; 1 + MAX_ERROR];
        for _ in 0..MAX_PACKETS {
            // The helper opens the terminal before it creates a child that others see.
            let expected = self.wants_terminal && self.terminal.is_none() && (self.alone || self.child.is_none());
            let room = if expected { Room::ForOne } else { Room::ForNone };
            match wire::receive_signed(self.socket.as_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT, room) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Progress::Waiting,
                Err(e) => return Progress::Failed(e.to_string()),
                Ok(Some(packet)) => {
                    let Some(sender) = packet.sender else {
                        let runs = self.child.is_some() && !self.waits;
                        return if runs { Progress::Runs } else { Progress::Failed(KILLED.into()) };
                    };
                    let report = read_report(&buffer[..packet.length]);
                    let before = self.at_hooks;
                    if let Some(failure) = self.take(report, sender, packet.fds) {
                        return Progress::Failed(failure);
                    }
                    *pid = self.child.or(*pid);
                    if self.at_hooks && !before {
                        return Progress::AtHooks;
                    }
                }
                Ok(None) => self.ignored += 1,
            }
            if self.ignored > MAX_PACKETS {
                return Progress::Failed("its start reported what it must not".into());
            }
        }
        Progress::Waiting // the rest keeps the socket ready
    }

    /// Lets the process go on after its hooks.
    pub fn go(&mut self) -> io::Result<()> {
        self.waits = false;
        wire::send(self.socket.as_fd(), &[GO], &[], MsgFlags::MSG_DONTWAIT)
    }

    /// Handles a report. Returns the error of a failed start.
    fn take(&mut self, report: ReportPacket, sender: i32, fds: Vec<OwnedFd>) -> Option<String> {
        let (helper, child) = (Some(sender) == self.helper, Some(sender) == self.child);
        match report {
            ReportPacket::Child(Some(number)) if helper && self.child.is_none() => self.child = Some(number),
            ReportPacket::Terminal if self.terminal.is_none() && (helper || child && self.alone) => {
                self.terminal = fds.into_iter().next();
            }
            // Once, from a process that no other one sees.
            ReportPacket::Hooks if !self.at_hooks && (helper && self.child.is_none() || child && self.alone) => {
                (self.at_hooks, self.waits) = (true, true);
            }
            ReportPacket::Error(message) if helper || child => return Some(message),
            _ => self.ignored += 1,
        }
        None
    }
}

fn nonblocking(fd: OwnedFd) -> io::Result<File> {
    fcntl(&fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(fd.into())
}

impl Live {
    /// `alone`: no other process sees the first process before it runs the program.
    pub fn new(record: ShimContainer, alone: bool, asked_by: (u64, u64)) -> io::Result<(Live, Child)> {
        let (ours, theirs) = Report::new(record.config.tty, alone)?;
        let (mut output, mut input) = ([None, None], None);
        let streams = if record.config.tty {
            Streams::Terminal
        } else {
            let (out, child_out) = pipe2(OFlag::O_CLOEXEC)?;
            let (err, child_err) = pipe2(OFlag::O_CLOEXEC)?;
            output = [Some(nonblocking(out)?), Some(nonblocking(err)?)];
            let mut child_in = None;
            if record.config.stdin {
                let (read, write) = pipe2(OFlag::O_CLOEXEC)?;
                input = Some(Pending { file: nonblocking(write)?, rest: Vec::new() });
                child_in = Some(read);
            }
            Streams::Pipes { stdin: child_in, stdout: Some(child_out), stderr: Some(child_err) }
        };
        let live = Live {
            log: LogFile::open(&record.log_path, record.config.log_limits)?,
            state: StateRecord::created(&record.id),
            directory: PathBuf::new(),
            record,
            pid: None,
            alone,
            asked_by,
            report: Some(ours),
            at_hooks: false,
            output,
            input,
            terminal: None,
            clients: BTreeMap::new(),
            attached: 0,
            error: None,
        };
        Ok((live, Child { streams, report: theirs }))
    }

    /// The helper of the first process has this process id.
    pub fn began(&mut self, helper: i32) {
        self.pid = Some(helper);
        if let Some(report) = &mut self.report {
            report.helper = Some(helper);
        }
    }

    /// Wipes input and output of programs, in a copy of this process that enters another container.
    pub fn wipe(&mut self) {
        self.log.wipe();
        let outputs = self.clients.values_mut().flat_map(|c| c.output.iter_mut().flatten());
        outputs.chain(&mut self.input).for_each(|pending| wipe(&mut pending.rest));
    }

    /// `None` if the child has reported before.
    pub fn progress(&mut self) -> Option<Progress> {
        let report = self.report.as_mut()?;
        let progress = report.read(&mut self.pid);
        match &progress {
            Progress::Waiting | Progress::AtHooks => return Some(progress),
            Progress::Runs => {}
            Progress::Failed(message) => self.error = Some(message.clone()),
        }
        self.at_hooks = false;
        self.terminal = self.report.take().and_then(|r| r.terminal);
        Some(progress)
    }

    /// The start has failed outside of the process.
    pub fn failed(&mut self, message: String) {
        self.error = Some(message);
        self.report = None;
    }

    pub fn started(&mut self) {
        if let Some(terminal) = &self.terminal {
            // The same file twice: to read output, and to write input.
            let copy = || terminal.try_clone().and_then(nonblocking);
            self.output[0] = copy().ok();
            if self.record.config.stdin {
                self.input = copy().ok().map(|file| Pending { file, rest: Vec::new() });
            }
        }
        self.state.state = ContainerState::Running;
        self.state.pid = self.pid;
        self.state.started_at = Some(sys::now());
        self.save();
    }

    /// The first process has ended: the rest of the output is read, then the state is final.
    pub fn exited(&mut self, exit_code: i32, signal: Option<i32>, logs: &mut LogBudget) {
        for stream in [Stream::Stdout, Stream::Stderr] {
            // Another process may keep writing to the pipe, so no more is read than it can hold.
            for _ in 0..MAX_CHUNKS {
                if self.output[stream as usize].is_none() || !self.copy_output(stream, logs) {
                    break;
                }
            }
            self.close_output(stream);
        }
        self.input = None;
        self.terminal = None;
        self.pid = None;
        self.at_hooks = false;
        if self.report.take().is_some() {
            self.error.get_or_insert_with(|| KILLED.to_owned());
        }
        // Slow clients get the rest when they are ready.
        for client in self.clients.values_mut() {
            client.input = None;
        }
        let state = &mut self.state;
        state.state = ContainerState::Exited;
        state.pid = None;
        state.finished_at = Some(sys::now());
        state.exit_code = Some(exit_code);
        state.signal = signal.filter(|_| self.error.is_none());
        state.reason = Some(match &self.error {
            Some(message) => {
                state.message = Some(message.clone());
                state.exit_code = Some(128);
                "StartError".into()
            }
            None if cgroup::oom_kills(&self.record.cgroups) > 0 => "OOMKilled".into(),
            None if exit_code == 0 => "Completed".into(),
            None => "Error".into(),
        });
        self.save();
    }

    fn save(&self) {
        // The agent also gets it over the socket; without the file a later agent reports the state as unknown.
        let _ = records::write(&self.directory.join("state.json"), &self.state);
    }

    pub fn resize(&mut self, rows: u16, columns: u16) {
        if let Some(terminal) = &self.terminal {
            let _ = sys::set_terminal_size(terminal.as_fd(), rows, columns);
        }
    }

    /// Descriptors: stdout, stderr, and the client's input if requested.
    pub fn attach(&mut self, fds: Vec<OwnedFd>, stdin: bool) {
        let mut fds = fds.into_iter();
        let mut output = || {
            let file = nonblocking(fds.next()?).ok()?;
            Some(Pending { file, rest: Vec::new() })
        };
        let mut output = [output(), output()];
        for (ours, source) in output.iter_mut().zip(&self.output) {
            if source.is_none() {
                *ours = None; // a terminal has one stream; a stream may have ended
            }
        }
        let input = fds.next().filter(|_| stdin).and_then(|fd| nonblocking(fd).ok());
        self.attached += 1;
        self.clients.insert(self.attached, Client { output, input });
    }

    /// Returns the descriptors to poll. Output waits for the slowest client. It is left out if `paused`, since an end of file would
    /// be reported again and again.
    pub fn ports<'a>(&'a self, paused: bool, add: &mut dyn FnMut(BorrowedFd<'a>, PollFlags, Port)) {
        for stream in [Stream::Stdout, Stream::Stderr] {
            let mut held = paused;
            for (key, client) in &self.clients {
                if let Some(pending) = &client.output[stream as usize] {
                    // Without POLLOUT an error (the reader is gone) is still reported.
                    let behind = !pending.rest.is_empty();
                    let events = if behind { PollFlags::POLLOUT } else { PollFlags::empty() };
                    add(pending.file.as_fd(), events, Port::ClientOutput(*key, stream));
                    held |= behind;
                }
            }
            if let (Some(output), false) = (&self.output[stream as usize], held) {
                add(output.as_fd(), PollFlags::POLLIN, Port::Output(stream));
            }
        }
        let busy = self.input.as_ref().is_some_and(|i| !i.rest.is_empty());
        if let (Some(input), true) = (&self.input, busy) {
            add(input.file.as_fd(), PollFlags::POLLOUT, Port::Input);
        }
        for (key, client) in &self.clients {
            if let (Some(input), false) = (&client.input, busy) {
                add(input.as_fd(), PollFlags::POLLIN, Port::ClientInput(*key));
            }
        }
    }

    pub fn ready(&mut self, port: Port, events: PollFlags, logs: &mut LogBudget) {
        match port {
            Port::Output(stream) => {
                if !self.copy_output(stream, logs) && events.contains(PollFlags::POLLHUP) {
                    self.close_output(stream);
                }
            }
            Port::ClientOutput(key, stream) => {
                let Some(client) = self.clients.get_mut(&key) else { return };
                let output = &mut client.output[stream as usize];
                let gone =
                    events.contains(PollFlags::POLLERR) || output.as_mut().is_some_and(|o| o.write(&[]).is_err());
                let over = self.output[stream as usize].is_none();
                if gone || over && output.as_ref().is_some_and(|o| o.rest.is_empty()) {
                    *output = None;
                }
                self.clients.retain(|_, c| c.output.iter().any(Option::is_some));
            }
            Port::ClientInput(key) => self.copy_input(key),
            Port::Input => {
                if self.input.as_mut().is_some_and(|i| i.write(&[]).is_err()) {
                    self.input = None;
                }
            }
        }
    }

    /// Reads one piece of output; false at its end or when there is none now.
    fn copy_output(&mut self, stream: Stream, logs: &mut LogBudget) -> bool {
        let Some(output) = &mut self.output[stream as usize] else { return false };
        let mut buffer = [0; CHUNK];
        match output.read(&mut buffer) {
            Ok(0) => {
                self.close_output(stream);
                false
            }
            Ok(length) => {
                let written = self.log.append(stream, &buffer[..length], sys::now());
                logs.spend(written, sys::uptime());
                for client in self.clients.values_mut() {
                    let output = &mut client.output[stream as usize];
                    if output.as_mut().is_some_and(|o| o.write(&buffer[..length]).is_err()) {
                        *output = None;
                    }
                }
                wipe(&mut buffer[..length]);
                true
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => false,
            // EIO: the last process has closed the terminal.
            Err(_) => {
                self.close_output(stream);
                false
            }
        }
    }

    fn close_output(&mut self, stream: Stream) {
        if self.output[stream as usize].take().is_some() {
            self.log.finish(stream, sys::now());
            for client in self.clients.values_mut() {
                let output = &mut client.output[stream as usize];
                if output.as_ref().is_some_and(|o| o.rest.is_empty()) {
                    *output = None;
                }
            }
            self.clients.retain(|_, c| c.output.iter().any(Option::is_some));
        }
    }

    fn copy_input(&mut self, key: u64) {
        let Some(client) = self.clients.get_mut(&key) else { return };
        let Some(input) = &mut client.input else { return };
        let mut buffer = [0; CHUNK];
        match input.read(&mut buffer) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Ok(0) | Err(_) => {
                client.input = None;
                let config = &self.record.config;
                if config.stdin_once && !config.tty {
                    self.input = None;
                } else {
                    self.clients.remove(&key);
                }
            }
            Ok(length) => {
                if self.input.as_mut().is_some_and(|i| i.write(&buffer[..length]).is_err()) {
                    self.input = None;
                }
                wipe(&mut buffer[..length]);
            }
        }
    }
}

impl Pending {
    /// Writes waiting bytes and then `data`, and keeps what does not fit. Written bytes are wiped.
    fn write(&mut self, data: &[u8]) -> io::Result<()> {
        let mut all = [self.rest.as_slice(), data].concat();
        wipe(&mut self.rest);
        let mut written = 0;
        let result = loop {
            if written == all.len() {
                break Ok(());
            }
            match self.file.write(&all[written..]) {
                Ok(length) => written += length,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => break Err(e),
            }
        };
        self.rest = all[written..].to_vec();
        wipe(&mut all);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shim::report::REPORT_TERMINAL;
    use nix::sys::wait::waitpid;
    use nix::unistd::Pid;

    /// Sends packets from another process and returns its id.
    fn send_as_other(socket: &OwnedFd, packets: &[&[u8]]) -> i32 {
        let pid = sys::fork_into(0).unwrap();
        if pid == 0 {
            for packet in packets {
                let _ = wire::send(socket.as_fd(), packet, &[], MsgFlags::empty());
            }
            // SAFETY: a copy of one thread of the test ends at once.
            unsafe { libc::_exit(0) }
        }
        waitpid(Pid::from_raw(pid), None).unwrap();
        pid
    }

    fn send(socket: &OwnedFd, packet: &[u8], fds: &[i32]) {
        wire::send(socket.as_fd(), packet, fds, MsgFlags::empty()).unwrap();
    }

    #[test]
    fn reports_are_believed_by_their_sender() {
        use std::os::fd::AsRawFd;
        let own = std::process::id() as i32;
        let (mut report, theirs) = Report::new(true, false).unwrap();
        report.helper = Some(own);
        let mut pid = Some(own);
        send(&theirs, &[REPORT_TERMINAL], &[theirs.as_raw_fd()]);
        // The child is made to report another process id and a failure before the helper reports it.
        let child = send_as_other(&theirs, &[b"P77", b"Eno", b"", b"T"]);
        assert!(matches!(report.read(&mut pid), Progress::Waiting));
        assert!(report.terminal.is_some() && pid == Some(own) && report.ignored == 4);
        send(&theirs, format!("P{child}").as_bytes(), &[]);
        send(&theirs, b"P78", &[theirs.as_raw_fd()]);
        send(&theirs, b"P79", &[]);
        assert!(matches!(report.read(&mut pid), Progress::Waiting));
        assert_eq!((pid, report.ignored), (Some(child), 6));
        send(&theirs, b"Ewhy", &[]);
        assert!(matches!(report.read(&mut pid), Progress::Failed(why) if why == "why"));

        // Further packets are ignored.
        let (mut report, theirs) = Report::new(false, false).unwrap();
        report.helper = Some(own);
        report.ignored = MAX_PACKETS;
        send_as_other(&theirs, &[b"X"]);
        assert!(matches!(report.read(&mut pid), Progress::Failed(_)));

        let (mut report, theirs) = Report::new(false, false).unwrap();
        report.helper = Some(own);
        send(&theirs, b"P99", &[]);
        drop(theirs);
        assert!(matches!(report.read(&mut pid), Progress::Runs) && pid == Some(99));
    }
}
