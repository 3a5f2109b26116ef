use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Secret};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use plugins::api::csi::{self, NodeCapability, NodeGetCapabilitiesResponse, NodeGetInfoResponse};
use plugins::registration::{Handler, Plugin};
use plugins::{Running, Server, SocketPath, Status};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::provisioner::growth::{self, Progress, merge};
use crate::volumes::token::{self, Issued, Tokens};
use crate::volumes::usage::{Amount, ClaimedVolume, Place, PodVolume, VolumeUsages};

/// An API with what a test gives it.
#[derive(Default)]
struct Api {
    driver: Mutex<Value>,
    driver_changed: tokio::sync::Notify,
    attachment: Mutex<Value>,
    secret: Mutex<Value>,
    attached: tokio::sync::watch::Sender<bool>,
    log: Log,
}

type Log = Arc<Mutex<Vec<String>>>;

fn decoded<T: serde::de::DeserializeOwned>(value: &Mutex<Value>) -> Option<T> {
    let value = value.lock().clone();
    (!value.is_null()).then(|| serde_json::from_value(value).unwrap())
}

#[async_trait::async_trait]
impl Cluster for Api {
    async fn driver(&self, _: &str) -> Result<Option<CSIDriver>, client::Error> {
        Ok(decoded(&self.driver))
    }

    async fn attachment(&self, name: &str) -> Result<Option<VolumeAttachment>, client::Error> {
        self.log.lock().push(format!("attachment {}", &name[..8]));
        Ok(decoded(&self.attachment))
    }

    async fn secret(&self, namespace: &str, name: &str) -> Result<Secret, client::Error> {
        decoded(&self.secret).ok_or_else(|| client::Error::Unexpected(format!("secret {namespace}/{name} not found")))
    }

    async fn attached(&self, _: &str) {
        let _ = self.attached.subscribe().wait_for(|is| *is).await;
    }

    async fn set_in_use(&self, volumes: &BTreeSet<String>) -> Result<(), client::Error> {
        let names: Vec<&str> = volumes.iter().map(String::as_str).collect();
        self.log.lock().push(format!("in use {names:?}"));
        Ok(())
    }

    async fn install(&self, driver: &str, info: &NodeGetInfoResponse) -> Result<(), String> {
        self.log.lock().push(format!("install {driver} {}", info.node_id));
        Ok(())
    }

    async fn update(&self, driver: &str, info: &NodeGetInfoResponse) -> Result<(), String> {
        self.log.lock().push(format!("update {driver} {}", info.max_volumes_per_node));
        Ok(())
    }

    async fn wait_for_driver(&self, _: &str, is: cluster::Condition<'_>) -> Option<CSIDriver> {
        loop {
            let changed = self.driver_changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let found = decoded(&self.driver);
            if is(found.as_ref()) {
                return found;
            }
            changed.await;
        }
    }

    async fn uninstall(&self, driver: &str) -> Result<(), String> {
        self.log.lock().push(format!("uninstall {driver}"));
        Ok(())
    }

    async fn report_growth(
        &self,
        claim: &PersistentVolumeClaim,
        progress: Progress<'_>,
    ) -> Result<PersistentVolumeClaim, client::Error> {
        self.log.lock().push(match progress {
            Progress::Finished(capacity) => format!("expanded {}", capacity.0),
            Progress::OnNode => "growing".into(),
            Progress::FailedOnNode { is_infeasible, .. } => format!("not grown, infeasible: {is_infeasible}"),
            other => format!("{other:?}"),
        });
        let mut claim = claim.clone();
        if let Some(change) = growth::status(&claim, progress, "2026-01-01T00:00:00Z") {
            let mut status = serde_json::to_value(&claim.status).unwrap();
            merge(&mut status, &change);
            claim.status = serde_json::from_value(status).unwrap();
        }
        Ok(claim)
    }

    fn event(&self, _: &Pod, _: Option<&PersistentVolumeClaim>, _: bool, reason: &str, message: String) {
        self.log.lock().push(format!("event {reason} {message}"));
    }
}

struct Token;

#[async_trait::async_trait]
impl Tokens for Token {
    async fn issue(&self, _: &Pod, audience: Option<&str>, _: Option<i64>) -> Result<Issued, token::Error> {
        Ok(Issued { token: format!("token for {}", audience.unwrap_or_default()), ..Issued::default() })
    }
}

/// What the driver does with calls of one method.
type Behaviour = Arc<Mutex<BTreeMap<&'static str, Status>>>;

struct Lab {
    directory: TempDir,
    api: Arc<Api>,
    csi: Arc<Csi>,
    log: Log,
    /// Methods that fail; `Cancelled` lets one hang.
    fails: Behaviour,
    _driver: Running,
    requests: Arc<Mutex<Vec<String>>>,
    stages: Arc<AtomicUsize>,
}

const NAME: &str = "test.csi.example.com";

impl Lab {
    async fn new(capabilities: &[NodeCapability]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let api = Arc::new(Api::default());
        let log = api.log.clone();
        let (fails, requests, stages): (Behaviour, Arc<Mutex<Vec<String>>>, Arc<AtomicUsize>) = Default::default();
        let socket = directory.path().join("plugins/test/csi.sock");
        fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let answer = {
            let (log, fails, requests) = (log.clone(), fails.clone(), requests.clone());
            move |method: &'static str, text: String, request: String| {
                log.lock().push(format!("{method} {text}"));
                requests.lock().push(request);
                let failure = fails.lock().get(method).cloned();
                async move {
                    match failure {
                        Some(status) if status.code() == plugins::Code::Cancelled => std::future::pending().await,
                        Some(status) => Err(status),
                        None => Ok(csi::Empty {}),
                    }
                }
            }
        };
        let capabilities = capabilities.iter().map(|c| (*c).into()).collect();
        let capabilities = NodeGetCapabilitiesResponse { capabilities };
        let (a, b, c, d) = (answer.clone(), answer.clone(), answer.clone(), answer.clone());
        let (e, f, count) = (answer.clone(), answer, stages.clone());
        let server = Server::new()
            .unary(&csi::NODE_GET_INFO, |_| async {
                Ok(NodeGetInfoResponse { node_id: "id".into(), ..NodeGetInfoResponse::default() })
            })
            .unary(&csi::NODE_GET_CAPABILITIES, move |_| {
                let capabilities = capabilities.clone();
                async move { Ok(capabilities) }
            })
            .unary(&csi::NODE_STAGE_VOLUME, move |q: csi::NodeStageVolumeRequest| {
                count.fetch_add(1, Ordering::SeqCst);
                a("stage", last(&q.staging_target_path), format!("{q:?}"))
            })
            .unary(&csi::NODE_UNSTAGE_VOLUME, move |q: csi::NodeUnstageVolumeRequest| {
                b("unstage", last(&q.staging_target_path), String::new())
            })
            .unary(&csi::NODE_PUBLISH_VOLUME, move |q: csi::NodePublishVolumeRequest| {
                c("publish", pod_of(&q.target_path), format!("{q:?}"))
            })
            .unary(&csi::NODE_UNPUBLISH_VOLUME, move |q: csi::NodeUnpublishVolumeRequest| {
                d("unpublish", pod_of(&q.target_path), String::new())
            })
            .unary(&csi::NODE_GET_VOLUME_STATS, move |q: csi::NodeGetVolumeStatsRequest| {
                let done = f("stats", pod_of(&q.volume_path), last(&q.staging_target_path));
                let bytes = csi::VolumeUsage { total: 100, available: 60, used: 40, unit: csi::Unit::Bytes.into() };
                let answer = csi::NodeGetVolumeStatsResponse { usage: vec![bytes], volume_condition: None };
                async move { done.await.map(|_| answer) }
            })
            .unary(&csi::NODE_EXPAND_VOLUME, move |q: csi::NodeExpandVolumeRequest| {
                let done = e("expand", q.capacity_range.unwrap_or_default().required_bytes.to_string(), String::new());
                async move { done.await.map(|_| csi::NodeExpandVolumeResponse::default()) }
            });
        let running = server.serve(&SocketPath::machine(&socket)).unwrap();
        let csi = Self::agent(&directory, &api);
        let lab = Self { directory, api, csi, log, fails, _driver: running, requests, stages };
        lab.register().await.unwrap();
        lab
    }

    fn agent(directory: &TempDir, api: &Arc<Api>) -> Arc<Csi> {
        let root = KubeletRoot { path: directory.path().to_owned(), shown_as: KubeletRoot::USUAL.into() };
        Arc::new(Csi::new(root, "n", api.clone()))
    }

    fn plugin(&self) -> Plugin {
        Plugin {
            name: NAME.into(),
            endpoint: "/var/lib/kubelet/plugins/test/csi.sock".into(),
            versions: vec!["1.0.0".into()],
            socket: "/var/lib/kubelet/plugins_registry/test-reg.sock".into(),
        }
    }

    async fn register(&self) -> Result<(), String> {
        let registration = Registration(self.csi.clone());
        registration.validate(&self.plugin())?;
        registration.register(&self.plugin()).await?;
        // Reports the volumes in use, if nothing has.
        self.csi.unstage_unused(NAME).await;
        self.log.lock().clear();
        Ok(())
    }

    /// A new agent, which knows nothing.
    async fn restart(&mut self) {
        self.csi = Self::agent(&self.directory, &self.api);
        self.register().await.unwrap();
    }

    async fn set_up(&self, pod: &str) -> Result<PathBuf, Failure> {
        self.set_up_as(pod, &volume(json!({})), std::future::pending()).await
    }

    async fn set_up_as(
        &self,
        pod: &str,
        volume: &PersistentVolume,
        ends: impl Future<Output = ()> + Send,
    ) -> Result<PathBuf, Failure> {
        let pod = self::pod(pod);
        let source = volume.spec.as_ref().unwrap().csi.as_ref().unwrap();
        let request = self.request(&pod, ends);
        self.csi.set_up(&Persistent { name: "pv", volume, source }, request).await
    }

    fn request<'a, E>(&self, pod: &'a Pod, ends: E) -> Request<'a, E> {
        Request { pod, is_read_only: false, group: None, on_mismatch: false, tokens: &Token, ends }
    }

    /// Tears down the volumes of a pod, and waits until those that no pod has are unstaged.
    async fn tear_down(&self, pod: &str) -> Result<(), String> {
        self.csi.tear_down_pod(pod).await?;
        self.wait_for("unstaged volumes", |lab| lab.csi.unstaging.lock().is_empty()).await;
        Ok(())
    }

    async fn wait_for(&self, what: &str, is: impl Fn(&Self) -> bool) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        while !is(self) {
            assert!(tokio::time::Instant::now() < deadline, "{what}: {:?}", self.log.lock());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut *self.log.lock())
    }

    fn no_attach(&self) {
        self.set_driver(json!({"attachRequired": false}));
    }

    fn set_driver(&self, spec: Value) {
        *self.api.driver.lock() = json!({"metadata": {"name": NAME}, "spec": spec});
        self.api.driver_changed.notify_waiters();
    }

    /// Paths below the directory that are left, beside sockets.
    fn left(&self) -> Vec<String> {
        let layout = &self.csi.layout;
        let published = layout.published().unwrap().into_iter().map(|(uid, r)| format!("{uid} {}", r.name));
        published.chain(layout.all_staged().unwrap().into_iter().map(|(_, r)| format!("staged {}", r.name))).collect()
    }
}

fn last(path: &str) -> String {
    assert!(path.starts_with("/var/lib/kubelet/plugins/kubernetes.io/csi/"), "{path}");
    path.rsplit('/').next().unwrap_or_default().to_owned()
}

fn pod_of(path: &str) -> String {
    let path = path.strip_prefix("/var/lib/kubelet/pods/").unwrap();
    let (pod, rest) = path.split_once('/').unwrap();
    assert!(rest.starts_with("volumes/kubernetes.io~csi/") && rest.ends_with("/mount"), "{rest}");
    pod.to_owned()
}

fn volume(more: Value) -> PersistentVolume {
    let mut spec = json!({
        "csi": {"driver": NAME, "volumeHandle": "h", "fsType": "ext4", "volumeAttributes": {"a": "b"}},
        "accessModes": ["ReadWriteOnce"], "mountOptions": ["noatime"], "capacity": {"storage": "2Gi"},
    });
    for (key, value) in more.as_object().unwrap() {
        match value.as_object() {
            Some(inner) => inner.iter().for_each(|(k, v)| spec[key][k] = v.clone()),
            None => spec[key] = value.clone(),
        }
    }
    serde_json::from_value(json!({"metadata": {"name": "pv"}, "spec": spec})).unwrap()
}

fn pod(uid: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": uid},
        "spec": {"containers": [], "serviceAccountName": "sa"},
    }))
    .unwrap()
}

const STAGES: &[NodeCapability] = &[NodeCapability::StageUnstageVolume, NodeCapability::ExpandVolume];

#[tokio::test]
async fn two_pods_share_what_is_staged() {
    let lab = Lab::new(STAGES).await;
    lab.no_attach();
    let path = lab.set_up("u1").await.unwrap();
    assert_eq!(path, lab.directory.path().join("pods/u1/volumes/kubernetes.io~csi/pv/mount"));
    lab.set_up("u1").await.unwrap();
    lab.set_up("u2").await.unwrap();
    // Staging is repeated for another pod, as calls are idempotent.
    assert_eq!(lab.take_log(), ["stage globalmount", "publish u1", "stage globalmount", "publish u2"]);
    let sent = lab.requests.lock().join("\n");
    for part in ["noatime", "ext4", "\"a\": \"b\"", "mode: SingleNodeWriter", "globalmount"] {
        assert!(sent.contains(part), "{part}: {sent}");
    }
    lab.tear_down("u1").await.unwrap();
    assert_eq!(lab.take_log(), ["unpublish u1"]);
    lab.tear_down("u2").await.unwrap();
    assert_eq!(lab.take_log(), ["unpublish u2", "unstage globalmount"]);
    assert!(lab.left().is_empty());
    lab.tear_down("u2").await.unwrap();
    assert!(lab.take_log().is_empty());
}

#[tokio::test]
async fn a_pod_waits_until_the_volume_is_attached_and_reports_it_in_use_first() {
    let lab = Lab::new(STAGES).await;
    *lab.api.attachment.lock() = json!({"metadata": {}, "spec": {"attacher": NAME, "nodeName": "n", "source": {}},
            "status": {"attached": true, "attachmentMetadata": {"device": "sdx"}}});
    let wait = tokio::time::timeout(std::time::Duration::from_millis(50), lab.set_up("u1")).await;
    assert!(wait.is_err());
    let in_use = format!("in use [\"kubernetes.io/csi/{NAME}^h\"]");
    assert_eq!(lab.take_log(), [in_use]);
    lab.api.attached.send_replace(true);
    lab.set_up("u1").await.unwrap();
    assert_eq!(lab.take_log(), [lab_attachment().as_str(), "stage globalmount", "publish u1"]);
    assert!(lab.requests.lock().join("\n").contains("\"device\": \"sdx\""));
    lab.tear_down("u1").await.unwrap();
    assert_eq!(lab.take_log(), ["unpublish u1", "unstage globalmount", "in use []"]);
}

/// A pod that waited for an attachment noticed only after two minutes that its driver needs none any more.
#[tokio::test]
async fn a_pod_stops_waiting_when_the_driver_attaches_no_volumes_any_more() {
    let lab = Lab::new(STAGES).await;
    lab.set_driver(json!({}));
    let changes = async {
        let in_use = format!("in use [\"kubernetes.io/csi/{NAME}^h\"]");
        lab.wait_for("the pod waits", |lab| lab.log.lock().contains(&in_use)).await;
        lab.take_log();
        lab.no_attach();
    };
    let (path, ()) = tokio::join!(lab.set_up("u1"), changes);
    path.unwrap();
    assert_eq!(lab.take_log(), ["in use []", "stage globalmount", "publish u1"]);
    lab.tear_down("u1").await.unwrap();
    assert!(lab.left().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_limit_of_volumes_is_updated_as_often_as_the_driver_says() {
    let lab = Lab::new(STAGES).await;
    let update = format!("update {NAME} 0");
    let begin = tokio::time::Instant::now();
    let minutes = |count: u64| tokio::time::sleep_until(begin + Duration::from_secs(60 * count));
    minutes(1).await;
    assert!(lab.take_log().is_empty(), "without a period it is not asked");
    let count = |lab: &Lab| lab.take_log().iter().filter(|l| **l == update).count();
    lab.set_driver(json!({"nodeAllocatableUpdatePeriodSeconds": 10}));
    minutes(2).await;
    let first = count(&lab);
    assert!((4..=6).contains(&first), "{first}");
    lab.set_driver(json!({"nodeAllocatableUpdatePeriodSeconds": 30}));
    minutes(4).await;
    let then = count(&lab);
    assert!((3..=4).contains(&then), "{then}");
    lab.set_driver(json!({}));
    minutes(5).await;
    lab.take_log();
    minutes(8).await;
    assert_eq!(count(&lab), 0);
    lab.set_driver(json!({"nodeAllocatableUpdatePeriodSeconds": 10}));
    Registration(lab.csi.clone()).deregister(&lab.plugin()).await;
    lab.take_log();
    minutes(10).await;
    assert_eq!(count(&lab), 0, "it is not registered");
}

#[tokio::test(start_paused = true)]
async fn a_node_without_room_for_a_volume_rejects_the_pod() {
    let lab = Lab::new(STAGES).await;
    let attachment = |code: u32| {
        json!({"metadata": {}, "spec": {"attacher": NAME, "nodeName": "n", "source": {}},
            "status": {"attached": false, "attachError": {"message": "no room", "errorCode": code}}})
    };
    let updated = format!("update {NAME} 0");
    for (period, code, stage) in
        [(json!(null), 8, TIMED_OUT), (json!(1_000_000), 13, TIMED_OUT), (json!(1_000_000), 8, LIMIT_EXCEEDED)]
    {
        lab.set_driver(json!({"nodeAllocatableUpdatePeriodSeconds": period}));
        *lab.api.attachment.lock() = attachment(code);
        let failure = lab.set_up("u1").await.unwrap_err();
        assert_eq!(failure.stage, stage, "{period} {code}");
        assert_eq!(lab.take_log().contains(&updated), stage == LIMIT_EXCEEDED, "{period} {code}");
    }
    let source =
        crate::volumes::Error::PersistentVolume { name: "pv".into(), stage: LIMIT_EXCEEDED, why: "late".into() };
    let error = crate::volumes::SetUpError { volume: "data".into(), source };
    assert_eq!(error.rejection(), Some("VolumeAttachmentLimitExceeded"));
    assert_eq!(
        error.to_string(),
        "Node has reached its volume attachment limit, rejecting pod. unmounted volumes=[data], unattached volumes=[data], failed to \
         process volumes=[]: late"
    );
}

fn lab_attachment() -> String {
    format!("attachment {}", &paths::attachment_name("h", NAME, "n")[..8])
}

#[tokio::test]
async fn a_volume_is_not_in_use_any_more_once_its_driver_does_not_attach_volumes() {
    let lab = Lab::new(STAGES).await;
    *lab.api.attachment.lock() = json!({"metadata": {}, "spec": {"attacher": NAME, "nodeName": "n", "source": {}},
            "status": {"attached": true}});
    lab.api.attached.send_replace(true);
    lab.set_up("u1").await.unwrap();
    lab.csi.follow_driver(NAME, &pod("u1"), "pv").await.unwrap();
    lab.take_log();
    lab.no_attach();
    for _ in 0..2 {
        lab.csi.follow_driver(NAME, &pod("u1"), "pv").await.unwrap();
    }
    assert_eq!(lab.take_log(), ["in use []"]);
    assert_eq!(lab.left(), ["u1 pv", "staged pv"]);
    lab.tear_down("u1").await.unwrap();
    assert!(lab.left().is_empty());
}

#[tokio::test]
async fn a_pod_that_ends_while_it_waits_leaves_nothing_in_use() {
    let lab = Lab::new(STAGES).await;
    let failure = lab.set_up_as("u1", &volume(json!({})), std::future::ready(())).await.unwrap_err();
    assert!(failure.why.contains("deleted"), "{failure:?}");
    lab.tear_down("u1").await.unwrap();
    assert!(lab.left().is_empty());
    assert!(lab.csi.awaited.lock().is_empty());
}

#[tokio::test]
async fn a_new_agent_finds_what_was_published_and_unstages_what_no_pod_has() {
    let mut lab = Lab::new(STAGES).await;
    lab.no_attach();
    lab.set_up("u1").await.unwrap();
    lab.restart().await;
    lab.set_up("u1").await.unwrap();
    assert_eq!(lab.stages.load(Ordering::SeqCst), 2, "the new agent asks the driver again");
    lab.restart().await;
    lab.take_log();
    lab.tear_down("u1").await.unwrap();
    assert_eq!(lab.take_log(), ["unpublish u1", "unstage globalmount"]);
    // The agent ends between unpublishing and unstaging.
    lab.set_up("u1").await.unwrap();
    Record::remove(&lab.csi.layout.pod_volume("u1", "pv")).unwrap();
    lab.restart().await;
    lab.csi.unstage_unused(NAME).await;
    lab.wait_for("nothing staged", |lab| lab.left().is_empty()).await;
}

#[tokio::test]
async fn what_the_driver_refuses_is_not_there_and_what_it_may_have_done_is_undone() {
    let lab = Lab::new(STAGES).await;
    lab.no_attach();
    lab.fails.lock().insert("stage", Status::invalid_argument("no such device"));
    let failure = lab.set_up("u1").await.unwrap_err();
    assert_eq!(failure.stage, "MountVolume.MountDevice");
    assert_eq!(failure.why, "rpc error: code = InvalidArgument desc = no such device");
    assert!(lab.left().is_empty(), "{:?}", lab.left());
    lab.fails.lock().clear();

    lab.fails.lock().insert("publish", Status::internal("mount failed"));
    let failure = lab.set_up("u1").await.unwrap_err();
    assert_eq!((failure.stage, lab.left()), ("MountVolume.SetUp", vec!["staged pv".to_owned()]));
    lab.take_log();
    lab.tear_down("u1").await.unwrap();
    assert_eq!(lab.take_log(), ["unstage globalmount"]);

    // It is unknown whether a call that does not end has done something.
    lab.fails.lock().insert("publish", Status::deadline_exceeded("late"));
    lab.set_up("u1").await.unwrap_err();
    assert_eq!(lab.left(), ["u1 pv", "staged pv"]);
    lab.fails.lock().insert("unpublish", Status::internal("busy"));
    let why = lab.tear_down("u1").await.unwrap_err();
    assert!(why.contains("Internal desc = busy"), "{why}");
    assert_eq!(lab.left(), ["u1 pv", "staged pv"], "nothing is forgotten");
    lab.fails.lock().clear();
    lab.tear_down("u1").await.unwrap();
    assert!(lab.left().is_empty());
}

#[tokio::test]
async fn a_pod_does_not_wait_until_its_volume_is_unstaged_and_another_one_gets_it_meanwhile() {
    let lab = Lab::new(STAGES).await;
    lab.no_attach();
    for status in [Status::invalid_argument("final"), Status::deadline_exceeded("transient")] {
        lab.set_up("u1").await.unwrap();
        lab.fails.lock().insert("unstage", status);
        lab.csi.tear_down_pod("u1").await.unwrap();
        lab.wait_for("a second attempt", |lab| {
            lab.log.lock().iter().filter(|l| *l == "unstage globalmount").count() == 2
        })
        .await;
        assert_eq!(lab.left(), ["staged pv"]);
        lab.set_up("u2").await.unwrap();
        // The attempts end, since a pod has the volume.
        lab.wait_for("no attempts", |lab| lab.csi.unstaging.lock().is_empty()).await;
        lab.fails.lock().clear();
        let log = lab.take_log();
        assert_eq!(log.iter().filter(|l| l.starts_with("stage")).count(), 2, "{log:?}");
        lab.tear_down("u2").await.unwrap();
        assert_eq!(lab.take_log(), ["unpublish u2", "unstage globalmount"]);
        assert!(lab.left().is_empty());
    }
    // A driver that is not there is not waited for: it unstages once it registers.
    lab.set_up("u1").await.unwrap();
    lab.fails.lock().insert("unstage", Status::unavailable("later"));
    lab.csi.tear_down_pod("u1").await.unwrap();
    lab.wait_for("an attempt", |lab| lab.log.lock().iter().any(|l| l == "unstage globalmount")).await;
    Registration(lab.csi.clone()).deregister(&lab.plugin()).await;
    lab.fails.lock().clear();
    lab.register().await.unwrap();
    lab.wait_for("nothing staged", |lab| lab.left().is_empty()).await;
}

#[tokio::test]
async fn a_driver_that_hangs_does_not_keep_a_pod_from_ending() {
    let lab = Lab::new(STAGES).await;
    lab.no_attach();
    lab.fails.lock().insert("publish", Status::cancelled(""));
    let log = lab.log.clone();
    let ends = async move {
        while !log.lock().iter().any(|e| e == "publish u1") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    lab.set_up_as("u1", &volume(json!({})), ends).await.unwrap_err();
    lab.tear_down("u1").await.unwrap();
    assert_eq!(lab.take_log(), ["stage globalmount", "publish u1", "unpublish u1", "unstage globalmount"]);
}

#[tokio::test]
async fn only_one_pod_has_a_volume_for_one_pod() {
    let lab = Lab::new(&[]).await;
    lab.no_attach();
    let single = volume(json!({"accessModes": ["ReadWriteOncePod"]}));
    lab.set_up_as("u1", &single, std::future::pending()).await.unwrap();
    let failure = lab.set_up_as("u2", &single, std::future::pending()).await.unwrap_err();
    assert!(failure.why.contains("already in use by another pod"), "{failure:?}");
    lab.tear_down("u1").await.unwrap();
    lab.set_up_as("u2", &single, std::future::pending()).await.unwrap();
    assert_eq!(lab.take_log(), ["publish u1", "unpublish u1", "publish u2"], "this driver stages nothing");
}

#[tokio::test]
async fn the_driver_gets_pods_tokens_and_secrets_that_it_requests() {
    let lab = Lab::new(&[]).await;
    *lab.api.driver.lock() = json!({"metadata": {"name": NAME}, "spec": {"attachRequired": false,
        "podInfoOnMount": true, "requiresRepublish": true, "tokenRequests": [{"audience": "vault"}]}});
    let with_secret = volume(json!({"csi": {"nodePublishSecretRef": {"name": "s", "namespace": "ns"}}}));
    let failure = lab.set_up_as("u1", &with_secret, std::future::pending()).await.unwrap_err();
    assert!(failure.why.contains("fetching NodePublishSecretRef ns/s failed"), "{failure:?}");
    *lab.api.secret.lock() = json!({"data": {"key": "dmFsdWU="}});
    lab.set_up_as("u1", &with_secret, std::future::pending()).await.unwrap();
    let sent = lab.requests.lock().join("\n");
    for part in [
        "\"csi.storage.k8s.io/pod.uid\": \"u1\"",
        "\"csi.storage.k8s.io/ephemeral\": \"false\"",
        "token for vault",
        "\"key\": \"value\"",
    ] {
        assert!(sent.contains(part), "{part}: {sent}");
    }
    assert!(lab.csi.follow_driver(NAME, &pod("u1"), "pv").await.unwrap());
    lab.set_up_as("u1", &with_secret, std::future::pending()).await.unwrap();
    assert_eq!(lab.take_log(), ["publish u1", "publish u1"]);
}

#[tokio::test]
async fn inline_volumes_need_a_driver_that_supports_them() {
    let lab = Lab::new(STAGES).await;
    let source = serde_json::from_value(json!({"driver": NAME})).unwrap();
    let inline = Inline { name: "v", source: &source };
    let pod = pod("u1");
    let failure = lab.csi.set_up_inline(&inline, lab.request(&pod, std::future::pending())).await.unwrap_err();
    assert!(failure.why.contains("no CSIDriver object"), "{failure:?}");
    lab.no_attach();
    let failure = lab.csi.set_up_inline(&inline, lab.request(&pod, std::future::pending())).await.unwrap_err();
    assert!(failure.why.contains("volume mode \"Ephemeral\" not supported"), "{failure:?}");
    lab.api.driver.lock()["spec"]["volumeLifecycleModes"] = json!(["Ephemeral"]);
    lab.csi.set_up_inline(&inline, lab.request(&pod, std::future::pending())).await.unwrap();
    lab.tear_down("u1").await.unwrap();
    assert_eq!(lab.take_log(), ["publish u1", "unpublish u1"], "an inline volume is not staged");
    assert!(lab.left().is_empty());
}

#[tokio::test]
async fn a_volume_that_has_grown_is_expanded_once() {
    let lab = Lab::new(STAGES).await;
    lab.no_attach();
    let pv = volume(json!({}));
    let source = pv.spec.as_ref().unwrap().csi.as_ref().unwrap();
    let persistent = Persistent { name: "pv", volume: &pv, source };
    let claim: PersistentVolumeClaim =
        serde_json::from_value(json!({"status": {"capacity": {"storage": "1Gi"}}})).unwrap();
    lab.csi.expand(&persistent, &claim, &pod("u1")).await;
    assert!(lab.take_log().is_empty(), "it is not published");
    lab.set_up("u1").await.unwrap();
    lab.take_log();
    lab.csi.expand(&persistent, &claim, &pod("u1")).await;
    let event = "event FileSystemResizeSuccessful MountVolume.NodeExpandVolume succeeded for volume \"pv\" n";
    assert_eq!(lab.take_log(), ["growing", "expand 2147483648", "expanded 2Gi", event]);
    let claim_with = |status: &str, requested: &str| -> PersistentVolumeClaim {
        serde_json::from_value(json!({"spec": {"resources": {"requests": {"storage": requested}}},
            "status": {"capacity": {"storage": "1Gi"}, "allocatedResourceStatuses": {"storage": status}}}))
        .unwrap()
    };
    let mut attempts = Vec::new();
    for (status, requested, failure) in [
        ("NodeResizePending", "2Gi", Status::internal("no space")),
        ("NodeResizeInProgress", "2Gi", Status::internal("no space")),
        // The user has given up the size after failures.
        ("NodeResizeInProgress", "1536Mi", Status::internal("no space")),
        ("NodeResizePending", "2Gi", Status::out_of_range("too large")),
        // Nothing is known of a call without an end.
        ("NodeResizePending", "2Gi", Status::unavailable("later")),
        ("NodeResizeInfeasible", "2Gi", Status::internal("not called")),
        ("ControllerResizeInProgress", "2Gi", Status::internal("not called")),
    ] {
        lab.fails.lock().insert("expand", failure);
        lab.csi.expand(&persistent, &claim_with(status, requested), &pod("u1")).await;
        let log = lab.take_log();
        let said = log.iter().any(|l| l.starts_with("event VolumeResizeFailed"));
        assert_eq!(said, log.contains(&"expand 2147483648".to_owned()), "{log:?}");
        attempts.push(log.into_iter().find(|l| l.starts_with("not grown")).unwrap_or_default());
    }
    let (again, never) = ("not grown, infeasible: false", "not grown, infeasible: true");
    assert_eq!(attempts, [again, again, never, never, "", "", ""]);
}

#[tokio::test]
async fn drivers_say_how_full_their_volumes_are() {
    let pv = volume(json!({}));
    let source = pv.spec.as_ref().unwrap().csi.as_ref().unwrap();
    let persistent = Persistent { name: "pv", volume: &pv, source };
    let silent = Lab::new(STAGES).await;
    assert!(silent.csi.usage(&silent.csi.published(&persistent, "u1")).await.is_none());
    assert!(silent.take_log().is_empty(), "a driver without the capability is not asked");

    let lab = Lab::new(&[NodeCapability::StageUnstageVolume, NodeCapability::GetVolumeStats]).await;
    let usages = Arc::new(VolumeUsages::default());
    let add = |pod: &str| {
        let place = Place::Driver(lab.csi.clone(), lab.csi.published(&persistent, pod));
        let key = PodVolume { pod: pod.into(), volume: "v".into() };
        usages.insert(key, ClaimedVolume { namespace: "ns".into(), claim: "c".into(), place });
    };
    add("u1");
    for _ in 0..2 {
        let all = usages.all().await;
        assert_eq!(all[0].2.bytes, Amount { total: 100, available: 60, used: 40 });
        assert_eq!(all[0].2.inodes, None);
    }
    assert_eq!(lab.take_log(), ["stats u1"], "it is asked once a minute");
    lab.fails.lock().insert("stats", Status::internal("no"));
    usages.remove("u1");
    add("u2");
    assert!(usages.all().await.is_empty());
    // A driver that hangs delays a request a little, and gets no second call.
    lab.fails.lock().insert("stats", Status::cancelled("hang"));
    add("u3");
    lab.take_log();
    for _ in 0..2 {
        assert!(usages.all().await.is_empty());
    }
    assert_eq!(lab.take_log(), ["stats u3"]);
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_is_not_registered_is_an_error() {
    let lab = Lab::new(STAGES).await;
    lab.no_attach();
    Registration(lab.csi.clone()).deregister(&Plugin { socket: "/other".into(), ..lab.plugin() }).await;
    assert!(lab.take_log().is_empty(), "another instance has registered meanwhile");
    Registration(lab.csi.clone()).deregister(&lab.plugin()).await;
    assert_eq!(lab.take_log(), [format!("uninstall {NAME}")]);
    let failure = lab.set_up("u1").await.unwrap_err();
    assert!(failure.why.ends_with(&format!("driver name {NAME} not found in the list of registered CSI drivers")));
    let registration = Registration(lab.csi.clone());
    for versions in [vec![], vec!["0.3.0".to_owned()], vec!["2.0.0".to_owned()]] {
        assert!(registration.validate(&Plugin { versions, ..lab.plugin() }).is_err());
    }
    assert!(registration.validate(&Plugin { name: "../x".into(), ..lab.plugin() }).is_err());
}
