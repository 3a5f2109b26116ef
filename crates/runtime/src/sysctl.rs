//! Kernel parameters of pods: which of them belong to a namespace and can be set for one pod.

use std::path::PathBuf;

/// The kind of namespace that a parameter belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespace {
    /// The IPC namespace.
    Ipc,
    /// The network namespace.
    Net,
}

impl std::fmt::Display for Namespace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Ipc => "ipc",
            Self::Net => "net",
        })
    }
}

/// The name with dots between its parts. `net/ipv4/conf/eth0.1/x` is `net.ipv4.conf.eth0/1.x` (the first of the two separators
/// says which one it is, as in sysctl(8)).
pub fn dotted(name: &str) -> String {
    match name.find(['.', '/']) {
        Some(at) if name.as_bytes()[at] == b'/' => {
            let swap = |c| match c {
                '/' => '.',
                '.' => '/',
                c => c,
            };
            name.chars().map(swap).collect()
        }
        _ => name.to_owned(),
    }
}

/// The namespace of a parameter, by its name with dots or the beginning of one; `None` if it affects the whole machine.
pub fn namespace(dotted: &str) -> Option<Namespace> {
    const PREFIXES: [(&str, Namespace); 4] = [
        ("kernel.shm", Namespace::Ipc),
        ("kernel.msg", Namespace::Ipc),
        ("fs.mqueue.", Namespace::Ipc),
        ("net.", Namespace::Net),
    ];
    if dotted == "kernel.sem" {
        return Some(Namespace::Ipc);
    }
    PREFIXES.iter().find(|(prefix, _)| dotted.starts_with(prefix)).map(|(_, namespace)| *namespace)
}

/// The file of a parameter, below `/proc/sys`.
pub(crate) fn path(dotted: &str) -> PathBuf {
    dotted.split('.').map(|part| part.replace('/', ".")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn names_have_one_form_and_a_namespace() {
        for (name, form, file, of) in [
            ("net.ipv4.tcp_syncookies", "net.ipv4.tcp_syncookies", "net/ipv4/tcp_syncookies", Some(Namespace::Net)),
            ("net/ipv4/conf/eth0.1/x", "net.ipv4.conf.eth0/1.x", "net/ipv4/conf/eth0.1/x", Some(Namespace::Net)),
            ("kernel.shm_rmid_forced", "kernel.shm_rmid_forced", "kernel/shm_rmid_forced", Some(Namespace::Ipc)),
            ("kernel/sem", "kernel.sem", "kernel/sem", Some(Namespace::Ipc)),
            ("kernel.core_pattern", "kernel.core_pattern", "kernel/core_pattern", None),
            ("kernel.semaphore", "kernel.semaphore", "kernel/semaphore", None),
            ("vm.swappiness", "vm.swappiness", "vm/swappiness", None),
        ] {
            assert_eq!((dotted(name).as_str(), namespace(&dotted(name))), (form, of), "{name}");
            assert_eq!(path(form), Path::new(file), "{name}");
        }
    }
}
