//! Deadlines, concurrency limits, and shutdown of a server.

use crate::socket::{Socket, server};
use apiserver::{Options, Server};
use bytes::Bytes;
use client::Transport;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use testkit::Cluster;
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, timeout};

/// Longer than anything here takes, even on a slow machine.
const PATIENCE: Duration = Duration::from_secs(30);

async fn get(server: &Arc<Server>, token: &str, path: &str) -> (u16, HeaderMap, Bytes) {
    let request = Request::get(path).header("authorization", format!("Bearer {token}")).body(Bytes::new()).unwrap();
    let (parts, body) = server.handle(request).await.into_parts();
    (parts.status.as_u16(), parts.headers, body.collect().await.unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_request_has_a_deadline() {
    let c = Cluster::start(1).await;
    let s = server(&c, Options::default());
    let check = async |query: &str, seconds: u64| {
        let begun = Instant::now();
        let (code, _, body) = get(&s, "slow", &format!("/api/v1/namespaces{query}")).await;
        let body: Value = serde_json::from_slice(&body).unwrap();
        let want = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "Timeout: request did not complete within the allotted timeout", "reason": "Timeout",
            "details": {}, "code": 504});
        assert_eq!((code, body), (504, want), "{query}");
        assert_eq!(begun.elapsed().as_secs(), seconds, "{query}");
    };
    check("", 60).await;
    check("?timeout=5s", 5).await;
    check("?timeout=10m", 60).await;
    let (code, _, body) = get(&s, "slow", "/api/v1/namespaces?timeout=5").await;
    let body: Value = serde_json::from_slice(&body).unwrap();
    let want = "invalid timeout specified in the request URL - time: missing unit in duration \"5\"";
    assert_eq!((code, &body["message"], &body["reason"]), (400, &json!(want), &json!("BadRequest")));
}

#[tokio::test(start_paused = true)]
async fn watches_time_out_at_different_times() {
    let c = Cluster::start(2).await;
    let s = server(&c, Options::default());
    let mut lives = Vec::new();
    for _ in 0..4 {
        let begun = Instant::now();
        let (code, _, _) = get(&s, "admin/system:masters", "/api/v1/namespaces?watch=1").await;
        assert_eq!(code, 200);
        lives.push(begun.elapsed().as_secs());
    }
    assert!(lives.iter().all(|l| (1800..=3600).contains(l)), "{lives:?}");
    lives.dedup();
    assert_eq!(lives.len(), 4, "{lives:?}");
    let begun = Instant::now();
    get(&s, "admin/system:masters", "/api/v1/namespaces?watch=1&timeoutSeconds=7&timeout=1s").await;
    assert_eq!(begun.elapsed().as_secs(), 7, "a watch has no deadline but its own");
}

#[tokio::test(start_paused = true)]
async fn shutdown_delay_still_serves_and_the_end_rejects() {
    let c = Cluster::start(4).await;
    let s = server(&c, Options::default());
    let admin = "admin/system:masters";
    assert_eq!(get(&s, admin, "/readyz").await.0, 200);
    s.leave();
    let (code, _, message) = get(&s, admin, "/readyz").await;
    assert!(code == 500 && String::from_utf8_lossy(&message).contains("[-]shutdown failed"), "{message:?}");
    assert_eq!(get(&s, admin, "/api/v1/namespaces").await.0, 200);
    assert_eq!(get(&s, admin, "/livez").await.0, 200);
    let watch = tokio::spawn({
        let s = s.clone();
        async move { get(&s, admin, "/api/v1/namespaces?watch=1").await }
    });
    let slow = tokio::spawn({
        let s = s.clone();
        async move { get(&s, "slow", "/api/v1/namespaces?timeout=3s").await.0 }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    s.end();
    let (code, _, events) = watch.await.unwrap();
    assert!(code == 200 && events.ends_with(b"\n"), "a watch ends with a whole event");
    assert_eq!(slow.await.unwrap(), 504, "what was begun goes on");
    for path in ["/api/v1/namespaces", "/api/v1/namespaces?watch=1"] {
        let (code, headers, body) = get(&s, admin, path).await;
        assert_eq!(
            (code, &headers["retry-after"], &headers["connection"]),
            (503, &"1".parse().unwrap(), &"close".parse().unwrap())
        );
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(
            (&body["reason"], &body["message"]),
            (&json!("ServiceUnavailable"), &json!("apiserver is shutting down"))
        );
    }
    assert_eq!(get(&s, admin, "/livez").await.0, 200);
    assert_eq!(get(&s, admin, "/readyz").await.0, 500);
}

#[tokio::test]
async fn a_server_ends_its_connections() {
    let c = Cluster::start(5).await;
    let socket = Socket::listen(server(&c, Options::default())).await;
    let client = socket.client("admin/system:masters");
    let mut watch = client.send(Request::get("/api/v1/namespaces?watch=1").body(Bytes::new()).unwrap()).await.unwrap();
    assert_eq!(watch.status(), StatusCode::OK);
    assert!(watch.body_mut().frame().await.unwrap().is_ok());
    socket.stop();
    // To its end without an error, which would be a connection cut off.
    timeout(PATIENCE, watch.into_body().collect()).await.unwrap().unwrap();
    timeout(PATIENCE, socket.serving).await.unwrap().unwrap();
}

/// An idle client never acknowledges the shutdown: the server does not wait for it.
#[tokio::test]
async fn shutdown_does_not_wait_for_idle_clients() {
    let c = Cluster::start(6).await;
    let socket = Socket::listen(server(&c, Options::default())).await;
    let tcp = tokio::net::TcpStream::connect(("127.0.0.1", socket.port)).await.unwrap();
    let mut config = (*client::https::unverified().unwrap()).clone();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let name = rustls::pki_types::ServerName::try_from("127.0.0.1").unwrap();
    let mut asleep = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, tcp).await.unwrap();
    // The preface and empty settings, and then nothing.
    asleep.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    asleep.flush().await.unwrap();
    let begun = Instant::now();
    socket.stop();
    timeout(PATIENCE, socket.serving).await.unwrap().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5), "it took {:?}", begun.elapsed());
}

#[tokio::test]
async fn requests_beyond_the_limit_are_rejected() {
    let c = Cluster::start(7).await;
    let s = server(&c, Options { max_requests_in_flight: 1, max_mutating_requests_in_flight: 1, ..Options::default() });
    assert_eq!(get(&s, "admin/system:masters", "/api/v1/namespaces").await.0, 200);
    let long = Request::get(format!("/api/v1/namespaces?labelSelector=a%3D{}", "x".repeat(20_000)));
    let socket = Socket::listen(s).await;
    let answer = socket.client("admin/system:masters").send(long.body(Bytes::new()).unwrap()).await.unwrap();
    assert_eq!(answer.status(), StatusCode::BAD_REQUEST, "a long address reaches the server, which reads it");
}

/// Over HTTP/2 a body in the answer to HEAD breaks the protocol.
#[tokio::test]
async fn head_is_answered_without_a_body() {
    let c = Cluster::start(8).await;
    let socket = Socket::listen(server(&c, Options::default())).await;
    let client = socket.client("admin/system:masters");
    for path in ["/apis", "/openapi/v2", "/healthz", "/nowhere"] {
        let length = async |request: http::request::Builder| {
            let (parts, body) = client.send(request.body(Bytes::new()).unwrap()).await.unwrap().into_parts();
            let length = parts.headers.get("content-length").map(|l| l.to_str().unwrap().parse::<usize>().unwrap());
            (parts.version, parts.status, length, body.collect().await.unwrap().to_bytes().len())
        };
        let (version, status, content_length, received) = length(Request::head(path)).await;
        let (_, expected, _, size) = length(Request::get(path)).await;
        assert_eq!(
            (version, status, content_length, received),
            (http::Version::HTTP_2, expected, Some(size), 0),
            "{path}"
        );
    }
}
