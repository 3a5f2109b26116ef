//! Device requests: permissions and costs.

use serde_json::{Value, json};
use testkit::Cluster;

/// Access to devices in use is for namespaces that an administrator marked.
#[tokio::test]
async fn admin_access_to_devices_needs_a_label() {
    const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/golden";
    let c = Cluster::start(1).await;
    let request = json!({"name": "r", "exactly": {"deviceClassName": "c.example.com", "adminAccess": true}});
    let spec = json!({"devices": {"requests": [request]}});
    let bodies = [("resourceclaims", spec.clone()), ("resourceclaimtemplates", json!({"spec": spec}))];
    for (resource, spec) in &bodies {
        let a = c.call("POST", &format!("{CLAIMS}/{resource}"), json!({"metadata": {"name": "x"}, "spec": spec})).await;
        let field = &a.body["details"]["causes"][0]["field"];
        assert_eq!((a.code, field), (422, &json!("spec.devices.requests[0].adminAccess")), "{}", a.body);
    }
    let label = json!({"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}).to_string();
    let media = Some("application/merge-patch+json");
    assert_eq!(c.send("PATCH", "/api/v1/namespaces/golden", media, "application/json", label.into()).await.code, 200);
    for (resource, spec) in &bodies {
        let a = c.call("POST", &format!("{CLAIMS}/{resource}"), json!({"metadata": {"name": "x"}, "spec": spec})).await;
        assert_eq!(a.code, 201, "{}", a.body);
    }
    // What is allocated may give it only where it may be asked for.
    let result = json!({"request": "r", "driver": "d.example.com", "pool": "p", "device": "d", "adminAccess": true});
    let status = json!({"status": {"allocation": {"devices": {"results": [result]}}}}).to_string();
    let path = format!("{CLAIMS}/resourceclaims/x/status");
    for (label, code) in [("false", 422), ("true", 200), ("false", 200)] {
        let label = json!({"metadata": {"labels": {"resource.kubernetes.io/admin-access": label}}}).to_string();
        assert_eq!(
            c.send("PATCH", "/api/v1/namespaces/golden", media, "application/json", label.into()).await.code,
            200
        );
        let a = c.send("PATCH", &path, media, "application/json", status.clone().into()).await;
        assert_eq!(a.code, code, "{}", a.body);
        if code == 422 {
            let cause = &a.body["details"]["causes"][0];
            assert_eq!(cause["field"], "status.allocation.devices.results[0].adminAccess", "{cause}");
        }
    }
}

#[tokio::test]
async fn expressions_over_devices_have_a_price() {
    let c = Cluster::start(1).await;
    let mut dear = "device.driver == 'd'".to_owned();
    for v in ["a", "b", "c", "d", "e", "f"] {
        dear = format!("[1, 2, 3, 4, 5, 6, 7, 8, 9, 10].all({v}, {dear})");
    }
    let cheap = "device.attributes['d.example.com'].all(k, device.attributes['d.example.com'][k] == 'v')";
    for (expression, why) in [(&*dear, Some("Forbidden: too complex, exceeds cost limit")), (cheap, None)] {
        let class =
            json!({"metadata": {"generateName": "c"}, "spec": {"selectors": [{"cel": {"expression": expression}}]}});
        let a = c.call("POST", "/apis/resource.k8s.io/v1/deviceclasses", class).await;
        let cause = &a.body["details"]["causes"][0];
        assert_eq!((a.code, cause["message"].as_str()), (if why.is_some() { 422 } else { 201 }, why), "{}", a.body);
        if why.is_some() {
            assert_eq!(cause["field"], "spec.selectors[0].cel.expression");
        }
    }
}

/// An empty `dryRun` was none, and what should only have been tried was done.
#[tokio::test]
async fn nothing_is_written_for_a_wrong_dry_run() {
    let c = Cluster::start(1).await;
    let path = "/api/v1/namespaces/default/configmaps";
    let body = || json!({"metadata": {"name": "c"}});
    assert_eq!(c.call("POST", path, body()).await.code, 201);
    let one = format!("{path}/c");
    for (query, shown) in
        [("dryRun=", r#"[""]"#), ("dryRun=all", r#"["all"]"#), ("dryRun=All&dryRun=x", r#"["All","x"]"#)]
    {
        for (method, path, body) in [
            ("POST", path, json!({"metadata": {"name": "n"}})),
            ("PUT", &one, body()),
            ("DELETE", &one, Value::Null),
            ("DELETE", path, Value::Null),
        ] {
            let a = c.call(method, &format!("{path}?{query}"), body).await;
            assert_eq!(a.code, 422, "{method} {query}: {}", a.body);
            let why = format!("dryRun: Unsupported value: {shown}: supported values: \"All\"");
            assert!(a.body["message"].as_str().unwrap().ends_with(&why), "{method}: {}", a.body);
        }
    }
    assert_eq!(c.call("GET", &one, Value::Null).await.code, 200);
    assert_eq!(c.call("GET", &format!("{path}/n"), Value::Null).await.code, 404);
    let a = c.call("DELETE", &format!("{one}?dryRun="), Value::Null).await;
    assert!(
        a.body["message"].as_str().unwrap().starts_with("DeleteOptions.meta.k8s.io \"\" is invalid: "),
        "{}",
        a.body
    );
    // All problems of the options are told.
    let a = c.call("POST", &format!("{path}?dryRun=x&fieldManager=%01&fieldValidation=y"), body()).await;
    let fields: Vec<&str> =
        a.body["details"]["causes"].as_array().unwrap().iter().map(|c| c["field"].as_str().unwrap()).collect();
    assert_eq!(fields, ["fieldManager", "dryRun", "fieldValidation"], "{}", a.body);
    assert!(a.body["message"].as_str().unwrap().contains("invalid character U+0001 (at position 0)"), "{}", a.body);
    // Options of an eviction are those of a deletion.
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    assert_eq!(c.call("POST", pods, pod).await.code, 201);
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}, "deleteOptions": {"dryRun": ["x"]}});
    let a = c.call("POST", &format!("{pods}/p/eviction"), eviction).await;
    assert_eq!(a.code, 422, "{}", a.body);
    assert_eq!(c.call("GET", &format!("{pods}/p"), Value::Null).await.code, 200);
}

/// Upstream reads the query of a deletion only if there is no body.
#[tokio::test]
async fn the_body_of_a_deletion_replaces_its_query() {
    let c = Cluster::start(1).await;
    let path = "/api/v1/namespaces/default/configmaps";
    let left = async |query: &str, body: Value| {
        assert!(matches!(c.call("POST", path, json!({"metadata": {"name": "c"}})).await.code, 201 | 409));
        let a = c.call("DELETE", &format!("{path}/c?{query}"), body).await;
        assert_eq!(a.code, 200, "{}", a.body);
        c.call("GET", &format!("{path}/c"), Value::Null).await.code == 200
    };
    assert!(left("dryRun=All", Value::Null).await);
    assert!(left("", json!({"dryRun": ["All"]})).await);
    assert!(left("propagationPolicy=Nonsense", json!({"dryRun": ["All"]})).await);
    assert!(!left("dryRun=All", json!({})).await);
    let a = c.call("DELETE", &format!("{path}/c?gracePeriodSeconds=x"), Value::Null).await;
    assert_eq!((a.code, a.body["message"].as_str()), (400, Some("strconv.ParseInt: parsing \"x\": invalid syntax")));
}

/// A Secret that was applied at the path of a ConfigMap became one, and a patch of the kind was ignored.
#[tokio::test]
async fn objects_stay_of_their_kind() {
    let c = Cluster::start(1).await;
    let path = "/api/v1/namespaces/default/configmaps";
    let one = format!("{path}/c");
    let apply = async |body: Value| {
        let apply = format!("{one}?fieldManager=m");
        let a = c
            .send("PATCH", &apply, Some("application/apply-patch+yaml"), "application/json", body.to_string().into())
            .await;
        (a.code, a.body["message"].as_str().unwrap_or_default().to_owned())
    };
    let named = |version: &str, kind: &str| json!({"apiVersion": version, "kind": kind, "metadata": {"name": "c"}});
    for (version, kind, shown) in [
        ("v1", "Secret", "/v1, Kind=Secret"),
        ("v1", "configmap", "/v1, Kind=configmap"),
        ("apps/v1", "Deployment", "apps/v1, Kind=Deployment"),
        ("apps/v1", "ConfigMap", "apps/v1, Kind=ConfigMap"),
        ("", "", "/, Kind="),
    ] {
        assert_eq!(apply(named(version, kind)).await, (400, format!("invalid object type: {shown}")));
    }
    let why = "the name of the object (c based on URL) was undeterminable: name must be provided";
    assert_eq!(apply(json!({"apiVersion": "v1", "kind": "ConfigMap"})).await, (400, why.to_owned()));
    assert_eq!(apply(named("v1", "ConfigMap")).await.0, 201);
    assert_eq!(apply(json!({"apiVersion": "v1", "kind": "ConfigMap"})).await.0, 200, "the object has a name");
    let patch = async |media: &str, body: &str| {
        let a = c.send("PATCH", &one, Some(media), "application/json", body.to_owned().into()).await;
        (a.code, a.body["message"].as_str().unwrap_or_default().to_owned())
    };
    let merge = "application/merge-patch+json";
    for (media, body, why) in [
        (
            merge,
            r#"{"kind": "X"}"#,
            r#"no kind "X" is registered for version "v1" in scheme "pkg/api/legacyscheme/scheme.go:30""#,
        ),
        (
            merge,
            r#"{"apiVersion": "v2"}"#,
            r#"no kind "ConfigMap" is registered for version "v2" in scheme "pkg/api/legacyscheme/scheme.go:30""#,
        ),
        (
            "application/json-patch+json",
            r#"[{"op": "replace", "path": "/kind", "value": "Secret"}]"#,
            "unable to decode /v1, Kind=Secret into *core.ConfigMap",
        ),
    ] {
        let (code, message) = patch(media, body).await;
        assert_eq!(code, 422, "{message}");
        assert!(message.contains("\"\" is invalid: patch: Invalid value: \"{") && message.ends_with(why), "{message}");
    }
    assert_eq!(patch(merge, r#"{"kind": "ConfigMap", "data": {"a": "b"}}"#).await.0, 200);
    // What a body leaves out is that of the path.
    for body in [json!({"kind": "ConfigMap"}), json!({"apiVersion": "v1"}), json!({})] {
        let mut body = body;
        body["metadata"] = json!({"generateName": "g-"});
        assert_eq!(c.call("POST", path, body).await.code, 201);
    }
}
