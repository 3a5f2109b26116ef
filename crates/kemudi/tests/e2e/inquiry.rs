//! Commands that read: raw paths, schemas, discovery, permissions, conditions, events; completion and plugins.

use crate::handover::editor;
use crate::runner::Case;
use crate::story::{Story, refused, text};
use serde_json::{Value, json};

pub const TESTS: &[Case] = &[
    ("inquiry::raw_paths", raw_paths),
    ("inquiry::explain_follows_fields", explain_follows_fields),
    ("inquiry::lists_resources_and_versions", lists_resources_and_versions),
    ("inquiry::checks_permissions", checks_permissions),
    ("inquiry::reconcile_only_adds", reconcile_only_adds),
    ("inquiry::waiting_for_values_and_creation", waiting_for_values_and_creation),
    ("inquiry::events_of_an_object", events_of_an_object),
    ("inquiry::completion_and_plugins", completion_and_plugins),
];

/// Clauses: A16.get-raw A16.create-raw A16.replace-raw A16.delete-raw
fn raw_paths(s: &Story) {
    let version: Value = serde_json::from_str(&s.ok(&["get", "--raw", "/version"])).unwrap();
    assert_eq!(version["minor"], "36");
    assert_eq!(s.ok(&["get", "--raw", "/readyz"]).trim(), "ok");
    // Every step of the start is a check by its upstream name, which monitors request.
    let checks = s.ok(&["get", "--raw", "/livez?verbose"]);
    for step in ["rbac/bootstrap-roles", "start-apiextensions-controllers", "start-service-ip-repair-controllers"] {
        assert!(checks.contains(&format!("[+]poststarthook/{step} ok\n")), "{step} in {checks}");
        assert_eq!(s.ok(&["get", "--raw", &format!("/healthz/poststarthook/{step}")]).trim(), "ok");
    }
    let checks = s.ok(&["get", "--raw", "/healthz?verbose"]);
    for service in
        ["controller-manager/deployment-controller", "scheduler/scheduler", "node/kubelet", "node/dns", "listeners/api"]
    {
        assert!(checks.contains(&format!("[+]service/{service} ok\n")), "{service} in {checks}");
    }
    let indicators = s.ok(&["get", "--raw", "/metrics/slis"]);
    for line in [
        "kubernetes_healthcheck{name=\"etcd\",type=\"readyz\"} 1",
        "kubernetes_healthchecks_total{name=\"poststarthook/rbac/bootstrap-roles\",status=\"success\",type=\"livez\"}",
    ] {
        assert!(indicators.contains(line), "{line} in {indicators}");
    }
    let list = format!("/api/v1/namespaces/{}/configmaps", s.ns);
    let one = format!("{list}/c");
    let of = |data: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": data});
    s.file("c.json", &of(json!({"a": "1"})).to_string());
    let made: Value = serde_json::from_str(&s.ok(&["create", "--raw", &list, "-f", "c.json"])).unwrap();
    assert_eq!(made["metadata"]["name"], "c");
    let o = s.with_input(&["replace", "--raw", &one, "-f", "-"], &of(json!({"a": "2"})).to_string());
    text(&[], &o);
    assert_eq!(s.get("configmaps/c")["data"]["a"], "2");
    let items: Value =
        serde_json::from_str(&s.ok(&["get", "--raw", &format!("{list}?fieldSelector=metadata.name=c")])).unwrap();
    assert_eq!(items["items"].as_array().unwrap().len(), 1);
    s.ok(&["delete", "--raw", &one]);
    s.gone("configmaps/c");
    assert!(s.fails(&["get", "--raw", &one]).contains("configmaps \"c\" not found"));
    s.fails(&["create", "--raw", &list, "-f", "c.json", "-f", "c.json"]);
}

/// Clauses: A16.explain A16.explain-nested A16.explain-recursive A16.explain-custom
fn explain_follows_fields(s: &Story) {
    let whole = s.ok(&["explain", "deployments"]);
    assert!(whole.starts_with("GROUP:      apps\nKIND:       Deployment\nVERSION:    v1\n"), "{whole}");
    assert!(whole.contains("\n  spec\t<DeploymentSpec>\n"), "{whole}");
    let field = s.ok(&["explain", "deployment.spec.strategy.rollingUpdate.maxSurge"]);
    assert!(field.contains("\nFIELD: maxSurge <IntOrString>\n"), "{field}");
    let all = s.ok(&["explain", "pod.spec.containers", "--recursive"]);
    assert!(all.contains("\nFIELD: containers <[]Container>\n"), "{all}");
    assert!(all.contains("\n  livenessProbe\t<Probe>\n    exec\t<ExecAction>\n      command\t<[]string>\n"), "{all}");
    assert!(s.fails(&["explain", "configmap.nope"]).contains("error: field \"nope\" does not exist"));
    assert!(s.fails(&["explain", "nope"]).contains("the server doesn't have a resource type \"nope\""));
    let old = s.ok(&["explain", "hpa.spec", "--api-version=autoscaling/v1"]);
    assert!(old.contains("targetCPUUtilizationPercentage"), "{old}");
}

/// Clauses: A16.api-resources A16.api-versions
fn lists_resources_and_versions(s: &Story) {
    let apps = s.ok(&["api-resources", "--api-group=apps", "-o", "name", "--sort-by=name"]);
    let expected = ["controllerrevisions", "daemonsets", "deployments", "replicasets", "statefulsets"];
    assert_eq!(apps, expected.map(|r| format!("{r}.apps\n")).concat());
    let table = s.ok(&["api-resources", "--namespaced=false", "--api-group=storage.k8s.io", "--verbs=list,watch"]);
    let lines: Vec<Vec<&str>> = table.lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["NAME", "SHORTNAMES", "APIVERSION", "NAMESPACED", "KIND"]);
    assert!(lines.contains(&vec!["storageclasses", "sc", "storage.k8s.io/v1", "false", "StorageClass"]), "{table}");
    let wide = s.ok(&["api-resources", "--api-group=batch", "-o", "wide", "--no-headers"]);
    assert!(
        wide.lines()
            .any(|l| l.starts_with("jobs ") && l.contains("create,delete,deletecollection") && l.ends_with("all")),
        "{wide}"
    );
    assert!(s.ok(&["api-resources", "--categories=all", "-o", "name"]).lines().any(|l| l == "pods"));
    let versions = s.ok(&["api-versions"]);
    let versions: Vec<&str> = versions.lines().collect();
    assert!(versions.is_sorted() && versions.contains(&"apps/v1") && versions.contains(&"v1"), "{versions:?}");
}

/// Clauses: A16.can-i A16.can-i-list A16.whoami
fn checks_permissions(s: &Story) {
    assert_eq!(s.ok(&["auth", "can-i", "create", "pods"]), "yes\n");
    let o = s.k(&["auth", "can-i", "create", "pods", "--as=nobody"]);
    assert_eq!((o.status.code(), String::from_utf8_lossy(&o.stdout).as_ref()), (Some(1), "no\n"));
    let o = s.k(&["auth", "can-i", "create", "pods", "--as=nobody", "--quiet"]);
    assert_eq!((o.status.code(), o.stdout.len()), (Some(1), 0));
    s.ok(&["create", "role", "reader", "--verb=get", "--resource=pods", "--resource-name=p"]);
    s.ok(&["create", "rolebinding", "reader", "--role=reader", "--user=ann"]);
    let may = |what: &[&str]| s.k(&[&["auth", "can-i", "--as=ann"], what].concat()).status.success();
    s.eventually("the binding", || may(&["get", "pods/p"]).then_some(()));
    assert!(!may(&["get", "pods/q"]) && !may(&["list", "pods"]) && !may(&["get", "pods/p", "--subresource=log"]));
    assert!(!may(&["get", "pods/p", "-n", "default"]) && may(&["get", "/version"]));
    let all = s.ok(&["auth", "can-i", "--list", "--as=ann"]);
    let line = all.lines().find(|l| l.starts_with("pods ")).unwrap_or_default();
    assert_eq!(line.split_whitespace().collect::<Vec<_>>(), ["pods", "[]", "[p]", "[get]"], "{all}");
    let me = s.ok(&["auth", "whoami", "--as=ann", "--as-group=team", "--as-user-extra=scopes=x"]);
    let me: Vec<Vec<&str>> = me.lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(
        me[..3],
        [vec!["ATTRIBUTE", "VALUE"], vec!["Username", "ann"], vec!["Groups", "[team", "system:authenticated]"]]
    );
    assert!(me.iter().any(|l| l.join(" ").ends_with("scopes [x]")), "{me:?}");
    let me: Value = serde_json::from_str(&s.ok(&["auth", "whoami", "--as=ann", "-o", "json"])).unwrap();
    assert_eq!((&me["kind"], &me["status"]["userInfo"]["username"]), (&json!("SelfSubjectReview"), &json!("ann")));
}

/// Clauses: A16.reconcile
fn reconcile_only_adds(s: &Story) {
    let role = |verb: &str| {
        let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": [verb]}]);
        let meta = json!({"name": "r", "namespace": s.ns});
        s.file(
            "role.json",
            &json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": meta, "rules": rules})
                .to_string(),
        );
    };
    let live =
        || s.get_at(&format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles/r", s.ns))["rules"].to_string();
    role("get");
    let dry = s.ok(&["auth", "reconcile", "-f", "role.json", "--dry-run=client"]);
    assert!(dry.starts_with("role.rbac.authorization.k8s.io/r reconciled"), "{dry}");
    assert_eq!(live(), "null");
    s.ok(&["auth", "reconcile", "-f", "role.json"]);
    role("list");
    let o = s.k(&["auth", "reconcile", "-f", "role.json"]);
    assert_eq!(text(&[], &o), "role.rbac.authorization.k8s.io/r reconciled\n");
    let output = String::from_utf8_lossy(&o.stderr).into_owned();
    assert!(output.contains("reconciliation required update") && output.contains("missing rules added"), "{output}");
    assert!(live().contains("get") && live().contains("list"), "{}", live());
    s.ok(&["auth", "reconcile", "-f", "role.json", "--remove-extra-permissions"]);
    assert!(!live().contains("get") && live().contains("list"), "{}", live());
}

/// Clauses: A16.wait-jsonpath A16.wait-create A16.wait-delete A16.wait-selector
fn waiting_for_values_and_creation(s: &Story) {
    s.ok(&["create", "configmap", "c", "--from-literal=a=1"]);
    s.ok(&["label", "configmap", "c", "x=y"]);
    assert_eq!(s.ok(&["wait", "configmap/c", "--for=jsonpath={.data.a}=1"]), "configmap/c condition met\n");
    assert_eq!(s.ok(&["wait", "configmap", "-l", "x=y", "--for=jsonpath={.data.a}"]), "configmap/c condition met\n");
    let output = s.fails(&["wait", "configmap/c", "--for=jsonpath={.data.a}=2", "--timeout=1s"]);
    assert!(output.contains("timed out waiting for the condition on configmaps/c"), "{output}");
    let waiting = |line: &[&str]| {
        let mut c = s.command(line);
        c.stdout(std::process::Stdio::piped()).spawn().unwrap()
    };
    let value = waiting(&["wait", "configmap/c", "--for=jsonpath={.data.a}=2", "--timeout=60s"]);
    let made = waiting(&["wait", "configmap/late", "--for=create", "--timeout=60s"]);
    s.patch("configmaps/c", json!({"data": {"a": "2"}}));
    s.create("configmaps", json!({"metadata": {"name": "late"}}));
    let output = |c: std::process::Child| text(&["wait"], &c.wait_with_output().unwrap());
    assert_eq!(output(value), "configmap/c condition met\n");
    assert_eq!(output(made), "configmap/late condition met\n");
    let gone = waiting(&["wait", "configmap/late", "--for=delete", "--timeout=60s"]);
    s.ok(&["delete", "configmap", "late"]);
    assert!(gone.wait_with_output().unwrap().status.success());
    let output = s.fails(&["wait", "configmap/none", "--for=jsonpath={.data.a}", "--timeout=1s"]);
    assert!(output.contains("configmaps \"none\" not found"), "{output}");
}

/// Clauses: A16.events A16.events-for A16.events-types
fn events_of_an_object(s: &Story) {
    for (name, reason, kind) in [("one", "Made", "Normal"), ("two", "Broke", "Warning")] {
        let about = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name, "namespace": s.ns});
        let now = jiff_now();
        s.create("events", json!({
            "metadata": {"name": format!("{name}.1"), "namespace": s.ns}, "involvedObject": about, "reason": reason,
            "type": kind, "message": format!("it {reason}"), "firstTimestamp": now, "lastTimestamp": now, "count": 1,
        }));
    }
    let rows = |more: &[&str]| {
        let table = s.ok(&[&["events", "--no-headers"], more].concat());
        table.lines().map(|l| l.split_whitespace().skip(1).collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
    };
    assert_eq!(rows(&["--for", "configmap/one"]), ["Normal Made ConfigMap/one it Made"]);
    assert_eq!(rows(&["--types=Warning"]), ["Warning Broke ConfigMap/two it Broke"]);
    assert_eq!(rows(&[]).len(), 2);
}

#[allow(clippy::disallowed_methods)] // events are shown by their age
fn jiff_now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Clauses: A16.completion A16.plugins A16.plugin-list
fn completion_and_plugins(s: &Story) {
    for shell in ["bash", "zsh", "fish"] {
        let script = s.ok(&["completion", shell]);
        assert!(script.contains("__complete") && script.contains("kubectl"), "{shell}: {script}");
    }
    let complete = |words: &[&str]| {
        let out = text(words, &s.bare(&[&["__complete"], words].concat()).output().unwrap());
        out.lines().map(|l| l.split('\t').next().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    assert!(complete(&["roll"]).contains(&"rollout".to_owned()));
    assert!(complete(&["get", "pods", "--outp"]).iter().any(|w| w.starts_with("--output")));
    s.ok(&["create", "configmap", "completed"]);
    assert!(complete(&["-n", &s.ns, "get", "configmap", "comp"]).contains(&"completed".to_owned()));

    let script = editor(s, "echo \"plugin $*\"; exit 7");
    let dir = s.dir.join("plugins");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::copy(&script, dir.join("kubectl-foo")).unwrap();
    std::fs::copy(&script, dir.join("kubectl-foo-bar_baz")).unwrap();
    let path = format!("{}:{}", dir.display(), std::env::var("PATH").unwrap());
    let run = |words: &[&str]| {
        let mut c = s.bare(words);
        c.env("PATH", &path).output().unwrap()
    };
    let output = |o: &std::process::Output| (o.status.code(), String::from_utf8_lossy(&o.stdout).into_owned());
    assert_eq!(output(&run(&["foo", "x", "--y"])), (Some(7), "plugin x --y\n".into()));
    assert_eq!(output(&run(&["foo", "bar-baz", "x"])), (Some(7), "plugin x\n".into()), "the longest name wins");
    let list = text(&[], &run(&["plugin", "list"]));
    assert!(list.contains(&dir.join("kubectl-foo").display().to_string()), "{list}");
    let none = refused(&[], &s.bare(&["none-such"]).output().unwrap());
    assert!(none.contains("unknown command \"none-such\" for \"kubectl\""), "{none}");
}
