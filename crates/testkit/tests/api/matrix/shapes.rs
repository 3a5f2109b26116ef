//! Representations of the same objects: tables, metadata, YAML and protobuf.

use super::Walk;
use crate::stream::from_protobuf;
use bytes::Bytes;
use serde_json::{Value, json};

pub const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
pub const PARTIAL: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
const PARTIAL_LIST: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
pub const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const PARTIAL_PROTOBUF: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
const PARTIAL_LIST_PROTOBUF: &str =
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";

impl Walk<'_> {
    async fn get_as(&mut self, path: &str, accept: &str) -> Value {
        let a = self.cluster.send("GET", path, None, accept, Bytes::new()).await;
        self.check(a.code == 200, format!("{accept}: {} {}", a.code, a.body));
        a.body
    }

    async fn bytes_as(&mut self, method: &str, path: &str, accept: &str, body: Bytes) -> (String, Bytes) {
        let headers = [("accept", accept), ("content-type", accept)];
        let r = self.cluster.request(method, path, &headers, body).await;
        let (parts, body) = r.into_parts();
        let media = parts.headers["content-type"].to_str().unwrap().to_owned();
        (format!("{} {media}", parts.status.as_u16()), body.collect().await.unwrap())
    }
}

pub async fn shapes(w: &mut Walk<'_>) {
    w.create(0..2).await;
    let (path, list) = (w.path(0), format!("{}?labelSelector=walk%3Dyes", w.kind.collection()));
    let o = w.expect(200, "GET", &path, &Value::Null, "get").await;
    let all = w.expect(200, "GET", &list, &Value::Null, "list").await;
    if !o["metadata"]["uid"].is_string() {
        return;
    }
    lists(w, &o, &all).await;
    tables(w, &path, &list, &o).await;
    let p = w.get_as(&path, PARTIAL).await;
    let want = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": o["metadata"]});
    w.same(&p, &want, "metadata alone");
    let l = w.get_as(&list, PARTIAL_LIST).await;
    w.check(l["kind"] == "PartialObjectMetadataList", "a list of metadata says what it is");
    w.same(&l["items"][0], &want, "metadata alone in a list");
    w.same(&l["metadata"], &all["metadata"], "the metadata of a list of metadata");
    let (_, text) = w.bytes_as("GET", &path, "application/yaml", Bytes::new()).await;
    let parsed = codec::yaml::parse(std::str::from_utf8(&text).unwrap()).unwrap();
    w.same(&parsed[0], &o, "the object in YAML");
    protobuf(w, &path, &list, &o, &all).await;
    w.remove(&path).await;
    w.remove(&w.path(1)).await;
}

/// Lists of a namespace and of all, and what selects from them.
async fn lists(w: &mut Walk<'_>, o: &Value, all: &Value) {
    w.check(all["kind"] == format!("{}List", w.kind.kind), "a list says its kind");
    w.check(all["apiVersion"] == w.kind.api_version(), "a list says its version");
    let newest = w.is_newest(&all["metadata"]["resourceVersion"]);
    w.check(newest, "a list has the store's revision");
    let mut bare = o.clone();
    for key in ["kind", "apiVersion"] {
        bare.as_object_mut().unwrap().remove(key);
    }
    w.same(&all["items"][0], &bare, "an item of a list");
    let name = o["metadata"]["name"].as_str().unwrap().to_owned();
    let selections = [
        ("labelSelector=walk%3Dyes,number%3D0", 1),
        ("labelSelector=walk%3Dyes,number%20in%20(0,1)", 2),
        ("labelSelector=walk%3Dyes,number%20notin%20(0,1)", 0),
        ("labelSelector=walk,number!%3D1", 1),
        ("labelSelector=!walk,number", 0),
        (&*format!("fieldSelector=metadata.name%3D{name}"), 1),
        (&*format!("labelSelector=walk&fieldSelector=metadata.name!%3D{name}"), 1),
        ("labelSelector=walk&fieldSelector=metadata.name%3Dother", 0),
    ];
    for base in [w.kind.collection(), w.kind.everywhere()] {
        for (query, count) in selections {
            let l = w.expect(200, "GET", &format!("{base}?{query}"), &Value::Null, "list with a selector").await;
            let n = l["items"].as_array().map_or(usize::MAX, Vec::len);
            w.check(n == count, format!("{query} selects {n} instead of {count}"));
        }
    }
    if w.kind.namespaced {
        let other = w.kind.collection().replace("/golden/", "/kube-system/");
        let l = w.expect(200, "GET", &format!("{other}?labelSelector=walk"), &Value::Null, "list elsewhere").await;
        w.check(l["items"] == json!([]), "another namespace has none of them");
    }
    let refused = w
        .expect(
            400,
            "GET",
            &format!("{}?fieldSelector=spec.no.such%3D1", w.kind.collection()),
            &Value::Null,
            "list by an unknown field",
        )
        .await;
    w.check(refused["reason"] == "BadRequest", "the reason for an unknown field");
    w.expect(
        400,
        "GET",
        &format!("{}?labelSelector=a%3D%3D%3Db", w.kind.collection()),
        &Value::Null,
        "list by a bad selector",
    )
    .await;
}

async fn tables(w: &mut Walk<'_>, path: &str, list: &str, o: &Value) {
    let one = w.get_as(path, TABLE).await;
    let many = w.get_as(list, TABLE).await;
    for (t, rows) in [(&one, 1), (&many, 2)] {
        w.check(t["kind"] == "Table" && t["apiVersion"] == "meta.k8s.io/v1", "a table says what it is");
        let columns = t["columnDefinitions"].as_array().map_or(0, Vec::len);
        let all = t["rows"].as_array().cloned().unwrap_or_default();
        w.check(columns > 0 && all.len() == rows, format!("a table has {columns} columns and {} rows", all.len()));
        w.check(all.iter().all(|r| r["cells"].as_array().map_or(0, Vec::len) == columns), "a row has all its cells");
        let partial =
            json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": o["metadata"]});
        w.same(&all[0]["object"], &partial, "the object of a row");
    }
    let named = one["columnDefinitions"].as_array().into_iter().flatten().position(|c| c["format"] == "name");
    if let Some(i) = named {
        w.same(&one["rows"][0]["cells"][i], &o["metadata"]["name"], "the name in a row");
    }
    let separator = if list.contains('?') { "&" } else { "?" };
    let none = w.get_as(&format!("{list}{separator}includeObject=None"), TABLE).await;
    w.check(none["rows"][0]["object"].is_null(), "a row without its object");
    let whole = w.get_as(&format!("{path}?includeObject=Object"), TABLE).await;
    w.same(&whole["rows"][0]["object"], o, "a row with its object");
}

/// What protobuf cannot say is left out: what is null, and the kind of what lies in an object.
pub fn sayable(v: &Value) -> Value {
    match v {
        Value::Object(m) => {
            let mut out: serde_json::Map<String, Value> =
                m.iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| (k.clone(), sayable(v))).collect();
            for claim in out.get_mut("volumeClaimTemplates").and_then(Value::as_array_mut).into_iter().flatten() {
                let claim = claim.as_object_mut().unwrap();
                claim.remove("kind");
                claim.remove("apiVersion");
            }
            out.into()
        }
        Value::Array(a) => a.iter().map(sayable).collect(),
        v => v.clone(),
    }
}

/// Without what differs from creation to creation.
fn lasting(v: &Value) -> Value {
    let mut v = sayable(v);
    let m = v["metadata"].as_object_mut().unwrap();
    for key in ["uid", "resourceVersion", "creationTimestamp", "managedFields"] {
        m.remove(key);
    }
    v
}

async fn protobuf(w: &mut Walk<'_>, path: &str, list: &str, o: &Value, all: &Value) {
    let ok = format!("200 {PROTOBUF}");
    let (media, bytes) = w.bytes_as("GET", path, PROTOBUF, Bytes::new()).await;
    w.check(media == ok, format!("the object in protobuf: {media}"));
    w.same(&from_protobuf(&bytes), &sayable(o), "the object in protobuf");
    let (media, packed) = w.bytes_as("GET", list, PROTOBUF, Bytes::new()).await;
    w.check(media == ok, format!("the list in protobuf: {media}"));
    w.same(&from_protobuf(&packed), &sayable(all), "the list in protobuf");
    // Written as protobuf it is the same object again.
    let (media, bytes) = w.bytes_as("PUT", path, PROTOBUF, bytes).await;
    w.check(media == ok, format!("an update in protobuf: {media} {:?}", String::from_utf8_lossy(&bytes)));
    w.same(&from_protobuf(&bytes), &sayable(o), "an update with the same in protobuf");
    create_in_protobuf(w).await;
    for (at, accept) in [(path, PARTIAL_PROTOBUF), (list, PARTIAL_LIST_PROTOBUF)] {
        let (media, bytes) = w.bytes_as("GET", at, accept, Bytes::new()).await;
        w.check(media == ok, format!("metadata alone in protobuf: {media}"));
        let json = accept.replace(PROTOBUF, "application/json");
        let mut want = w.get_as(at, &json).await;
        for i in want.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten() {
            *i = json!({"metadata": i["metadata"]});
        }
        w.same(&from_protobuf(&bytes), &want, "metadata alone in protobuf");
    }
    let (media, _) = w.bytes_as("GET", path, &TABLE.replace("json", "vnd.kubernetes.protobuf"), Bytes::new()).await;
    w.check(media.starts_with("406"), format!("a table in protobuf: {media}"));
}

/// The same sample as JSON and as protobuf becomes the same object.
async fn create_in_protobuf(w: &mut Walk<'_>) {
    let (base, path) = (w.kind.collection(), w.path(2));
    let want = w.expect(201, "POST", &base, &w.sample(2), "create").await;
    w.remove(&path).await;
    let gv = meta::GroupVersion::parse(&w.kind.api_version()).unwrap();
    let schema = kinds::catalog().schema_of(&gv.with_kind(w.kind.kind.clone())).unwrap();
    let mut sample = w.sample(2);
    schema::typed(&mut sample, schema).unwrap();
    let packed = codec::protobuf::encode(&meta::Object::from_value(sample).unwrap(), schema).unwrap();
    let (media, bytes) = w.bytes_as("POST", &base, PROTOBUF, packed.into()).await;
    w.check(
        media == format!("201 {PROTOBUF}"),
        format!("a creation in protobuf: {media} {:?}", String::from_utf8_lossy(&bytes)),
    );
    let (mut have, mut want) = (lasting(&from_protobuf(&bytes)), lasting(&want));
    let fresh =
        regex::Regex::new("[0-9a-f]{8}-[0-9a-f-]{27}|kube-api-access-[a-z0-9]{5}|10\\.96\\.\\d+\\.\\d+").unwrap();
    for v in [&mut have, &mut want] {
        // Addresses are handed out, and jobs and pods name themselves, anew each time.
        let text = v.to_string();
        *v = serde_json::from_str(&fresh.replace_all(&text, "fresh")).unwrap();
    }
    w.same(&have, &want, "what is created in protobuf");
    w.remove(&path).await;
}
