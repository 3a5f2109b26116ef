//! Kernel calls without a wrapper in nix: forking into namespaces, mounts by descriptor, capabilities.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use crate::api::Timestamp;

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Forks into new namespaces; 0 in the child. The process must have one thread.
pub fn fork_into(namespaces: libc::c_int) -> io::Result<i32> {
    let flags = (namespaces | libc::SIGCHLD) as libc::c_ulong;
    // SAFETY: a clone without CLONE_VM and with a null stack behaves like fork. The shim has one thread (its invariant),
    // so no lock of the C library or of Rust can be held by another thread, and the child may run any code.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0usize, 0usize, 0usize, 0usize) };
    check(pid).map(|pid| pid as i32)
}

/// Forks like [`fork_into`], but the child is one of the caller's parent.
pub fn fork_sibling(namespaces: libc::c_int) -> io::Result<i32> {
    fork_into(namespaces | libc::CLONE_PARENT)
}

/// Any signal, real-time ones too.
pub fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: takes numbers only.
    check(unsafe { libc::kill(pid, signal) }.into()).map(drop)
}

pub fn now() -> Timestamp {
    // The one wall clock besides the agent's: for log lines and exit times, since the shim outlives the agent.
    match nix::time::clock_gettime(nix::time::ClockId::CLOCK_REALTIME) {
        Ok(time) => Timestamp { secs: time.tv_sec() as u64, nanos: time.tv_nsec() as u32 },
        Err(_) => Timestamp::default(),
    }
}

/// Whether two processes, or threads, share one table of open files.
pub fn share_files(one: i32, other: i32) -> bool {
    const KCMP_FILES: libc::c_int = 2;
    // SAFETY: takes numbers only.
    unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_FILES, 0usize, 0usize) == 0 }
}

/// Time since the machine was started: for waits.
pub fn uptime() -> Duration {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default()
}

/// A detached copy of the mount that `file` lies on, from `file` downwards, to be placed with [`move_mount`].
pub fn clone_mount(file: BorrowedFd, recursive: bool) -> io::Result<OwnedFd> {
    const OPEN_TREE_CLONE: libc::c_uint = 1;
    let flags = OPEN_TREE_CLONE
        | libc::O_CLOEXEC as libc::c_uint
        | libc::AT_EMPTY_PATH as libc::c_uint
        | if recursive { libc::AT_RECURSIVE as libc::c_uint } else { 0 };
    // SAFETY: the empty path is a NUL-terminated constant; the result is a descriptor of ours.
    unsafe {
        let fd = check(libc::syscall(libc::SYS_open_tree, file.as_raw_fd(), c"".as_ptr(), flags))?;
        Ok(OwnedFd::from_raw_fd(fd as RawFd))
    }
}

/// The number of a block device, from what the kernel knows without asking a file system that may not answer. `None` for other files.
pub fn block_number(path: &Path) -> Option<u64> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    let mut found = std::mem::MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the path is NUL-terminated and lives through the call, which writes at most one structure of this type; zeros are a valid one.
    let found = unsafe {
        let flags = libc::AT_STATX_DONT_SYNC;
        check(libc::statx(libc::AT_FDCWD, path.as_ptr(), flags, libc::STATX_TYPE, found.as_mut_ptr()).into()).ok()?;
        found.assume_init()
    };
    let is_block = u32::from(found.stx_mode) & libc::S_IFMT == libc::S_IFBLK;
    is_block.then(|| nix::sys::stat::makedev(found.stx_rdev_major.into(), found.stx_rdev_minor.into()))
}

/// A detached file system of the kernel, nosuid, nodev and more `attributes`, as the caller's namespaces see it.
pub fn detached_mount(kind: &CStr, attributes: u64) -> io::Result<OwnedFd> {
    const FSCONFIG_CREATE: libc::c_uint = 6;
    const CLOSE_ON_EXEC: libc::c_uint = 1;
    let attributes = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | attributes;
    let null = std::ptr::null::<libc::c_char>();
    // SAFETY: the name is NUL-terminated, null where the kernel takes nothing; descriptors are open, and the results are ours.
    unsafe {
        let context = check(libc::syscall(libc::SYS_fsopen, kind.as_ptr(), CLOSE_ON_EXEC))?;
        let context = OwnedFd::from_raw_fd(context as RawFd);
        check(libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), FSCONFIG_CREATE, null, null, 0))?;
        let mount =
            check(libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), CLOSE_ON_EXEC, attributes as libc::c_uint))?;
        Ok(OwnedFd::from_raw_fd(mount as RawFd))
    }
}

/// Attaches a detached mount to `target`, a descriptor.
pub fn move_mount(tree: BorrowedFd, target: BorrowedFd) -> io::Result<()> {
    const MOVE_MOUNT_F_EMPTY_PATH: libc::c_uint = 4;
    const MOVE_MOUNT_T_EMPTY_PATH: libc::c_uint = 0x40;
    // SAFETY: both paths are the same NUL-terminated constant.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            tree.as_raw_fd(),
            c"".as_ptr(),
            target.as_raw_fd(),
            c"".as_ptr(),
            MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH,
        )
    };
    check(result).map(drop)
}

pub const MOUNT_ATTR_RDONLY: u64 = 1;
pub const MOUNT_ATTR_NOSUID: u64 = 2;
pub const MOUNT_ATTR_NODEV: u64 = 4;
pub const MOUNT_ATTR_NOEXEC: u64 = 8;

#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns: u64,
}

/// Changes attributes and, unless 0, the propagation (`MS_PRIVATE`, `MS_SLAVE`, `MS_SHARED`) of a mount.
pub fn mount_setattr(tree: BorrowedFd, set: u64, propagation: u64, recursive: bool) -> io::Result<()> {
    change_mount(tree, &MountAttr { set, clear: 0, propagation, userns: 0 }, recursive)
}

/// Shows the users of a detached mount's files as those of a user namespace: 0 on disk is 0 inside. `EINVAL` if the file system
/// cannot do it.
pub fn map_users(tree: BorrowedFd, users: BorrowedFd) -> io::Result<()> {
    const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;
    let userns = users.as_raw_fd() as u64;
    change_mount(tree, &MountAttr { set: MOUNT_ATTR_IDMAP, clear: 0, propagation: 0, userns }, false)
}

fn change_mount(tree: BorrowedFd, attr: &MountAttr, recursive: bool) -> io::Result<()> {
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    let empty: &CStr = c"";
    // SAFETY: `attr` has the layout of the kernel's struct mount_attr, its true size is passed, and both pointers live
    // through the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            empty.as_ptr(),
            flags,
            std::ptr::from_ref(attr),
            size_of::<MountAttr>(),
        )
    };
    check(result).map(drop)
}

/// Clears the flags immutable and append-only of an entry of a directory, of any kind (`chattr +i`, `+a`). `ENOSYS` on kernels
/// before 6.17.
pub fn allow_changes(parent: BorrowedFd, name: &CStr) -> io::Result<()> {
    #[repr(C)]
    #[derive(Default)]
    struct FileAttr {
        flags: u64,
        extent_size: u32,
        extents: u32,
        project: u32,
        copy_on_write_extent_size: u32,
    }
    const FILE_GETATTR: libc::c_long = 468;
    const FILE_SETATTR: libc::c_long = 469;
    const IMMUTABLE_OR_APPEND: u64 = 0x8 | 0x10;
    let mut attributes = FileAttr::default();
    let (fd, name, size) = (parent.as_raw_fd(), name.as_ptr(), size_of::<FileAttr>());
    // SAFETY: `attributes` has the layout of the kernel's struct file_attr, its true size is passed, and it and the name live through the
    // calls.
    unsafe {
        check(libc::syscall(FILE_GETATTR, fd, name, &raw mut attributes, size, libc::AT_SYMLINK_NOFOLLOW))?;
        attributes.flags &= !IMMUTABLE_OR_APPEND;
        check(libc::syscall(FILE_SETATTR, fd, name, &raw const attributes, size, libc::AT_SYMLINK_NOFOLLOW)).map(drop)
    }
}

/// The flags of a file that `chattr` changes.
pub const IMMUTABLE: libc::c_int = 0x10;
pub const APPEND_ONLY: libc::c_int = 0x20;

pub fn change_flags(file: BorrowedFd, change: impl FnOnce(libc::c_int) -> libc::c_int) -> io::Result<()> {
    let mut flags: libc::c_int = 0;
    // SAFETY: both operations take a pointer to an int, which lives through the calls.
    unsafe {
        check(libc::ioctl(file.as_raw_fd(), libc::FS_IOC_GETFLAGS, &raw mut flags).into())?;
        flags = change(flags);
        check(libc::ioctl(file.as_raw_fd(), libc::FS_IOC_SETFLAGS, &raw const flags).into()).map(drop)
    }
}

pub fn pivot_root_here() -> io::Result<()> {
    // SAFETY: both arguments are NUL-terminated constants.
    check(unsafe { libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()) }).map(drop)
}

/// The capabilities that the calling thread may use.
pub fn permitted_capabilities() -> io::Result<u64> {
    let status = std::fs::read_to_string("/proc/thread-self/status")?;
    let line = status.lines().find_map(|l| l.strip_prefix("CapPrm:"));
    line.and_then(|v| u64::from_str_radix(v.trim(), 16).ok()).ok_or_else(|| io::Error::other("/proc has no CapPrm"))
}

/// Reduces the bounding set to `capabilities`; needs CAP_SETPCAP.
pub fn limit_bounding_set(capabilities: u64) -> io::Result<()> {
    for number in 0..64 {
        // SAFETY: prctl with these operations takes plain numbers.
        unsafe {
            match libc::prctl(libc::PR_CAPBSET_READ, number as libc::c_ulong, 0, 0, 0) {
                1 if capabilities & (1 << number) == 0 => {
                    check(libc::prctl(libc::PR_CAPBSET_DROP, number as libc::c_ulong, 0, 0, 0).into())?;
                }
                result if result < 0 => break, // beyond the last capability of this kernel
                _ => {}
            }
        }
    }
    Ok(())
}

/// Sets the permitted and effective sets to `capabilities`, and clears the inheritable and ambient ones.
pub fn set_capabilities(capabilities: u64) -> io::Result<()> {
    set_capability_sets(capabilities, capabilities)
}

/// The same, with a larger permitted set.
pub fn set_capability_sets(effective: u64, permitted: u64) -> io::Result<()> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    #[repr(C)]
    struct Data {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    let header = Header { version: 0x2008_0522, pid: 0 };
    let half = |shift: u32| Data {
        effective: (effective >> shift) as u32,
        permitted: (permitted >> shift) as u32,
        inheritable: 0,
    };
    let data = [half(0), half(32)];
    // SAFETY: version 3 of the capability call takes one header and two data words with these layouts; they live
    // through the call.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) }).map(drop)
}

/// Makes an empty session keyring for the calling thread. Counts for its real user. Fine on a kernel without keys.
pub fn new_session_keyring() -> io::Result<()> {
    const JOIN_SESSION_KEYRING: libc::c_long = 1;
    // SAFETY: joining with a null name makes a keyring of our own.
    match check(unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, 0usize, 0, 0, 0) }) {
        Err(e) if e.raw_os_error() == Some(libc::ENOSYS) => Ok(()),
        result => result.map(drop),
    }
}

/// Changes the real user alone.
pub fn set_real_user(user: u32) -> io::Result<()> {
    // SAFETY: takes numbers only; the highest one leaves an id as it is. As a plain system call it is for the calling thread.
    check(unsafe { libc::syscall(libc::SYS_setresuid, user, u32::MAX, u32::MAX) }).map(drop)
}

/// Fills a buffer with random bytes of the kernel.
pub fn random(buffer: &mut [u8]) -> io::Result<()> {
    // SAFETY: writes at most so many bytes into the buffer, which lives through the call.
    let read = check(unsafe { libc::syscall(libc::SYS_getrandom, buffer.as_mut_ptr(), buffer.len(), 0) })?;
    if read as usize == buffer.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

pub fn prctl(operation: libc::c_int, argument: libc::c_ulong) -> io::Result<()> {
    // SAFETY: used only with operations whose arguments are plain numbers.
    check(unsafe { libc::prctl(operation, argument, 0, 0, 0) }.into()).map(drop)
}

/// Installs a seccomp filter on the calling thread. Needs no_new_privs or CAP_SYS_ADMIN.
pub fn install_seccomp(instructions: &[u64]) -> io::Result<()> {
    let filters: Vec<libc::sock_filter> = instructions
        .iter()
        .map(|i| libc::sock_filter { code: (i >> 48) as u16, jt: (i >> 40) as u8, jf: (i >> 32) as u8, k: *i as u32 })
        .collect();
    let program = libc::sock_fprog { len: filters.len() as u16, filter: filters.as_ptr().cast_mut() };
    // SAFETY: the kernel copies the program, which lives through the call, and verifies it; it does not write to it.
    check(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) }).map(drop)
}

pub fn make_controlling_terminal(terminal: BorrowedFd) -> io::Result<()> {
    // SAFETY: TIOCSCTTY takes a number.
    check(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSCTTY, 0) }.into()).map(drop)
}

/// Unlocks the other side of a terminal's master and opens it (no path needed, so no race about /dev/pts).
pub fn open_terminal_peer(master: BorrowedFd) -> io::Result<OwnedFd> {
    let unlock: libc::c_int = 0;
    // SAFETY: TIOCSPTLCK reads an int that lives through the call; TIOCGPTPEER takes flags and gives a descriptor of ours.
    unsafe {
        check(libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK, &raw const unlock).into())?;
        let fd = check(libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, libc::O_RDWR | libc::O_NOCTTY).into())?;
        Ok(OwnedFd::from_raw_fd(fd as RawFd))
    }
}

pub fn set_terminal_size(terminal: BorrowedFd, rows: u16, columns: u16) -> io::Result<()> {
    let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCSWINSZ reads a winsize that lives through the call.
    check(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) }.into()).map(drop)
}
