//! `kemudi bench` against a real server on loopback.
#![allow(clippy::unwrap_used)] // helpers of tests

use serde_json::Value;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

const KEMUDI: &str = env!("CARGO_BIN_EXE_kemudi");

fn kemudi(args: &[&str]) -> Output {
    Command::new(KEMUDI).args(args).stdin(Stdio::null()).output().unwrap()
}

fn json(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}\n{}", String::from_utf8_lossy(&output.stderr)))
}

fn rows(report: &Value) -> Vec<(&str, u64, u64)> {
    let rows = report["results"].as_array().unwrap();
    let number = |r: &Value, k: &str| r[k].as_u64().unwrap();
    rows.iter().map(|r| (r["name"].as_str().unwrap(), number(r, "n"), number(r, "errors"))).collect()
}

#[test]
fn everything_is_measured_on_a_server_that_it_starts_and_removes() {
    let work = tempfile::tempdir().unwrap();
    let work = work.path().join("work");
    let dir = work.to_str().unwrap();
    let args = ["bench", "--start", KEMUDI, "--data-dir", dir, "--count", "6", "--duration", "5", "--idle", "0.2"];
    let output = kemudi(&[&args[..], &["-o", "json", "--", "--disable-agent"]].concat());
    let report = json(&output);
    assert!(report["server"].as_str().unwrap().starts_with("v1."), "{report:#}");
    let expected = [
        ("start-ready", 5),
        ("idle-memory", 1),
        ("idle-cpu", 1),
        ("start-again", 1),
        ("create-configmaps", 6),
        ("create-pods", 6),
        ("get", 6),
        ("list", 21),
        ("watch", 6 * 50),
        ("apply", 6),
        ("schedule", 6),
        ("scale-created", 1),
        ("scale-running", 1),
        ("scale-available", 1),
        ("delete-namespace", 1),
    ];
    assert_eq!(rows(&report), expected.map(|(name, n)| (name, n, 0)), "{report:#}");
    let row = |name: &str| report["results"].as_array().unwrap().iter().find(|r| r["name"] == name).unwrap();
    assert!(row("list")["value"].as_f64().unwrap() > 6.0 * 3e-3, "six pods of 3 KB at least: {report:#}");
    assert!(row("idle-memory")["value"].as_f64().unwrap() > 1.0, "{report:#}");
    assert!(row("get")["p50Ms"].as_f64().unwrap() > 0.0, "{report:#}");
    assert_eq!(report["skipped"][0]["name"], "run-pods", "no node runs anything here");
    assert!(output.status.success());
    assert!(!work.exists(), "nothing is left");
}

/// A control plane on any free port.
struct Server {
    child: Child,
    directory: tempfile::TempDir,
}

impl Server {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut child = Command::new(KEMUDI)
            .args(["up", "--disable-agent", "--secure-port", "0", "--data-dir"])
            .arg(directory.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // It prints where the kubeconfig is when it is ready.
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line).unwrap();
        assert!(line.contains("KUBECONFIG="), "{line}");
        Self { child, directory }
    }

    fn kubeconfig(&self) -> std::path::PathBuf {
        self.directory.path().join("kubeconfig")
    }

    fn kubectl(&self, args: &[&str]) -> String {
        let output =
            Command::new(KEMUDI).arg("kubectl").args(args).env("KUBECONFIG", self.kubeconfig()).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn bench(kubeconfig: &Path, args: &[&str]) -> Output {
    kemudi(&[&["bench", "--kubeconfig", kubeconfig.to_str().unwrap(), "--count", "3"], args].concat())
}

#[test]
fn a_cluster_of_others_is_left_as_it_was() {
    let server = Server::start();
    let before = server.kubectl(&["get", "namespaces,nodes", "-o", "name"]);
    let output = bench(&server.kubeconfig(), &["--only", "schedule,get,create-pods", "--connections", "2"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let table = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Vec<&str>> = table.lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(lines[1][..2], ["NAME", "N"], "{table}");
    // In the order of the table of benchmarks, whatever was asked first.
    let named: Vec<_> = lines[2..].iter().map(|l| (l[0], l[1], l[l.len() - 1])).collect();
    assert_eq!(named, [("create-pods", "3", "0"), ("get", "3", "0"), ("schedule", "3", "0")], "{table}");
    assert_eq!(server.kubectl(&["get", "namespaces,nodes", "-o", "name"]), before);
}

#[test]
fn a_server_that_refuses_makes_a_run_that_does_not_count() {
    let server = Server::start();
    // One who may make namespaces and look at things, and nothing else: the refusals come in the midst of the measurement.
    server.kubectl(&["create", "serviceaccount", "guest"]);
    let rules = ["--verb=get,list,watch,create,delete,deletecollection", "--resource=namespaces,serviceaccounts"];
    server.kubectl(&[&["create", "clusterrole", "guest"], &rules[..]].concat());
    server.kubectl(&["create", "clusterrolebinding", "guest", "--clusterrole=guest", "--serviceaccount=default:guest"]);
    let token = server.kubectl(&["create", "token", "guest"]);
    let admin = std::fs::read_to_string(server.directory.path().join("admin.token")).unwrap();
    let text = std::fs::read_to_string(server.kubeconfig()).unwrap().replace(admin.trim(), token.trim());
    let guest = server.directory.path().join("guest");
    std::fs::write(&guest, text).unwrap();

    let output = bench(&guest, &["--only", "create-configmaps,get", "-o", "json"]);
    assert_eq!(output.status.code(), Some(1));
    let report = json(&output);
    assert_eq!(rows(&report), [("create-configmaps", 0, 3), ("get", 0, 1)], "{report:#}");
    let why = report["results"][0]["firstError"].as_str().unwrap();
    assert!(why.starts_with("403: configmaps is forbidden: "), "{why}");
    assert_eq!(report["failed"], true);

    // Nobody is there at all.
    drop(server);
    let output = bench(Path::new("/nowhere/kubeconfig"), &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nowhere/kubeconfig"));
}

#[test]
fn a_large_cluster_is_measured_only_if_it_is_asked_for() {
    let args = ["bench", "--start", KEMUDI, "--only", "large", "--count", "60", "--idle", "0.1", "-o", "json"];
    let report = json(&kemudi(&[&args[..], &["--", "--disable-agent"]].concat()));
    let expected = [("large-running", 1, 0), ("large-memory", 1, 0), ("large-rolling-update", 1, 0)];
    assert_eq!(rows(&report), expected, "{report:#}");
}
