//! Bootstrap tokens (`k8s.io/kubernetes/plugin/pkg/auth/authenticator/token/bootstrap`): each is a secret of the type
//! `bootstrap.kubernetes.io/token` in `kube-system`, with its usages and expiry.

use crate::server_kinds::SECRETS;
use async_trait::async_trait;
use auth::{Authenticated, TokenAuthenticator, User};
use meta::Clock;
use registry::Registry;
use std::sync::{Arc, LazyLock, OnceLock, Weak};
use store::Key;
use stored::encode;

const TYPE: &str = "bootstrap.kubernetes.io/token";
const GROUP: &str = "system:bootstrappers";

/// The fields read from a secret.
static FIELDS: LazyLock<[String; 7]> = LazyLock::new(|| {
    let fields = ["auth-extra-groups", "expiration", "token-id", "token-secret", "usage-bootstrap-authentication"];
    let [groups, expiration, id, secret, usage] = fields.map(|f| format!("data.{f}"));
    [groups, expiration, id, secret, usage, "metadata.deletionTimestamp".into(), "type".into()]
});

pub struct BootstrapTokens {
    clock: Arc<dyn Clock>,
    registry: OnceLock<Weak<Registry>>,
    /// The audiences of the API server.
    audiences: Vec<String>,
}

impl BootstrapTokens {
    pub fn new(clock: Arc<dyn Clock>, audiences: Vec<String>) -> Arc<Self> {
        Arc::new(Self { clock, registry: OnceLock::new(), audiences })
    }

    /// Until set, no token is known.
    pub fn attach(&self, registry: &Arc<Registry>) {
        let _ = self.registry.set(Arc::downgrade(registry));
    }

    fn user(&self, id: &str, secret: &str) -> Option<User> {
        let registry = self.registry.get()?.upgrade()?;
        let key = Key::new(SECRETS, "kube-system", &format!("bootstrap-token-{id}"));
        let entry = registry.store.snapshot().get(&key)?;
        // Unauthenticated clients reach this: decodes only these fields, however large the secret is.
        let fields = encode::fields(&entry.value, &*FIELDS);
        let text = |name: &str| FIELDS.iter().zip(&fields).find(|(f, _)| **f == name).map_or("", |(_, text)| &**text);
        let data = |name: &str| {
            let bytes = schema::base64_decode(text(&format!("data.{name}"))).unwrap_or_default();
            String::from_utf8(bytes).unwrap_or_default()
        };
        let deleted = !text("metadata.deletionTimestamp").is_empty();
        if deleted || text("type") != TYPE || data("token-id") != id {
            return None;
        }
        let held = data("token-secret");
        // Constant time, to reveal nothing about the secret.
        let same = held.len() == secret.len() && held.bytes().zip(secret.bytes()).fold(0, |d, (a, b)| d | (a ^ b)) == 0;
        let ended = match &*data("expiration") {
            "" => false,
            t => meta::time::parse(t).is_none_or(|t| t < self.clock.now()),
        };
        if !same || ended || data("usage-bootstrap-authentication") != "true" {
            return None;
        }
        let more = data("auth-extra-groups");
        let more: Vec<&str> = more.split(',').filter(|g| !g.is_empty()).collect();
        if !more.iter().all(|g| is_group(g)) {
            return None;
        }
        Some(User::new(format!("system:bootstrap:{id}"), &[&[GROUP], &more[..]].concat()))
    }
}

fn is_group(g: &str) -> bool {
    let plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    g.strip_prefix("system:bootstrappers:").is_some_and(|rest| {
        (1..=256).contains(&rest.len())
            && rest.bytes().all(|c| plain(c) || matches!(c, b':' | b'-'))
            && rest.bytes().last().is_some_and(plain)
    })
}

#[async_trait]
impl TokenAuthenticator for BootstrapTokens {
    async fn authenticate(&self, token: &str, audiences: &[String]) -> Result<Option<Authenticated>, String> {
        let is = |t: &str, n: usize| t.len() == n && t.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        let parts = token.split_once('.').filter(|(id, secret)| is(id, 6) && is(secret, 16));
        let audiences = auth::token::meant_for(&self.audiences, audiences);
        let user = parts.filter(|_| !audiences.is_empty()).and_then(|(id, secret)| self.user(id, secret));
        Ok(user.map(|user| Authenticated { user, audiences }))
    }
}
