//! A second budget of an evaluation: the work that it really does, in units of about a nanosecond.
//!
//! Upstream's costs are part of CEL's interface, but some calls take far more time: an index into a long string, a pattern that comes from
//! the data, the comparison of lists of long strings. This counts the bytes that are read, compared and copied, and the parts of compiled
//! patterns. The count depends on the expression and its input alone, not on a clock or a cache. An evaluation that exceeds the budget fails
//! with the error of an exceeded cost limit.
//!
//! The counter is thread-local: an evaluation stays on one thread, and many functions that read values have no access to the budget.
//! Invariant: between two checks of [`is_over`], work is at most a few times the size of the current values. Left out: steps of the
//! evaluation, which upstream's costs cover.

use std::cell::Cell;

/// Limit of one evaluation: ten times what it can read within its cost limit.
pub const PER_CALL: u64 = 100_000_000;
/// Limit of all evaluations of a budget together, for each unit of their cost limit.
pub const PER_COST: u64 = 40;
/// Bytes that are compared or scanned in one unit.
const BLOCK: usize = 16;
/// Units of creating an item of a list: the bytes of a value.
const ITEM: usize = 32;

thread_local! {
    static DONE: Cell<u64> = const { Cell::new(0) };
    static LIMIT: Cell<u64> = const { Cell::new(u64::MAX) };
}

/// Counts units of work.
pub fn count(units: usize) {
    DONE.set(DONE.get().saturating_add(units as u64));
}

/// Counts bytes that are compared or scanned.
pub fn scan(bytes: usize) {
    count(1 + bytes / BLOCK);
}

/// Counts items of a new list.
pub fn items(n: usize) {
    count(n.saturating_mul(ITEM));
}

/// Whether the current evaluation exceeds its limit. Loops then end, with any result.
pub fn is_over() -> bool {
    DONE.get() > LIMIT.get()
}

/// An evaluation under way.
pub struct Meter {
    begun: u64,
    outer: u64,
}

impl Meter {
    /// Begins an evaluation with this limit, maybe within another one.
    pub fn begin(left: u64) -> Self {
        let outer = LIMIT.get();
        if outer == u64::MAX {
            DONE.set(0);
        }
        let begun = DONE.get();
        LIMIT.set(outer.min(begun.saturating_add(left.min(PER_CALL))));
        Self { begun, outer }
    }

    /// Work since the evaluation began.
    pub fn done(&self) -> u64 {
        DONE.get() - self.begun
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        LIMIT.set(self.outer);
    }
}
