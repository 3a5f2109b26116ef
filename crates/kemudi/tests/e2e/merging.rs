//! How apply merges the last applied, the new and the live configuration: the tables of the documentation, row by row, for
//! built-in kinds and custom resources; the patches that are sent; and defaults.

use crate::recorder::Recorder;
use crate::runner::Case;
use crate::story::Story;
use serde_json::{Value, json};

pub const TESTS: &[Case] = &[
    ("merging::tables_of_built_in_kinds", tables_of_built_in_kinds),
    ("merging::tables_of_custom_resources", tables_of_custom_resources),
    ("merging::elements_of_primitive_lists", elements_of_primitive_lists),
    ("merging::patches_are_those_of_kubectl", patches_are_those_of_kubectl),
    ("merging::patch_directives_are_applied", patch_directives_are_applied),
    ("merging::defaults_become_visible", defaults_become_visible),
    ("merging::strategy_can_be_switched", strategy_can_be_switched),
    ("merging::null_removes_values_of_others", null_removes_values_of_others),
];

/// A row: the value in the file, the value that others set before (`None`: unchanged), the last applied value, and the
/// result. Null means absent.
struct Row(&'static str, Value, Option<Value>, Value, Value);

const NO: Value = Value::Null;

fn primitives() -> Vec<Row> {
    vec![
        Row("file yes, live yes", json!(5), None, json!(3), json!(5)),
        Row("file yes, live changed by others", json!(5), Some(json!(7)), json!(3), json!(5)),
        Row("file yes, live yes, never applied", json!(5), Some(json!(7)), NO, json!(5)),
        Row("file yes, live no", json!(5), None, NO, json!(5)),
        Row("file yes, taken away by others", json!(5), Some(NO), json!(5), json!(5)),
        Row("file no, applied last", NO, None, json!(3), NO),
        Row("file no, applied last, changed by others", NO, Some(json!(7)), json!(3), NO),
        Row("file no, never applied", NO, Some(json!(7)), NO, json!(7)),
    ]
}

fn maps() -> Vec<Row> {
    let ab = || json!({"a": "1", "b": "2"});
    vec![
        Row("key in file and live", json!({"a": "2"}), None, json!({"a": "1"}), json!({"a": "2"})),
        Row("key in file, not live", json!({"a": "2", "b": "2"}), None, json!({"a": "2"}), json!({"a": "2", "b": "2"})),
        Row("key not in file, applied last", json!({"a": "1"}), None, ab(), json!({"a": "1"})),
        Row(
            "key not in file, of others",
            json!({"a": "1"}),
            Some(json!({"b": "3"})),
            json!({"a": "1"}),
            json!({"a": "1", "b": "3"}),
        ),
        Row("the map is in the file no more", NO, None, ab(), NO),
        // The patch removes the map with the keys of others.
        Row("the map is in the file no more, others have a key", NO, Some(json!({"c": "3"})), ab(), NO),
        Row("the map is of others", NO, Some(ab()), NO, ab()),
        Row("the map is new", ab(), None, NO, ab()),
    ]
}

/// One field of a kind, and how tests write, change and read it.
struct Field<'a> {
    /// The manifest of an object with this name and this value.
    manifest: &'a dyn Fn(&str, &Value) -> String,
    /// The merge patch with which others change it.
    patch: &'a dyn Fn(&Value) -> Value,
    read: &'a dyn Fn(&Value) -> Value,
}

/// Applies all rows, an object each, with one command for each step: kubectl merges every object by itself.
fn check(s: &Story, resource: &str, tables: &[(&str, &Field<'_>, Vec<Row>)]) {
    let all = || {
        tables.iter().flat_map(|(what, field, rows)| {
            rows.iter().enumerate().map(move |(n, row)| (format!("{what}{n}"), *what, field, row))
        })
    };
    let apply = |value: fn(&Row) -> &Value| {
        let manifests = all().map(|(name, _, field, row)| (field.manifest)(&name, value(row)));
        let items = manifests.collect::<Vec<_>>().join(",");
        s.apply(&format!("{{\"apiVersion\":\"v1\",\"kind\":\"List\",\"items\":[{items}]}}"))
    };
    let last: fn(&Row) -> &Value = |row| &row.3;
    let file: fn(&Row) -> &Value = |row| &row.1;
    apply(last);
    for (name, _, field, row) in all() {
        if let Some(v) = &row.2 {
            s.patch_at(&format!("{resource}/{name}"), (field.patch)(v));
        }
    }
    apply(file);
    for (name, what, field, Row(title, _, _, _, expected)) in all() {
        assert_eq!((field.read)(&s.get_at(&format!("{resource}/{name}"))), *expected, "{what}: {title}");
    }
    let again = apply(file);
    let lines: Vec<&str> = again.lines().collect();
    assert_eq!(lines.len(), all().count(), "{again}");
    for ((_, what, _, row), line) in all().zip(lines) {
        assert!(line.ends_with(" unchanged"), "{what}: {}, again: {line}", row.0);
    }
}

fn deployment(name: &str, spec: &Value, pod: &Value) -> String {
    let mut pod = pod.clone();
    pod["containers"] = json!([{"name": "nginx", "image": "nginx:1.7.9", "args": pod["args"]}]);
    if pod["args"].is_null() {
        pod["containers"][0].as_object_mut().unwrap().remove("args");
    }
    pod.as_object_mut().unwrap().remove("args");
    let mut spec = spec.clone();
    spec["replicas"] = 0.into();
    spec["selector"] = json!({"matchLabels": {"app": name}});
    spec["template"] = json!({"metadata": {"labels": {"app": name}}, "spec": pod});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}).to_string()
}

/// Returns an object with or without the field.
fn with(key: &str, v: &Value) -> Value {
    if v.is_null() { json!({}) } else { json!({key: v}) }
}

/// Clauses: A08.strategic A09.primitives A09.objects A09.maps A10.replaced
fn tables_of_built_in_kinds(s: &Story) {
    let resource = format!("/apis/apps/v1/namespaces/{}/deployments", s.ns);
    let primitive = Field {
        manifest: &|n, v| deployment(n, &with("minReadySeconds", v), &json!({})),
        patch: &|v| json!({"spec": {"minReadySeconds": v}}),
        read: &|o| o["spec"]["minReadySeconds"].clone(),
    };
    let map = Field {
        manifest: &|n, v| deployment(n, &json!({}), &with("nodeSelector", v)),
        patch: &|v| json!({"spec": {"template": {"spec": {"nodeSelector": v}}}}),
        read: &|o| o["spec"]["template"]["spec"]["nodeSelector"].clone(),
    };
    // An object: its fields are merged one by one, down to primitives. The server's own empty object counts as absent.
    let object = Field {
        manifest: &|n, v| deployment(n, &json!({}), &with("securityContext", v)),
        patch: &|v| json!({"spec": {"template": {"spec": {"securityContext": v}}}}),
        read: &|o| match &o["spec"]["template"]["spec"]["securityContext"] {
            v if *v == json!({}) => NO,
            v => v.clone(),
        },
    };
    let (user, both) = (json!({"runAsUser": 1}), json!({"runAsUser": 1, "runAsGroup": 2}));
    let deep = |level: &str| json!({"seLinuxOptions": {"level": level, "role": "r"}});
    let objects = vec![
        Row("field in file and live", json!({"runAsUser": 3}), None, user.clone(), json!({"runAsUser": 3})),
        Row("field in file, not live", both.clone(), None, user.clone(), both.clone()),
        Row("field not in file, applied last", user.clone(), None, both.clone(), user.clone()),
        Row("field of others", user.clone(), Some(json!({"runAsGroup": 2})), user.clone(), both.clone()),
        Row("the object is new", both.clone(), None, NO, both.clone()),
        Row("the object is in the file no more", NO, None, both.clone(), NO),
        Row("the object is of others", NO, Some(both.clone()), NO, both),
        Row(
            "fields of fields",
            deep("2"),
            Some(json!({"seLinuxOptions": {"user": "u"}})),
            deep("1"),
            json!({"seLinuxOptions": {"level": "2", "role": "r", "user": "u"}}),
        ),
    ];
    // A list without merge key is replaced completely, in the order of the file.
    let list = Field {
        manifest: &|n, v| deployment(n, &json!({}), &with("args", v)),
        patch: &|v| {
            let container = json!({"name": "nginx", "image": "nginx:1.7.9", "args": v});
            json!({"spec": {"template": {"spec": {"containers": [container]}}}})
        },
        read: &|o| o["spec"]["template"]["spec"]["containers"][0]["args"].clone(),
    };
    let lists = vec![
        Row("the seed's args", json!(["a", "c"]), Some(json!(["a", "b", "d"])), json!(["a", "b"]), json!(["a", "c"])),
        Row("another order", json!(["b", "a"]), None, json!(["a", "b"]), json!(["b", "a"])),
        Row("no more", NO, Some(json!(["a", "d"])), json!(["a"]), NO),
        Row("of others", NO, Some(json!(["a"])), NO, json!(["a"])),
    ];
    let tables = [
        ("primitive", &primitive, primitives()),
        ("map", &map, maps()),
        ("object", &object, objects),
        ("list", &list, lists),
    ];
    check(s, &resource, &tables);
}

/// Clauses: A08.json A09.custom A10.custom
fn tables_of_custom_resources(s: &Story) {
    let group = format!("{}.example.com", s.ns);
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("widgets.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": open}}}}],
        },
    });
    s.apply(&crd.to_string());
    s.ok(&["wait", "--for=condition=Established", &format!("crd/widgets.{group}")]);
    let resource = format!("/apis/{group}/v1/namespaces/{}/widgets", s.ns);
    let field = &Field {
        manifest: &|name, v| {
            let (kind, metadata) = (format!("{group}/v1"), json!({"name": name}));
            json!({"apiVersion": kind, "kind": "Widget", "metadata": metadata, "spec": with("field", v)}).to_string()
        },
        patch: &|v| json!({"spec": {"field": v}}),
        read: &|o| o["spec"]["field"].clone(),
    };
    let list = |v: &[&str]| json!(v);
    let mut lists = vec![
        Row(
            "lists are replaced whole",
            list(&["a", "c"]),
            Some(list(&["a", "b", "d"])),
            list(&["a", "b"]),
            list(&["a", "c"]),
        ),
        Row("a list of others", NO, Some(list(&["a"])), NO, list(&["a"])),
    ];
    let items = |image: &str| json!([{"name": "x", "image": image}]);
    lists.push(Row(
        "objects in lists have no key",
        items("2"),
        Some(json!([{"name": "x", "args": ["run"]}])),
        items("1"),
        items("2"),
    ));
    let tables = [("primitive", field, primitives()), ("map", field, maps()), ("list", field, lists)];
    check(s, &resource, &tables);
    s.ok(&["delete", "crd", &format!("widgets.{group}")]);
}

/// The four rows for elements of a list that is merged as an ordered set. Clauses: A10.primitive
fn elements_of_primitive_lists(s: &Story) {
    let manifest = |list: &[&str]| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "finalizers": list}}).to_string()
    };
    let path = format!("/api/v1/namespaces/{}/configmaps/c", s.ns);
    s.apply(&manifest(&["e2e/both", "e2e/gone"]));
    s.patch_at(&path, json!({"metadata": {"finalizers": ["e2e/both", "e2e/gone", "e2e/others"]}}));
    s.apply(&manifest(&["e2e/new", "e2e/both"]));
    let live = s.get_at(&path)["metadata"]["finalizers"].clone();
    s.patch_at(&path, json!({"metadata": {"finalizers": null}}));
    // In the order of the file; the documentation does not define the position of others' elements, and upstream appends
    // them.
    assert_eq!(live, json!(["e2e/new", "e2e/both", "e2e/others"]));
}

const LAST: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Clauses: A10.merged A08.patch A08.set-element-order A08.delete-from-primitive-list A08.retain-keys A10.helpers
fn patches_are_those_of_kubectl(s: &Story) {
    let recorder = Recorder::new(s);
    // Returns the patch that an apply sends, without the annotation, which A02 covers.
    let sent = |manifest: &str| {
        s.file("m", manifest);
        s.ok(&["--server", &recorder.address, "apply", "-f", "m"]);
        let mut written = recorder.take();
        assert_eq!(written.len(), 1, "{written:?}");
        let mut w = written.remove(0);
        let annotations = w.body["metadata"]["annotations"].as_object_mut().unwrap();
        assert!(annotations.remove(LAST).is_some());
        if annotations.is_empty() {
            w.body["metadata"].as_object_mut().unwrap().remove("annotations");
        }
        if w.body["metadata"] == json!({}) {
            w.body.as_object_mut().unwrap().remove("metadata");
        }
        w
    };
    let of = |containers: Value, spec: Value| {
        let mut o: Value = serde_json::from_str(&deployment("d", &spec, &json!({}))).unwrap();
        o["spec"]["template"]["spec"]["containers"] = containers;
        o.to_string()
    };
    let c = |name: &str| json!({"name": name, "image": "helper:1.3"});
    let created = sent(&of(json!([c("nginx"), c("nginx-helper-a"), c("nginx-helper-b")]), json!({})));
    assert_eq!((created.method.as_str(), created.body["kind"].as_str()), ("POST", Some("Deployment")));
    let others = r#"{"spec":{"template":{"spec":{"containers":[
        {"name":"nginx-helper-b","args":["run"]},{"name":"nginx-helper-d","image":"helper:1.3"}]}}}}"#;
    s.ok(&["patch", "deployment", "d", "-p", others]);

    let now = json!([c("nginx"), c("nginx-helper-b"), c("nginx-helper-c")]);
    let patched = sent(&of(now.clone(), json!({})));
    assert_eq!((patched.method.as_str(), patched.media.as_str()), ("PATCH", "application/strategic-merge-patch+json"));
    assert!(
        patched.path.ends_with("/deployments/d?fieldManager=kubectl-client-side-apply&fieldValidation=Strict"),
        "{}",
        patched.path
    );
    let expected = json!({"spec": {"template": {"spec": {
        "$setElementOrder/containers": [{"name": "nginx"}, {"name": "nginx-helper-b"}, {"name": "nginx-helper-c"}],
        "containers": [c("nginx-helper-c"), {"$patch": "delete", "name": "nginx-helper-a"}],
    }}}});
    assert_eq!(patched.body, expected);
    let live = s.get("deployments/d")["spec"]["template"]["spec"]["containers"].clone();
    let live: Vec<_> = live.as_array().unwrap().iter().map(|c| (c["name"].as_str().unwrap(), &c["args"])).collect();
    let run = json!(["run"]);
    assert_eq!(live, [("nginx", &NO), ("nginx-helper-b", &run), ("nginx-helper-c", &NO), ("nginx-helper-d", &NO)]);

    let switched = sent(&of(now.clone(), json!({"strategy": {"type": "Recreate"}})));
    // The container of others still exists, so the order is sent again.
    let order = expected["spec"]["template"]["spec"]["$setElementOrder/containers"].clone();
    let template = json!({"spec": {"$setElementOrder/containers": order}});
    let strategy = json!({"$retainKeys": ["type"], "type": "Recreate"});
    assert_eq!(switched.body, json!({"spec": {"strategy": strategy, "template": template}}));
    let removed = sent(&of(now, json!({})));
    assert_eq!(removed.body, json!({"spec": {"strategy": null, "template": template}}));

    let map = |f: &[&str]| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "finalizers": f}}).to_string()
    };
    sent(&map(&["e2e/a", "e2e/b"]));
    let list = sent(&map(&["e2e/c", "e2e/a"])).body;
    s.patch("configmaps/c", json!({"metadata": {"finalizers": null}}));
    let expected = json!({"metadata": {
        "$deleteFromPrimitiveList/finalizers": ["e2e/b"],
        "$setElementOrder/finalizers": ["e2e/c", "e2e/a"],
        "finalizers": ["e2e/c"],
    }});
    assert_eq!(list, expected);
}

/// Clauses: A08.directives A08.patch-replace A08.patch-delete A14.patch-strategic
fn patch_directives_are_applied(s: &Story) {
    let containers =
        json!([{"name": "a", "image": "i:1", "env": [{"name": "X", "value": "1"}]}, {"name": "b", "image": "i:1"}]);
    let mut o: Value =
        serde_json::from_str(&deployment("d", &json!({}), &json!({"nodeSelector": {"x": "1"}}))).unwrap();
    o["spec"]["template"]["spec"]["containers"] = containers;
    s.apply(&o.to_string());
    let template = |patch: Value| {
        let whole = json!({"spec": {"template": {"spec": patch}}}).to_string();
        assert_eq!(s.ok(&["patch", "deployment", "d", "-p", &whole]), "deployment.apps/d patched\n");
        s.get("deployments/d")["spec"]["template"]["spec"].clone()
    };
    let names = |t: &Value| {
        t["containers"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let t = template(
        json!({"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}], "containers": [{"name": "b", "image": "i:2"}]}),
    );
    assert_eq!((names(&t), &t["containers"][0]["image"]), (vec!["b".into(), "a".into()], &json!("i:2")));
    let t = template(json!({"nodeSelector": {"$patch": "replace", "y": "2"}}));
    assert_eq!(t["nodeSelector"], json!({"y": "2"}));
    let t = template(json!({"containers": [{"name": "a", "env": [{"name": "X", "$patch": "delete"}]}]}));
    assert_eq!(t["containers"].as_array().unwrap().iter().find(|c| c["name"] == "a").unwrap()["env"], NO);
    let t = template(json!({"containers": [{"$patch": "delete", "name": "b"}]}));
    assert_eq!(names(&t), ["a"]);
    let t = template(json!({"containers": [{"$patch": "replace"}, {"name": "z", "image": "i:3"}]}));
    assert_eq!(names(&t), ["z"]);
    let t = template(json!({"nodeSelector": {"$patch": "delete"}}));
    assert_eq!(t["nodeSelector"], NO);
    s.apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, finalizers: [e2e/a, e2e/b]}\n");
    s.ok(&["patch", "configmap", "c", "-p", r#"{"metadata":{"$deleteFromPrimitiveList/finalizers":["e2e/a"]}}"#]);
    let left = s.get("configmaps/c")["metadata"]["finalizers"].clone();
    s.patch("configmaps/c", json!({"metadata": {"finalizers": null}}));
    assert_eq!(left, json!(["e2e/b"]));
    s.fails(&["patch", "deployment", "d", "-p", r#"{"spec":{"template":{"$patch":"nonsense"}}}"#]);
    assert_eq!(names(&s.get("deployments/d")["spec"]["template"]["spec"]), ["z"]);
}

/// The documentation's list of fields that the server defaults, and how they change.
/// Clauses: A11.defaults A11.kept
fn defaults_become_visible(s: &Story) {
    let simple = crate::apply::SIMPLE.replace("  minReadySeconds: 5\n", "  minReadySeconds: 5\n  replicas: 0\n");
    // One replica is a default as well; the image does not matter here.
    s.file("simple.yaml", &crate::apply::SIMPLE.replace("nginx:1.7.9", "kemudi.local/demo:none"));
    s.ok(&["apply", "-f", "simple.yaml"]);
    let shown = s.ok(&["get", "-f", "simple.yaml", "-o", "json"]);
    let live: Value = serde_json::from_str(&shown).unwrap();
    let spec = &live["spec"];
    let container = &spec["template"]["spec"]["containers"][0];
    let pod = &spec["template"]["spec"];
    for (what, found, expected) in [
        ("replicas", &spec["replicas"], json!(1)),
        (
            "strategy",
            &spec["strategy"],
            json!({"rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}, "type": "RollingUpdate"}),
        ),
        ("imagePullPolicy", &container["imagePullPolicy"], json!("IfNotPresent")),
        ("protocol", &container["ports"][0]["protocol"], json!("TCP")),
        ("resources", &container["resources"], json!({})),
        ("terminationMessagePath", &container["terminationMessagePath"], json!("/dev/termination-log")),
        ("terminationMessagePolicy", &container["terminationMessagePolicy"], json!("File")),
        ("dnsPolicy", &pod["dnsPolicy"], json!("ClusterFirst")),
        ("restartPolicy", &pod["restartPolicy"], json!("Always")),
        ("securityContext", &pod["securityContext"], json!({})),
        ("terminationGracePeriodSeconds", &pod["terminationGracePeriodSeconds"], json!(30)),
        ("progressDeadlineSeconds", &spec["progressDeadlineSeconds"], json!(600)),
        ("revisionHistoryLimit", &spec["revisionHistoryLimit"], json!(10)),
        ("minReadySeconds", &spec["minReadySeconds"], json!(5)),
    ] {
        assert_eq!(*found, expected, "{what}");
    }
    // Others change a field that the server defaulted; a patch without the field leaves it.
    s.ok(&["patch", "deployment", "nginx-deployment", "-p", r#"{"spec":{"revisionHistoryLimit":3}}"#]);
    s.file("simple.yaml", &simple.replace("nginx:1.7.9", "kemudi.local/demo:none"));
    s.ok(&["apply", "-f", "simple.yaml"]);
    let spec = s.get("deployments/nginx-deployment")["spec"].clone();
    assert_eq!((&spec["revisionHistoryLimit"], &spec["replicas"]), (&json!(3), &json!(0)));
    assert_eq!(spec["strategy"]["type"], "RollingUpdate");
    // The pull policy follows the tag only if it was unset: changing the tag does not change it.
    s.file("simple.yaml", &simple.replace("nginx:1.7.9", "kemudi.local/demo:latest"));
    s.ok(&["apply", "-f", "simple.yaml"]);
    let c = s.get("deployments/nginx-deployment")["spec"]["template"]["spec"]["containers"][0].clone();
    assert_eq!((&c["image"], &c["imagePullPolicy"]), (&json!("kemudi.local/demo:latest"), &json!("IfNotPresent")));
}

/// The documentation expects an error; v1.36 keeps only the fields of the new strategy.
/// Clauses: A11.strategy A11.conflict
fn strategy_can_be_switched(s: &Story) {
    let manifest =
        |strategy: &str| crate::apply::SIMPLE.replace("  minReadySeconds: 5\n", &format!("  replicas: 0\n{strategy}"));
    let strategy = || s.get("deployments/nginx-deployment")["spec"]["strategy"].clone();
    s.apply(&manifest(""));
    assert_eq!(strategy()["rollingUpdate"]["maxSurge"], "25%");
    // A patch that does not remove the defaulted half leaves it, and the two contradict each other.
    let merge = r#"{"spec":{"strategy":{"type":"Recreate"}}}"#;
    let stderr = s.fails(&["patch", "deployment", "nginx-deployment", "--type=merge", "-p", merge]);
    let why = "spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'";
    assert!(stderr.contains(why), "{stderr}");
    assert_eq!(strategy()["type"], "RollingUpdate");
    s.apply(&manifest("  strategy: {type: Recreate}\n"));
    assert_eq!(strategy(), json!({"type": "Recreate"}));
    let stderr = s.apply_fails(&manifest("  strategy: {type: Recreate, rollingUpdate: {maxSurge: 1}}\n"));
    assert!(stderr.contains(why), "{stderr}");
    assert_eq!(strategy(), json!({"type": "Recreate"}));
    s.apply(&manifest("  strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 2}}\n"));
    assert_eq!(strategy(), json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 2, "maxUnavailable": "25%"}}));
    s.apply(&manifest(""));
    assert_eq!(strategy()["rollingUpdate"]["maxSurge"], "25%", "what is in no file any more has its default again");
}

/// Clauses: A05.removed A05.defaulted A05.others A05.items A05.absent
fn null_removes_values_of_others(s: &Story) {
    let manifest = |spec: Value, args: Value| deployment("d", &spec, &json!({"args": args}));
    s.apply(&manifest(json!({"minReadySeconds": 3}), json!(["a"])));
    s.ok(&["patch", "deployment", "d", "-p", r#"{"spec":{"progressDeadlineSeconds":1000,"paused":true}}"#]);
    let nulls = json!({"progressDeadlineSeconds": null, "paused": null, "minReadySeconds": null});
    s.apply(&manifest(nulls.clone(), json!(["a"])));
    let spec = s.get("deployments/d")["spec"].clone();
    assert_eq!((&spec["progressDeadlineSeconds"], &spec["paused"], &spec["minReadySeconds"]), (&json!(600), &NO, &NO));
    // Null changes nothing in an absent field.
    let before = s.get("deployments/d")["metadata"]["generation"].clone();
    s.apply(&manifest(nulls, json!(["a"])));
    assert_eq!(s.get("deployments/d")["metadata"]["generation"], before);
    s.apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, labels: {a: \"1\"}}\ndata: {x: \"1\"}\n");
    s.patch("configmaps/c", json!({"data": {"z": "2"}, "metadata": {"labels": {"b": "2"}}}));
    s.apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, labels: {b: null}}\ndata: {x: \"1\", z: null}\n");
    let c = s.get("configmaps/c");
    assert_eq!((&c["data"], &c["metadata"]["labels"]), (&json!({"x": "1"}), &NO));
}
