//! Sealed values: what does not open, changing how they are sealed while others write, and copies of them.

use crate::support::*;
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use store::*;

/// Seals by a stamp with a digit, the "key", and the name. Digits above the known one are lost keys.
struct Stamp {
    digit: AtomicU8,
}

impl Stamp {
    fn new(digit: u8) -> Arc<Stamp> {
        Arc::new(Stamp { digit: AtomicU8::new(digit) })
    }

    fn prefix(&self, key: &Key) -> String {
        format!("{}:{}:", self.digit.load(Ordering::SeqCst), key.name)
    }
}

impl Transform for Stamp {
    fn seal(&self, key: &Key, plain: &Bytes) -> Result<Bytes, TransformError> {
        Ok([self.prefix(key).as_bytes(), plain].concat().into())
    }

    fn open(&self, key: &Key, stored: &[u8]) -> Result<Bytes, TransformError> {
        let failed = |reason: &str, fault| TransformError { key: key.to_string(), reason: reason.into(), fault };
        let text = std::str::from_utf8(stored).unwrap();
        let mut parts = text.splitn(3, ':');
        let (digit, name, plain) = (parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap());
        if digit.parse::<u8>().unwrap() > self.digit.load(Ordering::SeqCst) {
            return Err(failed("a lost key", Fault::Keys));
        }
        if name != &*key.name {
            return Err(failed("moved", Fault::Value));
        }
        Ok(Bytes::copy_from_slice(plain.as_bytes()))
    }

    fn is_current(&self, key: &Key, stored: &[u8]) -> bool {
        stored.starts_with(self.prefix(key).as_bytes())
    }
}

fn stamped(stamp: &Arc<Stamp>) -> Options {
    Options { transform: Some(stamp.clone()), ..options(&Time::new()) }
}

/// Two objects, of which `b` has the record of `a`.
async fn with_a_moved_record(engine: impl AsyncFn(Options) -> Store) {
    let store = engine(options(&Time::new())).await;
    store.commit(vec![put("n/a", "0:a:one"), put("n/b", "0:a:one"), put("m/c", "0:c:three")]).await.unwrap();
    store.close().await;
}

#[tokio::test]
async fn what_does_not_open_is_named_and_takes_nobody_with_it() {
    let directory = tempfile::tempdir().unwrap();
    let memory = Memory::new();
    for on_disk in [false, true] {
        let open = async |options: Options| match on_disk {
            false => Store::open(memory.clone(), options).await.unwrap(),
            true => lmdb(directory.path(), options).await,
        };
        with_a_moved_record(&open).await;
        let store = open(stamped(&Stamp::new(0))).await;
        let snapshot = store.snapshot();
        let revision = snapshot.revision();
        let b = Key::new("things", "n", "b");
        assert_eq!(listing(&snapshot), [format!("m/c=three@{revision}"), format!("n/a=one@{revision}")]);
        assert!(snapshot.get(&b).is_none());
        assert_eq!(snapshot.damaged(&b).unwrap().error.to_string(), "things/n/b: moved");
        let named = |namespace| snapshot.all_damaged("things", namespace).map(|it| it.key.name.clone()).collect();
        let all: Vec<Str> = named(None);
        assert_eq!((all, named(Some("n")).len(), named(Some("m")).len()), (vec!["b".into()], 1, 0));

        // It exists: it cannot be created, and a commit that names its revision may replace it.
        let create = op("n/b", Expect::Absent, Action::Put("two".into()));
        let refused = store.commit(vec![create]).await;
        assert!(matches!(refused, Err(CommitError::Conflict { op: 0, current: None })), "{refused:?}");
        let mut watch = store.watch(Scope::resource("things"), revision).unwrap();
        let replace = op("n/b", Expect::Revision(revision), Action::Put("two".into()));
        store.commit(vec![replace]).await.unwrap();
        assert!(store.snapshot().damaged(&b).is_none());
        assert_eq!(&*store.snapshot().get(&b).unwrap().value, b"two");
        let batch = watch.next().await.unwrap();
        assert_eq!(describe(&batch.events[0]), format!("+b=two@{}", revision + 1));
        let before = store.snapshot_at(&Scope::resource("things"), revision).await.unwrap();
        assert!(before.get(&b).is_none() && before.damaged(&b).is_some() && before.count("things", None) == 2);
        store.close().await;

        let store = open(options(&Time::new())).await;
        store.commit(vec![put("n/b", "0:x:torn")]).await.unwrap();
        store.close().await;
        let store = open(stamped(&Stamp::new(0))).await;
        assert!(store.snapshot().damaged(&b).is_some());
        store.commit(vec![delete("n/b")]).await.unwrap();
        assert!(store.snapshot().damaged(&b).is_none());
        store.close().await;
        let store = open(stamped(&Stamp::new(0))).await;
        assert!(store.snapshot().damaged(&b).is_none() && store.snapshot().get(&b).is_none());
        // From history, where a version that does not open was deleted.
        let mut watch = store.watch(Scope::resource("things"), store.revision() - 1).unwrap();
        store.commit(vec![put("n/d", "four")]).await.unwrap();
        let batch = watch.next().await.unwrap();
        assert_eq!(describe(&batch.events[0]), format!("+d=four@{}", store.revision()));
        store.close().await;
    }
}

#[tokio::test]
async fn a_lost_key_keeps_the_store_from_opening() {
    let directory = tempfile::tempdir().unwrap();
    let store = lmdb(directory.path(), stamped(&Stamp::new(2))).await;
    store.commit(vec![put("n/a", "one")]).await.unwrap();
    store.close().await;
    let engine = Lmdb::open(directory.path(), SMALL).unwrap();
    let refused = Store::open(engine.clone(), stamped(&Stamp::new(1))).await.map(drop).unwrap_err();
    let source = std::error::Error::source(&refused).unwrap().to_string();
    assert_eq!(source, "things/n/a: a lost key");
    engine.close().await;
    let store = lmdb(directory.path(), stamped(&Stamp::new(2))).await;
    assert_eq!(store.snapshot().count("things", None), 1);
    store.close().await;
}

/// A key may go when no newest version needs it; older states then lack only what it sealed.
#[tokio::test]
async fn history_outlives_its_key() {
    let directory = tempfile::tempdir().unwrap();
    let stamp = Stamp::new(3);
    let store = lmdb(directory.path(), stamped(&stamp)).await;
    store.commit(vec![put("n/a", "old")]).await.unwrap();
    stamp.digit.store(1, Ordering::SeqCst);
    let then = store.commit(vec![put("n/b", "other")]).await.unwrap().revision;
    store.commit(vec![put("n/a", "new")]).await.unwrap();
    store.close().await;
    let store = lmdb(directory.path(), stamped(&stamp)).await;
    assert_eq!(store.snapshot().count("things", None), 2);
    let before = store.snapshot_at(&Scope::resource("things"), then).await.unwrap();
    assert_eq!(listing(&before), [format!("n/b=other@{then}")]);
    assert!(before.damaged(&Key::new("things", "n", "a")).is_some());
    let mut watch = store.watch(Scope::resource("things"), then - 1).unwrap();
    let next = watch.next().await;
    assert!(
        matches!(next, Err(WatchError::Expired { oldest }) if oldest == store.revision()),
        "never a silent gap: {next:?}"
    );
    store.close().await;
}

/// Writers go on while the seal changes: in the end nothing needs the old one, and nothing is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_seal_is_changed_under_load() {
    let directory = tempfile::tempdir().unwrap();
    let stamp = Stamp::new(0);
    let store = lmdb(directory.path(), stamped(&stamp)).await;
    let first = (0..200).map(|at| put(&format!("n/old-{at}"), "x")).collect();
    store.commit(first).await.unwrap();
    assert!(store.stale("things").await.unwrap().is_empty());
    assert!(store.stale("others").await.unwrap().is_empty());
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let store = store.clone();
            tokio::spawn(async move {
                for round in 0..300 {
                    let name = if round % 2 == 0 { format!("n/w{writer}-{round}") } else { format!("n/old-{round}") };
                    store.commit(vec![put(&name, &format!("{writer} {round}"))]).await.unwrap();
                }
            })
        })
        .collect();
    while store.snapshot().count("things", None) < 300 {
        tokio::task::yield_now().await;
    }
    stamp.digit.store(1, Ordering::SeqCst);
    let mut rounds = 0;
    loop {
        let stale = store.stale("things").await.unwrap();
        if stale.is_empty() {
            break;
        }
        store.reseal(&stale).await.unwrap();
        rounds += 1;
    }
    assert!(rounds > 0);
    for writer in writers {
        writer.await.unwrap();
    }
    // Those who still wrote took the new seal.
    assert!(store.stale("things").await.unwrap().is_empty());
    let before = listing(&store.snapshot());
    store.close().await;
    let store = lmdb(directory.path(), options(&Time::new())).await;
    let stored = listing(&store.snapshot());
    assert_eq!(stored.len(), before.len());
    for (entry, plain) in stored.iter().zip(&before) {
        let name = plain.split('=').next().unwrap();
        let bare = name.strip_prefix("n/").unwrap();
        assert_eq!(entry.replace(&format!("1:{bare}:"), ""), *plain);
    }
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_is_one_state_while_others_write() {
    let directory = tempfile::tempdir().unwrap();
    let stamp = Stamp::new(0);
    let store = lmdb(&directory.path().join("data"), stamped(&stamp)).await;
    // Two keys that are always written together.
    let writer = {
        let store = store.clone();
        tokio::spawn(async move {
            for round in 0.. {
                let value = round.to_string();
                let ops =
                    vec![put("n/left", &value), put("n/right", &value), put(&format!("n/{}", round % 500), &value)];
                match store.commit(ops).await {
                    Ok(_) => {}
                    Err(CommitError::Closed) => return,
                    Err(error) => panic!("{error}"),
                }
            }
        })
    };
    let mut copies = Vec::new();
    for copy in 0..4 {
        store.wait_for(store.revision() + 50).await.unwrap();
        let path = directory.path().join(format!("copy-{copy}"));
        let (before, backup) = (store.revision(), store.backup(&path, 0).await.unwrap());
        assert!(backup.revision >= before && backup.damaged.is_empty());
        copies.push((path, backup));
    }
    let (path, _) = &copies[0];
    let again = store.backup(path, 0).await.map(drop);
    assert!(matches!(again, Err(Error::Engine(EngineError::File { .. }))), "{again:?}");
    store.close().await;
    writer.await.unwrap();
    for (path, backup) in copies {
        assert!(!path.with_extension("partial").exists());
        let copy = lmdb(&path, stamped(&stamp)).await;
        let snapshot = copy.snapshot();
        let value = |name: &str| snapshot.get(&Key::new("things", "n", name)).unwrap().value.clone();
        assert_eq!(value("left"), value("right"));
        assert_eq!((copy.revision(), snapshot.count("things", None)), (backup.revision, backup.objects));
        let round: u64 = std::str::from_utf8(&value("left")).unwrap().parse().unwrap();
        let left = snapshot.get(&Key::new("things", "n", "left")).unwrap();
        assert_eq!((left.revision, backup.revision), (round + 2, round + 2), "revisions are the original's");
        // It is a store like any other; its history starts where it was made.
        let early = copy.watch(Scope::resource("things"), backup.revision - 1);
        assert!(matches!(early, Err(WatchError::Expired { .. })));
        assert_eq!(
            copy.commit(vec![put("n/left", "new"), delete("n/right")]).await.unwrap().revision,
            backup.revision + 1
        );
        let stats = copy.stats();
        assert_eq!(stats.objects, backup.objects - 1);
        copy.close().await;
    }
}
