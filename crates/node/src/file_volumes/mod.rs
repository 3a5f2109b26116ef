//! Volumes with a size: files below the directory of the node's volumes, which loop devices show as file systems or as devices.
//!
//! The file of the volume `pvc-UID` is `pvc-UID.img`. A file system is mounted for each pod, at a directory of the pod, and its loop device
//! goes with the last mount. A device of a pod (`volumeMode: Block`) has a record in the directory of the pod, and is detached with the
//! last record. **Invariants.** A file has one loop device at a time: operations on a file exclude each other. A file with its final name
//! is complete. A file that was never used by a pod is read-only, so that it is known whether a killed agent left it or a pod has data in it.
//! Programs of pods may detach a loop device that they have as a device: the agent keeps it open, and never gives the number that
//! one pod had to a volume of another one.
//!
//! Left out: snapshots, and copies of volumes that pods use.

mod format;
mod programs;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolume;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statvfs::statvfs;
use nix::unistd::{Whence, lseek};
use parking_lot::Mutex;
use runtime::beneath::{make_private, mounts_of_device, unmount_below};
use runtime::loop_device::{Lifetime, LoopDevice};
use supervisor::blocking;
use tokio::sync::OwnedMutexGuard;

pub use format::{FileOptions, Format};
use programs::{run, run_successfully};

/// Files of volumes end in this.
const FILE: &str = "img";
/// A file that is being made.
const UNFINISHED: &str = "new";
/// The part of the disk that copies and reserved sizes leave free (as the eviction threshold of nodes without a configuration).
const RESERVE: u64 = 20;
/// Where a file system is mounted while it is made.
const TEMPORARY: &str = "mnt";
/// Every user may write to a volume: its containers run as any.
const ROOT_MODE: u32 = 0o777;
/// The mode of a file before the first use by a pod, after it, and after it was the device of a pod.
const UNUSED: u32 = 0o400;
const USED: u32 = 0o600;
const USED_AS_DEVICE: u32 = 0o200;
/// The directory of records below `volumeDevices` of a pod, and of file systems below `volumes` (upstream's names).
pub const TYPE_DIRECTORY: &str = "kubernetes.io~local-volume";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "{program} is not installed on this node: install the package {package}, or use a StorageClass with the parameter type: directory"
    )]
    Missing { program: &'static str, package: &'static str },
    #[error("{program} failed with {status}: {output}")]
    Program { program: &'static str, status: ExitStatus, output: String },
    #[error("{0} did not end in time")]
    TimedOut(&'static str),
    #[error("a volume of {size} bytes does not fit on the disk of this node, which has {disk} bytes")]
    TooLarge { size: u64, disk: u64 },
    #[error("'fsck' found errors on device {device} but could not correct them: {output}")]
    Damaged { device: String, output: String },
    #[error("the file of the volume is missing: {0}")]
    Gone(String),
    #[error("the volume is still mounted at {0}")]
    InUse(String),
    #[error("a pod still has the device of the volume")]
    IsDevice,
    #[error(
        "the volume was a device of a pod (volumeMode: Block), which may have written anything: it is not mounted as a file system"
    )]
    WasDevice,
    #[error("{needed} bytes do not fit on the disk of this node, which has {free} bytes free")]
    NoRoom { needed: u64, free: u64 },
    #[error("volume {0} cannot be copied while a pod uses it; the copy is made once no pod does")]
    SourceInUse(String),
    #[error("{what}: {source}")]
    Io {
        what: String,
        #[source]
        source: io::Error,
    },
}

fn failed(what: impl ToString) -> impl FnOnce(io::Error) -> Error {
    let what = what.to_string();
    move |source| Error::Io { what, source }
}

/// A volume of this node that is a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileVolume {
    pub name: String,
    pub format: Format,
}

/// The contents of a file that has grown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    AsLargeAsFile,
    /// The file system has not grown: it can only while it is mounted.
    GrowsWhenMounted,
}

/// The volumes of a node that are files.
#[derive(Debug)]
pub struct FileVolumes {
    /// The directory of the volumes of the node, an absolute path without links.
    root: PathBuf,
    /// The directory of pods, with the records of their devices.
    pods: PathBuf,
    locks: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// Devices that pods have, open as long as they do.
    held: Mutex<BTreeMap<String, LoopDevice>>,
}

/// Whether a file can have this name: `pvc-` and a UID.
pub fn is_volume_name(name: &str) -> bool {
    let uid = name.strip_prefix("pvc-").unwrap_or_default();
    (1..=64).contains(&uid.len()) && uid.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

/// Why this machine cannot make volumes of this format; `None` if it can.
pub fn obstacle(format: Format) -> Option<String> {
    if let Err(e) = runtime::loop_device::check_available() {
        return Some(e.to_string());
    }
    let place = Path::new("/");
    let programs = [format.make(place, false), format.check(place, false), format.grow(place, Some(place))];
    let missing = programs.into_iter().flatten().map(|(p, _)| p).find(|p| !programs::is_installed(*p))?;
    Some(format!("{} is not installed (package {})", missing.name, missing.package))
}

impl FileVolumes {
    pub fn new(root: PathBuf, pods: PathBuf) -> Self {
        Self { root, pods, locks: Mutex::default(), held: Mutex::default() }
    }

    /// The path of the file of a volume.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(format!("{name}.{FILE}"))
    }

    /// The volume if it is a file of this node: its path is the one that belongs to its name.
    pub fn recognize(&self, volume: &PersistentVolume) -> Option<FileVolume> {
        let name = volume.metadata.name.clone().filter(|n| is_volume_name(n))?;
        let spec = volume.spec.as_ref()?;
        let local = spec.local.as_ref().filter(|l| Path::new(&l.path) == self.path(&name))?;
        let format = match spec.volume_mode.as_deref() {
            Some("Block") => Format::Raw,
            _ => Format::parse(local.fs_type.as_deref().unwrap_or_default())?,
        };
        Some(FileVolume { name, format })
    }

    /// Excludes other operations on the file.
    async fn lock(&self, name: &str) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.locks.lock();
            locks.retain(|_, l| Arc::strong_count(l) > 1);
            locks.entry(name.to_owned()).or_default().clone()
        };
        lock.lock_owned().await
    }

    /// Removes what a killed agent left unfinished, and opens the devices that pods have.
    pub async fn recover(&self) {
        let root = self.root.clone();
        blocking(move || {
            if let Err(error) = unmount_below(&root) {
                tracing::warn!(%error, "unmounting an unfinished volume failed");
            }
            for entry in fs::read_dir(&root).into_iter().flatten().flatten() {
                match split(&entry.path()) {
                    Some((_, UNFINISHED)) => drop(fs::remove_file(entry.path())),
                    Some((_, TEMPORARY)) => drop(fs::remove_dir(entry.path())),
                    _ => {}
                }
            }
        })
        .await;
        let pods = self.pods.clone();
        for (_, name) in blocking(move || records(&pods)).await {
            let _guard = self.lock(&name).await;
            let path = self.path(&name);
            let found = blocking(move || open(&path).ok().and_then(|f| LoopDevice::find(&f).ok().flatten())).await;
            if let Some(device) = found {
                self.held.lock().insert(name, device);
            }
        }
    }

    /// The names of volumes whose files no pod has used.
    pub async fn unused(&self) -> Vec<String> {
        let root = self.root.clone();
        blocking(move || {
            let entries = fs::read_dir(root).into_iter().flatten().flatten();
            let is_unused = |p: &Path| fs::symlink_metadata(p).is_ok_and(|m| m.mode() & 0o7777 == UNUSED);
            let names = entries.map(|e| e.path()).filter(|p| is_unused(p));
            names.filter_map(|p| Some(split(&p).filter(|(_, kind)| *kind == FILE)?.0.to_owned())).collect()
        })
        .await
    }

    /// Makes the file of a volume, and its file system, or a copy of `source`, which has the same format and is not larger. Does nothing if
    /// the file exists.
    pub async fn make(
        &self,
        name: &str,
        size: u64,
        options: FileOptions,
        source: Option<&FileVolume>,
    ) -> Result<(), Error> {
        let _guard = self.lock(name).await;
        let (root, path) = (self.root.clone(), self.path(name));
        let unfinished = path.with_extension(UNFINISHED);
        let place = path.with_extension(TEMPORARY);
        if path.exists() {
            return Ok(());
        }
        let pods = self.pods.clone();
        let made = async {
            let new = unfinished.clone();
            blocking(move || create(&root, &new, size, options.is_preallocated)).await?;
            if let Some(source) = source {
                return self.copy(source, &unfinished, &path).await;
            }
            if let Some(program) = options.format.make(&unfinished, options.is_preallocated) {
                run_successfully(program).await?;
            }
            let (new, place) = (unfinished.clone(), place.clone());
            blocking(move || finish(&new, &path, Some((&place, &pods)), options.format)).await
        };
        let made = made.await;
        if made.is_err() {
            blocking(move || {
                let _ = umount2(&place, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW);
                drop(fs::remove_dir(place));
                drop(fs::remove_file(unfinished));
            })
            .await;
        }
        made
    }

    /// Fills a new file with the contents of a volume, which then use all of it.
    async fn copy(&self, source: &FileVolume, unfinished: &Path, path: &Path) -> Result<(), Error> {
        let _guard = self.lock(&source.name).await;
        let (from, to, name) = (self.path(&source.name), unfinished.to_owned(), source.name.clone());
        let grows = blocking(move || {
            let (from, to) = (open(&from)?, open(&to)?);
            if LoopDevice::find(&from).map_err(failed("finding the loop device"))?.is_some() {
                return Err(Error::SourceInUse(name));
            }
            let used = from.metadata().map_err(failed("reading the size"))?.blocks().saturating_mul(512);
            check_free(&to, used)?;
            copy_data(&from, &to).map_err(failed("copying the volume"))?;
            let length = |f: &File| f.metadata().map(|m| m.len()).map_err(failed("reading the size"));
            Ok::<_, Error>(length(&to)? > length(&from)?)
        })
        .await?;
        if grows {
            self.check(source.format, true, unfinished, path).await?;
            if let Some(program) = source.format.grow(unfinished, None) {
                run_successfully(program).await?;
            }
        }
        let (unfinished, path, format) = (unfinished.to_owned(), path.to_owned(), source.format);
        blocking(move || finish(&unfinished, &path, None, format)).await
    }

    /// Makes the file of a volume larger. Does nothing if it is as large.
    pub async fn grow_file(&self, name: &str, size: u64) -> Result<(), Error> {
        let _guard = self.lock(name).await;
        let (root, path) = (self.root.clone(), self.path(name));
        blocking(move || {
            let what = || failed(path.display());
            let file = open(&path)?;
            let meta = file.metadata().map_err(what())?;
            if meta.len() >= size {
                return Ok(());
            }
            check_size(&root, size)?;
            set_size(&file, meta.len(), size, is_preallocated(&meta)).map_err(what())?;
            file.sync_all().map_err(what())
        })
        .await
    }

    /// Makes the contents of a file as large as the file.
    pub async fn grow_contents(&self, volume: &FileVolume) -> Result<Contents, Error> {
        let _guard = self.lock(&volume.name).await;
        self.grow_locked(volume).await
    }

    async fn grow_locked(&self, volume: &FileVolume) -> Result<Contents, Error> {
        let path = self.path(&volume.name);
        let file = path.clone();
        let found = blocking(move || {
            let device = LoopDevice::find(&open(&file)?).map_err(failed("finding the loop device"))?;
            let Some(device) = device else { return Ok(None) };
            device.update_size().map_err(failed(device.path().display()))?;
            let mounts = mounts_of_device(&device.path()).map_err(failed("reading mounts"))?;
            Ok::<_, Error>(Some((device, mounts.into_iter().next())))
        })
        .await?;
        let program = match &found {
            Some((device, mounted)) => volume.format.grow(&device.path(), mounted.as_deref()),
            None => {
                self.check(volume.format, true, &path, &path).await?;
                volume.format.grow(&path, None)
            }
        };
        match program {
            Some(program) => run_successfully(program).await?,
            None if volume.format == Format::Raw => {}
            None => return Ok(Contents::GrowsWhenMounted),
        }
        Ok(Contents::AsLargeAsFile)
    }

    /// Repairs a file system that is not mounted. Errors if that needs a person.
    async fn check(&self, format: Format, is_full: bool, file: &Path, shown: &Path) -> Result<(), Error> {
        let Some((program, arguments)) = format.check(file, is_full) else { return Ok(()) };
        let ended = match run(program, &arguments).await {
            // As kubelet does: the kernel refuses what it cannot mount.
            Err(Error::Missing { .. }) if !is_full => return Ok(()),
            ended => ended?,
        };
        let device = shown.display().to_string();
        match ended.status.code() {
            Some(0) => Ok(()),
            Some(1..=3) => {
                tracing::info!(device, output = ended.output, "the file system of a volume was repaired");
                Ok(())
            }
            Some(code) if code & 4 != 0 => Err(Error::Damaged { device, output: ended.output }),
            _ => Err(ended.failed(program)),
        }
    }

    /// Mounts the file system of a volume at `place`, unless it is mounted there. `grows`: the file is larger than its file system,
    /// which then grows if it can.
    pub async fn mount(&self, volume: &FileVolume, place: &Path, grows: bool) -> Result<Contents, Error> {
        let _guard = self.lock(&volume.name).await;
        let (path, at) = (self.path(&volume.name), place.to_owned());
        let (file, is_mounted, has_device) = blocking(move || {
            fs::create_dir_all(&at).map_err(failed(at.display()))?;
            let file = open(&path)?;
            let meta = file.metadata().map_err(failed(path.display()))?;
            if meta.mode() & 0o7777 == USED_AS_DEVICE {
                return Err(Error::WasDevice);
            }
            let has_device = LoopDevice::find(&file).map_err(failed("finding the loop device"))?.is_some();
            Ok::<_, Error>((file, crate::csi::paths::is_mounted(&at), has_device))
        })
        .await?;
        if is_mounted {
            // The provisioner lets one grow that is mounted.
            return Ok(if grows { Contents::GrowsWhenMounted } else { Contents::AsLargeAsFile });
        }
        let path = self.path(&volume.name);
        if !has_device && grows {
            // A file system that cannot grow is mounted as it is.
            match self.grow_locked(volume).await {
                Err(e @ Error::Damaged { .. }) => return Err(e),
                Err(error) => tracing::warn!(volume = volume.name, %error, "the file system of a volume did not grow"),
                Ok(_) => {}
            }
        } else if !has_device {
            self.check(volume.format, false, &path, &path).await?;
        }
        let (format, at, pods) = (volume.format, place.to_owned(), self.pods.clone());
        blocking(move || {
            let meta = file.metadata().map_err(failed(path.display()))?;
            fs::set_permissions(&path, fs::Permissions::from_mode(USED)).map_err(failed(path.display()))?;
            mount_file(&file, &at, format, is_preallocated(&meta), &pods)
        })
        .await?;
        // Also what has grown before it was mounted: then this finds nothing to do.
        if grows && let Err(error) = self.grow_locked(volume).await {
            tracing::warn!(volume = volume.name, %error, "the file system of a volume did not grow");
            return Ok(Contents::GrowsWhenMounted);
        }
        Ok(Contents::AsLargeAsFile)
    }

    /// The device of a volume for a pod.
    pub async fn device(&self, volume: &FileVolume, pod: &str) -> Result<PathBuf, Error> {
        let _guard = self.lock(&volume.name).await;
        let (path, pods, name) = (self.path(&volume.name), self.pods.clone(), volume.name.clone());
        let record = record(&pods, pod, &name);
        let device = blocking(move || {
            let file = open(&path)?;
            let directory = record.parent().unwrap_or(&record);
            // Before there is a device, so that it is detached with the pod.
            fs::create_dir_all(directory).map_err(failed(directory.display()))?;
            let what = || failed(record.display());
            let mut numbers = read_numbers(&record);
            fs::write(&record, text(&numbers)).map_err(what())?;
            fs::set_permissions(&path, fs::Permissions::from_mode(USED_AS_DEVICE)).map_err(failed(path.display()))?;
            let others = numbers_of_pods(&pods, Some(&name));
            let device = LoopDevice::attach(&file, Lifetime::UntilDetached, &others);
            let device = device.map_err(failed("attaching a loop device"))?;
            // A program in a pod may have changed it.
            device.set_lifetime(Lifetime::UntilDetached).map_err(failed(device.path().display()))?;
            numbers.insert(device.number());
            fs::write(&record, text(&numbers)).map_err(what())?;
            Ok::<_, Error>(device)
        })
        .await?;
        let path = device.path();
        self.held.lock().insert(volume.name.clone(), device);
        Ok(path)
    }

    /// Detaches the devices of a pod that no other pod has.
    pub async fn release(&self, pod: &str) -> Result<(), Error> {
        let (pods, uid) = (self.pods.clone(), pod.to_owned());
        let all = blocking(move || records(&pods)).await;
        for (_, name) in all.iter().filter(|(p, _)| p == pod) {
            let _guard = self.lock(name).await;
            // Read once nothing else changes the records of this volume: another pod may have got the device meanwhile.
            let pods = self.pods.clone();
            let now = blocking(move || records(&pods)).await;
            let is_last = !now.iter().any(|(p, n)| n == name && p != pod);
            let held = if is_last { self.held.lock().remove(name) } else { None };
            let (path, record) = (self.path(name), record(&self.pods, &uid, name));
            blocking(move || {
                let found = match held {
                    Some(device) => Some(device),
                    None if !is_last => None,
                    None => open(&path).ok().and_then(|f| LoopDevice::find(&f).ok().flatten()),
                };
                if let Some(device) = found {
                    device.detach().map_err(failed("detaching a loop device"))?;
                }
                fs::remove_file(&record).map_err(failed(record.display()))
            })
            .await?;
        }
        Ok(())
    }

    /// Removes the file of a volume. Errors if it is mounted, or a pod has its device. Does nothing if it does not exist.
    pub async fn remove(&self, name: &str) -> Result<(), Error> {
        let _guard = self.lock(name).await;
        let (path, pods, own) = (self.path(name), self.pods.clone(), name.to_owned());
        if blocking(move || records(&pods).iter().any(|(_, n)| *n == own)).await {
            return Err(Error::IsDevice);
        }
        drop(self.held.lock().remove(name));
        blocking(move || {
            let file = match open(&path) {
                Err(Error::Gone(_)) => return Ok(()),
                file => file?,
            };
            if let Some(device) = LoopDevice::find(&file).map_err(failed("finding the loop device"))? {
                let mounts = mounts_of_device(&device.path()).map_err(failed("reading mounts"))?;
                if let Some(place) = mounts.first() {
                    return Err(Error::InUse(place.display().to_string()));
                }
                device.detach().map_err(failed("detaching a loop device"))?;
            }
            fs::remove_file(&path).map_err(failed(path.display()))
        })
        .await
    }
}

/// The name of the volume of a file, and the end of the file's name.
fn split(path: &Path) -> Option<(&str, &str)> {
    let (name, kind) = path.file_name()?.to_str()?.split_once('.')?;
    is_volume_name(name).then_some((name, kind))
}

/// Opens the file of a volume for reading and writing. Links are refused.
fn open(path: &Path) -> Result<File, Error> {
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

fn is_preallocated(meta: &fs::Metadata) -> bool {
    meta.blocks().saturating_mul(512) >= meta.len()
}

/// Errors if the disk could never hold a file of this size.
fn check_size(root: &Path, size: u64) -> Result<(), Error> {
    let disk = statvfs(root).map_err(|e| Error::Io { what: root.display().to_string(), source: e.into() })?;
    let disk = disk.blocks().saturating_mul(disk.fragment_size());
    if size <= disk { Ok(()) } else { Err(Error::TooLarge { size, disk }) }
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
fn create(root: &Path, path: &Path, size: u64, is_preallocated: bool) -> Result<(), Error> {
    make_private(root).map_err(failed(root.display()))?;
    check_size(root, size)?;
    let what = || failed(path.display());
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(what()(e)),
        _ => {}
    }
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).mode(USED).open(path).map_err(what())?;
    if is_preallocated {
        check_free(&file, size)?;
    }
    set_size(&file, 0, size, is_preallocated).map_err(what())
}

/// Copies what a file contains. Holes stay holes.
fn copy_data(from: &File, to: &File) -> io::Result<()> {
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
fn finish(unfinished: &Path, path: &Path, place: Option<(&Path, &Path)>, format: Format) -> Result<(), Error> {
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

/// Mounts a file system. Its loop device goes with the mount, and has no number that a pod ever had: the pod could read and write it.
fn mount_file(file: &File, place: &Path, format: Format, is_preallocated: bool, pods: &Path) -> Result<(), Error> {
    let device = LoopDevice::attach(file, Lifetime::UntilUnused, &numbers_of_pods(pods, None));
    let device = device.map_err(failed("attaching a loop device"))?;
    let source = device.path();
    let flags = MsFlags::MS_NODEV | MsFlags::MS_NOSUID;
    let options = format.mount_options(is_preallocated);
    mount(Some(&source), place, format.file_system(), flags, Some(options)).map_err(|e| {
        let what = format!("mounting {} as {}", source.display(), format.file_system().unwrap_or_default());
        Error::Io { what, source: e.into() }
    })
}

/// The record of a device of a pod: the numbers of the loop devices that it had.
fn record(pods: &Path, pod: &str, name: &str) -> PathBuf {
    pods.join(pod).join("volumeDevices").join(TYPE_DIRECTORY).join(name)
}

/// Every record: the UID of the pod and the name of the volume.
fn records(pods: &Path) -> Vec<(String, String)> {
    let names = |directory: &Path| {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.filter_map(|e| e.file_name().into_string().ok()).collect::<Vec<_>>()
    };
    let of_pod = |pod: String| {
        let found = names(&pods.join(&pod).join("volumeDevices").join(TYPE_DIRECTORY));
        found.into_iter().filter(|n| is_volume_name(n)).map(move |n| (pod.clone(), n))
    };
    names(pods).into_iter().flat_map(of_pod).collect()
}

/// The numbers of the loop devices that pods have or had, but for those of one volume.
fn numbers_of_pods(pods: &Path, but_for: Option<&str>) -> BTreeSet<u32> {
    let all = records(pods).into_iter().filter(|(_, name)| but_for != Some(name));
    all.flat_map(|(pod, name)| read_numbers(&record(pods, &pod, &name))).collect()
}

fn read_numbers(record: &Path) -> BTreeSet<u32> {
    fs::read_to_string(record).unwrap_or_default().lines().filter_map(|l| l.parse().ok()).collect()
}

fn text(numbers: &BTreeSet<u32>) -> String {
    numbers.iter().map(|n| format!("{n}\n")).collect()
}

#[cfg(test)]
mod tests;
