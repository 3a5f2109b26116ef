//! Invalid requests get a clear error and change nothing.
//!
//! Clauses: S10.preconditions, C04.label-selector-immutability, K12.immutable

use crate::matrix::{APPLY, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH};
use bytes::Bytes;
use serde_json::{Value, json};
use testkit::Cluster;

const JSON: &str = "application/json";
const YAML: &str = "application/yaml";
const MAPS: &str = "/api/v1/namespaces/golden/configmaps";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/golden/deployments";

/// What the answer to a bad request must be.
struct Want<'a> {
    code: u16,
    reason: &'a str,
    /// Field and reason of each cause.
    causes: &'a [(&'a str, &'a str)],
    /// In the message.
    reply: &'a str,
}

/// Sends a request that must be refused in this way, and must not write.
async fn check(c: &Cluster, request: (&str, &str, &str), body: impl Into<Bytes>, want: Want<'_>) {
    let (method, path, media) = request;
    let before = c.server.registry.store.revision();
    let body: Bytes = body.into();
    let shown = String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned();
    let a = c.send(method, path, Some(media), JSON, body).await;
    let at = format!("{method} {path} {media} {shown}\n{}", a.body);
    assert_eq!((a.code, a.body["reason"].as_str().unwrap_or_default()), (want.code, want.reason), "{at}");
    assert!(a.body["kind"] == "Status" && a.body["status"] == "Failure" && a.body["code"] == want.code, "{at}");
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let causes = a.body["details"]["causes"].as_array().into_iter().flatten();
    let mut have: Vec<_> = causes.map(|c| (text(&c["field"]), text(&c["reason"]))).collect();
    let mut wanted: Vec<_> = want.causes.iter().map(|(f, r)| ((*f).to_owned(), (*r).to_owned())).collect();
    have.sort();
    wanted.sort();
    assert_eq!(have, wanted, "{at}");
    assert!(text(&a.body["message"]).contains(want.reply), "the message has no {:?}: {at}", want.reply);
    assert_eq!(c.server.registry.store.revision(), before, "something was written: {at}");
}

fn bad(reply: &str) -> Want<'_> {
    Want { code: 400, reason: "BadRequest", causes: &[], reply }
}

fn invalid<'a>(causes: &'a [(&'a str, &'a str)]) -> Want<'a> {
    Want { code: 422, reason: "Invalid", causes, reply: "is invalid" }
}

fn conflict(reply: &str) -> Want<'_> {
    Want { code: 409, reason: "Conflict", causes: &[], reply }
}

fn deployment() -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {
        "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}})
}

#[tokio::test]
async fn text_that_is_no_object_is_refused() {
    let c = Cluster::start(1).await;
    let post = |media| ("POST", MAPS, media);
    check(&c, post(JSON), r#"{"metadata": {"name": "x""#, bad("unexpected end of JSON input")).await;
    check(&c, post(JSON), r#"{"metadata": {name: "x"}}"#, bad("couldn't get version/kind; json parse error")).await;
    check(&c, post(JSON), "", bad("unexpected end of JSON input")).await;
    check(&c, post(JSON), "[]", bad("")).await;
    check(&c, post(JSON), "null", invalid(&[("metadata.name", "FieldValueRequired")])).await;
    // As Go reads JSON: what is no UTF-8 is a replacement character, which no name may have.
    let named = &b"{\"metadata\": {\"name\": \"\xff\xfe\"}}"[..];
    check(&c, post(JSON), named, invalid(&[("metadata.name", "FieldValueInvalid")])).await;
    check(&c, post(YAML), "metadata: {name: x", bad("YAML")).await;
    check(&c, post(YAML), "metadata:\n\tname: x", bad("YAML")).await;
    check(&c, post(YAML), "a: &a [x, *a]\nb: *c", bad("YAML")).await;
    check(&c, post("application/vnd.kubernetes.protobuf"), "k8s\0\x07garbage", bad("protobuf")).await;
    check(&c, post("application/vnd.kubernetes.protobuf"), "{}", bad("protobuf")).await;
    let patch = |media| ("PATCH", "/api/v1/namespaces/golden", media);
    check(&c, patch(MERGE_PATCH), "{", bad("")).await;
    check(&c, patch(STRATEGIC_PATCH), "{\"a\":", bad("")).await;
    check(&c, patch(JSON_PATCH), "{}", bad("")).await;
    check(
        &c,
        patch(JSON_PATCH),
        r#"[{"op": "jump", "path": "/a"}]"#,
        Want { code: 422, reason: "Invalid", causes: &[], reply: "" },
    )
    .await;
    check(&c, ("PATCH", "/api/v1/namespaces/golden?fieldManager=m", APPLY), "a: [b", bad("YAML")).await;
}

/// An object with a finalizer that was as large as it may be could not be deleted, and held its namespace for ever.
#[tokio::test]
async fn the_largest_object_can_be_deleted() {
    let c = Cluster::start(1).await;
    let revisions = "/apis/apps/v1/namespaces/golden/controllerrevisions";
    let largest = |length: usize| {
        let metadata = json!({"name": "x", "finalizers": ["a.b/c"]});
        json!({"metadata": metadata, "revision": 1, "data": {"k": "v".repeat(length)}}).to_string()
    };
    // The refusal tells how much is too much.
    let refused = c.send("POST", revisions, Some(JSON), JSON, largest(1_500_000).into()).await;
    let message = refused.body["message"].as_str().unwrap();
    let size: usize = message.split(' ').find_map(|w| w.parse().ok()).unwrap();
    let length = 1_500_000 - (size - 1_500_000);
    check(
        &c,
        ("POST", revisions, JSON),
        largest(length + 1),
        Want { code: 413, reason: "RequestEntityTooLarge", causes: &[], reply: "1500001 bytes are too much" },
    )
    .await;
    assert_eq!(c.send("POST", revisions, Some(JSON), JSON, largest(length).into()).await.code, 201);
    let path = format!("{revisions}/x");
    let deleted = c.send("DELETE", &path, None, JSON, Bytes::new()).await;
    assert!(deleted.code == 200 && deleted.body["metadata"]["deletionTimestamp"].is_string(), "{}", deleted.code);
    let ended = c.send("PATCH", &path, Some(MERGE_PATCH), JSON, r#"{"metadata": {"finalizers": null}}"#.into()).await;
    assert_eq!((ended.code, c.send("GET", &path, None, JSON, Bytes::new()).await.code), (200, 404));
}

#[tokio::test]
async fn documents_without_bounds_are_refused() {
    let c = Cluster::start(1).await;
    let large = |n: usize| json!({"metadata": {"name": "x"}, "data": {"k": "v".repeat(n)}}).to_string();
    let too_large =
        || Want { code: 413, reason: "RequestEntityTooLarge", causes: &[], reply: "Request entity too large" };
    check(&c, ("POST", MAPS, JSON), large(3 * 1024 * 1024), too_large()).await;
    check(&c, ("POST", &format!("{DEPLOYMENTS}?dryRun=All"), JSON), " ".repeat(3 * 1024 * 1024 + 1), too_large()).await;
    check(
        &c,
        ("POST", MAPS, JSON),
        large(2 * 1024 * 1024),
        Want { code: 422, reason: "Invalid", causes: &[("[]", "FieldValueTooLong")], reply: "" },
    )
    .await;
    // What the API takes and the store does not.
    let revision = json!({"metadata": {"name": "x"}, "revision": 1, "data": {"k": "v".repeat(2 * 1024 * 1024)}});
    let revisions = "/apis/apps/v1/namespaces/golden/controllerrevisions";
    check(&c, ("POST", revisions, JSON), revision.to_string(), too_large()).await;
    for depth in [1_000, 9_999, 10_000, 20_000, 500_000] {
        let json = format!("{}{}{}", "{\"a\":".repeat(depth), "1", "}".repeat(depth));
        check(&c, ("POST", MAPS, JSON), json.clone(), bad("")).await;
        check(&c, ("PATCH", "/api/v1/namespaces/golden", MERGE_PATCH), json, bad("")).await;
        let maps = format!("{}1{}", "{a: ".repeat(depth), "}".repeat(depth));
        let apply = "/api/v1/namespaces/golden?fieldManager=m";
        check(&c, ("POST", MAPS, YAML), maps.clone(), bad("exceeded max depth")).await;
        let inside = format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: golden, labels: {maps}}}}}");
        check(&c, ("PATCH", apply, APPLY), inside, bad("exceeded max depth")).await;
        let lists = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        check(&c, ("POST", MAPS, JSON), lists.clone(), bad("")).await;
        check(&c, ("POST", MAPS, YAML), lists.clone(), bad("")).await;
        check(&c, ("PATCH", "/api/v1/namespaces/golden", JSON_PATCH), lists.clone(), bad("")).await;
        check(&c, ("PATCH", apply, APPLY), lists, bad("")).await;
    }
    // Aliases that grow to much more than was sent.
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for i in 1..12 {
        let list = vec![format!("*a{}", i - 1); 10].join(", ");
        bomb += &format!("a{i}: &a{i} [{list}]\n");
    }
    check(&c, ("POST", MAPS, YAML), bomb, bad("")).await;
}

#[tokio::test]
async fn unknown_fields_are_rejected_reported_or_ignored() {
    let c = Cluster::start(1).await;
    let mut o = deployment();
    o["spec"]["foo"] = 1.into();
    o["spec"]["template"]["spec"]["containers"][0]["imagee"] = "i".into();
    let names = ["unknown field \"spec.foo\"", "unknown field \"spec.template.spec.containers[0].imagee\""];
    let strict = |path: &str| format!("{path}?fieldValidation=Strict");
    for name in names {
        check(&c, ("POST", &strict(DEPLOYMENTS), JSON), o.to_string(), bad(name)).await;
        check(&c, ("POST", &strict(DEPLOYMENTS), YAML), codec::yaml::to_string(&o), bad(name)).await;
    }
    let twice = r#"{"apiVersion": "v1", "kind": "ConfigMap", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"a": "1", "a": "2"}}"#;
    for name in ["duplicate field \"kind\"", "duplicate field \"data.a\""] {
        check(&c, ("POST", &strict(MAPS), JSON), twice, bad(name)).await;
    }
    let yaml = "metadata: {name: x}\ndata:\n  a: '1'\n  a: '2'\n";
    check(&c, ("POST", &strict(MAPS), YAML), yaml, bad("key \"a\" already set in map")).await;
    check(
        &c,
        ("POST", &format!("{MAPS}?fieldValidation=Loose"), JSON),
        "{}",
        invalid(&[("fieldValidation", "FieldValueNotSupported")]),
    )
    .await;

    // Warned of by default, silent when that is wished.
    for (query, warned) in
        [("dryRun=All", true), ("dryRun=All&fieldValidation=Warn", true), ("dryRun=All&fieldValidation=Ignore", false)]
    {
        for (path, body, problems) in [
            (DEPLOYMENTS, o.to_string(), &names[..]),
            (MAPS, twice.to_owned(), &["duplicate field \"kind\"", "duplicate field \"data.a\""]),
        ] {
            let r = c.request("POST", &format!("{path}?{query}"), &[("content-type", JSON)], body.into()).await;
            assert_eq!(r.status(), 201, "{path}");
            let warnings: Vec<_> =
                r.headers().get_all("warning").iter().map(|v| v.to_str().unwrap().to_owned()).collect();
            let want: Vec<_> = problems.iter().map(|p| format!("299 - \"{}\"", p.replace('"', "\\\""))).collect();
            assert_eq!(warnings, if warned { want } else { vec![] }, "{path}?{query}");
        }
    }

    // In patches it is the patch that is wrong.
    assert_eq!(c.call("POST", DEPLOYMENTS, deployment()).await.code, 201);
    let at = format!("{DEPLOYMENTS}/web");
    let unknown = json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "imagee": "i"}]}}}});
    let wrong =
        || Want { code: 422, reason: "Invalid", causes: &[("patch", "FieldValueInvalid")], reply: "unknown field" };
    check(&c, ("PATCH", &strict(&at), STRATEGIC_PATCH), unknown.to_string(), wrong()).await;
    check(&c, ("PATCH", &strict(&at), MERGE_PATCH), json!({"spec": {"foo": 1}}).to_string(), wrong()).await;
    let add = json!([{"op": "add", "path": "/spec/foo", "value": 1}]);
    check(&c, ("PATCH", &strict(&at), JSON_PATCH), add.to_string(), wrong()).await;
    let a = c.send("PATCH", &at, Some(MERGE_PATCH), JSON, json!({"spec": {"foo": 1}}).to_string().into()).await;
    assert!(a.code == 200 && a.warned && a.body["spec"]["foo"].is_null(), "{}", a.body);
}

#[tokio::test]
async fn values_of_the_wrong_type_are_refused() {
    let c = Cluster::start(1).await;
    assert_eq!(c.call("POST", DEPLOYMENTS, deployment()).await.code, 201);
    let set = |path: &str, v: Value| {
        let mut o = deployment();
        o["metadata"]["name"] = "other".into();
        *o.pointer_mut(path).unwrap() = v;
        o.to_string()
    };
    let cannot = "Deployment in version \"v1\" cannot be handled as a Deployment";
    for (path, v) in [
        ("/spec", json!([])),
        ("/spec/selector", json!("app=web")),
        ("/spec/template/spec/containers", json!({"name": "c"})),
        ("/spec/template/spec/containers/0/image", json!(7)),
        ("/metadata", json!("web")),
        ("/metadata/name", json!(1)),
        ("/spec/template/metadata/labels", json!({"app": 1})),
    ] {
        check(&c, ("POST", DEPLOYMENTS, JSON), set(path, v), bad(cannot)).await;
    }
    let replicas = |v: Value| {
        let mut o = deployment();
        o["spec"]["replicas"] = v;
        o.to_string()
    };
    for v in [json!("3"), json!(1.5), json!(true), json!(3_000_000_000u64), json!({})] {
        check(&c, ("POST", DEPLOYMENTS, JSON), replicas(v), bad(cannot)).await;
    }
    check(
        &c,
        ("POST", MAPS, JSON),
        r#"{"metadata": {"name": "x"}, "data": {"a": 1}}"#,
        bad("cannot be handled as a ConfigMap"),
    )
    .await;
    check(
        &c,
        ("POST", MAPS, JSON),
        r#"{"metadata": {"name": "x"}, "binaryData": {"a": "%%%"}}"#,
        bad("illegal base64 data"),
    )
    .await;
    check(&c, ("POST", MAPS, JSON), r#"{"metadata": {"name": "x", "creationTimestamp": "yesterday"}}"#, bad("")).await;
    let wrong = || Want {
        code: 422,
        reason: "Invalid",
        causes: &[("patch", "FieldValueInvalid")],
        reply: "patch: Invalid value",
    };
    let at = format!("{DEPLOYMENTS}/web");
    check(&c, ("PATCH", &at, MERGE_PATCH), r#"{"spec": {"replicas": "3"}}"#, wrong()).await;
    check(&c, ("PATCH", &at, STRATEGIC_PATCH), r#"{"spec": {"replicas": "3"}}"#, wrong()).await;
    check(&c, ("PATCH", &at, JSON_PATCH), r#"[{"op": "add", "path": "/spec/replicas", "value": "3"}]"#, wrong()).await;
}

#[tokio::test]
async fn names_and_labels_that_cannot_be_are_refused() {
    let c = Cluster::start(1).await;
    let name = &[("metadata.name", "FieldValueInvalid")];
    for n in ["Upper", "under_score", "-x", "x-", "a..b", "a/b", &"x".repeat(254), "ü"] {
        check(&c, ("POST", MAPS, JSON), json!({"metadata": {"name": n}}).to_string(), invalid(name)).await;
    }
    let o = json!({"metadata": {"name": "a.b"}});
    check(&c, ("POST", "/api/v1/namespaces", JSON), o.to_string(), invalid(name)).await;
    // The name of a namespace is a label of it as well.
    let twice = &[("metadata.name", "FieldValueInvalid"), ("metadata.labels", "FieldValueInvalid")];
    for n in [&"x".repeat(64), "1a_"] {
        let o = json!({"metadata": {"name": n}});
        check(&c, ("POST", "/api/v1/namespaces", JSON), o.to_string(), invalid(twice)).await;
    }
    check(&c, ("POST", MAPS, JSON), "{}", invalid(&[("metadata.name", "FieldValueRequired")])).await;
    let with = |k: &str, v: Value| json!({"metadata": {"name": "x", k: v}}).to_string();
    let labels = &[("metadata.labels", "FieldValueInvalid")];
    for l in [json!({"a b": "c"}), json!({"a": "b c"}), json!({"a": "x".repeat(64)}), json!({"/a": "b"})] {
        check(&c, ("POST", MAPS, JSON), with("labels", l), invalid(labels)).await;
    }
    // Upstream says both that it is empty and what it should be.
    check(&c, ("POST", MAPS, JSON), with("labels", json!({"": "b"})), invalid(&[labels[0], labels[0]])).await;
    check(
        &c,
        ("POST", MAPS, JSON),
        with("annotations", json!({"a b": "c"})),
        invalid(&[("metadata.annotations", "FieldValueInvalid")]),
    )
    .await;
    let much = json!({"a": "x".repeat(300_000)});
    check(
        &c,
        ("POST", MAPS, JSON),
        with("annotations", much),
        invalid(&[("metadata.annotations", "FieldValueTooLong")]),
    )
    .await;
    // As a name, and as one without a domain.
    let twice = [("metadata.finalizers", "FieldValueInvalid"), ("metadata.finalizers[0]", "FieldValueInvalid")];
    check(&c, ("POST", MAPS, JSON), with("finalizers", json!(["a b"])), invalid(&twice)).await;
    check(&c, ("POST", MAPS, JSON), with("namespace", "other".into()), bad("does not match the namespace")).await;
    let nowhere = Want { code: 404, reason: "NotFound", causes: &[], reply: "namespaces \"nowhere\" not found" };
    check(&c, ("POST", "/api/v1/namespaces/nowhere/configmaps", JSON), r#"{"metadata": {"name": "x"}}"#, nowhere).await;
    let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "p"}]);
    check(
        &c,
        ("POST", MAPS, JSON),
        with("ownerReferences", owner),
        invalid(&[("metadata.ownerReferences.uid", "FieldValueInvalid")]),
    )
    .await;
    // Several mistakes are all said at once.
    let o = json!({"metadata": {"name": "X", "labels": {"a": "b c"}}});
    let both = &[("metadata.name", "FieldValueInvalid"), ("metadata.labels", "FieldValueInvalid")];
    check(&c, ("POST", MAPS, JSON), o.to_string(), invalid(both)).await;
}

#[tokio::test]
async fn immutable_fields_do_not_change() {
    let c = Cluster::start(1).await;
    assert_eq!(c.call("POST", DEPLOYMENTS, deployment()).await.code, 201);
    let map = json!({"metadata": {"name": "fixed"}, "data": {"a": "1"}, "immutable": true});
    assert_eq!(c.call("POST", MAPS, map).await.code, 201);
    let secrets = "/api/v1/namespaces/golden/secrets";
    assert_eq!(c.call("POST", secrets, json!({"metadata": {"name": "s"}, "type": "Opaque"})).await.code, 201);
    let at = format!("{DEPLOYMENTS}/web");
    let relabel = json!({"spec": {"selector": {"matchLabels": {"app": "other"}}, "template": {"metadata": {"labels": {"app": "other"}}}}});
    check(&c, ("PATCH", &at, MERGE_PATCH), relabel.to_string(), invalid(&[("spec.selector", "FieldValueInvalid")]))
        .await;
    let mut other = deployment();
    other["metadata"]["name"] = "other".into();
    other["spec"]["selector"]["matchLabels"]["app"] = "other".into();
    let mismatch = &[("spec.template.metadata.labels", "FieldValueInvalid")];
    check(&c, ("POST", DEPLOYMENTS, JSON), other.to_string(), invalid(mismatch)).await;
    let mut empty = deployment();
    empty["spec"]["selector"] = json!({});
    check(&c, ("POST", DEPLOYMENTS, JSON), empty.to_string(), invalid(&[("spec.selector", "FieldValueInvalid")])).await;
    let fixed = format!("{MAPS}/fixed");
    check(&c, ("PATCH", &fixed, MERGE_PATCH), r#"{"data": {"a": "2"}}"#, invalid(&[("data", "FieldValueForbidden")]))
        .await;
    check(
        &c,
        ("PATCH", &fixed, MERGE_PATCH),
        r#"{"immutable": false}"#,
        invalid(&[("immutable", "FieldValueForbidden")]),
    )
    .await;
    let s = format!("{secrets}/s");
    check(
        &c,
        ("PATCH", &s, MERGE_PATCH),
        r#"{"type": "example.com/other"}"#,
        invalid(&[("type", "FieldValueInvalid")]),
    )
    .await;

    let live = c.call("GET", &at, Value::Null).await.body;
    let with = |k: &str, v: &str| {
        let mut o = live.clone();
        o["metadata"][k] = v.into();
        o["spec"]["replicas"] = 5.into();
        o.to_string()
    };
    check(&c, ("PUT", &at, JSON), with("resourceVersion", "1"), conflict("the object has been modified")).await;
    check(
        &c,
        ("PUT", &at, JSON),
        with("uid", "00000000-0000-0000-0000-000000000000"),
        conflict("Precondition failed: UID"),
    )
    .await;
    check(&c, ("PUT", &at, JSON), with("name", "other"), bad("does not match the name on the URL")).await;
    check(&c, ("PUT", &at, JSON), with("namespace", "default"), bad("does not match the namespace")).await;
    let old = json!({"metadata": {"resourceVersion": "1"}, "spec": {"replicas": 5}}).to_string();
    for media in [MERGE_PATCH, STRATEGIC_PATCH] {
        check(&c, ("PATCH", &at, media), old.clone(), conflict("the object has been modified")).await;
    }
    let tied = json!({"preconditions": {"resourceVersion": "1"}}).to_string();
    check(
        &c,
        ("DELETE", &at, JSON),
        tied,
        conflict("the ResourceVersion in the precondition (1) does not match the ResourceVersion in record"),
    )
    .await;
}

#[tokio::test]
async fn missing_objects_are_not_found() {
    let c = Cluster::start(1).await;
    let nowhere = |reply| Want { code: 404, reason: "NotFound", causes: &[], reply };
    let no_path = "the server could not find the requested resource";
    for path in [
        "/apis/apps/v7/deployments",
        "/apis/apps/v7/namespaces/golden/deployments/web",
        "/api/v1/nosuch",
        "/api/v2/pods",
        "/api/v1/namespaces/golden/pods/p/status/more",
        "/api/v1/namespaces/golden/pods/p/nosuch",
        "/api/v1/namespaces/golden/nodes/n",
    ] {
        check(&c, ("GET", path, JSON), "", nowhere(no_path)).await;
    }
    for method in ["OPTIONS", "TRACE"] {
        let a = c.send(method, "/api/v1/pods", None, JSON, Bytes::new()).await;
        assert_eq!((a.code, &a.body["reason"]), (405, &json!("MethodNotAllowed")), "{method}");
    }
    let named = c.call("GET", "/api/v1/namespaces/golden?watch=true", Value::Null).await;
    assert_eq!((named.code, &named.body["kind"]), (200, &json!("Namespace")), "one object is read, not watched");
    // Where nobody has an API there is no `Status`.
    for path in ["/nosuch", "/apis/nosuch.example.com/v1/things", "/apis/nosuch.example.com", "/openapi/nosuch"] {
        let a = c.send("GET", path, None, JSON, Bytes::new()).await;
        assert_eq!((a.code, &a.body), (404, &json!("404 page not found\n")), "{path}");
    }
    check(
        &c,
        ("POST", "/apis/apps/v7/namespaces/golden/deployments", JSON),
        deployment().to_string(),
        nowhere(no_path),
    )
    .await;
    let gone = "configmaps \"x\" not found";
    let at = format!("{MAPS}/x");
    for method in ["GET", "DELETE"] {
        check(&c, (method, &at, JSON), "", nowhere(gone)).await;
    }
    check(&c, ("PUT", &at, JSON), r#"{"metadata": {"name": "x"}}"#, nowhere(gone)).await;
    for patch in ["{}", "5", "[{"] {
        check(&c, ("PATCH", &at, MERGE_PATCH), patch, nowhere(gone)).await;
    }
    let kind =
        |version: &str, kind: &str| json!({"apiVersion": version, "kind": kind, "metadata": {"name": "x"}}).to_string();
    check(&c, ("POST", MAPS, JSON), kind("v1", "Secret"), bad("Secret in version \"v1\" cannot be handled as a ConfigMap: converting (v1.Secret) to (core.ConfigMap): unknown conversion")).await;
    check(&c, ("POST", MAPS, JSON), kind("v1", "Nosuch"), bad("no kind \"Nosuch\" is registered for version \"v1\""))
        .await;
    check(&c, ("POST", MAPS, JSON), kind("v7", "ConfigMap"), bad("cannot be handled as a ConfigMap")).await;
    check(
        &c,
        ("POST", DEPLOYMENTS, JSON),
        kind("apps/v1beta9", "Deployment"),
        bad("no kind \"Deployment\" is registered for version \"apps/v1beta9\" in scheme \"pkg/api/legacyscheme/scheme.go:30\""),
    )
    .await;
    check(&c, ("POST", MAPS, JSON), kind("a/b/c", "ConfigMap"), bad("unexpected GroupVersion string: a/b/c")).await;
}

#[tokio::test]
async fn parameters_that_make_no_sense_are_refused() {
    let c = Cluster::start(1).await;
    for query in [
        "limit=abc",
        "timeoutSeconds=abc",
        "resourceVersion=abc",
        "continue=abc",
        "labelSelector=a%20in%20(",
        "fieldSelector=data%3Dx",
        "fieldSelector=x",
        "watch=1&timeoutSeconds=1.5",
        "watch=1&resourceVersion=-1",
    ] {
        check(&c, ("GET", &format!("{MAPS}?{query}"), JSON), "", bad("")).await;
    }
    let forbidden = |f| (f, "FieldValueForbidden");
    let unknown = |f| (f, "FieldValueNotSupported");
    for (query, cause) in [
        ("resourceVersionMatch=Exact", forbidden("resourceVersionMatch")),
        ("resourceVersion=1&resourceVersionMatch=Some", unknown("resourceVersionMatch")),
        ("resourceVersion=0&resourceVersionMatch=Exact", forbidden("resourceVersionMatch")),
        ("watch=1&sendInitialEvents=true", forbidden("resourceVersionMatch")),
        ("sendInitialEvents=true", forbidden("sendInitialEvents")),
    ] {
        check(&c, ("GET", &format!("{MAPS}?{query}"), JSON), "", invalid(&[cause])).await;
    }
    let both = &[forbidden("resourceVersionMatch"), unknown("resourceVersionMatch")];
    for query in [
        "watch=1&resourceVersion=1&resourceVersionMatch=Exact",
        "watch=1&sendInitialEvents=true&resourceVersionMatch=Exact",
    ] {
        check(&c, ("GET", &format!("{MAPS}?{query}"), JSON), "", invalid(both)).await;
    }
    let o = r#"{"metadata": {"name": "x"}}"#;
    let long = "m".repeat(129);
    for (query, cause) in [
        ("dryRun=Some".to_owned(), unknown("dryRun")),
        ("fieldValidation=Some".into(), unknown("fieldValidation")),
        (format!("fieldManager={long}"), ("fieldManager", "FieldValueTooLong")),
        ("fieldManager=a%07b".into(), ("fieldManager", "FieldValueInvalid")),
    ] {
        check(&c, ("POST", &format!("{MAPS}?{query}"), JSON), o, invalid(&[cause])).await;
    }
    assert_eq!(c.call("POST", MAPS, json!({"metadata": {"name": "x"}})).await.code, 201);
    let at = |query: &str| format!("{MAPS}/x?{query}");
    check(&c, ("PATCH", &at("force=true"), MERGE_PATCH), "{}", invalid(&[forbidden("force")])).await;
    let new = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}}).to_string();
    check(&c, ("PATCH", &at("force=true"), APPLY), new, invalid(&[("fieldManager", "FieldValueRequired")])).await;
    check(&c, ("DELETE", &at("gracePeriodSeconds=soon"), JSON), "", bad("")).await;
    check(&c, ("DELETE", &at("dryRun=Some"), JSON), "", invalid(&[unknown("dryRun")])).await;
    check(&c, ("DELETE", &at("propagationPolicy=Perhaps"), JSON), "", invalid(&[unknown("propagationPolicy")])).await;
    check(
        &c,
        ("DELETE", &at(""), JSON),
        r#"{"propagationPolicy": "Perhaps"}"#,
        invalid(&[unknown("propagationPolicy")]),
    )
    .await;
    check(
        &c,
        ("DELETE", &at(""), JSON),
        r#"{"propagationPolicy": "Orphan", "orphanDependents": true}"#,
        invalid(&[("propagationPolicy", "FieldValueInvalid")]),
    )
    .await;
    check(&c, ("DELETE", &at(""), JSON), "{", bad("")).await;
    check(&c, ("DELETE", &at(""), JSON), r#"{"gracePeriodSeconds": "soon"}"#, bad("")).await;
    // Who sends an object does not mean to delete without options.
    let no_options = r#"{"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}}"#;
    let scheme = "in scheme \"pkg/apis/meta/internalversion/scheme/register.go:27\"";
    let unknown_kind = format!("no kind \"ConfigMap\" is registered for version \"v1\" {scheme}");
    for path in [at(""), format!("{MAPS}?labelSelector=a=b")] {
        check(&c, ("DELETE", &path, JSON), no_options, bad(&unknown_kind)).await;
        let wrong_options = r#"{"kind": "CreateOptions", "apiVersion": "v1"}"#;
        check(&c, ("DELETE", &path, JSON), wrong_options, bad("decoded object cannot be converted to DeleteOptions"))
            .await;
    }
    // What is read is not older than what was asked for.
    let future = c.call("GET", &at("resourceVersion=999999999"), Value::Null).await;
    assert_eq!((future.code, &future.body["details"]["causes"][0]["reason"]), (504, &json!("ResourceVersionTooLarge")));
    assert_eq!(c.call("GET", &at("resourceVersion=1"), Value::Null).await.code, 200);
    let options = json!({"kind": "DeleteOptions", "apiVersion": "apps/v1"});
    assert_eq!(c.call("DELETE", &at(""), options).await.code, 200);
}

#[tokio::test]
async fn unsupported_media_types_are_rejected() {
    let c = Cluster::start(1).await;
    let foreign = || Want {
        code: 415,
        reason: "UnsupportedMediaType",
        causes: &[],
        reply: "the body of the request was in an unknown format",
    };
    for media in ["text/plain", "application/xml", "multipart/form-data", MERGE_PATCH] {
        check(&c, ("POST", MAPS, media), r#"{"metadata": {"name": "x"}}"#, foreign()).await;
    }
    let at = "/api/v1/namespaces/golden";
    for media in [JSON, YAML, "text/plain"] {
        let want = Want { reply: "415: Unsupported Media Type", ..foreign() };
        check(&c, ("PATCH", at, media), "{}", want).await;
    }
    check(&c, ("PUT", at, "text/plain"), r#"{"metadata": {"name": "golden"}}"#, foreign()).await;
    let before = c.server.registry.store.revision();
    for accept in [
        "text/html",
        "application/xml",
        "application/json;as=Chair;v=v1;g=meta.k8s.io",
        "application/json;as=Table;v=v9;g=meta.k8s.io",
    ] {
        for (method, path) in [("GET", MAPS), ("GET", at), ("POST", MAPS)] {
            let body = if method == "POST" { r#"{"metadata": {"name": "x"}}"# } else { "" };
            let a = c.send(method, path, Some(JSON), accept, body.into()).await;
            let what = format!("{method} {path} for {accept}: {}", a.body);
            assert_eq!((a.code, &a.body["reason"]), (406, &json!("NotAcceptable")), "{what}");
            // Parameters of media types are read later than their names.
            let reply = if accept.contains(';') {
                "only the following media types are accepted: application/json"
            } else {
                "406: Not Acceptable\n\nAvailable representations: application/json"
            };
            assert!(a.body["message"].as_str().unwrap().starts_with(reply), "{what}");
        }
    }
    assert_eq!(c.server.registry.store.revision(), before);
    // One that is understood among others is enough.
    let a = c.send("GET", MAPS, None, "text/html, application/yaml;q=0.9", Bytes::new()).await;
    assert_eq!(a.code, 200);
    // What can only be created has no tables.
    let reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let review = json!({"spec": {"nonResourceAttributes": {"path": "/", "verb": "get"}}}).to_string();
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let a = c.send("POST", reviews, Some(JSON), table, review.clone().into()).await;
    assert_eq!((a.code, &a.body["reason"]), (406, &json!("NotAcceptable")), "{}", a.body);
    let a = c.send("POST", reviews, Some(JSON), &format!("{table},{JSON}"), review.into()).await;
    assert_eq!((a.code, &a.body["kind"]), (201, &json!("SelfSubjectAccessReview")), "{}", a.body);
    // What a row carries is one of three things.
    for (include, code) in [("", 200), ("None", 200), ("Metadata", 200), ("Object", 200), ("Foo", 400)] {
        let a = c.send("GET", &format!("{MAPS}?includeObject={include}"), None, table, Bytes::new()).await;
        assert_eq!(a.code, code, "{include}: {}", a.body);
    }
}

#[tokio::test]
async fn finalizers_of_kubernetes_own_kinds_have_a_domain() {
    let c = Cluster::start(1).await;
    let map = |finalizers: Value| json!({"metadata": {"name": "a", "finalizers": finalizers}}).to_string();
    let bad = &[("metadata.finalizers[1]", "FieldValueInvalid")];
    check(&c, ("POST", MAPS, JSON), map(json!(["a.example/b", "mine"])), invalid(bad)).await;
    let a = c.send("POST", MAPS, Some(JSON), JSON, map(json!(["a.example/b", "orphan"])).into()).await;
    assert_eq!(a.code, 201, "{}", a.body);
    let one = format!("{MAPS}/a");
    // An update is checked twice.
    let bad = &[bad[0], bad[0]];
    let reply = Want { reply: "name is neither a standard finalizer name nor is it fully qualified", ..invalid(bad) };
    check(&c, ("PUT", &one, JSON), map(json!(["a.example/b", "mine"])), reply).await;
    // Leases take any.
    let leases = "/apis/coordination.k8s.io/v1/namespaces/golden/leases";
    let a = c.send("POST", leases, Some(JSON), JSON, map(json!(["mine"])).into()).await;
    assert_eq!(a.code, 201, "{}", a.body);
}

/// Through `status` most kinds change labels and annotations as well.
#[tokio::test]
async fn a_status_is_written_with_metadata() {
    let c = Cluster::start(1).await;
    c.call("POST", "/api/v1/namespaces", json!({"metadata": {"name": "n"}})).await;
    let part = "/api/v1/namespaces/n/status";
    let patch = json!({"metadata": {"annotations": {"a": "1"}, "labels": {"b": "2"}},
        "spec": {"finalizers": []}, "status": {"conditions": [{"type": "T", "status": "True"}]}});
    let a = c.send("PATCH", part, Some(MERGE_PATCH), JSON, patch.to_string().into()).await;
    assert_eq!(a.code, 200, "{}", a.body);
    assert_eq!(
        (&a.body["metadata"]["annotations"]["a"], &a.body["metadata"]["labels"]["b"]),
        (&json!("1"), &json!("2"))
    );
    assert_eq!(a.body["spec"]["finalizers"], json!(["kubernetes"]));
    assert_eq!(a.body["status"]["conditions"][0]["type"], "T");
}

/// What chooses devices is an expression over one device, which compiles.
#[tokio::test]
async fn selectors_of_devices_compile() {
    let c = Cluster::start(1).await;
    let classes = "/apis/resource.k8s.io/v1/deviceclasses";
    let class = |expression: &str| json!({"metadata": {"name": "d"}, "spec": {"selectors": [{"cel": {"expression": expression}}]}});
    for wrong in ["", "-x", "device.driver", "device.driver == 'd'x", "device.nosuch == 1", "50%"] {
        let a = c.call("POST", classes, class(wrong)).await;
        let cause = &a.body["details"]["causes"][0];
        assert_eq!((a.code, &cause["field"]), (422, &json!("spec.selectors[0].cel.expression")), "{wrong}: {}", a.body);
    }
    let right = "device.driver == 'gpu.example.com' && device.attributes['gpu.example.com'].model.startsWith('a') && \
        cel.bind(c, device.capacity['gpu.example.com'], c.memory.isGreaterThan(quantity('1Gi')))";
    let a = c.call("POST", classes, class(right)).await;
    assert_eq!(a.code, 201, "{}", a.body);
}
