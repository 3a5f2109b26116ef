//! Starting: the sandbox, the volumes, and containers.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use client::{Key, Severity};
use k8s_openapi::api::core::v1::Container as Spec;
use runtime::{ContainerState, IdRange, PidMode, PodConfig};

use super::plan::{Plan, Role, ended_at};
use super::status::Waiting;
use super::worker::{Hold, Observed, Worker, text, unless_ending};
use super::{container, files, hooks, ports, security};
use crate::blocking::blocking;
use crate::resources;
use crate::{env, volumes};

/// The name under which a failing sandbox is held, and a lost one backs off.
pub(super) const SANDBOX: &str = "";
const VOLUMES: &str = "\u{1}volumes";
/// Between tries of what has failed: doubled up to the last.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(120);
/// A container that cannot be made is tried again as upstream's kubelet does it: with the pod's next synchronization after a failed one.
const SYNC_RETRY: Duration = Duration::from_secs(10);

/// A network namespace of a new user namespace.
async fn network_of(range: IdRange) -> std::io::Result<OwnedFd> {
    // It waits for a process.
    blocking(move || runtime::user_namespace::network(range)).await
}

/// Twice the delay before, between the first and the last.
fn next_delay(before: Option<Duration>, first: Duration, last: Duration) -> Duration {
    before.map_or(first, |delay| (delay * 2).clamp(first, last))
}

impl Worker {
    /// Does not try `name` again for a while, longer each time.
    fn hold(&mut self, name: &str, first: Duration, last: Duration) -> Duration {
        let delay = next_delay(self.holds.get(name).map(|h| h.delay), first, last);
        let until = self.now() + delay;
        self.holds.insert(name.to_owned(), Hold { until, delay });
        delay
    }

    /// Network, directories and the sandbox itself. Whether it stands.
    pub(super) async fn make_sandbox(&mut self, seen: &Observed) -> bool {
        let attempt = match &seen.sandbox {
            None => 0,
            Some(old) => {
                let message = "Pod sandbox changed, it will be killed and re-created.";
                self.event(None, Severity::Normal, "SandboxChanged", message);
                let (id, attempt) = (old.id.clone(), old.config.attempt);
                // Its containers are records of what ran; they stay until the pod goes.
                if let Err(error) = self.shared.options.runtime.stop_pod(&id).await {
                    tracing::warn!(pod = %self.name(), %error, "stopping the old sandbox");
                }
                attempt + 1
            }
        };
        match self.try_sandbox(attempt).await {
            Ok(()) => {
                self.holds.remove(SANDBOX);
                if let Some((_, lost)) = self.lost.take() {
                    self.backoffs.started(SANDBOX, lost, self.now());
                }
                true
            }
            Err(why) => {
                self.hold(SANDBOX, FIRST_RETRY, LAST_RETRY);
                let message = format!("Failed to create pod sandbox: {why}");
                self.event(None, Severity::Warning, "FailedCreatePodSandBox", message);
                false
            }
        }
    }

    async fn try_sandbox(&mut self, attempt: u32) -> Result<(), String> {
        let pod = self.pod.clone();
        let Some(spec) = &pod.spec else { return Err("the pod has no spec".into()) };
        let options = &self.shared.options;
        let host_network = spec.host_network == Some(true);
        let own_users = spec.host_users == Some(false);
        let (shared, uid) = (self.shared.clone(), self.uid.clone());
        let user_namespace = blocking(move || {
            let directory = shared.volumes.pod_directory(&uid);
            std::fs::create_dir_all(&directory).map_err(|e| format!("{}: {e}", directory.display()))?;
            own_users.then(|| shared.users.range(&uid)).transpose().map_err(|e| e.to_string())
        })
        .await?;
        let netns = match (&options.network, host_network) {
            (Some(network), false) => {
                let own = match user_namespace {
                    Some(range) => Some(network_of(range).await.map_err(|e| format!("user namespace: {e}"))?),
                    None => None,
                };
                let a = network.attach_namespace(&self.uid, own.as_ref()).await.map_err(|e| e.to_string())?;
                self.ip = Some(a.address.into());
                let wanted = ports::host_ports(spec);
                let published = match ports::of_node(&wanted, &options.own_ports) {
                    Some(port) => Err(format!("port {port} is the node's own")),
                    None => network.publish(&self.uid, &wanted).await.map_err(|e| e.to_string()),
                };
                if let Err(why) = published {
                    self.disconnect().await;
                    return Err(why);
                }
                Some(a.namespace)
            }
            _ => options.node_namespace.clone(),
        };
        let ip = self.ip.map(|ip| ip.to_string());
        let domain = &options.dns.domain;
        let hosts = if host_network {
            let node = blocking(|| std::fs::read_to_string("/etc/hosts").unwrap_or_default()).await;
            files::host_network_hosts(&pod, &node)
        } else {
            files::hosts(&pod, ip.as_deref(), domain)
        };
        let hostname = match (host_network, spec.set_hostname_as_fqdn, files::fqdn(&pod, domain)) {
            (true, ..) => options.hostname.clone(),
            (_, Some(true), Some(full)) => full,
            _ => files::hostname(&pod),
        };
        let security = spec.security_context.as_ref();
        let sysctls = security.and_then(|s| s.sysctls.as_ref()).into_iter().flatten();
        let pid = match (spec.host_pid, spec.share_process_namespace) {
            (Some(true), _) => PidMode::Host,
            (_, Some(true)) => PidMode::Pod,
            _ => PidMode::Container,
        };
        let qos = resources::qos(spec);
        let m = &pod.metadata;
        let config = PodConfig {
            id: format!("{}-{attempt}", self.uid),
            name: text(&m.name).to_owned(),
            namespace: text(&m.namespace).to_owned(),
            uid: self.uid.clone(),
            attempt,
            hostname,
            netns,
            pid,
            host_ipc: spec.host_ipc == Some(true),
            user_namespace,
            sysctls: sysctls.map(|s| (s.name.clone(), s.value.clone())).collect(),
            resolv_conf: Some(files::resolv_conf(&pod, &options.dns)),
            hosts: Some(hosts),
            cgroup_parent: qos.cgroup(&self.uid),
            resources: resources::pod(spec, options.pod_pids_limit),
            labels: container::labels(&pod),
            annotations: BTreeMap::new(),
            log_directory: self.log_directory(),
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

    /// Takes a pod off the network that could not start. (The first error is the one to tell.)
    async fn disconnect(&mut self) {
        if let Some(network) = &self.shared.options.network {
            let _ = network.detach(&self.uid).await;
            self.ip = None;
        }
    }

    /// `LOGS/NAMESPACE_NAME_UID`, as kubelet names it.
    pub(super) fn log_directory(&self) -> PathBuf {
        let m = &self.pod.metadata;
        self.shared.options.log_dir.join(format!("{}_{}_{}", text(&m.namespace), text(&m.name), self.uid))
    }

    /// The directories of the pod's volumes; `None` if one cannot be made yet, which is told.
    pub(super) async fn volumes(&mut self, plan: &Plan) -> Option<BTreeMap<String, PathBuf>> {
        let now = self.now();
        if self.holds.get(VOLUMES).is_some_and(|h| h.until > now) {
            return None;
        }
        let shared = self.shared.clone();
        let node = self.node();
        match shared.volumes.set_up(&self.pod, &*shared.objects, &*shared.tokens, &node).await {
            Ok(v) => {
                self.holds.remove(VOLUMES);
                Some(v)
            }
            Err(e) => {
                self.hold(VOLUMES, FIRST_RETRY, LAST_RETRY);
                self.event(None, Severity::Warning, "FailedMount", e.to_string());
                tracing::debug!(pod = %self.name(), containers = plan.start.len(), "waiting for volumes: {e}");
                None
            }
        }
    }

    /// Starts one container. Whether something was done, so that it is worth looking again.
    pub(super) async fn start(
        &mut self,
        name: &str,
        role: Role,
        seen: &Observed,
        volumes: &BTreeMap<String, PathBuf>,
    ) -> bool {
        let Some(spec) = self.spec_of(name) else { return false };
        let before = seen.newest.get(name);
        let id = match before.filter(|c| c.state == ContainerState::Created && c.pod == seen.id()) {
            Some(c) => c.id.clone(),
            None => {
                let Some(image_user) = self.image(&spec).await else { return false };
                let attempt = before.map_or(0, |c| c.attempt + 1);
                match self.create(&spec, attempt, seen.id(), &image_user, volumes).await {
                    Ok(id) => id,
                    Err((reason, message)) => {
                        self.event(Some(name), Severity::Warning, "Failed", format!("Error: {message}"));
                        // When an object that it needs changes, it is not held any more.
                        self.hold(name, SYNC_RETRY, SYNC_RETRY);
                        self.waiting.insert(name.to_owned(), Waiting { reason: reason.to_owned(), message });
                        return false;
                    }
                }
            }
        };
        if let Some(before) = before.filter(|c| c.id != id) {
            self.backoffs.started(name, ended_at(before), self.now());
        }
        self.holds.remove(name);
        self.waiting.remove(name);
        let kind = match role {
            Role::Init | Role::Sidecar => "init_container",
            Role::App => "container",
            Role::Ephemeral => "ephemeral_container",
        };
        let runtime = self.shared.options.runtime.clone();
        let Some(started) = unless_ending(self.inbox.clone(), runtime.start_container(&id)).await else {
            // Other containers of the pod may hold its process up, which then takes no notice of signals either.
            if self.is_ending()
                && let Err(error) = runtime.stop_container(&id, Duration::ZERO).await
            {
                tracing::warn!(container = id, %error, "ending a start");
            }
            return true;
        };
        self.shared.known.container_started(kind, started.as_ref().err().map(|_| "RunContainerError"));
        match started {
            Ok(()) => self.event(Some(name), Severity::Normal, "Started", "Container started"),
            Err(e) => {
                let message = e.to_string();
                self.event(Some(name), Severity::Warning, "Failed", format!("Error: {message}"));
                self.waiting.insert(name.to_owned(), Waiting { reason: "RunContainerError".into(), message });
                // The record of the failed start is what the back-off counts from.
                self.drop_old(name, &id).await;
                return true;
            }
        }
        self.drop_old(name, &id).await;
        // A hook may take as long as it wants.
        self.place = None;
        if role != Role::Init
            && let Some(hook) = spec.lifecycle.as_ref().and_then(|l| l.post_start.as_ref())
        {
            self.post_start(hook.clone(), &spec, &id).await;
        }
        true
    }

    async fn post_start(&mut self, hook: k8s_openapi::api::core::v1::LifecycleHandler, spec: &Spec, id: &str) {
        let options = &self.shared.options;
        let (ip, ns) = (self.probe_ip(), options.node_namespace.clone());
        let names = self.names();
        let run = hooks::run(&hook, &options.runtime, id, spec, ip, ns, &names);
        let done = unless_ending(self.inbox.clone(), run).await;
        let done = done.unwrap_or_else(|| Err("the pod is being deleted".into()));
        if let Err(why) = done {
            let name = &spec.name;
            tracing::debug!(pod = %self.name(), container = name, why, "postStart failed");
            self.event(Some(name), Severity::Warning, "FailedPostStartHook", "PostStartHook failed");
            self.event(Some(name), Severity::Normal, "Killing", "FailedPostStartHook");
            let grace = self.grace();
            self.stop_container(id, spec, grace).await;
        }
    }

    /// Makes sure that the image is there. Gives its user; `None` if it is not there, which is told.
    async fn image(&mut self, spec: &Spec) -> Option<String> {
        let image = text(&spec.image).to_owned();
        let name = spec.name.as_str();
        let (host, wanted) = (self.shared.options.host.clone(), image.clone());
        match blocking(move || host.image(&wanted)).await {
            Ok(found) => {
                let message =
                    format!("Container image \"{image}\" already present on machine and can be accessed by the pod");
                self.event(Some(name), Severity::Normal, "Pulled", message);
                self.pulls.forget(&image);
                return Some(found.config.user);
            }
            Err(error) => {
                let never = spec.image_pull_policy.as_deref() == Some("Never");
                let invalid = matches!(error, runtime::image::Error::Name { .. });
                let (now, mut look) = (self.now(), SYNC_RETRY);
                let (reason, message) = if invalid {
                    let m = format!("Failed to apply default image tag \"{image}\": {error}");
                    self.event(Some(name), Severity::Warning, "InspectFailed", m.clone());
                    ("InvalidImageName", m)
                } else if never {
                    let m = format!("Container image \"{image}\" is not present with pull policy of Never");
                    self.event(Some(name), Severity::Warning, "ErrImageNeverPull", m.clone());
                    ("ErrImageNeverPull", m)
                } else if let Some(failure) = self.pulls.backs_off(&image, now) {
                    let m = format!("Back-off pulling image \"{image}\"");
                    let message = format!("{m}: ErrImagePull: {failure}");
                    self.event(Some(name), Severity::Normal, "BackOff", m);
                    look = self.pulls.next_look(&image, false, now);
                    ("ImagePullBackOff", message)
                } else {
                    let m = format!(
                        "failed to pull image \"{image}\": it is not on this node, and this node has no registry to get it from"
                    );
                    self.event(Some(name), Severity::Normal, "Pulling", format!("Pulling image \"{image}\""));
                    let failed = format!("Failed to pull image \"{image}\": {m}");
                    self.event(Some(name), Severity::Warning, "Failed", failed);
                    self.pulls.failed(&image, &m, now);
                    look = self.pulls.next_look(&image, true, now);
                    ("ErrImagePull", m)
                };
                self.event(Some(name), Severity::Warning, "Failed", format!("Error: {reason}"));
                self.hold(name, look, look);
                self.waiting.insert(name.to_owned(), Waiting { reason: reason.to_owned(), message });
            }
        }
        None
    }

    /// The variables for services.
    fn service_variables(&self) -> Result<BTreeMap<String, String>, env::TooLong> {
        let links = self.pod.spec.as_ref().and_then(|s| s.enable_service_links) != Some(false);
        let namespace = text(&self.pod.metadata.namespace);
        let known = self.shared.services.cache();
        let own = known.in_namespace(namespace).filter(|_| links);
        let api = known.get(&Key::new("default", "kubernetes"));
        let services = own.chain(api).map(|e| (&*e.meta.namespace, &*e.meta.name, &e.view));
        env::of_services(services, namespace, links)
    }

    /// Creates the container; an error is a reason and a message.
    async fn create(
        &mut self,
        spec: &Spec,
        attempt: u32,
        sandbox: &str,
        image_user: &str,
        volumes: &BTreeMap<String, PathBuf>,
    ) -> Result<String, (&'static str, String)> {
        const CONFIG: &str = "CreateContainerConfigError";
        let options = &self.shared.options;
        let pod = self.pod.clone();
        let services = self.service_variables().map_err(|e| (CONFIG, e.to_string()))?;
        let node = self.node();
        let environment = env::build(&pod, spec, &*self.shared.objects, &services, &node)
            .await
            .map_err(|e| (CONFIG, e.to_string()))?;
        for (from, names) in &environment.skipped {
            let message = format!(
                "Keys [{}] from the EnvFrom {from} were skipped since they are considered invalid environment variable names.",
                names.join(", ")
            );
            self.event(Some(&spec.name), Severity::Warning, "InvalidEnvironmentVariableNames", message);
        }
        let mounts = volumes::mounts(&pod, spec, volumes, &environment.variables).await;
        let mounts = mounts.map_err(|e| (CONFIG, e.to_string()))?;
        let (shared, spec_of, image_user) = (self.shared.clone(), spec.clone(), image_user.to_owned());
        // It reads the kernel's settings, and the file of a seccomp profile.
        let config = blocking(move || {
            let options = &shared.options;
            container::config(container::Parts {
                pod: &pod,
                container: &spec_of,
                attempt,
                env: environment.variables,
                mounts,
                image_user: &image_user,
                node_memory: shared.memory,
                seccomp_root: options.data_dir.join("seccomp"),
                seccomp_default: options.seccomp_default,
                host: security::Host::read(options),
            })
        });
        let config = config.await.map_err(|e| (CONFIG, e.to_string()))?;
        match options.runtime.create_container(sandbox, config).await {
            Ok(id) => {
                self.event(Some(&spec.name), Severity::Normal, "Created", "Container created");
                Ok(id)
            }
            Err(e) => Err(("CreateContainerError", e.to_string())),
        }
    }

    /// Of each container the newest and the one before it are kept.
    async fn drop_old(&mut self, name: &str, newest: &str) {
        let Ok(seen) = self.observe().await else { return };
        let previous = seen.previous.get(name).map(|c| c.id.clone()).unwrap_or_default();
        for old in seen.all.iter().filter(|c| c.name == name && c.id != newest && c.id != previous) {
            let log = old.log_path.clone();
            blocking(move || runtime::rotation::remove(&log)).await;
            if let Err(error) = self.shared.options.runtime.remove_container(&old.id).await {
                tracing::debug!(container = old.id, %error, "removing an old container");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A container with a wrong configuration was tried again after one second, two, four, and made an event each time.
    #[test]
    fn tries_are_as_far_apart_as_upstreams() {
        let delays = |first, last| {
            let mut before = None;
            let mut next = || {
                before = Some(next_delay(before, first, last));
                before.unwrap_or_default().as_secs()
            };
            [(); 4].map(|()| next())
        };
        assert_eq!(delays(SYNC_RETRY, SYNC_RETRY), [10, 10, 10, 10]);
        assert_eq!(delays(FIRST_RETRY, LAST_RETRY), [1, 2, 4, 8]);
    }
}
