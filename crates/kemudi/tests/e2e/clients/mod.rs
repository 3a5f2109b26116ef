//! Other clients of Kubernetes.

use crate::runner::Case;
use crate::story::{IMAGE, Story};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

mod kube;
mod kubectl;

pub const TESTS: &[Case] = &[
    ("clients::python", python),
    ("clients::node", node),
    ("clients::kube", kube::run),
    ("clients::kubectl", kubectl::run),
];

/// The one that has the system's packages.
const PYTHON: &str = "/usr/bin/python3";

/// The client that Debian packages: it is some versions behind, as programs are.
fn python(s: &Story) {
    let known = Command::new(PYTHON).args(["-c", "import kubernetes"]).output();
    if !known.is_ok_and(|o| o.status.success()) {
        println!("clients::python: skipped: this machine has no Python client");
        return;
    }
    let mut program = Command::new(PYTHON);
    program.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/clients/client.py"));
    run(s, program);
}

/// Where `./x test` puts the client for Node.js.
const NODE_CLIENT: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/../clients");

fn node(s: &Story) {
    let known = Command::new("node").arg("--version").output().is_ok_and(|o| o.status.success());
    if !known || !Path::new(NODE_CLIENT).join("node_modules/@kubernetes/client-node").is_dir() {
        println!("clients::node: skipped: this machine has no client for Node.js");
        return;
    }
    let mut program = Command::new("node");
    program.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/clients/client.mjs")).arg(NODE_CLIENT);
    run(s, program);
}

/// The specification of a pod with a shell that runs for good.
fn pod(s: &Story) -> Value {
    json!({
        "terminationGracePeriodSeconds": 0,
        "containers": [{
            "name": "c",
            "image": IMAGE,
            "command": ["sh", "-c", "echo begun; while :; do sleep 0.1; done"],
            "env": [{"name": "A", "value": "1"}],
            "volumeMounts": [{"name": "tools", "mountPath": "/bin", "readOnly": true}],
        }],
        "volumes": [s.tools()],
    })
}

/// Runs a program in the namespace of the story. It says at its end that it is done.
fn run(s: &Story, mut program: Command) {
    let o = program
        .args([&s.ns, &pod(s).to_string()])
        .env("KUBECONFIG", &s.cluster.kubeconfig)
        .env_remove("HTTPS_PROXY")
        .env_remove("https_proxy")
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&o.stdout);
    assert!(o.status.success() && stderr.ends_with("done\n"), "{stderr}{}", String::from_utf8_lossy(&o.stderr));
}
