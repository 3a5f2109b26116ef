//! kubectl in a pod: without a kubeconfig it uses the pod's service account; a flag or file overrides parts of that.
//!
//! The program finds the files of a service account where a container has them: in its own mount namespace.

use crate::runner::Case;
use crate::story::{Story, http_get, text};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

pub const TESTS: &[Case] = &[
    ("incluster::the_pod_is_enough", the_pod_is_enough),
    ("incluster::flags_and_files_come_first", flags_and_files_come_first),
];
/// The real program takes most of a minute for it.
pub const OWN: &[Case] = &[("incluster::a_new_token_is_read", a_new_token_is_read)];

/// Mounts the first argument as the directory of the service account, and runs the rest.
const ENTER: &str = "mount -t tmpfs none \"$(realpath /var/run)\" && \
    mkdir -p /var/run/secrets/kubernetes.io && ln -s \"$1\" /var/run/secrets/kubernetes.io/serviceaccount && shift && \
    exec \"$@\"";

/// Creates a service account that may edit the namespace, and a config map, and returns the files of the account.
fn account(s: &Story) -> Value {
    s.ok(&["create", "configmap", "mine"]);
    s.ok(&["create", "serviceaccount", "bot"]);
    s.ok(&["create", "rolebinding", "bot", "--clusterrole=edit", &format!("--serviceaccount={}:bot", s.ns)]);
    let raw = s.ok(&["config", "view", "--raw", "--flatten", "-o", "json"]);
    let config: Value = serde_json::from_str(&raw).unwrap();
    let pem = s.ok(&["get", "configmap", "kube-root-ca.crt", "-o", "jsonpath={.data.ca\\.crt}"]);
    s.file("account/ca.crt", &pem);
    s.file("account/namespace", &s.ns);
    s.file("account/token", s.ok(&["create", "token", "bot"]).trim());
    config
}

/// Returns a command as a container with this service account runs it.
fn in_pod(s: &Story, config: &Value, args: &[&str]) -> Command {
    let server = config["clusters"][0]["cluster"]["server"].as_str().unwrap();
    let (host, port) = server.strip_prefix("https://").unwrap().rsplit_once(':').unwrap();
    let bare = s.bare(args);
    let mut c = Command::new("unshare");
    c.args(["--mount", "--propagation", "private", "sh", "-c", ENTER, "sh"]).arg(s.dir.join("account"));
    c.arg(bare.get_program()).args(bare.get_args());
    c.current_dir(&s.dir).stdin(Stdio::null()).env_remove("KUBECONFIG").env_remove("POD_NAMESPACE");
    c.env("HOME", &s.dir).env("KUBERNETES_SERVICE_HOST", host).env("KUBERNETES_SERVICE_PORT", port);
    c
}

fn stderr(o: &Output) -> String {
    String::from_utf8_lossy(&o.stderr).into_owned()
}

const MINE: [&str; 5] = ["get", "configmap", "mine", "-o", "jsonpath={.metadata.namespace}"];

fn the_pod_is_enough(s: &Story) {
    let config = account(s);
    let run = |args: &[&str]| in_pod(s, &config, args).output().unwrap();
    assert_eq!(text(&MINE, &run(&MINE)), s.ns);
    let who = ["auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"];
    assert_eq!(text(&who, &run(&who)), format!("system:serviceaccount:{}:bot", s.ns));
    let create = ["create", "configmap", "made"];
    assert_eq!(text(&create, &run(&create)), "configmap/made created\n");
    // The configuration of a pod is no kubeconfig.
    let view = ["config", "view", "-o", "jsonpath={.clusters}"];
    assert!(matches!(text(&view, &run(&view)).as_str(), "" | "null"));
    // Without the address the program is not in a pod.
    let o = in_pod(s, &config, &MINE).env_remove("KUBERNETES_SERVICE_PORT").output().unwrap();
    assert!(stderr(&o).contains("localhost:8080 was refused"), "{}", stderr(&o));
}

fn flags_and_files_come_first(s: &Story) {
    let config = account(s);
    s.file("nothing", "apiVersion: v1\nkind: Config\n");
    s.file("place", "current-context: a\ncontexts:\n- {name: a, context: {namespace: elsewhere}}\n");
    let mut whole = config.clone();
    for c in whole["contexts"].as_array_mut().unwrap() {
        c["context"].as_object_mut().unwrap().remove("namespace");
    }
    s.file("whole", &whole.to_string());
    let bot = |ns: &str| {
        format!(
            "User \"system:serviceaccount:{}:bot\" cannot get resource \"configmaps\" in API group \"\" in the namespace \"{ns}\"",
            s.ns
        )
    };
    let run = |variables: &[(&str, &str)], flags: &[&str]| {
        in_pod(s, &config, &[&MINE[..], flags].concat()).envs(variables.iter().copied()).output().unwrap()
    };
    for (variables, flags) in [
        (&[][..], &["--kubeconfig=nothing"][..]),
        (&[("KUBECONFIG", "nothing:missing")], &[]),
        (&[("POD_NAMESPACE", s.ns.as_str())], &[]),
        // A file without the namespace: that is the pod's.
        (&[("KUBECONFIG", "whole")], &[]),
    ] {
        assert_eq!(text(flags, &run(variables, flags)), s.ns, "{variables:?} {flags:?}");
    }
    for (variables, flags, why) in [
        (&[][..], &["-n", "default"][..], bot("default")),
        (&[("POD_NAMESPACE", "other")], &[], bot("other")),
        (&[], &["--kubeconfig=place"], bot("elsewhere")),
        (&[("KUBECONFIG", "place")], &[], bot("elsewhere")),
        (&[], &["--token=wrong"], "You must be logged in to the server".into()),
        (&[], &["--user=x"], "auth info \"x\" does not exist".into()),
        (&[], &["--cluster=x"], "no server found for cluster \"x\"".into()),
        (&[], &["--context=x"], "context was not found for specified context: x".into()),
        (&[], &["--server=https://127.0.0.1:1", "--token=x"], "127.0.0.1:1 was refused".into()),
        (&[], &["--kubeconfig=missing"], "stat missing: no such file or directory".into()),
    ] {
        let o = run(variables, flags);
        assert!(o.status.code() == Some(1) && stderr(&o).contains(&why), "{variables:?} {flags:?}: {}", stderr(&o));
    }
}

/// Tokens of pods are renewed before they expire; a running program must use the new one.
fn a_new_token_is_read(s: &Story) {
    let config = account(s);
    let good = std::fs::read_to_string(s.dir.join("account/token")).unwrap();
    s.file("account/token", "not yet");
    let mut child =
        in_pod(s, &config, &["proxy", "--port=0", "--accept-hosts=.*"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("Starting to serve on ").unwrap().to_owned();
    let path = format!("/api/v1/namespaces/{}/configmaps/mine", s.ns);
    let refused = http_get(&address, &path);
    s.file("account/token", &good);
    let found = s.eventually("the new token", || http_get(&address, &path));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(refused, None);
    assert_eq!(serde_json::from_str::<Value>(&found).unwrap()["metadata"]["name"], json!("mine"));
}
