//! Deletion of dependents: background, foreground, orphan.

use crate::runner::Case;
use crate::story::{IMAGE, Story};
use serde_json::{Value, json};

pub const TESTS: &[Case] = &[
    ("garbage::in_the_background", in_the_background),
    ("garbage::in_the_foreground", in_the_foreground),
    ("garbage::leaves_orphans", leaves_orphans),
];

fn deployment(s: &Story) {
    s.apply(&format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web}}\nspec:\n  replicas: 2\n  \
         selector: {{matchLabels: {{app: web}}}}\n  template:\n    metadata: {{labels: {{app: web}}}}\n    \
         spec:\n      terminationGracePeriodSeconds: 1\n      containers: [{{name: c, image: \"{IMAGE}\"}}]\n"
    ));
    s.until("deployments/web", |d| d["status"]["readyReplicas"] == 2);
}

/// Clauses: C10.background
fn in_the_background(s: &Story) {
    deployment(s);
    assert!(s.ok(&["delete", "deployment", "web"]).starts_with("deployment.apps \"web\" deleted"));
    s.gone("deployments/web");
    s.eventually("the end of its dependents", || {
        (s.items("replicasets").is_empty() && s.items("pods").is_empty()).then_some(())
    });
}

/// Clauses: C10.foreground C10.block-owner-deletion
fn in_the_foreground(s: &Story) {
    deployment(s);
    let pod = s.items("pods")[0]["metadata"]["name"].as_str().unwrap().to_owned();
    let pod = format!("pods/{pod}");
    s.patch(&pod, json!({"metadata": {"finalizers": ["e2e/hold"]}}));
    s.ok(&["delete", "deployment", "web", "--cascade=foreground", "--wait=false"]);
    let deleting = |o: &Value| {
        !o["metadata"]["deletionTimestamp"].is_null() && o["metadata"]["finalizers"] == json!(["foregroundDeletion"])
    };
    s.until("deployments/web", deleting);
    let rs = s.until("replicasets", |l| l["items"].as_array().is_some_and(|i| i.len() == 1 && deleting(&i[0])));
    let owner = &rs["items"][0]["metadata"]["ownerReferences"][0];
    assert_eq!(owner["blockOwnerDeletion"], true);
    // The other pod is gone, this one is held, and with it everything above.
    s.until("pods", |l| l["items"].as_array().is_some_and(|i| i.len() == 1));
    assert!(deleting(&s.get("deployments/web")));
    s.patch(&pod, json!({"metadata": {"finalizers": null}}));
    s.gone("deployments/web");
    assert!(s.items("replicasets").is_empty() && s.items("pods").is_empty());
}

/// Clauses: C10.orphan C01.adopt
fn leaves_orphans(s: &Story) {
    deployment(s);
    s.ok(&["delete", "deployment", "web", "--cascade=orphan"]);
    s.gone("deployments/web");
    let rs = s.until("replicasets", |l| l["items"][0]["metadata"]["ownerReferences"].is_null());
    let rs = rs["items"][0]["metadata"]["name"].as_str().unwrap().to_owned();
    s.ok(&["delete", "rs", &rs, "--cascade=orphan"]);
    s.gone(&format!("replicasets/{rs}"));
    let free = |p: &Value| p["metadata"]["ownerReferences"].is_null() && p["metadata"]["deletionTimestamp"].is_null();
    s.until("pods", |l| l["items"].as_array().is_some_and(|i| i.len() == 2 && i.iter().all(free)));
}
