//! `kubectl apply --server-side`, with the commands of its documentation.

use crate::runner::Case;
use crate::story::Story;
use serde_json::{Value, json};

pub const TESTS: &[Case] = &[
    ("server_side::hands_replicas_over", hands_replicas_over),
    ("server_side::migrates_there_and_back", migrates_there_and_back),
];

const NGINX: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: nginx-deployment
  labels:
    app: nginx
spec:
  replicas: 3
  selector:
    matchLabels:
      app: nginx
  template:
    metadata:
      labels:
        app: nginx
    spec:
      containers:
      - name: nginx
        image: nginx:1.14.2
";

const REPLICAS_ONLY: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: nginx-deployment
spec:
  replicas: 3
";

const APPLIED: &str = "deployment.apps/nginx-deployment serverside-applied\n";
const DEPLOYMENT: &str = "deployments/nginx-deployment";

/// Returns manager and operation of the owners of a field in the spec.
fn owners(o: &Value, field: &str) -> Vec<(String, String)> {
    let text = |e: &Value, k: &str| e[k].as_str().unwrap_or_default().to_owned();
    let all = o["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let has = |e: &&Value| e["fieldsV1"]["f:spec"].get(format!("f:{field}")).is_some();
    all.iter().filter(has).map(|e| (text(e, "manager"), text(e, "operation"))).collect()
}

fn owner(manager: &str, operation: &str) -> (String, String) {
    (manager.to_owned(), operation.to_owned())
}

/// Clauses: S08.commands, S03.commands
fn hands_replicas_over(s: &Story) {
    s.file("nginx-deployment.yaml", NGINX);
    s.file("nginx-deployment-replicas-only.yaml", REPLICAS_ONLY);
    s.file("nginx-deployment-no-replicas.yaml", &NGINX.replace("  replicas: 3\n", ""));
    let apply = ["apply", "--server-side", "-f"];
    let with = |file: &'static str, more: &[&'static str]| [&apply[..], &[file], more].concat();
    assert_eq!(s.ok(&with("nginx-deployment.yaml", &[])), APPLIED);
    let handover =
        with("nginx-deployment-replicas-only.yaml", &["--field-manager=handover-to-hpa", "--validate=false"]);
    assert_eq!(s.ok(&handover), APPLIED);
    assert_eq!(s.ok(&with("nginx-deployment-no-replicas.yaml", &[])), APPLIED);
    let o = s.get(DEPLOYMENT);
    assert_eq!(o["spec"]["replicas"], 3);
    assert_eq!(owners(&o, "replicas"), [owner("handover-to-hpa", "Apply")]);

    // Somebody scales.
    s.ok(&["scale", "deployment/nginx-deployment", "--replicas=2"]);
    let o = s.get(DEPLOYMENT);
    assert_eq!(o["spec"]["replicas"], 2);
    let scaler = owners(&o, "replicas");
    assert!(scaler.len() == 1 && scaler[0].1 == "Update", "{scaler:?}");
    assert_eq!(s.ok(&with("nginx-deployment-no-replicas.yaml", &[])), APPLIED);
    let refused = s.fails(&with("nginx-deployment.yaml", &[]));
    assert!(refused.contains("Apply failed with 1 conflict") && refused.contains(".spec.replicas"), "{refused}");
    assert_eq!(s.get(DEPLOYMENT)["spec"]["replicas"], 2);
    assert_eq!(s.ok(&with("nginx-deployment.yaml", &["--force-conflicts"])), APPLIED);
    let o = s.get(DEPLOYMENT);
    assert_eq!((&o["spec"]["replicas"], owners(&o, "replicas")), (&json!(3), vec![owner("kubectl", "Apply")]));
}

/// Clauses: S09.commands
fn migrates_there_and_back(s: &Story) {
    const LAST: &str = "kubectl.kubernetes.io/last-applied-configuration";
    let last = |o: &Value| -> Value {
        let text = o["metadata"]["annotations"][LAST].as_str().unwrap_or_default();
        serde_json::from_str(text).unwrap_or_default()
    };
    s.file("d.yaml", NGINX);
    assert_eq!(s.ok(&["apply", "-f", "d.yaml"]), "deployment.apps/nginx-deployment created\n");
    let next = NGINX.replace("replicas: 3", "replicas: 4");
    s.file("d.yaml", &next);
    let mine = ["apply", "--server-side", "-f", "d.yaml", "--field-manager=my-manager"];
    assert!(s.fails(&mine).contains("conflict"), "who is not kubectl meets what kubectl has applied");
    let dry = s.ok(&["apply", "--server-side", "-f", "d.yaml", "--dry-run=server"]);
    assert!(dry.starts_with("deployment.apps/nginx-deployment serverside-applied"), "{dry}");
    assert_eq!(s.get(DEPLOYMENT)["spec"]["replicas"], 3);
    assert_eq!(s.ok(&["apply", "--server-side", "-f", "d.yaml"]), APPLIED);
    let o = s.get(DEPLOYMENT);
    assert_eq!(
        (&o["spec"]["replicas"], &last(&o)["spec"]["replicas"]),
        (&json!(4), &json!(4)),
        "the annotation goes along"
    );
    assert!(owners(&o, "replicas").contains(&owner("kubectl", "Apply")));

    // Back: fields that were applied on the server and are missing now are deleted.
    s.file("d.yaml", &next.replace("  labels:\n    app: nginx\nspec", "spec").replace("replicas: 4", "replicas: 5"));
    assert_eq!(s.ok(&["apply", "-f", "d.yaml"]), "deployment.apps/nginx-deployment configured\n");
    let o = s.get(DEPLOYMENT);
    assert_eq!((&o["spec"]["replicas"], o["metadata"].get("labels")), (&json!(5), None));
}
