//! Claims and volumes that are deleted while they are used.

use super::harness::Plane;
use meta::Value;
use serde_json::json;

const CLAIMS: &str = "/api/v1/namespaces/golden/persistentvolumeclaims";
const PODS: &str = "/api/v1/namespaces/golden/pods";
const VOLUMES: &str = "/api/v1/persistentvolumes";

#[tokio::test(start_paused = true)]
async fn used_claims_and_volumes_are_protected() {
    let p = Plane::start().await;
    let call = async |code: u16, method: &str, path: &str, body: Value| {
        let a = p.cluster.call(method, path, body).await;
        assert_eq!(a.code, code, "{method} {path}: {}", a.body);
        a.body
    };
    let gone = async |path: String| {
        p.until(&format!("{path} to go"), async || {
            (p.cluster.call("GET", &path, Value::Null).await.code == 404).then_some(())
        })
        .await;
    };
    let claim = |name: &str| {
        json!({"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "",
            "resources": {"requests": {"storage": "1Gi"}}}})
    };
    let made = call(201, "POST", CLAIMS, claim("unused")).await;
    assert_eq!(made["metadata"]["finalizers"], json!(["kubernetes.io/pvc-protection"]));
    call(201, "POST", CLAIMS, claim("used")).await;
    let pod = json!({"metadata": {"name": "user"}, "spec": {"nodeName": "nowhere", "containers": [{"name": "c", "image": "i"}],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "used"}}]}});
    call(201, "POST", PODS, pod).await;
    let volume = json!({"metadata": {"name": "bound"}, "spec": {"capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/v"}, "claimRef": {"namespace": "golden", "name": "holder"}}});
    call(201, "POST", VOLUMES, volume).await;
    call(201, "POST", CLAIMS, claim("holder")).await;
    p.until("the volume to be bound", async || {
        let volume = p.cluster.call("GET", &format!("{VOLUMES}/bound"), Value::Null).await.body;
        (volume["status"]["phase"] == "Bound").then_some(())
    })
    .await;

    for path in [format!("{CLAIMS}/used"), format!("{CLAIMS}/unused"), format!("{VOLUMES}/bound")] {
        call(200, "DELETE", &path, Value::Null).await;
    }
    gone(format!("{CLAIMS}/unused")).await;
    // Not too long: the pods of a node that is nowhere are collected after a while.
    tokio::time::sleep(std::time::Duration::from_secs(10)).await;
    for path in [format!("{CLAIMS}/used"), format!("{VOLUMES}/bound")] {
        assert!(call(200, "GET", &path, Value::Null).await["metadata"]["deletionTimestamp"].is_string());
    }
    call(200, "DELETE", &format!("{PODS}/user?gracePeriodSeconds=0"), Value::Null).await;
    gone(format!("{CLAIMS}/used")).await;
    call(200, "DELETE", &format!("{CLAIMS}/holder"), Value::Null).await;
    gone(format!("{VOLUMES}/bound")).await;
}
