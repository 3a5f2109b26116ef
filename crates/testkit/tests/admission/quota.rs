//! ResourceQuota: the plugin and its controller together.

use crate::{MAPS, call, config_map};
use client::{Informers, Trigger};
use futures::future::join_all;
use meta::Value;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use supervisor::Supervisor;
use testkit::Cluster;
use tokio::runtime::Handle;

const QUOTAS: &str = "/api/v1/namespaces/golden/resourcequotas";
const PODS: &str = "/api/v1/namespaces/golden/pods";

/// A server with its controllers.
struct Plane {
    c: Arc<Cluster>,
    _trigger: Trigger,
}

impl Plane {
    async fn start(seed: u64) -> Self {
        let c = Arc::new(Cluster::start(seed).await);
        let client = c.client(auth::User::new("system:admin", &[auth::user::GROUP_MASTERS]));
        let (trigger, shutdown) = client::shutdown();
        let options = controllers::Options {
            informers: Informers::new(client.clone(), c.rng.clone(), shutdown.clone()),
            clock: c.clock.clone(),
            rng: c.rng.clone(),
            root_ca: "PEM".into(),
            server_hosts: Vec::new(),
            authority: None,
            issue: Arc::new(|_, _| Err("no tokens are made here".into())),
            terminated_pods: controllers::podgc::DEFAULT_THRESHOLD,
            server: client.clone(),
            service_ranges: vec!["10.96.0.0/16".into()],
            load_balancers: None,
        };
        let component = Supervisor::default().component("controller-manager", &shutdown, &Handle::current());
        controllers::start(&options, &component, &|name| client.clone().with_user_agent(name));
        Self { c, _trigger: trigger }
    }

    /// A quota that has been counted.
    async fn quota(&self, name: &str, spec: Value) {
        let (code, answer, _) =
            call(&self.c, "POST", QUOTAS, json!({"metadata": {"name": name}, "spec": spec.clone()})).await;
        assert_eq!(code, 201, "{answer}");
        self.wait(name, |s| s["hard"] == answer["spec"]["hard"]).await;
    }

    async fn wait(&self, name: &str, done: impl Fn(&Value) -> bool) -> Value {
        let path = format!("{QUOTAS}/{name}");
        for _ in 0..1_000 {
            let (_, q, _) = call(&self.c, "GET", &path, Value::Null).await;
            if done(&q["status"]) {
                return q["status"].clone();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let (_, q, _) = call(&self.c, "GET", &path, Value::Null).await;
        panic!("the quota stays {}", q["status"]);
    }

    async fn refused(&self, path: &str, body: Value) -> String {
        let (code, answer, _) = call(&self.c, "POST", path, body).await;
        assert_eq!((code, answer["reason"].as_str()), (403, Some("Forbidden")), "{answer}");
        answer["message"].as_str().unwrap().to_owned()
    }

    async fn make(&self, path: &str, body: Value) -> Value {
        let (code, answer, _) = call(&self.c, "POST", path, body).await;
        assert_eq!(code, 201, "{answer}");
        answer
    }
}

fn pod(name: &str, resources: Value) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i", "resources": resources}]}})
}

/// Clauses: C14.resourcequota-atomic
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_requests_never_exceed_a_quota() {
    let p = Plane::start(1).await;
    p.quota("few", json!({"hard": {"configmaps": "20", "count/configmaps": "30"}})).await;
    // The controllers make one by themselves, sooner or later: `kube-root-ca.crt`.
    p.wait("few", |s| s["used"]["configmaps"] == "1").await;
    let codes = join_all((0..60).map(|i| {
        let c = p.c.clone();
        tokio::spawn(async move { call(&c, "POST", MAPS, config_map(&format!("m{i}"))).await.0 })
    }))
    .await;
    let made = codes.iter().filter(|c| *c.as_ref().unwrap() == 201).count();
    let refused = codes.iter().filter(|c| *c.as_ref().unwrap() == 403).count();
    assert_eq!((made, made + refused), (19, 60));
    let (_, list, _) = call(&p.c, "GET", MAPS, Value::Null).await;
    assert_eq!(list["items"].as_array().unwrap().len(), 20);
    let status = p.wait("few", |s| s["used"]["configmaps"] == "20").await;
    assert_eq!(status["used"]["count/configmaps"], "20");
    // What is given back can be taken again.
    let one = list["items"].as_array().unwrap().iter().find(|o| o["metadata"]["name"] != "kube-root-ca.crt").unwrap();
    let path = format!("{MAPS}/{}", one["metadata"]["name"].as_str().unwrap());
    assert_eq!(call(&p.c, "DELETE", &path, Value::Null).await.0, 200);
    p.wait("few", |s| s["used"]["configmaps"] == "19").await;
    p.make(MAPS, config_map("again")).await;
    let message = p.refused(MAPS, config_map("over")).await;
    let want = "configmaps \"over\" is forbidden: exceeded quota: few, requested: configmaps=1, used: configmaps=20, limited: configmaps=20";
    assert_eq!(message, want);
    let mut generated = config_map("");
    generated["metadata"] = json!({"generateName": "over-"});
    let message = p.refused(MAPS, generated).await;
    let name = message.strip_prefix("configmaps \"over-").and_then(|m| m.split('"').next()).unwrap();
    assert_eq!(
        (name.len(), message.contains("exceeded quota")),
        (5, true),
        "the refusal has the generated name: {message}"
    );
    // A dry run is refused as well, and takes nothing.
    p.refused(&format!("{MAPS}?dryRun=All"), config_map("over")).await;
}

/// Clauses: C14.resourcequota-compute
#[tokio::test]
async fn pods_are_charged_for_their_containers() {
    let p = Plane::start(2).await;
    p.quota("compute", json!({"hard": {"requests.cpu": "1", "limits.memory": "1Gi", "pods": "3"}})).await;
    let message = p.refused(PODS, pod("none", json!({}))).await;
    assert_eq!(
        message,
        "pods \"none\" is forbidden: failed quota: compute: must specify limits.memory for: c; requests.cpu for: c"
    );
    let ask = |cpu: &str, memory: &str| json!({"requests": {"cpu": cpu}, "limits": {"memory": memory, "cpu": "2"}});
    let message = p.refused(PODS, pod("big", ask("1500m", "2Gi"))).await;
    assert_eq!(
        message,
        "pods \"big\" is forbidden: exceeded quota: compute, requested: limits.memory=2Gi,requests.cpu=1500m, \
         used: limits.memory=0,requests.cpu=0, limited: limits.memory=1Gi,requests.cpu=1"
    );
    let mut with_init = pod("init", ask("200m", "256Mi"));
    with_init["spec"]["initContainers"] = json!([{"name": "i", "image": "i", "resources": ask("600m", "128Mi")}]);
    p.make(PODS, with_init).await;
    let used = p.wait("compute", |s| s["used"]["pods"] == "1").await["used"].clone();
    assert_eq!(used, json!({"requests.cpu": "600m", "limits.memory": "256Mi", "pods": "1"}));
    p.make(PODS, pod("small", ask("400m", "256Mi"))).await;
    p.refused(PODS, pod("more", ask("1m", "1Mi"))).await;
    // An ended pod takes nothing any more.
    let ended = json!({"status": {"phase": "Succeeded"}});
    assert_eq!(call(&p.c, "PATCH", &format!("{PODS}/small/status"), ended).await.0, 200);
    p.wait("compute", |s| s["used"]["pods"] == "1" && s["used"]["requests.cpu"] == "600m").await;
    // Limits of a pod as a whole are enough: its requests default to them, and its containers need none.
    let whole = |name: &str, cpu: &str| {
        let mut pod = pod(name, json!({}));
        pod["spec"]["resources"] = json!({"limits": {"cpu": cpu, "memory": "256Mi"}});
        pod
    };
    let message = p.refused(PODS, whole("large", "401m")).await;
    assert!(
        message.contains("exceeded quota: compute, requested: requests.cpu=401m, used: requests.cpu=600m"),
        "{message}"
    );
    p.make(PODS, whole("whole", "400m")).await;
    let used = p.wait("compute", |s| s["used"]["pods"] == "2").await["used"].clone();
    assert_eq!(used, json!({"requests.cpu": "1", "limits.memory": "512Mi", "pods": "2"}));
}

/// Clauses: C14.resourcequota-scopes
#[tokio::test]
async fn scopes_select_the_pods_that_count() {
    let p = Plane::start(3).await;
    p.quota("best-effort", json!({"hard": {"pods": "1"}, "scopes": ["BestEffort"]})).await;
    p.quota("ending", json!({"hard": {"pods": "0"}, "scopes": ["Terminating"]})).await;
    let class = json!([{"scopeName": "PriorityClass", "operator": "In", "values": ["system-node-critical"]}]);
    p.quota("critical", json!({"hard": {"pods": "0"}, "scopeSelector": {"matchExpressions": class}})).await;
    p.make(PODS, pod("one", json!({}))).await;
    let message = p.refused(PODS, pod("two", json!({}))).await;
    assert!(
        message.contains("exceeded quota: best-effort, requested: pods=1, used: pods=1, limited: pods=1"),
        "{message}"
    );
    let asks = json!({"requests": {"cpu": "1m"}});
    p.make(PODS, pod("asks", asks.clone())).await;
    let mut ends = pod("ends", asks);
    ends["spec"]["activeDeadlineSeconds"] = 5.into();
    assert!(p.refused(PODS, ends).await.contains("exceeded quota: ending"));
    p.wait("best-effort", |s| s["used"]["pods"] == "1").await;
    p.wait("critical", |s| s["used"]["pods"] == "0").await;
}

/// Clauses: C14.resourcequota-objects
#[tokio::test]
async fn objects_ports_and_storage_are_counted() {
    let p = Plane::start(4).await;
    let deployments = "/apis/apps/v1/namespaces/golden/deployments";
    let deployment = |name: &str| {
        json!({"metadata": {"name": name}, "spec": {"replicas": 0, "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}})
    };
    p.make(deployments, deployment("before")).await;
    p.quota(
        "objects",
        json!({"hard": {"count/deployments.apps": "2", "services.nodeports": "2",
        "requests.storage": "3Gi", "gold.storageclass.storage.k8s.io/persistentvolumeclaims": "1"}}),
    )
    .await;
    p.wait("objects", |s| s["used"]["count/deployments.apps"] == "1").await;
    p.make(deployments, deployment("second")).await;
    assert!(p.refused(deployments, deployment("third")).await.contains("requested: count/deployments.apps=1"));
    let services = "/api/v1/namespaces/golden/services";
    let service = |name: &str, kind: &str, ports: u16| {
        let ports: Vec<Value> = (0..ports).map(|i| json!({"name": format!("p{i}"), "port": 80 + i})).collect();
        json!({"metadata": {"name": name}, "spec": {"type": kind, "ports": ports}})
    };
    p.make(services, service("plain", "ClusterIP", 3)).await;
    p.make(services, service("one", "NodePort", 1)).await;
    assert!(p.refused(services, service("many", "NodePort", 2)).await.contains("services.nodeports=2"));
    let change = json!({"spec": {"type": "NodePort"}});
    let (code, answer, _) = call(&p.c, "PATCH", &format!("{services}/plain"), change).await;
    assert_eq!(code, 403, "{answer}");
    let claims = "/api/v1/namespaces/golden/persistentvolumeclaims";
    let claim = |name: &str, class: &str, size: &str| {
        json!({"metadata": {"name": name}, "spec": {"storageClassName": class, "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": size}}}})
    };
    p.make(claims, claim("gold", "gold", "1Gi")).await;
    assert!(
        p.refused(claims, claim("gold2", "gold", "1Gi"))
            .await
            .contains("gold.storageclass.storage.k8s.io/persistentvolumeclaims=1")
    );
    assert!(
        p.refused(claims, claim("big", "x", "2500Mi"))
            .await
            .contains("requested: requests.storage=2500Mi, used: requests.storage=1Gi")
    );
    p.make(claims, claim("rest", "x", "2Gi")).await;
    let used = p.wait("objects", |s| s["used"]["requests.storage"] == "3Gi").await["used"].clone();
    assert_eq!(used["services.nodeports"], "1");
}

/// Quotas limit the devices of a class that claims request, and the extended resource that the class offers to pods.
#[tokio::test]
async fn devices_are_counted() {
    let p = Plane::start(12).await;
    let (devices, extended) =
        ("gpu.deviceclass.resource.k8s.io/devices", "requests.deviceclass.resource.kubernetes.io/gpu");
    p.quota("devices", json!({"hard": {devices: "5", extended: "6"}})).await;
    let claims = "/apis/resource.k8s.io/v1/namespaces/golden/resourceclaims";
    let claim =
        |name: &str, requests: Value| json!({"metadata": {"name": name}, "spec": {"devices": {"requests": requests}}});
    let alternatives =
        json!([{"name": "a", "deviceClassName": "gpu"}, {"name": "b", "deviceClassName": "gpu", "count": 3}]);
    let mixed =
        json!([{"name": "x", "exactly": {"deviceClassName": "gpu"}}, {"name": "y", "firstAvailable": alternatives}]);
    p.make(claims, claim("four", mixed)).await;
    let two = json!([{"name": "x", "exactly": {"deviceClassName": "gpu", "count": 2}}]);
    let why = p.refused(claims, claim("two", two)).await;
    assert!(why.contains(&format!("requested: {devices}=2, used: {devices}=4, limited: {devices}=5")), "{why}");
    let all = json!([{"name": "x", "exactly": {"deviceClassName": "gpu", "allocationMode": "All"}}]);
    assert!(p.refused(claims, claim("all", all)).await.contains(&format!("requested: {devices}=32")));
    p.make(claims, claim("other", json!([{"name": "x", "exactly": {"deviceClassName": "nic", "count": 9}}]))).await;
    let pods = "/api/v1/namespaces/golden/pods";
    let gpu = |count: u32| {
        let amounts = json!({"deviceclass.resource.kubernetes.io/gpu": count});
        json!({"requests": amounts, "limits": amounts})
    };
    p.make(pods, pod("small", gpu(2))).await;
    assert!(p.refused(pods, pod("more", gpu(1))).await.contains(&format!("requested: {extended}=1")));
}

/// Devices can be had through claims and through extended resources, and a quota of the latter limits both. A claim that the scheduler
/// made for a pod counts only for what the pod does not.
#[tokio::test]
async fn claims_count_for_the_extended_resources_of_their_classes() {
    let p = Plane::start(13).await;
    let class = json!({"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "example.com/gpu"}});
    p.make("/apis/resource.k8s.io/v1/deviceclasses", class).await;
    let names = ["requests.deviceclass.resource.kubernetes.io/gpu", "requests.example.com/gpu"];
    p.quota("extended", json!({"hard": {names[0]: "6", names[1]: "6"}})).await;
    let claims = "/apis/resource.k8s.io/v1/namespaces/golden/resourceclaims";
    let claim = |name: &str, metadata: Value, count: u32| {
        let requests = json!([{"name": "x", "exactly": {"deviceClassName": "gpu", "count": count}}]);
        let mut claim = json!({"metadata": metadata, "spec": {"devices": {"requests": requests}}});
        claim["metadata"]["name"] = name.into();
        claim
    };
    let used = async |amount: &str| {
        p.wait("extended", |s| names.iter().all(|n| s["used"][n] == amount)).await;
    };
    p.make(claims, claim("own", json!({}), 2)).await;
    used("2").await;
    let amounts = json!({"deviceclass.resource.kubernetes.io/gpu": 2, "example.com/gpu": 2});
    let made = p.make(PODS, pod("small", json!({"requests": amounts, "limits": amounts}))).await;
    used("4").await;
    let of = |uid: &Value| {
        json!({"annotations": {"resource.kubernetes.io/extended-resource-claim": "true"}, "ownerReferences":
            [{"apiVersion": "v1", "kind": "Pod", "name": "small", "uid": uid, "controller": true}]})
    };
    let uid = &made["metadata"]["uid"];
    let why = p.refused(claims, claim("more", of(uid), 5)).await;
    assert!(why.contains(&format!("requested: {}=3,{}=3", names[0], names[1])), "{why}");
    // Saying that a claim is of a pod does not help.
    let why = p.refused(claims, claim("false", of(&json!("another")), 4)).await;
    assert!(why.contains(&format!("requested: {}=4", names[0])), "{why}");
    p.make(claims, claim("made", of(uid), 4)).await;
    used("6").await;
    // Before and behind it by name: they may be made in the same second.
    for name in ["second", "a-second"] {
        let why = p.refused(claims, claim(name, of(uid), 2)).await;
        assert!(why.contains(&format!("requested: {}=2", names[0])), "{why}");
    }
    // What the pod counted is charged when the claim is no longer the pod's.
    let path = format!("{claims}/made");
    for change in [
        json!({"metadata": {"annotations": {"resource.kubernetes.io/extended-resource-claim": null}}}),
        json!({"metadata": {"ownerReferences": null}}),
    ] {
        let (code, answer, _) = call(&p.c, "PATCH", &path, change).await;
        let why = answer["message"].as_str().unwrap_or_default();
        assert!(code == 403 && why.contains(&format!("requested: {}=2,{}=2", names[0], names[1])), "{answer}");
    }
    let (code, answer, _) = call(&p.c, "PATCH", &path, json!({"metadata": {"labels": {"a": "b"}}})).await;
    assert_eq!(code, 200, "{answer}");
    used("6").await;
    // The controller counts the same.
    let (code, answer, _) = call(&p.c, "DELETE", &format!("{claims}/own"), Value::Null).await;
    assert_eq!(code, 200, "{answer}");
    used("4").await;
}

/// Claims made at once may each say that they are the pod's, whose devices count once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_claims_at_once_is_the_pods() {
    const NAME: &str = "requests.deviceclass.resource.kubernetes.io/gpu";
    let p = Plane::start(14).await;
    p.make("/apis/resource.k8s.io/v1/deviceclasses", json!({"metadata": {"name": "gpu"}, "spec": {}})).await;
    p.quota("extended", json!({"hard": {NAME: "4"}})).await;
    let amounts = json!({"deviceclass.resource.kubernetes.io/gpu": 2});
    let made = p.make(PODS, pod("owner", json!({"requests": amounts, "limits": amounts}))).await;
    p.wait("extended", |s| s["used"][NAME] == "2").await;
    let claim = |i: usize| {
        json!({"metadata": {"name": format!("c{i}"), "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "owner", "uid": made["metadata"]["uid"], "controller": true}]},
            "spec": {"devices": {"requests": [{"name": "x", "exactly": {"deviceClassName": "gpu", "count": 2}}]}}})
    };
    let claims = "/apis/resource.k8s.io/v1/namespaces/golden/resourceclaims";
    let answers = join_all((0..32).map(|i| {
        let (c, claim) = (p.c.clone(), claim(i));
        tokio::spawn(async move { call(&c, "POST", claims, claim).await.0 })
    }));
    let mut codes: Vec<u16> = answers.await.into_iter().map(Result::unwrap).collect();
    codes.sort_unstable();
    // That of the pod, and one within the quota.
    assert_eq!((&codes[..2], codes[2..].iter().all(|c| *c == 403)), (&[201, 201][..], true), "{codes:?}");
    p.wait("extended", |s| s["used"][NAME] == "4").await;
}

/// Upstream never counted events; a quota that names them limits nothing and says nothing of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_are_not_counted() {
    let p = Plane::start(9).await;
    p.quota("events", json!({"hard": {"count/events": "0", "count/events.events.k8s.io": "0", "secrets": "5"}})).await;
    let event = json!({"metadata": {"name": "e"}, "involvedObject": {"kind": "Pod", "namespace": "golden", "name": "p"},
        "source": {"component": "test"}, "reason": "Test", "type": "Normal"});
    p.make("/api/v1/namespaces/golden/events", event).await;
    let status = p.wait("events", |s| s["used"]["secrets"] == "0").await;
    assert_eq!(status["used"], json!({"secrets": "0"}));
}

/// A running pod may be given a deadline, which takes it from the scope `NotTerminating` into `Terminating`.
#[tokio::test]
async fn a_deadline_moves_a_pod_to_another_quota() {
    let p = Plane::start(9).await;
    p.quota("ending", json!({"hard": {"pods": "1"}, "scopes": ["Terminating"]})).await;
    p.quota("lasting", json!({"hard": {"pods": "5"}, "scopes": ["NotTerminating"]})).await;
    for name in ["a", "b"] {
        p.make(PODS, pod(name, json!({}))).await;
    }
    p.wait("lasting", |s| s["used"]["pods"] == "2").await;
    let set_deadline = async |name: &str| {
        let path = format!("{PODS}/{name}");
        let (_, mut live, _) = call(&p.c, "GET", &path, Value::Null).await;
        live["spec"]["activeDeadlineSeconds"] = 60.into();
        call(&p.c, "PUT", &path, live).await
    };
    let (code, answer, _) = set_deadline("a").await;
    assert_eq!(code, 200, "{answer}");
    p.wait("ending", |s| s["used"]["pods"] == "1").await;
    let (code, answer, _) = set_deadline("b").await;
    let message = "pods \"b\" is forbidden: exceeded quota: ending, requested: pods=1, used: pods=1, limited: pods=1";
    assert_eq!((code, answer["message"].as_str()), (403, Some(message)));
    p.wait("lasting", |s| s["used"]["pods"] == "1").await;
}
