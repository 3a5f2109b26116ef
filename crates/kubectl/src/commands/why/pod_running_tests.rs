use super::*;
use serde_json::json;

fn check(pod: Value, expect: &str) {
    let now = "2026-11-21T12:00:00Z".parse().unwrap();
    let found = containers(&pod, now);
    let text = found.map(|(state, findings)| {
        let e = super::super::finding::Explanation::new(state, format!("{state:?}")).because(findings);
        e.text("pod/p", now)
    });
    assert_eq!(text.unwrap_or_default(), expect, "{pod}");
}

fn pod(containers: Value, statuses: Value) -> Value {
    json!({"metadata": {"name": "p", "namespace": "d"}, "spec": {"containers": containers},
        "status": {"containerStatuses": statuses}})
}

/// A message about the image of a volume does not blame that of the container.
#[test]
fn names_the_volume_whose_image_is_missing() {
    let spec = json!([{"name": "app", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]);
    let waiting = |reason: &str, message: &str| json!([{"name": "app", "state": {"waiting": {"reason": reason, "message": message}}}]);
    let with_volume = |statuses: Value| {
        let mut pod = pod(spec.clone(), statuses);
        pod["spec"]["volumes"] = json!([{"name": "v", "image": {"reference": "r/x:1"}}]);
        pod
    };
    check(
        with_volume(waiting("ImagePullBackOff", "Back-off pulling image \"r/x:1\": no such host")),
        "pod/p Waiting
  container app: the image r/x:1 of its volume v cannot be used (ImagePullBackOff): Back-off pulling image \"r/x:1\": no such host
",
    );
    check(
        with_volume(waiting("ErrImagePull", "failed to pull image \"i\": no such host")),
        "pod/p Waiting
  container app: the image i cannot be used (ErrImagePull): failed to pull image \"i\": no such host
",
    );
}

/// Clauses: G01.restarting
#[test]
fn explains_restarts() {
    let app = json!([{"name": "app", "image": "i", "resources": {"limits": {"memory": "64Mi"}}}]);
    let crashed = |terminated: Value| {
        json!([{"name": "app", "ready": false, "restartCount": 4, "lastState": {"terminated": terminated},
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 1m20s restarting failed container=app pod=p_d(u)"}}}])
    };
    check(
        pod(
            app.clone(),
            crashed(json!({"exitCode": 3, "reason": "Error", "message": "no such table\n",
            "startedAt": "2026-11-21T11:59:28Z", "finishedAt": "2026-11-21T11:59:30Z"})),
        ),
        "pod/p Restarting
  container app has restarted 4 times; the last run ended 30s ago, after 2s, with exit code 3
    its last message: no such table
    it is started again in 50s (back-off 80s)
    => kubectl logs -n d p -c app --previous
",
    );
    check(
        pod(app.clone(), crashed(json!({"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-11-21T11:58:00Z"}))),
        "pod/p Restarting
  container app has restarted 4 times; the last run ended 2m ago, killed because it ran out of memory (OOMKilled, exit code 137, its memory limit is 64Mi)
    it is started again now (back-off 80s)
    => kubectl logs -n d p -c app --previous
",
    );
    check(
        pod(
            app.clone(),
            json!([{"name": "app", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 139, "finishedAt": "2026-11-21T11:59:59Z"}}}]),
        ),
        "pod/p Restarting
  container app has ended; the last run ended 1s ago, by the signal SIGSEGV (exit code 139)
    => kubectl logs -n d p -c app
",
    );
}

#[test]
fn explains_containers_that_have_not_started() {
    let two = json!([{"name": "a", "image": "registry.example/a:1"}, {"name": "b", "image": "b"}]);
    let waiting = |reason: &str, message: &str| json!({"waiting": {"reason": reason, "message": message}});
    check(
        pod(
            two.clone(),
            json!([{"name": "a", "state": waiting("ImagePullBackOff", "not found")}, {"name": "b", "state": waiting("ContainerCreating", "")}]),
        ),
        "pod/p Waiting\n  container a: the image registry.example/a:1 cannot be used (ImagePullBackOff): not found\n",
    );
    check(
        pod(
            two.clone(),
            json!([{"name": "a", "state": waiting("CreateContainerConfigError", "configmap \"x\" not found")}]),
        ),
        "pod/p Waiting\n  container a cannot be started (CreateContainerConfigError): configmap \"x\" not found\n",
    );
    check(
        pod(two, Value::Null),
        "pod/p Waiting\n  container a has not been created yet\n  container b has not been created yet\n",
    );
    let with_init = json!({"metadata": {"name": "p", "namespace": "d"}, "spec": {"initContainers": [{"name": "one"}, {"name": "two"}],
        "containers": [{"name": "app"}]},
        "status": {"initContainerStatuses": [{"name": "one", "state": {"terminated": {"exitCode": 0}}},
            {"name": "two", "state": {"running": {"startedAt": "2026-11-21T11:57:00Z"}}}]}});
    check(
        with_init,
        "pod/p Waiting\n  init container two has run for 3m and has not ended; the other containers wait for it\n    => kubectl logs -n d p -c two\n",
    );
}

/// Clauses: G01.not-ready
#[test]
fn explains_containers_that_are_not_ready() {
    let running = json!([{"name": "a", "ready": false, "started": true, "state": {"running": {"startedAt": "2026-11-21T11:59:00Z"}}}]);
    let probe = json!({"httpGet": {"path": "/ready", "port": 8080}, "periodSeconds": 5, "timeoutSeconds": 1, "failureThreshold": 3});
    check(
        pod(json!([{"name": "a", "readinessProbe": probe}]), running.clone()),
        "pod/p NotReady\n  container a has run for 60s, and its readiness probe does not succeed: GET http://:8080/ready, every 5s, timeout 1s, 3 failures allowed\n",
    );
    let exec = json!({"exec": {"command": ["cat", "/ok"]}});
    let starting = json!([{"name": "a", "ready": false, "started": false, "state": {"running": {"startedAt": "2026-11-21T11:59:00Z"}}}]);
    check(
        pod(json!([{"name": "a", "startupProbe": exec}]), starting),
        "pod/p NotReady\n  container a has run for 60s, and its startup probe has not succeeded: run \"cat /ok\", every 1s, timeout 1s, 1 failure allowed\n",
    );
    check(pod(json!([{"name": "a"}]), json!([{"name": "a", "ready": true, "state": {"running": {}}}])), "");
    let gated = json!({"spec": {"readinessGates": [{"conditionType": "lb"}, {"conditionType": "x"}]},
        "status": {"conditions": [{"type": "lb", "status": "False", "message": "no target"}]}});
    let messages: Vec<String> = readiness_gates(&gated).into_iter().map(|f| f.message).collect();
    let expect = [
        "the condition lb of its readiness gate is False: no target",
        "its readiness gate waits for the condition x, which is not set",
    ];
    assert_eq!(messages, expect);
}

#[test]
fn survives_strange_objects() {
    for strange in [
        json!({}),
        json!({"spec": 1, "status": []}),
        json!({"spec": {"containers": [1, {}]}, "status": {"containerStatuses": {"a": 1}}}),
    ] {
        let _ = containers(&strange, Timestamp::UNIX_EPOCH);
        assert!(failures(&strange).is_empty() && past_restarts(&strange, Timestamp::UNIX_EPOCH).is_empty());
    }
}

/// A container that never started has no times: the start of 1970 is no age.
#[test]
fn shows_no_age_of_a_container_that_did_not_start() {
    let app = json!([{"name": "app", "image": "i"}]);
    let end = json!({"exitCode": 128, "reason": "StartError", "message": "no such file: /run",
        "startedAt": "1970-01-01T00:00:00Z", "finishedAt": "1970-01-01T00:00:00Z"});
    let status = json!([{"name": "app", "ready": false, "restartCount": 2, "lastState": {"terminated": end},
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 20s restarting"}}}]);
    let expect = "pod/p Restarting
  container app has restarted 2 times; the last run ended, because it could not be started (StartError, exit code 128)
    its last message: no such file: /run
    => kubectl logs -n d p -c app --previous
";
    check(pod(app, status), expect);
}
