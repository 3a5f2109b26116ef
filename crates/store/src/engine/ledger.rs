//! Retention: decides when history is compacted, for all local engines.
//!
//! Invariant: the newest version of every key is always kept; beyond that, history is kept for [`Retention::age_ms`] or up
//! to the byte bound, whichever is reached first.

use crate::options::Retention;
use std::collections::VecDeque;

/// Distance between the recorded times of revisions.
const MARK_MS: u64 = 1_000;

/// The input of compaction.
#[derive(Clone, Copy, Debug)]
pub struct Upkeep {
    /// Unix milliseconds.
    pub now: u64,
    /// How much history is kept.
    pub retention: Retention,
    /// Compact at least up to this revision, regardless of its age.
    pub compact_to: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ledger {
    pub revision: u64,
    pub compacted: u64,
    /// Bytes of all records.
    pub total: u64,
    /// Bytes of the newest version of every key.
    pub live: u64,
    /// Revisions with the time at which they were written, rising, about one per second.
    marks: VecDeque<(u64, u64)>,
    last_write: u64,
}

impl Ledger {
    /// A new store starts at revision 1, as etcd does: revision 0 means "any" in Kubernetes' API.
    pub fn new() -> Ledger {
        Ledger { revision: 1, compacted: 1, ..Ledger::default() }
    }

    /// As read back, with marks in rising order.
    pub fn restore(revision: u64, compacted: u64, total: u64, live: u64, marks: Vec<(u64, u64)>) -> Ledger {
        let last_write = marks.last().map_or(0, |mark| mark.1);
        Ledger { revision, compacted, total, live, marks: marks.into(), last_write }
    }

    pub fn history(&self) -> u64 {
        self.total.saturating_sub(self.live)
    }

    /// Records the time of a revision. True if the mark is new and has to be stored.
    pub fn wrote(&mut self, revision: u64, now: u64) -> Option<(u64, u64)> {
        // A clock that was set back must not make the marks fall.
        let now = now.max(self.last_write);
        self.revision = revision;
        self.last_write = now;
        if self.marks.back().is_some_and(|mark| now < mark.1 + MARK_MS) {
            return None;
        }
        self.marks.push_back((revision, now));
        Some((revision, now))
    }

    /// Whether the history replaced by revision `self.compacted + 1` may be removed.
    pub fn is_due(&self, upkeep: &Upkeep) -> bool {
        let next = self.compacted + 1;
        if next > self.revision {
            return false;
        }
        next <= upkeep.compact_to || self.is_old(next, upkeep) || self.history() > self.bound(&upkeep.retention)
    }

    fn bound(&self, retention: &Retention) -> u64 {
        retention.bytes.max(self.live.saturating_mul(u64::from(retention.live_percent)) / 100)
    }

    fn is_old(&self, revision: u64, upkeep: &Upkeep) -> bool {
        let Some(limit) = upkeep.now.checked_sub(upkeep.retention.age_ms) else { return false };
        if self.last_write <= limit {
            return true;
        }
        // Younger than the first mark that is not before it, at most.
        let index = self.marks.partition_point(|mark| mark.0 < revision);
        self.marks.get(index).is_some_and(|mark| mark.1 <= limit)
    }

    /// Removes the marks that compaction has passed. Returns their revisions.
    pub fn passed_marks(&mut self) -> Vec<u64> {
        let mut passed = Vec::new();
        while let Some(&(revision, _)) = self.marks.front()
            && revision <= self.compacted
            && self.marks.len() > 1
        {
            passed.push(revision);
            self.marks.pop_front();
        }
        passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upkeep(now: u64, age_ms: u64, bytes: u64) -> Upkeep {
        Upkeep { now, retention: Retention { age_ms, bytes, ..Retention::default() }, compact_to: 0 }
    }

    #[test]
    fn history_goes_by_age_or_by_bytes_whichever_is_first() {
        let mut ledger = Ledger::new();
        for (revision, now) in [(2, 10_000), (3, 10_400), (4, 12_000), (5, 20_000)] {
            ledger.wrote(revision, now);
        }
        ledger.total = 1_000;
        ledger.live = 100;
        assert!(!ledger.is_due(&upkeep(12_000, 5_000, 10_000)), "young and small");
        assert!(ledger.is_due(&upkeep(15_000, 5_000, 10_000)), "revision 2 is 5 s old");
        ledger.compacted = 2;
        assert!(!ledger.is_due(&upkeep(15_000, 5_000, 10_000)), "revision 3 may be as young as the mark of 4");
        assert!(ledger.is_due(&upkeep(17_000, 5_000, 10_000)));
        assert!(ledger.is_due(&upkeep(12_000, 5_000, 500)), "900 bytes of history");
        ledger.compacted = 5;
        assert!(!ledger.is_due(&upkeep(99_000, 5_000, 0)), "nothing left");
        assert_eq!(ledger.passed_marks(), [2, 4]);
    }

    /// What is promised without configuration: five minutes, or 256 MB, or as much as is live if that is more.
    #[test]
    fn the_bounds_by_default() {
        const MB: u64 = 1 << 20;
        let now = |seconds: u64| Upkeep { now: seconds * 1_000, retention: Retention::default(), compact_to: 0 };
        let with = |live: u64, history: u64| {
            let mut ledger = Ledger::new();
            ledger.wrote(2, 1_000_000);
            ledger.wrote(3, 1_200_000);
            (ledger.live, ledger.total) = (live, live + history);
            ledger
        };
        for (live, history, seconds, expected) in [
            (MB, MB, 1_299, false),
            (MB, MB, 1_300, true),
            (MB, 256 * MB, 1_200, false),
            (MB, 256 * MB + 1, 1_200, true),
            (1_000 * MB, 1_000 * MB, 1_200, false),
            (1_000 * MB, 1_000 * MB + 1, 1_200, true),
            (1_000 * MB, 300 * MB, 1_300, true),
        ] {
            let ledger = with(live, history);
            assert_eq!(ledger.is_due(&now(seconds)), expected, "{live} live, {history} of history, at {seconds} s");
        }
        // However old and large: the newest revision of a key is not history.
        let mut ledger = with(1_000 * MB, 0);
        ledger.compacted = 3;
        assert!(!ledger.is_due(&now(9_999)));
    }
}
