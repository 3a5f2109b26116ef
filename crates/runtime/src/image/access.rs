//! Who may use a pulled image that is present, without the registry being asked again.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Image, ImageStore, Result};

/// Secrets that are recorded for a repository of an image.
const MAX_SECRETS: usize = 100;

/// A secret whose credentials a registry has accepted for an image.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PullSecret {
    /// The namespace of the secret.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// The digest of the credentials.
    pub digest: String,
}

impl PullSecret {
    /// Whether it is the same secret, with whatever credentials.
    fn is_same_object(&self, other: &PullSecret) -> bool {
        (&self.namespace, &self.name, &self.uid) == (&other.namespace, &other.name, &other.uid)
    }
}

/// Who may use an image by the name of one repository.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Access {
    /// The registry gave it without credentials of a pod.
    pub every_pod: bool,
    /// The secrets that it was pulled with.
    pub secrets: BTreeSet<PullSecret>,
}

/// The access of pods by repository. An image without one was imported or pulled by an administrator, and every pod may use it.
pub type AccessByRepository = BTreeMap<String, Access>;

impl Access {
    /// Access for every pod.
    pub fn for_every_pod() -> Access {
        Access { every_pod: true, secrets: BTreeSet::new() }
    }

    /// Access with a secret.
    pub fn with_secret(secret: PullSecret) -> Access {
        Access { every_pod: false, secrets: [secret].into() }
    }

    /// The secret among those of a pod that gives access: one with recorded credentials, or a recorded one whose credentials have changed.
    pub fn matching<'a>(&self, mut secrets: impl Iterator<Item = &'a PullSecret>) -> Option<&'a PullSecret> {
        let is_recorded = |s: &&PullSecret| self.secrets.iter().any(|r| r.digest == s.digest || r.is_same_object(s));
        secrets.find(is_recorded)
    }

    /// Adds what another record allows. Drops older credentials of the same secrets.
    pub fn merge(&mut self, other: Access) {
        self.every_pod |= other.every_pod;
        for secret in other.secrets {
            self.secrets.retain(|s| !s.is_same_object(&secret));
            if self.secrets.len() < MAX_SECRETS {
                self.secrets.insert(secret);
            }
        }
    }
}

/// Adds the records of one image to those of another.
pub(super) fn merge(to: &mut Option<AccessByRepository>, from: Option<AccessByRepository>) {
    for (repository, access) in from.into_iter().flatten() {
        to.get_or_insert_default().entry(repository).or_default().merge(access);
    }
}

impl ImageStore {
    /// Records who may use an image by the name of a repository. Until then, no pod may by that name. Blocks.
    pub fn record_access(&self, id: &str, repository: &str, access: Access) -> Result<Image> {
        let mut image = self.resolve(id)?;
        let recorded = image.access.as_ref().and_then(|all| all.get(repository)).cloned();
        let mut merged = recorded.clone().unwrap_or_default();
        merged.merge(access.clone());
        if Some(merged) == recorded {
            return Ok(image);
        }
        let writing = self.writing()?;
        image = self.resolve(id)?;
        image.access.get_or_insert_default().entry(repository.to_owned()).or_default().merge(access);
        writing.add(image)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(name: &str, uid: &str, digest: &str) -> PullSecret {
        let text = str::to_owned;
        PullSecret { namespace: "n".into(), name: text(name), uid: text(uid), digest: text(digest) }
    }

    #[test]
    fn equal_credentials_and_recorded_secrets_give_access() {
        let access = Access::with_secret(secret("a", "1", "x"));
        let matches = |s: PullSecret| access.matching([&s].into_iter()).is_some();
        assert!(matches(secret("a", "1", "x")));
        assert!(matches(secret("b", "2", "x")), "the same credentials in another secret");
        assert!(matches(secret("a", "1", "y")), "changed credentials");
        assert!(!matches(secret("a", "2", "y")), "another secret of the same name");
        assert!(Access::default().matching([&secret("a", "1", "x")].into_iter()).is_none());
    }

    #[test]
    fn records_are_merged_and_bounded() {
        let mut access = Access::default();
        access.merge(Access::with_secret(secret("a", "1", "x")));
        access.merge(Access::with_secret(secret("a", "1", "y")));
        assert_eq!(access.secrets, [secret("a", "1", "y")].into());
        for i in 0..200 {
            access.merge(Access::with_secret(secret("b", &i.to_string(), "z")));
        }
        assert_eq!((access.secrets.len(), access.every_pod), (MAX_SECRETS, false));
        access.merge(Access::for_every_pod());
        assert!(access.every_pod);
    }
}
