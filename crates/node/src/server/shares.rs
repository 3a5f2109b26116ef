//! How many of something there may be at a time, in all and for each key.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;

pub(super) struct Shares<K> {
    each: usize,
    all: usize,
    counts: Mutex<HashMap<K, usize>>,
}

/// One of them, until this is dropped.
pub(super) struct Share<K: Eq + Hash> {
    shares: Arc<Shares<K>>,
    key: K,
}

impl<K: Clone + Eq + Hash> Shares<K> {
    pub fn new(all: usize, each: usize) -> Arc<Self> {
        Arc::new(Self { each, all, counts: Mutex::default() })
    }

    /// None when there is no more.
    pub fn take(self: &Arc<Self>, key: K) -> Option<Share<K>> {
        let mut counts = self.counts.lock();
        if counts.values().sum::<usize>() >= self.all || counts.get(&key).is_some_and(|n| *n >= self.each) {
            return None;
        }
        *counts.entry(key.clone()).or_insert(0) += 1;
        Some(Share { shares: self.clone(), key })
    }
}

impl<K: Eq + Hash> Drop for Share<K> {
    fn drop(&mut self) {
        let mut counts = self.shares.counts.lock();
        if let Some(n) = counts.get_mut(&self.key) {
            *n -= 1;
            if *n == 0 {
                counts.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_has_more_than_a_share_and_all_no_more_than_there_is() {
        let shares = Shares::new(3, 2);
        let mut held: Vec<_> = ["a", "a", "a", "b", "c"].map(|k| shares.take(k)).into_iter().collect();
        assert_eq!(held.iter().map(Option::is_some).collect::<Vec<_>>(), [true, true, false, true, false]);
        held[0] = None;
        assert!(shares.take("c").is_some() && shares.take("a").is_some());
        drop(held);
        assert!(shares.counts.lock().is_empty());
    }
}
