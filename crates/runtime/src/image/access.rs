//! Who may use a pulled image that is present, without the registry being asked again.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Image, ImageStore, Result};

/// Secrets, and service accounts, that are recorded for a repository of an image.
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

/// A service account for which a credential provider returned credentials that a registry has accepted for an image.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PullAccount {
    /// The namespace of the service account.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

/// Whose credentials a registry has accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PullSource {
    /// The node's own, for every pod.
    Node,
    /// Those of a secret.
    Secret(PullSecret),
    /// Those that a credential provider returned for a service account.
    Account(PullAccount),
}

/// Who may use an image by the name of one repository.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Access {
    /// The registry gave it without credentials of a pod.
    pub every_pod: bool,
    /// The secrets that it was pulled with.
    pub secrets: BTreeSet<PullSecret>,
    /// The service accounts that it was pulled for.
    pub accounts: BTreeSet<PullAccount>,
}

/// The access of pods by repository. An image without one was imported or pulled by an administrator, and every pod may use it.
pub type AccessByRepository = BTreeMap<String, Access>;

impl Access {
    /// Access for every pod.
    pub fn for_every_pod() -> Access {
        Access { every_pod: true, ..Access::default() }
    }

    /// Access with the credentials of a source.
    pub fn with(source: PullSource) -> Access {
        match source {
            PullSource::Node => Access::for_every_pod(),
            PullSource::Secret(secret) => Access { secrets: [secret].into(), ..Access::default() },
            PullSource::Account(account) => Access { accounts: [account].into(), ..Access::default() },
        }
    }

    /// Whether only pods with some secret or service account have access.
    pub fn is_restricted(&self) -> bool {
        !(self.every_pod || self.secrets.is_empty() && self.accounts.is_empty())
    }

    /// The source among those of a pod that gives access: a recorded service account, a secret with recorded credentials, or a
    /// recorded secret whose credentials have changed.
    pub fn matching<'a>(&self, mut sources: impl Iterator<Item = &'a PullSource>) -> Option<&'a PullSource> {
        sources.find(|source| match source {
            PullSource::Node => false,
            PullSource::Secret(s) => self.secrets.iter().any(|r| r.digest == s.digest || r.is_same_object(s)),
            PullSource::Account(account) => self.accounts.contains(account),
        })
    }

    /// Whether the source is recorded as it is.
    pub fn has(&self, source: &PullSource) -> bool {
        match source {
            PullSource::Node => self.every_pod,
            PullSource::Secret(secret) => self.secrets.contains(secret),
            PullSource::Account(account) => self.accounts.contains(account),
        }
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
        for account in other.accounts {
            if self.accounts.len() < MAX_SECRETS {
                self.accounts.insert(account);
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

    fn with(secret: PullSecret) -> Access {
        Access::with(PullSource::Secret(secret))
    }

    #[test]
    fn equal_credentials_and_recorded_secrets_give_access() {
        let access = with(secret("a", "1", "x"));
        let matches = |s: PullSecret| access.matching([&PullSource::Secret(s)].into_iter()).is_some();
        assert!(matches(secret("a", "1", "x")));
        assert!(matches(secret("b", "2", "x")), "the same credentials in another secret");
        assert!(matches(secret("a", "1", "y")), "changed credentials");
        assert!(!matches(secret("a", "2", "y")), "another secret of the same name");
        let none = Access::default();
        assert!(none.matching([&PullSource::Secret(secret("a", "1", "x"))].into_iter()).is_none());
        // A service account gives access whatever its credentials are, and to no other one.
        let account =
            |uid: &str| PullSource::Account(PullAccount { namespace: "n".into(), name: "s".into(), uid: uid.into() });
        let access = Access::with(account("1"));
        assert!(access.is_restricted() && access.matching([&account("1")].into_iter()).is_some());
        assert!(access.matching([&account("2"), &PullSource::Node].into_iter()).is_none());
        assert!(Access::with(PullSource::Node).every_pod);
    }

    #[test]
    fn records_are_merged_and_bounded() {
        let mut access = Access::default();
        access.merge(with(secret("a", "1", "x")));
        access.merge(with(secret("a", "1", "y")));
        assert_eq!(access.secrets, [secret("a", "1", "y")].into());
        for i in 0..200 {
            access.merge(with(secret("b", &i.to_string(), "z")));
        }
        assert_eq!((access.secrets.len(), access.every_pod), (MAX_SECRETS, false));
        access.merge(Access::for_every_pod());
        assert!(access.every_pod);
    }
}
