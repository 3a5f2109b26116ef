//! Whether a block device is in use, before it is formatted.
//!
//! The kernel refuses to open a device exclusively that is mounted, or that a swap area, RAID or device mapper has. It does not know about
//! programs that have it open without being exclusive, as those of databases on a raw device: these are found among the open files of
//! all processes.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::sys;

/// Who uses a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Use {
    /// It is mounted, or part of another device.
    #[error("it is mounted, or another device or program has it exclusively")]
    Exclusive,
    /// A loop device shows what is on it.
    #[error("{0} is on it")]
    LoopDevice(String),
    /// A program has it open.
    #[error("process {pid} ({name}) has it open")]
    Open {
        /// The process id.
        pid: i32,
        /// The name of its program, of which a container may have chosen the text.
        name: String,
    },
}

/// A block device that no other program that asks for the lock changes. Programs that follow systemd's convention (`udev`, `mkfs --lock`,
/// other agents) ask.
#[derive(Debug)]
pub struct LockedDevice {
    path: PathBuf,
    number: u64,
    file: Flock<File>,
}

fn open(device: &Path, flags: i32) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(nix::libc::O_CLOEXEC | nix::libc::O_NONBLOCK | flags).open(device)
}

impl LockedDevice {
    /// Locks a device, until this is dropped. `None` if another program has locked it. Blocks.
    pub fn lock(device: &Path) -> io::Result<Option<LockedDevice>> {
        let file = open(device, 0)?;
        let metadata = file.metadata()?;
        if !metadata.file_type().is_block_device() {
            return Err(io::Error::other(format!("{} is not a block device", device.display())));
        }
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => Ok(Some(LockedDevice { path: device.to_owned(), number: metadata.rdev(), file })),
            Err((_, Errno::EWOULDBLOCK)) => Ok(None),
            Err((_, e)) => Err(e.into()),
        }
    }

    /// Who uses the device; `None` if it may be formatted. Blocks.
    pub fn user(&self) -> io::Result<Option<Use>> {
        // Released at once: the program that formats the device opens it exclusively itself.
        match open(&self.path, nix::libc::O_EXCL) {
            Ok(_) => {}
            Err(e) if e.raw_os_error() == Some(Errno::EBUSY as i32) => return Ok(Some(Use::Exclusive)),
            Err(e) => return Err(e),
        }
        match loop_device_on(self.number)? {
            Some(name) => Ok(Some(Use::LoopDevice(name))),
            None => opener(self.number, self.file.as_raw_fd()),
        }
    }
}

/// The loop device whose file is a block device with this number.
fn loop_device_on(number: u64) -> io::Result<Option<String>> {
    let is_on = |name: &str| {
        let file = std::fs::read_to_string(format!("/sys/block/{name}/loop/backing_file"));
        let path = file.map(|path| PathBuf::from(path.trim_end_matches('\n')));
        path.is_ok_and(|path| sys::block_number(&path) == Some(number))
    };
    let all = std::fs::read_dir("/sys/block")?.flatten().filter_map(|e| e.file_name().into_string().ok());
    Ok(all.into_iter().find(|name| name.starts_with("loop") && is_on(name)))
}

/// Open files above which a table is looked at once, however many processes share it.
const MANY_FILES: usize = 256;
/// How long the search among open files may take.
const SEARCH_LIMIT: Duration = Duration::from_secs(10);

/// A process that has the device open, but for one descriptor of this process. Errors if there are too many open files to find it in time:
/// programs of containers open as many as they like.
fn opener(number: u64, own: i32) -> io::Result<Option<Use>> {
    let end = sys::uptime() + SEARCH_LIMIT;
    let in_time = || match sys::uptime() < end {
        true => Ok(()),
        false => {
            let seconds = SEARCH_LIMIT.as_secs();
            Err(io::Error::other(format!("looking for programs that have it open took more than {seconds} seconds")))
        }
    };
    let own_process = i32::try_from(std::process::id()).ok();
    let mut large: Vec<i32> = Vec::new();
    for process in std::fs::read_dir("/proc")?.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        in_time()?;
        if large.iter().any(|seen| sys::share_files(*seen, pid)) {
            continue;
        }
        // It may have ended.
        let Ok(descriptors) = std::fs::read_dir(process.path().join("fd")) else { continue };
        let mut count = 0;
        for descriptor in descriptors.flatten() {
            let is_own = own_process == Some(pid) && descriptor.file_name().to_str() == Some(&own.to_string());
            if !is_own && sys::block_number(&descriptor.path()) == Some(number) {
                let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
                return Ok(Some(Use::Open { pid, name: name.trim_end().escape_default().to_string() }));
            }
            count += 1;
            if count % MANY_FILES == 0 {
                in_time()?;
            }
        }
        if count > MANY_FILES {
            large.push(pid);
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loop_device::{Lifetime, LoopDevice};
    use std::collections::BTreeSet;
    use std::process::{Command, Stdio};

    /// A device on a file; None on a machine without loop devices.
    fn device(directory: &Path, name: &str, size: u64) -> Option<LoopDevice> {
        let path = directory.join(name);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).unwrap();
        file.set_len(size).unwrap();
        LoopDevice::attach(&file, Lifetime::UntilDetached, &BTreeSet::new()).ok()
    }

    fn lock(device: &Path) -> LockedDevice {
        LockedDevice::lock(device).unwrap().unwrap()
    }

    fn in_use(device: &Path) -> Use {
        lock(device).user().unwrap().unwrap()
    }

    #[test]
    fn a_device_in_use_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let Some(disk) = device(directory.path(), "disk", 16 << 20) else { return };
        // The descriptor of this process is one of a user.
        let path = disk.path();
        assert_eq!(in_use(&path), Use::Open { pid: std::process::id() as i32, name: name_of_own() });
        drop(disk);
        let locked = lock(&path);
        assert!(LockedDevice::lock(&path).unwrap().is_none());
        assert_eq!(locked.user().unwrap(), None);
        drop(locked);

        let held = OpenOptions::new().read(true).custom_flags(nix::libc::O_EXCL).open(&path).unwrap();
        assert_eq!(in_use(&path), Use::Exclusive);
        drop(held);

        let open = File::open(&path).unwrap();
        let mut program = Command::new("sleep").arg("1000").stdin(Stdio::from(open)).spawn().unwrap();
        let found = in_use(&path);
        let pid = program.id() as i32;
        program.kill().unwrap();
        program.wait().unwrap();
        assert_eq!(found, Use::Open { pid, name: "sleep".into() });

        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let above = LoopDevice::attach(&file, Lifetime::UntilDetached, &BTreeSet::new()).unwrap();
        drop(file);
        let name = above.path().file_name().unwrap().to_string_lossy().into_owned();
        assert_eq!(in_use(&path), Use::LoopDevice(name));
        above.detach().unwrap();
        assert_eq!(lock(&path).user().unwrap(), None);
        assert!(LockedDevice::lock(Path::new("/dev/null")).is_err());
        let file = File::open(directory.path().join("disk")).unwrap();
        LoopDevice::find(&file).unwrap().unwrap().detach().unwrap();
    }

    /// A pod made the search take for ever with thousands of processes that shared thousands of descriptors.
    #[test]
    fn shared_tables_of_open_files_are_told() {
        let own = std::process::id() as i32;
        let thread = std::thread::spawn(|| nix::unistd::gettid().as_raw()).join().unwrap();
        assert!(!sys::share_files(own, thread), "it has ended");
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(sys::share_files(own, nix::unistd::gettid().as_raw())));
        });
        let mut program = Command::new("sleep").arg("1000").spawn().unwrap();
        let shares = sys::share_files(own, program.id() as i32);
        program.kill().unwrap();
        program.wait().unwrap();
        assert!(!shares);
    }

    fn name_of_own() -> String {
        std::fs::read_to_string("/proc/self/comm").unwrap().trim_end().to_owned()
    }
}
