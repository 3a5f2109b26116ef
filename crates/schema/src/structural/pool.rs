//! Equal parts of the schemas of all definitions are kept once: operators repeat the same handful of shapes, and the same
//! embedded types, over and over.

use super::node;
use crate::types::{Schema, SchemaRef, Str};
use parking_lot::Mutex;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock, Weak};

/// Parts by what they say, as long as somebody uses them.
static PARTS: LazyLock<Mutex<Pool>> = LazyLock::new(Mutex::default);
/// Field names; those that nobody uses any more go with the next cleaning.
static NAMES: LazyLock<Mutex<HashSet<Str>>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Pool {
    parts: HashMap<[u8; 32], Weak<Schema>>,
    /// The number of parts at which the dead are taken out.
    clean_at: usize,
}

const FIRST_CLEANING: usize = 4096;

/// The schema of a part: one that is there already, if any says the same.
pub(super) fn shared(v: &Value, metadata: &Arc<Schema>) -> SchemaRef {
    let mut hash = Sha256::new();
    feed(v, &mut hash);
    let key: [u8; 32] = hash.finalize().into();
    if let Some(s) = PARTS.lock().parts.get(&key).and_then(Weak::upgrade) {
        return SchemaRef::Inline(s);
    }
    let made = Arc::new(node(v, metadata));
    let mut pool = PARTS.lock();
    pool.parts.insert(key, Arc::downgrade(&made));
    if pool.parts.len() > pool.clean_at.max(FIRST_CLEANING) {
        pool.parts.retain(|_, s| s.strong_count() > 0);
        pool.clean_at = 2 * pool.parts.len();
        NAMES.lock().retain(|n| Arc::strong_count(n) > 1);
    }
    SchemaRef::Inline(made)
}

pub(super) fn name(text: &str) -> Str {
    let mut names = NAMES.lock();
    if let Some(n) = names.get(text) {
        return n.clone();
    }
    let n: Str = text.into();
    names.insert(n.clone());
    n
}

/// What of a schema makes a difference: everything but texts, rules, and its default, which is the field's.
fn feed(v: &Value, hash: &mut Sha256) {
    const TEXTS: [&str; 6] = ["description", "title", "example", "externalDocs", "default", "x-kubernetes-validations"];
    let Value::Object(m) = v else {
        return hash.update(v.to_string());
    };
    hash.update("{");
    for (k, v) in m.iter().filter(|(k, _)| !TEXTS.contains(&k.as_str())) {
        hash.update(k);
        hash.update(":");
        match (k.as_str(), v) {
            ("properties", Value::Object(p)) => {
                for (name, v) in p {
                    // Quoted, so that no name looks like what surrounds it.
                    hash.update(Value::from(name.as_str()).to_string());
                    hash.update(v["default"].to_string());
                    feed(v, hash);
                }
            }
            ("items" | "additionalProperties" | "not", v) => feed(v, hash),
            ("allOf" | "anyOf" | "oneOf", Value::Array(a)) => {
                for v in a {
                    feed(v, hash);
                    hash.update(",");
                }
            }
            (_, v) => hash.update(v.to_string()),
        }
        hash.update(";");
    }
    hash.update("}");
}
