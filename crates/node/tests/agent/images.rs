//! Pods whose images cannot be pulled.

use std::time::Duration;

use crate::machine::*;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

fn state(pod: &Value) -> Value {
    pod["status"]["containerStatuses"][0]["state"]["waiting"].clone()
}

/// Clauses: K03.invalid-name K03.never
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reasons_are_upstreams() {
    let m = Machine::new().await;
    m.pod("invalid", json!({"containers": [{"name": "c", "image": "r.example/App:1"}]}));
    m.pod("never", json!({"containers": [{"name": "c", "image": "r.example/app:1", "imagePullPolicy": "Never"}]}));
    m.pod("down", json!({"containers": [{"name": "c", "image": "127.0.0.1:1/app:1"}]}));
    let waits = |reason: &'static str| move |p: &Value| state(p)["reason"] == reason;
    let p = m.until("invalid", waits("InvalidImageName")).await;
    let message = "Failed to apply default image tag \"r.example/App:1\": couldn't parse image name \"r.example/App:1\": \
                   invalid reference format: repository name (App) must be lowercase";
    assert_eq!(state(&p)["message"], message);
    let p = m.until("never", waits("ErrImageNeverPull")).await;
    let message = "Container image \"r.example/app:1\" is not present with pull policy of Never";
    assert_eq!(state(&p)["message"], message);
    m.until("down", waits("RegistryUnavailable")).await;
    let p = m.until("down", waits("ImagePullBackOff")).await;
    let message = "Back-off pulling image \"127.0.0.1:1/app:1\": RegistryUnavailable: image pull failed for 127.0.0.1:1/app:1 \
                   because the registry is unavailable: 127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused";
    assert_eq!(state(&p)["message"], message);
    m.finish().await;
}

/// A registry that hangs delays neither other pods nor the deletion of its own.
///
/// Clauses: K03.hanging
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pull_that_hangs_ends_with_its_pod() {
    let m = Machine::new().await;
    let registry = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let image = format!("{}/app:1", registry.local_addr().unwrap());
    let hanging = json!({"name": "c", "image": image});
    m.pod("hangs", json!({"containers": [hanging, demo("later", json!([]))]}));
    let (mut connection, _) = registry.accept().await.unwrap();
    let p = m.until("hangs", |p| state(p)["reason"] == "ContainerCreating").await;
    m.pod("other", json!({"terminationGracePeriodSeconds": 1, "containers": [demo("c", json!(["--port", "8081"]))]}));
    m.until("other", is_ready).await;
    let later = &p["status"]["containerStatuses"][1]["state"]["waiting"]["reason"];
    assert_eq!(later, "ContainerCreating", "containers start in order");
    m.api.delete_gracefully(PODS, "default", "hangs", 1);
    m.gone("hangs").await;
    let mut request = Vec::new();
    let end = tokio::time::timeout(Duration::from_secs(10), connection.read_to_end(&mut request)).await;
    end.expect("the pull ends").unwrap();
    assert!(request.starts_with(b"GET /v2/app/manifests/1 HTTP/1.1\r\n"));
    m.finish().await;
}
