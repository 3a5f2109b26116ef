//! `kubectl debug --target`: containers that join the processes of another container.

use crate::runner::Case;
use crate::story::{IMAGE, Story};
use serde_json::{Value, json};

pub const TESTS: &[Case] = &[
    ("debugging::a_debugger_sees_its_target", a_debugger_sees_its_target),
    ("debugging::targets_that_do_not_run_are_waited_for", targets_that_do_not_run_are_waited_for),
];

const TARGET: &str = "trap 'exit 3' TERM; echo mark > /tmp/mark; echo ready; while :; do sleep 0.1; done";

/// Adds a container to a pod with the real command.
fn debug(s: &Story, pod: &str, target: &str, name: &str, script: &str) {
    s.file("custom.json", &json!({"volumeMounts": [{"name": "tools", "mountPath": "/bin"}]}).to_string());
    let (image, target) = (format!("--image={IMAGE}"), format!("--target={target}"));
    let line = ["debug", pod, &image, &target, "--custom=custom.json", "--profile=general", "-c", name];
    s.ok(&[&line[..], &["--", "sh", "-c", script]].concat());
}

/// The status of an ephemeral container, once it is as it should be.
fn ephemeral(s: &Story, pod: &str, name: &str, condition: impl Fn(&Value) -> bool) -> Value {
    let find = |p: &Value| {
        let all = p["status"]["ephemeralContainerStatuses"].as_array();
        all.and_then(|all| all.iter().find(|c| c["name"] == name).cloned()).unwrap_or_default()
    };
    find(&s.until(&format!("pods/{pod}"), |p| condition(&find(p))))
}

/// Clauses: P17.debug-target
fn a_debugger_sees_its_target(s: &Story) {
    let other = json!({"name": "other", "command": ["sh", "-c", "while :; do sleep 77; done"]});
    s.pod("p", json!({}), vec![json!({"name": "c", "command": ["sh", "-c", TARGET]}), other]);
    s.ready("p");
    s.logged("p", "ready");
    let look = "ps; cat /proc/1/root/tmp/mark; ls /tmp/mark; echo looked; while :; do sleep 0.1; done";
    debug(s, "p", "c", "look", look);
    let output = s.eventually("the debugger looks", || {
        let o = s.k(&["logs", "p", "-c", "look"]);
        let text = String::from_utf8_lossy(&o.stdout).into_owned();
        text.contains("looked").then_some(text)
    });
    assert!(output.contains("echo mark > /tmp/mark") && output.contains("\nmark\n"), "{output}");
    assert!(!output.contains("sleep 77") && output.contains("/tmp/mark: No such file"), "{output}");
    // The target sees the debugger, as in every shared namespace, and ends with it.
    let processes = s.ok(&["exec", "p", "-c", "c", "--", "sh", "-c", "ps"]);
    assert!(processes.contains("echo looked"), "{processes}");
    s.ok(&["exec", "p", "-c", "look", "--", "sh", "-c", "kill -TERM 1"]);
    let ended = ephemeral(s, "p", "look", |c| !c["state"]["terminated"].is_null());
    let state = &ended["state"]["terminated"];
    assert_eq!((&state["exitCode"], &state["reason"]), (&json!(137), &json!("Error")), "{ended}");
    let p = s.until("pods/p", |p| p["status"]["containerStatuses"][0]["restartCount"] == 1);
    let before = &p["status"]["containerStatuses"][0]["lastState"]["terminated"];
    assert_eq!(before["exitCode"], 3, "{p}");
    // It is not started again; another one joins the container that has been started since.
    s.until("pods/p", |p| !p["status"]["containerStatuses"][0]["state"]["running"].is_null());
    debug(s, "p", "c", "again", "ps");
    let ended = ephemeral(s, "p", "again", |c| !c["state"]["terminated"].is_null());
    assert_eq!(ended["state"]["terminated"]["exitCode"], 0, "{ended}");
    assert!(s.ok(&["logs", "p", "-c", "again"]).contains("echo mark > /tmp/mark"));
    assert_eq!(ephemeral(s, "p", "look", |_| true)["restartCount"], 0);
}

/// Clauses: P17.debug-target
fn targets_that_do_not_run_are_waited_for(s: &Story) {
    let done = json!({"name": "done", "command": ["sh", "-c", "exit 0"]});
    let stays = json!({"name": "stays", "command": ["sh", "-c", TARGET]});
    s.pod("p", json!({"restartPolicy": "Never"}), vec![stays, done]);
    s.until("pods/p", |p| {
        let all = p["status"]["containerStatuses"].as_array();
        all.is_some_and(|all| all.iter().any(|c| !c["state"]["terminated"].is_null()))
    });
    debug(s, "p", "done", "look", "true");
    let waits = ephemeral(s, "p", "look", |c| c["state"]["waiting"]["reason"] == "CreateContainerError");
    let message = waits["state"]["waiting"]["message"].as_str().unwrap();
    assert!(message.contains("invalid target container") && message.contains("is not running"), "{message}");
    assert!(s.event("p", "Failed").contains("is not running"));

    // A container that has never been created, while an init container runs. Ephemeral containers do not wait for those.
    let init = json!({"name": "init", "image": IMAGE, "command": ["sh", "-c", TARGET],
        "volumeMounts": [{"name": "tools", "mountPath": "/bin", "readOnly": true}]});
    let app = json!({"name": "app", "command": ["sh", "-c", TARGET]});
    s.pod("q", json!({"initContainers": [init]}), vec![app]);
    s.until("pods/q", |p| !p["status"]["initContainerStatuses"][0]["state"]["running"].is_null());
    debug(s, "q", "app", "early", "true");
    let waits = ephemeral(s, "q", "early", |c| c["state"]["waiting"]["reason"] == "CreateContainerConfigError");
    assert_eq!(waits["state"]["waiting"]["message"], "unable to find target container app");
    assert_eq!(s.event("q", "Failed"), "Error: unable to find target container app");
    debug(s, "q", "init", "look", "ps | grep -c 'echo [r]eady'");
    let ended = ephemeral(s, "q", "look", |c| !c["state"]["terminated"].is_null());
    assert_eq!(ended["state"]["terminated"]["exitCode"], 0, "{ended}");
}
