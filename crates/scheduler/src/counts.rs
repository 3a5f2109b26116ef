//! Numbers of pods by topology domain, which trials change for single domains.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

/// Counts by key. Copies share the counts at the time of the copy.
#[derive(Clone)]
pub struct Counts<K> {
    base: Arc<HashMap<K, i64>>,
    changed: Vec<(K, i64)>,
}

impl<K: Hash + Eq + Clone> Counts<K> {
    pub fn new(base: HashMap<K, i64>) -> Self {
        Self { base: Arc::new(base), changed: Vec::new() }
    }

    pub fn is_empty(&self) -> bool {
        self.base.is_empty() && self.changed.is_empty()
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.base.len() + self.changed.iter().filter(|(key, _)| !self.base.contains_key(key)).count()
    }

    pub fn get(&self, key: &K) -> i64 {
        let changed = self.changed.iter().find(|(k, _)| k == key).map(|(_, delta)| *delta);
        self.base.get(key).copied().unwrap_or(0) + changed.unwrap_or(0)
    }

    /// Adds to a count; returns the sum.
    pub fn add(&mut self, key: K, delta: i64) -> i64 {
        match self.changed.iter_mut().find(|(k, _)| *k == key) {
            Some((_, sum)) => *sum += delta,
            None => self.changed.push((key.clone(), delta)),
        }
        self.get(&key)
    }
}
