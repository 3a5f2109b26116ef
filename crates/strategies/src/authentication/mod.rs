//! `authentication.k8s.io`: reviews of tokens and identities, and service account tokens.

mod bound_objects;
mod legacy;
mod self_subject_review;
pub mod service_account;
pub mod token_request;
mod token_review;

use auth::User;
use meta::Value;
use serde_json::json;

kinds! { self_subject_review, token_review }

fn info(user: &User) -> Value {
    let mut v = json!({"username": user.name, "groups": user.groups});
    if !user.uid.is_empty() {
        v["uid"] = user.uid.clone().into();
    }
    if !user.extra.is_empty() {
        v["extra"] = json!(user.extra);
    }
    v
}
