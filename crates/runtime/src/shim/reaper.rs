//! Process 1 of a pod's own pid namespace (`shareProcessNamespace`): it collects the processes that lose their parents.
//!
//! Every container of the pod sees it, and one with CAP_SYS_PTRACE controls it. **Invariant.** That gains nothing: it has no
//! descriptors, no capabilities, an empty root, a cgroup of the pod's, and is not dumpable.

use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::fcntl::{AtFlags, OFlag, open};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, socketpair};
use nix::sys::stat::{Mode, fstat, fstatat};
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, pipe2};

use super::process::PidNamespace;
use crate::spec::PodRecord;
use crate::sys;
use crate::{cgroup, descriptors, user_namespace, wire};

/// Packets of the start: the reaper's process id (as text), its mount namespace while /proc is its root, or what failed.
const REPORT_PID: u8 = b'P';
const REPORT_PROC: u8 = b'M';
const REPORT_ERROR: u8 = b'E';
/// The inode of the root of every /proc.
const PROC_ROOT: u64 = 1;

pub struct Reaper {
    pub pid: i32,
    /// The pid namespace.
    pub pids: OwnedFd,
    /// A mount namespace without processes. Its root is the /proc of the pid namespace, which only a process in it can mount.
    pub proc: OwnedFd,
}

impl Reaper {
    /// The namespace, for the first process of a container.
    pub fn namespace(&self) -> PidNamespace<'_> {
        PidNamespace::Join { pids: &self.pids, proc: Some(ProcMount { mounts: &self.proc, path: "/" }) }
    }
}

/// Starts the reaper. The pid namespace belongs to the user namespace `users`. `SIGCHLD` must be blocked.
pub fn start(pod: &PodRecord, users: Option<&OwnedFd>) -> Result<Reaper, String> {
    let (report, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
        .map_err(|e| format!("socket: {e}"))?;
    // A process that creates the reaper as a child of this one.
    let helper = sys::fork_into(0).map_err(|e| format!("fork: {e}"))?;
    if helper == 0 {
        drop(report);
        let Err(error) = make(pod, users, &theirs);
        let _ = wire::send(theirs.as_fd(), &[&[REPORT_ERROR], error.as_bytes()].concat(), &[], MsgFlags::empty());
        exit()
    }
    drop(theirs);
    let (mut pid, mut proc, mut error) = (None, None, None);
    loop {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match wire::receive(report.as_fd(), MsgFlags::empty()) {
            Ok((packet, fds)) => match packet.split_first() {
                None => break,
                Some((&REPORT_PID, number)) => pid = text(number).parse::<i32>().ok(),
                Some((&REPORT_PROC, _)) => proc = fds.into_iter().next(),
                Some((_, message)) => error = Some(text(message)),
            },
            Err(e) => {
                error = Some(e.to_string());
                break;
            }
        }
    }
    let _ = waitpid(Pid::from_raw(helper), None);
    let pid = pid.ok_or_else(|| error.clone().unwrap_or_else(|| "its process was killed".into()))?;
    let path = format!("/proc/{pid}/ns/pid");
    let pids = File::open(&path).map_err(|e| format!("{path}: {e}"));
    match (error, pids, proc) {
        (None, Ok(pids), Some(proc)) => Ok(Reaper { pid, pids: pids.into(), proc }),
        (error, pids, _) => {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            let _ = waitpid(Pid::from_raw(pid), None);
            Err(error.or(pids.err()).unwrap_or_else(|| "there is no /proc of it".into()))
        }
    }
}

fn exit() -> ! {
    // SAFETY: leaves at once, without the exit handlers of the process this one was forked from.
    unsafe { libc::_exit(128) }
}

/// Where the /proc of a pid namespace is mounted.
#[derive(Clone, Copy)]
pub struct ProcMount<'a> {
    /// The mount namespace.
    pub mounts: &'a OwnedFd,
    /// The absolute path there, which processes of a container may have changed.
    pub path: &'static str,
}

/// A detached copy of the /proc of the namespace `pids`. The caller has one thread, the privileges of the host's root, and / as its
/// working directory.
pub fn clone_proc(from: ProcMount, pids: BorrowedFd) -> io::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let here = |path| open(path, flags, Mode::empty());
    let own = File::open("/proc/thread-self/ns/mnt")?;
    let root = here("/")?;
    setns(from.mounts, CloneFlags::CLONE_NEWNS)?;
    let tree = here(from.path).map_err(Into::into).and_then(|proc| {
        check_proc(proc.as_fd(), pids)?;
        sys::clone_mount(proc.as_fd(), false)
    });
    setns(own, CloneFlags::CLONE_NEWNS)?;
    // To the previous root, which may differ from that of the namespace.
    nix::unistd::fchdir(&root)?;
    nix::unistd::chroot(".")?;
    tree
}

/// Errors unless a directory is the root of the /proc of a pid namespace. The kernel makes its links.
fn check_proc(directory: BorrowedFd, pids: BorrowedFd) -> io::Result<()> {
    let is_root = fstatfs(directory)?.filesystem_type() == PROC_SUPER_MAGIC && fstat(directory)?.st_ino == PROC_ROOT;
    let of_first = fstatat(directory, "1/ns/pid", AtFlags::empty()).ok();
    let wanted = fstat(pids)?;
    match of_first.filter(|f| is_root && (f.st_dev, f.st_ino) == (wanted.st_dev, wanted.st_ino)) {
        Some(_) => Ok(()),
        None => Err(io::Error::other("process 1 has ended, or the container has unmounted or covered it")),
    }
}

/// Creates the reaper. Neither it nor the calling process returns, except for an error.
fn make(pod: &PodRecord, users: Option<&OwnedFd>, report: &OwnedFd) -> Result<Infallible, String> {
    let say = |what: &'static str| move |e: io::Error| format!("{what}: {e}");
    let mut keep = vec![report.as_raw_fd()];
    keep.extend(users.map(AsRawFd::as_raw_fd));
    descriptors::close_all_but(&keep).map_err(say("closing descriptors"))?;
    for stream in 0..3 {
        // One that is not open is closed already.
        let _ = nix::unistd::close(stream);
    }
    cgroup::enter(&pod.reaper_cgroups).map_err(|e| e.to_string())?;
    // Its end would be that of every container of the pod. Not every host permits such a low score.
    let _ = std::fs::write("/proc/self/oom_score_adj", "-998");
    if let Some(users) = users {
        user_namespace::enter(users.as_fd()).map_err(say("joining the user namespace"))?;
    }
    let (ready, go) = pipe2(OFlag::O_CLOEXEC).map_err(|e| format!("pipe: {e}"))?;
    let pid = sys::fork_sibling(libc::CLONE_NEWPID | libc::CLONE_NEWNS).map_err(say("fork"))?;
    if pid == 0 {
        drop(go);
        let known = nix::unistd::read(&ready, &mut [0]) == Ok(1);
        drop(ready);
        if !known {
            return Err("its process id could not be reported".into());
        }
        settle(report)?;
        let _ = descriptors::close_all_but(&[]);
        reap()
    }
    let packet = [&[REPORT_PID], pid.to_string().as_bytes()].concat();
    wire::send(report.as_fd(), &packet, &[], MsgFlags::empty()).map_err(say("reporting"))?;
    nix::unistd::write(&go, &[0]).map_err(|e| format!("reporting: {e}"))?;
    exit()
}

/// Drops all privileges and resources, except the report for errors.
fn settle(report: &OwnedFd) -> Result<(), String> {
    let say = |what: &'static str| move |e: io::Error| format!("{what}: {e}");
    descriptors::close_all_but(&[report.as_raw_fd()]).map_err(say("closing descriptors"))?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)
        .map_err(|e| format!("detaching the mount namespace: {e}"))?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    new_root("proc", "/proc", flags, "").map_err(|e| format!("/proc: {e}"))?;
    let proc = File::open("/thread-self/ns/mnt").map_err(say("mount namespace"))?;
    wire::send(report.as_fd(), &[REPORT_PROC], &[proc.as_raw_fd()], MsgFlags::empty()).map_err(say("reporting"))?;
    drop(proc);
    unshare(CloneFlags::CLONE_NEWNS).map_err(|e| format!("mount namespace: {e}"))?;
    // Any directory works: only this process sees the mount.
    new_root("tmpfs", "/sys", flags | MsFlags::MS_RDONLY, "size=4k,nr_inodes=1,mode=555")
        .map_err(|e| format!("empty root: {e}"))?;
    sys::limit_bounding_set(0).map_err(say("capability bounding set"))?;
    sys::set_capabilities(0).map_err(say("capabilities"))?;
    sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1).map_err(say("no_new_privs"))?;
    sys::prctl(libc::PR_SET_DUMPABLE, 0).map_err(say("dumpable"))?;
    sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong).map_err(say("parent death signal"))
}

/// Mounts a file system and makes it the root of this process.
fn new_root(kind: &str, at: &str, flags: MsFlags, options: &str) -> nix::Result<()> {
    mount(Some(kind), at, Some(kind), flags, Some(options))?;
    nix::unistd::chdir(at)?;
    sys::pivot_root_here().map_err(|e| e.raw_os_error().map_or(nix::Error::UnknownErrno, nix::Error::from_raw))?;
    umount2(".", MntFlags::MNT_DETACH)?;
    nix::unistd::chdir("/")
}

fn reap() -> ! {
    let mut ended = SigSet::empty();
    ended.add(Signal::SIGCHLD);
    loop {
        while matches!(waitpid(None, Some(WaitPidFlag::WNOHANG)), Ok(s) if s != WaitStatus::StillAlive) {}
        let _ = ended.wait(); // blocked, so one that came before is not missed
    }
}
