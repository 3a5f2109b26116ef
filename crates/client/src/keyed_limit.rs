//! A limit on what is open at a time, for each key (an address, a user) and in total.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

/// Counts what is open by key. Drops of a [`Permit`] decrease the count.
pub struct KeyedLimit<K> {
    total: usize,
    per_key: usize,
    open: Mutex<HashMap<K, usize>>,
}

/// Permission for one that is open; dropping it gives it back.
pub struct Permit<K: Eq + Hash> {
    limit: Arc<KeyedLimit<K>>,
    key: K,
}

impl<K: Clone + Eq + Hash> KeyedLimit<K> {
    /// A limit of `total` open at a time, of which each key may have `per_key`.
    pub fn new(total: usize, per_key: usize) -> Arc<Self> {
        Arc::new(Self { total, per_key, open: Mutex::default() })
    }

    /// Returns a permit, or none if the key has `per_key` open or all keys together have `total`.
    pub fn acquire(self: &Arc<Self>, key: K) -> Option<Permit<K>> {
        let mut open = self.open.lock();
        if open.values().sum::<usize>() >= self.total || open.get(&key).is_some_and(|n| *n >= self.per_key) {
            return None;
        }
        *open.entry(key.clone()).or_insert(0) += 1;
        Some(Permit { limit: self.clone(), key })
    }
}

impl<K: Eq + Hash> Drop for Permit<K> {
    fn drop(&mut self) {
        let mut open = self.limit.open.lock();
        if let Some(n) = open.get_mut(&self.key) {
            *n -= 1;
            if *n == 0 {
                open.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_are_limited_per_key_and_in_total() {
        let limit = KeyedLimit::new(3, 2);
        let mut held: Vec<_> = ["a", "a", "a", "b", "c"].map(|k| limit.acquire(k)).into_iter().collect();
        assert_eq!(held.iter().map(Option::is_some).collect::<Vec<_>>(), [true, true, false, true, false]);
        held[0] = None;
        assert!(limit.acquire("c").is_some() && limit.acquire("a").is_some());
        drop(held);
        assert!(limit.open.lock().is_empty());
    }
}
