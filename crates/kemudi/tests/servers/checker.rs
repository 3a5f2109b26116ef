//! Writers and watchers that go on while servers and etcd members are killed, and the comparison of what they saw with the history in etcd.

use crate::cluster::{Cluster, PATIENCE, maps};
use client::{Client, DeleteOptions, Error, ListOptions, WatchEvent, WatchOptions, WriteOptions};
use fastrand::Rng;
use futures::StreamExt;
use meta::Object;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// A change of one object: its revision, its name, and its value; none for a deletion.
type Change = (u64, String, Option<String>);

const WRITERS: usize = 4;
const WATCHERS: usize = 3;
const KEYS: usize = 5;

/// What happened, for the message of the test.
#[derive(Debug, Default)]
pub struct Report {
    pub acknowledged: usize,
    pub unanswered: usize,
    pub history: usize,
    pub resumed: u64,
}

fn revision(o: &Object) -> u64 {
    o.resource_version().parse().unwrap()
}

fn value(o: &Object) -> String {
    o.str_at(&["data", "v"]).unwrap_or_default().to_owned()
}

/// A client of any server, by chance.
fn any<'a>(clients: &'a [Client], rng: &mut Rng) -> &'a Client {
    &clients[rng.usize(0..clients.len())]
}

/// Repeats a read through any server until one answers.
async fn current(clients: &[Client], rng: &mut Rng, name: &str) -> Option<Object> {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Ok(Ok(found)) = timeout(Duration::from_secs(5), maps(any(clients, rng)).get_opt(name)).await {
            return found;
        }
        assert!(Instant::now() < end, "no server answers a read of {name}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Creates, updates and deletes its own objects, and reads each through another server after it was written. Returns the acknowledged
/// changes, and how many writes had no answer.
async fn write(clients: Vec<Client>, writer: usize, seed: u64, stop: Arc<AtomicBool>) -> (Vec<Change>, usize) {
    let mut rng = Rng::with_seed(seed);
    let (mut acknowledged, mut unanswered, mut number) = (Vec::new(), 0, 0);
    let mut known: BTreeMap<String, Object> = BTreeMap::new();
    while !stop.load(Ordering::Relaxed) {
        let name = format!("w{writer}-{}", rng.usize(0..KEYS));
        number += 1;
        let text = format!("{writer}-{number}");
        let api = maps(any(&clients, &mut rng));
        let options = WriteOptions::default();
        let attempt = async {
            match known.get(&name) {
                None => {
                    let o = json!({"metadata": {"name": name}, "data": {"v": text}});
                    api.create(&options, &Object::from_value(o).unwrap()).await.map(Some)
                }
                Some(_) if rng.u8(0..4) == 0 => api.delete(&name, &DeleteOptions::default()).await.map(|_| None),
                Some(old) => {
                    let mut o = old.clone();
                    o.set(&["data", "v"], text.clone());
                    api.update(&name, &options, &o).await.map(Some)
                }
            }
        };
        let deletes_revision = |answer: &Result<Option<Object>, Error>| matches!(answer, Ok(None));
        let answer = match timeout(Duration::from_secs(15), attempt).await {
            Ok(answer) => answer,
            Err(_) => Err(Error::Unexpected("no answer".into())),
        };
        if deletes_revision(&answer) {
            // Its revision is not in the answer.
            acknowledged.push((0, name.clone(), None));
        }
        match answer {
            Ok(Some(o)) => {
                acknowledged.push((revision(&o), name.clone(), Some(value(&o))));
                known.insert(name.clone(), o);
            }
            Ok(None) => drop(known.remove(&name)),
            Err(e) => {
                let refused = e.is_conflict() || e.is_already_exists() || e.is_not_found();
                assert!(!refused, "{name} has one writer, and its last state was read: {e}");
                unanswered += 1;
                // The write may have happened: what is read now is what counts, once it cannot happen later any more.
                tokio::time::sleep(Duration::from_secs(1)).await;
                let found = settled(&clients, &mut rng, &name).await;
                known.remove(&name);
                known.extend(found.map(|o| (name.clone(), o)));
            }
        }
        let seen = current(&clients, &mut rng, &name).await;
        let expected = known.get(&name).map(|o| (revision(o), value(o)));
        assert_eq!(seen.map(|o| (revision(&o), value(&o))), expected, "{name} is read as it was written last");
    }
    (acknowledged, unanswered)
}

/// The state of an object that a write without an answer may still change: what is read twice with a pause between.
async fn settled(clients: &[Client], rng: &mut Rng, name: &str) -> Option<Object> {
    let mut last = current(clients, rng, name).await;
    loop {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let next = current(clients, rng, name).await;
        if next.as_ref().map(revision) == last.as_ref().map(revision) {
            return next;
        }
        last = next;
    }
}

/// Watches from a revision until it has seen the name `end`, through any server, and through another one after each interruption.
async fn watch(clients: Vec<Client>, seed: u64, from: u64, resumed: Arc<AtomicU64>) -> Vec<Change> {
    let mut rng = Rng::with_seed(seed);
    let (mut seen, mut at) = (Vec::new(), from);
    loop {
        let options = WatchOptions { resource_version: at.to_string(), bookmarks: true, ..WatchOptions::default() };
        let api = maps(any(&clients, &mut rng));
        let Ok(Ok(mut events)) = timeout(Duration::from_secs(5), api.watch(&options)).await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        // A watch through a server that is alive may be silent; sometimes another server is used without need.
        let patience = Duration::from_secs(rng.u64(2..10));
        while let Ok(Some(event)) = timeout(patience, events.next()).await {
            let (o, deleted) = match event {
                Ok(WatchEvent::Added(o) | WatchEvent::Modified(o)) => (o, false),
                Ok(WatchEvent::Deleted(o)) => (o, true),
                Ok(WatchEvent::Bookmark { resource_version, .. }) => {
                    at = at.max(resource_version.parse().unwrap());
                    continue;
                }
                Err(e) => {
                    assert!(!e.is_expired(), "history since {at} is gone");
                    break;
                }
            };
            at = revision(&o);
            if o.name() == "end" {
                return seen;
            }
            seen.push((at, o.name().to_owned(), (!deleted).then(|| value(&o))));
        }
        resumed.fetch_add(1, Ordering::Relaxed);
    }
}

/// The history in etcd itself, after a revision.
async fn history(cluster: &Cluster, after: u64) -> Vec<Change> {
    use store::Engine;
    let options = store::EtcdOptions {
        endpoints: cluster.etcd.urls.clone(),
        prefix: "/registry/".into(),
        tls: store::EtcdTls::default(),
    };
    let etcd = store::Etcd::connect(&options).await.unwrap();
    let end = revision(&current(&cluster.clients, &mut Rng::with_seed(0), "end").await.unwrap());
    let scope = store::Scope { namespace: Some("default".into()), ..store::Scope::resource("configmaps") };
    let (mut changes, mut through) = (Vec::new(), after);
    while through < end {
        let part = etcd.changes(Some(&scope), through, end, 10_000).await.unwrap();
        through = part.through;
        changes.extend(part.changes.into_iter().filter(|c| &*c.key.name != "end").map(|c| {
            let object: Option<serde_json::Value> = c.value.map(|bytes| serde_json::from_slice(&bytes).unwrap());
            let text = object.map(|o| o["data"]["v"].as_str().unwrap_or_default().to_owned());
            (c.revision, c.key.name.to_string(), text)
        }));
    }
    changes
}

/// Kills servers and members by chance, one at a time of members and up to two of servers, and starts them again.
async fn kill(cluster: &mut Cluster, kills: usize, rng: &mut Rng) {
    for _ in 0..kills {
        tokio::time::sleep(Duration::from_millis(rng.u64(100..700))).await;
        if rng.u8(0..3) == 0 {
            let member = rng.usize(0..cluster.etcd.members.len());
            cluster.etcd.members[member].kill();
            tokio::time::sleep(Duration::from_millis(rng.u64(0..1500))).await;
            cluster.etcd.members[member].start();
            // With two members down there would be no quorum, and nothing to see.
            current(&cluster.clients, rng, "none").await;
            tokio::time::sleep(Duration::from_secs(1)).await;
        } else {
            let server = rng.usize(0..cluster.servers.len());
            match cluster.servers[server].process.is_running() {
                true => cluster.servers[server].process.kill(),
                false => cluster.servers[server].process.start(),
            }
            let dead: Vec<usize> = (0..3).filter(|n| !cluster.servers[*n].process.is_running()).collect();
            if dead.len() == 3 || rng.bool() {
                dead.into_iter().for_each(|n| cluster.servers[n].process.start());
            }
        }
    }
    for server in &mut cluster.servers {
        if !server.process.is_running() {
            server.process.start();
        }
    }
}

/// Kills while writers write and watchers watch, and checks that nothing acknowledged was lost and that every watcher saw the history.
pub async fn check(cluster: &mut Cluster, kills: usize, seed: u64) -> Report {
    let stop = Arc::new(AtomicBool::new(false));
    let resumed = Arc::new(AtomicU64::new(0));
    let mut rng = Rng::with_seed(seed);
    let list = maps(&cluster.clients[0]).list(&ListOptions::default()).await.unwrap();
    let from: u64 = list.resource_version.parse().unwrap();
    let clients = cluster.clients.clone();
    let writers: Vec<_> =
        (0..WRITERS).map(|n| tokio::spawn(write(clients.clone(), n, seed + n as u64, stop.clone()))).collect();
    let watchers: Vec<_> = (0..WATCHERS)
        .map(|n| tokio::spawn(watch(clients.clone(), seed + 100 + n as u64, from, resumed.clone())))
        .collect();
    kill(cluster, kills, &mut rng).await;
    stop.store(true, Ordering::Relaxed);
    let mut report = Report::default();
    let mut acknowledged = Vec::new();
    for writer in writers {
        let (changes, unanswered) = timeout(PATIENCE, writer).await.expect("the writer ends").unwrap();
        report.unanswered += unanswered;
        acknowledged.extend(changes);
    }
    let end = Object::from_value(json!({"metadata": {"name": "end"}})).unwrap();
    let limit = Instant::now() + PATIENCE;
    while maps(any(&clients, &mut rng)).create(&WriteOptions::default(), &end).await.is_err() {
        if current(&clients, &mut rng, "end").await.is_some() {
            break;
        }
        assert!(Instant::now() < limit, "the last write succeeds");
    }
    let history = history(cluster, from).await;
    for watcher in watchers {
        let seen = timeout(PATIENCE, watcher).await.expect("the watcher sees the end").unwrap();
        assert_eq!(seen, history, "seed {seed}: a watcher saw another history");
    }
    for (revision, name, value) in &acknowledged {
        let happened = match value {
            Some(_) => history.contains(&(*revision, name.clone(), value.clone())),
            None => history.iter().any(|(_, n, v)| n == name && v.is_none()),
        };
        assert!(happened, "seed {seed}: the acknowledged write {revision} of {name} is lost");
    }
    report.acknowledged = acknowledged.len();
    report.history = history.len();
    report.resumed = resumed.load(Ordering::Relaxed);
    maps(&cluster.clients[0]).delete("end", &DeleteOptions::default()).await.unwrap();
    report
}
