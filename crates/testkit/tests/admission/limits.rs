//! LimitRanges: defaults and limits of containers, pods and claims.

use crate::call;
use meta::Value;
use serde_json::json;
use testkit::Cluster;

const RANGES: &str = "/api/v1/namespaces/golden/limitranges";
const PODS: &str = "/api/v1/namespaces/golden/pods";
const CLAIMS: &str = "/api/v1/namespaces/golden/persistentvolumeclaims";

async fn with(limits: Value) -> Cluster {
    let c = Cluster::start(1).await;
    let (code, answer, _) =
        call(&c, "POST", RANGES, json!({"metadata": {"name": "r"}, "spec": {"limits": limits}})).await;
    assert_eq!(code, 201, "{answer}");
    c
}

fn container(name: &str, resources: Value) -> Value {
    json!({"name": name, "image": "i", "resources": resources})
}

fn limits(cpu: &str, memory: &str) -> Value {
    json!({"limits": {"cpu": cpu, "memory": memory}})
}

/// A dry run of a pod: nothing, or why not.
async fn check(c: &Cluster, spec: Value, want: &[&str]) {
    let pod = json!({"metadata": {"name": "p"}, "spec": spec.clone()});
    let (code, answer, _) = call(c, "POST", &format!("{PODS}?dryRun=All"), pod).await;
    let message = match want {
        [] => return assert_eq!(code, 201, "{spec}: {answer}"),
        [one] => (*one).to_owned(),
        many => format!("[{}]", many.join(", ")),
    };
    let message = format!("pods \"p\" is forbidden: {message}");
    assert_eq!((code, &answer["message"]), (403, &json!(message)), "{spec}");
}

#[tokio::test]
async fn missing_resources_get_defaults_and_an_annotation() {
    let c = with(
        json!([{"type": "Container", "default": {"cpu": "500m", "memory": "1Gi"}, "defaultRequest": {"cpu": "200m"}}]),
    )
    .await;
    let spec = json!({"initContainers": [container("i", json!({"limits": {"cpu": "2"}}))],
        "containers": [container("a", json!({})), container("b", json!({"requests": {"cpu": "1m", "memory": "1Mi"},
            "limits": {"cpu": "1", "memory": "2Mi"}}))]});
    let (code, pod, _) = call(&c, "POST", PODS, json!({"metadata": {"name": "p"}, "spec": spec})).await;
    assert_eq!(code, 201, "{pod}");
    let want = json!({"requests": {"cpu": "200m", "memory": "1Gi"}, "limits": {"cpu": "500m", "memory": "1Gi"}});
    assert_eq!(pod["spec"]["containers"][0]["resources"], want);
    assert_eq!(pod["spec"]["containers"][1]["resources"]["limits"], json!({"cpu": "1", "memory": "2Mi"}));
    assert_eq!(pod["spec"]["initContainers"][0]["resources"]["limits"], json!({"cpu": "2", "memory": "1Gi"}));
    let note = "LimitRanger plugin set: cpu, memory request for container a; cpu, memory limit for container a; \
                memory request for init container i; memory limit for init container i";
    assert_eq!(pod["metadata"]["annotations"]["kubernetes.io/limit-ranger"], note);
    // Requests of a pod as a whole follow from what its containers got.
    let spec = json!({"resources": {"limits": {"cpu": "1"}}, "containers": [container("a", json!({}))]});
    let (code, pod, _) = call(&c, "POST", PODS, json!({"metadata": {"name": "whole"}, "spec": spec})).await;
    assert_eq!((code, &pod["spec"]["resources"]["requests"]["memory"]), (201, &json!("1Gi")), "{pod}");
}

#[tokio::test]
async fn containers_and_pods_stay_within_limit_ranges() {
    let c = with(json!([
        {"type": "Container", "min": {"cpu": "100m"}, "max": {"cpu": "1"}, "default": {"cpu": "500m"},
            "defaultRequest": {"cpu": "200m"}, "maxLimitRequestRatio": {"cpu": "4"}},
        {"type": "Pod", "max": {"cpu": "2", "memory": "1Gi"}, "min": {"memory": "20Mi"}, "maxLimitRequestRatio": {"memory": "2"}},
    ]))
    .await;
    let one = |r: Value| json!({"containers": [container("c", r)]});
    let cases = [
        (one(limits("1", "50Mi")), vec![]),
        (
            one(json!({"requests": {"cpu": "50m", "memory": "10Mi"}, "limits": {"cpu": "1", "memory": "20Mi"}})),
            vec![
                "minimum cpu usage per Container is 100m, but request is 50m",
                "cpu max limit to request ratio per Container is 4, but provided ratio is 20.000000",
                "minimum memory usage per Pod is 20Mi, but request is 10Mi",
            ],
        ),
        (one(limits("2", "50Mi")), vec!["maximum cpu usage per Container is 1, but limit is 2"]),
        (
            one(json!({"requests": {"memory": "50Mi"}})),
            vec![
                "maximum memory usage per Pod is 1Gi.  No limit is specified",
                "memory max limit to request ratio per Pod is 2, but no limit is specified or limit is 0",
            ],
        ),
        (
            one(json!({})),
            vec![
                "minimum memory usage per Pod is 20Mi.  No request is specified",
                "maximum memory usage per Pod is 1Gi.  No limit is specified",
                "memory max limit to request ratio per Pod is 2, but no request is specified or request is 0",
            ],
        ),
        // Containers run together, and after those that initialize.
        (
            json!({"containers": [container("a", limits("1", "50Mi")), container("b", limits("1", "50Mi")),
                container("d", limits("500m", "50Mi"))]}),
            vec!["maximum cpu usage per Pod is 2, but limit is 2500m"],
        ),
        (
            json!({"initContainers": [container("i", limits("1", "50Mi")), container("j", limits("1", "50Mi"))],
                "containers": [container("a", limits("1", "50Mi")), container("b", limits("1", "50Mi"))]}),
            vec![],
        ),
        // One that keeps running beside them counts with them.
        (
            json!({"initContainers": [{"name": "s", "image": "i", "restartPolicy": "Always", "resources": limits("1", "50Mi")}],
                "containers": [container("a", limits("1", "50Mi")), container("b", limits("1", "50Mi"))]}),
            vec!["maximum cpu usage per Pod is 2, but limit is 3"],
        ),
        // What the pod says of itself counts more than its containers.
        (
            json!({"resources": limits("2100m", "100Mi"), "containers": [container("a", limits("1", "50Mi"))]}),
            vec!["maximum cpu usage per Pod is 2, but limit is 2100m"],
        ),
    ];
    for (spec, want) in cases {
        check(&c, spec, &want).await;
    }
}

#[tokio::test]
async fn resizes_and_claims_stay_within_limit_ranges() {
    let c = with(json!([{"type": "Container", "max": {"cpu": "2"}},
        {"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}, "max": {"storage": "5Gi"}}]))
    .await;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [container("c", limits("1", "1Gi"))]}});
    assert_eq!(call(&c, "POST", PODS, pod).await.0, 201);
    for (cpu, code, why) in [("3", 403, "maximum cpu usage per Container is 2, but limit is 3"), ("2", 200, "")] {
        let body = json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}, "limits": {"cpu": cpu}}}]}});
        let media = Some("application/strategic-merge-patch+json");
        let a = c.send("PATCH", &format!("{PODS}/p/resize"), media, "application/json", body.to_string().into()).await;
        assert!(a.code == code && a.body["message"].as_str().unwrap_or_default().ends_with(why), "{}", a.body);
    }
    for (storage, why) in [
        ("500Mi", "minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 500Mi"),
        ("6Gi", "maximum storage usage per PersistentVolumeClaim is 5Gi, but request is 6Gi"),
        ("5Gi", ""),
    ] {
        let claim = json!({"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": storage}}}});
        let (code, answer, _) = call(&c, "POST", CLAIMS, claim).await;
        let want = if why.is_empty() { 201 } else { 403 };
        assert!(code == want && answer["message"].as_str().unwrap_or_default().ends_with(why), "{answer}");
    }
}
