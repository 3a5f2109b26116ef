//! From a forked child of the shim to the program of the container: namespaces, identity, privileges, exec.
//!
//! Two processes take part. The *helper* is forked by the shim and is never in a pid namespace of a container, so nobody there
//! sees it. It closes what the shim has open, joins the container's cgroup and namespaces and gives away the privileges that
//! are not needed any more. Then it makes the *child*, which it hands over to the shim, and ends.
//!
//! **Invariant.** A process that containers can see holds only its streams and the report socket, is not dumpable until the
//! container's own program runs, and runs our program from a mount that cannot be written. It has the container's root, and
//! no more privileges than becoming the user takes. (On kernels before 6.17 one is missing: the first process of a container in a
//! pid namespace that the pod shares builds its root there, since only then it gets the right /proc.)
//!
//! In a pod with a user namespace the helper opens what takes the host's root, and joins that namespace before it makes the child. The
//! child then builds the root, with privileges over the pod's namespaces alone. Until it runs the program its memory belongs to
//! the host's user namespace, so no privilege of the pod opens it.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;

use nix::fcntl::OFlag;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, signal, sigprocmask};
use nix::sys::socket::MsgFlags;
use nix::sys::stat::{Mode, fstat, makedev};
use nix::unistd::{
    Gid, Uid, dup2_stderr, dup2_stdin, dup2_stdout, fchown, pipe2, setgroups, setresgid, setresuid, setsid,
};

use super::{rootfs, sys};
use crate::api::FileKind;
use crate::beneath::{Directory, Leaf, Links};
use crate::spec::ContainerRecord;
use crate::{cgroup, descriptors, user_namespace, wire};

/// What helper and child report before the program runs: the child's process id (as text), the master of its terminal, or why
/// it failed. End of file after the process id is success, since the socket closes on exec.
pub const REPORT_CHILD: u8 = b'P';
pub const REPORT_TERMINAL: u8 = b'T';
pub const REPORT_ERROR: u8 = b'E';

/// What the child of an exec still needs: it becomes the user and reads files of the container, and a filter without
/// no_new_privs needs the last one.
const CHANGE_USER: u64 = 1 << DAC_OVERRIDE | 1 << SETGID | 1 << SETUID | 1 << SETPCAP;
const DAC_OVERRIDE: u8 = 1;
const SETGID: u8 = 6;
const SETUID: u8 = 7;
const SETPCAP: u8 = 8;
const SYS_ADMIN: u8 = 21;

/// Where the process's streams go.
pub enum Streams {
    Pipes {
        stdin: Option<OwnedFd>,
        stdout: Option<OwnedFd>,
        stderr: Option<OwnedFd>,
    },
    Terminal,
    /// One that the helper has opened.
    Opened(OwnedFd),
}

pub enum Role<'a> {
    /// The first process of the container, with the container's state directory.
    First { state: &'a Path },
    /// One more, with its command and the container's namespaces to join (cgroup and mount).
    Another { argv: &'a [String], namespaces: &'a [OwnedFd] },
}

/// The pid namespace of a new process.
pub enum PidNamespace<'a> {
    New,
    Join(&'a OwnedFd),
    Host,
}

impl Streams {
    fn descriptors(&self) -> Vec<RawFd> {
        match self {
            Streams::Pipes { stdin, stdout, stderr } => {
                [stdin, stdout, stderr].into_iter().flatten().map(|fd| fd.as_raw_fd()).collect()
            }
            Streams::Terminal => Vec::new(),
            Streams::Opened(terminal) => vec![terminal.as_raw_fd()],
        }
    }

    /// Makes a user of the host the owner of the pipes.
    fn give_to(&self, user: u32) -> nix::Result<()> {
        let Streams::Pipes { stdin, stdout, stderr } = self else { return Ok(()) };
        for stream in [stdin, stdout, stderr].into_iter().flatten() {
            if FileKind::from_mode(fstat(stream)?.st_mode) == FileKind::Pipe {
                fchown(stream, Some(Uid::from_raw(user)), Some(Gid::from_raw(user)))?;
            }
        }
        Ok(())
    }
}

/// The namespaces of a pod that its processes join.
pub struct PodNamespaces<'a> {
    pub pids: PidNamespace<'a>,
    pub users: Option<&'a OwnedFd>,
}

/// The helper: runs in a process forked for it, and does not return.
pub fn launch(record: &ContainerRecord, role: &Role, pod: &PodNamespaces, streams: Streams, report: BorrowedFd) -> ! {
    let mut streams = streams;
    match hand_over(record, role, pod, &mut streams, report) {
        Ok(Side::Helper) => exit(0),
        Ok(Side::Child(place)) => become_program(record, role, place, streams, report),
        Err(error) => fail(report, &error),
    }
}

fn exit(code: i32) -> ! {
    // SAFETY: leaves at once, without the exit handlers of the process this one was forked from.
    unsafe { libc::_exit(code) }
}

fn fail(report: BorrowedFd, error: &str) -> ! {
    let mut packet = vec![REPORT_ERROR];
    // It goes on in larger packets of JSON, in which a byte may take six.
    packet.extend_from_slice(&error.as_bytes()[..error.floor_char_boundary(MOST_ERROR)]);
    let _ = wire::send(report, &packet, &[], MsgFlags::empty());
    exit(128)
}

enum Side {
    Helper,
    Child(Place),
}

/// How far the child is when it begins.
enum Place {
    /// On the host, with all privileges, and alone in its pid namespace (see the invariant).
    Host,
    /// On the host, as root of the pod's user namespace.
    Users(rootfs::Prepared),
    /// In the container, with what becoming the user takes.
    Container,
}

/// Prepares and makes the child. It waits until the shim can know of it, so that its end is never that of a stranger.
fn hand_over(
    record: &ContainerRecord,
    role: &Role,
    PodNamespaces { pids, users }: &PodNamespaces,
    streams: &mut Streams,
    report: BorrowedFd,
) -> Result<Side, String> {
    let say = |what: &'static str| move |e: io::Error| format!("{what}: {e}");
    let mut keep = streams.descriptors();
    keep.push(report.as_raw_fd());
    if let Role::Another { namespaces, .. } = role {
        keep.extend(namespaces.iter().map(AsRawFd::as_raw_fd));
    }
    if let PidNamespace::Join(namespace) = pids {
        keep.push(namespace.as_raw_fd());
    }
    keep.extend(users.map(AsRawFd::as_raw_fd));
    descriptors::close_all_but(&keep).map_err(say("closing descriptors"))?;
    cgroup::enter(&record.cgroups).map_err(|e| e.to_string())?;
    std::fs::write("/proc/self/oom_score_adj", record.oom_score_adj.to_string()).map_err(say("oom_score_adj"))?;
    // Whatever the agent was started with is not the container's.
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
    let permitted = sys::permitted_capabilities().map_err(say("capabilities"))?;
    if let Some(profile) = &record.config.security.apparmor {
        // Inherited by the child. While /proc is the host's: a container's could be anything.
        set_apparmor(profile).map_err(|e| format!("AppArmor profile {profile:?}: {e}"))?;
    }
    if let Some(range) = record.user_namespace {
        // So that the pod's root may open them again, as /dev/stdout.
        streams.give_to(range.first).map_err(|e| format!("streams: {e}"))?;
    }
    let mut prepared = None;
    if let (Role::First { state }, Some(users)) = (role, users) {
        unshare(CloneFlags::CLONE_NEWNS).map_err(|e| format!("mount namespace: {e}"))?;
        prepared = Some(rootfs::Prepared::new(record, state, users.as_fd())?);
        // Before the pid namespace, which is then the pod's.
        user_namespace::enter(users.as_fd()).map_err(say("joining the user namespace"))?;
    }
    match pids {
        PidNamespace::New => unshare(CloneFlags::CLONE_NEWPID).map_err(|e| format!("pid namespace: {e}"))?,
        PidNamespace::Join(namespace) => {
            setns(namespace, CloneFlags::CLONE_NEWPID).map_err(|e| format!("joining the pid namespace: {e}"))?
        }
        PidNamespace::Host => {}
    }
    let place = match (role, pids) {
        (Role::Another { namespaces, .. }, _) => {
            for namespace in *namespaces {
                setns(namespace, CloneFlags::empty()).map_err(|e| format!("joining the container: {e}"))?;
            }
            if let Some(users) = users {
                user_namespace::enter(users.as_fd()).map_err(say("joining the user namespace"))?;
            }
            Place::Container
        }
        (Role::First { .. }, _) if prepared.is_some() => prepared.map_or(Place::Host, Place::Users),
        (Role::First { state }, PidNamespace::Join(namespace)) => {
            match sys::proc_of(namespace.as_fd()).map_err(say("/proc"))? {
                Some(proc) => {
                    make_container(record, state, Some(proc))?;
                    if matches!(streams, Streams::Terminal) {
                        *streams = Streams::Opened(open_terminal(report, true)?);
                    }
                    Place::Container
                }
                None => Place::Host,
            }
        }
        (Role::First { .. }, _) => Place::Host,
    };
    sys::new_session_keyring().map_err(say("session keyring"))?;
    if matches!(place, Place::Container) {
        let own = wanted(record) | CHANGE_USER | if needs_admin(record) { 1 << SYS_ADMIN } else { 0 };
        sys::limit_bounding_set(wanted(record)).map_err(say("capability bounding set"))?;
        sys::set_capabilities(permitted & own).map_err(say("capabilities"))?;
    }
    let (ready, go) = pipe2(OFlag::O_CLOEXEC).map_err(|e| format!("pipe: {e}"))?;
    match sys::fork_sibling(0).map_err(say("fork"))? {
        0 => {
            drop(go);
            if nix::unistd::read(&ready, &mut [0]) != Ok(1) {
                exit(128); // the helper was killed, and with it the start
            }
            drop(ready);
            let mut keep = streams.descriptors();
            keep.push(report.as_raw_fd());
            if let Place::Users(prepared) = &place {
                keep.extend(prepared.descriptors());
            }
            descriptors::close_all_but(&keep).map_err(say("closing descriptors"))?;
            Ok(Side::Child(place))
        }
        pid => {
            let mut packet = vec![REPORT_CHILD];
            packet.extend_from_slice(pid.to_string().as_bytes());
            wire::send(report, &packet, &[], MsgFlags::empty()).map_err(say("reporting"))?;
            drop(ready);
            // From here on what the child holds is closed when the child closes it.
            descriptors::close_all_but(&[go.as_raw_fd()]).map_err(say("closing descriptors"))?;
            let _ = nix::unistd::write(&go, &[0]);
            Ok(Side::Helper)
        }
    }
}

/// Makes the mount namespace of the container, and enters its root.
fn make_container(record: &ContainerRecord, state: &Path, proc: Option<OwnedFd>) -> Result<(), String> {
    make_namespaces(record)?;
    rootfs::enter(record, state, proc.as_ref())
}

fn make_namespaces(record: &ContainerRecord) -> Result<(), String> {
    let mut own = CloneFlags::CLONE_NEWNS;
    own.set(CloneFlags::CLONE_NEWCGROUP, !record.config.security.privileged);
    unshare(own).map_err(|e| format!("making the container's namespaces: {e}"))
}

/// Takes effect when the next program is run. Kernels with several security modules have a directory for each.
fn set_apparmor(profile: &str) -> io::Result<()> {
    let own = Path::new("/proc/thread-self/attr/apparmor/exec");
    let file = if own.exists() { own } else { Path::new("/proc/thread-self/attr/exec") };
    std::fs::write(file, format!("exec {profile}"))
}

fn wanted(record: &ContainerRecord) -> u64 {
    record.capabilities.iter().fold(0u64, |bits, c| bits | 1 << c)
}

/// A filter needs CAP_SYS_ADMIN or no_new_privs: without the latter it goes in while we still have the former.
fn needs_admin(record: &ContainerRecord) -> bool {
    record.seccomp.is_some() && !record.config.security.no_new_privileges
}

/// Runs in the child and does not return.
fn become_program(record: &ContainerRecord, role: &Role, place: Place, streams: Streams, report: BorrowedFd) -> ! {
    match prepare(record, role, place, streams, report) {
        Ok(never) => match never {},
        Err(error) => fail(report, &error),
    }
}

fn prepare(
    record: &ContainerRecord,
    role: &Role,
    place: Place,
    streams: Streams,
    report: BorrowedFd,
) -> Result<std::convert::Infallible, String> {
    let say = |what: &'static str| move |e: io::Error| format!("{what}: {e}");
    let security = &record.config.security;
    let first = matches!(role, Role::First { .. });
    let all_privileges = !matches!(place, Place::Container);
    match (place, role) {
        (Place::Host, Role::First { state }) => make_container(record, state, None)?,
        (Place::Users(prepared), _) => {
            make_namespaces(record)?;
            prepared.enter(record)?;
        }
        _ => {}
    }
    let argv = match role {
        Role::First { .. } => record.argv.as_slice(),
        Role::Another { argv, .. } => argv,
    };
    setsid().map_err(|e| format!("setsid: {e}"))?;
    connect(streams, report, first)?;

    // Found and judged as the container sees it, before privileges are dropped.
    let user = User::resolve(record)?;
    rootfs::enter_working_directory(&record.cwd)?;
    let mut environment = record.env.clone();
    if !environment.iter().any(|(k, _)| k == "HOME") {
        environment.push(("HOME".into(), user.home.clone()));
    }

    // Before a filter, which need not allow the call.
    descriptors::close_on_exec().map_err(say("descriptors"))?;
    let wanted = wanted(record);
    if all_privileges {
        sys::limit_bounding_set(wanted).map_err(say("capability bounding set"))?;
    }
    sys::prctl(libc::PR_SET_KEEPCAPS, 1).map_err(say("keeping capabilities"))?;
    let groups: Vec<Gid> = user.groups.iter().map(|g| Gid::from_raw(*g)).collect();
    setgroups(&groups).map_err(|e| format!("setgroups: {e}"))?;
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    // Programs open their own streams again (`/dev/stdout`), which only the owner of a pipe may.
    for stream in 0..3 {
        own_stream(stream, uid).map_err(say("owner of a stream"))?;
    }
    setresgid(gid, gid, gid).map_err(|e| format!("setgid {gid}: {e}"))?;
    if let Some(program) = record.seccomp.as_ref().filter(|_| needs_admin(record)) {
        program.install().map_err(say("seccomp"))?;
    }
    setresuid(uid, uid, uid).map_err(|e| format!("setuid {uid}: {e}"))?;
    sys::set_capabilities(wanted).map_err(say("capabilities"))?;
    // Changed by the change of user, to what the host's `fs.suid_dumpable` says.
    sys::prctl(libc::PR_SET_DUMPABLE, 0).map_err(say("dumpable"))?;
    if first {
        // After the change of user, which clears it.
        sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong).map_err(say("parent death signal"))?;
    }
    let (program, argv, environment) = (find(argv, &environment)?, c_strings(argv)?, c_environment(&environment)?);
    reset_signals().map_err(|e| format!("signals: {e}"))?;
    if security.no_new_privileges {
        sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1).map_err(say("no_new_privs"))?;
        if let Some(program) = &record.seccomp {
            program.install().map_err(say("seccomp"))?;
        }
    }
    let Err(error) = nix::unistd::execve(&program, &argv, &environment);
    Err(format!("exec {program:?}: {}", io::Error::from(error)))
}

fn connect(streams: Streams, report: BorrowedFd, first: bool) -> Result<(), String> {
    let say = |what: &'static str| move |e: nix::Error| format!("{what}: {e}");
    match streams {
        Streams::Pipes { stdin, stdout, stderr } => {
            let or_null = |fd: Option<OwnedFd>| fd.map_or_else(open_null, Ok);
            dup2_stdin(or_null(stdin)?).map_err(say("stdin"))?;
            dup2_stdout(or_null(stdout)?).map_err(say("stdout"))?;
            dup2_stderr(or_null(stderr)?).map_err(say("stderr"))?;
        }
        Streams::Terminal => use_terminal(&open_terminal(report, first)?)?,
        Streams::Opened(terminal) => use_terminal(&terminal)?,
    }
    Ok(())
}

/// The null device of the container, which may have put something else in its place.
fn open_null() -> Result<OwnedFd, String> {
    let fail = |e: io::Error| format!("/dev/null: {e}");
    let root = Directory::open(Path::new("/"), Links::Refuse).map_err(fail)?;
    let flags = OFlag::O_RDWR | OFlag::O_NOCTTY;
    let null = root.open_at(Path::new("dev/null"), flags, Mode::empty()).map_err(fail)?;
    let stat = fstat(&null).map_err(|e| fail(e.into()))?;
    if FileKind::from_mode(stat.st_mode) == FileKind::CharacterDevice && stat.st_rdev == makedev(1, 3) {
        return Ok(null);
    }
    Err("/dev/null: it is not the null device".into())
}

/// Opens a terminal of the container and passes its master to the shim. It is also the console of the first process.
fn open_terminal(report: BorrowedFd, first: bool) -> Result<OwnedFd, String> {
    let master = std::fs::File::options().read(true).write(true).open("/dev/pts/ptmx");
    let master = master.map_err(|e| format!("/dev/pts/ptmx: {e}"))?;
    let terminal = sys::open_terminal_peer(master.as_fd()).map_err(|e| format!("terminal: {e}"))?;
    if first {
        let fail = |e: io::Error| format!("/dev/console: {e}");
        let root = Directory::open(Path::new("/"), Links::Refuse).map_err(fail)?;
        let console = root.make(Path::new("dev/console"), Leaf::File, Mode::empty()).map_err(fail)?;
        let tree = sys::clone_mount(terminal.as_fd(), false).map_err(fail)?;
        sys::move_mount(tree.as_fd(), console.as_fd()).map_err(fail)?;
    }
    wire::send(report, &[REPORT_TERMINAL], &[master.as_raw_fd()], MsgFlags::empty())
        .map_err(|e| format!("passing the terminal: {e}"))?;
    Ok(terminal)
}

fn use_terminal(terminal: &OwnedFd) -> Result<(), String> {
    let say = |what: &'static str| move |e: nix::Error| format!("{what}: {e}");
    sys::make_controlling_terminal(terminal.as_fd()).map_err(|e| format!("controlling terminal: {e}"))?;
    dup2_stdin(terminal).map_err(say("stdin"))?;
    dup2_stdout(terminal).map_err(say("stdout"))?;
    dup2_stderr(terminal).map_err(say("stderr"))
}

/// Gives a pipe or socket among the streams to the user. Files and devices stay whose they are.
fn own_stream(stream: RawFd, uid: Uid) -> io::Result<()> {
    // SAFETY: streams 0 to 2 are open, and not closed while this is borrowed.
    let fd = unsafe { BorrowedFd::borrow_raw(stream) };
    let stat = fstat(fd)?;
    let kind = FileKind::from_mode(stat.st_mode);
    if stat.st_uid == uid.as_raw() || !matches!(kind, FileKind::Pipe | FileKind::Socket) {
        return Ok(());
    }
    match nix::unistd::fchown(fd, Some(uid), None) {
        // A stream of another user namespace belongs to nobody here.
        Ok(()) | Err(nix::Error::EPERM | nix::Error::EINVAL) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// Rust ignores SIGPIPE and the shim blocks what it reads by descriptor; programs expect neither.
fn reset_signals() -> nix::Result<()> {
    for number in Signal::iterator().filter(|s| !matches!(s, Signal::SIGKILL | Signal::SIGSTOP)) {
        // SAFETY: sets the default action; no handler of ours is installed.
        unsafe { signal(number, SigHandler::SigDfl)? };
    }
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)
}

/// The file that the first word of a command means, with errors in the words users know.
fn find(argv: &[String], environment: &[(String, String)]) -> Result<CString, String> {
    let Some(name) = argv.first().filter(|n| !n.is_empty()) else {
        return Err("no command specified".into());
    };
    let c_name = |path: &str| CString::new(path).map_err(|_| "command contains a NUL byte".to_owned());
    let executable = |path: &str| nix::unistd::access(path, nix::unistd::AccessFlags::X_OK).is_ok();
    if name.contains('/') {
        let metadata = std::fs::metadata(name).map_err(|e| format!("exec: {name:?}: stat {name}: {}", lower(&e)))?;
        if metadata.is_dir() {
            return Err(format!("exec: {name:?}: is a directory"));
        }
        if !executable(name) {
            return Err(format!("exec: {name:?}: permission denied"));
        }
        return c_name(name);
    }
    let path = environment.iter().rev().find(|(k, _)| k == "PATH").map_or("", |(_, v)| v.as_str());
    let mut denied = false;
    for directory in path.split(':') {
        let candidate = format!("{}/{name}", if directory.is_empty() { "." } else { directory });
        if std::fs::metadata(&candidate).is_ok_and(|m| m.is_file()) {
            if executable(&candidate) {
                return c_name(&candidate);
            }
            denied = true;
        }
    }
    let why = if denied { "permission denied" } else { "executable file not found in $PATH" };
    Err(format!("exec: {name:?}: {why}"))
}

fn lower(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "no such file or directory".into(),
        io::ErrorKind::PermissionDenied => "permission denied".into(),
        _ => error.to_string(),
    }
}

fn c_strings(words: &[String]) -> Result<Vec<CString>, String> {
    words.iter().map(|w| CString::new(w.as_str()).map_err(|_| format!("argument {w:?} contains a NUL byte"))).collect()
}

fn c_environment(pairs: &[(String, String)]) -> Result<Vec<CString>, String> {
    pairs
        .iter()
        .map(|(k, v)| CString::new(format!("{k}={v}")).map_err(|_| format!("variable {k:?} contains a NUL byte")))
        .collect()
}

/// Bytes of an error that are told.
const MOST_ERROR: usize = 4096;

/// Bytes of /etc/passwd and of /etc/group that are read.
const MAX_ACCOUNTS: u64 = 8 << 20;

#[derive(Debug, PartialEq, Eq)]
struct User {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    home: String,
}

impl User {
    /// Looks names up in the files of the container, whose root is ours by now.
    fn resolve(record: &ContainerRecord) -> Result<User, String> {
        let security = &record.config.security;
        // They are the container's: never waited for, and of bounded size.
        let read = |path: &str| {
            let file = Directory::open(Path::new("/"), Links::Root).and_then(|root| root.read(Path::new(path)));
            let mut text = Vec::new();
            let _ = file.and_then(|f| f.take(MAX_ACCOUNTS).read_to_end(&mut text));
            String::from_utf8_lossy(&text).into_owned()
        };
        resolve_user(
            &record.image_user,
            (security.run_as_user, security.run_as_group),
            (&security.supplemental_groups, security.strict_groups),
            &read("/etc/passwd"),
            &read("/etc/group"),
        )
    }
}

fn resolve_user(
    image_user: &str,
    (run_as_user, run_as_group): (Option<u32>, Option<u32>),
    (supplemental, strict): (&[u32], bool),
    passwd: &str,
    group: &str,
) -> Result<User, String> {
    let (image_user, image_group) = image_user.split_once(':').unwrap_or((image_user, ""));
    let users = || passwd.lines().map(|l| l.split(':').collect::<Vec<_>>()).filter(|f| f.len() >= 6);
    let groups = || group.lines().map(|l| l.split(':').collect::<Vec<_>>()).filter(|f| f.len() >= 3);
    let wanted = match run_as_user {
        Some(uid) => uid.to_string(),
        None if image_user.is_empty() => "0".into(),
        None => image_user.to_owned(),
    };
    let entry = users().find(|f| f[0] == wanted || (wanted.parse::<u32>().is_ok() && f[2] == wanted));
    let uid = match (&entry, wanted.parse()) {
        (_, Ok(uid)) => uid,
        (Some(entry), _) => {
            entry[2].parse().map_err(|_| format!("user {wanted:?}: bad uid {:?} in /etc/passwd", entry[2]))?
        }
        (None, _) => return Err(format!("unable to find user {wanted}: no matching entries in passwd file")),
    };
    let gid = match run_as_group {
        Some(gid) => gid,
        None if run_as_user.is_none() && !image_group.is_empty() => match image_group.parse() {
            Ok(gid) => gid,
            Err(_) => groups()
                .find(|f| f[0] == image_group)
                .and_then(|f| f[2].parse().ok())
                .ok_or_else(|| format!("unable to find group {image_group}: no matching entries in group file"))?,
        },
        None => entry.as_ref().and_then(|e| e[3].parse().ok()).unwrap_or(0),
    };
    let mut all: BTreeSet<u32> = supplemental.iter().copied().collect();
    if let (Some(entry), false) = (&entry, strict) {
        let member = |f: &Vec<&str>| f.get(3).is_some_and(|m| m.split(',').any(|m| m == entry[0]));
        all.extend(groups().filter(member).filter_map(|f| f[2].parse::<u32>().ok()));
    }
    all.insert(gid);
    let home = entry.map(|e| e[5].to_owned()).filter(|h| !h.is_empty()).unwrap_or_else(|| "/".into());
    Ok(User { uid, gid, groups: all.into_iter().collect(), home })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nweb:x:33:44:Web:/srv:/bin/sh\n";
    const GROUP: &str = "root:x:0:\nwww:x:44:\nmedia:x:70:web,other\n";

    #[test]
    fn users_come_from_the_request_the_image_and_its_files() {
        let user = |image: &str, request, supplemental: &[u32], strict| {
            resolve_user(image, request, (supplemental, strict), PASSWD, GROUP)
        };
        let expect =
            |uid, gid, groups: &[u32], home: &str| Ok(User { uid, gid, groups: groups.into(), home: home.into() });
        assert_eq!(user("", (None, None), &[], false), expect(0, 0, &[0], "/root"));
        assert_eq!(user("web", (None, None), &[9], false), expect(33, 44, &[9, 44, 70], "/srv"));
        assert_eq!(user("web:media", (None, None), &[], true), expect(33, 70, &[70], "/srv"));
        assert_eq!(user("web", (Some(1000), None), &[], false), expect(1000, 0, &[0], "/"));
        assert_eq!(user("1000:1001", (None, Some(5)), &[], false), expect(1000, 5, &[5], "/"));
        assert!(user("nobody", (None, None), &[], false).unwrap_err().contains("unable to find user nobody"));
        assert!(user("web:none", (None, None), &[], false).unwrap_err().contains("unable to find group none"));
    }
}
