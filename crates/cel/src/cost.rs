//! Costs: ranges for the estimate before an evaluation, and the budget while it runs
//! (`cel-go/checker/cost.go`, `cel-go/interpreter/runtimecost.go`).

use crate::work;
use std::sync::atomic::{AtomicU64, Ordering};

/// Cost limit of one evaluation.
pub const PER_CALL_LIMIT: u64 = 1_000_000;
/// Cost limit of all evaluations for one object by one definition, or one binding of a policy.
pub const RUNTIME_BUDGET: u64 = 10_000_000;
/// Cost limit of the match conditions of a webhook or policy.
pub const MATCH_BUDGET: u64 = 2_500_000;

pub(crate) const LIST: u64 = 10;
pub(crate) const MAP: u64 = 30;
pub(crate) const STRUCT: u64 = 40;
/// Cost of traversing a string, for each character.
pub(crate) const TRAVERSAL: f64 = 0.1;
pub(crate) const REGEX: f64 = 0.25;

/// Minimum and maximum of a size or cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The minimum.
    pub min: u64,
    /// The maximum; `u64::MAX` if it has no bound.
    pub max: u64,
}

impl Range {
    /// Any size or cost.
    pub const UNKNOWN: Self = Self { min: 0, max: u64::MAX };

    /// Exactly this number.
    pub fn fixed(n: u64) -> Self {
        Self { min: n, max: n }
    }

    /// From 0 to this number.
    pub fn up_to(max: u64) -> Self {
        Self { min: 0, max }
    }

    /// The sum of both, which saturates.
    pub fn plus(self, o: Self) -> Self {
        Self { min: self.min.saturating_add(o.min), max: self.max.saturating_add(o.max) }
    }

    /// The product of both, which saturates.
    pub fn times(self, o: Self) -> Self {
        Self { min: self.min.saturating_mul(o.min), max: self.max.saturating_mul(o.max) }
    }

    /// Both bounds times a factor, rounded up.
    pub fn scaled(self, by: f64) -> Self {
        Self { min: scale(self.min, by), max: scale(self.max, by) }
    }

    /// The range from the smaller minimum to the larger maximum.
    pub fn or(self, o: Self) -> Self {
        Self { min: self.min.min(o.min), max: self.max.max(o.max) }
    }
}

/// A size times a factor, rounded up. Unbounded stays unbounded.
pub(crate) fn scale(n: u64, by: f64) -> u64 {
    if n == u64::MAX {
        return n;
    }
    // Saturates, as casts of floats do.
    (n as f64 * by).ceil() as u64
}

/// The budget of evaluations: what they may still spend.
#[derive(Debug)]
pub struct Budget {
    /// Cost left for all evaluations.
    left: u64,
    /// Cost left for the current evaluation.
    call: u64,
    /// Units of work left ([`work`]).
    work: u64,
    /// Distinguishes budgets.
    id: u64,
    /// Depth of all expressions under way, one within the other.
    depth: usize,
}

/// How deep an expression and those of the variables that it uses may be nested together. Evaluation recurses, and this much fits on the
/// stack of any thread (2 MiB) in a build without optimization.
const DEEPEST: usize = crate::syntax::TREE_LIMIT + 100;

/// The error of an exceeded budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exceeded;

impl Budget {
    /// A budget for evaluations that may cost this much together.
    pub fn new(total: u64) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let work = total.saturating_mul(work::PER_COST).max(work::PER_CALL);
        Self { left: total, call: PER_CALL_LIMIT, work, id: NEXT.fetch_add(1, Ordering::Relaxed), depth: 0 }
    }

    /// Begins an expression of this depth within those under way. False if it would be too deep.
    pub(crate) fn enter(&mut self, depth: usize) -> bool {
        let fits = self.depth + depth <= DEEPEST;
        self.depth += if fits { depth } else { 0 };
        fits
    }

    pub(crate) fn leave(&mut self, depth: usize) {
        self.depth -= depth;
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Units of work that are left.
    pub(crate) fn work(&self) -> u64 {
        self.work
    }

    /// Sets the work that is left. Without any, no cost is left either.
    pub(crate) fn set_work(&mut self, left: u64) {
        self.work = left;
        if left == 0 {
            self.left = 0;
        }
    }

    /// Begins an evaluation with a cost limit of its own. Returns what the surrounding one has left.
    pub fn begin(&mut self) -> u64 {
        std::mem::replace(&mut self.call, PER_CALL_LIMIT)
    }

    /// Ends an evaluation. `outer` is the result of [`Self::begin`].
    pub fn end(&mut self, outer: u64) {
        self.call = outer;
    }

    /// Cost left for all further evaluations.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Charges a cost. Errors if it exceeds what is left.
    pub fn spend(&mut self, cost: u64) -> Result<(), Exceeded> {
        match (self.left.checked_sub(cost), self.call.checked_sub(cost)) {
            (Some(left), Some(call)) => {
                (self.left, self.call) = (left, call);
                Ok(())
            }
            (left, _) => {
                // An evaluation that exceeded its own limit leaves the rest to the others.
                self.left = left.unwrap_or(0);
                Err(Exceeded)
            }
        }
    }
}
