//! Which kernel parameters a pod may set (kubelet `sysctl/allowlist.go`).

use k8s_openapi::api::core::v1::PodSpec;
use runtime::sysctl::{Namespace, dotted, namespace};

/// The reason in the status of a refused pod.
pub const FORBIDDEN: &str = "SysctlForbidden";

/// Safe parameters, which affect only the pod, with the oldest kernel that has them per namespace.
const SAFE: [(&str, (u32, u32)); 12] = [
    ("kernel.shm_rmid_forced", (0, 0)),
    ("net.ipv4.ip_local_port_range", (0, 0)),
    ("net.ipv4.tcp_syncookies", (0, 0)),
    ("net.ipv4.ping_group_range", (0, 0)),
    ("net.ipv4.ip_unprivileged_port_start", (0, 0)),
    ("net.ipv4.ip_local_reserved_ports", (3, 16)),
    ("net.ipv4.tcp_keepalive_time", (4, 5)),
    ("net.ipv4.tcp_fin_timeout", (4, 6)),
    ("net.ipv4.tcp_keepalive_intvl", (4, 5)),
    ("net.ipv4.tcp_keepalive_probes", (4, 5)),
    ("net.ipv4.tcp_rmem", (4, 15)),
    ("net.ipv4.tcp_wmem", (4, 15)),
];

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    #[error(
        "sysctl {0:?} must have at most 253 characters and consist of lower case parts that are separated by '.' or '/', with a '*' at most at the end"
    )]
    Pattern(String),
    #[error("the sysctls {0:?} are not known to be namespaced")]
    Prefix(String),
    #[error("the sysctl {0:?} are not known to be namespaced")]
    Name(String),
}

/// The kernel parameters that pods of a node may set.
#[derive(Clone, Debug, Default)]
pub struct Allowlist {
    names: Vec<(String, Namespace)>,
    prefixes: Vec<(String, Namespace)>,
}

impl Allowlist {
    /// The safe parameters of this kernel, and those that match `more`: names, or prefixes that end with `*`
    /// (`--allowed-unsafe-sysctls`). Errors if one of them is not per namespace.
    pub fn new(more: &[String], kernel: &str) -> Result<Self, Error> {
        let running = kernel_version(kernel);
        let safe = SAFE.iter().filter(|(_, since)| running >= *since).map(|(name, _)| (*name).to_owned());
        let mut list = Self { names: Vec::new(), prefixes: Vec::new() };
        for pattern in safe.chain(more.iter().cloned()) {
            if !is_pattern(&pattern) {
                return Err(Error::Pattern(pattern));
            }
            let pattern = dotted(&pattern);
            match pattern.strip_suffix('*') {
                Some(prefix) => {
                    let of = namespace(prefix).ok_or_else(|| Error::Prefix(pattern.clone()))?;
                    list.prefixes.push((prefix.to_owned(), of));
                }
                None => {
                    let of = namespace(&pattern).ok_or_else(|| Error::Name(pattern.clone()))?;
                    list.names.push((pattern, of));
                }
            }
        }
        Ok(list)
    }

    /// The patterns of `--allowed-unsafe-sysctls`.
    pub fn unsafe_patterns(&self) -> Vec<String> {
        let names = self.names.iter().map(|(n, _)| n).filter(|n| SAFE.iter().all(|(safe, _)| safe != n)).cloned();
        names.chain(self.prefixes.iter().map(|(p, _)| format!("{p}*"))).collect()
    }

    /// Why the pod is refused; `None` if it may set its parameters.
    pub fn refuse(&self, spec: &PodSpec) -> Option<String> {
        let sysctls = spec.security_context.as_ref()?.sysctls.as_deref()?;
        let (host_net, host_ipc) = (spec.host_network == Some(true), spec.host_ipc == Some(true));
        sysctls.iter().find_map(|s| self.refuse_one(&dotted(&s.name), host_net, host_ipc))
    }

    fn refuse_one(&self, name: &str, host_net: bool, host_ipc: bool) -> Option<String> {
        let exact = self.names.iter().find(|(n, _)| n == name);
        let found = exact.or_else(|| self.prefixes.iter().find(|(p, _)| name.starts_with(p.as_str())));
        let Some((_, of)) = found else { return Some(format!("forbidden sysctl: {name:?} not allowlisted")) };
        let shared = match of {
            Namespace::Ipc => host_ipc,
            Namespace::Net => host_net,
        };
        shared.then(|| format!("forbidden sysctl: {name:?} not allowed with host {of} enabled"))
    }
}

/// `6.18.5-cloud` → (6, 18); an invalid version is older than all.
fn kernel_version(release: &str) -> (u32, u32) {
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(|p| p.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

/// A name, or a prefix that ends with `*`.
fn is_pattern(text: &str) -> bool {
    let body = text.strip_suffix('*').unwrap_or(text);
    let open = text.ends_with('*');
    let part = |p: &str| {
        let edge = |c: Option<u8>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        let bytes = p.as_bytes();
        edge(bytes.first().copied())
            && edge(bytes.last().copied())
            && bytes.iter().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || b"-_".contains(c))
    };
    let parts: Vec<&str> = body.split(['.', '/']).collect();
    let Some((last, first)) = parts.split_last() else { return false };
    let last_is_right = part(last) || open && (last.is_empty() || part(last.trim_end_matches(['-', '_'])));
    text.len() <= 253 && first.iter().all(|p| part(p)) && last_is_right
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const KERNEL: &str = "6.18.5-cloud";

    fn refused(list: &Allowlist, name: &str, spec: serde_json::Value) -> Option<String> {
        let mut pod = json!({"containers": [], "securityContext": {"sysctls": [{"name": name, "value": "1"}]}});
        pod.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        list.refuse(&serde_json::from_value(pod).unwrap())
    }

    /// Clauses: P05.sysctls
    #[test]
    fn safe_ones_are_allowed_and_others_are_not() {
        let list = Allowlist::new(&[], KERNEL).unwrap();
        for (name, spec, why) in [
            ("net.ipv4.tcp_syncookies", json!({}), None),
            ("net/ipv4/tcp_syncookies", json!({}), None),
            ("kernel.shm_rmid_forced", json!({"hostNetwork": true}), None),
            ("kernel.core_pattern", json!({}), Some("\"kernel.core_pattern\" not allowlisted")),
            ("kernel/core_pattern", json!({}), Some("\"kernel.core_pattern\" not allowlisted")),
            ("kernel.msgmax", json!({}), Some("\"kernel.msgmax\" not allowlisted")),
            (
                "net.ipv4.tcp_syncookies",
                json!({"hostNetwork": true}),
                Some("\"net.ipv4.tcp_syncookies\" not allowed with host net enabled"),
            ),
            (
                "kernel.shm_rmid_forced",
                json!({"hostIPC": true}),
                Some("\"kernel.shm_rmid_forced\" not allowed with host ipc enabled"),
            ),
        ] {
            let why = why.map(|w| format!("forbidden sysctl: {w}"));
            assert_eq!(refused(&list, name, spec.clone()), why, "{name} {spec}");
        }
        let old = Allowlist::new(&[], "4.4.0").unwrap();
        assert!(refused(&old, "net.ipv4.tcp_rmem", json!({})).is_some());
        assert!(refused(&old, "net.ipv4.ip_local_reserved_ports", json!({})).is_none());
    }

    #[test]
    fn unsafe_ones_are_allowed_by_configuration_if_they_have_a_namespace() {
        let own = |l: &[&str]| Allowlist::new(&l.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>(), KERNEL);
        let list = own(&["kernel.msg*", "net.core.somaxconn", "net/ipv4/conf/*"]).unwrap();
        for name in ["kernel.msgmax", "net.core.somaxconn", "net.ipv4.conf.all.rp_filter"] {
            assert_eq!(refused(&list, name, json!({})), None, "{name}");
        }
        assert!(refused(&list, "net.core.rmem_max", json!({})).is_some());
        let wrong = "\"kernel.msgmax\" not allowed with host ipc enabled";
        assert!(refused(&list, "kernel.msgmax", json!({"hostIPC": true})).unwrap().ends_with(wrong));
        for (pattern, error) in [
            ("kernel.*", Error::Prefix("kernel.*".into())),
            ("vm.swappiness", Error::Name("vm.swappiness".into())),
            ("kernel.core_pattern", Error::Name("kernel.core_pattern".into())),
            ("*", Error::Prefix("*".into())),
            ("net.*.x", Error::Pattern("net.*.x".into())),
            ("Net.x", Error::Pattern("Net.x".into())),
            ("net..x", Error::Pattern("net..x".into())),
            ("", Error::Pattern(String::new())),
        ] {
            assert_eq!(own(&[pattern]).unwrap_err(), error, "{pattern}");
        }
    }
}
