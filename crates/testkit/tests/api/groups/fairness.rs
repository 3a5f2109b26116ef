//! FlowSchemas and PriorityLevelConfigurations.

use super::made;
use crate::field_errors::{FieldCase, check_errors, put};
use serde_json::{Value, json};
use testkit::Cluster;

const FLOW: &str = "/apis/flowcontrol.apiserver.k8s.io/v1";

fn schema() -> Value {
    let paths = json!({"verbs": ["get"], "nonResourceURLs": ["/healthz"]});
    let resources = json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"]});
    let subject = json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": "default", "name": "*"}});
    json!({"metadata": {"name": "s"}, "spec": {"priorityLevelConfiguration": {"name": "l"}, "rules": [
        {"subjects": [subject], "resourceRules": [resources], "nonResourceRules": [paths]}]}})
}

#[tokio::test]
async fn flow_schemas_are_validated() {
    let c = Cluster::start(1).await;
    let urls = "/spec/rules/0/nonResourceRules/0/nonResourceURLs";
    let said_of_url = "spec.rules[0].nonResourceRules[0].nonResourceURLs[0]: Invalid value: ";
    let url = |url: &str, why: &str| -> &'static [&'static str] {
        Box::leak(Box::new([&*format!("{said_of_url}{url:?}: {why}").leak()]))
    };
    let account = "/spec/rules/0/subjects/0/serviceAccount";
    let cases: Vec<FieldCase> = vec![
        (urls, json!(["*"]), &[]),
        (urls, json!(["/", "/a/*"]), &[]),
        (urls, json!([""]), url("", "must not be empty")),
        (urls, json!(["a"]), url("a", "must start with slash")),
        (urls, json!(["/a b"]), url("/a b", "must not contain white-space")),
        (urls, json!(["/a//b"]), url("/a//b", "must not contain double slash")),
        (urls, json!(["/a*"]), url("/a*", "wildcard can only do suffix matching")),
        (urls, json!(["/*/*"]), url("/*/*", "wildcard can only do suffix matching")),
        (
            urls,
            json!(["*", "/"]),
            &[
                "spec.rules[0].nonResourceRules[0].nonResourceURLs: Invalid value: [\"*\",\"/\"]: if '*' is present, must not specify other non-resource URLs",
            ],
        ),
        (
            "/spec/rules/0/resourceRules/0/verbs",
            json!(["*", "x"]),
            &["spec.rules[0].resourceRules[0].verbs: Invalid value: [\"*\",\"x\"]: if '*' is present"],
        ),
        (
            "/spec/rules/0/resourceRules/0/verbs",
            json!(["x"]),
            &["spec.rules[0].resourceRules[0].verbs: Unsupported value: [\"x\"]: supported values: \"create\""],
        ),
        (
            account,
            json!({"name": "a"}),
            &[
                "spec.rules[0].subjects[0].serviceAccount.namespace: Required value: must specify namespace for service account",
            ],
        ),
        (
            account,
            json!({"name": "A", "namespace": "N"}),
            &[
                "spec.rules[0].subjects[0].serviceAccount.name: Invalid value: \"A\"",
                "spec.rules[0].subjects[0].serviceAccount.namespace: Invalid value: \"N\"",
            ],
        ),
        (
            "/spec/matchingPrecedence",
            json!(10_001),
            &["spec.matchingPrecedence: Invalid value: 10001: must not be greater than 10000"],
        ),
        (
            "/spec/matchingPrecedence",
            json!(1),
            &["spec.matchingPrecedence: Invalid value: 1: only the schema named 'exempt'"],
        ),
        (
            "/spec/distinguisherMethod",
            json!({"type": "x"}),
            &[
                "spec.distinguisherMethod.type: Unsupported value: {\"Type\":\"x\"}: supported values: \"ByNamespace\", \"ByUser\"",
            ],
        ),
    ];
    check_errors(&c, "POST", &format!("{FLOW}/flowschemas"), &schema(), &cases).await;
    let mut made = made(&c, &format!("{FLOW}/flowschemas"), schema()).await;
    made["status"]["conditions"] = json!([{"type": "A"}]);
    let cases: Vec<FieldCase> = vec![
        (
            "/status/conditions",
            json!([{"type": "A"}, {"type": "A"}]),
            &["status.conditions[1].type: Duplicate value: \"A\""],
        ),
        ("/status/conditions", json!([{}]), &["status.conditions[0].type: Required value"]),
    ];
    check_errors(&c, "PUT", &format!("{FLOW}/flowschemas/s/status"), &made, &cases).await;
}

#[tokio::test]
async fn priority_levels_are_validated() {
    let c = Cluster::start(1).await;
    let queuing = json!({"type": "Queue", "queuing": {"queues": 64, "handSize": 6}});
    let level = json!({"metadata": {"name": "l"}, "spec": {"type": "Limited", "limited": {"limitResponse": queuing}}});
    let only = "spec.type: Invalid value: \"Exempt\": must be 'Exempt' if and only if `name` is 'exempt'";
    let only: &'static str = only;
    let queues = "/spec/limited/limitResponse/queuing/queues";
    let cases: Vec<FieldCase> = vec![
        ("/spec", json!({"type": "Exempt"}), Box::leak(Box::new([only]))),
        ("/spec/exempt", json!({}), &["spec.exempt: Forbidden: must be nil if the type is Limited"]),
        (
            "/spec/limited/lendablePercent",
            json!(101),
            &["spec.limited.lendablePercent: Invalid value: 101: must be between 0 and 100, inclusive"],
        ),
        (
            "/spec/limited/borrowingLimitPercent",
            json!(-1),
            &["spec.limited.borrowingLimitPercent: Invalid value: -1: if specified, must be a non-negative integer"],
        ),
        ("/spec/limited/nominalConcurrencyShares", json!(0), &[]),
        (
            queues,
            json!(10_000_001),
            &[
                "spec.limited.limitResponse.queuing.handSize: Invalid value: 6: required entropy bits",
                "spec.limited.limitResponse.queuing.queues: Invalid value: 10000001: must not be greater than 10000000",
            ],
        ),
        (
            "/metadata/annotations",
            json!({"flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares": ""}),
            &["metadata.annotations: Forbidden: annotation 'flowcontrol.k8s.io/v1beta3-preserve"],
        ),
    ];
    check_errors(&c, "POST", &format!("{FLOW}/prioritylevelconfigurations"), &level, &cases).await;
}

#[tokio::test]
async fn mandatory_objects_stay_as_they_are() {
    let c = Cluster::start(1).await;
    let level = json!({"metadata": {"name": "exempt"}, "spec": {"type": "Exempt", "exempt": {"lendablePercent": 50}}});
    let cases: Vec<FieldCase> = vec![
        (
            "/spec/exempt/nominalConcurrencyShares",
            json!(-1),
            &["spec.exempt.nominalConcurrencyShares: Invalid value: -1: must be a non-negative integer"],
        ),
        (
            "/spec",
            json!({"type": "Limited", "limited": {"limitResponse": {"type": "Reject"}}}),
            &["spec.type: Invalid value: \"Limited\": must be", "spec: Invalid value: {\"Type\":\"Limited\""],
        ),
    ];
    let levels = format!("{FLOW}/prioritylevelconfigurations");
    check_errors(&c, "POST", &levels, &level, &cases).await;
    let all = json!({"metadata": {"name": "catch-all"}, "spec": {"type": "Limited", "limited": {
        "nominalConcurrencyShares": 5, "lendablePercent": 0, "limitResponse": {"type": "Reject"}}}});
    let cases: Vec<FieldCase> = vec![(
        "/spec/limited/nominalConcurrencyShares",
        json!(6),
        &["spec: Invalid value: {\"Type\":\"Limited\",\"Limited\":{\"NominalConcurrencyShares\":6"],
    )];
    check_errors(&c, "POST", &levels, &all, &cases).await;
    let rest = json!([{"subjects": [{"kind": "Group", "group": {"name": "system:masters"}}],
        "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": true, "namespaces": ["*"]}],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}]}]);
    let first = json!({"metadata": {"name": "exempt"}, "spec": {"matchingPrecedence": 1, "rules": rest,
        "priorityLevelConfiguration": {"name": "exempt"}}});
    let a = c.call("POST", &format!("{FLOW}/flowschemas?dryRun=All"), first.clone()).await;
    assert_eq!(a.code, 201, "{}", a.body);
    let a = c.call("POST", &format!("{FLOW}/flowschemas?dryRun=All"), put(&first, "/spec/rules", &json!([]))).await;
    let message = a.body["message"].as_str().unwrap();
    assert!(
        message.ends_with("\"DistinguisherMethod\":null,\"Rules\":[]}: spec of 'exempt' must equal the fixed value"),
        "{message}"
    );
}
