//! Known keys, and which of them encrypt and decrypt a resource.

use crate::config::Rules;
use crate::provider::{DataKey, PREFIX, Provider};

/// The rules, and keys that only decrypt records from before there was a configuration.
#[derive(Default)]
pub(crate) struct Known {
    pub rules: Rules,
    pub earlier: Rules,
}

impl Known {
    pub fn keys(&self) -> impl Iterator<Item = &DataKey> {
        self.rules.keys().chain(self.earlier.keys())
    }

    /// The key that encrypts a resource; none if it is stored as plain text.
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

    /// Why a record cannot be decrypted; none if its key is known.
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
