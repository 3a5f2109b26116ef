//! What is said of the text of a patch: keys that come twice.

use kemudi_testkit::Cluster;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn send(c: &Cluster, validation: &str, media: &str, body: &str) -> (u16, String) {
    let path = format!("{MAPS}/m?dryRun=All&fieldValidation={validation}");
    let headers = [("content-type", media), ("accept", "application/json")];
    let response = c.request("PATCH", &path, &headers, body.to_owned().into()).await;
    let warned: Vec<&str> = response.headers().get_all("warning").iter().filter_map(|v| v.to_str().ok()).collect();
    let (code, warned) = (response.status().as_u16(), warned.join(" "));
    let bytes = response.into_body().collect().await;
    (code, if code == 200 { warned } else { String::from_utf8_lossy(&bytes).into_owned() })
}

#[tokio::test]
async fn keys_that_come_twice_are_told_of_every_kind_of_patch() {
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
    for (media, body, said) in cases {
        let (code, text) = send(&c, "Warn", media, body).await;
        assert!(code == 200 && said.iter().all(|s| text.contains(s)), "{media} {code} {text}");
        let (code, text) = send(&c, "Strict", media, body).await;
        assert!(code == 422 && said.iter().all(|s| text.contains(s)), "{media} {code} {text}");
        assert_eq!(send(&c, "Ignore", media, body).await, (200, String::new()), "{media}");
    }
    let (code, text) = send(&c, "Loudly", "application/merge-patch+json", "{}").await;
    assert!(code == 422 && text.contains("PatchOptions.meta.k8s.io"), "{text}");
}
