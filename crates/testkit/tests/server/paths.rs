//! Variants of a request path never reach a resource that the client may not access.

use crate::socket::server;
use apiserver::{Options, Server};
use async_trait::async_trait;
use auth::{Attributes, Authorizer, Decision};
use bytes::Bytes;
use http::{Method, Request};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use serde_json::json;
use std::sync::Arc;
use store::Key;
use testkit::Cluster;

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

/// What is allowed, what is not, and what leads there through another door.
const PATHS: [&str; 7] = [
    "api/v1/namespaces/default/configmaps",
    "api/v1/namespaces/default/configmaps/own",
    "api/v1/namespaces/golden/configmaps/hidden",
    "api/v1/namespaces/golden/configmaps",
    "api/v1/watch/namespaces/default/configmaps",
    "api/v1/watch/namespaces/golden/configmaps/hidden",
    "api/v1/configmaps",
];
/// Put between two segments, or in the place of one.
const SEGMENTS: [&str; 22] = [
    "",
    "",
    ".",
    "..",
    "%2e%2e",
    "%2F",
    "golden",
    "default",
    "golden%2Fconfigmaps",
    "default%2f..%2fgolden",
    "gold%65n",
    "watch",
    "%77atch",
    "namespaces",
    "n%61mespaces",
    "CONFIGMAPS",
    "configmaps",
    "status",
    "finalize",
    "%00",
    ";",
    "%ff",
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
async fn path_variants_reach_no_other_resource() {
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
    let change = (0..8usize, 0..SEGMENTS.len(), proptest::bool::ANY);
    let path = (0..3usize, 0..PATHS.len(), proptest::collection::vec(change, 0..4), 0..METHODS.len(), 0..QUERIES.len());
    let mut runner = TestRunner::deterministic();
    let (mut seen, mut allowed) = (0, 0);
    for _ in 0..8000 {
        let (slashes, base, changes, method, query) = path.new_tree(&mut runner).unwrap().current();
        let mut segments: Vec<&str> = PATHS[base].split('/').collect();
        for (at, with, insert) in changes {
            let at = at % segments.len();
            if insert {
                segments.insert(at, SEGMENTS[with]);
            } else {
                segments[at] = SEGMENTS[with];
            }
        }
        let begin = "/".repeat(slashes + 1);
        let uri = format!("{begin}{}{}", segments.join("/"), QUERIES[query]);
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
        let text = body.collect().await.unwrap();
        let text = String::from_utf8_lossy(&text);
        assert!(!text.contains("of-golden"), "{} {uri}: {text}", METHODS[method]);
        assert_eq!(hidden(&s), revision, "{} {uri}", METHODS[method]);
        allowed += u32::from(parts.status.is_success());
    }
    assert!(seen > 6000 && allowed > 50, "{seen} were sent, {allowed} led somewhere");
}
