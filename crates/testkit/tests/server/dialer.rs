//! Connections to kubelets.

use apiserver::{ConnectError, NodeConnector, NodeDialer};
use bytes::Bytes;
use client::https::ClientIdentity;
use http::Request;
use rcgen::{CertificateParams, KeyPair};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use testkit::Cluster;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

/// Virtual time passes while all wait, so that what waits in vain is seen at once.
#[tokio::test(start_paused = true)]
async fn one_user_has_a_third_of_the_connections_to_nodes() {
    let c = Cluster::start(3).await;
    // An agent that takes connections and says nothing, not even in the handshake.
    let agent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = agent.local_addr().unwrap().port();
    let (arrived, mut arrivals) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = agent.accept().await.unwrap();
            let mut first = [0];
            let _ = stream.read_exact(&mut first).await;
            arrived.send(stream).unwrap();
        }
    });
    let node = json!({"metadata": {"name": "n"}});
    assert_eq!(c.call("POST", "/api/v1/nodes", node).await.code, 201);
    let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}});
    let patched = c.send(
        "PATCH",
        "/api/v1/nodes/n/status",
        Some("application/merge-patch+json"),
        "application/json",
        status.to_string().into(),
    );
    assert_eq!(patched.await.code, 200);

    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["us".to_owned()]).unwrap().self_signed(&key).unwrap().pem();
    let identity =
        ClientIdentity { certificates: certificate.clone().into_bytes(), key: key.serialize_pem().into_bytes() };
    let dialer = Arc::new(NodeDialer::new(c.server.registry.clone(), &certificate, identity, 6).unwrap());
    let ask = |user: &'static str| {
        let dialer = dialer.clone();
        tokio::spawn(async move { dialer.connect("n", user, Request::new(Bytes::new())).await.map(drop) })
    };
    let first = [ask("a"), ask("a")];
    let held = [arrivals.recv().await.unwrap(), arrivals.recv().await.unwrap()];
    let begun = tokio::time::Instant::now();
    let third = ask("a").await.unwrap();
    assert!(matches!(third, Err(ConnectError::Busy)), "{third:?}");
    assert!(begun.elapsed() >= Duration::from_secs(5), "it waited for a place: {:?}", begun.elapsed());
    // Another user has places of its own.
    let other = ask("b");
    arrivals.recv().await.unwrap();
    // A connection that ends gives its place back.
    drop(held);
    for ended in first {
        let ended = ended.await.unwrap();
        assert!(matches!(ended, Err(ConnectError::Unreachable(_))), "{ended:?}");
    }
    let again = ask("a");
    arrivals.recv().await.unwrap();
    let nobody = dialer.connect("other", "a", Request::new(Bytes::new())).await.map(drop);
    assert!(matches!(nobody, Err(ConnectError::NoNode(_))), "{nobody:?}");
    [other, again].iter().for_each(tokio::task::JoinHandle::abort);
}
