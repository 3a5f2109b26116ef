//! SelfSubjectReview: the identity of the caller.

use super::info;
use crate::Config;
use crate::plain::Plain;
use crate::table::Row;
use async_trait::async_trait;
use meta::{Object, Status};
use registry::{Env, Function, Request, WriteOptions};
use serde_json::json;

pub fn row(_: &Config) -> Row {
    Row::computed(Plain, SelfSubjectReview)
}

pub struct SelfSubjectReview;

#[async_trait]
impl Function for SelfSubjectReview {
    async fn create(&self, env: Env<'_>, request: &Request, mut o: Object, _: &WriteOptions) -> Result<Object, Status> {
        // As upstream, the response repeats nothing of the request.
        o.set(&["metadata"], json!({"creationTimestamp": meta::time::format(env.clock().now())}));
        o.set(&["status", "userInfo"], info(&request.user));
        Ok(o)
    }
}
