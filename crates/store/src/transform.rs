//! The transform of stored values (encryption), and values that it cannot open.
//!
//! Invariant: a writer never treats an object that cannot be opened as absent. The state names it ([`Damaged`]), reading it is an error, and
//! all other objects can be read.

use crate::{Entry, IndexFn, Key};
use bytes::Bytes;
use std::sync::Arc;

/// The error of a value that cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The value is damaged; others are not affected.
    Value,
    /// A key is missing: other values need it too, and nothing may be written before it is found.
    Keys,
}

/// The error of sealing or opening a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {reason}")]
pub struct TransformError {
    /// The storage key, as text.
    pub key: String,
    /// The reason.
    pub reason: String,
    /// Whether the value is damaged, or a key is missing.
    pub fault: Fault,
}

/// Encrypts values on their way to the engine and decrypts them on the way back. The key is associated data: a value that
/// was moved to another key must not open.
pub trait Transform: Send + Sync {
    /// Encrypts a value.
    fn seal(&self, key: &Key, plain: &Bytes) -> Result<Bytes, TransformError>;
    /// Decrypts a stored value.
    fn open(&self, key: &Key, stored: &[u8]) -> Result<Bytes, TransformError>;

    /// Whether a value is stored as [`Transform::seal`] would store it now: with the same key of the same provider. What is
    /// not is found by [`crate::Store::stale`] and written again by [`crate::Store::reseal`].
    fn is_current(&self, key: &Key, stored: &[u8]) -> bool;
}

/// An object that exists but cannot be read.
#[derive(Clone, Debug)]
pub struct Damaged {
    /// The key of the object.
    pub key: Key,
    /// The revision that wrote it.
    pub revision: u64,
    /// Why it cannot be read.
    pub error: TransformError,
}

impl Damaged {
    /// The damaged object, if the error is of the value itself; otherwise the error.
    pub(crate) fn new(key: &Key, revision: u64, error: TransformError) -> Result<Damaged, TransformError> {
        match error.fault {
            Fault::Value => Ok(Damaged { key: key.clone(), revision, error }),
            Fault::Keys => Err(error),
        }
    }
}

/// Makes an entry of a sealed value. Cheap to clone, called from several threads.
pub type Decode = Arc<dyn Fn(&Key, u64, &[u8]) -> Result<Arc<Entry>, TransformError> + Send + Sync>;

/// Decodes values that `transform` has sealed; without one they are stored as they are.
pub(crate) fn decoder(index: IndexFn, transform: Option<Arc<dyn Transform>>) -> Decode {
    Arc::new(move |key, revision, sealed| {
        let value = match &transform {
            None => Bytes::copy_from_slice(sealed),
            Some(transform) => transform.open(key, sealed)?,
        };
        Ok(Arc::new(Entry::new(key.clone(), value, revision, index.clone())))
    })
}
