//! Capabilities of the process, checked before the start.

/// A capability that containers need: its number in Linux, its name, and what it is needed for.
const NEEDED: [(u32, &str, &str); 8] = [
    (21, "CAP_SYS_ADMIN", "namespaces, mounts and root directories of containers"),
    (12, "CAP_NET_ADMIN", "the pod network, and the packet rules of services"),
    (0, "CAP_CHOWN", "unpacking images, and volumes of other users"),
    (1, "CAP_DAC_OVERRIDE", "unpacking images, and control groups"),
    (7, "CAP_SETUID", "containers that run as another user"),
    (6, "CAP_SETGID", "containers that run in another group"),
    (5, "CAP_KILL", "stopping containers of other users"),
    (18, "CAP_SYS_CHROOT", "entering the root directories of containers"),
];

/// The missing capabilities and what they are needed for. `status` is the text of `/proc/self/status`.
pub fn missing(status: &str) -> Vec<(&'static str, &'static str)> {
    let effective = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    let effective = effective.and_then(|v| u64::from_str_radix(v.trim(), 16).ok()).unwrap_or(0);
    NEEDED.iter().filter(|(bit, ..)| effective >> bit & 1 == 0).map(|(_, name, what)| (*name, *what)).collect()
}

/// The missing capabilities of this process.
pub fn of_this_process() -> Vec<(&'static str, &'static str)> {
    missing(&std::fs::read_to_string("/proc/self/status").unwrap_or_default())
}

/// Formats missing capabilities as lines of a message.
pub fn listed(missing: &[(&str, &str)]) -> String {
    missing.iter().map(|(name, what)| format!("\n  {name} is missing; it is needed for {what}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_capabilities_are_listed() {
        let check = |caps: &str, want: &[&str]| {
            let have: Vec<_> =
                missing(&format!("Name:\tx\nCapEff:\t{caps}\nSeccomp:\t0\n")).iter().map(|m| m.0).collect();
            assert_eq!(have, want, "{caps}");
        };
        check("000001ffffffffff", &[]);
        check("000001ffffffefff", &["CAP_NET_ADMIN"]);
        check("000001ffffdfefff", &["CAP_SYS_ADMIN", "CAP_NET_ADMIN"]);
        let all: Vec<_> = NEEDED.iter().map(|n| n.1).collect();
        check("0000000000000000", &all);
        assert_eq!(missing("").len(), NEEDED.len());
    }
}
