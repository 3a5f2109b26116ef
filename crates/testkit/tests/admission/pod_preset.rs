//! The plugin PodPreset and its kind, which is served on request.

use crate::call;
use meta::Value;
use serde_json::json;
use testkit::{Answer, Cluster};

const PRESETS: &str = "/apis/settings.k8s.io/v1alpha1/namespaces/golden/podpresets";
const PODS: &str = "/api/v1/namespaces/golden/pods";

async fn start() -> Cluster {
    let plugins = admission::chain(&["PodPreset".to_owned()], &[]).unwrap();
    Cluster::serving(1, "settings.k8s.io/v1alpha1=true", plugins).await
}

fn preset(name: &str, role: &str, spec: Value) -> Value {
    let mut spec = spec;
    spec["selector"] = json!({"matchLabels": {"role": role}});
    json!({"apiVersion": "settings.k8s.io/v1alpha1", "kind": "PodPreset", "metadata": {"name": name}, "spec": spec})
}

fn pod(name: &str, role: &str, container: Value) -> Value {
    let mut container = container;
    (container["name"], container["image"]) = ("c".into(), "i".into());
    json!({"metadata": {"name": name, "labels": {"role": role}}, "spec": {"containers": [container],
        "initContainers": [{"name": "first", "image": "i"}], "volumes": [{"name": "own", "emptyDir": {}}]}})
}

fn database() -> Value {
    preset(
        "allow-database",
        "frontend",
        json!({"env": [{"name": "DB_PORT", "value": "6379"}], "envFrom": [{"configMapRef": {"name": "etcd-env-config"}}],
            "volumeMounts": [{"mountPath": "/cache", "name": "cache-volume"}],
            "volumes": [{"name": "cache-volume", "emptyDir": {}}]}),
    )
}

async fn created(c: &Cluster, path: &str, body: Value) -> Value {
    let (code, answer, _) = call(c, "POST", path, body).await;
    assert_eq!(code, 201, "{answer}");
    answer
}

/// Clauses: P15.injected, P15.selector, P15.exclusion, P15.annotation
#[tokio::test(start_paused = true)]
async fn presets_are_applied_to_selected_pods() {
    let c = start().await;
    let made = created(&c, PRESETS, database()).await;
    let second = json!({"env": [{"name": "DB_PORT", "value": "6379"}, {"name": "MORE", "value": "1"}]});
    created(&c, PRESETS, preset("more", "frontend", second)).await;
    let p = created(&c, PODS, pod("a", "frontend", json!({"env": [{"name": "OWN", "value": "x"}]}))).await;
    let names = |v: &Value| -> Vec<String> {
        v.as_array().unwrap().iter().map(|i| i["name"].as_str().unwrap_or_default().to_owned()).collect()
    };
    let container = &p["spec"]["containers"][0];
    assert_eq!(names(&container["env"]), ["OWN", "DB_PORT", "MORE"], "what two say alike is there once");
    assert_eq!(container["envFrom"], json!([{"configMapRef": {"name": "etcd-env-config"}}]));
    assert_eq!(container["volumeMounts"][0]["mountPath"], "/cache");
    assert_eq!(names(&p["spec"]["initContainers"][0]["env"]), ["DB_PORT", "MORE"]);
    assert_eq!(&names(&p["spec"]["volumes"])[..2], ["own", "cache-volume"]);
    let applied = &p["metadata"]["annotations"]["podpreset.admission.kubernetes.io/podpreset-allow-database"];
    assert_eq!(*applied, made["metadata"]["resourceVersion"]);
    assert!(p["metadata"]["annotations"]["podpreset.admission.kubernetes.io/podpreset-more"].is_string());

    let other = created(&c, PODS, pod("b", "backend", json!({}))).await;
    assert_eq!((other["metadata"].get("annotations"), other["spec"]["containers"][0].get("env")), (None, None));
    let mut excluded = pod("e", "frontend", json!({}));
    excluded["metadata"]["annotations"] = json!({"podpreset.admission.kubernetes.io/exclude": "true"});
    let excluded = created(&c, PODS, excluded).await;
    assert_eq!(excluded["spec"]["containers"][0].get("env"), None);
}

/// What contradicts a pod, or another preset, leaves the pod as it was; an event says so. Clauses: P15.conflict, P15.event
#[tokio::test(start_paused = true)]
async fn conflicts_are_reported_in_events() {
    let c = start().await;
    created(&c, PRESETS, database()).await;
    let mount = json!({"volumeMounts": [{"mountPath": "/cache", "name": "own"}]});
    let port = json!({"env": [{"name": "DB_PORT", "value": "1"}]});
    for (name, container, what) in [("m", mount, "mountPath /cache"), ("p", port, "env DB_PORT")] {
        let p = created(&c, PODS, pod(name, "frontend", container)).await;
        assert_eq!(p["metadata"].get("annotations"), None, "{p}");
        assert_eq!(p["spec"]["containers"][0].get("envFrom"), None);
        let event = event(&c, name).await;
        assert_eq!((&event["type"], &event["reason"]), (&json!("Warning"), &json!("conflict")));
        assert_eq!(event["message"], format!("Conflict on pod preset. Duplicate {what}."));
        let component = "podpreset.admission.kubernetes.io/podpreset-allow-database";
        assert_eq!(event["source"]["component"], component);
        assert_eq!(event["involvedObject"]["uid"], p["metadata"]["uid"]);
    }
    let volume = preset("z", "backend", json!({"volumes": [{"name": "own", "hostPath": {"path": "/"}}]}));
    created(&c, PRESETS, volume).await;
    let dry = created(&c, &format!("{PODS}?dryRun=All"), pod("dry", "backend", json!({}))).await;
    assert_eq!(dry["metadata"].get("annotations"), None);
    created(&c, PODS, pod("v", "backend", json!({}))).await;
    let event = event(&c, "v").await;
    assert_eq!(event["message"], "Conflict on pod preset. Duplicate volumes own.");
    let all = c.call("GET", "/api/v1/namespaces/golden/events", Value::Null).await;
    assert_eq!(all.body["items"].as_array().unwrap().len(), 3, "a dry run tells nothing");
}

async fn event(c: &Cluster, pod: &str) -> Value {
    let path = format!("/api/v1/namespaces/golden/events?fieldSelector=involvedObject.name%3D{pod}");
    for _ in 0..1000 {
        let a: Answer = c.call("GET", &path, Value::Null).await;
        if let Some(e) = a.body["items"].get(0) {
            return e.clone();
        }
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    panic!("there is no event about {pod}");
}

/// The kind is validated, is there when it is asked for alone, and the plugin does nothing without it.
/// Clauses: P15.runtime-config, P15.validated
#[tokio::test(start_paused = true)]
async fn the_kind_is_served_on_request() {
    let c = start().await;
    let (code, answer, _) = call(&c, "POST", PRESETS, preset("empty", "a", json!({}))).await;
    assert_eq!(
        (code, &answer["details"]["causes"][0]["message"]),
        (422, &json!("Required value: must specify at least one"))
    );
    let nowhere = json!({"env": [{"name": "a=b"}], "volumeMounts": [{"mountPath": "/a", "name": "b"}]});
    let (code, answer, _) = call(&c, "POST", PRESETS, preset("nowhere", "a", nowhere)).await;
    let fields: Vec<&Value> = answer["details"]["causes"].as_array().unwrap().iter().map(|c| &c["field"]).collect();
    assert_eq!(code, 422);
    assert!(fields.contains(&&json!("spec.env[0].name")), "{answer}");
    assert!(fields.contains(&&json!("spec.volumeMounts[0].name")), "{answer}");
    let (_, groups, _) = call(&c, "GET", "/apis", Value::Null).await;
    assert!(groups.to_string().contains("settings.k8s.io/v1alpha1"));
    let (_, v3, _) = call(&c, "GET", "/openapi/v3/apis/settings.k8s.io/v1alpha1", Value::Null).await;
    assert!(v3["components"]["schemas"].get("io.k8s.api.settings.v1alpha1.PodPreset").is_some());

    let plugins = admission::chain(&["PodPreset".to_owned()], &[]).unwrap();
    let c = Cluster::serving(1, "apps/v1/daemonsets=false,batch/v1=false", plugins).await;
    assert_eq!(call(&c, "GET", PRESETS, Value::Null).await.0, 404);
    let (_, groups, _) = call(&c, "GET", "/apis", Value::Null).await;
    assert!(!groups.to_string().contains("settings.k8s.io") && !groups.to_string().contains("batch"));
    let (_, v2, _) = call(&c, "GET", "/openapi/v2", Value::Null).await;
    assert!(v2["definitions"].get("io.k8s.api.settings.v1alpha1.PodPreset").is_none());
    assert_eq!(call(&c, "GET", "/apis/apps/v1/daemonsets", Value::Null).await.0, 404);
    assert_eq!(call(&c, "GET", "/apis/apps/v1/deployments", Value::Null).await.0, 200);
    let p = created(&c, PODS, pod("a", "frontend", json!({}))).await;
    assert_eq!(p["metadata"].get("annotations"), None);
}

/// Presets do nothing by themselves: it is the plugin that puts them into pods.
#[tokio::test(start_paused = true)]
async fn presets_need_the_plugin() {
    for (plugins, applied) in [(vec!["PodPreset".to_owned()], true), (vec![], false)] {
        let c = Cluster::serving(1, "settings.k8s.io/v1alpha1=true", admission::chain(&plugins, &[]).unwrap()).await;
        created(&c, PRESETS, database()).await;
        let p = created(&c, PODS, pod("a", "frontend", json!({}))).await;
        assert_eq!(p["metadata"].get("annotations").is_some(), applied, "{p}");
        assert_eq!(p["spec"]["containers"][0].get("envFrom").is_some(), applied, "{p}");
    }
}
