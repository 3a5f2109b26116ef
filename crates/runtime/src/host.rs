//! The limits of this host, read once at start. Requests are clamped to them; the rest is reported.

use std::collections::BTreeSet;

use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::{SysconfVar, sysconf};
use serde::{Deserialize, Serialize};

use crate::cgroup::Hierarchies;

/// Linux capabilities by number.
pub const CAPABILITIES: &[&str] = &[
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// The default capabilities of a container, as in CRI runtimes.
const DEFAULT_CAPABILITIES: &[&str] = &[
    "CHOWN",
    "DAC_OVERRIDE",
    "FSETID",
    "FOWNER",
    "MKNOD",
    "NET_RAW",
    "SETGID",
    "SETUID",
    "SETFCAP",
    "SETPCAP",
    "NET_BIND_SERVICE",
    "SYS_CHROOT",
    "KILL",
    "AUDIT_WRITE",
];

/// Limits of `execve`, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArgumentLimits {
    /// One argument or variable with the NUL that ends it (`MAX_ARG_STRLEN` of the kernel).
    pub one: usize,
    /// All arguments and variables with a pointer to each (`bprm_stack_limits` in the kernel's `fs/exec.c`).
    pub all: usize,
}

impl ArgumentLimits {
    fn read() -> std::io::Result<ArgumentLimits> {
        let page = sysconf(SysconfVar::PAGE_SIZE)?.and_then(|size| usize::try_from(size).ok()).unwrap_or(4096);
        // Containers inherit the stack limit of this process.
        let stack = usize::try_from(getrlimit(Resource::RLIMIT_STACK)?.0).unwrap_or(usize::MAX);
        Ok(ArgumentLimits { one: 32 * page, all: (stack / 4).clamp(128 << 10, 6 << 20) })
    }
}

/// The limits of this host and of this process, to which requests are clamped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostLimits {
    /// Capabilities (without `CAP_`) in the bounding set of this process.
    pub capabilities: BTreeSet<String>,
    /// Missing capabilities, which privileged containers do not have either.
    pub missing_capabilities: BTreeSet<String>,
    /// The hard limit of open files.
    pub max_open_files: u64,
    /// The limits of arguments and environment.
    pub arguments: ArgumentLimits,
    /// The lowest `oom_score_adj` that this process can set.
    pub lowest_oom_score_adj: i32,
    /// `v1`, `v2`, `hybrid` or `none`.
    pub cgroup_version: String,
    /// The controllers that exist, on either version.
    pub cgroup_controllers: BTreeSet<String>,
    /// Whether cgroups can restrict devices.
    pub device_rules: bool,
    /// Why pods cannot have user namespaces of their own; `None` if they can.
    pub no_user_namespaces: Option<String>,
    /// Whether this process runs as root, without which no container can be started.
    pub root: bool,
}

impl HostLimits {
    /// Reads the limits of the calling process. Errors if `/proc` or the cgroup mounts cannot be read.
    pub fn read() -> std::io::Result<HostLimits> {
        let status = std::fs::read_to_string("/proc/self/status")?;
        let bits = status
            .lines()
            .find_map(|l| l.strip_prefix("CapBnd:"))
            .and_then(|v| u64::from_str_radix(v.trim(), 16).ok())
            .unwrap_or(0);
        let last: usize = std::fs::read_to_string("/proc/sys/kernel/cap_last_cap")
            .ok()
            .and_then(|t| t.trim().parse().ok())
            .unwrap_or(CAPABILITIES.len() - 1);
        let (mut capabilities, mut missing_capabilities) = (BTreeSet::new(), BTreeSet::new());
        for (number, name) in CAPABILITIES.iter().enumerate().take(last + 1) {
            let set = if bits & (1 << number) != 0 { &mut capabilities } else { &mut missing_capabilities };
            set.insert((*name).to_owned());
        }
        let own: i32 =
            std::fs::read_to_string("/proc/self/oom_score_adj").ok().and_then(|t| t.trim().parse().ok()).unwrap_or(0);
        let hierarchies = Hierarchies::detect()?;
        Ok(HostLimits {
            // Without the capability, the limit is the lowest value that a privileged process has set, usually the current one.
            lowest_oom_score_adj: if capabilities.contains("SYS_RESOURCE") { -1000 } else { own },
            max_open_files: getrlimit(Resource::RLIMIT_NOFILE)?.1,
            arguments: ArgumentLimits::read()?,
            cgroup_version: hierarchies.version().to_owned(),
            device_rules: hierarchies.can_restrict_devices(),
            cgroup_controllers: hierarchies.controllers(),
            // Depends on the file systems; see `Embedded::open`.
            no_user_namespaces: None,
            root: nix::unistd::geteuid().is_root(),
            capabilities,
            missing_capabilities,
        })
    }

    /// Sentences for users, one per missing privilege; empty with all privileges.
    pub fn complaints(&self) -> Vec<String> {
        let mut complaints = Vec::new();
        if !self.root {
            complaints.push("not root: containers cannot be started".to_owned());
        }
        if !self.missing_capabilities.is_empty() {
            let names: Vec<&str> = self.missing_capabilities.iter().map(String::as_str).collect();
            complaints.push(format!("capabilities missing, privileged containers lack them too: {}", names.join(", ")));
        }
        if self.lowest_oom_score_adj > -1000 {
            complaints.push(format!("oom_score_adj cannot go below {}", self.lowest_oom_score_adj));
        }
        if !self.device_rules {
            complaints.push("no device rules: only mount options keep containers from devices".to_owned());
        }
        if let Some(why) = &self.no_user_namespaces {
            complaints.push(format!("pods cannot have user namespaces (`hostUsers: false`): {why}"));
        }
        for controller in ["cpu", "memory", "pids"] {
            if !self.cgroup_controllers.contains(controller) {
                complaints.push(format!("no cgroup controller {controller}: its limits are not enforced"));
            }
        }
        complaints
    }

    /// Numbers of the capabilities a container gets. Names may carry `CAP_` and any case; unknown ones are an error.
    pub fn container_capabilities(
        &self,
        privileged: bool,
        add: &[String],
        drop: &[String],
    ) -> Result<Vec<u8>, UnknownCapability> {
        let all = || CAPABILITIES.iter().map(|c| (*c).to_owned()).collect::<BTreeSet<String>>();
        let mut set: BTreeSet<String> =
            if privileged { all() } else { DEFAULT_CAPABILITIES.iter().map(|c| (*c).to_owned()).collect() };
        let parse = |names: &[String]| -> Result<BTreeSet<String>, UnknownCapability> {
            names
                .iter()
                .map(|name| {
                    let upper = name.to_ascii_uppercase();
                    let short = upper.strip_prefix("CAP_").unwrap_or(&upper).to_owned();
                    let known = short == "ALL" || CAPABILITIES.contains(&short.as_str());
                    if known { Ok(short) } else { Err(UnknownCapability(name.clone())) }
                })
                .collect()
        };
        let (add, drop) = (parse(add)?, parse(drop)?);
        // ALL is applied first, so that single names can override it (as CRI runtimes do).
        if add.contains("ALL") {
            set = all();
        }
        if drop.contains("ALL") {
            set.clear();
        }
        set.extend(add.into_iter().filter(|c| c != "ALL"));
        set.retain(|c| !drop.contains(c));
        Ok((0u8..)
            .zip(CAPABILITIES)
            .filter(|(_, name)| set.contains(**name) && self.capabilities.contains(**name))
            .map(|(number, _)| number)
            .collect())
    }
}

/// The error of a name that is not in [`CAPABILITIES`], as in the request.
#[derive(Debug, thiserror::Error)]
#[error("unknown capability {0:?}")]
pub struct UnknownCapability(pub String);

#[cfg(test)]
mod tests {
    use super::*;

    fn names(privileged: bool, add: &[&str], drop: &[&str]) -> Vec<&'static str> {
        let limits = HostLimits {
            capabilities: CAPABILITIES.iter().filter(|c| **c != "SYS_RESOURCE").map(|c| (*c).to_owned()).collect(),
            missing_capabilities: ["SYS_RESOURCE".to_owned()].into(),
            max_open_files: 1024,
            arguments: ArgumentLimits { one: 128 << 10, all: 2 << 20 },
            lowest_oom_score_adj: 0,
            cgroup_version: "v1".into(),
            cgroup_controllers: BTreeSet::new(),
            device_rules: true,
            no_user_namespaces: None,
            root: true,
        };
        let own = |l: &[&str]| l.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
        let numbers = limits.container_capabilities(privileged, &own(add), &own(drop)).unwrap();
        numbers.into_iter().map(|n| CAPABILITIES[n as usize]).collect()
    }

    #[test]
    fn capabilities_are_added_dropped_and_clamped() {
        assert_eq!(names(false, &[], &[]).len(), DEFAULT_CAPABILITIES.len());
        assert_eq!(names(false, &["cap_net_admin"], &["ALL"]), ["NET_ADMIN"]);
        assert_eq!(names(false, &["NET_ADMIN"], &["NET_ADMIN", "ALL"]), [""; 0]);
        assert_eq!(names(true, &[], &[]).len(), CAPABILITIES.len() - 1, "all but the one this host lacks");
        assert!(!names(false, &["ALL"], &["SYS_ADMIN"]).contains(&"SYS_ADMIN"));
    }
}
