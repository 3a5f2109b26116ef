//! Definitions of custom resources, beyond the tests in `custom`.

use super::made;
use crate::field_errors::{FieldCase, check_errors, put};
use serde_json::{Value, json};
use testkit::Cluster;

const PATH: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn definition() -> Value {
    let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object",
        "properties": {"n": {"type": "integer"}}, "x-kubernetes-validations": [{"rule": "self.n > 0"}]}}}});
    let service = json!({"namespace": "n", "name": "s", "path": "/p"});
    json!({"metadata": {"name": "things.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
        "names": {"plural": "things", "kind": "Thing"},
        "conversion": {"strategy": "Webhook", "webhook": {"clientConfig": {"service": service}, "conversionReviewVersions": ["v1"]}},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}]}})
}

#[tokio::test]
async fn versions_are_shown_as_the_server_keeps_them() {
    let c = Cluster::start(1).await;
    let config = "/spec/conversion/webhook/clientConfig";
    let rule = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/x-kubernetes-validations/0/rule";
    let shown = "spec.versions: Invalid value: [{\"Name\":\"v1\",\"Served\":true,\"Storage\":false,\"Deprecated\":false,\"DeprecationWarning\":null,\"Schema\":null,\"Subresources\":null,\"AdditionalPrinterColumns\":null,\"SelectableFields\":null}]: must have exactly one version";
    let shown: &'static [&'static str] = Box::leak(Box::new([shown, "status.storedVersions: Invalid value: null"]));
    let cases: Vec<FieldCase> = vec![
        ("/spec/versions/0/storage", json!(false), shown),
        (
            "/spec/versions",
            json!([]),
            &[
                "spec.versions: Invalid value: []: must have exactly one version marked as storage version",
                "status.storedVersions: Invalid value: null",
            ],
        ),
        (
            rule,
            json!("self.m > 0"),
            &[
                "spec.validation.openAPIV3Schema.properties[spec].x-kubernetes-validations[0].rule: Invalid value: {\"Rule\":\"self.m \\u003e 0\",\"Message\":\"\",\"MessageExpression\":\"\",\"Reason\":null,\"FieldPath\":\"\",\"OptionalOldSelf\":null}: compilation failed",
            ],
        ),
        (
            config,
            json!({"url": "http://a"}),
            &[
                "spec.conversion.webhookClientConfig.url: Invalid value: \"http\": 'https' is the only allowed URL scheme",
            ],
        ),
        (
            "/spec/conversion/webhook/clientConfig/service/port",
            json!(70_000),
            &[
                "spec.conversion.webhookClientConfig.service.port: Invalid value: 70000: port is not valid: must be between 1 and 65535, inclusive",
            ],
        ),
        (
            "/spec/conversion/webhook/clientConfig/service/path",
            json!("x"),
            &[
                "spec.conversion.webhookClientConfig.service.path: Invalid value: \"x\": must start with a '/'",
                "spec.conversion.webhookClientConfig.service.path: Invalid value: \"x\": segment[0] may not be empty",
            ],
        ),
        ("/spec/conversion/webhook/clientConfig/caBundle", json!("eA=="), &[]),
    ];
    check_errors(&c, "POST", PATH, &definition(), &cases).await;
}

#[tokio::test]
async fn what_is_served_names_authorities_that_can_be_read() {
    let c = Cluster::start(1).await;
    let mut made = made(&c, PATH, definition()).await;
    for _ in 0..200 {
        made = c.call("GET", &format!("{PATH}/things.example.com"), Value::Null).await.body;
        if made["status"]["conditions"]
            .as_array()
            .is_some_and(|a| a.iter().any(|c| c["type"] == "Established" && c["status"] == "True"))
        {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let bundle = "/spec/conversion/webhook/clientConfig/caBundle";
    let cases: Vec<FieldCase> = vec![
        (
            bundle,
            json!("eA=="),
            &[
                "spec.conversion.webhookClientConfig.caBundle: Invalid value: \"eA==\": unable to load root certificates: unable to parse bytes as PEM block",
            ],
        ),
        ("/spec/scope", json!("Cluster"), &["spec.scope: Invalid value: \"Cluster\": field is immutable"]),
        ("/spec/names/kind", json!("Other"), &["spec.names.kind: Invalid value: \"Other\": field is immutable"]),
    ];
    let path = format!("{PATH}/things.example.com");
    check_errors(&c, "PUT", &path, &made, &cases).await;
    let a = c.call("PUT", &path, put(&made, "/metadata/labels", &json!({"a": "b"}))).await;
    assert_eq!(a.code, 200, "{}", a.body);
}
