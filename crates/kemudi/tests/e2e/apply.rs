//! `kubectl apply`: requests, merging and output.

use crate::runner::Case;
use crate::story::{Story, names};
use serde_json::{Value, json};

pub const TESTS: &[Case] = &[
    ("apply::takes_files_directories_and_input", takes_files_directories_and_input),
    ("apply::reads_urls", reads_urls),
    ("apply::continues_after_an_invalid_object", continues_after_an_invalid_object),
    ("apply::follows_the_documentation", follows_the_documentation),
];

fn config_map(name: &str, value: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\ndata:\n  k: \"{value}\"\n")
}

fn json_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": "1"}})
}

/// Clauses: A01.file A01.files A01.directory A01.recursive A01.stdin A01.multi-document A01.json A01.list A01.words
fn takes_files_directories_and_input(s: &Story) {
    s.file("one.yaml", &config_map("one", "1"));
    assert_eq!(s.ok(&["apply", "-f", "one.yaml"]), "configmap/one created\n");
    assert_eq!(s.ok(&["apply", "-f", "one.yaml"]), "configmap/one unchanged\n");
    s.file("one.yaml", &config_map("one", "2"));
    assert_eq!(s.ok(&["apply", "-f", "one.yaml"]), "configmap/one configured\n");
    assert_eq!(s.get("configmaps/one")["data"]["k"], "2");

    s.file("two.json", &json_map("two").to_string());
    assert_eq!(
        s.ok(&["apply", "-f", "one.yaml", "-f", "two.json"]),
        "configmap/one unchanged\nconfigmap/two created\n"
    );

    s.file("dir/a.yaml", &config_map("a", "1"));
    s.file("dir/b.yml", &config_map("b", "1"));
    s.file("dir/c.json", &json_map("c").to_string());
    s.file("dir/readme.txt", "nothing of ours");
    s.file("dir/sub/z.yaml", &config_map("z", "1"));
    assert_eq!(s.ok(&["apply", "-f", "dir"]), "configmap/a created\nconfigmap/b created\nconfigmap/c created\n");
    assert!(s.get("configmaps/z").is_null());
    let all = "configmap/a unchanged\nconfigmap/b unchanged\nconfigmap/c unchanged\nconfigmap/z created\n";
    assert_eq!(s.ok(&["apply", "-R", "-f", "dir"]), all);

    let two = format!("{}---\n{}---\n", config_map("m1", "1"), config_map("m2", "1"));
    assert_eq!(s.apply(&two), "configmap/m1 created\nconfigmap/m2 created\n");
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [json_map("x"), json_map("y")]});
    assert_eq!(s.apply(&list.to_string()), "configmap/x created\nconfigmap/y created\n");
    let server_side = s.with_input(&["apply", "--server-side", "-f", "-"], &config_map("ss", "1"));
    assert_eq!(String::from_utf8_lossy(&server_side.stdout), "configmap/ss serverside-applied\n");
}

/// Clauses: A01.url
fn reads_urls(s: &Story) {
    let served = s.serve(&[("/map.yaml", 200, config_map("from-url", "1")), ("/moved", 302, "/map.yaml".into())]);
    assert_eq!(s.ok(&["apply", "-f", &format!("{served}/map.yaml")]), "configmap/from-url created\n");
    assert_eq!(s.ok(&["apply", "-f", &format!("{served}/moved")]), "configmap/from-url unchanged\n");
    let stderr = s.fails(&["apply", "-f", &format!("{served}/none.yaml")]);
    assert!(stderr.contains("unable to read URL") && stderr.contains("404"), "{stderr}");
}

/// Clauses: A01.continues
fn continues_after_an_invalid_object(s: &Story) {
    let three = format!("{}---\n{}---\n{}", config_map("a", "1"), config_map("Bad_Name", "1"), config_map("b", "1"));
    let stderr = s.apply_fails(&three);
    assert!(stderr.contains("Bad_Name") && stderr.contains("is invalid: metadata.name: Invalid value"), "{stderr}");
    let mut there = names(&s.items("configmaps"));
    there.retain(|n| n != "kube-root-ca.crt");
    assert_eq!(there, ["a", "b"]);
}

pub const SIMPLE: &str = "
apiVersion: apps/v1
kind: Deployment
metadata:
  name: nginx-deployment
spec:
  selector:
    matchLabels:
      app: nginx
  minReadySeconds: 5
  template:
    metadata:
      labels:
        app: nginx
    spec:
      containers:
      - name: nginx
        image: nginx:1.7.9
        ports:
        - containerPort: 80
";

const LAST: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Clauses: A02.exact A02.foreign A02.updated A03.file A04.scale A04.image A04.removed
fn follows_the_documentation(s: &Story) {
    let annotation = || s.get("deployments/nginx-deployment")["metadata"]["annotations"][LAST].clone();
    let applied = |min: &str, image: &str| {
        format!(
            "{{\"apiVersion\":\"apps/v1\",\"kind\":\"Deployment\",\"metadata\":{{\"annotations\":{{}},\"name\":\
             \"nginx-deployment\",\"namespace\":\"{}\"}},\"spec\":{{{min}\"selector\":{{\"matchLabels\":{{\"app\":\"nginx\"}}}},\
             \"template\":{{\"metadata\":{{\"labels\":{{\"app\":\"nginx\"}}}},\"spec\":{{\"containers\":[{{\"image\":\"{image}\",\
             \"name\":\"nginx\",\"ports\":[{{\"containerPort\":80}}]}}]}}}}}}}}\n",
            s.ns
        )
    };
    s.file("simple.yaml", SIMPLE);
    s.ok(&["apply", "-f", "simple.yaml"]);
    let first = applied("\"minReadySeconds\":5,", "nginx:1.7.9");
    assert_eq!(annotation(), first);
    assert_eq!(
        s.ok(&["scale", "deployment/nginx-deployment", "--replicas=2"]),
        "deployment.apps/nginx-deployment scaled\n"
    );
    assert_eq!(annotation(), first, "what others write is not in it");
    let live = s.ok(&["get", "-f", "simple.yaml", "-o", "yaml"]);
    assert!(live.contains("\n  replicas: 2\n") && live.contains("\n  minReadySeconds: 5\n"), "{live}");

    let update = SIMPLE.replace("  minReadySeconds: 5\n", "").replace("1.7.9", "1.11.9");
    s.file("update.yaml", &update);
    assert_eq!(s.ok(&["apply", "-f", "update.yaml"]), "deployment.apps/nginx-deployment configured\n");
    let live = s.get("deployments/nginx-deployment");
    let spec = &live["spec"];
    assert_eq!((&spec["replicas"], &spec["minReadySeconds"]), (&json!(2), &Value::Null));
    assert_eq!(spec["template"]["spec"]["containers"][0]["image"], "nginx:1.11.9");
    assert_eq!(annotation(), applied("", "nginx:1.11.9"));
}
