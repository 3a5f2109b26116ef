//! Network policies.

use crate::runner::Case;
use crate::story::{IMAGE, Story, http_get};
use serde_json::{Value, json};

pub const TESTS: &[Case] = &[
    ("policies::allow_connections_to_pods", allow_connections_to_pods),
    ("policies::allow_connections_from_pods", allow_connections_from_pods),
];

const FOREVER: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";

/// A web server, with a service, and two clients. Returns the URLs of the server and of the service.
fn pods(s: &Story) -> [String; 2] {
    let probe = json!({"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 1});
    let c = json!({"name": "c", "image": IMAGE, "ports": [{"name": "http", "containerPort": 8080}], "readinessProbe": probe});
    let spec = json!({"terminationGracePeriodSeconds": 1, "containers": [c]});
    s.create("pods", json!({"metadata": {"name": "server", "labels": {"app": "web"}}, "spec": spec}));
    let ports = json!([{"port": 80, "targetPort": "http"}]);
    let service = json!({"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": ports}});
    let service = s.create("services", service);
    for name in ["friend", "other"] {
        s.shell_pod(name, FOREVER, json!({}), json!({}));
        s.ready(name);
        s.ok(&["label", "pod", name, &format!("role={name}")]);
    }
    let server = s.ready("server");
    let ip = server["status"]["podIP"].as_str().unwrap();
    let urls = [format!("http://{ip}:8080"), format!("http://{}", service["spec"]["clusterIP"].as_str().unwrap())];
    reach(s, "friend", &urls[0], true);
    reach(s, "other", &urls[1], true);
    urls
}

fn connects(s: &Story, from: &str, url: &str) -> bool {
    s.exec(from, &["busybox", "timeout", "2", "wget", "-q", "-O", "/dev/null", &format!("{url}/healthz")])
        .status
        .success()
}

/// Waits until a pod reaches the URL, or does not.
fn reach(s: &Story, from: &str, url: &str, expect: bool) {
    s.eventually(&format!("{from} reaches {url}: {expect}"), || (connects(s, from, url) == expect).then_some(()));
}

fn policy(s: &Story, name: &str, spec: Value) {
    let manifest = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": name}, "spec": spec});
    s.apply(&manifest.to_string());
}

/// Clauses: K01.network-policy
fn allow_connections_to_pods(s: &Story) {
    let [server, service] = pods(s);
    policy(s, "deny", json!({"podSelector": {}}));
    for from in ["friend", "other"] {
        for url in [&server, &service] {
            reach(s, from, url, false);
        }
    }
    // The node's own connections, and those of probes, are always allowed.
    assert!(http_get(server.trim_start_matches("http://"), "/healthz").is_some());
    let [friend, known] =
        [("role", "friend"), ("app", "known")].map(|(k, v)| json!({"podSelector": {"matchLabels": {k: v}}}));
    let ingress = json!([{"from": [friend, known], "ports": [{"port": "http"}]}]);
    policy(s, "allow", json!({"podSelector": {"matchLabels": {"app": "web"}}, "ingress": ingress}));
    for url in [&server, &service] {
        reach(s, "friend", url, true);
        assert!(!connects(s, "other", url));
    }
    // Labels of pods and of the namespace.
    s.ok(&["label", "pod", "other", "role=friend", "--overwrite"]);
    reach(s, "other", &server, true);
    s.ok(&["label", "pod", "other", "role=other", "--overwrite"]);
    reach(s, "other", &server, false);
    let trusted = json!({"namespaceSelector": {"matchLabels": {"trusted": "yes"}}});
    policy(s, "trusted", json!({"podSelector": {}, "ingress": [{"from": [trusted]}]}));
    assert!(!connects(s, "other", &server));
    s.ok(&["label", "namespace", &s.ns, "trusted=yes"]);
    reach(s, "other", &server, true);
    // A pod that starts has its rules from the beginning.
    let attempt = format!("busybox timeout 2 wget -q -O /dev/null {server}/healthz && echo reached || echo refused");
    s.ok(&["delete", "networkpolicy", "trusted"]);
    reach(s, "other", &server, false);
    let run = |name: &str| {
        s.pod(name, json!({"restartPolicy": "Never"}), vec![json!({"name": "c", "command": ["sh", "-c", &attempt]})]);
        s.phase(name, "Succeeded");
        // The shell may report the signal of `timeout` on another stream.
        let log = s.logs(name);
        ["reached", "refused"].into_iter().find(|word| log.lines().any(|line| line == *word))
    };
    assert_eq!(run("stranger"), Some("refused"));
    assert_eq!(run("known"), Some("reached"));
    s.ok(&["delete", "networkpolicy", "--all"]);
    reach(s, "other", &service, true);
}

/// Clauses: K01.network-policy
fn allow_connections_from_pods(s: &Story) {
    let [server, service] = pods(s);
    let to = |to: Value| {
        policy(
            s,
            "out",
            json!({"podSelector": {"matchLabels": {"role": "friend"}}, "policyTypes": ["Egress"], "egress": to}),
        );
    };
    to(json!([]));
    for url in [&server, &service] {
        reach(s, "friend", url, false);
        assert!(connects(s, "other", url));
    }
    // The cluster's DNS is part of the node.
    let name = format!("web.{}.svc.cluster.local", s.ns);
    assert!(s.exec("friend", &["nslookup", &name]).status.success());
    let ip = server.trim_start_matches("http://").trim_end_matches(":8080");
    to(json!([{"to": [{"ipBlock": {"cidr": format!("{ip}/32")}}], "ports": [{"port": 8000, "endPort": 8080}]}]));
    reach(s, "friend", &service, true);
    to(json!([{"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": [format!("{ip}/32")]}}]}]));
    reach(s, "friend", &service, false);
    to(json!([{"ports": [{"port": "http"}]}]));
    reach(s, "friend", &server, true);
    to(json!([{"ports": [{"port": "http", "protocol": "UDP"}]}]));
    reach(s, "friend", &server, false);
    s.ok(&["delete", "networkpolicy", "out"]);
    reach(s, "friend", &server, true);
}
