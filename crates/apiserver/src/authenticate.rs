//! Who sends a request.

use async_trait::async_trait;
use auth::User;
use http::header::AUTHORIZATION;
use http::request::Parts;
use meta::Status;
use std::sync::Arc;

/// The identity of a request of this process, or of a verified client certificate. A request extension: nothing that comes over
/// a socket sets extensions.
#[derive(Clone, Debug)]
pub struct Identity(pub User);

#[async_trait]
pub trait TokenAuthenticator: Send + Sync {
    /// The user of a token; none when it is not of this kind, an error when it is and is no good.
    async fn authenticate(&self, token: &str) -> Result<Option<User>, String>;
}

#[derive(Default)]
pub struct Authenticators {
    /// Asked in order.
    pub tokens: Vec<Arc<dyn TokenAuthenticator>>,
}

impl Authenticators {
    pub(crate) async fn authenticate(&self, parts: &Parts) -> Result<User, Status> {
        if let Some(token) = bearer(parts) {
            for t in &self.tokens {
                match t.authenticate(token).await {
                    Ok(Some(mut user)) => {
                        if !user.is_in(auth::user::GROUP_AUTHENTICATED) {
                            user.groups.push(auth::user::GROUP_AUTHENTICATED.into());
                        }
                        return Ok(user);
                    }
                    Ok(None) => {}
                    Err(why) => {
                        tracing::debug!("a token was refused: {why}");
                        return Err(Status::unauthorized());
                    }
                }
            }
            return Err(Status::unauthorized());
        }
        if let Some(Identity(user)) = parts.extensions.get::<Identity>() {
            return Ok(user.clone());
        }
        // Anonymous requests may ask how the server is, and nothing else.
        let path = parts.uri.path();
        let open = ["/healthz", "/livez", "/readyz", "/version"];
        let health = open.iter().any(|p| path == *p || path.strip_prefix(p).is_some_and(|r| r.starts_with('/')));
        if health { Ok(User::anonymous()) } else { Err(Status::unauthorized()) }
    }
}

fn bearer(parts: &Parts) -> Option<&str> {
    if let Some(v) = parts.headers.get(AUTHORIZATION).and_then(|v| v.to_str().ok()) {
        let (scheme, token) = v.split_once(' ')?;
        return scheme.eq_ignore_ascii_case("bearer").then(|| token.trim());
    }
    None
}
