//! Requests, limits, and scheduling by resources.

use crate::runner::Case;
use crate::story::{Story, condition};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

pub const TESTS: &[Case] = &[
    ("resources::never_more_than_there_is", never_more_than_there_is),
    ("resources::limits_reach_the_kernel", limits_reach_the_kernel),
    ("resources::quantities_are_written_one_way", quantities_are_written_one_way),
    ("resources::classes_of_service", classes_of_service),
    ("resources::a_node_shows_what_is_taken", a_node_shows_what_is_taken),
];

/// Changes what the node shows.
pub const ALONE: &[Case] = &[("resources::what_others_add_can_be_asked_for", what_others_add_can_be_asked_for)];

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

/// Clauses: R01.notations R01.canonical R01.sub-milli
fn quantities_are_written_one_way(s: &Story) {
    let pod = |name: &str, resource: &str, quantity: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  schedulerName: nobody\n  containers:\n  \
             - {{name: c, image: x, resources: {{requests: {{{resource}: \"{quantity}\"}}}}}}\n"
        )
    };
    let written = [
        ("memory", "128974848", "128974848"),
        ("memory", "129e6", "129e6"),
        ("memory", "129M", "129M"),
        ("memory", "123Mi", "123Mi"),
        ("memory", "1024Mi", "1Gi"),
        ("memory", "1.5Gi", "1536Mi"),
        ("memory", "128974848000m", "128974848"),
        ("cpu", "0.1", "100m"),
        ("cpu", "1000m", "1"),
        ("cpu", "1.5", "1500m"),
        ("cpu", "2", "2"),
        // Less than a thousandth of a processor cannot be had.
        ("cpu", "0.5m", "1m"),
        ("ephemeral-storage", "2Gi", "2Gi"),
    ];
    for (i, (resource, given, expected)) in written.into_iter().enumerate() {
        let name = format!("p{i}");
        s.apply(&pod(&name, resource, given));
        let p = s.get(&format!("pods/{name}"));
        assert_eq!(p["spec"]["containers"][0]["resources"]["requests"][resource], expected, "{given}");
    }
    let said = s.apply_fails(&pod("bad", "memory", "-1"));
    assert!(said.contains("must be greater than or equal to 0"), "{said}");
    let said = s.apply_fails(&pod("bad", "memory", "1Kb"));
    assert!(said.contains("quantities must match the regular expression"), "{said}");
    assert!(s.get("pods/bad").is_null());
}

/// Clauses: R04.qos
fn classes_of_service(s: &Story) {
    let both = json!({"cpu": "10m", "memory": "16Mi"});
    for (name, resources, class) in [
        ("best", json!({}), "BestEffort"),
        ("some", json!({"requests": {"memory": "16Mi"}}), "Burstable"),
        ("sure", json!({"requests": both, "limits": both}), "Guaranteed"),
        ("limits", json!({"limits": both}), "Guaranteed"),
    ] {
        s.shell_pod(name, FOREVER, json!({}), json!({"resources": resources}));
        let p = s.ready(name);
        assert_eq!(p["status"]["qosClass"], class, "{name}");
    }
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

/// An extended resource, as the tasks of Kubernetes' documentation add it to a node. Clauses: R06
fn what_others_add_can_be_asked_for(s: &Story) {
    let ask = |count: u32| json!({"resources": {"limits": {"example.com/dongle": count.to_string()}}});
    s.shell_pod("early", FOREVER, json!({}), ask(2));
    let message = s.event("early", "FailedScheduling");
    assert!(message.contains("1 Insufficient example.com/dongle"), "{message}");
    s.patch_at("/api/v1/nodes/e2e/status", json!({"status": {"capacity": {"example.com/dongle": "4"}}}));
    s.ready("early");
    assert_eq!(node(s)["status"]["allocatable"]["example.com/dongle"], "4");
    s.shell_pod("late", FOREVER, json!({}), ask(3));
    s.event("late", "FailedScheduling");
    s.ok(&["delete", "pod", "early"]);
    s.ready("late");
    s.patch_at("/api/v1/nodes/e2e/status", json!({"status": {"capacity": {"example.com/dongle": null}}}));
    s.until_at("/api/v1/nodes/e2e", |n| n["status"]["allocatable"].get("example.com/dongle").is_none());
}
