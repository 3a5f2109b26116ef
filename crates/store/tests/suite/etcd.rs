//! etcd servers for the suite, and what only several stores on one cluster can show.

use crate::support::*;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use store::*;
use tokio::time::timeout;

/// A server of its own on loopback, gone when dropped.
pub struct Server {
    child: Child,
    endpoint: String,
    _directory: tempfile::TempDir,
}

impl Server {
    pub fn start() -> Server {
        let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let (client, peer) = (format!("http://{}", free()), format!("http://{}", free()));
        let child = Command::new("etcd")
            .args(["--data-dir", directory.path().to_str().unwrap(), "--initial-cluster", &format!("default={peer}")])
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer, "--log-level", "error"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("etcd (Debian's etcd-server) is installed");
        Server { child, endpoint: client, _directory: directory }
    }

    pub async fn engine(&self, prefix: &str) -> std::sync::Arc<Etcd> {
        let endpoints = [self.endpoint.clone()];
        timeout(Duration::from_secs(30), Etcd::connect(&endpoints, prefix, None)).await.unwrap().unwrap()
    }

    /// Waits until the server answers.
    pub async fn open(&self, options: Options) -> Store {
        let opening = async {
            loop {
                match Store::open(self.engine("/test/").await, options.clone()).await {
                    Ok(store) => return store,
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        };
        timeout(Duration::from_secs(30), opening).await.expect("etcd starts")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn two_servers_see_each_others_writes_and_compare_and_swap_against_them() {
    let server = Server::start();
    let time = Time::new();
    let (one, two) = (server.open(options(&time)).await, server.open(options(&time)).await);
    let mut watch = one.watch(Scope::resource("things"), one.revision()).unwrap();
    let written = two.commit(vec![put("a/x", "two"), put("a/y", "two")]).await.unwrap().revision;
    let batch = timeout(Duration::from_secs(20), watch.next()).await.unwrap().unwrap();
    let events: Vec<String> = batch.events.iter().map(|event| describe(event)).collect();
    assert_eq!(events, [format!("+x=two@{written}"), format!("+y=two@{written}")], "together, under one revision");
    assert_eq!(listing(&one.snapshot()), listing(&two.snapshot()));
    let first = one.commit(vec![op("a/x", Expect::Revision(written), Action::Delete)]).await.unwrap();
    let second = two.commit(vec![op("a/x", Expect::Revision(written), Action::Delete)]).await;
    assert!(matches!(second, Err(CommitError::Conflict { op: 0, current: None })), "{second:?}");
    timeout(Duration::from_secs(20), two.wait_for(first.revision)).await.unwrap().unwrap();
    assert_eq!(listing(&one.snapshot()), listing(&two.snapshot()));
    one.close().await;
    two.close().await;
}

/// Whatever else a cluster stores concerns us as gaps between revisions only.
#[tokio::test]
async fn stores_under_different_prefixes_do_not_meet() {
    let server = Server::start();
    let time = Time::new();
    let ours = server.open(options(&time)).await;
    let start = ours.revision();
    let theirs = Store::open(server.engine("/other/").await, options(&time)).await.unwrap();
    for number in 0..5 {
        theirs.commit(vec![put(&format!("n{number}"), "theirs")]).await.unwrap();
    }
    let nothing = ours.commit(vec![delete("a/none")]).await.unwrap();
    assert_eq!(nothing.revision, start);
    let done = ours.commit(vec![put("a/x", "ours")]).await.unwrap();
    assert!(done.revision > start + 5);
    assert_eq!(ours.snapshot().count("things", None), 1);
    assert_eq!(listing(&ours.snapshot_at(&Scope::resource("things"), start).await.unwrap()), [""; 0]);
    ours.close().await;
    theirs.close().await;
}
