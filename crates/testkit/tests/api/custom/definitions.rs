//! The lifecycle of a definition: names, conditions, restart, deletion.

use super::*;
use crate::stream::Watch;
use store::Memory;

/// Names are accepted at once; who comes second under the same ones waits until they are free.
#[tokio::test(start_paused = true)]
async fn names_are_given_once() {
    let c = Cluster::start(3).await;
    let a = define(&c, crontabs(spec(json!({})))).await;
    let accepted = json!({"plural": "crontabs", "singular": "crontab", "kind": "CronTab", "listKind": "CronTabList",
        "shortNames": ["ct"], "categories": ["all"]});
    assert_eq!(a.body["status"]["acceptedNames"], accepted);
    assert_eq!(condition(&a, "NamesAccepted"), "True");
    let mut second = crontabs(spec(json!({})));
    second["metadata"]["name"] = "timers.stable.example.com".into();
    second["spec"]["names"] = json!({"plural": "timers", "kind": "CronTab", "shortNames": ["ct"]});
    c.call("POST", DEFINITIONS, second).await;
    let place = format!("{DEFINITIONS}/timers.stable.example.com");
    let a = until(&c, &place, |a| condition(a, "NamesAccepted") == "False").await;
    assert_eq!(condition(&a, "Established"), "False");
    assert_eq!(a.body["status"]["acceptedNames"].get("kind"), Some(&json!("")), "{}", a.body);
    let timers = "/apis/stable.example.com/v1/namespaces/default/timers";
    assert_eq!(c.call("GET", timers, Value::Null).await.code, 404);
    assert_eq!(c.call("DELETE", &format!("{DEFINITIONS}/{NAME}"), Value::Null).await.code, 200);
    until(&c, &place, |a| condition(a, "Established") == "True").await;
    assert_eq!(c.call("GET", timers, Value::Null).await.code, 200);
}

/// What Kubernetes serves itself cannot be defined over, in whatever version, and does not go with such a definition.
#[tokio::test(start_paused = true)]
async fn built_in_resources_stay() {
    let c = Cluster::start(3).await;
    let mut d = crontabs(spec(json!({})));
    d["metadata"] = json!({"name": "ingresses.networking.k8s.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, a test"}});
    d["spec"]["group"] = "networking.k8s.io".into();
    d["spec"]["names"] = json!({"plural": "ingresses", "kind": "Ingress"});
    let mut later = d["spec"]["versions"][0].clone();
    (later["name"], later["storage"]) = ("v2".into(), false.into());
    d["spec"]["versions"].as_array_mut().unwrap().push(later);
    let all = "/apis/networking.k8s.io/v1/namespaces/default/ingresses";
    let own = json!({"metadata": {"name": "own"}, "spec": {"defaultBackend": {"service": {"name": "s", "port": {"number": 80}}}}});
    assert_eq!(c.call("POST", all, own).await.code, 201);
    assert_eq!(c.call("POST", DEFINITIONS, d).await.code, 201);
    let place = format!("{DEFINITIONS}/ingresses.networking.k8s.io");
    let a = until(&c, &place, |a| condition(a, "NamesAccepted") == "False").await;
    assert_eq!(condition(&a, "Established"), "False");
    assert_eq!(c.call("GET", "/apis/networking.k8s.io/v2/ingresses", Value::Null).await.code, 404);
    let list = c.call("GET", all, Value::Null).await;
    assert_eq!((list.code, &list.body["kind"]), (200, &json!("IngressList")));
    c.call("DELETE", &format!("{DEFINITIONS}/ingresses.networking.k8s.io"), Value::Null).await;
    until(&c, &format!("{DEFINITIONS}/ingresses.networking.k8s.io"), |a| a.code == 404).await;
    assert_eq!(c.call("GET", &format!("{all}/own"), Value::Null).await.code, 200, "what is built in stays");
}

/// A definition goes after its objects; one that waits for a finalizer holds it, and nothing new comes.
#[tokio::test(start_paused = true)]
async fn a_definition_outlives_its_objects() {
    let c = with(spec(json!({"n": {"type": "integer"}}))).await;
    for name in ["a", "b"] {
        c.call("POST", CRONTABS, crontab(name, json!({"n": 1}))).await;
    }
    let mut held = crontab("held", json!({}));
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    c.call("POST", CRONTABS, held).await;
    let place = format!("{DEFINITIONS}/{NAME}");
    let a = c.call("DELETE", &place, Value::Null).await;
    assert_eq!(a.code, 200);
    let a = until(&c, CRONTABS, |a| a.body["items"].as_array().is_some_and(|i| i.len() == 1)).await;
    assert_eq!(a.body["items"][0]["metadata"]["name"], "held");
    let a = c.call("GET", &place, Value::Null).await;
    assert_eq!(condition(&a, "Terminating"), "True", "{}", a.body);
    assert_eq!(a.body["metadata"]["finalizers"], json!(["customresourcecleanup.apiextensions.k8s.io"]));
    let a = c.call("POST", CRONTABS, crontab("new", json!({}))).await;
    let why = "create not allowed while custom resource definition is terminating";
    let message = format!("crontabs.stable.example.com \"new\" is forbidden: {why}");
    assert_eq!((a.code, &a.body["message"]), (403, &json!(message)), "{}", a.body);
    let applied = crontab("new", json!({})).to_string();
    let path = format!("{CRONTABS}/new?fieldManager=m");
    let a = c.send("PATCH", &path, Some("application/apply-patch+yaml"), "application/json", applied.into()).await;
    assert_eq!((a.code, &a.body["message"]), (403, &json!(message)), "{}", a.body);
    // What holds the last object can be taken off, by discovery or without.
    let verbs = c.call("GET", "/apis/stable.example.com/v1", Value::Null).await.body["resources"][0]["verbs"].clone();
    assert_eq!(verbs, json!(["delete", "deletecollection", "get", "list", "watch"]));
    let body = json!([{"op": "remove", "path": "/metadata/finalizers"}]).to_string();
    let path = format!("{CRONTABS}/held");
    let a = c.send("PATCH", &path, Some("application/json-patch+json"), "application/json", body.into()).await;
    assert_eq!(a.code, 200, "{}", a.body);
    until(&c, &place, |a| a.code == 404).await;
}

/// After the last object the definition is gone, and so is everything it brought.
#[tokio::test(start_paused = true)]
async fn nothing_is_left_of_a_deleted_definition() {
    let c = with(spec(json!({"n": {"type": "integer"}}))).await;
    c.call("POST", CRONTABS, crontab("a", json!({"n": 1}))).await;
    let place = format!("{DEFINITIONS}/{NAME}");
    c.call("DELETE", &place, Value::Null).await;
    until(&c, &place, |a| a.code == 404).await;
    until(&c, CRONTABS, |a| a.code == 404).await;
    let groups = c.call("GET", "/apis", Value::Null).await.body.to_string();
    assert!(!groups.contains("stable.example.com"));
    assert_eq!(c.call("GET", "/openapi/v3/apis/stable.example.com/v1", Value::Null).await.code, 404);
    // The same again begins empty.
    define(&c, crontabs(spec(json!({})))).await;
    let a = c.call("GET", CRONTABS, Value::Null).await;
    assert_eq!(a.body["items"], json!([]));
}

/// A server that starts serves what was defined before, from its first answer.
#[tokio::test(start_paused = true)]
async fn a_restart_forgets_nothing() {
    let memory = Memory::new();
    let c = Cluster::start_on(3, memory.clone(), None).await;
    define(&c, crontabs(spec(json!({"n": {"type": "integer", "default": 4}})))).await;
    c.call("POST", CRONTABS, crontab("a", json!({}))).await;
    drop(c);
    let c = Cluster::start_on(4, memory, None).await;
    let a = c.call("GET", &format!("{CRONTABS}/a"), Value::Null).await;
    assert_eq!((a.code, &a.body["spec"]["n"]), (200, &json!(4)), "{}", a.body);
    assert_eq!(c.call("POST", CRONTABS, crontab("b", json!({"n": "x"}))).await.code, 422);
}

/// A watch of objects whose definition goes tells of their end, and then ends itself.
#[tokio::test(start_paused = true)]
async fn watches_end_with_their_definition() {
    let c = Cluster::start(5).await;
    define(&c, crontabs(spec(json!({})))).await;
    assert_eq!(c.call("POST", CRONTABS, crontab("a", json!({}))).await.code, 201);
    let mut watch = Watch::start(&c, &format!("{CRONTABS}?watch=1"), "application/json").await.unwrap();
    assert_eq!(watch.event().await.0, "ADDED");
    c.call("DELETE", &format!("{DEFINITIONS}/{NAME}"), Value::Null).await;
    let begun = tokio::time::Instant::now();
    assert_eq!(watch.event().await.0, "DELETED");
    assert!(watch.next().await.is_none());
    assert!(begun.elapsed() < std::time::Duration::from_secs(30), "it ended {:?} later", begun.elapsed());
}
