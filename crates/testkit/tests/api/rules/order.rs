//! The order of field errors is upstream's, whether data or code reports them.

use serde_json::{Value, json};
use testkit::Cluster;

fn blamed(body: &Value) -> Vec<&str> {
    body["details"]["causes"].as_array().into_iter().flatten().filter_map(|c| c["field"].as_str()).collect()
}

#[tokio::test]
async fn errors_have_the_order_of_upstream() {
    let c = Cluster::start(1).await;
    let template =
        json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c"}], "restartPolicy": "Never"}});
    let cases = [
        (
            "/api/v1/namespaces/default/services",
            json!({"spec": {"type": "Other", "ports": [{"port": 0}, {"port": 1, "name": "x"}]}}),
            &["spec.ports[0].name", "spec.ports[0].port", "spec.ports[0].targetPort", "spec.type"][..],
        ),
        (
            "/apis/batch/v1/namespaces/default/jobs",
            json!({"spec": {"manualSelector": true, "backoffLimit": -1, "template": template}}),
            &[
                "spec.backoffLimit",
                "spec.template.spec.containers[0].image",
                "spec.selector",
                "spec.template.metadata.labels",
            ],
        ),
        (
            "/apis/apps/v1/namespaces/default/statefulsets",
            json!({"spec": {"selector": {"matchLabels": {"a": "b"}}, "podManagementPolicy": "Any",
                "volumeClaimTemplates": [{"spec": {}}], "template": {"metadata": {"labels": {"a": "b"}},
                    "spec": {"containers": [{"name": "c", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]}}}}),
            &[
                "spec.podManagementPolicy",
                "spec.volumeClaimTemplates[0].spec.accessModes",
                "spec.volumeClaimTemplates[0].spec.resources[storage]",
                "spec.template.spec.volumes[0].persistentVolumeClaim.claimName",
                "spec.template.spec.volumes[0].name",
                "spec.template.spec.containers[0].volumeMounts[0].name",
            ],
        ),
        (
            "/api/v1/namespaces/default/podtemplates",
            json!({"template": {"spec": {"containers": [{"name": "c", "volumeMounts": [{"name": "a", "mountPath": "/"}],
                    "ports": [{"containerPort": 0, "hostPort": -1}], "livenessProbe": {"failureThreshold": -1}}],
                "volumes": [{"name": "", "secret": {"defaultMode": -1, "items": [{"key": "k"}]}},
                    {"name": "d", "downwardAPI": {"defaultMode": -1, "items": [{"path": "p"}]}}]}}}),
            &[
                "template.spec.volumes[0].secret.secretName",
                "template.spec.volumes[0].secret.defaultMode",
                "template.spec.volumes[0].secret.items[0].path",
                "template.spec.volumes[0].name",
                "template.spec.volumes[1].downwardAPI.defaultMode",
                "template.spec.volumes[1].downwardAPI",
                "template.spec.containers[0].image",
                "template.spec.containers[0].ports[0].containerPort",
                "template.spec.containers[0].ports[0].hostPort",
                "template.spec.containers[0].volumeMounts[0].name",
                "template.spec.containers[0].livenessProbe",
                "template.spec.containers[0].livenessProbe.failureThreshold",
            ],
        ),
    ];
    for (path, mut body, want) in cases {
        body["metadata"] = json!({"name": "x"});
        let a = c.call("POST", &format!("{path}?dryRun=All"), body).await;
        assert_eq!((a.code, blamed(&a.body)), (422, want.to_vec()), "{}", a.body);
    }
}

/// What may not change is said last, or first, or in the midst, as the kind has it.
#[tokio::test]
async fn immutability_errors_have_the_order_of_upstream() {
    let c = Cluster::start(1).await;
    let pod = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let cases = [
        (
            "/apis/apps/v1/namespaces/default/daemonsets",
            json!({"spec": {"selector": {"matchLabels": {"a": "b"}}, "template": pod}}),
            ("/spec/selector", json!({"matchLabels": {"a": "c"}})),
            &["spec.selector", "spec.template.metadata.labels"][..],
        ),
        (
            "/apis/apps/v1/namespaces/default/deployments",
            json!({"spec": {"selector": {"matchLabels": {"a": "b"}}, "template": pod}}),
            ("/spec/selector", json!({"matchLabels": {"a": "c"}})),
            &["spec.template.metadata.labels", "spec.selector"],
        ),
        (
            "/apis/resource.k8s.io/v1/resourceslices",
            json!({"spec": {"driver": "d.example.com", "nodeName": "n",
                "pool": {"name": "p", "resourceSliceCount": 1, "generation": 1}, "devices": []}}),
            ("/spec/nodeName", Value::Null),
            &["spec.nodeName", "spec"],
        ),
        (
            "/apis/apps/v1/namespaces/default/statefulsets",
            json!({"spec": {"selector": {"matchLabels": {"a": "b"}}, "template": pod, "volumeClaimTemplates": [
                {"metadata": {"name": "v"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}]}}),
            ("/spec/volumeClaimTemplates/0/metadata/name", json!("")),
            &[
                "spec.template.spec.volumes[0].persistentVolumeClaim.claimName",
                "spec.template.spec.volumes[0].name",
                "spec",
            ],
        ),
    ];
    for (path, mut body, (at, value), want) in cases {
        body["metadata"] = json!({"name": "x"});
        let mut made = c.call("POST", path, body).await.body;
        let field = made.pointer_mut(at).unwrap_or_else(|| panic!("{path} has no {at}"));
        *field = value;
        let a = c.call("PUT", &format!("{path}/x?dryRun=All"), made).await;
        assert_eq!((a.code, blamed(&a.body)), (422, want.to_vec()), "{}", a.body);
    }
}
