//! Starts the containers of the pod.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use client::{Key, Severity};
use k8s_openapi::api::core::v1::{Container as Spec, LifecycleHandler};
use runtime::{ContainerConfig, ContainerState};
use supervisor::blocking;

use super::observe::Observed;
use super::{Worker, unless_ending};
use crate::cdi;
use crate::devices::Needs;
use crate::pod::backoff::key_of;
use crate::pod::holds::SYNC_RETRY;
use crate::pod::plan::{Role, ended_at};
use crate::pod::spec::text;
use crate::pod::status::Waiting;
use crate::pod::{container, hooks, security};
use crate::{env, volumes};

impl Worker {
    /// Starts one container. Returns whether the runtime's state may have changed.
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
                let Some(image_user) = self.images(&spec).await else { return false };
                let attempt = before.map_or(0, |c| c.attempt + 1);
                let created = self.create(&spec, attempt, seen, &image_user, volumes).await;
                self.pulls.forget_ready(name);
                match created {
                    Ok(id) => id,
                    Err((reason, message)) => {
                        self.event(Some(name), Severity::Warning, "Failed", format!("Error: {message}"));
                        // A change of an object that it references ends the hold.
                        let now = self.now();
                        self.holds.hold(name, SYNC_RETRY, SYNC_RETRY, now);
                        self.waiting.insert(name.to_owned(), Waiting { reason: reason.to_owned(), message });
                        return false;
                    }
                }
            }
        };
        if let Some(before) = before.filter(|c| c.id != id) {
            self.backoffs.started(&key_of(name, spec.image.as_deref()), ended_at(before), self.now());
        }
        self.holds.release(name);
        self.waiting.remove(name);
        let kind = match role {
            Role::Init | Role::Sidecar => "init_container",
            Role::App => "container",
            Role::Ephemeral => "ephemeral_container",
        };
        let runtime = self.shared.options.runtime.clone();
        let Some(started) = unless_ending(self.inbox.clone(), runtime.start_container(&id)).await else {
            // Other containers of the pod may block its process, which then ignores signals as well.
            if self.is_ending()
                && let Err(error) = runtime.stop_container(&id, Duration::ZERO).await
            {
                tracing::warn!(container = id, %error, "stopping a container that starts failed");
            }
            return true;
        };
        self.shared.known.container_started(kind, started.as_ref().err().map(|_| "RunContainerError"));
        match started {
            Ok(()) => self.event(Some(name), Severity::Normal, "Started", "Container started"),
            Err(e) => {
                self.shared.known.user_namespace_failed(self.has_own_users());
                let message = e.to_string();
                self.event(Some(name), Severity::Warning, "Failed", format!("Error: {message}"));
                self.waiting.insert(name.to_owned(), Waiting { reason: "RunContainerError".into(), message });
                // The back-off counts from the record of the failed start.
                self.drop_old(name, &id).await;
                return true;
            }
        }
        self.drop_old(name, &id).await;
        // A hook may take arbitrarily long.
        self.start_permit = None;
        if role != Role::Init
            && let Some(hook) = spec.lifecycle.as_ref().and_then(|l| l.post_start.as_ref())
        {
            self.post_start(hook.clone(), &spec, &id).await;
        }
        true
    }

    async fn post_start(&mut self, hook: LifecycleHandler, spec: &Spec, id: &str) {
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

    /// The variables of services.
    fn service_variables(&self) -> Result<BTreeMap<String, String>, env::TooLong> {
        let links = self.pod.spec.as_ref().and_then(|s| s.enable_service_links) != Some(false);
        let namespace = text(&self.pod.metadata.namespace);
        let known = self.shared.services.cache();
        let own = known.in_namespace(namespace).filter(|_| links);
        let api = known.get(&Key::new("default", "kubernetes"));
        let services = own.chain(api).map(|e| (&*e.meta.namespace, &*e.meta.name, &e.view));
        env::service_variables(services, namespace, links)
    }

    /// The id of the container that an ephemeral container targets, as it is now. Errors if it has never been created.
    fn target_of(&self, name: &str, seen: &Observed) -> Result<Option<String>, String> {
        let ephemeral = self.pod.spec.iter().flat_map(|s| s.ephemeral_containers.iter().flatten());
        let targets = ephemeral.filter(|c| c.name == name).filter_map(|c| c.target_container_name.as_deref());
        let Some(target) = targets.into_iter().find(|target| !target.is_empty()) else { return Ok(None) };
        let found = seen.newest.get(target).map(|c| Some(c.id.clone()));
        found.ok_or_else(|| format!("unable to find target container {target}"))
    }

    /// Creates the container and returns its id. An error is a reason and a message.
    async fn create(
        &mut self,
        spec: &Spec,
        attempt: u32,
        seen: &Observed,
        image_user: &str,
        volumes: &BTreeMap<String, PathBuf>,
    ) -> Result<String, (&'static str, String)> {
        const CONFIG: &str = "CreateContainerConfigError";
        let options = &self.shared.options;
        let pod = self.pod.clone();
        let target = self.target_of(&spec.name, seen).map_err(|message| (CONFIG, message))?;
        let services = self.service_variables().map_err(|e| (CONFIG, e.to_string()))?;
        let node = self.node();
        let environment = env::build(&pod, spec, &*self.shared.objects, &services, volumes, &node)
            .await
            .map_err(|e| (CONFIG, e.to_string()))?;
        for (from, names) in &environment.skipped {
            let message = format!(
                "Keys [{}] from the EnvFrom {from} were skipped since they are considered invalid environment variable names.",
                names.join(", ")
            );
            self.event(Some(&spec.name), Severity::Warning, "InvalidEnvironmentVariableNames", message);
        }
        let mounts =
            volumes::mounts(&pod, spec, volumes, &environment.variables, seen.handler(&*options.runtime)).await;
        let mounts = mounts.map_err(|e| (CONFIG, e.to_string()))?;
        let devices = volumes::devices(&pod, spec, volumes).map_err(|e| (CONFIG, e.to_string()))?;
        let (shared, spec_of, image_user) = (self.shared.clone(), spec.clone(), image_user.to_owned());
        // It reads the settings of the kernel and the file of a seccomp profile.
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
                page_sizes: &shared.page_sizes,
                seccomp_root: options.data_dir.join("seccomp"),
                seccomp_default: options.configuration.seccomp_default(),
                log_limits: options.configuration.log_limits(),
                stop_signals: options.configuration.has_stop_signals(),
                oom_group: options.configuration.kills_containers(),
                target,
                host: security::Host::read(options),
            })
        });
        let mut config = config.await.map_err(|e| (CONFIG, e.to_string()))?;
        self.shared.managers.apply(&self.uid, &spec.name, &mut config.resources);
        config.devices.extend(devices);
        self.add_devices(spec, &mut config).await.map_err(|e| (CONFIG, e))?;
        match options.runtime.create_container(seen.id(), config).await {
            Ok(id) => {
                self.event(Some(&spec.name), Severity::Normal, "Created", "Container created");
                Ok(id)
            }
            Err(e) => Err(("CreateContainerError", e.to_string())),
        }
    }

    /// Adds to a container what its devices need.
    async fn add_devices(&self, spec: &Spec, config: &mut ContainerConfig) -> Result<(), String> {
        let Needs { edits, annotations, mut cdi } = self.shared.managers.devices.start(&self.pod, spec).await?;
        // The name of a claim is in the status, which the API has.
        cdi.extend(self.shared.dra.cdi(&self.with_status(), spec));
        edits.add_to(config);
        config.annotations.extend(annotations);
        if self.shared.options.runtime.applies_cdi() {
            config.cdi_devices = cdi;
        } else if !cdi.is_empty() {
            let directories = self.shared.options.cdi_directories.clone();
            let edits = blocking(move || cdi::Registry::read(&directories).edits(&cdi)).await;
            edits.map_err(|e| e.to_string())?.replace_in(config);
        }
        Ok(())
    }
}
