//! Which devices a container may open: a list of rules for its cgroup.
//!
//! On cgroup v1 the rules are written to the `devices` controller. On v2 they are a BPF program, attached to the cgroup for as long
//! as it exists; every program on the way to the root must agree. Privileged containers have none.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::api::{DeviceRequest, IdRange};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    Block = 1,
    Character = 2,
}

const MAKE: u32 = 1;
const READ: u32 = 2;
const WRITE: u32 = 4;
const ALL: u32 = 7;

/// A device node of the host that a container gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceNode {
    /// The path in the container.
    pub target: PathBuf,
    kind: Kind,
    major: u32,
    minor: u32,
    access: u32,
    /// Of the host's node.
    pub mode: u32,
    pub owner: (u32, u32),
}

impl DeviceNode {
    /// Reads the node of the host. Errors if it is none.
    pub fn read(request: &DeviceRequest) -> io::Result<Self> {
        let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what.to_owned());
        if !request.target.is_absolute() || request.target.components().any(|c| c == Component::ParentDir) {
            return Err(invalid("the path in the container is not absolute"));
        }
        let access = |sum: io::Result<u32>, letter: char| match letter {
            'r' => Ok(sum? | READ),
            'w' => Ok(sum? | WRITE),
            'm' => Ok(sum? | MAKE),
            _ => Err(invalid("permissions are letters of \"rwm\"")),
        };
        let access = request.permissions.chars().fold(Ok(0), access)?;
        let found = std::fs::metadata(&request.host)?;
        let kind = match found.file_type() {
            kind if kind.is_block_device() => Kind::Block,
            kind if kind.is_char_device() => Kind::Character,
            _ => return Err(invalid("not a device node")),
        };
        let number = |n: u64| u32::try_from(n).map_err(|_| invalid("the number of the device is too large"));
        Ok(Self {
            target: request.target.clone(),
            kind,
            major: number(nix::sys::stat::major(found.rdev()))?,
            minor: number(nix::sys::stat::minor(found.rdev()))?,
            access: if access == 0 { ALL } else { access },
            mode: found.mode() & 0o777,
            owner: (found.uid(), found.gid()),
        })
    }

    /// Changes mode and owner, which are ids of the container. Errors if the container has no such user or group.
    pub fn own(
        &mut self,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        users: Option<IdRange>,
    ) -> io::Result<()> {
        let on_host = |id: u32| match users {
            None => Ok(id),
            Some(range) if id < range.length => Ok(range.first + id),
            Some(_) => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("the pod has no user or group {id}"))),
        };
        self.mode = mode.map_or(self.mode, |m| m & 0o777);
        self.owner.0 = uid.map_or(Ok(self.owner.0), on_host)?;
        self.owner.1 = gid.map_or(Ok(self.owner.1), on_host)?;
        Ok(())
    }

    pub fn is_block(&self) -> bool {
        self.kind == Kind::Block
    }

    /// Major and minor number.
    pub fn number(&self) -> (u64, u64) {
        (self.major.into(), self.minor.into())
    }

    fn rule(&self) -> Rule {
        Rule { kind: self.kind, major: Some(self.major), minor: Some(self.minor), access: self.access }
    }
}

/// The rules of a container with these devices besides the usual ones.
fn rules(more: &[DeviceNode]) -> Vec<Rule> {
    RULES.iter().copied().chain(more.iter().map(DeviceNode::rule)).collect()
}

/// Allows access to devices by kind and numbers; `None` is any.
#[derive(Clone, Copy, Debug)]
struct Rule {
    kind: Kind,
    major: Option<u32>,
    minor: Option<u32>,
    access: u32,
}

const fn character(major: u32, minor: Option<u32>) -> Rule {
    Rule { kind: Kind::Character, major: Some(major), minor, access: ALL }
}

/// As in CRI runtimes: device nodes may be created, which opens none, and the devices in a container's /dev may be used.
const RULES: &[Rule] = &[
    Rule { kind: Kind::Character, major: None, minor: None, access: MAKE },
    Rule { kind: Kind::Block, major: None, minor: None, access: MAKE },
    character(1, Some(3)), // null
    character(1, Some(5)), // zero
    character(1, Some(7)), // full
    character(1, Some(8)), // random
    character(1, Some(9)), // urandom
    character(5, Some(0)), // tty
    character(5, Some(1)), // console
    character(5, Some(2)), // ptmx
    character(136, None),  // terminals
];

/// Restricts a v1 cgroup of the `devices` controller to the usual devices and `more`.
pub(crate) fn restrict_v1(cgroup: &Path, more: &[DeviceNode]) -> io::Result<()> {
    let write = |file: &str, text: &str| {
        let path = cgroup.join(file);
        std::fs::write(&path, text)
            .map_err(|e| io::Error::new(e.kind(), format!("writing {text:?} to {}: {e}", path.display())))
    };
    write("devices.deny", "a")?;
    rules(more).iter().try_for_each(|rule| match write("devices.allow", &line(rule)) {
        // The cgroup of the agent does not allow it either.
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        result => result,
    })
}

fn line(rule: &Rule) -> String {
    let kind = if rule.kind == Kind::Block { 'b' } else { 'c' };
    let number = |n: Option<u32>| n.map_or_else(|| "*".to_owned(), |n| n.to_string());
    let access: String = [(READ, 'r'), (WRITE, 'w'), (MAKE, 'm')]
        .iter()
        .filter(|(bit, _)| rule.access & bit != 0)
        .map(|(_, l)| l)
        .collect();
    format!("{kind} {}:{} {access}", number(rule.major), number(rule.minor))
}

/// Restricts a v2 cgroup to the usual devices and `more`.
pub(crate) fn restrict_v2(cgroup: &Path, more: &[DeviceNode]) -> io::Result<()> {
    let directory = File::open(cgroup)?;
    attach(&load(&rules(more))?, &directory)
        .map_err(|e| io::Error::new(e.kind(), format!("attaching device rules to {}: {e}", cgroup.display())))
}

/// Whether this process may use device programs, which a host may forbid.
pub(crate) fn programs_work() -> bool {
    load(RULES).is_ok()
}

/// One instruction of eBPF: `code`, destination and source register, jump offset, constant.
fn op(code: u8, destination: u8, source: u8, offset: u16, constant: u32) -> u64 {
    u64::from(code)
        | u64::from(destination) << 8
        | u64::from(source) << 12
        | u64::from(offset) << 16
        | u64::from(constant) << 32
}

/// Returns 1 (allowed) if a rule matches. The context holds access (high half) and kind, major and minor.
fn program(rules: &[Rule]) -> Vec<u64> {
    const LOAD_WORD: u8 = 0x61;
    const MOVE: u8 = 0xbf;
    const AND: u8 = 0x57;
    const SHIFT_RIGHT: u8 = 0x77;
    const SET: u8 = 0xb7;
    const EXIT: u8 = 0x95;
    let mut program = vec![
        op(LOAD_WORD, 2, 1, 0, 0),
        op(MOVE, 3, 2, 0, 0),
        op(AND, 2, 0, 0, 0xffff),
        op(SHIFT_RIGHT, 3, 0, 0, 16),
        op(LOAD_WORD, 4, 1, 4, 0),
        op(LOAD_WORD, 5, 1, 8, 0),
    ];
    for rule in rules {
        // Comparisons of a register with a value, which skip the rest of the rule if they fail.
        let mut tests = vec![(2, rule.kind as u32)];
        let mut body = Vec::new();
        if rule.access != ALL {
            // No access beyond that of the rule may be requested.
            body = vec![op(MOVE, 1, 3, 0, 0), op(AND, 1, 0, 0, !rule.access & ALL)];
            tests.push((1, 0));
        }
        tests.extend(rule.major.map(|n| (4, n)));
        tests.extend(rule.minor.map(|n| (5, n)));
        let length = (tests.len() + 2) as u16;
        for (done, (register, value)) in tests.iter().enumerate() {
            const JUMP_IF_NOT_EQUAL: u8 = 0x55;
            body.push(op(JUMP_IF_NOT_EQUAL, *register, 0, length - 1 - done as u16, *value));
        }
        body.extend([op(SET, 0, 0, 0, 1), op(EXIT, 0, 0, 0, 0)]);
        program.extend(body);
    }
    program.extend([op(SET, 0, 0, 0, 0), op(EXIT, 0, 0, 0, 0)]);
    program
}

fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<RawFd> {
    // SAFETY: the kernel reads as many bytes of `attributes` as it has; the types below have the layout of the beginning of
    // the kernel's union for their command, and what they point to lives through the call.
    match unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<T>()) } {
        result if result < 0 => Err(io::Error::last_os_error()),
        result => Ok(result as RawFd),
    }
}

fn load(rules: &[Rule]) -> io::Result<OwnedFd> {
    const BPF_PROG_LOAD: libc::c_int = 5;
    const BPF_PROG_TYPE_CGROUP_DEVICE: u32 = 15;
    #[repr(C)]
    struct Load {
        kind: u32,
        length: u32,
        instructions: u64,
        license: u64,
        log_level: u32,
        log_size: u32,
        log: u64,
        kernel_version: u32,
        flags: u32,
    }
    let (instructions, license) = (program(rules), c"Apache-2.0");
    let descriptor = bpf(
        BPF_PROG_LOAD,
        &Load {
            kind: BPF_PROG_TYPE_CGROUP_DEVICE,
            length: instructions.len() as u32,
            instructions: instructions.as_ptr() as u64,
            license: license.as_ptr() as u64,
            log_level: 0,
            log_size: 0,
            log: 0,
            kernel_version: 0,
            flags: 0,
        },
    )?;
    // SAFETY: the kernel has just given us this descriptor (close-on-exec, as all of this call).
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn attach(program: &OwnedFd, cgroup: &File) -> io::Result<()> {
    const BPF_PROG_ATTACH: libc::c_int = 8;
    const BPF_CGROUP_DEVICE: u32 = 6;
    const BPF_F_ALLOW_MULTI: u32 = 2;
    #[repr(C)]
    struct Attach {
        target: u32,
        program: u32,
        kind: u32,
        flags: u32,
    }
    let (target, program) = (cgroup.as_raw_fd() as u32, program.as_raw_fd() as u32);
    bpf(BPF_PROG_ATTACH, &Attach { target, program, kind: BPF_CGROUP_DEVICE, flags: BPF_F_ALLOW_MULTI }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    /// A cgroup for the test, removed at its end.
    struct Cgroup(std::path::PathBuf);

    impl Cgroup {
        fn new(hierarchy: &Path, name: &str) -> Cgroup {
            let path = hierarchy.join(format!("kemudi-test-{name}-{}", std::process::id()));
            std::fs::create_dir(&path).unwrap();
            Cgroup(path)
        }

        /// Whether a process in the cgroup can run the script.
        fn can(&self, script: &str) -> bool {
            let procs = self.0.join("cgroup.procs");
            let mut command = Command::new("/bin/busybox");
            command.args(["sh", "-c", script]);
            // SAFETY: the child only writes to a file.
            unsafe { command.pre_exec(move || std::fs::write(&procs, "0")) };
            command.output().unwrap().status.success()
        }
    }

    impl Drop for Cgroup {
        fn drop(&mut self) {
            let removed = crate::embedded::retry(|| std::fs::remove_dir(&self.0));
            assert!(removed.is_ok() || std::thread::panicking(), "{removed:?}");
        }
    }

    fn check(cgroup: &Cgroup, how: &str) {
        let directory = tempfile::tempdir().unwrap();
        let node = directory.path().join("kmsg").display().to_string();
        assert!(cgroup.can("head -c 1 /dev/zero > /dev/null; : < /dev/urandom"), "{how}");
        assert!(cgroup.can(&format!("mknod {node} c 1 11")), "{how}");
        for forbidden in [format!(": < {node}"), ": < /dev/kmsg".into(), ": > /dev/kmsg".into(), ": < /dev/mem".into()]
        {
            assert!(!cgroup.can(&forbidden), "{how}: {forbidden}");
        }
    }

    #[test]
    fn only_listed_devices_can_be_opened() {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let find = |ending: &str| {
            let line = mounts.lines().find(|l| l.contains(ending))?;
            line.split(' ').nth(4).map(|p| Path::new(p).to_owned())
        };
        let mut checked = 0;
        if let Some(v1) = find("rw,devices") {
            let cgroup = Cgroup::new(&v1, "devices");
            assert!(cgroup.can(": < /dev/kmsg"), "before the rules");
            restrict_v1(&cgroup.0, &[]).unwrap();
            check(&cgroup, "v1");
            checked += 1;
        }
        if let Some(v2) = find(" - cgroup2 ") {
            let cgroup = Cgroup::new(&v2, "programs");
            assert!(cgroup.can(": < /dev/kmsg"), "before the rules");
            restrict_v2(&cgroup.0, &[]).unwrap();
            check(&cgroup, "v2");
            checked += 1;
        }
        assert!(checked > 0, "this host has no cgroups");
    }

    #[test]
    fn devices_of_the_host_are_added_with_their_permissions() {
        let request = |host: &str, permissions: &str| DeviceRequest {
            host: host.into(),
            target: "/dev/own".into(),
            permissions: permissions.into(),
            ..DeviceRequest::default()
        };
        let mut node = DeviceNode::read(&request("/dev/kmsg", "r")).unwrap();
        let (mode, owner) = (node.mode, node.owner);
        node.own(None, None, None, None).unwrap();
        assert_eq!((node.mode, node.owner), (mode, owner), "those of the host's node");
        node.own(Some(0o600), Some(5), None, None).unwrap();
        assert_eq!((node.mode, node.owner), (0o600, (5, owner.1)));
        let users = Some(IdRange { first: 70_000, length: 10 });
        node.own(None, Some(5), Some(9), users).unwrap();
        assert_eq!(node.owner, (70_005, 70_009));
        assert!(node.own(None, Some(10), None, users).is_err());
        assert_eq!((node.number(), line(&node.rule()).as_str()), ((1, 11), "c 1:11 r"));
        assert_eq!(line(&DeviceNode::read(&request("/dev/kmsg", "")).unwrap().rule()), "c 1:11 rwm");
        for (host, permissions) in [("/etc/passwd", "rw"), ("/dev/absent", "rw"), ("/dev/kmsg", "x")] {
            assert!(DeviceNode::read(&request(host, permissions)).is_err(), "{host} {permissions}");
        }
        let outside = DeviceRequest { target: "/dev/../etc".into(), ..request("/dev/kmsg", "r") };
        assert!(DeviceNode::read(&outside).is_err());
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let find = |ending: &str| {
            let line = mounts.lines().find(|l| l.contains(ending))?;
            line.split(' ').nth(4).map(|p| Path::new(p).to_owned())
        };
        let readable = |cgroup: &Cgroup| (cgroup.can(": < /dev/kmsg"), cgroup.can(": > /dev/kmsg"));
        if let Some(v1) = find("rw,devices") {
            let cgroup = Cgroup::new(&v1, "more");
            restrict_v1(&cgroup.0, std::slice::from_ref(&node)).unwrap();
            assert_eq!(readable(&cgroup), (true, false), "v1");
        }
        if let Some(v2) = find(" - cgroup2 ") {
            let cgroup = Cgroup::new(&v2, "more");
            restrict_v2(&cgroup.0, std::slice::from_ref(&node)).unwrap();
            assert_eq!(readable(&cgroup), (true, false), "v2");
        }
    }
}
