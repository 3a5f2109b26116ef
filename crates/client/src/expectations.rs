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

/// Objects by UID of which a controller removed something (a finalizer) that the cache may still show, for each key.
pub struct PendingRemovals<K>(Mutex<BTreeMap<K, BTreeSet<String>>>);

impl<K> Default for PendingRemovals<K> {
    fn default() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }
}

impl<K: Ord + Clone> PendingRemovals<K> {
    /// Must be called before the removals.
    pub fn expect(&self, key: &K, uids: impl IntoIterator<Item = String>) {
        self.0.lock().entry(key.clone()).or_default().extend(uids);
    }

    /// The cache shows the removal, or it failed.
    pub fn observed(&self, key: &K, uid: &str) {
        let mut all = self.0.lock();
        if let Some(pending) = all.get_mut(key) {
            pending.remove(uid);
            if pending.is_empty() {
                all.remove(key);
            }
        }
    }

    /// The UIDs of objects of the key whose removal is not observed yet.
    pub fn pending(&self, key: &K) -> BTreeSet<String> {
        self.0.lock().get(key).cloned().unwrap_or_default()
    }

    /// Removes what is pending of a deleted key.
    pub fn forget(&self, key: &K) {
        self.0.lock().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removals_are_pending_until_they_are_observed() {
        let p = PendingRemovals::default();
        p.expect(&"a", ["x".into(), "y".into()]);
        p.expect(&"a", ["z".into()]);
        p.observed(&"a", "y");
        p.observed(&"b", "x");
        assert_eq!(p.pending(&"a"), BTreeSet::from(["x".into(), "z".into()]));
        p.forget(&"a");
        assert_eq!(p.pending(&"a"), BTreeSet::new());
    }

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
