//! Commands other than `apply` and `get`: logs, exec, wait, create, describe, scale.

use crate::runner::Case;
use crate::story::{Story, refused};
use serde_json::json;

pub const TESTS: &[Case] = &[
    ("commands::prints_logs", prints_logs),
    ("commands::exec_passes_everything_through", exec_passes_everything_through),
    ("commands::wait_waits", wait_waits),
    ("commands::secrets_stay_secret", secrets_stay_secret),
    ("commands::describes_objects_with_events", describes_objects_with_events),
    ("commands::bad_input_changes_nothing", bad_input_changes_nothing),
];

const FOREVER: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";

/// Clauses: P18.logs P18.previous P18.follow P18.tail P18.timestamps P18.selector
fn prints_logs(s: &Story) {
    s.shell_pod("p", &format!("echo one; echo two; echo three; {FOREVER}"), json!({}), json!({}));
    s.logged("p", "three");
    assert_eq!(s.ok(&["logs", "p"]), "one\ntwo\nthree\n");
    assert_eq!(s.ok(&["logs", "p", "--tail=1"]), "three\n");
    assert_eq!(s.ok(&["logs", "-l", "app=p", "--tail=2"]), "two\nthree\n");
    assert_eq!(s.ok(&["logs", "p", "--limit-bytes=5"]), "one\nt");
    assert_eq!(s.ok(&["logs", "p", "--since=1h"]), "one\ntwo\nthree\n");
    let stamped = s.ok(&["logs", "p", "--timestamps"]);
    for (line, word) in stamped.lines().zip(["one", "two", "three"]) {
        let (time, stderr) = line.split_once(' ').unwrap();
        assert_eq!(stderr, word);
        time.parse::<jiff::Timestamp>().unwrap();
    }
    let none = s.fails(&["logs", "p", "-p"]);
    assert!(none.contains("previous terminated container \"c\" in pod \"p\" not found"), "{none}");
    assert!(s.fails(&["logs", "none"]).contains("pods \"none\" not found"));

    let script = "echo round; sleep 0.5; echo over; exit 1";
    s.shell_pod("again", script, json!({}), json!({}));
    s.container("again", |c| c["restartCount"].as_i64() >= Some(1));
    assert_eq!(s.ok(&["logs", "again", "-p"]), "round\nover\n");
    // Followed to its end.
    s.shell_pod(
        "ends",
        "for i in 1 2 3 4 5; do echo $i; sleep 0.2; done",
        json!({"restartPolicy": "Never"}),
        json!({}),
    );
    s.logged("ends", "1");
    assert_eq!(s.ok(&["logs", "-f", "ends"]), "1\n2\n3\n4\n5\n");
}

/// Clauses: P18.exec
fn exec_passes_everything_through(s: &Story) {
    let one = json!({"name": "one", "command": ["sh", "-c", FOREVER], "env": [{"name": "WHO", "value": "one"}]});
    let two = json!({"name": "two", "command": ["sh", "-c", FOREVER], "env": [{"name": "WHO", "value": "two"}]});
    s.pod("p", json!({}), vec![one, two]);
    s.ready("p");
    let o = s.k(&["exec", "p", "-c", "two", "--", "sh", "-c", "echo $WHO; echo wrong >&2; exit 7"]);
    assert_eq!(o.status.code(), Some(7));
    assert_eq!(String::from_utf8_lossy(&o.stdout), "two\n");
    let stderr = String::from_utf8_lossy(&o.stderr).into_owned();
    assert_eq!(stderr, "wrong\ncommand terminated with exit code 7\n");
    let big = "0123456789abcdef\n".repeat(20_000);
    let o = s.with_input(&["exec", "-i", "p", "-c", "one", "--", "cat"], &big);
    assert!(o.status.success() && o.stdout == big.as_bytes(), "{} of {} bytes", o.stdout.len(), big.len());
    s.fails(&["exec", "p", "-c", "three", "--", "true"]);
    s.fails(&["exec", "none", "--", "true"]);
}

/// Clauses: A16.wait
fn wait_waits(s: &Story) {
    let probe = json!({"readinessProbe": {"exec": {"command": ["test", "-e", "/tmp/go"]}, "periodSeconds": 1}});
    // The pod takes some time to end, so that there is something to wait for.
    let slow = "trap 'sleep 4; exit 0' TERM; while :; do sleep 0.1; done";
    s.shell_pod("p", slow, json!({"terminationGracePeriodSeconds": 30}), probe);
    s.container("p", |c| !c["state"]["running"].is_null());
    let late = s.fails(&["wait", "pod/p", "--for=condition=Ready", "--timeout=1s"]);
    assert!(late.contains("timed out waiting for the condition on pods/p"), "{late}");
    s.sh("p", "touch /tmp/go");
    assert_eq!(s.ok(&["wait", "pod/p", "--for=condition=Ready", "--timeout=60s"]), "pod/p condition met\n");
    s.ok(&["delete", "pod", "p", "--wait=false"]);
    s.ok(&["wait", "pod/p", "--for=delete", "--timeout=60s"]);
    assert!(s.get("pods/p").is_null());
}

/// Clauses: K05.create K05.describe K05.types K05.size K12.create
fn secrets_stay_secret(s: &Story) {
    s.file("username.txt", "admin");
    let made =
        s.ok(&["create", "secret", "generic", "pass", "--from-file=username.txt", "--from-literal=password=hunter2"]);
    assert_eq!(made, "secret/pass created\n");
    let secret = s.get("secrets/pass");
    assert_eq!(secret["data"], json!({"username.txt": "YWRtaW4=", "password": "aHVudGVyMg=="}));
    assert_eq!(secret["type"], "Opaque");
    let shown = s.ok(&["describe", "secret", "pass"]);
    assert!(shown.contains("password:") && shown.contains("7 bytes") && !shown.contains("hunter2"), "{shown}");
    assert!(!shown.contains("aHVudGVyMg"), "{shown}");
    s.ok(&[
        "create",
        "secret",
        "docker-registry",
        "reg",
        "--docker-username=u",
        "--docker-password=p",
        "--docker-server=r.example",
    ]);
    assert_eq!(s.get("secrets/reg")["type"], "kubernetes.io/dockerconfigjson");
    s.ok(&["create", "configmap", "cm", "--from-file=username.txt", "--from-literal=a=b"]);
    assert_eq!(s.get("configmaps/cm")["data"], json!({"username.txt": "admin", "a": "b"}));
    let wrong = "apiVersion: v1\nkind: Secret\nmetadata: {name: t}\ntype: kubernetes.io/tls\nstringData: {x: z}\n";
    let stderr = s.apply_fails(wrong);
    assert!(
        stderr.contains("data[tls.crt]: Required value") && stderr.contains("data[tls.key]: Required value"),
        "{stderr}"
    );
    s.file("big", &"x".repeat((1 << 20) + 1));
    let stderr = s.fails(&["create", "secret", "generic", "big", "--from-file=big"]);
    assert!(stderr.contains("Too long"), "{stderr}");
}

/// Clauses: A16.describe
fn describes_objects_with_events(s: &Story) {
    let probe = json!({"livenessProbe": {"exec": {"command": ["true"]}}, "resources": {"limits": {"memory": "32Mi"}}});
    s.shell_pod("p", FOREVER, json!({}), probe);
    s.ready("p");
    s.event("p", "Started");
    let page = s.ok(&["describe", "pod", "p"]);
    let line = |title: &str| {
        let found = page.lines().find(|l| l.trim_start().starts_with(title));
        found.unwrap_or_else(|| panic!("no {title}: {page}")).trim_start()[title.len()..].trim().to_owned()
    };
    assert_eq!(line("Name:"), "p");
    assert_eq!(line("Namespace:"), s.ns);
    assert!(line("Node:").starts_with("e2e/"), "{page}");
    assert_eq!(line("Status:"), "Running");
    assert_eq!(line("Labels:"), "app=p");
    assert_eq!(line("QoS Class:"), "Burstable");
    assert_eq!(line("memory:"), "32Mi");
    assert!(
        line("Liveness:").starts_with("exec [true] delay=0s timeout=1s period=10s #success=1 #failure=3"),
        "{page}"
    );
    let (_, events) = page.split_once("Events:").unwrap();
    for reason in ["Scheduled", "Pulled", "Created", "Started"] {
        assert!(events.contains(reason), "{reason}: {events}");
    }
}

/// Clauses: A01.bad-input
fn bad_input_changes_nothing(s: &Story) {
    let good = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {a: \"1\"}\n";
    s.apply(good);
    let before = s.get("configmaps/c");
    for (bad, word) in [
        (good.replace("\ndata:", "\ndatum:"), "datum"),
        (good.replace("{a: \"1\"}", "{a: 1}"), "data"),
        (good.replace("{a: \"1\"}", "[a]"), "data"),
        (good.replace("v1", "v9"), "v9"),
        (good.replace("ConfigMap", "ConfigCat"), "ConfigCat"),
        (good.replace("{name: c}", "{name: c, labels: {a b: c}}"), "a b"),
        (good.replace("metadata:", "metadata"), ""),
        // YAML does not read these as strings.
        (good.replace("{name: c}", "{name: n}"), "ObjectMeta"),
        (good.replace("{name: c}", "{name: 12}"), "ObjectMeta"),
    ] {
        let o = s.with_input(&["apply", "-f", "-"], &bad);
        let stderr = refused(&["apply", &bad], &o);
        assert!(stderr.contains(word), "{word}: {stderr}");
    }
    assert_eq!(s.get("configmaps/c"), before);
    // A stale copy does not overwrite later writes.
    let mut old = before.clone();
    s.patch("configmaps/c", json!({"data": {"a": "2"}}));
    old["data"]["a"] = "3".into();
    let stderr = refused(&["replace"], &s.with_input(&["replace", "-f", "-"], &old.to_string()));
    assert!(
        stderr.contains("the object has been modified; please apply your changes to the latest version"),
        "{stderr}"
    );
    assert_eq!(s.get("configmaps/c")["data"]["a"], "2");
}
