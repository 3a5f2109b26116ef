//! Equal things, kept once.
//!
//! Invariant: a pool is bounded. When it is full it forgets, which costs memory and changes nothing else.

use foldhash::fast::RandomState;
use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::{BuildHasher, Hash};
use std::sync::{Mutex, PoisonError};

/// Several, so that threads seldom meet.
const SHARDS: usize = 16;
/// Of one shard.
const LIMIT: usize = 2_048;

/// `T` is cheap to clone, as an `Arc` is.
pub struct Pool<T> {
    shards: [Mutex<HashSet<T, RandomState>>; SHARDS],
    choice: RandomState,
}

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self { shards: Default::default(), choice: RandomState::default() }
    }
}

impl<T: Clone + Eq + Hash> Pool<T> {
    /// The pooled value that equals `key`, or the one that `make` creates, which must equal it.
    pub fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q, make: impl FnOnce() -> T) -> T
    where
        T: Borrow<Q>,
    {
        let shard = &self.shards[self.choice.hash_one(key) as usize % SHARDS];
        let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = shard.get(key) {
            return known.clone();
        }
        if shard.len() >= LIMIT {
            shard.clear();
        }
        let new = make();
        shard.insert(new.clone());
        new
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner).len()).sum()
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn equal_things_are_one_and_a_full_pool_goes_on() {
        let pool: Pool<Arc<str>> = Pool::default();
        let get = |text: &str| pool.get(text, || text.into());
        assert!(Arc::ptr_eq(&get("Running"), &get("Running")));
        for number in 0..SHARDS * LIMIT * 2 {
            assert_eq!(&*get(&number.to_string()), number.to_string());
        }
        assert!(pool.len() <= SHARDS * LIMIT);
        assert_eq!(&*get("Running"), "Running");
    }
}
