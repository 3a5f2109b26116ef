//! Shares equal parts of the schemas of all definitions: operators repeat the same few structures and embedded types.

use super::node;
use crate::types::{Schema, SchemaRef, Str};
use aws_lc_rs::digest::{Context, SHA256};
use parking_lot::Mutex;
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock, Weak};

/// Parts by their digest, as long as they are used.
static PARTS: LazyLock<Mutex<Pool>> = LazyLock::new(Mutex::default);
/// Field names. Unused ones are removed by the next cleanup.
static NAMES: LazyLock<Mutex<HashSet<Str>>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Pool {
    parts: HashMap<[u8; 32], Weak<Schema>>,
    /// The number of parts at which unused ones are removed.
    clean_at: usize,
}

const FIRST_CLEANING: usize = 4096;

/// The schema of a part: an equal one that exists already, or a new one.
pub(super) fn shared(v: &Value, metadata: &Arc<Schema>) -> SchemaRef {
    let mut hash = Context::new(&SHA256);
    feed(v, &mut hash);
    let mut key = [0; 32];
    key.copy_from_slice(hash.finish().as_ref());
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

/// Adds a schema to a digest: everything but descriptions, rules and the default, which belongs to the field.
fn feed(v: &Value, hash: &mut Context) {
    const TEXTS: [&str; 6] = ["description", "title", "example", "externalDocs", "default", "x-kubernetes-validations"];
    let Value::Object(m) = v else {
        return hash.update(v.to_string().as_bytes());
    };
    hash.update(b"{");
    for (k, v) in m.iter().filter(|(k, _)| !TEXTS.contains(&k.as_str())) {
        hash.update(k.as_bytes());
        hash.update(b":");
        match (k.as_str(), v) {
            ("properties", Value::Object(p)) => {
                for (name, v) in p {
                    // Quoted, so that no name equals the syntax around it.
                    hash.update(Value::from(name.as_str()).to_string().as_bytes());
                    hash.update(v["default"].to_string().as_bytes());
                    feed(v, hash);
                }
            }
            ("items" | "additionalProperties" | "not", v) => feed(v, hash),
            ("allOf" | "anyOf" | "oneOf", Value::Array(a)) => {
                for v in a {
                    feed(v, hash);
                    hash.update(b",");
                }
            }
            (_, v) => hash.update(v.to_string().as_bytes()),
        }
        hash.update(b";");
    }
    hash.update(b"}");
}
