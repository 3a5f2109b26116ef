//! Objects that were written a moment ago, as they were in memory: who changes an object mostly does so again soon, and then it
//! need not be read from its JSON.
//!
//! Invariant: what is kept is equal to what reading the entry of its revision gives. Bounded by bytes and by age: the oldest goes
//! first.

use meta::Object;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use store::{Entry, Key};
use tokio::time::Instant;

/// Bytes as stored; in memory an object takes about eight times as much.
const MOST: usize = 512 << 10;
/// Of one object, in bytes as stored.
const LARGEST: usize = 16 << 10;
/// What nobody came back to for so long is given up with the next write.
const AGE: Duration = Duration::from_secs(5);

#[derive(Default)]
pub(crate) struct Recent(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    objects: HashMap<Key, Cached, foldhash::fast::RandomState>,
    /// In the order in which they came. Some are not there any more, or are newer.
    order: VecDeque<(Key, u64, Instant)>,
    bytes: usize,
}

struct Cached {
    revision: u64,
    bytes: usize,
    object: Arc<Object>,
}

impl Recent {
    /// The object of an entry, if it is known.
    pub fn get(&self, entry: &Entry) -> Option<Arc<Object>> {
        let kept = self.0.lock();
        kept.objects.get(&entry.key).filter(|o| o.revision == entry.revision).map(|o| o.object.clone())
    }

    /// Keeps an object that was just written into this entry.
    pub fn keep(&self, entry: &Entry, object: &Arc<Object>) {
        debug_assert_eq!(Ok(&**object), crate::encode::decode(entry).as_ref(), "what was written is what is read");
        let (key, revision, bytes) = (&entry.key, entry.revision, entry.value.len());
        if bytes > LARGEST {
            return;
        }
        let now = Instant::now();
        // What goes is freed without the lock.
        let mut gone: Vec<Cached> = Vec::new();
        let mut kept = self.0.lock();
        let kept = &mut *kept;
        if let Some(before) = kept.objects.insert(key.clone(), Cached { revision, bytes, object: object.clone() }) {
            kept.bytes -= before.bytes;
            gone.push(before);
        }
        kept.bytes += bytes;
        kept.order.push_back((key.clone(), revision, now));
        while let Some((key, revision, since)) = kept.order.front() {
            let known = kept.objects.get(key).is_some_and(|o| o.revision == *revision);
            if known && kept.bytes <= MOST && now.duration_since(*since) < AGE {
                break;
            }
            if known && let Some(one) = kept.objects.remove(key) {
                kept.bytes -= one.bytes;
                gone.push(one);
            }
            kept.order.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn written(name: &str, revision: u64, text: &str) -> (Entry, Arc<Object>) {
        let object =
            json!({"kind": "K", "metadata": {"name": name, "resourceVersion": revision.to_string()}, "t": text});
        let object = Object::from_value(object).unwrap();
        let key = Key { resource: "r".into(), namespace: "".into(), name: name.into() };
        let index = crate::encode::index_fn(std::collections::HashMap::new());
        (Entry::new(key, crate::encode::encode(&object), revision, index), Arc::new(object))
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_newest_is_kept_and_only_for_a_while() {
        let recent = Recent::default();
        let (first, a) = written("a", 1, "x");
        recent.keep(&first, &a);
        assert!(recent.get(&first).is_some_and(|o| Arc::ptr_eq(&o, &a)));
        let (second, newer) = written("a", 2, "y");
        recent.keep(&second, &newer);
        assert!(recent.get(&first).is_none() && recent.get(&second) == Some(newer));
        tokio::time::advance(AGE).await;
        let (other, b) = written("b", 3, "z");
        recent.keep(&other, &b);
        assert!(recent.get(&second).is_none() && recent.get(&other).is_some());
        assert_eq!(recent.0.lock().order.len(), 1);
    }

    #[test]
    fn no_more_is_kept_than_there_is_room() {
        let recent = Recent::default();
        let text = "x".repeat(LARGEST / 2);
        let all: Vec<_> = (0..100).map(|i| written(&format!("o{i}"), i, &text)).collect();
        all.iter().for_each(|(e, o)| recent.keep(e, o));
        let known: Vec<bool> = all.iter().map(|(e, _)| recent.get(e).is_some()).collect();
        assert!(!known[0] && known[99] && known.is_sorted(), "{known:?}");
        let kept = recent.0.lock();
        assert!(kept.bytes <= MOST && kept.bytes > MOST / 2 && kept.order.len() == kept.objects.len());
        drop(kept);
        let (large, o) = written("large", 200, &"x".repeat(LARGEST));
        recent.keep(&large, &o);
        assert!(recent.get(&large).is_none());
    }
}
