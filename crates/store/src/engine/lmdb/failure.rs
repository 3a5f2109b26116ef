//! Tests of failed syncs: a seccomp filter makes the syncs of a thread fail.
//!
//! Invariant: a filter is installed on a thread made for it and dies with it.
#![allow(clippy::unwrap_used)] // helpers of tests

use super::*;
use crate::{Action, Change, CommitError, Expect, Index, Key, Op, Options, Retention, Scope, Store, WatchError};
use nix::libc;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use std::collections::BTreeMap;

/// Makes every further sync of this thread, and of threads that it starts, fail with `EIO`.
fn fail_syncs() {
    let syncs = [libc::SYS_fdatasync, libc::SYS_fsync, libc::SYS_msync].map(|call| (call, Vec::new()));
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let fail = SeccompAction::Errno(libc::EIO as u32);
    let filter = SeccompFilter::new(BTreeMap::from(syncs), SeccompAction::Allow, fail, arch).unwrap();
    let program: BpfProgram = filter.try_into().unwrap();
    seccompiler::apply_filter(&program).unwrap();
}

/// Runs `work` on a thread with failing syncs.
fn failing<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let filtered = || {
        fail_syncs();
        work()
    };
    std::thread::scope(|scope| scope.spawn(filtered).join()).unwrap()
}

fn transaction(revision: u64) -> Vec<Transaction> {
    let write = Write { key: Key::new("things", "", &revision.to_string()), value: Some("v".into()), previous: 0 };
    vec![Transaction { revision, writes: vec![write] }]
}

const UPKEEP: Upkeep = Upkeep {
    now: 0,
    retention: Retention { age_ms: 300_000, bytes: 1 << 30, live_percent: 0, log_events: 10, log_bytes: 1 << 20 },
    compact_to: 0,
};

#[test]
fn a_failed_sync_is_never_tried_again() {
    let directory = tempfile::tempdir().unwrap();
    let options = LmdbOptions { reserve: 0, ..LmdbOptions::default() };
    let engine = Lmdb::open(directory.path(), options).unwrap();
    engine.write(&transaction(2), &UPKEEP).unwrap();
    let failed = failing(|| engine.write(&transaction(3), &UPKEEP));
    assert!(matches!(failed, Err(WriteError::Fatal(EngineError::Lmdb(_)))), "{failed:?}");
    // A sync would succeed here, although the earlier data may be lost.
    let again = engine.write(&transaction(3), &UPKEEP);
    assert!(matches!(again, Err(WriteError::Fatal(EngineError::Failed(_)))), "{again:?}");
    let changes = engine.inner.changes_blocking(None, 1, 9, 100).unwrap();
    assert_eq!(changes.changes.iter().map(|change| change.revision).collect::<Vec<_>>(), [2], "reading goes on");
    engine.inner.environment.close();
    let engine = Lmdb::open(directory.path(), options).unwrap();
    engine.write(&transaction(3), &UPKEEP).unwrap();
    engine.inner.environment.close();
}

#[test]
fn a_store_whose_disk_fails_says_so_and_takes_nothing_more() {
    let directory = tempfile::tempdir().unwrap();
    let engine = Lmdb::open(directory.path(), LmdbOptions { reserve: 0, ..LmdbOptions::default() }).unwrap();
    engine.write(&transaction(2), &UPKEEP).unwrap();
    let options = Options {
        index: Arc::new(|_, _| Index::default()),
        transform: None,
        retention: Retention::default(),
        clock: Arc::new(|| 1_000),
    };
    let put = |name: &str| {
        vec![Op { key: Key::new("things", "", name), expect: Expect::Any, action: Action::Put("v".into()) }]
    };
    let work = async || {
        let store = Store::open(engine.clone(), options).await.unwrap();
        let mut watch = store.watch(Scope::resource("things"), 1).unwrap();
        let batch = watch.next().await.unwrap();
        assert_eq!((batch.events.len(), batch.events[0].change), (1, Change::Put));
        for _ in 0..2 {
            let refused = store.commit(put("x")).await;
            let Err(CommitError::Fatal(why)) = &refused else { panic!("{refused:?}") };
            assert!(why.contains("Input/output error"), "{why}");
        }
        assert!(!store.is_alive());
        assert_eq!((store.revision(), store.snapshot().count("things", None)), (2, 1), "what was there can be read");
        assert!(matches!(watch.next().await, Err(WatchError::Fatal(_))));
        store.close().await;
    };
    failing(|| tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work()));
    // The next start finds what was acknowledged.
    let engine = Lmdb::open(directory.path(), LmdbOptions { reserve: 0, ..LmdbOptions::default() }).unwrap();
    let changes = engine.inner.changes_blocking(None, 1, 9, 100).unwrap();
    assert_eq!(changes.changes.len(), 1);
    engine.inner.environment.close();
}
