//! MutatingAdmissionWebhook and ValidatingAdmissionWebhook with a real server.

use crate::hook::{Hook, allow, patch};
use crate::{MAPS, call, config_map};
use meta::Value;
use serde_json::json;
use store::{Action, Expect, Key, Op};
use testkit::Cluster;

const CONFIGURATIONS: &str = "/apis/admissionregistration.k8s.io/v1";

/// A hook of a configuration, for everything that happens to config maps in `golden`.
fn hook(name: &str, client: &Value) -> Value {
    json!({"name": format!("{name}.example.com"), "clientConfig": client, "sideEffects": "None",
        "admissionReviewVersions": ["v1"], "timeoutSeconds": 5,
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "golden"}},
        "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]})
}

fn with(mut hook: Value, more: Value) -> Value {
    for (k, v) in more.as_object().unwrap() {
        hook[k] = v.clone();
    }
    hook
}

async fn configure(c: &Cluster, kind: &str, name: &str, hooks: Value) {
    let resource = format!("{}webhookconfigurations", kind.to_lowercase());
    let body = json!({"metadata": {"name": name}, "webhooks": hooks});
    let (code, answer, _) = call(c, "POST", &format!("{CONFIGURATIONS}/{resource}"), body).await;
    assert_eq!(code, 201, "{answer}");
}

#[tokio::test]
async fn a_rejection_is_reported_and_nothing_is_written() {
    let c = Cluster::start(1).await;
    let h = Hook::start(|_, r| match r["name"].as_str() {
        Some("bad") => Some(json!({"allowed": false, "warnings": ["careful"],
            "status": {"code": 418, "reason": "Forbidden", "message": "not this one"}})),
        Some("mute") => Some(json!({"allowed": false})),
        _ => allow(),
    })
    .await;
    configure(&c, "Validating", "v", json!([hook("deny", &h.url("/deny"))])).await;
    let (code, answer, warnings) = call(&c, "POST", MAPS, config_map("bad")).await;
    assert_eq!((code, answer["reason"].as_str()), (418, Some("Forbidden")), "{answer}");
    assert_eq!(answer["message"], "admission webhook \"deny.example.com\" denied the request: not this one");
    assert_eq!(warnings, ["careful"]);
    assert_eq!(call(&c, "GET", &format!("{MAPS}/bad"), Value::Null).await.0, 404);
    let (code, answer, _) = call(&c, "POST", MAPS, config_map("mute")).await;
    assert_eq!(code, 400);
    assert_eq!(answer["message"], "admission webhook \"deny.example.com\" denied the request without explanation");
    assert_eq!(call(&c, "POST", MAPS, config_map("good")).await.0, 201);
    assert_eq!(call(&c, "PATCH", &format!("{MAPS}/good"), json!({"data": {"b": "2"}})).await.0, 200);
    assert_eq!(call(&c, "DELETE", &format!("{MAPS}/good"), Value::Null).await.0, 200);
    let operations: Vec<Value> = h.heard("/deny").iter().map(|r| r["operation"].clone()).collect();
    assert_eq!(operations, ["CREATE", "CREATE", "CREATE", "UPDATE", "DELETE"]);
    let heard = h.heard("/deny");
    assert_eq!(heard[2]["userInfo"]["username"], "admin");
    assert_eq!(heard[2]["object"]["data"]["a"], "1");
    assert_eq!(heard[2]["kind"], json!({"group": "", "version": "v1", "kind": "ConfigMap"}));
    assert_eq!(heard[2]["options"]["kind"], "CreateOptions");
    assert_eq!(heard[3]["oldObject"]["data"]["a"], "1");
    assert_eq!(heard[3]["object"]["data"]["b"], "2");
    assert_eq!((&heard[4]["object"], &heard[4]["oldObject"]["data"]["b"]), (&Value::Null, &json!("2")));
    // Another namespace is not selected.
    assert_eq!(call(&c, "POST", "/api/v1/namespaces/default/configmaps", config_map("bad")).await.0, 201);
    assert_eq!(h.heard("/deny").len(), 5);
}

#[tokio::test]
async fn mutating_webhooks_run_in_order() {
    let c = Cluster::start(2).await;
    let h = Hook::start(|path, r| match path {
        "/first" => patch(&json!([{"op": "add", "path": "/metadata/labels", "value": {"first": "yes"}}])),
        "/second" if r["object"]["metadata"]["labels"]["first"] == "yes" => {
            patch(&json!([{"op": "add", "path": "/data/second", "value": "saw the first"}]))
        }
        "/uid" => patch(&json!([{"op": "replace", "path": "/metadata/uid", "value": "mine"}])),
        _ => allow(),
    })
    .await;
    configure(&c, "Mutating", "b", json!([hook("second", &h.url("/second"))])).await;
    // Calls have the path without what is needless in it.
    configure(&c, "Mutating", "a", json!([hook("first", &h.url("//x/.././first/"))])).await;
    configure(&c, "Mutating", "c", json!([hook("uid", &h.url("/uid"))])).await;
    let (code, o, _) = call(&c, "POST", MAPS, config_map("m")).await;
    assert_eq!(code, 201, "{o}");
    assert_eq!(o["metadata"]["labels"]["first"], "yes");
    assert_eq!(o["data"]["second"], "saw the first");
    assert_ne!(o["metadata"]["uid"], "mine", "the UID cannot be set");
    assert_eq!(h.heard("/first").len(), 1, "not reinvoked unless it wants to be");
    let (_, o, _) = call(&c, "GET", &format!("{MAPS}/m"), Value::Null).await;
    assert_eq!(o["data"]["second"], "saw the first");
}

#[tokio::test]
async fn a_webhook_is_reinvoked_after_a_change() {
    let c = Cluster::start(3).await;
    let h = Hook::start(|path, r| match path {
        "/late" if r["object"]["data"]["late"].is_null() => {
            patch(&json!([{"op": "add", "path": "/data/late", "value": "1"}]))
        }
        _ => allow(),
    })
    .await;
    let again = json!({"reinvocationPolicy": "IfNeeded"});
    let hooks = json!([
        with(hook("again", &h.url("/again")), again),
        hook("once", &h.url("/once")),
        hook("late", &h.url("/late")),
    ]);
    configure(&c, "Mutating", "m", hooks).await;
    assert_eq!(call(&c, "POST", MAPS, config_map("m")).await.0, 201);
    let seen: Vec<Value> = h.heard("/again").iter().map(|r| r["object"]["data"]["late"].clone()).collect();
    assert_eq!(seen, [Value::Null, json!("1")]);
    assert_eq!((h.heard("/once").len(), h.heard("/late").len()), (1, 1));
}

#[tokio::test]
async fn a_failed_call_follows_the_failure_policy() {
    let c = Cluster::start(4).await;
    let h = Hook::start(|path, _| match path {
        "/never" => None,
        "/http" => Some(json!({"http": 500})),
        "/uid" => Some(json!({"allowed": true, "uid": "other"})),
        "/patch" => patch(&json!([])),
        _ => allow(),
    })
    .await;
    let down = json!({"url": "https://127.0.0.1:1/x", "caBundle": h.ca});
    let stranger = Hook::start(|_, _| allow()).await;
    let untrusted = json!({"url": format!("https://127.0.0.1:{}/x", stranger.port), "caBundle": h.ca});
    let cases = [
        (
            "down",
            down,
            "failed to call webhook: Post \"https://127.0.0.1:1/x?timeout=1s\": dial tcp 127.0.0.1:1: connect: connection refused",
        ),
        ("untrusted", untrusted, "tls: failed to verify certificate: x509: certificate signed by unknown authority"),
        (
            "unreadable",
            json!({"url": "https://127.0.0.1:1/x", "caBundle": "bm9uZQ=="}),
            "could not get REST client: unable to load root certificates: unable to parse bytes as PEM block",
        ),
        ("never", h.url("/never"), "/never?timeout=1s\": context deadline exceeded"),
        ("http", h.url("/http"), "failed to call webhook: an error on the server (\"no\") has prevented the request"),
        ("uid", h.url("/uid"), "received invalid webhook response: expected response.uid="),
        (
            "patch",
            h.url("/patch"),
            "received invalid webhook response: validating webhook may not return response.patch",
        ),
    ];
    for (name, client, text) in cases {
        let path = format!("{CONFIGURATIONS}/validatingwebhookconfigurations/{name}");
        let one = with(hook(name, &client), json!({"timeoutSeconds": 1}));
        configure(&c, "Validating", name, json!([one])).await;
        let (code, answer, _) = call(&c, "POST", MAPS, config_map(name)).await;
        assert_eq!(code, 500, "{name}: {answer}");
        let message = answer["message"].as_str().unwrap();
        let start = format!("Internal error occurred: failed calling webhook \"{name}.example.com\": ");
        assert!(message.starts_with(&start) && message.contains(text), "{name}: {message}");
        let ignored =
            json!({"webhooks": [with(hook(name, &client), json!({"timeoutSeconds": 1, "failurePolicy": "Ignore"}))]});
        assert_eq!(call(&c, "PATCH", &path, ignored).await.0, 200, "{name}");
        assert_eq!(call(&c, "POST", MAPS, config_map(name)).await.0, 201, "{name}");
        assert_eq!(call(&c, "DELETE", &path, Value::Null).await.0, 200, "a bad hook can always be taken away");
    }
}

#[tokio::test]
async fn rules_and_selectors_select_webhooks() {
    let c = Cluster::start(5).await;
    let h = Hook::start(|_, _| allow()).await;
    let rule = |v: Value| json!({"rules": [v], "namespaceSelector": {}});
    let rules = |ops: &[&str], group: &str, version: &str, resources: &[&str], scope: &str| {
        rule(
            json!({"operations": ops, "apiGroups": [group], "apiVersions": [version], "resources": resources, "scope": scope}),
        )
    };
    let hooks = json!([
        with(hook("labelled", &h.url("/labelled")), json!({"objectSelector": {"matchLabels": {"seen": "yes"}}})),
        with(hook("status", &h.url("/status")), rules(&["UPDATE"], "*", "*", &["*/status"], "*")),
        with(hook("cluster", &h.url("/cluster")), rules(&["CREATE"], "*", "*", &["*"], "Cluster")),
        with(hook("inside", &h.url("/inside")), rules(&["CREATE"], "*", "*", &["*"], "Namespaced")),
        with(
            hook("exact", &h.url("/exact")),
            with(
                rules(&["CREATE"], "autoscaling", "v1", &["horizontalpodautoscalers"], "*"),
                json!({"matchPolicy": "Exact"})
            )
        ),
        with(
            hook("equivalent", &h.url("/equivalent")),
            rules(&["CREATE"], "autoscaling", "v1", &["horizontalpodautoscalers"], "*")
        ),
    ]);
    configure(&c, "Validating", "v", hooks).await;
    let mut labelled = config_map("labelled");
    labelled["metadata"]["labels"] = json!({"seen": "yes"});
    assert_eq!(call(&c, "POST", MAPS, labelled).await.0, 201);
    assert_eq!(call(&c, "POST", MAPS, config_map("plain")).await.0, 201);
    let scaler = json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"},
        "spec": {"maxReplicas": 3, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"},
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}]}});
    let path = "/apis/autoscaling/v2/namespaces/golden/horizontalpodautoscalers";
    let (code, answer, _) = call(&c, "POST", path, scaler).await;
    assert_eq!(code, 201, "{answer}");
    let status = json!({"status": {"desiredReplicas": 2, "currentReplicas": 1}});
    assert_eq!(call(&c, "PATCH", &format!("{path}/h/status"), status).await.0, 200);
    assert_eq!(call(&c, "POST", "/api/v1/namespaces", json!({"metadata": {"name": "new"}})).await.0, 201);
    assert_eq!(h.heard("/labelled").len(), 1);
    let heard = h.heard("/status");
    assert_eq!((heard.len(), &heard[0]["subResource"]), (1, &json!("status")));
    assert_eq!(h.heard("/cluster").iter().map(|r| r["name"].clone()).collect::<Vec<_>>(), ["new"]);
    assert_eq!(h.heard("/inside").len(), 3);
    assert!(h.heard("/exact").is_empty());
    let heard = &h.heard("/equivalent")[0];
    assert_eq!((&heard["kind"]["version"], &heard["requestKind"]["version"]), (&json!("v1"), &json!("v2")));
    assert_eq!(heard["object"]["apiVersion"], "autoscaling/v1");
    assert_eq!(heard["object"]["spec"]["targetCPUUtilizationPercentage"], 50);
}

#[tokio::test]
async fn a_dry_run_calls_only_webhooks_without_side_effects() {
    let c = Cluster::start(6).await;
    let h = Hook::start(|_, _| allow()).await;
    configure(&c, "Validating", "v", json!([hook("clean", &h.url("/clean"))])).await;
    let dry = format!("{MAPS}?dryRun=All");
    assert_eq!(call(&c, "POST", &dry, config_map("m")).await.0, 201);
    assert_eq!(h.heard("/clean")[0]["dryRun"], true);
    assert_eq!(h.heard("/clean")[0]["options"]["dryRun"], json!(["All"]));
    // Such hooks can no longer be configured, but older ones are still stored.
    let v = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "old"}, "webhooks": [with(hook("dirty", &h.url("/dirty")), json!({"sideEffects": "Some"}))]});
    put(&c, "admissionregistration.k8s.io/validatingwebhookconfigurations", "", "old", &v).await;
    let (code, answer, _) = call(&c, "POST", &dry, config_map("m")).await;
    assert_eq!(code, 400);
    assert_eq!(answer["message"], "admission webhook \"dirty.example.com\" does not support dry run");
    assert!(h.heard("/dirty").is_empty());
}

/// Writes what validation would refuse.
pub async fn put(c: &Cluster, resource: &str, namespace: &str, name: &str, v: &Value) {
    let key = Key::new(resource, namespace, name);
    let op = Op { key, expect: Expect::Absent, action: Action::Put(v.to_string().into()) };
    c.server.registry.store.commit(vec![op]).await.unwrap();
}

#[tokio::test]
async fn a_service_is_reached_through_its_endpoints() {
    let c = Cluster::start(7).await;
    let h = Hook::start(|_, _| allow()).await;
    let client =
        json!({"service": {"namespace": "golden", "name": "hook", "path": "/svc/", "port": 443}, "caBundle": h.ca});
    configure(&c, "Validating", "v", json!([hook("svc", &client)])).await;
    let refused = |answer: Value| answer["message"].as_str().unwrap().to_owned();
    let (_, answer, _) = call(&c, "POST", MAPS, config_map("m")).await;
    let message = refused(answer);
    assert!(
        message.ends_with("Post \"https://hook.golden.svc:443/svc?timeout=5s\": service \"hook\" not found"),
        "{message}"
    );
    let service =
        json!({"metadata": {"name": "hook"}, "spec": {"ports": [{"name": "https", "port": 443, "targetPort": 8443}]}});
    assert_eq!(call(&c, "POST", "/api/v1/namespaces/golden/services", service).await.0, 201);
    let (_, answer, _) = call(&c, "POST", MAPS, config_map("m")).await;
    let message = refused(answer);
    assert!(message.ends_with("no endpoints available for service \"hook\""), "{message}");
    // Endpoints on loopback are no valid ones, but the only ones a test may talk to.
    let slice = |name: &str, port: u16, ready: bool| {
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": name, "namespace": "golden", "labels": {"kubernetes.io/service-name": "hook"}},
            "addressType": "IPv4", "ports": [{"name": "https", "port": port}],
            "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": ready}}]})
    };
    let resource = "discovery.k8s.io/endpointslices";
    put(&c, resource, "golden", "down", &slice("down", 1, false)).await;
    put(&c, resource, "golden", "up", &slice("up", h.port, true)).await;
    let (code, answer, _) = call(&c, "POST", MAPS, config_map("m")).await;
    assert_eq!(code, 201, "{answer}");
    assert_eq!(h.heard("/svc").len(), 1);
}

#[tokio::test]
async fn scales_and_connections_are_admitted_as_clients_see_them() {
    let c = Cluster::start(9).await;
    let h = Hook::start(|path, r| match path {
        "/exec" => Some(json!({"allowed": false, "status": {"message": "no shells"}})),
        "/scale" if r["object"]["spec"]["replicas"] == 5 => {
            patch(&json!([{"op": "replace", "path": "/spec/replicas", "value": 3}]))
        }
        _ => allow(),
    })
    .await;
    let rule = |operation: &str, group: &str, resource: &str| {
        json!({"namespaceSelector": {},
            "rules": [{"operations": [operation], "apiGroups": [group], "apiVersions": ["*"], "resources": [resource]}]})
    };
    let whole = with(hook("whole", &h.url("/whole")), rule("UPDATE", "apps", "deployments"));
    let exec = with(hook("exec", &h.url("/exec")), rule("CONNECT", "", "pods/exec"));
    configure(&c, "Validating", "v", json!([whole, exec])).await;
    configure(
        &c,
        "Mutating",
        "m",
        json!([with(hook("scale", &h.url("/scale")), rule("UPDATE", "apps", "deployments/scale"))]),
    )
    .await;
    let path = "/apis/apps/v1/namespaces/golden/deployments";
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"replicas": 1, "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    assert_eq!(call(&c, "POST", path, deployment).await.0, 201);
    let (code, answer, _) = call(&c, "PATCH", &format!("{path}/d/scale"), json!({"spec": {"replicas": 5}})).await;
    assert_eq!((code, &answer["spec"]["replicas"]), (200, &json!(3)), "{answer}");
    let heard = &h.heard("/scale")[0];
    assert_eq!((&heard["kind"]["kind"], &heard["object"]["kind"]), (&json!("Scale"), &json!("Scale")));
    assert_eq!((&heard["subResource"], &heard["oldObject"]["spec"]["replicas"]), (&json!("scale"), &json!(1)));
    let (_, o, _) = call(&c, "GET", &format!("{path}/d"), Value::Null).await;
    assert_eq!((&o["spec"]["replicas"], &o["metadata"]["generation"]), (&json!(3), &json!(2)));
    assert!(h.heard("/whole").is_empty(), "a scale is no deployment");
    let pod =
        json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}});
    assert_eq!(call(&c, "POST", "/api/v1/namespaces/golden/pods", pod).await.0, 201);
    let exec = "/api/v1/namespaces/golden/pods/p/exec?command=sh&command=-c&stdin=true";
    let (code, answer, _) = call(&c, "POST", exec, Value::Null).await;
    assert_eq!(code, 400);
    assert_eq!(answer["message"], "admission webhook \"exec.example.com\" denied the request: no shells");
    let heard = &h.heard("/exec")[0];
    assert_eq!((&heard["object"]["kind"], &heard["options"]), (&json!("PodExecOptions"), &Value::Null));
    assert_eq!((&heard["object"]["command"], &heard["object"]["stdin"]), (&json!(["sh", "-c"]), &json!(true)));
}

/// A bundle may hold the serving certificate itself, whoever signed it and whatever it says it is.
#[tokio::test]
async fn a_bundle_may_hold_the_serving_certificate() {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    let c = Cluster::start(6).await;
    let is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let params = || CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let mut authority = params();
    authority.is_ca = is_ca;
    let (authority_key, key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let of_another = params().signed_by(&key, &Issuer::from_params(&authority, &authority_key)).unwrap();
    let mut alone = params();
    alone.is_ca = is_ca;
    let alone = alone.self_signed(&key).unwrap();
    for (name, cert) in [("leaf", of_another), ("self-signed", alone)] {
        let h = Hook::with_certificate(cert, &key, |_, _| allow()).await;
        configure(&c, "Validating", name, json!([hook(name, &h.url("/x"))])).await;
        let (code, answer, _) = call(&c, "POST", MAPS, config_map(name)).await;
        assert_eq!(code, 201, "{name}: {answer}");
        assert_eq!(h.heard("/x").len(), 1, "{name}");
        let path = format!("{CONFIGURATIONS}/validatingwebhookconfigurations/{name}");
        assert_eq!(call(&c, "DELETE", &path, Value::Null).await.0, 200);
    }
}
