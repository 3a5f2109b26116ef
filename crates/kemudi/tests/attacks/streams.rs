//! Streams whose clients never read: logs, exec, attach, forwarded ports. The server and the shim buffer
//! a bounded part of the output, and everything else continues.

use crate::connections::{ANSWER, get, tls};
use crate::runner::Case;
use crate::story::Story;
use serde_json::json;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use tokio::time::Instant;

pub const TESTS: &[Case] = &[
    ("streams::nobody_reads_what_a_pod_says", nobody_reads),
    ("streams::what_is_sent_in_leaves_nothing_behind", much_input),
    ("streams::a_flood_of_output_takes_a_bounded_part_of_the_disk", flood),
];

/// More than the server lets all requests have that it has not understood yet.
const MUCH: usize = 70 << 20;

/// Clients of each kind.
const CLIENTS: usize = 10;
/// What all of them may cost the server, and the shim.
const GROWTH: u64 = 96 << 20;
const GROWTH_OF_SHIM: u64 = 16 << 20;

/// A child that is killed with this value.
struct Client(Child);

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Private memory of a process, in bytes; nothing once it has ended.
fn memory(pid: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:"));
    line.map_or(0, |l| l.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() << 10)
}

fn server(s: &Story) -> String {
    std::fs::read_to_string(s.cluster.directory.join("data/kemudi.pid")).unwrap().trim().to_owned()
}

/// The process that holds the containers of a pod: the parent of the first.
fn shim(s: &Story, pod: &str) -> String {
    let uid = s.get(&format!("pods/{pod}"))["metadata"]["uid"].as_str().unwrap().to_owned();
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let found = all.filter_map(|e| {
        let command = std::fs::read(e.path().join("cmdline")).ok()?;
        let text = String::from_utf8_lossy(&command).into_owned();
        (text.starts_with("/pause") && text.contains(&uid)).then(|| e.file_name().into_string().unwrap())
    });
    found.min_by_key(|p| p.parse::<u32>().unwrap()).expect("the shim of the pod")
}

fn nobody_reads(s: &Story) {
    let talk = "while :; do cat /bin/busybox; done";
    s.shell_pod("talks", talk, json!({}), json!({}));
    s.shell_pod("quiet", "while :; do sleep 1; done", json!({}), json!({}));
    s.ready("talks");
    s.ready("quiet");
    let (server, shims) = (server(s), [shim(s, "talks"), shim(s, "quiet")]);
    let before = memory(&server);
    let of_shims: Vec<u64> = shims.iter().map(|p| memory(p)).collect();

    let port = server_port(s);
    let token = std::fs::read_to_string(s.cluster.directory.join("data/admin.token")).unwrap();
    let path = format!("/api/v1/namespaces/{}/pods/talks/log?follow=true", s.ns);
    let raw = s.cluster.runtime.block_on(async {
        let mut open = Vec::new();
        for _ in 0..CLIENTS {
            let mut c = tls(port, b"http/1.1").await;
            get(&mut c, &path, token.trim()).await;
            open.push(c);
        }
        open
    });
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(silent(s, &["exec", "quiet", "--", "cat", "/dev/zero", "for-a-client"]));
        clients.push(silent(s, &["attach", "talks"]));
        clients.push(silent(s, &["logs", "-f", "talks"]));
    }
    let forward = ["port-forward", "quiet", ":7000"];
    s.ok(&["exec", "quiet", "--", "sh", "-c", "/bin/busybox nc -ll -p 7000 -e /bin/cat /dev/zero >/dev/null 2>&1 &"]);
    let mut forwarding = Client(s.command(&forward).stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(forwarding.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let local: u16 = line.split("127.0.0.1:").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    let mut forwarded = TcpStream::connect(("127.0.0.1", local)).unwrap();
    forwarded.write_all(b"\n").unwrap();
    forwarded.read_exact(&mut [0; 1]).unwrap();

    // Each has begun to say something, and nobody takes it.
    for c in &mut clients {
        c.0.stdout.as_mut().unwrap().read_exact(&mut [0; 1]).unwrap();
    }
    let (mut grown, mut of_shim) = (0, 0);
    for round in 0..30 {
        let begun = Instant::now();
        assert_eq!(s.ok(&["exec", "quiet", "--", "echo", "here"]), "here\n");
        s.ok(&["logs", "talks", "--tail=1", "--limit-bytes=10"]);
        assert!(!s.get("pods/talks").is_null());
        assert!(begun.elapsed() < 3 * ANSWER, "round {round}: others waited {:?}", begun.elapsed());
        grown = grown.max(memory(&server).saturating_sub(before));
        let each = shims.iter().zip(&of_shims).map(|(p, before)| memory(p).saturating_sub(*before));
        of_shim = of_shim.max(each.max().unwrap());
    }
    println!("{} streams that nobody reads: {} MB, a shim {} KiB", 4 * CLIENTS + 1, grown >> 20, of_shim >> 10);
    assert!(grown < GROWTH, "the server grew by {} MB", grown >> 20);
    assert!(of_shim < GROWTH_OF_SHIM, "a shim grew by {} MB", of_shim >> 20);
    for c in &clients {
        let own = memory(&c.0.id().to_string());
        assert!(own < GROWTH, "a client holds {} MB", own >> 20);
    }
    drop((raw, clients, forwarding, forwarded));
    // They are gone, and what they have started ends with them.
    s.eventually("the programs of clients that are gone end", || {
        let left =
            s.k(&["exec", "quiet", "--", "sh", "-c", "grep -l 'for-a-clien[t]' /proc/[0-9]*/cmdline 2>/dev/null"]);
        left.stdout.is_empty().then_some(())
    });
}

/// Input of a command affects no other requests, during it and after it.
fn much_input(s: &Story) {
    s.shell_pod("p", "while :; do sleep 1; done", json!({}), json!({}));
    s.ready("p");
    let count = |bytes: usize| {
        let mut c = s.command(&["exec", "-i", "p", "--", "/bin/busybox", "wc", "-c"]);
        let mut c = c.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut input = c.stdin.take().unwrap();
        let written = std::thread::spawn(move || input.write_all(&vec![0; bytes]));
        let o = c.wait_with_output().unwrap();
        let _ = written.join();
        assert!(o.status.success(), "{}", String::from_utf8_lossy(&o.stderr));
        assert_eq!(String::from_utf8_lossy(&o.stdout).trim(), bytes.to_string());
    };
    count(MUCH);
    count(300_000);
    for n in 0..8 {
        s.create("configmaps", json!({"metadata": {"name": format!("large-{n}")}, "data": {"a": "x".repeat(200_000)}}));
    }
}

/// What a container writes to its log is rotated: a client that follows it gets every line, and the disk keeps the newest.
fn flood(s: &Story) {
    const FIRST: usize = 1_000_000;
    const LAST: usize = 1_299_999;
    // 16 MB in the log, 60 MB, and a short last line.
    let script = format!(
        "echo ready; while [ ! -e /go ]; do sleep 0.1; done; seq {FIRST} {LAST}; while [ ! -e /more ]; do sleep 0.1; done; \
         seq 1 1100000; echo last; while :; do sleep 1; done"
    );
    s.shell_pod("floods", &script, json!({}), json!({}));
    let uid = s.ready("floods")["metadata"]["uid"].as_str().unwrap().to_owned();
    let mut follower = silent(s, &["logs", "-f", "floods"]);
    let mut lines = BufReader::new(follower.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().as_deref(), Some("ready"));
    s.ok(&["exec", "floods", "--", "/bin/busybox", "touch", "/go"]);
    for n in FIRST..=LAST {
        assert_eq!(lines.next(), Some(n.to_string()));
    }
    s.ok(&["exec", "floods", "--", "/bin/busybox", "touch", "/more"]);
    s.eventually("the newest line can be read", || (s.ok(&["logs", "floods", "--tail=1"]) == "last\n").then_some(()));
    let files = files_of_logs(&s.cluster.directory.join("data"), &uid);
    let sizes: Vec<u64> = files.iter().map(|f| std::fs::metadata(f).unwrap().len()).collect();
    assert!(sizes.len() == 5 && sizes.iter().all(|size| *size <= 10 << 20), "{files:?} {sizes:?}");
    // Readers get the file that is written to, and everything goes when the pod goes.
    let newest = s.ok(&["logs", "floods"]);
    assert!(newest.ends_with("\n1099999\n1100000\nlast\n") && newest.len() < 10 << 20, "{}", newest.len());
    s.ok(&["delete", "pod", "floods", "--grace-period=0", "--force"]);
    s.eventually("the logs are removed", || files.iter().all(|f| !f.exists()).then_some(()));
}

/// The log files of a pod below `directory`.
fn files_of_logs(directory: &Path, uid: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![directory.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if entry.file_type().unwrap().is_dir() {
                left.push(path);
            } else if path.to_string_lossy().contains(uid) && path.to_string_lossy().contains("/0.log") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// A command whose output is not read.
fn silent(s: &Story, args: &[&str]) -> Client {
    Client(s.command(args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap())
}

fn server_port(s: &Story) -> u16 {
    let text = std::fs::read_to_string(&s.cluster.kubeconfig).unwrap();
    let address = text.lines().find_map(|l| l.trim().strip_prefix("server: ")).unwrap();
    address.trim_matches('"').rsplit(':').next().unwrap().parse().unwrap()
}
