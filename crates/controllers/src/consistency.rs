//! Whether a controller's caches show what it wrote (upstream `util/consistency`).
//!
//! A controller that decides on a cache without its own writes repeats them. [`Writes`] remembers them while the controller runs; a
//! controller that was started again, and remembers nothing, compares its caches with the server ([`is_current`]).

use crate::context::Error;
use client::{Api, Key, ListOptions};
use meta::{LabelSelector, Object};
use parking_lot::Mutex;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The last write of each object: its UID and resource version.
#[derive(Default)]
pub struct Writes(Mutex<BTreeMap<Key, (String, u64)>>);

impl Writes {
    pub fn written(&self, key: &Key, object: &Object) {
        self.0.lock().insert(key.clone(), (object.uid().to_owned(), version(object.resource_version())));
    }

    /// Whether the cached object is older than the last write of it.
    pub fn is_stale(&self, key: &Key, uid: &str, resource_version: &str) -> bool {
        self.0.lock().get(key).is_some_and(|(written, at)| written == uid && version(resource_version) < *at)
    }

    pub fn forget(&self, key: &Key) {
        self.0.lock().remove(key);
    }
}

fn version(text: &str) -> u64 {
    text.parse().unwrap_or(0)
}

#[derive(Deserialize)]
struct Current {
    metadata: Version,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    name: String,
    resource_version: String,
}

/// Whether a cache shows the current state of all objects of a namespace that a selector matches. `cached`: their names and
/// resource versions.
pub async fn is_current<'a>(
    objects: &Api<Object>,
    namespace: &str,
    selector: &LabelSelector,
    cached: impl Iterator<Item = (&'a str, &'a str)>,
) -> Result<bool, Error> {
    let cached: BTreeMap<&str, &str> = cached.collect();
    let current = Api::<Current>::new(objects.client().clone(), objects.resource().clone()).namespace(namespace);
    let current = current.list_all(&ListOptions { limit: 500, ..ListOptions::labels(selector) }).await?.items;
    let shown = |o: &Current| {
        let held = cached.get(o.metadata.name.as_str());
        held.is_some_and(|held| version(held) >= version(&o.metadata.resource_version))
    };
    Ok(current.len() == cached.len() && current.iter().all(shown))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_cache_is_stale_until_it_shows_the_write() {
        let (writes, key) = (Writes::default(), Key::new("ns", "a"));
        let object = json!({"metadata": {"name": "a", "uid": "u", "resourceVersion": "10"}});
        writes.written(&key, &Object::from_value(object).unwrap());
        for (uid, at, expect) in [("u", "9", true), ("u", "10", false), ("u", "100", false), ("later", "9", false)] {
            assert_eq!(writes.is_stale(&key, uid, at), expect, "{uid} at {at}");
        }
        writes.forget(&key);
        assert!(!writes.is_stale(&key, "u", "9"));
    }
}
