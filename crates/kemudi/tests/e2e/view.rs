//! `kubectl get` with all its output formats.

use crate::runner::Case;
use crate::story::Story;
use serde_json::{Value, json};

/// Older versions of kubectl always show managed fields.
pub const OWN: &[Case] = &[("view::hides_managed_fields", hides_managed_fields)];
pub const TESTS: &[Case] = &[("view::prints_every_form", prints_every_form), ("view::selects", selects)];

/// Clauses: A03.yaml A03.json A03.name A03.wide A03.jsonpath A03.custom-columns
fn prints_every_form(s: &Story) {
    s.apply("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: c\n  labels: {tier: web}\ndata: {a: \"1\", b: two}\n");
    let get = |form: &str| s.ok(&["get", "configmap", "c", "-o", form]);
    assert_eq!(get("name"), "configmap/c\n");
    assert_eq!(get("jsonpath={.data.a}-{.data['b']}"), "1-two");
    assert_eq!(
        get("custom-columns=NAME:.metadata.name,B:.data.b,NONE:.data.z"),
        "NAME   B     NONE\nc      two   <none>\n"
    );
    let whole: Value = serde_json::from_str(&get("json")).unwrap();
    assert_eq!((&whole["kind"], &whole["data"]), (&json!("ConfigMap"), &json!({"a": "1", "b": "two"})));
    let yaml = get("yaml");
    assert!(yaml.starts_with("apiVersion: v1\ndata:\n  a: \"1\"\n  b: two\nkind: ConfigMap\nmetadata:\n"), "{yaml}");

    let table = s.ok(&["get", "configmaps", "--selector", "tier=web", "-L", "tier"]);
    let lines: Vec<Vec<&str>> = table.lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["NAME", "DATA", "AGE", "TIER"]);
    assert_eq!((lines[1][0], lines[1][1], lines[1][3], lines.len()), ("c", "2", "web", 2), "{table}");
    s.pod("p", json!({"schedulerName": "nobody"}), vec![json!({"name": "c"})]);
    let wide = s.ok(&["get", "pods", "-o", "wide"]);
    assert!(
        wide.starts_with(
            "NAME   READY   STATUS    RESTARTS   AGE   IP       NODE     NOMINATED NODE   READINESS GATES\n"
        ),
        "{wide}"
    );
    assert!(wide.contains("p      0/1     Pending   0"), "{wide}");
    assert_eq!(s.fails(&["get", "pod", "none"]), "Error from server (NotFound): pods \"none\" not found\n");
}

/// Clauses: A03.managed-fields
fn hides_managed_fields(s: &Story) {
    s.apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {a: \"1\"}\n");
    let get = |more: &[&str]| -> Value {
        let text = s.ok(&[&["get", "configmap", "c", "-o", "json"], more].concat());
        serde_json::from_str::<Value>(&text).unwrap()["metadata"]["managedFields"].clone()
    };
    assert!(get(&[]).is_null());
    let entry = get(&["--show-managed-fields"])[0].clone();
    assert_eq!((&entry["manager"], &entry["operation"]), (&json!("kubectl-client-side-apply"), &json!("Update")));
}

/// Clauses: K04.equality K04.set-based K04.change
fn selects(s: &Story) {
    for (name, environment, tier) in
        [("a", "production", "frontend"), ("b", "production", "backend"), ("c", "qa", "frontend")]
    {
        let labels = json!({"environment": environment, "tier": tier});
        s.create("configmaps", json!({"metadata": {"name": name, "labels": labels}}));
    }
    let selected = |selector: &str| {
        let out = s.ok(&["get", "configmaps", "-l", selector, "-o", "name"]);
        out.lines().map(|l| l.trim_start_matches("configmap/").to_owned()).collect::<Vec<_>>().concat()
    };
    for (selector, expected) in [
        ("environment=production,tier=frontend", "a"),
        ("environment==qa", "c"),
        ("environment in (production),tier in (frontend)", "a"),
        ("environment in (production, qa)", "abc"),
        ("environment,environment notin (production)", "c"),
        ("environment,tier!=frontend", "b"),
        ("tier,!environment", ""),
    ] {
        assert_eq!(selected(selector), expected, "{selector}");
    }
    assert_eq!(s.ok(&["label", "configmap", "c", "environment=production", "--overwrite"]), "configmap/c labeled\n");
    assert_eq!(selected("environment=production"), "abc");
    s.fails(&["label", "configmap", "c", "environment=qa"]);
    s.ok(&["label", "configmap", "c", "environment-"]);
    assert_eq!(selected("!environment,tier"), "c");
}
