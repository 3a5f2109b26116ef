//! Loop devices: block devices whose contents are files.
//!
//! **Invariant.** A file has at most one device: two would write to it without knowing of each other. [`LoopDevice::attach`] therefore
//! returns the device that a file has already. Callers exclude each other for the same file.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// How long a device stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// Until nothing has it open or mounted any more.
    UntilUnused,
    /// Until [`LoopDevice::detach`].
    UntilDetached,
}

/// An open loop device.
#[derive(Debug)]
pub struct LoopDevice {
    file: File,
    number: u32,
}

/// Numbers of the kernel's interface (`linux/loop.h`).
const SET_FD_AND_STATUS: libc::Ioctl = 0x4C0A;
const CLEAR_FD: libc::Ioctl = 0x4C01;
const SET_STATUS: libc::Ioctl = 0x4C04;
const GET_STATUS: libc::Ioctl = 0x4C05;
const SET_CAPACITY: libc::Ioctl = 0x4C07;
const CONTROL_ADD: libc::Ioctl = 0x4C80;
const CONTROL_GET_FREE: libc::Ioctl = 0x4C82;
const AUTOCLEAR: u32 = 4;
/// Numbers that are tried for a device: others may take one in the same moment, and some are to be left out.
const TRIES: u32 = 4096;

/// The kernel's `struct loop_info64`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Status {
    device: u64,
    inode: u64,
    own_device: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encryption: [u32; 2],
    flags: u32,
    file_name: [u8; 64],
    encryption_name: [u8; 64],
    key: [u8; 32],
    init: [u64; 2],
}

/// The kernel's `struct loop_config`.
#[repr(C)]
struct Configuration {
    fd: u32,
    block_size: u32,
    status: Status,
    reserved: [u64; 8],
}

const EMPTY: Status = Status {
    device: 0,
    inode: 0,
    own_device: 0,
    offset: 0,
    size_limit: 0,
    number: 0,
    encryption: [0; 2],
    flags: 0,
    file_name: [0; 64],
    encryption_name: [0; 64],
    key: [0; 32],
    init: [0; 2],
};

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A command that takes a number.
fn command(file: &File, request: libc::Ioctl, argument: libc::c_ulong) -> io::Result<libc::c_int> {
    // SAFETY: the requests that this module passes take a number, no pointer.
    check(unsafe { libc::ioctl(file.as_raw_fd(), request, argument) })
}

fn path(number: u32) -> PathBuf {
    PathBuf::from(format!("/dev/loop{number}"))
}

/// Opens a device. Closing one that was open for writing makes udev read it, which is for new contents only.
fn open(number: u32, writes: bool) -> io::Result<File> {
    OpenOptions::new().read(true).write(writes).custom_flags(libc::O_CLOEXEC | libc::O_NONBLOCK).open(path(number))
}

/// Device and inode of the file of a device; `None` if it has none.
fn backing(device: &File) -> io::Result<Option<Status>> {
    let mut status = EMPTY;
    // SAFETY: the kernel writes a `struct loop_info64`, which has the layout of `Status`, and every pattern of bits is one.
    match check(unsafe { libc::ioctl(device.as_raw_fd(), GET_STATUS, std::ptr::from_mut(&mut status)) }) {
        Ok(_) => Ok(Some(status)),
        Err(e) if e.raw_os_error() == Some(libc::ENXIO) => Ok(None),
        Err(e) => Err(e),
    }
}

/// The numbers of the devices that exist.
fn numbers() -> io::Result<Vec<u32>> {
    let entries = fs::read_dir("/dev")?.flatten();
    Ok(entries.filter_map(|e| e.file_name().to_str()?.strip_prefix("loop")?.parse().ok()).collect())
}

/// Errors if this process cannot use loop devices.
pub fn check_available() -> io::Result<()> {
    let number = command(&control()?, CONTROL_GET_FREE, 0)?.cast_unsigned();
    let device = open(number, true);
    device.map(drop).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path(number).display())))
}

fn control() -> io::Result<File> {
    let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control");
    control.map_err(|e| io::Error::new(e.kind(), format!("this machine has no loop devices (/dev/loop-control: {e})")))
}

impl LoopDevice {
    /// The device of a file; `None` if it has none.
    pub fn find(file: &File) -> io::Result<Option<Self>> {
        let own = file.metadata()?;
        for number in numbers()? {
            let Ok(device) = open(number, false) else { continue };
            let found = backing(&device)?.is_some_and(|s| s.device == own.dev() && s.inode == own.ino());
            if found {
                return Ok(Some(Self { file: device, number }));
            }
        }
        Ok(None)
    }

    /// The device of a file, which is made unless there is one. `without`: numbers that a new device must not have.
    pub fn attach(file: &File, lifetime: Lifetime, without: &BTreeSet<u32>) -> io::Result<Self> {
        if let Some(found) = Self::find(file)? {
            return Ok(found);
        }
        let control = control()?;
        let mut number = command(&control, CONTROL_GET_FREE, 0)?.cast_unsigned();
        for _ in 0..TRIES {
            if !without.contains(&number)
                && let Some(device) = Self::configure(file.as_fd(), number, lifetime)?
            {
                return Ok(device);
            }
            number += 1;
            if !path(number).exists() {
                match command(&control, CONTROL_ADD, number.into()) {
                    Err(e) if e.raw_os_error() != Some(libc::EEXIST) => return Err(e),
                    _ => {}
                }
            }
        }
        Err(io::Error::new(io::ErrorKind::QuotaExceeded, "no loop device is free"))
    }

    /// Connects a file with a device; `None` if the device has another one.
    fn configure(file: BorrowedFd, number: u32, lifetime: Lifetime) -> io::Result<Option<Self>> {
        let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path(number).display()));
        let device = open(number, true).map_err(named)?;
        let flags = if lifetime == Lifetime::UntilUnused { AUTOCLEAR } else { 0 };
        let fd = file.as_raw_fd().cast_unsigned();
        let configuration = Configuration { fd, block_size: 0, status: Status { flags, ..EMPTY }, reserved: [0; 8] };
        // SAFETY: the kernel reads a `struct loop_config`, which has the layout of `Configuration`.
        let done =
            check(unsafe { libc::ioctl(device.as_raw_fd(), SET_FD_AND_STATUS, std::ptr::from_ref(&configuration)) });
        match done {
            Ok(_) => Ok(Some(Self { file: device, number })),
            Err(e) if matches!(e.raw_os_error(), Some(libc::EBUSY | libc::ENXIO)) => Ok(None),
            Err(e) => Err(named(e)),
        }
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Its path in `/dev`.
    pub fn path(&self) -> PathBuf {
        path(self.number)
    }

    /// Gives the device the current size of its file.
    pub fn update_size(&self) -> io::Result<()> {
        command(&self.file, SET_CAPACITY, 0).map(drop)
    }

    /// Keeps the device until it is detached, or ends that: see [`Lifetime`].
    pub fn set_lifetime(&self, lifetime: Lifetime) -> io::Result<()> {
        let Some(mut status) = backing(&self.file)? else { return Err(io::Error::from_raw_os_error(libc::ENXIO)) };
        let flags = if lifetime == Lifetime::UntilUnused { AUTOCLEAR } else { 0 };
        if status.flags & AUTOCLEAR == flags {
            return Ok(());
        }
        status.flags = status.flags & !AUTOCLEAR | flags;
        // SAFETY: the kernel reads a `struct loop_info64`, which has the layout of `Status`.
        check(unsafe { libc::ioctl(self.file.as_raw_fd(), SET_STATUS, std::ptr::from_ref(&status)) }).map(drop)
    }

    /// Takes the file from the device; once nothing else has the device open, if something has.
    pub fn detach(self) -> io::Result<()> {
        match command(&self.file, CLEAR_FD, 0) {
            Err(e) if e.raw_os_error() == Some(libc::ENXIO) => Ok(()),
            done => done.map(drop),
        }
    }
}

/// Detaches the devices of the files of a directory. Does nothing if it does not exist.
pub fn detach_all(directory: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_file()
            && let Some(device) = LoopDevice::find(&File::open(entry.path())?)?
        {
            device.detach()?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    fn image(bytes: u64) -> (tempfile::TempDir, File) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap();
        file.set_len(bytes).unwrap();
        (directory, file)
    }

    fn size(device: &LoopDevice) -> u64 {
        let name = format!("/sys/block/loop{}/size", device.number());
        fs::read_to_string(name).unwrap().trim().parse::<u64>().unwrap() * 512
    }

    #[test]
    fn a_file_has_one_device_until_it_is_detached() {
        if check_available().is_err() {
            return;
        }
        let none = BTreeSet::new();
        let (directory, file) = image(1 << 20);
        assert!(LoopDevice::find(&file).unwrap().is_none());
        let device = LoopDevice::attach(&file, Lifetime::UntilDetached, &none).unwrap();
        let number = device.number();
        assert_eq!(LoopDevice::attach(&file, Lifetime::UntilDetached, &none).unwrap().number(), number);
        file.write_all_at(b"here", 4096).unwrap();
        let mut read = [0; 4];
        device.file.read_exact_at(&mut read, 4096).unwrap();
        assert_eq!((&read, size(&device)), (b"here", 1 << 20));
        file.set_len(2 << 20).unwrap();
        device.update_size().unwrap();
        assert_eq!(size(&device), 2 << 20);
        drop(device);
        assert_eq!(LoopDevice::find(&file).unwrap().unwrap().number(), number, "it is kept");
        detach_all(directory.path()).unwrap();
        assert!(LoopDevice::find(&file).unwrap().is_none());
        detach_all(&directory.path().join("missing")).unwrap();

        let without = (0..8).collect();
        let device = LoopDevice::attach(&file, Lifetime::UntilUnused, &without).unwrap();
        assert!(device.number() >= 8, "numbers that are in use elsewhere are left out");
        drop(device);
        // The kernel clears the device on its own thread.
        let waited = std::iter::repeat_with(|| LoopDevice::find(&file).unwrap().is_none());
        assert!(waited.take(100_000).any(|gone| gone), "a device that nothing uses goes");
    }
}
