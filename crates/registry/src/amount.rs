//! How much is stored: what a request has to read of other objects, in bytes, before any of them is read.

use store::Snapshot;

/// Objects whose sizes are looked at. Of more than these, each counts [`EACH`] at least.
pub const MANY: usize = 500;
/// What an object counts where there are many, in bytes.
const EACH: usize = 1 << 10;

/// About how many bytes the objects of a storage name take, of one namespace or of the cluster.
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

/// The bytes of the largest of them. Of many, not all are looked at, and it counts as much as many.
pub fn largest(snapshot: &Snapshot, resource: &str, namespace: Option<&str>) -> usize {
    let count = snapshot.count(resource, namespace);
    if count == 0 {
        return 0;
    }
    let first = snapshot.range(resource, namespace, None).take(MANY).map(|e| e.value.len()).max().unwrap_or_default();
    if count > MANY { first.max(MANY * EACH) } else { first }
}
