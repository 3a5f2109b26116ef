//! Pods whose images cannot be pulled.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::machine::*;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
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

fn digest(content: &[u8]) -> String {
    let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, content);
    hash.as_ref().iter().fold("sha256:".to_owned(), |text, b| format!("{text}{b:02x}"))
}

/// A registry with one image for user `u` with password `p`. Returns its address, and counts its accepted requests.
async fn private_registry() -> (String, Arc<AtomicUsize>) {
    let layer = vec![0; 1024];
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let config = json!({"architecture": architecture, "os": "linux", "rootfs": {"diff_ids": [digest(&layer)]}});
    let config = config.to_string().into_bytes();
    let descriptor = |content: &[u8]| json!({"digest": digest(content), "size": content.len()});
    let manifest = json!({"schemaVersion": 2, "config": descriptor(&config), "layers": [descriptor(&layer)]});
    let manifest = manifest.to_string().into_bytes();
    let (listener, accepted) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), Arc::new(AtomicUsize::new(0)));
    let (address, count) = (listener.local_addr().unwrap().to_string(), accepted.clone());
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let Ok(byte) = connection.read_u8().await else { break };
                head.push(byte);
            }
            let head = String::from_utf8_lossy(&head).into_owned();
            let status = if head.contains("Basic dTpw\r\n") { "200 OK" } else { "401 Unauthorized" };
            count.fetch_add(usize::from(status == "200 OK"), Ordering::Relaxed);
            let body = [&config, &layer].into_iter().find(|blob| head.contains(&digest(blob))).unwrap_or(&manifest);
            let answer = format!(
                "HTTP/1.1 {status}\r\nconnection: close\r\nwww-authenticate: Basic realm=\"r\"\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            let _ = connection.write_all(&[answer.as_bytes(), body].concat()).await;
        }
    });
    (address, accepted)
}

/// An image that was pulled with the secret of a pod was for all pods of the node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn images_of_secrets_are_for_pods_with_the_secret() {
    let m = Machine::new().await;
    let (address, accepted) = private_registry().await;
    let secret = |name: &str, password: &str| {
        let config = json!({"auths": {&address: {"username": "u", "password": password}}}).to_string();
        let data = json!({".dockerconfigjson": STANDARD.encode(config)});
        let metadata = json!({"name": name, "namespace": "default", "uid": name});
        m.api.put(
            "api/v1/secrets",
            json!({"metadata": metadata, "type": "kubernetes.io/dockerconfigjson", "data": data}),
        );
    };
    secret("right", "p");
    secret("copy", "p");
    secret("wrong", "q");
    let image = format!("{address}/app:1");
    let pod = |name: &str, secret: &str, policy: &str| {
        let containers = json!([{"name": "c", "image": image, "imagePullPolicy": policy, "command": ["/none"]}]);
        m.pod(name, json!({"imagePullSecrets": [{"name": secret}], "containers": containers}));
    };
    // The program of a usable image is not found.
    let is_usable =
        |p: &Value| p["status"]["containerStatuses"][0]["imageID"].as_str().is_some_and(|id| !id.is_empty());
    let waits = |reason: &'static str| move |p: &Value| state(p)["reason"] == reason;
    pod("first", "right", "IfNotPresent");
    m.until("first", is_usable).await;
    let pulled = accepted.load(Ordering::Relaxed);
    assert_eq!(pulled, 3, "the manifest, the configuration and the layer");
    for secret in ["wrong", "none"] {
        pod(secret, secret, "IfNotPresent");
        m.until(secret, waits("ErrImagePull")).await;
    }
    pod("never", "wrong", "Never");
    m.until("never", waits("ErrImageNeverPull")).await;
    pod("copy", "copy", "Never");
    m.until("copy", is_usable).await;
    // The same secret with other credentials.
    secret("right", "changed");
    pod("changed", "right", "IfNotPresent");
    m.until("changed", is_usable).await;
    assert_eq!(accepted.load(Ordering::Relaxed), pulled);
    m.finish().await;
}
