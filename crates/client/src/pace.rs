//! Limits of how often something is done for one key: [`Tokens`], and [`Pace`] for work on wishes that change faster than they can
//! be followed.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Each key has `burst` tokens; one that was taken comes back after `every` (a token bucket, kept as the moment at which it is full).
pub struct Tokens<K> {
    full_at: Mutex<BTreeMap<K, Instant>>,
    burst: u32,
    every: Duration,
}

impl<K: Ord + Clone> Tokens<K> {
    pub fn new(burst: u32, every: Duration) -> Self {
        Self { full_at: Mutex::default(), burst, every }
    }

    /// Takes `n` tokens, at most `burst`, and gives none; or takes nothing and gives how long to wait for them.
    pub fn take(&self, key: &K, n: u32) -> Option<Duration> {
        let now = Instant::now();
        let mut all = self.full_at.lock();
        let full = all.get(key).map_or(now, |at| *at.max(&now));
        let next = full + self.every * n.min(self.burst);
        let latest = now + self.every * self.burst;
        if next > latest {
            return Some(next - latest);
        }
        // Whoever has all of their tokens is not remembered.
        if all.len() > 1000 {
            all.retain(|_, at| *at > now);
        }
        all.insert(key.clone(), next);
        None
    }

    /// The key is gone.
    pub fn forget(&self, key: &K) {
        self.full_at.lock().remove(key);
    }
}

/// So many changes of one object are followed at once,
const FREE: u32 = 20;
/// and afterwards one in this time.
const EVERY: Duration = Duration::from_millis(200);

/// Which generation of a key was followed.
///
/// Each change of an object's `generation` asks a controller for writes, which race with whoever goes on changing it. The first of
/// many changes are followed at once, later ones five times a second; the newest wish is never lost, since the key comes again.
/// Reports of progress, which leave the generation as it is, are never held up.
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
    /// None when a generation is to be followed now; otherwise how long to wait and ask again.
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

    /// The key is gone.
    pub fn forget(&self, key: &K) {
        self.followed.lock().remove(key);
        self.tokens.forget(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_wish_that_changes_again_and_again_is_followed_five_times_a_second() {
        let pace = Pace::default();
        let mut followed = 0;
        for generation in 0..10_000 {
            followed += u32::from(pace.wait(&"k", generation).is_none());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(followed, FREE + 49, "twenty at once, then five a second for ten seconds");
        // Another key is not held up, nor is progress of a generation that was followed.
        assert_eq!(pace.wait(&"other", 1), None);
        assert_eq!(pace.wait(&"k", 10_000), None);
        let left = pace.wait(&"k", 10_001).unwrap();
        assert!(left <= EVERY, "{left:?}");
        tokio::time::sleep(left).await;
        assert_eq!(pace.wait(&"k", 10_001), None);
        assert_eq!(pace.wait(&"k", 10_001), None);
    }

    /// What a person or a script does step by step (pause, resume, undo) is followed at once, for as long as it takes.
    #[tokio::test(start_paused = true)]
    async fn steps_are_not_held_up() {
        let pace = Pace::default();
        for generation in 0..1000 {
            assert_eq!(pace.wait(&"k", generation), None, "{generation}");
            tokio::time::sleep(EVERY).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_come_back() {
        let tokens = Tokens::new(10, Duration::from_secs(1));
        assert_eq!(tokens.take(&"k", 8), None);
        assert_eq!(tokens.take(&"k", 4), Some(Duration::from_secs(2)));
        assert_eq!(tokens.take(&"k", 2), None, "what was refused cost nothing");
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(tokens.take(&"k", 100), None, "more than there can be is all there are");
        assert_eq!(tokens.take(&"k", 1), Some(Duration::from_secs(1)));
    }
}
