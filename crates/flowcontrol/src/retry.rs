//! When those who were turned away may come again: later when many were (`apf dropped_requests_tracker.go`).

use std::collections::VecDeque;

const LONGEST: u32 = 32;

/// How many were turned away, second by second.
#[derive(Default)]
pub(crate) struct Dropped {
    seconds: VecDeque<(i64, u32)>,
    after: u32,
    raised: i64,
}

impl Dropped {
    /// One more was turned away: the seconds after which it may come again.
    pub fn note(&mut self, second: i64) -> u32 {
        self.after = self.after.max(1);
        match self.seconds.back_mut() {
            Some((s, n)) if *s == second => *n += 1,
            _ => {
                self.consider(second);
                self.seconds.push_back((second, 1));
            }
        }
        self.after
    }

    /// Doubles when at least three a second were turned away, shrinks by one when less than one was.
    fn consider(&mut self, second: i64) {
        let window = i64::from(self.after);
        while self.seconds.front().is_some_and(|(s, _)| second - s > i64::from(LONGEST)) {
            self.seconds.pop_front();
        }
        let dropped: u32 = self.seconds.iter().filter(|(s, _)| second - s <= window).map(|(_, n)| n).sum();
        if second - self.raised >= window && dropped >= 3 * self.after {
            self.after = (self.after * 2).min(LONGEST);
            self.raised = second;
        } else if dropped < self.after && self.after > 1 {
            self.after -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_is_sent_away_for_longer() {
        let mut d = Dropped::default();
        assert_eq!(d.note(100), 1);
        for _ in 0..10 {
            assert_eq!(d.note(100), 1);
        }
        assert_eq!(d.note(101), 2);
        assert_eq!(d.note(200), 1, "alone again");
        for s in 300..420 {
            for _ in 0..200 {
                d.note(s);
            }
        }
        assert_eq!(d.note(420), LONGEST);
    }
}
