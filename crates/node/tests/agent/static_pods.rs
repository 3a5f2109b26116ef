//! Static pods without an API server.

use crate::machine::*;
use runtime::{ContainerState, Runtime};
use serde_json::json;
use std::time::Duration;

/// The running container of the node, once `is_met`.
async fn container(m: &Machine, is_met: impl Fn(&runtime::Container) -> bool) -> runtime::Container {
    for _ in 0..1500 {
        let all = m.embedded.list_containers().await.unwrap();
        if let Some(found) = all.into_iter().find(|c| c.state == ContainerState::Running && is_met(c)) {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("no such container runs: {:?}", m.embedded.list_containers().await);
}

/// Clauses: P19.without-api P19.restart
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn static_pods_run_while_the_api_is_away() {
    let mut m = Machine::new().await;
    m.stop().await;
    m.api.set_down(true);
    std::fs::create_dir_all(m.manifests()).unwrap();
    let manifest = json!({"metadata": {"name": "web"}, "spec": {"terminationGracePeriodSeconds": 1,
        "containers": [demo("c", json!(["sleep"]))]}});
    std::fs::write(m.manifests().join("web.json"), manifest.to_string()).unwrap();
    m.start().await;
    let first = container(&m, |_| true).await;
    assert_eq!(first.attempt, 0);
    m.embedded.stop_container(&first.id, Duration::ZERO).await.unwrap();
    let second = container(&m, |c| c.attempt == 1).await;

    m.api.set_down(false);
    let mirror = m.until("web-n1", is_ready).await;
    let uid = mirror["metadata"]["annotations"]["kubernetes.io/config.mirror"].as_str().unwrap();
    assert_eq!(mirror["metadata"]["ownerReferences"][0]["name"], "n1");
    let status = &mirror["status"]["containerStatuses"][0];
    assert_eq!(
        (&status["restartCount"], &status["containerID"]),
        (&json!(1), &json!(format!("kemudi://{}", second.id)))
    );
    assert!(second.pod.starts_with(uid));

    // A new agent adopts it, also without the API.
    m.stop().await;
    m.api.set_down(true);
    m.start().await;
    assert_eq!(container(&m, |_| true).await.id, second.id);
    m.embedded.stop_container(&second.id, Duration::ZERO).await.unwrap();
    container(&m, |c| c.attempt == 2).await;
    m.api.set_down(false);
    std::fs::remove_file(m.manifests().join("web.json")).unwrap();
    m.gone("web-n1").await;
    assert!(m.embedded.list_pods().await.unwrap().is_empty());
    m.finish().await;
}
