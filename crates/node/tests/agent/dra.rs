//! Drivers of dynamic resource allocation, with one written for these tests and real containers.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::stream::unfold;
use plugins::api::dra::{Claims, Device, PrepareResponse, PreparedClaim, UnprepareResponse, UnpreparedClaim, VERSIONS};
use plugins::api::dra_health::{DeviceHealth, DeviceIdentifier, HealthStatus, WATCH, WatchResponse};
use plugins::api::pod_resources::LIST;
use plugins::api::registration::{
    DRA_PLUGIN, GET_INFO, NOTIFY_REGISTRATION_STATUS, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use plugins::{Answers, Connection, Limits, Running, Server, SocketPath};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::machine::{Machine, PODS, demo, is_ready};

const DRIVER: &str = "gpu.example.com";
const CLAIMS: &str = "apis/resource.k8s.io/v1/resourceclaims";
const SLICES: &str = "apis/resource.k8s.io/v1/resourceslices";

struct Driver {
    /// The calls about claims.
    calls: Arc<Mutex<Vec<String>>>,
    /// Whether calls fail.
    fails: Arc<AtomicBool>,
    /// Health, message, and for how many seconds that counts.
    health: watch::Sender<(HealthStatus, &'static str, i64)>,
    _server: Running,
}

impl Driver {
    fn start(root: &Path) -> Driver {
        let calls: Arc<Mutex<Vec<String>>> = Arc::default();
        let fails: Arc<AtomicBool> = Arc::default();
        let health = watch::Sender::new((HealthStatus::Healthy, "", 0));
        let reported = health.clone();
        let [prepared, unprepared] = [(calls.clone(), fails.clone()), (calls.clone(), fails.clone())];
        let error = |fails: &AtomicBool| match fails.load(Ordering::Relaxed) {
            true => "the device is on fire".to_owned(),
            false => String::new(),
        };
        let server = Server::new()
            .unary(&GET_INFO, |_| async {
                Ok(PluginInfo {
                    kind: DRA_PLUGIN.into(),
                    name: DRIVER.into(),
                    supported_versions: vec!["v1.DRAPlugin".into()],
                    ..PluginInfo::default()
                })
            })
            .unary(&NOTIFY_REGISTRATION_STATUS, |status: RegistrationStatus| async move {
                assert!(status.plugin_registered, "{}", status.error);
                Ok(RegistrationStatusResponse {})
            })
            .unary(&VERSIONS[0].prepare, move |request: Claims| {
                let (calls, fails) = prepared.clone();
                async move {
                    let one = |c: &plugins::api::dra::Claim| {
                        calls.lock().unwrap().push(format!("prepare {}/{}", c.namespace, c.name));
                        let device = Device {
                            request_names: vec!["gpu".into()],
                            pool_name: "n1".into(),
                            device_name: "gpu-0".into(),
                            cdi_device_ids: vec!["example.com/gpu=0".into()],
                            share_id: None,
                        };
                        (c.uid.clone(), PreparedClaim { devices: vec![device], error: error(&fails) })
                    };
                    Ok(PrepareResponse { claims: request.claims.iter().map(one).collect() })
                }
            })
            .unary(&VERSIONS[0].unprepare, move |request: Claims| {
                let (calls, fails) = unprepared.clone();
                async move {
                    let one = |c: &plugins::api::dra::Claim| {
                        calls.lock().unwrap().push(format!("unprepare {}/{}", c.namespace, c.name));
                        (c.uid.clone(), UnpreparedClaim { error: error(&fails) })
                    };
                    Ok(UnprepareResponse { claims: request.claims.iter().map(one).collect() })
                }
            })
            .streaming(&WATCH, move |_| {
                let mut all = reported.subscribe();
                all.mark_changed();
                let reports = unfold(all, |mut all| async move {
                    all.changed().await.ok()?;
                    let (health, message, timeout) = *all.borrow_and_update();
                    let device = DeviceHealth {
                        device: Some(DeviceIdentifier { pool_name: "n1".into(), device_name: "gpu-0".into() }),
                        health: health.into(),
                        last_updated_time: 0,
                        health_check_timeout_seconds: timeout,
                        message: message.into(),
                    };
                    Some((Ok(WatchResponse { devices: vec![device] }), all))
                });
                async move { Ok(Box::pin(reports) as Answers<WatchResponse>) }
            });
        let directory = root.join("plugins_registry");
        std::fs::create_dir_all(&directory).unwrap();
        let server = server.serve(&SocketPath::below(&directory, "gpu.sock")).unwrap();
        Driver { calls, fails, health, _server: server }
    }

    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut *self.calls.lock().unwrap())
    }
}

/// What a driver publishes.
fn slice(m: &Machine, name: &str, node: &str, driver: &str) {
    let spec = json!({"nodeName": node, "driver": driver, "pool": {"name": node}});
    m.api.put(SLICES, json!({"metadata": {"name": name}, "spec": spec}));
}

/// A claim that is allocated, and reserved for pods.
fn claim(m: &Machine, name: &str, owner: Option<&str>, pods: &[&str]) {
    let reserved: Vec<Value> = pods.iter().map(|uid| json!({"resource": "pods", "name": "p", "uid": uid})).collect();
    let owners: Vec<Value> = owner
        .iter()
        .map(|uid| json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": true}))
        .collect();
    m.api.put(
        CLAIMS,
        json!({"metadata": {"name": name, "namespace": "default", "uid": format!("uid-of-{name}"), "ownerReferences": owners},
            "spec": {}, "status": {"reservedFor": reserved, "allocation": {"devices": {"results":
                [{"request": "gpu", "driver": DRIVER, "pool": "n1", "device": "gpu-0"}]}}}}),
    );
}

fn spec(entry: Value) -> Value {
    let mut c = demo("c", json!(["use-device", "/dev/gpu", "GPU"]));
    c["resources"] = json!({"claims": [{"name": "gpu", "request": "gpu"}]});
    json!({"restartPolicy": "Never", "resourceClaims": [entry], "containers": [c]})
}

fn uid(pod: &Value) -> String {
    pod["metadata"]["uid"].as_str().unwrap().to_owned()
}

async fn event(m: &Machine, pod: &str, message: &str) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        let all = m.api.list("api/v1/events");
        let of_pod =
            all.iter().filter(|e| e["involvedObject"]["name"] == pod && e["reason"] == "FailedPrepareDynamicResources");
        let messages: Vec<&str> = of_pod.filter_map(|e| e["message"].as_str()).collect();
        if messages.contains(&message) {
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "{messages:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Writes what a container gets with the device, as drivers do.
fn describe_gpu(root: &Path) {
    std::fs::create_dir_all(root.join("cdi")).unwrap();
    let cdi = json!({"cdiVersion": "0.6.0", "kind": "example.com/gpu", "devices": [{"name": "0", "containerEdits":
        {"env": ["GPU=0"], "deviceNodes": [{"path": "/dev/gpu", "hostPath": "/dev/zero"}]}}]});
    std::fs::write(root.join("cdi/gpu.json"), cdi.to_string()).unwrap();
}

/// Clauses: R06.dra-drivers
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_prepares_the_claims_of_pods() {
    let mut m = Machine::new().await;
    let root = m.directory.path().to_owned();
    describe_gpu(&root);

    // The pod waits for the driver.
    let first = uid(&m.pod("first", spec(json!({"name": "gpu", "resourceClaimName": "shared"}))));
    claim(&m, "shared", None, &[&first]);
    let failed = "Failed to prepare dynamic resources: prepare dynamic resources: ";
    event(&m, "first", &format!("{failed}DRA driver {DRIVER} is not registered")).await;
    let driver = Driver::start(&root);
    let pod = m.until("first", |p| is_ready(p) || p["status"]["phase"] == "Failed").await;
    assert!(is_ready(&pod), "{}", pod["status"]);
    assert_eq!(driver.calls(), ["prepare default/shared"]);
    let api = Connection::new(SocketPath::below(root.join("pod-resources"), "kubelet.sock"), Limits::default());
    let listed = api.call(&LIST, plugins::api::pod_resources::Empty {}, Duration::from_secs(30)).await.unwrap();
    let resource = &listed.pods[0].containers[0].dynamic_resources[0];
    assert_eq!((&*resource.claim_name, &*resource.claim_resources[0].device_name), ("shared", "gpu-0"));

    // A second pod shares the claim; a third may not use it.
    let second = uid(&m.pod("second", spec(json!({"name": "gpu", "resourceClaimName": "shared"}))));
    claim(&m, "shared", None, &[&first, &second]);
    m.until("second", is_ready).await;
    let third = uid(&m.pod("third", spec(json!({"name": "gpu", "resourceClaimName": "shared"}))));
    let refused = format!("pod third ({third}) is not allowed to use ResourceClaim shared (uid-of-shared)");
    event(&m, "third", &format!("{failed}{refused}")).await;
    m.api.delete_gracefully(PODS, "default", "third", 0);
    m.gone("third").await;
    m.api.delete_gracefully(PODS, "default", "first", 0);
    m.gone("first").await;
    assert_eq!(driver.calls(), [""; 0], "the second pod still uses it");

    // The agent knows after a restart what is prepared. The last pod ends only when its claim could be unprepared.
    m.stop().await;
    m.start().await;
    assert!(is_ready(&m.api.get(PODS, "default", "second").unwrap()));
    driver.fails.store(true, Ordering::Relaxed);
    m.api.delete_gracefully(PODS, "default", "second", 0);
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    while driver.calls.lock().unwrap().len() < 2 {
        assert!(tokio::time::Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(m.api.get(PODS, "default", "second").is_some(), "the pod has not ended");
    driver.fails.store(false, Ordering::Relaxed);
    m.gone("second").await;
    assert!(driver.calls().iter().all(|c| c == "unprepare default/shared"));

    // A claim that was made for a pod.
    let mut own = json!({"metadata": {"name": "own", "namespace": "default", "uid": "own-uid"},
        "spec": spec(json!({"name": "gpu", "resourceClaimTemplateName": "t"})),
        "status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "own-gpu"}]}});
    own["spec"]["nodeName"] = "n1".into();
    claim(&m, "own-gpu", Some("another"), &["own-uid"]);
    m.api.put(PODS, own);
    let refused = "ResourceClaim default/own-gpu was not created for Pod default/own (Pod is not owner)";
    event(&m, "own", &format!("{failed}{refused}")).await;
    claim(&m, "own-gpu", Some("own-uid"), &["own-uid"]);
    m.until("own", is_ready).await;
    assert_eq!(driver.calls(), ["prepare default/own-gpu"]);
    m.api.delete_gracefully(PODS, "default", "own", 0);
    m.gone("own").await;
    assert_eq!(driver.calls(), ["unprepare default/own-gpu"]);
    m.finish().await;
}

/// Clauses: R06.dra-health
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_show_the_health_of_their_devices() {
    let mut m = Machine::new().await;
    let root = m.directory.path().to_owned();
    describe_gpu(&root);
    // Those of another driver affect nobody.
    std::fs::write(root.join("cdi/broken.json"), "{").unwrap();
    let driver = Driver::start(&root);
    let uid = uid(&m.pod("p", spec(json!({"name": "gpu", "resourceClaimName": "mine"}))));
    claim(&m, "mine", None, &[&uid]);
    let shown = |health: &str, message: Option<&str>| {
        let mut device = json!({"resourceID": "example.com/gpu=0", "health": health});
        if let Some(message) = message {
            device["message"] = message.into();
        }
        json!([{"name": "claim:gpu/gpu", "resources": [device]}])
    };
    let health = |p: &Value| p["status"]["containerStatuses"][0]["allocatedResourcesStatus"].clone();
    let expect = async |health_is: Value| {
        m.until("p", |p| health(p) == health_is && is_ready(p)).await;
    };
    expect(shown("Healthy", None)).await;
    driver.health.send_replace((HealthStatus::Unhealthy, "on fire", 0));
    expect(shown("Unhealthy", Some("on fire"))).await;
    // A report counts for a second.
    driver.health.send_replace((HealthStatus::Healthy, "cold again", 1));
    expect(shown("Healthy", Some("cold again"))).await;
    expect(shown("Unknown", None)).await;
    driver.health.send_replace((HealthStatus::Healthy, "", 0));
    expect(shown("Healthy", None)).await;
    // Without its driver nobody knows.
    let again = driver.calls();
    assert_eq!(again, ["prepare default/mine"]);
    slice(&m, "ours", "n1", DRIVER);
    slice(&m, "of-another-driver", "n1", "nic.example.com");
    slice(&m, "of-another-node", "n2", DRIVER);
    drop(driver);
    expect(shown("Unknown", None)).await;
    // The socket stays: the driver may come back.
    assert!(m.api.get(SLICES, "", "ours").is_some());
    let driver = Driver::start(&root);
    expect(shown("Healthy", None)).await;
    m.api.delete_gracefully(PODS, "default", "p", 0);
    m.gone("p").await;
    assert_eq!(driver.calls(), ["unprepare default/mine"]);
    // A driver that does not come back has no devices here.
    drop(driver);
    std::fs::remove_file(root.join("plugins_registry/gpu.sock")).unwrap();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(120);
    while m.api.get(SLICES, "", "ours").is_some() {
        assert!(tokio::time::Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for other in ["of-another-driver", "of-another-node"] {
        assert!(m.api.get(SLICES, "", other).is_some(), "{other}");
    }
    // A new agent deletes those of drivers that have not registered with it.
    m.stop().await;
    m.start().await;
    m.api.until(SLICES, "", "of-another-driver", |s| s.is_none()).await;
    assert!(m.api.get(SLICES, "", "of-another-node").is_some());
    m.finish().await;
}
