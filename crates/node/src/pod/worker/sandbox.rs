//! The pod's sandbox, with its network and directories.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use client::Severity;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::api::node::v1::RuntimeClass;
use network::HostPort;
use runtime::{IdRange, NetworkOwner, PidMode, PodConfig};
use supervisor::blocking;

use super::observe::Observed;
use super::{Worker, is_ending, unless_ending};
use crate::pod::backoff::go_duration;
use crate::pod::holds::{FIRST_RETRY, LAST_RETRY, SANDBOX, SYNC_RETRY};
use crate::pod::network::{Network, sandbox};
use crate::pod::plan::Plan;
use crate::pod::spec::{all_containers, text};
use crate::pod::{container, files, ports};
use crate::resources;

/// The kernel's limit of host names.
const MAX_HOSTNAME: usize = 64;

fn is_privileged(container: &Container) -> bool {
    container.security_context.as_ref().and_then(|s| s.privileged) == Some(true)
}

/// Creates a network namespace that belongs to a new user namespace.
async fn network_of(range: IdRange) -> std::io::Result<OwnedFd> {
    // It waits for a child process.
    blocking(move || runtime::user_namespace::network(range)).await
}

impl Worker {
    /// Creates the network, the directories and the sandbox. Returns whether the sandbox runs.
    pub(super) async fn make_sandbox(&mut self, seen: &Observed) -> bool {
        let attempt = match &seen.sandbox {
            None => 0,
            Some(old) => {
                let message = "Pod sandbox changed, it will be killed and re-created.";
                self.event(None, Severity::Normal, "SandboxChanged", message);
                let (id, attempt) = (old.id.clone(), old.config.attempt);
                // Its containers stay as records until the pod is deleted.
                if let Err(error) = self.shared.options.runtime.stop_pod(&id).await {
                    tracing::warn!(pod = %self.name(), %error, "stopping the old sandbox failed");
                }
                attempt + 1
            }
        };
        // Its containers get what the drivers of its claims prepare.
        let pod = self.with_status();
        let prepared = match unless_ending(self.inbox.clone(), self.shared.dra.prepare(&pod)).await {
            Some(prepared) => prepared,
            None => return false,
        };
        if let Err(why) = prepared {
            let now = self.now();
            self.holds.hold(SANDBOX, FIRST_RETRY, LAST_RETRY, now);
            let message = format!("Failed to prepare dynamic resources: prepare dynamic resources: {why}");
            self.event(None, Severity::Warning, "FailedPrepareDynamicResources", message);
            return false;
        }
        let has_network = self.pod.spec.as_ref().is_some_and(|s| s.host_network != Some(true));
        if let Some(problem) = self.shared.known.runtime.network_problem().filter(|_| has_network) {
            let now = self.now();
            self.holds.hold(SANDBOX, FIRST_RETRY, SYNC_RETRY, now);
            let message = format!("network is not ready: {problem}");
            self.event(None, Severity::Warning, "NetworkNotReady", message);
            return false;
        }
        let made = self.try_sandbox(attempt).await;
        self.shared.known.sandbox_started(self.has_own_users(), made.is_err());
        match made {
            Ok(()) => {
                self.holds.release(SANDBOX);
                if let Some((_, lost)) = self.lost.take() {
                    self.backoffs.started(SANDBOX, lost, self.now());
                }
                true
            }
            // What has begun is undone with the pod.
            Err(_) if is_ending(&self.inbox.borrow()) => false,
            Err(why) => {
                let now = self.now();
                self.holds.hold(SANDBOX, FIRST_RETRY, LAST_RETRY, now);
                let message = format!("Failed to create pod sandbox: {why}");
                self.event(None, Severity::Warning, "FailedCreatePodSandBox", message);
                false
            }
        }
    }

    /// Whether the pod has a user namespace of its own.
    pub(super) fn has_own_users(&self) -> bool {
        self.pod.spec.as_ref().is_some_and(|s| s.host_users == Some(false))
    }

    /// The handler of the pod's RuntimeClass; empty without one. Without the class the pod waits, as for a handler that the runtime lacks:
    /// its controller would replace a pod that has failed again and again.
    async fn runtime_handler(&self, spec: &PodSpec) -> Result<String, String> {
        let Some(class) = spec.runtime_class_name.as_deref().filter(|class| !class.is_empty()) else {
            return Ok(String::new());
        };
        match self.shared.client.api::<RuntimeClass>().get_opt(class).await {
            Ok(Some(class)) => Ok(class.handler),
            Ok(None) => Err(format!("runtimeclass.node.k8s.io {class:?} not found")),
            Err(e) => Err(format!("failed to lookup RuntimeClass {class}: {e}")),
        }
    }

    async fn try_sandbox(&mut self, attempt: u32) -> Result<(), String> {
        let pod = self.pod.clone();
        let Some(spec) = &pod.spec else { return Err("the pod has no spec".into()) };
        let runtime_handler = self.runtime_handler(spec).await?;
        let options = self.shared.options.clone();
        let host_network = spec.host_network == Some(true);
        let own_users = self.has_own_users();
        let domain = &options.dns.domain;
        let hostname = match (host_network, spec.set_hostname_as_fqdn, files::fqdn(&pod, domain)) {
            (true, ..) => options.hostname.clone(),
            (_, Some(true), Some(full)) if full.len() > MAX_HOSTNAME => {
                return Err(format!(
                    "failed to construct FQDN from pod hostname and cluster domain, FQDN {full} is too long ({MAX_HOSTNAME} \
                     characters is the max, {} characters requested)",
                    full.len()
                ));
            }
            (_, Some(true), Some(full)) => full,
            _ => files::hostname(&pod),
        };
        let (shared, uid) = (self.shared.clone(), self.uid.clone());
        let user_namespace = blocking(move || {
            let directory = shared.volumes.pod_directory(&uid);
            std::fs::create_dir_all(&directory).map_err(|e| format!("{}: {e}", directory.display()))?;
            own_users.then(|| shared.users.range(&uid)).transpose().map_err(|e| e.to_string())
        })
        .await?;
        let netns = match &options.network {
            Some(network) if !host_network => {
                let ports = ports::host_ports(spec);
                if let Some(port) = ports::used_by_node(&ports, &options.own_ports) {
                    return Err(format!("port {port} is the node's own"));
                }
                self.connect(&pod, network, user_namespace, ports).await?
            }
            _ => options.node_namespace.clone(),
        };
        let ips = super::texts(&self.ips);
        let hosts = if host_network {
            let node = blocking(|| std::fs::read_to_string("/etc/hosts").unwrap_or_default()).await;
            files::host_network_hosts(&pod, &node)
        } else {
            files::hosts(&pod, &ips, domain)
        };
        let security = spec.security_context.as_ref();
        let sysctls = security.and_then(|s| s.sysctls.as_ref()).into_iter().flatten();
        let pid = match (spec.host_pid, spec.share_process_namespace) {
            (Some(true), _) => PidMode::Host,
            (_, Some(true)) => PidMode::Pod,
            _ => PidMode::Container,
        };
        let qos = resources::qos(spec);
        let mut limits = resources::pod(spec, Some(options.configuration.pod_pids_limit));
        limits.hugepage_limits = self.shared.page_sizes.of_pod(spec);
        if self.shared.managers.has_exclusive_cpus(&self.uid) {
            (limits.cpu_quota, limits.cpu_period) = (None, None);
        }
        let m = &pod.metadata;
        let config = PodConfig {
            id: format!("{}-{attempt}", self.uid),
            name: text(&m.name).to_owned(),
            namespace: text(&m.namespace).to_owned(),
            uid: self.uid.clone(),
            attempt,
            hostname,
            netns: netns.clone(),
            address: self.ips.first().copied().filter(|_| !host_network && netns.is_none()),
            pid,
            host_ipc: spec.host_ipc == Some(true),
            user_namespace,
            privileged: all_containers(spec).iter().any(is_privileged),
            sysctls: sysctls.map(|s| (s.name.clone(), s.value.clone())).collect(),
            resolv_conf: Some(files::resolv_conf(&pod, &options.dns)),
            hosts: Some(hosts),
            cgroup_parent: qos.cgroup(&self.uid),
            resources: limits,
            labels: container::labels(&pod),
            annotations: BTreeMap::new(),
            log_directory: self.log_directory(),
            runtime_handler,
        };
        let made = options.runtime.run_pod(config).await;
        match made {
            Ok(_) => Ok(()),
            Err(e) => {
                if attempt == 0 {
                    self.disconnect().await;
                }
                Err(e.to_string())
            }
        }
    }

    /// Connects the pod. Returns its network namespace, unless the runtime makes it.
    async fn connect(
        &mut self,
        pod: &Pod,
        network: &Network,
        users: Option<IdRange>,
        ports: Vec<HostPort>,
    ) -> Result<Option<PathBuf>, String> {
        let text = |e: network::Error| e.to_string();
        let is_runtimes = self.shared.options.runtime.network_owner() == NetworkOwner::Runtime;
        let own = match users {
            Some(range) if !is_runtimes => Some(network_of(range).await.map_err(|e| format!("user namespace: {e}"))?),
            _ => None,
        };
        let (network, netns) = match network {
            // Its CNI plugin attaches the namespace that it makes.
            Network::Own(network) if is_runtimes => {
                self.ips = network.reserve(&self.uid).await.map_err(text)?;
                (network, None)
            }
            Network::Own(network) => {
                let attached = network.attach_namespace(&self.uid, own.as_ref()).await.map_err(text)?;
                self.ips = attached.addresses;
                (network, Some(attached.namespace))
            }
            Network::Plugins(network) => {
                let sandbox = sandbox(pod, &self.shared.options.dns)?;
                // A plugin may take minutes.
                let attached = unless_ending(self.inbox.clone(), network.attach(&sandbox, own.as_ref())).await;
                let attached = attached.ok_or("the pod is being deleted")?.map_err(text)?;
                self.ips = attached.addresses;
                // Host ports are the plugins', too.
                return Ok(Some(attached.namespace));
            }
        };
        if let Err(error) = network.publish(&self.uid, &ports).await {
            self.disconnect().await;
            return Err(error.to_string());
        }
        Ok(netns)
    }

    /// Removes a pod that could not start from the network. Errors are ignored, since the first one is reported.
    async fn disconnect(&mut self) {
        if let Some(network) = &self.shared.options.network {
            let _ = network.detach(&self.uid).await;
            self.ips.clear();
        }
    }

    /// Delays the replacement of a sandbox that is lost again and again, with the back-off of containers. (Upstream has no such
    /// back-off.)
    pub(super) fn back_off_sandbox(&mut self, plan: &mut Plan, seen: &Observed, now: Timestamp) {
        let Some(dead) = seen.sandbox.as_ref().filter(|_| plan.new_sandbox) else { return };
        let known = self.lost.as_ref().filter(|(id, _)| *id == dead.id).map(|(_, at)| *at);
        let lost = known.unwrap_or(now);
        self.lost = Some((dead.id.clone(), lost));
        let Some((delay, left)) = self.backoffs.waiting(SANDBOX, lost, now) else { return };
        plan.new_sandbox = false;
        let waiting = plan.start.drain(..).filter(|s| seen.newest.contains_key(&s.name));
        plan.backing_off.extend(waiting.map(|s| (s.name, delay)));
        plan.wake = Some(plan.wake.map_or(left, |w| w.min(left)));
        if known.is_none() {
            let message =
                format!("Back-off {} re-creating the lost sandbox of pod {}", go_duration(delay), self.name());
            self.event(None, Severity::Warning, "BackOff", message);
        }
    }

    /// The directory of the pod's logs: `LOGS/NAMESPACE_NAME_UID`, as kubelet names it.
    pub(super) fn log_directory(&self) -> PathBuf {
        let m = &self.pod.metadata;
        self.shared.options.log_dir.join(format!("{}_{}_{}", text(&m.namespace), text(&m.name), self.uid))
    }
}
