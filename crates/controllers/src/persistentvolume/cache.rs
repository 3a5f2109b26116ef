//! An informer together with the newest objects that the controller itself wrote.
//!
//! A binding consists of four writes, and each of them causes a change. Without its own writes the controller would repeat the others,
//! or bind a second volume to a claim.

use crate::context::Error;
use client::informer::View;
use client::{Entry, Informer, Key};
use meta::Object;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

pub struct Cache<V> {
    pub informer: Informer<V>,
    /// Objects that the informer may not show yet.
    written: Mutex<BTreeMap<Key, Arc<Entry<V>>>>,
}

fn version<V>(entry: &Entry<V>) -> u64 {
    entry.meta.resource_version.parse().unwrap_or(0)
}

impl<V: View> Cache<V> {
    pub fn new(informer: Informer<V>) -> Self {
        Self { informer, written: Mutex::default() }
    }

    /// Notes an object as the server returned it.
    pub fn store(&self, object: &Object) -> Result<Arc<Entry<V>>, Error> {
        let invalid = |e: serde_json::Error| Error::Invalid { what: "response", why: e.to_string() };
        let bytes = serde_json::to_vec(object).map_err(invalid)?;
        let entry = Arc::new(Entry::new(bytes.into()).map_err(invalid)?);
        self.written.lock().insert(entry.key(), entry.clone());
        Ok(entry)
    }

    fn newer(&self, shown: Arc<Entry<V>>) -> Arc<Entry<V>> {
        let mut written = self.written.lock();
        if written.is_empty() {
            return shown;
        }
        let key = shown.key();
        match written.get(&key) {
            Some(w) if w.meta.uid == shown.meta.uid && version(w) > version(&shown) => w.clone(),
            Some(_) => {
                written.remove(&key);
                shown
            }
            None => shown,
        }
    }

    /// The newest known state of an object; none if the informer does not show it.
    pub fn get(&self, key: &Key) -> Option<Arc<Entry<V>>> {
        match self.informer.get(key) {
            Some(shown) => Some(self.newer(shown)),
            None => {
                self.written.lock().remove(key);
                None
            }
        }
    }

    /// The newest known state of all objects.
    pub fn all(&self) -> Vec<Arc<Entry<V>>> {
        let shown: Vec<_> = self.informer.cache().entries().cloned().collect();
        shown.into_iter().map(|entry| self.newer(entry)).collect()
    }
}
