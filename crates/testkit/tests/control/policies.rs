//! Type checking results in the status of policies.

use super::harness::Plane;
use meta::Value;
use serde_json::json;

/// Expressions that do not match the types of objects cause warnings, with the observed generation.
#[tokio::test(start_paused = true)]
async fn expressions_of_policies_are_checked_against_types() {
    let p = Plane::start().await;
    let place = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
    let policy = |name: &str, expression: &str| {
        json!({"metadata": {"name": name}, "spec": {"validations": [{"expression": expression}],
            "matchConstraints": {"resourceRules": [{"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE"],
                "resources": ["deployments"]}]}}})
    };
    for (name, expression) in [("good", "object.spec.replicas < 9"), ("bad", "object.replicas < 9")] {
        let a = p.cluster.call("POST", place, policy(name, expression)).await;
        assert_eq!(a.code, 201, "{}", a.body);
    }
    let status = async |name: &str| {
        p.until("the policy to be checked", async || {
            let a = p.cluster.call("GET", &format!("{place}/{name}"), Value::Null).await;
            (a.body["status"]["observedGeneration"] == 1).then(|| a.body["status"].clone())
        })
        .await
    };
    assert_eq!(status("good").await["typeChecking"]["expressionWarnings"], Value::Null);
    let warnings = status("bad").await["typeChecking"]["expressionWarnings"].clone();
    assert_eq!(warnings[0]["fieldRef"], "spec.validations[0].expression");
    let text = warnings[0]["warning"].as_str().unwrap();
    assert!(text.contains("apps/v1, Kind=Deployment: ") && text.contains("undefined field 'replicas'"), "{text}");
}

/// So are those over custom resources, by what the server publishes of them, with parameters of such a kind. Issue 3, item 5.
#[tokio::test(start_paused = true)]
async fn expressions_over_custom_resources_are_checked_as_well() {
    let p = Plane::start().await;
    let text = json!({"type": "string"});
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "size": {"type": "integer"}, "parts": {"type": "array", "items": {"type": "object", "properties": {"name": text}}},
        "free": {"x-kubernetes-int-or-string": true}}}}});
    let definition = json!({"metadata": {"name": "toys.play.example.com"}, "spec": {"group": "play.example.com",
        "scope": "Namespaced", "names": {"plural": "toys", "kind": "Toy"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}});
    let place = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    assert_eq!(p.cluster.call("POST", place, definition).await.code, 201);
    let toys = "/apis/play.example.com/v1/toys";
    p.until("the resource", async || (p.cluster.call("GET", toys, Value::Null).await.code == 200).then_some(())).await;
    let place = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
    let check = async |name: &str, expression: &str| {
        let rules = json!([{"apiGroups": ["play.example.com"], "apiVersions": ["v1"], "operations": ["*"], "resources": ["toys"]}]);
        let policy = json!({"metadata": {"name": name}, "spec": {"validations": [{"expression": expression}],
            "paramKind": {"apiVersion": "play.example.com/v1", "kind": "Toy"}, "matchConstraints": {"resourceRules": rules}}});
        let a = p.cluster.call("POST", place, policy).await;
        assert_eq!(a.code, 201, "{}", a.body);
        p.until("the policy to be checked", async || {
            let a = p.cluster.call("GET", &format!("{place}/{name}"), Value::Null).await;
            let all = a.body["status"]["typeChecking"]["expressionWarnings"].clone();
            (a.body["status"]["observedGeneration"] == 1)
                .then(|| all[0]["warning"].as_str().unwrap_or_default().to_owned())
        })
        .await
    };
    let fine = "object.spec.size < params.spec.size && object.spec.parts.all(p, p.name != object.metadata.namespace)";
    assert_eq!(check("fine", fine).await, "");
    assert_eq!(check("any", "object.spec.free == 'a' || object.spec.free == 1").await, "");
    for (name, expression, why) in [
        ("field", "object.spec.weight > 1", "undefined field 'weight'"),
        ("type", "object.spec.size == 'big'", "found no matching overload for '_==_'"),
        ("params", "params.spec.weight > 1", "undefined field 'weight'"),
        ("metadata", "object.metadata.nothing == ''", "undefined field 'nothing'"),
    ] {
        let message = check(name, expression).await;
        assert!(
            message.starts_with("play.example.com/v1, Kind=Toy: compilation failed: ") && message.contains(why),
            "{message}"
        );
    }
}
