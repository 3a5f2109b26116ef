//! The options of a store: what its creator defines, and how much history is kept.

use crate::IndexFn;
use crate::transform::Transform;
use std::sync::Arc;

/// Returns the time in Unix milliseconds.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Retention of history: until it is old or large, whichever is first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// The age from which history is compacted, in milliseconds.
    pub age_ms: u64,
    /// The bound by size is the larger of this and `live_percent` of the live bytes.
    pub bytes: u64,
    /// The bound by size, in percent of the live bytes.
    pub live_percent: u32,
    /// Bounds of the event log in memory, per resource; beyond them watches read from the engine.
    pub log_events: usize,
    /// Maximum bytes of the event log of a resource.
    pub log_bytes: usize,
}

impl Default for Retention {
    fn default() -> Retention {
        Retention { age_ms: 300_000, bytes: 256 << 20, live_percent: 100, log_events: 16_384, log_bytes: 32 << 20 }
    }
}

/// Options of a store.
#[derive(Clone)]
pub struct Options {
    /// Computes the index of values.
    pub index: IndexFn,
    /// Encrypts values; none stores them as they are.
    pub transform: Option<Arc<dyn Transform>>,
    /// How much history is kept.
    pub retention: Retention,
    /// The clock of retention.
    pub clock: Clock,
}
