//! Estimates how many bytes of stored objects a request reads, without reading them.

use store::Snapshot;

/// Maximum number of objects to measure; beyond it, each object counts at least [`EACH`].
pub const MANY: usize = 500;
/// Estimated size of an object where there are many, in bytes.
const EACH: usize = 1 << 10;

/// Estimates the stored bytes of a resource, in one namespace or cluster-wide.
pub fn all(snapshot: &Snapshot, resource: &str, namespace: Option<&str>) -> usize {
    let count = snapshot.count(resource, namespace);
    if count == 0 {
        return 0;
    }
    let first: usize = snapshot.range(resource, namespace, None).take(MANY).map(|e| e.value.len()).sum();
    match count > MANY {
        true => (first * count.div_ceil(MANY)).max(count * EACH),
        false => first,
    }
}

/// Estimates the size of the largest object in bytes. Measures only a sample if there are many.
pub fn largest(snapshot: &Snapshot, resource: &str, namespace: Option<&str>) -> usize {
    let count = snapshot.count(resource, namespace);
    if count == 0 {
        return 0;
    }
    let first = snapshot.range(resource, namespace, None).take(MANY).map(|e| e.value.len()).max().unwrap_or_default();
    if count > MANY { first.max(MANY * EACH) } else { first }
}
