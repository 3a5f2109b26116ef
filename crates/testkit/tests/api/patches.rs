//! Strict errors of patches: duplicate keys.

use testkit::Cluster;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn send(c: &Cluster, validation: &str, media: &str, body: &str) -> (u16, String) {
    let path = format!("{MAPS}/m?dryRun=All&fieldValidation={validation}");
    let headers = [("content-type", media), ("accept", "application/json")];
    let response = c.request("PATCH", &path, &headers, body.to_owned().into()).await;
    let warned: Vec<&str> = response.headers().get_all("warning").iter().filter_map(|v| v.to_str().ok()).collect();
    let (code, warned) = (response.status().as_u16(), warned.join(" "));
    let bytes = response.into_body().collect().await.unwrap();
    (code, if code == 200 { warned } else { String::from_utf8_lossy(&bytes).into_owned() })
}

#[tokio::test]
async fn duplicate_keys_are_reported_for_every_patch_type() {
    let c = Cluster::start(1).await;
    c.call("POST", MAPS, serde_json::json!({"metadata": {"name": "m"}})).await;
    let twice = r#"{"data": {"a": "1", "a": "2"}, "bogus": 1}"#;
    let cases = [
        ("application/merge-patch+json", twice, ["duplicate field", "data.a", "unknown field", "bogus"]),
        ("application/strategic-merge-patch+json", twice, ["duplicate field", "data.a", "unknown field", "bogus"]),
        (
            "application/json-patch+json",
            r#"[{"op": "add", "path": "/bogus", "value": 1, "value": 2}]"#,
            ["json patch duplicate field", "[0].value", "unknown field", "bogus"],
        ),
    ];
    for (media, body, errors) in cases {
        let (code, text) = send(&c, "Warn", media, body).await;
        assert!(code == 200 && errors.iter().all(|s| text.contains(s)), "{media} {code} {text}");
        let (code, text) = send(&c, "Strict", media, body).await;
        assert!(code == 422 && errors.iter().all(|s| text.contains(s)), "{media} {code} {text}");
        assert_eq!(send(&c, "Ignore", media, body).await, (200, String::new()), "{media}");
    }
    let (code, text) = send(&c, "Loudly", "application/merge-patch+json", "{}").await;
    assert!(code == 422 && text.contains("PatchOptions.meta.k8s.io"), "{text}");
}

#[tokio::test]
async fn errors_show_the_patched_object() {
    let c = Cluster::start(1).await;
    c.call("POST", MAPS, serde_json::json!({"metadata": {"name": "m"}, "data": {"a": "<"}})).await;
    let strict = |body: &str| {
        let v: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!((&v["reason"], v["details"].get("kind")), (&"Invalid".into(), None), "{body}");
        v["message"].as_str().unwrap().to_owned()
    };
    let shown = |m: &str| m.strip_prefix(r#" "" is invalid: patch: Invalid value: "#).unwrap().to_owned();
    // A strategic patch is shown itself, as Go prints a map.
    let body = r#"{"zz": [1, {"b": null}], "bogus": {"x": true}, "data": {"a": "1"}}"#;
    let (_, text) = send(&c, "Strict", "application/strategic-merge-patch+json", body).await;
    let want = r#""map[bogus:map[x:true] data:map[a:1] zz:[1 map[b:<nil>]]]": strict decoding error: unknown field "bogus", unknown field "zz""#;
    assert_eq!(shown(&strict(&text)), want);
    // Of the others, the patched object.
    for (media, body, problems) in [
        ("application/merge-patch+json", r#"{"bogus": 1}"#, r#"unknown field "bogus""#),
        (
            "application/json-patch+json",
            r#"[{"op": "add", "path": "/bogus", "value": 1, "foo": 2, "fo": {"a": 1}}]"#,
            r#"json patch unknown field "[0].fo", json patch unknown field "[0].foo", unknown field "bogus""#,
        ),
    ] {
        let (code, text) = send(&c, "Strict", media, body).await;
        let text = shown(&strict(&text));
        let tail = format!(": strict decoding error: {problems}");
        let object: String =
            serde_json::from_str(text.strip_suffix(&tail).unwrap_or_else(|| panic!("{text}"))).unwrap();
        let object: serde_json::Value = serde_json::from_str(&object).unwrap();
        assert_eq!((code, &object["bogus"], &object["metadata"]["name"]), (422, &1.into(), &"m".into()));
        let (code, warned) = send(&c, "Warn", media, body).await;
        for p in problems.split(", ") {
            assert!(code == 200 && warned.contains(&p.replace('"', "\\\"")), "{p}: {warned}");
        }
        assert_eq!(send(&c, "Ignore", media, body).await, (200, String::new()));
    }
    let wrong = [
        ("application/merge-patch+json", r#"{"data": 1}"#),
        ("application/strategic-merge-patch+json", r#"{"data": 1}"#),
    ];
    for (media, body) in wrong {
        let (code, text) = send(&c, "Ignore", media, body).await;
        assert!(code == 422 && !text.contains("cannot be handled"), "{text}");
    }
    // Members of an operation are texts.
    for member in ["op", "path", "from"] {
        let mut op = serde_json::json!({"op": "add", "path": "/data/b", "value": "1"});
        op[member] = 1.into();
        let (code, text) = send(&c, "Warn", "application/json-patch+json", &format!("[{op}]")).await;
        let why = format!(
            "error decoding patch: json: cannot unmarshal number into Go struct field jsonPatchOp.{member} of type string"
        );
        assert!(code == 400 && text.contains(&why), "{text}");
    }
}

#[tokio::test]
async fn patches_of_a_scale_are_read_as_strictly() {
    let c = Cluster::start(1).await;
    let path = "/apis/apps/v1/namespaces/default/deployments";
    let template =
        serde_json::json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let body = serde_json::json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}});
    assert_eq!(c.call("POST", path, body).await.code, 201);
    let scale = format!("{path}/d/scale?fieldManager=m&fieldValidation=");
    for (media, body, unknown) in [
        ("application/merge-patch+json", r#"{"spec": {"replicas": 2, "bogus": 1}}"#, "spec.bogus"),
        ("application/strategic-merge-patch+json", r#"{"spec": {"replicas": 2, "bogus": 1}}"#, "spec.bogus"),
        ("application/json-patch+json", r#"[{"op": "add", "path": "/spec/bogus", "value": 1}]"#, "spec.bogus"),
    ] {
        let a = c.send("PATCH", &format!("{scale}Strict"), Some(media), "application/json", body.into()).await;
        let why = format!("strict decoding error: unknown field {unknown:?}");
        assert!(a.code == 422 && a.body["message"].as_str().unwrap().ends_with(&why), "{:?}", a.body);
        let a = c.send("PATCH", &format!("{scale}Warn"), Some(media), "application/json", body.into()).await;
        assert!(a.code == 200 && a.warned && a.body["spec"].get("bogus").is_none(), "{:?}", a.body);
    }
    let apply = |version: &str, field: &str| {
        format!("apiVersion: {version}\nkind: Scale\nmetadata: {{name: d, namespace: default}}\nspec: {{{field}: 3}}\n")
    };
    for (body, code, why) in [
        (
            apply("autoscaling/v1", "bogus"),
            400,
            "failed to create typed patch object (default/d; autoscaling/v1, Kind=Scale): .spec.bogus: field not declared in schema",
        ),
        (apply("apps/v1", "replicas"), 400, "invalid object type: apps/v1, Kind=Scale"),
        (apply("autoscaling/v1", "replicas"), 200, ""),
    ] {
        let path = format!("{scale}&force=true");
        let a = c.send("PATCH", &path, Some("application/apply-patch+yaml"), "application/json", body.into()).await;
        let message = a.body["message"].as_str().unwrap_or_default().to_owned();
        assert!(a.code == code && message.contains(why), "{why}: {:?}", a.body);
    }
}

/// A strategic patch makes values, which upstream's converter reads in words of its own.
#[tokio::test]
async fn strategic_patches_of_a_wrong_type_have_upstreams_errors() {
    let c = Cluster::start(1).await;
    let path = "/api/v1/namespaces/default/pods";
    let pod = serde_json::json!({"metadata": {"name": "p"}, "spec": {"automountServiceAccountToken": false,
        "containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80}], "env": [{"name": "A", "value": "1"}]}]}});
    assert_eq!(c.call("POST", path, pod).await.code, 201);
    for (body, why) in [
        (r#"{"spec":"x"}"#, "cannot restore struct from: string"),
        (r#"{"spec":{"containers":"x"}}"#, "cannot restore slice from string"),
        (r#"{"spec":{"containers":{"name":"c"}}}"#, "cannot restore slice from map"),
        (r#"{"metadata":{"labels":"x"}}"#, "cannot restore map from string"),
        (r#"{"metadata":{"labels":{"a":1}}}"#, "cannot convert int64 to string"),
        (r#"{"metadata":{"labels":{"a":true}}}"#, "unrecognized type: string"),
        (r#"{"metadata":{"labels":{"a":1.5}}}"#, "unrecognized type: string"),
        (r#"{"spec":{"restartPolicy":1}}"#, "cannot convert int64 to v1.RestartPolicy"),
        (r#"{"spec":{"hostNetwork":"yes"}}"#, "unrecognized type: bool"),
        (r#"{"spec":{"terminationGracePeriodSeconds":"x"}}"#, "unrecognized type: int64"),
        (r#"{"spec":{"terminationGracePeriodSeconds":1.5}}"#, "cannot convert float64 to int64"),
        (r#"{"metadata":{"creationTimestamp":1}}"#, "json: cannot unmarshal number into Go value of type string"),
        (
            r#"{"spec":{"containers":[{"name":"c","livenessProbe":{"tcpSocket":{"port":true}}}]}}"#,
            "json: cannot unmarshal bool into Go value of type int32",
        ),
    ] {
        let a = c
            .send(
                "PATCH",
                &format!("{path}/p"),
                Some("application/strategic-merge-patch+json"),
                "application/json",
                body.into(),
            )
            .await;
        let message = a.body["message"].as_str().unwrap_or_default();
        assert!(a.code == 422 && message.ends_with(&format!("]\": {why}")), "{body}: {} {message}", a.code);
        assert!(message.starts_with(r#" "" is invalid: patch: Invalid value: "map["#), "{message}");
    }
}
