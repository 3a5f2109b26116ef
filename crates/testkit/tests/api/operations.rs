//! OpenAPI has an operation for every verb in discovery, and all its references resolve.

use serde_json::{Value, json};
use std::collections::BTreeSet;
use testkit::Cluster;

async fn get(c: &Cluster, path: &str) -> Value {
    let a = c.call("GET", path, Value::Null).await;
    assert_eq!(a.code, 200, "{path}");
    a.body
}

fn operations(document: &Value) -> Vec<(&str, &str, &Value)> {
    let paths = document["paths"].as_object().unwrap();
    let of = |(path, v): (&'_ String, &'_ Value)| -> Vec<(String, String)> {
        let methods = v.as_object().unwrap().keys().filter(|m| *m != "parameters");
        methods.map(|m| (path.clone(), m.clone())).collect()
    };
    let all: Vec<(String, String)> = paths.iter().flat_map(of).collect();
    all.into_iter()
        .map(|(p, m)| {
            let (path, methods) = paths.get_key_value(&p).unwrap();
            let (method, o) = methods.as_object().unwrap().get_key_value(&m).unwrap();
            (path.as_str(), method.as_str(), o)
        })
        .collect()
}

/// Everything that is referred to, from anywhere.
fn references(v: &Value, found: &mut BTreeSet<String>) {
    match v {
        Value::Object(m) => {
            if let Some(Value::String(r)) = m.get("$ref") {
                found.insert(r.clone());
            }
            m.values().for_each(|v| references(v, found));
        }
        Value::Array(a) => a.iter().for_each(|v| references(v, found)),
        _ => {}
    }
}

/// Issue 16, B7: v1.36 has 408 paths with 814 operations, two of them for the logs of its machine, which are not served here.
#[tokio::test]
async fn every_verb_has_an_operation() {
    let c = Cluster::start(1).await;
    let v2 = get(&c, "/openapi/v2").await;
    let all = operations(&v2);
    let ids: BTreeSet<&str> = all.iter().map(|(_, _, o)| o["operationId"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), all.len(), "each has a name of its own");
    let mut found = BTreeSet::new();
    references(&v2, &mut found);
    for r in &found {
        assert!(v2.pointer(r.trim_start_matches('#')).is_some(), "{r} is not there");
    }
    for (path, method, o) in &all {
        assert!(o["responses"]["401"].is_object() && o["tags"][0].is_string(), "{method} {path}");
    }
    let mut missing = Vec::new();
    for list in ["/api/v1", "/apis/apps/v1", "/apis/batch/v1", "/apis/certificates.k8s.io/v1", "/apis/policy/v1"] {
        for r in get(&c, list).await["resources"].as_array().unwrap() {
            let (name, sub) = r["name"].as_str().unwrap().split_once('/').unwrap_or((r["name"].as_str().unwrap(), ""));
            let scope = if r["namespaced"] == true { "/namespaces/{namespace}" } else { "" };
            let (base, item) = (format!("{list}{scope}/{name}"), format!("{list}{scope}/{name}/{{name}}"));
            let connects = r["kind"].as_str().unwrap().ends_with("Options");
            for verb in r["verbs"].as_array().unwrap().iter().map(|v| v.as_str().unwrap()) {
                let (path, method) = match (verb, sub) {
                    ("list", _) => (base.clone(), "get"),
                    ("create", "") => (base.clone(), "post"),
                    ("deletecollection", _) => (base.clone(), "delete"),
                    ("watch", _) => (format!("{list}/watch{scope}/{name}"), "get"),
                    ("get", "") => (item.clone(), "get"),
                    ("update", "") => (item.clone(), "put"),
                    (v @ ("patch" | "delete"), "") => (item.clone(), v),
                    ("create", sub) => (format!("{item}/{sub}"), "post"),
                    ("update", sub) => (format!("{item}/{sub}"), "put"),
                    (v, sub) => (format!("{item}/{sub}"), v),
                };
                let o = &v2["paths"][&path][method];
                if o.is_null() || connects != (o["x-kubernetes-action"] == "connect") {
                    missing.push(format!("{verb} {}/{sub}: {method} {path}", r["name"]));
                }
            }
        }
    }
    assert_eq!(missing, Vec::<String>::new());
    // What generated clients call, whole.
    let patch = &v2["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"];
    assert_eq!(patch["operationId"], "patchAppsV1NamespacedDeployment");
    assert_eq!(patch["consumes"].as_array().unwrap().len(), 4);
    let names = |list: &Value| -> Vec<String> {
        let resolve = |p: &Value| match p["$ref"].as_str() {
            Some(r) => v2.pointer(r.trim_start_matches('#')).unwrap()["name"].clone(),
            None => p["name"].clone(),
        };
        list.as_array().unwrap().iter().map(|p| resolve(p).as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&patch["parameters"]), ["body", "dryRun", "fieldManager", "fieldValidation", "force"]);
    let at_path = &v2["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["parameters"];
    assert_eq!(names(at_path), ["name", "namespace", "pretty"]);
    assert_eq!(
        v2["paths"]["/api/v1/namespaces/{namespace}/pods/{name}/eviction"]["post"]["x-kubernetes-group-version-kind"],
        json!({"group": "policy", "version": "v1", "kind": "Eviction"})
    );
    let deleted = |path: &str| v2["paths"][path]["delete"]["responses"]["200"]["schema"]["$ref"].clone();
    assert_eq!(deleted("/api/v1/persistentvolumes/{name}"), "#/definitions/io.k8s.api.core.v1.PersistentVolume");
    assert_eq!(deleted("/api/v1/nodes/{name}"), "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.Status");
}

/// v3 has the same operations, version by version.
#[tokio::test]
async fn both_versions_of_openapi_have_the_same_operations() {
    let c = Cluster::start(1).await;
    let name = |(path, method, o): &(&str, &str, &Value)| format!("{method} {path} {}", o["operationId"]);
    let v2 = get(&c, "/openapi/v2").await;
    let wanted: BTreeSet<String> = operations(&v2).iter().map(name).collect();
    let mut have = BTreeSet::new();
    for place in get(&c, "/openapi/v3").await["paths"].as_object().unwrap().values() {
        let document = get(&c, place["serverRelativeURL"].as_str().unwrap()).await;
        let mut found = BTreeSet::new();
        references(&document, &mut found);
        for r in &found {
            assert!(document.pointer(r.trim_start_matches('#')).is_some(), "{place}: {r} is not there");
        }
        have.extend(operations(&document).iter().map(name));
    }
    assert_eq!(have, wanted);
}

/// PUT creates an object that does not exist, for the kinds for which upstream allows it.
#[tokio::test]
async fn some_kinds_are_created_by_an_update() {
    let c = Cluster::start(1).await;
    let core = "/api/v1/namespaces/default";
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let role = |kind: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": "r"});
    let involved = json!({"kind": "Pod", "name": "p", "namespace": "default"});
    for (path, body) in [
        ("/apis/coordination.k8s.io/v1/namespaces/default/leases".to_owned(), json!({})),
        (format!("{core}/endpoints"), json!({})),
        (format!("{core}/services"), json!({"spec": {"ports": [{"port": 1}]}})),
        (format!("{core}/limitranges"), json!({"spec": {"limits": []}})),
        (format!("{core}/events"), json!({"involvedObject": involved})),
        ("/apis/node.k8s.io/v1/runtimeclasses".to_owned(), json!({"handler": "h"})),
        (format!("{rbac}/clusterroles"), json!({"rules": []})),
        (format!("{rbac}/namespaces/default/roles"), json!({"rules": []})),
        (format!("{rbac}/clusterrolebindings"), json!({"roleRef": role("ClusterRole")})),
        (format!("{rbac}/namespaces/default/rolebindings"), json!({"roleRef": role("Role")})),
    ] {
        let one = format!("{path}/put-1");
        let mut object = body.clone();
        object["metadata"]["name"] = "put-1".into();
        let a = c.call("PUT", &one, object.clone()).await;
        assert_eq!(a.code, 201, "{path}: {}", a.body);
        object["metadata"]["labels"] = json!({"a": "b"});
        object["metadata"]["resourceVersion"] = a.body["metadata"]["resourceVersion"].clone();
        let a = c.call("PUT", &one, object.clone()).await;
        assert_eq!(a.code, 200, "{path}: {}", a.body);
        // One that named an object that is gone meant that one.
        assert_eq!(c.call("DELETE", &one, Value::Null).await.code, 200);
        object["metadata"]["uid"] = a.body["metadata"]["uid"].clone();
        let a = c.call("PUT", &one, object).await;
        assert_eq!(a.code, 409, "{path}: {}", a.body);
    }
    let gone = json!({"metadata": {"name": "gone"}});
    assert_eq!(c.call("PUT", &format!("{core}/configmaps/gone"), gone).await.code, 404);
    let gone = json!({"metadata": {"name": "gone", "uid": "u-1"}});
    assert_eq!(c.call("PUT", &format!("{core}/configmaps/gone"), gone.clone()).await.code, 404);
    let a = c.call("PUT", &format!("{core}/endpoints/gone"), gone).await;
    let why = "Operation cannot be fulfilled on endpoints \"gone\": StorageError: invalid object, Code: 4, \
        Key: /registry/endpoints/default/gone, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: \
        UID in precondition: u-1, UID in object meta: ";
    assert_eq!((a.code, a.body["message"].as_str().unwrap()), (409, why));
}

/// Creating by an update is creating.
#[tokio::test]
async fn an_update_that_creates_needs_permission_to_create() {
    let c = Cluster::start(1).await;
    let rules = json!([{"verbs": ["update"], "apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}]);
    crate::escalation::grant(&c, "jane", rules).await;
    let jane = auth::User::new("jane", &[]);
    let path = "/apis/coordination.k8s.io/v1/namespaces/default/leases/l";
    let lease = json!({"metadata": {"name": "l"}});
    let put = async || crate::authorization::as_user(&c, &jane, http::Method::PUT, path, &[], lease.clone()).await;
    let (code, body) = put().await;
    assert!(code == 403 && body["message"].as_str().unwrap().contains("cannot create resource \"leases\""), "{body}");
    assert_eq!(c.call("PUT", path, lease.clone()).await.code, 201);
    let (code, body) = put().await;
    assert_ne!(code, 403, "{body}");
}

#[tokio::test]
async fn options_of_logs_and_evictions_are_checked() {
    let c = Cluster::start(1).await;
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    assert_eq!(c.call("POST", pods, pod).await.code, 201);
    for (query, why) in [
        ("tailLines=-1", "tailLines: Invalid value: -1: must be greater than or equal to 0"),
        ("limitBytes=0", "limitBytes: Invalid value: 0: must be greater than 0"),
        ("sinceSeconds=0", "sinceSeconds: Invalid value: 0: must be greater than 0"),
        ("sinceSeconds=-5", "sinceSeconds: Invalid value: -5: must be greater than 0"),
        (
            "sinceSeconds=1&sinceTime=2020-01-01T00:00:00Z",
            "[]: Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified",
        ),
    ] {
        let a = c.call("GET", &format!("{pods}/p/log?{query}"), Value::Null).await;
        let message = format!("PodLogOptions \"p\" is invalid: {why}");
        assert_eq!((a.code, a.body["message"].as_str().unwrap()), (422, &*message));
    }
    let a = c.call("GET", &format!("{pods}/p/log?tailLines=0&limitBytes=1&sinceSeconds=1"), Value::Null).await;
    assert!(a.code < 300, "{}", a.body);
    for body in [json!({}), json!({"metadata": {"name": "q"}})] {
        let a = c.call("POST", &format!("{pods}/p/eviction"), body).await;
        let why = "name in URL does not match name in Eviction object";
        assert_eq!((a.code, a.body["message"].as_str().unwrap()), (400, why));
    }
    // Clients from before v1.22 send another version.
    let evict = |version: &str| json!({"apiVersion": version, "kind": "Eviction", "metadata": {"name": "p"}});
    for (version, code) in [("policy/v1beta2", 400), ("apps/v1", 400), ("policy/v1beta1", 201)] {
        let a = c.call("POST", &format!("{pods}/p/eviction"), evict(version)).await;
        assert_eq!(a.code, code, "{version}: {}", a.body);
    }
    // Such a path leads nowhere; that of all namespaces is there, but nothing is created by it.
    for (method, path, code) in [
        ("GET", "/api/v1/pods/p", 404),
        ("DELETE", "/api/v1/pods/p", 404),
        ("PUT", "/apis/apps/v1/deployments/d/status", 404),
        ("POST", "/api/v1/pods", 405),
        ("GET", "/api/v1/pods", 200),
    ] {
        assert_eq!(c.call(method, path, Value::Null).await.code, code, "{method} {path}");
    }
}

/// The first versions of the API orphaned dependents, and a deletion that names no policy still does (`DefaultGarbageCollectionPolicy`).
#[tokio::test(start_paused = true)]
async fn the_oldest_kinds_orphan_their_dependents_by_default() {
    let c = Cluster::start(1).await;
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
    let mut lasting = template.clone();
    lasting["spec"]["restartPolicy"] = "Always".into();
    for (path, spec, orphans) in [
        ("/api/v1/namespaces/default/replicationcontrollers", json!({"template": lasting}), true),
        ("/apis/batch/v1/namespaces/default/jobs", json!({"template": template}), true),
        (
            "/apis/apps/v1/namespaces/default/replicasets",
            json!({"selector": {"matchLabels": {"a": "b"}}, "template": lasting}),
            false,
        ),
    ] {
        let finalizers = async |name: &str, options: serde_json::Value| {
            let made = c.call("POST", path, json!({"metadata": {"name": name}, "spec": spec})).await;
            assert_eq!(made.code, 201, "{}", made.body);
            c.call("DELETE", &format!("{path}/{name}"), options).await;
            c.call("GET", &format!("{path}/{name}"), serde_json::Value::Null).await.body["metadata"]["finalizers"]
                .clone()
        };
        let expected = if orphans { json!(["orphan"]) } else { serde_json::Value::Null };
        assert_eq!(finalizers("silent", serde_json::Value::Null).await, expected, "{path}");
        let background = json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"});
        assert_eq!(finalizers("asked", background).await, serde_json::Value::Null, "{path}");
    }
}
