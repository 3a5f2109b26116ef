//! What hostile containers run in the tests. Each prints what it got hold of.

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;

use nix::mount::{MsFlags, mount, umount};
use nix::sched::{CloneFlags, unshare};

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn ptrace(request: libc::c_uint, pid: i32, data: usize) -> io::Result<()> {
    // SAFETY: only requests are made whose data is a number, and that write nothing here.
    check(unsafe { libc::ptrace(request, pid, std::ptr::null_mut::<c_void>(), data) }).map(drop)
}

fn wait(pid: i32) -> Option<i32> {
    let mut status = 0;
    // SAFETY: writes an int, which lives through the call.
    let found = unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) };
    (found == pid && libc::WIFSTOPPED(status)).then_some(status)
}

/// The newest process id of this pid namespace.
fn newest() -> i32 {
    let text = fs::read_to_string("/proc/loadavg").unwrap();
    text.trim().rsplit(' ').next().unwrap().parse().unwrap()
}

/// Gives the next process that appears, seized.
fn seize_next(options: libc::c_int) -> i32 {
    loop {
        let newest = newest();
        for pid in newest + 1..=newest + 2 {
            if ptrace(libc::PTRACE_SEIZE, pid, options as usize).is_ok() {
                let _ = ptrace(libc::PTRACE_INTERRUPT, pid, 0);
                return pid;
            }
        }
    }
}

/// Whether a process runs our program, and not yet that of a container.
fn is_shim(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|c| c.trim() == "pause")
}

/// Seizes `count` processes on their way into a container as early as it can and follows each to its program: prints, in lines,
/// what they hold at every system call before (`before`) and after (`after`), and whether `secret`, which is given backwards, is in
/// their memory.
pub fn steal(count: usize, secret: &str) {
    let secret: Vec<u8> = secret.bytes().rev().collect();
    println!("ready");
    let mut caught = 0;
    while caught < count {
        let pid = seize_next(libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_TRACESYSGOOD);
        let mut before = BTreeSet::new();
        let mut searched = false;
        while let Some(status) = wait(pid) {
            if status >> 16 == libc::PTRACE_EVENT_EXEC {
                if !before.is_empty() {
                    println!("{}after {}", before.into_iter().collect::<String>(), held(pid));
                    caught += 1;
                }
                break;
            }
            if !searched {
                if !is_shim(pid) {
                    break;
                }
                searched = true;
                for place in places(pid, &secret) {
                    println!("secret in {place}");
                }
            }
            before.insert(format!("before {}\n", held(pid)));
            let _ = ptrace(libc::PTRACE_SYSCALL, pid, 0);
        }
        let _ = ptrace(libc::PTRACE_DETACH, pid, 0);
    }
    println!("over");
    park()
}

/// Stays, with what it holds.
pub fn park() -> ! {
    loop {
        std::thread::park();
    }
}

/// What a stopped process may do.
fn held(pid: i32) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let fields = ["Uid:", "Gid:", "Groups:", "CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "NoNewPrivs:", "Seccomp:"];
    let lines = status.lines().filter(|l| fields.iter().any(|w| l.starts_with(w)));
    lines.map(|l| l.split_whitespace().collect::<Vec<_>>().join(",")).collect::<Vec<_>>().join(" ")
}

/// Writable memory of a process that holds the secret.
fn places(pid: i32, secret: &[u8]) -> Vec<String> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let Ok(memory) = File::open(format!("/proc/{pid}/mem")) else { return Vec::new() };
    let mut found = Vec::new();
    for line in maps.lines().filter(|l| l.contains(" rw")) {
        let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let [start, end] = [start, end].map(|n| u64::from_str_radix(n, 16).unwrap());
        let mut bytes = vec![0; (end - start) as usize];
        if memory.read_exact_at(&mut bytes, start).is_ok() && bytes.windows(secret.len()).any(|w| w == secret) {
            found.push(line.to_owned());
        }
    }
    found
}

/// Holds the next process on its way into a container where it is, and writes `lies` into its sockets in its place.
pub fn hold(lies: &[&str]) {
    println!("ready");
    loop {
        let victim = seize_next(0);
        if wait(victim).is_some() && is_shim(victim) {
            let sockets = sockets(victim);
            let sent = lies.iter().filter(|lie| sockets.iter().any(|s| send(s, lie))).count();
            println!("holds {victim}, {sent} lies");
            park();
        }
        let _ = ptrace(libc::PTRACE_DETACH, victim, 0);
    }
}

/// Kills every process on its way into a container, as early as it can.
pub fn kill() {
    println!("ready");
    loop {
        let victim = seize_next(0);
        if wait(victim).is_some() && is_shim(victim) {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(victim), nix::sys::signal::Signal::SIGKILL);
            while wait(victim).is_some() {}
            println!("killed {victim}");
        }
        let _ = ptrace(libc::PTRACE_DETACH, victim, 0);
    }
}

fn sockets(pid: i32) -> Vec<OwnedFd> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let sockets = entries.filter(|e| fs::read_link(e.path()).is_ok_and(|l| l.to_string_lossy().starts_with("socket:")));
    let numbers: Vec<RawFd> = sockets.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect();
    numbers.into_iter().filter_map(|n| take(pid, n).ok()).collect()
}

fn take(pid: i32, number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the calls take numbers; the descriptors they give are ours.
    unsafe {
        let process = OwnedFd::from_raw_fd(check(libc::syscall(libc::SYS_pidfd_open, pid, 0))? as RawFd);
        let taken = check(libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0))?;
        Ok(OwnedFd::from_raw_fd(taken as RawFd))
    }
}

fn send(socket: &OwnedFd, text: &str) -> bool {
    // SAFETY: the bytes live through the call.
    unsafe { libc::send(socket.as_raw_fd(), text.as_ptr().cast(), text.len(), libc::MSG_NOSIGNAL) > 0 }
}

/// Creates a user namespace in which it may mount control groups, raises every limit there, and uses `megabytes` of memory.
pub fn raise_limits(megabytes: usize) {
    if let Err(e) = unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWCGROUP) {
        println!("no namespaces: {e}");
    }
    for (file, text) in [("setgroups", "deny"), ("uid_map", "0 0 1"), ("gid_map", "0 0 1")] {
        let _ = fs::write(format!("/proc/self/{file}"), text);
    }
    let _ = mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>);
    let at = "/tmp/cgroup";
    let _ = fs::create_dir(at);
    for (kind, options) in
        [("cgroup", "memory"), ("cgroup", "cpu"), ("cgroup", "cpu,cpuacct"), ("cgroup", "pids"), ("cgroup2", "")]
    {
        if mount(Some(kind), at, Some(kind), MsFlags::empty(), Some(options)).is_err() {
            continue;
        }
        println!("mounted {kind} {options}");
        for (file, value) in [
            ("memory.limit_in_bytes", "1099511627776"),
            ("memory.max", "max"),
            ("cpu.cfs_quota_us", "-1"),
            ("cpu.max", "max"),
            ("pids.max", "max"),
        ] {
            if fs::write(format!("{at}/{file}"), value).is_ok() {
                println!("raised {file}");
            }
        }
        let _ = umount(at);
    }
    let mut memory = vec![0u8; megabytes << 20];
    memory.iter_mut().step_by(4096).for_each(|b| *b = 1);
    println!("took {} bytes", std::hint::black_box(memory).len());
}

/// Creates immutable files and directories in each of the directories.
pub fn immutable(directories: &[&str]) {
    const IMMUTABLE: libc::c_int = 0x10;
    for directory in directories {
        let below = format!("{directory}/below");
        fs::create_dir(&below).unwrap();
        fs::write(format!("{below}/file"), "x").unwrap();
        std::os::unix::fs::symlink("/", format!("{below}/link")).unwrap();
        for path in [&format!("{below}/file"), &below, &(*directory).to_owned()] {
            let file = File::open(path).unwrap();
            let mut flags: libc::c_int = 0;
            // SAFETY: both operations take a pointer to an int, which lives through the calls.
            unsafe {
                check(libc::ioctl(file.as_raw_fd(), libc::FS_IOC_GETFLAGS, &raw mut flags).into()).unwrap();
                flags |= IMMUTABLE;
                check(libc::ioctl(file.as_raw_fd(), libc::FS_IOC_SETFLAGS, &raw const flags).into()).unwrap();
            }
        }
        assert!(fs::remove_file(format!("{below}/file")).is_err() && fs::write(format!("{below}/new"), "").is_err());
    }
    println!("done");
}
