//! Rules of single kinds as tables of values and expected field errors.

mod core;
mod first_level;
mod formats;
mod jobs;
mod metadata;
mod order;
mod requests;
mod storage;

use crate::devices::{Case, check};
use serde_json::{Value, json};
use testkit::Cluster;

const NETWORKING: &str = "/apis/networking.k8s.io/v1";

#[tokio::test]
async fn ingresses_their_classes_and_policies() {
    let c = Cluster::start(1).await;
    let class = json!({"metadata": {"name": "c"}, "spec": {"controller": "example.com/c",
        "parameters": {"kind": "K", "name": "n"}}});
    let parameters = |v: Value| {
        let mut all = json!({"kind": "K", "name": "n"});
        all.as_object_mut().unwrap().extend(v.as_object().unwrap().clone());
        all
    };
    let cases: Vec<Case> = vec![
        ("/spec/parameters", json!({}), &["spec.parameters.kind", "spec.parameters.name"]),
        ("/spec/parameters", json!({"kind": "a/b", "name": ".."}), &["spec.parameters.kind", "spec.parameters.name"]),
        ("/spec/parameters", parameters(json!({"apiGroup": "A"})), &["spec.parameters.apiGroup"]),
        ("/spec/parameters", parameters(json!({"scope": "Planet"})), &["spec.parameters.scope"]),
        ("/spec/parameters", parameters(json!({"namespace": "n"})), &["spec.parameters.namespace"]),
        ("/spec/parameters", parameters(json!({"scope": "Namespace"})), &["spec.parameters.namespace"]),
        ("/spec/parameters", parameters(json!({"scope": "Namespace", "namespace": "n"})), &[]),
    ];
    check(&c, "POST", &format!("{NETWORKING}/ingressclasses"), &class, cases).await;
    let policy = json!({"metadata": {"name": "p"}, "spec": {"podSelector": {}, "ingress": [{"from": [
        {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}]}]}});
    let at = "/spec/ingress/0/from/0/ipBlock/except";
    let cases: Vec<Case> = vec![
        (
            at,
            json!(["11.0.0.0/16", "10.0.0.0/8", "::/64", "10.255.255.255/32"]),
            &[
                "spec.ingress[0].from[0].ipBlock.except[0]",
                "spec.ingress[0].from[0].ipBlock.except[1]",
                "spec.ingress[0].from[0].ipBlock.except[2]",
            ],
        ),
        ("/spec/ingress/0/from/0/ipBlock", json!({"cidr": "::/0", "except": ["fe80::/10"]}), &[]),
    ];
    check(&c, "POST", &format!("{NETWORKING}/namespaces/golden/networkpolicies"), &policy, cases).await;
    let ingresses = format!("{NETWORKING}/namespaces/golden/ingresses");
    let ingress =
        json!({"metadata": {"name": "i"}, "spec": {"defaultBackend": {"resource": {"kind": "K", "name": "n"}}}});
    let cases: Vec<Case> = vec![(
        "/spec/defaultBackend/resource",
        json!({"apiGroup": "", "kind": "", "name": ""}),
        &[
            "spec.defaultBackend.resource.apiGroup",
            "spec.defaultBackend.resource.kind",
            "spec.defaultBackend.resource.name",
        ],
    )];
    check(&c, "POST", &ingresses, &ingress, cases).await;
    let mut made = c.call("POST", &ingresses, ingress).await.body;
    made["status"] = json!({"loadBalancer": {"ingress": [{"ip": "10.0.0.1"}, {"hostname": "a.example.com"}]}});
    let cases: Vec<Case> = vec![
        ("/status/loadBalancer/ingress/0", json!({"ip": "x"}), &["status.loadBalancer.ingress[0].ip"]),
        (
            "/status/loadBalancer/ingress/1",
            json!({"hostname": "10.0.0.1"}),
            &["status.loadBalancer.ingress[1].hostname"],
        ),
        ("/status/loadBalancer/ingress/1", json!({"hostname": "A_"}), &["status.loadBalancer.ingress[1].hostname"]),
    ];
    check(&c, "PUT", &format!("{ingresses}/i/status"), &made, cases).await;
}

#[tokio::test]
async fn scopes_of_quotas() {
    let c = Cluster::start(1).await;
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}}});
    let of = |scope: &str, operator: &str, values: Value| json!({"matchExpressions": [{"scopeName": scope, "operator": operator, "values": values}]});
    const AT: &str = "/spec/scopeSelector";
    let cases: Vec<Case> = vec![
        (AT, of("PriorityClass", "In", json!(["high"])), &[]),
        (AT, of("PriorityClass", "In", json!([])), &["spec.scopeSelector.matchExpressions.values"]),
        (AT, of("PriorityClass", "Exists", json!(["high"])), &["spec.scopeSelector.matchExpressions.values"]),
        (AT, of("Terminating", "In", json!(["x"])), &["spec.scopeSelector.matchExpressions.operator"]),
        (AT, of("Nothing", "Exists", json!([])), &["spec.scopeSelector.matchExpressions.scopeName"]),
        (AT, of("VolumeAttributesClass", "Exists", json!([])), &["spec.scopeSelector.matchExpressions"]),
        ("/spec", json!({"hard": {"configmaps": "1"}, "scopes": ["BestEffort"]}), &["spec.scopes"]),
        ("/spec", json!({"hard": {"cpu": "1"}, "scopes": ["BestEffort"]}), &["spec.scopes"]),
        ("/spec", json!({"hard": {"cpu": "1"}, "scopes": ["Terminating"]}), &[]),
        ("/spec", json!({"hard": {"example.com/gpu": "1"}, "scopes": ["BestEffort"]}), &[]),
    ];
    check(&c, "POST", "/api/v1/namespaces/golden/resourcequotas", &quota, cases).await;
}

/// Everything that looks at metadata during an update says what is wrong with it.
#[tokio::test]
async fn metadata_errors_repeat_on_update() {
    let c = Cluster::start(1).await;
    let kinds = [
        ("/api/v1/namespaces/golden/configmaps", json!({}), 4),
        ("/apis/coordination.k8s.io/v1/namespaces/golden/leases", json!({}), 3),
        ("/apis/rbac.authorization.k8s.io/v1/namespaces/golden/roles", json!({}), 4),
        ("/apis/policy/v1/namespaces/golden/poddisruptionbudgets", json!({"spec": {"minAvailable": 1}}), 2),
    ];
    for (path, mut body, times) in kinds {
        body["metadata"] = json!({"name": "a", "labels": {"a": "b"}});
        let mut made = c.call("POST", path, body).await.body;
        made["metadata"]["labels"]["a"] = "-".into();
        let a = c.call("PUT", &format!("{path}/a"), made).await;
        let causes = a.body["details"]["causes"].as_array().unwrap();
        assert_eq!(causes.iter().filter(|c| c["field"] == "metadata.labels").count(), times, "{}", a.body);
        let message = a.body["message"].as_str().unwrap();
        assert_eq!(message.matches("metadata.labels").count(), 1, "{message}");
    }
}

/// The server does not need to serve what it uses itself.
#[tokio::test(start_paused = true)]
async fn groups_can_be_turned_off() {
    let groups = [
        "admissionregistration.k8s.io/v1",
        "apiextensions.k8s.io/v1",
        "apiregistration.k8s.io/v1",
        "apps/v1",
        "authentication.k8s.io/v1",
        "authorization.k8s.io/v1",
        "certificates.k8s.io/v1",
        "coordination.k8s.io/v1",
        "discovery.k8s.io/v1",
        "events.k8s.io/v1",
        "flowcontrol.apiserver.k8s.io/v1",
        "networking.k8s.io/v1",
        "node.k8s.io/v1",
        "policy/v1",
        "rbac.authorization.k8s.io/v1",
        "resource.k8s.io/v1",
        "scheduling.k8s.io/v1",
        "storage.k8s.io/v1",
    ];
    for group in groups {
        let plugins = admission::chain(&[], &[]).unwrap();
        let c = Cluster::serving(1, &format!("{group}=false"), plugins).await;
        assert_eq!(c.call("GET", &format!("/apis/{group}"), Value::Null).await.code, 404, "{group}");
        assert_eq!(c.call("GET", "/readyz", Value::Null).await.code, 200, "{group}");
        let account = json!({"metadata": {"name": "default"}});
        c.call("POST", "/api/v1/namespaces/golden/serviceaccounts", account).await;
        let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 1}]}});
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        for (path, body) in [("services", service), ("pods", pod)] {
            let a = c.call("POST", &format!("/api/v1/namespaces/golden/{path}"), body).await;
            assert_eq!(a.code, 201, "{group} {path}: {}", a.body);
            let a = c.call("DELETE", &format!("/api/v1/namespaces/golden/{path}/{}", &path[..1]), Value::Null).await;
            assert_eq!(a.code, 200, "{group} {path}: {}", a.body);
        }
    }
}

#[tokio::test]
async fn limits_of_claims_and_of_others() {
    let c = Cluster::start(1).await;
    let limits = json!({"metadata": {"name": "l"}, "spec": {"limits": [
        {"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}, "max": {"storage": "2Gi"}}]}});
    let cases: Vec<Case> = vec![
        ("/spec/limits/0/max", json!({"storage": "1Mi"}), &["spec.limits[0].min[storage]"]),
        ("/spec/limits/0/max", json!({"space": "2Gi"}), &["spec.limits[0].max[space]"]),
        ("/spec/limits/0/type", json!("Pod"), &["spec.limits[0].max[storage]", "spec.limits[0].min[storage]"]),
        ("/spec/limits/0/type", json!("example.com/disk"), &[]),
    ];
    check(&c, "POST", "/api/v1/namespaces/golden/limitranges", &limits, cases).await;
}

/// Names of priority classes that begin as the system's are the system's, which nobody deletes.
/// Clauses: Q01.system
/// Clauses: Q01.system
#[tokio::test]
async fn the_systems_priority_classes() {
    const CLASSES: &str = "/apis/scheduling.k8s.io/v1/priorityclasses";
    let c = Cluster::start(1).await;
    let class = json!({"metadata": {"name": "system-cluster-critical"}, "value": 2_000_000_000});
    let cases: Vec<Case> = vec![
        ("/metadata/name", json!("system-mine"), &["metadata.name"]),
        ("/value", json!(5), &["metadata.name"]),
        ("/globalDefault", json!(true), &["metadata.name"]),
        ("/metadata/name", json!("mine"), &["value"]),
    ];
    check(&c, "POST", CLASSES, &class, cases).await;
    assert_eq!(c.call("POST", CLASSES, class).await.code, 201);
    let a = c.call("DELETE", &format!("{CLASSES}/system-cluster-critical"), Value::Null).await;
    assert_eq!((a.code, &a.body["reason"]), (403, &json!("Forbidden")), "{}", a.body);
    assert_eq!(c.call("POST", CLASSES, json!({"metadata": {"name": "mine"}, "value": 5})).await.code, 201);
    assert_eq!(c.call("DELETE", &format!("{CLASSES}/mine"), Value::Null).await.code, 200);
}

#[tokio::test]
async fn finalizers_of_a_namespace_have_a_domain() {
    let c = Cluster::start(1).await;
    let body = json!({"metadata": {"name": "n"}, "spec": {"finalizers": ["kubernetes", "example.com/mine"]}});
    let cases: Vec<Case> = vec![("/spec/finalizers", json!(["mine"]), &["spec.finalizers"])];
    check(&c, "POST", "/api/v1/namespaces", &body, cases).await;
    let mut made = c.call("POST", "/api/v1/namespaces", body).await.body;
    made["spec"]["finalizers"] = json!(["kubernetes", "mine"]);
    let a = c.call("PUT", "/api/v1/namespaces/n/finalize", made).await;
    assert_eq!((a.code, &a.body["details"]["causes"][0]["field"]), (422, &json!("spec.finalizers[1]")), "{}", a.body);
}

/// The class of an ingress is named by the annotation or by the field, once.
#[tokio::test]
async fn an_ingress_names_its_class_once() {
    let c = Cluster::start(1).await;
    let path = format!("{NETWORKING}/namespaces/golden/ingresses");
    let mut ingress = json!({"metadata": {"name": "i", "annotations": {"kubernetes.io/ingress.class": "old"}},
        "spec": {"defaultBackend": {"resource": {"kind": "K", "name": "n"}}}});
    let cases: Vec<Case> = vec![("/spec/ingressClassName", json!("new"), &["annotations.kubernetes.io/ingress.class"])];
    check(&c, "POST", &path, &ingress, cases).await;
    // Who has both from before may go on.
    assert_eq!(c.call("POST", &path, ingress.clone()).await.code, 201);
    ingress["spec"]["ingressClassName"] = json!("new");
    assert_eq!(c.call("PUT", &format!("{path}/i"), ingress).await.code, 200);
}
