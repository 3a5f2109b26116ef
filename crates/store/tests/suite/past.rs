//! Many readers of many old states: what they cost, and that they see what was.

use crate::support::*;
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use store::*;
use tokio::task::JoinSet;

const SIZE: usize = 200_000;
const OBJECTS: usize = 40;

/// Counts the values that it opened, and those that are still in memory.
#[derive(Default)]
struct Counting {
    opened: AtomicUsize,
    alive: AtomicUsize,
    most: AtomicUsize,
}

struct Opened(Vec<u8>, Arc<Counting>);

impl AsRef<[u8]> for Opened {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.1.alive.fetch_sub(self.0.len(), Ordering::SeqCst);
    }
}

struct Opens(Arc<Counting>);

impl Transform for Opens {
    fn seal(&self, _: &Key, plain: &Bytes) -> Result<Bytes, TransformError> {
        Ok(plain.clone())
    }

    fn open(&self, _: &Key, stored: &[u8]) -> Result<Bytes, TransformError> {
        self.0.opened.fetch_add(1, Ordering::SeqCst);
        let alive = self.0.alive.fetch_add(stored.len(), Ordering::SeqCst) + stored.len();
        self.0.most.fetch_max(alive, Ordering::SeqCst);
        Ok(Bytes::from_owner(Opened(stored.to_vec(), self.0.clone())))
    }

    fn is_current(&self, _: &Key, _: &[u8]) -> bool {
        true
    }
}

fn of_namespace(namespace: &str) -> Scope {
    Scope { namespace: Some(namespace.into()), ..Scope::resource("things") }
}

/// Large objects in `n`, all of them written twice, and a small one in `m`; the revisions between.
async fn filled(engine: Arc<dyn Engine>, counting: &Arc<Counting>) -> (Store, u64) {
    let options = Options { transform: Some(Arc::new(Opens(counting.clone()))), ..options(&Time::new()) };
    let store = Store::open(engine, options).await.unwrap();
    store.commit(vec![put("m/small", "one")]).await.unwrap();
    for text in ["a", "b"] {
        for object in 0..OBJECTS {
            store.commit(vec![put(&format!("n/{object}"), &text.repeat(SIZE))]).await.unwrap();
        }
    }
    let first = store.revision() + 1 - 2 * OBJECTS as u64;
    (store, first)
}

fn engines(directory: &std::path::Path) -> [Arc<dyn Engine>; 2] {
    [Memory::new(), Lmdb::open(directory, SMALL).unwrap()]
}

/// A list of another resource or namespace, however small, once took the older values of the whole store, and forty at once
/// took them forty times.
#[tokio::test]
async fn many_old_states_at_once_are_made_one_after_another_and_few_are_kept() {
    let directory = tempfile::tempdir().unwrap();
    for engine in engines(directory.path()) {
        let counting = Arc::<Counting>::default();
        let (store, first) = filled(engine, &counting).await;
        let mut readers = JoinSet::new();
        for back in 0..OBJECTS as u64 {
            let store = store.clone();
            readers.spawn(async move {
                let revision = first + back;
                let snapshot = store.snapshot_at(&of_namespace("n"), revision).await.unwrap();
                assert_eq!((snapshot.revision(), snapshot.count("things", None)), (revision, back as usize + 1));
                let all = snapshot.range("things", Some("n"), None);
                all.for_each(|entry| assert!(entry.value.starts_with(b"a") && entry.revision <= revision));
            });
        }
        while let Some(done) = readers.join_next().await {
            done.unwrap();
        }
        let (alive, most) = (counting.alive.load(Ordering::SeqCst), counting.most.load(Ordering::SeqCst));
        assert!(alive <= 32 << 20, "{alive} bytes are kept");
        assert!(most <= (32 << 20) + 2 * OBJECTS * SIZE, "{most} bytes were in memory at once");
        store.close().await;
    }
}

#[tokio::test]
async fn only_what_the_reader_is_for_is_made() {
    let directory = tempfile::tempdir().unwrap();
    for engine in engines(directory.path()) {
        let counting = Arc::<Counting>::default();
        let (store, first) = filled(engine, &counting).await;
        let of_others = store.snapshot_at(&Scope::resource("others"), first).await.unwrap();
        assert_eq!(of_others.count("others", None), 0);
        let of_m = store.snapshot_at(&of_namespace("m"), first).await.unwrap();
        assert_eq!(listing(&of_m).len(), 1, "and nothing that is of another revision");
        assert_eq!(counting.opened.load(Ordering::SeqCst), 0);

        // The next page, and the state before, cost what is not yet there.
        let middle = first + OBJECTS as u64 / 2 - 1;
        let of_n = store.snapshot_at(&of_namespace("n"), middle).await.unwrap();
        let opened = counting.opened.load(Ordering::SeqCst);
        assert_eq!((of_n.count("things", None), opened), (OBJECTS / 2, OBJECTS / 2));
        store.snapshot_at(&of_namespace("n"), middle).await.unwrap();
        store.snapshot_at(&of_namespace("n"), middle - 1).await.unwrap();
        assert_eq!(counting.opened.load(Ordering::SeqCst), opened);
        // What holds for a namespace does not hold for all.
        let all = store.snapshot_at(&Scope::resource("things"), middle).await.unwrap();
        assert_eq!(all.count("things", None), OBJECTS / 2 + 1);
        store.close().await;
    }
}

#[tokio::test]
async fn readers_of_one_revision_share_its_state_and_who_leaves_costs_nothing() {
    let directory = tempfile::tempdir().unwrap();
    for engine in engines(directory.path()) {
        let counting = Arc::<Counting>::default();
        let (store, first) = filled(engine, &counting).await;
        let scope = Scope::resource("things");
        let middle = first + OBJECTS as u64 / 2 - 1;
        // One is at work on many large values, the others wait.
        let left = [1, 2, 3].map(|back| {
            let revision = first + OBJECTS as u64 - back;
            let (store, scope) = (store.clone(), scope.clone());
            tokio::spawn(async move { store.snapshot_at(&scope, revision).await.map(drop) })
        });
        tokio::task::yield_now().await;
        for reader in left {
            reader.abort();
            assert!(reader.await.unwrap_err().is_cancelled());
        }
        let before = counting.opened.load(Ordering::SeqCst);
        let readers = (0..10).map(|_| {
            let (store, scope) = (store.clone(), scope.clone());
            tokio::spawn(async move { listing(&store.snapshot_at(&scope, middle).await.unwrap()) })
        });
        let mut listings = Vec::new();
        for reader in readers.collect::<Vec<_>>() {
            listings.push(reader.await.unwrap());
        }
        listings.dedup();
        assert_eq!((listings.len(), listings[0].len()), (1, OBJECTS / 2 + 1));
        assert_eq!(counting.opened.load(Ordering::SeqCst) - before, OBJECTS / 2);
        store.close().await;
    }
}

/// What is kept holds on to values that are replaced later; that is counted.
#[tokio::test]
async fn what_is_kept_goes_when_much_is_written_afterwards() {
    let directory = tempfile::tempdir().unwrap();
    for engine in engines(directory.path()) {
        let counting = Arc::<Counting>::default();
        let (store, first) = filled(engine, &counting).await;
        let middle = first + OBJECTS as u64 + 9;
        let opened = || counting.opened.load(Ordering::SeqCst);
        store.snapshot_at(&of_namespace("n"), middle).await.unwrap();
        let made = opened();
        store.snapshot_at(&of_namespace("n"), middle).await.unwrap();
        assert_eq!(opened(), made);
        for round in 0..5 {
            for object in 0..OBJECTS {
                store.commit(vec![put(&format!("n/{object}"), &round.to_string().repeat(SIZE))]).await.unwrap();
            }
        }
        assert_eq!(counting.alive.load(Ordering::SeqCst), 0);
        store.snapshot_at(&of_namespace("n"), middle).await.unwrap();
        assert!(opened() > made);
        store.close().await;
    }
}
