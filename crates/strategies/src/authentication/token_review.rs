//! TokenReview: authenticates a token.

use super::info;
use crate::Config;
use crate::plain::Plain;
use crate::table::Row;
use async_trait::async_trait;
use auth::Tokens;
use meta::{Object, Status};
use registry::{Env, Function, Request, WriteOptions};
use serde_json::json;
use std::sync::Arc;

pub fn row(config: &Config) -> Row {
    Row::computed(Plain, TokenReview(config.tokens.clone()))
}

pub struct TokenReview(pub Arc<Tokens>);

#[async_trait]
impl Function for TokenReview {
    async fn create(
        &self,
        _env: Env<'_>,
        _request: &Request,
        mut o: Object,
        _: &WriteOptions,
    ) -> Result<Object, Status> {
        let token = o.str_at(&["spec", "token"]).unwrap_or_default().to_owned();
        if token.is_empty() {
            return Err(Status::bad_request("token is required for TokenReview in authentication"));
        }
        let audiences = o.at(&["spec", "audiences"]).map(auth::jwt::strings).unwrap_or_default();
        let status = match self.0.authenticate(&token, &audiences).await {
            Ok(Some(found)) => {
                json!({"authenticated": true, "user": info(&found.user), "audiences": found.audiences})
            }
            Ok(None) => json!({"user": {}, "error": "invalid bearer token"}),
            Err(why) => json!({"user": {}, "error": why}),
        };
        o.set(&["status"], status);
        Ok(o)
    }
}
