use crate::resource::last_applied::LAST_APPLIED;
use crate::testing::{Server, run_in};
use meta::Value;
use serde_json::json;

const BASE: &str = "/api/v1/namespaces/default";
const WRITE: &str = "fieldManager=kubectl-client-side-apply&fieldValidation=Strict";
const DRY_RUN: &str = "fieldManager=kubectl-client-side-apply&dryRun=All&fieldValidation=Strict";

fn object(kind: &str, name: &str, uid: &str, version: &str, more: &Value) -> Value {
    let mut v = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "default", "uid": uid, "resourceVersion": version}});
    for (k, x) in more.as_object().unwrap() {
        v[k] = x.clone();
    }
    v
}

fn refused(code: u16, reason: &str, message: &str) -> Value {
    json!({"kind": "Status", "status": "Failure", "reason": reason, "code": code, "message": message})
}

/// Runs a command line of words in an own home directory: exit code, standard output and standard error.
async fn run(s: &Server, home: &tempfile::TempDir, line: &str, input: &str) -> (u8, String, String) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let home = home.path().to_str().unwrap().to_owned();
    run_in(s, &words, input, move |n| match n {
        "HOME" | "TMPDIR" => Some(home.clone()),
        _ => None,
    })
    .await
}

const FILE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: s}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {k: v}\n";

/// A server that creates the config map and then the service, and returns both afterwards.
fn both(service: (u16, Value)) -> Server {
    let missing = |kind: &str, name: &str| refused(404, "NotFound", &format!("{kind} {name:?} not found"));
    let config_map = object("ConfigMap", "c", "u1", "5", &json!({"data": {"k": "v"}}));
    Server::new()
        .on(&format!("POST {BASE}/configmaps?{DRY_RUN}"), 201, config_map.clone())
        .on(&format!("POST {BASE}/services?{DRY_RUN}"), 201, object("Service", "s", "u2", "", &json!({})))
        .on(&format!("POST {BASE}/configmaps?{WRITE}"), 201, config_map.clone())
        .on(&format!("POST {BASE}/services?{WRITE}"), service.0, service.1)
        // Live for the dry runs, the journal and the apply; then as written.
        .on(&format!("GET {BASE}/configmaps/c"), 404, missing("configmaps", "c"))
        .on(&format!("GET {BASE}/configmaps/c"), 404, missing("configmaps", "c"))
        .on(&format!("GET {BASE}/configmaps/c"), 404, missing("configmaps", "c"))
        .on(&format!("GET {BASE}/configmaps/c"), 404, missing("configmaps", "c"))
        .on(&format!("GET {BASE}/configmaps/c"), 200, config_map)
        .on(&format!("GET {BASE}/services/s"), 404, missing("services", "s"))
        .on(&format!("GET {BASE}/services/s"), 404, missing("services", "s"))
        .on(&format!("GET {BASE}/services/s"), 404, missing("services", "s"))
        .on(&format!("GET {BASE}/services/s"), 404, missing("services", "s"))
        .on(&format!("GET {BASE}/services/s"), 200, object("Service", "s", "u2", "6", &json!({})))
        .on(&format!("DELETE {BASE}/configmaps/c"), 200, json!({"kind": "Status", "status": "Success"}))
        .on(&format!("DELETE {BASE}/services/s"), 200, json!({"kind": "Status", "status": "Success"}))
        .on(
            &format!("GET {BASE}/configmaps?fieldSelector=metadata.name%3Dc"),
            200,
            json!({"items": [], "metadata": {}}),
        )
        .on(&format!("GET {BASE}/services?fieldSelector=metadata.name%3Ds"), 200, json!({"items": [], "metadata": {}}))
}

/// Clauses: G03.all, G03.undo
#[tokio::test]
async fn applies_in_order_and_undoes() {
    let home = tempfile::tempdir().unwrap();
    let s = both((201, object("Service", "s", "u2", "6", &json!({}))));
    let (code, out, err) = run(&s, &home, "apply --atomic -f -", FILE).await;
    assert_eq!(
        (code, out.as_str(), err.as_str()),
        (0, "configmap/c created\nservice/s created\n", "'kubectl undo' takes this back\n")
    );
    let (_, out, _) = run(&s, &home, "undo --list", "").await;
    assert_eq!(out, "ID                    AGE   OBJECTS\n20261121-120000-000   0s    configmap/c,service/s\n");
    let (code, out, err) = run(&s, &home, "undo", "").await;
    assert_eq!((code, out.as_str(), err.as_str()), (0, "service/s deleted\nconfigmap/c deleted\n", ""));
    assert_eq!(s.body_of(&format!("DELETE {BASE}/configmaps/c"))["preconditions"], json!({"uid": "u1"}));
    let (code, _, err) = run(&s, &home, "undo", "").await;
    assert_eq!((code, err.starts_with("error: no atomic apply of this machine")), (1, true), "{err}");
}

/// An apply without changes leaves no record.
#[tokio::test]
async fn apply_without_changes_leaves_no_record() {
    let home = tempfile::tempdir().unwrap();
    let applied = "{\"apiVersion\":\"v1\",\"data\":{\"k\":\"v\"},\"kind\":\"ConfigMap\",\"metadata\":{\"annotations\":{},\"name\":\"c\",\"namespace\":\"default\"}}\n";
    let mut there = object("ConfigMap", "c", "u1", "5", &json!({"data": {"k": "v"}}));
    there["metadata"]["annotations"] = json!({LAST_APPLIED: applied});
    let s = Server::new().on(&format!("GET {BASE}/configmaps/c"), 200, there);
    let file = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {k: v}\n";
    let (code, out, err) = run(&s, &home, "apply --atomic -f -", file).await;
    let output = "nothing to do: everything is as the files say\n";
    assert_eq!((code, out.as_str(), err.as_str()), (0, "configmap/c unchanged\n", output));
    assert_eq!(run(&s, &home, "undo --list", "").await.1, "ID   AGE   OBJECTS\n");
}

/// A patch that the server applies without a change is no change: the keys of a strategy that lacks its type are such a patch.
#[tokio::test]
async fn patch_without_effect_is_unchanged() {
    let home = tempfile::tempdir().unwrap();
    let file = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"annotations": {}, "name": "d", "namespace": "default"},
        "spec": {"strategy": {"rollingUpdate": {"maxSurge": 1}}}});
    let mut there = file.clone();
    there["metadata"] = json!({"name": "d", "namespace": "default", "uid": "u1", "resourceVersion": "5", "generation": 1,
        "annotations": {LAST_APPLIED: format!("{file}\n")}});
    there["spec"]["strategy"]["type"] = json!("RollingUpdate");
    there["spec"]["replicas"] = json!(1);
    there["status"] = json!({"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1});
    let url = "/apis/apps/v1/namespaces/default/deployments/d";
    let s = Server::new()
        .on(&format!("GET {url}"), 200, there.clone())
        .on(&format!("PATCH {url}?{DRY_RUN}"), 200, there.clone())
        .on(&format!("PATCH {url}?{WRITE}"), 200, there);
    let (code, out, err) = run(&s, &home, "apply --atomic -f -", &file.to_string()).await;
    assert_eq!(
        s.body_of(&format!("PATCH {url}?{WRITE}"))["spec"]["strategy"],
        json!({"$retainKeys": ["rollingUpdate"]})
    );
    let output = "nothing to do: everything is as the files say\n";
    assert_eq!((code, out.as_str(), err.as_str()), (0, "deployment.apps/d unchanged\n", output));
}

/// Clauses: G03.rollback
#[tokio::test]
async fn failure_undoes_everything() {
    let home = tempfile::tempdir().unwrap();
    let s = both((403, refused(403, "Forbidden", "no services today")));
    let (code, out, err) = run(&s, &home, "apply --atomic -f -", FILE).await;
    assert_eq!((code, out.as_str()), (1, "configmap/c created\nconfigmap/c deleted\n"), "{err}");
    assert_eq!(
        err,
        "failed, taking everything back\nError from server (Forbidden): error when creating \"STDIN\": no services today\n"
    );
    assert!(!s.requests().contains(&format!("DELETE {BASE}/services/s")));
}

/// Clauses: G03.rehearsal, G03.confirm
#[tokio::test]
async fn dry_run_of_all_objects_precedes_writes() {
    let home = tempfile::tempdir().unwrap();
    let s = both((201, json!({})));
    for (line, input, expected) in [
        ("apply --atomic --dry-run=server -f -", FILE.to_owned(), "--dry-run cannot be used with --atomic"),
        ("apply --atomic -o json -f -", FILE.to_owned(), "--atomic prints names only"),
        ("apply --confirm -f -", FILE.to_owned(), "--confirm only works with --atomic"),
        (
            "apply --atomic -f -",
            format!("{FILE}---\napiVersion: e.com/v1\nkind: Frob\nmetadata: {{name: x}}\n"),
            "nothing was changed",
        ),
        ("apply --atomic -f -", format!("{FILE}---\na: [\n"), "error parsing STDIN"),
        (
            "apply --atomic -f -",
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {generateName: x}\n".to_owned(),
            "without a name",
        ),
    ] {
        let (code, _, err) = run(&s, &home, line, &input).await;
        assert!(code == 1 && err.contains(expected), "{line}: {err}");
    }
    let written = |s: &Server| s.requests().into_iter().any(|l| l.starts_with("POST") && !l.contains("dryRun"));
    assert!(!written(&s));
    // The answer follows the files on standard input.
    let file = home.path().join("f.yaml");
    std::fs::write(&file, FILE).unwrap();
    let line = format!("apply --atomic --confirm -f {}", file.display());
    let s = both((201, object("Service", "s", "u2", "6", &json!({}))));
    let (code, out, err) = run(&s, &home, &line, "n\n").await;
    assert!(out.contains("+  k: v") && out.contains("+kind: Service") && out.ends_with("(y/N): "), "{out}");
    assert_eq!((code, err.as_str(), written(&s)), (1, "error: not confirmed, nothing was changed\n", false));
    let s = both((201, object("Service", "s", "u2", "6", &json!({}))));
    let (code, out, err) = run(&s, &home, &line, "y\n").await;
    assert!(code == 0 && out.ends_with("(y/N): configmap/c created\nservice/s created\n") && written(&s), "{out}{err}");
}

/// Clauses: G03.refused, G03.restored
#[tokio::test]
async fn undo_restores_objects_and_refuses_changed_ones() {
    let home = tempfile::tempdir().unwrap();
    let file = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {k: new, n: x}\n";
    let get = format!("GET {BASE}/configmaps/c");
    let applied = "{\"apiVersion\":\"v1\",\"data\":{\"k\":\"old\"},\"kind\":\"ConfigMap\",\"metadata\":{\"annotations\":{},\"name\":\"c\",\"namespace\":\"default\"}}\n";
    let with = |version: &str, data: Value, applied: &str| {
        let mut v = object("ConfigMap", "c", "u1", version, &json!({"data": data}));
        v["metadata"]["annotations"] = json!({LAST_APPLIED: applied});
        v
    };
    let old = with("1", json!({"k": "old", "theirs": "1"}), applied);
    let new = with("2", json!({"k": "new", "n": "x", "theirs": "1"}), "later");
    let server = |now: Value| {
        Server::new()
            .on(&format!("PATCH {BASE}/configmaps/c?{DRY_RUN}"), 200, new.clone())
            .on(&format!("PATCH {BASE}/configmaps/c?{WRITE}"), 200, new.clone())
            .on(&get, 200, old.clone())
            .on(&get, 200, old.clone())
            .on(&get, 200, old.clone())
            .on(&get, 200, old.clone())
            .on(&get, 200, now)
    };
    let s = server(with("7", json!({"k": "mine", "n": "x"}), "later"));
    assert_eq!(run(&s, &home, "apply --atomic -f -", file).await.1, "configmap/c configured\n");
    let (code, _, err) = run(&s, &home, "undo", "").await;
    assert_eq!(
        (code, err.as_str()),
        (1, "nothing was changed\nerror: configmap/c was changed by somebody else since: .data.k\n")
    );
    // Changes of others to other fields stay.
    let undo = format!("PATCH {BASE}/configmaps/c?fieldManager=kubectl-client-side-apply");
    let now = with("9", json!({"k": "new", "n": "x", "theirs": "2", "more": "1"}), "later");
    let s = Server::new().on(&get, 200, now).on(&undo, 200, old.clone());
    let (code, out, err) = run(&s, &home, "undo", "").await;
    assert_eq!((code, out.as_str(), err.as_str()), (0, "configmap/c restored\n", ""));
    let metadata = json!({"resourceVersion": "9", "annotations": {LAST_APPLIED: applied}});
    assert_eq!(s.body_of(&undo), json!({"data": {"k": "old", "n": null}, "metadata": metadata}));
}

/// Clauses: G03.strangers
#[tokio::test]
async fn undo_keeps_a_namespace_with_objects_of_others() {
    let home = tempfile::tempdir().unwrap();
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n", "uid": "u", "resourceVersion": "1"}});
    let get = "GET /api/v1/namespaces/n";
    let missing = refused(404, "NotFound", "namespaces \"n\" not found");
    let s = Server::new()
        .on(&format!("POST /api/v1/namespaces?{DRY_RUN}"), 201, namespace.clone())
        .on(&format!("POST /api/v1/namespaces?{WRITE}"), 201, namespace.clone())
        .on(get, 404, missing.clone())
        .on(get, 404, missing.clone())
        .on(get, 404, missing.clone())
        .on(get, 404, missing)
        .on(get, 200, namespace)
        .on("DELETE /api/v1/namespaces/n", 200, json!({"kind": "Status", "status": "Success"}))
        .on("GET /api/v1/namespaces?fieldSelector=metadata.name%3Dn", 200, json!({"items": [], "metadata": {}}));
    let (code, out, err) =
        run(&s, &home, "apply --atomic -f -", "apiVersion: v1\nkind: Namespace\nmetadata: {name: \"n\"}\n").await;
    assert_eq!((code, out.as_str()), (0, "namespace/n created\n"), "{err}");
    let list = "GET /api/v1/namespaces/n/configmaps";
    let item = |name: &str| json!({"metadata": {"name": name, "namespace": "n"}});
    let s = s.on(list, 200, json!({"items": [item("kube-root-ca.crt"), item("theirs")], "metadata": {}})).on(
        list,
        200,
        json!({"items": [item("kube-root-ca.crt")], "metadata": {}}),
    );
    let (code, _, err) = run(&s, &home, "undo", "").await;
    let expected = "nothing was changed\nerror: Namespace \"n\" holds objects of others: configmap/theirs\n";
    assert_eq!((code, err.as_str()), (1, expected));
    let (code, out, err) = run(&s, &home, "undo", "").await;
    assert_eq!((code, out.as_str()), (0, "namespace/n deleted\n"), "{err}");
}

/// Clauses: G03.wait
#[tokio::test]
async fn waits_for_readiness_and_undoes_on_timeout() {
    let home = tempfile::tempdir().unwrap();
    let pod = |status: Value| object("Pod", "p", "u", "1", &json!({"status": status}));
    let get = format!("GET {BASE}/pods/p");
    let server = |last: Value| {
        let mut s = Server::new().on(&format!("POST {BASE}/pods?{DRY_RUN}"), 201, pod(json!({}))).on(
            &format!("POST {BASE}/pods?{WRITE}"),
            201,
            pod(json!({})),
        );
        for _ in 0..4 {
            s = s.on(&get, 404, refused(404, "NotFound", "pods \"p\" not found"));
        }
        s.on(&get, 200, pod(json!({"phase": "Pending"})))
            .on(&get, 200, last)
            .on(&format!("DELETE {BASE}/pods/p"), 200, json!({"kind": "Status", "status": "Success"}))
            .on(&format!("GET {BASE}/pods?fieldSelector=metadata.name%3Dp"), 200, json!({"items": [], "metadata": {}}))
    };
    let file = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n";
    let ready = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
    let (code, out, _) = run(&server(pod(ready)), &home, "apply --atomic -f -", file).await;
    assert_eq!((code, out.as_str()), (0, "pod/p created\npod/p: is not ready\npod/p is ready\n"));
    let failed = json!({"phase": "Failed", "reason": "Evicted"});
    let (code, out, err) = run(&server(pod(failed)), &home, "apply --atomic -f -", file).await;
    assert_eq!((code, out.as_str()), (1, "pod/p created\npod/p: is not ready\npod/p: Evicted\npod/p deleted\n"));
    assert_eq!(err, "failed, taking everything back\nerror: pod/p: Evicted\n");
    let pending = pod(json!({"phase": "Pending"}));
    let (code, _, err) = run(&server(pending), &home, "apply --atomic --timeout 100ms -f -", file).await;
    assert!(code == 1 && err.ends_with("error: timed out waiting for pod/p: is not ready\n"), "{err}");
}
