//! Health checks and metrics of the long-running parts of the process.

use bytes::Bytes;
use http::Request;
use std::time::Duration;
use supervisor::OnEnd;
use testkit::Cluster;
use tokio::runtime::Handle;

/// A controller whose task had ended was not shown in any health check.
#[tokio::test(start_paused = true)]
async fn an_ended_service_fails_healthz_until_it_runs_again() {
    let c = Cluster::start(1).await;
    let get = async |path: &str| {
        let request = apiserver::as_identity(
            Request::get(path).body(Bytes::new()).unwrap(),
            auth::User::new("admin", &[auth::user::GROUP_MASTERS]),
        );
        let (parts, body) = c.server.handle(request).await.into_parts();
        (parts.status.as_u16(), String::from_utf8(body.collect().await.unwrap().to_vec()).unwrap())
    };
    let (_trigger, shutdown) = supervisor::shutdown();
    let component = c.server.registry.supervisor.component("scheduler", &shutdown, &Handle::current());
    component.spawn("scheduler", OnEnd::Restart, || async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(1 + 1, 3, "a fault");
    });
    let (code, text) = get("/healthz?verbose").await;
    assert!(code == 200 && text.contains("[+]service/scheduler/scheduler ok\n"), "{text}");
    assert_eq!(get("/healthz/service/scheduler/scheduler").await, (200, "ok".into()));

    tokio::time::sleep(Duration::from_millis(10_500)).await;
    let (code, text) = get("/healthz").await;
    assert!(code == 500 && text.contains("[-]service/scheduler/scheduler failed"), "{text}");
    assert_eq!(get("/livez").await.0, 200, "the API server itself works");
    let labels = "{component=\"scheduler\",service=\"scheduler\"}";
    let metrics = get("/metrics").await.1;
    assert!(metrics.contains(&format!("kemudi_service_up{labels} 0\n")), "{metrics}");

    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(get("/healthz").await.0, 200, "it was started again");
    let metrics = get("/metrics").await.1;
    for line in ["up", "restarts_total"] {
        assert!(metrics.contains(&format!("kemudi_service_{line}{labels} 1\n")), "{metrics}");
    }
}
