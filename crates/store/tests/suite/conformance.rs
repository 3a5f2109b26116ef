//! What every engine must do, run over each of them.

use crate::support::*;
use bytes::Bytes;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use store::*;
use tokio::time::timeout;

/// One engine that can be opened again.
enum Bench {
    Memory(Arc<Memory>),
    Lmdb(tempfile::TempDir),
    Etcd(crate::etcd::Server),
}

impl Bench {
    fn all() -> Vec<Bench> {
        let mut all = vec![Bench::Memory(Memory::new()), Bench::Lmdb(tempfile::tempdir().unwrap())];
        if crate::etcd::is_installed() {
            all.push(Bench::Etcd(crate::etcd::Server::start()));
        }
        all
    }

    async fn open(&self, options: Options) -> Store {
        match self {
            Bench::Memory(memory) => Store::open(memory.clone(), options).await.unwrap(),
            Bench::Lmdb(directory) => lmdb(directory.path(), options).await,
            Bench::Etcd(server) => server.open(options).await,
        }
    }
}

async fn next(watch: &mut Watch) -> Vec<String> {
    let batch = timeout(Duration::from_secs(20), watch.next()).await.expect("an event in time").unwrap();
    batch.events.iter().map(|event| describe(event)).collect()
}

#[tokio::test]
async fn transactions_happen_wholly_or_not_and_share_a_revision() {
    for bench in Bench::all() {
        let store = bench.open(options(&Time::new())).await;
        let start = store.revision();
        let done = store.commit(vec![put("a/x", "1"), put("a/y", "2")]).await.unwrap();
        assert_eq!(done.revision, start + 1);
        assert_eq!(done.entries.iter().flatten().map(|entry| entry.revision).collect::<Vec<_>>(), [start + 1; 2]);
        assert_eq!(done.entries[0].as_ref().unwrap().index().mark, 1);

        let refused = store.commit(vec![put("a/z", "3"), op("a/x", Expect::Absent, Action::Check)]).await;
        let Err(CommitError::Conflict { op: 1, current: Some(current) }) = refused else { panic!("{refused:?}") };
        assert_eq!((&*current.value, current.revision), (&b"1"[..], start + 1));
        let stale = op("a/x", Expect::Revision(start), Action::Delete);
        assert!(matches!(store.commit(vec![stale]).await, Err(CommitError::Conflict { op: 0, current: Some(_) })));
        let missing = op("a/z", Expect::Revision(start), Action::Delete);
        assert!(matches!(store.commit(vec![missing]).await, Err(CommitError::Conflict { op: 0, current: None })));
        assert_eq!(store.revision(), start + 1, "nothing happened");

        let nothing = store.commit(vec![delete("a/none"), op("a/x", Expect::Revision(start + 1), Action::Check)]).await;
        assert_eq!(nothing.unwrap().revision, start + 1, "no change, no revision");
        let swap = [op("a/x", Expect::Revision(start + 1), Action::Delete), put("a/z", "3")];
        let done = store.commit(swap.to_vec()).await.unwrap();
        assert!(done.entries[0].is_none() && done.entries[1].is_some());
        assert_eq!(listing(&store.snapshot()), [format!("a/y=2@{}", start + 1), format!("a/z=3@{}", start + 2)]);
        store.close().await;
    }
}

#[tokio::test]
async fn what_was_committed_is_there_after_opening_again() {
    for bench in Bench::all() {
        let time = Time::new();
        let store = bench.open(options(&time)).await;
        for name in ["b/2", "a/1", "-/0", "a/10"] {
            store.commit(vec![put(name, name)]).await.unwrap();
        }
        store.commit(vec![delete("a/1")]).await.unwrap();
        let (before, revision) = (listing(&store.snapshot()), store.revision());
        store.close().await;
        let store = bench.open(options(&time)).await;
        assert_eq!(listing(&store.snapshot()), before);
        // A shared engine marks each opening with a revision.
        let opened = store.revision();
        assert!(opened == revision || opened == revision + 1 && !matches!(bench, Bench::Memory(_) | Bench::Lmdb(_)));
        assert_eq!(store.commit(vec![put("c/1", "new")]).await.unwrap().revision, opened + 1);
        store.close().await;
    }
}

#[tokio::test]
async fn ranges_are_ordered_and_resume_after_a_place() {
    for bench in Bench::all() {
        let store = bench.open(options(&Time::new())).await;
        let names = ["a/1", "a/2", "a-b/1", "b/1", "cluster"];
        store.commit(names.iter().map(|name| put(name, "v")).collect()).await.unwrap();
        let snapshot = store.snapshot();
        let range = |namespace, after| -> Vec<String> {
            let entries = snapshot.range("things", namespace, after);
            entries.map(|entry| format!("{}/{}", entry.key.namespace, entry.key.name)).collect()
        };
        assert_eq!(range(None, None), ["/cluster", "a/1", "a/2", "a-b/1", "b/1"]);
        assert_eq!(range(Some("a"), None), ["a/1", "a/2"]);
        assert_eq!(range(None, Some(("a", "1"))), ["a/2", "a-b/1", "b/1"]);
        assert_eq!(range(None, Some(("a", "15"))), ["a/2", "a-b/1", "b/1"]);
        assert_eq!(range(Some("a"), Some(("", "z"))), ["a/1", "a/2"]);
        assert_eq!(range(Some("a"), Some(("b", "1"))), [""; 0]);
        assert_eq!((snapshot.count("things", None), snapshot.count("things", Some("a"))), (5, 2));
        assert_eq!((snapshot.count("things", Some("z")), snapshot.count("others", None)), (0, 0));
        assert_eq!(snapshot.resources().map(|name| &**name).collect::<Vec<_>>(), ["things"]);
        store.close().await;
    }
}

#[tokio::test]
async fn a_watch_tells_everything_after_its_revision_in_order() {
    for bench in Bench::all() {
        let time = Time::new();
        let store = bench.open(options(&time)).await;
        let start = store.revision();
        let mut live = store.watch(Scope::resource("things"), start).unwrap();
        store.commit(vec![put("a/x", "1"), put("a/y", "1")]).await.unwrap();
        store.commit(vec![put("a/x", "2")]).await.unwrap();
        store.commit(vec![delete("a/y")]).await.unwrap();
        let all = |start: u64| {
            let [first, second, third] = [start + 1, start + 2, start + 3];
            vec![format!("+x=1@{first}"), format!("+y=1@{first}"), format!("+x=2@{second}"), format!("-y=1@{third}")]
        };
        let mut received = Vec::new();
        while received.len() < 4 {
            received.extend(next(&mut live).await);
        }
        assert_eq!(received, all(start));
        assert_eq!(live.revision(), start + 3);
        let middle = &mut store.watch(Scope::resource("things"), start + 1).unwrap();
        assert_eq!(next(middle).await, all(start)[2..]);
        let only = Scope { name: Some("y".into()), namespace: Some("a".into()), ..Scope::resource("things") };
        let mut only = store.watch(only, start + 1).unwrap();
        let batch = only.next().await.unwrap();
        let event = &batch.events[0];
        assert_eq!((describe(event), event.previous.as_ref().unwrap().revision), (all(start)[3].clone(), start + 1));
        assert!(matches!(
            store.watch(Scope::resource("things"), start + 9),
            Err(WatchError::Future { current }) if current == start + 3
        ));

        // Quiet resources move on with the store, for bookmarks.
        let quiet = store.watch(Scope::resource("others"), start).unwrap();
        assert_eq!(quiet.revision(), start + 3);
        store.close().await;

        // From history, after opening again.
        let store = bench.open(options(&time)).await;
        let mut old = store.watch(Scope::resource("things"), start).unwrap();
        let mut received = Vec::new();
        while received.len() < 4 {
            received.extend(next(&mut old).await);
        }
        assert_eq!(received, all(start));
        store.close().await;
        assert!(matches!(timeout(Duration::from_secs(20), old.next()).await.unwrap(), Err(WatchError::Closed)));
    }
}

#[tokio::test]
async fn exact_snapshots_are_made_from_history_until_it_is_compacted() {
    for bench in Bench::all() {
        let time = Time::new();
        let store = bench.open(options(&time)).await;
        let mut expected = vec![(store.revision(), listing(&store.snapshot()))];
        for round in 0..60 {
            let name = format!("n/{}", round % 7);
            let op = if round % 5 == 4 { delete(&name) } else { put(&name, &round.to_string()) };
            store.commit(vec![op, put("n/every", &round.to_string())]).await.unwrap();
            expected.push((store.revision(), listing(&store.snapshot())));
        }
        for (revision, listing_then) in &expected {
            let snapshot = store.snapshot_at(&Scope::resource("things"), *revision).await.unwrap();
            assert_eq!((snapshot.revision(), &listing(&snapshot)), (*revision, listing_then));
        }
        let current = store.revision();
        assert!(matches!(
            store.snapshot_at(&Scope::resource("things"), current + 1).await,
            Err(SnapshotError::Future { .. })
        ));
        let middle = current - 20;
        assert_eq!(store.compact_now(middle).await.unwrap(), middle);
        for (revision, listing_then) in &expected {
            // Some older ones are still in memory, which is allowed.
            match store.snapshot_at(&Scope::resource("things"), *revision).await {
                Ok(snapshot) => assert_eq!(&listing(&snapshot), listing_then),
                Err(SnapshotError::Expired { oldest }) => assert!(*revision < middle && oldest == middle),
                Err(error) => panic!("{error}"),
            }
        }
        assert!(matches!(
            store.snapshot_at(&Scope::resource("things"), expected[0].0).await,
            Err(SnapshotError::Expired { .. })
        ));
        let early = store.watch(Scope::resource("things"), middle - 1);
        assert!(matches!(early, Err(WatchError::Expired { oldest }) if oldest == middle));
        let mut rest = store.watch(Scope::resource("things"), middle).unwrap();
        assert!(next(&mut rest).await[0].ends_with(&format!("@{}", middle + 1)));
        store.close().await;
    }
}

#[tokio::test]
async fn bad_input_is_refused_clearly() {
    for bench in Bench::all() {
        let store = bench.open(options(&Time::new())).await;
        let long = "n".repeat(MAX_KEY + 1);
        let longest = "n".repeat(MAX_KEY);
        let refused = store.commit(vec![put("a", "1"), put(&long, "1")]).await;
        assert!(matches!(refused, Err(CommitError::TooLongKey { op: 1, .. })), "{refused:?}");
        store.commit(vec![put(&longest, "1")]).await.unwrap();
        for bad in ["a/", "a/x\0y"] {
            assert!(matches!(store.commit(vec![put(bad, "1")]).await, Err(CommitError::BadKey { op: 0 })));
        }
        let twice = store.commit(vec![put("a", "1"), delete("a")]).await;
        assert!(matches!(twice, Err(CommitError::SameKey { op: 1 })));
        let huge = Action::Put(Bytes::from(vec![b'x'; MAX_VALUE + 1]));
        let huge = store.commit(vec![op("a", Expect::Any, huge)]).await;
        assert!(matches!(huge, Err(CommitError::TooLarge { op: 0, .. })));
        let largest = Action::Put(Bytes::from(vec![b'x'; MAX_VALUE]));
        store.commit(vec![op("a", Expect::Any, largest)]).await.unwrap();
        assert_eq!(store.snapshot().count("things", None), 2);
        store.close().await;
    }
}

/// Every waiting writer is answered, in one order that all see.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_writers_of_one_counter_lose_no_increment() {
    for bench in Bench::all() {
        let store = bench.open(options(&Time::new())).await;
        store.commit(vec![put("counter", "0")]).await.unwrap();
        let writers: Vec<_> = (0..16)
            .map(|_| {
                let store = store.clone();
                tokio::spawn(async move {
                    let mut done = 0;
                    while done < 20 {
                        let now = store.snapshot().get(&Key::new("things", "", "counter")).unwrap();
                        let number: u32 = std::str::from_utf8(&now.value).unwrap().parse().unwrap();
                        let value = Bytes::from((number + 1).to_string());
                        let add = op("counter", Expect::Revision(now.revision), Action::Put(value));
                        match store.commit(vec![add]).await {
                            Ok(committed) => {
                                assert!(store.snapshot().revision() >= committed.revision, "visible when answered");
                                done += 1;
                            }
                            Err(CommitError::Conflict { .. }) => tokio::task::yield_now().await,
                            Err(error) => panic!("{error}"),
                        }
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.await.unwrap();
        }
        assert!(listing(&store.snapshot())[0].starts_with("/counter=320@"));
        store.close().await;
    }
}

#[tokio::test]
async fn a_slow_watch_falls_off_the_log_and_loses_nothing() {
    for bench in Bench::all() {
        let mut options = options(&Time::new());
        options.retention.log_events = 10;
        let store = bench.open(options).await;
        let mut slow = store.watch(Scope::resource("things"), store.revision()).unwrap();
        let mut expected = Vec::new();
        for round in 0..1_500 {
            let done = store.commit(vec![put(&format!("n{}", round % 3), &round.to_string())]).await.unwrap();
            expected.push(format!("+n{}={round}@{}", round % 3, done.revision));
        }
        let mut received = Vec::new();
        while received.len() < expected.len() {
            received.extend(next(&mut slow).await);
        }
        assert_eq!(received, expected);
        store.close().await;
    }
}

#[tokio::test]
async fn one_directory_is_opened_once_and_a_newer_format_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path: PathBuf = directory.path().join("deep/er");
    let store = lmdb(&path, options(&Time::new())).await;
    let again = Lmdb::open(&path, SMALL).map(drop);
    assert!(matches!(again, Err(EngineError::InUse { .. })), "{again:?}");
    store.close().await;
    lmdb(&path, options(&Time::new())).await.close().await;
}

/// Seals by adding one to each byte, with the name as associated data.
struct Plus;

impl Transform for Plus {
    fn seal(&self, key: &Key, plain: &Bytes) -> Result<Bytes, TransformError> {
        let sealed = plain.iter().map(|byte| byte.wrapping_add(1));
        Ok(key.name.bytes().chain(*b":").chain(sealed).collect())
    }

    fn open(&self, key: &Key, stored: &[u8]) -> Result<Bytes, TransformError> {
        let own = format!("{}:", key.name);
        match stored.strip_prefix(own.as_bytes()) {
            Some(sealed) => Ok(sealed.iter().map(|byte| byte.wrapping_sub(1)).collect()),
            None => {
                let reason = "sealed for another key".into();
                Err(TransformError { key: key.to_string(), reason, fault: Fault::Value })
            }
        }
    }

    fn is_current(&self, key: &Key, stored: &[u8]) -> bool {
        stored.starts_with(format!("{}:", key.name).as_bytes())
    }
}

#[tokio::test]
async fn values_are_sealed_in_the_engine_and_plain_everywhere_else() {
    for bench in Bench::all() {
        let sealing = || Options { transform: Some(Arc::new(Plus)), ..options(&Time::new()) };
        let store = bench.open(sealing()).await;
        let start = store.revision();
        let done = store.commit(vec![put("a/x", "one"), put("a/y", "two")]).await.unwrap();
        assert_eq!(&*done.entries[0].as_ref().unwrap().value, b"one");
        store.commit(vec![delete("a/x")]).await.unwrap();
        let revision = done.revision;
        store.close().await;

        let store = bench.open(sealing()).await;
        assert_eq!(listing(&store.snapshot()), [format!("a/y=two@{revision}")]);
        let then = store.snapshot_at(&Scope::resource("things"), revision).await.unwrap();
        assert_eq!(listing(&then), [format!("a/x=one@{revision}"), format!("a/y=two@{revision}")]);
        let mut watch = store.watch(Scope::resource("things"), start).unwrap();
        assert_eq!(next(&mut watch).await[0], format!("+x=one@{revision}"));
        store.close().await;

        let store = bench.open(options(&Time::new())).await;
        assert_eq!(listing(&store.snapshot()), [format!("a/y=y:uxp@{revision}")]);
        store.close().await;
    }
}
