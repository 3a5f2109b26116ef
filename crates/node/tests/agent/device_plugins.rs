//! Device plugins, with one written for these tests and real containers.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::stream::unfold;
use plugins::api::devices::{
    ALLOCATE, AllocateRequest, AllocateResponse, CdiDevice, ContainerAllocateResponse, Device, DeviceIds, DeviceSpec,
    Empty, GET_OPTIONS, GET_PREFERRED_ALLOCATION, HEALTHY, LIST_AND_WATCH, ListAndWatchResponse, Mount,
    PRE_START_CONTAINER, PluginOptions, PreferredAllocationRequest, PreferredAllocationResponse, REGISTER,
    RegisterRequest, UNHEALTHY, VERSION,
};
use plugins::api::pod_resources::{GET, GET_ALLOCATABLE, GetRequest, LIST};
use plugins::{Answers, Connection, Limits, Running, Server, SocketPath};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::machine::{Machine, PODS, demo, is_ready};

const RESOURCE: &str = "example.com/dongle";
const SOON: Duration = Duration::from_secs(30);

/// A plugin whose devices are all `/dev/zero`.
struct Plugin {
    /// Health by id.
    devices: watch::Sender<BTreeMap<&'static str, bool>>,
    /// The calls about containers.
    calls: Arc<Mutex<Vec<String>>>,
    _server: Running,
}

impl Plugin {
    async fn start(root: &Path, devices: &[&'static str]) -> Plugin {
        let devices = watch::Sender::new(devices.iter().map(|id| (*id, true)).collect::<BTreeMap<_, _>>());
        let calls: Arc<Mutex<Vec<String>>> = Arc::default();
        let (list, allocated, started) = (devices.clone(), calls.clone(), calls.clone());
        let mount = root.join("mounted");
        std::fs::create_dir_all(&mount).unwrap();
        let server = Server::new()
            .unary(&GET_OPTIONS, |_| async {
                Ok(PluginOptions { pre_start_required: true, get_preferred_allocation_available: true })
            })
            .streaming(&LIST_AND_WATCH, move |_| {
                let mut all = list.subscribe();
                all.mark_changed();
                let states = unfold(all, |mut all| async move {
                    all.changed().await.ok()?;
                    let device = |(id, healthy): (&&'static str, &bool)| Device {
                        id: (*id).into(),
                        health: if *healthy { HEALTHY } else { UNHEALTHY }.into(),
                        topology: None,
                    };
                    let devices = all.borrow_and_update().iter().map(device).collect();
                    Some((Ok(ListAndWatchResponse { devices }), all))
                });
                async move { Ok(Box::pin(states) as Answers<ListAndWatchResponse>) }
            })
            .unary(&GET_PREFERRED_ALLOCATION, |request: PreferredAllocationRequest| async move {
                // The last ones.
                let last = |c: &plugins::api::devices::ContainerPreferredAllocationRequest| {
                    let mut ids = c.available.clone();
                    ids.sort();
                    DeviceIds { ids: ids.into_iter().rev().take(c.size as usize).collect() }
                };
                Ok(PreferredAllocationResponse { containers: request.containers.iter().map(last).collect() })
            })
            .unary(&ALLOCATE, move |request: AllocateRequest| {
                let (calls, mount) = (allocated.clone(), mount.clone());
                async move {
                    let one = |c: &DeviceIds| {
                        calls.lock().unwrap().push(format!("allocate {}", c.ids.join(",")));
                        ContainerAllocateResponse {
                            envs: [("DONGLES".to_owned(), c.ids.join(","))].into(),
                            mounts: vec![Mount {
                                container_path: "/dongles".into(),
                                host_path: mount.display().to_string(),
                                read_only: true,
                            }],
                            devices: vec![DeviceSpec {
                                container_path: "/dev/dongle".into(),
                                host_path: "/dev/zero".into(),
                                permissions: "r".into(),
                            }],
                            cdi_devices: vec![CdiDevice { name: "example.com/dongle=any".into() }],
                            ..ContainerAllocateResponse::default()
                        }
                    };
                    Ok(AllocateResponse { containers: request.containers.iter().map(one).collect() })
                }
            })
            .unary(&PRE_START_CONTAINER, move |ids: DeviceIds| {
                started.lock().unwrap().push(format!("start {}", ids.ids.join(",")));
                async { Ok(Empty {}) }
            });
        let directory = root.join("device-plugins");
        agent_serves(root).await;
        let server = server.serve(&SocketPath::below(&directory, "dongle.sock")).unwrap();
        register(root, RESOURCE, VERSION).await.unwrap();
        Plugin { devices, calls, _server: server }
    }

    fn set_health(&self, id: &'static str, healthy: bool) {
        self.devices.send_modify(|all| {
            all.insert(id, healthy);
        });
    }

    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut *self.calls.lock().unwrap())
    }
}

async fn register(root: &Path, resource: &str, version: &str) -> Result<(), String> {
    let socket = SocketPath::below(root.join("device-plugins"), "kubelet.sock");
    let connection = Connection::new(socket, Limits::default());
    let request = RegisterRequest {
        version: version.into(),
        endpoint: "dongle.sock".into(),
        resource_name: resource.into(),
        options: None,
    };
    connection.call(&REGISTER, request, SOON).await.map(drop).map_err(|e| e.to_string())
}

/// Waits until plugins can register. An agent that starts removes their sockets before.
async fn agent_serves(root: &Path) {
    let socket = SocketPath::below(root.join("device-plugins"), "kubelet.sock");
    let connection = Connection::new(socket, Limits::default());
    let deadline = tokio::time::Instant::now() + SOON;
    while let Err(plugins::Error::Connect { source, .. }) = connection.call(&GET_OPTIONS, Empty {}, SOON).await {
        assert!(tokio::time::Instant::now() < deadline, "{source}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn node_has(m: &Machine, capacity: &str, allocatable: &str) {
    let has = |n: &Value| {
        n["status"]["capacity"][RESOURCE] == capacity && n["status"]["allocatable"][RESOURCE] == allocatable
    };
    m.api.until("api/v1/nodes", "", "n1", |n| n.is_some_and(&has)).await;
}

fn pod(count: u32) -> Value {
    let mut c = demo("c", json!(["use-device", "/dev/dongle", "DONGLES"]));
    c["resources"] = json!({"limits": {RESOURCE: count.to_string()}, "requests": {RESOURCE: count.to_string()}});
    json!({"restartPolicy": "Never", "containers": [c]})
}

/// Clauses: R06.device-plugins R06.unhealthy-devices R06.pod-resources
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_gives_devices_to_containers() {
    let mut m = Machine::new().await;
    let root = m.directory.path().to_owned();
    std::fs::create_dir_all(root.join("cdi")).unwrap();
    let hooks = root.join("hooks");
    let hook = |name: &str, script: &str| json!({"hookName": name, "path": "/bin/sh", "args": ["sh", "-c", script]});
    let (on, off) = (format!("echo on >> {}", hooks.display()), format!("echo off >> {}", hooks.display()));
    let mut spec = json!({"cdiVersion": "0.6.0", "kind": "example.com/dongle", "devices": [{"name": "any", "containerEdits":
        {"env": ["FROM_CDI=yes"], "deviceNodes": [{"path": "/dev/second", "hostPath": "/dev/zero"}],
            "hooks": [hook("createRuntime", &on), hook("poststop", &off)]}}]});
    std::fs::write(root.join("cdi/dongle.json"), spec.to_string()).unwrap();
    let plugin = Plugin::start(&root, &["a", "b", "c"]).await;
    let wrong = register(&root, RESOURCE, "v1alpha1").await.unwrap_err();
    assert_eq!(
        wrong,
        "rpc error: code = Unknown desc = requested API version \"v1alpha1\" is not supported by kubelet. Supported version is \
         [\"v1beta1\"]"
    );
    let wrong = register(&root, "kubernetes.io/cpu", VERSION).await.unwrap_err();
    assert_eq!(wrong, "rpc error: code = Unknown desc = the ResourceName \"kubernetes.io/cpu\" is invalid");
    node_has(&m, "3", "3").await;

    m.pod("first", pod(2));
    let first = m.until("first", |p| is_ready(p) || p["status"]["phase"] == "Failed").await;
    assert!(is_ready(&first), "{}", first["status"]);
    assert_eq!(plugin.calls(), ["allocate b,c", "start b,c"], "those that the plugin prefers");
    let mut by_cdi = pod(1);
    by_cdi["containers"][0]["args"] = json!(["use-device", "/dev/second", "FROM_CDI"]);
    m.pod("second", by_cdi);
    m.until("second", is_ready).await;
    assert_eq!(plugin.calls(), ["allocate a", "start a"]);
    // The scheduler was not asked.
    m.pod("third", pod(1));
    let third = m.until("third", |p| p["status"]["phase"] == "Failed").await;
    assert_eq!(third["status"]["reason"], format!("OutOf{RESOURCE}"));

    let api = Connection::new(SocketPath::below(root.join("pod-resources"), "kubelet.sock"), Limits::default());
    let listed = api.call(&LIST, plugins::api::pod_resources::Empty {}, SOON).await.unwrap();
    let mut has: Vec<String> =
        listed.pods.iter().map(|p| format!("{} {}", p.name, p.containers[0].devices[0].device_ids.join(","))).collect();
    has.sort();
    assert_eq!(has, ["first b,c", "second a"]);
    let request = GetRequest { name: "first".into(), namespace: "default".into() };
    assert_eq!(
        api.call(&GET, request, SOON).await.unwrap().pod.unwrap().containers[0].devices[0].resource_name,
        RESOURCE
    );
    let request = GetRequest { name: "none".into(), namespace: "default".into() };
    let error = api.call(&GET, request, SOON).await.unwrap_err().to_string();
    assert_eq!(error, "rpc error: code = Unknown desc = pod none in namespace default not found");

    // A device that fails is shown in the status of its pod.
    plugin.set_health("b", false);
    node_has(&m, "3", "2").await;
    let health = |p: &Value| p["status"]["containerStatuses"][0]["allocatedResourcesStatus"].clone();
    let unhealthy = json!([{"name": RESOURCE, "resources": [{"resourceID": "b", "health": "Unhealthy"},
        {"resourceID": "c", "health": "Healthy"}]}]);
    m.until("first", |p| health(p) == unhealthy).await;
    let allocatable = api.call(&GET_ALLOCATABLE, plugins::api::pod_resources::Empty {}, SOON).await.unwrap();
    assert_eq!(allocatable.devices[0].device_ids, ["a", "c"]);

    // The agent knows after a restart what it gave away, and the plugin registers again.
    m.stop().await;
    m.start().await;
    drop(plugin);
    let plugin = Plugin::start(&root, &["a", "b", "c"]).await;
    node_has(&m, "3", "3").await;
    assert!(is_ready(&m.api.get(PODS, "default", "first").unwrap()));
    m.api.delete_gracefully(PODS, "default", "second", 0);
    m.gone("second").await;
    m.pod("fourth", pod(1));
    m.until("fourth", is_ready).await;
    assert_eq!(plugin.calls(), ["allocate a", "start a"], "the only one that is free");

    // Nothing is healthy when the plugin is gone.
    drop(plugin);
    node_has(&m, "3", "0").await;
    // Its hooks run for each container, also for one that an earlier agent started. One that fails keeps the container from starting.
    m.api.delete_gracefully(PODS, "default", "fourth", 0);
    m.gone("fourth").await;
    let ran = std::fs::read_to_string(&hooks).unwrap();
    assert_eq!(ran, "on\non\noff\non\noff\n");
    let broken = [hook("createRuntime", "echo the dongle is cold >&2; exit 1"), hook("poststop", &off)];
    spec["devices"][0]["containerEdits"]["hooks"] = broken.as_slice().into();
    std::fs::write(root.join("cdi/dongle.json"), spec.to_string()).unwrap();
    let plugin = Plugin::start(&root, &["a", "b", "c"]).await;
    node_has(&m, "3", "3").await;
    m.pod("fifth", pod(1));
    let fifth = m.until("fifth", |p| p["status"]["phase"] == "Failed").await;
    let ended = &fifth["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!((&ended["reason"], &ended["exitCode"]), (&json!("StartError"), &json!(128)), "{}", fifth["status"]);
    assert_eq!(ended["message"], "error running createRuntime hook #0: exit status 1, stderr: the dongle is cold");
    drop(plugin);
    for name in ["first", "third", "fifth"] {
        m.api.delete_gracefully(PODS, "default", name, 0);
        m.gone(name).await;
    }
    m.finish().await;
}
