//! Pods that claim devices.

use crate::harness::Plane;
use serde_json::{Value, json};
use std::time::Duration;

impl Plane {
    async fn resource(&self, path: &str, mut v: Value, name: &str) {
        v["metadata"] = json!({"name": name});
        let a = self.cluster.call("POST", &format!("/apis/resource.k8s.io/v1/{path}"), v).await;
        assert_eq!(a.code, 201, "{}", a.body);
    }

    /// Offers devices with these models on a node.
    async fn offer(&self, node: &str, models: &[&str]) {
        let device =
            |(i, model): (usize, &&str)| json!({"name": format!("gpu{i}"), "attributes": {"model": {"string": model}}});
        let devices: Vec<Value> = models.iter().enumerate().map(device).collect();
        let pool = json!({"name": node, "generation": 1, "resourceSliceCount": 1});
        let spec = json!({"driver": "gpu.example.com", "nodeName": node, "pool": pool, "devices": devices});
        self.resource("resourceslices", json!({"spec": spec}), &format!("slice-{node}")).await;
    }

    async fn device_claim(&self, name: &str, request: Value) {
        let request = json!({"name": "gpu", "exactly": request});
        self.resource("namespaces/default/resourceclaims", json!({"spec": {"devices": {"requests": [request]}}}), name)
            .await;
    }

    async fn device_pod(&self, name: &str, claim: &str) {
        let spec = json!({
            "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}],
            "containers": [{"name": "c", "image": "i", "resources": {"claims": [{"name": "gpu"}]}}],
        });
        self.create("pods", json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})).await;
    }
}

/// Claims select devices by expressions; their pods go where such devices are free, and the claims show what they have.
#[tokio::test(start_paused = true)]
async fn pods_go_where_the_devices_of_their_claims_are() {
    let p = Plane::start().await;
    p.node("a", "4").await;
    p.node("b", "4").await;
    p.offer("a", &["small"]).await;
    p.offer("b", &["small", "large"]).await;
    let gpu = r#"device.driver == "gpu.example.com""#;
    p.resource("deviceclasses", json!({"spec": {"selectors": [{"cel": {"expression": gpu}}]}}), "gpu").await;
    let large = r#"device.attributes["gpu.example.com"].model == "large""#;
    let selecting = json!({"deviceClassName": "gpu", "selectors": [{"cel": {"expression": large}}]});
    p.device_claim("large", selecting.clone()).await;
    p.device_pod("first", "large").await;
    assert_eq!(p.node_of("first").await, "b");
    let claim = p.api("resourceclaims").get("large").await.unwrap();
    let results = claim.at(&["status", "allocation", "devices", "results"]).unwrap();
    assert_eq!(results[0]["device"], "gpu1");
    assert_eq!(claim.at(&["status", "reservedFor"]).unwrap()[0]["name"], "first");

    // There is no other one.
    p.device_claim("second", selecting).await;
    p.device_pod("waiting", "second").await;
    p.waits_because("waiting", "2 cannot allocate all claims").await;
    // The two free ones are on two nodes.
    p.device_claim("two", json!({"deviceClassName": "gpu", "count": 2})).await;
    p.device_pod("pair", "two").await;
    p.waits_because("pair", "2 cannot allocate all claims").await;
    p.device_claim("none", json!({"deviceClassName": "unknown"})).await;
    p.device_pod("lost", "none").await;
    p.waits_because("lost", "request gpu: device class unknown does not exist").await;
    p.node("c", "4").await;
    p.offer("c", &["large"]).await;
    assert_eq!(p.node_of("waiting").await, "c");
}

/// Pods share a claim, also those that are there while it gets its devices; when it is gone, another one gets them.
#[tokio::test(start_paused = true)]
async fn devices_are_shared_by_pods_and_used_again() {
    let p = Plane::start().await;
    p.node("a", "8").await;
    p.offer("a", &["x"]).await;
    p.resource("deviceclasses", json!({"spec": {}}), "gpu").await;
    p.device_claim("shared", json!({"deviceClassName": "gpu"})).await;
    for pod in ["one", "two", "three"] {
        p.device_pod(pod, "shared").await;
    }
    for pod in ["one", "two", "three"] {
        assert_eq!(p.node_of(pod).await, "a");
    }
    p.device_claim("next", json!({"deviceClassName": "gpu"})).await;
    p.device_pod("four", "next").await;
    p.waits_because("four", "1 cannot allocate all claims").await;
    let path = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/shared";
    let mut claim = p.cluster.call("GET", path, Value::Null).await.body;
    claim["metadata"]["finalizers"] = json!([]);
    let written = p.cluster.call("PUT", path, claim).await;
    assert_eq!(written.code, 200, "{}", written.body);
    p.cluster.call("DELETE", path, Value::Null).await;
    assert_eq!(p.node_of("four").await, "a");
}

/// A pod whose claim is not there yet waits without an attempt, and nothing is said of it.
#[tokio::test(start_paused = true)]
async fn pods_are_held_until_their_claims_exist() {
    let p = Plane::start().await;
    p.node("a", "4").await;
    p.offer("a", &["x"]).await;
    p.resource("deviceclasses", json!({"spec": {}}), "gpu").await;
    p.device_pod("early", "late").await;
    p.create(
        "pods",
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "next"},
        "spec": {"containers": [{"name": "c", "image": "i"}]}}),
    )
    .await;
    // The scheduler has seen the earlier pod, too.
    assert_eq!(p.node_of("next").await, "a");
    let early = p.api("pods").get("early").await.unwrap();
    assert!(early.at(&["status", "conditions"]).is_none(), "{early:?}");
    p.device_claim("late", json!({"deviceClassName": "gpu"})).await;
    assert_eq!(p.node_of("early").await, "a");
    let reasons = p
        .until("the event of the binding", async || {
            let events = p.list("events").await;
            let early = events.iter().filter(|e| e.str_at(&["involvedObject", "name"]) == Some("early"));
            let reasons: Vec<String> = early.filter_map(|e| e.str_at(&["reason"])).map(str::to_owned).collect();
            (!reasons.is_empty()).then_some(reasons)
        })
        .await;
    assert_eq!(reasons, ["Scheduled"]);
}

/// A selector that fails for one device keeps the pod from all nodes: its claim is wrong.
#[tokio::test(start_paused = true)]
async fn a_pod_whose_selector_fails_is_not_scheduled() {
    let p = Plane::start().await;
    p.node("a", "4").await;
    p.node("b", "4").await;
    p.offer("a", &["x"]).await;
    let bare = json!({"driver": "gpu.example.com", "nodeName": "b", "pool": {"name": "b", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu0"}]});
    p.resource("resourceslices", json!({"spec": bare}), "slice-b").await;
    p.resource("deviceclasses", json!({"spec": {}}), "gpu").await;
    let model = r#"device.attributes["gpu.example.com"].model == "x""#;
    p.device_claim("c", json!({"deviceClassName": "gpu", "selectors": [{"cel": {"expression": model}}]})).await;
    p.device_pod("lost", "c").await;
    let message = "running \"DynamicResources\" filter plugin: claim default/c: selector #0: CEL runtime error: ";
    p.waits_because("lost", message).await;
}

/// A claim whose devices are on a node that does not suit its pod gets other ones.
#[tokio::test(start_paused = true)]
async fn claims_lose_devices_that_their_pod_cannot_reach() {
    let p = Plane::start().await;
    p.node("a", "4").await;
    p.node("b", "1").await;
    p.offer("a", &["x"]).await;
    p.offer("b", &["x"]).await;
    p.resource("deviceclasses", json!({"spec": {}}), "gpu").await;
    p.device_claim("c", json!({"deviceClassName": "gpu"})).await;
    // As after a pod that is gone.
    let result = json!({"request": "gpu", "driver": "gpu.example.com", "pool": "b", "device": "gpu0"});
    let here = json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}]);
    let allocation = json!({"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": here}});
    let path = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/c";
    let mut claim = p.cluster.call("GET", path, Value::Null).await.body;
    claim["metadata"]["finalizers"] = json!(["resource.kubernetes.io/delete-protection"]);
    claim = p.cluster.call("PUT", path, claim).await.body;
    claim["status"]["allocation"] = allocation;
    let written = p.cluster.call("PUT", &format!("{path}/status"), claim).await;
    assert_eq!(written.code, 200, "{}", written.body);
    let spec = json!({
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}],
        "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "2"}, "claims": [{"name": "gpu"}]}}],
    });
    p.create("pods", json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "big"}, "spec": spec})).await;
    assert_eq!(p.node_of("big").await, "a");
    let claim = p.api("resourceclaims").get("c").await.unwrap();
    assert_eq!(claim.at(&["status", "allocation", "devices", "results"]).unwrap()[0]["pool"], "a");
}

/// Pods get shares of one device, each with a name of its own, until its capacity is used up.
#[tokio::test(start_paused = true)]
async fn pods_share_a_device() {
    let p = Plane::start().await;
    p.node("a", "4").await;
    let device = json!({"name": "card", "allowMultipleAllocations": true, "capacity": {"memory": {"value": "10Gi"}}});
    let spec = json!({"driver": "d.com", "nodeName": "a", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}, "devices": [device]});
    p.resource("resourceslices", json!({"spec": spec}), "s").await;
    p.resource("deviceclasses", json!({"spec": {}}), "gpu").await;
    let wants = json!({"deviceClassName": "gpu", "capacity": {"requests": {"memory": "4Gi"}}});
    let mut shares = Vec::new();
    for name in ["one", "two"] {
        p.device_claim(name, wants.clone()).await;
        p.device_pod(name, name).await;
        p.node_of(name).await;
        let claim = p.api("resourceclaims").get(name).await.unwrap();
        let result = claim.at(&["status", "allocation", "devices", "results"]).unwrap()[0].clone();
        assert_eq!(result["consumedCapacity"], json!({"memory": "4Gi"}), "{result}");
        assert!(claim.at(&["status", "allocation", "allocationTimestamp"]).is_some());
        shares.push(result["shareID"].as_str().unwrap().to_owned());
    }
    assert!(shares[0] != shares[1] && shares[0].len() == 36, "{shares:?}");
    p.device_claim("three", wants).await;
    p.device_pod("three", "three").await;
    p.waits_because("three", "1 cannot allocate all claims").await;
}

/// A pod is bound once the driver has attached its device; devices that fail are replaced.
#[tokio::test(start_paused = true)]
async fn pods_wait_until_their_devices_are_attached() {
    let p = Plane::start().await;
    p.node("a", "4").await;
    let device =
        |name: &str| json!({"name": name, "bindingConditions": ["attached"], "bindingFailureConditions": ["broken"]});
    let pool = json!({"name": "p", "generation": 1, "resourceSliceCount": 1});
    let spec = json!({"driver": "d.com", "nodeName": "a", "pool": pool, "devices": [device("one"), device("two")]});
    p.resource("resourceslices", json!({"spec": spec}), "s").await;
    p.resource("deviceclasses", json!({"spec": {}}), "gpu").await;
    p.device_claim("c", json!({"deviceClassName": "gpu"})).await;
    p.device_pod("pod", "c").await;
    let path = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/c";
    let report = async |kind: &str| {
        let mut claim = p.cluster.call("GET", path, Value::Null).await.body;
        let result = claim["status"]["allocation"]["devices"]["results"][0].clone();
        let now = "2026-01-01T00:00:00Z";
        let condition =
            json!({"type": kind, "status": "True", "reason": "R", "message": "M", "lastTransitionTime": now});
        claim["status"]["devices"] =
            json!([{"driver": "d.com", "pool": "p", "device": result["device"], "conditions": [condition]}]);
        let written = p.cluster.call("PUT", &format!("{path}/status"), claim).await;
        assert_eq!(written.code, 200, "{}", written.body);
        result["device"].as_str().unwrap().to_owned()
    };
    let allocated = async || {
        p.until("the claim has a device", async || {
            let claim = p.cluster.call("GET", path, Value::Null).await.body;
            claim["status"]["allocation"]["devices"]["results"][0]["device"].as_str().map(str::to_owned)
        })
        .await
    };
    assert_eq!(allocated().await, "one");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(p.api("pods").get("pod").await.unwrap().at(&["spec", "nodeName"]).is_none(), "it is not attached yet");
    report("broken").await;
    p.until("the device is taken back", async || {
        let claim = p.cluster.call("GET", path, Value::Null).await.body;
        claim["status"]["devices"].is_null().then_some(())
    })
    .await;
    allocated().await;
    report("attached").await;
    assert_eq!(p.node_of("pod").await, "a");
}

/// A device driver provides an extended resource: pods request it like any other, and get devices by a claim that is made for them.
///
/// Clauses: R06.extended
#[tokio::test(start_paused = true)]
async fn drivers_provide_extended_resources() {
    let p = Plane::start().await;
    let gpu = "example.com/gpu";
    p.node("a", "4").await;
    p.offer("a", &["x", "x"]).await;
    let requesting = |name: &str, resource: &str, count: u32| {
        let resources = json!({"requests": {resource: count}, "limits": {resource: count}});
        let container = json!({"name": "c", "image": "sleep:600", "resources": resources});
        let spec = json!({"restartPolicy": "Never", "containers": [container]});
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
    };
    p.create("pods", requesting("one", gpu, 1)).await;
    p.waits_because("one", "1 Insufficient example.com/gpu").await;
    // The class makes it one.
    p.resource("deviceclasses", json!({"spec": {"extendedResourceName": gpu}}), "gpu").await;
    assert_eq!(p.node_of("one").await, "a");
    let pod = p.api("pods").get("one").await.unwrap();
    let status = pod.at(&["status", "extendedResourceClaimStatus"]).unwrap().clone();
    let mapping = json!({"containerName": "c", "resourceName": gpu, "requestName": "container-0-request-0"});
    assert_eq!(status["requestMappings"], json!([mapping]));
    let name = status["resourceClaimName"].as_str().unwrap().to_owned();
    assert!(name.starts_with("one-extended-resources-"), "{name}");
    let claim = p.api("resourceclaims").get(&name).await.unwrap();
    assert_eq!(claim.annotation("resource.kubernetes.io/extended-resource-claim"), Some("true"));
    assert_eq!(claim.at(&["status", "allocation", "devices", "results"]).unwrap()[0]["device"], "gpu0");
    assert_eq!(claim.at(&["status", "reservedFor"]).unwrap()[0]["uid"], pod.uid());
    // The class offers a resource of its own name, too. Two more do not fit.
    p.create("pods", requesting("two", "deviceclass.resource.kubernetes.io/gpu", 2)).await;
    p.waits_because("two", "1 cannot allocate all claims").await;
    assert_eq!(p.list("resourceclaims").await.len(), 1, "a pod that waits has no claim");
    // The devices are free when the pod has ended, and its claim is gone.
    assert_eq!(p.node_of("two").await, "a");
    p.until("the claim is gone", async || {
        p.api("resourceclaims").get_opt(&name).await.unwrap().is_none().then_some(())
    })
    .await;
}

/// A claim of an attempt that failed is deleted, and the next attempt makes another one.
#[tokio::test(start_paused = true)]
async fn a_stale_claim_for_extended_resources_is_replaced() {
    let p = Plane::start().await;
    p.node("a", "4").await;
    p.offer("a", &["x"]).await;
    let spec = json!({"containers": [{"name": "c", "image": "i", "resources": {"requests": {"example.com/gpu": 1}, "limits": {"example.com/gpu": 1}}}]});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec});
    p.create("pods", pod).await;
    p.waits_because("pod", "1 Insufficient example.com/gpu").await;
    let uid = p.api("pods").get("pod").await.unwrap().uid().to_owned();
    let request = json!({"name": "container-0-request-0", "exactly": {"deviceClassName": "gpu"}});
    let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {
        "name": "stale", "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"},
        "finalizers": ["resource.kubernetes.io/delete-protection"],
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "pod", "uid": uid, "controller": true}],
    }, "spec": {"devices": {"requests": [request]}}});
    p.create("resourceclaims", claim).await;
    p.resource("deviceclasses", json!({"spec": {"extendedResourceName": "example.com/gpu"}}), "gpu").await;
    assert_eq!(p.node_of("pod").await, "a");
    let all = p.list("resourceclaims").await;
    assert_eq!(all.len(), 1);
    assert!(all[0].name().starts_with("pod-extended-resources-"), "{}", all[0].name());
}
