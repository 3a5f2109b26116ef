//! Tokens that new nodes begin with (`k8s.io/kubernetes/plugin/pkg/auth/authenticator/token/bootstrap`): each is a secret of the
//! type `bootstrap.kubernetes.io/token` in `kube-system`, and says what it is good for and how long.

use async_trait::async_trait;
use auth::{Authenticated, TokenAuthenticator, User};
use meta::{Clock, Object};
use registry::{Registry, encode};
use std::sync::{Arc, OnceLock, Weak};
use store::Key;

const TYPE: &str = "bootstrap.kubernetes.io/token";
const GROUP: &str = "system:bootstrappers";

pub struct BootstrapTokens {
    clock: Arc<dyn Clock>,
    registry: OnceLock<Weak<Registry>>,
    /// Who this server is.
    audiences: Vec<String>,
}

impl BootstrapTokens {
    pub fn new(clock: Arc<dyn Clock>, audiences: Vec<String>) -> Arc<Self> {
        Arc::new(Self { clock, registry: OnceLock::new(), audiences })
    }

    /// Until then no token is known.
    pub fn attach(&self, registry: &Arc<Registry>) {
        let _ = self.registry.set(Arc::downgrade(registry));
    }

    fn user(&self, id: &str, secret: &str) -> Option<User> {
        let registry = self.registry.get()?.upgrade()?;
        let key = Key::new("secrets", "kube-system", &format!("bootstrap-token-{id}"));
        let entry = registry.store.snapshot().get(&key)?;
        let o = encode::decode(&entry);
        if o.is_deleting() || o.str_at(&["type"]) != Some(TYPE) || text(&o, "token-id") != id {
            return None;
        }
        let held = text(&o, "token-secret");
        // In a time that does not tell how much of it is right.
        let same = held.len() == secret.len() && held.bytes().zip(secret.bytes()).fold(0, |d, (a, b)| d | (a ^ b)) == 0;
        let ended = match &*text(&o, "expiration") {
            "" => false,
            t => meta::time::parse(t).is_none_or(|t| t < self.clock.now()),
        };
        if !same || ended || text(&o, "usage-bootstrap-authentication") != "true" {
            return None;
        }
        let more = text(&o, "auth-extra-groups");
        let more: Vec<&str> = more.split(',').filter(|g| !g.is_empty()).collect();
        if !more.iter().all(|g| is_group(g)) {
            return None;
        }
        Some(User::new(format!("system:bootstrap:{id}"), &[&[GROUP], &more[..]].concat()))
    }
}

fn text(o: &Object, key: &str) -> String {
    let bytes = o.str_at(&["data", key]).and_then(schema::base64_decode).unwrap_or_default();
    String::from_utf8(bytes).unwrap_or_default()
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
