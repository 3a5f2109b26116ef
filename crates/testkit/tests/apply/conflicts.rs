//! Conflicts and the three ways to resolve them.

use super::*;

/// The second example: an applier of labels and a writer of data, who conflict when the applier names the data.
/// Clauses: S03.conflict, S05.update-takes
#[tokio::test]
async fn the_second_example_ends_in_a_conflict() {
    let c = Cluster::start(1).await;
    let path = format!("{MAPS}/test-cm");
    let labels = "metadata: {name: test-cm, namespace: default, labels: {test-label: test}}";
    let with = |data: &str| format!("{{apiVersion: v1, kind: ConfigMap, {labels}, data: {{key: {data}}}}}");
    applied(&c, &path, "kubectl", &with("some value")).await;
    let mut o = read(&c, &path).await;
    o["data"]["key"] = "new value".into();
    let o = written(&c, "PUT", &format!("{path}?fieldManager=kube-controller-manager"), "application/json", &o).await;
    assert_eq!(
        owned(&o, "kubectl"),
        json!({"f:metadata": {"f:labels": {"f:test-label": {}}}}),
        "an update never conflicts"
    );
    assert_eq!(owned(&o, "kube-controller-manager"), json!({"f:data": {"f:key": {}}}));
    assert_eq!(managers(&o), ["kube-controller-manager Update v1", "kubectl Apply v1"]);

    let a = apply(&c, &path, "kubectl", &with("some value")).await;
    assert_eq!(conflicts(&a), [conflict(".data.key", "\"kube-controller-manager\" using v1")]);
    let message = "Apply failed with 1 conflict: conflict with \"kube-controller-manager\" using v1: .data.key";
    assert_eq!(a.body["message"], message);
    assert_eq!(read(&c, &path).await, o, "nothing was written");
}

/// Every field in conflict is a cause, and names every manager who owns it. Clauses: S03.every-manager
#[tokio::test]
async fn every_field_and_every_manager_is_named() {
    let c = Cluster::start(1).await;
    let path = format!("{MAPS}/m");
    applied(&c, &path, "one", &map("a: '1', b: '1'")).await;
    applied(&c, &path, "two", &map("a: '1', c: '1'")).await;
    let annotated = json!({"metadata": {"annotations": {"note": "1"}}});
    written(&c, "PATCH", &format!("{path}?fieldManager=three"), MERGE, &annotated).await;
    let mine = "{apiVersion: v1, kind: ConfigMap, metadata: {name: m, annotations: {note: '2'}}, data: {a: '2', b: '2', c: '2', d: '2'}}";
    let a = apply(&c, &path, "mine", mine).await;
    let want = [
        conflict(".data.a", "\"one\""),
        conflict(".data.a", "\"two\""),
        conflict(".data.b", "\"one\""),
        conflict(".data.c", "\"two\""),
        conflict(".metadata.annotations.note", "\"three\" using v1"),
    ];
    assert_eq!(conflicts(&a), want);
    let message = "Apply failed with 5 conflicts: conflicts with \"one\":\n- .data.a\n- .data.b\nconflicts with \"three\" using v1:\n\
        - .metadata.annotations.note\nconflicts with \"two\":\n- .data.a\n- .data.c";
    assert_eq!(a.body["message"], message);
}

/// First way out: the value is overwritten, and all others lose the field. Clauses: S03.force
#[tokio::test]
async fn force_makes_one_manager_the_only_one() {
    let c = Cluster::start(1).await;
    let path = format!("{MAPS}/m");
    applied(&c, &path, "one", &map("a: '1', b: '1'")).await;
    applied(&c, &path, "two", &map("a: '1'")).await;
    let o = forced(&c, &path, "mine", &map("a: '2'")).await;
    assert_eq!(o["data"], json!({"a": "2", "b": "1"}));
    assert_eq!((owned(&o, "one"), owned(&o, "mine")), (json!({"f:data": {"f:b": {}}}), json!({"f:data": {"f:a": {}}})));
    assert_eq!(managers(&o), ["mine Apply v1", "one Apply v1"], "who owns nothing any more is gone");
    let forbidden = send(&c, "PATCH", &format!("{path}?force=true"), MERGE, "{}").await;
    assert_eq!((forbidden.code, &forbidden.body["details"]["causes"][0]["field"]), (422, &json!("force")));
}

/// Second way out: the field is left out, its value stays, and the entry of the applier loses it. Clauses: S03.give-up
#[tokio::test]
async fn giving_a_field_up_leaves_its_value() {
    let c = Cluster::start(1).await;
    let path = format!("{MAPS}/m");
    applied(&c, &path, "mine", &map("a: '1', b: '1'")).await;
    written(&c, "PATCH", &format!("{path}?fieldManager=other"), MERGE, &json!({"data": {"a": "2"}})).await;
    assert_eq!(conflicts(&apply(&c, &path, "mine", &map("a: '1', b: '1'")).await).len(), 1);
    let o = applied(&c, &path, "mine", &map("b: '1'")).await;
    assert_eq!(o["data"], json!({"a": "2", "b": "1"}));
    assert_eq!(
        (owned(&o, "mine"), owned(&o, "other")),
        (json!({"f:data": {"f:b": {}}}), json!({"f:data": {"f:a": {}}}))
    );
}

/// Third way out: the same value is applied, and both own the field; from then on either conflicts with the other who changes
/// it, until one gives it up. Clauses: S03.shared, S08.between-managers
#[tokio::test]
async fn equal_values_are_shared() {
    let c = Cluster::start(1).await;
    let path = format!("{MAPS}/m");
    applied(&c, &path, "one", &map("a: '1', b: '1'")).await;
    assert_eq!(conflicts(&apply(&c, &path, "two", &map("a: '2'")).await), [conflict(".data.a", "\"one\"")]);
    let o = applied(&c, &path, "two", &map("a: '1'")).await;
    assert_eq!((&owned(&o, "one")["f:data"]["f:a"], &owned(&o, "two")["f:data"]["f:a"]), (&json!({}), &json!({})));
    assert_eq!(conflicts(&apply(&c, &path, "one", &map("a: '3', b: '1'")).await), [conflict(".data.a", "\"two\"")]);
    assert_eq!(conflicts(&apply(&c, &path, "two", &map("a: '3'")).await), [conflict(".data.a", "\"one\"")]);
    // One of them hands it over to the other.
    let o = applied(&c, &path, "one", &map("b: '1'")).await;
    assert_eq!(o["data"], json!({"a": "1", "b": "1"}), "two still owns it");
    let o = applied(&c, &path, "two", &map("a: '3'")).await;
    assert_eq!(o["data"]["a"], "3", "nobody else does");
}

/// A conflict is no matter of a whole object: who applies other fields has none. Clauses: S03.disjoint
#[tokio::test]
async fn managers_of_other_fields_do_not_conflict() {
    let c = Cluster::start(1).await;
    let path = format!("{DEPLOYMENTS}/d");
    applied(&c, &path, "user", handover::NGINX_AS_D).await;
    let env = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: d}, spec: {template: {spec: {containers: \
        [{name: nginx, env: [{name: A, value: b}]}, {name: side, image: side}]}}}}";
    let o = applied(&c, &path, "sidecars", env).await;
    let names: Vec<&str> = o["spec"]["template"]["spec"]["containers"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|c| c["name"].as_str())
        .collect();
    assert_eq!(names, ["nginx", "side"]);
    let o = applied(&c, &path, "user", handover::NGINX_AS_D).await;
    assert_eq!(o["spec"]["template"]["spec"]["containers"].as_array().unwrap().len(), 2, "each keeps the other's");
}
