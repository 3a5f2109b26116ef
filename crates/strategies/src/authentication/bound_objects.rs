//! The objects of the core group that service account tokens name. A token is valid while they exist.

use auth::User;
use auth::user::GROUP_SERVICE_ACCOUNTS;
use jiff::Timestamp;
use meta::Clock;
use registry::Registry;
use std::sync::{Arc, LazyLock, OnceLock, Weak};
use store::Entry;
use stored::{Views, encode};

/// Seconds for which tokens of an object being deleted remain valid, as its finalizers may need them.
const LEEWAY: i64 = 60;
/// Size of the cache of object identities, in bytes.
const IDENTITIES: usize = 4 << 20;
/// Maximum size of an identity, in bytes: tokens in secrets are shorter.
const IDENTITY: usize = 16 << 10;

/// Fields of [`Bound`], in order.
static BOUND: LazyLock<[String; 5]> = LazyLock::new(|| {
    ["metadata.deletionTimestamp", "metadata.uid", "data.token", "spec.nodeName", "spec.serviceAccountName"]
        .map(str::to_owned)
});

/// The fields of an account, pod, secret or node that tokens are validated against. They are read without decoding the
/// object, since token authentication precedes all limits on the user.
pub(super) struct Bound {
    deleted: Option<Timestamp>,
    pub uid: String,
    /// Of secrets, in base64.
    pub token: String,
    /// Of pods.
    pub node: String,
    pub account: String,
}

impl Bound {
    /// Reads the fields of an entry. Also returns their size in bytes.
    fn read(entry: &Entry) -> (Self, usize) {
        let texts = encode::fields(&entry.value, &*BOUND);
        let bytes = texts.iter().map(String::len).sum();
        let mut texts = texts.into_iter();
        let mut next = || texts.next().unwrap_or_default();
        let deleted = next().parse().ok();
        (Self { deleted, uid: next(), token: next(), node: next(), account: next() }, bytes)
    }
}

/// Looks up objects that tokens name. Caches their fields.
pub(super) struct BoundObjects {
    registry: OnceLock<Weak<Registry>>,
    views: Views<Bound>,
    clock: Arc<dyn Clock>,
}

impl BoundObjects {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { registry: OnceLock::new(), views: Views::new(IDENTITIES, IDENTITY), clock }
    }

    /// Sets the registry that has the objects. No object is found before.
    pub(super) fn attach(&self, registry: &Arc<Registry>) {
        let _ = self.registry.set(Arc::downgrade(registry));
    }

    /// Returns the registry, if it is attached.
    pub(super) fn registry(&self) -> Option<Arc<Registry>> {
        self.registry.get().and_then(Weak::upgrade)
    }

    /// Returns an object of the core group with its fields.
    pub(super) fn stored(
        &self,
        registry: &Registry,
        resource: &str,
        namespace: &str,
        name: &str,
    ) -> Option<(Arc<Entry>, Arc<Bound>)> {
        let key = registry.rows().stored("", resource)?.key(namespace, name)?;
        let entry = registry.store.snapshot().get(&key)?;
        let bound = self.views.get(&entry, Bound::read);
        Some((entry, bound))
    }

    /// Like [`Self::stored`], except for objects whose deletion began too long ago.
    pub(super) fn lookup(&self, resource: &str, namespace: &str, name: &str) -> Option<(Arc<Entry>, Arc<Bound>)> {
        let found = self.stored(&*self.registry()?, resource, namespace, name)?;
        let now = self.clock.now().as_second();
        found.1.deleted.is_none_or(|t| t.as_second() + LEEWAY > now).then_some(found)
    }

    /// Errors if the account was deleted, or replaced by one of the same name.
    pub(super) fn check_account(&self, namespace: &str, name: &str, uid: &str) -> Result<(), String> {
        match self.lookup("serviceaccounts", namespace, name) {
            None => Err(format!("service account {namespace}/{name} has been deleted")),
            Some((_, o)) if o.uid != uid => {
                Err(format!("service account UID ({}) does not match claim ({uid})", o.uid))
            }
            Some(_) => Ok(()),
        }
    }
}

/// Returns the user of a service account, with its groups.
pub(super) fn account_user(namespace: &str, name: &str, uid: &str) -> User {
    let groups = [GROUP_SERVICE_ACCOUNTS, &format!("{GROUP_SERVICE_ACCOUNTS}:{namespace}")];
    let mut user = User::new(format!("system:serviceaccount:{namespace}:{name}"), &groups);
    user.uid = uid.to_owned();
    user
}
