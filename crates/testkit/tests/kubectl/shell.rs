//! Runs command lines of kubectl in this process.

use bytes::Bytes;
use client::{Client, InProcess, Transport};
use http::Request;
use kubectl::Shell;
use kubectl::shell::{Connect, Stream};
use std::io::Write;
use std::sync::{Arc, Mutex};
use testkit::{Cluster, SeededRng};

#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, b: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(b);
        Ok(b.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Returns the server of a cluster; requests are those of an administrator.
pub fn server(cluster: &Cluster) -> impl Transport + use<> {
    let server = cluster.server.clone();
    InProcess(move |request: Request<Bytes>| {
        let server = server.clone();
        async move { server.handle(testkit::as_administrator(request)).await }
    })
}

/// Runs kubectl with this standard input and this directory for temporary files. Returns the exit code and the output.
pub async fn run(
    cluster: &Cluster,
    server: impl Transport,
    line: &[&str],
    input: &str,
    tmp: &std::path::Path,
) -> (u8, String) {
    let output = Sink::default();
    let tmp = tmp.display().to_string();
    let shell = Shell {
        out: Stream::new(output.clone()),
        err: Stream::new(output.clone()),
        input: Box::new(std::io::Cursor::new(input.as_bytes().to_vec())),
        environment: Box::new(move |name| (name == "TMPDIR").then(|| tmp.clone())),
        clock: cluster.clock.clone(),
        rng: SeededRng::new(7),
        zone: jiff::tz::TimeZone::UTC,
        connect: Connect::Given(Client::new(server, "kubectl")),
        terminal: false,
    };
    let words = std::iter::once("kubectl").chain(line.iter().copied()).map(Into::into).collect();
    let code = kubectl::run(words, shell).await;
    let output = String::from_utf8(output.0.lock().unwrap().clone()).unwrap();
    (code, output)
}
