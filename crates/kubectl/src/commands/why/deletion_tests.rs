use crate::testing::{Server, snapshot};
use serde_json::{Value, json};

fn list(items: Value) -> Value {
    json!({"kind": "List", "apiVersion": "v1", "items": items})
}

/// Clauses: G01.deletion
#[tokio::test]
async fn explains_a_namespace_that_stays() {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": "old", "deletionTimestamp": "2026-11-21T11:30:00Z"},
        "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Terminating"}});
    let widget = json!({"metadata": {"name": "w", "namespace": "old", "deletionTimestamp": "2026-11-21T11:30:01Z",
        "finalizers": ["example.com/cleanup"], "managedFields": [{"manager": "widget-operator", "time": "2026-11-20T12:00:00Z",
            "fieldsV1": {"f:metadata": {"f:finalizers": {"v:\"example.com/cleanup\"": {}}}}}]}});
    let down = json!({"metadata": {"name": "v1.metrics.example"}, "status": {"conditions": [
        {"type": "Available", "status": "False", "message": "no endpoints"}]}});
    let s = Server::new()
        .on("GET /api/v1/namespaces/old", 200, namespace)
        .on("GET /apis/example.com/v1/namespaces/old/widgets", 200, list(json!([widget])))
        .on(
            "GET /api/v1/namespaces/old/configmaps",
            200,
            list(json!([{"metadata": {"name": "c", "namespace": "old"}}])),
        )
        .on("GET /apis/apiregistration.k8s.io/v1/apiservices", 200, list(json!([down])));
    let expect = "\
namespace/old is being deleted for 30m: 1 finalizer holds it
  finalizer kubernetes: the namespace controller removes it when nothing is left in the namespace
    the APIService v1.metrics.example does not answer, so its objects cannot be listed: no endpoints
    configmaps left: 1
    widgets.example.com left: 1
      widget.example.com/w:
        finalizer example.com/cleanup: set by widget-operator, 24h ago; that program has to remove it
          => check that this program runs and what it logs; a finalizer that is removed by hand skips its clean-up
";
    assert_eq!(snapshot(&s, "why ns old", "").await, expect);
}

/// Clauses: G01.deletion
#[tokio::test]
async fn explains_finalizers_of_any_object() {
    let widget = |finalizers: Value| {
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w", "namespace": "default", "uid": "u",
            "deletionTimestamp": "2026-11-21T11:59:00Z", "finalizers": finalizers}})
    };
    let at = "GET /apis/example.com/v1/namespaces/default/widgets/w";
    let s = Server::new().on(at, 200, widget(json!(["other.example/x", 5])));
    let expect = "\
widget.example.com/w is being deleted for 60s: 1 finalizer holds it
  finalizer other.example/x: not one of Kubernetes, and it is not recorded which program set it; if no program removes it, it has to be removed by hand
    => kubectl patch -n default widget.example.com/w --type=json -p '[{\"op\":\"test\",\"path\":\"/metadata/finalizers/0\",\"value\":\"other.example/x\"},{\"op\":\"remove\",\"path\":\"/metadata/finalizers/0\"}]'
";
    assert_eq!(snapshot(&s, "why widget/w", "").await, expect);
    let mut edited = widget(json!(["a.example/a", "other.example/x"]));
    edited["metadata"]["managedFields"] = json!([{"manager": "kubectl-edit", "time": "2026-11-21T11:00:00Z",
        "fieldsV1": {"f:metadata": {"f:finalizers": {"v:\"other.example/x\"": {}}}}}]);
    let s = Server::new().on(at, 200, edited);
    let text = snapshot(&s, "why widget/w", "").await;
    let expect = "  finalizer other.example/x: set by hand with kubectl-edit, 60m ago; if no program removes it, it has to be removed by hand\n";
    assert!(text.contains(expect), "{text}");
    assert!(text.contains("\"remove\",\"path\":\"/metadata/finalizers/1\""), "{text}");
    let owner = json!([{"uid": "u", "kind": "Widget", "name": "w", "blockOwnerDeletion": true}]);
    let pod = json!({"metadata": {"name": "p", "namespace": "default", "ownerReferences": owner}});
    let s = Server::new().on(at, 200, widget(json!(["foregroundDeletion"]))).on(
        "GET /api/v1/namespaces/default/pods",
        200,
        list(json!([pod])),
    );
    let expect = "\
widget.example.com/w is being deleted for 60s: 1 finalizer holds it
  finalizer foregroundDeletion: the garbage collector removes it when the dependents that block the deletion are gone
    it waits for pod/p, which has not been deleted yet
      => kubectl why -n default pod/p
";
    assert_eq!(snapshot(&s, "why widget/w", "").await, expect);
}

#[tokio::test]
async fn explains_terminating_pods() {
    let pod = |deletion: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "default",
            "deletionTimestamp": deletion, "deletionGracePeriodSeconds": 30},
            "spec": {"nodeName": "n", "containers": [{"name": "app"}]},
            "status": {"containerStatuses": [{"name": "app", "state": {"running": {}}}]}})
    };
    let at = "GET /api/v1/namespaces/default/pods/p";
    let ready = json!({"metadata": {"name": "n"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let s = Server::new().on(at, 200, pod("2026-11-21T12:00:20Z")).on("GET /api/v1/nodes/n", 200, ready);
    let expect = "pod/p is terminating: its grace period of 30s ends in 20s\n  these containers have not ended: app\n";
    assert_eq!(snapshot(&s, "why pod p", "").await, expect);
    let s = Server::new().on(at, 200, pod("2026-11-21T11:50:00Z"));
    let expect = "\
pod/p is terminating: its grace period of 30s ended 10m ago
  its node n does not exist
  these containers have not ended: app
  the agent of node n has to report that its containers have ended
    => kubectl delete -n default pod/p --force --grace-period=0, if the machine is certainly off
";
    assert_eq!(snapshot(&s, "why pod p", "").await, expect);
}
