//! Stores for tests: every engine with a clock that the test turns.

use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use store::*;

/// A clock in Unix milliseconds that a test sets.
#[derive(Clone)]
pub struct Time(Arc<AtomicU64>);

impl Time {
    pub fn new() -> Time {
        Time(Arc::new(AtomicU64::new(1_000_000)))
    }

    pub fn advance(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::Relaxed);
    }

    pub fn clock(&self) -> Clock {
        let time = self.0.clone();
        Arc::new(move || time.load(Ordering::Relaxed))
    }
}

/// The index of a value: its length as mark, its first word as label.
pub fn options(time: &Time) -> Options {
    Options {
        index: Arc::new(|_, value| {
            let text = String::from_utf8_lossy(value);
            let word = text.split(' ').next().unwrap_or_default();
            Index { labels: Arc::new([("word".into(), word.into())]), fields: Box::default(), mark: value.len() as u32 }
        }),
        transform: None,
        retention: Retention::default(),
        clock: time.clock(),
    }
}

pub const SMALL: LmdbOptions = LmdbOptions { sync: true, initial_map: 1 << 20, reserve: 1 << 20, shrink: 256 << 20 };

pub async fn lmdb(path: &Path, options: Options) -> Store {
    Store::open(Lmdb::open(path, SMALL).unwrap(), options).await.unwrap()
}

pub fn op(name: &str, expect: Expect, action: Action) -> Op {
    let (namespace, name) = name.split_once('/').unwrap_or(("", name));
    Op { key: Key::new("things", namespace, name), expect, action }
}

pub fn put(name: &str, value: &str) -> Op {
    op(name, Expect::Any, Action::Put(Bytes::copy_from_slice(value.as_bytes())))
}

pub fn delete(name: &str) -> Op {
    op(name, Expect::Any, Action::Delete)
}

/// `namespace/name=value` of everything, in order.
pub fn listing(snapshot: &Snapshot) -> Vec<String> {
    let entry = |entry: &Arc<Entry>| {
        let value = String::from_utf8_lossy(&entry.value);
        format!("{}/{}={value}@{}", entry.key.namespace, entry.key.name, entry.revision)
    };
    snapshot.range("things", None, None).map(entry).collect()
}

/// `+name=value` or `-name=last value`, each with its revision.
pub fn describe(event: &Event) -> String {
    let sign = if event.change == Change::Put { '+' } else { '-' };
    let value = String::from_utf8_lossy(&event.entry.value);
    assert_eq!(event.entry.revision, event.revision);
    format!("{sign}{}={value}@{}", event.entry.key.name, event.revision)
}
