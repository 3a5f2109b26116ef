//! From client-side apply to server-side apply and back.

use super::*;

const LAST: &str = "kubectl.kubernetes.io/last-applied-configuration";

fn configured(replicas: u32, image: &str) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"annotations": {}, "name": "d", "namespace": "default"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}},
            "spec": {"containers": [{"image": image, "name": "c"}]}}}})
}

/// What `kubectl apply` sends for a new object.
async fn applied_by_the_client(c: &Cluster) -> Value {
    let config = configured(3, "i:1");
    let mut body = config.clone();
    body["metadata"]["annotations"][LAST] = format!("{config}\n").into();
    let path = format!("{DEPLOYMENTS}?fieldManager=kubectl-client-side-apply");
    written(c, "POST", &path, "application/json", &body).await
}

fn path() -> String {
    format!("{DEPLOYMENTS}/d")
}

fn last_applied(o: &Value) -> Value {
    serde_json::from_str(o["metadata"]["annotations"][LAST].as_str().unwrap_or_default()).unwrap_or_default()
}

/// With the manager `kubectl` there are no conflicts with what was applied by the client before, and with any other there are.
/// Clauses: S09.to-server-side, S09.other-manager
#[tokio::test]
async fn kubectl_takes_over_from_its_client_side_apply() {
    let c = Cluster::start(1).await;
    let o = applied_by_the_client(&c).await;
    assert_eq!(managers(&o), ["kubectl-client-side-apply Update apps/v1"]);
    let next = configured(4, "i:2").to_string();
    let a = apply(&c, &path(), "my-manager", &next).await;
    let with = "\"kubectl-client-side-apply\" using apps/v1";
    let image = ".spec.template.spec.containers[name=\"c\"].image";
    assert_eq!(conflicts(&a), [conflict(".spec.replicas", with), conflict(image, with)]);
    let dry = send(&c, "PATCH", &format!("{}?fieldManager=kubectl&dryRun=All", path()), APPLY, &next).await;
    assert_eq!(dry.code, 200, "{}", dry.body);
    assert_eq!(read(&c, &path()).await, o, "dry");

    let o = applied(&c, &path(), "kubectl", &next).await;
    assert_eq!(
        (&o["spec"]["replicas"], &o["spec"]["template"]["spec"]["containers"][0]["image"]),
        (&json!(4), &json!("i:2"))
    );
    assert_eq!(owned(&o, "kubectl")["f:spec"]["f:replicas"], json!({}));
}

/// What somebody else has changed since is a conflict for kubectl too, and it alone is named. Clauses: S09.changed-since
#[tokio::test]
async fn later_changes_still_conflict() {
    let c = Cluster::start(1).await;
    applied_by_the_client(&c).await;
    let change = json!({"spec": {"replicas": 7}});
    written(&c, "PATCH", &format!("{}?fieldManager=scaler", path()), MERGE, &change).await;
    let a = apply(&c, &path(), "kubectl", &configured(4, "i:2").to_string()).await;
    assert_eq!(conflicts(&a), [conflict(".spec.replicas", "\"scaler\" using apps/v1")]);
}

/// As long as the annotation is there, server-side apply by kubectl keeps it current, so that client-side apply can go on from
/// it: what was dropped in between is dropped. Another manager leaves it alone. Clauses: S09.back, S09.annotation
#[tokio::test]
async fn client_side_apply_finds_a_current_annotation() {
    let c = Cluster::start(1).await;
    applied_by_the_client(&c).await;
    let o = applied(&c, &path(), "kubectl", &configured(4, "i:2").to_string()).await;
    let mut want = configured(4, "i:2");
    want["metadata"].as_object_mut().unwrap().remove("annotations");
    let mut have = last_applied(&o);
    have["metadata"].as_object_mut().unwrap().remove("annotations");
    assert_eq!(have, want);
    let before = o["metadata"]["annotations"][LAST].clone();
    let labels = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: d, labels: {x: v}}}";
    let o = applied(&c, &path(), "my-manager", labels).await;
    assert_eq!(o["metadata"]["annotations"][LAST], before);
}

/// Objects that were written before anyone applied anything belong to whom they belong, and one without managed fields to
/// `before-first-apply`. Clauses: S09.before-first-apply
#[tokio::test]
async fn the_first_apply_creates_missing_managed_fields() {
    let c = Cluster::start(1).await;
    let body = json!({"metadata": {"name": "m", "labels": {"x": "y"}}, "data": {"a": "1", "b": "1"}});
    written(&c, "POST", MAPS, "application/json", &body).await;
    let path = format!("{MAPS}/m");
    written(&c, "PATCH", &path, MERGE, &json!({"metadata": {"managedFields": [{}]}})).await;
    assert_eq!(entries(&read(&c, &path).await), [] as [Value; 0]);
    written(&c, "PATCH", &path, MERGE, &json!({"data": {"b": "2"}})).await;
    assert_eq!(entries(&read(&c, &path).await), [] as [Value; 0], "nobody is tracked until something is applied");
    let a = apply(&c, &path, "one", &map("a: '2'")).await;
    assert_eq!(conflicts(&a), [conflict(".data.a", "\"before-first-apply\" using v1")]);
    let o = applied(&c, &path, "one", &map("a: '1'")).await;
    assert_eq!(managers(&o), ["before-first-apply Update v1", "one Apply v1"]);
    let all = owned(&o, "before-first-apply");
    assert!(all["f:data"].get("f:b").is_some() && all["f:metadata"]["f:labels"].get("f:x").is_some(), "{all}");
}
