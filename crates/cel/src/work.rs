//! A second budget of an evaluation: the work it really does, in units of about a nanosecond.
//!
//! Upstream's cost is the interface of CEL, and some calls take far more time than it says: a position in a long text, a pattern
//! that comes from the data, equal lists of long texts. Here the bytes are counted that are walked, compared and copied, and the
//! parts of a pattern that is compiled. The count depends on the expression and its input only, not on a clock or a cache. What
//! exceeds the budget ends with the error of an exceeded cost limit.
//!
//! The counter belongs to the thread: an evaluation stays on one, since its values do, and values are walked in many places
//! that know no budget. Invariant: between two looks at [`is_over`] there is work of at most a few times the size of the values
//! in hand. Left out: steps of the machine, which upstream's cost counts well.

use std::cell::Cell;

/// Of one evaluation: ten times what it can walk through within its cost limit.
pub const PER_CALL: u64 = 100_000_000;
/// For each unit of cost that all evaluations of a budget may spend together.
pub const PER_COST: u64 = 40;
/// Comparing or scanning whole blocks of memory: so many bytes in one unit.
const BLOCK: usize = 16;
/// Making an item of a list: a value is that large.
const ITEM: usize = 32;

thread_local! {
    static DONE: Cell<u64> = const { Cell::new(0) };
    static LIMIT: Cell<u64> = const { Cell::new(u64::MAX) };
}

/// Counts work that was done, or is about to be.
pub fn count(units: usize) {
    DONE.set(DONE.get().saturating_add(units as u64));
}

/// Counts memory that is compared or scanned.
pub fn scan(bytes: usize) {
    count(1 + bytes / BLOCK);
}

/// Counts items of a list that is made.
pub fn items(n: usize) {
    count(n.saturating_mul(ITEM));
}

/// Whether the evaluation under way has done more than it may. What loops ends then, with whatever result.
pub fn is_over() -> bool {
    DONE.get() > LIMIT.get()
}

/// An evaluation under way.
pub struct Meter {
    begun: u64,
    outer: u64,
}

impl Meter {
    /// Begins an evaluation, maybe within another one, that may do so much.
    pub fn begin(left: u64) -> Self {
        let outer = LIMIT.get();
        if outer == u64::MAX {
            DONE.set(0);
        }
        let begun = DONE.get();
        LIMIT.set(outer.min(begun.saturating_add(left.min(PER_CALL))));
        Self { begun, outer }
    }

    /// What was done since it began.
    pub fn done(&self) -> u64 {
        DONE.get() - self.begun
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        LIMIT.set(self.outer);
    }
}
