//! The administrator's token, which never changes and belongs to the owner of the data directory.

use async_trait::async_trait;
use auth::{Authenticated, TokenAuthenticator, User};

pub struct AdminToken {
    token: String,
    /// Audiences of this server.
    audiences: Vec<String>,
}

impl AdminToken {
    pub fn new(token: &str, audiences: Vec<String>) -> Self {
        Self { token: token.to_owned(), audiences }
    }
}

#[async_trait]
impl TokenAuthenticator for AdminToken {
    async fn authenticate(&self, token: &str, audiences: &[String]) -> Result<Option<Authenticated>, String> {
        let same = aws_lc_rs::constant_time::verify_slices_are_equal(token.as_bytes(), self.token.as_bytes()).is_ok();
        let audiences = auth::token::meant_for(&self.audiences, audiences);
        let user = User::new("kubernetes-admin", &[auth::user::GROUP_MASTERS]);
        Ok((same && !audiences.is_empty()).then_some(Authenticated { user, audiences }))
    }
}
