//! Webhooks, policies, their bindings, and API services.

use super::made;
use crate::field_errors::{FieldCase, check_errors, put};
use serde_json::{Value, json};
use testkit::Cluster;

const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";

fn constraints(operation: &str) -> Value {
    json!({"resourceRules": [{"operations": [operation], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]})
}

#[tokio::test]
async fn webhook_configurations_are_validated() {
    let c = Cluster::start(1).await;
    let service = json!({"service": {"namespace": "n", "name": "s", "path": "/p"}});
    let body = json!({"metadata": {"name": "w"}, "webhooks": [{"name": "a.example.com", "sideEffects": "None",
        "admissionReviewVersions": ["v1"], "clientConfig": service, "matchConditions": [{"name": "c", "expression": "true"}]}]});
    let path = "/webhooks/0/clientConfig/service/path";
    let conditions: Vec<Value> = (0..65).map(|i| json!({"name": format!("c{i}"), "expression": "true"})).collect();
    let cases: Vec<FieldCase> = vec![
        (
            "/webhooks/0/timeoutSeconds",
            json!(31),
            &["webhooks[0].timeoutSeconds: Invalid value: 31: the timeout value must be between 1 and 30 seconds"],
        ),
        (
            "/webhooks/0/clientConfig/service/port",
            json!(0),
            &[
                "webhooks[0].clientConfig.service.port: Invalid value: 0: port is not valid: must be between 1 and 65535, inclusive",
            ],
        ),
        (
            path,
            json!("//"),
            &["webhooks[0].clientConfig.service.path: Invalid value: \"//\": segment[0] may not be empty"],
        ),
        (path, json!("/"), &[]),
        (
            path,
            json!("/a//b"),
            &["webhooks[0].clientConfig.service.path: Invalid value: \"/a//b\": segment[1] may not be empty"],
        ),
        (
            "/webhooks/0/name",
            json!("a.b"),
            &["webhooks[0].name: Invalid value: \"a.b\": should be a domain with at least three"],
        ),
        (
            "/webhooks/0/matchConditions",
            conditions.into(),
            &["webhooks[0].matchConditions: Too many: 65: must have at most 64 items"],
        ),
        (
            "/webhooks/0/matchConditions/0/expression",
            json!(" "),
            &["webhooks[0].matchConditions[0].expression: Required value"],
        ),
        (
            "/webhooks/0/matchConditions/0/expression",
            json!("1"),
            &["webhooks[0].matchConditions[0].expression: Invalid value: \"1\": must evaluate to bool but got int"],
        ),
        (
            "/webhooks/0/matchConditions/0/name",
            json!("a b"),
            &["webhooks[0].matchConditions[0].name: Invalid value: \"a b\""],
        ),
    ];
    for kind in ["validatingwebhookconfigurations", "mutatingwebhookconfigurations"] {
        check_errors(&c, "POST", &format!("{GROUP}/{kind}"), &body, &cases).await;
    }
}

fn validating() -> Value {
    json!({"metadata": {"name": "p"}, "spec": {"matchConstraints": constraints("*"),
        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "variables": [{"name": "n", "expression": "1"}],
        "matchConditions": [{"name": "c", "expression": "params.data.size() > 0"}],
        "validations": [{"expression": "variables.n == 1", "message": "m"}],
        "auditAnnotations": [{"key": "k", "valueExpression": "'v'"}]}})
}

#[tokio::test]
async fn admission_policies_are_validated() {
    let c = Cluster::start(1).await;
    let key = "spec.auditAnnotations[0].key: Invalid value: \"p/a b\": name part must consist of";
    let key: &'static [&'static str] = Box::leak(Box::new([key]));
    let many: Vec<Value> = (0..21).map(|i| json!({"key": format!("k{i}"), "valueExpression": "''"})).collect();
    let version = "/spec/paramKind/apiVersion";
    let long = format!("'{}'", "a".repeat(5 * 1024));
    let cases: Vec<FieldCase> = vec![
        ("/spec/auditAnnotations/0/key", json!("a b"), key),
        (
            "/spec/auditAnnotations",
            many.into(),
            &["spec.auditAnnotations: Invalid value: [{\"Key\":\"k0\",\"ValueExpression\":\"''\"},"],
        ),
        (
            "/spec/auditAnnotations",
            json!([{"key": "k", "valueExpression": "''"}, {"key": "k", "valueExpression": " "}]),
            &[
                "spec.auditAnnotations[1].key: Duplicate value: \"k\"",
                "spec.auditAnnotations[1].valueExpression: Required value: valueExpression is not specified",
            ],
        ),
        (
            "/spec/auditAnnotations/0/valueExpression",
            json!(long),
            &["spec.auditAnnotations[0].valueExpression: Required value: must not exceed 5120 bytes in length"],
        ),
        (version, json!(""), &["spec.paramKind.apiVersion: Required value"]),
        (
            version,
            json!("a/b/c"),
            &["spec.paramKind.apiVersion: Invalid value: \"a/b/c\": unexpected GroupVersion string: a/b/c"],
        ),
        (version, json!("A/v1"), &["spec.paramKind.apiVersion: Invalid value: \"A\": a lowercase RFC 1123 subdomain"]),
        (version, json!("a/"), &["spec.paramKind.apiVersion: Invalid value: \"a/\": version must be specified"]),
        (version, json!("1"), &["spec.paramKind.apiVersion: Invalid value: \"1\": a DNS-1035 label"]),
        (
            "/spec/paramKind/kind",
            json!("a_b"),
            &[
                "spec.paramKind.kind: Invalid value: \"a_b\": may have mixed case, but should otherwise match: a DNS-1035",
            ],
        ),
        (
            "/spec/variables/0",
            json!({"name": "for", "expression": "1"}),
            &[
                "spec.validations[0].expression: Invalid value: \"variables.n == 1\"",
                "spec.variables[0].name: Invalid value: \"for\": must be a valid CEL identifier",
            ],
        ),
        (
            "/spec/validations/0/message",
            json!("a\nb"),
            &["spec.validations[0].message: Invalid value: \"a\\nb\": must not contain line breaks"],
        ),
        (
            "/spec/validations/0/message",
            json!(" "),
            &["spec.validations[0].message: Invalid value: \" \": must be non-empty if specified"],
        ),
        (
            "/spec/validations/0/messageExpression",
            json!(" "),
            &["spec.validations[0].messageExpression: Invalid value: \" \": must be non-empty if specified"],
        ),
        (
            "/spec/validations/0/reason",
            json!("Because"),
            &["spec.validations[0].reason: Unsupported value: \"Because\": supported values: \"Forbidden\""],
        ),
        ("/spec/matchConstraints", Value::Null, &["spec.matchConstraints: Required value"]),
        (
            "/spec/matchConstraints/resourceRules/0/resourceNames",
            json!(["a/b", "c", "c"]),
            &[
                "spec.matchConstraints.resourceRules[0].resourceNames[0]: Invalid value: \"a/b\": may not contain '/'",
                "spec.matchConstraints.resourceRules[0].resourceNames[2]: Duplicate value: \"c\"",
            ],
        ),
        (
            "/spec/failurePolicy",
            json!("Perhaps"),
            &["spec.failurePolicy: Unsupported value: \"Perhaps\": supported values: \"Fail\", \"Ignore\""],
        ),
    ];
    let policies = format!("{GROUP}/validatingadmissionpolicies");
    check_errors(&c, "POST", &policies, &validating(), &cases).await;
    let mut made = made(&c, &policies, validating()).await;
    made["status"] = json!({"typeChecking": {"expressionWarnings": [{"fieldRef": "spec", "warning": "w"}]}});
    let cases: Vec<FieldCase> = vec![
        (
            "/status/typeChecking/expressionWarnings/0",
            json!({"fieldRef": " "}),
            &[
                "status.typeChecking.expressionWarnings[0].fieldRef: Required value",
                "status.typeChecking.expressionWarnings[0].warning: Required value",
            ],
        ),
        (
            "/status/conditions",
            json!([{"type": "A", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]),
            &["status.conditions[0].reason: Required value"],
        ),
    ];
    check_errors(&c, "PUT", &format!("{policies}/p/status"), &made, &cases).await;
}

#[tokio::test]
async fn mutations_are_patches_of_one_type() {
    let c = Cluster::start(1).await;
    let apply = json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": "Object{}"}});
    let body = json!({"metadata": {"name": "p"}, "spec": {"matchConstraints": constraints("CREATE"), "mutations": [apply],
        "reinvocationPolicy": "Never"}});
    let at = "/spec/mutations/0";
    let cases: Vec<FieldCase> = vec![
        ("/spec/mutations", json!([]), &["spec.mutations: Required value: mutations must contain at least one item"]),
        ("/spec/reinvocationPolicy", json!(""), &["spec.reinvocationPolicy: Required value"]),
        (
            "/spec/reinvocationPolicy",
            json!("Often"),
            &["spec.reinvocationPolicy: Unsupported value: \"Often\": supported values: \"IfNeeded\", \"Never\""],
        ),
        (
            "/spec/failurePolicy",
            json!("x"),
            &["spec.failurePolicy: Unsupported value: \"x\": supported values: \"Fail\", \"Ignore\""],
        ),
        (at, json!({}), &["spec.mutations[0].patchType: Required value"]),
        (
            at,
            json!({"patchType": "Merge"}),
            &[
                "spec.mutations[0].patchType: Unsupported value: \"Merge\": supported values: \"ApplyConfiguration\", \"JSONPatch\"",
            ],
        ),
        (
            at,
            json!({"patchType": "JSONPatch", "applyConfiguration": {"expression": "Object{}"}}),
            &[
                "spec.mutations[0].applyConfiguration: Invalid value: \"{applyConfiguration}\": must not be specified when patchType is JSONPatch",
                "spec.mutations[0].jsonPatch: Required value: must be specified when patchType is JSONPatch",
            ],
        ),
        (
            at,
            json!({"patchType": "JSONPatch", "jsonPatch": {"expression": " "}}),
            &["spec.mutations[0].jsonPatch.expression: Required value"],
        ),
        (
            "/spec/matchConstraints/resourceRules/0/operations",
            json!(["DELETE"]),
            &[
                "spec.matchConstraints.resourceRules.operations: Unsupported value: \"DELETE\": supported values: \"*\", \"CONNECT\", \"CREATE\", \"UPDATE\"",
            ],
        ),
    ];
    check_errors(&c, "POST", &format!("{GROUP}/mutatingadmissionpolicies"), &body, &cases).await;
}

#[tokio::test]
async fn bindings_name_a_policy_and_its_parameters() {
    let c = Cluster::start(1).await;
    let reference = json!({"name": "x", "parameterNotFoundAction": "Deny"});
    let body = json!({"metadata": {"name": "b"}, "spec": {"policyName": "p", "paramRef": reference,
        "matchResources": constraints("CREATE")}});
    let at = "/spec/paramRef";
    let cases: Vec<FieldCase> = vec![
        ("/spec/policyName", json!(""), &["spec.policyName: Required value"]),
        ("/spec/policyName", json!("!"), &["spec.policyName: Invalid value: \"!\""]),
        (at, json!({"name": "x"}), &["spec.paramRef.parameterNotFoundAction: Required value"]),
        (
            at,
            json!({"parameterNotFoundAction": "Allow"}),
            &["spec.paramRef: Required value: one of name or selector must be"],
        ),
        (
            at,
            json!({"name": "x", "parameterNotFoundAction": "x"}),
            &["spec.paramRef.parameterNotFoundAction: Unsupported value: \"x\": supported values: \"Deny\", \"Allow\""],
        ),
    ];
    let with = |actions: Value| put(&body, "/spec/validationActions", &actions);
    check_errors(&c, "POST", &format!("{GROUP}/validatingadmissionpolicybindings"), &with(json!(["Deny"])), &cases)
        .await;
    check_errors(&c, "POST", &format!("{GROUP}/mutatingadmissionpolicybindings"), &body, &cases).await;
    let cases: Vec<FieldCase> = vec![(
        "/spec/matchResources/resourceRules/0/operations",
        json!(["DELETE"]),
        &["spec.matchResources.resourceRules.operations: Unsupported value: \"DELETE\""],
    )];
    check_errors(&c, "POST", &format!("{GROUP}/mutatingadmissionpolicybindings"), &body, &cases).await;
    let cases: Vec<FieldCase> = vec![
        (
            "/spec/validationActions",
            json!([]),
            &["spec.validationActions: Required value: at least one validation action is required"],
        ),
        (
            "/spec/validationActions",
            json!(["Deny", "Warn"]),
            &["spec.validationActions: Invalid value: [\"Deny\",\"Warn\"]: must not contain both Deny and Warn"],
        ),
        (
            "/spec/validationActions",
            json!(["Deny", "Deny", "x"]),
            &[
                "spec.validationActions[1]: Duplicate value: \"Deny\"",
                "spec.validationActions[2]: Unsupported value: \"x\"",
            ],
        ),
    ];
    check_errors(&c, "POST", &format!("{GROUP}/validatingadmissionpolicybindings"), &with(json!(["Deny"])), &cases)
        .await;
}

#[tokio::test]
async fn api_services_are_validated() {
    let c = Cluster::start(1).await;
    let services = "/apis/apiregistration.k8s.io/v1/apiservices";
    let body = json!({"metadata": {"name": "v1.x.example.com"}, "spec": {"group": "x.example.com", "version": "v1",
        "groupPriorityMinimum": 1, "versionPriority": 1, "service": {"namespace": "n", "name": "s"}, "caBundle": "eA=="}});
    let cases: Vec<FieldCase> = vec![
        (
            "/spec/insecureSkipTLSVerify",
            json!(true),
            &["spec.insecureSkipTLSVerify: Invalid value: true: may not be true if caBundle is present"],
        ),
        (
            "/spec/service",
            Value::Null,
            &["spec.caBundle: Invalid value: \"1 bytes\": local APIServices may not have a caBundle"],
        ),
        (
            "/spec/service/port",
            json!(70_000),
            &["spec.service.port: Invalid value: 70000: port is not valid: must be between 1 and 65535, inclusive"],
        ),
        (
            "/spec/versionPriority",
            json!(1001),
            &["spec.versionPriority: Invalid value: 1001: must be positive and less than 1000"],
        ),
    ];
    check_errors(&c, "POST", services, &body, &cases).await;
    let mut made = made(&c, services, body).await;
    made["status"] = json!({"conditions": [{"type": "Available", "status": "True"}]});
    let cases: Vec<FieldCase> = vec![(
        "/status/conditions/0/status",
        json!("Maybe"),
        &[
            "status.conditions[0].status: Unsupported value: \"Maybe\": supported values: \"True\", \"False\", \"Unknown\"",
        ],
    )];
    check_errors(&c, "PUT", &format!("{services}/v1.x.example.com/status"), &made, &cases).await;
}
