//! The budget of files that volumes show of objects, over all pods. These files are in memory that counts for no container, or on
//! the node's disk.

use std::collections::HashMap;

use parking_lot::Mutex;

/// Bytes that every pod may have, regardless of others.
const FREE: usize = 1 << 20;

pub(super) struct Contents {
    /// Bytes of all pods together beyond [`FREE`].
    most: usize,
    /// The part of these bytes for the pods of one namespace.
    each: usize,
    pods: Mutex<HashMap<String, Content>>,
}

struct Content {
    namespace: String,
    bytes: usize,
}

impl Contents {
    pub fn new(most: usize) -> Self {
        Self { most, each: most / 4, pods: Mutex::default() }
    }

    /// Sets the bytes of the files of a pod. Returns `false`, and changes nothing, if they exceed the budget.
    pub fn take(&self, uid: &str, namespace: &str, bytes: usize) -> bool {
        let bytes = bytes.saturating_sub(FREE);
        let mut pods = self.pods.lock();
        if bytes == 0 {
            pods.remove(uid);
            return true;
        }
        let mut all = bytes;
        let mut own = bytes;
        for (_, other) in pods.iter().filter(|(other, _)| *other != uid) {
            all += other.bytes;
            own += if other.namespace == namespace { other.bytes } else { 0 };
        }
        let fits = all <= self.most && own <= self.each;
        if fits {
            pods.insert(uid.to_owned(), Content { namespace: namespace.to_owned(), bytes });
        }
        fits
    }

    /// Releases the bytes of a pod whose files are gone.
    pub fn release(&self, uid: &str) {
        self.pods.lock().remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_have_shares() {
        let contents = Contents::new(64 << 20);
        let take = |uid, namespace, mebibytes: usize| contents.take(uid, namespace, mebibytes << 20);
        assert!(take("a", "evil", 17) && !take("b", "evil", 2), "a quarter for a namespace");
        assert!(take("b", "evil", 1) && take("c", "good", 10), "a mebibyte is always free");
        assert!(take("a", "evil", 12) && take("b", "evil", 5) && !take("b", "evil", 7) && take("b", "evil", 6));
        contents.release("a");
        assert!(take("b", "evil", 17));
        assert!(take("d", "2", 17) && take("e", "3", 17) && !take("f", "4", 17), "no more than there is");
    }
}
