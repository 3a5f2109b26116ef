//! A cache of recently written objects in decoded form: an object is often changed again soon, and then needs no
//! decoding.
//!
//! Invariant: a cached object equals the decoded entry of its revision. Bounded by bytes and age; evicts the oldest
//! first.

use meta::Object;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use store::{Entry, Key};
use tokio::time::Instant;

/// Maximum total size, as stored; decoded objects take about eight times as much.
const MOST: usize = 512 << 10;
/// Maximum stored size of one object, in bytes.
const LARGEST: usize = 16 << 10;
/// Objects unused for this long are evicted at the next write.
const AGE: Duration = Duration::from_secs(5);

#[derive(Default)]
pub(crate) struct Recent(Mutex<Cache>);

#[derive(Default)]
struct Cache {
    objects: HashMap<Key, Cached, foldhash::fast::RandomState>,
    /// Keys in insertion order. Some may be evicted or replaced already.
    order: VecDeque<(Key, u64, Instant)>,
    bytes: usize,
}

struct Cached {
    revision: u64,
    bytes: usize,
    object: Arc<Object>,
}

impl Recent {
    /// The cached object of an entry.
    pub fn get(&self, entry: &Entry) -> Option<Arc<Object>> {
        let cache = self.0.lock();
        cache.objects.get(&entry.key).filter(|o| o.revision == entry.revision).map(|o| o.object.clone())
    }

    /// Caches an object that was just written as this entry.
    pub fn keep(&self, entry: &Entry, object: &Arc<Object>) {
        debug_assert_eq!(Ok(&**object), stored::encode::decode(entry).as_ref(), "what was written is what is read");
        let (key, revision, bytes) = (&entry.key, entry.revision, entry.value.len());
        if bytes > LARGEST {
            return;
        }
        let now = Instant::now();
        // Drop evicted objects after releasing the lock.
        let mut freed: Vec<Cached> = Vec::new();
        let mut cache = self.0.lock();
        let cache = &mut *cache;
        if let Some(before) = cache.objects.insert(key.clone(), Cached { revision, bytes, object: object.clone() }) {
            cache.bytes -= before.bytes;
            freed.push(before);
        }
        cache.bytes += bytes;
        cache.order.push_back((key.clone(), revision, now));
        while let Some((key, revision, since)) = cache.order.front() {
            let known = cache.objects.get(key).is_some_and(|o| o.revision == *revision);
            if known && cache.bytes <= MOST && now.duration_since(*since) < AGE {
                break;
            }
            if known && let Some(evicted) = cache.objects.remove(key) {
                cache.bytes -= evicted.bytes;
                freed.push(evicted);
            }
            cache.order.pop_front();
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
        let index = stored::encode::index_fn(std::collections::HashMap::new());
        (Entry::new(key, stored::encode::encode(&object), revision, index), Arc::new(object))
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
        let cache = recent.0.lock();
        assert!(cache.bytes <= MOST && cache.bytes > MOST / 2 && cache.order.len() == cache.objects.len());
        drop(cache);
        let (large, o) = written("large", 200, &"x".repeat(LARGEST));
        recent.keep(&large, &o);
        assert!(recent.get(&large).is_none());
    }
}
