//! The hooks that run in the namespaces of the agent, and what hooks get to know of a container.
//!
//! A container whose `prestart` and `createRuntime` hooks run waits for this agent: if the agent ends, its start has failed. `poststart` hooks have
//! a mark on the disk from before the container starts until they have ended, so that the next agent runs them. `poststop`
//! hooks run when nothing of the container is left but its files, by whichever agent removes it. The record is deleted right after them, so
//! they run once, or again if an agent was killed meanwhile.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::shim_link::Link;
use super::{ContainerEntry, Inner, blocking};
use crate::api::{ContainerConfig, ContainerState, Error, Hook, MountSource, Resources, Result};
use crate::cgroup::{self, Hierarchies};
use crate::hooks::{HookCgroup, Stage, State, Within};
use crate::records;
use crate::spec::{BUNDLE, Call, ContainerRecord, ContainerSummary};

/// The cgroup of hooks, below the prefix; each of them has its own below that.
const CGROUP: &str = "hooks";
/// The file in the directory of a container whose `poststart` hooks have not ended.
const POSTSTART: &str = "poststart";
/// The part of a cgroup's name for hooks before a container starts.
const CREATE: &str = "create";

/// Refuses hooks that could not be run.
pub(super) fn check(config: &ContainerConfig, shim_has_hooks: bool) -> Result<()> {
    let invalid = |message: String| Err(Error::Invalid { field: "hook", message });
    if config.hooks.is_empty() {
        return Ok(());
    }
    if let Some(Hook { path, .. }) = config.hooks.iter().find(|h| !h.path.is_absolute()) {
        return invalid(format!("{path:?} is not absolute"));
    }
    if let Some(Hook { path, .. }) = config.hooks.iter().find(|h| h.timeout == Some(0)) {
        return invalid(format!("{}: the timeout is 0", path.display()));
    }
    if !shim_has_hooks {
        return invalid("the sandbox was started by an earlier release, which runs none; delete the pod".into());
    }
    Ok(())
}

/// Writes the bundle: a configuration as the OCI runtime specification has it, with what hooks read, above all the path of the root.
pub(super) fn write_bundle(record: &ContainerRecord, directory: &Path) -> std::io::Result<()> {
    let config = &record.config;
    let mounts = record.mounts.iter().filter_map(|mount| {
        let source = match &mount.source {
            MountSource::Host(path) => path.clone(),
            MountSource::Below { root, path } => root.join(path),
            MountSource::Image { .. } | MountSource::Tmpfs { .. } => return None,
        };
        let access = if mount.read_only { "ro" } else { "rw" };
        Some(json!({"destination": mount.target, "type": "bind", "source": source, "options": ["rbind", access]}))
    });
    let user = record.user.clone().unwrap_or_default();
    let variables: Vec<String> = record.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let bundle = json!({
        "ociVersion": "1.2.1",
        "hostname": record.hostname,
        "root": {"path": directory.join("rootfs"), "readonly": config.security.read_only_rootfs},
        "process": {
            "terminal": config.tty, "args": record.argv, "env": variables, "cwd": record.cwd,
            "user": {"uid": user.uid, "gid": user.gid, "additionalGids": user.groups},
            "noNewPrivileges": config.security.no_new_privileges,
        },
        "mounts": mounts.collect::<Vec<_>>(),
        "annotations": config.annotations,
        "hooks": config.hooks,
        "linux": {},
    });
    let path = directory.join(BUNDLE);
    std::fs::create_dir_all(&path)?;
    // The directories above are root's alone.
    std::fs::write(path.join("config.json"), bundle.to_string())
}

/// A container, for hooks that run outside of it.
struct Subject {
    record: Arc<ContainerSummary>,
    directory: PathBuf,
    limit: Duration,
    /// For a cgroup of its own; without it the hook stays in that of the caller.
    cgroup: Option<(Hierarchies, String)>,
}

impl Subject {
    /// Does something with hooks of a moment. Blocks.
    fn with<T>(
        &self,
        name: &'static str,
        hooks: &[Hook],
        status: &'static str,
        pid: Option<i32>,
        run: impl FnOnce(&Stage) -> T,
    ) -> Result<T> {
        let bundle = self.directory.join(BUNDLE);
        let state = State::new((&self.record.id, &bundle), &self.record.config.annotations, status, pid);
        let stage = |within| Stage { name, hooks, state, within, limit: self.limit };
        let Some((hierarchies, path)) = &self.cgroup else { return Ok(run(&stage(Within::Caller))) };
        hierarchies.create(path, &Resources::default()).map_err(Error::io(format!("cgroup {path}")))?;
        let cgroup = HookCgroup::open(hierarchies.directories(path)).map_err(Error::io(format!("cgroup {path}")))?;
        let result = run(&stage(Within::Cgroup(&cgroup)));
        let removed = super::cleaning::retry_here(|| hierarchies.remove(path));
        if let Err(error) = removed {
            tracing::warn!(cgroup = path, %error, "removing the cgroup of a hook failed");
        }
        Ok(result)
    }

    /// Runs hooks whose failure changes nothing. Blocks.
    fn run_all(&self, name: &'static str, hooks: &[Hook], status: &'static str, pid: Option<i32>) {
        if hooks.is_empty() {
            return;
        }
        let errors =
            self.with(name, hooks, status, pid, |stage| stage.run_all()).unwrap_or_else(|e| vec![e.to_string()]);
        for error in errors {
            tracing::warn!(container = self.record.id, error, "a hook of a container failed");
        }
    }
}

impl Inner {
    fn hook_cgroup(&self, container: &str, moment: &str) -> String {
        self.cgroup(&format!("{CGROUP}/{container}-{moment}"))
    }

    /// Ends hooks for which a container waits that is being stopped.
    pub(super) fn end_create_hooks(&self, record: &ContainerSummary) {
        if record.config.hooks.has_runtime() {
            cgroup::kill_all(&self.hierarchies.directories(&self.hook_cgroup(&record.id, CREATE)));
        }
    }

    fn subject(&self, record: Arc<ContainerSummary>, moment: &str) -> Subject {
        let path = self.hook_cgroup(&record.id, moment);
        Subject {
            directory: self.container_directory(&record.pod, &record.id),
            limit: self.options.start_timeout,
            cgroup: Some((self.hierarchies.clone(), path)),
            record,
        }
    }

    /// Runs the hooks for which a container waits, and tells its shim.
    pub(super) async fn run_create_hooks(self: Arc<Self>, container: String, pid: i32, link: Arc<Link>) {
        let ran = async {
            let subject = self.subject(self.container(&container)?.record, CREATE);
            blocking(move || {
                let hooks = subject.record.config.hooks.clone();
                for (name, hooks) in [("prestart", &hooks.prestart), ("createRuntime", &hooks.create_runtime)] {
                    if hooks.is_empty() {
                        continue;
                    }
                    if let Err(error) = subject.with(name, hooks, "creating", Some(pid), |stage| stage.run())? {
                        return Ok(Some(error));
                    }
                }
                Ok(None)
            })
            .await
        };
        let error = ran.await.unwrap_or_else(|e| Some(e.to_string()));
        // Without the shim, or if its start was ended meanwhile, the container is gone.
        let _ = link.call(Call::Proceed { container, error }).await;
    }

    fn poststart_mark(&self, record: &ContainerSummary) -> PathBuf {
        self.container_directory(&record.pod, &record.id).join(POSTSTART)
    }

    /// Notes that the `poststart` hooks of a container are to be run.
    pub(super) async fn expect_poststart(&self, record: &ContainerSummary) -> Result<()> {
        if record.config.hooks.poststart.is_empty() {
            return Ok(());
        }
        let mark = self.poststart_mark(record);
        blocking(move || std::fs::write(&mark, "").map_err(Error::io(mark.display().to_string()))).await
    }

    /// Runs the `poststart` hooks of a container that runs, unless they have been run.
    pub(super) async fn run_poststart(
        &self,
        record: &Arc<ContainerSummary>,
        turn: &tokio::sync::Mutex<()>,
        pid: Option<i32>,
    ) -> Result<()> {
        if record.config.hooks.poststart.is_empty() {
            return Ok(());
        }
        // A container that an earlier agent was about to start may be started by this one.
        let _guard = turn.lock().await;
        let (subject, mark) = (self.subject(record.clone(), "poststart"), self.poststart_mark(record));
        blocking(move || {
            if !mark.exists() {
                return Ok(());
            }
            subject.run_all("poststart", &subject.record.config.hooks.poststart, "running", pid);
            // The container may have been removed meanwhile.
            let _ = std::fs::remove_file(mark);
            Ok(())
        })
        .await
    }

    /// Runs the `poststart` hooks that an earlier agent has not run to their end. A container that it was starting is waited for.
    pub(super) fn resume_poststart(self: &Arc<Self>, pod: &str) {
        let containers: Vec<_> = self.state().containers_in(pod).cloned().collect();
        for ContainerEntry { record, state, poststart } in containers {
            if record.config.hooks.poststart.is_empty() || !self.poststart_mark(&record).exists() {
                continue;
            }
            let (inner, mut state) = (self.clone(), state.subscribe());
            tokio::spawn(async move {
                let started = state.wait_for(|s| s.state != ContainerState::Created).await;
                // Without a sender it is removed.
                let Ok(pid) = started.map(|s| (s.state == ContainerState::Running).then_some(s.pid)) else { return };
                let Some(pid) = pid else { return };
                if let Err(error) = inner.run_poststart(&record, &poststart, pid).await {
                    tracing::warn!(container = record.id, %error, "running the poststart hooks of a container failed");
                }
            });
        }
    }

    /// Runs the `poststop` hooks of a container of which only files are left.
    pub(super) async fn run_poststop(&self, record: &Arc<ContainerSummary>) -> Result<()> {
        if record.config.hooks.poststop.is_empty() {
            return Ok(());
        }
        let subject = self.subject(record.clone(), "poststop");
        blocking(move || poststop(&subject)).await
    }

    /// Ends hooks of an agent that was killed.
    pub(super) fn end_abandoned_hooks(&self) {
        let path = self.cgroup(CGROUP);
        let removed = super::cleaning::retry_here(|| {
            cgroup::kill_all(&self.hierarchies.directories(&path));
            self.hierarchies.remove(&path)
        });
        if let Err(error) = removed {
            tracing::warn!(cgroup = path, %error, "ending hooks of an earlier agent failed");
        }
    }
}

/// Once: a container without a record has had them.
fn poststop(subject: &Subject) -> Result<()> {
    let record = subject.directory.join("config.json");
    if record.exists() {
        subject.run_all("poststop", &subject.record.config.hooks.poststop, "stopped", None);
        std::fs::remove_file(&record).map_err(Error::io(record.display().to_string()))?;
    }
    Ok(())
}

/// Runs the `poststop` hooks of all containers below a directory of pods, of which nothing runs any more. Blocks.
pub(super) fn poststop_all(pods: &Path, limit: Duration) {
    let entries = |path: PathBuf| std::fs::read_dir(path).into_iter().flatten().flatten().map(|e| e.path());
    for directory in entries(pods.to_owned()).flat_map(|pod| entries(pod.join("containers"))) {
        let Ok(Some(record)) = records::read_part::<ContainerSummary>(&directory.join("config.json")) else { continue };
        if !record.config.hooks.poststop.is_empty() {
            let _ = poststop(&Subject { record: Arc::new(record), directory, limit, cgroup: None });
        }
    }
}
