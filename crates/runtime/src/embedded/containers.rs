//! Containers: creates the record from which a shim starts them, then starts, stops and removes them.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::arguments;
use super::cleaning::retry;
use super::pods::STOP_TIMEOUT;
use super::{ContainerEntry, Inner, PodEntry, blocking, hooks, remove_directory};
use crate::api::*;
use crate::cgroup::{self, Devices};
use crate::devices::DeviceNode;
use crate::image::{Image, Sha256};
use crate::records::{self, VERSION};
use crate::shim::{EMPTY_LAYER, MAX_ACCOUNTS, resolve_user};
use crate::spec::{Call, ContainerRecord, ContainerSummary, MountedImage, PodRecord, StateRecord};
use crate::{beneath, image, seccomp};

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

impl ContainerEntry {
    pub(super) fn describe(&self) -> Container {
        let (record, state) = (&self.record, self.state.borrow());
        Container {
            id: record.id.clone(),
            pod: record.pod.clone(),
            name: record.config.name.clone(),
            attempt: record.config.attempt,
            image: record.config.image.clone(),
            image_id: record.image_id.clone(),
            user: record.user.clone(),
            mounted_images: record.mounted_images.values().map(|image| image.id.clone()).collect(),
            stop_signal: signal_name(record.stop_signal),
            state: state.state,
            pid: state.pid,
            created_at: record.created_at,
            started_at: state.started_at,
            finished_at: state.finished_at,
            exit_code: state.exit_code,
            signal: state.signal,
            reason: state.reason.clone(),
            message: state.message.clone(),
            termination_message_file: record.termination_message_file.clone(),
            log_path: record.log_path.clone(),
            labels: record.config.labels.clone(),
            annotations: record.config.annotations.clone(),
        }
    }
}

impl Inner {
    pub(super) fn create_container(&self, pod: &str, config: ContainerConfig) -> Result<String> {
        let entry = self.pod(pod)?;
        if entry.link.is_none() {
            return Err(Error::ShimGone { pod: pod.to_owned() });
        }
        hooks::check(&config, entry.shim.as_ref().is_some_and(|s| s.has_hooks))?;
        self.check_target(&config, &entry)?;
        let image = match self.images.resolve(&config.image) {
            Ok(image) => image,
            Err(image::Error::NotFound(_)) => {
                let message = "it is not on this node".to_owned();
                return Err(Error::ImagePull { image: config.image, message });
            }
            Err(e) => return Err(e.into()),
        };
        let created_at = self.now();
        let id = {
            let mut hash = Sha256::new();
            hash.update(format!("{pod}/{}/{}/{}.{}", config.name, config.attempt, created_at.secs, created_at.nanos));
            hash.finish()
        };
        let record = self.record(&entry.record, &image, id.clone(), created_at, config)?;
        {
            let mut state = self.state();
            let same = |c: &ContainerEntry| {
                c.record.config.name == record.config.name && c.record.config.attempt == record.config.attempt
            };
            if state.containers_in(pod).any(same) {
                let id = format!("{} (attempt {})", record.config.name, record.config.attempt);
                return Err(Error::AlreadyExists { what: "container", id });
            }
            let others = state.containers_in(pod).map(|c| &*c.record);
            arguments::check_pod(&record, others)?;
            let summary = Arc::new(record.summary());
            let entry = ContainerEntry::new(summary, StateRecord::created(&id));
            state.add_container(entry);
        }
        if let Err(e) = self.prepare(&record) {
            self.state().remove_container(&id);
            let _ = self.hierarchies.remove(&format!("{}/{id}", entry.record.cgroup));
            let _ = remove_directory(&self.container_directory(pod, &id));
            return Err(e);
        }
        Ok(id)
    }

    /// Refuses a container whose target it could not join.
    fn check_target(&self, config: &ContainerConfig, pod: &PodEntry) -> Result<()> {
        let Some(target) = config.target_container.as_ref() else { return Ok(()) };
        let invalid = |message| Err(Error::Invalid { field: "target container", message });
        if pod.record.config.pid != PidMode::Container {
            return Ok(());
        }
        if !pod.shim.as_ref().is_some_and(|s| s.has_targets) {
            return invalid("the sandbox was started by an earlier release, which joins none; delete the pod".into());
        }
        match self.container(target).ok().filter(|c| c.record.pod == pod.record.config.id) {
            None => invalid(format!("the sandbox has no container {target:?}")),
            Some(found) if found.state.borrow().state != ContainerState::Running => {
                invalid(format!("container {:?} is not running", found.record.config.name))
            }
            Some(_) => Ok(()),
        }
    }

    fn prepare(&self, record: &ContainerRecord) -> Result<()> {
        let directory = self.container_directory(&record.pod, &record.id);
        for name in ["upper", "work", "rootfs", EMPTY_LAYER] {
            let path = directory.join(name);
            std::fs::create_dir_all(&path).map_err(Error::io(path.display().to_string()))?;
        }
        // The mode of the container's root, regardless of the umask.
        let upper = directory.join("upper");
        std::fs::set_permissions(&upper, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .map_err(Error::io(upper.display().to_string()))?;
        if let Some(range) = record.user_namespace {
            // The writable layer cannot be mounted with mapped users.
            std::os::unix::fs::chown(&upper, Some(range.first), Some(range.first))
                .map_err(Error::io(upper.display().to_string()))?;
        }
        if let Some(path) = &record.termination_message_file {
            std::fs::write(path, b"").map_err(Error::io(path.display().to_string()))?;
            let everyone = std::os::unix::fs::PermissionsExt::from_mode(0o666);
            std::fs::set_permissions(path, everyone).map_err(Error::io(path.display().to_string()))?;
        }
        let pod = self.pod(&record.pod)?.record;
        let cgroup = format!("{}/{}", pod.cgroup, record.id);
        let is_alone = pod.config.pid == PidMode::Container && record.config.target_container.is_none();
        // Root of a user namespace could revert mount options, and cannot use other devices.
        let restricted = !record.config.security.privileged || record.user_namespace.is_some();
        let devices =
            if restricted && self.limits.device_rules { Devices::Plain(&record.devices) } else { Devices::Any };
        self.hierarchies
            .create_container(&cgroup, &record.config.resources, devices)
            .map_err(Error::io(format!("limits of container {:?}", record.config.name)))?;
        if !record.config.hooks.create_container.is_empty() && !is_alone {
            self.hierarchies.create_hooks(&cgroup).map_err(Error::io("cgroup of hooks"))?;
        }
        if !record.config.hooks.is_empty() {
            hooks::write_bundle(record, &directory).map_err(Error::io("bundle"))?;
        }
        records::write(&directory.join("config.json"), record).map_err(Error::io("config.json"))
    }

    /// The ids of a process of the image. The container resolves them again when it starts, since a volume may have other accounts.
    fn user(&self, image: &Image, security: &Security) -> Option<ContainerUser> {
        let read = |path: &str| {
            let files = image.layers.iter().rev().filter_map(|layer| {
                let layer = self.images.layers_root().join(layer);
                let file = beneath::Directory::open(&layer, beneath::Links::Inside).ok()?.read(Path::new(path)).ok()?;
                let mut text = Vec::new();
                file.take(MAX_ACCOUNTS).read_to_end(&mut text).ok()?;
                Some(String::from_utf8_lossy(&text).into_owned())
            });
            files.into_iter().next().unwrap_or_default()
        };
        let requested = (security.run_as_user, security.run_as_group);
        let groups = (security.supplemental_groups.as_slice(), security.strict_groups);
        let user = resolve_user(&image.config.user, requested, groups, &read("etc/passwd"), &read("etc/group")).ok()?;
        Some(ContainerUser { uid: user.uid, gid: user.gid, groups: user.groups })
    }

    /// The images among the sources of mounts. Errors if one is not present, or has no file at the path of a mount.
    fn mounted_images(&self, mounts: &[Mount]) -> Result<BTreeMap<String, MountedImage>> {
        let mut out = BTreeMap::new();
        for mount in mounts {
            let MountSource::Image { image: name, path } = &mount.source else { continue };
            let image = match self.images.resolve(name) {
                Ok(image) => image,
                Err(image::Error::NotFound(_)) => {
                    let message = "it is not on this node".to_owned();
                    return Err(Error::ImagePull { image: name.clone(), message });
                }
                Err(e) => return Err(e.into()),
            };
            let layers: Vec<String> = image.layers.iter().rev().cloned().collect();
            let has_path = |layer: &String| {
                let layer = beneath::Directory::open(&self.images.layers_root().join(layer), beneath::Links::Inside);
                layer.and_then(|layer| layer.resolve(path)).is_ok()
            };
            if !path.as_os_str().is_empty() && !layers.iter().any(has_path) {
                let (path, image) = (path.display().to_string(), name.clone());
                return Err(Error::ImageVolume {
                    image,
                    message: format!("path {path:?} does not exist in the image"),
                });
            }
            out.insert(name.clone(), MountedImage { id: image.reference(name).to_owned(), layers });
        }
        Ok(out)
    }

    fn record(
        &self,
        pod: &PodRecord,
        image: &Image,
        id: String,
        created_at: Timestamp,
        mut config: ContainerConfig,
    ) -> Result<ContainerRecord> {
        let invalid = |field, message: String| Error::Invalid { field, message };
        let argv = match (config.command.is_empty(), config.args.is_empty()) {
            (false, _) => [config.command.as_slice(), &config.args].concat(),
            (true, false) => [image.config.entrypoint.as_slice(), &config.args].concat(),
            (true, true) => [image.config.entrypoint.as_slice(), &image.config.cmd].concat(),
        };
        if argv.is_empty() {
            return Err(invalid("command", "neither the container nor its image names one".into()));
        }
        let env = environment(image, &config, &pod.config.hostname);
        arguments::check(&argv, &env, self.limits.arguments)
            .map_err(|message| Error::Start { container: config.name.clone(), message })?;
        // The record has their resolved values.
        (config.command, config.args, config.env) = Default::default();
        let mut requested = std::mem::take(&mut config.mounts);
        let requested_devices = std::mem::take(&mut config.devices);
        let security = &config.security;
        if security.unmasked_proc && pod.config.user_namespace.is_none() {
            return Err(invalid("/proc mount", "unmasked without a user namespace of the pod".into()));
        }
        let capabilities = self
            .limits
            .container_capabilities(security.privileged, &security.add_capabilities, &security.drop_capabilities)
            .map_err(|e| invalid("capabilities", e.to_string()))?;
        let seccomp = if security.privileged { None } else { seccomp::compile(&security.seccomp, &capabilities) }
            .transpose()
            .map_err(|e| invalid("seccomp profile", e.to_string()))?;
        let signal = config.stop_signal.as_deref().unwrap_or(&image.config.stop_signal);
        let stop_signal = parse_signal(signal).ok_or_else(|| invalid("stop signal", format!("{signal:?}")))?;
        let cwd =
            config.working_dir.clone().filter(|d| !d.is_empty()).unwrap_or_else(|| image.config.working_dir.clone());
        let directory = self.pod_directory(&pod.config.id);
        let own = directory.join("containers").join(&id);
        let termination_message_file = config.termination_message_path.as_ref().map(|_| own.join("termination-log"));
        for mount in &requested {
            if !mount.target.is_absolute() || mount.target.components().any(|c| c == std::path::Component::ParentDir) {
                return Err(invalid("mount path", format!("{:?} is not absolute", mount.target)));
            }
        }
        let mut devices = Vec::new();
        for request in requested_devices {
            let node = DeviceNode::read(&request);
            let mut node = node.map_err(|e| invalid("device", format!("{}: {e}", request.host.display())))?;
            let of_user = |id: Option<u32>| id.filter(|id| request.for_user && *id != 0);
            node.own(
                request.mode,
                request.uid.or_else(|| of_user(security.run_as_user)),
                request.gid.or_else(|| of_user(security.run_as_group)),
                pod.config.user_namespace,
            )
            .map_err(|e| invalid("device", format!("{}: {e}", request.host.display())))?;
            devices.push(node);
        }
        let mounted_images = self.mounted_images(&requested)?;
        let user = self.user(image, security);
        let mut mounts = Vec::new();
        let hosts = [("hostname", "/etc/hostname"), ("hosts", "/etc/hosts"), ("resolv.conf", "/etc/resolv.conf")];
        for (name, target) in hosts {
            let (source, is_default) = (directory.join(name), !requested.iter().any(|m| m.target == Path::new(target)));
            if is_default && source.exists() {
                let mut mount = Mount::bind(source, target);
                mount.read_only = security.read_only_rootfs;
                mounts.push(mount);
            }
        }
        if let (Some(target), Some(source)) = (&config.termination_message_path, &termination_message_file) {
            mounts.push(Mount::bind(source, target));
        }
        // Mounts are sorted so that parents come first.
        requested.sort_by_key(|m| m.target.components().count());
        mounts.extend(requested);
        let log_path = if config.log_path.as_os_str().is_empty() {
            PathBuf::new()
        } else {
            pod.config.log_directory.join(&config.log_path)
        };
        Ok(ContainerRecord {
            weight: arguments::weight(&argv, &env, &mounts),
            version: VERSION,
            pod: pod.config.id.clone(),
            created_at,
            image_id: image.reference(&config.image).to_owned(),
            layers_root: self.images.layers_root(),
            layers: image.layers.iter().rev().cloned().collect(),
            argv,
            env,
            cwd: if cwd.is_empty() { "/".into() } else { cwd },
            image_user: image.config.user.clone(),
            hostname: pod.config.hostname.clone(),
            mounts,
            user,
            mounted_images,
            devices,
            shm: if pod.config.host_ipc { "/dev/shm".into() } else { directory.join("shm") },
            user_namespace: pod.config.user_namespace,
            cgroups: self.hierarchies.process_directories(&format!("{}/{id}", pod.cgroup)),
            capabilities,
            oom_score_adj: config.oom_score_adj.clamp(self.limits.lowest_oom_score_adj, 1000),
            seccomp,
            stop_signal,
            log_path,
            termination_message_file,
            id,
            config,
        })
    }

    pub(super) fn container_cgroup(&self, record: &ContainerSummary) -> Result<String> {
        Ok(format!("{}/{}", self.pod(&record.pod)?.record.cgroup, record.id))
    }

    pub(super) async fn start_container(&self, id: &str) -> Result<()> {
        let entry = self.container(id)?;
        let state = entry.state.borrow().state;
        if state != ContainerState::Created {
            return Err(Error::State { container: id.to_owned(), state, expected: "created" });
        }
        let pod = &entry.record.pod;
        let gone = || Error::ShimGone { pod: pod.clone() };
        let limit = self.options.start_timeout;
        let link = self.link(pod)?;
        self.expect_poststart(&entry.record).await?;
        let message = match tokio::time::timeout(limit, link.call(Call::Start { container: id.to_owned() })).await {
            Ok(Some(Ok(()))) => {
                let pid = entry.state.borrow().pid;
                return self.run_poststart(&entry.record, &entry.poststart, pid).await;
            }
            Ok(Some(Err(message))) => message,
            Ok(None) => return Err(gone()),
            Err(_) => late(limit),
        };
        // If a process was created, its end is reported now; afterwards the status is complete.
        self.stop_container(id, Duration::ZERO).await?;
        let ended = entry.state.subscribe();
        let _ = tokio::time::timeout(Duration::from_secs(5), wait_ended(ended)).await;
        Err(Error::Start { container: entry.record.config.name.clone(), message })
    }

    /// Stops a container that runs or is being started. The latter is killed at once, since there is no program yet that handles a
    /// signal.
    pub(super) async fn stop_container(&self, id: &str, grace: Duration) -> Result<()> {
        let entry = self.container(id)?;
        let state = entry.state.borrow().state;
        if !matches!(state, ContainerState::Created | ContainerState::Running) {
            return Ok(());
        }
        let Ok(link) = self.link(&entry.record.pod) else { return Ok(()) };
        let signal = |signal, all| link.call(Call::Signal { container: id.to_owned(), signal, all });
        if state == ContainerState::Running && !grace.is_zero() {
            // It may have ended meanwhile. A shim that does not answer is ended below.
            let _ = tokio::time::timeout(STOP_TIMEOUT, signal(entry.record.stop_signal, false)).await;
            if tokio::time::timeout(grace, wait_ended(entry.state.subscribe())).await.is_ok() {
                return Ok(());
            }
        }
        self.end_create_hooks(&entry.record);
        let killed = async {
            let signalled = matches!(signal(libc::SIGKILL, true).await, Some(Ok(())));
            // Otherwise it may not have been started at all.
            if signalled || entry.state.borrow().state != ContainerState::Created {
                wait_ended(entry.state.subscribe()).await;
            }
        };
        if tokio::time::timeout(STOP_TIMEOUT, killed).await.is_err()
            && let Ok(pod) = self.pod(&entry.record.pod)
        {
            cgroup::kill_all(&entry.record.cgroups);
            if let Some(shim) = &pod.shim {
                shim.kill();
            }
            let _ = tokio::time::timeout(STOP_TIMEOUT, wait_ended(entry.state.subscribe())).await;
        }
        Ok(())
    }

    pub(super) async fn remove_container(self: Arc<Self>, id: &str) -> Result<()> {
        let Ok(entry) = self.container(id) else { return Ok(()) };
        self.stop_container(id, Duration::ZERO).await?;
        let record = entry.record;
        if let Ok(link) = self.link(&record.pod) {
            link.call(Call::Forget { container: id.to_owned() }).await;
        }
        if let Ok(cgroup) = self.container_cgroup(&record) {
            let (hierarchies, path) = (self.hierarchies.clone(), cgroup.clone());
            retry(move || hierarchies.remove(&path)).await.map_err(Error::io(format!("cgroup {cgroup}")))?;
        }
        self.run_poststop(&record).await?;
        let directory = self.container_directory(&record.pod, &record.id);
        blocking(move || remove_directory(&directory)).await?;
        self.state().remove_container(id);
        Ok(())
    }

    pub(super) async fn reopen_log(&self, id: &str) -> Result<()> {
        let entry = self.container(id)?;
        match self.link(&entry.record.pod)?.call(Call::ReopenLog { container: id.to_owned() }).await {
            Some(Ok(())) => Ok(()),
            Some(Err(message)) => Err(Error::io("log")(std::io::Error::other(message))),
            None => Err(Error::ShimGone { pod: entry.record.pod.clone() }),
        }
    }

    pub(super) fn container_stats(&self, entry: &ContainerEntry) -> Result<Stats> {
        let usage = self.hierarchies.usage(&self.container_cgroup(&entry.record)?);
        Ok(Stats { at: self.now(), usage })
    }

    pub(super) fn container_layer(&self, entry: &ContainerEntry) -> (u64, u64) {
        let record = &entry.record;
        beneath::disk_usage(&self.container_directory(&record.pod, &record.id).join("upper"))
    }
}

/// The error of a start that was aborted.
pub(super) fn late(limit: Duration) -> String {
    format!("its program did not run within {} seconds", limit.as_secs())
}

async fn wait_ended(mut state: watch::Receiver<StateRecord>) {
    let ended = |s: &StateRecord| matches!(s.state, ContainerState::Exited | ContainerState::Unknown);
    let _ = state.wait_for(ended).await; // the sender goes only when the container is removed
}

/// The image's variables, then the request's. The last value of a name wins, at the position of the first.
fn environment(image: &Image, config: &ContainerConfig, hostname: &str) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = vec![("PATH".into(), PATH.into()), ("HOSTNAME".into(), hostname.into())];
    if config.tty {
        all.push(("TERM".into(), "xterm".into()));
    }
    let of_image = image.config.env.iter().map(|e| e.split_once('=').unwrap_or((e, "")));
    let requested = config.env.iter().map(|(k, v)| (k.as_str(), v.as_str()));
    let mut places: HashMap<String, usize> = all.iter().enumerate().map(|(i, (k, _))| (k.clone(), i)).collect();
    for (name, value) in of_image.chain(requested) {
        match places.get(name) {
            Some(i) => all[*i].1 = value.to_owned(),
            None => {
                places.insert(name.to_owned(), all.len());
                all.push((name.to_owned(), value.to_owned()));
            }
        }
    }
    all
}

/// `SIGTERM`, `TERM`, `15`, `SIGRTMIN+3`; empty is SIGTERM.
fn parse_signal(text: &str) -> Option<i32> {
    if text.is_empty() {
        return Some(libc::SIGTERM);
    }
    if let Ok(number) = text.parse::<i32>() {
        return (1..=64).contains(&number).then_some(number);
    }
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    if let Some(offset) = name.strip_prefix("RTMIN") {
        let offset: i32 = if offset.is_empty() { 0 } else { offset.strip_prefix('+')?.parse().ok()? };
        return (0..=30).contains(&offset).then_some(34 + offset);
    }
    if let Some(offset) = name.strip_prefix("RTMAX") {
        let offset: i32 = if offset.is_empty() { 0 } else { offset.strip_prefix('-')?.parse().ok()? };
        return (0..=30).contains(&offset).then_some(64 - offset);
    }
    // Other names of the same signals.
    let name = match name {
        "CLD" => "CHLD",
        "POLL" => "IO",
        "IOT" => "ABRT",
        name => name,
    };
    format!("SIG{name}").parse::<nix::sys::signal::Signal>().ok().map(|s| s as i32)
}

/// The name of a signal in the API of pods.
fn signal_name(number: i32) -> Option<String> {
    match number {
        34 => Some("SIGRTMIN".into()),
        35..=49 => Some(format!("SIGRTMIN+{}", number - 34)),
        50..=63 => Some(format!("SIGRTMAX-{}", 64 - number)),
        64 => Some("SIGRTMAX".into()),
        _ => nix::sys::signal::Signal::try_from(number).ok().map(|s| s.as_str().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_read_in_every_spelling() {
        for (text, expect) in [
            ("", Some(15)),
            ("SIGQUIT", Some(3)),
            ("usr1", Some(10)),
            ("9", Some(9)),
            ("SIGRTMIN+3", Some(37)),
            ("SIGRTMAX-1", Some(63)),
            ("SIGCLD", Some(17)),
            ("SIGPOLL", Some(29)),
            ("SIGIOT", Some(6)),
            ("SIGNOPE", None),
            ("99", None),
        ] {
            assert_eq!(parse_signal(text), expect, "{text}");
        }
        for number in (1..=31).chain(34..=64) {
            let name = signal_name(number).unwrap();
            assert_eq!(parse_signal(&name), Some(number), "{name}");
        }
        assert_eq!(
            (signal_name(49).unwrap().as_str(), signal_name(50).unwrap().as_str()),
            ("SIGRTMIN+15", "SIGRTMAX-14")
        );
        assert_eq!((signal_name(0), signal_name(33), signal_name(65)), (None, None, None));
    }

    #[test]
    fn requested_variables_win_over_the_images() {
        let image = Image {
            id: String::new(),
            names: Default::default(),
            config: image::ImageConfig { env: vec!["PATH=/x".into(), "A=1".into()], ..Default::default() },
            layers: Vec::new(),
            diff_ids: Vec::new(),
            size: 0,
            access: None,
            pinned: false,
        };
        let config =
            ContainerConfig { env: vec![("A".into(), "2".into()), ("B".into(), "3".into())], ..Default::default() };
        let pairs: Vec<String> = environment(&image, &config, "h").iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(pairs, ["PATH=/x", "HOSTNAME=h", "A=2", "B=3"]);
    }
}
