//! etcd servers for the suite, and what only several stores on one cluster can show.

use crate::support::*;
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use store::*;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

const PATIENCE: Duration = Duration::from_secs(30);

/// A server of its own on loopback, gone when dropped.
pub struct Server {
    child: Child,
    endpoint: SocketAddr,
    _directory: tempfile::TempDir,
}

/// Whether etcd is on this machine.
pub fn is_installed() -> bool {
    let found = Command::new("etcd").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !found {
        println!("skipped for etcd: it is not on this machine (Debian's etcd-server)");
    }
    found
}

impl Server {
    pub fn start() -> Server {
        let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let endpoint = free();
        let (client, peer) = (format!("http://{endpoint}"), format!("http://{}", free()));
        let child = Command::new("etcd")
            .args(["--data-dir", directory.path().to_str().unwrap(), "--initial-cluster", &format!("default={peer}")])
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer, "--log-level", "error"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("etcd (Debian's etcd-server) is installed");
        Server { child, endpoint, _directory: directory }
    }

    pub async fn engine(&self, prefix: &str) -> Arc<Etcd> {
        engine_at(self.endpoint, prefix).await
    }

    pub async fn open(&self, options: Options) -> Store {
        Store::open(self.engine("/test/").await, options).await.unwrap()
    }
}

async fn engine_at(endpoint: SocketAddr, prefix: &str) -> Arc<Etcd> {
    let endpoints = vec![format!("http://{endpoint}")];
    let options = EtcdOptions { endpoints, prefix: prefix.into(), tls: EtcdTls::default() };
    Etcd::connect(&options).await.unwrap()
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn two_servers_see_each_others_writes_and_compare_and_swap_against_them() {
    if !is_installed() {
        return;
    }
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
    if !is_installed() {
        return;
    }
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

/// A connection to a server that can be cut.
struct Cable {
    address: SocketAddr,
    connected: watch::Sender<bool>,
}

impl Cable {
    async fn to(server: SocketAddr) -> Cable {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (connected, watching) = watch::channel(true);
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut watching = watching.clone();
                if !*watching.borrow() {
                    continue;
                }
                tokio::spawn(async move {
                    let Ok(mut upstream) = TcpStream::connect(server).await else { return };
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut client, &mut upstream) => {}
                        _ = watching.wait_for(|connected| !connected) => {}
                    }
                });
            }
        });
        Cable { address, connected }
    }
}

/// Waits until a condition holds.
async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_refreshed_store_has_what_others_wrote_before() {
    if !is_installed() {
        return;
    }
    let server = Server::start();
    let time = Time::new();
    let (one, two) = (server.open(options(&time)).await, server.open(options(&time)).await);
    for number in 0..200 {
        let written = one.commit(vec![put("a/x", &number.to_string())]).await.unwrap();
        timeout(PATIENCE, two.refresh()).await.unwrap().unwrap();
        assert!(two.revision() >= written.revision);
        assert_eq!(listing(&two.snapshot()), listing(&one.snapshot()));
    }
    // Revisions of others never come through the feed.
    let theirs = Store::open(server.engine("/other/").await, options(&time)).await.unwrap();
    theirs.commit(vec![put("a/x", "theirs")]).await.unwrap();
    timeout(PATIENCE, two.refresh()).await.unwrap().unwrap();
    // Concurrent callers share reads, and none gets an older one.
    let written = one.commit(vec![put("a/x", "last")]).await.unwrap().revision;
    let mut refreshes = tokio::task::JoinSet::new();
    for _ in 0..500 {
        let two = two.clone();
        refreshes.spawn(async move { two.refresh().await.map(|()| two.revision()) });
    }
    while let Some(refreshed) = refreshes.join_next().await {
        assert!(refreshed.unwrap().unwrap() >= written);
    }
    for store in [one, two, theirs] {
        store.close().await;
    }
}

/// A server that was cut off for longer than history is kept reads everything again.
#[tokio::test]
async fn a_store_that_missed_compacted_changes_reads_everything_again() {
    if !is_installed() {
        return;
    }
    let server = Server::start();
    let time = Time::new();
    let near = server.open(options(&time)).await;
    near.commit(vec![put("a/deleted", "1"), put("a/kept", "1")]).await.unwrap();
    let cable = Cable::to(server.endpoint).await;
    let far = Store::open(engine_at(cable.address, "/test/").await, options(&time)).await.unwrap();
    let seen = far.revision();
    let (mut behind, mut other) =
        (far.watch(Scope::resource("things"), seen).unwrap(), far.watch(Scope::resource("others"), seen).unwrap());
    cable.connected.send_replace(false);
    near.commit(vec![delete("a/deleted"), put("a/kept", "2")]).await.unwrap();
    let last = near.commit(vec![put("a/new", "3")]).await.unwrap().revision;
    let refused = far.commit(vec![put("a/refused", "4")]).await;
    assert!(matches!(refused, Err(CommitError::Refused(_) | CommitError::Unanswered(_))), "{refused:?}");
    assert!(matches!(far.refresh().await, Err(CommitError::Unanswered(_))));
    assert!(!far.is_healthy() && far.is_alive() && near.is_healthy());
    near.compact_now(last).await.unwrap();
    cable.connected.send_replace(true);
    eventually("the state is read again", || far.revision() >= last).await;
    timeout(PATIENCE, far.refresh()).await.unwrap().unwrap();
    assert!(far.is_healthy());
    assert_eq!(listing(&far.snapshot()), listing(&near.snapshot()));
    for watch in [&mut behind, &mut other] {
        let ended = timeout(PATIENCE, watch.next()).await.unwrap();
        assert!(matches!(ended, Err(WatchError::Expired { .. })), "{ended:?}");
    }
    // It follows again.
    let mut watch = far.watch(Scope::resource("things"), far.revision()).unwrap();
    let written = near.commit(vec![put("a/again", "5")]).await.unwrap().revision;
    let batch = timeout(PATIENCE, watch.next()).await.unwrap().unwrap();
    assert_eq!(describe(&batch.events[0]), format!("+again=5@{written}"));
    near.close().await;
    far.close().await;
}

/// A short cut loses nothing: watches continue from history.
#[tokio::test]
async fn a_cut_connection_loses_no_change() {
    if !is_installed() {
        return;
    }
    let server = Server::start();
    let time = Time::new();
    let near = server.open(options(&time)).await;
    let cable = Cable::to(server.endpoint).await;
    let far = Store::open(engine_at(cable.address, "/test/").await, options(&time)).await.unwrap();
    let mut watch = far.watch(Scope::resource("things"), far.revision()).unwrap();
    let mut expected = Vec::new();
    for round in 0..20 {
        cable.connected.send_replace(round % 2 == 1);
        let value = round.to_string();
        let written = near.commit(vec![put("a/x", &value)]).await.unwrap().revision;
        expected.push(format!("+x={value}@{written}"));
    }
    let mut seen = Vec::new();
    while seen.len() < expected.len() {
        let batch = timeout(PATIENCE, watch.next()).await.unwrap().unwrap();
        seen.extend(batch.events.iter().map(|event| describe(event)));
    }
    assert_eq!(seen, expected);
    near.close().await;
    far.close().await;
}
