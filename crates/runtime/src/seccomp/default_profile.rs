//! The runtime's default profile.
//!
//! It refuses what default profiles of other runtimes refuse: calls that reach beyond the container and that ordinary programs do
//! not make. A call that is not in the table (of a newer kernel) fails as if the kernel lacked it, so that programs fall back.

use std::collections::BTreeMap;

use super::{CAPABILITIES, Comparison, Operator, Rule, names};

/// The error of unknown calls.
pub const DEFAULT: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
const REFUSE: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;

/// Refused unless the container has one of the capabilities.
const REFUSED: &[(&[&str], &[&str])] = &[
    (
        &[],
        &[
            "_sysctl",
            "add_key",
            "afs_syscall",
            "epoll_ctl_old",
            "epoll_wait_old",
            "getpmsg",
            "io_uring_enter",
            "io_uring_register",
            "io_uring_setup",
            "kexec_file_load",
            "kexec_load",
            "keyctl",
            "migrate_pages",
            "move_pages",
            "nfsservctl",
            "pivot_root",
            "putpmsg",
            "request_key",
            "security",
            "swapoff",
            "swapon",
            "sysfs",
            "tuxcall",
            "uselib",
            "userfaultfd",
            "ustat",
            "vserver",
        ],
    ),
    (
        &["SYS_ADMIN"],
        &[
            "fanotify_init",
            "fsconfig",
            "fsmount",
            "fsopen",
            "fspick",
            "lookup_dcookie",
            "mount",
            "mount_setattr",
            "move_mount",
            "open_tree",
            "quotactl",
            "quotactl_fd",
            "setdomainname",
            "sethostname",
            "setns",
            "umount2",
            "unshare",
        ],
    ),
    (&["SYS_ADMIN", "BPF"], &["bpf"]),
    (&["SYS_ADMIN", "PERFMON"], &["perf_event_open"]),
    (&["SYS_ADMIN", "SYSLOG"], &["syslog"]),
    (&["DAC_READ_SEARCH"], &["open_by_handle_at"]),
    (&["SYS_BOOT"], &["reboot"]),
    (&["SYS_CHROOT"], &["chroot"]),
    (&["SYS_MODULE"], &["delete_module", "finit_module", "init_module"]),
    (&["SYS_NICE"], &["get_mempolicy", "mbind", "set_mempolicy", "set_mempolicy_home_node"]),
    (&["SYS_PACCT"], &["acct"]),
    (&["SYS_PTRACE"], &["kcmp", "pidfd_getfd", "process_madvise"]),
    (&["SYS_RAWIO"], &["ioperm", "iopl"]),
    (&["SYS_TIME"], &["clock_settime", "settimeofday"]),
    (&["SYS_TTY_CONFIG"], &["vhangup"]),
];

/// Namespaces, by the flags of `clone`.
const NEW_NAMESPACES: u64 = (libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWUTS) as u64;

pub fn rules(capabilities: &[u8]) -> BTreeMap<u32, Vec<Rule>> {
    let has = |name: &&str| capabilities.iter().any(|c| CAPABILITIES.get(usize::from(*c)) == Some(name));
    let plain = |action| vec![Rule { action, comparisons: Vec::new() }];
    let mut rules: BTreeMap<u32, Vec<Rule>> = names::calls().map(|(_, number)| (number, plain(ALLOW))).collect();
    let mut set = |name: &str, rule: Vec<Rule>| {
        if let Some(number) = names::number(name) {
            rules.insert(number, rule);
        }
    };
    for (unless, calls) in REFUSED {
        if !unless.iter().any(has) {
            calls.iter().for_each(|call| set(call, plain(REFUSE)));
        }
    }
    let only = |operator, value, mask| {
        let comparison = Comparison { argument: 0, operator, value, mask };
        vec![Rule { action: ALLOW, comparisons: vec![comparison] }, Rule { action: REFUSE, comparisons: Vec::new() }]
    };
    if !has(&"SYS_ADMIN") {
        set("clone", only(Operator::Equal, 0, NEW_NAMESPACES));
        // Its flags are in memory, which filters cannot read; without it C libraries use `clone`.
        set("clone3", plain(DEFAULT));
    }
    // Sockets to the hypervisor, which bypass network policies.
    set("socket", only(Operator::NotEqual, libc::AF_VSOCK as u64, u64::MAX));
    // The domains that programs use: Linux, the same with 32-bit addresses or old system names, and the query.
    let domain = |value| Rule {
        action: ALLOW,
        comparisons: vec![Comparison { argument: 0, operator: Operator::Equal, value, mask: u64::MAX }],
    };
    let mut domains: Vec<Rule> = [0, 8, 0x2_0000, 0x2_0008, 0xffff_ffff].map(domain).into();
    domains.push(Rule { action: REFUSE, comparisons: Vec::new() });
    set("personality", domains);
    rules
}
