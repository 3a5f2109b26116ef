//! Exponential back-off after failures.

use meta::Rng;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Exponential back-off with jitter. Computes delays only; the caller sleeps.
#[derive(Clone, Debug)]
pub struct Backoff {
    initial: Duration,
    max: Duration,
    factor: f64,
    /// The largest random extension of a delay, as a fraction of it.
    jitter: f64,
    next: Duration,
}

impl Backoff {
    /// Delays from `initial` up to `max`, multiplied by `factor` each time. `jitter` is a fraction of a delay.
    pub fn new(initial: Duration, max: Duration, factor: f64, jitter: f64) -> Self {
        Self { initial, max, factor, jitter, next: initial }
    }

    /// Returns the next delay, with jitter, and increases the one after it.
    pub fn next(&mut self, rng: &dyn Rng) -> Duration {
        let base = self.next;
        self.next = base.mul_f64(self.factor).min(self.max);
        base.mul_f64(1.0 + self.jitter * unit(rng))
    }

    /// Starts again with the initial delay.
    pub fn reset(&mut self) {
        self.next = self.initial;
    }
}

/// Exponential back-off per key (client-go `flowcontrol.Backoff`): the delay doubles with each failure up to `max`. A key without
/// a failure for twice `max` starts anew.
pub struct KeyedBackoff<K> {
    base: Duration,
    max: Duration,
    /// The delay of each key, and when its last failure was.
    delays: Mutex<BTreeMap<K, (Duration, Instant)>>,
}

impl<K: Ord + Clone> KeyedBackoff<K> {
    /// The first delay is `base`.
    pub fn new(base: Duration, max: Duration) -> Self {
        Self { base, max, delays: Mutex::default() }
    }

    /// How much longer a key has to wait; none if it need not.
    pub fn remaining(&self, key: &K) -> Option<Duration> {
        let (delay, since) = *self.delays.lock().get(key)?;
        delay.checked_sub(since.elapsed()).filter(|left| !left.is_zero())
    }

    /// Counts a failure of a key, which has to wait from now.
    pub fn failed(&self, key: K) {
        let now = Instant::now();
        let mut delays = self.delays.lock();
        delays.retain(|_, (_, since)| now.duration_since(*since) <= self.max * 2);
        let next = delays.get(&key).map_or(self.base, |(delay, _)| (*delay * 2).min(self.max));
        delays.insert(key, (next, now));
    }
}

/// A number in `[0, 1)`.
pub fn unit(rng: &dyn Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn delays_double_per_key_and_start_anew() {
        let b = KeyedBackoff::new(Duration::from_secs(1), Duration::from_secs(3));
        assert_eq!(b.remaining(&"a"), None);
        for expected in [1, 2, 3, 3] {
            b.failed("a");
            assert_eq!(b.remaining(&"a"), Some(Duration::from_secs(expected)));
            assert_eq!(b.remaining(&"b"), None);
            tokio::time::advance(Duration::from_secs(expected)).await;
            assert_eq!(b.remaining(&"a"), None);
        }
        tokio::time::advance(Duration::from_secs(4)).await;
        b.failed("a");
        assert_eq!(b.remaining(&"a"), Some(Duration::from_secs(1)));
    }
}
