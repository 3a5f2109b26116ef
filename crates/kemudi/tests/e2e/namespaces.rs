//! Namespaces, their service accounts and tokens, and authorization.

use crate::runner::Case;
use crate::story::{IMAGE, Story, refused};
use serde_json::{Value, json};

pub const TESTS: &[Case] = &[
    ("namespaces::take_everything_with_them", take_everything_with_them),
    ("namespaces::accounts_speak_for_pods", accounts_speak_for_pods),
];

const FOREVER: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";

/// Clauses: C14.namespace C14.service-account C14.root-ca
fn take_everything_with_them(s: &Story) {
    let other = format!("{}-x", s.ns);
    let path = |rest: &str| format!("/api/v1/namespaces/{other}{rest}");
    assert_eq!(s.ok(&["create", "namespace", &other]), format!("namespace/{other} created\n"));
    s.until_at(&path("/serviceaccounts/default"), |a| !a.is_null());
    s.until_at(&path("/configmaps/kube-root-ca.crt"), |c| {
        c["data"]["ca.crt"].as_str().is_some_and(|t| t.contains("BEGIN"))
    });
    let rs = json!({"metadata": {"name": "r"}, "spec": {
        "replicas": 2, "selector": {"matchLabels": {"app": "r"}},
        "template": {"metadata": {"labels": {"app": "r"}}, "spec": {
            "terminationGracePeriodSeconds": 1, "containers": [{"name": "c", "image": IMAGE}]}},
    }});
    let sets = format!("/apis/apps/v1/namespaces/{other}/replicasets");
    s.post(&sets, rs);
    s.until_at(&format!("{sets}/r"), |r| r["status"]["readyReplicas"] == 2);
    s.post(&path("/configmaps"), json!({"metadata": {"name": "held", "finalizers": ["e2e/hold"]}}));
    s.ok(&["delete", "namespace", &other, "--wait=false"]);
    let terminating = |n: &Value| {
        let remaining = crate::story::condition(n, "NamespaceFinalizersRemaining") == "True";
        n["status"]["phase"] == "Terminating" && remaining
    };
    s.until_at(&path(""), terminating);
    // Nothing new comes into it, and everything but the held one goes.
    let manifest = format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: new, namespace: {other}}}\n");
    let o = s.with_input(&["create", "-n", &other, "-f", "-"], &manifest);
    let stderr = refused(&["create"], &o);
    assert!(stderr.contains("because it is being terminated"), "{stderr}");
    s.until_at(&path("/pods"), |l| l["items"].as_array().is_some_and(Vec::is_empty));
    let patch =
        ["patch", "configmap", "held", "-n", &other, "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#];
    s.ok(&patch);
    s.until_at(&path(""), Value::is_null);
}

/// Clauses: K08.projected C14.token P01.service-account
fn accounts_speak_for_pods(s: &Story) {
    s.create("serviceaccounts", json!({"metadata": {"name": "robot"}}));
    s.shell_pod("p", FOREVER, json!({"serviceAccountName": "robot"}), json!({}));
    s.shell_pod("without", FOREVER, json!({"automountServiceAccountToken": false}), json!({}));
    s.ready("p");
    s.ready("without");
    let dir = "/var/run/secrets/kubernetes.io/serviceaccount";
    assert_eq!(s.sh("p", &format!("cat {dir}/namespace")), s.ns);
    assert!(s.sh("p", &format!("cat {dir}/ca.crt")).contains("BEGIN CERTIFICATE"));
    assert_eq!(s.sh("without", &format!("ls {dir} 2>/dev/null; true")), "");
    let token = s.sh("p", &format!("cat {dir}/token"));
    let flag = format!("--token={token}");
    let stderr = s.fails(&["get", "configmaps", &flag]);
    let who = format!("User \"system:serviceaccount:{}:robot\" cannot list resource \"configmaps\"", s.ns);
    assert!(stderr.contains(&who), "{stderr}");
    let account = format!("--serviceaccount={}:robot", s.ns);
    s.ok(&["create", "role", "reader", "--verb=get,list", "--resource=configmaps"]);
    s.ok(&["create", "rolebinding", "reader", "--role=reader", &account]);
    s.eventually("the right to list", || s.k(&["get", "configmaps", &flag]).status.success().then_some(()));
    assert!(s.fails(&["get", "secrets", &flag]).contains("cannot list resource \"secrets\""));
    assert!(s.fails(&["get", "configmaps", "--token=nonsense"]).contains("Unauthorized"));
    // The token is bound to its pod.
    s.ok(&["delete", "pod", "p"]);
    s.eventually("the end of the token", || {
        let o = s.k(&["get", "configmaps", &flag]);
        String::from_utf8_lossy(&o.stderr).contains("Unauthorized").then_some(())
    });
}
