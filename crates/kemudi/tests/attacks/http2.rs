//! Hostile HTTP/2 from clients without credentials: frames that cost more to receive than to send, and unfinished
//! headers. The server must neither grow nor delay others.

use crate::connections::{ANSWER, MAPS, PATIENCE, WATCH, admin, get, memory, ready, started, tls};
use crate::runner::Case;
use crate::running::Running;
use crate::story::Story;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::client::TlsStream;

pub const TESTS: &[Case] = &[("http2::floods_of_frames", floods), ("http2::large_heads_that_wait", heads)];

/// What a flood may cost of memory.
const GROWTH: u64 = 64 << 20;
/// Requests of others during each flood.
const ANSWERS: usize = 8;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const UNKNOWN: u8 = 77;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const LARGEST_FRAME: usize = 16 << 10;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend(payload);
    out
}

/// A whole number behind a prefix of 7 bits, as HPACK writes it.
fn length(mut n: usize, out: &mut Vec<u8>) {
    if n < 127 {
        return out.push(u8::try_from(n).unwrap());
    }
    out.push(127);
    n -= 127;
    while n >= 128 {
        out.push(u8::try_from(n % 128).unwrap() | 128);
        n /= 128;
    }
    out.push(u8::try_from(n).unwrap());
}

/// A header as it is; with a first byte of `0x40` it enters the table.
fn header(first: u8, name: &str, value: &str) -> Vec<u8> {
    let mut out = vec![first];
    for text in [name, value] {
        length(text.len(), &mut out);
        out.extend(text.as_bytes());
    }
    out
}

fn request(method: &str, path: &str) -> Vec<u8> {
    let parts = [(":method", method), (":scheme", "https"), (":authority", "localhost"), (":path", path)];
    parts.iter().flat_map(|(name, value)| header(0, name, value)).collect()
}

/// A request whose head is in as many frames as it takes.
fn headers(stream: u32, flags: u8, block: &[u8]) -> Vec<u8> {
    let mut parts = block.chunks(LARGEST_FRAME).peekable();
    let (mut out, mut kind, mut flags) = (Vec::new(), HEADERS, flags);
    while let Some(part) = parts.next() {
        let end = if parts.peek().is_none() { END_HEADERS } else { 0 };
        out.extend(frame(kind, flags | end, stream, part));
        (kind, flags) = (CONTINUATION, 0);
    }
    out
}

/// An attacker's side of a connection.
#[derive(Default)]
struct Side {
    begun: bool,
    streams: u32,
}

impl Side {
    fn stream(&mut self) -> u32 {
        self.streams += 1;
        self.streams * 2 - 1
    }

    /// True once.
    fn begin(&mut self) -> bool {
        !std::mem::replace(&mut self.begun, true)
    }
}

/// What enters the table of headers: as large as it may be.
fn filling() -> Vec<u8> {
    header(0x40, "x-b", &"z".repeat(4000))
}

type Flood = fn(&mut Side) -> Vec<u8>;

const FLOODS: &[(&str, Flood)] = &[
    ("rapid reset", |s| {
        let one = |s: &mut Side| {
            let id = s.stream();
            let request = headers(id, END_STREAM, &request("GET", "/version"));
            [request, frame(RST_STREAM, 0, id, &8_u32.to_be_bytes())].concat()
        };
        (0..50).flat_map(|_| one(s)).collect()
    }),
    ("a head without an end", |s| {
        let first = if s.begin() { frame(HEADERS, END_STREAM, 1, &request("GET", "/version")) } else { Vec::new() };
        [first, frame(CONTINUATION, 0, 1, &header(0, "x-a", &"y".repeat(4000))).repeat(8)].concat()
    }),
    ("a head of nothing without an end", |s| {
        let first = if s.begin() { frame(HEADERS, END_STREAM, 1, &request("GET", "/version")) } else { Vec::new() };
        [first, frame(CONTINUATION, 0, 1, b"").repeat(500)].concat()
    }),
    ("empty pieces of a body", |s| {
        let first = if s.begin() { headers(1, 0, &request("POST", "/version")) } else { Vec::new() };
        [first, frame(DATA, 0, 1, b"").repeat(800)].concat()
    }),
    ("pings", |_| frame(PING, 0, 0, b"12345678").repeat(500)),
    ("settings", |_| {
        let many = |size: u16| [&1_u16.to_be_bytes()[..], &u32::from(size).to_be_bytes()].concat().repeat(30);
        (1..50).flat_map(|i| frame(SETTINGS, 0, 0, &many(i * 1000))).collect()
    }),
    ("windows by settings", |s| {
        let first = if s.begin() { (0..50).flat_map(|_| open(s)).collect() } else { Vec::new() };
        let window = |n: u32| frame(SETTINGS, 0, 0, &[&4_u16.to_be_bytes()[..], &n.to_be_bytes()].concat());
        [first, (1..300).flat_map(|n| window(n * 200)).collect::<Vec<u8>>()].concat()
    }),
    ("window updates", |_| frame(WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes()).repeat(800)),
    ("priorities", |_| frame(PRIORITY, 0, 99, &[0, 0, 0, 0, 16]).repeat(800)),
    ("frames of a kind that is unknown", |_| frame(UNKNOWN, 0, 0, &[b'x'; 100]).repeat(300)),
    ("headers from the table", |s| {
        let first = if s.begin() {
            headers(s.stream(), END_STREAM, &[request("GET", "/version"), filling()].concat())
        } else {
            Vec::new()
        };
        let small = [request("GET", "/version"), vec![0xbe; 60]].concat();
        let many: Vec<u8> = (0..20).flat_map(|_| headers(s.stream(), END_STREAM, &small)).collect();
        [first, many].concat()
    }),
    ("a head of 64 MB from the table", |s| {
        let first = if s.begin() {
            headers(s.stream(), END_STREAM, &[request("GET", "/version"), filling()].concat())
        } else {
            Vec::new()
        };
        let large = [request("GET", "/version"), vec![0xbe; 16_000]].concat();
        [first, headers(s.stream(), END_STREAM, &large)].concat()
    }),
    ("answers that nobody reads", |s| (0..50).flat_map(|_| open(s)).collect()),
];

fn open(s: &mut Side) -> Vec<u8> {
    headers(s.stream(), END_STREAM, &request("GET", "/readyz?verbose"))
}

async fn begin(port: u16) -> std::io::Result<TlsStream<TcpStream>> {
    let mut io = tls(port, b"h2").await;
    io.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await?;
    io.write_all(&frame(SETTINGS, 0, 0, b"")).await?;
    Ok(io)
}

/// Sends as fast as it is taken, on a new connection whenever the server ends one or takes no more. Reads nothing.
async fn attack(port: u16, flood: Flood, over: Arc<AtomicBool>, sent: Arc<AtomicUsize>) {
    while !over.load(Ordering::Relaxed) {
        let Ok(mut io) = begin(port).await else { continue };
        let mut side = Side::default();
        while !over.load(Ordering::Relaxed) {
            let bytes = flood(&mut side);
            match timeout(Duration::from_secs(1), io.write_all(&bytes)).await {
                Ok(Ok(())) => sent.fetch_add(bytes.len(), Ordering::Relaxed),
                _ => break,
            };
        }
    }
}

fn floods(s: &Story) {
    s.cluster.runtime.block_on(async {
        let (dir, server) = started(|c| c).await;
        ready(&server).await;
        let mut watch = tls(server.port(), b"http/1.1").await;
        get(&mut watch, &format!("{WATCH}0"), &admin(dir.path())).await;
        let mut start = [0; 15];
        watch.read_exact(&mut start).await.unwrap();
        for (name, flood) in FLOODS {
            let (over, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
            let before = memory(&server);
            let attackers: Vec<_> =
                (0..4).map(|_| tokio::spawn(attack(server.port(), *flood, over.clone(), sent.clone()))).collect();
            let (mut longest, mut grown, mut answers) = (Duration::ZERO, 0, 0);
            while answers < ANSWERS || sent.load(Ordering::Relaxed) < 100_000 {
                let took = answer(&server).await;
                longest = longest.max(took);
                grown = grown.max(memory(&server).saturating_sub(before));
                answers += 1;
                assert!(answers < 1000, "{name}: there was no attack");
            }
            over.store(true, Ordering::Relaxed);
            for a in attackers {
                a.await.unwrap();
            }
            let sent = sent.load(Ordering::Relaxed) >> 10;
            println!("{name}: {sent} KiB, others waited {longest:?}, {} MB", grown >> 20);
            assert!(longest < ANSWER, "{name}: others waited {longest:?}");
            assert!(grown < GROWTH, "{name}: {} MB", grown >> 20);
        }
        // The watch of an authenticated client continues through all of it.
        let map = json!({"metadata": {"name": "seen"}});
        assert_eq!(server.call("POST", MAPS, &map).await.0, 201);
        let mut seen = Vec::new();
        while !String::from_utf8_lossy(&seen).contains("\"seen\"") {
            let n = timeout(PATIENCE, watch.read_buf(&mut seen)).await.unwrap().unwrap();
            assert!(n > 0, "the watch ended");
        }
    });
}

/// How long another client waits for a response.
async fn answer(server: &Running) -> Duration {
    let begun = Instant::now();
    assert_eq!(server.call("GET", "/api/v1/namespaces/default", &Value::Null).await.0, 200);
    begun.elapsed()
}

/// Heads of 224 KiB with bodies that never come: of senders without credentials, and of a service account without any role.
fn heads(s: &Story) {
    s.cluster.runtime.block_on(async {
        let (_dir, server) = started(|c| c).await;
        ready(&server).await;
        let path = "/api/v1/namespaces/default/serviceaccounts/default/token";
        let (code, made) = server.call("POST", path, &json!({"spec": {}})).await;
        assert_eq!(code, 201, "{made}");
        let token = made["status"]["token"].as_str().unwrap();
        for (who, token) in [("nobody", None), ("a service account", Some(token))] {
            let mut block = request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews");
            block.extend(header(0, "content-type", "application/json"));
            block.extend(header(0, "content-length", "10"));
            block.extend(token.into_iter().flat_map(|t| header(0, "authorization", &format!("Bearer {t}"))));
            (0..14).for_each(|i| block.extend(header(0, &format!("x-a{i}"), &"y".repeat(16 << 10))));
            let before = memory(&server);
            let (mut open, mut sent, mut grown) = (Vec::new(), 0, 0);
            let mut longest = Duration::ZERO;
            for _ in 0..12 {
                let mut io = begin(server.port()).await.unwrap();
                let mut side = Side::default();
                for _ in 0..60 {
                    let bytes = headers(side.stream(), 0, &block);
                    if !matches!(timeout(Duration::from_secs(2), io.write_all(&bytes)).await, Ok(Ok(()))) {
                        break;
                    }
                    sent += bytes.len();
                }
                open.push(io);
                longest = longest.max(answer(&server).await);
                grown = grown.max(memory(&server).saturating_sub(before));
            }
            println!("heads of {who}: {} MB sent, {} MB, others waited {longest:?}", sent >> 20, grown >> 20);
            assert!(sent > 100 << 20, "{who}: there was no attack: {} MB", sent >> 20);
            assert!(longest < ANSWER, "{who}: others waited {longest:?}");
            assert!(grown < GROWTH + (32 << 20), "heads of {who} cost {} MB", grown >> 20);
            drop(open);
        }
    });
}
