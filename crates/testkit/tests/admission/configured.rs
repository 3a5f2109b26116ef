//! Plugins that are configured with `--admission-control-config-file`.

use crate::hook::{Caller, Hook, allow};
use crate::webhooks::put;
use crate::{MAPS, call, clock, config_map, configured_cluster};
use admission::Configuration;
use meta::Value;
use serde_json::json;
use testkit::Cluster;

const PODS: &str = "/api/v1/namespaces/golden/pods";
const QUOTAS: &str = "/api/v1/namespaces/golden/resourcequotas";

fn pod(name: &str, spec: Value) -> Value {
    let mut o = json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    for (k, v) in spec.as_object().unwrap() {
        o["spec"][k] = v.clone();
    }
    o
}

async fn namespace(c: &Cluster, name: &str, metadata: Value) -> Vec<String> {
    let mut ns = json!({"metadata": metadata});
    ns["metadata"]["name"] = name.into();
    let (code, answer, warnings) = call(c, "POST", "/api/v1/namespaces", ns).await;
    assert_eq!(code, 201, "{answer}");
    let path = format!("/api/v1/namespaces/{name}/serviceaccounts");
    call(c, "POST", &path, json!({"metadata": {"name": "default"}})).await;
    warnings
}

async fn create(c: &Cluster, path: &str, body: Value) -> (u16, String, Vec<String>) {
    let (code, answer, warnings) = call(c, "POST", path, body).await;
    (code, answer["message"].as_str().unwrap_or_default().to_owned(), warnings)
}

fn levels(of: &[(&str, &str)]) -> Value {
    of.iter().map(|(k, v)| (format!("pod-security.kubernetes.io/{k}"), Value::from(*v))).collect()
}

fn pod_security(defaults: Value, exemptions: Value) -> Value {
    json!({"apiVersion": "pod-security.admission.config.k8s.io/v1", "kind": "PodSecurityConfiguration",
        "defaults": defaults, "exemptions": exemptions})
}

#[tokio::test]
async fn the_default_level_applies_without_labels() {
    let c = configured_cluster(
        "PodSecurity",
        pod_security(json!({"enforce": "baseline", "warn": "restricted"}), json!({})),
    )
    .await;
    let (code, why, _) = create(&c, PODS, pod("a", json!({"hostPID": true}))).await;
    let want = "pods \"a\" is forbidden: violates PodSecurity \"baseline:latest\": host namespaces (hostPID=true)";
    assert_eq!((code, why.as_str()), (403, want));
    let (code, _, warnings) = create(&c, PODS, pod("b", json!({}))).await;
    assert_eq!(code, 201);
    assert!(warnings[0].starts_with("would violate PodSecurity \"restricted:latest\": "), "{warnings:?}");
    // Labels go before it, each for itself.
    namespace(&c, "open", json!({"labels": levels(&[("enforce", "privileged"), ("warn-version", "v1.20")])})).await;
    let (code, _, warnings) = create(&c, "/api/v1/namespaces/open/pods", pod("a", json!({"hostPID": true}))).await;
    assert_eq!(code, 201);
    assert!(warnings[0].starts_with("would violate PodSecurity \"restricted:v1.20\": "), "{warnings:?}");
}

#[tokio::test]
async fn exempt_requests_are_not_checked() {
    let exemptions = json!({"namespaces": ["free"], "runtimeClasses": ["sandbox"], "usernames": ["somebody"]});
    let c = configured_cluster("PodSecurity", pod_security(json!({"enforce": "restricted"}), exemptions)).await;
    let warned = namespace(&c, "free", json!({})).await;
    assert!(warned.is_empty(), "{warned:?}");
    let free = "/api/v1/namespaces/free";
    assert_eq!(create(&c, &format!("{free}/pods"), pod("a", json!({"hostPID": true}))).await.0, 201);
    let labels = json!({"metadata": {"labels": levels(&[("enforce", "baseline"), ("audit-version", "v1.30")])}});
    let (code, _, warnings) = call(&c, "PATCH", free, labels).await;
    assert_eq!((code, warnings.len()), (200, 0), "a level that asks for less than before");
    let labels = json!({"metadata": {"labels": levels(&[("enforce", "restricted"), ("enforce-version", "v1.30")])}});
    let (code, _, warnings) = call(&c, "PATCH", free, labels).await;
    let why =
        "namespace \"free\" is exempt from Pod Security, and the policy (enforce=restricted:v1.30) will be ignored";
    assert_eq!((code, warnings), (200, vec![why.to_owned()]));
    let class = json!({"metadata": {"name": "sandbox"}, "handler": "sandbox"});
    assert_eq!(create(&c, "/apis/node.k8s.io/v1/runtimeclasses", class).await.0, 201);
    let sandboxed = pod("s", json!({"hostPID": true, "runtimeClassName": "sandbox"}));
    assert_eq!(create(&c, PODS, sandboxed).await.0, 201);
    assert_eq!(create(&c, PODS, pod("p", json!({}))).await.0, 403);
    // What is exempt is not told of either when a namespace asks for more.
    let labels = json!({"metadata": {"labels": levels(&[("enforce-version", "v1.30")])}});
    let (code, _, warnings) = call(&c, "PATCH", "/api/v1/namespaces/golden", labels).await;
    assert_eq!((code, warnings.len()), (200, 0), "{warnings:?}");
    let headers = [
        ("content-type", "application/json"),
        ("impersonate-user", "somebody"),
        ("impersonate-group", "system:masters"),
    ];
    let body = pod("u", json!({"hostPID": true})).to_string();
    assert_eq!(c.request("POST", PODS, &headers, body.into()).await.status(), 201);
}

#[tokio::test]
async fn node_selectors_come_from_the_configuration() {
    let config = json!({"podNodeSelectorPluginConfig": {"clusterDefaultNodeSelector": "zone=a", "golden": "zone=a,disk=ssd",
        "broken": "zone"}});
    let c = configured_cluster("PodNodeSelector", config).await;
    let (code, made, _) = call(&c, "POST", PODS, pod("a", json!({"nodeSelector": {"disk": "ssd"}}))).await;
    assert_eq!((code, &made["spec"]["nodeSelector"]), (201, &json!({"disk": "ssd", "zone": "a"})), "{made}");
    let (code, why, _) = create(&c, PODS, pod("b", json!({"nodeSelector": {"cpu": "big"}}))).await;
    let want = "pods \"b\" is forbidden: pod node label selector labels conflict with its namespace whitelist";
    assert_eq!((code, why.as_str()), (403, want));
    let (code, why, _) = create(&c, PODS, pod("b", json!({"nodeSelector": {"zone": "b"}}))).await;
    let want = "pods \"b\" is forbidden: pod node label selector conflicts with its namespace node label selector";
    assert_eq!((code, why.as_str()), (403, want));
    // A namespace's own goes before the default, an empty one too.
    let annotations = json!({"annotations": {"scheduler.alpha.kubernetes.io/node-selector": ""}});
    namespace(&c, "own", annotations).await;
    let (code, made, _) = call(&c, "POST", "/api/v1/namespaces/own/pods", pod("a", json!({}))).await;
    assert_eq!((code, &made["spec"]["nodeSelector"]), (201, &Value::Null), "{made}");
    namespace(&c, "broken", json!({})).await;
    let (code, why, _) = create(&c, "/api/v1/namespaces/broken/pods", pod("a", json!({}))).await;
    assert_eq!((code, why.as_str()), (500, "invalid selector: [zone]"));
}

/// A quota, as its controller would have counted it.
async fn quota(c: &Cluster, name: &str, spec: Value) {
    let (code, answer, _) = call(c, "POST", QUOTAS, json!({"metadata": {"name": name}, "spec": spec})).await;
    assert_eq!(code, 201, "{answer}");
    let hard = answer["spec"]["hard"].clone();
    let used: Value = hard.as_object().unwrap().keys().map(|k| (k.clone(), Value::from("0"))).collect();
    let status = json!({"status": {"hard": hard, "used": used}});
    assert_eq!(call(c, "PATCH", &format!("{QUOTAS}/{name}/status"), status).await.0, 200);
}

fn limited(all: Value) -> Value {
    json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "ResourceQuotaConfiguration", "limitedResources": all})
}

#[tokio::test]
async fn limited_resources_need_a_quota() {
    let all = json!([
        {"resource": "pods", "matchContains": ["cpu", "nothing"]},
        {"resource": "configmaps", "matchContains": ["count/"]},
    ]);
    let c = configured_cluster("ResourceQuota", limited(all)).await;
    let (code, why, _) = create(&c, MAPS, config_map("a")).await;
    let want = "configmaps \"a\" is forbidden: insufficient quota to consume: count/configmaps";
    assert_eq!((code, why.as_str()), (403, want));
    let asks = |name: &str| {
        pod(name, json!({"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}]}))
    };
    assert_eq!(create(&c, PODS, pod("none", json!({}))).await.0, 201, "it takes nothing of what is limited");
    let (code, why, _) = create(&c, PODS, asks("p")).await;
    assert_eq!((code, why.as_str()), (403, "pods \"p\" is forbidden: insufficient quota to consume: cpu,requests.cpu"));
    // A quota that counts the pod for something else is no help, and one that covers half of it is none either.
    quota(&c, "half", json!({"hard": {"pods": "10", "requests.cpu": "2"}})).await;
    let (code, why, _) = create(&c, PODS, asks("p")).await;
    assert_eq!((code, why.as_str()), (403, "pods \"p\" is forbidden: insufficient quota to consume: cpu"));
    quota(&c, "rest", json!({"hard": {"cpu": "1"}})).await;
    assert_eq!(create(&c, PODS, asks("p")).await.0, 201);
    let (code, why, _) = create(&c, PODS, asks("q")).await;
    let want = "pods \"q\" is forbidden: exceeded quota: rest, requested: cpu=1, used: cpu=1, limited: cpu=1";
    assert_eq!((code, why.as_str()), (403, want));
    quota(&c, "maps", json!({"hard": {"count/configmaps": "1"}})).await;
    assert_eq!(create(&c, MAPS, config_map("a")).await.0, 201);
    assert_eq!(create(&c, "/api/v1/namespaces/golden/secrets", json!({"metadata": {"name": "s"}})).await.0, 201);
}

#[tokio::test]
async fn a_limited_scope_needs_a_quota_of_that_scope() {
    let scope = json!({"scopeName": "PriorityClass", "operator": "In", "values": ["high", "higher"]});
    let c = configured_cluster("ResourceQuota", limited(json!([{"resource": "pods", "matchScopes": [scope]}]))).await;
    for class in ["high", "low"] {
        let class = json!({"metadata": {"name": class}, "value": 1});
        assert_eq!(create(&c, "/apis/scheduling.k8s.io/v1/priorityclasses", class).await.0, 201);
    }
    let of = |name: &str, class: &str| pod(name, json!({"priorityClassName": class}));
    assert_eq!(create(&c, PODS, of("a", "low")).await.0, 201);
    let (code, why, _) = create(&c, PODS, of("b", "high")).await;
    let want = "insufficient quota to match these scopes: [{PriorityClass In [high higher]}]";
    assert_eq!((code, why.as_str()), (500, want));
    quota(&c, "all", json!({"hard": {"pods": "10"}})).await;
    assert_eq!(create(&c, PODS, of("b", "high")).await.0, 500, "a quota without the scope");
    let scopes = json!({"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]});
    quota(&c, "high", json!({"hard": {"pods": "1"}, "scopeSelector": scopes})).await;
    assert_eq!(create(&c, PODS, of("b", "high")).await.0, 201);
    let (code, why, _) = create(&c, PODS, of("c", "high")).await;
    assert_eq!(code, 403);
    assert!(why.contains("exceeded quota: high, requested: pods=1, used: pods=1, limited: pods=1"), "{why}");
}

const HOOKS: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";

/// A server that is told as whom to ask webhooks, by a file.
async fn introduced(kubeconfig: &Value) -> Cluster {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("kubeconfig");
    std::fs::write(&file, kubeconfig.to_string()).unwrap();
    let config = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "WebhookAdmissionConfiguration",
        "kubeConfigFile": file});
    configured_cluster("ValidatingAdmissionWebhook", config).await
}

/// One hook for what happens to config maps, the only one from now on.
async fn hook(c: &Cluster, client: Value) {
    call(c, "DELETE", &format!("{HOOKS}/v"), Value::Null).await;
    let rules = json!([{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]);
    let hook = json!({"name": "a.example.com", "clientConfig": client, "sideEffects": "None",
        "admissionReviewVersions": ["v1"], "timeoutSeconds": 5, "rules": rules});
    let (code, answer, _) = call(c, "POST", HOOKS, json!({"metadata": {"name": "v"}, "webhooks": [hook]})).await;
    assert_eq!(code, 201, "{answer}");
}

#[tokio::test]
async fn webhooks_are_called_with_their_credentials() {
    let h = Hook::start(|_, _| allow()).await;
    let here = |host: &str| format!("https://{host}:{}/x", h.port);
    let named = |host: &str| format!("{host}:{}", h.port);
    let certificate = json!({"client-certificate-data": h.client.0, "client-key-data": h.client.1});
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), "from a file\n").unwrap();
    let user = |name: &str, user: Value| json!({"name": name, "user": user});
    let basic = json!({"username": "me", "password": "pass"});
    let cases = [
        (
            json!([user("*", json!({"token": "all"})), user(&named("127.0.0.1"), json!({"token": "own"}))]),
            "Bearer own",
            "",
            false,
        ),
        (json!([user("*", json!({"tokenFile": secret.path()}))]), "Bearer from a file", "", false),
        (json!([user(&named("*.0.0.1"), basic)]), "Basic bWU6cGFzcw==", "", false),
        (json!([user("*", certificate)]), "", "", true),
        (json!([user("*", json!({"token": "t", "as": "jane"}))]), "Bearer t", "jane", false),
        (json!([user("127.0.0.1", json!({"token": "another port"}))]), "", "", false),
    ];
    for (users, authorization, acts_as, certificate) in cases {
        let c = introduced(&json!({"apiVersion": "v1", "kind": "Config", "users": users})).await;
        hook(&c, json!({"url": here("127.0.0.1"), "caBundle": h.ca})).await;
        assert_eq!(create(&c, MAPS, config_map("a")).await.0, 201);
        let want = Caller { authorization: authorization.into(), acts_as: acts_as.into(), certificate };
        assert_eq!(h.callers.lock().pop().unwrap(), want, "{users}");
    }
    let c = Cluster::start(1).await;
    hook(&c, json!({"url": here("127.0.0.1"), "caBundle": h.ca})).await;
    assert_eq!(create(&c, MAPS, config_map("a")).await.0, 201);
    assert_eq!(h.callers.lock().pop().unwrap(), Caller::default(), "nobody is told who asks without a file");
}

#[tokio::test]
async fn webhook_services_have_credentials() {
    let h = Hook::start(|_, _| allow()).await;
    let users = json!([{"name": "*", "user": {"token": "all"}}, {"name": "*.golden.svc", "user": {"token": "mine"}}]);
    let c = introduced(&json!({"apiVersion": "v1", "kind": "Config", "users": users})).await;
    let service = json!({"metadata": {"name": "hook"}, "spec": {"ports": [{"name": "https", "port": 443}]}});
    assert_eq!(create(&c, "/api/v1/namespaces/golden/services", service).await.0, 201);
    // Endpoints on loopback are no valid ones, but the only ones a test may talk to.
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "hook", "namespace": "golden", "labels": {"kubernetes.io/service-name": "hook"}},
        "addressType": "IPv4", "ports": [{"name": "https", "port": h.port}],
        "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": true}}]});
    put(&c, "discovery.k8s.io/endpointslices", "golden", "hook", &slice).await;
    hook(&c, json!({"service": {"namespace": "golden", "name": "hook"}, "caBundle": h.ca})).await;
    let (code, why, _) = create(&c, MAPS, config_map("a")).await;
    assert_eq!((code, why.as_str()), (201, ""));
    assert_eq!(h.callers.lock().pop().unwrap().authorization, "Bearer mine");
}

#[tokio::test]
async fn failed_webhook_calls_are_explained() {
    let h = Hook::start(|_, _| allow()).await;
    let users = json!([{"name": "*", "user": {"tokenFile": "/nowhere/token"}}]);
    let c = introduced(&json!({"apiVersion": "v1", "kind": "Config", "users": users})).await;
    hook(&c, h.url("/x")).await;
    let (code, why, _) = create(&c, MAPS, config_map("a")).await;
    let failed = "Internal error occurred: failed calling webhook \"a.example.com\":";
    let want = format!("{failed} could not get REST client: open /nowhere/token: no such file or directory");
    assert_eq!((code, why), (500, want));
    // The server itself is asked without a way over the network, and without being introduced.
    let own = json!({"service": {"namespace": "default", "name": "kubernetes", "path": "/apis/apps/v1/nosuch"}});
    hook(&c, own).await;
    let (code, why, _) = create(&c, MAPS, config_map("a")).await;
    let want = format!("{failed} failed to call webhook: the server could not find the requested resource");
    assert_eq!((code, why), (500, want));
}

/// On one stack, each call of itself deeper than the one before, the server would end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_that_calls_itself_is_called_twice() {
    let c = introduced(&json!({"apiVersion": "v1", "kind": "Config"})).await;
    let path = "/api/v1/namespaces/golden/services/x/proxy/";
    let own = json!({"service": {"namespace": "default", "name": "kubernetes", "path": path}});
    for (policy, want) in [("Fail", 500), ("Ignore", 404)] {
        call(&c, "DELETE", &format!("{HOOKS}/v"), Value::Null).await;
        let rules = json!([{"operations": ["CONNECT"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["services/proxy"]}]);
        let hook = json!({"name": "a.example.com", "clientConfig": own, "sideEffects": "None", "failurePolicy": policy,
            "admissionReviewVersions": ["v1"], "timeoutSeconds": 30, "rules": rules});
        let (code, answer, _) = call(&c, "POST", HOOKS, json!({"metadata": {"name": "v"}, "webhooks": [hook]})).await;
        assert_eq!(code, 201, "{answer}");
        let (code, answer, _) = call(&c, "POST", path, json!({})).await;
        assert_eq!(code, want, "{answer}");
        let message = answer["message"].as_str().unwrap();
        assert_eq!(
            message.matches("failed calling webhook").count(),
            if policy == "Fail" { 3 } else { 0 },
            "{message}"
        );
        assert_eq!(message.contains("the webhook calls itself"), policy == "Fail", "{message}");
    }
}

/// Ten webhooks that each lead to the ten again, and so on, would be a thousand requests for one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_causes_at_most_64_loopback_requests() {
    let c = introduced(&json!({"apiVersion": "v1", "kind": "Config"})).await;
    let path = "/api/v1/namespaces/golden/services/x/proxy/";
    let rules =
        json!([{"operations": ["CONNECT"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["services/proxy"]}]);
    let hook = |n: i32| {
        json!({"name": format!("a{n}.example.com"), "sideEffects": "None", "failurePolicy": "Ignore", "timeoutSeconds": 30,
            "clientConfig": {"service": {"namespace": "default", "name": "kubernetes", "path": path}},
            "admissionReviewVersions": ["v1"], "rules": rules})
    };
    let hooks: Vec<Value> = (0..10).map(hook).collect();
    let (code, answer, _) = call(&c, "POST", HOOKS, json!({"metadata": {"name": "v"}, "webhooks": hooks})).await;
    assert_eq!(code, 201, "{answer}");
    let (code, answer, _) = call(&c, "POST", path, json!({})).await;
    assert_eq!(code, 404, "{answer}");
    let connects = |text: String| -> u64 {
        let of = |l: &&str| l.starts_with("apiserver_request_total{") && l.contains("verb=\"CONNECT\"");
        text.lines().filter(of).filter_map(|l| l.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    };
    let count = connects(c.call("GET", "/metrics", Value::Null).await.body.as_str().unwrap().to_owned());
    // That of the client, and those of the server; ten of these 64 at least were refused for their depth.
    assert!((12..=65).contains(&count), "{count} requests");
}

#[tokio::test]
async fn an_invalid_webhook_configuration_is_rejected() {
    let of = async |plugin: &str, more: Value| {
        let mut config = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "WebhookAdmissionConfiguration"});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let chain = admission::configured(&[], &[], &Configuration::default().with(plugin, config))?;
        chain.open(&clock()).await.map(drop)
    };
    for plugin in ["ValidatingAdmissionWebhook", "MutatingAdmissionWebhook"] {
        let failed = format!("couldn't init admission plugin {plugin:?}:");
        let cases = [
            (json!({"kubeConfigFile": "a"}), "kubeConfigFile: Invalid value: \"a\": must be an absolute file path"),
            (json!({"kubeConfigFile": "/nowhere/a"}), "stat /nowhere/a: no such file or directory"),
            (json!({"kubeconfig": "/a"}), "strict decoding error: unknown field \"kubeconfig\""),
            (
                json!({"staticManifestsDir": "/a"}),
                "staticManifestsDir: Forbidden: staticManifestsDir requires the ManifestBasedAdmissionControlConfig feature gate \
                 to be enabled",
            ),
        ];
        for (more, why) in cases {
            assert_eq!(of(plugin, more).await.unwrap_err(), format!("{failed} {why}"));
        }
        assert_eq!(of(plugin, json!({})).await, Ok(()));
    }
}
