//! Running pods that are resized in place.

use crate::machine::*;
use serde_json::{Value, json};

/// The status had the desired resources, but nothing was changed.
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
    let limits = |m: &Machine, container: &str| m.limits(format!("pod{uid}/{container}").trim_end_matches('/'));
    let status = |p: &Value, i: usize, key: &str| p["status"]["containerStatuses"][i][key].clone();
    let id = |p: &Value, i: usize| status(p, i, "containerID").as_str().unwrap().replace("kemudi://", "");
    let condition = |p: &Value, kind: &str| {
        let all = p["status"]["conditions"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|c| c["type"] == kind)
    };
    let generation = std::cell::Cell::new(1);
    let resize = |m: &Machine, a: Value, b: Value| {
        let mut p = m.api.get(PODS, "default", "p").unwrap();
        p["spec"]["containers"] = containers(a, b);
        generation.set(generation.get() + 1);
        p["metadata"]["generation"] = generation.get().into();
        m.api.put(PODS, p);
    };
    assert_eq!((limits(&m, &id(&p, 0)), limits(&m, "")), ((10_000, 64), (20_000, 128)));

    // In place, up and down.
    for (cpu, memory, quota, mib) in [("200m", "128Mi", 20_000, 128), ("50m", "32Mi", 5_000, 32)] {
        let desired = resources(cpu, memory);
        resize(&m, desired.clone(), small.clone());
        let is_reported =
            |p: &Value| status(p, 0, "resources") == desired && condition(p, "PodResizeInProgress").is_none();
        let now = m.until("p", is_reported).await;
        assert_eq!(status(&now, 0, "allocatedResources"), desired["requests"]);
        assert_eq!((id(&now, 0), status(&now, 0, "restartCount")), (id(&p, 0), json!(0)));
        assert_eq!((limits(&m, &id(&p, 0)), limits(&m, "")), ((quota, mib), (10_000 + quota, 64 + mib)));
    }

    // Less memory than is in use.
    let now = resources("50m", "32Mi");
    resize(&m, resources("50m", "4Ki"), small.clone());
    let is_reported = |p: &Value| condition(p, "PodResizeInProgress").is_some_and(|c| c["reason"] == "Error");
    let failed = m.until("p", is_reported).await;
    let why = condition(&failed, "PodResizeInProgress").unwrap()["message"].as_str().unwrap().to_owned();
    assert!(why.starts_with("attempting to set container \"a\" memory limit (4096) below current usage ("), "{why}");
    assert_eq!((status(&failed, 0, "resources"), limits(&m, &id(&p, 0))), (now.clone(), (5_000, 32)));
    // Reporting the failure is no reason to try again.
    resize(&m, resources("50m", "4Ki"), small.clone());
    let later = m.until("p", |p| p["status"]["observedGeneration"] == generation.get()).await;
    assert_eq!(condition(&later, "PodResizeInProgress").unwrap()["message"], why.as_str());

    // What the node does not have.
    resize(&m, resources("5000", "32Mi"), small.clone());
    let pending = m.until("p", |p| condition(p, "PodResizePending").is_some()).await;
    let pending_condition = condition(&pending, "PodResizePending").unwrap();
    assert_eq!(
        (&pending_condition["status"], &pending_condition["reason"], &pending_condition["observedGeneration"]),
        (&json!("True"), &json!("Infeasible"), &json!(6))
    );
    let why = pending_condition["message"].as_str().unwrap();
    assert!(why.starts_with("Node didn't have enough capacity: cpu, requested: 5000100, capacity: "), "{why}");
    assert_eq!((status(&pending, 0, "resources"), limits(&m, &id(&p, 0))), (now.clone(), (5_000, 32)));
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
    // A new agent knows the state. The container whose policy is to restart does, the other one does not.
    m.stop().await;
    m.start().await;
    resize(&m, now.clone(), resources("100m", "96Mi"));
    let is_reported = |p: &Value| {
        let restarted = status(p, 1, "restartCount") == 1 && !status(p, 1, "state")["running"].is_null();
        restarted && condition(p, "PodResizePending").is_none() && condition(p, "PodResizeInProgress").is_none()
    };
    let last = m.until("p", is_reported).await;
    assert_eq!(status(&last, 1, "resources"), resources("100m", "96Mi"));
    assert_eq!((id(&last, 0), status(&last, 0, "restartCount")), (id(&p, 0), json!(0)));
    assert_eq!(
        (limits(&m, &id(&last, 0)), limits(&m, &id(&last, 1)), limits(&m, "")),
        ((5_000, 32), (10_000, 96), (15_000, 128))
    );
    m.finish().await;
}

/// A container without a limit could use what the others of its pod need.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_without_limits_follow_their_pod() {
    let mut m = Machine::new().await;
    let resources = |cpu: &str, memory: &str| json!({"limits": {"cpu": cpu, "memory": memory}});
    let (free, mut own) = (demo("free", json!(["sleep"])), demo("own", json!(["sleep"])));
    own["resources"] = resources("50m", "32Mi");
    let spec = |pod: Value| json!({"resources": pod, "containers": [free.clone(), own.clone()]});
    m.pod("p", spec(resources("200m", "128Mi")));
    let p = m.until("p", is_ready).await;
    let uid = p["metadata"]["uid"].as_str().unwrap().to_owned();
    let status = |p: &Value, i: usize| p["status"]["containerStatuses"][i].clone();
    let limits = |m: &Machine, p: &Value, i: usize| {
        let id = status(p, i)["containerID"].as_str().unwrap().replace("kemudi://", "");
        m.limits(&format!("pod{uid}/{id}"))
    };
    assert_eq!([limits(&m, &p, 0), limits(&m, &p, 1)], [(20_000, 128), (5_000, 32)]);
    assert_eq!(status(&p, 0)["resources"]["limits"], Value::Null, "they are not its own");

    // Also after a restart of the agent.
    m.stop().await;
    m.start().await;
    let mut larger = m.api.get(PODS, "default", "p").unwrap();
    larger["spec"]["resources"] = resources("300m", "192Mi");
    larger["metadata"]["generation"] = 2.into();
    m.api.put(PODS, larger);
    let now = m.until("p", |p| p["status"]["observedGeneration"] == 2).await;
    for _ in 0..3000 {
        if limits(&m, &now, 0) == (30_000, 192) {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!([limits(&m, &now, 0), limits(&m, &now, 1)], [(30_000, 192), (5_000, 32)]);
    assert_eq!([0, 1].map(|i| status(&now, i)["restartCount"].clone()), [0, 0]);

    // Less than is in use: nothing is changed, and the status says so. (It had the desired resources of the pod.)
    let resize = |m: &Machine, memory: &str, generation: i64| {
        let mut p = m.api.get(PODS, "default", "p").unwrap();
        p["spec"]["resources"] = resources("300m", memory);
        p["metadata"]["generation"] = generation.into();
        m.api.put(PODS, p);
    };
    let in_progress = |p: &Value| {
        let all = p["status"]["conditions"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|c| c["type"] == "PodResizeInProgress")
    };
    let memory = |p: &Value| p["status"]["resources"]["limits"]["memory"].clone();
    resize(&m, "10Ki", 3);
    let failed = m.until("p", |p| in_progress(p).is_some_and(|c| c["reason"] == "Error")).await;
    assert_eq!((memory(&failed), limits(&m, &failed, 0)), (json!("192Mi"), (30_000, 192)));
    resize(&m, "128Mi", 4);
    let now = m.until("p", |p| memory(p) == "128Mi" && in_progress(p).is_none()).await;
    assert_eq!(limits(&m, &now, 0), (30_000, 128));
    m.finish().await;
}

/// Resizes one after another, faster than they are carried out, of containers and a sidecar of a pod in the node's network.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_of_many_resizes_holds() {
    let m = Machine::new().await;
    let resources =
        |cpu: &str, memory: &str| json!({"requests": {"cpu": "10m"}, "limits": {"cpu": cpu, "memory": memory}});
    let spec = |sidecar: &Value, app: &Value| {
        let (mut s, mut c) = (demo("s", json!(["sleep"])), demo("c", json!(["sleep"])));
        (s["restartPolicy"], s["resources"], c["resources"]) = ("Always".into(), sidecar.clone(), app.clone());
        c["resizePolicy"] = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
        json!({"hostNetwork": true, "nodeName": "n1", "terminationGracePeriodSeconds": 1,
            "initContainers": [s], "containers": [c]})
    };
    let small = resources("100m", "64Mi");
    m.pod("p", spec(&small, &small));
    let p = m.until("p", is_ready).await;
    let uid = p["metadata"]["uid"].as_str().unwrap().to_owned();
    let generation = std::cell::Cell::new(1);
    let resize = |sidecar: &Value, app: &Value| {
        let mut p = m.api.get(PODS, "default", "p").unwrap();
        p["spec"] = spec(sidecar, app);
        generation.set(generation.get() + 1);
        p["metadata"]["generation"] = generation.get().into();
        m.api.put(PODS, p);
    };
    let container = |p: &Value, list: &str| p["status"][list][0].clone();
    let is_done = |p: &Value, sidecar: &Value, app: &Value| {
        let conditions = p["status"]["conditions"].as_array().cloned().unwrap_or_default();
        p["status"]["observedGeneration"] == generation.get()
            && !conditions.iter().any(|c| c["type"].as_str().unwrap().starts_with("PodResize"))
            && container(p, "initContainerStatuses")["resources"] == *sidecar
            && container(p, "containerStatuses")["resources"] == *app
            && !container(p, "containerStatuses")["state"]["running"].is_null()
    };
    let limits = |p: &Value, list: &str| {
        let id = container(p, list)["containerID"].as_str().unwrap().replace("kemudi://", "");
        m.limits(&format!("burstable/pod{uid}/{id}"))
    };

    // Twice before the first is carried out, and undone: the sidecar stays, the container may have been started again.
    for cpu in ["200m", "300m", "50m"] {
        resize(&resources(cpu, "96Mi"), &small);
    }
    resize(&small, &resources("100m", "96Mi"));
    resize(&small, &small);
    let now = m.until("p", |p| is_done(p, &small, &small)).await;
    assert_eq!(
        container(&now, "initContainerStatuses")["containerID"],
        container(&p, "initContainerStatuses")["containerID"]
    );
    for list in ["initContainerStatuses", "containerStatuses"] {
        assert_eq!(limits(&now, list), (10_000, 64), "{list}");
    }
    assert_eq!(m.limits(&format!("burstable/pod{uid}")), (20_000, 128));

    // Zero is no limit.
    let zero = resources("0", "64Mi");
    resize(&zero, &small);
    let now = m.until("p", |p| is_done(p, &zero, &small)).await;
    assert_eq!(
        (limits(&now, "initContainerStatuses"), m.limits(&format!("burstable/pod{uid}"))),
        ((-1, 64), (-1, 128))
    );

    // The API refuses a resize to another class. The pod's control group stays where it is.
    let guaranteed =
        json!({"requests": {"cpu": "100m", "memory": "80Mi"}, "limits": {"cpu": "100m", "memory": "80Mi"}});
    resize(&guaranteed, &guaranteed);
    m.until("p", |p| is_done(p, &guaranteed, &guaranteed)).await;
    assert_eq!(m.limits(&format!("burstable/pod{uid}")), (20_000, 160));
    assert!(!m.has_cgroup(&format!("pod{uid}")));
    m.finish().await;
}

/// An agent that ended in the middle of a resize left its limits for ever, if the resize was undone before the next agent started.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_agent_restores_limits() {
    use runtime::Runtime;
    let mut m = Machine::new().await;
    let mut c = demo("c", json!(["sleep"]));
    c["resources"] =
        json!({"limits": {"cpu": "100m", "memory": "64Mi"}, "requests": {"cpu": "100m", "memory": "64Mi"}});
    m.pod("p", json!({"containers": [c]}));
    let p = m.until("p", is_ready).await;
    let id = p["status"]["containerStatuses"][0]["containerID"].as_str().unwrap().replace("kemudi://", "");
    let pod = format!("pod{}", p["metadata"]["uid"].as_str().unwrap());
    m.stop().await;
    let wide = runtime::Resources { memory_limit: Some(96 << 20), ..runtime::Resources::default() };
    m.embedded.set_cgroup(&format!("kubepods/{pod}"), &wide).unwrap();
    m.embedded.update_container(&id, wide).await.unwrap();
    assert_eq!(m.limits(&format!("{pod}/{id}")).1, 96);
    m.start().await;
    let limits = || (m.limits(&format!("{pod}/{id}")), m.limits(&pod));
    let requested = ((10_000, 64), (10_000, 64));
    for _ in 0..3000 {
        if limits() == requested {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(limits(), requested);
    m.finish().await;
}
