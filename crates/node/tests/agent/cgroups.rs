//! Control groups above those of pods, and what containers have in theirs beside limits.

use crate::machine::*;
use serde_json::{Value, json};

fn burstable(cpu: &str) -> Value {
    let mut container = demo("c", json!(["sleep"]));
    container["resources"] = json!({"requests": {"cpu": cpu}});
    json!({"containers": [container]})
}

/// The group of all burstable pods had the weight of one processor, however much they requested: guaranteed pods, which compete with that
/// group, got less than they requested, or more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn burstable_pods_weigh_what_they_request() {
    let mut m = Machine::new().await;
    m.until_weight("burstable", 2).await;
    m.pod("a", burstable("300m"));
    m.until("a", is_ready).await;
    m.until_weight("burstable", 307).await;
    m.pod("b", burstable("400m"));
    m.until_weight("burstable", 716).await;
    m.until("b", is_ready).await;
    // A new agent knows them again.
    m.stop().await;
    m.start().await;
    m.until_weight("burstable", 716).await;
    m.api.delete_gracefully(PODS, "default", "a", 0);
    m.until_weight("burstable", 409).await;
    m.until_weight("besteffort", 2).await;
    m.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_do_not_swap_and_are_killed_as_a_whole() {
    let m = Machine::new().await;
    m.pod("p", burstable("10m"));
    let p = m.until("p", is_ready).await;
    let id = p["status"]["containerStatuses"][0]["containerID"].as_str().unwrap().replace("kemudi://", "");
    let group = format!("burstable/pod{}/{id}", p["metadata"]["uid"].as_str().unwrap());
    for (file, value) in [("memory.oom.group", "1"), ("memory.swap.max", "0")] {
        // Version 1 has none, nor a kernel without swap.
        match m.cgroup_file(&group, file) {
            None => assert!(file == "memory.swap.max" || m.cgroup_file(&group, "cgroup.kill").is_none(), "{file}"),
            Some(found) => assert_eq!(found, value, "{file}"),
        }
    }
    m.finish().await;
}
