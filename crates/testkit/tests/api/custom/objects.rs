//! Custom resources: pruning, defaults, generations, patches, subresources, versions.

use super::*;
use bytes::Bytes;

/// Unknown fields go, known ones stay, at every depth; what is preserved is kept as it is. Clauses: S07.
#[tokio::test(start_paused = true)]
async fn unknown_fields_are_pruned_with_a_warning() {
    let c = with(spec(json!({
        "known": {"type": "string"},
        "list": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "integer"}}}},
        "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"b": {"type": "string"}}}},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
            "properties": {"strict": {"type": "object", "properties": {"x": {"type": "string"}}}}},
        "any": {"x-kubernetes-preserve-unknown-fields": true},
        "pod": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true},
    })))
    .await;
    let sent = crontab(
        "a",
        json!({"known": "k", "odd": 1, "list": [{"a": 1, "z": 2}], "map": {"m": {"b": "x", "q": 1}},
        "free": {"anything": [1, {"deep": true}], "strict": {"x": "y", "no": 1}}, "any": {"x": [null]},
        "pod": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "nonsense": 1}, "spec": {"q": 1}}}),
    );
    let a = c.call("POST", CRONTABS, sent.clone()).await;
    assert_eq!(a.code, 201, "{}", a.body);
    assert!(a.warned, "unknown fields are warned of");
    let want = json!({"known": "k", "list": [{"a": 1}], "map": {"m": {"b": "x"}},
        "free": {"anything": [1, {"deep": true}], "strict": {"x": "y"}}, "any": {"x": [null]},
        "pod": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"q": 1}}});
    assert_eq!(a.body["spec"], want);
    assert_eq!(c.call("GET", &format!("{CRONTABS}/a"), Value::Null).await.body["spec"], want);
    let mut strict = sent;
    strict["metadata"]["name"] = "b".into();
    let a = c.call("POST", &format!("{CRONTABS}?fieldValidation=Strict"), strict).await;
    let message = a.body["message"].as_str().unwrap().to_owned();
    assert_eq!(a.code, 400, "{message}");
    for p in ["spec.odd", "spec.list[0].z", "spec.map.m.q", "spec.free.strict.no", "spec.pod.metadata.nonsense"] {
        assert!(message.contains(&format!("unknown field {p:?}")), "{p}: {message}");
    }
}

/// An object within another says what it is, and its metadata are as those of any. Clauses: S07.
#[tokio::test(start_paused = true)]
async fn objects_within_objects_are_objects() {
    let embedded =
        json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true});
    let c = with(spec(json!({"pod": embedded, "all": {"type": "array", "items": embedded},
        "map": {"type": "object", "additionalProperties": embedded}, "replicas": {"type": "integer"}})))
    .await;
    let pod = |metadata: Value| json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata});
    for (spec, want) in [
        (json!({"pod": pod(json!({}))}), vec![]),
        (json!({"pod": pod(json!({"name": "Any_Name", "labels": {"a": "b"}}))}), vec![]),
        (json!({"pod": {"kind": "Pod"}}), vec!["spec.pod.apiVersion: Required value"]),
        (json!({"all": [pod(json!({})), {"apiVersion": "v1"}]}), vec!["spec.all[1].kind: Required value"]),
        (
            json!({"map": {"x": {"apiVersion": "a/b/c", "kind": ""}}}),
            vec![
                "spec.map[x].apiVersion: Invalid value: \"a/b/c\": unexpected GroupVersion string: a/b/c",
                "spec.map[x].kind: Invalid value: \"\": must not be empty",
            ],
        ),
        (
            json!({"pod": {"apiVersion": "v1", "kind": "P_d"}}),
            vec![
                "spec.pod.kind: Invalid value: \"P_d\": may have mixed case, but should otherwise match: a DNS-1035 label",
            ],
        ),
        (
            json!({"pod": pod(json!({"labels": {"a": "!"}}))}),
            vec!["spec.pod.metadata.labels: Invalid value: \"!\": a valid label"],
        ),
        (
            json!({"pod": pod(json!({"name": "a/b"}))}),
            vec!["spec.pod.metadata.name: Invalid value: \"a/b\": may not contain '/'"],
        ),
        (
            json!({"pod": pod(json!({"namespace": "A"}))}),
            vec!["spec.pod.metadata.namespace: Invalid value: \"A\": a lowercase"],
        ),
    ] {
        let a = c.call("POST", &format!("{CRONTABS}?dryRun=All"), crontab("a", spec.clone())).await;
        let message = a.body["message"].as_str().unwrap_or_default();
        assert_eq!(a.code, if want.is_empty() { 201 } else { 422 }, "{spec}: {message}");
        assert!(want.iter().all(|w| message.contains(w)), "{spec}: {message}");
    }
    assert_eq!(c.call("POST", CRONTABS, crontab("a", json!({"pod": pod(json!({}))}))).await.code, 201);
    let bad = json!({"spec": {"pod": {"kind": null}}}).to_string();
    let path = format!("{CRONTABS}/a");
    let a = c.send("PATCH", &path, Some("application/merge-patch+json"), "application/json", bad.into()).await;
    assert_eq!((a.code, &a.body["details"]["causes"][0]["field"]), (422, &json!("spec.pod.kind")), "{}", a.body);
}

/// Defaults are filled where a field is absent or null without being nullable, inside of what is there, and when an object is
/// read that was stored before the default was defined. Clauses: S07.
#[tokio::test(start_paused = true)]
async fn defaults_are_filled_when_written_and_when_read() {
    let c = with(spec(json!({
        "replicas": {"type": "integer", "default": 3},
        "nul": {"type": "string", "nullable": true, "default": "d"},
        "gone": {"type": "string"},
        "deep": {"type": "object", "default": {}, "properties": {"x": {"type": "string", "default": "y"}}},
        "items": {"type": "array", "items": {"type": "object", "properties": {"p": {"type": "integer", "default": 80}}}},
    })))
    .await;
    let a = c
        .call("POST", CRONTABS, crontab("a", json!({"replicas": null, "nul": null, "gone": null, "items": [{}]})))
        .await;
    assert_eq!(a.body["spec"], json!({"replicas": 3, "nul": null, "deep": {"x": "y"}, "items": [{"p": 80}]}));
    // An object without a spec is given none.
    let a = c
        .call(
            "POST",
            CRONTABS,
            json!({"apiVersion": "stable.example.com/v1", "kind": "CronTab", "metadata": {"name": "b"}}),
        )
        .await;
    assert_eq!(a.body.get("spec"), None, "{}", a.body);
    let mut new = c.call("GET", &format!("{DEFINITIONS}/{NAME}"), Value::Null).await.body;
    new["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["later"] =
        json!({"type": "string", "default": "now"});
    assert_eq!(c.call("PUT", &format!("{DEFINITIONS}/{NAME}"), new).await.code, 200);
    let read = |a: &Answer| a.body["spec"]["later"] == "now";
    until(&c, &format!("{CRONTABS}/a"), read).await;
    let list = c.call("GET", CRONTABS, Value::Null).await;
    assert_eq!(list.body["items"][0]["spec"]["later"], "now", "{}", list.body);
    assert_eq!(list.body["kind"], "CronTabList");
    assert_eq!(list.body["items"][0]["kind"], "CronTab", "items of custom lists say what they are");
}

/// With a status subresource the status is its own and does not count; without, everything but metadata counts.
#[tokio::test(start_paused = true)]
async fn generations_count_as_the_status_is_enabled() {
    let schema = || {
        json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"n": {"type": "integer"}}},
            "status": {"type": "object", "properties": {"m": {"type": "integer", "maximum": 5}}}}})
    };
    for status in [true, false] {
        let c = Cluster::start(3).await;
        let mut d = crontabs(schema());
        if status {
            d["spec"]["versions"][0]["subresources"] = json!({"status": {}});
        }
        define(&c, d).await;
        let mut o = crontab("a", json!({"n": 1}));
        o["status"] = json!({"m": 1});
        let mut a = c.call("POST", CRONTABS, o).await.body;
        assert_eq!(a["metadata"]["generation"], 1);
        assert_eq!(a.get("status").is_some(), !status, "{a}");
        let path = format!("{CRONTABS}/a");
        a["status"] = json!({"m": 2});
        a["metadata"]["labels"] = json!({"x": "y"});
        let a = c.call("PUT", &path, a).await.body;
        assert_eq!(a["metadata"]["generation"], if status { 1 } else { 2 });
        let sub = c.call("GET", &format!("{path}/status"), Value::Null).await;
        assert_eq!(sub.code, if status { 200 } else { 404 });
        if !status {
            continue;
        }
        let mut b = a.clone();
        b["status"] = json!({"m": 3});
        b["spec"] = json!({"n": 7});
        b["metadata"]["labels"] = json!({"other": "z"});
        let b = c.call("PUT", &format!("{path}/status"), b).await.body;
        assert_eq!(
            (&b["status"]["m"], &b["spec"]["n"], &b["metadata"]["generation"]),
            (&json!(3), &json!(1), &json!(1))
        );
        assert_eq!(b["metadata"]["labels"], json!({"x": "y"}), "the status changes no metadata");
        let mut bad = b.clone();
        bad["status"] = json!({"m": 6});
        let a = c.call("PUT", &format!("{path}/status"), bad).await;
        assert_eq!(causes(&a), [("status.m".into(), "FieldValueInvalid".into())]);
        let mut unconditional = b;
        unconditional["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        assert_eq!(c.call("PUT", &path, unconditional).await.code, 422, "an update names its revision");
    }
}

/// The scale of a custom resource lies where its definition says.
#[tokio::test(start_paused = true)]
async fn scale_goes_through_the_paths_of_the_definition() {
    let c = Cluster::start(3).await;
    let mut d = crontabs(json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {"size": {"type": "integer"}}},
        "status": {"type": "object", "properties": {"now": {"type": "integer"}, "selector": {"type": "string"}}}}}));
    d["spec"]["versions"][0]["subresources"] = json!({"status": {}, "scale": {"specReplicasPath": ".spec.size",
        "statusReplicasPath": ".status.now", "labelSelectorPath": ".status.selector"}});
    define(&c, d).await;
    c.call("POST", CRONTABS, crontab("a", json!({"size": 2}))).await;
    let status = json!({"status": {"now": 1, "selector": "app=a"}});
    let merge = Some("application/merge-patch+json");
    let path = format!("{CRONTABS}/a");
    c.send("PATCH", &format!("{path}/status"), merge, "application/json", status.to_string().into()).await;
    let s = c.call("GET", &format!("{path}/scale"), Value::Null).await.body;
    assert_eq!((&s["kind"], &s["spec"]["replicas"]), (&json!("Scale"), &json!(2)));
    assert_eq!(s["status"], json!({"replicas": 1, "selector": "app=a"}));
    let patch = Bytes::from(json!({"spec": {"replicas": 5}}).to_string());
    let a = c.send("PATCH", &format!("{path}/scale"), merge, "application/json", patch).await;
    assert_eq!(a.code, 200, "{}", a.body);
    let o = c.call("GET", &path, Value::Null).await.body;
    assert_eq!((&o["spec"]["size"], &o["metadata"]["generation"]), (&json!(5), &json!(2)));
    // Without a resource version the update is of the newest object; with another one it is refused.
    let scale =
        |m: Value| json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": m, "spec": {"replicas": 7}});
    let a = c.call("PUT", &format!("{path}/scale"), scale(json!({"name": "a", "namespace": "default"}))).await;
    assert_eq!((a.code, &a.body["spec"]["replicas"]), (200, &json!(7)), "{}", a.body);
    let old = json!({"name": "a", "namespace": "default", "resourceVersion": o["metadata"]["resourceVersion"]});
    assert_eq!(c.call("PUT", &format!("{path}/scale"), scale(old)).await.code, 409);
    // The status needs one as the object does.
    let mut status = o;
    status["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    let a = c.call("PUT", &format!("{path}/status"), status).await;
    assert_eq!(causes(&a), [("metadata.resourceVersion".into(), "FieldValueInvalid".into())], "{}", a.body);
    let a = c.call("POST", CRONTABS, crontab("b", json!({"size": -1}))).await;
    assert_eq!(causes(&a), [(".spec.size".into(), "FieldValueInvalid".into())], "{}", a.body);
}

/// JSON and merge patches work, a strategic one does not exist for custom resources. Clauses: A08.
#[tokio::test(start_paused = true)]
async fn patches_are_those_without_a_schema_of_their_own() {
    let c = with(spec(json!({"n": {"type": "integer"}, "l": {"type": "array", "items": {"type": "string"}}}))).await;
    c.call("POST", CRONTABS, crontab("a", json!({"n": 1, "l": ["a", "b"]}))).await;
    let path = format!("{CRONTABS}/a");
    let patch = |media: &'static str, body: Value| {
        let (c, path) = (&c, path.clone());
        async move { c.send("PATCH", &path, Some(media), "application/json", body.to_string().into()).await }
    };
    let a = patch("application/merge-patch+json", json!({"spec": {"n": 2, "l": ["c"], "odd": 1}})).await;
    assert_eq!(a.body["spec"], json!({"n": 2, "l": ["c"]}), "{}", a.body);
    let a = patch("application/json-patch+json", json!([{"op": "add", "path": "/spec/l/-", "value": "d"}])).await;
    assert_eq!(a.body["spec"]["l"], json!(["c", "d"]));
    let a = patch("application/strategic-merge-patch+json", json!({"spec": {"n": 3}})).await;
    assert_eq!(a.code, 415, "{}", a.body);
    let a = patch("application/merge-patch+json", json!({"spec": {"n": "three"}})).await;
    assert_eq!(causes(&a), [("spec.n".into(), "FieldValueTypeInvalid".into())], "{}", a.body);
}

/// Without markers lists are atomic, with markers they are merged by them. Clauses: S07.
#[tokio::test(start_paused = true)]
async fn server_side_apply_follows_the_list_types() {
    let item = || json!({"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "v": {"type": "integer"}}});
    let c = with(spec(json!({
        "plain": {"type": "array", "items": item()},
        "map": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": item()},
        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "whole": {"type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": {"type": "string"}},
    })))
    .await;
    let apply = |manager: &'static str, spec: Value| {
        let c = &c;
        async move {
            let path = format!("{CRONTABS}/a?fieldManager={manager}");
            let body = crontab("a", spec).to_string();
            c.send("PATCH", &path, Some("application/apply-patch+yaml"), "application/json", body.into()).await
        }
    };
    let a = apply(
        "one",
        json!({"map": [{"name": "x", "v": 1}], "set": ["a"], "plain": [{"name": "p"}], "whole": {"k": "1"}}),
    )
    .await;
    assert_eq!(a.code, 201, "{}", a.body);
    let a = apply("two", json!({"map": [{"name": "y", "v": 2}], "set": ["b"]})).await;
    assert_eq!(a.code, 200, "{}", a.body);
    assert_eq!(a.body["spec"]["map"], json!([{"name": "x", "v": 1}, {"name": "y", "v": 2}]));
    assert_eq!(a.body["spec"]["set"], json!(["a", "b"]));
    for other in
        [json!({"plain": [{"name": "q"}]}), json!({"whole": {"l": "2"}}), json!({"map": [{"name": "x", "v": 3}]})]
    {
        let a = apply("two", other).await;
        assert_eq!(a.code, 409, "{}", a.body);
    }
    let a = apply("one", json!({"set": ["a"]})).await;
    assert_eq!(a.body["spec"], json!({"map": [{"name": "y", "v": 2}], "set": ["a", "b"]}), "what is given up goes");
}

/// Every served version shows the same object; what is stored says in which version it is, and that version has the defaults.
/// Clauses: S07.
#[tokio::test(start_paused = true)]
async fn versions_differ_in_their_name() {
    let c = Cluster::start(3).await;
    let mut d = crontabs(spec(json!({"n": {"type": "integer"}, "old": {"type": "string"}})));
    let mut beta = d["spec"]["versions"][0].clone();
    beta["name"] = "v1beta1".into();
    beta["storage"] = false.into();
    beta["deprecated"] = true.into();
    beta["schema"]["openAPIV3Schema"] = spec(json!({"n": {"type": "integer", "default": 9}}));
    d["spec"]["versions"].as_array_mut().unwrap().insert(0, beta);
    let d = define(&c, d).await;
    assert_eq!(d.body["status"]["storedVersions"], json!(["v1"]));
    let path = "/apis/stable.example.com/v1beta1/namespaces/default/crontabs";
    let mut o = crontab("a", json!({}));
    o["apiVersion"] = "stable.example.com/v1beta1".into();
    let a = c.call("POST", path, o).await;
    assert_eq!((a.code, &a.body["spec"]["n"]), (201, &json!(9)), "{}", a.body);
    assert!(a.warned, "a deprecated version says so");
    let a = c.call("GET", &format!("{CRONTABS}/a"), Value::Null).await;
    assert_eq!((&a.body["apiVersion"], &a.body["spec"]["n"]), (&json!("stable.example.com/v1"), &json!(9)));
    c.call("POST", CRONTABS, crontab("b", json!({"old": "x"}))).await;
    let a = c.call("GET", &format!("{path}/b"), Value::Null).await;
    assert_eq!(a.body["apiVersion"], "stable.example.com/v1beta1");
    assert_eq!(a.body["spec"], json!({}), "no field that the version lacks, and no default that the stored one lacks");
    // Another version becomes the stored one: both stay known.
    let place = format!("{DEFINITIONS}/{NAME}");
    let mut d = c.call("GET", &place, Value::Null).await.body;
    d["spec"]["versions"][0]["storage"] = true.into();
    d["spec"]["versions"][1]["storage"] = false.into();
    let a = c.call("PUT", &place, d).await;
    assert_eq!(a.body["status"]["storedVersions"], json!(["v1", "v1beta1"]), "{}", a.body);
    let mut gone = a.body;
    gone["spec"]["versions"].as_array_mut().unwrap().pop();
    let a = c.call("PUT", &place, gone).await;
    assert_eq!(causes(&a), [("status.storedVersions[0]".into(), "FieldValueInvalid".into())], "{}", a.body);
    let a = c.call("GET", &format!("{CRONTABS}/a"), Value::Null).await;
    assert_eq!((a.code, &a.body["spec"]["n"]), (200, &json!(9)));
}
