//! Caches RBAC rules by watching the four RBAC kinds.

use super::{PolicyRule, Rbac};
use crate::{Attributes, Authorizer, Decision, User};
use futures::stream::{self, StreamExt};
use parking_lot::RwLock;
use std::sync::Arc;
use store::{Change, Entry, Event, Key, Scope, Store, Watch, WatchError};
use stored::encode;

const KINDS: [&str; 4] = ["clusterroles", "clusterrolebindings", "roles", "rolebindings"];

fn resource(kind: &str) -> String {
    format!("rbac.authorization.k8s.io/{kind}")
}

/// Skips and logs a role or binding that cannot be decoded; it grants nothing.
fn put(rbac: &mut Rbac, kind: &str, entry: &Entry) {
    match encode::decode_or_log(entry) {
        Some(object) if is_role(kind) => rbac.put_role(&object),
        Some(object) => rbac.put_binding(&object),
        None => remove(rbac, kind, &entry.key),
    }
}

fn remove(rbac: &mut Rbac, kind: &str, key: &Key) {
    if is_role(kind) {
        rbac.remove_role(&key.namespace, &key.name);
    } else {
        rbac.remove_binding(&key.namespace, &key.name);
    }
}

/// An authorizer over the stored roles and bindings.
pub struct RbacCache {
    rules: RwLock<Arc<Rbac>>,
}

impl RbacCache {
    /// A cache without rules.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { rules: RwLock::new(Arc::new(Rbac::default())) })
    }

    /// Reloads everything. Returns the revision.
    pub fn load(&self, store: &Store) -> u64 {
        let snapshot = store.snapshot();
        let mut rbac = Rbac::default();
        for kind in KINDS {
            for entry in snapshot.range(&resource(kind), None, None) {
                put(&mut rbac, kind, entry);
            }
        }
        *self.rules.write() = Arc::new(rbac);
        snapshot.revision()
    }

    /// Processes only changed objects, so that a revoked permission takes effect immediately, however many roles
    /// exist.
    fn follow(&self, kind: &str, events: &[Arc<Event>]) {
        let mut rbac = Rbac::clone(&self.rules.read());
        for e in events {
            let key = &e.entry.key;
            match e.change {
                Change::Put => put(&mut rbac, kind, &e.entry),
                Change::Delete => remove(&mut rbac, kind, key),
            }
        }
        *self.rules.write() = Arc::new(rbac);
    }

    /// Whether the rules of a cluster role allow a request, whatever its bindings.
    pub fn role_allows(&self, role: &str, a: &Attributes) -> bool {
        self.rules.read().clone().role_allows(role, a)
    }

    /// Maintains the rules until the store closes. Load first, so that no request is denied in between.
    pub async fn run(self: Arc<Self>, store: Store) {
        loop {
            let after = self.load(&store);
            let watches: Result<Vec<_>, WatchError> =
                KINDS.iter().map(|k| store.watch(Scope::resource(&resource(k)), after)).collect();
            let why = match watches {
                Ok(watches) => self.follow_all(watches).await,
                Err(why) => why,
            };
            if matches!(why, WatchError::Closed | WatchError::Fatal(_)) {
                return;
            }
        }
    }

    /// Watches the four kinds in revision order, until one watch fails.
    async fn follow_all(&self, watches: Vec<Watch>) -> WatchError {
        let batches = watches.into_iter().zip(KINDS).map(|(watch, kind)| {
            let next = move |mut watch: Watch| async move { Some(((kind, watch.next().await), watch)) };
            stream::unfold(watch, next).boxed()
        });
        let mut batches = stream::select_all(batches);
        loop {
            match batches.next().await {
                Some((kind, Ok(batch))) => self.follow(kind, &batch.events),
                Some((_, Err(why))) => return why,
                None => return WatchError::Closed,
            }
        }
    }
}

fn is_role(kind: &str) -> bool {
    kind.ends_with("roles")
}

impl Authorizer for RbacCache {
    fn authorize(&self, a: &Attributes) -> Decision {
        let rules = self.rules.read().clone();
        rules.authorize(a)
    }

    fn rules(&self, user: &User, namespace: &str) -> Vec<PolicyRule> {
        self.rules.read().clone().rules(user, namespace)
    }
}
