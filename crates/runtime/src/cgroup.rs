//! Control groups by file access: v1, v2 and the hybrid of both.
//!
//! A cgroup is named by a path relative to the hierarchies' roots (`PREFIX/burstable/pod1`); on v1 it is one directory per
//! controller. Controllers that a host lacks are skipped; [`Hierarchies::controllers`] returns the existing ones.
//!
//! **Invariant.** A container's limits are those of a cgroup that its processes are not in: they live in [`PROCESSES`] below it,
//! which is the root of their cgroup namespace. A container that makes a user namespace may mount the hierarchies from that root
//! downwards, as the owner of its files (root of the container is root of the host where the pod has no user namespace), and on v2
//! only the mount option `nsdelegate` of the host would stop it. What it changes there applies to itself, below limits that it
//! cannot reach. The cgroup below has the same limits, for programs that read them.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

use crate::api::{CpuLimit, Resources, Usage};
use crate::beneath::{each_directory, remove_directories};
use crate::devices::{self, DeviceNode};
use serde::{Deserialize, Serialize};

/// Controllers of v1. A container is placed in all of them, used or not, and in named hierarchies (`systemd`). At the root of one,
/// it would see the machine's own cgroups through its cgroup namespace, and could mount them in a user namespace.
const V1_CONTROLLERS: &[&str] = &[
    "cpu",
    "cpuacct",
    "cpuset",
    "memory",
    "pids",
    "freezer",
    "devices",
    "blkio",
    "hugetlb",
    "net_cls",
    "net_prio",
    "perf_event",
    "rdma",
    "misc",
];
const NAMED: &str = "name=";
/// Controllers with limits.
const LIMITING: &[&str] = &["cpu", "cpuset", "memory", "pids", "hugetlb"];
/// Maximum depth and number of cgroups below a pod's: enough for a container that runs containers, or a node.
const MAX_DEPTH: u32 = 32;
const MAX_DESCENDANTS: u32 = 2048;
/// Part of the names of files that limit what processes may reserve of huge pages. Without this limit they learn by a signal, when they use
/// a page, that they may not.
const RESERVED: &str = ".rsvd.";
const SWAP: &str = "memory.swap.max";
const OOM_GROUP: &str = "memory.oom.group";
/// The cgroup of a container's processes, below that with its limits.
const PROCESSES: &str = "processes";
/// The cgroup, below that of a container's processes, of hooks that run before its program.
const HOOKS: &str = "hooks";

/// The devices that the processes of a cgroup may open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Devices<'a> {
    Any,
    /// The usual devices, and these.
    Plain(&'a [DeviceNode]),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Hierarchy {
    mount: PathBuf,
    /// `cpu`, `memory`, …
    controllers: Vec<String>,
    v2: bool,
}

impl Hierarchy {
    fn limits(&self) -> bool {
        self.controllers.iter().any(|c| LIMITING.contains(&c.as_str()))
    }

    /// Creates a cgroup below an existing one, unless it exists.
    fn make_below(&self, parent: &Path, name: &str) -> io::Result<PathBuf> {
        if self.v2 {
            enable_controllers(parent);
        }
        self.make_plain_below(parent, name)
    }

    /// Creates a cgroup without limits below an existing one, which may have processes on v2, too.
    fn make_plain_below(&self, parent: &Path, name: &str) -> io::Result<PathBuf> {
        let directory = parent.join(name);
        match std::fs::create_dir(&directory) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        if !self.v2 && self.controllers.iter().any(|c| c == "cpuset") {
            // v1: a new cpuset is empty and accepts no process until it has processors and memory. Another process may have created
            // it and not set them yet.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                let own = directory.join(file);
                if std::fs::read(&own)?.trim_ascii().is_empty() {
                    std::fs::write(own, std::fs::read(parent.join(file))?)?;
                }
            }
        }
        Ok(directory)
    }

    /// Sets limits of a cgroup and of the one below it with its processes, if it exists.
    fn set(&self, directory: &Path, resources: &Resources) -> io::Result<()> {
        let settings = if self.v2 { v2_settings(resources) } else { v1_settings(resources) };
        let below = Some(directory.join(PROCESSES)).filter(|d| d.exists());
        for (controller, file, value) in settings {
            if !self.controllers.iter().any(|c| c == controller) {
                continue;
            }
            // Reservations have files since Linux 5.7. Where none are, a page size that may not be used cannot be used.
            if controller == "hugetlb" && (file.contains(RESERVED) || value == "0") && !directory.join(&file).exists() {
                continue;
            }
            // Kernels without swap, and those before 4.19.
            if [SWAP, OOM_GROUP].contains(&file.as_str()) && !directory.join(&file).exists() {
                continue;
            }
            let write = |directory: &Path| {
                let target = directory.join(&file);
                std::fs::write(&target, value.as_bytes())
                    .map_err(|e| io::Error::new(e.kind(), format!("writing {value:?} to {}: {e}", target.display())))
            };
            match (write(directory), &below) {
                (Ok(()), Some(below)) => write(below)?,
                // v1 accepts a quota below that of the inner cgroup only after the inner one is lowered.
                (Err(_), Some(below)) => write(below).and_then(|()| write(directory))?,
                (result, None) => result?,
            }
        }
        Ok(())
    }
}

impl Resources {
    /// The settings that only v2 has: files and their values, as `LinuxContainerResources.unified` of the CRI has them.
    pub fn unified(&self) -> impl Iterator<Item = (&'static str, String)> {
        let swap = self.swap_limit.map(|bytes| (SWAP, bytes.to_string()));
        let group = self.oom_group.map(|all| (OOM_GROUP, u8::from(all).to_string()));
        swap.into_iter().chain(group)
    }
}

/// The hierarchies of this host that containers are placed in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchies(Vec<Hierarchy>);

impl Hierarchies {
    /// Reads the mounts of the calling process.
    pub fn detect() -> io::Result<Hierarchies> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
        let mut found = Vec::new();
        for (mount, kind, options) in mounts.lines().filter_map(parse_mount) {
            let hierarchy = match kind {
                "cgroup" => {
                    let controllers: Vec<String> = options
                        .split(',')
                        .filter(|o| V1_CONTROLLERS.contains(o) || o.starts_with(NAMED))
                        .map(str::to_owned)
                        .collect();
                    if controllers.is_empty() {
                        continue;
                    }
                    Hierarchy { mount: mount.into(), controllers, v2: false }
                }
                "cgroup2" => {
                    let text = std::fs::read_to_string(Path::new(mount).join("cgroup.controllers"))?;
                    let controllers = text.split_ascii_whitespace().map(str::to_owned).collect();
                    Hierarchy { mount: mount.into(), controllers, v2: true }
                }
                _ => continue,
            };
            // A hierarchy may be mounted several times.
            let known = |h: &Hierarchy| h.v2 == hierarchy.v2 && h.controllers == hierarchy.controllers;
            if !found.iter().any(known) {
                found.push(hierarchy);
            }
        }
        Ok(Hierarchies(found))
    }

    /// Controllers that exist, on either version.
    pub fn controllers(&self) -> BTreeSet<String> {
        self.0.iter().flat_map(|h| &h.controllers).filter(|c| !c.starts_with(NAMED)).cloned().collect()
    }

    /// `v1`, `v2`, `hybrid` or `none`.
    pub fn version(&self) -> &'static str {
        match (self.0.iter().any(|h| !h.v2), self.0.iter().any(|h| h.v2)) {
            (true, true) => "hybrid",
            (true, false) => "v1",
            (false, true) => "v2",
            (false, false) => "none",
        }
    }

    /// Those of `settings` (see [`Resources::unified`]) that the kernel has for cgroups below an existing one: none on v1 and hybrid hosts.
    pub fn supported<'a>(
        &self,
        path: &str,
        resources: &'a Resources,
    ) -> impl Iterator<Item = (&'static str, String)> + use<'a> {
        let at = match &*self.0 {
            [only] if only.v2 => Some(only.mount.join(path)),
            _ => None,
        };
        resources.unified().filter(move |(file, _)| at.as_ref().is_some_and(|d| d.join(file).exists()))
    }

    /// The directories of a cgroup, whether they exist or not.
    pub fn directories(&self, path: &str) -> Vec<CgroupDirectory> {
        let name = |h: &Hierarchy| match self.0.len() {
            1 if h.v2 => String::new(),
            _ => h.mount.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        };
        let of =
            |h: &Hierarchy| CgroupDirectory { name: name(h), directory: h.mount.join(path), seen: self.is_seen(h) };
        self.0.iter().map(of).collect()
    }

    /// Whether containers see the hierarchy: on a hybrid host v1 has the limits, and programs that find v2 would look for their
    /// limits there. (A container is placed in v2 all the same, see [`V1_CONTROLLERS`].) As runc does it.
    fn is_seen(&self, hierarchy: &Hierarchy) -> bool {
        !hierarchy.v2 || !self.0.iter().any(|h| !h.v2 && h.limits())
    }

    /// The directories that a container's processes are in, whether they exist or not.
    pub fn process_directories(&self, path: &str) -> Vec<CgroupDirectory> {
        let mut directories = self.directories(path);
        for (at, hierarchy) in directories.iter_mut().zip(&self.0) {
            if hierarchy.limits() {
                at.directory.push(PROCESSES);
            }
        }
        directories
    }

    /// Creates a cgroup with its parents, and sets its limits.
    pub fn create(&self, path: &str, resources: &Resources) -> io::Result<()> {
        for hierarchy in &self.0 {
            let mut directory = hierarchy.mount.clone();
            for part in path.split('/').filter(|p| !p.is_empty()) {
                directory = hierarchy.make_below(&directory, part)?;
            }
        }
        self.update(path, resources)
    }

    /// Creates the cgroup of a container whose processes may open only the devices of a plain container, or any.
    pub(crate) fn create_container(&self, path: &str, resources: &Resources, devices: Devices<'_>) -> io::Result<()> {
        self.create(path, &Resources::default())?;
        if let Devices::Plain(more) = devices {
            // Before the cgroup below is created: v1 cannot remove all permissions later.
            self.restrict_devices(path, more)?;
        }
        for hierarchy in self.0.iter().filter(|h| h.limits()) {
            hierarchy.make_below(&hierarchy.mount.join(path), PROCESSES)?;
        }
        self.update(path, resources)
    }

    /// Creates the cgroup of hooks ([`hooks_below`]) in an existing cgroup of a container.
    pub(crate) fn create_hooks(&self, path: &str) -> io::Result<()> {
        for (hierarchy, above) in self.0.iter().zip(self.process_directories(path)) {
            hierarchy.make_plain_below(&above.directory, HOOKS)?;
        }
        Ok(())
    }

    /// Limits the cgroups that may be created below an existing one, if the kernel supports it (v2).
    pub fn bound_descendants(&self, path: &str) -> io::Result<()> {
        self.0.iter().filter(|h| h.v2).try_for_each(|h| bound_descendants(&h.mount.join(path)))
    }

    /// Whether [`Hierarchies::restrict_devices`] has an effect on this host.
    pub fn can_restrict_devices(&self) -> bool {
        self.controllers().contains("devices") || self.0.iter().any(|h| h.v2) && devices::programs_work()
    }

    /// Restricts the processes of an existing cgroup to the devices of a plain container.
    fn restrict_devices(&self, path: &str, more: &[DeviceNode]) -> io::Result<()> {
        let v1 = self.0.iter().find(|h| h.controllers.iter().any(|c| c == "devices"));
        match v1.or(self.0.iter().find(|h| h.v2)) {
            Some(h) if h.v2 => devices::restrict_v2(&h.mount.join(path), more),
            Some(h) => devices::restrict_v1(&h.mount.join(path), more),
            None => Ok(()),
        }
    }

    /// Sets limits of an existing cgroup. Limits for controllers that the host lacks are skipped.
    pub fn update(&self, path: &str, resources: &Resources) -> io::Result<()> {
        self.0.iter().try_for_each(|h| h.set(&h.mount.join(path), resources))
    }

    /// Removes a cgroup with everything below it. Its processes must have ended.
    pub fn remove(&self, path: &str) -> io::Result<()> {
        for directory in self.directories(path) {
            remove_tree(&directory.directory)?;
        }
        Ok(())
    }

    /// Process ids in a cgroup and below it.
    pub fn processes(&self, path: &str) -> Vec<i32> {
        let mut pids = BTreeSet::new();
        for directory in self.directories(path) {
            collect(&directory.directory, &mut pids);
        }
        pids.into_iter().collect()
    }

    /// The usage of a cgroup. Values of missing controllers are 0, as are all if it does not exist.
    pub fn usage(&self, path: &str) -> Usage {
        let mut usage = Usage::default();
        for hierarchy in &self.0 {
            let at = hierarchy.mount.join(path);
            for controller in &hierarchy.controllers {
                match (controller.as_str(), hierarchy.v2) {
                    ("cpu", true) => {
                        let times = Fields::read(&at.join("cpu.stat"));
                        let nanoseconds = |name: &str| times.get(name).saturating_mul(1000);
                        usage.cpu_nanoseconds = nanoseconds("usage_usec");
                        usage.cpu_user = nanoseconds("user_usec");
                        usage.cpu_system = nanoseconds("system_usec");
                        usage.read_cpu_limit(&at, &times, true);
                    }
                    ("cpu", false) => usage.read_cpu_limit(&at, &Fields::read(&at.join("cpu.stat")), false),
                    ("cpuacct", false) => {
                        let times = Fields::read(&at.join("cpuacct.stat"));
                        let nanoseconds = |name: &str| times.get(name).saturating_mul(1_000_000_000 / TICKS);
                        usage.cpu_nanoseconds = number(&at.join("cpuacct.usage"));
                        usage.cpu_user = nanoseconds("user");
                        usage.cpu_system = nanoseconds("system");
                    }
                    ("memory", v2) => usage.read_memory(&at, v2),
                    ("pids", _) => usage.pids = number(&at.join("pids.current")),
                    _ => {}
                }
            }
        }
        usage
    }
}

/// Units of processor time in v1's files, per second (`USER_HZ`).
const TICKS: u64 = 100;
/// From this value on, v1 means that there is no limit.
const NO_LIMIT: u64 = 1 << 62;

impl Usage {
    fn read_cpu_limit(&mut self, at: &Path, stat: &Fields, v2: bool) {
        self.cpu_periods = stat.get("nr_periods");
        self.cpu_throttled_periods = stat.get("nr_throttled");
        if v2 {
            self.cpu_throttled = stat.get("throttled_usec").saturating_mul(1000);
            let text = std::fs::read_to_string(at.join("cpu.max")).unwrap_or_default();
            let limit = text.trim().split_once(' ').and_then(|(q, p)| Some((q.parse().ok()?, p.parse().ok()?)));
            self.cpu_limit = limit.map(|(quota, period)| CpuLimit { quota, period });
            self.cpu_shares =
                Some(number(&at.join("cpu.weight"))).filter(|w| *w > 0).map(|w| 2 + (w - 1) * 262_142 / 9_999);
        } else {
            self.cpu_throttled = stat.get("throttled_time");
            // Without a limit the quota is -1, which is no number here.
            let (quota, period) = (number(&at.join("cpu.cfs_quota_us")), number(&at.join("cpu.cfs_period_us")));
            self.cpu_limit = (quota > 0).then_some(CpuLimit { quota, period });
            self.cpu_shares = Some(number(&at.join("cpu.shares"))).filter(|s| *s > 0);
        }
    }

    fn read_memory(&mut self, at: &Path, v2: bool) {
        let stat = Fields::read(&at.join("memory.stat"));
        let [inactive, rss, cache, faults, major] = if v2 {
            ["inactive_file", "anon", "file", "pgfault", "pgmajfault"]
        } else {
            ["total_inactive_file", "total_rss", "total_cache", "total_pgfault", "total_pgmajfault"]
        };
        let (current, limit) =
            if v2 { ("memory.current", "memory.max") } else { ("memory.usage_in_bytes", "memory.limit_in_bytes") };
        self.memory = number(&at.join(current));
        let peak = if v2 { "memory.peak" } else { "memory.max_usage_in_bytes" };
        self.memory_peak = Some(number(&at.join(peak))).filter(|p| *p > 0);
        self.working_set = self.memory.saturating_sub(stat.get(inactive));
        (self.rss, self.cache) = (stat.get(rss), stat.get(cache));
        (self.page_faults, self.major_page_faults) = (stat.get(faults), stat.get(major));
        self.swap = if v2 { number(&at.join("memory.swap.current")) } else { stat.get("total_swap") };
        self.memory_limit = Some(number(&at.join(limit))).filter(|l| (1..NO_LIMIT).contains(l));
    }
}

/// A file with a name and a number in each line.
struct Fields(String);

impl Fields {
    fn read(path: &Path) -> Self {
        Self(std::fs::read_to_string(path).unwrap_or_default())
    }

    fn get(&self, name: &str) -> u64 {
        let value = self.0.lines().find_map(|l| l.split_once(' ').filter(|(k, _)| *k == name));
        value.and_then(|(_, v)| v.trim().parse().ok()).unwrap_or(0)
    }
}

/// How often the kernel killed a process for lack of memory, from the directory that has the counter.
pub fn oom_kills(directories: &[CgroupDirectory]) -> u64 {
    directories
        .iter()
        .map(|d| &d.directory)
        .map(|d| field(&d.join("memory.events"), "oom_kill").max(field(&d.join("memory.oom_control"), "oom_kill")))
        .max()
        .unwrap_or(0)
}

/// The cgroup of hooks below that of a container's processes, whether it exists or not.
pub fn hooks_below(processes: &[CgroupDirectory]) -> Vec<CgroupDirectory> {
    let below = |c: &CgroupDirectory| CgroupDirectory { directory: c.directory.join(HOOKS), ..c.clone() };
    processes.iter().map(below).collect()
}

/// Puts the calling process into a cgroup. Pid 0 is the writer itself, in any pid namespace.
pub fn enter(directories: &[CgroupDirectory]) -> io::Result<()> {
    for CgroupDirectory { directory, .. } in directories {
        std::fs::write(directory.join("cgroup.procs"), b"0")
            .map_err(|e| io::Error::new(e.kind(), format!("joining {}: {e}", directory.display())))?;
    }
    Ok(())
}

/// Whether a process that joins the cgroup stops: it, or a cgroup above it, is frozen.
pub fn is_frozen(directories: &[CgroupDirectory]) -> bool {
    directories.iter().any(|CgroupDirectory { directory, .. }| {
        let read = |file: &str| std::fs::read_to_string(directory.join(file)).unwrap_or_default();
        matches!(read("freezer.state").trim(), "FROZEN" | "FREEZING")
            || read("cgroup.freeze").trim() == "1"
            || read("cgroup.events").lines().any(|l| l == "frozen 1")
    })
}

/// Thaws every frozen process in a cgroup and below it, since a frozen one does not end.
fn thaw(directory: &Path) {
    each(directory, &mut |at| {
        for (file, value) in [("freezer.state", "THAWED"), ("cgroup.freeze", "0")] {
            // The root has no such file, or the cgroup is gone.
            if let Ok(file) = openat(at, file, OFlag::O_WRONLY | OFlag::O_CLOEXEC, Mode::empty()) {
                let _ = File::from(file).write_all(value.as_bytes());
            }
        }
    });
}

/// Visits a cgroup and those below it, whose depth its processes may choose.
fn each(directory: &Path, visit: &mut dyn FnMut(BorrowedFd)) {
    match each_directory(directory, visit) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            tracing::debug!(directory = %directory.display(), "walking through control groups failed: {e}");
        }
        _ => {}
    }
}

/// Sends SIGKILL to every process in a cgroup and below it.
pub fn kill_all(directories: &[CgroupDirectory]) {
    let mut pids = BTreeSet::new();
    for CgroupDirectory { directory, .. } in directories {
        if std::fs::write(directory.join("cgroup.kill"), b"1").is_err() {
            collect(directory, &mut pids);
        }
    }
    for pid in pids {
        if pid > 0 {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
        }
    }
    for CgroupDirectory { directory, .. } in directories {
        thaw(directory);
    }
}

/// Removes a cgroup directory with those below it. Missing ones are no error.
pub fn remove_tree(directory: &Path) -> io::Result<()> {
    remove_directories(directory)
        .map_err(|e| io::Error::new(e.kind(), format!("removing {}: {e}", directory.display())))
}

fn parse_mount(line: &str) -> Option<(&str, &str, &str)> {
    let (left, right) = line.split_once(" - ")?;
    let mount = left.split(' ').nth(4)?;
    let mut right = right.split(' ');
    Some((mount, right.next()?, right.nth(1)?))
}

/// Best effort: for a controller that cannot be delegated, writing a limit fails later.
fn enable_controllers(directory: &Path) {
    let available = std::fs::read_to_string(directory.join("cgroup.controllers")).unwrap_or_default();
    let enabled = std::fs::read_to_string(directory.join("cgroup.subtree_control")).unwrap_or_default();
    for controller in available.split_ascii_whitespace() {
        if !enabled.split_ascii_whitespace().any(|e| e == controller) {
            let _ = std::fs::write(directory.join("cgroup.subtree_control"), format!("+{controller}"));
        }
    }
}

fn bound_descendants(directory: &Path) -> io::Result<()> {
    for (file, most) in [("cgroup.max.depth", MAX_DEPTH), ("cgroup.max.descendants", MAX_DESCENDANTS)] {
        let path = directory.join(file);
        let opened = File::options().write(true).open(&path);
        match opened.and_then(|mut f| f.write_all(most.to_string().as_bytes())) {
            // Kernels before 4.14.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            result => result.map_err(|e| io::Error::new(e.kind(), format!("writing {}: {e}", path.display())))?,
        }
    }
    Ok(())
}

fn v1_settings(r: &Resources) -> Vec<(&'static str, String, String)> {
    let mut settings = Vec::new();
    let mut set = |controller, file: &str, value: Option<String>| {
        if let Some(value) = value {
            settings.push((controller, file.to_owned(), value));
        }
    };
    set("cpu", "cpu.shares", r.cpu_shares.map(|v| v.clamp(2, 262_144).to_string()));
    set("cpu", "cpu.cfs_period_us", r.cpu_period.map(|v| v.to_string()));
    set("cpu", "cpu.cfs_quota_us", r.cpu_quota.map(|v| v.to_string()));
    set("cpuset", "cpuset.cpus", r.cpuset_cpus.clone());
    set("cpuset", "cpuset.mems", r.cpuset_mems.clone());
    set("memory", "memory.limit_in_bytes", r.memory_limit.map(|v| v.to_string()));
    set("pids", "pids.max", r.pids_limit.map(limit_text));
    for (size, bytes) in &r.hugepage_limits {
        for part in [".", RESERVED] {
            set("hugetlb", &format!("hugetlb.{size}{part}limit_in_bytes"), Some(bytes.to_string()));
        }
    }
    settings
}

fn v2_settings(r: &Resources) -> Vec<(&'static str, String, String)> {
    let mut settings = Vec::new();
    let mut set = |controller, file: &str, value: Option<String>| {
        if let Some(value) = value {
            settings.push((controller, file.to_owned(), value));
        }
    };
    // The conversion of the CRI runtimes: 2..262144 shares onto weights 1..10000.
    set("cpu", "cpu.weight", r.cpu_shares.map(|v| (1 + (v.clamp(2, 262_144) - 2) * 9_999 / 262_142).to_string()));
    let quota = r.cpu_quota.map(|quota| {
        let quota = if quota < 0 { "max".to_owned() } else { quota.to_string() };
        format!("{quota} {}", r.cpu_period.unwrap_or(100_000))
    });
    set("cpu", "cpu.max", quota);
    set("cpuset", "cpuset.cpus", r.cpuset_cpus.clone());
    set("cpuset", "cpuset.mems", r.cpuset_mems.clone());
    set("memory", "memory.max", r.memory_limit.map(limit_text));
    for (file, value) in r.unified() {
        set("memory", file, Some(value));
    }
    set("pids", "pids.max", r.pids_limit.map(limit_text));
    for (size, bytes) in &r.hugepage_limits {
        for part in [".", RESERVED] {
            set("hugetlb", &format!("hugetlb.{size}{part}max"), Some(bytes.to_string()));
        }
    }
    settings
}

fn limit_text(value: i64) -> String {
    if value < 0 { "max".to_owned() } else { value.to_string() }
}

fn collect(directory: &Path, pids: &mut BTreeSet<i32>) {
    each(directory, &mut |at| {
        let mut text = String::new();
        if let Ok(file) = openat(at, "cgroup.procs", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty()) {
            let _ = File::from(file).read_to_string(&mut text); // it may go meanwhile
        }
        pids.extend(text.lines().filter_map(|l| l.parse::<i32>().ok()));
    });
}

fn number(path: &Path) -> u64 {
    std::fs::read_to_string(path).ok().and_then(|t| t.trim().parse().ok()).unwrap_or(0)
}

fn field(path: &Path, name: &str) -> u64 {
    Fields::read(path).get(name)
}

/// The directory of a cgroup in one hierarchy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupDirectory {
    /// Name of the hierarchy below /sys/fs/cgroup; empty if it is the only one (v2).
    pub name: String,
    /// Absolute path of the directory.
    pub directory: PathBuf,
    /// Whether containers see it.
    #[serde(default = "seen")]
    pub seen: bool,
}

/// Records of earlier versions lack the field.
fn seen() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(settings: Vec<(&'static str, String, String)>) -> Vec<String> {
        settings.into_iter().map(|(_, file, value)| format!("{file}={value}")).collect()
    }

    #[test]
    fn limits_become_the_files_of_each_version() {
        let resources = Resources {
            cpu_shares: Some(1024),
            cpu_quota: Some(50_000),
            cpu_period: Some(100_000),
            memory_limit: Some(1 << 20),
            pids_limit: Some(-1),
            swap_limit: Some(0),
            oom_group: Some(true),
            hugepage_limits: [("2MB".to_owned(), 4 << 20)].into(),
            ..Resources::default()
        };
        assert_eq!(
            values(v1_settings(&resources)),
            [
                "cpu.shares=1024",
                "cpu.cfs_period_us=100000",
                "cpu.cfs_quota_us=50000",
                "memory.limit_in_bytes=1048576",
                "pids.max=max",
                "hugetlb.2MB.limit_in_bytes=4194304",
                "hugetlb.2MB.rsvd.limit_in_bytes=4194304"
            ]
        );
        assert_eq!(
            values(v2_settings(&resources)),
            [
                "cpu.weight=39",
                "cpu.max=50000 100000",
                "memory.max=1048576",
                "memory.swap.max=0",
                "memory.oom.group=1",
                "pids.max=max",
                "hugetlb.2MB.max=4194304",
                "hugetlb.2MB.rsvd.max=4194304"
            ]
        );
        assert_eq!(
            values(v2_settings(&Resources { cpu_quota: Some(-1), ..Default::default() })),
            ["cpu.max=max 100000"]
        );
    }

    #[test]
    fn cgroups_below_a_pods_are_bounded_where_the_kernel_can() {
        let directory = tempfile::tempdir().unwrap();
        let read = |file: &str| std::fs::read_to_string(directory.path().join(file)).ok();
        bound_descendants(directory.path()).unwrap();
        assert_eq!(read("cgroup.max.depth"), None, "an older kernel has none");
        for file in ["cgroup.max.depth", "cgroup.max.descendants"] {
            std::fs::write(directory.path().join(file), "").unwrap();
        }
        bound_descendants(directory.path()).unwrap();
        assert_eq!(read("cgroup.max.depth").as_deref(), Some("32"));
        assert_eq!(read("cgroup.max.descendants").as_deref(), Some("2048"));
    }

    /// Containers of a hybrid host saw the hierarchy of v2, where none of their limits are.
    #[test]
    fn containers_see_the_version_that_limits() {
        let hierarchy = |mount: &str, controllers: &[&str], v2| Hierarchy {
            mount: mount.into(),
            controllers: controllers.iter().map(|c| (*c).to_owned()).collect(),
            v2,
        };
        let seen = |all: &[Hierarchy]| -> Vec<(String, bool)> {
            let directories = Hierarchies(all.to_vec()).process_directories("pod");
            directories.into_iter().map(|d| (d.name, d.seen)).collect()
        };
        let (memory, systemd) =
            (hierarchy("/m/memory", &["memory"], false), hierarchy("/m/systemd", &["name=systemd"], false));
        let unified = hierarchy("/m/unified", &["hugetlb"], true);
        let named = |name: &str, seen| (name.to_owned(), seen);
        assert_eq!(
            seen(&[memory, systemd.clone(), unified.clone()]),
            [named("memory", true), named("systemd", true), named("unified", false)]
        );
        assert_eq!(seen(&[systemd, unified.clone()]), [named("systemd", true), named("unified", true)]);
        assert_eq!(seen(&[unified]), [named("", true)]);
    }

    /// Root of a user namespace can create cgroups deeper than the maximum length of a path.
    #[test]
    fn deep_groups_are_visited_and_removed() {
        let all = Hierarchies::detect().unwrap();
        let path = format!("kemudi-test-deep-{}", std::process::id());
        all.create(&path, &Resources::default()).unwrap();
        let top = all.directories(&path).remove(0).directory;
        let name = "x".repeat(180);
        let mut at = std::os::fd::OwnedFd::from(File::open(&top).unwrap());
        for _ in 0..40 {
            nix::sys::stat::mkdirat(&at, name.as_str(), Mode::S_IRWXU).unwrap();
            at = openat(&at, name.as_str(), OFlag::O_RDONLY | OFlag::O_DIRECTORY, Mode::empty()).unwrap();
        }
        let mut seen = 0;
        each(&top, &mut |_| seen += 1);
        assert_eq!(seen, 41);
        drop(at);
        kill_all(&all.directories(&path));
        assert!(all.processes(&path).is_empty());
        all.remove(&path).unwrap();
        assert!(!top.exists());
    }

    #[test]
    fn mounts_are_read_with_their_options() {
        let line = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory";
        assert_eq!(parse_mount(line), Some(("/sys/fs/cgroup/memory", "cgroup", "rw,memory")));
        assert_eq!(parse_mount("nonsense"), None);
    }
}
