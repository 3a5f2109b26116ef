//! The RBAC rules as they stand, kept up by watching the four kinds they are written in.

use crate::admit::{Decoded, Stored};
use admission::Lookup;
use auth::rbac::{Binding, Rbac};
use auth::{Attributes, Authorizer, Decision};
use parking_lot::RwLock;
use registry::Registry;
use std::sync::Arc;
use store::{Scope, WatchError};

const GROUP: &str = "rbac.authorization.k8s.io";
const KINDS: [&str; 4] = ["clusterroles", "clusterrolebindings", "roles", "rolebindings"];

/// An authorizer over the stored roles and bindings.
pub struct RbacCache {
    rules: RwLock<Arc<Rbac>>,
}

impl RbacCache {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { rules: RwLock::new(Arc::new(Rbac::default())) })
    }

    /// Reads everything anew.
    pub fn load(&self, registry: &Registry) {
        let decoded = Decoded::default();
        let stored = Stored { registry, decoded: &decoded };
        let mut rbac = Rbac::default();
        for o in stored.list(GROUP, "clusterroles", None).iter().chain(&stored.list(GROUP, "roles", None)) {
            rbac.add_role(o);
        }
        let bindings = [stored.list(GROUP, "clusterrolebindings", None), stored.list(GROUP, "rolebindings", None)];
        for o in bindings.iter().flatten() {
            rbac.add_binding(Binding::of(o));
        }
        *self.rules.write() = Arc::new(rbac);
    }

    /// Whether the rules of a cluster role allow a request, whoever the role is bound to.
    pub fn role_allows(&self, role: &str, a: &Attributes) -> bool {
        self.rules.read().clone().role_allows(role, a)
    }

    /// Keeps the rules up until the store closes. Load before, so that nothing is refused in between.
    pub async fn run(self: Arc<Self>, registry: Arc<Registry>) {
        loop {
            let after = registry.store.revision();
            self.load(&registry);
            let watches: Result<Vec<_>, WatchError> =
                KINDS.iter().map(|k| registry.store.watch(Scope::resource(&format!("{GROUP}/{k}")), after)).collect();
            let Ok(mut w) = watches else { return };
            let [a, b, c, d] = &mut w[..] else { return };
            let changed = tokio::select! {
                biased;
                r = a.next() => r,
                r = b.next() => r,
                r = c.next() => r,
                r = d.next() => r,
            };
            if matches!(changed, Err(WatchError::Closed | WatchError::Fatal(_))) {
                return;
            }
        }
    }
}

impl Authorizer for RbacCache {
    fn authorize(&self, a: &Attributes) -> Decision {
        let rules = self.rules.read().clone();
        rules.authorize(a)
    }

    fn rules(&self, user: &auth::User, namespace: &str) -> Vec<auth::rbac::PolicyRule> {
        self.rules.read().clone().rules(user, namespace)
    }
}
