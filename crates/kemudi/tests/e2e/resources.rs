//! Requests, limits, and scheduling by resources.

use crate::runner::Case;
use crate::story::{Story, condition};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

pub const TESTS: &[Case] = &[
    ("resources::pods_that_exceed_local_storage_are_evicted", pods_that_exceed_local_storage_are_evicted),
    ("resources::extended_resources_are_requested", extended_resources_are_requested),
    ("resources::never_more_than_there_is", never_more_than_there_is),
    ("resources::limits_reach_the_kernel", limits_reach_the_kernel),
    ("resources::a_node_shows_what_is_taken", a_node_shows_what_is_taken),
];

const FOREVER: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";

fn node(s: &Story) -> Value {
    s.get_at("/api/v1/nodes/e2e")
}

/// Clauses: R02.pending R02.reasons R02.overcommit R04.allocatable
fn never_more_than_there_is(s: &Story) {
    let allocatable: u64 = node(s)["status"]["allocatable"]["cpu"].as_str().unwrap().parse().unwrap();
    let capacity: u64 = node(s)["status"]["capacity"]["cpu"].as_str().unwrap().parse().unwrap();
    assert!(allocatable <= capacity);
    let ask = |cpu: String| json!({"resources": {"requests": {"cpu": cpu}}});
    s.shell_pod("huge", FOREVER, json!({}), ask("1000".into()));
    let message = s.event("huge", "FailedScheduling");
    assert!(message.starts_with("0/1 nodes are available: 1 Insufficient cpu."), "{message}");
    let p = s.get("pods/huge");
    assert_eq!((&p["status"]["phase"], condition(&p, "PodScheduled")), (&json!("Pending"), "False"));
    let why = &p["status"]["conditions"][0];
    assert_eq!((&why["reason"], &why["message"]), (&json!("Unschedulable"), &json!(message)));
    // Two that want more than half each: one runs, the other waits for its end.
    let most = format!("{}m", allocatable * 600);
    s.shell_pod("first", FOREVER, json!({}), ask(most.clone()));
    s.ready("first");
    s.shell_pod("second", FOREVER, json!({}), ask(most));
    s.event("second", "FailedScheduling");
    assert!(s.get("pods/second")["spec"]["nodeName"].is_null());
    s.ok(&["delete", "pod", "first"]);
    s.ready("second");
}

/// Files of this name in the control groups of a pod's container.
fn control(uid: &str, names: &[&str]) -> Vec<(PathBuf, String)> {
    fn walk(dir: &Path, uid: &str, names: &[&str], found: &mut Vec<(PathBuf, String)>) {
        for e in fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = e.path();
            if e.file_type().is_ok_and(|t| t.is_dir()) {
                walk(&path, uid, names, found);
            } else if path.to_string_lossy().contains(uid)
                && names.iter().any(|n| path.ends_with(n))
                && let Ok(text) = fs::read_to_string(&path)
            {
                found.push((path, text.trim().to_owned()));
            }
        }
    }
    let mut found = Vec::new();
    walk(Path::new("/sys/fs/cgroup"), uid, names, &mut found);
    found
}

/// Clauses: R03.cpu R03.memory-limit R03.shares
fn limits_reach_the_kernel(s: &Story) {
    let resources = json!({"requests": {"cpu": "100m"}, "limits": {"cpu": "500m", "memory": "64Mi"}});
    s.shell_pod("p", FOREVER, json!({}), json!({"resources": resources}));
    let uid = s.ready("p")["metadata"]["uid"].as_str().unwrap().to_owned();
    let values = |names: &[&str]| control(&uid, names).into_iter().map(|(_, v)| v).collect::<Vec<_>>();
    let memory = values(&["memory.limit_in_bytes", "memory.max"]);
    assert!(memory.contains(&(64 << 20).to_string()), "{memory:?}");
    let quota = values(&["cpu.cfs_quota_us", "cpu.max"]);
    assert!(quota.iter().any(|v| v == "50000" || v == "50000 100000"), "{quota:?}");
    let shares = values(&["cpu.shares", "cpu.weight"]);
    assert!(shares.iter().any(|v| v == "102" || v == "4"), "{shares:?}");
    s.ok(&["delete", "pod", "p"]);
    s.eventually("the end of the control groups", || values(&["cgroup.procs"]).is_empty().then_some(()));
}

/// Clauses: R04.describe
fn a_node_shows_what_is_taken(s: &Story) {
    let resources = json!({"requests": {"cpu": "123m", "memory": "17Mi"}, "limits": {"memory": "34Mi"}});
    s.shell_pod("taken", FOREVER, json!({}), json!({"resources": resources}));
    s.ready("taken");
    let text = s.ok(&["describe", "node", "e2e"]);
    let (_, below) = text.split_once("Allocated resources:").unwrap();
    for row in ["cpu", "memory", "ephemeral-storage"] {
        assert!(below.lines().any(|l| l.trim_start().starts_with(row)), "{row}: {text}");
    }
    let mine = text.lines().find(|l| l.contains("taken") && l.contains(&s.ns[..10])).unwrap();
    for word in ["123m (", "17Mi (", "34Mi ("] {
        assert!(mine.contains(word), "{mine}");
    }
}

/// An extended resource, as the tasks of Kubernetes' documentation add it to a node. No other test requests it.
/// Clauses: R06
fn extended_resources_are_requested(s: &Story) {
    let request = |count: u32| json!({"resources": {"limits": {"example.com/dongle": count.to_string()}}});
    s.shell_pod("early", FOREVER, json!({}), request(2));
    let message = s.event("early", "FailedScheduling");
    assert!(message.contains("1 Insufficient example.com/dongle"), "{message}");
    s.patch_at("/api/v1/nodes/e2e/status", json!({"status": {"capacity": {"example.com/dongle": "4"}}}));
    s.ready("early");
    assert_eq!(node(s)["status"]["allocatable"]["example.com/dongle"], "4");
    s.shell_pod("late", FOREVER, json!({}), request(3));
    s.event("late", "FailedScheduling");
    s.ok(&["delete", "pod", "early"]);
    s.ready("late");
    s.patch_at("/api/v1/nodes/e2e/status", json!({"status": {"capacity": {"example.com/dongle": null}}}));
    s.until_at("/api/v1/nodes/e2e", |n| n["status"]["allocatable"].get("example.com/dongle").is_none());
}

/// Clauses: R05.limits R05.emptyDir
fn pods_that_exceed_local_storage_are_evicted(s: &Story) {
    let fill = |file: &str| {
        format!("dd if=/dev/zero of={file} bs=1024 count=3000; trap 'exit 0' TERM; while :; do sleep 0.1; done")
    };
    let room = json!({"name": "room", "emptyDir": {"sizeLimit": "1Mi"}});
    let mounted = json!({"volumeMounts": [{"name": "room", "mountPath": "/room"}]});
    s.shell_pod("volume", &fill("/room/file"), json!({"volumes": [room]}), mounted);
    let limits =
        json!({"resources": {"limits": {"ephemeral-storage": "2Mi"}, "requests": {"ephemeral-storage": "1Mi"}}});
    s.shell_pod("layer", &fill("/file"), json!({}), limits);
    let roomy = json!({"name": "room", "emptyDir": {"sizeLimit": "100Mi"}});
    let mounted = json!({"volumeMounts": [{"name": "room", "mountPath": "/room"}]});
    s.shell_pod("fits", &fill("/room/file"), json!({"volumes": [roomy]}), mounted);
    for (name, message) in [
        ("volume", "Usage of EmptyDir volume \"room\" exceeds the limit \"1Mi\". "),
        ("layer", "Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. "),
    ] {
        let pod = s.until(&format!("pods/{name}"), |p| p["status"]["phase"] == "Failed");
        assert_eq!((&pod["status"]["reason"], &pod["status"]["message"]), (&json!("Evicted"), &json!(message)));
        let conditions = pod["status"]["conditions"].as_array().unwrap();
        assert!(
            conditions.iter().all(|c| c["type"] != "DisruptionTarget"),
            "as upstream: the pod itself is the reason"
        );
        s.event(name, "Evicted");
    }
    assert_eq!(s.get("pods/fits")["status"]["phase"], "Running");
}
