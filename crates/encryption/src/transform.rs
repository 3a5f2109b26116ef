//! Sealing and opening records by the rules of the moment.

use crate::known::Known;
use crate::provider::PREFIX;
use crate::source::Encryption;
use bytes::Bytes;
use store::{Fault, Key, Transform, TransformError};

impl Transform for Encryption {
    fn seal(&self, key: &Key, plain: &Bytes) -> Result<Bytes, TransformError> {
        let known = self.known();
        let Some(data_key) = known.writing(&key.resource) else { return Ok(plain.clone()) };
        let text = key.to_string();
        match data_key.seal(text.as_bytes(), plain, &*self.rng) {
            Some(sealed) => Ok(sealed.into()),
            None => {
                let reason = format!("encrypting with the key {:?} failed", data_key.name);
                Err(TransformError { key: text, reason, fault: Fault::Value })
            }
        }
    }

    fn open(&self, key: &Key, stored: &[u8]) -> Result<Bytes, TransformError> {
        let known = self.known();
        if !is_current(&known, key, stored) {
            self.note_stale(&key.resource);
        }
        let failed = |reason, fault| TransformError { key: key.to_string(), reason, fault };
        if let Some(why) = known.missing(&key.resource, stored) {
            return Err(failed(format!("{why}; the keys are in {}", self.location()), Fault::Keys));
        }
        if !stored.starts_with(PREFIX) {
            return Ok(Bytes::copy_from_slice(stored));
        }
        let text = key.to_string();
        let mut name = String::new();
        for data_key in known.keys() {
            let Some(body) = stored.strip_prefix(&data_key.prefix[..]) else { continue };
            if let Some(plain) = data_key.open(text.as_bytes(), body) {
                return Ok(plain.into());
            }
            name.clone_from(&data_key.name);
        }
        let why = match name.is_empty() {
            true => "it is encrypted in no known way".to_owned(),
            false => format!("it does not open with its key {name:?}: it was changed, or belongs to another object"),
        };
        Err(failed(why, Fault::Value))
    }

    fn is_current(&self, key: &Key, stored: &[u8]) -> bool {
        is_current(&self.known(), key, stored)
    }
}

fn is_current(known: &Known, key: &Key, stored: &[u8]) -> bool {
    match known.writing(&key.resource) {
        Some(data_key) => stored.starts_with(&data_key.prefix),
        None => !stored.starts_with(PREFIX),
    }
}
