//! Running pods that are resized in place.

use crate::machine::*;
use serde_json::{Value, json};

/// The status told what was asked for, and nothing was changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn running_pods_are_resized() {
    let mut m = Machine::new().await;
    let resources = |cpu: &str, memory: &str| json!({"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}});
    let restart = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
    let containers = |a: Value, b: Value| {
        let mut all = [demo("a", json!(["sleep"])), demo("b", json!(["sleep"]))];
        (all[0]["resources"], all[1]["resources"]) = (a, b);
        all[1]["resizePolicy"] = restart.clone();
        json!(all)
    };
    let small = resources("100m", "64Mi");
    m.pod("p", json!({"containers": containers(small.clone(), small.clone())}));
    let p = m.until("p", is_ready).await;
    let uid = p["metadata"]["uid"].as_str().unwrap().to_owned();
    let prefix = m.runtime.cgroup_prefix.clone();
    let limit = |container: &str, v1: &str, v2: &str| {
        let (controller, file) = v1.split_once('/').unwrap();
        let below = format!("{prefix}/kubepods/pod{uid}/{container}");
        let paths = [format!("/sys/fs/cgroup/{controller}/{below}/{file}"), format!("/sys/fs/cgroup/{below}/{v2}")];
        let text = paths.iter().find_map(|p| std::fs::read_to_string(p).ok()).unwrap();
        text.split_whitespace().next().unwrap().parse::<i64>().unwrap()
    };
    let limits = |container: &str| {
        let quota = limit(container, "cpu/cpu.cfs_quota_us", "cpu.max");
        (quota, limit(container, "memory/memory.limit_in_bytes", "memory.max") >> 20)
    };
    let status = |p: &Value, i: usize, key: &str| p["status"]["containerStatuses"][i][key].clone();
    let id = |p: &Value, i: usize| status(p, i, "containerID").as_str().unwrap().replace("kemudi://", "");
    let condition = |p: &Value, kind: &str| {
        let all = p["status"]["conditions"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|c| c["type"] == kind)
    };
    let generation = std::cell::Cell::new(1);
    let ask = |m: &Machine, a: Value, b: Value| {
        let mut p = m.api.get(PODS, "default", "p").unwrap();
        p["spec"]["containers"] = containers(a, b);
        generation.set(generation.get() + 1);
        p["metadata"]["generation"] = generation.get().into();
        m.api.put(PODS, p);
    };
    assert_eq!((limits(&id(&p, 0)), limits("")), ((10_000, 64), (20_000, 128)));

    // In place, up and down.
    for (cpu, memory, quota, mib) in [("200m", "128Mi", 20_000, 128), ("50m", "32Mi", 5_000, 32)] {
        let wanted = resources(cpu, memory);
        ask(&m, wanted.clone(), small.clone());
        let is_told = |p: &Value| status(p, 0, "resources") == wanted && condition(p, "PodResizeInProgress").is_none();
        let now = m.until("p", is_told).await;
        assert_eq!(status(&now, 0, "allocatedResources"), wanted["requests"]);
        assert_eq!((id(&now, 0), status(&now, 0, "restartCount")), (id(&p, 0), json!(0)));
        assert_eq!((limits(&id(&p, 0)), limits("")), ((quota, mib), (10_000 + quota, 64 + mib)));
    }

    // Less memory than is in use.
    let now = resources("50m", "32Mi");
    ask(&m, resources("50m", "4Ki"), small.clone());
    let is_told = |p: &Value| condition(p, "PodResizeInProgress").is_some_and(|c| c["reason"] == "Error");
    let failed = m.until("p", is_told).await;
    let why = condition(&failed, "PodResizeInProgress").unwrap()["message"].as_str().unwrap().to_owned();
    assert!(why.starts_with("attempting to set container \"a\" memory limit (4096) below current usage ("), "{why}");
    assert_eq!((status(&failed, 0, "resources"), limits(&id(&p, 0))), (now.clone(), (5_000, 32)));
    // The status that tells of it is no reason to try again.
    ask(&m, resources("50m", "4Ki"), small.clone());
    let later = m.until("p", |p| p["status"]["observedGeneration"] == generation.get()).await;
    assert_eq!(condition(&later, "PodResizeInProgress").unwrap()["message"], why.as_str());

    // What the node does not have.
    ask(&m, resources("5000", "32Mi"), small.clone());
    let pending = m.until("p", |p| condition(p, "PodResizePending").is_some()).await;
    let told = condition(&pending, "PodResizePending").unwrap();
    assert_eq!(
        (&told["status"], &told["reason"], &told["observedGeneration"]),
        (&json!("True"), &json!("Infeasible"), &json!(6))
    );
    let why = told["message"].as_str().unwrap();
    assert!(why.starts_with("Node didn't have enough capacity: cpu, requested: 5000100, capacity: "), "{why}");
    assert_eq!((status(&pending, 0, "resources"), limits(&id(&p, 0))), (now.clone(), (5_000, 32)));
    // Events are written behind the status: the agent may not stop before.
    let has_event = |reason: &str| m.api.list("api/v1/events").iter().any(|e| e["reason"] == reason);
    for reason in ["ResizeStarted", "ResizeCompleted", "ResizeError", "ResizeInfeasible"] {
        for _ in 0..3000 {
            if has_event(reason) {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        assert!(has_event(reason), "{reason}");
    }
    // An agent that starts again knows what is there. A container that wants it is started again, the other one is left alone.
    m.stop().await;
    m.start().await;
    ask(&m, now.clone(), resources("100m", "96Mi"));
    let is_told = |p: &Value| {
        let restarted = status(p, 1, "restartCount") == 1 && !status(p, 1, "state")["running"].is_null();
        restarted && condition(p, "PodResizePending").is_none() && condition(p, "PodResizeInProgress").is_none()
    };
    let last = m.until("p", is_told).await;
    assert_eq!(status(&last, 1, "resources"), resources("100m", "96Mi"));
    assert_eq!((id(&last, 0), status(&last, 0, "restartCount")), (id(&p, 0), json!(0)));
    assert_eq!((limits(&id(&last, 0)), limits(&id(&last, 1)), limits("")), ((5_000, 32), (10_000, 96), (15_000, 128)));
    m.finish().await;
}
