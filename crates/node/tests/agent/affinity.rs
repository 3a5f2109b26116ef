//! Exclusive processors with real control groups. The machine needs two processors.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::machine::{Machine, PODS, demo, is_ready};

/// The processors of a container, once they are these.
async fn runs_on(m: &Machine, uid: &str, class: &str, expected: &str) {
    let path = |id: &str| format!("{class}pod{uid}/{id}");
    let pod = |m: &Machine| {
        let all = m.api.list(PODS);
        all.into_iter().find(|p| p["metadata"]["uid"] == uid).unwrap()
    };
    let id = pod(m)["status"]["containerStatuses"][0]["containerID"].as_str().unwrap().to_owned();
    let id = id.strip_prefix("kemudi://").unwrap().to_owned();
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(30);
    loop {
        let cpus = m.cpus(&path(&id));
        if cpus == expected {
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "{uid}: {cpus}, not {expected}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

fn guaranteed(cpu: &str) -> Value {
    let mut c = demo("c", json!(["sleep"]));
    let resources = json!({"cpu": cpu, "memory": "32Mi"});
    c["resources"] = json!({"limits": resources, "requests": resources});
    json!({"containers": [c]})
}

/// Clauses: R03.exclusive-cpus
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guaranteed_pod_has_its_processors_for_itself() {
    let mut m = Machine::new().await;
    m.stop().await;
    m.configure = Arc::new(|c| {
        c.cpu_manager_policy = "static".into();
        c.reserved_system_cpus = "0".into();
    });
    m.start().await;
    let cpus = std::thread::available_parallelism().unwrap().get();
    assert!(cpus >= 2, "the test needs two processors");
    let all = format!("0-{}", cpus - 1);
    let without = if cpus == 2 { "0".to_owned() } else { format!("0,2-{}", cpus - 1).replace("2-2", "2") };
    let uid = |p: &Value| p["metadata"]["uid"].as_str().unwrap().to_owned();
    let shared = uid(&m.pod("shared", json!({"containers": [demo("c", json!(["sleep"]))]})));
    m.until("shared", is_ready).await;
    runs_on(&m, &shared, "besteffort/", &all).await;
    let own = uid(&m.pod("own", guaranteed("1")));
    m.until("own", is_ready).await;
    runs_on(&m, &own, "", "1").await;
    runs_on(&m, &shared, "besteffort/", &without).await;
    assert_eq!(m.limits(&format!("pod{own}")).0, -1, "no quota for a pod that has processors for itself");
    // They are its own after a restart, too.
    m.stop().await;
    m.start().await;
    let other = uid(&m.pod("other", json!({"containers": [demo("c", json!(["sleep"]))]})));
    m.until("other", is_ready).await;
    runs_on(&m, &other, "besteffort/", &without).await;
    runs_on(&m, &own, "", "1").await;
    m.api.delete_gracefully(PODS, "default", "own", 0);
    m.gone("own").await;
    runs_on(&m, &shared, "besteffort/", &all).await;
    for name in ["shared", "other"] {
        m.api.delete_gracefully(PODS, "default", name, 0);
        m.gone(name).await;
    }
    m.finish().await;
}
