//! The file system of a container, built by its own process in its own mount namespace: the host does not see it, and it ends with
//! the container.
//!
//! Sources of bind mounts are opened before the root is changed, by paths of the host, and attached after it. Another container may
//! change a shared volume meanwhile, so sources and targets are descriptors ([`crate::beneath`]) from the first access on, and no
//! path is resolved twice. Every mount is `nodev` unless the container is privileged, so a device node made inside cannot be opened;
//! the few devices of containers are nodes of their own, bound one by one: root of a container may change the mode and owner of a
//! node in `/dev`, and the host's nodes are shared.
//!
//! In a user namespace the container's process has no privileges on the host. What requires the host's root is prepared before
//! ([`Prepared`]), in a mount namespace that ends with it: sources are opened, and mounted so that user 0 on disk is 0 inside,
//! except devices and cgroups, which belong to the host's users. Read-only mounts are locked there, since root inside could make
//! them writable again. The host never sees mounts below them, whatever propagation was requested: that requires a privilege on the
//! host. Containers of the pod see them ([`super::propagation`]).

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{AT_FDCWD, OFlag, open};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::{FchmodatFlags, Mode, SFlag, fchmodat, fstat, makedev, mknod};
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};
use nix::unistd::symlinkat;

use super::propagation;
use crate::api::{FileKind, Mount, MountSource, Propagation};
use crate::beneath::{Directory, Leaf, Links};
use crate::cgroup::CgroupDirectory;
use crate::devices::DeviceNode;
use crate::spec::{BUNDLE, ContainerRecord};
use crate::sys::{self, MOUNT_ATTR_NODEV, MOUNT_ATTR_NOEXEC, MOUNT_ATTR_NOSUID, MOUNT_ATTR_RDONLY};

/// Mode of directories that are created for mounts.
const MODE: Mode = Mode::from_bits_truncate(0o755);

/// Devices: names and numbers (`admin-guide/devices.txt` of the kernel).
const DEVICES: &[(&str, u64, u64)] =
    &[("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];

/// Files that show the host.
const MASKED: &[&str] = &[
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
/// Files of /proc over which a file may be mounted, as in CRI runtimes.
const MOUNTABLE_IN_PROC: &[&str] = &[
    "/proc/cpuinfo",
    "/proc/diskstats",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/slabinfo",
    "/proc/stat",
    "/proc/swaps",
    "/proc/sys/crypto/fips_enabled",
    "/proc/sys/kernel/ns_last_pid",
    "/proc/uptime",
];
const READ_ONLY: &[&str] = &["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// An empty directory in that of the container, the lowest layer of the images that it mounts.
pub(crate) const EMPTY_LAYER: &str = "empty";

type Result<T> = std::result::Result<T, String>;
/// What is done when the root is complete, and not yet that of the process.
pub type BeforeRoot<'a> = &'a dyn Fn() -> Result<()>;

fn stage(what: impl std::fmt::Display) -> impl FnOnce(io::Error) -> String {
    move |e| format!("{what}: {e}")
}

/// Mounts a file system of the kernel on a directory of the container, which is created if it is missing.
fn attach(root: &Directory, kind: &str, target: &str, flags: MsFlags, data: &str) -> Result<()> {
    let at = root.make(Path::new(target), Leaf::Directory, MODE).map_err(stage(format_args!("creating {target}")))?;
    attach_to(at.as_fd(), kind, target, flags, data)
}

fn attach_to(at: BorrowedFd, kind: &str, target: &str, flags: MsFlags, data: &str) -> Result<()> {
    // `mount` takes a path; the working directory is the opened one.
    nix::unistd::fchdir(at).map_err(|e| format!("entering {target}: {e}"))?;
    mount(Some(kind), ".", Some(kind), flags, Some(data)).map_err(|e| format!("mounting {kind} on {target}: {e}"))
}

struct Bind {
    tree: OwnedFd,
    target: PathBuf,
    kind: FileKind,
}

/// `None` for a source that is no file of the host.
fn open_source(source: &MountSource) -> Option<io::Result<OwnedFd>> {
    match source {
        MountSource::Host(path) => {
            Some(open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()).map_err(Into::into))
        }
        MountSource::Below { root, path } => {
            Some(Directory::open(root, Links::Inside).and_then(|root| root.resolve(path)))
        }
        MountSource::Image { .. } | MountSource::Tmpfs { .. } => None,
    }
}

fn describe(source: &MountSource) -> String {
    match source {
        MountSource::Host(path) => path.display().to_string(),
        MountSource::Below { root, path } => root.join(path).display().to_string(),
        MountSource::Image { image, path } => format!("{image}/{}", path.display()),
        MountSource::Tmpfs { .. } => "tmpfs".into(),
    }
}

fn is_device(kind: FileKind) -> bool {
    matches!(kind, FileKind::CharacterDevice | FileKind::BlockDevice)
}

fn bind(source: &MountSource, target: impl Into<PathBuf>, recursive: bool) -> Result<Option<Bind>> {
    let fail = |e: io::Error| format!("mount source {}: {e}", describe(source));
    let Some(file) = open_source(source).transpose().map_err(fail)? else { return Ok(None) };
    let kind = FileKind::from_mode(fstat(&file).map_err(|e| fail(e.into()))?.st_mode);
    let tree = sys::clone_mount(file.as_fd(), recursive).map_err(fail)?;
    Ok(Some(Bind { tree, target: target.into(), kind }))
}

fn bind_host(source: impl Into<PathBuf>, target: impl Into<PathBuf>) -> Result<Bind> {
    let source = source.into();
    let missing = || format!("mount source {} is not on the host", source.display());
    bind(&MountSource::Host(source.clone()), target, false)?.ok_or_else(missing)
}

impl Bind {
    fn attach(&self, root: &Directory) -> Result<()> {
        let target = &self.target;
        let leaf = if self.kind == FileKind::Directory { Leaf::Directory } else { Leaf::File };
        let at = root.make(target, leaf, MODE).map_err(stage(format_args!("mount point {}", target.display())))?;
        refuse_proc(root, at.as_fd(), target, Some(self.tree.as_fd()))?;
        sys::move_mount(self.tree.as_fd(), at.as_fd()).map_err(stage(format_args!("mounting on {}", target.display())))
    }

    /// Leaves the peer groups of the host's mounts, to which a clone belongs. Later mounts of the host still appear.
    fn leave_host(&self) -> Result<()> {
        self.set(0, MsFlags::MS_SLAVE, true)
    }

    fn map_users(&self, users: BorrowedFd, source: &dyn std::fmt::Display) -> Result<()> {
        sys::map_users(self.tree.as_fd(), users).map_err(|e| {
            format!("mount source {source}: its file system cannot be mounted with the users of a user namespace: {e}")
        })
    }

    fn set(&self, attributes: u64, propagation: MsFlags, recursive: bool) -> Result<()> {
        sys::mount_setattr(self.tree.as_fd(), attributes, propagation.bits(), recursive)
            .map_err(stage(format_args!("mount attributes of {}", self.target.display())))
    }
}

/// Refuses a mount in or over the kernel's /proc: later steps of the start, and programs, trust it.
fn refuse_proc(root: &Directory, at: BorrowedFd, target: &Path, tree: Option<BorrowedFd>) -> Result<()> {
    let is_proc = |fd: BorrowedFd| fstatfs(fd).is_ok_and(|s| s.filesystem_type() == PROC_SUPER_MAGIC);
    if !is_proc(at) {
        return Ok(());
    }
    // Compared by identity: for a process of another pid namespace, /proc has no links of descriptors.
    let found = fstat(at).map_err(|e| format!("{}: {e}", target.display()))?;
    let is = |path: &str| {
        let known = root.resolve(Path::new(path)).ok().and_then(|fd| fstat(fd).ok());
        known.is_some_and(|known| (known.st_dev, known.st_ino) == (found.st_dev, found.st_ino))
    };
    if tree.is_some_and(is_proc) && is("/proc") || MOUNTABLE_IN_PROC.iter().any(|path| is(path)) {
        return Ok(());
    }
    Err(format!("{:?} cannot be mounted because it is inside /proc", target.display().to_string()))
}

/// Creates a node for a device of the host, with the owner and mode of the host's node.
fn make_device(device: &DeviceNode, node: &Path) -> io::Result<Bind> {
    let (flag, kind) = match device.is_block() {
        true => (SFlag::S_IFBLK, FileKind::BlockDevice),
        false => (SFlag::S_IFCHR, FileKind::CharacterDevice),
    };
    let (mode, (major, minor)) = (Mode::from_bits_truncate(device.mode), device.number());
    mknod(node, flag, mode, makedev(major, minor))?;
    fchmodat(AT_FDCWD, node, mode, FchmodatFlags::FollowSymlink)?;
    std::os::unix::fs::chown(node, Some(device.owner.0), Some(device.owner.1))?;
    let file = open(node, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
    Ok(Bind { tree: sys::clone_mount(file.as_fd(), false)?, target: device.target.clone(), kind })
}

/// Errors unless the host has the device at the same path: nothing is created in the host's /dev.
fn is_hosts(device: &DeviceNode) -> io::Result<()> {
    let number = std::fs::metadata(&device.target).map(|m| m.rdev());
    let (major, minor) = device.number();
    match number {
        Ok(number) if number == makedev(major, minor) => Ok(()),
        _ => Err(io::Error::other(
            "a privileged container has the /dev of the node, where it cannot be created: request it at another path",
        )),
    }
}

/// Whether the container gets the devices of the host. A container in a user namespace could not use them.
fn has_devices(record: &ContainerRecord) -> bool {
    record.config.security.privileged && record.user_namespace.is_none()
}

/// The sources of the container's mounts, opened by paths of the host.
struct Sources {
    /// One per mount of the record; `None` for a file system in memory, and for an image until it is mounted.
    mounts: Vec<Option<Bind>>,
    /// The host's devices, or none yet.
    devices: Vec<Bind>,
    shm: Bind,
    cgroups: Vec<Bind>,
}

impl Sources {
    /// `own`: the pod's user namespace, and the mount namespace where its containers meet.
    fn open(record: &ContainerRecord, own: Option<(BorrowedFd, BorrowedFd)>) -> Result<Sources> {
        let map = |bind: &Bind, source: &dyn std::fmt::Display| {
            let Some((users, _)) = own else { return Ok(()) };
            bind.leave_host()?;
            if is_device(bind.kind) { Ok(()) } else { bind.map_users(users, source) }
        };
        let one = |m: &Mount| {
            let mut bind = bind(&m.source, &m.target, true)?;
            if let (Some(bind), Some(kind)) = (&bind, m.kind)
                && bind.kind != kind
            {
                return Err(format!("mount source {} is not a {kind}", describe(&m.source)));
            }
            bind.iter().try_for_each(|b| map(b, &describe(&m.source)))?;
            if let (Some(bind), Some((_, shared))) = (&mut bind, own)
                && m.propagation != Propagation::Private
            {
                bind.tree = propagation::join(shared, bind.tree.as_fd())
                    .map_err(stage(format_args!("propagation of mount source {}", describe(&m.source))))?;
            }
            Ok(bind)
        };
        let mounts = record.mounts.iter().map(one).collect::<Result<_>>()?;
        let devices = if has_devices(record) { vec![bind_host("/dev", "/dev")?] } else { Vec::new() };
        let shm = bind_host(&record.shm, "/dev/shm")?;
        map(&shm, &record.shm.display())?;
        shm.set(0, MsFlags::MS_PRIVATE, false)?;
        let cgroup = |c: &CgroupDirectory| bind_host(&c.directory, Path::new("/sys/fs/cgroup").join(&c.name));
        let cgroups = record.cgroups.iter().filter(|c| c.seen).map(cgroup).collect::<Result<Vec<_>>>()?;
        cgroups.iter().try_for_each(|c| c.set(0, MsFlags::MS_PRIVATE, false))?;
        Ok(Sources { mounts, devices, shm, cgroups })
    }

    /// Creates the container's device nodes. They are in a file system in memory that is mounted on `place` while they are created; the
    /// caller's mount namespace is its own. A container with the host's /dev gets those that it requests elsewhere.
    fn make_devices(&mut self, record: &ContainerRecord, place: &Path) -> Result<()> {
        let has_hosts = !self.devices.is_empty();
        let requested: Vec<&DeviceNode> =
            record.devices.iter().filter(|d| !has_hosts || !d.target.starts_with("/dev")).collect();
        let basic: &[(&str, u64, u64)] = if has_hosts { &[] } else { DEVICES };
        if has_hosts {
            for device in record.devices.iter().filter(|d| d.target.starts_with("/dev")) {
                is_hosts(device).map_err(stage(format_args!("device {}", device.target.display())))?;
            }
        }
        if basic.is_empty() && requested.is_empty() {
            return Ok(());
        }
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
        mount(Some("tmpfs"), place, Some("tmpfs"), flags, Some("mode=755,size=64k"))
            .map_err(|e| format!("mounting tmpfs for devices: {e}"))?;
        let made = basic.iter().map(|(name, major, minor)| {
            let (node, mode) = (place.join(name), Mode::from_bits_truncate(0o666));
            mknod(&node, SFlag::S_IFCHR, mode, makedev(*major, *minor))?;
            // Regardless of the umask.
            fchmodat(AT_FDCWD, &node, mode, FchmodatFlags::FollowSymlink)?;
            let file = open(&node, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
            let target = Path::new("/dev").join(name);
            Ok(Bind { tree: sys::clone_mount(file.as_fd(), false)?, target, kind: FileKind::CharacterDevice })
        });
        let mut devices: Vec<Bind> = made.collect::<io::Result<_>>().map_err(stage("making devices"))?;
        for (i, device) in requested.into_iter().enumerate() {
            let made = make_device(device, &place.join(format!("more-{i}")));
            devices.push(made.map_err(stage(format_args!("making device {}", device.target.display())))?);
        }
        self.devices.extend(devices);
        umount2(place, MntFlags::MNT_DETACH).map_err(|e| format!("leaving the file system of devices: {e}"))
    }

    /// Mounts the images that the container mounts, one after the other on `place`. The caller's mount namespace is its own, and its
    /// working directory the one of layers.
    fn mount_images(&mut self, record: &ContainerRecord, state: &Path) -> Result<()> {
        let (place, empty) = (state.join("rootfs"), state.join(EMPTY_LAYER));
        for (request, bind) in record.mounts.iter().zip(&mut self.mounts) {
            let MountSource::Image { image, path } = &request.source else { continue };
            let found = record.mounted_images.get(image).ok_or_else(|| format!("image {image:?} was not resolved"))?;
            let fail = |e: io::Error| format!("mounting image {image:?}: {e}");
            // A mount of an image has two layers at least, as the kernel requires.
            let options = format!("lowerdir={}{}", join_layers(&found.layers), empty.display());
            let flags = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
            mount(Some("overlay"), &place, Some("overlay"), flags, Some(options.as_str()))
                .map_err(|e| fail(e.into()))?;
            let tree = Directory::open(&place, Links::Inside).and_then(|root| {
                let file = match path.as_os_str().is_empty() {
                    true => root.resolve(Path::new("."))?,
                    false => root.resolve(path)?,
                };
                let kind = FileKind::from_mode(fstat(&file)?.st_mode);
                Ok(Bind { tree: sys::clone_mount(file.as_fd(), false)?, target: request.target.clone(), kind })
            });
            *bind = Some(tree.map_err(fail)?);
            umount2(&place, MntFlags::MNT_DETACH).map_err(|e| format!("leaving image {image:?}: {e}"))?;
        }
        Ok(())
    }

    fn binds(&self) -> impl Iterator<Item = &Bind> {
        self.mounts.iter().flatten().chain(&self.devices).chain([&self.shm]).chain(&self.cgroups)
    }
}

/// The mounts of a container in a user namespace, prepared by the host's root.
pub struct Prepared {
    sources: Sources,
    /// The image with its writable layer.
    root: OwnedFd,
    /// Where the root is mounted until it is that of the process.
    place: PathBuf,
}

impl Prepared {
    /// The caller is in a new mount namespace, which other processes only copy. In its working directory [`Prepared::enter`] finds
    /// the locked mounts.
    pub fn new(record: &ContainerRecord, state: &Path, users: BorrowedFd, shared: BorrowedFd) -> Result<Prepared> {
        let mut sources = Sources::open(record, Some((users, shared)))?;
        detach_from_host()?;
        sources.make_devices(record, &state.join("rootfs"))?;
        enter_layers(record, Some(users))?;
        sources.mount_images(record, state)?;
        overlay(record, state)?;
        let here = open(".", OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty());
        let root = here.map_err(Into::into).and_then(|here| sys::clone_mount(here.as_fd(), false));
        let root = root.map_err(stage("root file system"))?;
        let place = state.join("rootfs");
        lock_read_only(record, &sources, &place)?;
        let place = if record.config.hooks.create_container.is_empty() {
            PathBuf::from("/")
        } else {
            show_bundle(state)?;
            place
        };
        Ok(Prepared { sources, root, place })
    }

    pub fn descriptors(&self) -> Vec<RawFd> {
        let trees = self.sources.binds().map(|b| b.tree.as_raw_fd());
        trees.chain([self.root.as_raw_fd()]).collect()
    }

    /// Enters the root. The caller is root of the container's user namespace, and in a fresh mount namespace of it. About `proc` see
    /// [`enter`].
    pub fn enter(mut self, record: &ContainerRecord, proc: Option<&OwnedFd>, before_root: BeforeRoot) -> Result<()> {
        detach_from_host()?;
        for (number, (request, bind)) in record.mounts.iter().zip(&mut self.sources.mounts).enumerate() {
            if let Some(bind) = bind.as_mut().filter(|b| is_locked(request, b)) {
                let fail = |e: io::Error| format!("read-only mount {}: {e}", request.target.display());
                let locked = open(number.to_string().as_str(), OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty());
                let locked = locked.map_err(|e| fail(e.into()))?;
                bind.tree = sys::clone_mount(locked.as_fd(), true).map_err(fail)?;
            }
        }
        // The kernel lets a user namespace mount them only while those of the host are visible.
        let kernel = |kind: &CStr, attributes| {
            sys::detached_mount(kind, attributes).map_err(stage(format_args!("mounting {}", kind.to_string_lossy())))
        };
        let read_only = if record.config.security.privileged { 0 } else { MOUNT_ATTR_RDONLY };
        let own_proc = proc.is_none().then(|| kernel(c"proc", MOUNT_ATTR_NOEXEC)).transpose()?;
        let sys = kernel(c"sysfs", MOUNT_ATTR_NOEXEC | read_only)?;
        let over = open(&self.place, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty());
        let over = over.map_err(|e| format!("opening {}: {e}", self.place.display()))?;
        sys::move_mount(self.root.as_fd(), over.as_fd()).map_err(stage("mounting the root file system"))?;
        nix::unistd::fchdir(&self.root).map_err(|e| format!("root file system: {e}"))?;
        fill(record, &self.sources, proc.or(own_proc.as_ref()), Some(&sys))?;
        before_root()?;
        change_root(record)
    }
}

/// Whether the options of a mount have to be locked against the container's root.
fn is_locked(request: &Mount, bind: &Bind) -> bool {
    (request.read_only || request.recursive_read_only) && !is_device(bind.kind)
}

/// Attaches read-only mounts where the mount namespace of the container's users copies them: the kernel locks options that a mount
/// has in a namespace of the host. They are on a file system in memory over `place`, by number; it becomes the working directory,
/// also in the copy.
fn lock_read_only(record: &ContainerRecord, sources: &Sources, place: &Path) -> Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("tmpfs"), place, Some("tmpfs"), flags, Some("mode=755,size=1m"))
        .map_err(|e| format!("mounting tmpfs for read-only mounts: {e}"))?;
    std::env::set_current_dir(place).map_err(stage("file system of read-only mounts"))?;
    let directory = Directory::open(Path::new("."), Links::Refuse).map_err(stage("opening ."))?;
    for (number, (request, bind)) in record.mounts.iter().zip(&sources.mounts).enumerate() {
        let Some(bind) = bind.as_ref().filter(|b| is_locked(request, b)) else { continue };
        set_options(request, bind, false)?;
        let leaf = if bind.kind == FileKind::Directory { Leaf::Directory } else { Leaf::File };
        let at = directory.make(Path::new(&number.to_string()), leaf, MODE);
        at.and_then(|at| sys::move_mount(bind.tree.as_fd(), at.as_fd()))
            .map_err(stage(format_args!("read-only mount {}", request.target.display())))?;
    }
    Ok(())
}

/// Shows the bundle, and the place of the root, to hooks that run as the root of a user namespace, who may not enter the directories of the
/// machine's root: a file system in memory, with the same paths, covers the first of those in this mount namespace.
fn show_bundle(state: &Path) -> Result<()> {
    let fail = |e: io::Error| format!("showing the bundle to hooks: {e}");
    let ancestors: Vec<&Path> = state.ancestors().collect();
    let is_closed = |path: &Path| std::fs::metadata(path).map(|m| m.permissions().mode() & 0o1 == 0);
    for path in ancestors.into_iter().rev() {
        if !is_closed(path).map_err(fail)? {
            continue;
        }
        let bundle = state.join(BUNDLE);
        let configuration = std::fs::read(bundle.join("config.json")).map_err(fail)?;
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        let covered = mount(Some("tmpfs"), path, Some("tmpfs"), flags, Some("mode=755,size=8m"));
        covered.map_err(|e| fail(e.into()))?;
        std::fs::create_dir_all(&bundle).map_err(fail)?;
        std::fs::create_dir_all(state.join("rootfs")).map_err(fail)?;
        return std::fs::write(bundle.join("config.json"), configuration).map_err(fail);
    }
    Ok(())
}

/// Creates and enters the container's root. The caller is in a new mount namespace, and in the container's pid namespace unless it
/// passes that one's /proc.
pub fn enter(record: &ContainerRecord, state: &Path, proc: Option<&OwnedFd>, before_root: BeforeRoot) -> Result<()> {
    let mut sources = Sources::open(record, None)?;
    detach_from_host()?;
    sources.make_devices(record, &state.join("rootfs"))?;
    enter_layers(record, None)?;
    sources.mount_images(record, state)?;
    overlay(record, state)?;
    fill(record, &sources, proc, None)?;
    before_root()?;
    change_root(record)
}

/// Hides later mounts from the host.
fn detach_from_host() -> Result<()> {
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)
        .map_err(|e| format!("detaching the mount namespace: {e}"))
}

/// Makes the working directory the root, read-only if it is to be.
fn change_root(record: &ContainerRecord) -> Result<()> {
    sys::pivot_root_here().map_err(stage("changing the root"))?;
    umount2(".", MntFlags::MNT_DETACH).map_err(|e| format!("leaving the old root: {e}"))?;
    std::env::set_current_dir("/").map_err(stage("changing to /"))?;
    if record.config.security.read_only_rootfs {
        let root = std::fs::File::open("/").map_err(stage("opening /"))?;
        sys::mount_setattr(root.as_fd(), MOUNT_ATTR_RDONLY, 0, false).map_err(stage("making / read-only"))?;
    }
    Ok(())
}

/// Mounts everything in the root that is the working directory, and stays it. It is filled before it becomes the root of this process,
/// so that hooks that work on it have the programs and files of the host.
fn fill(record: &ContainerRecord, sources: &Sources, proc: Option<&OwnedFd>, sys: Option<&OwnedFd>) -> Result<()> {
    let security = &record.config.security;
    let privileged = security.privileged;
    let open_root = |links| Directory::open(Path::new("."), links).map_err(stage("opening the root file system"));
    let (root, plain) = (open_root(Links::Root)?, open_root(Links::Refuse)?);
    kernel_file_systems(&plain, record, sources, proc, sys)?;
    for (request, bind) in record.mounts.iter().zip(&sources.mounts) {
        mount_request(&root, request, bind.as_ref(), has_devices(record))?;
    }
    if !privileged && !security.unmasked_proc {
        let null = sources.devices.iter().find(|d| d.target == Path::new("/dev/null")).ok_or("no /dev/null")?;
        mask(&plain, null)?;
    }
    let root = plain.resolve(Path::new(".")).map_err(stage("opening the root file system"))?;
    nix::unistd::fchdir(&root).map_err(|e| format!("root file system: {e}"))
}

/// Changes to the directory of layers, with the users of the container. Layers are named relative to it, so that many fit into the
/// page of mount options.
fn enter_layers(record: &ContainerRecord, users: Option<BorrowedFd>) -> Result<()> {
    if let Some(users) = users {
        // Mounted over themselves: the kernel maps users of lower layers, not of the overlay.
        let layers = bind_host(&record.layers_root, &record.layers_root)?;
        layers.map_users(users, &record.layers_root.display())?;
        let at = open(&record.layers_root, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty());
        let placed = at.map_err(Into::into).and_then(|at| sys::move_mount(layers.tree.as_fd(), at.as_fd()));
        placed.map_err(stage("image layers"))?;
    }
    std::env::set_current_dir(&record.layers_root).map_err(stage("image layers"))
}

/// Layers as mount options name them, each followed by a colon.
fn join_layers(layers: &[String]) -> String {
    layers.iter().map(|layer| format!("{layer}:")).collect()
}

/// Mounts the image with a writable layer on top and changes to it. The working directory is the one of layers.
fn overlay(record: &ContainerRecord, state: &Path) -> Result<()> {
    let (upper, work, root) = (state.join("upper"), state.join("work"), state.join("rootfs"));
    let flags = if has_devices(record) { MsFlags::empty() } else { MsFlags::MS_NODEV };
    let options =
        format!("lowerdir={},upperdir={},workdir={}", record.layers.join(":"), upper.display(), work.display());
    mount(Some("overlay"), &root, Some("overlay"), flags, Some(options.as_str()))
        .map_err(|e| format!("mounting the root file system: {e}"))?;
    std::env::set_current_dir(&root).map_err(stage("root file system"))
}

/// The terminals of a container are its own. The machine has a number in all ([`crate::terminals`]), of which a container may use
/// this many.
const TERMINALS: &str = "newinstance,ptmxmode=0666,mode=0620,gid=5,max=64";

fn kernel_file_systems(
    root: &Directory,
    record: &ContainerRecord,
    Sources { devices, shm, cgroups, .. }: &Sources,
    proc: Option<&OwnedFd>,
    sys: Option<&OwnedFd>,
) -> Result<()> {
    let privileged = record.config.security.privileged;
    let plain = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let place_kernel = |tree: &OwnedFd, target: &str| {
        let at =
            root.make(Path::new(target), Leaf::Directory, MODE).map_err(stage(format_args!("creating {target}")))?;
        sys::move_mount(tree.as_fd(), at.as_fd()).map_err(stage(format_args!("mounting {target}")))
    };
    match proc {
        Some(proc) => place_kernel(proc, "/proc")?,
        None => attach(root, "proc", "/proc", plain, "")?,
    }
    if has_devices(record) {
        devices.iter().try_for_each(|d| d.attach(root).and_then(|()| d.set(0, MsFlags::MS_PRIVATE, false)))?;
        attach(root, "devpts", "/dev/pts", MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC, TERMINALS)?;
    } else {
        attach(root, "tmpfs", "/dev", MsFlags::MS_NOSUID | MsFlags::MS_NODEV, "mode=755,size=65536k")?;
        devices.iter().try_for_each(|d| d.attach(root))?;
        attach(root, "devpts", "/dev/pts", MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC, TERMINALS)?;
        let dev = root.resolve(Path::new("/dev")).map_err(stage("opening /dev"))?;
        for (target, link) in [
            ("pts/ptmx", "ptmx"),
            ("/proc/self/fd", "fd"),
            ("/proc/self/fd/0", "stdin"),
            ("/proc/self/fd/1", "stdout"),
            ("/proc/self/fd/2", "stderr"),
            ("/proc/kcore", "core"),
        ] {
            symlinkat(target, &dev, link).map_err(|e| format!("linking /dev/{link}: {e}"))?;
        }
    }
    shm.attach(root)?;
    attach(root, "mqueue", "/dev/mqueue", plain, "")?;
    match sys {
        Some(sys) => place_kernel(sys, "/sys")?,
        None => attach(root, "sysfs", "/sys", if privileged { plain } else { plain | MsFlags::MS_RDONLY }, "")?,
    }
    if cgroups.iter().any(|c| c.target != Path::new("/sys/fs/cgroup/")) {
        attach(root, "tmpfs", "/sys/fs/cgroup", plain, "mode=755,size=1m")?;
    }
    for cgroup in cgroups {
        cgroup.attach(root)?;
        let read_only = if privileged { 0 } else { MOUNT_ATTR_RDONLY };
        cgroup.set(MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | read_only, MsFlags::empty(), false)?;
    }
    if !privileged {
        let hierarchies = root.resolve(Path::new("/sys/fs/cgroup")).map_err(stage("opening /sys/fs/cgroup"))?;
        sys::mount_setattr(hierarchies.as_fd(), MOUNT_ATTR_RDONLY, 0, false)
            .map_err(stage("making /sys/fs/cgroup read-only"))?;
    }
    Ok(())
}

fn mount_request(root: &Directory, request: &Mount, bind: Option<&Bind>, has_devices: bool) -> Result<()> {
    let Some(bind) = bind else {
        let MountSource::Tmpfs { size, mode } = &request.source else { return Ok(()) };
        let mut options = format!("mode={:o}", mode.unwrap_or(0o1777));
        if let Some(size) = size {
            options.push_str(&format!(",size={size}"));
        }
        let read_only = if request.read_only { MsFlags::MS_RDONLY } else { MsFlags::empty() };
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | read_only;
        let target = request.target.to_string_lossy();
        let at =
            root.make(&request.target, Leaf::Directory, MODE).map_err(stage(format_args!("mount point {target}")))?;
        refuse_proc(root, at.as_fd(), &request.target, None)?;
        return attach_to(at.as_fd(), "tmpfs", &target, flags, &options);
    };
    bind.attach(root)?;
    let propagation = match request.propagation {
        Propagation::Private => MsFlags::MS_PRIVATE,
        Propagation::HostToContainer => MsFlags::MS_SLAVE,
        Propagation::Bidirectional => MsFlags::MS_SHARED,
    };
    bind.set(0, propagation, true)?;
    set_options(request, bind, has_devices)
}

fn set_options(request: &Mount, bind: &Bind, has_devices: bool) -> Result<()> {
    if !has_devices && !is_device(bind.kind) {
        bind.set(MOUNT_ATTR_NODEV, MsFlags::empty(), true)?;
    }
    if request.read_only || request.recursive_read_only {
        bind.set(MOUNT_ATTR_RDONLY, MsFlags::empty(), request.recursive_read_only)?;
    }
    for (is_set, attribute) in
        [(request.options.no_suid, MOUNT_ATTR_NOSUID), (request.options.no_exec, MOUNT_ATTR_NOEXEC)]
    {
        if is_set {
            bind.set(attribute, MsFlags::empty(), false)?;
        }
    }
    Ok(())
}

/// Paths that containers do not see (upstream `pkg/securitycontext`), with the thermal throttling of each processor, which reveals the
/// load of the machine. They may not exist.
pub fn masked_paths() -> Vec<PathBuf> {
    let processors = std::fs::read_dir("/sys/devices/system/cpu").into_iter().flatten().flatten();
    let throttles = processors.map(|p| p.path().join("thermal_throttle"));
    MASKED.iter().map(PathBuf::from).chain(throttles).collect()
}

/// Masks files that show the host, and makes files of /proc that change it read-only.
fn mask(root: &Directory, null: &Bind) -> Result<()> {
    let find = |path: &Path| match root.resolve(path) {
        Ok(at) => Ok(Some(at)),
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => Ok(None),
        Err(e) => Err(format!("masking {}: {e}", path.display())),
    };
    for path in masked_paths() {
        let Some(at) = find(&path)? else { continue };
        let path = path.to_string_lossy();
        let stat = fstat(&at).map_err(|e| format!("masking {path}: {e}"))?;
        if FileKind::from_mode(stat.st_mode) == FileKind::Directory {
            let flags = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
            attach_to(at.as_fd(), "tmpfs", &path, flags, "size=0k,mode=555")?;
        } else {
            let null = sys::clone_mount(null.tree.as_fd(), false).map_err(stage(format_args!("masking {path}")))?;
            sys::move_mount(null.as_fd(), at.as_fd()).map_err(stage(format_args!("masking {path}")))?;
        }
    }
    for path in READ_ONLY {
        let Some(at) = find(Path::new(path))? else { continue };
        let tree = sys::clone_mount(at.as_fd(), true).map_err(stage(path))?;
        sys::move_mount(tree.as_fd(), at.as_fd()).map_err(stage(path))?;
        sys::mount_setattr(tree.as_fd(), MOUNT_ATTR_RDONLY, 0, true).map_err(stage(path))?;
    }
    Ok(())
}

/// Creates the working directory if the image lacks it, as CRI runtimes do.
pub fn enter_working_directory(path: &str) -> Result<()> {
    let fail = |e: io::Error| format!("working directory {path}: {e}");
    let root = Directory::open(Path::new("/"), Links::Root).map_err(fail)?;
    let directory = root.make(Path::new(path), Leaf::Directory, MODE).map_err(fail)?;
    nix::unistd::fchdir(&directory).map_err(|e| fail(e.into()))
}
