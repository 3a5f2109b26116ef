//! `kemudi sim` as a process: exit codes, files, and a running cluster that is only read.

use crate::directory;
use crate::running::{BINARY, Running, up};
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const WEB: &str = "
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {maxUnavailable: 1, selector: {matchLabels: {app: web}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: 'web:1'}]}}
";

fn sim(directory: &Path, args: &[&str]) -> Output {
    Command::new(BINARY).arg("sim").args(args).current_dir(directory).output().unwrap()
}

fn sim_with_input(directory: &Path, input: &str, args: &[&str]) -> Output {
    let mut command = Command::new(BINARY);
    command.arg("sim").args(args).current_dir(directory);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn write(directory: &Path, files: &[(&str, &str)]) {
    for (name, text) in files {
        let path = directory.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
}

#[track_caller]
fn check(output: &Output, code: i32, stdout: &str, stderr: &str) {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{out}\n{err}");
    assert!(out.contains(stdout), "no {stdout:?} in {out}");
    assert!(err.contains(stderr), "no {stderr:?} in {err}");
}

/// Clauses: G05.exit-codes
#[test]
fn exit_codes_tell_what_happened() {
    let d = directory();
    let d = d.path();
    write(
        d,
        &[
            ("m/web.yaml", WEB),
            ("m/sub/note.txt", "no manifest"),
            (
                "held.yaml",
                "{expect: [{available: {object: deployment/web, atLeast: 2}}], steps: [{drain: {node: node-1}}]}",
            ),
            (
                "broken.yaml",
                "{expect: [{available: {object: deployment/web, atLeast: 3}}], steps: [{drain: {node: node-1}}]}",
            ),
            (
                "endless.yaml",
                "steps: [{cut: scheduler}, {scale: {object: deployment/web, replicas: 9}}, {advance: 10h}]",
            ),
            ("typo.yaml", "steps: [{drain: {nod: node-1}}]"),
            ("apply.yaml", "steps: [{applyFiles: [new.yaml]}, {rest: {}}]"),
            ("new.yaml", &WEB.replace("web:1", "web:2")),
            (
                "bad/a.yaml",
                "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n---\napiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec: {ports: [{port: 99999}]}\n",
            ),
            ("typos.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec: {port: 80, typ: ClusterIP}\n"),
            ("twice.yaml", "steps: []\nsteps: []\n"),
            ("nofile.yaml", "steps: [{applyFiles: [absent.yaml]}]"),
            ("deep/a/b/web.yaml", WEB),
            ("k/kustomization.yaml", "resources: [web.yaml]\nnamePrefix: my-\nnamespace: shop\n"),
            ("k/web.yaml", WEB),
            ("shop.yaml", "steps: [{drain: {node: node-1}}, {waitFor: {object: shop/deployment/my-web, within: 1s}}]"),
        ],
    );
    check(&sim(d, &["-f", "m", "held.yaml"]), 0, "Everything that was expected held.", "");
    let quiet = sim(d, &["-f", "m", "-q", "held.yaml"]);
    check(&quiet, 0, "", "");
    assert!(quiet.stdout.is_empty());
    check(&sim(d, &["-f", "m", "--quiet", "broken.yaml"]), 3, "deployment default/web: 2 available instead of 3", "");
    check(&sim(d, &["-f", "m", "apply.yaml"]), 0, "rollout ended", "");
    check(&sim(d, &["-k", "k", "shop.yaml"]), 0, "namespace shop is in no manifest and was created", "");
    check(
        &sim(d, &["-f", "m", "--timeout", "1h", "endless.yaml"]),
        4,
        "After 1h00m00s, the timeout, the rehearsal had not come to rest",
        "",
    );
    check(&sim(d, &["-f", "m", "typo.yaml"]), 2, "", "error: typo.yaml: steps[0].drain.nod: unknown field `nod`");
    check(
        &sim(d, &["-f", "bad", "held.yaml"]),
        2,
        "",
        "error: bad/a.yaml, document 2: Service \"s\" is invalid: [spec.ports[0].port: Invalid value: 99999",
    );
    let unknown = sim(d, &["-f", "typos.yaml", "held.yaml"]);
    check(&unknown, 2, "", "strict decoding error: unknown field \"spec.port\", unknown field \"spec.typ\"\n");
    let twice = sim(d, &["-f", "m", "twice.yaml"]);
    check(
        &twice,
        2,
        "",
        "error: twice.yaml: the scenario is not valid YAML: yaml: unmarshal errors:\n    line 2: key \"steps\"",
    );
    check(
        &sim(d, &["-f", "deep", "held.yaml"]),
        2,
        "",
        "recognized file extensions are [.json .yaml .yml]; -R also reads",
    );
    check(&sim(d, &["-R", "-f", "deep", "held.yaml"]), 0, "Everything that was expected held.", "");
    check(
        &sim(d, &["-f", "m", "nofile.yaml"]),
        2,
        "",
        "error: nofile.yaml: steps[0].applyFiles: the path \"absent.yaml\" does not exist",
    );
    check(&sim_with_input(d, WEB, &["-f", "-", "held.yaml"]), 0, "2 objects of standard input", "");
    check(
        &sim_with_input(d, "a: [", &["-f", "-", "held.yaml"]),
        2,
        "",
        "error: error parsing standard input, document 1: ",
    );
    check(&sim_with_input(d, "steps: []", &["-f", "m", "-"]), 0, "Everything that was expected held.", "");
    check(&sim_with_input(d, "step: []", &["-f", "m", "-"]), 2, "", "error: standard input: step: unknown field");
    check(&sim_with_input(d, WEB, &["-f", "-", "-"]), 2, "", "standard input (`-`) can be read only once");
    check(&sim(d, &["-f", "nowhere", "held.yaml"]), 2, "", "error: the path \"nowhere\" does not exist");
    check(&sim(d, &["-f", "m", "absent.yaml"]), 2, "", "error: open absent.yaml: no such file or directory");
    check(&sim(d, &["held.yaml"]), 2, "", "one of --filename, --kustomize and --from-cluster is needed");
    check(&sim(d, &["-f", "m", "--from-cluster", "held.yaml"]), 2, "", "cannot be used with");
    check(&sim(d, &["-f", "m", "--timeout", "-5m", "held.yaml"]), 2, "", "");
    check(
        &sim(d, &["-f", "m", "--html", "no/such/dir.html", "held.yaml"]),
        1,
        "",
        "error: write no/such/dir.html: no such file or directory",
    );
    check(&sim(d, &["--from-cluster", "--kubeconfig", "absent", "held.yaml"]), 2, "", "absent");
}

/// Clauses: G05.bad-input
#[test]
fn files_that_are_no_manifests_are_refused() {
    let d = directory();
    let d = d.path();
    write(
        d,
        &[
            ("web.yaml", WEB),
            ("empty.yaml", "# nothing\n"),
            ("s.yaml", "steps: []"),
            ("zero.yaml", "steps: [{applyFiles: [/dev/zero]}]"),
            ("nothing.yaml", "steps: [{applyFiles: [empty.yaml]}]"),
            ("nokind.yaml", "{a: {secret: x}}"),
            ("typo.yaml", "steps: [{breakImage: 'web:9'}]"),
        ],
    );
    check(&sim(d, &["-f", "web.yaml,empty.yaml", "s.yaml"]), 2, "", "error: empty.yaml has no objects");
    check(&sim(d, &["-f", "/dev/zero", "s.yaml"]), 2, "", "error: open /dev/zero: is not a regular file");
    check(&sim(d, &["-f", "web.yaml", "/dev/zero"]), 2, "", "error: open /dev/zero: is not a regular file");
    let zero = sim(d, &["-f", "web.yaml", "zero.yaml"]);
    check(&zero, 2, "", "error: zero.yaml: steps[0].applyFiles: open /dev/zero: is not a regular file");
    let nothing = sim(d, &["-f", "web.yaml", "nothing.yaml"]);
    check(&nothing, 2, "", "error: nothing.yaml: steps[0].applyFiles: empty.yaml has no objects");
    let large = std::fs::File::create(d.join("large.yaml")).unwrap();
    large.set_len(65 << 20).unwrap();
    check(&sim(d, &["-f", "large.yaml", "s.yaml"]), 2, "", "error: open large.yaml: is larger than 64 MiB");
    let unknown = sim(d, &["-f", "nokind.yaml", "s.yaml"]);
    check(&unknown, 2, "", "Object 'Kind' is missing\n");
    check(&sim(d, &["-f", "web.yaml", "typo.yaml"]), 2, "", "error: typo.yaml: steps[0].breakImage: no container has");
    // The page is checked first, and removed if there is nothing to write.
    let both = sim(d, &["-f", "web.yaml", "--html", "no/page.html", "typo.yaml"]);
    check(&both, 1, "", "error: write no/page.html: no such file or directory");
    check(&sim(d, &["-f", "web.yaml", "--html", "page.html", "typo.yaml"]), 2, "", "breakImage");
    assert!(!d.join("page.html").exists());
}

/// Clauses: G05.exit-codes
#[test]
fn a_rehearsal_ends_after_its_real_time() {
    let d = directory();
    let d = d.path();
    let job = "{apiVersion: batch/v1, kind: Job, metadata: {name: again}, spec: {backoffLimit: 100000, completions: 100000, parallelism: 20, template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}";
    write(d, &[("job.yaml", job), ("s.yaml", "steps: [{advance: 100000d}]")]);
    let output = sim(d, &["-f", "job.yaml", "--timeout", "100000d", "--max-real-time", "5s", "s.yaml"]);
    check(&output, 5, "", "error: stopped after 5s of real time (--max-real-time): ");
}

/// Clauses: G05.deterministic, G05.report
#[test]
fn the_same_seed_gives_the_same_output_and_page() {
    let d = directory();
    let d = d.path();
    write(
        d,
        &[
            ("web.yaml", WEB),
            ("s.yaml", "{assume: {spread: 30}, steps: [{rollout: {object: deployment/web}}, {failNode: node-2}]}"),
        ],
    );
    let once = |page: &str, seed: &str| {
        let output = sim(d, &["-f", "web.yaml", "-o", "json", "--html", page, "--seed", seed, "s.yaml"]);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        (output.stdout, std::fs::read(d.join(page)).unwrap())
    };
    let first = once("a.html", "1");
    assert_eq!(first, once("b.html", "1"));
    assert_ne!(first, once("c.html", "2"));
    let value: Value = serde_json::from_slice(&first.0).unwrap();
    assert_eq!((&value["verdict"], &value["seed"]), (&json!("held"), &json!(1)));
    assert!(first.1.starts_with(b"<!DOCTYPE html>"));
}

/// Clauses: G05.from-cluster
#[tokio::test]
async fn a_running_cluster_is_copied_with_lists_alone() {
    let d = directory();
    let (data, log, policy) = (d.path().join("data"), d.path().join("audit.log"), d.path().join("policy.yaml"));
    std::fs::write(&policy, "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]").unwrap();
    let mut command = up(&data);
    command.arg("--audit-policy-file").arg(&policy).arg("--audit-log-path").arg(&log);
    let mut server = Running::start(&mut command).await.unwrap();
    for name in ["a", "b"] {
        let amounts = json!({"cpu": "4", "memory": "8Gi", "pods": "110"});
        let node = json!({"metadata": {"name": name}, "status": {"allocatable": amounts, "capacity": amounts,
            "conditions": [{"type": "Ready", "status": "True"}]}});
        assert!(server.call("POST", "/api/v1/nodes", &node).await.0.is_success());
        let taints = json!([{"op": "remove", "path": "/spec/taints"}]);
        let path = format!("/api/v1/nodes/{name}");
        let _ = server.call("PATCH", &path, &taints).await;
        for i in 0..2 {
            let pod = json!({"metadata": {"name": format!("{name}{i}"), "labels": {"app": "x"}, "ownerReferences": [
                {"apiVersion": "example.com/v1", "kind": "Widget", "name": "w", "uid": "u", "controller": true}]},
                "spec": {"nodeName": name, "containers": [{"name": "c", "image": "i"}]}});
            let (code, made) = server.call("POST", "/api/v1/namespaces/default/pods", &pod).await;
            assert!(code.is_success(), "{made}");
            let mut running = made.clone();
            running["status"] = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"},
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": made["metadata"]["creationTimestamp"]}], "podIP": format!("10.0.0.{i}")});
            let path = format!("/api/v1/namespaces/default/pods/{name}{i}/status");
            assert!(server.call("PUT", &path, &running).await.0.is_success());
        }
    }
    std::fs::write(d.path().join("s.yaml"), "steps: [{drain: {node: a}}]").unwrap();
    let kubeconfig = data.join("kubeconfig");
    let output = sim(d.path(), &["--from-cluster", "--kubeconfig", kubeconfig.to_str().unwrap(), "s.yaml"]);
    check(&output, 0, "pod default/a0 on a", "");
    check(&output, 0, "4 objects belong to a Widget, which was not copied", "");
    // The pods were bound in real time, which is not later than virtual time.
    std::fs::write(d.path().join("fail.yaml"), "steps: [{failNode: b}, {advance: 10m}]").unwrap();
    let output = sim(d.path(), &["--from-cluster", "--kubeconfig", kubeconfig.to_str().unwrap(), "fail.yaml"]);
    check(&output, 0, "default/b0", "");
    check(&output, 0, "deleted        pod default/b0 on b — node b does not answer (Taint manager", "");
    let pods = server.call("GET", "/api/v1/namespaces/default/pods", &Value::Null).await.1;
    assert_eq!(pods["items"].as_array().unwrap().len(), 4, "the cluster is as it was");
    server.stop();
    let lines = std::fs::read_to_string(&log).unwrap();
    let events = lines.lines().map(|l| serde_json::from_str::<Value>(l).unwrap());
    let own: Vec<Value> =
        events.filter(|e| e["userAgent"].as_str().is_some_and(|a| a.starts_with("kemudi-sim"))).collect();
    assert!(own.len() > 20, "{}", own.len());
    for event in own {
        assert_eq!(event["verb"], "list", "{event}");
        assert!(!matches!(event["objectRef"]["resource"].as_str(), Some("secrets" | "configmaps")), "{event}");
    }
}
