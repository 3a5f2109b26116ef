//! PodSecurity through the API.

use crate::call;
use meta::Value;
use serde_json::json;
use testkit::Cluster;

async fn namespace(c: &Cluster, name: &str, labels: Value) -> (u16, Value, Vec<String>) {
    let all: serde_json::Map<String, Value> = labels
        .as_object()
        .unwrap()
        .iter()
        .map(|(k, v)| (format!("pod-security.kubernetes.io/{k}"), v.clone()))
        .collect();
    let made = call(c, "POST", "/api/v1/namespaces", json!({"metadata": {"name": name, "labels": all}})).await;
    let path = format!("/api/v1/namespaces/{name}/serviceaccounts");
    call(c, "POST", &path, json!({"metadata": {"name": "default"}})).await;
    made
}

fn pod(spec: Value) -> Value {
    let mut o = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    for (k, v) in spec.as_object().unwrap() {
        o["spec"][k] = v.clone();
    }
    o
}

/// A pod that keeps to everything, with its container changed.
fn safe(container: Value) -> Value {
    let mut one = json!({"name": "c", "image": "i", "securityContext": {"allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]}}});
    for (k, v) in container.as_object().unwrap() {
        one[k] = v.clone();
    }
    pod(
        json!({"securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}}, "containers": [one]}),
    )
}

#[tokio::test]
async fn violations_have_the_messages_of_upstream() {
    let c = Cluster::start(1).await;
    namespace(&c, "base", json!({"enforce": "baseline"})).await;
    namespace(&c, "strict", json!({"enforce": "restricted"})).await;
    namespace(&c, "old", json!({"enforce": "restricted", "enforce-version": "v1.7"})).await;
    let privileged = json!({"containers": [{"name": "c", "image": "i", "securityContext": {"privileged": true,
        "capabilities": {"add": ["NET_ADMIN", "CHOWN"]}}, "ports": [{"containerPort": 80, "hostPort": 8080}]}],
        "hostNetwork": false, "hostPID": true, "volumes": [{"name": "v", "hostPath": {"path": "/"}}]});
    let cases = [
        ("base", pod(json!({})), None),
        (
            "base",
            pod(privileged.clone()),
            Some(
                "violates PodSecurity \"baseline:latest\": non-default capabilities (container \"c\" must not include \"NET_ADMIN\" in \
             securityContext.capabilities.add), host namespaces (hostPID=true), hostPath volumes (volume \"v\"), hostPort \
             (container \"c\" uses hostPort 8080), privileged (container \"c\" must not set securityContext.privileged=true)",
            ),
        ),
        ("default", pod(privileged), None),
        ("strict", safe(json!({})), None),
        (
            "strict",
            pod(json!({})),
            Some(
                "violates PodSecurity \"restricted:latest\": allowPrivilegeEscalation != false (container \"c\" must set \
             securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (container \"c\" must set \
             securityContext.capabilities.drop=[\"ALL\"]), runAsNonRoot != true (pod or container \"c\" must set \
             securityContext.runAsNonRoot=true), seccompProfile (pod or container \"c\" must set \
             securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")",
            ),
        ),
        (
            "old",
            pod(json!({})),
            Some(
                "violates PodSecurity \"restricted:v1.7\": runAsNonRoot != true (pod or container \"c\" must set securityContext.runAsNonRoot=true)",
            ),
        ),
        (
            "base",
            pod(
                json!({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}], "seLinuxOptions": {"user": "u"}}}),
            ),
            Some(
                "violates PodSecurity \"baseline:latest\": seLinuxOptions (pod set forbidden securityContext.seLinuxOptions: user may not be set), \
             forbidden sysctls (kernel.msgmax)",
            ),
        ),
        (
            "base",
            pod(
                json!({"containers": [{"name": "c", "image": "i", "livenessProbe": {"httpGet": {"port": 80, "host": "10.0.0.1"}}}]}),
            ),
            Some(
                "violates PodSecurity \"baseline:latest\": probe or lifecycle host (container \"c\" uses probe or lifecycle host \"10.0.0.1\")",
            ),
        ),
        (
            "strict",
            safe(json!({"securityContext": {"allowPrivilegeEscalation": false, "runAsUser": 0,
            "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE", "CHOWN"]}}})),
            Some(
                "violates PodSecurity \"restricted:latest\": unrestricted capabilities (container \"c\" must not include \"CHOWN\" in \
             securityContext.capabilities.add), runAsUser=0 (container \"c\" must not set runAsUser=0)",
            ),
        ),
    ];
    for (ns, body, want) in cases {
        let (code, answer, _) =
            call(&c, "POST", &format!("/api/v1/namespaces/{ns}/pods?dryRun=All"), body.clone()).await;
        match want {
            None => assert_eq!(code, 201, "{body}: {answer}"),
            Some(want) => {
                assert_eq!((code, answer["reason"].as_str()), (403, Some("Forbidden")), "{body}: {answer}");
                assert_eq!(answer["message"], format!("pods \"p\" is forbidden: {want}"));
            }
        }
    }
    let mut nfs = safe(json!({}));
    nfs["spec"]["volumes"] = json!([{"name": "a", "nfs": {"server": "s", "path": "/"}}, {"name": "b", "emptyDir": {}}]);
    let (_, answer, _) = call(&c, "POST", "/api/v1/namespaces/strict/pods", nfs).await;
    let text = answer["message"].as_str().unwrap();
    assert!(text.ends_with("restricted volume types (volume \"a\" uses restricted volume type \"nfs\")"), "{text}");
}

#[tokio::test]
async fn workloads_with_violating_pods_cause_warnings() {
    let c = Cluster::start(2).await;
    namespace(&c, "strict", json!({"enforce": "baseline", "warn": "restricted", "warn-version": "v1.20"})).await;
    namespace(&c, "base", json!({"enforce": "baseline"})).await;
    let deployment = |spec: Value| {
        json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": pod(spec)["spec"]}}})
    };
    let path = |ns: &str| format!("/apis/apps/v1/namespaces/{ns}/deployments");
    let (code, _, warnings) = call(&c, "POST", &path("strict"), deployment(json!({}))).await;
    assert_eq!((code, warnings.len()), (201, 1), "{warnings:?}");
    assert!(
        warnings[0].starts_with("would violate PodSecurity \"restricted:v1.20\": allowPrivilegeEscalation != false")
    );
    let (code, _, warnings) = call(&c, "POST", &path("base"), deployment(json!({}))).await;
    assert_eq!((code, warnings.len()), (201, 0));
    let (code, _, warnings) = call(&c, "POST", &path("base"), json!(deployment(json!({"hostIPC": true})))).await;
    assert_eq!(code, 409, "it is there already");
    assert!(warnings.iter().any(|w| w.contains("host namespaces (hostIPC=true)")), "what is enforced is warned of");
    // A pod that is let in is warned about as well.
    let (code, _, warnings) = call(&c, "POST", "/api/v1/namespaces/strict/pods", pod(json!({}))).await;
    assert_eq!((code, warnings.len()), (201, 1));
}

#[tokio::test]
async fn labels_are_validated_and_existing_violations_reported() {
    let c = Cluster::start(3).await;
    let (code, answer, _) = namespace(&c, "bad", json!({"enforce": "baselin", "warn-version": "1.2"})).await;
    assert_eq!((code, answer["reason"].as_str()), (422, Some("Invalid")), "{answer}");
    let text = answer["message"].as_str().unwrap();
    assert!(text.contains("metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: \"baselin\": must be one of privileged, baseline, restricted"), "{text}");
    assert!(text.contains("must be \"latest\" or \"v1.x\""), "{text}");
    namespace(&c, "later", json!({})).await;
    for (name, host) in [("a", true), ("b", true), ("c", false)] {
        let mut p = pod(json!({"hostPID": host}));
        p["metadata"]["name"] = name.into();
        assert_eq!(call(&c, "POST", "/api/v1/namespaces/later/pods", p).await.0, 201);
    }
    let labels = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}});
    let (code, _, warnings) = call(&c, "PATCH", "/api/v1/namespaces/later", labels).await;
    assert_eq!(code, 200);
    let want = [
        "existing pods in namespace \"later\" violate the new PodSecurity enforce level \"baseline:latest\"",
        "a (and 1 other pod): host namespaces",
    ];
    assert_eq!(warnings, want);
    // What does not matter may still change in a pod that would not be let in.
    let patch = json!({"metadata": {"labels": {"x": "y"}}});
    assert_eq!(call(&c, "PATCH", "/api/v1/namespaces/later/pods/a", patch).await.0, 200);
    let patch = json!([{"op": "replace", "path": "/spec/containers/0/image", "value": "other"}]);
    let r = c
        .send(
            "PATCH",
            "/api/v1/namespaces/later/pods/a",
            Some("application/json-patch+json"),
            "application/json",
            patch.to_string().into(),
        )
        .await;
    assert_eq!(r.code, 403, "{}", r.body);
}
