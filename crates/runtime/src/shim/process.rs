//! From a forked child of the shim to the program of the container: namespaces, identity, privileges, exec.
//!
//! Two processes take part. The *helper* is forked by the shim and is in no pid namespace of a container, so no process of a
//! container sees it. It joins the container's cgroup and namespaces (or creates them), connects the streams, looks up the user and
//! the program, becomes the user and drops every privilege that the program will not have. Then it creates the *child*, which starts
//! in the pid namespace, and ends. The child starts a session and runs the program.
//!
//! **Invariant.** A process that other processes of a container can see holds no more than the program that it becomes: its user,
//! capabilities, bounding set, system call filter, root, streams; and the report socket, into which it may only write an error
//! ([`super::live::Report`]). So a container that may trace (CAP_SYS_PTRACE goes past everything that protects a process's memory)
//! gains nothing. For all others the process is not dumpable until the program runs. Its own program file cannot be written
//! ([`crate::program`]), and its memory is a copy of the shim's, which keeps little data of other containers
//! ([`crate::spec::ShimContainer`]).
//!
//! If the first process has a new pid namespace, the child is created first and does all this: it is alone there until the program
//! runs. A filter is installed before the child is created if it permits [`AFTER_FILTER`]. Otherwise the child installs it last,
//! which requires no_new_privs; without that, the start is refused.

use std::cell::OnceCell;
use std::convert::Infallible;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, signal, sigprocmask};
use nix::sys::socket::MsgFlags;
use nix::unistd::{Gid, Uid, close, getgroups, getresgid, getresuid, pipe2, setgroups, setresgid, setresuid, setsid};

use super::keyring::{RealUser, leave_session};
use super::reaper::ProcMount;
use super::report::{GO, MAX_ERROR, REPORT_CHILD, REPORT_ERROR, REPORT_HOOKS};
use super::streams::{self, Streams};
use super::user::User;
use super::{command, reaper, rootfs};
use crate::api::Hook;
use crate::hooks::{HookCgroup, Stage, State, Within};
use crate::seccomp::Program;
use crate::spec::{self, ContainerRecord};
use crate::sys;
use crate::{cgroup, descriptors, user_namespace, wire};

/// Capabilities required, besides the container's own, to read files of the container and to become the user.
const CHANGE_USER: u64 = 1 << CHOWN | 1 << DAC_OVERRIDE | 1 << SETGID | 1 << SETUID;
const CHOWN: u8 = 0;
const DAC_OVERRIDE: u8 = 1;
const SETGID: u8 = 6;
const SETUID: u8 = 7;
const SYS_ADMIN: u8 = 21;
const SYS_RESOURCE: u8 = 24;
/// Either capability allows passing descriptors when the user has too many in flight, which containers of root can cause.
const PASS_DESCRIPTORS: u64 = 1 << SYS_ADMIN | 1 << SYS_RESOURCE;

/// How long a hook may take whose specification has no limit: longer than any start.
const HOOK_LIMIT: Duration = Duration::from_secs(3600);

/// The system calls with their arguments between the installation of a filter in the helper and the start of the program.
const AFTER_FILTER: &[(&str, libc::c_long, [u64; 6])] = &[
    ("clone", libc::SYS_clone, [(libc::CLONE_PARENT | libc::SIGCHLD) as u64, 0, 0, 0, 0, 0]),
    ("close", libc::SYS_close, [0; 6]),
    ("exit_group", libc::SYS_exit_group, [0; 6]),
    ("prctl", libc::SYS_prctl, [libc::PR_SET_PDEATHSIG as u64, libc::SIGKILL as u64, 0, 0, 0, 0]),
    ("read", libc::SYS_read, [0; 6]),
    ("sendmsg", libc::SYS_sendmsg, [0; 6]),
    ("setsid", libc::SYS_setsid, [0; 6]),
    ("write", libc::SYS_write, [0; 6]),
];
/// Additional calls with a terminal.
const FOR_TERMINAL: (&str, libc::c_long, [u64; 6]) = ("ioctl", libc::SYS_ioctl, [0, libc::TIOCSCTTY, 0, 0, 0, 0]);
/// Additional calls without no_new_privs: the capability for the filter is dropped after it.
const WITHOUT_NO_NEW_PRIVS: (&str, libc::c_long, [u64; 6]) = ("capset", libc::SYS_capset, [0; 6]);

pub enum Role<'a> {
    /// The first process of the container, with the container's state directory.
    First { state: &'a Path },
    /// A further process, with its command and the container's namespaces to join (cgroup and mount).
    Another { argv: &'a [String], namespaces: &'a [OwnedFd] },
}

/// The pid namespace of a new process.
pub enum PidNamespace<'a> {
    New,
    /// An existing one. The first process of a container also gets that namespace's /proc.
    Join {
        pids: &'a OwnedFd,
        proc: Option<ProcMount<'a>>,
    },
    Host,
}

/// The namespaces of a pod that its processes join.
pub struct PodNamespaces<'a> {
    pub pids: PidNamespace<'a>,
    pub users: Option<&'a OwnedFd>,
    /// The mount namespace of volumes with propagation, for the first process of a container with users of its own.
    pub shared: Option<&'a OwnedFd>,
}

/// Runs in the helper, a process forked for it, and does not return.
pub fn launch(record: &ContainerRecord, role: &Role, pod: &PodNamespaces, streams: Streams, report: BorrowedFd) -> ! {
    let Err(error) = (Start { record, role, pod, report, hook_cgroup: OnceCell::new() }).run(streams);
    fail(report, &error)
}

fn exit(code: i32) -> ! {
    // SAFETY: leaves at once, without the exit handlers of the process this one was forked from.
    unsafe { libc::_exit(code) }
}

/// Reports the error of a start, and exits.
pub fn fail(report: BorrowedFd, error: &str) -> ! {
    let mut packet = vec![REPORT_ERROR];
    // It is sent on in JSON, in which a byte may take six.
    packet.extend_from_slice(&error.as_bytes()[..error.floor_char_boundary(MAX_ERROR)]);
    let _ = wire::send(report, &packet, &[], MsgFlags::empty());
    exit(128)
}

fn say(what: &'static str) -> impl Fn(io::Error) -> String {
    move |e| format!("{what}: {e}")
}

struct Start<'a> {
    record: &'a ContainerRecord,
    role: &'a Role<'a>,
    pod: &'a PodNamespaces<'a>,
    report: BorrowedFd<'a>,
    /// For the hooks of a process that is not alone: their processes could stay.
    hook_cgroup: OnceCell<HookCgroup>,
}

/// The arguments of `execve`.
struct Ready {
    program: CString,
    argv: Vec<CString>,
    environment: Vec<CString>,
}

impl Start<'_> {
    fn run(&self, streams: Streams) -> Result<Infallible, String> {
        let security = &self.record.config.security;
        let first = matches!(self.role, Role::First { .. });
        let alone = matches!(self.pod.pids, PidNamespace::New);
        let terminal = matches!(streams, Streams::Terminal);
        self.leave_shim(&streams)?;
        // Opened in the host's /proc, which is not accessible later.
        let permitted = sys::permitted_capabilities().map_err(say("capabilities"))?;
        let mounts = self.prepare_root()?;
        // A hook of the machine is not seen by other containers. So another namespace is entered after them.
        if alone || !first {
            self.choose_pid_namespace()?;
        }
        if alone {
            let mut kept = streams.descriptors();
            kept.extend(mounts.descriptors());
            self.make_child(self.gate(&kept)?, &kept)?;
        }
        self.enter_root(mounts)?;
        if first && !alone {
            self.choose_pid_namespace()?;
        }
        let user = if self.pod.users.is_some() { RealUser::Pod } else { RealUser::Host };
        leave_session(user).map_err(say("session keyring"))?;
        if first {
            // The console is mounted.
            streams.open(first)?.pass(self.report)?.connect()?;
            sys::set_capabilities(self.limit(permitted)?).map_err(say("capabilities"))?;
        } else {
            let limited = self.limit(permitted)?;
            // Files of the container are opened without these capabilities.
            let passing = limited | permitted & PASS_DESCRIPTORS;
            sys::set_capability_sets(limited, passing).map_err(say("capabilities"))?;
            let opened = streams.open(first)?;
            sys::set_capabilities(passing).map_err(say("capabilities"))?;
            let opened = opened.pass(self.report)?;
            sys::set_capabilities(limited).map_err(say("capabilities"))?;
            opened.connect()?;
        }
        let (ready, kept) = self.become_user()?;
        if alone {
            begin_session(terminal)?;
        }
        let (first_filter, last_filter) = self.filters(alone, terminal)?;
        let gate = if alone { None } else { Some(self.gate(&[])?) };
        descriptors::close_on_exec().map_err(say("descriptors"))?;
        reset_signals().map_err(|e| format!("signals: {e}"))?;
        if security.no_new_privileges {
            sys::set_capabilities(kept).map_err(say("capabilities"))?;
            sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1).map_err(say("no_new_privs"))?;
        }
        if let Some(filter) = first_filter {
            filter.install().map_err(say("seccomp"))?;
        }
        if !security.no_new_privileges {
            sys::set_capabilities(kept).map_err(say("capabilities"))?;
        }
        if let Some(gate) = gate {
            self.make_child(gate, &[0, 1, 2])?;
            begin_session(terminal)?;
        } else if first {
            // Set again, since the change of the user has cleared it.
            die_with_parent()?;
        }
        if let Some(filter) = last_filter {
            filter.install().map_err(say("seccomp"))?;
        }
        if first {
            let hooks = &self.record.config.hooks.start_container;
            self.run_hooks("startContainer", hooks, "created", Within::Caller)?;
        }
        let Err(error) = nix::unistd::execve(&ready.program, &ready.argv, &ready.environment);
        Err(format!("exec {:?}: {}", ready.program, io::Error::from(error)))
    }

    /// Closes descriptors of the shim, and takes on what other processes cannot see of a process of the container.
    fn leave_shim(&self, streams: &Streams) -> Result<(), String> {
        let record = self.record;
        let mut keep = streams.descriptors();
        keep.push(self.report.as_raw_fd());
        if let Role::Another { namespaces, .. } = self.role {
            keep.extend(namespaces.iter().map(AsRawFd::as_raw_fd));
        }
        if let PidNamespace::Join { pids, proc } = self.pod.pids {
            keep.extend([Some(pids), proc.map(|p| p.mounts)].into_iter().flatten().map(AsRawFd::as_raw_fd));
        }
        keep.extend([self.pod.users, self.pod.shared].into_iter().flatten().map(AsRawFd::as_raw_fd));
        descriptors::close_all_but(&keep).map_err(say("closing descriptors"))?;
        cgroup::enter(&record.cgroups).map_err(|e| e.to_string())?;
        if self.has_create_hooks() && !matches!(self.pod.pids, PidNamespace::New) {
            let cgroup = HookCgroup::open(cgroup::hooks_below(&record.cgroups)).map_err(say("cgroup of hooks"))?;
            let _ = self.hook_cgroup.set(cgroup);
        }
        std::fs::write("/proc/self/oom_score_adj", record.oom_score_adj.to_string()).map_err(say("oom_score_adj"))?;
        // The container does not inherit settings of the agent.
        nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
        if record.config.hooks.create_container.is_empty() {
            self.set_apparmor()?;
        }
        if let Some(range) = record.user_namespace {
            // So that the pod's root may open them again (`/dev/stdout`).
            streams.give_to(range.first).map_err(|e| format!("streams: {e}"))?;
        }
        Ok(())
    }

    /// Sets the profile of the next program, which the child inherits. Called while /proc is the host's, since a container's could be
    /// anything.
    fn set_apparmor(&self) -> Result<(), String> {
        let Some(profile) = &self.record.config.security.apparmor else { return Ok(()) };
        set_apparmor(profile).map_err(|e| format!("AppArmor profile {profile:?}: {e}"))
    }

    /// Called when the root is complete and not yet that of this process: has the shim run the hooks of the machine, and runs those in the
    /// namespaces of the container.
    fn before_root(&self) -> Result<(), String> {
        let hooks = &self.record.config.hooks;
        if hooks.has_runtime() {
            wire::send(self.report, &[REPORT_HOOKS], &[], MsgFlags::empty()).map_err(say("reporting"))?;
            match wire::receive(self.report, MsgFlags::empty()) {
                Ok((packet, _)) if packet == [GO] => {}
                _ => exit(128), // the shim has ended, and with it the start
            }
        }
        if hooks.create_container.is_empty() {
            return Ok(());
        }
        let within = self.hook_cgroup.get().map_or(Within::Caller, Within::Cgroup);
        self.run_hooks("createContainer", &hooks.create_container, "creating", within)?;
        if let Some(cgroup) = self.hook_cgroup.get() {
            // In a user namespace it stays, empty, as long as the container.
            let _ = cgroup.remove();
        }
        self.set_apparmor()
    }

    fn has_create_hooks(&self) -> bool {
        matches!(self.role, Role::First { .. }) && !self.record.config.hooks.create_container.is_empty()
    }

    fn run_hooks(
        &self,
        name: &'static str,
        hooks: &[Hook],
        status: &'static str,
        within: Within,
    ) -> Result<(), String> {
        if hooks.is_empty() {
            return Ok(());
        }
        let Role::First { state } = self.role else { return Ok(()) };
        descriptors::close_on_exec().map_err(say("descriptors"))?;
        let bundle = state.join(spec::BUNDLE);
        let pid = i32::try_from(std::process::id()).ok();
        let state = State::new((&self.record.id, &bundle), &self.record.config.annotations, status, pid);
        // The agent ends a start that takes too long.
        Stage { name, hooks, state, within, limit: HOOK_LIMIT }.run()
    }

    /// Opens what the root of a first process needs of the host, and becomes root of the pod's user namespace.
    fn prepare_root(&self) -> Result<Mounts, String> {
        let Role::First { state } = self.role else { return Ok(Mounts::default()) };
        let mut mounts = Mounts::default();
        if let PidNamespace::Join { pids, proc: Some(proc) } = self.pod.pids {
            mounts.proc = Some(reaper::clone_proc(proc, pids.as_fd()).map_err(say("/proc of the pid namespace"))?);
        }
        if let (Some(users), Some(shared)) = (self.pod.users, self.pod.shared) {
            unshare(CloneFlags::CLONE_NEWNS).map_err(|e| format!("mount namespace: {e}"))?;
            mounts.prepared = Some(rootfs::Prepared::new(self.record, state, users.as_fd(), shared.as_fd())?);
            // Before the pid namespace is created, which then belongs to the pod.
            user_namespace::enter(users.as_fd()).map_err(say("joining the user namespace"))?;
        }
        Ok(mounts)
    }

    /// Only children of this process are in it.
    fn choose_pid_namespace(&self) -> Result<(), String> {
        match self.pod.pids {
            PidNamespace::New => unshare(CloneFlags::CLONE_NEWPID).map_err(|e| format!("pid namespace: {e}")),
            PidNamespace::Join { pids, .. } => {
                setns(pids, CloneFlags::CLONE_NEWPID).map_err(|e| format!("joining the pid namespace: {e}"))
            }
            PidNamespace::Host => Ok(()),
        }
    }

    fn enter_root(&self, mounts: Mounts) -> Result<(), String> {
        match self.role {
            Role::First { state } => {
                let mut own = CloneFlags::CLONE_NEWNS;
                own.set(CloneFlags::CLONE_NEWCGROUP, !self.record.config.security.privileged);
                unshare(own).map_err(|e| format!("making the container's namespaces: {e}"))?;
                match mounts.prepared {
                    Some(prepared) => prepared.enter(self.record, mounts.proc.as_ref(), &|| self.before_root()),
                    None => rootfs::enter(self.record, state, mounts.proc.as_ref(), &|| self.before_root()),
                }
            }
            Role::Another { namespaces, .. } => {
                for namespace in *namespaces {
                    setns(namespace, CloneFlags::empty()).map_err(|e| format!("joining the container: {e}"))?;
                }
                match self.pod.users {
                    Some(users) => user_namespace::enter(users.as_fd()).map_err(say("joining the user namespace")),
                    None => Ok(()),
                }
            }
        }
    }

    /// Drops capabilities that the program will not have from the bounding set. Returns those needed from here on; files of the
    /// container are accessed with no others.
    fn limit(&self, permitted: u64) -> Result<u64, String> {
        sys::limit_bounding_set(self.capabilities()).map_err(say("capability bounding set"))?;
        Ok(permitted & (self.capabilities() | self.for_filter() | CHANGE_USER))
    }

    fn capabilities(&self) -> u64 {
        self.record.capabilities.iter().fold(0u64, |bits, c| bits | 1 << c)
    }

    /// A filter needs CAP_SYS_ADMIN or no_new_privs: without the latter it is installed before the capability is dropped.
    fn for_filter(&self) -> u64 {
        let needed = self.record.seccomp.is_some() && !self.record.config.security.no_new_privileges;
        u64::from(needed) << SYS_ADMIN
    }

    /// Becomes the user, in the working directory, and finds the program with that user's permissions. Also returns the capabilities
    /// with which the program starts, for the caller to set.
    fn become_user(&self) -> Result<(Ready, u64), String> {
        let record = self.record;
        let argv = match self.role {
            Role::First { .. } => record.argv.as_slice(),
            Role::Another { argv, .. } => argv,
        };
        let user = User::resolve(record)?;
        rootfs::enter_working_directory(&record.cwd)?;
        let mut environment = record.env.clone();
        if !environment.iter().any(|(k, _)| k == "HOME") {
            environment.push(("HOME".into(), user.home.clone()));
        }
        let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
        streams::give_own_to(uid).map_err(say("owner of a stream"))?;
        sys::prctl(libc::PR_SET_KEEPCAPS, 1).map_err(say("keeping capabilities"))?;
        let groups: Vec<Gid> = user.groups.iter().map(|g| Gid::from_raw(*g)).collect();
        setgroups(&groups).map_err(|e| format!("setgroups: {e}"))?;
        setresgid(gid, gid, gid).map_err(|e| format!("setgid {gid}: {e}"))?;
        setresuid(uid, uid, uid).map_err(|e| format!("setuid {uid}: {e}"))?;
        verify_identity(&user)?;
        sys::set_capabilities(self.capabilities() | self.for_filter()).map_err(say("capabilities"))?;
        // The change of the user has set it to the host's `fs.suid_dumpable`. The child inherits it.
        sys::prctl(libc::PR_SET_DUMPABLE, 0).map_err(say("dumpable"))?;
        let ready = Ready {
            program: command::find(argv, &environment)?,
            argv: command::c_strings(argv)?,
            environment: command::c_environment(&environment)?,
        };
        // The kernel gives programs of other users none.
        let kept = if uid.is_root() { self.capabilities() } else { 0 };
        Ok((ready, kept))
    }

    /// When the filter is installed: before a child exists that others see, or last before the program.
    fn filters(&self, alone: bool, terminal: bool) -> Result<(Option<&Program>, Option<&Program>), String> {
        let no_new_privileges = self.record.config.security.no_new_privileges;
        let Some(filter) = &self.record.seccomp else { return Ok((None, None)) };
        let more = [terminal.then_some(&FOR_TERMINAL), (!no_new_privileges).then_some(&WITHOUT_NO_NEW_PRIVS)];
        let mut calls = AFTER_FILTER.iter().chain(more.into_iter().flatten());
        let denied = if alone { None } else { calls.find(|(_, call, arguments)| !filter.allows(*call, *arguments)) };
        match denied {
            Some((name, ..)) if !no_new_privileges => Err(format!(
                "the seccomp profile denies {name}, which starting this process takes unless allowPrivilegeEscalation is false"
            )),
            // A child that is alone does not depend on permitted calls.
            None if !(alone && no_new_privileges) => Ok((Some(filter), None)),
            _ => Ok((None, Some(filter))),
        }
    }

    /// Closes everything but `kept` and the report.
    fn gate(&self, kept: &[RawFd]) -> Result<Gate, String> {
        let (ready, go) = pipe2(OFlag::O_CLOEXEC).map_err(|e| format!("pipe: {e}"))?;
        let own = [self.report.as_raw_fd(), ready.as_raw_fd(), go.as_raw_fd()];
        descriptors::close_all_but(&[kept, &own].concat()).map_err(say("closing descriptors"))?;
        Ok(Gate { ready, go })
    }

    /// Creates the child and returns in it after the shim can know it, so that the shim recognizes its end. This process closes
    /// `held` and ends, so that only the child holds these descriptors.
    fn make_child(&self, Gate { ready, go }: Gate, held: &[RawFd]) -> Result<(), String> {
        match sys::fork_sibling(0).map_err(say("fork"))? {
            0 => {
                drop(go);
                if matches!(self.role, Role::First { .. }) {
                    // If the shim has ended already, the gate stays closed.
                    die_with_parent()?;
                }
                match nix::unistd::read(&ready, &mut [0]) {
                    Ok(1) => Ok(()),
                    _ => exit(128), // the helper was killed, and with it the start
                }
            }
            pid => {
                wire::send(self.report, &child_packet(pid), &[], MsgFlags::empty()).map_err(say("reporting"))?;
                for fd in held.iter().chain([&self.report.as_raw_fd()]) {
                    let _ = close(*fd);
                }
                let _ = nix::unistd::write(&go, &[0]);
                exit(0)
            }
        }
    }
}

/// The pipe at which a child waits.
struct Gate {
    ready: OwnedFd,
    go: OwnedFd,
}

/// What the root of a first process needs of the host.
#[derive(Default)]
struct Mounts {
    /// The /proc of a pid namespace of which the process is not a member.
    proc: Option<OwnedFd>,
    /// With a user namespace.
    prepared: Option<rootfs::Prepared>,
}

impl Mounts {
    fn descriptors(&self) -> Vec<RawFd> {
        let mut all = self.prepared.as_ref().map(rootfs::Prepared::descriptors).unwrap_or_default();
        all.extend(self.proc.as_ref().map(AsRawFd::as_raw_fd));
        all
    }
}

fn child_packet(pid: i32) -> Vec<u8> {
    format!("{}{pid}", char::from(REPORT_CHILD)).into_bytes()
}

fn die_with_parent() -> Result<(), String> {
    sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong).map_err(say("parent death signal"))
}

fn begin_session(terminal: bool) -> Result<(), String> {
    setsid().map_err(|e| format!("setsid: {e}"))?;
    match terminal {
        true => sys::make_controlling_terminal(io::stdin().as_fd()).map_err(say("controlling terminal")),
        false => Ok(()),
    }
}

/// Verifies that the process has exactly the ids of `user`: some numbers mean "no change" to the kernel.
fn verify_identity(user: &User) -> Result<(), String> {
    let failed = |e: nix::Error| format!("reading the user of the process: {e}");
    let (uids, gids) = (getresuid().map_err(failed)?, getresgid().map_err(failed)?);
    let mut groups: Vec<u32> = getgroups().map_err(failed)?.into_iter().map(Gid::as_raw).collect();
    groups.sort_unstable();
    let has_uid = [uids.real, uids.effective, uids.saved].iter().all(|id| id.as_raw() == user.uid);
    let has_gid = [gids.real, gids.effective, gids.saved].iter().all(|id| id.as_raw() == user.gid);
    if has_uid && has_gid && groups == user.groups {
        return Ok(());
    }
    Err(format!("the process did not become user {} with group {} and groups {:?}", user.uid, user.gid, user.groups))
}

/// Sets the AppArmor profile of the next program. Kernels with several security modules have a directory for each.
fn set_apparmor(profile: &str) -> io::Result<()> {
    let own = Path::new("/proc/thread-self/attr/apparmor/exec");
    let file = if own.exists() { own } else { Path::new("/proc/thread-self/attr/exec") };
    std::fs::write(file, format!("exec {profile}"))
}

/// Resets signals: Rust ignores SIGPIPE, and the shim blocks signals that it reads by descriptor; programs expect neither.
fn reset_signals() -> nix::Result<()> {
    for number in Signal::iterator().filter(|s| !matches!(s, Signal::SIGKILL | Signal::SIGSTOP)) {
        // SAFETY: sets the default action; no handler of ours is installed.
        unsafe { signal(number, SigHandler::SigDfl)? };
    }
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)
}
