//! What the agent serves: metrics, health and streams.

use crate::machine::*;
use node::Handle;
use serde_json::{Value, json};

/// Neither was there: how containers ended, and how the health checks of the agent did.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ends_of_containers_and_health_checks_are_counted() {
    let mut m = Machine::new().await;
    let mut c = demo("c", json!(["sh", "-c", "exit 139"]));
    c["command"] = json!(["/busybox"]);
    c["volumeMounts"] = json!([{"name": "tool", "mountPath": "/busybox"}]);
    let volumes = json!([{"name": "tool", "hostPath": {"path": "/bin/busybox"}}]);
    m.pod("p", json!({"restartPolicy": "Never", "containers": [c], "volumes": volumes}));
    m.until("p", |p| p["status"]["phase"] == "Failed").await;
    let ended =
        "kubelet_terminated_containers_total{container_type=\"container\",exit_code=\"139\",reason=\"Error\"} 1\n";
    let (_, text) = body(&m, "/metrics").await;
    assert!(text.contains(ended), "{text}");
    assert_eq!(body(&m, "/metrics/slis").await, (200, String::new()));
    assert_eq!(body(&m, "/healthz").await.0, 200);
    let (_, text) = body(&m, "/metrics/slis").await;
    for name in ["log", "ping", "syncloop"] {
        for line in [
            format!("kubernetes_healthcheck{{name=\"{name}\",type=\"healthz\"}} 1\n"),
            format!("kubernetes_healthchecks_total{{name=\"{name}\",status=\"success\",type=\"healthz\"}} 1\n"),
        ] {
            assert!(text.contains(&line), "{line}: {text}");
        }
    }
    m.stop().await;
    m.start().await;
    m.until("p", |p| p["status"]["phase"] == "Failed").await;
    assert!(!body(&m, "/metrics").await.1.contains("kubelet_terminated_containers_total{"));
    m.finish().await;
}

/// The agent behind a socket on loopback, for clients that turn connections into something else.
async fn listening(handle: Handle) -> std::net::SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let handle = handle.clone();
            let service = hyper::service::service_fn(move |mut r: http::Request<hyper::body::Incoming>| {
                let handle = handle.clone();
                async move {
                    let upgrade = hyper::upgrade::on(&mut r);
                    let (parts, _) = r.into_parts();
                    let mut r = http::Request::from_parts(parts, bytes::Bytes::new());
                    r.extensions_mut().insert(upgrade);
                    Ok::<_, std::convert::Infallible>(handle.handle(r).await)
                }
            });
            let io = hyper_util::rt::TokioIo::new(tcp);
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(io, service).with_upgrades());
        }
    });
    address
}

/// Sends `message` over a WebSocket. Returns the subprotocol and the messages of the server.
async fn exchange(
    address: std::net::SocketAddr,
    path: &str,
    protocol: &str,
    message: Option<Vec<u8>>,
) -> (String, Vec<Vec<u8>>) {
    use futures::{SinkExt, StreamExt};
    use tokio_tungstenite::tungstenite::{Message, client::IntoClientRequest};
    let mut request = format!("ws://{address}{path}").into_client_request().unwrap();
    if !protocol.is_empty() {
        request.headers_mut().insert("sec-websocket-protocol", protocol.parse().unwrap());
    }
    let tcp = tokio::net::TcpStream::connect(address).await.unwrap();
    let (mut socket, answer) = tokio_tungstenite::client_async(request, tcp).await.unwrap();
    let chosen = answer.headers().get("sec-websocket-protocol").map(|v| v.to_str().unwrap().to_owned());
    if let Some(bytes) = message {
        socket.send(Message::Binary(bytes.into())).await.unwrap();
    }
    let mut all = Vec::new();
    while let Some(Ok(m)) = socket.next().await {
        match m {
            Message::Binary(b) => all.push(b.to_vec()),
            Message::Text(t) => all.push(t.as_bytes().to_vec()),
            _ => {}
        }
    }
    (chosen.unwrap_or_default(), all)
}

/// The subprotocols of older clients: none, `channel.k8s.io` and its base64 form for commands, `binary.k8s.io` for logs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn older_websockets_are_spoken() {
    use base64::Engine;
    let m = Machine::new().await;
    let mut c = demo("c", json!(["sh", "-c", "echo logged; read x; echo got $x"]));
    c["command"] = json!(["/busybox"]);
    (c["stdin"], c["stdinOnce"]) = (true.into(), true.into());
    c["volumeMounts"] = json!([{"name": "tool", "mountPath": "/busybox"}]);
    let volumes = json!([{"name": "tool", "hostPath": {"path": "/bin/busybox"}}]);
    m.pod("p", json!({"restartPolicy": "Never", "containers": [c], "volumes": volumes}));
    m.until("p", is_ready).await;
    let address = listening(m.handle.clone().unwrap()).await;
    let run = |script: &str| {
        let script = script.replace(' ', "+").replace(';', "%3B").replace('>', "%3E").replace('&', "%26");
        format!("/exec/default/p/c?command=/busybox&command=sh&command=-c&command={script}&stdout=true&stderr=true")
    };
    let (good, bad) = (run("echo hello"), run("echo hello; exit 3"));
    let failure = "command terminated with non-zero exit code: command terminated with exit code 3";
    let plain = |channel: u8, text: &str| [&[channel][..], text.as_bytes()].concat();
    let encoded =
        |channel: u8, text: &str| plain(b'0' + channel, &base64::engine::general_purpose::STANDARD.encode(text));
    for protocol in ["", "channel.k8s.io"] {
        let expected = vec![plain(1, ""), plain(1, "hello\n")];
        assert_eq!(exchange(address, &good, protocol, None).await, (protocol.to_owned(), expected.clone()));
        let expected = [expected, vec![plain(3, failure)]].concat();
        assert_eq!(exchange(address, &bad, protocol, None).await, (protocol.to_owned(), expected));
    }
    let expected = vec![encoded(1, ""), encoded(1, "hello\n"), encoded(3, failure)];
    assert_eq!(
        exchange(address, &bad, "base64.channel.k8s.io", None).await,
        ("base64.channel.k8s.io".into(), expected)
    );
    for protocol in ["v4.channel.k8s.io", "v5.channel.k8s.io"] {
        let (chosen, all) = exchange(address, &bad, protocol, None).await;
        let end: Value = serde_json::from_slice(&all.last().unwrap()[1..]).unwrap();
        assert_eq!((&*chosen, &end["reason"], all.last().unwrap()[0]), (protocol, &json!("NonZeroExitCode"), 3));
    }

    let log = "/containerLogs/default/p/c";
    for protocol in ["", "binary.k8s.io"] {
        let expected = vec![Vec::new(), b"logged\n".to_vec()];
        assert_eq!(exchange(address, log, protocol, None).await, (protocol.to_owned(), expected));
    }
    let expected = vec![Vec::new(), base64::engine::general_purpose::STANDARD.encode("logged\n").into_bytes()];
    assert_eq!(exchange(address, log, "base64.binary.k8s.io", None).await, ("base64.binary.k8s.io".into(), expected));

    let attach = "/attach/default/p/c?stdin=true&stdout=true&stderr=true";
    let (chosen, all) = exchange(address, attach, "channel.k8s.io", Some(plain(0, "me\n"))).await;
    let out: Vec<u8> = all.iter().filter(|m| m[0] == 1).flat_map(|m| m[1..].to_vec()).collect();
    assert_eq!((&*chosen, String::from_utf8_lossy(&out)), ("channel.k8s.io", "got me\n".into()));
    assert!(all.iter().all(|m| m[0] == 1), "nothing is said of a success: {all:?}");
    m.finish().await;
}
