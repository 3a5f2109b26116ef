//! What is known of sandboxes and containers: their labels and annotations in the runtime, and the statuses made from them.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use k8s_cri::v1;
use runtime::{
    Container, ContainerConfig, ContainerState, ContainerUser, Error, Pod, PodConfig, PodState, Result, Timestamp,
};
use serde::{Deserialize, Serialize};

use crate::{Inner, signals};

/// The label with the owner of a sandbox or container.
pub(crate) const OWNER: &str = "kemudi.dev/node";
/// The label with the UID of the pod, as the kubelet sets it.
pub(crate) const POD_UID: &str = "io.kubernetes.pod.uid";
/// The annotation with the record of a sandbox or container.
const RECORD: &str = "kemudi.dev/record";

/// Seconds after which the status of a container that has ended is final.
const SETTLING: u64 = 10;

/// How long the reason of a killed container is waited for.
const OUT_OF_MEMORY: std::time::Duration = std::time::Duration::from_millis(200);

/// Containers that have ended, by id.
#[derive(Default)]
pub(crate) struct Ended(HashMap<String, Container>);

impl Ended {
    fn keep(&mut self, mut is_there: impl FnMut(&str) -> bool) {
        self.0.retain(|id, _| is_there(id));
    }
}

/// What the runtime does not know of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ContainerRecord {
    /// The sandbox, as the caller knows it.
    pub pod: String,
    /// The image as in the request.
    pub image: String,
    pub has_message: bool,
    pub tty: bool,
    pub stdin: bool,
    pub stdin_once: bool,
    /// The images that it mounts.
    pub mounted_images: Vec<String>,
}

impl ContainerRecord {
    pub fn new(pod: &str, config: &ContainerConfig, mounted_images: Vec<String>) -> Self {
        Self {
            pod: pod.to_owned(),
            image: config.image.clone(),
            has_message: config.termination_message_path.is_some(),
            tty: config.tty,
            stdin: config.stdin,
            stdin_once: config.stdin_once,
            mounted_images,
        }
    }
}

/// A sandbox, and its id in the runtime.
pub(crate) struct Sandbox {
    pub id: String,
    pub pod: Pod,
}

/// Labels with that of the owner.
pub(crate) fn labels(own: &BTreeMap<String, String>, owner: &str, uid: &str) -> HashMap<String, String> {
    let ours = [(OWNER, owner), (POD_UID, uid)].map(|(k, v)| (k.to_owned(), v.to_owned()));
    own.clone().into_iter().chain(ours).collect()
}

/// Annotations with the record.
pub(crate) fn annotations(own: &BTreeMap<String, String>, record: &impl Serialize) -> Result<HashMap<String, String>> {
    let record =
        serde_json::to_string(record).map_err(|e| Error::Invalid { field: "annotations", message: e.to_string() })?;
    Ok(own.clone().into_iter().chain([(RECORD.to_owned(), record)]).collect())
}

fn record<T: serde::de::DeserializeOwned>(annotations: &HashMap<String, String>) -> Option<T> {
    serde_json::from_str(annotations.get(RECORD)?).ok()
}

pub(crate) fn container_record(annotations: &HashMap<String, String>) -> ContainerRecord {
    record(annotations).unwrap_or_default()
}

/// Labels or annotations without ours.
fn without_ours(all: HashMap<String, String>) -> BTreeMap<String, String> {
    all.into_iter().filter(|(key, _)| key != OWNER && key != RECORD).collect()
}

/// A time of the interface, in nanoseconds; zero means none.
pub(crate) fn timestamp(nanoseconds: i64) -> Option<Timestamp> {
    let at = u64::try_from(nanoseconds).ok().filter(|at| *at > 0)?;
    Some(Timestamp { secs: at / 1_000_000_000, nanos: u32::try_from(at % 1_000_000_000).unwrap_or(0) })
}

/// The sandbox of a listing. `None` for one without a record: somebody else has given it our label.
pub(crate) fn sandbox(listed: v1::PodSandbox) -> Option<Sandbox> {
    let is_ready = listed.state() == v1::PodSandboxState::SandboxReady;
    let config = PodConfig {
        labels: without_ours(listed.labels),
        annotations: without_ours(listed.annotations.clone()),
        ..record::<PodConfig>(&listed.annotations)?
    };
    let pod = Pod {
        id: config.id.clone(),
        state: if is_ready { PodState::Ready } else { PodState::NotReady },
        created_at: timestamp(listed.created_at).unwrap_or_default(),
        shim_pid: None,
        config,
    };
    Some(Sandbox { id: listed.id, pod })
}

pub(crate) fn state(state: v1::ContainerState) -> ContainerState {
    match state {
        v1::ContainerState::ContainerCreated => ContainerState::Created,
        v1::ContainerState::ContainerRunning => ContainerState::Running,
        v1::ContainerState::ContainerExited => ContainerState::Exited,
        v1::ContainerState::ContainerUnknown => ContainerState::Unknown,
    }
}

fn user(user: v1::LinuxContainerUser) -> ContainerUser {
    let id = |id: i64| u32::try_from(id).unwrap_or(0);
    ContainerUser {
        uid: id(user.uid),
        gid: id(user.gid),
        groups: user.supplemental_groups.into_iter().map(id).collect(),
    }
}

/// The status of a container. `message_file`: where its termination message is.
pub(crate) fn container(found: signals::Status, message_file: impl Fn(&str, &str, u32) -> PathBuf) -> Container {
    let signals::Status { status, stop_signal } = found;
    let state = state(status.state());
    let record = container_record(&status.annotations);
    let metadata = status.metadata.unwrap_or_default();
    let has_ended = matches!(state, ContainerState::Exited | ContainerState::Unknown);
    let text = |text: String| Some(text).filter(|t| !t.is_empty());
    Container {
        id: status.id,
        image: match record.image.as_str() {
            "" => status.image.map(|i| i.image).unwrap_or_default(),
            image => image.to_owned(),
        },
        image_id: status.image_ref,
        user: status.user.and_then(|u| u.linux).map(user),
        mounted_images: record.mounted_images,
        stop_signal,
        state,
        pid: None,
        created_at: timestamp(status.created_at).unwrap_or_default(),
        started_at: timestamp(status.started_at),
        finished_at: timestamp(status.finished_at).filter(|_| has_ended),
        exit_code: (state == ContainerState::Exited).then_some(status.exit_code),
        signal: None,
        reason: text(status.reason).filter(|_| state == ContainerState::Exited),
        message: text(status.message).filter(|_| has_ended),
        termination_message_file: record
            .has_message
            .then(|| message_file(&record.pod, &metadata.name, metadata.attempt)),
        log_path: status.log_path.into(),
        labels: without_ours(status.labels),
        annotations: without_ours(status.annotations),
        pod: record.pod,
        name: metadata.name,
        attempt: metadata.attempt,
    }
}

/// Whether a container was killed just now, perhaps because memory ran out, which the runtime may not have noticed yet.
fn may_be_out_of_memory(status: &v1::ContainerStatus, now: Timestamp) -> bool {
    const KILLED: i32 = 137;
    let is_recent = timestamp(status.finished_at).is_some_and(|end| end.secs.saturating_add(1) >= now.secs);
    let is_killed = status.state() == v1::ContainerState::ContainerExited && status.exit_code == KILLED;
    is_killed && status.reason != "OOMKilled" && is_recent
}

/// Whether the status of a container does not change any more. The runtime may notice only after the end that memory ran out.
fn is_settled(container: &Container, now: Timestamp) -> bool {
    let end = container.finished_at.map(|at| at.secs.saturating_add(SETTLING));
    container.state == ContainerState::Exited && end.is_some_and(|end| end < now.secs)
}

impl Inner {
    /// The sandboxes with a label, of this node.
    pub(crate) async fn sandboxes(&self, label: (&str, &str)) -> Result<Vec<Sandbox>> {
        let listed = self.connection.list_pods([label]).await?;
        let ours = listed.into_iter().filter(|s| s.labels.get(OWNER) == Some(&self.options.owner));
        Ok(ours.filter_map(sandbox).collect())
    }

    /// All sandboxes of this node.
    pub(crate) async fn all_sandboxes(&self) -> Result<Vec<Sandbox>> {
        self.sandboxes((OWNER, &self.options.owner)).await
    }

    /// The sandbox with an id of the caller.
    pub(crate) async fn sandbox(&self, id: &str) -> Result<Sandbox> {
        // The id is the UID of the pod and the attempt.
        let uid = id.rsplit_once('-').map_or(id, |(uid, _)| uid);
        let found = self.sandboxes((POD_UID, uid)).await?.into_iter().find(|s| s.pod.id == id);
        found.ok_or_else(|| Error::NotFound { what: "pod", id: id.to_owned() })
    }

    /// The statuses of the containers with a label, of this node. Those that are removed meanwhile are left out.
    pub(crate) async fn containers(&self, label: (&str, &str)) -> Result<Vec<Container>> {
        let mut listed = self.connection.list_containers([label]).await?;
        listed.retain(|c| c.labels.get(OWNER) == Some(&self.options.owner));
        let mut all = Vec::new();
        for container in &listed {
            match self.container(&container.id).await {
                Ok(container) => all.push(container),
                Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        if label.0 == OWNER {
            self.ended.lock().keep(|id| listed.iter().any(|c| c.id == id));
        }
        Ok(all)
    }

    /// The status of a container.
    pub(crate) async fn container(&self, id: &str) -> Result<Container> {
        if let Some(ended) = self.ended.lock().0.get(id) {
            return Ok(ended.clone());
        }
        let mut status = self.connection.container_status(id).await?;
        if may_be_out_of_memory(&status.status, (self.options.clock)()) {
            tokio::time::sleep(OUT_OF_MEMORY).await;
            status = self.connection.container_status(id).await?;
        }
        let container = container(status, |pod, name, attempt| self.files.message(pod, name, attempt));
        if is_settled(&container, (self.options.clock)()) {
            self.ended.lock().0.insert(id.to_owned(), container.clone());
        }
        Ok(container)
    }

    /// Forgets a container that is removed.
    pub(crate) fn forget(&self, id: &str) {
        self.ended.lock().0.remove(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_is_found_again_in_its_annotations() {
        let config = PodConfig {
            id: "u-1".into(),
            uid: "u".into(),
            attempt: 1,
            cgroup_parent: "kubepods/podu".into(),
            labels: [("a".to_owned(), "b".to_owned()), (POD_UID.to_owned(), "u".to_owned())].into(),
            ..PodConfig::default()
        };
        let listed = v1::PodSandbox {
            id: "abc".into(),
            created_at: 1_500_000_000,
            labels: labels(&config.labels, "node", "u"),
            annotations: annotations(&config.annotations, &config).unwrap(),
            ..v1::PodSandbox::default()
        };
        let found = sandbox(listed.clone()).unwrap();
        assert_eq!((found.id.as_str(), found.pod.id.as_str(), found.pod.state), ("abc", "u-1", PodState::Ready));
        assert_eq!((found.pod.config.labels, found.pod.config.attempt), (config.labels, 1));
        assert_eq!(found.pod.created_at, Timestamp { secs: 1, nanos: 500_000_000 });
        assert!(found.pod.config.annotations.is_empty());
        assert!(sandbox(v1::PodSandbox { annotations: HashMap::new(), ..listed }).is_none());
    }

    #[test]
    fn the_status_of_a_container_has_what_was_requested() {
        let config = ContainerConfig {
            image: "busybox:1".into(),
            termination_message_path: Some("/dev/termination-log".into()),
            ..ContainerConfig::default()
        };
        let record = ContainerRecord::new("u-0", &config, Vec::new());
        let status = v1::ContainerStatus {
            id: "c".into(),
            metadata: Some(v1::ContainerMetadata { name: "main".into(), attempt: 2 }),
            state: v1::ContainerState::ContainerExited.into(),
            exit_code: 3,
            finished_at: 2_000_000_000,
            image_ref: "docker.io/library/busybox@sha256:1".into(),
            reason: "Error".into(),
            annotations: annotations(&BTreeMap::new(), &record).unwrap(),
            ..v1::ContainerStatus::default()
        };
        let file = |pod: &str, name: &str, attempt: u32| PathBuf::from(format!("/{pod}/{name}/{attempt}"));
        let found = |status| signals::Status { status, stop_signal: Some("SIGINT".into()) };
        let ended = container(found(status.clone()), file);
        assert_eq!(ended.stop_signal.as_deref(), Some("SIGINT"));
        assert_eq!((ended.pod.as_str(), ended.image.as_str(), ended.exit_code), ("u-0", "busybox:1", Some(3)));
        assert_eq!(ended.termination_message_file, Some("/u-0/main/2".into()));
        assert_eq!((ended.started_at, ended.reason.as_deref()), (None, Some("Error")));
        let at = |secs| Timestamp { secs, nanos: 0 };
        assert!(!is_settled(&ended, at(12)) && is_settled(&ended, at(13)));
        let killed = v1::ContainerStatus { exit_code: 137, ..status.clone() };
        assert!(may_be_out_of_memory(&killed, at(3)) && !may_be_out_of_memory(&killed, at(4)));
        assert!(!may_be_out_of_memory(&status, at(3)));
        let running = v1::ContainerStatus { state: v1::ContainerState::ContainerRunning.into(), ..status };
        let running = container(found(running), file);
        assert_eq!((running.exit_code, running.finished_at, running.reason), (None, None, None));
    }
}
