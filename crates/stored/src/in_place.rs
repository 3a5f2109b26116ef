//! Large synchronous work in async code, which delays no other task.

use crate::{Views, encode};
use meta::Object;
use parking_lot::Mutex;
use std::cell::Cell;
use std::sync::Arc;
use store::Entry;
use tokio::runtime::{Handle, RuntimeFlavor};

/// Work on at least this many bytes is large.
pub const LARGE: usize = 64 << 10;

thread_local! {
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };
}

/// Marks the current thread as one for large work: [`run`] does nothing special there.
pub fn mark_worker() {
    IS_WORKER.set(true);
}

/// Whether the current thread is marked as one for large work.
pub fn is_worker() -> bool {
    IS_WORKER.get()
}

/// Runs long work on the current thread; another thread takes over its other tasks.
pub fn long<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|h| h.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}

/// Lanes of work run with [`run`]. Work of one lane is serialized; lanes do not wait for each other.
#[derive(Clone, Copy)]
pub enum Lane {
    /// Objects in audit events.
    Audit,
    /// Discovery documents.
    Discovery,
    /// OpenAPI documents.
    Schemas,
    /// Objects with a small cached view.
    Views,
    /// Objects that admission plugins look up.
    Objects,
}

/// Runs synchronous work on the current thread. Large work (`size` in bytes) waits for its lane and lets other tasks
/// move to another thread.
pub fn run<T>(lane: Lane, size: usize, work: impl FnOnce() -> T) -> T {
    static LANES: [Mutex<()>; Lane::Objects as usize + 1] = [const { Mutex::new(()) }; Lane::Objects as usize + 1];
    let many = Handle::try_current().is_ok_and(|h| h.runtime_flavor() == RuntimeFlavor::MultiThread);
    if size < LARGE || !many || IS_WORKER.get() {
        return work();
    }
    tokio::task::block_in_place(|| {
        let _turn = LANES[lane as usize].lock();
        work()
    })
}

/// Returns the cached view of a stored object. Decodes it once per revision, with [`run`] if large. `make`
/// returns the view and its size in bytes. Errors if the object cannot be decoded.
pub fn view<T>(
    views: &Views<T>,
    entry: &Entry,
    make: impl FnOnce(&Object) -> (T, usize),
) -> Result<Arc<T>, encode::Unreadable> {
    if let Some(known) = views.known(entry) {
        return Ok(known);
    }
    // Only one of several concurrent requests decodes it.
    run(Lane::Views, entry.value.len(), || views.try_get(entry, |e| Ok(make(&encode::decode(e)?))))
}
