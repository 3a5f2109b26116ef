//! Start and termination: hooks, grace periods, forced deletion.

use crate::runner::Case;
use crate::story::{Story, http_get};
use serde_json::{Value, json};

pub const TESTS: &[Case] = &[
    ("lifecycle::ends_with_grace", ends_with_grace),
    ("lifecycle::is_killed_when_grace_is_over", is_killed_when_grace_is_over),
    ("lifecycle::can_be_forced", can_be_forced),
    ("lifecycle::leaves_its_endpoints_at_once", leaves_its_endpoints_at_once),
    ("lifecycle::reports_its_status_until_the_end", reports_its_status_until_the_end),
    ("lifecycle::hooks_run_before_and_after", hooks_run_before_and_after),
    ("lifecycle::a_failed_start_hook_ends_the_container", a_failed_start_hook_ends_the_container),
    ("lifecycle::templates_do_not_touch_pods", templates_do_not_touch_pods),
];

/// Ends when it is told to, and says so.
const POLITE: &str = "trap 'echo told to end; exit 0' TERM; echo ready; while :; do sleep 0.1; done";
const DEAF: &str = "trap '' TERM; echo ready; while :; do sleep 0.1; done";

/// A directory of the machine that outlives the pod.
fn outside(s: &Story) -> (Value, Value, std::path::PathBuf) {
    let dir = s.cluster.directory.join(format!("{}-out", s.ns));
    std::fs::create_dir_all(&dir).unwrap();
    (json!({"name": "out", "hostPath": {"path": dir}}), json!({"name": "out", "mountPath": "/out"}), dir)
}

/// Clauses: P04.deletion-timestamp P04.terminating P04.pre-stop P04.sigterm P04.removal P13.pre-stop-exec
fn ends_with_grace(s: &Story) {
    let (volume, mount, dir) = outside(s);
    let hook = json!({"preStop": {"exec": {"command": ["sh", "-c", "echo hook >> /out/order; until test -e /out/go; do sleep 0.1; done"]}}});
    let script = "trap 'echo term >> /out/order; exit 0' TERM; echo ready; while :; do sleep 0.1; done";
    let spec = json!({"terminationGracePeriodSeconds": 40, "volumes": [volume]});
    s.shell_pod("p", script, spec, json!({"lifecycle": hook, "volumeMounts": [mount]}));
    s.logged("p", "ready");
    s.ok(&["delete", "pod", "p", "--wait=false"]);
    let p = s.get("pods/p");
    assert!(p["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(p["metadata"]["deletionGracePeriodSeconds"], 40);
    assert!(s.ok(&["get", "pod", "p"]).contains("Terminating"));
    let order = || std::fs::read_to_string(dir.join("order")).unwrap_or_default();
    s.eventually("the hook", || (order() == "hook\n").then_some(()));
    std::fs::write(dir.join("go"), "").unwrap();
    s.gone("pods/p");
    assert_eq!(order(), "hook\nterm\n");
}

/// Clauses: P04.sigkill P04.grace
fn is_killed_when_grace_is_over(s: &Story) {
    s.shell_pod("deaf", DEAF, json!({"terminationGracePeriodSeconds": 60}), json!({}));
    s.shell_pod("polite", POLITE, json!({"terminationGracePeriodSeconds": 60}), json!({}));
    s.logged("deaf", "ready");
    s.logged("polite", "ready");
    let started = tokio::time::Instant::now();
    s.ok(&["delete", "pod", "deaf", "--grace-period=1"]);
    assert!(s.get("pods/deaf").is_null(), "delete waits");
    assert!((1..20).contains(&started.elapsed().as_secs()), "{:?}", started.elapsed());
    let started = tokio::time::Instant::now();
    s.ok(&["delete", "pod", "polite"]);
    assert!(started.elapsed().as_secs() < 20, "it ends when it is asked: {:?}", started.elapsed());
}

/// Clauses: P04.force
fn can_be_forced(s: &Story) {
    let (volume, mount, dir) = outside(s);
    let script = "trap '' TERM; while :; do echo x > /out/alive; sleep 0.1; done";
    let spec = json!({"terminationGracePeriodSeconds": 600, "volumes": [volume]});
    s.shell_pod("p", script, spec, json!({"volumeMounts": [mount]}));
    s.ready("p");
    let said = s.k(&["delete", "pod", "p", "--grace-period=0", "--force"]);
    assert!(said.status.success());
    let warning = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(warning.contains("Immediate deletion does not wait for confirmation"), "{warning}");
    assert!(s.get("pods/p").is_null());
    // Its container goes as well, though nobody waits for it.
    let alive = dir.join("alive");
    s.eventually("the end of the container", || {
        let _ = std::fs::remove_file(&alive);
        let end = tokio::time::Instant::now() + std::time::Duration::from_millis(500);
        while tokio::time::Instant::now() < end {
            if alive.exists() {
                return None;
            }
            std::thread::yield_now();
        }
        Some(())
    });
}

/// Clauses: P04.endpoints C14.endpoints
fn leaves_its_endpoints_at_once(s: &Story) {
    s.create("services", json!({"metadata": {"name": "web"}, "spec": {"selector": {"app": "p"}, "ports": [{"port": 80, "targetPort": 8080}]}}));
    let hook = json!({"preStop": {"sleep": {"seconds": 6}}});
    let probe = json!({"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 1});
    s.pod(
        "p",
        json!({"terminationGracePeriodSeconds": 10}),
        vec![json!({"name": "c", "lifecycle": hook, "readinessProbe": probe})],
    );
    let p = s.ready("p");
    let ready = |e: &Value| e["items"][0]["endpoints"][0]["conditions"]["ready"].clone();
    s.until("endpointslices", |e| ready(e) == true);
    s.until("endpoints/web", |e| e["subsets"][0]["addresses"][0]["ip"] == p["status"]["podIP"]);
    s.ok(&["delete", "pod", "p", "--wait=false"]);
    s.until("endpointslices", |e| ready(e) != true);
    s.until("endpoints/web", |e| e["subsets"][0]["addresses"].is_null());
    assert!(!s.get("pods/p").is_null(), "it is still ending");
    let address = format!("{}:8080", p["status"]["podIP"].as_str().unwrap());
    assert!(http_get(&address, "/healthz").is_some(), "it still answers");
    s.gone("pods/p");
}

/// While a pod terminates, its readiness and the containers that have ended are reported.
fn reports_its_status_until_the_end(s: &Story) {
    let (volume, mount, dir) = outside(s);
    let script = "trap 'rm /tmp/up; until test -e /out/go; do sleep 0.1; done; exit 0' TERM; touch /tmp/up; while :; do sleep 0.1; done";
    let up = json!({"exec": {"command": ["test", "-e", "/tmp/up"]}, "periodSeconds": 1, "failureThreshold": 1});
    let mut live = up.clone();
    live["initialDelaySeconds"] = 2.into();
    let shell = |script: &str| json!(["sh", "-c", script]);
    s.pod(
        "p",
        json!({"terminationGracePeriodSeconds": 60, "volumes": [volume]}),
        vec![
            json!({"name": "slow", "command": shell(script), "readinessProbe": up, "livenessProbe": live, "volumeMounts": [mount]}),
            json!({"name": "fast", "command": shell(POLITE)}),
        ],
    );
    s.ready("p");
    s.ok(&["delete", "pod", "p", "--wait=false"]);
    let ready = |p: &Value| {
        let conditions = p["status"]["conditions"].as_array().into_iter().flatten();
        conditions.into_iter().any(|c| c["type"] == "Ready" && c["status"] == "True")
    };
    s.until("pods/p", |p| p["metadata"]["deletionTimestamp"].is_string() && !ready(p));
    let ended = |p: &Value, name: &str| {
        let all = p["status"]["containerStatuses"].as_array().into_iter().flatten();
        all.into_iter().any(|c| c["name"] == name && c["state"]["terminated"].is_object())
    };
    let p = s.until("pods/p", |p| ended(p, "fast"));
    assert!(!ended(&p, "slow"), "it is still ending: {}", p["status"]);
    std::fs::write(dir.join("go"), "").unwrap();
    s.gone("pods/p");
}

/// Clauses: P13.post-start-exec P13.post-start-http P13.post-start-sleep P13.pre-stop-sleep P13.pre-stop-http
fn hooks_run_before_and_after(s: &Story) {
    let (volume, mount, dir) = outside(s);
    let script = "echo main >> /out/order; while :; do sleep 0.1; done";
    let hook = json!({"postStart": {"exec": {"command": ["sh", "-c", "until test -e /out/go; do sleep 0.1; done"]}}});
    s.shell_pod("p", script, json!({"volumes": [volume]}), json!({"lifecycle": hook, "volumeMounts": [mount]}));
    s.eventually("the container", || dir.join("order").exists().then_some(()));
    // Until its hook is through, the container is not said to run.
    let c = &s.get("pods/p")["status"]["containerStatuses"][0];
    assert!(c["state"]["running"].is_null(), "{c}");
    std::fs::write(dir.join("go"), "").unwrap();
    s.ready("p");

    // Over HTTP, to a server that is there for sure.
    let listens = json!({"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 1});
    s.pod("server", json!({}), vec![json!({"name": "c", "readinessProbe": listens})]);
    let server = s.ready("server")["status"]["podIP"].clone();
    let get = |path: &str| json!({"httpGet": {"host": server, "path": path, "port": 8080}});
    let hooks = json!({"postStart": get("/hostname"), "preStop": get("/exit?code=5")});
    s.shell_pod("http", POLITE, json!({"terminationGracePeriodSeconds": 30}), json!({"lifecycle": hooks}));
    s.ready("http");
    s.ok(&["delete", "pod", "http"]);
    s.container("server", |c| c["lastState"]["terminated"]["exitCode"] == 5);
    s.pod(
        "sleeper",
        json!({"terminationGracePeriodSeconds": 30}),
        vec![json!({
            "name": "c", "command": ["sh", "-c", POLITE],
            "lifecycle": {"postStart": {"sleep": {"seconds": 1}}, "preStop": {"sleep": {"seconds": 2}}},
        })],
    );
    s.ready("sleeper");
    let started = tokio::time::Instant::now();
    s.ok(&["delete", "pod", "sleeper"]);
    let took = started.elapsed().as_secs_f64();
    assert!((2.0..20.0).contains(&took), "the hook is waited for: {took}");
}

/// Clauses: P13.failed-post-start
fn a_failed_start_hook_ends_the_container(s: &Story) {
    let hook = json!({"postStart": {"exec": {"command": ["sh", "-c", "exit 9"]}}});
    s.shell_pod("p", POLITE, json!({"restartPolicy": "Never"}), json!({"lifecycle": hook}));
    s.event("p", "FailedPostStartHook");
    let c = s.container("p", |c| !c["state"]["terminated"].is_null());
    assert_eq!(c["state"]["terminated"]["reason"], "Completed", "it ended when it was told to: {c}");
}

/// Clauses: P03.template
fn templates_do_not_touch_pods(s: &Story) {
    let template = json!({"metadata": {"labels": {"app": "r"}}, "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "c", "image": crate::story::IMAGE}]}});
    let rs = json!({"metadata": {"name": "r"}, "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "r"}}, "template": template}});
    s.create("replicasets", rs);
    s.until("replicasets/r", |r| r["status"]["readyReplicas"] == 1);
    let before = s.items("pods")[0].clone();
    s.patch("replicasets/r", json!({"spec": {"template": {"metadata": {"annotations": {"new": "yes"}}}}}));
    s.ok(&["scale", "rs", "r", "--replicas=2"]);
    s.until("replicasets/r", |r| r["status"]["readyReplicas"] == 2);
    for p in s.items("pods") {
        let old = p["metadata"]["uid"] == before["metadata"]["uid"];
        assert_eq!(p["metadata"]["annotations"]["new"].is_null(), old);
    }
}
