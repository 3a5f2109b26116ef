//! Authenticators and authorizers from configuration files that are reloaded at runtime.

use crate::attributes::Attributes;
use crate::rbac::PolicyRule;
use crate::{Authenticated, Authorizer, Decision, TokenAuthenticator, User};
use async_trait::async_trait;
use parking_lot::RwLock;
use std::sync::Arc;

/// Authenticators, tried in order until one recognises the token.
#[derive(Default)]
pub struct Issuers(RwLock<Arc<Vec<Arc<dyn TokenAuthenticator>>>>);

impl Issuers {
    /// Replaces all authenticators.
    pub fn replace(&self, all: Vec<Arc<dyn TokenAuthenticator>>) {
        *self.0.write() = Arc::new(all);
    }
}

#[async_trait]
impl TokenAuthenticator for Issuers {
    async fn authenticate(&self, token: &str, audiences: &[String]) -> Result<Option<Authenticated>, String> {
        let all = self.0.read().clone();
        let mut wrong = Vec::new();
        for authenticator in all.iter() {
            match authenticator.authenticate(token, audiences).await {
                Ok(None) => {}
                Ok(known) => return Ok(known),
                Err(why) => wrong.push(why),
            }
        }
        if wrong.is_empty() { Ok(None) } else { Err(wrong.join(", ")) }
    }
}

/// The current authorizer.
pub struct Deciding(RwLock<Arc<dyn Authorizer>>);

impl Deciding {
    /// Starts with this authorizer.
    pub fn new(now: Arc<dyn Authorizer>) -> Self {
        Self(RwLock::new(now))
    }

    /// Replaces the authorizer.
    pub fn replace(&self, by: Arc<dyn Authorizer>) {
        *self.0.write() = by;
    }

    fn now(&self) -> Arc<dyn Authorizer> {
        self.0.read().clone()
    }
}

#[async_trait]
impl Authorizer for Deciding {
    fn authorize(&self, a: &Attributes) -> Decision {
        self.now().authorize(a)
    }

    async fn decide(&self, a: &Attributes) -> Decision {
        self.now().decide(a).await
    }

    fn rules(&self, user: &User, namespace: &str) -> Vec<PolicyRule> {
        self.now().rules(user, namespace)
    }

    fn unlisted(&self, user: &User) -> Vec<&'static str> {
        self.now().unlisted(user)
    }
}
