//! Creations and deletions that a controller requested but has not observed yet (upstream `controller_utils.go`,
//! `UIDTrackingControllerExpectations`).
//!
//! A controller that created three pods must not act on a cache without them and create three more. Expectations expire, so
//! that a lost event delays a key but never blocks it.

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

const TIMEOUT: Duration = Duration::from_secs(5 * 60);

struct Expected {
    creations: i64,
    /// UIDs of the objects whose deletion is expected; a set, so that two events for one object count once.
    deletions: BTreeSet<String>,
    since: Instant,
}

/// Expected creations and deletions by key of the owner.
pub struct Expectations<K>(Mutex<BTreeMap<K, Expected>>);

impl<K> Default for Expectations<K> {
    fn default() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }
}

impl<K: Ord + Clone> Expectations<K> {
    fn set(&self, key: &K, creations: i64, deletions: BTreeSet<String>) {
        self.0.lock().insert(key.clone(), Expected { creations, deletions, since: Instant::now() });
    }

    /// Expects `n` creations, and replaces other expectations of the key.
    pub fn expect_creations(&self, key: &K, n: usize) {
        self.set(key, n as i64, BTreeSet::new());
    }

    /// Creations and deletions at the same time.
    pub fn expect(&self, key: &K, creations: usize, deletions: impl IntoIterator<Item = String>) {
        self.set(key, creations as i64, deletions.into_iter().collect());
    }

    /// `objects` are UIDs, or other strings that are unique for all time.
    pub fn expect_deletions(&self, key: &K, objects: impl IntoIterator<Item = String>) {
        self.set(key, 0, objects.into_iter().collect());
    }

    /// A creation was observed, or failed.
    pub fn creation_observed(&self, key: &K) {
        if let Some(e) = self.0.lock().get_mut(key) {
            e.creations -= 1;
        }
    }

    /// A deletion was observed, or failed.
    pub fn deletion_observed(&self, key: &K, object: &str) {
        if let Some(e) = self.0.lock().get_mut(key) {
            e.deletions.remove(object);
        }
    }

    /// Whether the cache shows all expected changes of the key, or they have expired.
    pub fn satisfied(&self, key: &K) -> bool {
        match self.0.lock().get(key) {
            None => true,
            Some(e) => (e.creations <= 0 && e.deletions.is_empty()) || e.since.elapsed() > TIMEOUT,
        }
    }

    /// Removes the expectations of a deleted key.
    pub fn forget(&self, key: &K) {
        self.0.lock().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_key_is_trusted_after_all_was_seen_or_long_enough() {
        let e = Expectations::default();
        assert!(e.satisfied(&"a"));
        e.expect_creations(&"a", 2);
        e.creation_observed(&"a");
        assert!(!e.satisfied(&"a"));
        e.creation_observed(&"a");
        assert!(e.satisfied(&"a"));
        e.expect_deletions(&"a", ["x".into(), "y".into()]);
        e.deletion_observed(&"a", "x");
        e.deletion_observed(&"a", "x");
        assert!(!e.satisfied(&"a"));
        tokio::time::advance(TIMEOUT + Duration::from_secs(1)).await;
        assert!(e.satisfied(&"a"));
    }
}
