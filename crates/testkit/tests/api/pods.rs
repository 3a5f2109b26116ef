//! Rules of pods and templates (`pkg/apis/core/validation`): one row each.

use crate::field_errors::{FieldCase, check_errors, put};
use serde_json::{Value, json};
use testkit::Cluster;

pub const PODS: &str = "/api/v1/namespaces/golden/pods";

pub fn pod() -> Value {
    json!({"metadata": {"name": "p", "labels": {"app": "a"}}, "spec": {"serviceAccountName": "default", "containers": [
        {"name": "c", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
        "initContainers": [{"name": "init", "image": "i"}], "volumes": [{"name": "v", "emptyDir": {}}]}})
}

pub async fn cluster() -> Cluster {
    let c = Cluster::start(1).await;
    let account = json!({"metadata": {"name": "default"}});
    c.call("POST", "/api/v1/namespaces/golden/serviceaccounts", account).await;
    c
}

const C: &str = "/spec/containers/0";

#[tokio::test]
async fn containers_and_what_they_see() {
    let c = cluster().await;
    let with = |k: &str, v: Value| put(&pod()["spec"]["containers"][0], &format!("/{k}"), &v);
    let cases: Vec<FieldCase> = vec![
        (
            C,
            with(
                "env",
                json!([{"name": "E", "valueFrom": {"fileKeyRef": {"volumeName": "A_b", "path": "/a/../b", "key": "a=b"}}}]),
            ),
            &[
                "spec.containers[0].env[0].valueFrom.fileKeyRef.key: Invalid value: \"a=b\": a valid environment variable name must consist only of printable ASCII characters other than '='",
                "spec.containers[0].env[0].valueFrom.fileKeyRef.path: Invalid value: \"/a/../b\": must not contain '..'",
                "spec.containers[0].env[0].valueFrom.fileKeyRef.volumeName: Invalid value: \"A_b\": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')",
                "spec.containers[0].env[0].valueFrom.fileKeyRef.volumeName: Not found: \"A_b\"",
            ],
        ),
        (
            C,
            with("volumeMounts", json!([{"name": "v", "mountPath": "/v", "subPath": "/x"}])),
            &["spec.containers[0].volumeMounts.subPath: Invalid value: \"/x\": must be a relative path"],
        ),
        (
            C,
            with("volumeMounts", json!([{"name": "v", "mountPath": "/v", "recursiveReadOnly": "Enabled"}])),
            &[
                "spec.containers[0].volumeMounts.recursiveReadOnly: Forbidden: may only be specified when readOnly is true",
            ],
        ),
        (
            C,
            with("volumeDevices", json!([{"name": "v", "devicePath": "/d"}])),
            &[
                "spec.containers[0].volumeDevices[0].name: Invalid value: \"v\": can only use volume source type",
                "spec.containers[0].volumeDevices[0].name: Invalid value: \"v\": must not already exist in volumeMounts",
                "spec.containers[0].volumeMounts[0].name: Invalid value: \"v\": must not already exist in volumeDevices",
            ],
        ),
        (
            C,
            with(
                "env",
                json!([{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName['a']"}}}]),
            ),
            &[
                "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Invalid value: \"spec.nodeName['a']\": error converting fieldPath: field label does not support subscript: spec.nodeName['a']",
                "spec.containers[0].env[0].valueFrom: Invalid value: \"\": may not be specified when `value` is not empty",
            ],
        ),
        (
            C,
            with("env", json!([{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['-']"}}}])),
            &["spec.containers[0].env[0].valueFrom.fieldRef: Invalid value: \"-\": name part must consist"],
        ),
        (
            C,
            with("lifecycle", json!({"preStop": {"sleep": {"seconds": 31}}})),
            &[
                "spec.containers[0].lifecycle.preStop.sleep: Invalid value: 31: must be non-negative and less than terminationGracePeriodSeconds (30)",
            ],
        ),
        (
            C,
            with("livenessProbe", json!({"exec": {"command": ["c"]}, "terminationGracePeriodSeconds": 0})),
            &[
                "spec.containers[0].livenessProbe.terminationGracePeriodSeconds: Invalid value: 0: must be greater than 0",
            ],
        ),
        (
            C,
            with("ports", json!([{"containerPort": 1, "hostPort": 70000}])),
            &["spec.containers[0].ports[0].hostPort: Invalid value: 70000: must be between 1 and 65535, inclusive"],
        ),
        (
            C,
            with("resizePolicy", json!([{"resourceName": "disk", "restartPolicy": "NotRequired"}])),
            &["spec.containers[0].resizePolicy: Unsupported value: \"disk\""],
        ),
        (
            C,
            with("restartPolicyRules", json!([{"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}])),
            &["spec.containers[0].restartPolicy: Required value"],
        ),
        (
            C,
            with("resources", json!({"claims": [{"name": "gpu"}]})),
            &[
                "spec.containers[0].resources.claims[0]: Not found: \"gpu\": must be one of the names in pod.spec.resourceClaims which is empty",
            ],
        ),
        (
            C,
            with("resources", json!({"limits": {"hugepages-2Mi": "3Mi"}})),
            &[
                "spec.containers[0].resources.limits[hugepages-2Mi]: Invalid value: \"3Mi\": 3Mi is not positive integer multiple of hugepages-2Mi",
                "spec.containers[0].resources.requests[hugepages-2Mi]: Invalid value: \"3Mi\": 3Mi is not positive integer multiple of hugepages-2Mi",
                "spec.containers[0].resources: Forbidden: HugePages require cpu or memory",
            ],
        ),
        (
            C,
            with("securityContext", json!({"procMount": "Unmasked"})),
            &[
                "spec.containers[0].securityContext.procMount: Invalid value: \"Unmasked\": `hostUsers` must be false to use `Unmasked`",
            ],
        ),
        (
            C,
            with("securityContext", json!({"seccompProfile": {"type": "Localhost"}})),
            &[
                "spec.containers[0].securityContext.seccompProfile.localhostProfile: Required value: must be set when seccomp type is Localhost",
            ],
        ),
        (
            C,
            with("securityContext", json!({"appArmorProfile": {"type": "Localhost", "localhostProfile": " x"}})),
            &[
                "spec.containers[0].securityContext.appArmorProfile.localhostProfile: Invalid value: \" x\": must not be padded with whitespace",
            ],
        ),
        (
            C,
            with("securityContext", json!({"windowsOptions": {"runAsUserName": "a\\b\\c"}})),
            &[
                "spec.containers[0].securityContext.windowsOptions.runAsUserName: Invalid value: \"a\\\\b\\\\c\": runAsUserName cannot contain more than one backslash",
            ],
        ),
        ("/spec/initContainers/0/name", json!("c"), &["spec.initContainers[0].name: Duplicate value: \"c\""]),
        (
            "/spec/initContainers/0/livenessProbe",
            json!({"exec": {}}),
            &[
                "spec.initContainers[0].livenessProbe: Forbidden: may not be set for init containers without restartPolicy=Always",
            ],
        ),
        (
            "/spec/containers/0/image",
            json!(" i"),
            &["spec.containers[0].image: Invalid value: \" i\": must not have leading or trailing whitespace"],
        ),
    ];
    check_errors(&c, "POST", PODS, &pod(), &cases).await;
}

#[tokio::test]
async fn pods_as_a_whole() {
    let c = cluster().await;
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    let term = |t: Value| json!({"podAffinity": {REQUIRED: [t]}});
    let windows = json!({"serviceAccountName": "default", "os": {"name": "windows"}, "hostPID": true,
        "securityContext": {"runAsUser": 1}, "containers": [{"name": "c", "image": "i", "securityContext": {"privileged": true}}]});
    let cases: Vec<FieldCase> = vec![
        (
            "/spec/ephemeralContainers",
            json!([{"name": "e", "image": "i"}]),
            &["spec.ephemeralContainers: Forbidden: cannot be set on create"],
        ),
        ("/spec/hostUsers", json!(false), &[]),
        (
            "/spec",
            windows,
            &[
                "spec.containers[0].securityContext.privileged: Forbidden: cannot be set for a windows pod",
                "spec.hostPID: Forbidden: cannot be set for a windows pod",
                "spec.securityContext.runAsUser: Forbidden: cannot be set for a windows pod",
            ],
        ),
        (
            "/spec/os",
            json!({"name": "plan9"}),
            &["spec.os: Unsupported value: \"plan9\": supported values: \"linux\", \"windows\""],
        ),
        (
            "/spec/securityContext",
            json!({"seLinuxChangePolicy": "x", "supplementalGroupsPolicy": "y"}),
            &[
                "spec.securityContext.seLinuxChangePolicy: Unsupported value: \"x\": supported values: \"Recursive\"",
                "spec.securityContext.supplementalGroupsPolicy: Unsupported value: \"y\": supported values: \"Merge\", \"Strict\"",
            ],
        ),
        (
            "/spec/resourceClaims",
            json!([{"name": "a"}]),
            &[
                "spec.resourceClaims[0]: Invalid value: {\"Name\":\"a\",\"ResourceClaimName\":null,\"ResourceClaimTemplateName\":null}: must specify one of: `resourceClaimName`, `resourceClaimTemplateName`",
            ],
        ),
        (
            "/spec/resources",
            json!({"limits": {"ephemeral-storage": "1"}}),
            &["spec.resources.limits[ephemeral-storage]: Unsupported value"],
        ),
        (
            "/spec/affinity",
            term(json!({"topologyKey": "t", "labelSelector": {}, "namespaces": ["A"]})),
            &[
                "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].namespace: Invalid value: \"A\"",
            ],
        ),
        (
            "/spec/affinity",
            term(json!({"topologyKey": "t", "matchLabelKeys": ["a"]})),
            &["spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].matchLabelKeys: Forbidden"],
        ),
        (
            "/spec/affinity",
            term(
                json!({"topologyKey": "t", "matchLabelKeys": ["app"], "labelSelector": {"matchLabels": {"app": "a"}}}),
            ),
            &[
                "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0][0]: Invalid value: \"app\": exists in both matchLabelKeys and labelSelector",
            ],
        ),
        (
            "/spec/topologySpreadConstraints",
            json!([{"maxSkew": 0, "topologyKey": "", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}]),
            &[
                "spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be greater than zero",
                "spec.topologySpreadConstraints[0].topologyKey: Required value: can not be empty",
            ],
        ),
        (
            "/spec/tolerations",
            json!([{"key": "k", "operator": "Gt", "value": "1"}]),
            &["spec.tolerations[0].operator: Unsupported value: \"Gt\": supported values: \"Equal\", \"Exists\""],
        ),
        (
            "/metadata/annotations",
            json!({"controller.kubernetes.io/pod-deletion-cost": "+1"}),
            &[
                "metadata.annotations[controller.kubernetes.io/pod-deletion-cost]: Invalid value: \"+1\": must be a 32bit integer",
            ],
        ),
        (
            "/metadata/annotations",
            json!({"container.apparmor.security.beta.kubernetes.io/x": "y"}),
            &[
                "metadata.annotations[container.apparmor.security.beta.kubernetes.io/x]: Invalid value: \"x\": container not found",
                "metadata.annotations[container.apparmor.security.beta.kubernetes.io/x]: Invalid value: \"y\": invalid AppArmor profile name: \"y\"",
            ],
        ),
    ];
    check_errors(&c, "POST", PODS, &pod(), &cases).await;
    // On the network of the node, ports are the node's.
    let mut host = pod();
    host["spec"]["hostNetwork"] = json!(true);
    host["spec"]["containers"][0]["ports"] = json!([{"containerPort": 80}]);
    let a = c.call("POST", &format!("{PODS}?dryRun=All"), host.clone()).await;
    assert_eq!(a.body["spec"]["containers"][0]["ports"][0]["hostPort"], 80, "{}", a.body);
    let cases: Vec<FieldCase> = vec![(
        "/spec/containers/0/ports/0/hostPort",
        json!(81),
        &[
            "spec.containers[0].ports[0].hostPort: Invalid value: 81: must match `containerPort` when `hostNetwork` is true",
        ],
    )];
    check_errors(&c, "POST", PODS, &host, &cases).await;
    // A template leaves it to its pods, and may have spaces around its image.
    host["spec"]["containers"][0]["image"] = json!(" i");
    let set = json!({"metadata": {"name": "r"}, "spec": {"selector": {"matchLabels": {"app": "a"}}, "template": host}});
    let a = c.call("POST", "/apis/apps/v1/namespaces/golden/replicasets?dryRun=All", set).await;
    assert_eq!(a.code, 201, "{}", a.body);
    assert!(a.body["spec"]["template"]["spec"]["containers"][0]["ports"][0].get("hostPort").is_none(), "{}", a.body);
}

/// Quantities are stored in canonical form, and requests are rounded up to thousandths.
/// Clauses: R01.notations R01.canonical R01.sub-milli
#[tokio::test]
async fn quantities_are_canonical() {
    let c = cluster().await;
    let create = async |resource: &str, quantity: &str| {
        let mut p = pod();
        p["spec"]["containers"][0]["resources"] = json!({"requests": {resource: quantity}});
        c.call("POST", &format!("{PODS}?dryRun=All"), p).await
    };
    for (resource, quantity, expected) in [
        ("memory", "128974848", "128974848"),
        ("memory", "129e6", "129e6"),
        ("memory", "129M", "129M"),
        ("memory", "123Mi", "123Mi"),
        ("memory", "1024Mi", "1Gi"),
        ("memory", "1.5Gi", "1536Mi"),
        ("memory", "128974848000m", "128974848"),
        ("cpu", "0.1", "100m"),
        ("cpu", "1000m", "1"),
        ("cpu", "1.5", "1500m"),
        ("cpu", "2", "2"),
        ("cpu", "0.5m", "1m"),
        ("ephemeral-storage", "2Gi", "2Gi"),
    ] {
        let a = create(resource, quantity).await;
        assert_eq!(
            a.body["spec"]["containers"][0]["resources"]["requests"][resource], expected,
            "{quantity}: {}",
            a.body
        );
    }
    for (quantity, code, error) in [
        ("-1", 422, "must be greater than or equal to 0"),
        ("1Kb", 400, "quantities must match the regular expression"),
    ] {
        let a = create("memory", quantity).await;
        let message = a.body["message"].as_str().unwrap_or_default();
        assert!(a.code == code && message.contains(error), "{quantity}: {}", a.body);
    }
}

#[tokio::test]
async fn new_pods_get_defaults() {
    let c = cluster().await;
    let mut p = pod();
    p["spec"]["resources"] = json!({"limits": {"cpu": "2", "memory": "1Gi"}});
    p["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "500m"}});
    p["spec"]["topologySpreadConstraints"] = json!([{"maxSkew": 1, "topologyKey": "t", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {}, "matchLabelKeys": ["app", "absent"]}]);
    let a = c.call("POST", &format!("{PODS}?dryRun=All"), p).await;
    assert_eq!(a.code, 201, "{}", a.body);
    assert_eq!(a.body["spec"]["resources"]["requests"], json!({"cpu": "500m", "memory": "1Gi"}));
    assert_eq!(a.body["status"]["qosClass"], "Burstable");
    let merged = &a.body["spec"]["topologySpreadConstraints"][0]["labelSelector"];
    assert_eq!(*merged, json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["a"]}]}));
}

#[tokio::test]
async fn mutable_fields_of_pods() {
    let c = cluster().await;
    let mut p = pod();
    p["spec"]["schedulingGates"] = json!([{"name": "g"}]);
    p["spec"]["nodeSelector"] = json!({"a": "b"});
    let made = c.call("POST", PODS, p).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let cases: Vec<FieldCase> = vec![
        ("/spec/nodeSelector", json!({"a": "b", "c": "d"}), &[]),
        (
            "/spec/nodeSelector",
            json!({"c": "d"}),
            &["spec.nodeSelector: Invalid value: {\"c\":\"d\"}: only additions to spec.nodeSelector"],
        ),
        (
            "/spec/schedulingGates",
            json!([{"name": "h"}]),
            &["spec.schedulingGates[0].name: Forbidden: only deletion is allowed, but found new scheduling gate 'h'"],
        ),
        (
            "/spec/affinity",
            json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "a", "operator": "Exists"}]}]}}}),
            &[],
        ),
        (
            "/metadata/annotations",
            json!({"kubernetes.io/config.mirror": "m"}),
            &[
                "metadata.annotations[kubernetes.io/config.mirror]: Forbidden: may not add mirror pod annotation",
                "metadata.annotations[kubernetes.io/config.mirror]: Invalid value: \"m\": must set spec.nodeName if mirror pod annotation is set",
                "metadata.annotations[kubernetes.io/config.mirror]: Invalid value: \"m\": must set spec.nodeName if mirror pod annotation is set",
            ],
        ),
    ];
    check_errors(&c, "PUT", &format!("{PODS}/p"), &made.body, &cases).await;
    let cases: Vec<FieldCase> = vec![
        (
            "/status/podIPs",
            json!([{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}]),
            &[
                "status.podIPs: Invalid value: [{\"IP\":\"10.0.0.1\"},{\"IP\":\"10.0.0.2\"}]: may specify no more than one IP for each IP family",
            ],
        ),
        (
            "/status/hostIPs",
            json!([{"ip": "10.0.0.1"}]),
            &["status.hostIPs[0].ip: Invalid value: \"10.0.0.1\": must be equal to `hostIP`"],
        ),
        (
            "/status/qosClass",
            json!("Guaranteed"),
            &["status.qosClass: Invalid value: \"Guaranteed\": field is immutable"],
        ),
        (
            "/status/conditions",
            json!([{"type": "-", "status": "True"}]),
            &["status.conditions[0].Type: Invalid value: \"-\""],
        ),
    ];
    check_errors(&c, "PUT", &format!("{PODS}/p/status"), &made.body, &cases).await;
}

/// Annotations of AppArmor profiles set the fields; fields set no annotations. Issue 3, item 3.
#[tokio::test]
async fn profiles_are_set_by_field_and_annotation() {
    let c = Cluster::start(1).await;
    let key = |c: &str| format!("container.apparmor.security.beta.kubernetes.io/{c}");
    let pod = |name: &str, annotations: Value, own: Value, of_c: Value| {
        json!({"metadata": {"name": name, "annotations": annotations}, "spec": {"securityContext": own,
            "initContainers": [{"name": "i", "image": "i"}], "containers": [{"name": "c", "image": "i", "securityContext": of_c}]}})
    };
    let make = async |body: Value| {
        let r = c
            .request(
                "POST",
                "/api/v1/namespaces/golden/pods",
                &[("content-type", "application/json")],
                body.to_string().into(),
            )
            .await;
        let warnings: Vec<String> =
            r.headers().get_all("warning").iter().map(|w| w.to_str().unwrap().to_owned()).collect();
        let body: Value = serde_json::from_slice(&r.into_body().collect().await.unwrap()).unwrap();
        assert_eq!(body["kind"], "Pod", "{body}");
        (body, warnings)
    };
    let profile = |p: Value| json!({"appArmorProfile": p});
    let default = profile(json!({"type": "RuntimeDefault"}));
    let local = profile(json!({"type": "Localhost", "localhostProfile": "mine"}));
    let (p, warnings) = make(pod("fields", json!({}), default.clone(), local.clone())).await;
    assert_eq!((p["metadata"].get("annotations"), warnings.len()), (None, 0));
    // Annotations are fields, but for what the whole pod says already.
    let annotations = json!({(key("c")): "localhost/mine", (key("i")): "runtime/default"});
    let (p, warnings) = make(pod("annotations", annotations, default.clone(), json!({}))).await;
    assert_eq!(p["spec"]["containers"][0]["securityContext"], local);
    assert_eq!(p["spec"]["initContainers"][0]["securityContext"], Value::Null);
    let why = format!(
        "299 - \"metadata.annotations[{}]: deprecated since v1.30; use the \\\"appArmorProfile\\\" field instead\"",
        key("c")
    );
    assert_eq!(warnings, [why]);
    let (p, warnings) = make(pod("bad", json!({(key("c")): "localhost/"}), json!({}), json!({}))).await;
    assert_eq!((&p["spec"]["containers"][0]["securityContext"], warnings.len()), (&json!({}), 1));
    let mut windows = pod("windows", json!({}), json!({}), json!({}));
    windows["spec"]["os"] = json!({"name": "windows"});
    assert_eq!(make(windows).await.0["metadata"].get("annotations"), None);
}
