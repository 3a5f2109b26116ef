//! Eviction under pressure, with observations of a fake and of a small disk.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use node::configuration::GoDuration;
use node::{Layout, NodeObserver, Observation, Observations, Signal};
use serde_json::{Value, json};

use crate::machine::{Machine, PODS, demo, is_ready};

/// What is available of memory, of a GiB.
struct Memory(Mutex<i64>);

impl NodeObserver for Memory {
    fn layout(&self) -> Layout {
        Layout::OneFileSystem
    }

    fn observe(&self) -> Observations {
        let seen = Observation { available: *self.0.lock().unwrap(), capacity: 1 << 30 };
        [(Signal::MemoryAvailable, seen)].into()
    }
}

fn pod(priority: i64, request: Option<&str>) -> Value {
    let mut container = demo("c", json!(["sleep", "1000"]));
    if let Some(request) = request {
        container["resources"] = json!({"requests": {"memory": request}});
    }
    json!({"priority": priority, "restartPolicy": "Always", "containers": [container]})
}

fn pressure(node: &Value, kind: &str) -> (String, String, String) {
    let conditions = node["status"]["conditions"].as_array().unwrap();
    let found = conditions.iter().find(|c| c["type"] == kind).unwrap();
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    (text("status"), text("reason"), text("message"))
}

fn disruption(pod: &Value) -> Value {
    let conditions = pod["status"]["conditions"].as_array().unwrap();
    conditions.iter().find(|c| c["type"] == "DisruptionTarget").cloned().unwrap_or_default()
}

/// Clauses: R05.memory-pressure R05.pressure-order R05.pressure-admission
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_are_evicted_one_by_one_while_memory_is_short() {
    let mut m = Machine::new().await;
    m.stop().await;
    let memory = Arc::new(Memory(Mutex::new(200 << 20)));
    m.observer = Some(memory.clone());
    m.configure = Arc::new(|c| {
        c.eviction_hard = [("memory.available".to_owned(), "100Mi".to_owned())].into();
        c.eviction_pressure_transition_period = GoDuration::seconds(1);
    });
    m.start().await;
    m.pod("modest", pod(0, Some("512Mi")));
    m.pod("greedy", pod(0, None));
    m.pod("important", pod(1000, None));
    m.pod("critical", pod(2_000_000_000, None));
    for name in ["modest", "greedy", "important", "critical"] {
        m.until(name, is_ready).await;
    }
    *memory.0.lock().unwrap() = 90 << 20;
    let gone = m.until("greedy", |p| p["status"]["phase"] == "Failed").await;
    let message = gone["status"]["message"].as_str().unwrap();
    assert_eq!(gone["status"]["reason"], "Evicted");
    assert!(
        message.starts_with(
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 90Mi. Container c was using "
        ) && message.ends_with(", request is 0, has larger consumption of memory. "),
        "{message}"
    );
    let condition = disruption(&gone);
    assert_eq!((&condition["reason"], &condition["message"]), (&json!("TerminationByKubelet"), &json!(message)));
    let node = m.api.until("api/v1/nodes", "", "n1", |n| n.is_some_and(|n| pressure(n, "MemoryPressure").0 == "True"));
    assert_eq!(
        pressure(&node.await.unwrap(), "MemoryPressure"),
        (
            "True".to_owned(),
            "KubeletHasInsufficientMemory".to_owned(),
            "kubelet has insufficient memory available".to_owned()
        )
    );
    // The one after it ends too, since there is no more memory.
    m.until("important", |p| p["status"]["phase"] == "Failed").await;
    m.pod("late", pod(0, None));
    let late = m.until("late", |p| p["status"]["phase"] == "Failed").await;
    assert_eq!(
        (&late["status"]["reason"], &late["status"]["message"]),
        (&json!("Evicted"), &json!("Pod was rejected: The node had condition: [MemoryPressure]. "))
    );
    assert_eq!(disruption(&late), Value::Null, "it never ran");
    *memory.0.lock().unwrap() = 500 << 20;
    let calm = m.api.until("api/v1/nodes", "", "n1", |n| n.is_some_and(|n| pressure(n, "MemoryPressure").0 == "False"));
    calm.await;
    let events = m.api.list("api/v1/events");
    let event = events.iter().find(|e| e["reason"] == "Evicted" && e["involvedObject"]["name"] == "greedy").unwrap();
    assert_eq!(event["message"], message);
    let annotations = &event["metadata"]["annotations"];
    assert_eq!(
        (&annotations["starved_resource"], &annotations["offending_containers"]),
        (&json!("memory"), &json!("c"))
    );
    let reclaim = events.iter().find(|e| e["reason"] == "EvictionThresholdMet").unwrap();
    assert_eq!(reclaim["message"], "Attempting to reclaim memory");
    assert!(is_ready(&m.api.get(PODS, "default", "critical").unwrap()));
    m.pod("after", pod(0, None));
    m.until("after", is_ready).await;
    for name in ["modest", "greedy", "important", "critical", "late", "after"] {
        m.api.delete_gracefully(PODS, "default", name, 0);
        m.gone(name).await;
    }
    m.finish().await;
}

/// A soft threshold waits for its grace period, and pods have the configured time.
/// Clauses: R05.soft-eviction
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn soft_thresholds_give_pods_time() {
    let mut m = Machine::new().await;
    m.stop().await;
    let memory = Arc::new(Memory(Mutex::new(200 << 20)));
    m.observer = Some(memory.clone());
    m.configure = Arc::new(|c| {
        c.eviction_hard.clear();
        c.eviction_soft = [("memory.available".to_owned(), "100Mi".to_owned())].into();
        c.eviction_soft_grace_period = [("memory.available".to_owned(), "5s".to_owned())].into();
        c.eviction_max_pod_grace_period = 4;
    });
    m.start().await;
    let mut slow = pod(0, None);
    slow["containers"][0]["args"] = json!(["ignore-signals"]);
    slow["terminationGracePeriodSeconds"] = 600.into();
    m.pod("slow", slow);
    m.until("slow", |p| p["status"]["phase"] == "Running").await;
    let begun = tokio::time::Instant::now();
    *memory.0.lock().unwrap() = 90 << 20;
    let gone = m.until("slow", |p| p["status"]["phase"] == "Failed").await;
    assert_eq!(gone["status"]["reason"], "Evicted");
    assert!(begun.elapsed() < Duration::from_secs(60), "not the pod's own grace period: {:?}", begun.elapsed());
    m.api.delete_gracefully(PODS, "default", "slow", 0);
    m.gone("slow").await;
    m.finish().await;
}

/// What observes this machine, with a disk of its own for pods.
/// Clauses: R05.disk-pressure
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_fills_the_disk_is_evicted() {
    let mut m = Machine::new().await;
    m.stop().await;
    // The directory of pods is on a small disk of its own, the runtime on that of the machine.
    let disk = m.directory.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let image = m.directory.path().join("disk.img");
    let run = |program: &str, args: &[&str]| {
        let out = std::process::Command::new(program).args(args).output().unwrap();
        assert!(out.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&out.stderr));
    };
    let [image_path, disk_path] = [image.to_str().unwrap(), disk.to_str().unwrap()];
    run("truncate", &["-s", "64M", image_path]);
    run("mkfs.ext4", &["-q", "-F", "-m", "0", image_path]);
    run("mount", &["-o", "loop", image_path, disk_path]);
    m.data_dir = Some(disk.clone());
    m.configure = Arc::new(|c| {
        c.eviction_hard = [("nodefs.available".to_owned(), "20Mi".to_owned())].into();
    });
    m.start().await;
    let fill = |mib: u32| {
        let mut container = demo("c", json!(["fill", "/data/file", mib.to_string()]));
        container["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
        json!({"volumes": [{"name": "data", "emptyDir": {}}], "containers": [container]})
    };
    m.pod("small", fill(1));
    m.until("small", is_ready).await;
    m.pod("large", fill(40));
    let gone = m.until("large", |p| p["status"]["phase"] == "Failed").await;
    let message = gone["status"]["message"].as_str().unwrap();
    assert!(
        message.starts_with("The node was low on resource: ephemeral-storage. Threshold quantity: 20Mi, available: "),
        "{message}"
    );
    let node = m.api.until("api/v1/nodes", "", "n1", |n| n.is_some_and(|n| pressure(n, "DiskPressure").0 == "True"));
    let (_, reason, text) = pressure(&node.await.unwrap(), "DiskPressure");
    assert_eq!((reason.as_str(), text.as_str()), ("KubeletHasDiskPressure", "kubelet has disk pressure"));
    assert!(is_ready(&m.api.get(PODS, "default", "small").unwrap()));
    // The condition stays for its transition period, but what the pod had is gone.
    for name in ["small", "large"] {
        m.api.delete_gracefully(PODS, "default", name, 0);
        m.gone(name).await;
    }
    m.finish().await;
}
