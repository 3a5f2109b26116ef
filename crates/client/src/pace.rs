//! Pacing work on wishes that change faster than they can be followed.
//!
//! Each change of an object's `generation` asks a controller for writes, which race with whoever goes on changing it. The first
//! few of a row of changes are followed at once, later ones ever more slowly, up to once a second; the newest wish is never
//! lost, since the key comes again. Reports of progress, which leave the generation as it is, are never held up.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Changes in a row that are followed at once.
const FREE: u32 = 2;
const BASE: Duration = Duration::from_millis(50);
const MAX: Duration = Duration::from_secs(1);
/// A row of changes ends with a pause of this length.
const PAUSE: Duration = Duration::from_secs(3);

struct Followed {
    generation: i64,
    /// Changes in a row before this one.
    row: u32,
    at: Instant,
}

/// Which generation of a key was followed, and when.
pub struct Pace<K>(Mutex<BTreeMap<K, Followed>>);

impl<K: Ord> Default for Pace<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Ord + Clone> Pace<K> {
    /// None when a generation is to be followed now; otherwise how long to wait and ask again.
    pub fn wait(&self, key: &K, generation: i64) -> Option<Duration> {
        let now = Instant::now();
        let mut all = self.0.lock();
        let Some(last) = all.get_mut(key) else {
            all.insert(key.clone(), Followed { generation, row: 0, at: now });
            return None;
        };
        if last.generation == generation {
            return None;
        }
        let passed = now - last.at;
        let row = if passed >= PAUSE { 0 } else { last.row + 1 };
        let due = match row.checked_sub(FREE) {
            None => Duration::ZERO,
            Some(n) => BASE.saturating_mul(1 << (2 * n).min(8)).min(MAX),
        };
        if passed < due {
            return Some(due - passed);
        }
        *last = Followed { generation, row, at: now };
        None
    }

    /// The key is gone.
    pub fn forget(&self, key: &K) {
        self.0.lock().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_more_often_a_wish_changes_the_more_slowly_it_is_followed() {
        let pace = Pace::default();
        let start = Instant::now();
        let mut followed = Vec::new();
        for generation in 0..10_000 {
            if pace.wait(&"k", generation).is_none() {
                followed.push(start.elapsed().as_millis());
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(followed[..5], [0, 1, 51, 251, 1051]);
        assert_eq!(followed.len(), 5 + 8, "then once a second: {followed:?}");
        // Another key is not held up, nor is progress of a generation that was followed.
        assert_eq!(pace.wait(&"other", 1), None);
        let left = pace.wait(&"k", 10_000).unwrap();
        tokio::time::sleep(left).await;
        assert_eq!(pace.wait(&"k", 10_000), None);
        assert_eq!(pace.wait(&"k", 10_000), None);
        tokio::time::sleep(PAUSE).await;
        for generation in 10_001..10_003 {
            assert_eq!(pace.wait(&"k", generation), None, "a new row");
        }
    }
}
