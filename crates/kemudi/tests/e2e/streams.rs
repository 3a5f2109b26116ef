//! Connections into pods with the real `kubectl`: over SPDY, as before v1.31, and over WebSockets.

use crate::runner::Case;
use crate::story::{IMAGE, Story, http_get};
use serde_json::json;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

pub const REAL: &[Case] = &[
    ("streams::exec_over_spdy", exec_over_spdy),
    ("streams::ports_are_forwarded", ports_are_forwarded),
    ("streams::proxies_lead_to_pods_services_and_nodes", proxies_lead_to_pods_services_and_nodes),
    ("streams::attach_prints_new_output", attach_prints_new_output),
];

/// With both programs.
pub const TESTS: &[Case] = &[
    ("streams::reports_commands_that_cannot_run", reports_commands_that_cannot_run),
    ("streams::a_program_need_not_read_everything", a_program_need_not_read_everything),
];
/// With both programs on container runtimes behind the CRI. A command that ends while its input waits hangs in containerd 1.6, whose server
/// then waits for a reader of that input.
pub const ON_OTHERS: &[Case] = &[("streams::reports_commands_that_cannot_run", reports_commands_that_cannot_run)];
pub const OWN: &[Case] = &[
    ("streams::proxy_rewrites_links", proxy_rewrites_links),
    ("streams::pods_can_read_the_issuer", pods_can_read_the_issuer),
];

const FOREVER: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";

/// Clauses: P18.exec
fn exec_over_spdy(s: &Story) {
    s.shell_pod("p", FOREVER, json!({}), json!({}));
    s.ready("p");
    let o = s.spdy(&["exec", "p", "--", "sh", "-c", "echo out; echo wrong >&2; exit 7"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&o.stdout), "out\n");
    assert_eq!(String::from_utf8_lossy(&o.stderr), "wrong\ncommand terminated with exit code 7\n");
    assert_eq!(o.status.code(), Some(7));
    // More than any window of the protocol, in both directions.
    let big = "0123456789abcdef\n".repeat(100_000);
    let o = Story::feed(s.spdy(&["exec", "-i", "p", "--", "cat"]), &big);
    assert!(o.status.success() && o.stdout == big.as_bytes(), "{} of {} bytes", o.stdout.len(), big.len());
    let o = s.spdy(&["exec", "p", "--", "nosuchprogram"]).output().unwrap();
    let stderr = String::from_utf8_lossy(&o.stderr);
    assert_eq!(o.status.code(), Some(1), "{o:?}");
    assert!(stderr.contains("Internal error occurred: error executing command in container: "), "{stderr}");
    let o = s.spdy(&["exec", "p", "-c", "three", "--", "true"]).output().unwrap();
    assert_eq!(o.status.code(), Some(1), "{o:?}");
}

/// Clauses: P18.port-forward
fn ports_are_forwarded(s: &Story) {
    s.pod("web", json!({}), vec![json!({"name": "c"})]);
    s.ready("web");
    for command in [s.spdy(&["port-forward", "pod/web", ":8080"]), s.command(&["port-forward", "pod/web", ":8080"])] {
        forwarded(command, |port| {
            for i in 0..5 {
                let stderr = http_get(&format!("127.0.0.1:{port}"), &format!("/try-{i}"));
                assert!(stderr.as_ref().is_some_and(|b| b.contains(&format!("/try-{i}"))), "{stderr:?}");
            }
        });
    }
}

/// Runs `body` while a port is forwarded.
fn forwarded(mut command: Command, body: impl FnOnce(u16)) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    // Kept open: the command prints a line per connection, and ends when its reader is gone.
    let mut stderr = BufReader::new(child.stdout.take().unwrap());
    stderr.read_line(&mut line).unwrap();
    let port = line.strip_prefix("Forwarding from 127.0.0.1:").and_then(|l| l.split(' ').next()?.parse().ok());
    match port {
        Some(p) => body(p),
        None => {
            let _ = child.kill();
            panic!("{line:?}: {:?}", child.wait_with_output());
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Clauses: P18.proxy
fn proxies_lead_to_pods_services_and_nodes(s: &Story) {
    let ports = json!([{"name": "http", "containerPort": 8080}]);
    let probe = json!({"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 1});
    s.pod("web", json!({}), vec![json!({"name": "c", "ports": ports, "readinessProbe": probe})]);
    s.ready("web");
    let spec = json!({"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80, "targetPort": 8080}]});
    s.create("services", json!({"metadata": {"name": "web"}, "spec": spec}));
    let at = |what: &str| format!("/api/v1/namespaces/{}/{what}", s.ns);
    let raw = |path: &str| s.ok(&["get", "--raw", path]);
    for pod in ["pods/web", "pods/web:8080", "pods/http:web:8080"] {
        let stderr = raw(&at(&format!("{pod}/proxy/a%20b/c?d=e")));
        assert!(stderr.starts_with("GET /a%20b/c?d=e "), "{stderr}");
        assert!(!stderr.to_lowercase().contains("authorization"), "{stderr}");
    }
    assert!(s.fails(&["get", "--raw", &at("pods/web:81/proxy/")]).contains("error trying to reach service: dial tcp "));
    s.eventually("endpoints of the service", || {
        ["services/web", "services/web:http", "services/web:80"]
            .iter()
            .all(|name| s.k(&["get", "--raw", &at(&format!("{name}/proxy/healthz"))]).stdout == b"ok\n")
            .then_some(())
    });
    assert!(s.fails(&["get", "--raw", &at("services/web:81/proxy/")]).contains("no service port 81 found"));
    let node = s.get_at(&at("pods/web"))["spec"]["nodeName"].as_str().unwrap().to_owned();
    assert_eq!(raw(&format!("/api/v1/nodes/{node}/proxy/healthz")), "ok");
}

/// Clauses: P18.attach
fn attach_prints_new_output(s: &Story) {
    let script = "read x; echo got $x; sleep 1; exit 3";
    for (name, spdy) in [("old", true), ("new", false)] {
        let stdin = json!({"stdin": true, "stdinOnce": true});
        s.shell_pod(name, script, json!({"restartPolicy": "Never"}), stdin);
        s.ready(name);
        let args = ["attach", "-i", name];
        let command = if spdy { s.spdy(&args) } else { s.command(&args) };
        let o = Story::feed(command, "something\n");
        assert!(o.status.success() && String::from_utf8_lossy(&o.stdout).contains("got something"), "{o:?}");
    }
}

/// A program that ends while its client still sends: the client gets its exit code and output.
fn a_program_need_not_read_everything(s: &Story) {
    s.shell_pod("p", FOREVER, json!({}), json!({}));
    s.ready("p");
    let big = "0123456789abcdef\n".repeat(200_000);
    for _ in 0..5 {
        let o = Story::feed(s.command(&["exec", "-i", "p", "--", "sh", "-c", "head -c 5 | wc -c; exit 3"]), &big);
        assert_eq!((o.status.code(), String::from_utf8_lossy(&o.stdout).trim()), (Some(3), "5"), "{o:?}");
        let o = Story::feed(s.command(&["exec", "-i", "p", "--", "nosuchprogram"]), &big);
        let stderr = String::from_utf8_lossy(&o.stderr);
        assert!(o.status.code() == Some(1) && stderr.contains("nosuchprogram"), "{stderr}");
    }
}

/// Errors without a container or program are upstream's.
fn reports_commands_that_cannot_run(s: &Story) {
    let init = json!([{"name": "init", "image": IMAGE, "args": ["sleep", "1000"]}]);
    s.pod("begins", json!({"initContainers": init}), vec![json!({"name": "c"})]);
    s.pod("nowhere", json!({"nodeSelector": {"no": "such"}}), vec![json!({"name": "c"})]);
    s.until("pods/begins", |p| p["status"]["initContainerStatuses"][0]["state"]["running"].is_object());
    let stderr = s.fails(&["logs", "begins", "-c", "c"]);
    let waiting = "(BadRequest): container \"c\" in pod \"begins\" is waiting to start: PodInitializing";
    assert!(stderr.contains(waiting), "{stderr}");
    let stderr = s.fails(&["logs", "begins", "-c", "init", "--previous"]);
    assert!(stderr.contains("previous terminated container \"init\" in pod \"begins\" not found"), "{stderr}");
    let stderr = s.fails(&["exec", "begins", "-c", "c", "--", "true"]);
    assert!(stderr.contains("container not found (\"c\")"), "{stderr}");
    assert_eq!(s.ok(&["logs", "nowhere"]), "");
    let stderr = s.fails(&["exec", "nowhere", "--", "true"]);
    assert!(stderr.contains("pod nowhere does not have a host assigned"), "{stderr}");
}

/// Links in pages, and redirects.
fn proxy_rewrites_links(s: &Story) {
    let script = "busybox mkdir -p /tmp/www; echo '<a href=\"/x?y=1\">a</a> <a href=\"z\">b</a>' >/tmp/www/index.html; \
        busybox httpd -p 8080 -h /tmp/www; trap 'exit 0' TERM; while :; do sleep 0.1; done";
    let probe = json!({"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1});
    let ports = json!([{"containerPort": 8080}]);
    s.shell_pod("web", script, json!({}), json!({"ports": ports, "readinessProbe": probe}));
    s.ready("web");
    let root = format!("/api/v1/namespaces/{}/pods/web:8080/proxy", s.ns);
    let page = s.ok(&["get", "--raw", &format!("{root}/")]);
    assert_eq!(page, format!("<a href=\"{root}/x?y=1\">a</a> <a href=\"z\">b</a>\n"));
}

/// A pod can read the documents with which its token is verified: the one of the token's issuer, and the keys it refers to.
fn pods_can_read_the_issuer(s: &Story) {
    s.shell_pod("p", FOREVER, json!({}), json!({}));
    s.ready("p");
    let get = |place: &str, path: &str| {
        let (host, port) = place.rsplit_once(':').unwrap_or((place, "443"));
        let script =
            format!("KUBERNETES_SERVICE_HOST={host} KUBERNETES_SERVICE_PORT={port} /kemudi kubectl get --raw {path}");
        let o = s.exec("p", &["sh", "-c", &script]);
        assert!(o.status.success(), "{place}{path}: {}", String::from_utf8_lossy(&o.stderr));
        serde_json::from_slice::<serde_json::Value>(&o.stdout).unwrap()
    };
    let token = s.exec("p", &["cat", "/var/run/secrets/kubernetes.io/serviceaccount/token"]).stdout;
    let claims = String::from_utf8(token).unwrap().split('.').nth(1).unwrap().to_owned();
    let claims = base64::Engine::decode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, claims).unwrap();
    let claims: serde_json::Value = serde_json::from_slice(&claims).unwrap();
    let issuer = claims["iss"].as_str().unwrap();
    let about = get(issuer.strip_prefix("https://").unwrap(), "/.well-known/openid-configuration");
    assert_eq!(about["issuer"], issuer);
    let keys = about["jwks_uri"].as_str().unwrap().strip_prefix("https://").unwrap();
    let (place, path) = keys.split_at(keys.find('/').unwrap());
    assert!(!place.starts_with("127."), "{place}");
    assert!(get(place, path)["keys"][0]["kid"].is_string());
}
