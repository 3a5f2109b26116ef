//! Resetting managed fields with the requests of the documentation, and writing them.

use super::*;

const PATH: &str = "/api/v1/namespaces/default/configmaps/example-cm";

async fn example() -> (Cluster, Value) {
    let c = Cluster::start(1).await;
    let config = "{apiVersion: v1, kind: ConfigMap, metadata: {name: example-cm}, data: {key: value}}";
    applied(&c, PATH, "one", config).await;
    let patch = json!({"data": {"more": "1"}});
    let o = written(&c, "PATCH", &format!("{PATH}?fieldManager=two"), MERGE, &patch).await;
    assert_eq!(managers(&o), ["one Apply v1", "two Update v1"]);
    (c, o)
}

/// One empty entry takes them all away: by a merge patch, a strategic one, a JSON patch and a PUT.
/// Clauses: S10.merge-patch, S10.strategic-patch, S10.json-patch, S10.update
#[tokio::test]
async fn one_empty_entry_removes_all() {
    let merge = "{\n  \"metadata\": {\n    \"managedFields\": [\n      {}\n    ]\n  }\n}";
    let json_patch = r#"[{"op": "replace", "path": "/metadata/managedFields", "value": [{}]}]"#;
    for (media, body) in [(MERGE, merge), (STRATEGIC, merge), (JSON_PATCH, json_patch)] {
        let (c, o) = example().await;
        let a = send(&c, "PATCH", PATH, media, body).await;
        assert_eq!((a.code, a.body["metadata"].get("managedFields")), (200, None), "{media}: {}", a.body);
        assert_eq!(a.body["data"], o["data"]);
        assert_ne!(a.body["metadata"]["resourceVersion"], o["metadata"]["resourceVersion"]);
        assert_eq!(read(&c, PATH).await, a.body);
    }
    let (c, mut o) = example().await;
    o["metadata"]["managedFields"] = json!([{}]);
    let o = written(&c, "PUT", PATH, "application/json", &o).await;
    assert_eq!(o["metadata"].get("managedFields"), None);
}

/// A list that is there and empty takes them away as well, as a v1.36 server does; one that is not there, or null, does not, so
/// that who does not know of it harms nobody. Clauses: S10.empty-list, S10.absent
#[tokio::test]
async fn an_absent_list_changes_nothing() {
    let (c, o) = example().await;
    let mut absent = o.clone();
    absent["metadata"].as_object_mut().unwrap().remove("managedFields");
    assert_eq!(written(&c, "PUT", PATH, "application/json", &absent).await, o);
    let null = json!({"metadata": {"managedFields": null}});
    assert_eq!(written(&c, "PATCH", PATH, MERGE, &null).await, o);
    let o = written(&c, "PATCH", PATH, MERGE, &json!({"metadata": {"managedFields": []}})).await;
    assert_eq!(o["metadata"].get("managedFields"), None);
}

/// A revision that is not the object's any more refuses the reset, in the header as in the patch, and changes nothing.
/// Clauses: S10.if-match, S10.resource-version
#[tokio::test]
async fn a_reset_can_be_tied_to_a_revision() {
    let (c, o) = example().await;
    let current = o["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let body = r#"[{"op": "replace", "path": "/metadata/managedFields", "value": [{}]}]"#;
    let reset = async |revision: &str| {
        let headers = [("accept", "application/json"), ("content-type", JSON_PATCH), ("if-match", revision)];
        let r = c.request("PATCH", PATH, &headers, body.into()).await;
        (r.status().as_u16(), serde_json::from_slice::<Value>(&r.into_body().collect().await.unwrap()).unwrap())
    };
    let (code, message) = reset("1234567890123456789").await;
    assert_eq!((code, &message["reason"]), (409, &json!("Conflict")), "{message}");
    let stale = json!({"metadata": {"resourceVersion": "1", "managedFields": [{}]}});
    let a = send(&c, "PATCH", PATH, MERGE, &stale.to_string()).await;
    assert_eq!((a.code, &a.body["reason"]), (409, &json!("Conflict")));
    assert_eq!(read(&c, PATH).await, o);
    let (code, reset_to) = reset(&format!("\"{current}\"")).await;
    assert_eq!((code, reset_to["metadata"].get("managedFields")), (200, None), "{reset_to}");
    let gone = c.request("DELETE", PATH, &[("if-match", &current)], Vec::new().into()).await;
    assert_eq!(gone.status(), 409, "a deletion too");
}

/// Other changes of the same request come after the reset, and belong to who sent it. Clauses: S10.with-other-changes
#[tokio::test]
async fn other_changes_come_after_the_reset() {
    let (c, _) = example().await;
    let body = json!({"metadata": {"managedFields": [{}]}, "data": {"key": "other", "new": "1"}});
    let o = written(&c, "PATCH", &format!("{PATH}?fieldManager=three"), MERGE, &body).await;
    assert_eq!(o["data"], json!({"key": "other", "more": "1", "new": "1"}));
    assert_eq!(managers(&o), ["three Update v1"]);
    assert_eq!(owned(&o, "three"), json!({"f:data": {"f:key": {}, "f:new": {}}}));
}

/// Managed fields can be written, though it is discouraged: by an update of the object, not through a subresource, and only valid
/// ones. Clauses: S10.by-hand
#[tokio::test]
async fn managed_fields_can_be_written() {
    let (c, mut o) = example().await;
    let mine = json!([{"manager": "hand", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:data": {"f:key": {}}}}]);
    o["metadata"]["managedFields"] = mine;
    let o = written(&c, "PUT", PATH, "application/json", &o).await;
    assert_eq!(managers(&o), ["hand Apply v1"]);
    let entry = |other: Value| {
        let mut e = json!({"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}});
        e.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
        json!({"metadata": {"managedFields": [e]}})
    };
    for nonsense in [json!({"operation": "Nonsense"}), json!({"fieldsType": "FieldsV9"})] {
        assert_eq!(written(&c, "PATCH", PATH, MERGE, &entry(nonsense)).await, o, "what cannot be read is not taken");
    }
    let long = entry(json!({"manager": "m".repeat(129), "fieldsV1": {"f:data": {"f:more": {}}}}));
    let a = send(&c, "PATCH", PATH, MERGE, &long.to_string()).await;
    assert_eq!((a.code, &a.body["reason"]), (422, &json!("Invalid")), "{}", a.body);
    assert_eq!(read(&c, PATH).await, o);
}
