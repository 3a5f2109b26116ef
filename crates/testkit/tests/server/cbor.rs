//! Requests and responses in CBOR.

use crate::socket::server;
use apiserver::{Options, Server};
use bytes::Bytes;
use http::Request;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use std::sync::Arc;
use testkit::Cluster;

const CBOR: &str = "application/cbor";

fn request(method: &str, path: &str, media: &str, body: Vec<u8>) -> Request<Bytes> {
    let r = Request::builder().method(method).uri(path).header("authorization", "Bearer admin/system:masters");
    r.header("accept", CBOR).header("content-type", media).body(body.into()).unwrap()
}

/// Status, media type and document of an answer; null where it is no CBOR.
async fn call(s: &Arc<Server>, method: &str, path: &str, media: &str, body: Vec<u8>) -> (u16, String, Value) {
    let (parts, body) = s.handle(request(method, path, media, body)).await.into_parts();
    let got = body.collect().await.unwrap();
    let media = parts.headers["content-type"].to_str().unwrap().to_owned();
    (parts.status.as_u16(), media, codec::cbor::decode(&got, 64).unwrap_or_default())
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn map(name: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": value}})
}

#[tokio::test(start_paused = true)]
async fn objects_travel_as_cbor() {
    let c = Cluster::start(1).await;
    let s = server(&c, Options { cbor: true, ..Options::default() });
    let (code, media, made) = call(&s, "POST", MAPS, CBOR, codec::cbor::to_vec(&map("one", "b"))).await;
    assert_eq!((code, media.as_str(), &made["data"]["a"]), (201, CBOR, &json!("b")));
    let (code, _, got) = call(&s, "GET", &format!("{MAPS}/one"), CBOR, Vec::new()).await;
    assert_eq!((code, &got), (200, &made));
    let json = c.call("GET", &format!("{MAPS}/one"), Value::Null).await.body;
    assert_eq!(got, json, "it is the same object");
    let (_, _, list) = call(&s, "GET", MAPS, CBOR, Vec::new()).await;
    assert_eq!((&list["kind"], list["items"].as_array().map(Vec::len)), (&json!("ConfigMapList"), Some(1)));

    // Apply, whose body may be partial.
    let path = format!("{MAPS}/one?fieldManager=m&force=true");
    let body = codec::cbor::to_vec(&map("one", "c"));
    let (code, _, applied) = call(&s, "PATCH", &path, "application/apply-patch+cbor", body).await;
    assert_eq!((code, &applied["data"]["a"]), (200, &json!("c")));
    let managers: Vec<&Value> =
        applied["metadata"]["managedFields"].as_array().unwrap().iter().map(|e| &e["operation"]).collect();
    assert_eq!(managers, ["Apply", "Update"]);

    // Errors are sent in CBOR as well; a delete has its options in it.
    let (code, media, status) = call(&s, "GET", &format!("{MAPS}/two"), CBOR, Vec::new()).await;
    assert_eq!((code, media.as_str(), &status["reason"]), (404, CBOR, &json!("NotFound")));
    let options = codec::cbor::to_vec(&json!({"preconditions": {"uid": "other"}}));
    assert_eq!(call(&s, "DELETE", &format!("{MAPS}/one"), CBOR, options).await.0, 409);

    // Byte strings with the expected base64 encoding equal base64 in JSON.
    let mut secret = b"\xa4\x4aapiVersion\x42v1\x44kind\x46Secret".to_vec();
    secret.extend_from_slice(b"\x48metadata\xa1\x44name\x41s\x44data\xa1\x41k\xd6\x43\x01\x02\xff");
    let (code, _, made) = call(&s, "POST", "/api/v1/namespaces/default/secrets", CBOR, secret).await;
    assert_eq!((code, &made["data"]["k"]), (201, &json!("AQL/")));

    for bad in [&b""[..], b"\xa1", b"{}", b"\x81\x01", b"\xa2\x41a\x01\x41a\x01"] {
        let (code, _, status) = call(&s, "POST", MAPS, CBOR, bad.to_vec()).await;
        assert_eq!((code, &status["reason"]), (400, &json!("BadRequest")), "{bad:x?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_is_a_sequence() {
    let c = Cluster::start(1).await;
    let s = server(&c, Options { cbor: true, ..Options::default() });
    c.call("POST", MAPS, map("one", "b")).await;
    let answer = s.handle(request("GET", &format!("{MAPS}?watch=1"), CBOR, Vec::new())).await;
    assert_eq!(answer.headers()["content-type"], "application/cbor-seq");
    let mut body = answer.into_body();
    let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
    let event = codec::cbor::decode(&frame, 64).unwrap();
    assert_eq!((&event["type"], &event["object"]["data"]["a"]), (&json!("ADDED"), &json!("b")));
    assert!(frame.windows(3).filter(|w| *w == [0xd9, 0xd9, 0xf7]).count() == 2, "the object is a document of its own");
}

#[tokio::test(start_paused = true)]
async fn cbor_is_off_by_default() {
    let c = Cluster::start(1).await;
    let s = server(&c, Options::default());
    let list = "application/json, application/yaml, application/vnd.kubernetes.protobuf, \
        application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch";
    let post = request("POST", MAPS, CBOR, codec::cbor::to_vec(&map("one", "b")));
    let (parts, body) = s.handle(post).await.into_parts();
    let status: Value = serde_json::from_slice(&body.collect().await.unwrap()).unwrap();
    let want = format!("406: Not Acceptable\n\nAvailable representations: {list}");
    assert_eq!((parts.status.as_u16(), &status["message"]), (406, &json!(want)));
    for (method, path, media) in
        [("POST", MAPS, CBOR), ("PATCH", "/api/v1/namespaces/default", "application/apply-patch+cbor")]
    {
        let mut r = request(method, path, media, codec::cbor::to_vec(&map("one", "b")));
        r.headers_mut().remove("accept");
        assert_eq!(s.handle(r).await.status().as_u16(), 415, "{media}");
    }
}
