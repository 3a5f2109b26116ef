//! Stored objects can be read: whatever a write accepts can be shown, listed, changed and deleted, and an object that is too deep is
//! rejected when it is written. Unreadable objects can be deleted.

use bytes::Bytes;
use meta::depth::{MANAGED_FIELDS, MAX, READ};
use serde_json::{Value, json};
use store::{Action, Expect, Key, Op};
use testkit::{Access, Answer, Cluster};

const JSON: &str = "application/json";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const THINGS: &str = "/apis/example.com/v1/namespaces/default/things";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const TABLE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1";

/// An object of so many levels, as text.
fn nested(levels: usize) -> String {
    format!("{}{}", r#"{"a":"#.repeat(levels - 1) + "{}", "}".repeat(levels - 1))
}

fn thing(levels: usize) -> String {
    let (spec, kind) = (nested(levels - 1), r#""apiVersion":"example.com/v1","kind":"Thing""#);
    format!(r#"{{{kind},"metadata":{{"name":"t"}},"spec":{spec}}}"#)
}

/// A map whose managed fields make it so deep.
fn map(levels: usize) -> String {
    let fields = nested(levels - 4).replace("\"a\"", "\"f:a\"");
    let entry = format!(
        r#"{{"manager":"m","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{fields}}}"#
    );
    format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"t","managedFields":[{entry}]}}}}"#)
}

/// A definition whose schema makes it so deep: each property takes two levels.
fn definition(levels: usize) -> String {
    let n = (levels - 7) / 2;
    let schema = r#"{"type":"object","properties":{"a":"#.repeat(n) + r#"{"type":"string"}"# + &"}}".repeat(n);
    let version = format!(r#"{{"name":"v1","served":true,"storage":true,"schema":{{"openAPIV3Schema":{schema}}}}}"#);
    let names = r#""names":{"plural":"deeps","kind":"Deep"},"scope":"Namespaced","group":"deep.example.com""#;
    format!(
        r#"{{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",
        "metadata":{{"name":"deeps.deep.example.com"}},"spec":{{{names},"versions":[{version}]}}}}"#
    )
}

async fn send(c: &Cluster, method: &str, path: &str, media: &str, accept: &str, body: String) -> (u16, Bytes) {
    let r = c.request(method, path, &[("accept", accept), ("content-type", media)], body.into()).await;
    (r.status().as_u16(), r.into_body().collect().await.unwrap())
}

/// Whether it was taken. Refused is what is too deep, and the answer says so.
fn taken((code, answer): (u16, Bytes), what: &str) -> bool {
    let text = String::from_utf8_lossy(&answer);
    let refused = (400..500).contains(&code) && (text.contains("deep") || text.contains("depth"));
    assert!(matches!(code, 200 | 201) || refused, "{what}: {code} {text}");
    code < 300
}

/// What was taken can be read in every form, changed and deleted.
async fn can_be_handled(c: &Cluster, all: &str, name: &str, messages: bool, what: &str) {
    let one = format!("{all}/{name}");
    let client = c.client(auth::User::new("admin", &[auth::user::GROUP_MASTERS]));
    for accept in [JSON, "application/yaml", TABLE, "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"] {
        for path in [one.clone(), all.to_owned()] {
            let (code, answer) = send(
                c,
                "GET",
                &path,
                JSON,
                &accept.replace("Metadata;", if path == one { "Metadata;" } else { "MetadataList;" }),
                String::new(),
            )
            .await;
            assert_eq!(code, 200, "{what}: GET {path} as {accept}: {}", String::from_utf8_lossy(&answer));
            if accept == JSON {
                let read: Value = meta::depth::from_slice(&answer).unwrap_or_else(|e| panic!("{what}: {path}: {e}"));
                assert!(read["metadata"].is_object());
            }
        }
    }
    if messages {
        let (code, _) = send(c, "GET", &one, JSON, "application/vnd.kubernetes.protobuf", String::new()).await;
        assert_eq!(code, 200, "{what}: protobuf");
    }
    let request = client::client::request(http::Method::GET, &one, JSON, None).unwrap();
    let _: meta::Object = client.json(request).await.unwrap_or_else(|e| panic!("{what}: a client reads it: {e}"));
    let patch = json!({"metadata": {"labels": {"a": "b"}}}).to_string();
    let (code, answer) = send(c, "PATCH", &one, "application/merge-patch+json", JSON, patch).await;
    assert_eq!(code, 200, "{what}: {}", String::from_utf8_lossy(&answer));
    let again = String::from_utf8(answer.to_vec()).unwrap();
    let (code, answer) = send(c, "PUT", &one, JSON, JSON, again).await;
    assert_eq!(code, 200, "{what}: what was read is written back: {}", String::from_utf8_lossy(&answer));
    let (code, answer) = send(c, "DELETE", &one, JSON, JSON, String::new()).await;
    assert_eq!(code, 200, "{what}: {}", String::from_utf8_lossy(&answer));
    // A definition goes when its objects have.
    for _ in 0..100 {
        if send(c, "GET", &one, JSON, JSON, String::new()).await.0 == 404 {
            return;
        }
        let (_, left) = send(
            c,
            "PATCH",
            &one,
            "application/merge-patch+json",
            JSON,
            json!({"metadata": {"finalizers": null}}).to_string(),
        )
        .await;
        drop(left);
    }
    panic!("{what}: it is still there");
}

const LEVELS: [usize; 15] = [20, 100, 116, 120, 124, 127, 128, 150, 180, 192, 200, 201, 208, 209, 400];

#[tokio::test(start_paused = true)]
async fn accepted_objects_can_be_read() {
    let c = Cluster::start(1).await;
    let schema = json!({"type": "object", "properties":
        {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}});
    let made = json!({"metadata": {"name": "things.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
        "names": {"plural": "things", "kind": "Thing"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}});
    assert_eq!(c.call("POST", DEFINITIONS, made).await.code, 201);
    while c.call("GET", THINGS, Value::Null).await.code != 200 {
        tokio::task::yield_now().await;
    }
    let one = format!("{THINGS}/t");
    for levels in LEVELS {
        let what = format!("{levels} levels");
        let small = || thing(3);
        let deep = thing(levels);
        // Each way of writing it: created, and made of a small one.
        let ways: [(&str, &str, &str, String); 5] = [
            ("POST", THINGS, JSON, deep.clone()),
            ("PUT", &one, JSON, deep.clone()),
            ("PATCH", &one, "application/merge-patch+json", deep.clone()),
            (
                "PATCH",
                &one,
                "application/json-patch+json",
                format!(r#"[{{"op":"add","path":"/spec","value":{}}}]"#, nested(levels - 1)),
            ),
            ("PATCH", &format!("{one}?fieldManager=m&force=true"), "application/apply-patch+yaml", deep.clone()),
        ];
        for (method, path, media, body) in ways {
            let what = format!("{what}: {method} {media}");
            let mut body = body;
            if method != "POST" {
                let (code, made) = send(&c, "POST", THINGS, JSON, JSON, small()).await;
                assert_eq!(code, 201, "{what}");
                let made: Value = serde_json::from_slice(&made).unwrap();
                let revision = made["metadata"]["resourceVersion"].as_str().unwrap();
                if method == "PUT" {
                    body = body.replace(r#""name":"t""#, &format!(r#""name":"t","resourceVersion":"{revision}""#));
                }
            }
            if taken(send(&c, method, path, media, JSON, body).await, &what) {
                assert!(levels <= MAX, "{what}");
            } else {
                // A patch has levels of its own around the value.
                assert!(levels + 2 > MAX, "{what}");
            }
            if send(&c, "GET", &one, JSON, JSON, String::new()).await.0 == 200 {
                can_be_handled(&c, THINGS, "t", false, &what).await;
            }
        }
        let what = format!("{what} of managed fields");
        let fits = levels <= MANAGED_FIELDS;
        assert_eq!(taken(send(&c, "POST", MAPS, JSON, JSON, map(levels)).await, &what), fits, "{what}");
        if fits {
            can_be_handled(&c, MAPS, "t", true, &what).await;
        }
        let what = format!("{levels} levels of a definition");
        if taken(send(&c, "POST", DEFINITIONS, JSON, JSON, definition(levels)).await, &what) {
            can_be_handled(&c, DEFINITIONS, "deeps.deep.example.com", true, &what).await;
        }
    }
    // Copied into itself until it is too deep.
    assert_eq!(send(&c, "POST", THINGS, JSON, JSON, thing(100)).await.0, 201);
    let copies: Vec<Value> = (0..9_000).map(|_| json!({"op": "copy", "from": "/spec", "path": "/spec/a"})).collect();
    let patched = send(&c, "PATCH", &one, "application/json-patch+json", JSON, Value::from(copies).to_string()).await;
    assert!(!taken(patched, "copies"));
}

/// Puts an object into the store that is deeper than anything that is written.
async fn put_broken(c: &Cluster, name: &str) {
    let data = format!("{}{}", "[".repeat(READ), "]".repeat(READ));
    let metadata = format!(r#"{{"name":"{name}","namespace":"default","uid":"u"}}"#);
    let text = format!(r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{metadata},"data":{data}}}"#);
    let key = Key::new("configmaps", "default", name);
    let op = Op { key, expect: Expect::Absent, action: Action::Put(text.into()) };
    c.server.registry.store.commit(vec![op]).await.unwrap();
}

fn refused(a: &Answer, code: u16, says: &str) {
    let message = a.body["message"].as_str().unwrap_or_default();
    assert!(a.code == code && message.contains(says), "{}", a.body);
}

#[tokio::test(start_paused = true)]
async fn unreadable_objects_can_be_deleted() {
    const OPTION: &str = "ignoreStoreReadErrorWithClusterBreakingPotential";
    let c = Cluster::with_access(1, Access::default()).await;
    let path = |name: &str| format!("{MAPS}/{name}");
    let says = "unable to read configmaps/default/broken: ";
    put_broken(&c, "broken").await;
    refused(&c.call("DELETE", &path("broken"), Value::Null).await, 500, says);
    refused(&c.call("DELETE", &path("broken"), Value::Null).await, 500, OPTION);
    refused(&c.call("PUT", &path("broken"), json!({"metadata": {"name": "broken"}})).await, 500, says);
    let table = c.send("GET", MAPS, None, TABLE, Bytes::new()).await;
    refused(&table, 500, says);
    // The others of a collection are deleted.
    assert_eq!(c.call("POST", MAPS, json!({"metadata": {"name": "z"}})).await.code, 201);
    refused(&c.call("DELETE", MAPS, Value::Null).await, 500, says);
    assert_eq!(c.call("GET", &path("z"), Value::Null).await.code, 404);
    // The option counts only for an object that cannot be read; otherwise it is ignored, as upstream ignores it
    // without the feature gate `AllowUnsafeMalformedObjectDeletion`.
    let with = |more: Value| {
        let mut options = json!({"kind": "DeleteOptions", "apiVersion": "v1", OPTION: true});
        options.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        options
    };
    refused(&c.call("DELETE", MAPS, with(json!({}))).await, 500, says);
    for (more, other) in [
        (json!({"dryRun": ["All"]}), ".dryRun"),
        (json!({"propagationPolicy": "Background"}), ".propagationPolicy"),
        (json!({"orphanDependents": true}), ".orphanDependents"),
        (json!({"gracePeriodSeconds": 0}), ".gracePeriodSeconds"),
        (json!({"preconditions": {"uid": "u"}}), ".preconditions"),
    ] {
        let says = format!("cannot be set together with {other}");
        refused(&c.call("DELETE", &path("broken"), with(more)).await, 422, &says);
    }
    assert_eq!(c.call("POST", MAPS, json!({"metadata": {"name": "good"}})).await.code, 201);
    assert_eq!(c.call("DELETE", &path("good"), with(json!({"dryRun": ["All"]}))).await.code, 200);
    assert_eq!(c.call("GET", &path("good"), Value::Null).await.code, 200);
    assert_eq!(c.call("DELETE", &path("good"), with(json!({}))).await.code, 200);
    refused(&c.call("DELETE", &path("none"), with(json!({}))).await, 404, "not found");
    // It takes a permission of its own.
    let role = json!({"metadata": {"name": "deleter"}, "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["delete"]}]});
    let binding = json!({"metadata": {"name": "deleter"}, "subjects": [{"kind": "User", "name": "d", "apiGroup": "rbac.authorization.k8s.io"}],
        "roleRef": {"kind": "ClusterRole", "name": "deleter", "apiGroup": "rbac.authorization.k8s.io"}});
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    assert_eq!(c.call("POST", &format!("{rbac}/clusterroles"), role).await.code, 201);
    assert_eq!(c.call("POST", &format!("{rbac}/clusterrolebindings"), binding).await.code, 201);
    c.rbac.load(&c.server.registry.store);
    let user = c.client(auth::User::new("d", &[]));
    let body = Some((JSON, with(json!({})).to_string().into_bytes()));
    let request = client::client::request(http::Method::DELETE, &path("broken"), JSON, body).unwrap();
    let answer = user.raw(request).await.unwrap();
    assert_eq!(answer.status(), 403);
    let text = client::client::collect(answer.into_body()).await.unwrap();
    assert!(String::from_utf8_lossy(&text).contains(r#"not permitted to do \"unsafe-delete-ignore-read-errors\""#));
    let a = c.call("DELETE", &path("broken"), with(json!({}))).await;
    assert_eq!((a.code, a.body["status"].as_str()), (200, Some("Success")), "{}", a.body);
    assert_eq!(c.call("GET", &path("broken"), Value::Null).await.code, 404);
    put_broken(&c, "broken").await;
    assert_eq!(c.call("DELETE", &format!("{}?{OPTION}=true", path("broken")), Value::Null).await.code, 200);
    assert_eq!(c.call("DELETE", MAPS, Value::Null).await.code, 200);
}
