//! Deployments: rolling updates, recreation, history and undo.

use crate::runner::Case;
use crate::story::{IMAGE, Story};
use serde_json::{Value, json};

pub const TESTS: &[Case] = &[
    ("rollout::rolls_within_its_limits", rolls_within_its_limits),
    ("rollout::recreates_without_overlap", recreates_without_overlap),
    ("rollout::goes_back_in_history", goes_back_in_history),
    ("rollout::pauses_and_resumes", pauses_and_resumes),
    ("rollout::restarts", restarts),
    ("rollout::turns_round_in_the_middle", turns_round_in_the_middle),
];

/// A deployment whose pods carry `version`; `more` is more of its spec.
fn web(version: &str, replicas: u32, more: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web}}\nspec:\n  replicas: {replicas}\n  \
         selector: {{matchLabels: {{app: web}}}}\n{more}  template:\n    metadata: {{labels: {{app: web}}}}\n    spec:\n      \
         terminationGracePeriodSeconds: 1\n      containers:\n      - name: c\n        image: \"{IMAGE}\"\n        \
         env: [{{name: VERSION, value: \"{version}\"}}]\n"
    )
}

fn status(s: &Story) {
    let stderr = s.ok(&["rollout", "status", "deployment/web", "--timeout=80s"]);
    assert!(stderr.ends_with("deployment \"web\" successfully rolled out\n"), "{stderr}");
}

fn version(pod: &Value) -> &str {
    pod["spec"]["containers"][0]["env"][0]["value"].as_str().unwrap_or_default()
}

fn ready(p: &Value) -> bool {
    crate::story::condition(p, "Ready") == "True" && p["metadata"]["deletionTimestamp"].is_null()
}

/// Clauses: C04.surge C04.unavailable C04.percentages C04.hash C04.min-ready
fn rolls_within_its_limits(s: &Story) {
    let limits = "  minReadySeconds: 1\n  strategy: {rollingUpdate: {maxSurge: 25%, maxUnavailable: 25%}}\n";
    s.apply(&web("1", 4, limits));
    status(s);
    s.apply(&web("2", 4, limits));
    let (mut most, mut fewest) = (0u64, usize::MAX);
    s.eventually("the second version", || {
        let pods = s.items("pods");
        // Pods that are to go may still be there when the next are made, on a slow machine: what is asked for is limited at every
        // moment, and of the second version, of which ever more are asked for, there are never more than that.
        let sets = s.items("replicasets");
        let replicas = |r: &Value| r["spec"]["replicas"].as_u64().unwrap();
        most = most.max(sets.iter().map(replicas).sum());
        let second = |o: &Value| version(o) == "2";
        let asked: u64 = sets.iter().filter(|r| second(&r["spec"]["template"])).map(replicas).sum();
        let made = pods.iter().filter(|p| second(p) && p["metadata"]["deletionTimestamp"].is_null()).count();
        assert!(made as u64 <= asked, "{made} made, {asked} asked for");
        fewest = fewest.min(pods.iter().filter(|p| ready(p)).count());
        (pods.len() == 4 && pods.iter().all(|p| version(p) == "2" && ready(p))).then_some(())
    });
    assert!(most <= 5, "at most one more: {most}");
    assert!(fewest >= 3, "at most one less: {fewest}");
    status(s);
    let d = s.get("deployments/web");
    assert_eq!(d["status"]["observedGeneration"], d["metadata"]["generation"]);
    for rs in s.items("replicasets") {
        let hash = &rs["metadata"]["labels"]["pod-template-hash"];
        assert_eq!(rs["metadata"]["name"], format!("web-{}", hash.as_str().unwrap()));
        assert_eq!(&rs["spec"]["selector"]["matchLabels"]["pod-template-hash"], hash);
        assert_eq!(&rs["spec"]["template"]["metadata"]["labels"]["pod-template-hash"], hash);
    }
}

/// Clauses: C04.recreate
fn recreates_without_overlap(s: &Story) {
    let recreate = "  strategy: {type: Recreate}\n";
    s.apply(&web("1", 2, recreate));
    status(s);
    s.apply(&web("2", 2, recreate));
    s.eventually("the second version", || {
        let pods = s.items("pods");
        // One that has ended and is about to be removed is no overlap.
        let ended = |p: &Value| p["status"]["phase"] == "Succeeded" || p["status"]["phase"] == "Failed";
        let of = |v: &str| pods.iter().filter(|p| version(p) == v && !ended(p)).count();
        assert!(of("1") == 0 || of("2") == 0, "both versions at once");
        (of("2") == 2 && pods.iter().all(ready)).then_some(())
    });
    status(s);
}

fn current(s: &Story) -> String {
    let d = s.get("deployments/web");
    d["spec"]["template"]["spec"]["containers"][0]["env"][0]["value"].as_str().unwrap().to_owned()
}

/// Clauses: C05.status C05.history C05.undo C05.to-revision C05.change-cause C05.limit
fn goes_back_in_history(s: &Story) {
    let limit = "  revisionHistoryLimit: 2\n";
    for v in ["1", "2", "3"] {
        s.apply(&web(v, 1, limit));
        s.ok(&["annotate", "deployment", "web", "--overwrite", &format!("kubernetes.io/change-cause=version {v}")]);
        status(s);
    }
    let history = s.eventually("three revisions", || {
        let stderr = s.ok(&["rollout", "history", "deployment/web"]);
        stderr.contains("version 3").then_some(stderr)
    });
    let lines: Vec<&str> = history.lines().map(str::trim_end).collect();
    let expected = [
        "deployment.apps/web",
        "REVISION  CHANGE-CAUSE",
        "1         version 1",
        "2         version 2",
        "3         version 3",
    ];
    assert_eq!(lines[..5], expected, "{history}");
    let one = s.ok(&["rollout", "history", "deployment/web", "--revision=2"]);
    assert!(one.contains("VERSION:\t2"), "{one}");

    assert_eq!(s.ok(&["rollout", "undo", "deployment/web"]), "deployment.apps/web rolled back\n");
    assert_eq!(current(s), "2");
    status(s);
    s.ok(&["rollout", "undo", "deployment/web", "--to-revision=1"]);
    assert_eq!(current(s), "1");
    status(s);
    // Revisions that were gone back to have moved to the end.
    let revisions = || {
        let stderr = s.ok(&["rollout", "history", "deployment/web"]);
        stderr.lines().filter_map(|l| l.split_whitespace().next()?.parse::<u32>().ok()).collect::<Vec<_>>()
    };
    s.eventually("revisions 3, 4 and 5", || (revisions() == [3, 4, 5]).then_some(()));
    assert!(
        s.fails(&["rollout", "undo", "deployment/web", "--to-revision=77"])
            .contains("unable to find specified revision 77 in history")
    );
    // With one more there is one too many.
    s.apply(&web("4", 1, limit));
    status(s);
    s.eventually("revisions 4 to 6", || (revisions() == [4, 5, 6]).then_some(()));
}

/// Clauses: C05.pause C05.resume
fn pauses_and_resumes(s: &Story) {
    s.apply(&web("1", 1, ""));
    status(s);
    assert_eq!(s.ok(&["rollout", "pause", "deployment/web"]), "deployment.apps/web paused\n");
    s.fails(&["rollout", "pause", "deployment/web"]);
    s.apply(&web("2", 1, "  paused: true\n"));
    let d = s.get("deployments/web");
    s.until("deployments/web", |n| n["status"]["observedGeneration"].as_i64() >= d["metadata"]["generation"].as_i64());
    assert_eq!(s.items("replicasets").len(), 1, "nothing is rolled while it is paused");
    // Scaling goes on.
    s.ok(&["scale", "deployment/web", "--replicas=2"]);
    s.until("deployments/web", |d| d["status"]["readyReplicas"] == 2);
    assert_eq!(s.ok(&["rollout", "resume", "deployment/web"]), "deployment.apps/web resumed\n");
    status(s);
    assert_eq!(s.items("replicasets").len(), 2);
    s.ok(&["rollout", "pause", "deployment/web"]);
    let stderr = s.fails(&["rollout", "undo", "deployment/web"]);
    assert!(stderr.contains("cannot rollback a paused deployment; resume it first"), "{stderr}");
    s.ok(&["rollout", "resume", "deployment/web"]);
    s.eventually("the second version", || {
        let pods = s.items("pods");
        (pods.len() == 2 && pods.iter().all(|p| version(p) == "2")).then_some(())
    });
}

/// Clauses: C05.restart
fn restarts(s: &Story) {
    s.apply(&web("1", 1, ""));
    status(s);
    let before = s.items("pods")[0]["metadata"]["uid"].clone();
    assert_eq!(s.ok(&["rollout", "restart", "deployment/web"]), "deployment.apps/web restarted\n");
    let d = s.get("deployments/web");
    let annotations = &d["spec"]["template"]["metadata"]["annotations"];
    assert!(annotations["kubectl.kubernetes.io/restartedAt"].is_string(), "{annotations}");
    status(s);
    s.eventually("another pod", || {
        let pods = s.items("pods");
        (pods.len() == 1 && pods[0]["metadata"]["uid"] != before && ready(&pods[0])).then_some(())
    });
}

/// Clauses: C04.rollover C04.keeps-serving C05.status-timeout
fn turns_round_in_the_middle(s: &Story) {
    let limits = "  strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}\n";
    s.apply(&web("1", 2, limits));
    status(s);
    // The second version never comes up: the first goes on serving.
    s.apply(&web("2", 2, limits).replace(IMAGE, "registry.invalid/none:1"));
    let stuck = |p: &Value| version(p) == "2" && p["status"]["phase"] == "Pending";
    s.eventually("a pod that does not come up", || s.items("pods").iter().any(stuck).then_some(()));
    let stderr = s.fails(&["rollout", "status", "deployment/web", "--timeout=2s"]);
    assert!(stderr.contains("timed out waiting for the condition"), "{stderr}");
    let serving = |v: &str| s.items("pods").iter().filter(|p| version(p) == v && ready(p)).count();
    assert_eq!((serving("1"), serving("2")), (2, 0));
    let d = s.get("deployments/web");
    assert_eq!((&d["status"]["availableReplicas"], &d["status"]["updatedReplicas"]), (&json!(2), &json!(1)));
    // A third one replaces both.
    s.apply(&web("3", 2, limits));
    s.eventually("the third version", || {
        let pods = s.items("pods");
        (pods.len() == 2 && pods.iter().all(|p| version(p) == "3" && ready(p))).then_some(())
    });
    status(s);
    let scaled: Vec<(Value, Value)> = s
        .items("replicasets")
        .iter()
        .map(|r| (r["spec"]["replicas"].clone(), r["status"]["replicas"].clone()))
        .collect();
    assert_eq!(scaled.iter().filter(|(expected, is)| *expected == 2 && *is == 2).count(), 1, "{scaled:?}");
    assert_eq!(scaled.iter().filter(|(expected, is)| *expected == 0 && *is == 0).count(), 2, "{scaled:?}");
}
