//! ReplicaSets: counting, adopting, releasing.

use crate::runner::Case;
use crate::story::{IMAGE, Story, names};
use serde_json::{Value, json};

pub const TESTS: &[Case] = &[
    ("replicas::takes_no_more_than_it_counts", takes_no_more_than_it_counts),
    ("replicas::adopts_what_was_there_before", adopts_what_was_there_before),
    ("replicas::lets_go_of_what_is_relabelled", lets_go_of_what_is_relabelled),
];

fn frontend() -> String {
    format!(
        "apiVersion: apps/v1\nkind: ReplicaSet\nmetadata:\n  name: frontend\n  labels: {{app: guestbook, tier: frontend}}\n\
         spec:\n  replicas: 3\n  selector: {{matchLabels: {{tier: frontend}}}}\n  template:\n    metadata: {{labels: {{tier: frontend}}}}\n    \
         spec:\n      terminationGracePeriodSeconds: 1\n      containers:\n      - {{name: php-redis, image: \"{IMAGE}\"}}\n"
    )
}

fn pods() -> String {
    let pod = |n: u32| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: pod{n}, labels: {{tier: frontend}}}}\n\
             spec:\n  terminationGracePeriodSeconds: 1\n  containers:\n  - {{name: hello{n}, image: \"{IMAGE}\"}}\n"
        )
    };
    format!("{}---\n{}", pod(1), pod(2))
}

fn full(rs: &Value) -> bool {
    rs["status"]["readyReplicas"] == 3 && rs["status"]["replicas"] == 3
}

fn living(s: &Story) -> Vec<Value> {
    let mut all = s.items("pods");
    all.retain(|p| p["metadata"]["deletionTimestamp"].is_null());
    all
}

/// Clauses: C01.count C01.surplus C01.owner C01.scale
fn takes_no_more_than_it_counts(s: &Story) {
    assert_eq!(s.apply(&frontend()), "replicaset.apps/frontend created\n");
    let rs = s.until("replicasets/frontend", full);
    let mine = names(&living(s));
    for p in living(s) {
        let owner = &p["metadata"]["ownerReferences"][0];
        assert_eq!((&owner["uid"], &owner["controller"]), (&rs["metadata"]["uid"], &json!(true)));
        assert_eq!(p["metadata"]["generateName"], "frontend-");
    }
    s.apply(&pods());
    // The two are one too many each, and the youngest go first.
    s.eventually("the end of pod1 and pod2", || (names(&s.items("pods")) == mine).then_some(()));
    s.ok(&["scale", "rs", "frontend", "--replicas=1"]);
    s.eventually("one pod", || (living(s).len() == 1).then_some(()));
    assert!(s.ok(&["delete", "rs", "frontend"]).starts_with("replicaset.apps \"frontend\" deleted"));
    s.eventually("no pod", || s.items("pods").is_empty().then_some(()));
}

/// Clauses: C01.adopt
fn adopts_what_was_there_before(s: &Story) {
    s.apply(&pods());
    s.ready("pod1");
    s.ready("pod2");
    s.apply(&frontend());
    let rs = s.until("replicasets/frontend", full);
    let all = living(s);
    assert_eq!(all.len(), 3, "{:?}", names(&all));
    assert!(names(&all).contains(&"pod1".to_owned()) && names(&all).contains(&"pod2".to_owned()));
    assert!(all.iter().all(|p| p["metadata"]["ownerReferences"][0]["uid"] == rs["metadata"]["uid"]));
}

/// Clauses: C01.isolate C01.release K04.quarantine
fn lets_go_of_what_is_relabelled(s: &Story) {
    s.apply(&frontend());
    s.until("replicasets/frontend", full);
    let one = names(&living(s))[0].clone();
    s.ok(&["label", "pod", &one, "tier=debug", "--overwrite"]);
    s.eventually("a replacement", || (living(s).len() == 4).then_some(()));
    let p = s.until(&format!("pods/{one}"), |p| p["metadata"]["ownerReferences"].is_null());
    assert!(p["metadata"]["deletionTimestamp"].is_null(), "it stays");
    s.until("replicasets/frontend", full);
    // And back: now there are four, of which one goes.
    s.ok(&["label", "pod", &one, "tier=frontend", "--overwrite"]);
    s.eventually("three pods", || (living(s).len() == 3).then_some(()));
}
