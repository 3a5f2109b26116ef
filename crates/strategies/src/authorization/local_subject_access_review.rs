//! LocalSubjectAccessReview: whether a user has access in a namespace.

use super::access_review::{AccessReview, Subject};
use crate::Config;
use crate::plain::Plain;
use crate::table::Row;

pub fn row(config: &Config) -> Row {
    Row::computed(Plain, AccessReview { authorizer: config.authorizer.clone(), subject: Subject::Local })
}
