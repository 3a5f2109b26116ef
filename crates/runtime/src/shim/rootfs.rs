//! The file system of a container, built by its own process in its own mount namespace: nothing of it is seen by the host,
//! and all of it goes when the container ends.
//!
//! Sources of bind mounts are opened before the root is changed, where the host's paths hold; they are placed after it,
//! where no symlink of an image can lead out. Every mount is `nodev` unless the container is privileged, so a device node
//! made inside cannot be opened; the few devices containers get are bound one by one.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::sys::{self, MOUNT_ATTR_NODEV, MOUNT_ATTR_NOSUID, MOUNT_ATTR_RDONLY};
use crate::api::{Mount, MountSource, Propagation};
use crate::spec::ContainerRecord;

const DEVICES: &[&str] = &["null", "zero", "full", "random", "urandom", "tty"];

/// As kubelet has the CRI runtimes mask them.
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
const READ_ONLY: &[&str] = &["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

type Result<T> = std::result::Result<T, String>;

fn stage(what: impl std::fmt::Display) -> impl FnOnce(io::Error) -> String {
    move |e| format!("{what}: {e}")
}

fn attach(kind: &str, target: &str, flags: MsFlags, data: &str) -> Result<()> {
    std::fs::create_dir_all(target).map_err(stage(format_args!("creating {target}")))?;
    mount(Some(kind), target, Some(kind), flags, Some(data)).map_err(|e| format!("mounting {kind} on {target}: {e}"))
}

struct Bind {
    tree: OwnedFd,
    target: PathBuf,
    directory: bool,
}

fn bind(source: &Path, target: impl Into<PathBuf>, recursive: bool) -> Result<Bind> {
    let metadata = std::fs::metadata(source).map_err(stage(format_args!("mount source {}", source.display())))?;
    let tree = sys::open_tree(source, recursive).map_err(stage(format_args!("mount source {}", source.display())))?;
    Ok(Bind { tree, target: target.into(), directory: metadata.is_dir() })
}

impl Bind {
    fn place(&self) -> Result<()> {
        let target = &self.target;
        make_mount_point(target, self.directory).map_err(stage(format_args!("mount point {}", target.display())))?;
        sys::move_mount(self.tree.as_fd(), target).map_err(stage(format_args!("mounting on {}", target.display())))
    }

    fn set(&self, attributes: u64, propagation: MsFlags, recursive: bool) -> Result<()> {
        sys::mount_setattr(self.tree.as_fd(), attributes, propagation.bits(), recursive)
            .map_err(stage(format_args!("mount attributes of {}", self.target.display())))
    }
}

fn make_mount_point(target: &Path, directory: bool) -> io::Result<()> {
    if target.exists() {
        return Ok(());
    }
    if directory {
        return std::fs::create_dir_all(target);
    }
    if let Some(parent) = target.parent() {
        std::fs::create_dir_all(parent)?;
    }
    std::fs::File::create(target).map(drop)
}

/// Makes and enters the container's root. The caller is in a fresh mount namespace, and in the container's pid namespace unless it
/// gives that one's /proc.
pub fn enter(record: &ContainerRecord, state: &Path, proc: Option<&OwnedFd>) -> Result<()> {
    let security = &record.config.security;
    let privileged = security.privileged;
    // While the host's paths hold.
    let binds: Vec<(&Mount, Option<Bind>)> = record
        .mounts
        .iter()
        .map(|m| match &m.source {
            MountSource::Host(path) => Ok((m, Some(bind(path, &m.target, true)?))),
            MountSource::Tmpfs { .. } => Ok((m, None)),
        })
        .collect::<Result<_>>()?;
    let devices = if privileged {
        vec![bind(Path::new("/dev"), "/dev", false)?]
    } else {
        let device = |name: &&str| bind(&Path::new("/dev").join(name), Path::new("/dev").join(name), false);
        DEVICES.iter().map(device).collect::<Result<_>>()?
    };
    let shm = bind(&record.shm, "/dev/shm", false)?;
    let cgroups: Vec<Bind> = record
        .cgroups
        .iter()
        .map(|c| bind(&c.directory, Path::new("/sys/fs/cgroup").join(&c.name), false))
        .collect::<Result<_>>()?;

    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)
        .map_err(|e| format!("detaching the mount namespace: {e}"))?;
    overlay(record, state, if privileged { MsFlags::empty() } else { MsFlags::MS_NODEV })?;
    sys::pivot_root_here().map_err(stage("changing the root"))?;
    umount2(".", MntFlags::MNT_DETACH).map_err(|e| format!("leaving the old root: {e}"))?;
    std::env::set_current_dir("/").map_err(stage("changing to /"))?;

    kernel_file_systems(privileged, proc, &devices, &shm, &cgroups)?;
    for (request, bind) in &binds {
        place(request, bind.as_ref(), privileged)?;
    }
    if !privileged {
        mask()?;
    }
    if security.read_only_rootfs {
        let root = std::fs::File::open("/").map_err(stage("opening /"))?;
        sys::mount_setattr(root.as_fd(), MOUNT_ATTR_RDONLY, 0, false).map_err(stage("making / read-only"))?;
    }
    Ok(())
}

/// Mounts the image with a writable layer on top and changes to it. Layers are named relative to their directory, so that
/// many fit into the one page that mount options may fill.
fn overlay(record: &ContainerRecord, state: &Path, flags: MsFlags) -> Result<()> {
    let (upper, work, root) = (state.join("upper"), state.join("work"), state.join("rootfs"));
    std::env::set_current_dir(&record.layers_root).map_err(stage("image layers"))?;
    let options =
        format!("lowerdir={},upperdir={},workdir={}", record.layers.join(":"), upper.display(), work.display());
    mount(Some("overlay"), &root, Some("overlay"), flags, Some(options.as_str()))
        .map_err(|e| format!("mounting the root file system: {e}"))?;
    std::env::set_current_dir(&root).map_err(stage("root file system"))
}

fn kernel_file_systems(
    privileged: bool,
    proc: Option<&OwnedFd>,
    devices: &[Bind],
    shm: &Bind,
    cgroups: &[Bind],
) -> Result<()> {
    let plain = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    match proc {
        Some(proc) => {
            std::fs::create_dir_all("/proc").map_err(stage("creating /proc"))?;
            sys::move_mount(proc.as_fd(), Path::new("/proc")).map_err(stage("mounting proc on /proc"))?;
        }
        None => attach("proc", "/proc", plain, "")?,
    }
    if privileged {
        devices.iter().try_for_each(|d| d.place().and_then(|()| d.set(0, MsFlags::MS_PRIVATE, false)))?;
        attach(
            "devpts",
            "/dev/pts",
            MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC,
            "newinstance,ptmxmode=0666,mode=0620,gid=5",
        )?;
    } else {
        attach("tmpfs", "/dev", MsFlags::MS_NOSUID | MsFlags::MS_NODEV, "mode=755,size=65536k")?;
        devices.iter().try_for_each(Bind::place)?;
        attach(
            "devpts",
            "/dev/pts",
            MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC,
            "newinstance,ptmxmode=0666,mode=0620,gid=5",
        )?;
        for (target, link) in [
            ("pts/ptmx", "/dev/ptmx"),
            ("/proc/self/fd", "/dev/fd"),
            ("/proc/self/fd/0", "/dev/stdin"),
            ("/proc/self/fd/1", "/dev/stdout"),
            ("/proc/self/fd/2", "/dev/stderr"),
            ("/proc/kcore", "/dev/core"),
        ] {
            symlink(target, link).map_err(stage(format_args!("linking {link}")))?;
        }
    }
    shm.place()?;
    attach("mqueue", "/dev/mqueue", plain, "")?;
    attach("sysfs", "/sys", if privileged { plain } else { plain | MsFlags::MS_RDONLY }, "")?;
    if cgroups.iter().any(|c| c.target != Path::new("/sys/fs/cgroup/")) {
        attach("tmpfs", "/sys/fs/cgroup", plain, "mode=755,size=1m")?;
    }
    for cgroup in cgroups {
        cgroup.place()?;
        let read_only = if privileged { 0 } else { MOUNT_ATTR_RDONLY };
        cgroup.set(MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | read_only, MsFlags::MS_PRIVATE, false)?;
    }
    if !privileged {
        let hierarchies = std::fs::File::open("/sys/fs/cgroup").map_err(stage("opening /sys/fs/cgroup"))?;
        sys::mount_setattr(hierarchies.as_fd(), MOUNT_ATTR_RDONLY, 0, false)
            .map_err(stage("making /sys/fs/cgroup read-only"))?;
    }
    Ok(())
}

fn place(request: &Mount, bind: Option<&Bind>, privileged: bool) -> Result<()> {
    let Some(bind) = bind else {
        let MountSource::Tmpfs { size, mode } = &request.source else { return Ok(()) };
        let mut options = format!("mode={:o}", mode.unwrap_or(0o1777));
        if let Some(size) = size {
            options.push_str(&format!(",size={size}"));
        }
        let read_only = if request.read_only { MsFlags::MS_RDONLY } else { MsFlags::empty() };
        return attach(
            "tmpfs",
            &request.target.to_string_lossy(),
            MsFlags::MS_NOSUID | MsFlags::MS_NODEV | read_only,
            &options,
        );
    };
    bind.place()?;
    let device = std::fs::metadata(&request.target)
        .is_ok_and(|m| m.file_type().is_char_device() || m.file_type().is_block_device());
    let propagation = match request.propagation {
        Propagation::Private => MsFlags::MS_PRIVATE,
        Propagation::HostToContainer => MsFlags::MS_SLAVE,
        Propagation::Bidirectional => MsFlags::MS_SHARED,
    };
    bind.set(0, propagation, true)?;
    if !privileged && !device {
        bind.set(MOUNT_ATTR_NODEV, MsFlags::empty(), true)?;
    }
    if request.read_only || request.recursive_read_only {
        bind.set(MOUNT_ATTR_RDONLY, MsFlags::empty(), request.recursive_read_only)?;
    }
    Ok(())
}

/// How often processors ran hot, which tells of others on the machine.
fn thermal_throttle() -> Vec<PathBuf> {
    let processors = std::fs::read_dir("/sys/devices/system/cpu").into_iter().flatten().flatten();
    processors.map(|p| p.path().join("thermal_throttle")).collect()
}

fn mask() -> Result<()> {
    for path in MASKED.iter().map(PathBuf::from).chain(thermal_throttle()) {
        let path = path.as_path();
        let Ok(metadata) = std::fs::metadata(path) else { continue };
        if metadata.is_dir() {
            let flags = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
            mount(Some("tmpfs"), path, Some("tmpfs"), flags, Some("size=0k,mode=555"))
        } else {
            mount(Some("/dev/null"), path, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        }
        .map_err(|e| format!("masking {}: {e}", path.display()))?;
    }
    for path in READ_ONLY.iter().map(Path::new).filter(|p| p.exists()) {
        let tree = sys::open_tree(path, true).map_err(stage(path.display()))?;
        sys::move_mount(tree.as_fd(), path).map_err(stage(path.display()))?;
        sys::mount_setattr(tree.as_fd(), MOUNT_ATTR_RDONLY, 0, true).map_err(stage(path.display()))?;
    }
    Ok(())
}

/// Makes the working directory if the image lacks it, as the CRI runtimes do.
pub fn enter_working_directory(path: &str) -> Result<()> {
    let path = Path::new(path);
    if !path.exists() {
        std::fs::create_dir_all(path).map_err(stage(format_args!("working directory {}", path.display())))?;
        let _ = std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755));
    }
    std::env::set_current_dir(path).map_err(stage(format_args!("working directory {}", path.display())))
}
