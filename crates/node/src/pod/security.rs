//! Fields of a pod that affect its isolation: what this node does with each, and which pods it refuses.
//!
//! **Invariant.** No such field is ignored, since admission plugins rely on them (Pod Security relaxes its rules for a pod with a
//! user namespace). Each has a row in [`FIELDS`], which a test compares with the schema. A pod that sets one which this node does
//! not support is refused before it starts, as kubelet's admit handlers do it.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{AppArmorProfile, Container, Pod, PodSpec};

use super::apparmor::DEFAULT;
use super::spec::all_containers;
use super::sysctls::{self, Allowlist};
use crate::options::Options;
use crate::volumes;

/// How a field is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handling {
    /// Implemented by this code.
    Done(&'static str),
    /// A pod with a value other than the default is refused by [`refusal`], under this condition.
    Refused(&'static str),
    /// Ignored, for this reason.
    Nothing(&'static str),
}
use Handling::{Done, Nothing, Refused};

const CONTAINER: &str = "container::security; the runtime";
const WINDOWS: Handling =
    Nothing("of Windows; ignored by upstream's kubelet on Linux; a pod of another system is refused");
const SELINUX: Handling = Refused("only where SELinux is enabled; ignored by upstream's runtimes elsewhere");

/// Fields by path. `containers[]` are containers of every kind; a path includes the fields below it.
pub const FIELDS: &[(&str, Handling)] = &[
    ("automountServiceAccountToken", Done("the admission plugin ServiceAccount, which adds the volume or does not")),
    ("hostIPC", Done("worker::sandbox")),
    ("hostNetwork", Done("worker::sandbox")),
    ("hostPID", Done("worker::sandbox")),
    ("hostUsers", Done("worker::sandbox; a pod is refused where the host cannot do it")),
    ("os", Refused("when it is not Linux")),
    ("resources", Done("resources::pod")),
    ("runtimeClassName", Done("sandbox: the pod waits, this node has no handlers")),
    ("serviceAccount", Nothing("an old name of serviceAccountName")),
    ("serviceAccountName", Done("volumes::token")),
    ("shareProcessNamespace", Done("worker::sandbox")),
    ("volumes", Done("volumes; a pod with a volume of another kind waits with an event")),
    ("securityContext.appArmorProfile", Refused("unless the host has AppArmor and the profile (apparmor::load)")),
    ("securityContext.fsGroup", Done("volumes; container::security")),
    ("securityContext.fsGroupChangePolicy", Nothing("of volumes of storage drivers, which this node does not mount")),
    ("securityContext.runAsGroup", Done(CONTAINER)),
    ("securityContext.runAsNonRoot", Done(CONTAINER)),
    ("securityContext.runAsUser", Done(CONTAINER)),
    ("securityContext.seLinuxChangePolicy", Nothing("of volumes of storage drivers, which this node does not mount")),
    ("securityContext.seLinuxOptions", SELINUX),
    ("securityContext.seccompProfile", Done(CONTAINER)),
    ("securityContext.supplementalGroups", Done(CONTAINER)),
    ("securityContext.supplementalGroupsPolicy", Done(CONTAINER)),
    ("securityContext.sysctls", Refused("unless sysctls::Allowlist has it; then set by the shim")),
    ("securityContext.windowsOptions", WINDOWS),
    ("containers[].resources", Done("resources::container")),
    ("containers[].volumeDevices", Nothing("of persistent volumes, for which a pod waits")),
    ("containers[].securityContext.allowPrivilegeEscalation", Done(CONTAINER)),
    ("containers[].securityContext.appArmorProfile", Refused("unless the host has AppArmor and the profile")),
    ("containers[].securityContext.capabilities", Done(CONTAINER)),
    ("containers[].securityContext.privileged", Done(CONTAINER)),
    (
        "containers[].securityContext.procMount",
        Done("container::security; refused without a user namespace of the pod"),
    ),
    ("containers[].securityContext.readOnlyRootFilesystem", Done(CONTAINER)),
    ("containers[].securityContext.runAsGroup", Done(CONTAINER)),
    ("containers[].securityContext.runAsNonRoot", Done(CONTAINER)),
    ("containers[].securityContext.runAsUser", Done(CONTAINER)),
    ("containers[].securityContext.seLinuxOptions", SELINUX),
    ("containers[].securityContext.seccompProfile", Done(CONTAINER)),
    ("containers[].securityContext.windowsOptions", WINDOWS),
    ("containers[].volumeMounts[].mountPath", Done("volumes::mounts")),
    ("containers[].volumeMounts[].mountPropagation", Done("volumes::mounts; the runtime")),
    ("containers[].volumeMounts[].name", Done("volumes::mounts")),
    ("containers[].volumeMounts[].readOnly", Done("volumes::mounts; the runtime")),
    ("containers[].volumeMounts[].recursiveReadOnly", Done("volumes::mounts; the runtime")),
    ("containers[].volumeMounts[].subPath", Done("volumes::mounts")),
    ("containers[].volumeMounts[].subPathExpr", Done("volumes::mounts")),
];

/// Why this node does not run a pod: reason and message of its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub reason: &'static str,
    pub message: String,
}

/// What the host supports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// The loaded AppArmor profiles; `None` without AppArmor.
    pub apparmor: Option<BTreeSet<String>>,
    pub selinux: bool,
    /// Why pods cannot have user namespaces; `None` if they can.
    pub no_user_namespaces: Option<String>,
    /// The maximum of volumes in memory of a pod; `None` if the kernel's limit of mounts is unknown.
    pub most_in_memory: Option<usize>,
}

impl Host {
    /// Reads the state of the host. Profiles change, so it is read when it is needed. Blocks.
    pub fn read(options: &Options) -> Host {
        let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let enabled = text("/sys/module/apparmor/parameters/enabled").starts_with('Y');
        Host {
            apparmor: enabled.then(|| profiles(&text("/sys/kernel/security/apparmor/profiles"))),
            no_user_namespaces: match &options.network {
                // A pod's user namespace must own its network.
                None => Some("its pods have no network of their own".into()),
                Some(_) => options.host.user_namespaces().err(),
            },
            most_in_memory: text("/proc/sys/fs/mount-max")
                .trim()
                .parse()
                .ok()
                .map(|m| in_memory(m, options.configuration.max_pods(u64::MAX))),
            selinux: std::path::Path::new("/sys/fs/selinux/enforce").exists(),
        }
    }
}

/// Parses the list of loaded profiles, one per line: `name (enforce)`.
fn profiles(text: &str) -> BTreeSet<String> {
    text.lines().filter_map(|l| l.rsplit_once(" (")).map(|(name, _)| name.to_owned()).collect()
}

/// The maximum of volumes of a pod. Containers mount each of them, and the kernel allows 100,000 mounts (`fs.mount-max`).
const MAX_VOLUMES: usize = 512;
/// Volumes in memory of all pods take one of this many parts of the kernel's mounts. A container starts with a copy of the machine's
/// mounts, which then takes 20 ms.
const MOUNTS_SHARE: usize = 8;
/// Volumes in memory that a pod may have on any node.
const MIN_IN_MEMORY: usize = 16;

/// How many volumes in memory each of `pods` pods may have.
fn in_memory(mounts: usize, pods: u32) -> usize {
    (mounts / MOUNTS_SHARE / pods.max(1) as usize).clamp(MIN_IN_MEMORY, MAX_VOLUMES)
}

/// Why this node refuses the pod; `None` if it does not. Reasons and messages are kubelet's where it has them.
pub fn refusal(pod: &Pod, host: &Host, sysctls: &Allowlist) -> Option<Refusal> {
    let spec = pod.spec.as_ref()?;
    let refused = |reason, message: &str| Some(Refusal { reason, message: message.to_owned() });
    if spec.os.as_ref().is_some_and(|os| os.name != "linux") {
        return refused("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS");
    }
    if let (Some(false), Some(why)) = (spec.host_users, &host.no_user_namespaces) {
        let message = format!("Cannot set hostUsers to false: this node does not support user namespaces: {why}");
        return Some(Refusal { reason: "UserNamespacesNotSupported", message });
    }
    let count = spec.volumes.as_ref().map_or(0, Vec::len);
    if count > MAX_VOLUMES {
        let message = format!("Pod has {count} volumes: this node mounts at most {MAX_VOLUMES} for one pod");
        return Some(Refusal { reason: "TooManyVolumes", message });
    }
    let in_memory = volumes::count_in_memory(pod);
    if let Some(most) = host.most_in_memory.filter(|most| in_memory > *most) {
        let message = format!("Pod has {in_memory} volumes in memory: this node mounts at most {most} for one pod");
        return Some(Refusal { reason: "TooManyVolumes", message });
    }
    if let Some(message) = sysctls.refuse(spec) {
        return Some(Refusal { reason: sysctls::FORBIDDEN, message });
    }
    all_containers(spec).into_iter().find_map(|c| container_refusal(spec, &c, host))
}

/// Why this node refuses a container. Ephemeral containers are added while the pod runs.
pub fn container_refusal(spec: &PodSpec, c: &Container, host: &Host) -> Option<Refusal> {
    let own = c.security_context.as_ref();
    if let Err(why) = apparmor(spec, c, host) {
        return Some(Refusal { reason: "AppArmor", message: format!("Cannot enforce AppArmor: {why}") });
    }
    let proc_mount = own.and_then(|s| s.proc_mount.as_deref()).unwrap_or("Default");
    if proc_mount != "Default" && (proc_mount != "Unmasked" || spec.host_users != Some(false)) {
        // Without a user namespace it would expose the host.
        let message = format!("Cannot use procMount {proc_mount}: hostUsers is not false");
        return Some(Refusal { reason: "ProcMountNotSupported", message });
    }
    let of_pod = spec.security_context.as_ref();
    let selinux = own.and_then(|s| s.se_linux_options.as_ref()).or(of_pod.and_then(|s| s.se_linux_options.as_ref()));
    if host.selinux && selinux.is_some() {
        let message = "Cannot enforce SELinux: this node does not set labels of processes".to_owned();
        return Some(Refusal { reason: "SELinuxNotSupported", message });
    }
    None
}

/// The AppArmor profile of a container; `None` leaves it to the host.
pub fn apparmor(spec: &PodSpec, c: &Container, host: &Host) -> Result<Option<String>, String> {
    let of_pod = spec.security_context.as_ref().and_then(|s| s.app_armor_profile.as_ref());
    let own = c.security_context.as_ref().and_then(|s| s.app_armor_profile.as_ref());
    let privileged = c.security_context.as_ref().and_then(|s| s.privileged) == Some(true);
    let default = host.apparmor.as_ref().is_some_and(|loaded| loaded.contains(DEFAULT));
    let Some(AppArmorProfile { type_, localhost_profile }) = own.or(of_pod) else {
        // As CRI runtimes do it.
        return Ok((default && !privileged).then(|| DEFAULT.to_owned()));
    };
    match (type_.as_str(), &host.apparmor) {
        ("Unconfined", None) => Ok(None),
        ("Unconfined", Some(_)) => Ok(Some("unconfined".into())),
        (_, None) => Err("AppArmor is not enabled on the host".into()),
        ("Localhost", Some(loaded)) => {
            let name = localhost_profile.clone().unwrap_or_default();
            if loaded.contains(&name) { Ok(Some(name)) } else { Err(format!("profile {name:?} is not loaded")) }
        }
        ("RuntimeDefault", Some(_)) if privileged => Ok(None),
        ("RuntimeDefault", Some(_)) if default => Ok(Some(DEFAULT.to_owned())),
        ("RuntimeDefault", Some(_)) => {
            Err(format!("the profile {DEFAULT:?} is not loaded (is apparmor_parser installed?)"))
        }
        (other, Some(_)) => Err(format!("this node has no profile of type {other:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use schema::Schema;
    use serde_json::{Value, json};

    /// Fields of pods and containers that do not affect isolation.
    const OTHERS: &[&str] = &[
        "activeDeadlineSeconds",
        "affinity",
        "dnsConfig",
        "dnsPolicy",
        "enableServiceLinks",
        "hostAliases",
        "hostname",
        "hostnameOverride",
        "imagePullSecrets",
        "nodeName",
        "nodeSelector",
        "overhead",
        "preemptionPolicy",
        "priority",
        "priorityClassName",
        "readinessGates",
        "resourceClaims",
        "restartPolicy",
        "schedulerName",
        "schedulingGates",
        "schedulingGroup",
        "setHostnameAsFQDN",
        "subdomain",
        "terminationGracePeriodSeconds",
        "tolerations",
        "topologySpreadConstraints",
        "containers[].args",
        "containers[].command",
        "containers[].env",
        "containers[].envFrom",
        "containers[].image",
        "containers[].imagePullPolicy",
        "containers[].lifecycle",
        "containers[].livenessProbe",
        "containers[].name",
        "containers[].ports",
        "containers[].readinessProbe",
        "containers[].resizePolicy",
        "containers[].restartPolicy",
        "containers[].restartPolicyRules",
        "containers[].startupProbe",
        "containers[].stdin",
        "containers[].stdinOnce",
        "containers[].targetContainerName",
        "containers[].terminationMessagePath",
        "containers[].terminationMessagePolicy",
        "containers[].tty",
        "containers[].workingDir",
    ];
    /// Objects whose fields have rows of their own.
    const PARENTS: &[&str] =
        &["containers[]", "securityContext", "containers[].securityContext", "containers[].volumeMounts[]"];

    fn paths(schema: &Schema, at: &str, out: &mut BTreeSet<String>) {
        for field in &schema.fields {
            let of_items = field.schema.get().items.as_ref();
            let name = match &*field.name {
                "initContainers" | "ephemeralContainers" => "containers",
                name => name,
            };
            let mut path = if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") };
            let mut inner = field.schema.get();
            if let Some(items) = of_items
                && PARENTS.contains(&format!("{path}[]").as_str())
            {
                path += "[]";
                inner = items.get();
            }
            if PARENTS.contains(&path.as_str()) {
                paths(inner, &path, out);
            } else {
                out.insert(path);
            }
        }
    }

    /// Each field of a new version needs a decision.
    #[test]
    fn every_field_of_the_schema_is_in_the_table() {
        let spec = kinds::catalog().definitions.get("io.k8s.api.core.v1.PodSpec").unwrap();
        let mut in_schema = BTreeSet::new();
        paths(spec, "", &mut in_schema);
        assert!(in_schema.contains("containers[].securityContext.procMount"), "{in_schema:?}");
        let table: Vec<&str> = FIELDS.iter().map(|(path, _)| *path).chain(OTHERS.iter().copied()).collect();
        let known: BTreeSet<String> = table.iter().map(|p| (*p).to_owned()).collect();
        assert_eq!(known.len(), table.len(), "a field is in two rows");
        let missing: Vec<_> = in_schema.difference(&known).collect();
        let gone: Vec<_> = known.difference(&in_schema).collect();
        assert!(missing.is_empty() && gone.is_empty(), "not in the table: {missing:?}; not in the schema: {gone:?}");
    }

    fn check(spec: Value, host: &Host) -> Option<(&'static str, String)> {
        let mut pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}});
        pod["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        refusal(&serde_json::from_value(pod).unwrap(), host, &Allowlist::default()).map(|r| (r.reason, r.message))
    }

    fn with_container(context: Value) -> Value {
        json!({"containers": [{"name": "c", "securityContext": context}]})
    }

    /// Eleven pods with 10,000 volumes each exhausted the mounts of the machine.
    #[test]
    fn pods_with_very_many_volumes_are_refused() {
        let volumes = |n: usize| -> Value {
            (0..n).map(|i| json!({"name": format!("v{i}"), "emptyDir": {"medium": "Memory"}})).collect()
        };
        assert_eq!(check(json!({"volumes": volumes(512)}), &Host::default()), None);
        let message = "Pod has 513 volumes: this node mounts at most 512 for one pod".to_owned();
        assert_eq!(check(json!({"volumes": volumes(513)}), &Host::default()), Some(("TooManyVolumes", message)));
    }

    /// A full node leaves the machine most of its mounts.
    #[test]
    fn volumes_in_memory_leave_the_machine_its_mounts() {
        for (mounts, pods, most) in [(100_000, 110, 113), (100_000, 1000, 16), (100_000, 10, 512), (0, 0, 16)] {
            assert_eq!(in_memory(mounts, pods), most, "{mounts} mounts, {pods} pods");
        }
        let host = Host { most_in_memory: Some(4), ..Host::default() };
        let volumes = |more: Value| {
            let memory = ["emptyDir", "secret", "downwardAPI", "projected"];
            let sources = memory.map(|kind| match kind {
                "emptyDir" => json!({"name": kind, kind: {"medium": "Memory"}}),
                "projected" => json!({"name": kind, kind: {"sources": []}}),
                _ => json!({"name": kind, kind: {}}),
            });
            let plain = [json!({"name": "cm", "configMap": {}}), json!({"name": "e", "emptyDir": {}})];
            json!({"volumes": sources.into_iter().chain(plain).chain(more.as_array().unwrap().clone()).collect::<Value>()})
        };
        assert_eq!(check(volumes(json!([])), &host), None);
        let message = "Pod has 5 volumes in memory: this node mounts at most 4 for one pod".to_owned();
        let one_more = json!([{"name": "more", "secret": {}}]);
        assert_eq!(check(volumes(one_more), &host), Some(("TooManyVolumes", message)));
    }

    /// A value of every refused row is refused, and its default is not.
    #[test]
    fn what_is_not_carried_out_is_refused() {
        let host = Host { selinux: true, ..Host::default() };
        let profile = json!({"type": "RuntimeDefault"});
        let cases = [
            ("os", json!({"os": {"name": "windows"}}), json!({"os": {"name": "linux"}}), "PodOSNotSupported"),
            (
                "securityContext.appArmorProfile",
                json!({"securityContext": {"appArmorProfile": profile}}),
                json!({"securityContext": {"appArmorProfile": {"type": "Unconfined"}}}),
                "AppArmor",
            ),
            (
                "securityContext.sysctls",
                json!({"securityContext": {"sysctls": [{"name": "kernel.core_pattern", "value": "x"}]}}),
                json!({"securityContext": {"sysctls": []}}),
                sysctls::FORBIDDEN,
            ),
            (
                "securityContext.seLinuxOptions",
                json!({"securityContext": {"seLinuxOptions": {"type": "t"}}}),
                json!({"securityContext": {}}),
                "SELinuxNotSupported",
            ),
            (
                "containers[].securityContext.appArmorProfile",
                with_container(json!({"appArmorProfile": {"type": "Localhost", "localhostProfile": "x"}})),
                with_container(json!({"appArmorProfile": {"type": "Unconfined"}})),
                "AppArmor",
            ),
            (
                "containers[].securityContext.seLinuxOptions",
                with_container(json!({"seLinuxOptions": {"level": "s0"}})),
                with_container(json!({})),
                "SELinuxNotSupported",
            ),
        ];
        let refused = FIELDS.iter().filter(|(_, h)| matches!(h, Refused(_))).map(|(path, _)| *path);
        assert_eq!(refused.collect::<BTreeSet<_>>(), cases.iter().map(|c| c.0).collect());
        for (path, bad, good, reason) in cases {
            assert_eq!(check(bad, &host).map(|r| r.0), Some(reason), "{path}");
            assert_eq!(check(good, &host), None, "{path}");
        }
        // Messages of kubelet, for containers of every kind.
        for kind in ["initContainers", "ephemeralContainers"] {
            let spec = json!({kind: [{"name": "x", "securityContext": {"appArmorProfile": profile}}]});
            let message = "Cannot enforce AppArmor: AppArmor is not enabled on the host";
            assert_eq!(check(spec, &host), Some(("AppArmor", message.into())), "{kind}");
        }
        let selinux = json!({"securityContext": {"seLinuxOptions": {"type": "t"}}});
        assert_eq!(check(selinux, &Host::default()), None, "ignored where there is no SELinux");
    }

    #[test]
    fn user_namespaces_are_those_of_the_host() {
        let able = Host::default();
        let unable = Host { no_user_namespaces: Some("none can be made".into()), ..Host::default() };
        let own = json!({"hostUsers": false});
        let message = "Cannot set hostUsers to false: this node does not support user namespaces: none can be made";
        assert_eq!(check(own.clone(), &able), None);
        assert_eq!(check(own, &unable), Some(("UserNamespacesNotSupported", message.into())));
        assert_eq!(check(json!({"hostUsers": true}), &unable), None);
        for (host_users, mount, refused) in [
            (json!(null), "Default", false),
            (json!(null), "Unmasked", true),
            (json!(true), "Unmasked", true),
            (json!(false), "Unmasked", false),
            (json!(false), "Other", true),
        ] {
            let mut spec = with_container(json!({"procMount": mount}));
            spec["hostUsers"] = host_users.clone();
            let reason = refused.then_some("ProcMountNotSupported");
            assert_eq!(check(spec, &able).map(|r| r.0), reason, "{host_users} {mount}");
        }
    }

    #[test]
    fn profiles_are_those_of_the_host() {
        let with_default = profiles("kemudi-default (enforce)\nother (enforce)\n");
        let loaded = profiles("k8s-nginx (enforce)\n/usr/bin/man (complain)\n:ns://a b (kill)\n");
        assert_eq!(loaded.iter().map(String::as_str).collect::<Vec<_>>(), ["/usr/bin/man", ":ns://a b", "k8s-nginx"]);
        let host = Host { apparmor: Some(loaded), ..Host::default() };
        let decide = |of_pod: Value, own: Value| {
            let spec = json!({"containers": [], "securityContext": {"appArmorProfile": of_pod}});
            let container = json!({"name": "c", "securityContext": {"appArmorProfile": own}});
            apparmor(&serde_json::from_value(spec).unwrap(), &serde_json::from_value(container).unwrap(), &host)
        };
        let local = |name: &str| json!({"type": "Localhost", "localhostProfile": name});
        assert_eq!(decide(Value::Null, Value::Null), Ok(None));
        assert_eq!(decide(local("k8s-nginx"), Value::Null), Ok(Some("k8s-nginx".into())));
        assert_eq!(decide(local("k8s-nginx"), json!({"type": "Unconfined"})), Ok(Some("unconfined".into())));
        assert_eq!(decide(local("k8s-nginx"), local("other")), Err("profile \"other\" is not loaded".into()));
        assert!(decide(Value::Null, json!({"type": "RuntimeDefault"})).is_err(), "the default profile is not loaded");
        let host = Host { apparmor: Some(with_default), ..Host::default() };
        let decide = |profile: Value, privileged: bool| {
            let context = json!({"appArmorProfile": profile, "privileged": privileged});
            let container = json!({"name": "c", "securityContext": context});
            apparmor(&PodSpec::default(), &serde_json::from_value(container).unwrap(), &host)
        };
        for (profile, privileged, name) in [
            (Value::Null, false, Some("kemudi-default")),
            (Value::Null, true, None),
            (json!({"type": "RuntimeDefault"}), false, Some("kemudi-default")),
            (json!({"type": "RuntimeDefault"}), true, None),
            (json!({"type": "Unconfined"}), false, Some("unconfined")),
            (local("other"), true, Some("other")),
        ] {
            assert_eq!(decide(profile.clone(), privileged), Ok(name.map(str::to_owned)), "{profile} {privileged}");
        }
        let plain = serde_json::from_value(json!({"name": "c"})).unwrap();
        assert_eq!(apparmor(&PodSpec::default(), &plain, &Host::default()), Ok(None), "a host without AppArmor");
    }
}
