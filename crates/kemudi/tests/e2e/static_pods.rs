//! Static pods from a directory of manifests, and their mirror pods.

use crate::cluster::MANIFESTS;
use crate::kubelet::Agent;
use crate::runner::Case;
use crate::story::Story;
use serde_json::{Value, json};
use std::path::PathBuf;

pub const TESTS: &[Case] = &[
    ("static_pods::a_manifest_is_a_pod_with_a_mirror", with_mirror),
    ("static_pods::changed_manifests_replace_pods", changes),
    ("static_pods::a_deleted_mirror_comes_again", deleted_mirror),
    ("static_pods::unusable_manifests_are_refused", unusable),
    ("static_pods::foreign_mirrors_are_removed", foreign_mirrors),
];

pub const ALONE: &[Case] = &[("static_pods::a_new_agent_adopts_them", adopted)];

const FOREVER: &str = "trap 'exit 0' TERM; echo ready; while :; do sleep 0.1; done";

fn file(s: &Story, name: &str) -> PathBuf {
    s.cluster.directory.join(MANIFESTS).join(format!("{}-{name}.yaml", s.ns))
}

fn manifest(s: &Story, name: &str, script: &str, spec: Value) -> Value {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": s.ns},
        "spec": {"terminationGracePeriodSeconds": 5, "volumes": [s.tools()], "containers": [{
            "name": "c", "image": "kemudi.local/demo", "command": ["sh", "-c", script],
            "volumeMounts": [{"name": "tools", "mountPath": "/bin"}]}]}});
    for (key, value) in spec.as_object().unwrap() {
        pod["spec"][key] = value.clone();
    }
    pod
}

fn write(s: &Story, name: &str, pod: &Value) {
    // Renamed, so that no half of it is read.
    let temporary = s.dir.join("manifest");
    std::fs::write(&temporary, pod.to_string()).unwrap();
    std::fs::rename(temporary, file(s, name)).unwrap();
}

fn remove(s: &Story, name: &str) {
    std::fs::remove_file(file(s, name)).unwrap();
    s.gone(&format!("pods/{name}-e2e"));
}

fn id(pod: &Value) -> String {
    pod["status"]["containerStatuses"][0]["containerID"].as_str().unwrap().to_owned()
}

/// Clauses: P19.mirror P19.pods-api
fn with_mirror(s: &Story) {
    write(s, "web", &manifest(s, "web", FOREVER, json!({})));
    let pod = s.ready("web-e2e");
    let annotations = &pod["metadata"]["annotations"];
    let hash = annotations["kubernetes.io/config.hash"].as_str().unwrap();
    assert_eq!(annotations["kubernetes.io/config.mirror"], hash);
    assert_eq!(annotations["kubernetes.io/config.source"], "file");
    assert!(annotations["kubernetes.io/config.seen"].is_string());
    assert_ne!(pod["metadata"]["uid"], hash);
    let node = s.get_at("/api/v1/nodes/e2e");
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "e2e", "uid": node["metadata"]["uid"],
        "controller": true}]);
    assert_eq!(pod["metadata"]["ownerReferences"], owner);
    assert_eq!(pod["spec"]["nodeName"], "e2e");
    let tolerations = pod["spec"]["tolerations"].as_array().unwrap();
    assert!(tolerations.contains(&json!({"operator": "Exists", "effect": "NoExecute"})), "{tolerations:?}");
    assert_eq!(pod["status"]["phase"], "Running");
    assert!(pod["status"]["podIP"].is_string());
    s.logged("web-e2e", "ready");
    assert_eq!(s.sh("web-e2e", "hostname"), "web-e2e\n");
    assert_eq!(s.event("web-e2e", "Started"), "Container started");
    assert!(s.ok(&["describe", "pod", "web-e2e"]).contains("Container started"), "its events are shown");

    let listed = Agent::new(s, None).json("/pods");
    let all = listed["items"].as_array().unwrap();
    let is_own = |p: &&Value| p["metadata"]["name"] == "web-e2e" && p["metadata"]["namespace"] == s.ns;
    let own: Vec<&Value> = all.iter().filter(is_own).collect();
    assert_eq!(own.len(), 1);
    assert_eq!((&own[0]["metadata"]["uid"], &own[0]["status"]["phase"]), (&json!(hash), &json!("Running")));
    remove(s, "web");
}

/// Clauses: P19.changed
fn changes(s: &Story) {
    let out = s.cluster.directory.join(format!("{}-out", s.ns));
    std::fs::create_dir_all(&out).unwrap();
    let mut pod = manifest(
        s,
        "web",
        "trap 'sleep 1; echo ended >> /out/log; exit 0' TERM; echo first >> /out/log; while :; do sleep 0.1; done",
        json!({}),
    );
    pod["spec"]["volumes"].as_array_mut().unwrap().push(json!({"name": "out", "hostPath": {"path": out}}));
    let mounts = &mut pod["spec"]["containers"][0]["volumeMounts"];
    mounts.as_array_mut().unwrap().push(json!({"name": "out", "mountPath": "/out"}));
    write(s, "web", &pod);
    let first = s.ready("web-e2e");
    pod["spec"]["containers"][0]["command"][2] =
        json!("trap 'exit 0' TERM; echo second >> /out/log; while :; do sleep 0.1; done");
    write(s, "web", &pod);
    let uid = &first["metadata"]["uid"];
    s.until("pods/web-e2e", |p| p["metadata"]["uid"].is_string() && p["metadata"]["uid"] != *uid);
    let second = s.ready("web-e2e");
    assert_ne!(id(&first), id(&second));
    // The old pod had its grace period, and the new one started afterwards.
    assert_eq!(std::fs::read_to_string(out.join("log")).unwrap(), "first\nended\nsecond\n");
    remove(s, "web");
}

/// Clauses: P19.deleted-mirror
fn deleted_mirror(s: &Story) {
    write(s, "web", &manifest(s, "web", FOREVER, json!({})));
    let first = s.ready("web-e2e");
    s.ok(&["delete", "pod", "web-e2e"]);
    let uid = &first["metadata"]["uid"];
    s.until("pods/web-e2e", |p| p["metadata"]["uid"].is_string() && p["metadata"]["uid"] != *uid);
    let second = s.ready("web-e2e");
    assert_eq!(id(&first), id(&second), "the container is the same");
    assert_eq!(second["status"]["containerStatuses"][0]["restartCount"], 0);
    remove(s, "web");
}

/// Clauses: P19.refused
fn unusable(s: &Story) {
    write(s, "secret", &manifest(s, "secret", FOREVER, json!({"imagePullSecrets": [{"name": "s"}]})));
    write(s, "account", &manifest(s, "account", FOREVER, json!({"serviceAccountName": "default"})));
    write(s, "invalid", &manifest(s, "Invalid", FOREVER, json!({"restartPolicy": "sometimes"})));
    std::fs::write(file(s, "text"), "no manifest").unwrap();
    write(s, "good", &manifest(s, "good", FOREVER, json!({})));
    s.ready("good-e2e");
    for (name, message) in [
        ("secret", "static pods may not reference secrets"),
        ("account", "static pods may not reference serviceaccounts"),
        ("invalid", "spec.restartPolicy: Unsupported value"),
        ("text", "couldn't parse as pod("),
    ] {
        let path = file(s, name).display().to_string();
        let log = s.cluster.log();
        let line = log.lines().find(|l| l.contains(&path)).unwrap_or_else(|| panic!("{path} in {log}"));
        assert!(line.contains(message), "{line}");
        std::fs::remove_file(file(s, name)).unwrap();
    }
    assert_eq!(crate::story::names(&s.items("pods")), ["good-e2e"]);
    remove(s, "good");
}

/// Clauses: P19.foreign-mirror
fn foreign_mirrors(s: &Story) {
    let annotations = json!({"kubernetes.io/config.mirror": "0123456789abcdef"});
    s.create(
        "pods",
        json!({"metadata": {"name": "false-mirror", "annotations": annotations},
        "spec": {"nodeName": "e2e", "containers": [{"name": "c", "image": "kemudi.local/demo"}]}}),
    );
    s.gone("pods/false-mirror");
}

/// Clauses: P19.adopted
fn adopted(s: &Story) {
    write(s, "stays", &manifest(s, "stays", FOREVER, json!({})));
    write(s, "goes", &manifest(s, "goes", FOREVER, json!({})));
    let before = s.ready("stays-e2e");
    s.ready("goes-e2e");
    s.cluster.kill();
    std::fs::remove_file(file(s, "goes")).unwrap();
    s.cluster.start_again();
    s.gone("pods/goes-e2e");
    let after = s.ready("stays-e2e");
    assert_eq!(id(&after), id(&before));
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"], "the mirror is the same");
    assert_eq!(after["status"]["containerStatuses"][0]["restartCount"], 0);
    remove(s, "stays");
}
