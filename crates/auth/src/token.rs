//! Bearer tokens: calls token authenticators in order.

use crate::User;
use async_trait::async_trait;
use std::sync::Arc;

/// An authenticated token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authenticated {
    /// The user of the token.
    pub user: User,
    /// The requested audiences that the token is valid for.
    pub audiences: Vec<String>,
}

/// Authenticates bearer tokens.
#[async_trait]
pub trait TokenAuthenticator: Send + Sync {
    /// Authenticates a token for one of these audiences; none if it is not of this kind, an error if it is but
    /// invalid.
    async fn authenticate(&self, token: &str, audiences: &[String]) -> Result<Option<Authenticated>, String>;
}

/// Token authenticators, called in order. An error of one does not keep others from authenticating the token.
#[derive(Default)]
pub struct Tokens {
    /// The authenticators.
    pub all: Vec<Arc<dyn TokenAuthenticator>>,
    /// The audiences of the API server: the default if none are requested.
    pub audiences: Vec<String>,
}

impl Tokens {
    /// Adds the group of all authenticated users.
    pub async fn authenticate(&self, token: &str, audiences: &[String]) -> Result<Option<Authenticated>, String> {
        let audiences = if audiences.is_empty() { &self.audiences } else { audiences };
        let mut problems = Vec::new();
        for a in &self.all {
            match a.authenticate(token, audiences).await {
                Ok(Some(mut found)) => {
                    if !found.user.is_in(meta::user::GROUP_AUTHENTICATED) {
                        found.user.groups.push(meta::user::GROUP_AUTHENTICATED.into());
                    }
                    return Ok(Some(found));
                }
                Ok(None) => {}
                Err(why) => problems.push(why),
            }
        }
        if problems.is_empty() { Ok(None) } else { Err(format!("[invalid bearer token, {}]", problems.join(", "))) }
    }
}

/// A token without audiences is valid for the API server only.
pub fn meant_for(own: &[String], requested: &[String]) -> Vec<String> {
    requested.iter().filter(|a| own.contains(a)).cloned().collect()
}
