//! Containers of a real pod, seen from outside and from inside.

mod host;

use std::time::Duration;

use host::{Host, log, shell};
use kemudi_runtime::*;

#[tokio::test]
async fn a_pod_runs_logs_executes_and_stops() {
    let mut host = Host::new().await;
    host.pod("a").await;
    let id = host
        .start("a", shell("main", "echo out; echo err >&2; trap 'echo bye; exit 3' TERM; while :; do sleep 0.1; done"))
        .await;
    let status = host.runtime.container_status(&id).await.unwrap();
    assert_eq!(status.state, ContainerState::Running);

    let result = host
        .runtime
        .exec_sync(&id, vec!["sh".into(), "-c".into(), "hostname; echo $PPID; exit 7".into()], None)
        .await
        .unwrap();
    assert_eq!((result.exit_code, String::from_utf8_lossy(&result.stdout).as_ref()), (7, "host-a\n0\n"));

    host.runtime.stop_container(&id, Duration::from_secs(10)).await.unwrap();
    let status = host.runtime.container_status(&id).await.unwrap();
    assert_eq!(
        (status.state, status.exit_code, status.reason.as_deref()),
        (ContainerState::Exited, Some(3), Some("Error"))
    );
    assert_eq!(log(&status), "out\nerr\nbye\n");
    assert!(status.finished_at > status.started_at);
    host.runtime.remove_pod("a").await.unwrap();
    assert!(host.runtime.list_pods().await.unwrap().is_empty());
    host.finish().await;
}
