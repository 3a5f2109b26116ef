//! What upstream does not look at below a value that it refuses, and lists sent empty that count as set.

use crate::field_errors::{FieldCase, check_errors};
use crate::pods::{PODS, cluster, pod};
use serde_json::{Value, json};
use testkit::Cluster;

fn template() -> Value {
    json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

/// The rules of a rolling update are those of its type of strategy.
#[tokio::test]
async fn strategies_of_other_types_are_not_validated() {
    let c = Cluster::start(1).await;
    let spec = json!({"selector": {"matchLabels": {"a": "b"}}, "template": template()});
    let body = json!({"metadata": {"name": "w"}, "spec": spec});
    let unsound = json!({"partition": -1, "maxUnavailable": "x", "maxSurge": -1});
    let of = |ty: &str| json!({"type": ty, "rollingUpdate": unsound});
    let cases: Vec<FieldCase> = vec![
        ("/spec/strategy", of("Recreate"), &["spec.strategy.rollingUpdate: Forbidden: may not be specified"]),
        ("/spec/strategy", of("Other"), &["spec.strategy: Unsupported value: {\"Type\":\"Other\""]),
        (
            "/spec/strategy",
            of("RollingUpdate"),
            &[
                "spec.strategy.rollingUpdate.maxSurge: Invalid value: -1: must be greater than or equal to 0",
                "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: \"x\": a valid percent string",
            ],
        ),
        (
            "/spec/strategy",
            json!({"rollingUpdate": {"maxUnavailable": "11111111111111111111%", "maxSurge": "11111111111111111111%"}}),
            &[
                "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: \"11111111111111111111%\": must not be greater",
            ],
        ),
        (
            "/spec/selector",
            json!({"matchLabels": {"a b": "b"}, "matchExpressions": [{"key": "k", "operator": "Exists"}]}),
            &[
                "spec.selector.matchLabels: Invalid value: \"a b\"",
                "spec.selector: Invalid value: {\"matchLabels\":{\"a b\":\"b\"},\"matchExpressions\":[{\"key\":\"k\"",
            ],
        ),
    ];
    check_errors(&c, "POST", "/apis/apps/v1/namespaces/golden/deployments", &body, &cases).await;
    let cases: Vec<FieldCase> = vec![
        (
            "/spec/updateStrategy",
            of("OnDelete"),
            &["spec.updateStrategy.rollingUpdate: Invalid value: {\"Partition\":-1"],
        ),
        ("/spec/updateStrategy", of("Other"), &["spec.updateStrategy: Invalid value: {\"Type\":\"Other\""]),
    ];
    check_errors(&c, "POST", "/apis/apps/v1/namespaces/golden/statefulsets", &body, &cases).await;
    let sets = "/apis/apps/v1/namespaces/golden/daemonsets";
    let cases: Vec<FieldCase> =
        vec![("/spec/updateStrategy", of("Other"), &["spec.updateStrategy: Unsupported value: {\"Type\":\"Other\""])];
    check_errors(&c, "POST", sets, &body, &cases).await;
    let mut ignored = body.clone();
    ignored["spec"]["updateStrategy"] = of("OnDelete");
    let a = c.call("POST", &format!("{sets}?dryRun=All"), ignored).await;
    assert_eq!(a.code, 201, "{}", a.body);
}

#[tokio::test]
async fn members_of_other_types_are_not_validated() {
    let c = Cluster::start(1).await;
    const FLOWS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1";
    let all = json!({"user": {"name": ""}, "group": {"name": ""}, "serviceAccount": {"name": "", "namespace": "A"}});
    let of = |kind: &str| {
        let mut all = all.clone();
        all["kind"] = kind.into();
        all
    };
    let rule = json!({"subjects": [{"kind": "User", "user": {"name": "u"}}],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}]});
    let body =
        json!({"metadata": {"name": "f"}, "spec": {"priorityLevelConfiguration": {"name": "l"}, "rules": [rule]}});
    let cases: Vec<FieldCase> = vec![
        (
            "/spec/rules/0/subjects/0",
            of("User"),
            &[
                "spec.rules[0].subjects[0].group: Forbidden",
                "spec.rules[0].subjects[0].serviceAccount: Forbidden",
                "spec.rules[0].subjects[0].user.name: Required value",
            ],
        ),
        ("/spec/rules/0/subjects/0", of("Other"), &["spec.rules[0].subjects[0].kind: Unsupported value"]),
    ];
    check_errors(&c, "POST", &format!("{FLOWS}/flowschemas"), &body, &cases).await;
    let service = json!({"name": "s", "port": {"number": 80}});
    let body = json!({"metadata": {"name": "i"}, "spec": {"defaultBackend": {"service": service}}});
    let both = json!({"resource": {"kind": "", "name": ""}, "service": {"name": "A"}});
    let cases: Vec<FieldCase> = vec![
        ("/spec/defaultBackend", both, &["spec.defaultBackend: Invalid value: \"\": cannot set both resource and"]),
        (
            "/spec/defaultBackend",
            json!({"service": {"name": "A", "port": {"number": 1}}}),
            &["spec.defaultBackend.service.name: Invalid value: \"A\""],
        ),
    ];
    check_errors(&c, "POST", "/apis/networking.k8s.io/v1/namespaces/golden/ingresses", &body, &cases).await;
    let inline = json!({"accessModes": ["ReadWriteOnce"], "csi": {"driver": "a.example", "volumeHandle": "h"}});
    let body = json!({"metadata": {"name": "a"},
        "spec": {"attacher": "a.example", "nodeName": "n", "source": {"inlineVolumeSpec": inline}}});
    const CLASS: &str = "spec.source.inlineVolumeSpec.storageClassName: Forbidden: may not be specified in the context";
    let cases: Vec<FieldCase> = vec![("/spec/source/inlineVolumeSpec/storageClassName", json!("A"), &[CLASS])];
    check_errors(&c, "POST", "/apis/storage.k8s.io/v1/volumeattachments", &body, &cases).await;
}

#[tokio::test]
async fn items_of_too_long_lists_are_not_validated() {
    let c = Cluster::start(1).await;
    let request = json!({"name": "r", "exactly": {"deviceClassName": "c.example.com"}});
    let body = json!({"metadata": {"name": "c"}, "spec": {"devices": {"requests": [request], "config": [
        {"opaque": {"driver": "d.example.com", "parameters": {}}}]}}});
    let many = |v: Value| Value::Array(vec![v; 33]);
    let both = json!({"name": "r", "exactly": {"deviceClassName": ""}, "firstAvailable": [{"name": "A"}]});
    let cases: Vec<FieldCase> = vec![
        ("/spec/devices/requests", many(json!({"name": "A"})), &["spec.devices.requests: Too many: 33"]),
        ("/spec/devices/config/0/requests", many(json!("A")), &["spec.devices.config[0].requests: Too many: 33"]),
        ("/spec/devices/constraints", many(json!({})), &["spec.devices.constraints: Too many: 33"]),
        (
            "/spec/devices/requests/0",
            json!({"name": "r", "firstAvailable": vec![json!({"name": "A"}); 9]}),
            &["spec.devices.requests[0].firstAvailable: Too many: 9"],
        ),
        ("/spec/devices/requests/0", both, &["spec.devices.requests[0]: Invalid value: null: exactly one of"]),
        (
            "/spec/devices/requests/0",
            json!({"name": "r", "firstAvailable": [{"name": "A", "deviceClassName": ""}]}),
            &[
                "spec.devices.requests[0].firstAvailable[0].deviceClassName: Required value",
                "spec.devices.requests[0].firstAvailable[0].name: Invalid value: \"A\"",
            ],
        ),
    ];
    check_errors(&c, "POST", "/apis/resource.k8s.io/v1/namespaces/golden/resourceclaims", &body, &cases).await;
}

/// Go distinguishes an empty list from an absent one: it is not nil.
#[tokio::test]
async fn lists_sent_empty_are_set() {
    let c = cluster().await;
    let ephemeral =
        json!([{"name": "e", "image": "i", "ports": [], "resources": {"claims": []}, "restartPolicyRules": []}]);
    const CREATE: &str = "spec.ephemeralContainers: Forbidden: cannot be set on create";
    let metadata = json!({"uid": "u", "finalizers": [], "managedFields": []});
    let claim = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let volume = json!({"name": "v", "ephemeral": {"volumeClaimTemplate": {"metadata": metadata, "spec": claim}}});
    let cases: Vec<FieldCase> = vec![
        (
            "/spec/resources",
            json!({"claims": []}),
            &["spec.resources.claims: Forbidden: claims may not be set for Resources at pod-level"],
        ),
        (
            "/spec/ephemeralContainers",
            ephemeral,
            &[
                CREATE,
                "spec.ephemeralContainers[0].ports: Forbidden",
                "spec.ephemeralContainers[0].resources: Forbidden",
                "spec.ephemeralContainers[0].restartPolicyRules: Forbidden",
            ],
        ),
        (
            "/spec/volumes/0",
            volume,
            &[
                "spec.containers[0].volumeMounts[0].name: Not found",
                "spec.volumes[0].ephemeral.volumeClaimTemplate.metadata.finalizers: Forbidden: cannot be set",
                "spec.volumes[0].ephemeral.volumeClaimTemplate.metadata.managedFields: Forbidden: cannot be set",
                "spec.volumes[0].ephemeral.volumeClaimTemplate.metadata.uID: Forbidden: cannot be set",
            ],
        ),
    ];
    check_errors(&c, "POST", PODS, &pod(), &cases).await;
    let body = json!({"metadata": {"name": "t"}, "spec": {"metadata": {}, "spec": {}}});
    let cases: Vec<FieldCase> = vec![(
        "/spec/metadata",
        json!({"ownerReferences": [], "deletionGracePeriodSeconds": 0, "generation": 0, "name": ""}),
        &[
            "spec.metadata.deletionGracePeriodSeconds: Forbidden: cannot be set",
            "spec.metadata.ownerReferences: Forbidden: cannot be set",
        ],
    )];
    check_errors(&c, "POST", "/apis/resource.k8s.io/v1/namespaces/golden/resourceclaimtemplates", &body, &cases).await;
}

/// Names of some kinds are only validated as names in paths, once everything else is valid.
#[tokio::test]
async fn names_without_a_rule_are_validated_last() {
    let c = Cluster::start(1).await;
    let requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let spec = json!({"signerName": "a.example/b", "usages": ["any"], "request": "YQ=="});
    let a = c.call("POST", requests, json!({"metadata": {"name": "a/b"}, "spec": spec})).await;
    let fields = |b: &Value| -> Vec<String> {
        let causes = b["details"]["causes"].as_array().cloned().unwrap_or_default();
        causes.iter().map(|c| c["field"].as_str().unwrap_or_default().to_owned()).collect()
    };
    assert_eq!(fields(&a.body), ["spec.request"], "{}", a.body);
}

/// Reviews are decoded without their kind, which is therefore missing in their errors.
#[tokio::test]
async fn errors_of_reviews_name_no_kind() {
    let c = Cluster::start(1).await;
    let values = json!({"requirements": [{"key": "a", "operator": "In", "values": ["fd00::01"]}]});
    let spec = json!({"resourceAttributes": {"verb": "get", "resource": "pods", "labelSelector": values, "fieldSelector": {}}});
    let a = c.call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", json!({"spec": spec})).await;
    let message = a.body["message"].as_str().unwrap_or_default();
    assert!(a.code == 422 && message.starts_with(".authorization.k8s.io \"\" is invalid: ["), "{}", a.body);
    assert!(message.contains("labelSelector.requirements[0].values[0]: Invalid value: \"fd00::01\": a valid label"));
    assert!(
        message.contains("Required value: when spec.resourceAttributes.fieldSelector is specified, requirements or")
    );
    assert_eq!(a.body["details"].get("kind"), None, "{}", a.body);
}

/// The type of an expression's result must be known.
#[tokio::test]
async fn dynamic_results_are_rejected() {
    let c = Cluster::start(1).await;
    let resources =
        json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]);
    let spec = json!({"matchConstraints": {"resourceRules": resources}, "validations": [{"expression": "true"}]});
    let body = json!({"metadata": {"name": "p"}, "spec": spec});
    let cases: Vec<FieldCase> = vec![
        (
            "/spec/validations",
            json!([{"expression": "object.x"}]),
            &["spec.validations[0].expression: Invalid value: \"object.x\": must evaluate to bool but got dyn"],
        ),
        (
            "/spec/validations",
            json!([{"expression": "timestamp('2026-01-01T00:00:00Z')"}, {"expression": "true", "messageExpression": "{'a': null}"}]),
            &[
                "spec.validations[0].expression: Invalid value: \"timestamp('2026-01-01T00:00:00Z')\": must evaluate to bool but got google.protobuf.Timestamp",
                "spec.validations[1].messageExpression: Invalid value: \"{'a': null}\": must evaluate to string but got map(string, null_type)",
            ],
        ),
        (
            "/spec/auditAnnotations",
            json!([{"key": "a", "valueExpression": "object.x"}]),
            &[
                "spec.auditAnnotations[0].valueExpression: Invalid value: \"object.x\": must evaluate to one of [string null_type] but got dyn",
            ],
        ),
    ];
    check_errors(&c, "POST", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies", &body, &cases).await;
}

/// Times with microseconds have six digits, as Go's decoder requires.
#[tokio::test]
async fn micro_times_have_six_digits() {
    let c = Cluster::start(1).await;
    for (time, code) in [
        ("2026-01-01T00:00:00.123456Z", 201),
        ("2026-01-01T00:00:00.123456+01:00", 201),
        ("2026-01-01T00:00:00Z", 400),
        ("2026-01-01T00:00:00.1234567Z", 400),
    ] {
        let lease = json!({"metadata": {"generateName": "l"}, "spec": {"renewTime": time}});
        let a = c.call("POST", "/apis/coordination.k8s.io/v1/namespaces/golden/leases", lease).await;
        assert_eq!(a.code, code, "{time}: {}", a.body);
    }
}

#[tokio::test]
async fn parameters_that_upstream_refuses() {
    let c = Cluster::start(1).await;
    const MAPS: &str = "/api/v1/namespaces/golden/configmaps";
    assert_eq!(c.call("POST", MAPS, json!({"metadata": {"name": "m"}})).await.code, 201);
    for (path, why) in [
        (format!("{MAPS}/m?export=true"), "the export parameter, deprecated since v1.14, is no longer supported"),
        (format!("{MAPS}?labelSelector=a%3C-5"), "values[0][a]: Invalid value: \"-5\": a valid label must be"),
    ] {
        let a = c.call("GET", &path, Value::Null).await;
        assert!(a.code == 400 && a.body["message"].as_str().is_some_and(|m| m.contains(why)), "{path} {}", a.body);
    }
}
