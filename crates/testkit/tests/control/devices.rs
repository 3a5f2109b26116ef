//! Pods that claim devices.

use crate::harness::Plane;
use serde_json::{Value, json};

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
