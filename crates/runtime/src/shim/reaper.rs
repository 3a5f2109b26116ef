//! Process 1 of a pod's own pid namespace (`shareProcessNamespace`): it collects the processes that lose their parents.
//!
//! Every container of the pod sees it, and one with CAP_SYS_PTRACE may do with it what it wants. **Invariant.** There is nothing to
//! be had: it has no descriptors, no capabilities, an empty root, a cgroup of the pod's, and is not dumpable.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::fcntl::OFlag;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, pipe2};

use super::sys;
use crate::spec::PodRecord;
use crate::{cgroup, descriptors, user_namespace};

/// Gives its process id and the namespace, which belongs to the user namespace `users`. `SIGCHLD` must be blocked.
pub fn start(pod: &PodRecord, users: Option<&OwnedFd>) -> Result<(i32, OwnedFd), String> {
    let (report, theirs) = pipe2(OFlag::O_CLOEXEC).map_err(|e| format!("pipe: {e}"))?;
    // A process that makes the reaper a child of ours.
    let helper = sys::fork_into(0).map_err(|e| format!("fork: {e}"))?;
    if helper == 0 {
        drop(report);
        if let Err(error) = make(pod, users, &theirs) {
            let _ = nix::unistd::write(&theirs, error.as_bytes());
        }
        // SAFETY: leaves at once, without the exit handlers of the process this one was forked from.
        unsafe { libc::_exit(128) }
    }
    drop(theirs);
    let mut text = String::new();
    let read = File::from(report).read_to_string(&mut text);
    let _ = waitpid(Pid::from_raw(helper), None);
    read.map_err(|e| e.to_string())?;
    // Its number comes first, then what failed.
    let Some((pid, error)) = text.split_once('\n').and_then(|(pid, error)| Some((pid.parse().ok()?, error))) else {
        return Err(text);
    };
    let error = error.to_owned();
    let path = format!("/proc/{pid}/ns/pid");
    match File::open(&path) {
        Ok(namespace) if error.is_empty() => Ok((pid, namespace.into())),
        opened => {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            let _ = waitpid(Pid::from_raw(pid), None);
            Err(opened.err().map_or(error, |e| format!("{path}: {e}")))
        }
    }
}

/// Makes the reaper, which does not return, and reports its number.
fn make(pod: &PodRecord, users: Option<&OwnedFd>, report: &OwnedFd) -> Result<(), String> {
    let say = |what: &'static str| move |e: io::Error| format!("{what}: {e}");
    let mut keep = vec![report.as_raw_fd()];
    keep.extend(users.map(AsRawFd::as_raw_fd));
    descriptors::close_all_but(&keep).map_err(say("closing descriptors"))?;
    for stream in 0..3 {
        // One that is not open is closed already.
        let _ = nix::unistd::close(stream);
    }
    cgroup::enter(&pod.reaper_cgroups).map_err(|e| e.to_string())?;
    // Its end would be that of every container of the pod. Not every host lets us go so low.
    let _ = std::fs::write("/proc/self/oom_score_adj", "-998");
    if let Some(users) = users {
        user_namespace::enter(users.as_fd()).map_err(say("joining the user namespace"))?;
    }
    let (ready, go) = pipe2(OFlag::O_CLOEXEC).map_err(|e| format!("pipe: {e}"))?;
    let pid = sys::fork_sibling(libc::CLONE_NEWPID | libc::CLONE_NEWNS).map_err(say("fork"))?;
    if pid == 0 {
        drop(go);
        let told = nix::unistd::read(&ready, &mut [0]) == Ok(1);
        drop(ready);
        let settled = if told { settle(report) } else { Err("its number could not be told".into()) };
        let Err(error) = settled else {
            let _ = descriptors::close_all_but(&[]);
            reap()
        };
        return Err(error);
    }
    nix::unistd::write(report, format!("{pid}\n").as_bytes()).map_err(|e| format!("reporting: {e}"))?;
    nix::unistd::write(&go, &[0]).map(drop).map_err(|e| format!("reporting: {e}"))
}

/// Gives away everything. The report is kept for errors.
fn settle(report: &OwnedFd) -> Result<(), String> {
    let say = |what: &'static str| move |e: io::Error| format!("{what}: {e}");
    descriptors::close_all_but(&[report.as_raw_fd()]).map_err(say("closing descriptors"))?;
    empty_root().map_err(|e| format!("empty root: {e}"))?;
    sys::limit_bounding_set(0).map_err(say("capability bounding set"))?;
    sys::set_capabilities(0).map_err(say("capabilities"))?;
    sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1).map_err(say("no_new_privs"))?;
    sys::prctl(libc::PR_SET_DUMPABLE, 0).map_err(say("dumpable"))?;
    sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong).map_err(say("parent death signal"))
}

fn empty_root() -> nix::Result<()> {
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)?;
    // Any directory will do: the mount is seen by this process alone.
    let flags = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("tmpfs"), "/proc", Some("tmpfs"), flags, Some("size=4k,nr_inodes=1,mode=555"))?;
    nix::unistd::chdir("/proc")?;
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
