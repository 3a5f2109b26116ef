//! Stopping the server through the audit log: many large audited requests, and a log without a
//! reader.

use crate::connections::{ANSWER, PATIENCE, admin, get, head, memory, ready, started, tls};
use crate::runner::Case;
use crate::running::Running;
use crate::story::Story;
use serde_json::{Value, json};
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout};

pub const TESTS: &[Case] = &[
    ("audit::many_large_events", many_large_events),
    ("audit::a_place_that_takes_nothing", a_place_that_takes_nothing),
];

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
const NAMESPACE: &str = "/api/v1/namespaces/default";
/// What the flood may cost of memory: bodies of two namespaces and what is made of a few of them at a time.
const GROWTH: u64 = 400 << 20;
/// What the files may take: three of 5 MB, and an event.
const DISK: u64 = 18 << 20;
const STOP: Duration = Duration::from_secs(40);

fn audited<'a>(
    policy: &'a str,
    directory: &'a Path,
    log: &'a Path,
    more: &'a [&'a str],
) -> impl FnOnce(Command) -> Command {
    let file = directory.join("policy.yaml");
    std::fs::write(&file, format!("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n{policy}")).unwrap();
    let (log, more) = (log.to_owned(), more.iter().map(|m| (*m).to_owned()).collect::<Vec<_>>());
    move |mut c| {
        c.arg("--audit-policy-file").arg(file).arg("--audit-log-path").arg(log).args(more);
        c
    }
}

async fn tokens(server: &Running, namespace: &str, count: usize) -> Vec<String> {
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
    let _ = server.call("POST", "/api/v1/namespaces", &json!({"metadata": {"name": namespace}})).await;
    let mut all = Vec::new();
    for i in 0..count {
        assert_eq!(server.call("POST", &path, &json!({"metadata": {"name": format!("sa{i}")}})).await.0, 201);
        let (code, made) = server.call("POST", &format!("{path}/sa{i}/token"), &json!({"spec": {}})).await;
        assert_eq!(code, 201, "{made}");
        all.push(made["status"]["token"].as_str().unwrap().to_owned());
    }
    all
}

/// Twenty service accounts of two namespaces send bodies of 1 MB, and requests and answers are written whole.
fn many_large_events(s: &Story) {
    s.cluster.runtime.block_on(async {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("logs/audit.log");
        let policy = "- level: RequestResponse\n";
        let more = ["--audit-log-maxsize=5", "--audit-log-maxbackup=2"];
        let (_dir, server) = started(audited(policy, directory.path(), &log, &more)).await;
        ready(&server).await;
        let all = [tokens(&server, "one", 10).await, tokens(&server, "two", 10).await].concat();
        let spec = json!({"resourceAttributes": {"verb": "get", "resource": "pods", "name": "x".repeat(1 << 20)}});
        let review = json!({"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "spec": spec})
            .to_string();
        let before = memory(&server);
        let port = server.port();
        let attackers: Vec<_> = all
            .into_iter()
            .map(|token| {
                let review = review.clone();
                tokio::spawn(async move {
                    let mut answered = 0;
                    for _ in 0..4 {
                        let mut c = tls(port, b"http/1.1").await;
                        let whole = [head("POST", REVIEWS, &token, review.len()), review.clone()].concat();
                        let mut start = [0; 12];
                        if c.write_all(whole.as_bytes()).await.is_ok() && c.read_exact(&mut start).await.is_ok() {
                            answered += usize::from(start.ends_with(b"201"));
                        }
                    }
                    answered
                })
            })
            .collect();
        let (mut longest, mut grown) = (Duration::ZERO, 0);
        while !attackers.iter().all(tokio::task::JoinHandle::is_finished) {
            let begun = Instant::now();
            assert_eq!(server.call("GET", NAMESPACE, &Value::Null).await.0, 200);
            longest = longest.max(begun.elapsed());
            grown = grown.max(memory(&server).saturating_sub(before));
        }
        let mut answered = 0;
        for a in attackers {
            answered += a.await.unwrap();
        }
        let files = std::fs::read_dir(log.parent().unwrap()).unwrap();
        let disk: u64 = files.map(|f| f.unwrap().metadata().unwrap().len()).sum();
        println!("{answered} large events: {} MB, {} MB on disk, others waited {longest:?}", grown >> 20, disk >> 20);
        assert!(answered > 10, "there was no attack: {answered}");
        assert!(longest < ANSWER, "others waited {longest:?}");
        assert!(grown < GROWTH, "{} MB", grown >> 20);
        assert!(disk < DISK, "{} MB on disk", disk >> 20);
    });
}

/// A pipe without a reader. In blocking mode audited requests wait; others do not, and neither does the shutdown.
/// In batch mode none waits.
fn a_place_that_takes_nothing(s: &Story) {
    s.cluster.runtime.block_on(async {
        for mode in ["blocking", "batch"] {
            let directory = tempfile::tempdir().unwrap();
            let pipe = directory.path().join("pipe");
            nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
            let _reader = File::options().read(true).custom_flags(nix::libc::O_NONBLOCK).open(&pipe).unwrap();
            let policy = "- level: Metadata\n  resources: [{group: \"\", resources: [secrets]}]\n  verbs: [list]\n- level: None\n";
            let mode_flag = format!("--audit-log-mode={mode}");
            let more = [&*mode_flag, "--request-timeout=5s"];
            let (dir, mut server) = started(audited(policy, directory.path(), &pipe, &more)).await;
            ready(&server).await;
            let (token, port) = (admin(dir.path()), server.port());
            let before = memory(&server);
            let mut written_down = Vec::new();
            for _ in 0..300 {
                let ask = async {
                    let mut c = tls(port, b"http/1.1").await;
                    get(&mut c, "/api/v1/namespaces/default/secrets", &token).await;
                    c
                };
                written_down.push(timeout(PATIENCE, ask).await.expect("connections are taken"));
            }
            let mut longest = Duration::ZERO;
            for _ in 0..20 {
                let begun = Instant::now();
                let answer = timeout(PATIENCE, server.call("GET", NAMESPACE, &Value::Null)).await.expect("an answer");
                assert_eq!(answer.0, 200);
                longest = longest.max(begun.elapsed());
            }
            assert!(longest < ANSWER, "{mode}: others waited {longest:?}");
            let mut waiting = 0;
            for c in &mut written_down {
                let mut start = [0; 15];
                match timeout(Duration::from_millis(10), c.read_exact(&mut start)).await {
                    Ok(r) => drop(r.unwrap()),
                    Err(_) => waiting += 1,
                }
            }
            let grown = memory(&server).saturating_sub(before);
            println!("{mode}: {waiting} wait, others {longest:?}, {} MB", grown >> 20);
            assert_eq!(waiting > 50, mode == "blocking", "{mode}: {waiting} wait");
            assert!(grown < 64 << 20, "{mode}: {} MB", grown >> 20);
            let begun = Instant::now();
            let code = tokio::task::spawn_blocking(move || server.stop()).await.unwrap();
            println!("{mode}: it took {:?} to stop", begun.elapsed());
            assert_eq!(code, Some(0), "{mode}");
            assert!(begun.elapsed() < STOP, "{mode}: it took {:?} to stop", begun.elapsed());
        }
    });
}
