//! Random histories against a reference that keeps everything for ever in plain maps.

use crate::support::*;
use bytes::Bytes;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use store::*;

const AGE_MS: u64 = 20_000;

#[derive(Clone, Debug)]
enum Expected {
    Any,
    Absent,
    /// The revision that the reference knows, less this.
    Exists(u64),
}

#[derive(Clone, Debug)]
enum Step {
    Commit(Vec<(u8, Expected, Option<Option<u8>>)>),
    Reopen,
    /// This many revisions stay.
    Compact(u64),
    Advance(u64),
    /// Reads and watches from this many revisions back.
    Look(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let expected = prop_oneof![
        4 => Just(Expected::Any),
        1 => Just(Expected::Absent),
        2 => (0..2_u64).prop_map(Expected::Exists),
    ];
    // Put, delete, or only check.
    let action = prop_oneof![
        5 => any::<u8>().prop_map(|value| Some(Some(value))),
        2 => Just(Some(None)),
        1 => Just(None),
    ];
    let op = (0..6_u8, expected, action);
    let step = prop_oneof![
        12 => prop::collection::vec(op, 1..4).prop_map(Step::Commit),
        1 => Just(Step::Reopen),
        1 => (0..30_u64).prop_map(Step::Compact),
        2 => (100..9_000_u64).prop_map(Step::Advance),
        3 => (0..30_u64).prop_map(Step::Look),
    ];
    prop::collection::vec(step, 1..80)
}

/// Name → value and revision.
type Things = BTreeMap<String, (String, u64)>;

struct Reference {
    first: u64,
    /// The state at each revision from `first`, and what the revision did.
    states: Vec<Things>,
    events: Vec<Vec<String>>,
    times: Vec<u64>,
    now: u64,
    forced: u64,
}

impl Reference {
    fn newest(&self) -> (&Things, u64) {
        (&self.states[self.states.len() - 1], self.first + self.states.len() as u64 - 1)
    }

    fn at(&self, revision: u64) -> &Things {
        &self.states[(revision - self.first) as usize]
    }

    fn back(&self, steps: u64) -> u64 {
        self.newest().1.saturating_sub(steps).max(self.first)
    }

    fn events_after(&self, revision: u64) -> Vec<String> {
        self.events[(revision - self.first) as usize + 1..].concat()
    }

    /// The answer: the operation that conflicts, or the revision.
    fn commit(&mut self, ops: &[Op]) -> Result<u64, usize> {
        let (things, revision) = self.newest();
        let mut things = things.clone();
        for (at, op) in ops.iter().enumerate() {
            let current = things.get(&*op.key.name).map(|(_, revision)| *revision);
            let holds = match op.expect {
                Expect::Any => true,
                Expect::Absent => current.is_none(),
                Expect::Revision(revision) => current == Some(revision),
            };
            if !holds {
                return Err(at);
            }
        }
        let mut events = Vec::new();
        for op in ops {
            let name = op.key.name.to_string();
            match &op.action {
                Action::Check => {}
                Action::Put(value) => {
                    let value = String::from_utf8_lossy(value).into_owned();
                    events.push(format!("+{name}={value}@{}", revision + 1));
                    things.insert(name, (value, revision + 1));
                }
                Action::Delete => {
                    if let Some((value, _)) = things.remove(&name) {
                        events.push(format!("-{name}={value}@{}", revision + 1));
                    }
                }
            }
        }
        if events.is_empty() {
            return Ok(revision);
        }
        self.states.push(things);
        self.events.push(events);
        self.times.push(self.now);
        Ok(revision + 1)
    }

    /// The newest revision that may be compacted.
    fn compactable(&self) -> u64 {
        let old = self.times.iter().take_while(|time| **time + AGE_MS <= self.now).count() as u64;
        self.forced.max(self.first + old)
    }
}

fn expected_listing(things: &Things) -> Vec<String> {
    things.iter().map(|(name, (value, revision))| format!("/{name}={value}@{revision}")).collect()
}

enum Where {
    Memory(Arc<Memory>),
    Disk(tempfile::TempDir),
}

impl Where {
    async fn open(&self, options: Options) -> Store {
        match self {
            Where::Memory(memory) => Store::open(memory.clone(), options).await.unwrap(),
            Where::Disk(directory) => {
                // Without syncs: this is not about crashes, and there are many commits.
                let engine = Lmdb::open(directory.path(), LmdbOptions { sync: false, ..SMALL }).unwrap();
                Store::open(engine, options).await.unwrap()
            }
        }
    }
}

async fn look(store: &Store, reference: &Reference, revision: u64) {
    let compacted = store.stats().compacted;
    assert!(compacted <= reference.compactable(), "{compacted} is too much, {} may go", reference.compactable());
    match store.snapshot_at(&Scope::resource("things"), revision).await {
        Ok(snapshot) => assert_eq!(listing(&snapshot), expected_listing(reference.at(revision)), "at {revision}"),
        Err(SnapshotError::Expired { oldest }) => assert!(revision < oldest && oldest <= reference.compactable()),
        Err(error) => panic!("{error}"),
    }
    let expected = reference.events_after(revision);
    let mut watch = match store.watch(Scope::resource("things"), revision) {
        Ok(watch) => watch,
        Err(WatchError::Expired { oldest }) => {
            return assert!(revision < oldest && oldest <= reference.compactable());
        }
        Err(error) => panic!("{error}"),
    };
    let mut events: Vec<String> = Vec::new();
    while events.len() < expected.len() {
        let next = tokio::time::timeout(Duration::from_secs(20), watch.next()).await;
        let batch = next.unwrap_or_else(|_| panic!("{} of {} events came", events.len(), expected.len())).unwrap();
        events.extend(batch.events.iter().map(|event| describe(event)));
    }
    assert_eq!(events, expected, "after {revision}");
    assert_eq!(watch.revision(), reference.newest().1);
}

async fn run(place: Where, steps: &[Step]) {
    let time = Time::new();
    let mut options = options(&time);
    options.retention.age_ms = AGE_MS;
    options.retention.log_events = 8;
    let mut store = place.open(options.clone()).await;
    let mut reference = Reference {
        first: store.revision(),
        states: vec![Things::new()],
        events: vec![Vec::new()],
        times: Vec::new(),
        now: 0,
        forced: 0,
    };
    for step in steps {
        match step {
            Step::Commit(operations) => {
                let mut ops: Vec<Op> = Vec::new();
                for (name, expect, action) in operations {
                    let name = format!("n{name}");
                    if ops.iter().any(|op| *op.key.name == *name) {
                        continue;
                    }
                    let current = reference.newest().0.get(&name).map_or(9, |(_, revision)| *revision);
                    let expect = match expect {
                        Expected::Any => Expect::Any,
                        Expected::Absent => Expect::Absent,
                        Expected::Exists(less) => Expect::Revision(current.saturating_sub(*less)),
                    };
                    let action = match action {
                        None => Action::Check,
                        Some(None) => Action::Delete,
                        Some(Some(value)) => Action::Put(Bytes::from(format!("v{value}"))),
                    };
                    ops.push(op(&name, expect, action));
                }
                let answer = match store.commit(ops.clone()).await {
                    Ok(done) => Ok(done.revision),
                    Err(CommitError::Conflict { op, current }) => {
                        let known = reference.newest().0.get(&*ops[op].key.name).map(|(_, revision)| *revision);
                        assert_eq!(current.map(|entry| entry.revision), known);
                        Err(op)
                    }
                    Err(error) => panic!("{error}"),
                };
                assert_eq!(answer, reference.commit(&ops), "{ops:?}");
            }
            Step::Reopen => {
                store.close().await;
                store = place.open(options.clone()).await;
            }
            Step::Compact(stay) => {
                let to = reference.back(*stay);
                reference.forced = reference.forced.max(to);
                assert!(store.compact_now(to).await.unwrap() >= to);
            }
            Step::Advance(ms) => {
                time.advance(*ms);
                reference.now += ms;
            }
            Step::Look(back) => look(&store, &reference, reference.back(*back)).await,
        }
        assert_eq!(listing(&store.snapshot()), expected_listing(reference.newest().0));
        assert_eq!(store.revision(), reference.newest().1);
        assert_eq!(store.snapshot().count("things", None), reference.newest().0.len());
    }
    look(&store, &reference, reference.first).await;
    store.close().await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_024, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn memory_behaves_like_the_reference(steps in steps()) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(run(Where::Memory(Memory::new()), &steps));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 384, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn lmdb_behaves_like_the_reference(steps in steps()) {
        let place = Where::Disk(tempfile::tempdir().unwrap());
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(run(place, &steps));
    }
}
