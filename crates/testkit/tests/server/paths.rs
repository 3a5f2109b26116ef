//! Whatever way a path is written, it leads to nothing but what its sender was allowed.

use crate::socket::server;
use apiserver::{Options, Server};
use async_trait::async_trait;
use auth::{Attributes, Authorizer, Decision};
use bytes::Bytes;
use http::{Method, Request};
use kemudi_testkit::Cluster;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use serde_json::json;
use std::sync::Arc;
use store::Key;

/// Allows config maps of the namespace `default`, and the documents that everybody may read.
struct Little;

#[async_trait]
impl Authorizer for Little {
    fn authorize(&self, a: &Attributes) -> Decision {
        let own = a.resource == "configmaps" && a.namespace == "default" && a.group.is_empty();
        let document = a.resource.is_empty()
            && ["/api", "/apis", "/openapi", "/healthz"]
                .iter()
                .any(|p| a.path == *p || a.path.starts_with(&format!("{p}/")));
        if own || document { Decision::Allow(String::new()) } else { Decision::NoOpinion(String::new()) }
    }
}

const SEGMENTS: [&str; 22] = [
    "api",
    "v1",
    "apis",
    "watch",
    "namespaces",
    "default",
    "golden",
    "configmaps",
    "hidden",
    "own",
    "status",
    "",
    ".",
    "..",
    "%2e%2e",
    "%2F",
    "golden%2Fconfigmaps",
    "CONFIGMAPS",
    "%00",
    ";",
    "finalize",
    "default%2f..%2fgolden",
];
const METHODS: [Method; 6] = [Method::GET, Method::HEAD, Method::PUT, Method::DELETE, Method::PATCH, Method::OPTIONS];
const QUERIES: [&str; 5] = [
    "",
    "?watch=1&timeoutSeconds=1",
    "?fieldSelector=metadata.name%3Dhidden",
    "?limit=1",
    "?watch=true&watch=false&timeoutSeconds=1",
];

#[tokio::test(start_paused = true)]
async fn no_way_of_writing_a_path_leads_elsewhere() {
    let c = Cluster::start(41).await;
    let s = server(&c, Options::default());
    let s = Server::with(
        s.registry.clone(),
        apiserver::Authenticators { tokens: s.authenticators.tokens.clone(), ..Default::default() },
        Arc::new(Little),
        admission::default_plugins(),
        Options::default(),
    );
    for (ns, name) in [("golden", "hidden"), ("default", "own")] {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"text": format!("of-{ns}")}});
        c.call("POST", &format!("/api/v1/namespaces/{ns}/configmaps"), map).await;
    }
    let hidden =
        |s: &Server| s.registry.store.snapshot().get(&Key::new("configmaps", "golden", "hidden")).unwrap().revision;
    let revision = hidden(&s);
    let path = (
        0..3usize,
        proptest::collection::vec(0..SEGMENTS.len(), 1..8),
        proptest::bool::ANY,
        0..METHODS.len(),
        0..QUERIES.len(),
    );
    let mut runner = TestRunner::deterministic();
    let (mut seen, mut allowed) = (0, 0);
    for _ in 0..4000 {
        let (slashes, all, near, method, query) = path.new_tree(&mut runner).unwrap().current();
        let middle: Vec<&str> = all.iter().map(|i| SEGMENTS[*i]).collect();
        let begin = format!("{}{}", "/".repeat(slashes + 1), if near { "api/v1/namespaces/" } else { "" });
        let uri = format!("{begin}{}{}", middle.join("/"), QUERIES[query]);
        let Ok(request) = Request::builder()
            .method(METHODS[method].clone())
            .uri(&uri)
            .header("authorization", "Bearer jane")
            .header("content-type", "application/merge-patch+json")
            .body(Bytes::from_static(br#"{"data":{"text":"changed"}}"#))
        else {
            continue;
        };
        seen += 1;
        let (parts, body) = s.handle(request).await.into_parts();
        let text = body.collect().await;
        let text = String::from_utf8_lossy(&text);
        assert!(!text.contains("of-golden"), "{} {uri}: {text}", METHODS[method]);
        assert_eq!(hidden(&s), revision, "{} {uri}", METHODS[method]);
        allowed += u32::from(parts.status.is_success());
    }
    assert!(seen > 3000 && allowed > 20, "{seen} were sent, {allowed} led somewhere");
}
