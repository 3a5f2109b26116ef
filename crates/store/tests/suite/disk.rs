//! What happens to the disk: a flat file under overwrites, a file that shrinks, and a disk that is full.

use crate::support::*;
use bytes::Bytes;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::path::Path;
use store::*;

fn large(name: &str, bytes: usize) -> Op {
    op(name, Expect::Any, Action::Put(Bytes::from(vec![name.len() as u8; bytes])))
}

#[tokio::test]
async fn an_hour_of_overwrites_leaves_the_file_as_large_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let time = Time::new();
    let engine = Lmdb::open(directory.path(), LmdbOptions { sync: false, ..SMALL }).unwrap();
    let store = Store::open(engine, options(&time)).await.unwrap();
    let mut early = 0;
    for second in 0..3_600_usize {
        let ops = (0..4).map(|at| large(&format!("n{}", (second * 4 + at) % 400), 500 + second * 37 % 6_000));
        store.commit(ops.collect()).await.unwrap();
        time.advance(1_000);
        if second == 900 {
            early = store.stats().usage.file;
        }
    }
    let stats = store.stats();
    assert!(stats.usage.file <= early * 115 / 100, "{early} bytes after a quarter, {} after an hour", stats.usage.file);
    assert!(early < 24 << 20, "{early} bytes for 1.4 MB of objects and 5 minutes of 14 kB/s");
    let kept = stats.revision - stats.compacted;
    assert!((295..=310).contains(&kept), "{kept} revisions are kept, one was written per second");
    assert_eq!(stats.objects, 400);
    store.close().await;
}

#[tokio::test]
async fn history_beyond_its_bytes_goes_before_its_time() {
    let directory = tempfile::tempdir().unwrap();
    let mut options = options(&Time::new());
    options.retention.bytes = 1 << 20;
    let store = lmdb(directory.path(), options).await;
    for round in 0..600 {
        store.commit(vec![large(&format!("n{}", round % 10), 10_000)]).await.unwrap();
    }
    let stats = store.stats();
    assert!(stats.usage.history <= (1 << 20) + 50_000, "{stats:?}");
    assert!(stats.usage.history > 900_000, "no more is forgotten than necessary: {stats:?}");
    assert!(stats.usage.file < 6 << 20, "{stats:?}");
    store.close().await;
}

/// After most of it was deleted the file is written anew when it is opened, with everything that it still holds.
#[tokio::test]
async fn a_file_that_is_mostly_free_shrinks_when_opened() {
    let directory = tempfile::tempdir().unwrap();
    let time = Time::new();
    let shrink = |shrink| LmdbOptions { shrink, ..SMALL };
    let open =
        async |options_| Store::open(Lmdb::open(directory.path(), options_).unwrap(), options(&time)).await.unwrap();
    let store = open(SMALL).await;
    for number in 0..200 {
        store.commit(vec![large(&format!("n{number}"), 50_000)]).await.unwrap();
    }
    for number in 0..190 {
        store.commit(vec![delete(&format!("n{number}"))]).await.unwrap();
    }
    let revision = store.revision();
    store.compact_now(revision).await.unwrap();
    store.commit(vec![large("n195", 7_000)]).await.unwrap();
    let (before, file) = (listing(&store.snapshot()), store.stats().usage.file);
    assert!(file > 9 << 20, "{file}");
    store.close().await;
    let store = open(shrink(64 << 20)).await;
    assert_eq!(store.stats().usage.file, file, "a small file stays as it is");
    store.close().await;
    // Left by a process that died while it copied.
    std::fs::write(directory.path().join("data.copy"), b"torn").unwrap();
    let store = open(shrink(1 << 20)).await;
    assert!(store.stats().usage.file < 2 << 20, "{:?}", store.stats());
    assert!(!directory.path().join("data.copy").exists());
    assert_eq!(listing(&store.snapshot()), before);
    let mut watch = store.watch(Scope::resource("things"), revision).unwrap();
    assert_eq!(watch.next().await.unwrap().events.len(), 1, "history is there, too");
    store.commit(vec![large("after", 100)]).await.unwrap();
    store.close().await;
    let store = open(shrink(1 << 20)).await;
    assert_eq!(store.stats().objects, before.len() + 1);
    store.close().await;
}

/// A small file system, unmounted when dropped.
struct Disk(tempfile::TempDir);

impl Disk {
    fn new(size: &str) -> Disk {
        let directory = tempfile::tempdir().unwrap();
        let options = format!("size={size}");
        mount(Some("tmpfs"), directory.path(), Some("tmpfs"), MsFlags::empty(), Some(options.as_str()))
            .expect("mounting a tmpfs needs root");
        Disk(directory)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = umount2(self.path(), MntFlags::MNT_DETACH);
    }
}

async fn fill(store: &Store, from: usize) -> usize {
    for number in from..from + 10_000 {
        match store.commit(vec![large(&format!("n{number}"), 20_000)]).await {
            Ok(_) => {}
            Err(CommitError::NoSpace) => return number,
            Err(error) => panic!("{error}"),
        }
    }
    panic!("a disk of 16 MB took 200 MB");
}

#[tokio::test]
async fn a_full_disk_refuses_puts_and_lets_deletions_make_room() {
    let disk = Disk::new("16m");
    let time = Time::new();
    let store = lmdb(&disk.path().join("data"), options(&time)).await;
    let count = fill(&store, 0).await;
    assert!(count > 300, "{count} objects of 20 kB on 16 MB");
    assert!(store.stats().usage.full);
    assert_eq!(store.snapshot().count("things", None), count, "the refused one is not there");
    for number in 0..count / 2 {
        store.commit(vec![delete(&format!("n{number}"))]).await.expect("deletions work on a full disk");
    }
    // The freed pages hold new objects, again until they are used up, again and again.
    let mut alive = count - count / 2;
    for round in 1..4 {
        let start = round * 100_000;
        let end = fill(&store, start).await;
        assert!(end - start > count / 4, "{} objects in the room of {}", end - start, count / 2);
        alive += end - start;
        assert_eq!(store.snapshot().count("things", None), alive);
        for number in start..end {
            store.commit(vec![delete(&format!("n{number}"))]).await.expect("deletions work on a full disk");
        }
        alive -= end - start;
    }
    let before = listing(&store.snapshot()).len();
    store.close().await;
    let store = lmdb(&disk.path().join("data"), options(&time)).await;
    assert_eq!(listing(&store.snapshot()).len(), before);
    store.close().await;
}

#[tokio::test]
async fn room_made_by_others_is_noticed() {
    let disk = Disk::new("16m");
    let ballast = disk.path().join("ballast");
    std::fs::write(&ballast, vec![0; 8 << 20]).unwrap();
    let store = lmdb(&disk.path().join("data"), options(&Time::new())).await;
    let count = fill(&store, 0).await;
    std::fs::remove_file(&ballast).unwrap();
    store.commit(vec![large("again", 20_000)]).await.expect("there is room again");
    assert!(!store.stats().usage.full, "the reserve is back");
    assert_eq!(store.snapshot().count("things", None), count + 1);
    store.close().await;
}
