//! The `Retry-After` of rejected requests: longer when many are rejected (`apf dropped_requests_tracker.go`).

use std::collections::VecDeque;

/// The longest `Retry-After`, in seconds.
const MAX_SECONDS: u32 = 32;

#[derive(Default)]
pub(crate) struct RetryAfter {
    /// Rejected requests by second.
    rejected: VecDeque<(i64, u32)>,
    /// The present `Retry-After`.
    seconds: u32,
    /// When it was doubled last.
    doubled_at: i64,
}

impl RetryAfter {
    /// Records a rejected request at a time in Unix seconds. Returns the seconds after which the client may retry.
    pub fn record_rejection(&mut self, second: i64) -> u32 {
        self.seconds = self.seconds.max(1);
        match self.rejected.back_mut() {
            Some((s, n)) if *s == second => *n += 1,
            _ => {
                self.adjust(second);
                self.rejected.push_back((second, 1));
            }
        }
        self.seconds
    }

    /// Doubles the time if three or more requests a second were rejected, and shortens it by a second if fewer than one was.
    fn adjust(&mut self, second: i64) {
        let window = i64::from(self.seconds);
        while self.rejected.front().is_some_and(|(s, _)| second - s > i64::from(MAX_SECONDS)) {
            self.rejected.pop_front();
        }
        let rejected: u32 = self.rejected.iter().filter(|(s, _)| second - s <= window).map(|(_, n)| n).sum();
        if second - self.doubled_at >= window && rejected >= 3 * self.seconds {
            self.seconds = (self.seconds * 2).min(MAX_SECONDS);
            self.doubled_at = second;
        } else if rejected < self.seconds && self.seconds > 1 {
            self.seconds -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_rejections_lengthen_the_time() {
        let mut d = RetryAfter::default();
        assert_eq!(d.record_rejection(100), 1);
        for _ in 0..10 {
            assert_eq!(d.record_rejection(100), 1);
        }
        assert_eq!(d.record_rejection(101), 2);
        assert_eq!(d.record_rejection(200), 1, "alone again");
        for s in 300..420 {
            for _ in 0..200 {
                d.record_rejection(s);
            }
        }
        assert_eq!(d.record_rejection(420), MAX_SECONDS);
    }
}
