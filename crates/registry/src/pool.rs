//! What many objects have in common, kept once: names and values of labels, nodes, phases, and whole sets of labels.
//!
//! Invariant: a pool is bounded. When it is full it forgets, which costs memory and changes nothing else.

use parking_lot::Mutex;
use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::Arc;
use store::Str;

/// Several, so that threads that load objects seldom meet.
const SHARDS: usize = 16;
/// Of one shard.
const LIMIT: usize = 2_048;
/// A longer text is hardly ever had by two objects.
const LONGEST: usize = 128;

type Labels = Arc<[(Str, Str)]>;

struct Shards<T> {
    shards: [Mutex<HashSet<T>>; SHARDS],
    choice: RandomState,
}

impl<T> Default for Shards<T> {
    fn default() -> Self {
        Self { shards: Default::default(), choice: RandomState::new() }
    }
}

impl<T: Clone + Eq + Hash> Shards<T> {
    fn get<Q: Hash + Eq + ?Sized>(&self, wanted: &Q, make: impl FnOnce() -> T) -> T
    where
        T: Borrow<Q>,
    {
        let mut shard = self.shards[self.choice.hash_one(wanted) as usize % SHARDS].lock();
        if let Some(known) = shard.get(wanted) {
            return known.clone();
        }
        if shard.len() >= LIMIT {
            shard.clear();
        }
        let new = make();
        shard.insert(new.clone());
        new
    }
}

#[derive(Default)]
pub(crate) struct Pool {
    texts: Shards<Str>,
    labels: Shards<Labels>,
}

impl Pool {
    pub fn text(&self, text: &str) -> Str {
        if text.len() > LONGEST { text.into() } else { self.texts.get(text, || text.into()) }
    }

    pub fn labels(&self, labels: Vec<(Str, Str)>) -> Labels {
        self.labels.get(&*labels, || labels.as_slice().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_things_are_one_and_a_full_pool_goes_on() {
        let pool = Pool::default();
        let (a, b) = (pool.text("Running"), pool.text("Running"));
        assert!(Arc::ptr_eq(&a, &b));
        let long = "x".repeat(LONGEST + 1);
        assert!(!Arc::ptr_eq(&pool.text(&long), &pool.text(&long)));
        let set = |text: &str| pool.labels(vec![("app".into(), text.into())]);
        assert!(Arc::ptr_eq(&set("web"), &set("web")) && set("web") != set("db"));
        for number in 0..SHARDS * LIMIT * 2 {
            assert_eq!(&*pool.text(&number.to_string()), number.to_string());
        }
        assert!(pool.texts.shards.iter().all(|shard| shard.lock().len() <= LIMIT));
        assert_eq!(&*pool.text("Running"), "Running");
    }
}
