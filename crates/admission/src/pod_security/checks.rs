//! The checks of each level, with the minor versions they apply to. Their messages are upstream's.

use super::policy::{Level, LevelVersion};
use meta::Value;
use std::collections::BTreeSet;

/// The pod metadata and spec that checks evaluate.
pub(super) struct Pod<'a> {
    metadata: &'a Value,
    spec: &'a Value,
}

/// A violation of a level.
pub(super) struct Violation {
    pub reason: String,
    pub detail: String,
}

static NONE: Value = Value::Null;

impl<'a> Pod<'a> {
    pub fn new(metadata: Option<&'a Value>, spec: Option<&'a Value>) -> Self {
        Self { metadata: metadata.unwrap_or(&NONE), spec: spec.unwrap_or(&NONE) }
    }

    /// All containers, init containers first, as messages list them.
    fn containers(&self) -> impl Iterator<Item = &'a Value> {
        let spec = self.spec;
        ["initContainers", "containers", "ephemeralContainers"]
            .into_iter()
            .flat_map(|l| spec[l].as_array().into_iter().flatten())
    }

    fn named(&self, bad: impl Fn(&Value) -> bool) -> Vec<&'a str> {
        self.containers().filter(|c| bad(c)).map(|c| c["name"].as_str().unwrap_or_default()).collect()
    }

    fn security(&self) -> &'a Value {
        &self.spec["securityContext"]
    }

    fn is_windows(&self) -> bool {
        self.spec["os"]["name"] == "windows"
    }

    /// The pod runs in its own user namespace.
    fn is_remapped(&self) -> bool {
        self.spec["hostUsers"] == false
    }
}

type Run = fn(&Pod<'_>, u32) -> Option<Violation>;

struct Check {
    level: Level,
    /// The first minor version with this check.
    since: u32,
    /// At the restricted level, a stricter check replaces this one from this version on.
    instead: Option<u32>,
    run: Run,
}

const fn baseline(since: u32, run: Run) -> Check {
    Check { level: Level::Baseline, since, instead: None, run }
}

const fn overridden(run: Run, from: u32) -> Check {
    Check { level: Level::Baseline, since: 0, instead: Some(from), run }
}

const fn restricted(since: u32, run: Run) -> Check {
    Check { level: Level::Restricted, since, instead: None, run }
}

/// Sorted by identifier, baseline first, as messages list them.
const ALL: &[Check] = &[
    baseline(0, app_armor),
    overridden(capabilities_baseline, 22),
    baseline(0, host_namespaces),
    overridden(host_path_volumes, 0),
    baseline(0, host_ports),
    baseline(34, host_probes),
    baseline(0, privileged),
    overridden(proc_mount_baseline, 35),
    baseline(0, selinux),
    overridden(seccomp_baseline, 19),
    baseline(0, sysctls),
    baseline(0, windows_host_process),
    restricted(8, privilege_escalation),
    restricted(22, capabilities_restricted),
    restricted(35, proc_mount),
    restricted(0, volumes),
    restricted(0, run_as_non_root),
    restricted(23, run_as_user),
    restricted(19, seccomp_restricted),
];

/// The violations of a level in a version.
pub(super) fn violations(policy: &LevelVersion, pod: &Pod<'_>) -> Vec<Violation> {
    let minor = policy.minor();
    let full = policy.level == Level::Restricted;
    ALL.iter()
        .filter(|c| c.level <= policy.level && !policy.is_privileged() && c.since <= minor)
        .filter(|c| !(full && c.instead.is_some_and(|from| from <= minor)))
        .filter_map(|c| (c.run)(pod, minor))
        .collect()
}

fn found(reason: &str, detail: String) -> Option<Violation> {
    Some(Violation { reason: reason.to_owned(), detail })
}

fn plural<'a>(n: usize, singular: &'a str, plural_form: &'a str) -> &'a str {
    if n == 1 { singular } else { plural_form }
}

fn quoted<T: AsRef<str>>(items: impl IntoIterator<Item = T>) -> String {
    let all: Vec<String> = items.into_iter().map(|i| format!("\"{}\"", i.as_ref())).collect();
    all.join(", ")
}

/// `container "a"`, `containers "a", "b"`.
fn these(names: &[&str]) -> String {
    format!("{} {}", plural(names.len(), "container", "containers"), quoted(names))
}

/// Names what violates a check: the pod, containers, or both.
fn setters(pod: bool, containers: &[&str]) -> Option<String> {
    match (pod, containers) {
        (false, []) => None,
        (true, []) => Some("pod".to_owned()),
        (false, c) => Some(these(c)),
        (true, c) => Some(format!("pod and {}", these(c))),
    }
}

fn strings(v: &Value) -> impl Iterator<Item = &str> {
    v.as_array().into_iter().flatten().filter_map(Value::as_str)
}

fn app_armor(pod: &Pod<'_>, _: u32) -> Option<Violation> {
    let bad = |s: &Value| {
        let profile = s.get("appArmorProfile").filter(|p| p.is_object())?;
        let kind = profile["type"].as_str().unwrap_or_default();
        (!matches!(kind, "RuntimeDefault" | "Localhost")).then(|| kind.to_owned())
    };
    let of_pod = bad(pod.security());
    let names = pod.named(|c| bad(&c["securityContext"]).is_some());
    let kinds: BTreeSet<String> =
        of_pod.iter().cloned().chain(pod.containers().filter_map(|c| bad(&c["securityContext"]))).collect();
    let mut values: Vec<String> = kinds.into_iter().collect();
    let mut annotations: Vec<String> = Vec::new();
    for (k, v) in pod.metadata["annotations"].as_object().into_iter().flatten() {
        let v = v.as_str().unwrap_or_default();
        let fine = v.is_empty() || v == "runtime/default" || v.starts_with("localhost/");
        if k.starts_with("container.apparmor.security.beta.kubernetes.io/") && !fine {
            annotations.push(format!("{k}={v:?}"));
        }
    }
    annotations.sort();
    let mut setters: Vec<String> = setters(of_pod.is_some(), &names).into_iter().collect();
    if !annotations.is_empty() {
        setters.push(plural(annotations.len(), "annotation", "annotations").to_owned());
    }
    values.extend(annotations);
    if setters.is_empty() {
        return None;
    }
    let reason = plural(values.len(), "forbidden AppArmor profile", "forbidden AppArmor profiles");
    found(reason, format!("{} must not set AppArmor profile type to {}", setters.join(" and "), quoted(values)))
}

const DEFAULT_CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// The containers that add disallowed capabilities, and those capabilities.
fn adding<'a>(pod: &Pod<'a>, allowed: &[&str]) -> (Vec<&'a str>, BTreeSet<&'a str>) {
    let bad = |c: &'a Value| strings(&c["securityContext"]["capabilities"]["add"]).filter(|x| !allowed.contains(x));
    let all = pod.containers().flat_map(bad).collect();
    let names = pod.containers().filter(|c| bad(c).next().is_some());
    (names.map(|c| c["name"].as_str().unwrap_or_default()).collect(), all)
}

fn must_not_add(names: &[&str], what: BTreeSet<&str>) -> String {
    format!("{} must not include {} in securityContext.capabilities.add", these(names), quoted(what))
}

fn capabilities_baseline(pod: &Pod<'_>, _: u32) -> Option<Violation> {
    let (names, what) = adding(pod, &DEFAULT_CAPABILITIES);
    if names.is_empty() { None } else { found("non-default capabilities", must_not_add(&names, what)) }
}

fn capabilities_restricted(pod: &Pod<'_>, minor: u32) -> Option<Violation> {
    if minor >= 25 && pod.is_windows() {
        return None;
    }
    let mut details = Vec::new();
    let keeping = pod.named(|c| !strings(&c["securityContext"]["capabilities"]["drop"]).any(|d| d == "ALL"));
    if !keeping.is_empty() {
        details.push(format!("{} must set securityContext.capabilities.drop=[\"ALL\"]", these(&keeping)));
    }
    let (names, what) = adding(pod, &["NET_BIND_SERVICE"]);
    if !names.is_empty() {
        details.push(must_not_add(&names, what));
    }
    if details.is_empty() { None } else { found("unrestricted capabilities", details.join("; ")) }
}

fn host_namespaces(pod: &Pod<'_>, _: u32) -> Option<Violation> {
    let shared: Vec<String> = ["hostNetwork", "hostPID", "hostIPC"]
        .iter()
        .filter(|f| pod.spec[**f] == true)
        .map(|f| format!("{f}=true"))
        .collect();
    if shared.is_empty() { None } else { found("host namespaces", shared.join(", ")) }
}

fn host_path_volumes(pod: &Pod<'_>, _: u32) -> Option<Violation> {
    let all = pod.spec["volumes"].as_array().into_iter().flatten();
    let names: Vec<&str> =
        all.filter(|v| v["hostPath"].is_object()).map(|v| v["name"].as_str().unwrap_or_default()).collect();
    if names.is_empty() {
        return None;
    }
    found("hostPath volumes", format!("{} {}", plural(names.len(), "volume", "volumes"), quoted(names)))
}

fn host_ports(pod: &Pod<'_>, _: u32) -> Option<Violation> {
    let host_ports = |c: &Value| -> Vec<String> {
        let ports = c["ports"].as_array().into_iter().flatten().filter_map(|p| p["hostPort"].as_i64());
        ports.filter(|p| *p != 0).map(|p| p.to_string()).collect()
    };
    let names = pod.named(|c| !host_ports(c).is_empty());
    let ports: BTreeSet<String> = pod.containers().flat_map(host_ports).collect();
    if names.is_empty() {
        return None;
    }
    let (uses, what) = (plural(names.len(), "uses", "use"), plural(ports.len(), "hostPort", "hostPorts"));
    let ports: Vec<String> = ports.into_iter().collect();
    found("hostPort", format!("{} {uses} {what} {}", these(&names), ports.join(", ")))
}

fn host_probes(pod: &Pod<'_>, _: u32) -> Option<Violation> {
    let probe_hosts = |c: &Value| -> Vec<String> {
        let lifecycle = &c["lifecycle"];
        let all = [
            &c["livenessProbe"],
            &c["readinessProbe"],
            &c["startupProbe"],
            &lifecycle["postStart"],
            &lifecycle["preStop"],
        ];
        let hosts = all.into_iter().flat_map(|h| [h["httpGet"]["host"].as_str(), h["tcpSocket"]["host"].as_str()]);
        hosts.flatten().filter(|h| !h.is_empty()).map(str::to_owned).collect()
    };
    let mut names = pod.named(|c| !probe_hosts(c).is_empty());
    names.sort_unstable();
    let hosts: BTreeSet<String> = pod.containers().flat_map(probe_hosts).collect();
    if names.is_empty() {
        return None;
    }
    let uses = plural(names.len(), "uses", "use");
    let what = plural(hosts.len(), "probe or lifecycle host", "probe or lifecycle hosts");
    found("probe or lifecycle host", format!("{} {uses} {what} {}", these(&names), quoted(hosts)))
}

fn privileged(pod: &Pod<'_>, _: u32) -> Option<Violation> {
    let names = pod.named(|c| c["securityContext"]["privileged"] == true);
    if names.is_empty() {
        return None;
    }
    found("privileged", format!("{} must not set securityContext.privileged=true", these(&names)))
}

fn proc_mount(pod: &Pod<'_>, _: u32) -> Option<Violation> {
    let proc_mount = |c: &Value| {
        let m = c["securityContext"]["procMount"].as_str()?;
        (m != "Default").then(|| m.to_owned())
    };
    let names = pod.named(|c| proc_mount(c).is_some());
    let kinds: BTreeSet<String> = pod.containers().filter_map(proc_mount).collect();
    if names.is_empty() {
        return None;
    }
    found("procMount", format!("{} must not set securityContext.procMount to {}", these(&names), quoted(kinds)))
}

fn proc_mount_baseline(pod: &Pod<'_>, minor: u32) -> Option<Violation> {
    if minor >= 35 && pod.is_remapped() { None } else { proc_mount(pod, minor) }
}

fn selinux(pod: &Pod<'_>, minor: u32) -> Option<Violation> {
    let allowed: &[&str] = if minor >= 31 {
        &["", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"]
    } else {
        &["", "container_t", "container_init_t", "container_kvm_t"]
    };
    let text = |s: &Value, k: &str| s["seLinuxOptions"][k].as_str().unwrap_or_default().to_owned();
    let bad = |s: &Value| {
        !allowed.contains(&text(s, "type").as_str()) || !text(s, "user").is_empty() || !text(s, "role").is_empty()
    };
    let names = pod.named(|c| bad(&c["securityContext"]));
    let subject = setters(bad(pod.security()), &names)?;
    let contexts: Vec<&Value> =
        std::iter::once(pod.security()).chain(pod.containers().map(|c| &c["securityContext"])).collect();
    let types: BTreeSet<String> =
        contexts.iter().map(|s| text(s, "type")).filter(|t| !allowed.contains(&t.as_str())).collect();
    let mut data = Vec::new();
    if !types.is_empty() {
        data.push(format!("{} {}", plural(types.len(), "type", "types"), quoted(types)));
    }
    for k in ["user", "role"] {
        if contexts.iter().any(|s| !text(s, k).is_empty()) {
            data.push(format!("{k} may not be set"));
        }
    }
    found("seLinuxOptions", format!("{subject} set forbidden securityContext.seLinuxOptions: {}", data.join("; ")))
}

/// The profile type, if set, and whether it is allowed.
fn profile(s: &Value) -> Option<(&str, bool)> {
    let kind = s.get("seccompProfile").filter(|p| p.is_object())?["type"].as_str().unwrap_or_default();
    Some((kind, matches!(kind, "RuntimeDefault" | "Localhost")))
}

/// The containers that set a disallowed profile.
fn bad_profiles(pod: &Pod<'_>) -> Option<Violation> {
    let bad = |s: &Value| profile(s).filter(|(_, fine)| !fine).map(|(kind, _)| kind.to_owned());
    let of_pod = bad(pod.security());
    let names = pod.named(|c| bad(&c["securityContext"]).is_some());
    let subject = setters(of_pod.is_some(), &names)?;
    let kinds: BTreeSet<String> =
        of_pod.into_iter().chain(pod.containers().filter_map(|c| bad(&c["securityContext"]))).collect();
    found("seccompProfile", format!("{subject} must not set securityContext.seccompProfile.type to {}", quoted(kinds)))
}

fn seccomp_baseline(pod: &Pod<'_>, minor: u32) -> Option<Violation> {
    if minor >= 19 {
        return bad_profiles(pod);
    }
    // Annotations that preceded the field.
    let fine = |v: &str| matches!(v, "runtime/default" | "docker/default") || v.starts_with("localhost/");
    let own = pod
        .containers()
        .map(|c| format!("container.seccomp.security.alpha.kubernetes.io/{}", c["name"].as_str().unwrap_or_default()));
    let keys = std::iter::once("seccomp.security.alpha.kubernetes.io/pod".to_owned()).chain(own);
    let value = |k: &str| pod.metadata["annotations"][k].as_str();
    let bad: BTreeSet<String> =
        keys.filter_map(|k| value(&k).filter(|v| !fine(v)).map(|v| format!("{k}={v:?}"))).collect();
    if bad.is_empty() {
        return None;
    }
    let what = plural(bad.len(), "annotation", "annotations");
    found("seccompProfile", format!("forbidden {what} {}", bad.into_iter().collect::<Vec<_>>().join(", ")))
}

fn seccomp_restricted(pod: &Pod<'_>, minor: u32) -> Option<Violation> {
    if minor >= 25 && pod.is_windows() {
        return None;
    }
    let bad = bad_profiles(pod);
    if bad.is_some() || profile(pod.security()).is_some() {
        return bad;
    }
    let names = pod.named(|c| profile(&c["securityContext"]).is_none());
    if names.is_empty() {
        return None;
    }
    let must = "must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"";
    found("seccompProfile", format!("pod or {} {must}", these(&names)))
}

/// Safe sysctls, each with the minor version that first allows it.
const SYSCTLS: &[(&str, u32)] = &[
    ("kernel.shm_rmid_forced", 0),
    ("net.ipv4.ip_local_port_range", 0),
    ("net.ipv4.tcp_syncookies", 0),
    ("net.ipv4.ping_group_range", 0),
    ("net.ipv4.ip_unprivileged_port_start", 0),
    ("net.ipv4.ip_local_reserved_ports", 27),
    ("net.ipv4.tcp_keepalive_time", 29),
    ("net.ipv4.tcp_fin_timeout", 29),
    ("net.ipv4.tcp_keepalive_intvl", 29),
    ("net.ipv4.tcp_keepalive_probes", 29),
    ("net.ipv4.tcp_rmem", 32),
    ("net.ipv4.tcp_wmem", 32),
];

fn sysctls(pod: &Pod<'_>, minor: u32) -> Option<Violation> {
    let all = pod.security()["sysctls"].as_array().into_iter().flatten();
    let names = all.map(|s| s["name"].as_str().unwrap_or_default());
    let bad: Vec<&str> = names.filter(|n| !SYSCTLS.iter().any(|(s, since)| s == n && *since <= minor)).collect();
    if bad.is_empty() { None } else { found("forbidden sysctls", bad.join(", ")) }
}

fn windows_host_process(pod: &Pod<'_>, _: u32) -> Option<Violation> {
    let bad = |s: &Value| s["windowsOptions"]["hostProcess"] == true;
    let subject = setters(bad(pod.security()), &pod.named(|c| bad(&c["securityContext"])))?;
    found("hostProcess", format!("{subject} must not set securityContext.windowsOptions.hostProcess=true"))
}

fn privilege_escalation(pod: &Pod<'_>, minor: u32) -> Option<Violation> {
    if minor >= 25 && pod.is_windows() {
        return None;
    }
    let names = pod.named(|c| c["securityContext"]["allowPrivilegeEscalation"] != false);
    if names.is_empty() {
        return None;
    }
    let detail = format!("{} must set securityContext.allowPrivilegeEscalation=false", these(&names));
    found("allowPrivilegeEscalation != false", detail)
}

const VOLUMES: [&str; 9] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

fn volumes(pod: &Pod<'_>, _: u32) -> Option<Violation> {
    let all = pod.spec["volumes"].as_array().into_iter().flatten();
    let source = |v: &Value| -> Option<String> {
        let mut sources = v.as_object()?.iter().filter(|(k, v)| *k != "name" && v.is_object());
        sources.next().map(|(k, _)| k.clone())
    };
    let (mut names, mut kinds) = (Vec::new(), BTreeSet::new());
    for v in all {
        let kind = source(v).unwrap_or_else(|| "unknown".into());
        if !VOLUMES.contains(&kind.as_str()) {
            names.push(v["name"].as_str().unwrap_or_default());
            kinds.insert(kind);
        }
    }
    if names.is_empty() {
        return None;
    }
    let (noun, uses) = (plural(names.len(), "volume", "volumes"), plural(names.len(), "uses", "use"));
    let what = plural(kinds.len(), "restricted volume type", "restricted volume types");
    found("restricted volume types", format!("{noun} {} {uses} {what} {}", quoted(names), quoted(kinds)))
}

fn run_as_non_root(pod: &Pod<'_>, minor: u32) -> Option<Violation> {
    if minor >= 35 && pod.is_remapped() {
        return None;
    }
    const REASON: &str = "runAsNonRoot != true";
    let run_as_non_root = |s: &Value| s["runAsNonRoot"].as_bool();
    let pod_level = run_as_non_root(pod.security());
    let explicit = pod.named(|c| run_as_non_root(&c["securityContext"]) == Some(false));
    if let Some(subject) = setters(pod_level == Some(false), &explicit) {
        return found(REASON, format!("{subject} must not set securityContext.runAsNonRoot=false"));
    }
    let silent = pod.named(|c| run_as_non_root(&c["securityContext"]).is_none());
    if pod_level == Some(true) || silent.is_empty() {
        return None;
    }
    found(REASON, format!("pod or {} must set securityContext.runAsNonRoot=true", these(&silent)))
}

fn run_as_user(pod: &Pod<'_>, minor: u32) -> Option<Violation> {
    if minor >= 35 && pod.is_remapped() {
        return None;
    }
    let root = |s: &Value| s["runAsUser"] == 0;
    let subject = setters(root(pod.security()), &pod.named(|c| root(&c["securityContext"])))?;
    found("runAsUser=0", format!("{subject} must not set runAsUser=0"))
}
