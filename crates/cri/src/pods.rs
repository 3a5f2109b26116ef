//! Sandboxes of pods.

use k8s_cri::v1;
use runtime::cgroup::Hierarchies;
use runtime::{Error, Pod, PodConfig, PodRecords, Result};

use crate::connection::Connection;
use crate::files::Files;
use crate::records::{OWNER, POD_UID, Sandbox, annotations, labels, sandbox};
use crate::{Inner, Options, blocking, io, security};

impl Inner {
    pub(crate) async fn run_pod(&self, config: PodConfig) -> Result<Pod> {
        check(&config)?;
        if config.user_namespace.is_some() && !self.handler(&config.runtime_handler).user_namespaces {
            return Err(self.unsupported("user namespaces"));
        }
        match self.sandbox(&config.id).await {
            Ok(_) => return Err(Error::AlreadyExists { what: "pod", id: config.id }),
            Err(Error::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
        let made = {
            let _turn = self.making.read().await;
            let (files, of_files) = (self.files.clone(), config.clone());
            blocking(move || files.make_pod(&of_files)).await?;
            self.make_sandbox(&config).await
        };
        if made.is_err()
            && let Err(error) = self.remove_leftovers().await
        {
            tracing::warn!(pod = config.id, %error, "removing what is left of a sandbox failed");
        }
        made
    }

    async fn make_sandbox(&self, config: &PodConfig) -> Result<Pod> {
        let cgroup = self.cgroup(&config.cgroup_parent);
        let (hierarchies, limits, path) = (self.hierarchies.clone(), config.resources.clone(), cgroup.clone());
        blocking(move || {
            let made = hierarchies.create(&path, &limits).and_then(|()| hierarchies.bound_descendants(&path));
            made.map_err(|source| io(format!("cgroup {path}"), source))
        })
        .await?;
        let id = self.connection.run_pod(self.sandbox_config(config)?, &config.runtime_handler).await?;
        let checked = self.check_address(&id, config).await;
        if let Err(error) = checked {
            self.remove_sandbox(&id).await;
            return Err(error);
        }
        Ok(self.sandbox(&config.id).await?.pod)
    }

    /// Errors if another network than that of the node has connected the sandbox.
    async fn check_address(&self, id: &str, config: &PodConfig) -> Result<()> {
        let Some(expected) = config.address else { return Ok(()) };
        let network = self.connection.pod_status(id).await?.network.unwrap_or_default();
        // Runtimes differ in which family is the first of a pod with two addresses.
        let others = network.additional_ips.into_iter().map(|other| other.ip);
        let found: Vec<String> = std::iter::once(network.ip).chain(others).collect();
        if found.iter().any(|address| address.parse() == Ok(expected)) {
            return Ok(());
        }
        let message = format!(
            "the container runtime has connected the pod with the address {found:?} instead of {expected}: configure it with the CNI \
             plugin of this node"
        );
        Err(Error::PodStart { pod: config.id.clone(), message })
    }

    /// Removes a sandbox that cannot be used. The cause is reported, so an error here is only logged.
    async fn remove_sandbox(&self, id: &str) {
        let removed = async {
            self.connection.stop_pod(id).await?;
            self.connection.remove_pod(id).await
        };
        if let Err(error) = removed.await {
            tracing::warn!(sandbox = id, %error, "removing a sandbox that cannot be used failed");
        }
    }

    /// The configuration of a sandbox, as the runtime gets it when the sandbox and when its containers are created.
    pub(crate) fn sandbox_config(&self, config: &PodConfig) -> Result<v1::PodSandboxConfig> {
        let has_own_network = config.address.is_some();
        // The files are on the disk.
        let record = PodConfig {
            hosts: None,
            resolv_conf: None,
            labels: Default::default(),
            annotations: Default::default(),
            ..config.clone()
        };
        Ok(v1::PodSandboxConfig {
            metadata: Some(v1::PodSandboxMetadata {
                name: config.name.clone(),
                uid: config.uid.clone(),
                namespace: config.namespace.clone(),
                attempt: config.attempt,
            }),
            hostname: if has_own_network { config.hostname.clone() } else { String::new() },
            log_directory: config.log_directory.display().to_string(),
            labels: labels(&config.labels, &self.options.owner, &config.uid),
            annotations: annotations(&config.annotations, &record)?,
            linux: Some(v1::LinuxPodSandboxConfig {
                cgroup_parent: format!("/{}", self.cgroup(&config.cgroup_parent)),
                security_context: Some(v1::LinuxSandboxSecurityContext {
                    namespace_options: Some(security::namespaces(config)),
                    privileged: config.privileged,
                    seccomp: Some(security::profile(v1::security_profile::ProfileType::RuntimeDefault, String::new())),
                    ..Default::default()
                }),
                sysctls: config.sysctls.clone().into_iter().collect(),
                ..Default::default()
            }),
            ..Default::default()
        })
    }

    pub(crate) async fn stop_pod(&self, id: &str) -> Result<()> {
        match self.sandbox(id).await {
            Ok(sandbox) => self.connection.stop_pod(&sandbox.id).await,
            Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn remove_pod(&self, id: &str) -> Result<()> {
        let Sandbox { id: sandbox, pod } = match self.sandbox(id).await {
            Ok(sandbox) => sandbox,
            Err(Error::NotFound { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        self.connection.stop_pod(&sandbox).await?;
        self.connection.remove_pod(&sandbox).await?;
        let others = self.sandboxes((POD_UID, &pod.config.uid)).await?;
        let cgroup = others.is_empty().then(|| self.cgroup(&pod.config.cgroup_parent));
        self.remove_files(id, cgroup).await
    }

    /// Removes the files of a sandbox that is gone, last of all: by them the rest is found after a crash.
    async fn remove_files(&self, id: &str, cgroup: Option<String>) -> Result<()> {
        let (files, hierarchies, id) = (self.files.clone(), self.hierarchies.clone(), id.to_owned());
        blocking(move || {
            remove_cgroup(&hierarchies, cgroup.as_deref());
            files.remove_pod(&id)
        })
        .await
    }

    /// Removes files and control groups of sandboxes that the runtime does not have: it was not created, or its removal was interrupted.
    pub(crate) async fn remove_leftovers(&self) -> Result<()> {
        // Others that are being made have files first. None waits for a slow one: what is left goes the next time.
        let Ok(_turn) = self.making.try_write() else { return Ok(()) };
        let files = self.files.clone();
        let all = blocking(move || Ok(files.pods())).await?;
        let known = self.all_sandboxes().await?;
        for (id, cgroup) in all.into_iter().filter(|(id, _)| known.iter().all(|s| s.pod.id != *id)) {
            let is_free = |path: &String| known.iter().all(|s| s.pod.config.cgroup_parent != *path);
            let cgroup = cgroup.filter(|path| !path.is_empty() && is_free(path)).map(|path| self.cgroup(&path));
            self.remove_files(&id, cgroup).await?;
        }
        Ok(())
    }

    pub(crate) async fn pod_records(&self, uid: &str) -> Result<PodRecords> {
        let pods = self.sandboxes((POD_UID, uid)).await?.into_iter().map(|s| s.pod).collect();
        Ok(PodRecords { pods, containers: self.containers((POD_UID, uid)).await? })
    }
}

/// Removes the control group of a pod that is gone. The runtime removes those of its containers, and may still be at it.
fn remove_cgroup(hierarchies: &Hierarchies, path: Option<&str>) {
    let Some(path) = path else { return };
    if let Err(error) = hierarchies.remove(path) {
        tracing::warn!(cgroup = path, %error, "removing the control group of a pod failed");
    }
}

/// Checks what becomes part of paths, and what the interface cannot express.
fn check(config: &PodConfig) -> Result<()> {
    let is_plain = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    if !is_plain(&config.id) {
        let message = format!("{:?} has other characters than letters, digits and '-'", config.id);
        return Err(Error::Invalid { field: "id", message });
    }
    if config.netns.is_some() {
        let message = "the container runtime creates the network namespaces of pods".to_owned();
        return Err(Error::Invalid { field: "netns", message });
    }
    Ok(())
}

/// See [`crate::Cri::purge`].
pub(crate) async fn purge(options: &Options) -> Result<()> {
    let connection = Connection::new(&options.endpoint, options.timeout);
    for listed in connection.list_pods([(OWNER, &options.owner)]).await? {
        let id = listed.id.clone();
        connection.stop_pod(&id).await?;
        connection.remove_pod(&id).await?;
        if let Some(found) = sandbox(listed) {
            tracing::debug!(pod = found.pod.id, "removed a sandbox");
        }
    }
    let (directory, prefix) = (options.directory.clone(), options.cgroup_prefix.clone());
    blocking(move || {
        let hierarchies = Hierarchies::detect().map_err(|source| io("cgroup hierarchies", source))?;
        hierarchies.remove(&prefix).map_err(|source| io(format!("cgroup {prefix}"), source))?;
        if directory.exists() { Files::open(directory)?.remove() } else { Ok(()) }
    })
    .await
}
