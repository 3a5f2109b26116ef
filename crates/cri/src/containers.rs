//! Containers: from the requests of the agent to the messages of the interface.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use k8s_cri::v1;
use runtime::{
    Container, ContainerConfig, ContainerState, DeviceRequest, Error, FileKind, HandlerFeatures, Mount, MountSource,
    PodConfig, Propagation, Resources, Result,
};

use crate::connection::{failed, image};
use crate::files::bind_below;
use crate::records::{ContainerRecord, annotations, labels};
use crate::security::{self, ImageUser};
use crate::{Inner, blocking, io, signals};

impl Inner {
    pub(crate) async fn create_container(&self, pod: &str, config: ContainerConfig) -> Result<String> {
        let sandbox = self.sandbox(pod).await?;
        self.check(&config, self.handler(&sandbox.pod.config.runtime_handler))?;
        let mut mounted = Vec::new();
        for mount in &config.mounts {
            if let MountSource::Image { image, .. } = &mount.source {
                mounted.push(self.present_image(image).await?.id);
            }
        }
        // The runtime resolves names by its own rules, and the agent has resolved this one.
        let found = self.present_image(&config.image).await?;
        let (user, image_id) = (ImageUser::of(&found), found.id);
        let record = ContainerRecord::new(pod, &config, mounted);
        let (files, of_pod, of_container) = (self.files.clone(), sandbox.pod.config.clone(), config.clone());
        let prepared = blocking(move || {
            let directory = files.make_container(&of_pod.id, &of_container.name, of_container.attempt)?;
            let log = of_pod.log_directory.join(&of_container.log_path);
            let log_directory = log.parent().unwrap_or(&of_pod.log_directory);
            std::fs::create_dir_all(log_directory).map_err(|e| io(log_directory.display().to_string(), e))?;
            let security = security::container(&of_pod, &of_container, Some(&user), &directory)?;
            let mut mounts = own_mounts(&files, &of_pod, &of_container);
            for (index, mount) in of_container.mounts.iter().enumerate() {
                mounts.push(self::mount(mount, &directory.join(format!("mount-{index}")))?);
            }
            Ok((security, mounts))
        });
        let created = async {
            let (security, mounts) = prepared.await?;
            let linux = v1::LinuxContainerConfig {
                resources: Some(self.container_resources(&sandbox.pod.config, &config)),
                security_context: Some(security),
            };
            let message = self.message(&config, &sandbox.pod.config, &record, image_id, mounts, linux)?;
            let signal = stop_signal(&config)?;
            let sandbox_config = self.sandbox_config(&sandbox.pod.config)?;
            let id = self.connection.create_container(&sandbox.id, &message, signal, sandbox_config).await?;
            // A runtime that does not know stop signals ignores them.
            if signal != 0 && self.connection.container_status(&id).await?.stop_signal.is_none() {
                self.connection.remove_container(&id).await?;
                return Err(self.unsupported("stop signals of containers"));
            }
            Ok(id)
        };
        let created = created.await;
        if created.is_err() {
            // The error is returned; the next attempt removes what is left.
            let (files, pod) = (self.files.clone(), pod.to_owned());
            let _ = blocking(move || files.remove_container(&pod, &config.name, config.attempt)).await;
        }
        created
    }

    /// The limits of a new container, with those that only cgroup v2 has.
    fn container_resources(&self, pod: &PodConfig, config: &ContainerConfig) -> v1::LinuxContainerResources {
        let above = self.cgroup(&pod.cgroup_parent);
        let unified =
            self.hierarchies.supported(&above, &config.resources).map(|(file, value)| (file.to_owned(), value));
        v1::LinuxContainerResources {
            unified: unified.collect(),
            ..resources(&config.resources, self.score(config.oom_score_adj))
        }
    }

    fn message(
        &self,
        config: &ContainerConfig,
        pod: &PodConfig,
        record: &ContainerRecord,
        image_id: String,
        mounts: Vec<v1::Mount>,
        linux: v1::LinuxContainerConfig,
    ) -> Result<v1::ContainerConfig> {
        let key_value = |(key, value): &(String, String)| v1::KeyValue { key: key.clone(), value: value.clone() };
        Ok(v1::ContainerConfig {
            metadata: Some(v1::ContainerMetadata { name: config.name.clone(), attempt: config.attempt }),
            image: Some(v1::ImageSpec { user_specified_image: config.image.clone(), ..image(&image_id) }),
            command: config.command.clone(),
            args: config.args.clone(),
            working_dir: config.working_dir.clone().unwrap_or_default(),
            envs: config.env.iter().map(key_value).collect(),
            mounts,
            devices: config.devices.iter().map(device).collect(),
            cdi_devices: config.cdi_devices.iter().map(|name| v1::CdiDevice { name: name.clone() }).collect(),
            labels: labels(&config.labels, &self.options.owner, &pod.uid),
            annotations: annotations(&config.annotations, record)?,
            log_path: config.log_path.display().to_string(),
            stdin: config.stdin,
            stdin_once: config.stdin_once,
            tty: config.tty,
            linux: Some(linux),
            ..Default::default()
        })
    }

    async fn present_image(&self, name: &str) -> Result<v1::Image> {
        let found = self.images.image_status(name).await?;
        found.ok_or_else(|| Error::ImagePull { image: name.to_owned(), message: "it is not present".into() })
    }

    /// Refuses what the runtime or the interface cannot carry out.
    fn check(&self, config: &ContainerConfig, handler: HandlerFeatures) -> Result<()> {
        if config.security.strict_groups && !self.features.strict_groups {
            return Err(self.unsupported("supplementalGroupsPolicy Strict"));
        }
        if config.devices.iter().any(|d| d.mode.is_some() || d.uid.is_some() || d.gid.is_some()) {
            return Err(self.unsupported("owners and modes of device nodes"));
        }
        if !config.hooks.is_empty() {
            return Err(self.unsupported("hooks of CDI devices"));
        }
        for mount in &config.mounts {
            if mount.options != runtime::MountOptions::default() {
                return Err(self.unsupported("mounts with the options nosuid or noexec"));
            }
            if mount.recursive_read_only && !handler.recursive_read_only_mounts {
                return Err(self.unsupported("recursive read-only mounts"));
            }
            match &mount.source {
                MountSource::Image { .. } if !self.features.image_volumes => {
                    return Err(self.unsupported("image volumes"));
                }
                MountSource::Image { path, .. } if !path.as_os_str().is_empty() => {
                    return Err(self.unsupported("paths in image volumes"));
                }
                MountSource::Tmpfs { .. } => return Err(self.unsupported("file systems in memory of containers")),
                _ => {}
            }
        }
        Ok(())
    }

    /// The score for the kernel's choice when memory runs out, as far as this machine permits it.
    fn score(&self, wanted: i32) -> i32 {
        wanted.max(self.limits.lowest_oom_score_adj)
    }

    pub(crate) async fn start_container(&self, id: &str) -> Result<()> {
        let Err(status) = self.connection.start_container(id).await else { return Ok(()) };
        let error = failed(&status);
        match self.container(id).await {
            Ok(container) if container.state == ContainerState::Exited => {
                let message = status.message().to_owned();
                Err(Error::Start { container: container.name, message })
            }
            _ => Err(error),
        }
    }

    pub(crate) async fn stop_container(&self, id: &str, grace: Duration) -> Result<()> {
        self.connection.stop_container(id, grace).await
    }

    pub(crate) async fn remove_container(&self, id: &str) -> Result<()> {
        let container = match self.container(id).await {
            Ok(container) => container,
            Err(Error::NotFound { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        self.connection.remove_container(id).await?;
        self.forget(id);
        let files = self.files.clone();
        blocking(move || files.remove_container(&container.pod, &container.name, container.attempt)).await
    }

    pub(crate) async fn update_container(&self, id: &str, limits: &Resources) -> Result<()> {
        self.connection.update_container(id, resources(limits, 0)).await
    }

    /// The control group of a container, below that of its pod, as runtimes with the driver `cgroupfs` create it.
    pub(crate) async fn container_cgroup(&self, container: &Container) -> Result<String> {
        let sandbox = self.sandbox(&container.pod).await?;
        Ok(format!("{}/{}", self.cgroup(&sandbox.pod.config.cgroup_parent), container.id))
    }
}

/// The number of the signal in the interface; 0 for that of the image.
fn stop_signal(config: &ContainerConfig) -> Result<i32> {
    let Some(name) = &config.stop_signal else { return Ok(0) };
    let invalid = || Error::Invalid { field: "stop signal", message: format!("{name:?}") };
    signals::number(name).ok_or_else(invalid)
}

fn resources(limits: &Resources, oom_score_adj: i32) -> v1::LinuxContainerResources {
    let page = |(size, limit): (&String, &u64)| v1::HugepageLimit { page_size: size.clone(), limit: *limit };
    v1::LinuxContainerResources {
        cpu_period: limits.cpu_period.and_then(|p| i64::try_from(p).ok()).unwrap_or(0),
        cpu_quota: limits.cpu_quota.unwrap_or(0),
        cpu_shares: limits.cpu_shares.and_then(|s| i64::try_from(s).ok()).unwrap_or(0),
        memory_limit_in_bytes: limits.memory_limit.unwrap_or(0),
        oom_score_adj: oom_score_adj.into(),
        cpuset_cpus: limits.cpuset_cpus.clone().unwrap_or_default(),
        cpuset_mems: limits.cpuset_mems.clone().unwrap_or_default(),
        hugepage_limits: limits.hugepage_limits.iter().map(page).collect(),
        ..Default::default()
    }
}

fn device(device: &DeviceRequest) -> v1::Device {
    // Runtimes do not follow links; what is not there is theirs to report.
    let host = device.host.canonicalize().unwrap_or_else(|_| device.host.clone());
    v1::Device {
        container_path: device.target.display().to_string(),
        host_path: host.display().to_string(),
        permissions: device.permissions.clone(),
    }
}

/// The files of the sandbox and the termination message, unless a volume is mounted there.
fn own_mounts(files: &crate::files::Files, pod: &PodConfig, config: &ContainerConfig) -> Vec<v1::Mount> {
    let mut own: BTreeMap<&str, (std::path::PathBuf, bool)> = BTreeMap::new();
    let read_only = config.security.read_only_rootfs;
    for (target, file) in [("/etc/hosts", files.hosts(&pod.id)), ("/etc/resolv.conf", files.resolv_conf(&pod.id))] {
        if file.exists() {
            own.insert(target, (file, read_only));
        }
    }
    if let Some(target) = &config.termination_message_path {
        own.insert(target, (files.message(&pod.id, &config.name, config.attempt), false));
    }
    own.retain(|target, _| config.mounts.iter().all(|m| m.target != Path::new(target)));
    let mount = |(target, (file, readonly)): (&str, (std::path::PathBuf, bool))| v1::Mount {
        container_path: target.to_owned(),
        host_path: file.display().to_string(),
        readonly,
        ..Default::default()
    };
    own.into_iter().map(mount).collect()
}

/// A mount in the message. `bound` is where a path that containers can change is bound. Blocks.
fn mount(mount: &Mount, bound: &Path) -> Result<v1::Mount> {
    let mut out = v1::Mount {
        container_path: mount.target.display().to_string(),
        readonly: mount.read_only,
        recursive_read_only: mount.recursive_read_only,
        propagation: match mount.propagation {
            Propagation::Private => v1::MountPropagation::PropagationPrivate,
            Propagation::HostToContainer => v1::MountPropagation::PropagationHostToContainer,
            Propagation::Bidirectional => v1::MountPropagation::PropagationBidirectional,
        }
        .into(),
        ..Default::default()
    };
    match &mount.source {
        MountSource::Host(path) => {
            check_kind(path, mount.kind)?;
            out.host_path = path.display().to_string();
        }
        MountSource::Below { root, path } => {
            bind_below(root, path, bound)?;
            out.host_path = bound.display().to_string();
        }
        MountSource::Image { image: name, .. } => out.image = Some(image(name)),
        MountSource::Tmpfs { .. } => {}
    }
    Ok(out)
}

/// Errors if the source of a mount is not of the required kind.
fn check_kind(path: &Path, required: Option<FileKind>) -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    let metadata = std::fs::metadata(path).map_err(|e| io(path.display().to_string(), e))?;
    let found = FileKind::from_mode(metadata.mode());
    match required {
        Some(required) if found != required => {
            let message = format!("{} is a {found}, not a {required}", path.display());
            Err(Error::Invalid { field: "mount", message })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_passed_on() {
        let limits = Resources {
            cpu_shares: Some(512),
            cpu_quota: Some(-1),
            cpu_period: Some(100_000),
            memory_limit: Some(64 << 20),
            hugepage_limits: [("2MB".to_owned(), 4)].into(),
            ..Resources::default()
        };
        let message = resources(&limits, 7);
        assert_eq!((message.cpu_shares, message.cpu_quota, message.oom_score_adj), (512, -1, 7));
        assert_eq!((message.memory_limit_in_bytes, message.hugepage_limits.len()), (64 << 20, 1));
        assert_eq!(resources(&Resources::default(), 0), v1::LinuxContainerResources::default());
    }

    #[test]
    fn files_of_the_pod_yield_to_volumes() {
        let directory = tempfile::tempdir().unwrap();
        let files = crate::files::Files::open(directory.path().join("cri")).unwrap();
        let pod = PodConfig {
            id: "u-0".into(),
            hosts: Some("h".into()),
            resolv_conf: Some("r".into()),
            log_directory: directory.path().join("logs"),
            ..PodConfig::default()
        };
        files.make_pod(&pod).unwrap();
        let mut config = ContainerConfig {
            name: "c".into(),
            termination_message_path: Some("/dev/termination-log".into()),
            ..ContainerConfig::default()
        };
        let targets = |config: &ContainerConfig| -> Vec<String> {
            own_mounts(&files, &pod, config).into_iter().map(|m| m.container_path).collect()
        };
        assert_eq!(targets(&config), ["/dev/termination-log", "/etc/hosts", "/etc/resolv.conf"]);
        config.mounts.push(Mount::bind("/tmp", "/etc/hosts"));
        assert_eq!(targets(&config), ["/dev/termination-log", "/etc/resolv.conf"]);
    }

    /// Containers had no device: a program that wrote to a block volume wrote a file beside it.
    #[test]
    fn devices_are_passed_on() {
        let request = DeviceRequest {
            host: "/dev/null".into(),
            target: "/dev/disk".into(),
            permissions: "rwm".into(),
            ..DeviceRequest::default()
        };
        let passed = device(&request);
        assert_eq!(
            (&*passed.host_path, &*passed.container_path, &*passed.permissions),
            ("/dev/null", "/dev/disk", "rwm")
        );
        let link = std::env::temp_dir().join(format!("kemudi-cri-device-{}", std::process::id()));
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        let followed = device(&DeviceRequest { host: link.clone(), ..request }).host_path;
        std::fs::remove_file(link).unwrap();
        assert_eq!(followed, "/dev/null");
    }

    #[test]
    fn a_source_of_another_kind_is_refused() {
        let error = check_kind(Path::new("/"), Some(FileKind::Socket)).unwrap_err().to_string();
        assert_eq!(error, "invalid mount: / is a directory, not a socket file");
        assert!(check_kind(Path::new("/"), None).is_ok() && check_kind(Path::new("/nonexistent"), None).is_err());
    }
}
