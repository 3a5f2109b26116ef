//! Tracks the controller's writes to the slices of each service, so that it does not decide on a cache without them (upstream
//! `k8s.io/endpointslice/util` `EndpointSliceTracker`). Upstream compares generations; resource versions also show changed labels.

use client::Key;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// After this time a missing write is not waited for any more: a new watch may never show a slice that was
/// created and deleted in between.
const PATIENCE: Duration = Duration::from_secs(300);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// At this resource version or a later one.
    Written(u64),
    Deleted,
}

#[derive(Default)]
pub(super) struct Tracker(Mutex<HashMap<Key, Slices>>);

/// By UID.
type Slices = HashMap<Arc<str>, (Expected, Instant)>;

impl Tracker {
    /// Records the resource version of a written slice.
    pub fn written(&self, service: &Key, uid: &str, resource_version: &str) {
        if let Ok(revision) = resource_version.parse() {
            self.expect(service, uid, Expected::Written(revision));
        }
    }

    pub fn deleted(&self, service: &Key, uid: &str) {
        self.expect(service, uid, Expected::Deleted);
    }

    fn expect(&self, service: &Key, uid: &str, expected: Expected) {
        self.0.lock().entry(service.clone()).or_default().insert(uid.into(), (expected, Instant::now()));
    }

    /// Whether the controller wrote the slice at this resource version.
    pub fn is_own(&self, service: &Key, uid: &str, resource_version: &str) -> bool {
        let services = self.0.lock();
        let expected = services.get(service).and_then(|slices| slices.get(uid)).map(|(expected, _)| *expected);
        matches!((expected, resource_version.parse::<u64>()), (Some(Expected::Written(at)), Ok(seen)) if at == seen)
    }

    /// Removes what is known of a service that is gone.
    pub fn forget(&self, service: &Key) {
        self.0.lock().remove(service);
    }

    /// Records that the cache shows the deletion of a slice.
    pub fn deletion_observed(&self, service: &Key, uid: &str) {
        let mut services = self.0.lock();
        if let Some(slices) = services.get_mut(service) {
            slices.remove(uid);
            if slices.is_empty() {
                services.remove(service);
            }
        }
    }

    /// Whether the cache lacks a write. `cached`: UIDs and resource versions of the slices of the service in the cache. Writes that the
    /// cache shows are removed.
    pub fn is_stale<'a>(&self, service: &Key, cached: impl Iterator<Item = (&'a str, &'a str)>) -> bool {
        let mut services = self.0.lock();
        let Some(slices) = services.get_mut(service) else { return false };
        let cached: HashMap<&str, u64> = cached.map(|(uid, version)| (uid, version.parse().unwrap_or(0))).collect();
        slices.retain(|uid, (expected, since)| {
            let shown = match (*expected, cached.get(&**uid)) {
                (Expected::Written(revision), Some(known)) => *known >= revision,
                (Expected::Written(_), None) => false,
                (Expected::Deleted, known) => known.is_none(),
            };
            !shown && since.elapsed() < PATIENCE
        });
        let stale = !slices.is_empty();
        if !stale {
            services.remove(service);
        }
        stale
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_cache_is_stale_until_it_shows_all_writes() {
        let (tracker, service) = (Tracker::default(), Key::new("x", "s"));
        let stale = |cached: &[(&str, &str)]| tracker.is_stale(&service, cached.iter().copied());
        assert!(!stale(&[]));
        tracker.written(&service, "a", "10");
        assert!(stale(&[]) && stale(&[("a", "9")]) && !stale(&[("a", "10")]) && !stale(&[]));
        tracker.written(&service, "a", "11");
        assert!(!stale(&[("a", "12")]));
        tracker.deleted(&service, "a");
        assert!(stale(&[("a", "12")]) && !stale(&[]));
        // It was created and deleted before the cache showed it.
        tracker.written(&service, "b", "13");
        tracker.deletion_observed(&service, "b");
        assert!(!stale(&[]));
        tracker.written(&service, "c", "14");
        tokio::time::advance(PATIENCE).await;
        assert!(!stale(&[]));
    }
}
