//! Fields and objects that change owners: between the file and other clients, and between ways to manage an object.

use crate::runner::Case;
use crate::story::{Story, text};
use serde_json::{Value, json};

pub const TESTS: &[Case] = &[
    ("handover::last_applied_is_viewed", last_applied_is_viewed),
    ("handover::a_field_is_given_to_others", a_field_is_given_to_others),
    ("handover::last_applied_is_set", last_applied_is_set),
    ("handover::last_applied_is_edited", last_applied_is_edited),
    ("handover::from_commands_to_files", from_commands_to_files),
    ("handover::from_create_and_replace_to_apply", from_create_and_replace_to_apply),
    ("handover::apply_warns_about_foreign_objects", apply_warns_about_foreign_objects),
];

const LAST: &str = "kubectl.kubernetes.io/last-applied-configuration";

fn map(data: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\ndata: {data}\n")
}

fn applied(s: &Story, what: &str) -> Value {
    let live = s.get(what);
    serde_json::from_str(live["metadata"]["annotations"][LAST].as_str().unwrap_or("null")).unwrap()
}

/// Returns an editor command that runs a script on the file.
pub fn editor(s: &Story, script: &str) -> String {
    use std::os::unix::fs::PermissionsExt as _;
    s.file("editor", &format!("#!/bin/sh\n{script}\n"));
    let path = s.dir.join("editor");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path.display().to_string()
}

/// Clauses: A12.view
fn last_applied_is_viewed(s: &Story) {
    s.file("c.yaml", &map("{a: \"1\"}"));
    s.ok(&["apply", "-f", "c.yaml"]);
    let yaml = format!(
        "apiVersion: v1\ndata:\n  a: \"1\"\nkind: ConfigMap\nmetadata:\n  annotations: {{}}\n  name: c\n  namespace: {}\n",
        s.ns
    );
    assert_eq!(s.ok(&["apply", "view-last-applied", "configmap/c"]), yaml);
    assert_eq!(s.ok(&["apply", "view-last-applied", "-f", "c.yaml"]), yaml);
    let json = s.ok(&["apply", "view-last-applied", "configmap", "c", "-o", "json"]);
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), applied(s, "configmaps/c"));
    assert!(json.starts_with("{\n  \"apiVersion\": \"v1\",\n"), "{json}");
    let stderr = s.fails(&["apply", "view-last-applied", "configmap/none"]);
    assert!(stderr.contains("configmaps \"none\" not found"), "{stderr}");
    s.fails(&["apply", "view-last-applied", "configmap/c", "-o", "wide"]);
}

/// The documentation's example: giving a field to others takes two steps, because a field that is in the annotation and not
/// in the file is deleted.
fn a_field_is_given_to_others(s: &Story) {
    let with = |data: &str| s.apply(&map(data));
    let data = || s.get("configmaps/c")["data"].clone();
    with("{a: \"1\", b: \"1\"}");
    with("{a: \"1\"}");
    assert_eq!(data(), json!({"a": "1"}), "a field that is only taken out of the file is deleted");

    with("{a: \"1\", b: \"1\"}");
    let mut c = s.command(&["apply", "edit-last-applied", "configmap/c"]);
    c.env("KUBE_EDITOR", editor(s, "sed -i '/^  b:/d' \"$1\""));
    assert_eq!(text(&[], &c.output().unwrap()), "configmap/c edited\n");
    with("{a: \"1\"}");
    assert_eq!(data(), json!({"a": "1", "b": "1"}), "it belongs to others now");
    s.patch("configmaps/c", json!({"data": {"b": "2"}}));
    assert_eq!(with("{a: \"1\"}"), "configmap/c unchanged\n");
    // Back again: the file contains the field.
    with("{a: \"1\", b: \"3\"}");
    assert_eq!(data(), json!({"a": "1", "b": "3"}));
    with("{a: \"1\"}");
    assert_eq!(data(), json!({"a": "1"}));
}

/// Clauses: A12.set A12.set-create A12.set-dry-run
fn last_applied_is_set(s: &Story) {
    s.file("c.yaml", &map("{a: \"1\", b: \"1\"}"));
    s.ok(&["apply", "-f", "c.yaml"]);
    s.file("c.yaml", &map("{a: \"1\"}"));
    let set = |more: &[&str]| s.k(&[&["apply", "set-last-applied", "-f", "c.yaml"], more].concat());
    assert_eq!(text(&[], &set(&["--dry-run=client"])), "configmap/c configured (dry run)\n");
    assert_eq!(text(&[], &set(&["--dry-run=server"])), "configmap/c configured (server dry run)\n");
    assert_eq!(applied(s, "configmaps/c")["data"], json!({"a": "1", "b": "1"}));
    assert_eq!(text(&[], &set(&[])), "configmap/c configured\n");
    assert_eq!(applied(s, "configmaps/c")["data"], json!({"a": "1"}));
    assert_eq!(text(&[], &set(&[])), "set-last-applied c: no changes required.\n");
    s.ok(&["apply", "-f", "c.yaml"]);
    assert_eq!(s.get("configmaps/c")["data"], json!({"a": "1", "b": "1"}), "nothing but the annotation was set");

    s.ok(&["create", "configmap", "d"]);
    s.file("c.yaml", &map("{a: \"1\"}").replace("name: c", "name: d"));
    let o = set(&[]);
    let why = "error: no last-applied-configuration annotation found on resource: d, to create the annotation, run the \
               command with --create-annotation\n";
    assert_eq!((o.status.code(), String::from_utf8_lossy(&o.stderr).as_ref()), (Some(1), why));
    assert_eq!(text(&[], &set(&["--create-annotation=true"])), "configmap/d configured\n");
    assert_eq!(applied(s, "configmaps/d")["data"], json!({"a": "1"}));
    assert_eq!(s.get("configmaps/d")["data"], Value::Null);
}

/// Clauses: A12.edit A12.edit-refused
fn last_applied_is_edited(s: &Story) {
    s.apply(&map("{a: \"1\"}"));
    let edit = |script: &str, more: &[&str]| {
        let mut c = s.command(&[&["apply", "edit-last-applied", "configmap/c"], more].concat());
        c.env("KUBE_EDITOR", editor(s, script)).output().unwrap()
    };
    let before = applied(s, "configmaps/c");
    let o = edit("true", &[]);
    assert_eq!(o.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&o.stderr), "Edit cancelled, no changes made.\n");
    // A malformed file or one of another kind is not written.
    for script in ["echo '}{' > \"$1\"", "sed -i 's/apiVersion: v1/apiVersion: vone/' \"$1\""] {
        let o = edit(script, &[]);
        assert_eq!(o.status.code(), Some(1), "{script}: {}", String::from_utf8_lossy(&o.stdout));
        assert_eq!(applied(s, "configmaps/c"), before, "{script}");
    }
    let o = edit("sed -i 's/\"a\": \"1\"/\"a\": \"2\"/' \"$1\"", &["-o", "json"]);
    // The real one then prints the object in the format of the editor.
    text(&[], &o);
    assert_eq!(
        (&applied(s, "configmaps/c")["data"], &s.get("configmaps/c")["data"]),
        (&json!({"a": "2"}), &json!({"a": "1"}))
    );
    s.ok(&["create", "configmap", "bare"]);
    let stderr = s.fails(&["apply", "edit-last-applied", "configmap/bare"]);
    assert!(stderr.contains("no last-applied-configuration annotation found on resources"), "{stderr}");
}

/// The documentation's example: export, remove the status, `replace --save-config`, and from then on only `apply`.
fn from_commands_to_files(s: &Story) {
    s.ok(&["create", "deployment", "web", "--image=nginx:1.7.9", "--replicas=0"]);
    s.until("deployments/web", |d| d["status"]["observedGeneration"] == 1);
    let exported = s.eventually("an export that nobody is ahead of", || {
        let exported = s.ok(&["get", "deployment/web", "-o", "yaml"]);
        s.file("deployment_web.yaml", &exported);
        let o = s.k(&["replace", "--save-config", "-f", "deployment_web.yaml"]);
        (String::from_utf8_lossy(&o.stdout) == "deployment.apps/web replaced\n").then_some(exported)
    });
    assert_eq!(applied(s, "deployments/web")["spec"]["replicas"], 0);
    let mut file: Vec<&str> = exported.lines().take_while(|l| *l != "status:").collect();
    file.retain(|l| !l.starts_with("  resourceVersion:") && !l.starts_with("  generation:"));
    let file = file.join("\n").replace("image: nginx:1.7.9", "image: nginx:1.11.9");
    s.file("deployment_web.yaml", &file);
    assert_eq!(s.ok(&["apply", "-f", "deployment_web.yaml"]), "deployment.apps/web configured\n");
    let live = s.get("deployments/web");
    assert_eq!(live["spec"]["template"]["spec"]["containers"][0]["image"], "nginx:1.11.9");
    // The exported fields belong to the file from now on.
    let file: Vec<&str> = file.lines().filter(|l| !l.starts_with("  revisionHistoryLimit:")).collect();
    s.patch("deployments/web", json!({"spec": {"revisionHistoryLimit": 3}}));
    s.file("deployment_web.yaml", &file.join("\n"));
    s.ok(&["apply", "-f", "deployment_web.yaml"]);
    assert_eq!(s.get("deployments/web")["spec"]["revisionHistoryLimit"], 10);
}

/// Clauses: A13.create-save-config A13.replace-save-config A13.without
fn from_create_and_replace_to_apply(s: &Story) {
    s.file("c.yaml", &map("{a: \"1\", b: \"1\"}"));
    s.ok(&["create", "-f", "c.yaml"]);
    assert_eq!(applied(s, "configmaps/c"), Value::Null, "create and replace write no annotation by themselves");
    s.ok(&["replace", "-f", "c.yaml"]);
    assert_eq!(applied(s, "configmaps/c"), Value::Null);
    assert_eq!(s.ok(&["replace", "--save-config", "-f", "c.yaml"]), "configmap/c replaced\n");
    assert_eq!(applied(s, "configmaps/c")["data"], json!({"a": "1", "b": "1"}));
    s.file("c.yaml", &map("{a: \"1\"}"));
    assert_eq!(s.ok(&["apply", "-f", "c.yaml"]), "configmap/c configured\n");
    assert_eq!(s.get("configmaps/c")["data"], json!({"a": "1"}));
    s.ok(&["delete", "-f", "c.yaml"]);

    assert_eq!(s.ok(&["create", "--save-config", "-f", "c.yaml"]), "configmap/c created\n");
    assert_eq!(s.ok(&["apply", "-f", "c.yaml"]), "configmap/c unchanged\n");
    s.ok(&["create", "configmap", "made", "--from-literal=k=v", "--save-config"]);
    assert_eq!(applied(s, "configmaps/made")["data"], json!({"k": "v"}));
    s.ok(&["create", "deployment", "web", "--image=nginx", "--replicas=0", "--save-config"]);
    assert_eq!(applied(s, "deployments/web")["spec"]["replicas"], 0);
    // Other commands keep an existing annotation current.
    s.ok(&["scale", "deployment/web", "--replicas=0"]);
    s.ok(&["annotate", "deployment/web", "x=y"]);
    assert_eq!(applied(s, "deployments/web")["metadata"]["annotations"], Value::Null);
}

/// Clauses: A13.warning
fn apply_warns_about_foreign_objects(s: &Story) {
    s.ok(&["create", "configmap", "c", "--from-literal=a=1", "--from-literal=b=1"]);
    s.file("c.yaml", &map("{a: \"2\"}"));
    let o = s.k(&["apply", "-f", "c.yaml"]);
    assert_eq!(text(&[], &o), "configmap/c configured\n");
    let warning = format!(
        "Warning: resource configmaps/c is missing the {LAST} annotation which is required by kubectl apply. kubectl apply \
         should only be used on resources created declaratively by either kubectl create --save-config or kubectl apply. The \
         missing annotation will be patched automatically.\n"
    );
    assert_eq!(String::from_utf8_lossy(&o.stderr), warning);
    // Nothing records that `b` was ever applied, so it stays.
    assert_eq!(s.get("configmaps/c")["data"], json!({"a": "2", "b": "1"}));
    let o = s.k(&["apply", "-f", "c.yaml"]);
    assert_eq!((text(&[], &o).as_str(), o.stderr.len()), ("configmap/c unchanged\n", 0));
}
