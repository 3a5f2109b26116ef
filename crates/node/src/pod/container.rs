//! Translates a container of a pod to the configuration of the runtime.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use k8s_openapi::api::core::v1::{Container, Pod, PodSecurityContext, SeccompProfile, SecurityContext};
use runtime::{ContainerConfig, LogLimits, MAX_ID, Mount, Seccomp, Security};

use crate::env::{Budget, MAX_BYTES, TooLong, expand};
use crate::hugepages::PageSizes;
use crate::options::SeccompDefault;

/// Labels of containers and sandboxes in the runtime.
pub const POD_NAME: &str = "io.kubernetes.pod.name";
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
pub const POD_UID: &str = "io.kubernetes.pod.uid";
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";

/// Bytes of a user's name in a message.
const MAX_USER_NAME: usize = 256;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("container has runAsNonRoot and image will run as root (pod: \"{pod}\", container: {container})")]
    Root { pod: String, container: String },
    #[error(
        "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root (pod: \"{pod}\", container: {container})"
    )]
    UserName { user: String, pod: String, container: String },
    #[error("invalid {field}: {value} is out of range")]
    Range { field: &'static str, value: i64 },
    #[error("cannot load seccomp profile {path:?}: {source}")]
    Seccomp { path: PathBuf, source: std::io::Error },
    #[error("invalid security context: {0}")]
    Invalid(&'static str),
    /// The node does not support a setting.
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    TooLong(#[from] TooLong),
}

/// The input of [`config`].
pub struct Parts<'a> {
    pub pod: &'a Pod,
    pub container: &'a Container,
    pub attempt: u32,
    pub env: Vec<(String, String)>,
    pub mounts: Vec<Mount>,
    /// The user in the configuration of the image.
    pub image_user: &'a str,
    pub node_memory: u64,
    /// The sizes of huge pages that the node has.
    pub page_sizes: &'a PageSizes,
    /// The directory of `Localhost` seccomp profiles.
    pub seccomp_root: PathBuf,
    /// The default seccomp profile.
    pub seccomp_default: SeccompDefault,
    pub log_limits: LogLimits,
    /// Whether stop signals of containers are in force (`ContainerStopSignals`).
    pub stop_signals: bool,
    /// Whether all processes of the container are killed when it runs out of memory.
    pub oom_group: bool,
    /// The id of the container whose process-id namespace it joins (`targetContainerName`).
    pub target: Option<String>,
    pub host: super::security::Host,
}

pub fn labels(pod: &Pod) -> BTreeMap<String, String> {
    let m = &pod.metadata;
    let text = |o: &Option<String>| o.clone().unwrap_or_default();
    BTreeMap::from([
        (POD_NAME.to_owned(), text(&m.name)),
        (POD_NAMESPACE.to_owned(), text(&m.namespace)),
        (POD_UID.to_owned(), text(&m.uid)),
    ])
}

pub fn config(parts: Parts<'_>) -> Result<ContainerConfig, Error> {
    let Parts { pod, container: c, attempt, env, .. } = &parts;
    let known: HashMap<&str, &str> = env.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let mut budget = Budget::new(MAX_BYTES);
    budget.take(env.iter().map(|(k, v)| k.len() + v.len()).sum())?;
    let mut expanded = |list: &Option<Vec<String>>| -> Result<Vec<String>, TooLong> {
        list.iter().flatten().map(|t| expand(t, |name| known.get(name).copied(), &mut budget)).collect()
    };
    let mut labels = labels(pod);
    labels.insert(CONTAINER_NAME.to_owned(), c.name.clone());
    let spec = pod.spec.as_ref();
    let of_pod = spec.and_then(|s| s.resources.as_ref());
    let own = c.resources.clone().unwrap_or_default();
    let mut resources = crate::resources::container(Some(&crate::resources::with_limits_of_pod(of_pod, own)));
    resources.oom_group = Some(parts.oom_group);
    // As upstream without `memorySwap`: containers do not swap.
    resources.swap_limit = Some(0);
    if let Some(spec) = spec {
        resources.hugepage_limits = parts.page_sizes.of_container(spec, c.resources.as_ref());
    }
    let oom = spec.map_or(0, |s| crate::resources::oom_score_adj(s, c.resources.as_ref(), parts.node_memory));
    let stop_signal = c.lifecycle.as_ref().and_then(|l| l.stop_signal.clone()).filter(|_| parts.stop_signals);
    Ok(ContainerConfig {
        name: c.name.clone(),
        attempt: *attempt,
        image: c.image.clone().unwrap_or_default(),
        command: expanded(&c.command)?,
        args: expanded(&c.args)?,
        working_dir: c.working_dir.clone().filter(|w| !w.is_empty()),
        security: security(&parts)?,
        tty: c.tty == Some(true),
        stdin: c.stdin == Some(true),
        stdin_once: c.stdin_once == Some(true),
        resources,
        oom_score_adj: oom,
        termination_message_path: Some(c.termination_message_path.clone().unwrap_or("/dev/termination-log".into())),
        log_path: PathBuf::from(&c.name).join(format!("{attempt}.log")),
        log_limits: parts.log_limits,
        stop_signal,
        target_container: parts.target,
        labels,
        annotations: BTreeMap::new(),
        mounts: parts.mounts,
        devices: Vec::new(),
        hooks: runtime::Hooks::default(),
        cdi_devices: Vec::new(),
        env: parts.env,
    })
}

fn id(field: &'static str, value: Option<i64>) -> Result<Option<u32>, Error> {
    let in_range = |v: i64| u32::try_from(v).ok().filter(|id| *id <= MAX_ID);
    value.map(|v| in_range(v).ok_or(Error::Range { field, value: v })).transpose()
}

fn security(parts: &Parts<'_>) -> Result<Security, Error> {
    let none = (PodSecurityContext::default(), SecurityContext::default());
    let p = parts.pod.spec.as_ref().and_then(|s| s.security_context.as_ref()).unwrap_or(&none.0);
    let c = parts.container.security_context.as_ref().unwrap_or(&none.1);
    let user = id("runAsUser", c.run_as_user.or(p.run_as_user))?;
    let group = id("runAsGroup", c.run_as_group.or(p.run_as_group))?;
    if c.run_as_non_root.or(p.run_as_non_root) == Some(true) {
        let m = &parts.pod.metadata;
        let full = || {
            let text = |o: &Option<String>| o.clone().unwrap_or_default();
            (format!("{}_{}({})", text(&m.name), text(&m.namespace), text(&m.uid)), parts.container.name.clone())
        };
        let image_user = parts.image_user.split(':').next().unwrap_or_default();
        let effective = match (user, image_user.parse::<i64>()) {
            (Some(u), _) => Some(u),
            (None, Ok(u)) => id("user of the image", Some(u))?,
            (None, Err(_)) if image_user.is_empty() => Some(0),
            (None, Err(_)) => None,
        };
        let (pod, container) = full();
        match effective {
            Some(0) => return Err(Error::Root { pod, container }),
            Some(_) => {}
            None => {
                // The image decides its length.
                let user = image_user[..image_user.floor_char_boundary(MAX_USER_NAME)].to_owned();
                return Err(Error::UserName { user, pod, container });
            }
        }
    }
    let mut supplemental_groups = Vec::new();
    for g in p.supplemental_groups.iter().flatten().copied().chain(p.fs_group) {
        supplemental_groups.extend(id("supplementalGroups", Some(g))?);
    }
    let privileged = c.privileged == Some(true);
    if privileged && c.allow_privilege_escalation == Some(false) {
        return Err(Error::Invalid("cannot set allowPrivilegeEscalation to false and privileged to true"));
    }
    let spec = parts.pod.spec.clone().unwrap_or_default();
    if let Some(refusal) = super::security::container_refusal(&spec, parts.container, &parts.host) {
        return Err(Error::Refused(refusal.message));
    }
    let apparmor = super::security::apparmor(&spec, parts.container, &parts.host).map_err(Error::Refused)?;
    let capabilities = c.capabilities.as_ref();
    Ok(Security {
        run_as_user: user,
        run_as_group: group,
        supplemental_groups,
        strict_groups: p.supplemental_groups_policy.as_deref() == Some("Strict"),
        privileged,
        add_capabilities: capabilities.and_then(|c| c.add.clone()).unwrap_or_default(),
        drop_capabilities: capabilities.and_then(|c| c.drop.clone()).unwrap_or_default(),
        no_new_privileges: c.allow_privilege_escalation == Some(false),
        unmasked_proc: c.proc_mount.as_deref() == Some("Unmasked"),
        read_only_rootfs: c.read_only_root_filesystem == Some(true),
        apparmor,
        seccomp: match privileged {
            true => Seccomp::Unconfined,
            false => seccomp(c.seccomp_profile.as_ref().or(p.seccomp_profile.as_ref()), parts)?,
        },
    })
}

fn seccomp(profile: Option<&SeccompProfile>, parts: &Parts<'_>) -> Result<Seccomp, Error> {
    let Some(profile) = profile else {
        return Ok(match parts.seccomp_default {
            SeccompDefault::Unconfined => Seccomp::Unconfined,
            SeccompDefault::RuntimeDefault => Seccomp::RuntimeDefault,
        });
    };
    match profile.type_.as_str() {
        "RuntimeDefault" => Ok(Seccomp::RuntimeDefault),
        "Localhost" => {
            let relative = profile.localhost_profile.as_deref().unwrap_or_default();
            let path = parts.seccomp_root.join(relative);
            let text = std::fs::read_to_string(&path).map_err(|source| Error::Seccomp { path, source })?;
            Ok(Seccomp::Oci(text))
        }
        _ => Ok(Seccomp::Unconfined),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(pod: serde_json::Value, container: serde_json::Value, image_user: &str) -> Result<Security, Error> {
        check_with(pod, container, image_user, SeccompDefault::Unconfined)
    }

    fn check_with(
        pod: serde_json::Value,
        container: serde_json::Value,
        image_user: &str,
        seccomp_default: SeccompDefault,
    ) -> Result<Security, Error> {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"containers": [], "securityContext": pod}}))
        .unwrap();
        let container: Container = serde_json::from_value(json!({"name": "c", "securityContext": container})).unwrap();
        security(&Parts {
            pod: &pod,
            container: &container,
            attempt: 0,
            env: Vec::new(),
            mounts: Vec::new(),
            image_user,
            node_memory: 1,
            page_sizes: &PageSizes::default(),
            seccomp_root: "/nonexistent".into(),
            seccomp_default,
            log_limits: LogLimits::default(),
            stop_signals: false,
            oom_group: true,
            target: None,
            host: super::super::security::Host::default(),
        })
    }

    #[test]
    fn containers_win_over_pods() {
        let s = check(json!({"runAsUser": 1, "fsGroup": 7, "supplementalGroups": [8]}), json!({"runAsUser": 2}), "")
            .unwrap();
        assert_eq!((s.run_as_user, s.supplemental_groups), (Some(2), vec![8, 7]));
    }

    #[test]
    fn the_default_profile_is_for_containers_that_name_none() {
        let named = |t: &str| json!({"seccompProfile": {"type": t}});
        let profile = |pod, container, default| check_with(pod, container, "", default).unwrap().seccomp;
        let (off, on) = (SeccompDefault::Unconfined, SeccompDefault::RuntimeDefault);
        for (pod, container, default, expected) in [
            (json!({}), json!({}), off, Seccomp::Unconfined),
            (json!({}), json!({}), on, Seccomp::RuntimeDefault),
            (named("Unconfined"), json!({}), on, Seccomp::Unconfined),
            (json!({}), named("Unconfined"), on, Seccomp::Unconfined),
            (named("Unconfined"), named("RuntimeDefault"), off, Seccomp::RuntimeDefault),
            (json!({}), json!({"privileged": true}), on, Seccomp::Unconfined),
        ] {
            assert_eq!(profile(pod.clone(), container.clone(), default), expected, "{pod} {container} {default:?}");
        }
    }

    #[test]
    fn refuses_root_if_run_as_non_root() {
        let strict = json!({"runAsNonRoot": true});
        assert!(matches!(check(strict.clone(), json!({}), ""), Err(Error::Root { .. })));
        assert!(matches!(check(strict.clone(), json!({}), "0:0"), Err(Error::Root { .. })));
        assert!(matches!(check(strict.clone(), json!({}), "app"), Err(Error::UserName { .. })));
        assert!(check(strict.clone(), json!({}), "1000:1000").is_ok());
        assert!(check(strict.clone(), json!({"runAsUser": 5}), "app").is_ok());
        assert!(check(strict, json!({"runAsNonRoot": false}), "").is_ok());
        assert!(check(json!({}), json!({"runAsUser": -1}), "").is_err());
        let long = check(json!({"runAsNonRoot": true}), json!({}), &"x".repeat(100_000)).unwrap_err().to_string();
        assert!(long.len() < 1024, "{} bytes", long.len());
    }

    /// The kernel reads 4294967295 as "no change": the process would stay root.
    #[test]
    fn rejects_ids_that_no_user_can_have() {
        let strict = json!({"runAsNonRoot": true});
        for user in ["4294967295", "4294967296", "2147483648", "-1", "4294967295:0"] {
            let error = check(strict.clone(), json!({}), user).unwrap_err();
            assert!(matches!(error, Error::Range { .. }), "{user}: {error}");
        }
        for (pod, container) in [
            (json!({"fsGroup": 4_294_967_295_i64}), json!({})),
            (json!({"supplementalGroups": [2_147_483_648_i64]}), json!({})),
            (json!({"runAsUser": 4_294_967_295_i64}), json!({})),
            (json!({}), json!({"runAsGroup": 4_294_967_295_i64})),
        ] {
            assert!(matches!(check(pod.clone(), container, ""), Err(Error::Range { .. })), "{pod}");
        }
    }

    /// An ephemeral container is added after the pod was admitted.
    #[test]
    fn a_container_with_what_is_not_carried_out_is_refused() {
        let refused = |c| matches!(check(json!({}), c, ""), Err(Error::Refused(_)));
        assert!(refused(json!({"procMount": "Unmasked"})));
        assert!(refused(json!({"appArmorProfile": {"type": "RuntimeDefault"}})));
        assert!(!refused(json!({"procMount": "Default"})));
    }
}
