//! Restarts of the server do not affect containers. These tests have the cluster to themselves.

use crate::runner::Case;
use crate::story::{Story, http_get};
use serde_json::{Value, json};

pub const ALONE: &[Case] = &[("restart::containers_go_on", containers_go_on)];

fn id(p: &Value) -> Value {
    p["status"]["containerStatuses"][0]["containerID"].clone()
}

/// Clauses: P04.resumed P06.adopted K01.without-server P18.logs-kept A02.durable
fn containers_go_on(s: &Story) {
    let dir = s.cluster.directory.join(format!("{}-out", s.ns));
    std::fs::create_dir_all(&dir).unwrap();
    let out = || (json!({"name": "out", "hostPath": {"path": dir}}), json!([{"name": "out", "mountPath": "/out"}]));
    s.shell_pod(
        "talks",
        "trap 'exit 0' TERM; i=0; while :; do i=$((i+1)); echo line $i; sleep 0.1; done",
        json!({}),
        json!({}),
    );
    // Told to end before the restart, and ends after it.
    let (volume, mounts) = out();
    let slow = "trap 'touch /out/told; until test -e /out/go; do sleep 0.1; done; echo properly > /out/ended; exit 0' TERM; while :; do sleep 0.1; done";
    s.shell_pod(
        "ends",
        slow,
        json!({"terminationGracePeriodSeconds": 60, "volumes": [volume]}),
        json!({"volumeMounts": mounts}),
    );
    let listens = json!({"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 1});
    s.pod("web", json!({}), vec![json!({"name": "c", "readinessProbe": listens})]);
    let ports = json!([{"port": 80, "targetPort": 8080}]);
    let service = s
        .create("services", json!({"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": ports}}));
    let address = service["spec"]["clusterIP"].as_str().unwrap().to_owned();
    let (talks, web) = (s.ready("talks"), s.ready("web"));
    s.ready("ends");
    s.eventually("an answer", || http_get(&address, "/hostname"));
    s.ok(&["delete", "pod", "ends", "--wait=false"]);
    // containerd sends no second signal if the first was interrupted.
    s.eventually("the container to be told", || dir.join("told").exists().then_some(()));

    s.cluster.stop();
    assert!(!s.k(&["get", "pods"]).status.success(), "nobody is there to ask");
    for _ in 0..5 {
        assert_eq!(http_get(&address, "/hostname").as_deref(), Some("web\n"), "the service works without the server");
    }
    s.cluster.start_again();

    for (name, before) in [("talks", &talks), ("web", &web)] {
        let now = s.ready(name);
        assert_eq!((id(&now), &now["status"]["podIP"]), (id(before), &before["status"]["podIP"]), "{name}");
        assert_eq!(now["status"]["containerStatuses"][0]["restartCount"], 0);
    }
    assert!(s.get("pods/ends")["metadata"]["deletionTimestamp"].is_string());
    std::fs::write(dir.join("go"), "").unwrap();
    s.gone("pods/ends");
    assert_eq!(std::fs::read_to_string(dir.join("ended")).unwrap(), "properly\n", "it had its time");
    // Nothing is missing in the log, and it goes on.
    let log = s.ok(&["logs", "talks"]);
    let count = log.lines().count();
    let expected: Vec<String> = (1..=count).map(|i| format!("line {i}")).collect();
    assert_eq!(log.lines().collect::<Vec<_>>(), expected);
    s.logged("talks", &format!("line {}\n", count + 5));
    assert_eq!(s.sh("talks", "echo still reachable"), "still reachable\n");
    // And new ones come.
    s.shell_pod("new", "trap 'exit 0' TERM; while :; do sleep 0.1; done", json!({}), json!({}));
    s.ready("new");
}
