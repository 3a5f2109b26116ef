//! Exponential back-off after failures.

use meta::Rng;
use std::time::Duration;

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

/// A number in `[0, 1)`.
pub fn unit(rng: &dyn Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}
