//! Encryption of stored objects, as `EncryptionConfiguration` (`apiserver.config.k8s.io/v1`) describes it.
//!
//! [`Encryption`] is the store's [`store::Transform`]: it knows which resources are encrypted, by which provider and with which
//! key. Without a configuration the core `secrets` are encrypted with AES-256-GCM and a key that is generated at the first start
//! (`DIR/encryption.yaml`, readable by its owner only).
//!
//! Invariants: a record names its provider and key (`k8s:enc:PROVIDER:v1:KEY:`, upstream's prefix), so every record identifies the key that
//! opens it; no key is dropped while a record in the store needs it; AES-GCM binds a record to its storage key, so a moved
//! record cannot be opened. Values in memory are not encrypted.
//!
//! Left out: `kms` providers, which are rejected by name, and a derived key per record: one AES-GCM key is safe for 2³² writes, and rotation
//! needs no restart.

#![warn(missing_docs)]

mod config;
mod known;
mod provider;
mod rewrite;
mod source;
mod transform;

pub use config::{ConfigError, Rules};
pub use source::{Encryption, Error, Source};
