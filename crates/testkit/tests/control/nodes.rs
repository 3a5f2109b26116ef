//! Nodes in virtual time: registration, conditions and taints, ranges of pod addresses, pods of nodes that are shut down.

use super::harness::Plane;
use client::{Patch, WriteOptions};
use controllers::nodeipam;
use meta::{Object, Value};
use serde_json::json;
use std::time::Duration;

impl Plane {
    async fn node_status(&self, name: &str, condition: Value) {
        let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
        self.api("nodes").patch_status(name, &WriteOptions::default(), &patch).await.unwrap();
    }

    /// The taints of a node as `key:effect`, without the common prefix.
    async fn taints(&self, name: &str) -> Vec<String> {
        let node = self.api("nodes").get(name).await.unwrap();
        let all = node.at(&["spec", "taints"]).and_then(Value::as_array).cloned().unwrap_or_default();
        let text = |t: &Value| format!("{}:{}", t["key"].as_str().unwrap(), t["effect"].as_str().unwrap());
        all.iter().map(|t| text(t).replace("node.kubernetes.io/", "")).collect()
    }

    async fn bare_pod(&self, name: &str, spec: Value) -> Object {
        let mut pod = json!({"metadata": {"name": name, "namespace": "default"},
            "spec": {"containers": [{"name": "c", "image": "i"}]}});
        for (k, v) in spec.as_object().unwrap() {
            pod["spec"][k] = v.clone();
        }
        self.create("pods", pod).await
    }
}

#[tokio::test(start_paused = true)]
async fn nodes_are_registered_labelled_and_tainted() {
    let p = Plane::start().await;
    p.create(
        "nodes",
        json!({"metadata": {"name": "n1", "labels": {"kubernetes.io/os": "linux", "kubernetes.io/arch": "arm64",
        "beta.kubernetes.io/arch": "amd64"}}}),
    )
    .await;
    p.reported("RegisteredNode", "Node n1 event: Registered Node n1 in Controller").await;
    let n = p
        .until("the older labels", async || {
            let n = p.api("nodes").get("n1").await.unwrap();
            n.label("beta.kubernetes.io/os").is_some().then_some(n)
        })
        .await;
    let labels = ["beta.kubernetes.io/os", "beta.kubernetes.io/arch"].map(|k| n.label(k).unwrap_or_default());
    assert_eq!(labels, ["linux", "arm64"]);
    // No kubelet ever posts its status.
    let silent = ["unreachable:NoSchedule", "unreachable:NoExecute"];
    p.until("the node to be unreachable", async || (p.taints("n1").await == silent[..1]).then_some(())).await;
    p.node_status("n1", json!({"type": "Ready", "status": "False", "lastHeartbeatTime": "2026-01-01T00:00:00Z"})).await;
    p.until("the node not to be ready", async || (p.taints("n1").await == ["not-ready:NoSchedule"]).then_some(()))
        .await;
    p.node_status("n1", json!({"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:01Z"})).await;
    p.node_status("n1", json!({"type": "PIDPressure", "status": "True"})).await;
    p.until("the pressure", async || (p.taints("n1").await == ["pid-pressure:NoSchedule"]).then_some(())).await;
    p.api("nodes").delete("n1", &client::DeleteOptions::default()).await.unwrap();
    p.reported("RemovingNode", "Node n1 event: Removing Node n1 from Controller").await;
}

/// A kubelet that reports its node as not ready still reports its pods: the controller leaves their conditions to it, and marks them
/// only when the kubelet falls silent.
#[tokio::test(start_paused = true)]
async fn pods_are_marked_when_their_kubelet_is_silent() {
    let p = Plane::start().await;
    p.node("n1", "8").await;
    p.node("n2", "8").await;
    let tolerations = json!([{"operator": "Exists"}]);
    p.bare_pod("a", json!({"nodeName": "n1", "tolerations": tolerations})).await;
    let ready = async || {
        let pod = p.api("pods").get("a").await.unwrap();
        let all = pod.at(&["status", "conditions"]).and_then(Value::as_array).cloned().unwrap_or_default();
        all.iter().find(|c| c["type"] == "Ready").map(|c| c["status"].as_str().unwrap().to_owned())
    };
    p.until("the pod to be ready", async || (ready().await.as_deref() == Some("True")).then_some(())).await;
    p.node_status("n1", json!({"type": "Ready", "status": "False", "reason": "KubeletNotReady"})).await;
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert_eq!(ready().await.as_deref(), Some("True"));
    tokio::time::sleep(Duration::from_secs(10)).await;
    p.kill_node("n1");
    p.until("the pod not to be ready", async || (ready().await.as_deref() == Some("False")).then_some(())).await;
    p.reported("NodeNotReady", "Node is not ready").await;
    let node = p.reported("NodeNotReady", "Node n1 status is now: NodeNotReady").await;
    let uid = p.api("nodes").get("n1").await.unwrap().uid().to_owned();
    assert_eq!(node.str_at(&["involvedObject", "uid"]), Some(&*uid));
}

/// Pods that wait for a node which is shut down for good are deleted without it.
#[tokio::test(start_paused = true)]
async fn pods_of_an_out_of_service_node_are_deleted() {
    let p = Plane::start().await;
    p.node("n1", "8").await;
    p.node("n2", "8").await;
    p.bare_pod("a", json!({"nodeName": "n1", "tolerations": [{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}]})).await;
    p.until("the pod to run", async || {
        (p.api("pods").get("a").await.unwrap().str_at(&["status", "phase"]) == Some("Running")).then_some(())
    })
    .await;
    p.kill_node("n1");
    p.until("the pod to be evicted", async || p.api("pods").get("a").await.unwrap().is_deleting().then_some(())).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(p.api("pods").get("a").await.is_ok(), "its kubelet may still come back");
    let mut node = p.api("nodes").get("n1").await.unwrap();
    let mut taints = node.at(&["spec", "taints"]).and_then(Value::as_array).cloned().unwrap_or_default();
    taints.push(json!({"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}));
    node.set(&["spec", "taints"], taints);
    p.api("nodes").update("n1", &WriteOptions::default(), &node).await.unwrap();
    p.until("the pod to go", async || p.api("pods").get_opt("a").await.unwrap().is_none().then_some(())).await;
}

/// A toleration counts from the binding of the pod, however old the taint is.
#[tokio::test(start_paused = true)]
async fn a_pod_on_a_node_with_an_old_taint_stays_its_time() {
    let p = Plane::start().await;
    p.node("n1", "8").await;
    let taint = json!([{"key": "old", "effect": "NoExecute", "timeAdded": "2020-01-01T00:00:00Z"}]);
    p.patch("nodes", "n1", json!({"spec": {"taints": taint}})).await;
    let tolerations = json!([{"key": "old", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}]);
    p.bare_pod("a", json!({"nodeName": "n1", "tolerations": tolerations})).await;
    let begun = tokio::time::Instant::now();
    p.until("the pod to go", async || p.api("pods").get_opt("a").await.unwrap().is_none().then_some(())).await;
    assert!((55..=70).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    p.reported("TaintManagerEviction", "Marking for deletion Pod default/a").await;
}

/// Each node has a range of its own, which is another's when the node is gone; an exhausted range is an event.
#[tokio::test(start_paused = true)]
async fn nodes_get_ranges_of_pod_addresses() {
    let p = Plane::start().await;
    let (_trigger, shutdown) = client::shutdown();
    let context = controllers::Context {
        name: "node-ipam-controller",
        client: p.client.clone(),
        informers: client::Informers::new(p.client.clone(), p.cluster.rng.clone(), shutdown.clone()),
        clock: p.cluster.clock.clone(),
        rng: p.cluster.rng.clone(),
        shutdown,
    };
    let create = async |name: &str, range: Option<&str>| {
        let spec = range.map_or(json!({}), |r| json!({"podCIDR": r, "podCIDRs": [r]}));
        p.create("nodes", json!({"metadata": {"name": name}, "spec": spec})).await;
    };
    create("before", Some("10.244.1.0/24")).await;
    // Service addresses are in the first of four ranges.
    let services = vec![nodeipam::Cidr::parse("10.244.0.0/28").unwrap()];
    let options = nodeipam::Options::new("10.244.0.0/22", None, None).unwrap();
    tokio::spawn(nodeipam::run(context, options, services));
    let range = async |name: &str| {
        p.until(&format!("a range of {name}"), async || {
            let node = p.api("nodes").get(name).await.unwrap();
            let range = node.str_at(&["spec", "podCIDR"]).map(str::to_owned)?;
            assert_eq!(node.at(&["spec", "podCIDRs"]), Some(&json!([range])));
            Some(range)
        })
        .await
    };
    create("a", None).await;
    assert_eq!(range("a").await, "10.244.2.0/24");
    create("b", None).await;
    assert_eq!(range("b").await, "10.244.3.0/24");
    create("c", None).await;
    p.reported("CIDRNotAvailable", "Node c status is now: CIDRNotAvailable").await;
    p.api("nodes").delete("a", &client::DeleteOptions::default()).await.unwrap();
    assert_eq!(range("c").await, "10.244.2.0/24");
    assert_eq!(range("before").await, "10.244.1.0/24");
}

/// A pod leaves when a device that it uses is tainted, after the time that it tolerates.
#[tokio::test(start_paused = true)]
async fn pods_leave_tainted_devices() {
    let p = Plane::start().await;
    p.node("n1", "8").await;
    let slices = "/apis/resource.k8s.io/v1/resourceslices";
    let slice = |taints: Value| {
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": {"driver": "gpu.example.com", "nodeName": "n1",
            "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "d0", "taints": taints}]}})
    };
    let made = p.cluster.call("POST", slices, slice(json!([]))).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let claim = json!({"metadata": {"name": "c", "namespace": "default"}, "spec": {"devices": {"requests": [
        {"name": "r", "exactly": {"deviceClassName": "gpu"}}]}}});
    p.create("resourceclaims", claim).await;
    let pod =
        p.bare_pod("a", json!({"nodeName": "n1", "resourceClaims": [{"name": "x", "resourceClaimName": "c"}]})).await;
    let toleration = json!({"key": "ill", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30});
    let status = json!({"allocation": {"devices": {"results": [
        {"request": "r", "driver": "gpu.example.com", "pool": "n1", "device": "d0", "tolerations": [toleration]}]}},
        "reservedFor": [{"resource": "pods", "name": "a", "uid": pod.uid()}]});
    let mut claim = p.api("resourceclaims").get("c").await.unwrap();
    claim.set(&["status"], status);
    p.api("resourceclaims").update_status("c", &WriteOptions::default(), &claim).await.unwrap();
    let taint = async |taints: Value| {
        let held = p.cluster.call("GET", &format!("{slices}/s"), Value::Null).await;
        let mut next = slice(taints);
        next["metadata"] = held.body["metadata"].clone();
        let a = p.cluster.call("PUT", &format!("{slices}/s"), next).await;
        assert_eq!(a.code, 200, "{}", a.body);
    };
    let ill = || {
        let now = meta::time::format(meta::Clock::now(&*p.cluster.clock));
        json!([{"key": "ill", "effect": "NoExecute", "timeAdded": now}])
    };
    taint(ill()).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    taint(json!([])).await;
    p.reported("DeviceTaintManagerEviction", "Cancelling deletion").await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!p.api("pods").get("a").await.unwrap().is_deleting());
    taint(ill()).await;
    let begun = tokio::time::Instant::now();
    p.until("the pod to go", async || p.api("pods").get_opt("a").await.unwrap().is_none().then_some(())).await;
    assert!((25..=45).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    p.reported("DeviceTaintManagerEviction", "Marking for deletion").await;
}
