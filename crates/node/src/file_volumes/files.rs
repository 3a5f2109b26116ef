//! The files of volumes on the disk. Everything here blocks.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::mount::{MntFlags, umount2};
use nix::sys::statvfs::statvfs;
use nix::unistd::{Whence, lseek};
use parking_lot::Mutex;
use runtime::beneath::make_private;

use super::error::{Error, failed};
use super::format::Format;
use super::is_volume_name;
use super::mounts::mount_file;

/// Files of volumes end in this.
pub(super) const FILE: &str = "img";
/// A file that is being made.
pub(super) const UNFINISHED: &str = "new";
/// Where a file system is mounted while it is made.
pub(super) const TEMPORARY: &str = "mnt";
/// The part of the disk that copies and reserved sizes leave free (as the eviction threshold of nodes without a configuration).
const RESERVE: u64 = 20;
/// Every user may write to a volume: its containers run as any.
const ROOT_MODE: u32 = 0o777;
/// The mode of a file before the first use by a pod, after it, and after it was the device of a pod.
pub(super) const UNUSED: u32 = 0o400;
pub(super) const USED: u32 = 0o600;
pub(super) const USED_AS_DEVICE: u32 = 0o200;

/// The name of the volume of a file, and the end of the file's name.
pub(super) fn split(path: &Path) -> Option<(&str, &str)> {
    let (name, kind) = path.file_name()?.to_str()?.split_once('.')?;
    is_volume_name(name).then_some((name, kind))
}

/// Opens the file of a volume for reading and writing. Links are refused.
pub(super) fn open(path: &Path) -> Result<File, Error> {
    let opened = OpenOptions::new().read(true).write(true).custom_flags(nix::libc::O_NOFOLLOW).open(path);
    let file = match opened {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(Error::Gone(path.display().to_string())),
        opened => opened.map_err(failed(path.display()))?,
    };
    match file.metadata().map_err(failed(path.display()))?.is_file() {
        true => Ok(file),
        false => Err(Error::Gone(path.display().to_string())),
    }
}

pub(super) fn is_preallocated(meta: &fs::Metadata) -> bool {
    meta.blocks().saturating_mul(512) >= meta.len()
}

/// Errors if the disk could never hold a file of this size.
pub(super) fn check_size(root: &Path, size: u64) -> Result<(), Error> {
    let disk = statvfs(root).map_err(|e| Error::Io { what: root.display().to_string(), source: e.into() })?;
    let disk = disk.blocks().saturating_mul(disk.fragment_size());
    if size <= disk { Ok(()) } else { Err(Error::TooLarge { size, disk }) }
}

/// What is being written to the disk of the volumes and not counted by the file system yet.
#[derive(Debug, Default)]
pub(super) struct Allocation(Mutex<u64>);

/// Bytes of an [`Allocation`], until it is dropped.
pub(super) struct Promise<'a>(&'a Allocation, u64);

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        let mut promised = self.0.0.lock();
        *promised = promised.saturating_sub(self.1);
    }
}

impl Allocation {
    /// Keeps so many bytes for what will be written. Errors if they do not fit beside what the other users of the disk need for a while.
    pub fn promise(&self, file: &File, needed: u64) -> Result<Promise<'_>, Error> {
        let mut promised = self.0.lock();
        check_free(file, needed.saturating_add(*promised))?;
        *promised = promised.saturating_add(needed);
        Ok(Promise(self, needed))
    }

    /// Makes a file larger. `is_preallocated`: and reserves its bytes, if they fit.
    pub fn set_size(&self, file: &File, from: u64, size: u64, is_preallocated: bool) -> Result<(), Error> {
        let _promise = if is_preallocated { Some(self.promise(file, size - from)?) } else { None };
        set_size(file, from, size, is_preallocated).map_err(failed("setting the size of a volume"))
    }
}

/// Errors if so many bytes do not fit beside what the other users of the disk need for a while.
fn check_free(file: &File, needed: u64) -> Result<(), Error> {
    let disk = nix::sys::statvfs::fstatvfs(file).map_err(|e| failed("reading the free space")(e.into()))?;
    let unit = disk.fragment_size();
    let reserve = disk.blocks().saturating_mul(unit) / RESERVE;
    let free = disk.blocks_available().saturating_mul(unit).saturating_sub(reserve);
    if needed <= free { Ok(()) } else { Err(Error::NoRoom { needed, free }) }
}

fn set_size(file: &File, from: u64, size: u64, is_preallocated: bool) -> io::Result<()> {
    if !is_preallocated {
        return file.set_len(size);
    }
    let (from, length) = (from.cast_signed(), (size - from).cast_signed());
    fallocate(file, FallocateFlags::empty(), from, length).map_err(io::Error::from)
}

/// Creates the file of a volume.
pub(super) fn create(
    root: &Path,
    path: &Path,
    size: u64,
    is_preallocated: bool,
    allocation: &Allocation,
) -> Result<(), Error> {
    make_private(root).map_err(failed(root.display()))?;
    check_size(root, size)?;
    let what = || failed(path.display());
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(what()(e)),
        _ => {}
    }
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).mode(USED).open(path).map_err(what())?;
    allocation.set_size(&file, 0, size, is_preallocated)
}

/// Copies what a file contains. Holes stay holes.
pub(super) fn copy_data(from: &File, to: &File) -> io::Result<()> {
    let end = from.metadata()?.len();
    let mut at = 0;
    while at < end {
        let start = match lseek(from, at.cast_signed(), Whence::SeekData) {
            // Nothing but a hole is left.
            Err(Errno::ENXIO) => return Ok(()),
            start => start?,
        };
        let hole = lseek(from, start, Whence::SeekHole)?.cast_unsigned();
        let start = lseek(from, start, Whence::SeekSet)?.cast_unsigned();
        lseek(to, start.cast_signed(), Whence::SeekSet)?;
        let (mut part, mut to) = (from.take(hole - start), to);
        if io::copy(&mut part, &mut to)? < hole - start {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        at = hole;
    }
    Ok(())
}

/// Gives a complete file its name. `place`: where a new file system is mounted for a moment, to let every user write, and the directory
/// of pods.
pub(super) fn finish(
    unfinished: &Path,
    path: &Path,
    place: Option<(&Path, &Path)>,
    format: Format,
) -> Result<(), Error> {
    let file = open(unfinished)?;
    if let Some((place, pods)) = place.filter(|_| format != Format::Raw) {
        fs::create_dir_all(place).map_err(failed(place.display()))?;
        mount_file(&file, place, format, true, pods)?;
        let changed = fs::set_permissions(place, fs::Permissions::from_mode(ROOT_MODE));
        // Databases refuse a directory that is not empty.
        drop(fs::remove_dir(place.join("lost+found")));
        umount2(place, MntFlags::UMOUNT_NOFOLLOW)
            .map_err(|e| Error::Io { what: place.display().to_string(), source: e.into() })?;
        changed.map_err(failed(place.display()))?;
        fs::remove_dir(place).map_err(failed(place.display()))?;
    }
    let what = || failed(path.display());
    fs::set_permissions(unfinished, fs::Permissions::from_mode(UNUSED)).map_err(what())?;
    file.sync_all().map_err(what())?;
    fs::rename(unfinished, path).map_err(what())?;
    let directory = path.parent().map_or(Ok(()), |d| File::open(d)?.sync_all());
    directory.map_err(what())
}
