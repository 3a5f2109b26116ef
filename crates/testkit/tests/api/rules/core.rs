//! Rules of the core group that take more than one field, as tables (`pkg/apis/core/validation/validation.go`).

use crate::field_errors::{FieldCase, check_errors, put};
use crate::pods::{PODS, cluster, pod};
use serde_json::{Value, json};
use testkit::Cluster;

const C: &str = "/spec/containers/0";

fn container(key: &str, v: Value) -> Value {
    put(&pod()["spec"]["containers"][0], &format!("/{key}"), &v)
}

#[tokio::test]
async fn references_and_finalizers_are_not_numbered() {
    let c = Cluster::start(1).await;
    let body = json!({"metadata": {"name": "m"}});
    let owner = |kind: &str, name: &str| json!({"apiVersion": "v1", "kind": kind, "name": name, "uid": "1", "controller": true});
    let cases: Vec<FieldCase> = vec![
        (
            "/metadata/ownerReferences",
            json!([{"apiVersion": "", "kind": "", "name": "", "uid": ""}]),
            &[
                "metadata.ownerReferences.apiVersion: Invalid value: \"\": version must not be empty",
                "metadata.ownerReferences.kind: Invalid value: \"\": must not be empty",
                "metadata.ownerReferences.name: Invalid value: \"\": must not be empty",
                "metadata.ownerReferences.uid: Invalid value: \"\": must not be empty",
            ],
        ),
        (
            "/metadata/ownerReferences",
            json!([owner("Event", "a"), owner("Pod", "b")]),
            &[
                "metadata.ownerReferences: Invalid value: [{\"apiVersion\":\"v1\",\"kind\":\"Event\",\"name\":\"a\",\"uid\":\"1\",\"controller\":true},{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"name\":\"b\",\"uid\":\"1\",\"controller\":true}]: Only one reference can have Controller set to true. Found \"true\" in references for Event/a and Pod/b",
                "metadata.ownerReferences: Invalid value: {\"apiVersion\":\"v1\",\"kind\":\"Event\",\"name\":\"a\",\"uid\":\"1\",\"controller\":true}: /v1, Kind=Event is disallowed from being an owner",
            ],
        ),
        (
            "/metadata/finalizers",
            json!(["example.com/a", "A b/c"]),
            &["metadata.finalizers: Invalid value: \"A b/c\": prefix part"],
        ),
    ];
    check_errors(&c, "POST", "/api/v1/namespaces/golden/configmaps", &body, &cases).await;
    let cases: Vec<FieldCase> = vec![(
        "/spec/finalizers",
        json!(["example.com/a", "x"]),
        &["spec.finalizers: Invalid value: \"x\": name is neither a standard finalizer name"],
    )];
    check_errors(&c, "POST", "/api/v1/namespaces", &json!({"metadata": {"name": "n"}, "spec": {}}), &cases).await;
}

/// Of two handlers or sources the second is too many, whatever else is wrong with it.
#[tokio::test]
async fn second_sources_are_not_validated() {
    let c = cluster().await;
    let cases: Vec<FieldCase> = vec![
        (
            "/spec/volumes/0/hostPath",
            json!({"path": ""}),
            &[
                "spec.containers[0].volumeMounts[0].name: Not found",
                "spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type",
            ],
        ),
        (
            C,
            container("livenessProbe", json!({"exec": {"command": ["x"]}, "httpGet": {"port": 0, "scheme": "X"}})),
            &["spec.containers[0].livenessProbe.httpGet: Forbidden: may not specify more than 1 handler type"],
        ),
        (
            C,
            container("lifecycle", json!({"preStop": {"exec": {"command": ["x"]}, "sleep": {"seconds": 99}}})),
            &["spec.containers[0].lifecycle.preStop.sleep: Forbidden: may not specify more than 1 handler type"],
        ),
        (
            "/spec/volumes/0",
            json!({"name": "v", "hostPath": {"path": "", "type": "Other"}}),
            &["spec.containers[0].volumeMounts[0].name: Not found", "spec.volumes[0].hostPath.path: Required value"],
        ),
    ];
    check_errors(&c, "POST", PODS, &pod(), &cases).await;
    let body = json!({"metadata": {"name": "v"}, "spec": {"capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/v"}}});
    let cases: Vec<FieldCase> =
        vec![("/spec/nfs", json!({"path": ""}), &["spec.nfs: Forbidden: may not specify more than 1 volume type"])];
    check_errors(&c, "POST", "/api/v1/persistentvolumes", &body, &cases).await;
}

#[tokio::test]
async fn features_of_this_release_are_allowed() {
    let c = cluster().await;
    let rule = |action: &str| {
        let rule = json!({"action": action, "exitCodes": {"operator": "In", "values": [1]}});
        put(&container("restartPolicy", json!("Never")), "/restartPolicyRules", &json!([rule]))
    };
    let whole = |requests: Value, limits: Value| json!({"requests": requests, "limits": limits});
    let cases: Vec<FieldCase> = vec![
        (
            "/spec/securityContext",
            json!({"seLinuxChangePolicy": "MountOption"}),
            &[
                "spec.securityContext.seLinuxChangePolicy: Unsupported value: \"MountOption\": supported values: \"Recursive\"",
            ],
        ),
        (
            "/spec/securityContext",
            json!({"seccompProfile": {"type": "Unconfined", "localhostProfile": "x"}}),
            &[
                "spec.securityContext.seccompProfile.localhostProfile: Invalid value: {\"Type\":\"Unconfined\",\"LocalhostProfile\":\"x\"}: can only be set",
            ],
        ),
        (
            C,
            rule("Other"),
            &[
                "spec.containers[0].restartPolicyRules[0].action: Unsupported value: \"Other\": supported values: \"Restart\", \"RestartAllContainers\"",
            ],
        ),
        ("/spec/resources", whole(json!({"memory": "1Gi"}), json!({})), &[]),
        (
            "/spec/resources",
            whole(json!({"cpu": "1"}), json!({"cpu": "1", "hugepages-2Mi": "3Mi"})),
            &["spec.resources.limits[hugepages-2Mi]", "spec.resources.requests[hugepages-2Mi]"],
        ),
    ];
    let cases: Vec<FieldCase> = cases.into_iter().filter(|c| !c.2.is_empty()).collect();
    check_errors(&c, "POST", PODS, &pod(), &cases).await;
    // What only the containers ask for is no matter of the pod.
    let mut body = put(&pod(), "/spec/resources", &whole(json!({"memory": "1Gi"}), json!({})));
    body["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1", "ephemeral-storage": "1Gi"}});
    let a = c.call("POST", &format!("{PODS}?dryRun=All"), body.clone()).await;
    assert_eq!(a.code, 201, "{}", a.body);
    body["spec"]["os"] = json!({"name": "windows"});
    let a = c.call("POST", &format!("{PODS}?dryRun=All"), body).await;
    assert_eq!(a.body["details"]["causes"][0]["message"], "Forbidden: may not be set for a windows pod", "{}", a.body);
}

/// Fields behind gates that are off by default are not there.
#[tokio::test]
async fn fields_of_disabled_features_are_dropped() {
    let c = cluster().await;
    let mut body = pod();
    body["spec"]["containers"][0]["lifecycle"] = json!({"stopSignal": "SIGUSR1"});
    body["spec"]["schedulingGroup"] = json!({"podGroupName": "g"});
    body["spec"]["volumes"][0] = json!({"name": "v", "projected": {"sources": [
        {"clusterTrustBundle": {"path": "p"}}, {"podCertificate": {}}, {"secret": {"name": "s"}}]}});
    let check = |spec: &Value| {
        let found = (
            &spec["containers"][0]["lifecycle"],
            &spec["schedulingGroup"],
            &spec["volumes"][0]["projected"]["sources"],
        );
        assert_eq!(found, (&Value::Null, &Value::Null, &json!([{}, {}, {"secret": {"name": "s"}}])), "{spec}");
    };
    let a = c.call("POST", PODS, body.clone()).await;
    assert_eq!(a.code, 201, "{}", a.body);
    check(&a.body["spec"]);
    let template = json!({"metadata": {"name": "t"}, "template": {"spec": body["spec"]}});
    let a = c.call("POST", "/api/v1/namespaces/golden/podtemplates", template).await;
    check(&a.body["template"]["spec"]);
    // An update brings them no more than a creation.
    let mut made = a.body;
    made["template"]["spec"]["containers"][0]["lifecycle"] = json!({"stopSignal": "SIGUSR1"});
    let a = c.call("PUT", "/api/v1/namespaces/golden/podtemplates/t", made).await;
    assert_eq!(a.code, 200, "{}", a.body);
    check(&a.body["template"]["spec"]);
}

/// Upstream turned the gate off again in v1.36.
#[tokio::test]
async fn stateful_sets_have_max_unavailable_behind_a_gate() {
    for enabled in [false, true] {
        let c = cluster().await;
        let gates: &[&str] = if enabled { &["MaxUnavailableStatefulSet"] } else { &[] };
        let _ = c.server.registry.features.set(gates.iter().map(|g| (*g).to_owned()).collect());
        let labels = json!({"a": "b"});
        let spec = json!({"serviceName": "s", "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 2}}});
        let path = "/apis/apps/v1/namespaces/golden/statefulsets";
        let a = c.call("POST", path, json!({"metadata": {"name": "s"}, "spec": spec})).await;
        assert_eq!(a.code, 201, "{}", a.body);
        let expected = if enabled { json!({"partition": 0, "maxUnavailable": 2}) } else { json!({"partition": 0}) };
        assert_eq!(a.body["spec"]["updateStrategy"]["rollingUpdate"], expected);
    }
}

/// Upstream's rules of stop signals, which are behind a gate.
#[tokio::test]
async fn stop_signals_are_validated_by_operating_system() {
    let c = cluster().await;
    assert!(c.server.registry.features.set(["ContainerStopSignals".to_owned()].into()).is_ok());
    let check = async |os: Value, signal: &str, expected: &str| {
        let mut body = pod();
        body["spec"]["os"] = os.clone();
        body["spec"]["containers"][0]["lifecycle"] = json!({"stopSignal": signal});
        let a = c.call("POST", &format!("{PODS}?dryRun=All"), body).await;
        if expected.is_empty() {
            assert_eq!(a.body["spec"]["containers"][0]["lifecycle"]["stopSignal"], signal, "{os} {}", a.body);
            return;
        }
        let cause = &a.body["details"]["causes"][0];
        let message = cause["message"].as_str().unwrap_or_default();
        assert!(message.starts_with(expected), "{os} {signal}: {}", a.body);
        assert_eq!(cause["field"], "spec.containers[0].lifecycle.stopSignal");
    };
    let (linux, windows) = (json!({"name": "linux"}), json!({"name": "windows"}));
    check(linux.clone(), "SIGUSR1", "").await;
    check(linux.clone(), "SIGRTMIN+15", "").await;
    check(windows.clone(), "SIGKILL", "").await;
    check(windows, "SIGUSR1", "Unsupported value: \"SIGUSR1\": supported values: \"SIGKILL\", \"SIGTERM\"").await;
    check(linux, "SIGNOPE", "Unsupported value: \"SIGNOPE\": supported values: \"SIGABRT\", \"SIGALRM\", ").await;
    check(Value::Null, "SIGUSR1", "Forbidden: may not be set for containers with empty `spec.os.name`").await;
}

#[tokio::test]
async fn quotas_and_secrets() {
    let c = Cluster::start(1).await;
    let body = json!({"metadata": {"name": "q"}, "spec": {"hard": {"cpu": "1", "services": "1"}}});
    const MISAPPLIED: &str = "spec.scopes: Invalid value: [\"BestEffort\"]: unsupported scope applied to resource";
    let selector =
        |scope: &str, operator: &str| json!({"matchExpressions": [{"scopeName": scope, "operator": operator}]});
    let cases: Vec<FieldCase> = vec![
        ("/spec/scopes", json!(["BestEffort"]), &[MISAPPLIED, MISAPPLIED]),
        (
            "/spec/scopeSelector",
            selector("Terminating", "Exists"),
            &[
                "spec.scopeSelector.matchExpressions: Invalid value: {\"MatchExpressions\":[{\"ScopeName\":\"Terminating\",\"Operator\":\"Exists\",\"Values\":null}]}: unsupported scope applied to resource",
            ],
        ),
        (
            "/spec",
            json!({"scopeSelector": {"matchExpressions": [
                {"scopeName": "BestEffort", "operator": "Exists"}, {"scopeName": "NotBestEffort", "operator": "Exists"}]}}),
            &["spec.scopeSelector.matchExpressions: Invalid value: null: conflicting scopes"],
        ),
    ];
    check_errors(&c, "POST", "/api/v1/namespaces/golden/resourcequotas", &body, &cases).await;
    let body = json!({"metadata": {"name": "s"}, "type": "kubernetes.io/dockerconfigjson",
        "data": {".dockerconfigjson": "e30="}});
    let cases: Vec<FieldCase> = vec![(
        "/data/.dockerconfigjson",
        json!("W10="),
        &[
            "data[.dockerconfigjson]: Invalid value: \"<secret contents redacted>\": json: cannot unmarshal array into Go value of type map[string]interface {}",
        ],
    )];
    check_errors(&c, "POST", "/api/v1/namespaces/golden/secrets", &body, &cases).await;
    let body = json!({"metadata": {"name": "s"}, "type": "kubernetes.io/ssh-auth", "data": {"ssh-privatekey": "YQ=="}});
    let cases: Vec<FieldCase> = vec![("/data/ssh-privatekey", json!(""), &["data[ssh-privatekey]: Required value"])];
    check_errors(&c, "POST", "/api/v1/namespaces/golden/secrets", &body, &cases).await;
}

#[tokio::test]
async fn addresses_have_one_meaning() {
    let c = Cluster::start(1).await;
    let body = json!({"metadata": {"name": "s"}, "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]}});
    let cases: Vec<FieldCase> = vec![
        (
            "/spec/externalIPs",
            json!(["010.0.0.1", "::ffff:10.0.0.1"]),
            &[
                "spec.externalIPs[0]: Invalid value: \"010.0.0.1\": must not have leading 0s",
                "spec.externalIPs[1]: Invalid value: \"::ffff:10.0.0.1\": must not be an IPv4-mapped IPv6 address",
            ],
        ),
        (
            "/spec/loadBalancerSourceRanges",
            json!(["10.0.0.1/8"]),
            &[
                "spec.LoadBalancerSourceRanges[0]: Invalid value: \"10.0.0.1/8\": must not have bits set beyond the prefix length",
            ],
        ),
    ];
    check_errors(&c, "POST", "/api/v1/namespaces/golden/services", &body, &cases).await;
}

#[tokio::test]
async fn container_statuses_have_users_and_devices() {
    let c = cluster().await;
    let made = c.call("POST", PODS, pod()).await;
    let status = |more: Value| {
        let mut s = json!({"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0});
        more.as_object().unwrap().iter().for_each(|(k, v)| s[k] = v.clone());
        json!([s])
    };
    let device = |name: &str, health: &str| {
        status(
            json!({"allocatedResourcesStatus": [{"name": name, "resources": [{"resourceID": "x", "health": health}]}]}),
        )
    };
    let cases: Vec<FieldCase> = vec![
        (
            "/status/containerStatuses",
            status(json!({"user": {"linux": {"uid": -1, "gid": 0}}})),
            &[
                "status.containerStatuses[0].user.linux.uid: Invalid value: -1: must be between 0 and 2147483647, inclusive",
            ],
        ),
        (
            "/status/containerStatuses",
            device("claim:a/b", "Ill"),
            &[
                "status.containerStatuses[0].allocatedResourcesStatus[0].name: Invalid value: \"claim:a/b\": must match one of the container's resource claims",
                "status.containerStatuses[0].allocatedResourcesStatus[0].resources[0].health: Unsupported value: \"Ill\": supported values: \"Healthy\", \"Unhealthy\", \"Unknown\"",
            ],
        ),
        (
            "/status/ephemeralContainerStatuses",
            device("x", "Healthy"),
            &[
                "status.ephemeralContainerStatuses[0].allocatedResourcesStatus: Forbidden: must not be specified in container status",
            ],
        ),
        (
            "/metadata/annotations",
            json!({"controller.kubernetes.io/pod-deletion-cost": "x"}),
            &[
                "metadata.annotations[controller.kubernetes.io/pod-deletion-cost]: Invalid value: \"x\": must be a 32bit integer",
            ],
        ),
        (
            "/status/podIPs",
            json!([{"ip": "10.0.0.1"}, {"ip": "10.0.0.1"}]),
            &[
                "status.podIPs: Invalid value: [{\"IP\":\"10.0.0.1\"},{\"IP\":\"10.0.0.1\"}]: may specify no more than one",
            ],
        ),
    ];
    check_errors(&c, "PUT", &format!("{PODS}/p/status"), &made.body, &cases).await;
}

#[tokio::test]
async fn a_resize_keeps_containers_and_resource_names() {
    let c = cluster().await;
    let mut body = pod();
    let asks = json!({"requests": {"cpu": "1"}});
    for list in ["containers", "initContainers"] {
        body["spec"][list][0]["resources"] = asks.clone();
    }
    body["spec"]["resources"] = json!({"requests": {"cpu": "2"}});
    let made = c.call("POST", PODS, body).await;
    let restarts = json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]);
    let cases: Vec<FieldCase> = vec![
        (
            "/spec/containers/0/name",
            json!("other"),
            &["spec.containers[0].name: Forbidden: containers may not be renamed or reordered on resize"],
        ),
        (
            "/spec/initContainers",
            json!([]),
            &["spec.initContainers: Forbidden: initContainers may not be added or removed on resize"],
        ),
        (
            "/spec/initContainers/0/resources",
            json!({}),
            &["spec.initContainers[0].resources.requests: Forbidden: resource requests cannot be removed"],
        ),
        (
            "/spec/initContainers/0/resizePolicy",
            restarts,
            &[
                "spec.initContainers[0].resizePolicy[0].restartPolicy: Invalid value: \"RestartContainer\": must not be set to 'RestartContainer' for non-sidecar initContainers",
                "spec.initContainers[0]: Forbidden: non-sidecar init containers with a resize policy of RestartContainer cannot be resized",
                "spec.initContainers[0]: Forbidden: only cpu and memory resources for init or sidecar containers are mutable",
            ],
        ),
        (
            "/spec/resources",
            json!({"requests": {"memory": "1Gi"}}),
            &["spec.resources.requests: Forbidden: pod-level resource requests cannot be removed"],
        ),
        ("/spec/resources", Value::Null, &["spec.resources: Forbidden: pod-level resources cannot be removed"]),
    ];
    check_errors(&c, "PUT", &format!("{PODS}/p/resize"), &made.body, &cases).await;
}

#[tokio::test]
async fn warnings_of_addresses_and_nodes() {
    let c = Cluster::start(1).await;
    for (path, body, want) in [
        (
            "/api/v1/namespaces/golden/services",
            json!({"spec": {"type": "LoadBalancer", "loadBalancerIP": "2001:DB8::1", "ports": [{"port": 80}]}}),
            "spec.loadBalancerIP: IPv6 address",
        ),
        (
            "/api/v1/namespaces/golden/endpoints",
            json!({"subsets": [{"addresses": [{"ip": "2001:DB8::1"}]}]}),
            "subsets[0].addresses[0].ip: IPv6 address",
        ),
        ("/api/v1/nodes", json!({"spec": {"externalID": "x"}}), "spec.externalID: this field is deprecated"),
    ] {
        let body = put(&body, "/metadata", &json!({"name": "x"}));
        let headers = [("content-type", "application/json")];
        let r = c.request("POST", &format!("{path}?dryRun=All"), &headers, body.to_string().into()).await;
        let all: Vec<&str> = r.headers().get_all("warning").iter().filter_map(|w| w.to_str().ok()).collect();
        assert!(all.iter().any(|w| w.contains(want)), "{path} {all:?}");
    }
}
