//! The namespaces that a pod's containers share with the shim: network, UTS and IPC.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use nix::fcntl::OFlag;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::stat::Mode;
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, pipe2, sethostname};

use crate::api::{IdRange, PodConfig};
use crate::beneath::{Directory, Links};
use crate::sys;
use crate::{descriptors, sysctl, user_namespace};

/// Joins the network namespace, creates the others, and sets host name and kernel parameters. Returns the pod's user namespace, if
/// it has one: the others belong to it, but this process stays in the host's.
pub fn make(config: &PodConfig) -> Result<Option<OwnedFd>, String> {
    let mut users = None;
    if let Some(path) = &config.netns {
        let namespace = File::open(path).map_err(|e| format!("network namespace {}: {e}", path.display()))?;
        setns(&namespace, CloneFlags::CLONE_NEWNET)
            .map_err(|e| format!("joining network namespace {}: {e}", path.display()))?;
        if let Some(range) = config.user_namespace {
            let owner = user_namespace::owner(namespace.as_fd());
            users = Some((owner.map_err(|e| format!("user namespace of {}: {e}", path.display()))?, range));
        }
    }
    let Some((users, range)) = users else {
        set_up(config)?;
        return Ok(None);
    };
    join_those_of(config, &users, range)?;
    Ok(Some(users))
}

fn set_up(config: &PodConfig) -> Result<(), String> {
    let mut own = CloneFlags::empty();
    own.set(CloneFlags::CLONE_NEWUTS, config.netns.is_some());
    own.set(CloneFlags::CLONE_NEWIPC, !config.host_ipc);
    unshare(own).map_err(|e| format!("making namespaces: {e}"))?;
    if config.netns.is_some() {
        sethostname(&config.hostname).map_err(|e| format!("hostname: {e}"))?;
    }
    set_sysctls(&config.sysctls)
}

/// Lets a child create them as root of the user namespace, so that they belong to it.
fn join_those_of(config: &PodConfig, users: &OwnedFd, range: IdRange) -> Result<(), String> {
    let (report, theirs) = pipe2(OFlag::O_CLOEXEC).map_err(|e| format!("pipe: {e}"))?;
    let pid = sys::fork_into(0).map_err(|e| format!("fork: {e}"))?;
    if pid == 0 {
        let made = descriptors::close_all_but(&[users.as_raw_fd(), theirs.as_raw_fd()])
            .and_then(|()| user_namespace::enter(users.as_fd()))
            .map_err(|e| format!("joining the user namespace: {e}"))
            .and_then(|()| user_namespace::check(range))
            .and_then(|()| set_up(config));
        let _ = nix::unistd::write(&theirs, made.err().unwrap_or_default().as_bytes());
        drop(theirs);
        loop {
            nix::unistd::pause(); // until it is killed
        }
    }
    drop(theirs);
    let joined = join(report, pid);
    let _ = sys::kill(pid, libc::SIGKILL);
    let _ = waitpid(Pid::from_raw(pid), None);
    joined
}

fn join(report: OwnedFd, pid: i32) -> Result<(), String> {
    let mut error = String::new();
    File::from(report).read_to_string(&mut error).map_err(|e| e.to_string())?;
    if !error.is_empty() {
        return Err(error);
    }
    for name in ["uts", "ipc"] {
        let path = format!("/proc/{pid}/ns/{name}");
        let joined = File::open(&path).and_then(|n| setns(n, CloneFlags::empty()).map_err(io::Error::from));
        joined.map_err(|e| format!("{path}: {e}"))?;
    }
    Ok(())
}

/// Sets kernel parameters in the namespaces of this process.
fn set_sysctls(sysctls: &BTreeMap<String, String>) -> Result<(), String> {
    if sysctls.is_empty() {
        return Ok(());
    }
    let all = Directory::open(Path::new("/proc/sys"), Links::Refuse).map_err(|e| format!("/proc/sys: {e}"))?;
    for (name, value) in sysctls {
        let path = sysctl::path(&sysctl::dotted(name));
        let file = all.open_at(&path, OFlag::O_WRONLY, Mode::empty());
        let written = file.and_then(|f| File::from(f).write_all(value.as_bytes()));
        written.map_err(|e| format!("sysctl {name}={value}: {e}"))?;
    }
    Ok(())
}
