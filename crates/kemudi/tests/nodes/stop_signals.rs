//! Stop signals of containers: a feature that is off by default, enabled for the API and for the node.

use crate::machine::Machine;
use serde_json::{Value, json};
use std::fs;

fn pod(m: &Machine, name: &str, signal: Option<&str>) {
    let tools = m.directory.path().join("tools");
    let note = |what: &str| format!("echo {name} {what} >/tools/{name}; exit 0");
    let script = format!(
        "trap '{}' TERM; trap '{}' USR1; while :; do /tools/busybox sleep 0.05; done",
        note("term"),
        note("usr1")
    );
    let mut container = json!({"name": "c", "image": "kemudi.local/demo:latest",
        "command": ["/tools/busybox", "sh", "-c", script], "volumeMounts": [{"name": "tools", "mountPath": "/tools"}]});
    if let Some(signal) = signal {
        container["lifecycle"] = json!({"stopSignal": signal});
    }
    let spec = json!({"os": {"name": "linux"}, "terminationGracePeriodSeconds": 30, "containers": [container],
        "volumes": [{"name": "tools", "hostPath": {"path": tools}}]});
    m.apply(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}).to_string());
}

fn shown(m: &Machine, name: &str) -> Value {
    m.eventually(&format!("{name} runs"), || {
        let pod = m.json(&["pod", name]);
        (pod["status"]["phase"] == "Running").then(|| pod["status"]["containerStatuses"][0]["stopSignal"].clone())
    })
}

/// Clauses: P13.stop-signal
#[test]
fn containers_end_by_their_own_signal() {
    let mut m = Machine::new("signals");
    let tools = m.directory.path().join("tools");
    fs::create_dir(&tools).unwrap();
    fs::copy("/bin/busybox", tools.join("busybox")).unwrap();
    let up = ["up", "--node-name", "n", "--feature-gates", "ContainerStopSignals=true"];
    m.kubelet += "\nfeatureGates: {ContainerStopSignals: true}";
    let server = m.start(&up);
    m.ready(&["n"]);
    pod(&m, "own", Some("SIGUSR1"));
    pod(&m, "usual", None);
    assert_eq!((shown(&m, "own"), shown(&m, "usual")), (json!("SIGUSR1"), json!("SIGTERM")));
    m.ok(&["delete", "pod", "own", "usual"]);
    let noted = |name: &str| fs::read_to_string(tools.join(name)).unwrap();
    assert_eq!((noted("own").as_str(), noted("usual").as_str()), ("own usr1\n", "usual term\n"));
    // A pod that has a signal keeps it when the API drops such fields; a node without the feature does not use it.
    pod(&m, "kept", Some("SIGUSR1"));
    shown(&m, "kept");
    m.kill(server);
    m.kubelet = m.kubelet.replace("true", "false");
    m.start(&up[..3]);
    m.ready(&["n"]);
    pod(&m, "dropped", Some("SIGUSR1"));
    assert_eq!(shown(&m, "dropped"), Value::Null);
    assert!(m.json(&["pod", "dropped"])["spec"]["containers"][0].get("lifecycle").is_none());
    assert_eq!(m.json(&["pod", "kept"])["spec"]["containers"][0]["lifecycle"]["stopSignal"], "SIGUSR1");
    m.ok(&["delete", "pod", "kept", "dropped"]);
    assert_eq!((noted("kept").as_str(), noted("dropped").as_str()), ("kept usr1\n", "dropped term\n"));
    m.purge();
}
