//! Connections that hold memory: unread watches, unread responses, slow bodies, silence after the handshake.

use crate::cluster::KEMUDI;
use crate::runner::Case;
use crate::running::{Running, up};
use crate::story::Story;
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

pub const TESTS: &[Case] = &[
    ("connections::unread_watches_and_lists", unread),
    ("connections::silence", silence),
    ("connections::bodies_of_nobody", bodies),
    ("connections::bodies_that_stop", slow_bodies),
];

pub const PATIENCE: Duration = Duration::from_secs(60);
/// What others wait for an answer while there is an attack, on a slow and busy machine.
pub const ANSWER: Duration = Duration::from_secs(5);
/// What clients that do not read may cost, in bytes: the log of events, what the writes themselves take, and little per client.
const GROWTH: u64 = 160 << 20;

pub const MAPS: &str = "/api/v1/namespaces/default/configmaps";
pub const WATCH: &str = "/api/v1/namespaces/default/configmaps?watch=true&resourceVersion=";

/// 150 watches over HTTP/1 and 50 over HTTP/2, none of them read, while 40 ConfigMaps of 900 KB are written; then 60 lists of
/// them. One watch that is read sees everything.
fn unread(s: &Story) {
    s.cluster.runtime.block_on(async {
        let (_dir, server) = started(|c| c).await;
        let token = admin(_dir.path());
        ready(&server).await;
        let (_, list) = server.call("GET", MAPS, &Value::Null).await;
        let from = list["metadata"]["resourceVersion"].as_str().unwrap();
        let path = format!("{WATCH}{from}");
        let before = memory(&server);
        let reader = tokio::spawn(read_watch(server.port(), path.clone(), token.clone(), 40));
        let mut unread = Vec::new();
        for _ in 0..150 {
            let mut c = tls(server.port(), b"http/1.1").await;
            get(&mut c, &path, &token).await;
            let mut start = [0; 15];
            c.read_exact(&mut start).await.unwrap();
            assert_eq!(&start, b"HTTP/1.1 200 OK");
            unread.push(c);
        }
        let mut streams = Vec::new();
        for _ in 0..2 {
            streams.extend(http2_streams(server.port(), &path, &token, 25).await);
        }
        let mut most = before;
        for i in 0..40 {
            let map = json!({"metadata": {"name": format!("large-{i}")}, "data": {"text": "x".repeat(900_000)}});
            assert_eq!(server.call("POST", MAPS, &map).await.0, 201);
            most = most.max(memory(&server));
        }
        assert_eq!(reader.await.unwrap().len(), 40, "who reads sees everything");
        most = most.max(memory(&server));
        let grown = most - before;
        println!("200 watches that nobody reads: {} MB", grown >> 20);
        assert!(grown < GROWTH, "200 watches that nobody reads cost {} MB", grown >> 20);
        drop((unread, streams));

        let before = memory(&server);
        let mut lists = Vec::new();
        for _ in 0..60 {
            let mut c = tls(server.port(), b"http/1.1").await;
            get(&mut c, MAPS, &token).await;
            let mut start = [0; 15];
            c.read_exact(&mut start).await.unwrap();
            lists.push(c);
        }
        let grown = memory(&server).saturating_sub(before);
        println!("60 lists of 36 MB that nobody reads: {} MB", grown >> 20);
        assert!(grown < GROWTH, "60 lists that nobody reads cost {} MB", grown >> 20);
        assert_eq!(server.call("GET", "/api/v1/namespaces/default", &Value::Null).await.0, 200);
    });
}

/// A server that may open 512 files, and 700 connections that are silent after TLS.
fn silence(s: &Story) {
    s.cluster.runtime.block_on(async {
        let limited = |c: Command| {
            let mut shell = Command::new("sh");
            shell.args(["-c", "ulimit -n 512; exec \"$@\"", "sh", KEMUDI]).args(c.get_args());
            shell
        };
        let (dir, server) = started(limited).await;
        ready(&server).await;
        let token = admin(dir.path());
        let mut watch = tls(server.port(), b"http/1.1").await;
        get(&mut watch, &format!("{WATCH}0"), &token).await;
        let mut start = [0; 15];
        watch.read_exact(&mut start).await.unwrap();
        // One after the other, until the server takes no more.
        let mut silent = Vec::new();
        while silent.len() < 700 {
            let tcp = TcpStream::connect(("127.0.0.1", server.port())).await.unwrap();
            match timeout(Duration::from_secs(2), handshake(tcp, b"http/1.1")).await {
                Ok(Ok(c)) => silent.push(c),
                _ => break,
            }
        }
        assert!(silent.len() > 300, "there was no attack: {} connections", silent.len());
        let begun = Instant::now();
        let mut client = timeout(PATIENCE, tls(server.port(), b"http/1.1")).await.unwrap();
        get(&mut client, "/api/v1/namespaces/default", &token).await;
        timeout(PATIENCE, client.read_exact(&mut start)).await.unwrap().unwrap();
        assert_eq!(&start, b"HTTP/1.1 200 OK");
        assert!(begun.elapsed() < ANSWER, "it took {:?}", begun.elapsed());
        // The watch of an authenticated client was not closed for unauthenticated ones.
        let map = json!({"metadata": {"name": "seen"}});
        assert_eq!(server.call("POST", MAPS, &map).await.0, 201);
        let mut seen = Vec::new();
        while !String::from_utf8_lossy(&seen).contains("\"seen\"") {
            let n = timeout(PATIENCE, watch.read_buf(&mut seen)).await.unwrap().unwrap();
            assert!(n > 0, "the watch ended");
        }
    });
}

/// 80 bodies of 3 MB from senders without credentials.
fn bodies(s: &Story) {
    s.cluster.runtime.block_on(async {
        let (_dir, server) = started(|c| c).await;
        let before = memory(&server);
        let port = server.port();
        let all = (0..80).map(|_| async move {
            let mut c = tls(port, b"http/1.1").await;
            let code = post(&mut c, "nobody", 3_000_000, 2_900_000).await;
            (code, c)
        });
        let open = futures::future::join_all(all).await;
        let refused = open.iter().filter(|(code, _)| *code == Some(401)).count();
        let grown = memory(&server).saturating_sub(before);
        println!("80 bodies of nobody: {} MB", grown >> 20);
        assert!(grown < 64 << 20, "80 bodies of nobody cost {} MB", grown >> 20);
        assert!(refused > 0, "no request was refused");
    });
}

/// 60 bodies of 3 MB that stop before their end, from a service account without any role.
fn slow_bodies(s: &Story) {
    s.cluster.runtime.block_on(async {
        let (_dir, server) = started(|c| c).await;
        ready(&server).await;
        let path = "/api/v1/namespaces/default/serviceaccounts/default/token";
        let (code, answer) = server.call("POST", path, &json!({"spec": {}})).await;
        assert_eq!(code, 201, "{answer}");
        let token = answer["status"]["token"].as_str().unwrap().to_owned();
        let before = memory(&server);
        let mut open = Vec::new();
        for _ in 0..60 {
            let mut c = tls(server.port(), b"http/1.1").await;
            let head = head("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", &token, 3_000_000);
            c.write_all(head.as_bytes()).await.unwrap();
            let text = vec![b'x'; 2_900_000];
            let _ = timeout(Duration::from_millis(300), c.write_all(&text)).await;
            open.push(c);
        }
        let grown = memory(&server).saturating_sub(before);
        println!("60 bodies that stop: {} MB", grown >> 20);
        assert!(grown < 96 << 20, "60 bodies that stop cost {} MB", grown >> 20);
        let begun = Instant::now();
        assert_eq!(server.call("POST", MAPS, &json!({"metadata": {"name": "other"}})).await.0, 201);
        assert!(begun.elapsed() < ANSWER, "others waited {:?}", begun.elapsed());
    });
}

/// A control plane of its own.
pub async fn started(change: impl FnOnce(Command) -> Command) -> (tempfile::TempDir, Running) {
    let dir = tempfile::tempdir().unwrap();
    let mut command = change(up(dir.path()));
    let kubeconfig = dir.path().join("kubeconfig");
    let server = Running::start_with(&mut command, &kubeconfig).await.unwrap();
    (dir, server)
}

/// Waits for what the controllers make first.
pub async fn ready(server: &Running) {
    let made = async {
        while server.call("GET", "/api/v1/namespaces/default/serviceaccounts/default", &Value::Null).await.0
            != StatusCode::OK
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, made).await.unwrap();
}

pub fn admin(directory: &Path) -> String {
    std::fs::read_to_string(directory.join("admin.token")).unwrap().trim().to_owned()
}

/// Memory of its own that the process holds, in bytes.
pub fn memory(server: &Running) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() << 10
}

async fn handshake(tcp: TcpStream, protocol: &[u8]) -> std::io::Result<TlsStream<TcpStream>> {
    let mut config = (*client::https::unverified().unwrap()).clone();
    config.alpn_protocols = vec![protocol.to_vec()];
    let name = rustls::pki_types::ServerName::try_from("127.0.0.1").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, tcp).await
}

pub async fn tls(port: u16, protocol: &[u8]) -> TlsStream<TcpStream> {
    handshake(TcpStream::connect(("127.0.0.1", port)).await.unwrap(), protocol).await.unwrap()
}

pub fn head(method: &str, path: &str, token: &str, length: usize) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    )
}

pub async fn get(c: &mut TlsStream<TcpStream>, path: &str, token: &str) {
    c.write_all(head("GET", path, token, 0).as_bytes()).await.unwrap();
    c.flush().await.unwrap();
}

/// Sends a part of a body, as far as the server takes it; the code of the answer, if there is one.
async fn post(c: &mut TlsStream<TcpStream>, token: &str, length: usize, sent: usize) -> Option<u16> {
    let _ = c.write_all(head("POST", MAPS, token, length).as_bytes()).await;
    let text = vec![b'x'; 64 << 10];
    let mut done = 0;
    while done < sent {
        match timeout(Duration::from_millis(500), c.write(&text)).await {
            Ok(Ok(n)) if n > 0 => done += n,
            _ => break,
        }
    }
    let mut start = [0; 12];
    let read = timeout(Duration::from_secs(5), c.read_exact(&mut start)).await;
    matches!(read, Ok(Ok(_))).then(|| String::from_utf8_lossy(&start[9..]).parse().ok()).flatten()
}

/// Streams of one connection that answers pings, and takes nothing of what the streams carry.
async fn http2_streams(port: u16, path: &str, token: &str, count: usize) -> Vec<http::Response<Incoming>> {
    let io = TokioIo::new(tls(port, b"h2").await);
    let (mut sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    let mut all = Vec::new();
    for _ in 0..count {
        let request = Request::builder()
            .method(Method::GET)
            .uri(format!("https://127.0.0.1:{port}{path}"))
            .header("authorization", format!("Bearer {token}"));
        let response = sender.send_request(request.body(Empty::<Bytes>::new()).unwrap()).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        all.push(response);
    }
    all
}

/// The names of the objects in watch events, until there are `count`.
async fn read_watch(port: u16, path: String, token: String, count: usize) -> BTreeSet<String> {
    let io = TokioIo::new(tls(port, b"http/1.1").await);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get(path).header("host", "localhost").header("authorization", format!("Bearer {token}"));
    let response = sender.send_request(request.body(Empty::<Bytes>::new()).unwrap()).await.unwrap();
    let mut body = response.into_body();
    let (mut names, mut line) = (BTreeSet::new(), Vec::new());
    while names.len() < count {
        let frame = timeout(PATIENCE, body.frame()).await.expect("an event").expect("the watch goes on").unwrap();
        for part in frame.into_data().unwrap().split_inclusive(|b| *b == b'\n') {
            line.extend_from_slice(part);
            if line.ends_with(b"\n") {
                let event: Value = serde_json::from_slice(&line).unwrap();
                let name = event["object"]["metadata"]["name"].as_str().unwrap_or_default();
                if name.starts_with("large-") {
                    names.insert(name.to_owned());
                }
                line.clear();
            }
        }
    }
    names
}
