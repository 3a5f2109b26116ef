//! Caches public documents that are expensive to build (discovery, OpenAPI).
//!
//! Invariant: a document is built once per change of its sources, one at a time, without blocking other requests;
//! responses share its bytes. The cache is bounded.

use aws_lc_rs::digest::{SHA256, digest};
use bytes::Bytes;
use meta::Value;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use stored::in_place::{self, Lane};

/// Several times the group versions of a cluster.
const KEPT: usize = 8192;

/// Cached documents by path.
#[derive(Default)]
pub(crate) struct Documents(Mutex<BTreeMap<String, Document>>);

#[derive(Clone)]
pub(crate) struct Document {
    pub text: Bytes,
    pub hash: Arc<str>,
    /// The version of the rows it was built from.
    change: u64,
}

impl Documents {
    /// Returns the document of this version; builds it if it is not cached.
    pub fn get(&self, key: &str, change: u64, make: impl FnOnce() -> Bytes) -> Document {
        let line = if key.starts_with("/openapi/") { Lane::Schemas } else { Lane::Discovery };
        self.kept(key, change).unwrap_or_else(|| {
            in_place::run(line, usize::MAX, || self.kept(key, change).unwrap_or_else(|| self.keep(key, change, make())))
        })
    }

    /// A document that mainly lists others, which are built along the way, each under its own lock.
    pub fn get_list(&self, key: &str, change: u64, make: impl FnOnce() -> Value) -> Document {
        self.kept(key, change).unwrap_or_else(|| self.keep(key, change, make().to_string().into()))
    }

    fn kept(&self, key: &str, change: u64) -> Option<Document> {
        self.0.lock().get(key).filter(|d| d.change == change).cloned()
    }

    fn keep(&self, key: &str, change: u64, text: Bytes) -> Document {
        let hash = hex(digest(&SHA256, &text).as_ref()).to_uppercase().into();
        let document = Document { text, hash, change };
        let mut all = self.0.lock();
        if all.len() >= KEPT {
            // Most of them belong to removed groups.
            all.clear();
        }
        all.insert(key.to_owned(), document.clone());
        document
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn a_document_is_made_once_per_change() {
        let (all, made) = (Arc::new(Documents::default()), Arc::new(AtomicUsize::new(0)));
        for change in 1..4 {
            let many = (0..50).map(|_| {
                let (all, made) = (all.clone(), made.clone());
                tokio::spawn(async move {
                    let make = || {
                        made.fetch_add(1, Ordering::Relaxed);
                        change.to_string().into()
                    };
                    all.get("/apis", change, make)
                })
            });
            let first = all.get("/apis", change, || {
                made.fetch_add(1, Ordering::Relaxed);
                change.to_string().into()
            });
            for d in futures::future::join_all(many).await {
                let d = d.unwrap();
                assert_eq!((&*d.text, d.text.as_ptr()), (change.to_string().as_bytes(), first.text.as_ptr()));
            }
        }
        assert_eq!(made.load(Ordering::Relaxed), 3);
        for i in 0..=KEPT {
            all.get(&i.to_string(), 1, Bytes::new);
        }
        assert!(all.0.lock().len() <= KEPT);
    }
}
