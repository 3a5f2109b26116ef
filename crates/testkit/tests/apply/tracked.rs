//! Managers recorded by writes.

use super::*;

/// Create, update, the patches and apply, of the object and of its status: each is an entry with its operation and subresource.
/// Clauses: S02.create, S02.update, S02.patch, S02.status, S05.patch-takes
#[tokio::test]
async fn every_write_is_tracked() {
    let c = Cluster::start(1).await;
    let path = format!("{DEPLOYMENTS}/d");
    let mut body: Value = serde_json::from_str(
        r#"{"metadata": {"name": "d", "labels": {"a": "1", "b": "1", "c": "1", "d": "1"}}, "spec": {"selector": {"matchLabels": {"x": "y"}},
        "template": {"metadata": {"labels": {"x": "y"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}}"#,
    )
    .unwrap();
    (body["apiVersion"], body["kind"]) = ("apps/v1".into(), "Deployment".into());
    let o = written(&c, "POST", &format!("{DEPLOYMENTS}?fieldManager=creator"), "application/json", &body).await;
    let label = |o: &Value, who: &str, l: &str| owned(o, who)["f:metadata"]["f:labels"].get(format!("f:{l}")).is_some();
    assert!(label(&o, "creator", "a") && owned(&o, "creator")["f:spec"]["f:template"].is_object());

    let mut put = o;
    put["metadata"]["labels"]["a"] = "2".into();
    written(&c, "PUT", &format!("{path}?fieldManager=putter"), "application/json", &put).await;
    let merge = json!({"metadata": {"labels": {"b": "2"}}});
    written(&c, "PATCH", &format!("{path}?fieldManager=merger"), MERGE, &merge).await;
    let strategic = json!({"metadata": {"labels": {"c": "2"}}});
    written(&c, "PATCH", &format!("{path}?fieldManager=strategist"), STRATEGIC, &strategic).await;
    let op = json!([{"op": "replace", "path": "/metadata/labels/d", "value": "2"}]);
    written(&c, "PATCH", &format!("{path}?fieldManager=jsoner"), JSON_PATCH, &op).await;
    let condition = "{type: Available, status: 'True', reason: r, message: m}";
    let status = format!(
        "{{apiVersion: apps/v1, kind: Deployment, metadata: {{name: d}}, status: {{conditions: [{condition}]}}}}"
    );
    applied(&c, &format!("{path}/status"), "applier", &status).await;
    let merge = json!({"status": {"replicas": 2}, "spec": {"replicas": 9}});
    let o = written(&c, "PATCH", &format!("{path}/status?fieldManager=counter"), MERGE, &merge).await;
    let want = [
        "applier Apply apps/v1 status",
        "counter Update apps/v1 status",
        "creator Update apps/v1",
        "jsoner Update apps/v1",
        "merger Update apps/v1",
        "putter Update apps/v1",
        "strategist Update apps/v1",
    ];
    assert_eq!(managers(&o), want);
    for (who, l) in [("putter", "a"), ("merger", "b"), ("strategist", "c"), ("jsoner", "d")] {
        assert!(
            label(&o, who, l) && !label(&o, "creator", l),
            "{l} went over to {who}: {}",
            o["metadata"]["managedFields"]
        );
    }
    assert_eq!(
        owned(&o, "counter"),
        json!({"f:status": {"f:replicas": {}}}),
        "the spec is not written through the status"
    );
    assert_eq!(o["spec"]["replicas"], 1);
    let conditions = &owned(&o, "applier")["f:status"]["f:conditions"]["k:{\"type\":\"Available\"}"];
    assert!(conditions.get("f:status").is_some(), "{conditions}");
    for e in entries(&o) {
        assert_eq!((&e["fieldsType"], &e["time"]), (&json!("FieldsV1"), &json!("2026-01-01T00:00:00Z")), "{e}");
    }
}

/// A write that changes nothing is none: the revision and the times stay, whoever sends it. Clauses: S02.unchanged
#[tokio::test(start_paused = true)]
async fn a_no_op_is_not_written() {
    let c = Cluster::start(1).await;
    let path = format!("{MAPS}/m");
    let o = applied(&c, &path, "one", &map("a: '1'")).await;
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    assert_eq!(applied(&c, &path, "one", &map("a: '1'")).await, o);
    assert_eq!(written(&c, "PUT", &format!("{path}?fieldManager=two"), "application/json", &o).await, o);
    assert_eq!(written(&c, "PATCH", &format!("{path}?fieldManager=two"), MERGE, &json!({"data": {"a": "1"}})).await, o);
    assert_eq!(forced(&c, &path, "one", &map("a: '1'")).await, o);
    let o = applied(&c, &path, "two", &map("a: '1'")).await;
    let times: Vec<Value> = entries(&o).iter().map(|e| e["time"].clone()).collect();
    assert_eq!(times, [json!("2026-01-01T00:00:00Z"), json!("2026-01-01T00:01:00Z")], "the second one is new");
}

/// Updates take what they change and drop what they remove, whoever applied it, and are never refused. Clauses: S05.update, S05.removed
#[tokio::test]
async fn updates_own_changed_fields() {
    let c = Cluster::start(1).await;
    let path = format!("{MAPS}/m");
    applied(&c, &path, "one", &map("a: '1', b: '1', c: '1'")).await;
    applied(&c, &path, "two", &map("a: '1', b: '1'")).await;
    let mut o = read(&c, &path).await;
    o["data"] = json!({"a": "2", "c": "1"});
    let o = written(&c, "PUT", &format!("{path}?fieldManager=other"), "application/json", &o).await;
    assert_eq!(owned(&o, "one"), json!({"f:data": {"f:c": {}}}), "a is other's, b is gone");
    assert_eq!((owned(&o, "two"), owned(&o, "other")), (Value::Null, json!({"f:data": {"f:a": {}}})));
    let op = json!([{"op": "remove", "path": "/data/c"}]);
    let o = written(&c, "PATCH", &format!("{path}?fieldManager=last"), JSON_PATCH, &op).await;
    assert_eq!(managers(&o), ["other Update v1"]);
}

/// More than ten entries of operation `Update` become fewer, the oldest first. Appliers are not counted. Clauses: S02.cap
#[tokio::test(start_paused = true)]
async fn the_oldest_updates_are_merged() {
    let c = Cluster::start(1).await;
    let path = format!("{MAPS}/m");
    applied(&c, &path, "applier", &map("a: '1'")).await;
    for i in 0..12 {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        let change = json!({"data": {(format!("k{i}")): "1"}});
        written(&c, "PATCH", &format!("{path}?fieldManager=m{i}"), MERGE, &change).await;
    }
    let o = read(&c, &path).await;
    let updates: Vec<Value> = entries(&o).into_iter().filter(|e| e["operation"] == "Update").collect();
    assert!(updates.len() <= 10, "{}", updates.len());
    assert_eq!(updates[0]["manager"], "ancient-changes");
    assert!(updates[0]["fieldsV1"]["f:data"].get("f:k0").is_some());
    assert!(managers(&o).contains(&"applier Apply v1".to_owned()));
}

/// As in a cluster of upstream: who creates a pod owns its fields, and neither the scheduler's binding nor the condition of an eviction
/// is anybody's. (Server-side apply of `nodeName` would have conflicted with `kube-scheduler`.)
#[tokio::test]
async fn bindings_and_evictions_are_not_tracked() {
    let c = Cluster::start(1).await;
    let pods = "/api/v1/namespaces/default/pods";
    let managers = |pod: &Value| {
        let all = pod["metadata"]["managedFields"].as_array().unwrap();
        all.iter().map(|m| m["manager"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let pod = json!({"metadata": {"name": "p", "finalizers": ["example.com/keep"]}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let json_type = "application/json";
    written(&c, "POST", &format!("{pods}?fieldManager=creator"), json_type, &pod).await;
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    written(&c, "POST", &format!("{pods}/p/binding?fieldManager=binder"), json_type, &binding).await;
    let bound = read(&c, &format!("{pods}/p")).await;
    assert_eq!((bound["spec"]["nodeName"].as_str(), managers(&bound)), (Some("n"), vec!["creator".to_owned()]));
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}});
    written(&c, "POST", &format!("{pods}/p/eviction?fieldManager=evictor"), json_type, &eviction).await;
    let evicted = read(&c, &format!("{pods}/p")).await;
    let conditions = evicted["status"]["conditions"].as_array().unwrap();
    assert!(conditions.iter().any(|c| c["type"] == "DisruptionTarget"), "{evicted}");
    assert_eq!(managers(&evicted), ["creator"]);
}
