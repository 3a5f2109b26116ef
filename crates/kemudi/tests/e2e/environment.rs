//! Environment variables: where they come from, and what refers to them.

use crate::runner::Case;
use crate::story::Story;
use serde_json::{Value, json};

pub const TESTS: &[Case] = &[
    ("environment::tells_a_container_about_its_pod", tells_a_container_about_its_pod),
    ("environment::takes_config_maps_and_secrets", takes_config_maps_and_secrets),
    ("environment::takes_names_that_shells_do_not", takes_names_that_shells_do_not),
    ("environment::expands_references", expands_references),
    ("environment::reads_files_of_init_containers", reads_files_of_init_containers),
    ("environment::names_services", names_services),
    ("environment::keeps_a_volume_current", keeps_a_volume_current),
];

const FOREVER: &str = "env; trap 'exit 0' TERM; while :; do sleep 0.1; done";

fn once() -> Value {
    json!({"restartPolicy": "Never"})
}

/// What the pod printed of its environment when it had ended: `NAME=value` lines.
fn printed(s: &Story, pod: &str) -> Vec<String> {
    s.phase(pod, "Succeeded");
    s.logs(pod).lines().map(str::to_owned).collect()
}

#[track_caller]
fn has(lines: &[String], line: &str) {
    assert!(lines.iter().any(|l| l == line), "{line} is not in {lines:#?}");
}

/// Init containers write variables for the containers after them.
fn reads_files_of_init_containers(s: &Story) {
    let volumes = json!([{"name": "config", "emptyDir": {"medium": "Memory"}}]);
    let mounts = json!([{"name": "config", "mountPath": "/data"}, {"name": "tools", "mountPath": "/bin"}]);
    let script = r"printf '%s\n' '# made by i' HOST=\'db.example.com\' PORT=\'5432\' > /data/db.env";
    let init =
        json!({"name": "i", "image": crate::story::IMAGE, "command": ["sh", "-c", script], "volumeMounts": mounts});
    let spec = json!({"restartPolicy": "Never", "initContainers": [init], "volumes": volumes});
    let file = |name: &str, key: &str, optional: bool| {
        let from = json!({"volumeName": "config", "path": "db.env", "key": key, "optional": optional});
        json!({"name": name, "valueFrom": {"fileKeyRef": from}})
    };
    let env = json!([file("DB_HOST", "HOST", false), file("DB_PORT", "PORT", true), file("NONE", "OTHER", true)]);
    s.shell_pod("p", "env", spec.clone(), json!({"env": env}));
    let lines = printed(s, "p");
    has(&lines, "DB_HOST=db.example.com");
    has(&lines, "DB_PORT=5432");
    assert!(!lines.iter().any(|l| l.starts_with("NONE=")), "{lines:#?}");

    s.shell_pod("q", "env", spec, json!({"env": [file("WANTED", "OTHER", false)]}));
    let message = s.event("q", "Failed");
    assert!(message.starts_with("Error: environment variable key \"OTHER\" not found in file \"/"), "{message}");
}

/// Clauses: P20.field P20.resource P01.ip
fn tells_a_container_about_its_pod(s: &Story) {
    let field = |n: &str, p: &str| json!({"name": n, "valueFrom": {"fieldRef": {"fieldPath": p}}});
    let resource = |n: &str, r: &str, d: &str| json!({"name": n, "valueFrom": {"resourceFieldRef": {"resource": r, "divisor": d}}});
    let env = json!([
        field("NAME", "metadata.name"),
        field("NS", "metadata.namespace"),
        field("UID", "metadata.uid"),
        field("LABEL", "metadata.labels['app']"),
        field("NODE", "spec.nodeName"),
        field("ACCOUNT", "spec.serviceAccountName"),
        field("IP", "status.podIP"),
        field("HOST", "status.hostIP"),
        resource("CPU", "limits.cpu", "1m"),
        resource("CPUS", "limits.cpu", "0"),
        resource("MEMORY", "requests.memory", "1Mi"),
    ]);
    let resources = json!({"requests": {"memory": "16Mi"}, "limits": {"cpu": "250m"}});
    s.shell_pod("p", "env; hostname", once(), json!({"env": env, "resources": resources}));
    let lines = printed(s, "p");
    let p = s.get("pods/p");
    let text = |v: &Value| v.as_str().unwrap().to_owned();
    let (uid, ip, host) = (text(&p["metadata"]["uid"]), text(&p["status"]["podIP"]), text(&p["status"]["hostIP"]));
    for line in [
        "NAME=p",
        &format!("NS={}", s.ns),
        &format!("UID={uid}"),
        "LABEL=p",
        "NODE=e2e",
        "ACCOUNT=default",
        &format!("IP={ip}"),
        &format!("HOST={host}"),
        "CPU=250",
        "CPUS=1",
        "MEMORY=16",
        "HOSTNAME=p",
    ] {
        has(&lines, line);
    }
    assert_eq!(lines.last().map(String::as_str), Some("p"));
}

/// Clauses: K07.env K07.env-from K12.env K12.env-from K07.prefix K05.string-data
fn takes_config_maps_and_secrets(s: &Story) {
    s.create("configmaps", json!({"metadata": {"name": "cm"}, "data": {"SPECIAL_LEVEL": "very", "SHARED": "cm"}}));
    s.create(
        "secrets",
        json!({"metadata": {"name": "key"}, "data": {"USER": "YWRtaW4="}, "stringData": {"PASS": "s3cret"}}),
    );
    let env = json!([
        {"name": "LEVEL", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "SPECIAL_LEVEL"}}},
        {"name": "WHO", "valueFrom": {"secretKeyRef": {"name": "key", "key": "USER"}}},
        {"name": "NOTHING", "valueFrom": {"secretKeyRef": {"name": "key", "key": "none", "optional": true}}},
        {"name": "SHARED", "value": "own"},
    ]);
    let from = json!([
        {"configMapRef": {"name": "cm"}}, {"prefix": "S_", "secretRef": {"name": "key"}},
        {"configMapRef": {"name": "none", "optional": true}},
    ]);
    s.shell_pod("p", "env", once(), json!({"env": env, "envFrom": from}));
    let lines = printed(s, "p");
    for line in ["LEVEL=very", "WHO=admin", "SPECIAL_LEVEL=very", "S_USER=admin", "S_PASS=s3cret", "SHARED=own"] {
        has(&lines, line);
    }
    assert!(!lines.iter().any(|l| l.starts_with("NOTHING")), "{lines:?}");
}

/// v1.36 takes every name that a process can be given; older releases skipped these two with an event.
///
/// Clauses: K07.unusual-names
fn takes_names_that_shells_do_not(s: &Story) {
    s.create(
        "secrets",
        json!({"metadata": {"name": "key"}, "stringData": {"1badkey": "x", "2.also-bad": "y", "good_key": "z"}}),
    );
    // A shell drops what it cannot name, so the program is asked that was started.
    let c = json!({"name": "c", "command": ["cat", "/proc/self/environ"], "envFrom": [{"secretRef": {"name": "key"}}]});
    s.pod("p", once(), vec![c]);
    s.phase("p", "Succeeded");
    let lines: Vec<String> = s.logs("p").split('\0').map(str::to_owned).collect();
    for line in ["1badkey=x", "2.also-bad=y", "good_key=z"] {
        has(&lines, line);
    }
}

/// Clauses: P20.expansion
fn expands_references(s: &Story) {
    let env = json!([
        {"name": "A", "value": "a"}, {"name": "B", "value": "$(A)-$$(A)-$(NONE)"}, {"name": "LATE", "value": "$(LATER)"},
        {"name": "LATER", "value": "x"},
    ]);
    let c =
        json!({"name": "c", "command": ["echo"], "args": ["$(A)", "$(B)", "$$(A)", "$(NONE)", "$(LATE)"], "env": env});
    s.pod("p", once(), vec![c]);
    assert_eq!(printed(s, "p"), ["a a-$(A)-$(NONE) $(A) $(NONE) $(LATER)"]);
}

/// Clauses: P20.services K01.variables
fn names_services(s: &Story) {
    let ports = json!([{"name": "web", "port": 80}, {"name": "other", "port": 81, "protocol": "UDP"}]);
    s.create("services", json!({"metadata": {"name": "redis-master"}, "spec": {"ports": ports}}));
    let ip = s.get("services/redis-master")["spec"]["clusterIP"].as_str().unwrap().to_owned();
    s.shell_pod("p", "env", once(), json!({}));
    let lines = printed(s, "p");
    for line in [
        format!("REDIS_MASTER_SERVICE_HOST={ip}"),
        "REDIS_MASTER_SERVICE_PORT=80".into(),
        "REDIS_MASTER_SERVICE_PORT_WEB=80".into(),
        format!("REDIS_MASTER_PORT=tcp://{ip}:80"),
        format!("REDIS_MASTER_PORT_81_UDP=udp://{ip}:81"),
        "REDIS_MASTER_PORT_80_TCP_PROTO=tcp".into(),
    ] {
        has(&lines, &line);
    }
    assert!(lines.iter().any(|l| l.starts_with("KUBERNETES_SERVICE_HOST=")), "{lines:?}");
    s.shell_pod("without", "env", json!({"restartPolicy": "Never", "enableServiceLinks": false}), json!({}));
    let lines = printed(s, "without");
    assert!(!lines.iter().any(|l| l.starts_with("REDIS")), "{lines:?}");
    assert!(lines.iter().any(|l| l.starts_with("KUBERNETES_SERVICE_HOST=")), "{lines:?}");
}

/// Clauses: P20.volume P20.volume-updated
fn keeps_a_volume_current(s: &Story) {
    let items = json!([
        {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
        {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}},
        {"path": "memory", "resourceFieldRef": {"containerName": "c", "resource": "limits.memory", "divisor": "1Mi"}},
    ]);
    let volumes = json!([{"name": "info", "downwardAPI": {"items": items}}]);
    let container = json!({
        "volumeMounts": [{"name": "info", "mountPath": "/info"}], "resources": {"limits": {"memory": "64Mi"}},
    });
    s.shell_pod("p", FOREVER, json!({"volumes": volumes}), container);
    s.ready("p");
    assert_eq!(s.sh("p", "cat /info/labels; echo; cat /info/name; echo; cat /info/memory"), "app=\"p\"\np\n64");
    s.ok(&["label", "pod", "p", "tier=web"]);
    s.eventually("the new label", || (s.sh("p", "cat /info/labels") == "app=\"p\"\ntier=\"web\"").then_some(()));
}
