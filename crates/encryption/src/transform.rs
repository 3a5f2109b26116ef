//! Sealing and opening records by the rules of the moment.

use crate::config::Rules;
use crate::provider::{DataKey, PREFIX, Provider};
use crate::source::Encryption;
use bytes::Bytes;
use store::{Fault, Key, Transform, TransformError};

/// The rules, and keys that only open what was written before there was a configuration.
#[derive(Default)]
pub(crate) struct Known {
    pub rules: Rules,
    pub earlier: Rules,
}

impl Known {
    pub fn keys(&self) -> impl Iterator<Item = &DataKey> {
        self.rules.keys().chain(self.earlier.keys())
    }

    /// What a resource is written with; nothing if it is written as it is.
    pub fn writing(&self, resource: &str) -> Option<&DataKey> {
        match self.rules.providers(resource).first() {
            Some(Provider::Keyed(keys)) => keys.first(),
            Some(Provider::Identity) | None => None,
        }
    }

    pub fn reads_plain(&self, resource: &str) -> bool {
        let providers = self.rules.providers(resource);
        providers.is_empty() || providers.iter().any(|provider| matches!(provider, Provider::Identity))
    }

    /// What stands between a record and its opening, before trying; nothing if its key is known.
    pub fn missing(&self, resource: &str, stored: &[u8]) -> Option<String> {
        let Some(rest) = stored.strip_prefix(PREFIX) else {
            let why = "it is stored as plain text, and its providers do not include identity";
            return (!self.reads_plain(resource)).then(|| why.to_owned());
        };
        if self.keys().any(|key| stored.starts_with(&key.prefix)) {
            return None;
        }
        let mut parts = rest.splitn(4, |byte| *byte == b':').map(String::from_utf8_lossy);
        let (provider, version, name) = (parts.next()?, parts.next()?, parts.next()?);
        Some(format!("it is encrypted by {provider} ({version}) with the key {name:?}, which is not known"))
    }
}

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
