//! Bearer tokens: who can tell whose they are, one after the other.

use crate::User;
use async_trait::async_trait;
use std::sync::Arc;

/// Whose a token is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authenticated {
    pub user: User,
    /// Those of the audiences asked for that the token is meant for.
    pub audiences: Vec<String>,
}

#[async_trait]
pub trait TokenAuthenticator: Send + Sync {
    /// The user of a token that is meant for one of these audiences; none when it is not of this kind, an error when it is and is
    /// no good.
    async fn authenticate(&self, token: &str, audiences: &[String]) -> Result<Option<Authenticated>, String>;
}

/// Several authenticators, asked in order. That one takes offence at a token does not keep the others from knowing it.
#[derive(Default)]
pub struct Tokens {
    pub all: Vec<Arc<dyn TokenAuthenticator>>,
    /// Who this server is: whoever asks without saying for whom asks for it.
    pub audiences: Vec<String>,
}

impl Tokens {
    /// Adds what every authenticated user has.
    pub async fn authenticate(&self, token: &str, audiences: &[String]) -> Result<Option<Authenticated>, String> {
        let wanted = if audiences.is_empty() { &self.audiences } else { audiences };
        let mut problems = Vec::new();
        for a in &self.all {
            match a.authenticate(token, wanted).await {
                Ok(Some(mut found)) => {
                    if !found.user.is_in(crate::user::GROUP_AUTHENTICATED) {
                        found.user.groups.push(crate::user::GROUP_AUTHENTICATED.into());
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

/// A token that says nothing of audiences is meant for this server alone.
pub fn meant_for(own: &[String], asked: &[String]) -> Vec<String> {
    asked.iter().filter(|a| own.contains(a)).cloned().collect()
}
