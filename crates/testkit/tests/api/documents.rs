//! Discovery and OpenAPI: compression, and ETags.

use apiserver::Body;
use bytes::Bytes;
use flate2::read::GzDecoder;
use http::{HeaderMap, Response};
use serde_json::{Value, json};
use std::io::Read;
use testkit::Cluster;

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

async fn get(c: &Cluster, path: &str, headers: &[(&str, &str)]) -> (u16, HeaderMap, Bytes) {
    let r: Response<Body> = c.request("GET", path, headers, Bytes::new()).await;
    let (parts, body) = r.into_parts();
    (parts.status.as_u16(), parts.headers, body.collect().await.unwrap())
}

fn gunzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    GzDecoder::new(bytes).read_to_end(&mut out).unwrap();
    out
}

fn text<'a>(h: &'a HeaderMap, name: &str) -> &'a str {
    h.get(name).map_or("", |v| v.to_str().unwrap())
}

#[tokio::test]
async fn documents_have_tags_and_are_not_sent_twice() {
    let c = Cluster::start(1).await;
    for (path, accept) in [
        ("/api", AGGREGATED),
        ("/apis", AGGREGATED),
        ("/openapi/v2", "application/json"),
        ("/openapi/v3/api/v1", "application/json"),
        ("/openapi/v3/apis/apps/v1", "application/json"),
    ] {
        let (code, h, body) = get(&c, path, &[("accept", accept)]).await;
        let etag = text(&h, "etag").to_owned();
        assert!(
            code == 200 && etag.len() > 10 && etag.starts_with('"') && etag.ends_with('"'),
            "{path}: {code} {etag}"
        );
        assert!(text(&h, "vary").contains("Accept"), "{path} varies by what is accepted");
        assert!(serde_json::from_slice::<Value>(&body).unwrap().is_object());
        let (code, h, body) = get(&c, path, &[("accept", accept), ("if-none-match", &etag)]).await;
        assert!(code == 304 && body.is_empty() && text(&h, "etag") == etag, "{path}: {code}");
        let (code, _, again) = get(&c, path, &[("accept", accept), ("if-none-match", "\"other\"")]).await;
        assert!(code == 200 && !again.is_empty(), "{path}: {code}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_index_of_openapi_leads_to_documents_that_may_be_kept() {
    let c = Cluster::start(1).await;
    let (_, _, index) = get(&c, "/openapi/v3", &[]).await;
    let index: Value = serde_json::from_slice(&index).unwrap();
    let mut seen = 0;
    for (place, v) in index["paths"].as_object().unwrap() {
        let url = v["serverRelativeURL"].as_str().unwrap();
        let (code, h, body) = get(&c, url, &[]).await;
        assert_eq!((code, text(&h, "cache-control")), (200, "public, immutable"), "{url}");
        assert!(text(&h, "expires").ends_with("2027 00:00:00 GMT"), "{}", text(&h, "expires"));
        let hash = url.rsplit('=').next().unwrap();
        assert_eq!(text(&h, "etag"), format!("\"{hash}\""));
        let document: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(document["openapi"], "3.0.0");
        // Everything a document refers to is in it.
        let schemas = document["components"]["schemas"].as_object().unwrap();
        for r in String::from_utf8(body.to_vec()).unwrap().split("\"$ref\":\"#/components/schemas/").skip(1) {
            let name = r.split('"').next().unwrap();
            assert!(schemas.contains_key(name), "{place} refers to {name}");
        }
        let (code, h, _) = get(&c, &url.replace(hash, "OLD"), &[]).await;
        assert_eq!((code, text(&h, "location")), (301, url), "an old address leads to the new one");
        seen += 1;
    }
    assert!(seen > 20, "{seen} documents");
    assert_eq!(get(&c, "/openapi/v3/apis/nosuch/v1", &[]).await.0, 404);
}

#[tokio::test]
async fn large_responses_are_compressed_on_request() {
    let c = Cluster::start(1).await;
    let gzip = ("accept-encoding", "gzip, deflate");
    for path in ["/openapi/v2", "/openapi/v3/api/v1"] {
        let (_, plain_headers, plain) = get(&c, path, &[]).await;
        assert_eq!(text(&plain_headers, "content-encoding"), "");
        let (code, h, packed) = get(&c, path, &[gzip]).await;
        assert_eq!((code, text(&h, "content-encoding")), (200, "gzip"), "{path}");
        assert!(packed.len() * 3 < plain.len() && gunzip(&packed) == plain, "{path}");
        assert!(h.get_all("vary").iter().any(|v| v == "Accept-Encoding"));
        let etag = text(&h, "etag").to_owned();
        let (code, h, _) = get(&c, path, &[gzip, ("if-none-match", &etag)]).await;
        assert_eq!((code, text(&h, "content-encoding")), (304, ""), "nothing is left to compress");
    }
    let maps = "/api/v1/namespaces/golden/configmaps";
    let one = json!({"metadata": {"name": "m"}, "data": {"k": "v".repeat(1000)}});
    assert_eq!(c.call("POST", maps, one).await.code, 201);
    assert_eq!(text(&get(&c, maps, &[gzip]).await.1, "content-encoding"), "", "small answers are not worth it");
    for i in 0..8 {
        let o = json!({"metadata": {"name": format!("m{i}")}, "data": {"k": "wide ".repeat(20_000)}});
        assert_eq!(c.call("POST", maps, o).await.code, 201);
    }
    for accept in ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"] {
        let (_, _, plain) = get(&c, maps, &[("accept", accept)]).await;
        let (_, h, packed) = get(&c, maps, &[("accept", accept), gzip]).await;
        assert_eq!((text(&h, "content-encoding"), text(&h, "content-type")), ("gzip", accept));
        assert!(packed.len() < plain.len() / 10 && gunzip(&packed) == plain, "{accept}");
    }
    // A watch is never held back for compression.
    let (parts, body) = c.request("GET", &format!("{maps}?watch=1"), &[gzip], Bytes::new()).await.into_parts();
    assert!(matches!(body, Body::Stream(_)) && parts.headers.get("content-encoding").is_none());
}

/// Every version of every group says the same in both forms of discovery.
#[tokio::test]
async fn both_forms_of_discovery_agree() {
    let c = Cluster::start(1).await;
    for s in crate::served::discover(&c).await {
        let root = if s.group.is_empty() { "/api" } else { "/apis" };
        let list = c.call("GET", &format!("{root}/{}", s.api_version()), Value::Null).await.body;
        let find = |name: &str| {
            let all = list["resources"].as_array().unwrap();
            all.iter().find(|r| r["name"] == name).unwrap_or_else(|| panic!("{name} is not in {list}")).clone()
        };
        let r = find(&s.resource);
        assert_eq!((&r["kind"], &r["namespaced"]), (&json!(s.kind), &json!(s.namespaced)));
        assert_eq!(r["verbs"], json!(s.verbs), "{s:?}");
        for sub in &s.subresources {
            assert_eq!(find(&format!("{}/{}", s.resource, sub.name))["verbs"], json!(sub.verbs), "{s:?}");
        }
    }
}

/// What is answered as text: keys in the order of the Go types, and a newline at its end unless it is indented.
#[tokio::test]
async fn json_is_in_the_order_of_gos_types() {
    let cluster = Cluster::start(9).await;
    let text = async |method: &str, path: &str, headers: &[(&str, &str)], body: &str| {
        let r = cluster.request(method, path, headers, bytes::Bytes::from(body.to_owned())).await;
        String::from_utf8(r.into_body().collect().await.unwrap().to_vec()).unwrap()
    };
    let get = async |path: &str| text("GET", path, &[], "").await;
    assert_eq!(
        get("/api/v1/namespaces/default/pods/none").await,
        concat!(
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"pods \"none\" not found","#,
            r#""reason":"NotFound","details":{"name":"none","kind":"pods"},"code":404}"#,
            "\n"
        )
    );
    let core = get("/api/v1").await;
    let start = concat!(
        r#"{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"bindings","singularName":"binding","#,
        r#""namespaced":true,"kind":"Binding","verbs":["create"]},"#
    );
    assert!(core.starts_with(start) && core.ends_with("]}\n"), "{core}");
    let start = r#"{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"apps/v1","resources":[{"name":"#;
    assert!(get("/apis/apps/v1").await.starts_with(start));
    assert_eq!(
        get("/apis/apps").await,
        concat!(
            r#"{"kind":"APIGroup","apiVersion":"v1","name":"apps","versions":[{"groupVersion":"apps/v1","version":"v1"}],"#,
            r#""preferredVersion":{"groupVersion":"apps/v1","version":"v1"}}"#,
            "\n"
        )
    );
    let groups = get("/apis").await;
    assert!(
        groups.starts_with(r#"{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"#)
            && groups.ends_with("]}\n")
    );
    assert!(get("/api").await.starts_with(r#"{"kind":"APIVersions","versions":["v1"],"serverAddressByClientCIDRs":["#));
    let accept = [("accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")];
    let all = text("GET", "/apis", &accept, "").await;
    let start = r#"{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{},"items":[{"metadata":{"name":"#;
    assert!(all.starts_with(start) && all.ends_with("}\n"), "{}", &all[..300]);
    let deployments = concat!(
        r#"{"resource":"deployments","responseKind":{"group":"","version":"","kind":"Deployment"},"scope":"Namespaced","#,
        r#""singularResource":"deployment","verbs":["create","#
    );
    assert!(all.contains(deployments));
    let issuer = get("/.well-known/openid-configuration").await;
    assert!(issuer.starts_with(r#"{"issuer":""#) && issuer.contains(r#","jwks_uri":""#), "{issuer}");
    let version = get("/version").await;
    assert!(
        version.starts_with("{\n  \"major\": \"1\",\n  \"minor\": \"36\",\n  \"emulationMajor\"")
            && version.ends_with('}'),
        "{version}"
    );
    let roots = get("/").await;
    assert!(roots.starts_with("{\n  \"paths\": [\n    \"/api\",\n") && roots.ends_with('}'), "{roots}");

    // Where people look, the objects too, and nothing behind the last brace.
    let pretty = [("accept", "application/json;pretty=1"), ("content-type", "application/json")];
    let made =
        text("POST", "/api/v1/namespaces", &pretty, r#"{"metadata":{"name":"order","labels":{"b":"1","a":"2"}}}"#)
            .await;
    let keys: Vec<&str> = made.lines().filter_map(|l| l.strip_prefix("    \"")?.split('"').next()).collect();
    assert_eq!(keys[..5], ["name", "uid", "resourceVersion", "creationTimestamp", "labels"], "{made}");
    assert!(
        made.starts_with("{\n  \"kind\": \"Namespace\",\n  \"apiVersion\": \"v1\",\n  \"metadata\": {\n")
            && made.ends_with('}'),
        "{made}"
    );
    let one = get("/api/v1/namespaces/order").await;
    assert!(one.starts_with("{\"kind\":\"Namespace\"") && one.ends_with("}\n"), "{one}");
}
