//! What is said of policies in their status.

use super::harness::Plane;
use meta::Value;
use serde_json::json;

/// Expressions that do not fit the types of the objects are warned of, and the generation they were seen at is told.
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
