//! Writes followed by their reversal restore the previous state. Errors include their cause.

use crate::runner::Case;
use crate::story::{Story, refused};
use serde_json::{Value, json};

pub const TESTS: &[Case] = &[
    ("undoing::writes_can_be_undone", writes_can_be_undone),
    ("undoing::deleted_objects_can_be_recreated", deleted_objects_can_be_recreated),
    ("undoing::errors_include_their_cause", errors_include_their_cause),
];

const DEPLOYMENT: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: d}
spec:
  replicas: 0
  selector: {matchLabels: {app: d}}
  template: {metadata: {labels: {app: d}}, spec: {containers: [{name: c, image: 'none.invalid/none'}]}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: m, labels: {kept: 'yes'}}, data: {k: v}}
";

/// Returns the fields that a user wrote, without those of the server.
fn written(s: &Story, what: &str) -> Value {
    let mut o = s.get(what);
    assert!(o["metadata"]["name"].is_string(), "{what} is there: {o}");
    if let Some(m) = o["metadata"].as_object_mut() {
        m.retain(|k, _| matches!(k.as_str(), "labels" | "annotations" | "name"));
        if let Some(a) = m.get_mut("annotations").and_then(Value::as_object_mut) {
            a.retain(|k, _| !k.starts_with("deployment.kubernetes.io/"));
        }
        m.retain(|_, v| v.as_object().is_none_or(|m| !m.is_empty()));
    }
    json!([o["metadata"], o["spec"], o["data"]])
}

/// Waits until the controller has observed the write: only then is there a revision to roll back to.
fn seen(s: &Story, what: &str) {
    s.until(what, |o| {
        o["metadata"]["generation"].is_null() || o["status"]["observedGeneration"] == o["metadata"]["generation"]
    });
}

/// Clauses: A14.label A14.annotate A14.scale A14.set-image A14.set-env A14.set-resources
fn writes_can_be_undone(s: &Story) {
    s.file("all.yaml", DEPLOYMENT);
    s.ok(&["create", "-f", "all.yaml"]);
    s.ok(&["rollout", "status", "deploy/d"]);
    let (deployment, map) = ("deployments/d", "configmaps/m");
    for (object, doing, undoing) in [
        (map, "label cm m a=b", "label cm m a-"),
        (map, "label cm m kept=no --overwrite", "label cm m kept=yes --overwrite"),
        (map, "annotate cm m a=b", "annotate cm m a-"),
        (map, r#"patch cm m -p {"data":{"x":"y"}}"#, r#"patch cm m -p {"data":{"x":null}}"#),
        (map, r#"patch cm m --type=merge -p {"data":null}"#, r#"patch cm m -p {"data":{"k":"v"}}"#),
        (deployment, "scale deploy d --replicas=2", "scale deploy d --replicas=0 --current-replicas=2"),
        (deployment, "rollout pause deploy/d", "rollout resume deploy/d"),
        (deployment, "set env deploy/d A=b", "set env deploy/d A-"),
        (deployment, "set image deploy/d c=none.invalid/other", "rollout undo deploy/d"),
        (deployment, "set resources deploy/d --limits=cpu=1", "rollout undo deploy/d"),
        (deployment, "set serviceaccount deploy/d other", "rollout undo deploy/d"),
    ] {
        let before = written(s, object);
        let words = |line: &'static str| -> Vec<&str> { line.split(' ').collect() };
        s.ok(&words(doing));
        assert_ne!(written(s, object), before, "{doing} changes something");
        seen(s, object);
        s.ok(&words(undoing));
        seen(s, object);
        assert_eq!(written(s, object), before, "{doing}, {undoing}");
    }
}

/// Clauses: A14.replace-force A14.create-file
fn deleted_objects_can_be_recreated(s: &Story) {
    s.file("all.yaml", DEPLOYMENT);
    s.ok(&["create", "-f", "all.yaml"]);
    let (deployment, map) = ("deployments/d", "configmaps/m");
    let before = [written(s, deployment), written(s, map)];
    // A server accepts its own output, by every command.
    for again in [&["create", "-f", "-"][..], &["apply", "-f", "-"], &["replace", "--force", "-f", "-"]] {
        let kept = s.ok(&["get", "-f", "all.yaml", "-o", "json"]);
        let old = s.get(map)["metadata"]["uid"].clone();
        if again[0] != "replace" {
            s.ok(&["delete", "-f", "all.yaml"]);
        }
        let done = s.with_input(again, &kept);
        assert!(done.status.success(), "{again:?}: {}", String::from_utf8_lossy(&done.stderr));
        assert_ne!(s.get(map)["metadata"]["uid"], old, "{again:?} makes another object");
        s.ok(&["annotate", "-f", "all.yaml", "kubectl.kubernetes.io/last-applied-configuration-"]);
        assert_eq!([written(s, deployment), written(s, map)], before, "{again:?}");
    }
    // An object is not deleted if it could not be recreated.
    s.file("bad.yaml", &DEPLOYMENT.replace("name: c, image", "name: C_, image"));
    let stderr = s.fails(&["replace", "--force", "-f", "bad.yaml"]);
    assert!(stderr.contains("spec.template.spec.containers[0].name: Invalid value"), "{stderr}");
    // Upstream's kubectl deletes first; ours does a dry run before.
    if s.tool == crate::story::Tool::Kemudi {
        assert_eq!([written(s, deployment), written(s, map)], before);
    }
}

/// Clauses: K11.exec-failures A14.create-file
fn errors_include_their_cause(s: &Story) {
    let plain = std::fs::read_to_string(&s.cluster.kubeconfig).unwrap();
    s.file("other", &plain.replacen("apiVersion: v1", "apiVersion: v-1", 1));
    let stderr = s.fails(&["--kubeconfig=other", "get", "ns"]);
    assert!(
        stderr.contains("error loading config file \"other\": no kind \"Config\" is registered for version \"v-1\""),
        "{stderr}"
    );
    let server = s.ok(&["config", "view", "--minify", "-o", "jsonpath={.clusters[0].cluster.server}"]);
    let plugin = |command: &str| {
        format!(
            "{{apiVersion: v1, kind: Config, current-context: c, contexts: [{{name: c, context: {{cluster: c, user: u}}}}], \
            clusters: [{{name: c, cluster: {{server: '{server}', insecure-skip-tls-verify: true}}}}], \
            users: [{{name: u, user: {{exec: {{apiVersion: client.authentication.k8s.io/v1, interactiveMode: IfAvailable, {command}}}}}}}]}}"
        )
    };
    for (command, expected) in [
        ("command: nosuchplugin, installHint: get it", "getting credentials: exec: executable nosuchplugin not found"),
        ("command: sh, args: [-c, exit 3]", "getting credentials: exec: executable sh failed with exit code 3"),
        (
            "command: echo, args: [x]",
            "getting credentials: decoding stdout: couldn't get version/kind; json parse error: ",
        ),
    ] {
        s.file("plugged", &plugin(command));
        let stderr = s.fails(&["--kubeconfig=plugged", "get", "ns"]);
        assert!(stderr.contains(&format!("Unable to connect to the server: {expected}")), "{command}: {stderr}");
    }
    let stderr = s.fails(&["--tls-server-name=foo", "get", "ns"]);
    assert!(stderr.contains("tls: failed to verify certificate: x509: certificate is valid for "), "{stderr}");
    assert!(stderr.trim_end().ends_with(", not foo"), "{stderr}");
    // Managed fields belong to the server.
    s.ok(&["create", "cm", "m", "--from-literal=a=b"]);
    s.file("managed.json", &s.ok(&["get", "cm", "m", "-o", "json", "--show-managed-fields"]));
    let stderr = s.fails(&["apply", "--server-side", "-f", "managed.json"]);
    assert!(stderr.contains("metadata.managedFields must be nil"), "{stderr}");
    s.ok(&["create", "secret", "generic", "x", "--from-literal=a=b"]);
    let again = ["create", "secret", "generic", "x", "--from-literal=a=b"];
    let stderr = refused(&again, &s.k(&again));
    assert_eq!(stderr, "error: failed to create secret secrets \"x\" already exists\n");
}
