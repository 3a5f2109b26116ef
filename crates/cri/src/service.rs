//! The traits that node agents use, for a container runtime behind the interface.

use std::time::Duration;

use async_trait::async_trait;
use k8s_cri::v1;
use runtime::{
    AttachSession, Condition, Container, ContainerConfig, Error, Event, ExecRequest, ExecResult, ExecSession, Features,
    Handlers, Host, NetworkOwner, Pod, PodConfig, PodRecords, PortForward, Resources, Result, Runtime, RuntimeStatus,
    Stats, Usage,
};
use tokio::sync::broadcast;

use crate::records::OWNER;
use crate::{Cri, io};

#[async_trait]
impl Runtime for Cri {
    fn version(&self) -> (String, String) {
        self.inner.version.clone()
    }

    fn features(&self) -> Features {
        self.inner.features
    }

    fn handlers(&self) -> Handlers {
        self.inner.handlers.clone()
    }

    fn applies_cdi(&self) -> bool {
        self.inner.applies_cdi
    }

    fn network_owner(&self) -> NetworkOwner {
        NetworkOwner::Runtime
    }

    async fn status(&self) -> Result<RuntimeStatus> {
        let conditions = self.inner.connection.status(false).await?.status.unwrap_or_default().conditions;
        let condition = |kind: &str| condition(&conditions, kind);
        Ok(RuntimeStatus { runtime: condition("RuntimeReady"), network: condition("NetworkReady") })
    }

    async fn run_pod(&self, config: PodConfig) -> Result<Pod> {
        self.inner.run_pod(config).await
    }

    async fn stop_pod(&self, pod: &str) -> Result<()> {
        self.inner.stop_pod(pod).await
    }

    async fn remove_pod(&self, pod: &str) -> Result<()> {
        self.inner.remove_pod(pod).await
    }

    async fn list_pods(&self) -> Result<Vec<Pod>> {
        Ok(self.inner.all_sandboxes().await?.into_iter().map(|s| s.pod).collect())
    }

    async fn pod_records(&self, uid: &str) -> Result<PodRecords> {
        self.inner.pod_records(uid).await
    }

    async fn pod_status(&self, pod: &str) -> Result<Pod> {
        Ok(self.inner.sandbox(pod).await?.pod)
    }

    async fn create_container(&self, pod: &str, config: ContainerConfig) -> Result<String> {
        self.inner.create_container(pod, config).await
    }

    async fn start_container(&self, container: &str) -> Result<()> {
        self.inner.start_container(container).await
    }

    async fn stop_container(&self, container: &str, grace: Duration) -> Result<()> {
        self.inner.stop_container(container, grace).await
    }

    async fn remove_container(&self, container: &str) -> Result<()> {
        self.inner.remove_container(container).await
    }

    async fn container_status(&self, container: &str) -> Result<Container> {
        self.inner.container(container).await
    }

    async fn list_containers(&self) -> Result<Vec<Container>> {
        self.inner.containers((OWNER, &self.inner.options.owner)).await
    }

    async fn update_container(&self, container: &str, resources: Resources) -> Result<()> {
        self.inner.update_container(container, &resources).await
    }

    async fn reopen_log(&self, container: &str) -> Result<()> {
        self.inner.connection.reopen_log(container).await
    }

    async fn exec(&self, container: &str, request: ExecRequest) -> Result<ExecSession> {
        self.inner.exec(container, request).await
    }

    async fn exec_sync(
        &self,
        container: &str,
        command: Vec<String>,
        timeout: Option<Duration>,
        most: u64,
    ) -> Result<ExecResult> {
        let shown = command.join(" ");
        let Some(answer) = self.inner.connection.exec_sync(container, command, timeout).await? else {
            return Err(Error::Timeout { command: shown, after: timeout.unwrap_or_default() });
        };
        let v1::ExecSyncResponse { mut stdout, mut stderr, exit_code } = answer;
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        stdout.truncate(most);
        stderr.truncate(most);
        Ok(ExecResult { stdout, stderr, exit_code })
    }

    async fn attach(&self, container: &str, stdin: bool) -> Result<AttachSession> {
        self.inner.attach(container, stdin).await
    }

    async fn forward_port(&self, pod: &str, port: u16) -> Result<PortForward> {
        self.inner.forward_port(pod, port).await
    }

    async fn container_stats(&self, container: &str) -> Result<Stats> {
        self.inner.container_stats(container).await
    }

    async fn container_layer(&self, container: &str) -> Result<(u64, u64)> {
        let layer = self.inner.connection.container_stats(container).await?.writable_layer.unwrap_or_default();
        let value = |value: Option<v1::UInt64Value>| value.map_or(0, |v| v.value);
        Ok((value(layer.used_bytes), value(layer.inodes_used)))
    }

    async fn pod_stats(&self, pod: &str) -> Result<Stats> {
        self.inner.pod_stats(pod).await
    }

    fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.inner.events.subscribe()
    }
}

/// A condition of the runtime; one that it does not report is not ready.
fn condition(all: &[v1::RuntimeCondition], kind: &str) -> Condition {
    match all.iter().find(|c| c.r#type == kind) {
        Some(c) => Condition { is_ready: c.status, reason: c.reason.clone(), message: c.message.clone() },
        None => Condition { message: "the container runtime does not report it".into(), ..Condition::default() },
    }
}

impl Host for Cri {
    fn set_cgroup(&self, path: &str, resources: &Resources) -> Result<()> {
        let path = self.inner.cgroup(path);
        self.inner.hierarchies.create(&path, resources).map_err(|source| io(format!("cgroup {path}"), source))
    }

    fn usage(&self, path: &str) -> Usage {
        self.inner.hierarchies.usage(&self.inner.cgroup(path))
    }

    /// The runtime has its own privileges.
    fn complaints(&self) -> Vec<String> {
        Vec::new()
    }

    fn user_namespaces(&self) -> std::result::Result<(), String> {
        match self.inner.handlers.values().any(|h| h.user_namespaces) {
            true => Ok(()),
            false => Err(self.inner.unsupported("user namespaces").to_string()),
        }
    }
}
