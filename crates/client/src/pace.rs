//! Rate limits per key: [`Tokens`], a token bucket, and [`Pace`] for objects whose spec changes faster than a controller should
//! follow.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// A token bucket of `burst` tokens for each key; a token returns after `every`. Stored as the time at which the bucket is full.
pub struct Tokens<K> {
    full_at: Mutex<BTreeMap<K, Instant>>,
    burst: u32,
    every: Duration,
}

impl<K: Ord + Clone> Tokens<K> {
    /// Full buckets for all keys. `burst` tokens take `burst · every` to return.
    pub fn new(burst: u32, every: Duration) -> Self {
        Self { full_at: Mutex::default(), burst, every }
    }

    /// Takes `n` tokens, at most `burst`, and returns none; or takes nothing and returns how long to wait for them.
    pub fn take(&self, key: &K, n: u32) -> Option<Duration> {
        let now = Instant::now();
        let mut all = self.full_at.lock();
        let full = all.get(key).map_or(now, |at| *at.max(&now));
        let next = full + self.every * n.min(self.burst);
        let latest = now + self.every * self.burst;
        if next > latest {
            return Some(next - latest);
        }
        // Keys with a full bucket are not stored.
        if all.len() > 1000 {
            all.retain(|_, at| *at > now);
        }
        all.insert(key.clone(), next);
        None
    }

    /// Removes a deleted key.
    pub fn forget(&self, key: &K) {
        self.full_at.lock().remove(key);
    }
}

/// Generations of one object that are followed at once,
const FREE: u32 = 20;
/// and the interval after that.
const EVERY: Duration = Duration::from_millis(200);

/// Limits how often the generation of each key is followed.
///
/// Each change of an object's `generation` makes a controller write, in a race with the client that keeps changing it. The first
/// changes are followed at once, later ones five times a second; the newest one is never lost, since the key is requeued.
/// Status changes, which leave the generation as it is, are not delayed.
pub struct Pace<K> {
    followed: Mutex<BTreeMap<K, i64>>,
    tokens: Tokens<K>,
}

impl<K: Ord + Clone> Default for Pace<K> {
    fn default() -> Self {
        Self { followed: Mutex::default(), tokens: Tokens::new(FREE, EVERY) }
    }
}

impl<K: Ord + Clone> Pace<K> {
    /// None if a generation may be followed now; otherwise how long to wait before the next call.
    pub fn wait(&self, key: &K, generation: i64) -> Option<Duration> {
        let mut followed = self.followed.lock();
        if followed.get(key) == Some(&generation) {
            return None;
        }
        let wait = self.tokens.take(key, 1);
        if wait.is_none() {
            followed.insert(key.clone(), generation);
        }
        wait
    }

    /// Removes a deleted key.
    pub fn forget(&self, key: &K) {
        self.followed.lock().remove(key);
        self.tokens.forget(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn frequent_generations_are_followed_five_times_a_second() {
        let pace = Pace::default();
        let mut followed = 0;
        for generation in 0..10_000 {
            followed += u32::from(pace.wait(&"k", generation).is_none());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(followed, FREE + 49, "twenty at once, then five a second for ten seconds");
        // Neither another key nor a generation that was followed already is delayed.
        assert_eq!(pace.wait(&"other", 1), None);
        assert_eq!(pace.wait(&"k", 10_000), None);
        let left = pace.wait(&"k", 10_001).unwrap();
        assert!(left <= EVERY, "{left:?}");
        tokio::time::sleep(left).await;
        assert_eq!(pace.wait(&"k", 10_001), None);
        assert_eq!(pace.wait(&"k", 10_001), None);
    }

    /// Single steps of a user or a script (pause, resume, undo) are followed at once, however many there are.
    #[tokio::test(start_paused = true)]
    async fn slow_changes_are_not_delayed() {
        let pace = Pace::default();
        for generation in 0..1000 {
            assert_eq!(pace.wait(&"k", generation), None, "{generation}");
            tokio::time::sleep(EVERY).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_return() {
        let tokens = Tokens::new(10, Duration::from_secs(1));
        assert_eq!(tokens.take(&"k", 8), None);
        assert_eq!(tokens.take(&"k", 4), Some(Duration::from_secs(2)));
        assert_eq!(tokens.take(&"k", 2), None, "a refused request takes no tokens");
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(tokens.take(&"k", 100), None, "a request beyond the burst takes all tokens");
        assert_eq!(tokens.take(&"k", 1), Some(Duration::from_secs(1)));
    }
}
