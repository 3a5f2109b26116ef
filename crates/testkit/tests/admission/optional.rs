//! Plugins with a configuration, and plugins that are off by default.

use crate::hook::Hook;
use crate::{MAPS, call, config_map, configured_cluster};
use admission::Configuration;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use meta::Value;
use serde_json::json;
use std::time::Duration;
use testkit::Cluster;

const PODS: &str = "/api/v1/namespaces/golden/pods";
const EVENTS: &str = "/api/v1/namespaces/golden/events";

async fn plain(plugin: &str) -> Cluster {
    Cluster::admitting(1, admission::chain(&[plugin.to_owned()], &[]).unwrap()).await
}

fn pod(name: &str, image: &str, more: Value) -> Value {
    let mut o = json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": image}]}});
    for (k, v) in more.as_object().unwrap() {
        o["spec"][k] = v.clone();
    }
    o
}

#[tokio::test]
async fn namespaces_are_created_on_demand() {
    let c = plain("NamespaceAutoProvision").await;
    let path = "/api/v1/namespaces/fresh/configmaps";
    let (code, answer, _) = call(&c, "POST", &format!("{path}?dryRun=All"), config_map("a")).await;
    assert_eq!(
        (code, &answer["message"]),
        (404, &json!("namespaces \"fresh\" not found")),
        "what is only tried makes none"
    );
    assert_eq!(call(&c, "POST", path, config_map("a")).await.0, 201);
    let (_, ns, _) = call(&c, "GET", "/api/v1/namespaces/fresh", Value::Null).await;
    assert_eq!(ns["status"]["phase"], "Active");
    assert_eq!(ns["metadata"]["labels"]["kubernetes.io/metadata.name"], "fresh");
    assert_eq!(call(&c, "POST", path, config_map("b")).await.0, 201);
    let (code, answer, _) = call(&c, "POST", "/api/v1/namespaces/no_name/configmaps", config_map("a")).await;
    assert_eq!(code, 403, "{answer}");
    assert!(answer["message"].as_str().unwrap().contains("Namespace \"no_name\" is invalid"), "{answer}");
    assert_eq!(call(&c, "POST", MAPS, config_map("a")).await.0, 201);
}

async fn annotated(c: &Cluster, name: &str, annotations: Value) -> String {
    let ns = json!({"metadata": {"name": name, "annotations": annotations}});
    assert_eq!(call(c, "POST", "/api/v1/namespaces", ns).await.0, 201);
    let account = json!({"metadata": {"name": "default"}});
    assert_eq!(call(c, "POST", &format!("/api/v1/namespaces/{name}/serviceaccounts"), account).await.0, 201);
    format!("/api/v1/namespaces/{name}/pods")
}

const DEFAULT: &str = "scheduler.alpha.kubernetes.io/defaultTolerations";
const WHITELIST: &str = "scheduler.alpha.kubernetes.io/tolerationsWhitelist";

#[tokio::test]
async fn namespaces_set_tolerations_of_pods() {
    let off = ["DefaultTolerationSeconds".to_owned()];
    let config = json!({"apiVersion": "podtolerationrestriction.admission.k8s.io/v1alpha1", "kind": "Configuration",
        "default": [{"key": "all", "operator": "Exists"}], "whitelist": [{"key": "all", "operator": "Exists"}]});
    let configuration = Configuration::default().with("PodTolerationRestriction", config);
    let on = ["PodTolerationRestriction".to_owned()];
    let c = Cluster::admitting(1, admission::configured(&on, &off, &configuration).unwrap()).await;
    // The cluster's default, where the namespace has none.
    let (code, made, _) = call(&c, "POST", PODS, pod("a", "i", json!({}))).await;
    assert_eq!((code, &made["spec"]["tolerations"]), (201, &json!([{"key": "all", "operator": "Exists"}])), "{made}");
    let foreign = json!({"tolerations": [{"key": "x", "operator": "Exists"}]});
    let (code, answer, _) = call(&c, "POST", PODS, pod("b", "i", foreign.clone())).await;
    let why = "pod tolerations (possibly merged with namespace default tolerations) conflict with its";
    assert_eq!((code, &answer["message"]), (500, &json!(format!("{why} cluster whitelist"))), "{answer}");
    assert!(answer["reason"].is_null(), "{answer}");
    // The namespace's value replaces it, even an empty list.
    let one = json!([{"key": "x", "operator": "Equal", "value": "1", "effect": "NoSchedule"}]).to_string();
    let own = annotated(&c, "own", json!({DEFAULT: one, WHITELIST: ""})).await;
    let (code, made, _) =
        call(&c, "POST", &own, pod("a", "i", json!({"tolerations": [{"key": "y", "operator": "Exists"}]}))).await;
    assert_eq!(code, 201, "{made}");
    let keys =
        |o: &Value| o["spec"]["tolerations"].as_array().unwrap().iter().map(|t| t["key"].clone()).collect::<Vec<_>>();
    assert_eq!(keys(&made), ["y", "x"]);
    let (_, made, _) = call(&c, "POST", &own, pod("b", "i", foreign)).await;
    assert_eq!(keys(&made), ["x"], "a covered toleration is not added again");
    assert_eq!(made["spec"]["tolerations"][0]["operator"], "Exists");
    let strict = annotated(&c, "strict", json!({WHITELIST: one})).await;
    let (code, answer, _) = call(&c, "POST", &strict, pod("a", "i", json!({}))).await;
    assert_eq!((code, &answer["message"]), (500, &json!(format!("{why} namespace whitelist"))));
    // Pods that ask for something go on a node that is short of memory.
    let asks =
        pod("c", "i", json!({"containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": "1"}}}]}));
    let (_, made, _) = call(&c, "POST", &own, asks).await;
    assert_eq!(keys(&made), ["x", "node.kubernetes.io/memory-pressure"]);
    // An update gets none, but is looked at.
    let more =
        json!({"spec": {"tolerations": [{"key": "all", "operator": "Exists"}, {"key": "z", "operator": "Exists"}]}});
    let (code, answer, _) = call(&c, "PATCH", &format!("{PODS}/a"), more).await;
    assert_eq!((code, &answer["message"]), (500, &json!(format!("{why} cluster whitelist"))));
    let broken = annotated(&c, "broken", json!({DEFAULT: "{"})).await;
    assert_eq!(call(&c, "POST", &broken, pod("a", "i", json!({}))).await.0, 500);
}

fn event(name: &str, about: &str) -> Value {
    json!({"metadata": {"name": name}, "involvedObject": {"kind": "Pod", "namespace": "golden", "name": about},
        "source": {"component": "test"}, "reason": "Test", "type": "Normal"})
}

#[tokio::test(start_paused = true)]
async fn events_are_rate_limited_per_key() {
    let limit = |of: &str, burst: u32| json!({"type": of, "qps": 1, "burst": burst});
    let config = json!({"apiVersion": "eventratelimit.admission.k8s.io/v1alpha1", "kind": "Configuration",
        "limits": [limit("Namespace", 5), limit("SourceAndObject", 2)]});
    let c = configured_cluster("EventRateLimit", config).await;
    for name in ["a", "b"] {
        assert_eq!(call(&c, "POST", EVENTS, event(name, "p")).await.0, 201);
    }
    let (code, answer, _) = call(&c, "POST", EVENTS, event("c", "p")).await;
    assert_eq!((code, &answer["reason"]), (429, &json!("TooManyRequests")), "{answer}");
    let why = "Too many requests: limit reached on type SourceAndObject for key testPodgoldenp";
    assert_eq!(answer["message"], why);
    assert_eq!(call(&c, "POST", &format!("{EVENTS}?dryRun=All"), event("c", "p")).await.0, 201);
    for name in ["d", "e"] {
        assert_eq!(call(&c, "POST", EVENTS, event(name, "q")).await.0, 201, "another object");
    }
    let (code, answer, _) = call(&c, "POST", EVENTS, event("f", "r")).await;
    assert_eq!(
        (code, &answer["message"]),
        (429, &json!("Too many requests: limit reached on type Namespace for key golden"))
    );
    assert_eq!(call(&c, "POST", MAPS, config_map("a")).await.0, 201, "other things are not counted");
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(call(&c, "POST", EVENTS, event("c", "p")).await.0, 201);
    let repeated = json!({"count": 2});
    assert_eq!(call(&c, "PATCH", &format!("{EVENTS}/c"), repeated.clone()).await.0, 200, "an update counts as well");
    assert_eq!(call(&c, "PATCH", &format!("{EVENTS}/c"), repeated).await.0, 429);
}

async fn judged(h: &Hook, more: Value) -> Cluster {
    let ca = STANDARD.decode(&h.ca).unwrap();
    let cluster = json!({"server": format!("https://127.0.0.1:{}/judge", h.port), "certificate-authority-data": STANDARD.encode(ca)});
    let kubeconfig = json!({"apiVersion": "v1", "kind": "Config", "current-context": "a",
        "clusters": [{"name": "a", "cluster": cluster}], "users": [{"name": "a", "user": {}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}]});
    let file = std::env::temp_dir().join(format!("kemudi-image-policy-{}", h.port));
    std::fs::write(&file, kubeconfig.to_string()).unwrap();
    let mut config = json!({"kubeConfigFile": file, "retryBackoff": 1});
    for (k, v) in more.as_object().unwrap() {
        config[k] = v.clone();
    }
    let c = configured_cluster("ImagePolicyWebhook", json!({"imagePolicy": config})).await;
    std::fs::remove_file(&file).unwrap();
    c
}

fn verdict(review: &Value) -> Value {
    let bad = review.as_array().into_iter().flatten().any(|c| c["image"].as_str().unwrap().starts_with("bad"));
    let status = if bad {
        json!({"allowed": false, "reason": "it is bad"})
    } else {
        json!({"allowed": true, "auditAnnotations": {"seen": "yes"}})
    };
    json!({"whole": {"kind": "ImageReview", "apiVersion": "imagepolicy.k8s.io/v1alpha1", "status": status}})
}

#[tokio::test]
async fn image_policy_webhook_results_are_cached() {
    let h = Hook::start(|_, whole| Some(verdict(&whole["spec"]["containers"]))).await;
    let c = judged(&h, json!({})).await;
    let mut good = pod("a", "good", json!({"initContainers": [{"name": "i", "image": "first"}]}));
    good["metadata"]["annotations"] = json!({"me.image-policy.k8s.io/ticket": "1", "other": "2"});
    assert_eq!(call(&c, "POST", PODS, good).await.0, 201);
    let spec = json!({"containers": [{"image": "good"}, {"image": "first"}],
        "annotations": {"me.image-policy.k8s.io/ticket": "1"}, "namespace": "golden"});
    let heard = h.heard.lock()[0].1.clone();
    assert_eq!(
        (&heard["kind"], &heard["apiVersion"], &heard["spec"]),
        (&json!("ImageReview"), &json!("imagepolicy.k8s.io/v1alpha1"), &spec)
    );
    for name in ["b", "c"] {
        let (code, answer, _) = call(&c, "POST", PODS, pod(name, "bad", json!({}))).await;
        let why =
            format!("pods \"{name}\" is forbidden: image policy webhook backend denied one or more images: it is bad");
        assert_eq!((code, &answer["message"]), (403, &json!(why)));
    }
    assert_eq!(h.heard.lock().len(), 2, "the second was remembered");
    let debug = json!({"spec": {"ephemeralContainers": [{"name": "e", "image": "bad"}]}});
    assert_eq!(call(&c, "PATCH", &format!("{PODS}/a/ephemeralcontainers"), debug).await.0, 403);
    let last = h.heard.lock().last().unwrap().1.clone();
    assert_eq!(last["spec"]["containers"], json!([{"image": "bad"}]));
}

#[tokio::test]
async fn an_unreachable_image_policy_webhook_follows_the_default() {
    let h = Hook::start(|_, _| Some(json!({"http": 500}))).await;
    let c = judged(&h, json!({})).await;
    let (code, answer, _) = call(&c, "POST", PODS, pod("a", "i", json!({}))).await;
    let why = "an error on the server (\"no\") has prevented the request from succeeding";
    assert_eq!((code, &answer["message"]), (403, &json!(format!("pods \"a\" is forbidden: {why}"))));
    assert_eq!(h.heard.lock().len(), 5, "asked again");
    let c = judged(&h, json!({"defaultAllow": true})).await;
    assert_eq!(call(&c, "POST", PODS, pod("a", "i", json!({}))).await.0, 201);
    let none = Hook::start(|_, _| Some(json!({"http": 404}))).await;
    let c = judged(&none, json!({})).await;
    let (_, answer, _) = call(&c, "POST", PODS, pod("a", "i", json!({}))).await;
    assert_eq!(answer["message"], "pods \"a\" is forbidden: the server could not find the requested resource");
    assert_eq!(none.heard.lock().len(), 1);
}
