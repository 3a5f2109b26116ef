//! Device requests: permissions and costs.

use serde_json::json;
use testkit::Cluster;

/// Access to devices in use is for namespaces that an administrator marked.
#[tokio::test]
async fn admin_access_to_devices_needs_a_label() {
    const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/golden";
    let c = Cluster::start(1).await;
    let request = json!({"name": "r", "exactly": {"deviceClassName": "c.example.com", "adminAccess": true}});
    let spec = json!({"devices": {"requests": [request]}});
    let bodies = [("resourceclaims", spec.clone()), ("resourceclaimtemplates", json!({"spec": spec}))];
    for (resource, spec) in &bodies {
        let a = c.call("POST", &format!("{CLAIMS}/{resource}"), json!({"metadata": {"name": "x"}, "spec": spec})).await;
        let field = &a.body["details"]["causes"][0]["field"];
        assert_eq!((a.code, field), (422, &json!("spec.devices.requests[0].adminAccess")), "{}", a.body);
    }
    let label = json!({"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}).to_string();
    let media = Some("application/merge-patch+json");
    assert_eq!(c.send("PATCH", "/api/v1/namespaces/golden", media, "application/json", label.into()).await.code, 200);
    for (resource, spec) in &bodies {
        let a = c.call("POST", &format!("{CLAIMS}/{resource}"), json!({"metadata": {"name": "x"}, "spec": spec})).await;
        assert_eq!(a.code, 201, "{}", a.body);
    }
    // What is allocated may give it only where it may be asked for.
    let result = json!({"request": "r", "driver": "d.example.com", "pool": "p", "device": "d", "adminAccess": true});
    let status = json!({"status": {"allocation": {"devices": {"results": [result]}}}}).to_string();
    let path = format!("{CLAIMS}/resourceclaims/x/status");
    for (label, code) in [("false", 422), ("true", 200), ("false", 200)] {
        let label = json!({"metadata": {"labels": {"resource.kubernetes.io/admin-access": label}}}).to_string();
        assert_eq!(
            c.send("PATCH", "/api/v1/namespaces/golden", media, "application/json", label.into()).await.code,
            200
        );
        let a = c.send("PATCH", &path, media, "application/json", status.clone().into()).await;
        assert_eq!(a.code, code, "{}", a.body);
        if code == 422 {
            let cause = &a.body["details"]["causes"][0];
            assert_eq!(cause["field"], "status.allocation.devices.results[0].adminAccess", "{cause}");
        }
    }
}

#[tokio::test]
async fn expressions_over_devices_have_a_price() {
    let c = Cluster::start(1).await;
    let mut dear = "device.driver == 'd'".to_owned();
    for v in ["a", "b", "c", "d", "e", "f"] {
        dear = format!("[1, 2, 3, 4, 5, 6, 7, 8, 9, 10].all({v}, {dear})");
    }
    let cheap = "device.attributes['d.example.com'].all(k, device.attributes['d.example.com'][k] == 'v')";
    for (expression, why) in [(&*dear, Some("Forbidden: too complex, exceeds cost limit")), (cheap, None)] {
        let class =
            json!({"metadata": {"generateName": "c"}, "spec": {"selectors": [{"cel": {"expression": expression}}]}});
        let a = c.call("POST", "/apis/resource.k8s.io/v1/deviceclasses", class).await;
        let cause = &a.body["details"]["causes"][0];
        assert_eq!((a.code, cause["message"].as_str()), (if why.is_some() { 422 } else { 201 }, why), "{}", a.body);
        if why.is_some() {
            assert_eq!(cause["field"], "spec.selectors[0].cel.expression");
        }
    }
}
