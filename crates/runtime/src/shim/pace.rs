//! Limits how fast the containers of a pod write logs. A shim writes through the page cache of the node's disk, which the pod's
//! limits do not cover, and few bytes of output become many in the log. Without a limit, a few pods would block the disk for others.
//!
//! A token bucket: while it is empty, output stays in the pipe or terminal of the container, whose programs block as with any slow
//! reader. Nothing is lost: the rest of an ended container is read at once and charged later.

use std::time::Duration;

/// Bytes of logs that a pod may write in a second.
const RATE: i64 = 8 << 20;
/// Size of the bucket, and the maximum that is charged later.
const BURST: i64 = 32 << 20;
/// Tokens required before output is read again, to avoid many short waits.
const PIECE: i64 = RATE / 32;
/// Microseconds in a second.
const MILLION: i64 = 1_000_000;

/// All times are of one monotonic clock.
pub struct LogBudget {
    left: i64,
    at: Duration,
    paused: bool,
}

impl LogBudget {
    pub fn new(now: Duration) -> LogBudget {
        LogBudget { left: BURST, at: now, paused: false }
    }

    /// Charges written bytes.
    pub fn spend(&mut self, bytes: usize, now: Duration) {
        self.refill(now);
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.left = self.left.saturating_sub(bytes).max(-BURST);
    }

    /// How long output must not be read; `None` if it may be read now.
    pub fn pause(&mut self, now: Duration) -> Option<Duration> {
        self.refill(now);
        self.paused = self.left < if self.paused { PIECE } else { 1 };
        let missing = u64::try_from(PIECE - self.left).unwrap_or_default();
        self.paused.then(|| Duration::from_micros(missing * MILLION as u64 / RATE as u64))
    }

    fn refill(&mut self, now: Duration) {
        // After a minute the bucket is full.
        let passed = now.saturating_sub(self.at).min(Duration::from_secs(60));
        self.left = (self.left + passed.as_micros() as i64 * RATE / MILLION).min(BURST);
        // Fractions of a microsecond are carried over.
        self.at = now.saturating_sub(Duration::from_nanos(u64::from(passed.subsec_nanos() % 1000)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_grow_at_a_rate_after_a_burst() {
        let mut now = Duration::from_secs(1000);
        let mut budget = LogBudget::new(now);
        // 1000 bytes every 10 microseconds exceed the rate.
        let (mut written, mut pauses) = (0, 0);
        let end = now + Duration::from_secs(10);
        while now < end {
            if let Some(pause) = budget.pause(now) {
                assert!(pause <= Duration::from_millis(32), "{pause:?}");
                now += pause + Duration::from_micros(2);
                assert_eq!(budget.pause(now), None, "one wait is enough");
                pauses += 1;
            }
            budget.spend(1000, now);
            written += 1000;
            now += Duration::from_nanos(10_000);
        }
        let expected = BURST + 10 * RATE;
        assert!((expected - written).abs() < expected / 100, "{written} of {expected}");
        assert!(pauses < 10 * 33, "{pauses}");

        // After a quiet time the bucket is full, and not fuller.
        budget.spend(usize::MAX, now);
        let pause = budget.pause(now).unwrap();
        assert_eq!(pause.as_secs(), 4);
        now += Duration::from_secs(100_000);
        assert_eq!(budget.pause(now), None);
        budget.spend(BURST as usize, now);
        assert!(budget.pause(now).is_some());
    }
}
