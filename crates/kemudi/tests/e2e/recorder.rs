//! A proxy between a program and the API that passes requests on and records writes.

use crate::story::Story;
use http::{Method, Request};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A request other than GET.
#[derive(Clone, Debug)]
pub struct Written {
    pub method: String,
    pub path: String,
    pub media: String,
    pub body: Value,
}

pub struct Recorder {
    /// The address for `--server`.
    pub address: String,
    written: Arc<Mutex<Vec<Written>>>,
}

impl Recorder {
    /// Listens for as long as the test process lives, and connects to the cluster as its administrator.
    pub fn new(s: &Story) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let written = Arc::new(Mutex::new(Vec::new()));
        let (cluster, log) = (s.cluster.clone(), written.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (cluster, log) = (cluster.clone(), log.clone());
                std::thread::spawn(move || {
                    let mut stream = stream.unwrap();
                    let Some(request) = read(&stream) else { return };
                    if request.method() != Method::GET {
                        log.lock().unwrap().push(remember(&request));
                    }
                    let answer = cluster.runtime.block_on(async {
                        let r = cluster.client.raw(request).await.unwrap();
                        let media = r.headers().get("content-type").map(|v| v.to_str().unwrap().to_owned());
                        let code = r.status().as_u16();
                        (code, media.unwrap_or_default(), client::client::collect(r.into_body()).await.unwrap())
                    });
                    let (code, media, body) = answer;
                    let head = format!(
                        "HTTP/1.1 {code} X\r\nContent-Type: {media}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                        body.len()
                    );
                    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
                });
            }
        });
        Self { address, written }
    }

    /// Returns the writes since the last call.
    pub fn take(&self) -> Vec<Written> {
        std::mem::take(&mut self.written.lock().unwrap())
    }
}

fn remember(r: &Request<bytes::Bytes>) -> Written {
    Written {
        method: r.method().to_string(),
        path: r.uri().to_string(),
        media: r.headers().get("content-type").map(|v| v.to_str().unwrap().to_owned()).unwrap_or_default(),
        body: serde_json::from_slice(r.body()).unwrap_or_default(),
    }
}

fn read(stream: &TcpStream) -> Option<Request<bytes::Bytes>> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split(' ');
    let mut request = Request::builder().method(words.next()?).uri(words.next()?);
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let Some((name, value)) = header.trim_end().split_once(": ") else { break };
        match name.to_lowercase().as_str() {
            "content-length" => length = value.parse().ok()?,
            "accept" | "content-type" => request = request.header(name, value),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    request.body(body.into()).ok()
}
