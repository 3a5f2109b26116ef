//! Roles and bindings, priority and runtime classes, leases.

use super::made;
use crate::field_errors::{FieldCase, check_errors};
use serde_json::json;
use testkit::Cluster;

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

#[tokio::test]
async fn roles_are_validated() {
    let c = Cluster::start(1).await;
    let rule = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]});
    let role = json!({"metadata": {"name": "r:1"}, "rules": [rule],
        "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}});
    let cases: Vec<FieldCase> = vec![
        ("/rules/0/verbs", json!([]), &["rules[0].verbs: Required value: verbs must contain at least one value"]),
        ("/rules/0/resourceNames", json!(["a"]), &[]),
        (
            "/rules/0/nonResourceURLs",
            json!(["/x"]),
            &["rules[0].nonResourceURLs: Invalid value: [\"/x\"]: rules cannot apply to both regular resources and"],
        ),
        (
            "/aggregationRule/clusterRoleSelectors",
            json!([]),
            &["aggregationRule.clusterRoleSelectors: Required value: at least one clusterRoleSelector required if"],
        ),
        (
            "/aggregationRule/clusterRoleSelectors/0/matchLabels",
            json!({"a": "-"}),
            &[
                "aggregationRule.clusterRoleSelectors[0].matchLabels: Invalid value: \"-\": a valid label must",
                "aggregationRule.clusterRoleSelectors[0]: Invalid value: null: invalid label selector.",
            ],
        ),
        ("/metadata/name", json!("a/b"), &["metadata.name: Invalid value: \"a/b\": may not contain '/'"]),
    ];
    check_errors(&c, "POST", &format!("{RBAC}/clusterroles"), &role, &cases).await;
    let role =
        json!({"metadata": {"name": "r"}, "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]});
    let cases: Vec<FieldCase> = vec![(
        "/rules/0",
        json!({"verbs": ["get"], "nonResourceURLs": ["/x"]}),
        &["rules[0].nonResourceURLs: Invalid value: [\"/x\"]: namespaced rules cannot apply to non-resource URLs"],
    )];
    check_errors(&c, "POST", &format!("{RBAC}/namespaces/default/roles"), &role, &cases).await;
}

#[tokio::test]
async fn bindings_keep_their_role() {
    let c = Cluster::start(1).await;
    let bindings = format!("{RBAC}/namespaces/default/rolebindings");
    let group = "rbac.authorization.k8s.io";
    let body = json!({"metadata": {"name": "b"}, "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "User", "name": "u", "apiGroup": group}]});
    let kinds = "supported values: \"ServiceAccount\", \"User\", \"Group\"";
    let unknown = format!("subjects[0].kind: Unsupported value: \"X\": {kinds}");
    let unknown: &'static [&'static str] = Box::leak(Box::new([&*unknown.leak()]));
    let cases: Vec<FieldCase> = vec![
        (
            "/roleRef/kind",
            json!(""),
            &["roleRef.kind: Unsupported value: \"\": supported values: \"Role\", \"ClusterRole\""],
        ),
        ("/roleRef/name", json!(""), &["roleRef.name: Required value"]),
        ("/subjects/0/kind", json!("X"), unknown),
        ("/subjects/0", json!({"kind": "User", "name": "u"}), &[]),
        ("/subjects/0", json!({"kind": "ServiceAccount", "name": "A"}), &["subjects[0].name: Invalid value: \"A\""]),
        (
            "/subjects/0",
            json!({"kind": "ServiceAccount", "name": "a", "apiGroup": group}),
            &["subjects[0].apiGroup: Unsupported value: \"rbac.authorization.k8s.io\": supported values: \"\""],
        ),
    ];
    check_errors(&c, "POST", &bindings, &body, &cases).await;
    let body = made(&c, &bindings, body).await;
    let cases: Vec<FieldCase> = vec![(
        "/roleRef/name",
        json!("edit"),
        &[
            "roleRef: Invalid value: {\"APIGroup\":\"rbac.authorization.k8s.io\",\"Kind\":\"ClusterRole\",\"Name\":\"edit\"}: cannot change roleRef",
        ],
    )];
    check_errors(&c, "PUT", &format!("{bindings}/b"), &body, &cases).await;
    let body = json!({"metadata": {"name": "b"}, "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "ServiceAccount", "name": "a", "namespace": "default"}]});
    let cases: Vec<FieldCase> = vec![
        (
            "/roleRef/kind",
            json!("Role"),
            &["roleRef.kind: Unsupported value: \"Role\": supported values: \"ClusterRole\""],
        ),
        ("/subjects/0/namespace", json!(""), &["subjects[0].namespace: Required value"]),
    ];
    check_errors(&c, "POST", &format!("{RBAC}/clusterrolebindings"), &body, &cases).await;
}

#[tokio::test]
async fn classes_and_leases_keep_what_they_are() {
    let c = Cluster::start(1).await;
    let classes = "/apis/scheduling.k8s.io/v1/priorityclasses";
    let class = json!({"metadata": {"name": "p"}, "value": 5});
    let cases: Vec<FieldCase> = vec![
        (
            "/value",
            json!(1_000_000_001),
            &["value: Forbidden: maximum allowed value of a user defined priority is 1000000000"],
        ),
        (
            "/metadata/name",
            json!("system-x"),
            &["metadata.name: Forbidden: priority class names with 'system-' prefix"],
        ),
        (
            "/preemptionPolicy",
            json!("Maybe"),
            &["preemptionPolicy: Unsupported value: \"Maybe\": supported values: \"PreemptLowerPriority\", \"Never\""],
        ),
    ];
    check_errors(&c, "POST", classes, &class, &cases).await;
    let class = made(&c, classes, class).await;
    let cases: Vec<FieldCase> = vec![
        ("/value", json!(1_000_000_001), &["value: Forbidden: may not be changed in an update."]),
        ("/preemptionPolicy", json!("Never"), &["preemptionPolicy: Invalid value: \"Never\": field is immutable"]),
    ];
    check_errors(&c, "PUT", &format!("{classes}/p"), &class, &cases).await;
    let body = json!({"metadata": {"name": "r"}, "handler": "h", "scheduling": {"tolerations": [{"key": "a"}]}});
    let cases: Vec<FieldCase> = vec![
        ("/handler", json!(""), &["handler: Required value"]),
        (
            "/scheduling/tolerations/0",
            json!({"operator": "Equal"}),
            &["scheduling.tolerations[0].operator: Invalid value: \"Equal\": operator must be Exists when `key` is"],
        ),
        (
            "/overhead",
            json!({"podFixed": {"x": "1"}}),
            &["overhead.limits[x]: Invalid value: \"x\"", "overhead.limits[x]: Invalid value: \"x\""],
        ),
    ];
    check_errors(&c, "POST", "/apis/node.k8s.io/v1/runtimeclasses", &body, &cases).await;
    let body = json!({"metadata": {"name": "l"}, "spec": {"leaseDurationSeconds": 1, "leaseTransitions": 0}});
    let cases: Vec<FieldCase> = vec![
        (
            "/spec/leaseDurationSeconds",
            json!(0),
            &["spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0"],
        ),
        (
            "/spec/leaseTransitions",
            json!(-1),
            &["spec.leaseTransitions: Invalid value: -1: must be greater than or equal"],
        ),
        ("/spec/strategy", json!("whatever it is, it is not kept"), &[]),
    ];
    check_errors(&c, "POST", "/apis/coordination.k8s.io/v1/namespaces/default/leases", &body, &cases).await;
}
