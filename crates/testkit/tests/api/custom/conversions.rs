//! Conversion webhooks, with a real server.

use super::*;
use crate::hook::Hook;
use crate::stream::Watch;
use bytes::Bytes;
use client::shared::{Handover, HandoverRequest, Page};

const V2: &str = "/apis/stable.example.com/v2/namespaces/default/crontabs";

/// `v1` is stored and has `spec.address` (`host:port`), `v2` has `spec.host` and `spec.port`.
fn definition(conversion: Value) -> Value {
    let mut d = crontabs(spec(json!({"address": {"type": "string"}, "stored": {"type": "string", "default": "yes"}})));
    let mut v2 = d["spec"]["versions"][0].clone();
    (v2["name"], v2["storage"]) = ("v2".into(), false.into());
    v2["schema"]["openAPIV3Schema"] = spec(json!({"host": {"type": "string"}, "port": {"type": "string"},
        "replicas": {"type": "integer", "default": 1}}));
    v2["additionalPrinterColumns"] = json!([{"name": "Host", "type": "string", "jsonPath": ".spec.host"}]);
    d["spec"]["versions"].as_array_mut().unwrap().push(v2);
    d["spec"]["conversion"] = conversion;
    d
}

fn webhook(client: &Value) -> Value {
    json!({"strategy": "Webhook", "webhook": {"clientConfig": client, "conversionReviewVersions": ["v1"]}})
}

/// Brings one object to a version, as an author of a webhook would.
fn convert(o: &Value, to: &Value) -> Value {
    let mut o = o.clone();
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    if *to == "stable.example.com/v2" {
        let address = text(&o["spec"]["address"]);
        let (host, port) = address.split_once(':').unwrap_or((&address, ""));
        o["spec"] = json!({"host": host, "port": port, "unknown": "to the schema"});
    } else {
        o["spec"] = json!({"address": format!("{}:{}", text(&o["spec"]["host"]), text(&o["spec"]["port"]))});
    }
    o["apiVersion"] = to.clone();
    o
}

fn converted(request: &Value) -> Value {
    let all = request["objects"].as_array().unwrap();
    let all: Vec<Value> = all.iter().map(|o| convert(o, &request["desiredAPIVersion"])).collect();
    json!({"result": {"status": "Success"}, "convertedObjects": all})
}

async fn start() -> (Cluster, Hook) {
    let c = Cluster::start(3).await;
    let h = Hook::start(|_, r| Some(converted(r))).await;
    define(&c, definition(webhook(&h.url("/convert")))).await;
    (c, h)
}

fn v2(name: &str, host: &str, port: &str) -> Value {
    json!({"apiVersion": "stable.example.com/v2", "kind": "CronTab", "metadata": {"name": name},
        "spec": {"host": host, "port": port}})
}

/// What is stored in one version is read in the other, and what is written in the other is stored in the one. What the webhook
/// says has the form of the schema: unknown fields go. Defaults are those of the stored version.
#[tokio::test]
async fn objects_are_read_and_written_in_every_version() {
    let (c, h) = start().await;
    let a = c.call("POST", CRONTABS, crontab("a", json!({"address": "here:80"}))).await;
    assert_eq!((a.code, h.heard("/convert").len()), (201, 0), "the stored version concerns nobody");
    let a = c.call("GET", &format!("{V2}/a"), Value::Null).await;
    assert_eq!(a.body["spec"], json!({"host": "here", "port": "80"}), "{}", a.body);
    assert_eq!(a.body["apiVersion"], "stable.example.com/v2");
    let heard = &h.heard("/convert")[0];
    assert_eq!(heard["desiredAPIVersion"], "stable.example.com/v2");
    assert_eq!(heard["objects"][0]["spec"]["address"], "here:80");
    assert!(heard["uid"].as_str().is_some_and(|u| u.len() == 36));

    let a = c.call("POST", V2, v2("b", "there", "443")).await;
    assert_eq!((a.code, &a.body["spec"]), (201, &json!({"host": "there", "port": "443"})), "{}", a.body);
    let stored = c.call("GET", &format!("{CRONTABS}/b"), Value::Null).await.body;
    assert_eq!(stored["spec"], json!({"address": "there:443", "stored": "yes"}), "{stored}");
    let mut o = c.call("GET", &format!("{V2}/b"), Value::Null).await.body;
    o["spec"]["port"] = "8443".into();
    let a = c.call("PUT", &format!("{V2}/b"), o).await;
    assert_eq!((a.code, &a.body["metadata"]["generation"]), (200, &json!(2)), "{}", a.body);
    let patch = |media: &'static str, path: String, body: Value| {
        let c = &c;
        async move { c.send("PATCH", &path, Some(media), "application/json", body.to_string().into()).await }
    };
    let a = patch("application/merge-patch+json", format!("{V2}/b"), json!({"spec": {"host": "elsewhere"}})).await;
    assert_eq!((a.code, &a.body["spec"]["port"]), (200, &json!("8443")), "{}", a.body);
    let ops = json!([{"op": "test", "path": "/spec/host", "value": "elsewhere"},
        {"op": "replace", "path": "/spec/port", "value": "1"}]);
    let a = patch("application/json-patch+json", format!("{V2}/b"), ops).await;
    assert_eq!(a.code, 200, "{}", a.body);
    let stored = c.call("GET", &format!("{CRONTABS}/b"), Value::Null).await.body;
    assert_eq!(stored["spec"]["address"], "elsewhere:1");
    let before = stored["metadata"]["resourceVersion"].clone();
    let same = patch("application/merge-patch+json", format!("{CRONTABS}/b"), json!({"spec": {"stored": "yes"}})).await;
    assert_eq!(same.body["metadata"]["resourceVersion"], before, "nothing changed");
    assert_eq!(c.call("DELETE", &format!("{V2}/b"), Value::Null).await.code, 200);
    assert_eq!(c.call("GET", &format!("{CRONTABS}/b"), Value::Null).await.code, 404);
}

/// Decoded objects take many times the bytes of their text, and a webhook may take its time.
#[tokio::test]
async fn large_objects_are_converted_few_at_a_time() {
    let (c, h) = start().await;
    for n in 0..30 {
        let address = format!("{}:1", "h".repeat(300_000 + n));
        assert_eq!(c.call("POST", CRONTABS, crontab(&format!("n{n:02}"), json!({"address": address}))).await.code, 201);
    }
    for query in ["", "?labelSelector=a!=b", "?fieldSelector=metadata.name!=n00"] {
        let before = h.heard("/convert").len();
        let list = c.call("GET", &format!("{V2}{query}"), Value::Null).await.body;
        let items = list["items"].as_array().unwrap();
        assert!(items.len() >= 29 && items.iter().all(|i| i["spec"]["port"] == "1"));
        let heard = &h.heard("/convert")[before..];
        assert!(before > 0 || heard.len() >= 4, "{} reviews", heard.len());
        for review in heard {
            let bytes: usize = review["objects"].as_array().unwrap().iter().map(|o| o.to_string().len()).sum();
            assert!(bytes < 3 << 20, "{bytes}");
        }
    }
}

/// A list is one review, of those objects that need it; tables, watches and informers of the same process are converted too.
#[tokio::test]
async fn lists_and_watches_are_converted_together() {
    let (c, h) = start().await;
    for n in 0..5 {
        c.call("POST", CRONTABS, crontab(&format!("n{n}"), json!({"address": format!("h{n}:1")}))).await;
    }
    let list = c.call("GET", V2, Value::Null).await.body;
    let hosts: Vec<&Value> = list["items"].as_array().unwrap().iter().map(|i| &i["spec"]["host"]).collect();
    assert_eq!(hosts, ["h0", "h1", "h2", "h3", "h4"]);
    assert_eq!(h.heard("/convert").len(), 1);
    assert_eq!(h.heard("/convert")[0]["objects"].as_array().unwrap().len(), 5);
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let t = c.send("GET", V2, None, table, Bytes::new()).await.body;
    assert_eq!(t["rows"][2]["cells"], json!(["n2", "h2"]));

    let mut w = Watch::start(&c, &format!("{V2}?watch=true"), "application/json").await.unwrap();
    for n in 0..5 {
        let (ty, o) = w.event().await;
        assert_eq!((ty.as_str(), &o["spec"]["host"]), ("ADDED", &json!(format!("h{n}"))));
    }
    assert_eq!(h.heard("/convert").len(), 1, "the table and the watch find what the list has asked for");
    c.call("POST", CRONTABS, crontab("new", json!({"address": "fresh:1"}))).await;
    let (ty, o) = w.event().await;
    assert_eq!((ty.as_str(), &o["apiVersion"]), ("ADDED", &json!("stable.example.com/v2")));
    assert_eq!(o["spec"]["host"], "fresh");

    let admin = auth::User::new("admin", &[auth::user::GROUP_MASTERS]);
    let request = http::Request::get(V2).extension(HandoverRequest).body(Bytes::new()).unwrap();
    let response = c.server.handle(apiserver::as_identity(request, admin)).await;
    let page: Page = Handover::take(response.extensions()).unwrap();
    let whole: Value = serde_json::from_slice(&page.objects[5].json()).unwrap();
    assert_eq!((&whole["spec"]["host"], page.objects.len()), (&json!("fresh"), 6));
    assert_eq!(h.heard("/convert").len(), 2, "the new one, once");

    // What has changed is asked for again, and everything when the definition has.
    let other = json!({"spec": {"address": "other:1"}}).to_string().into();
    let merge = Some("application/merge-patch+json");
    assert_eq!(c.send("PATCH", &format!("{CRONTABS}/n0"), merge, "application/json", other).await.code, 200);
    let list = c.call("GET", V2, Value::Null).await.body;
    assert_eq!(
        (&list["items"][0]["spec"]["host"], &list["items"][5]["spec"]["host"]),
        (&json!("other"), &json!("fresh"))
    );
    let named = json!([{"op": "add", "path": "/spec/names/shortNames/-", "value": "tab"}]).to_string();
    let path = format!("{DEFINITIONS}/{NAME}");
    let patched = c.send("PATCH", &path, Some("application/json-patch+json"), "application/json", named.into()).await;
    assert_eq!(patched.code, 200, "{}", patched.body);
    let asked = h.heard("/convert").len();
    let whole = || h.heard("/convert")[asked..].iter().any(|r| r["objects"].as_array().unwrap().len() == 6);
    for _ in 0..2000 {
        c.call("GET", V2, Value::Null).await;
        if whole() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("the new definition never asked for all");
}

/// Labels and annotations may change; what else stands in the metadata stays.
#[tokio::test]
async fn a_webhook_changes_labels_and_annotations_alone() {
    let c = Cluster::start(3).await;
    let h = Hook::start(|_, r| {
        let mut answer = converted(r);
        for o in answer["convertedObjects"].as_array_mut().unwrap() {
            o["metadata"]["labels"] = json!({"made": "here"});
            o["metadata"].as_object_mut().unwrap().remove("annotations");
            o["metadata"]["finalizers"] = json!(["example.com/mine"]);
            o["metadata"]["creationTimestamp"] = Value::Null;
        }
        Some(answer)
    })
    .await;
    define(&c, definition(webhook(&h.url("/convert")))).await;
    let mut o = crontab("a", json!({"address": "here:80"}));
    o["metadata"]["annotations"] = json!({"a": "b"});
    let stored = c.call("POST", CRONTABS, o).await.body;
    let read = c.call("GET", &format!("{V2}/a"), Value::Null).await.body;
    assert_eq!((&read["metadata"]["labels"], read["metadata"].get("annotations")), (&json!({"made": "here"}), None));
    assert_eq!(read["metadata"].get("finalizers"), None);
    for k in ["creationTimestamp", "uid", "resourceVersion", "generation", "managedFields"] {
        assert_eq!(read["metadata"][k], stored["metadata"][k], "{k}");
    }
}

/// What a webhook may not say, in upstream's words.
#[tokio::test]
async fn invalid_conversion_responses_are_reported() {
    let c = Cluster::start(3).await;
    let h = Hook::start(|path, r| {
        let mut answer = converted(r);
        let object = &mut answer["convertedObjects"][0];
        match path {
            "/name" => object["metadata"]["name"] = "other".into(),
            "/uid" => object["metadata"]["uid"] = "other".into(),
            "/version" => object["apiVersion"] = "stable.example.com/v3".into(),
            "/kind" => object["kind"] = "Other".into(),
            "/none" => *object = json!({"spec": {}}),
            "/label" => object["metadata"]["labels"] = json!({"a": 1}),
            "/value" => object["metadata"]["labels"] = json!({"a": "-"}),
            "/meta" => object["metadata"] = Value::Null,
            "/count" => answer["convertedObjects"] = json!([]),
            "/failed" => answer["result"] = json!({"status": "Failure", "message": "cannot do it"}),
            "/silent" => answer["result"] = json!({}),
            "/other" => answer["uid"] = "of another".into(),
            "/review" => {
                return Some(json!({"whole": {"apiVersion": "apiextensions.k8s.io/v1beta1",
                "kind": "ConversionReview", "response": {}}}));
            }
            "/empty" => {
                return Some(json!({"whole": {"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview"}}));
            }
            _ => return Some(json!({"http": 500})),
        }
        Some(answer)
    })
    .await;
    let mut d = define(&c, definition(webhook(&h.url("/name")))).await.body;
    c.call("POST", CRONTABS, crontab("a", json!({"address": "here:80"}))).await;
    let cases = [
        ("/name", "returned invalid object: must have the same name: a != other"),
        ("/uid", "returned invalid object: must have the same UID: "),
        (
            "/version",
            "returned invalid object at index 0: invalid groupVersion (expected stable.example.com/v2, received stable.example.com/v3)",
        ),
        ("/kind", "returned invalid object at index 0: invalid kind (expected CronTab, received Other)"),
        ("/none", "returned invalid object at index 0: Object 'Kind' is missing in '{\"spec\":{}}'"),
        ("/label", "returned invalid metadata: metadata.labels[a] must be a string, but is int64 in converted object"),
        ("/value", "returned invalid metadata: metadata.labels: Invalid value: \"-\": "),
        ("/meta", "returned invalid object: must have the same name: a != "),
        ("/count", "returned 0 objects, expected 1"),
        ("/failed", "failed: cannot do it"),
        ("/silent", "failed: response.result.status was '', not 'Success'"),
        ("/other", "failed: expected response.uid="),
        (
            "/review",
            "failed: expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got apiextensions.k8s.io/v1beta1, Kind=ConversionReview",
        ),
        ("/empty", "failed: no response provided"),
        ("/http", "failed: an error on the server (\"no\") has prevented the request from succeeding"),
    ];
    for (path, want) in cases {
        let name = format!("{DEFINITIONS}/{NAME}");
        d["spec"]["conversion"] = webhook(&h.url(path));
        let a = c.call("PUT", &name, d).await;
        assert_eq!(a.code, 200, "{}", a.body);
        d = a.body;
        let want = format!("conversion webhook for stable.example.com/v1, Kind=CronTab {want}");
        let starts = |a: &Answer| a.body["message"].as_str().is_some_and(|m| m.starts_with(&want));
        let a = until(&c, &format!("{V2}/a"), starts).await;
        assert_eq!((a.code, a.body.get("reason")), (500, None), "{}", a.body);
    }
    // Nothing is written that could not be converted, and a watch ends rather than leave something out.
    let a = c.call("POST", V2, v2("b", "there", "1")).await;
    assert_eq!(a.code, 500, "{}", a.body);
    let message = a.body["message"].as_str().unwrap();
    assert!(message.starts_with("conversion webhook for stable.example.com/v2, Kind=CronTab failed"), "{message}");
    assert_eq!(c.call("GET", &format!("{CRONTABS}/b"), Value::Null).await.code, 404);
    let mut w = Watch::start(&c, &format!("{V2}?watch=true"), "application/json").await.unwrap();
    assert_eq!(w.event().await.0, "ERROR");
    assert!(w.next().await.is_none());
}

/// Of several, the wrong one is named.
#[tokio::test]
async fn invalid_conversion_responses_of_lists_are_reported() {
    let c = Cluster::start(3).await;
    let h = Hook::start(|_, r| {
        let mut answer = converted(r);
        answer["convertedObjects"][1]["metadata"]["name"] = "other".into();
        Some(answer)
    })
    .await;
    define(&c, definition(webhook(&h.url("/convert")))).await;
    for name in ["a", "b"] {
        c.call("POST", CRONTABS, crontab(name, json!({"address": "here:80"}))).await;
    }
    let a = c.call("GET", V2, Value::Null).await;
    let want = "returned invalid converted object at index 1: must have the same name: b != other";
    assert_eq!(a.code, 500, "{}", a.body);
    assert!(a.body["message"].as_str().unwrap().ends_with(want), "{}", a.body);
}

/// A service is reached as those of admission are; the older review is spoken where it comes first.
#[tokio::test]
async fn services_and_older_reviews_serve_as_well() {
    let c = Cluster::start(3).await;
    let h = Hook::start(|_, r| {
        let mut answer = converted(r);
        // The older one was not asked to say whom it answers.
        answer["uid"] = "of another".into();
        Some(answer)
    })
    .await;
    let service = json!({"service": {"namespace": "golden", "name": "hook", "path": "/svc"}, "caBundle": h.ca});
    let mut conversion = webhook(&service);
    conversion["webhook"]["conversionReviewVersions"] = json!(["v7", "v1beta1", "v1"]);
    define(&c, definition(conversion)).await;
    c.call("POST", CRONTABS, crontab("a", json!({"address": "here:80"}))).await;
    let a = c.call("GET", &format!("{V2}/a"), Value::Null).await;
    let why = "Post \"https://hook.golden.svc:443/svc?timeout=30s\": service \"hook\" not found";
    let message = format!("conversion webhook for stable.example.com/v1, Kind=CronTab failed: {why}");
    assert_eq!((a.code, &a.body["message"]), (500, &json!(message)));
    let service = json!({"metadata": {"name": "hook"}, "spec": {"ports": [{"name": "https", "port": 443}]}});
    assert_eq!(c.call("POST", "/api/v1/namespaces/golden/services", service).await.code, 201);
    // Endpoints on loopback are no valid ones, but the only ones a test may talk to.
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "up", "namespace": "golden", "labels": {"kubernetes.io/service-name": "hook"}},
        "ports": [{"name": "https", "port": h.port}], "endpoints": [{"addresses": ["127.0.0.1"]}]});
    let key = store::Key::new("discovery.k8s.io/endpointslices", "golden", "up");
    let action = store::Action::Put(slice.to_string().into());
    c.server.registry.store.commit(vec![store::Op { key, expect: store::Expect::Absent, action }]).await.unwrap();
    let a = c.call("GET", &format!("{V2}/a"), Value::Null).await;
    assert_eq!((a.code, &a.body["spec"]["host"]), (200, &json!("here")), "{}", a.body);
    assert_eq!(h.heard.lock()[0].1["apiVersion"], "apiextensions.k8s.io/v1beta1");
}

/// A webhook has thirty seconds.
#[tokio::test(start_paused = true)]
async fn a_webhook_that_does_not_answer_is_given_up() {
    let c = Cluster::start(3).await;
    let h = Hook::start(|_, _| None).await;
    define(&c, definition(webhook(&h.url("/never")))).await;
    c.call("POST", CRONTABS, crontab("a", json!({"address": "here:80"}))).await;
    let begun = tokio::time::Instant::now();
    let a = c.call("GET", &format!("{V2}/a"), Value::Null).await;
    assert!(a.body["message"].as_str().unwrap().ends_with("context deadline exceeded"), "{}", a.body);
    assert_eq!(begun.elapsed().as_secs(), 30);
}

/// Without a webhook, an object has the fields that both the stored version and the other one know, and the defaults of the stored one; also in
/// dry runs, lists and watches.
#[tokio::test]
async fn versions_without_a_webhook_share_the_fields_of_the_stored_one() {
    let c = Cluster::start(3).await;
    let mut d = definition(json!({"strategy": "None"}));
    for i in 0..2 {
        let schema = &mut d["spec"]["versions"][i]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
        schema["both"] = json!({"type": "string"});
    }
    define(&c, d).await;
    let o = |version: &str, name: &str, spec: Value| {
        json!({"apiVersion": format!("stable.example.com/{version}"), "kind": "CronTab",
        "metadata": {"name": name}, "spec": spec})
    };
    let both = json!({"both": "x"});
    let mut watch = Watch::start(&c, &format!("{V2}?watch=true"), "application/json").await.unwrap();
    for query in ["?dryRun=All", ""] {
        let a = c.call("POST", &format!("{V2}{query}"), o("v2", "a", json!({"host": "h", "both": "x"}))).await;
        assert_eq!((a.code, &a.body["spec"]), (201, &both), "{}", a.body);
        // The owner has what was sent.
        let owned = &a.body["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"];
        assert!(owned["f:host"].is_object() && owned["f:replicas"].is_object(), "{owned}");
    }
    let stored = c.call("GET", &format!("{CRONTABS}/a"), Value::Null).await.body;
    assert_eq!(stored["spec"], json!({"both": "x", "stored": "yes"}));
    c.call("POST", CRONTABS, o("v1", "b", json!({"address": "y", "both": "x"}))).await;
    let list = c.call("GET", V2, Value::Null).await.body;
    let specs: Vec<&Value> = list["items"].as_array().unwrap().iter().map(|i| &i["spec"]).collect();
    assert_eq!(specs, [&both, &both]);
    assert_eq!(watch.event().await.1["spec"], both);
    assert_eq!(watch.event().await.1["spec"], both);
    // A default of the other version is a change each time, and loses what only the stored version knows. The owner of the latter cannot be
    // followed into the other version: then the object has none, as upstream.
    let merge = Some("application/merge-patch+json");
    for generation in 2..4 {
        let a = c.send("PATCH", &format!("{V2}/b"), merge, "application/json", "{}".into()).await;
        let m = &a.body["metadata"];
        assert_eq!((a.code, &m["generation"], m.get("managedFields")), (200, &json!(generation), None), "{}", a.body);
    }
    let stored = c.call("GET", &format!("{CRONTABS}/b"), Value::Null).await.body;
    assert_eq!(stored["spec"], json!({"both": "x", "stored": "yes"}));
}

/// Each manager owns fields of the version through which it wrote, whatever the version of the next write. Clauses: S12.
#[tokio::test]
async fn managers_of_different_versions_know_of_each_other() {
    let c = Cluster::start(3).await;
    // Unlike [`convert`], with fields that the schema knows: others have no type.
    let tidy = |r: &Value| {
        let mut answer = converted(r);
        for o in answer["convertedObjects"].as_array_mut().unwrap() {
            o["spec"].as_object_mut().unwrap().remove("unknown");
        }
        answer
    };
    let h = Hook::start(move |_, r| Some(tidy(r))).await;
    define(&c, definition(webhook(&h.url("/convert")))).await;
    apply_in_both(&c).await;
    let c = Cluster::start(4).await;
    define(&c, same_schemas()).await;
    let applied = |manager: &'static str, path: &'static str, body: Value| apply(&c, manager, path, body);
    let o = |version: &str, spec: Value| json!({"apiVersion": format!("stable.example.com/{version}"), "kind": "CronTab", "metadata": {"name": "m"}, "spec": spec});
    assert_eq!(applied("one", CRONTABS, o("v1", json!({"a": "1"}))).await.code, 201);
    let b = applied("two", V2, o("v2", json!({"b": "2"}))).await;
    assert_eq!((b.code, &b.body["spec"]), (200, &json!({"a": "1", "b": "2"})), "{}", b.body);
    assert_eq!(managers(&b.body), [("one", "stable.example.com/v1"), ("two", "stable.example.com/v2")]);
    let refused = applied("two", V2, o("v2", json!({"a": "3", "b": "2"}))).await;
    assert_eq!((refused.code, &refused.body["details"]["causes"][0]["field"]), (409, &json!(".spec.a")));
    // Given up in another version than it was taken in.
    let gone = applied("one", V2, o("v2", json!({}))).await;
    assert_eq!((gone.code, &gone.body["spec"]), (200, &json!({"b": "2"})), "{}", gone.body);
}

/// A webhook between the versions makes no difference.
async fn apply_in_both(c: &Cluster) {
    let one = crontab("m", json!({"address": "here:80"}));
    assert_eq!(apply(c, "one", CRONTABS, one).await.code, 201);
    let refused = apply(c, "two", V2, v2("m", "there", "80")).await;
    assert_eq!(refused.code, 409, "{}", refused.body);
    assert_eq!(refused.body["message"], "Apply failed with 1 conflict: conflict with \"one\": .spec.address");
    let same = apply(c, "two", V2, v2("m", "here", "80")).await;
    assert_eq!(same.code, 200, "{}", same.body);
    let both = [("one", "stable.example.com/v1"), ("two", "stable.example.com/v2")];
    assert_eq!(managers(&same.body), both);
    // An update through the other version takes from the first what it changes.
    let mut o = same.body;
    o["spec"]["host"] = "moved".into();
    o["metadata"].as_object_mut().unwrap().remove("managedFields");
    let a = c.call("PUT", &format!("{V2}/m"), o).await;
    assert_eq!(a.code, 200, "{}", a.body);
    let all = managers(&a.body);
    assert!(!all.contains(&both[0]) && all.contains(&both[1]), "{all:?}");
}

fn same_schemas() -> Value {
    let mut d = definition(json!({"strategy": "None"}));
    for i in 0..2 {
        let text = json!({"type": "string"});
        d["spec"]["versions"][i]["schema"]["openAPIV3Schema"] = spec(json!({"a": text, "b": text}));
    }
    d
}

async fn apply(c: &Cluster, manager: &str, path: &str, body: Value) -> Answer {
    let path = format!("{path}/m?fieldManager={manager}");
    c.send("PATCH", &path, Some("application/apply-patch+yaml"), "application/json", body.to_string().into()).await
}

fn managers(o: &Value) -> Vec<(&str, &str)> {
    let all = o["metadata"]["managedFields"].as_array().unwrap();
    let applied = all.iter().filter(|m| m["operation"] == "Apply");
    applied.map(|m| (m["manager"].as_str().unwrap(), m["apiVersion"].as_str().unwrap())).collect()
}

/// Hooks of admission that know one version see requests in the other.
#[tokio::test]
async fn admission_sees_the_version_it_asked_for() {
    let (c, _h) = start().await;
    let admission = Hook::start(|_, r| {
        assert_eq!(r["object"]["apiVersion"], "stable.example.com/v1");
        crate::hook::patch(&json!([{"op": "replace", "path": "/spec/address", "value": "patched:7"}]))
    })
    .await;
    let hook = json!({"name": "one.example.com", "clientConfig": admission.url("/admit"), "sideEffects": "None",
        "admissionReviewVersions": ["v1"], "matchPolicy": "Equivalent", "timeoutSeconds": 5,
        "rules": [{"operations": ["CREATE"], "apiGroups": ["stable.example.com"], "apiVersions": ["v1"],
            "resources": ["crontabs"]}]});
    let configuration = json!({"metadata": {"name": "m"}, "webhooks": [hook]});
    let path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
    assert_eq!(c.call("POST", path, configuration).await.code, 201);
    let a = c.call("POST", V2, v2("a", "there", "1")).await;
    assert_eq!((a.code, &a.body["spec"]["host"]), (201, &json!("patched")), "{}", a.body);
    assert_eq!(admission.heard("/admit")[0]["requestKind"]["version"], "v2");
    let stored = c.call("GET", &format!("{CRONTABS}/a"), Value::Null).await.body;
    assert_eq!(stored["spec"]["address"], "patched:7");
}

/// Fields are selected by in the version that is asked for, whatever is stored: in lists, page by page, in watches and in deletions.
#[tokio::test]
async fn fields_of_the_served_version_select() {
    let c = Cluster::start(3).await;
    let h = Hook::start(|_, r| Some(converted(r))).await;
    let mut d = definition(webhook(&h.url("/convert")));
    d["spec"]["versions"][0]["selectableFields"] = json!([{"jsonPath": ".spec.address"}]);
    d["spec"]["versions"][1]["selectableFields"] = json!([{"jsonPath": ".spec.host"}, {"jsonPath": ".spec.port"}]);
    define(&c, d).await;
    let watch = async |path: String| Watch::start(&c, &format!("{path}&watch=true"), "application/json").await.unwrap();
    let by = |version: &str, fields: &str| format!("{version}?fieldSelector={fields}");
    let mut host = watch(by(V2, "spec.host%3Dhost1")).await;
    let mut both = watch(by(V2, "spec.host%3Dhost1,spec.port%3D80")).await;
    let mut old = watch(by(CRONTABS, "spec.address%3Dhost1:80")).await;
    for (name, host, port) in [("a", "host1", "80"), ("b", "host1", "8080"), ("c", "host2", "80")] {
        let made = c.call("POST", V2, v2(name, host, port)).await;
        assert_eq!(made.code, 201, "{}", made.body);
    }
    let names = |body: &Value| -> Vec<String> {
        body["items"].as_array().unwrap().iter().map(|o| o["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    };
    let list = async |path: &str| c.call("GET", path, Value::Null).await.body;
    assert_eq!(names(&list(&by(V2, "spec.host%3Dhost1")).await), ["a", "b"]);
    assert_eq!(names(&list(&by(V2, "spec.host!%3Dhost1")).await), ["c"]);
    assert_eq!(names(&list(&by(V2, "spec.host%3Dhost1,spec.port%3D80")).await), ["a"]);
    assert_eq!(names(&list(&by(CRONTABS, "spec.address%3Dhost1:8080")).await), ["b"]);
    let page = list(&format!("{}&limit=1", by(V2, "spec.host%3Dhost1"))).await;
    assert_eq!(names(&page), ["a"]);
    let next = page["metadata"]["continue"].as_str().unwrap();
    let page = list(&format!("{}&limit=1&continue={next}", by(V2, "spec.host%3Dhost1"))).await;
    assert_eq!((names(&page), &page["metadata"]["continue"]), (vec!["b".to_owned()], &json!("")));

    let event = |(kind, o): (String, Value)| (kind, o["metadata"]["name"].as_str().unwrap_or_default().to_owned());
    let named = |kind: &str, name: &str| (kind.to_owned(), name.to_owned());
    assert_eq!(event(host.event().await), named("ADDED", "a"));
    assert_eq!(event(host.event().await), named("ADDED", "b"));
    assert_eq!(event(both.event().await), named("ADDED", "a"));
    assert_eq!(event(old.event().await), named("ADDED", "a"));
    let gone = c.call("DELETE", &by(V2, "spec.host%3Dhost1,spec.port%3D80"), Value::Null).await;
    assert_eq!((gone.code, names(&gone.body)), (200, vec!["a".to_owned()]));
    let moved = json!({"spec": {"host": "host2"}});
    let media = Some("application/merge-patch+json");
    let a = c.send("PATCH", &format!("{V2}/b"), media, "application/json", moved.to_string().into()).await;
    assert_eq!(a.code, 200, "{}", a.body);
    assert_eq!(event(host.event().await), named("DELETED", "a"));
    let (kind, o) = host.event().await;
    assert_eq!((&*kind, &o["spec"]["host"]), ("DELETED", &json!("host1")), "its last state that was selected");
    assert_eq!(event(both.event().await), named("DELETED", "a"));
    assert_eq!(event(old.event().await), named("DELETED", "a"));
    // What is there is told first, and nothing else.
    let mut late = watch(by(V2, "spec.host%3Dhost2")).await;
    assert_eq!([event(late.event().await).1, event(late.event().await).1], ["b", "c"]);
    assert_eq!(list(&by(V2, "spec.host%3Dhost1")).await["items"], json!([]));
}
