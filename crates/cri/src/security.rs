//! Security settings in the messages of the interface.

use std::path::Path;
use std::path::PathBuf;
use std::sync::LazyLock;

use k8s_cri::v1;
use k8s_cri::v1::security_profile::ProfileType;
use runtime::{ContainerConfig, Error, PidMode, PodConfig, Result, Seccomp};

use crate::io;

/// Paths that containers cannot write.
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// The masked paths. Of those of processors only what exists, because runc fails for a path below a file.
static MASKED: LazyLock<Vec<String>> = LazyLock::new(|| {
    let is_maskable = |path: &PathBuf| path.exists() || !path.starts_with("/sys/devices/system/cpu");
    let paths = runtime::shim::masked_paths().into_iter().filter(is_maskable);
    let mut paths: Vec<String> = paths.map(|path| path.display().to_string()).collect();
    paths.sort();
    paths
});

fn number(value: impl Into<i64>) -> v1::Int64Value {
    v1::Int64Value { value: value.into() }
}

pub(crate) fn profile(kind: ProfileType, localhost_ref: String) -> v1::SecurityProfile {
    v1::SecurityProfile { profile_type: kind.into(), localhost_ref }
}

/// The namespaces of a container of a pod.
fn namespaces_of(pod: &PodConfig, container: &ContainerConfig) -> v1::NamespaceOption {
    let mut options = namespaces(pod);
    if let (PidMode::Container, Some(target)) = (pod.pid, &container.target_container) {
        options.pid = v1::NamespaceMode::Target.into();
        options.target_id.clone_from(target);
    }
    options
}

/// The namespaces of a pod's containers.
pub(crate) fn namespaces(config: &PodConfig) -> v1::NamespaceOption {
    use v1::NamespaceMode::{Container, Node, Pod};
    let pid = match config.pid {
        PidMode::Container => Container,
        PidMode::Pod => Pod,
        PidMode::Host => Node,
    };
    let mapping = config.user_namespace.map(|range| v1::IdMapping {
        host_id: range.first,
        container_id: 0,
        length: range.length,
    });
    v1::NamespaceOption {
        network: if config.address.is_some() { Pod } else { Node }.into(),
        pid: pid.into(),
        ipc: if config.host_ipc { Node } else { Pod }.into(),
        target_id: String::new(),
        userns_options: mapping.map(|mapping| v1::UserNamespace {
            mode: Pod.into(),
            uids: vec![mapping],
            gids: vec![mapping],
        }),
    }
}

/// The security settings of a container. `directory`: where its seccomp profile is written. `user` is that of the image. Blocks.
pub(crate) fn container(
    pod: &PodConfig,
    config: &ContainerConfig,
    user: Option<&ImageUser>,
    directory: &Path,
) -> Result<v1::LinuxContainerSecurityContext> {
    let security = &config.security;
    let masks = !security.privileged && !security.unmasked_proc;
    let seccomp = match &security.seccomp {
        _ if security.privileged => profile(ProfileType::Unconfined, String::new()),
        Seccomp::Unconfined => profile(ProfileType::Unconfined, String::new()),
        Seccomp::RuntimeDefault => profile(ProfileType::RuntimeDefault, String::new()),
        Seccomp::Oci(text) => {
            let path = directory.join("seccomp.json");
            std::fs::write(&path, text).map_err(|e| io(path.display().to_string(), e))?;
            profile(ProfileType::Localhost, path.display().to_string())
        }
    };
    let apparmor = match &security.apparmor {
        None => profile(ProfileType::Unconfined, String::new()),
        Some(name) => profile(ProfileType::Localhost, name.clone()),
    };
    let mut out = v1::LinuxContainerSecurityContext {
        capabilities: Some(v1::Capability {
            add_capabilities: security.add_capabilities.clone(),
            drop_capabilities: security.drop_capabilities.clone(),
            ..Default::default()
        }),
        privileged: security.privileged,
        namespace_options: Some(namespaces_of(pod, config)),
        run_as_user: security.run_as_user.map(number),
        run_as_group: security.run_as_group.map(number),
        readonly_rootfs: security.read_only_rootfs,
        supplemental_groups: security.supplemental_groups.iter().map(|g| i64::from(*g)).collect(),
        supplemental_groups_policy: match security.strict_groups {
            true => v1::SupplementalGroupsPolicy::Strict,
            false => v1::SupplementalGroupsPolicy::Merge,
        }
        .into(),
        no_new_privs: security.no_new_privileges,
        masked_paths: if masks { MASKED.clone() } else { Vec::new() },
        readonly_paths: if masks { READ_ONLY.map(str::to_owned).to_vec() } else { Vec::new() },
        seccomp: Some(seccomp),
        apparmor: Some(apparmor),
        ..Default::default()
    };
    // The interface has no group without a user.
    if out.run_as_group.is_some() && out.run_as_user.is_none() {
        match user {
            Some(ImageUser::Id(id)) => out.run_as_user = Some(number(*id)),
            Some(ImageUser::Name(name)) => out.run_as_username = name.clone(),
            None => return Err(Error::Invalid { field: "runAsGroup", message: "the image is not present".into() }),
        }
    }
    Ok(out)
}

/// The user in the configuration of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ImageUser {
    Id(i64),
    Name(String),
}

impl ImageUser {
    pub fn of(image: &v1::Image) -> Self {
        match (&image.uid, image.username.as_str()) {
            (Some(uid), _) => Self::Id(uid.value),
            (None, "") => Self::Id(0),
            (None, name) => Self::Name(name.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::{IdRange, Security};

    fn convert(pod: &PodConfig, security: Security, user: Option<&ImageUser>) -> v1::LinuxContainerSecurityContext {
        let directory = tempfile::tempdir().unwrap();
        let config = ContainerConfig { security, ..ContainerConfig::default() };
        container(pod, &config, user, directory.path()).unwrap()
    }

    #[test]
    fn proc_is_masked_unless_it_is_requested_otherwise() {
        let pod = PodConfig::default();
        let plain = convert(&pod, Security::default(), None);
        assert!(plain.masked_paths.iter().any(|p| p == "/proc/kcore"));
        assert!(plain.readonly_paths.iter().any(|p| p == "/proc/sys"));
        for open in [
            Security { privileged: true, ..Security::default() },
            Security { unmasked_proc: true, ..Security::default() },
        ] {
            let open = convert(&pod, open, None);
            assert!(open.masked_paths.is_empty() && open.readonly_paths.is_empty());
        }
    }

    #[test]
    fn a_group_comes_with_the_user_of_the_image() {
        let group = Security { run_as_group: Some(7), ..Security::default() };
        let with = |user| convert(&PodConfig::default(), group.clone(), Some(&user));
        assert_eq!(with(ImageUser::Id(5)).run_as_user, Some(number(5)));
        assert_eq!(with(ImageUser::Name("app".into())).run_as_username, "app");
        let both = Security { run_as_user: Some(3), ..group.clone() };
        assert_eq!(convert(&PodConfig::default(), both, None).run_as_user, Some(number(3)));
    }

    #[test]
    fn namespaces_are_those_of_the_pod() {
        use v1::NamespaceMode::{Container, Node, Pod};
        let modes = |config: &PodConfig| {
            let options = namespaces(config);
            (options.network(), options.pid(), options.ipc())
        };
        assert_eq!(modes(&PodConfig::default()), (Node, Container, Pod));
        let own = PodConfig { address: Some([10, 0, 0, 1].into()), pid: PidMode::Pod, ..PodConfig::default() };
        assert_eq!(modes(&own), (Pod, Pod, Pod));
        let host = PodConfig { pid: PidMode::Host, host_ipc: true, ..PodConfig::default() };
        assert_eq!(modes(&host), (Node, Node, Node));
        let debugger = ContainerConfig { target_container: Some("c1".into()), ..ContainerConfig::default() };
        let of = |pod: &PodConfig| (namespaces_of(pod, &debugger).pid(), namespaces_of(pod, &debugger).target_id);
        assert_eq!(of(&PodConfig::default()), (v1::NamespaceMode::Target, "c1".into()));
        assert_eq!((of(&own).0, of(&host).0), (Pod, Node));
        assert!(of(&own).1.is_empty() && of(&host).1.is_empty());
        let range = Some(IdRange { first: 65536, length: 65536 });
        let users = namespaces(&PodConfig { user_namespace: range, ..own }).userns_options.unwrap();
        assert_eq!((users.mode(), users.uids[0].host_id, users.gids[0].length), (Pod, 65536, 65536));
    }
}
