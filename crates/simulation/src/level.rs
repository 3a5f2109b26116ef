//! A number of available things over time, and how long there were too few.

use std::time::Duration;

/// What a change meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It fell below the base.
    Fell,
    /// It is at the base again.
    Recovered,
}

/// A number and the base that it is measured against: what is desired, as soon as it was reached once. A larger desire is no loss.
#[derive(Clone, Debug, Default)]
pub(crate) struct Level {
    pub value: u64,
    pub desired: u64,
    pub base: u64,
    pub minimum: u64,
    below_since: Option<Duration>,
    none_since: Option<Duration>,
    /// How long it was below the base, how long without interruption, and how long it was zero.
    pub below: Duration,
    pub longest: Duration,
    pub none: Duration,
}

impl Level {
    /// Measures from now on.
    pub fn begin(&mut self, at: Duration) {
        let (value, desired) = (self.value, self.desired);
        *self = Self { value, desired, base: desired, minimum: value, ..Self::default() };
        self.below_since = (value < self.base).then_some(at);
        self.none_since = (value == 0 && self.base > 0).then_some(at);
    }

    /// Sets the number and what is desired.
    pub fn set(&mut self, at: Duration, value: u64, desired: u64) -> Option<Turn> {
        (self.value, self.desired) = (value, desired);
        self.base = if value >= desired { desired } else { self.base.min(desired) };
        self.minimum = self.minimum.min(value);
        if value > 0 || self.base == 0 {
            self.none += since(&mut self.none_since, at);
        } else {
            self.none_since.get_or_insert(at);
        }
        if value < self.base {
            let fell = self.below_since.is_none();
            self.below_since.get_or_insert(at);
            return fell.then_some(Turn::Fell);
        }
        self.below_since?;
        let gap = since(&mut self.below_since, at);
        self.below += gap;
        self.longest = self.longest.max(gap);
        Some(Turn::Recovered)
    }

    /// Ends the measurement. True if it is below the base.
    pub fn finish(&mut self, at: Duration) -> bool {
        let below = self.below_since.is_some();
        let gap = since(&mut self.below_since, at);
        self.below += gap;
        self.longest = self.longest.max(gap);
        self.none += since(&mut self.none_since, at);
        below
    }
}

/// The time since a moment, which is taken.
fn since(begun: &mut Option<Duration>, at: Duration) -> Duration {
    begun.take().map(|begun| at.saturating_sub(begun)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn gaps_are_measured() {
        let mut level = Level::default();
        level.set(seconds(0), 3, 3);
        level.begin(seconds(10));
        assert_eq!(level.set(seconds(20), 2, 3), Some(Turn::Fell));
        assert_eq!(level.set(seconds(25), 0, 3), None);
        assert_eq!(level.set(seconds(27), 1, 3), None);
        assert_eq!(level.set(seconds(40), 3, 3), Some(Turn::Recovered));
        assert_eq!(level.set(seconds(50), 2, 3), Some(Turn::Fell));
        assert!(level.finish(seconds(55)));
        assert_eq!((level.minimum, level.below, level.longest, level.none), (0, seconds(25), seconds(20), seconds(2)));
    }

    #[test]
    fn growth_is_no_loss() {
        let mut level = Level::default();
        level.begin(seconds(0));
        assert_eq!(level.set(seconds(1), 0, 3), None);
        assert_eq!(level.set(seconds(2), 3, 3), None);
        assert_eq!(level.set(seconds(3), 3, 6), None);
        assert_eq!(level.set(seconds(4), 2, 6), Some(Turn::Fell), "it had three");
        assert_eq!(level.set(seconds(5), 2, 2), Some(Turn::Recovered), "no more are desired");
        assert!(!level.finish(seconds(9)));
        assert_eq!((level.below, level.none), (seconds(1), Duration::ZERO));
    }

    #[test]
    fn what_is_missing_at_the_beginning_counts() {
        let mut level = Level::default();
        level.set(seconds(0), 1, 3);
        level.begin(seconds(10));
        assert!(level.finish(seconds(20)));
        assert_eq!((level.below, level.none), (seconds(10), Duration::ZERO));
    }
}
