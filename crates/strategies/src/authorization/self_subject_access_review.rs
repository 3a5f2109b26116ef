//! SelfSubjectAccessReview: whether the caller may do something.

use super::access_review::{AccessReview, Whose};
use crate::Config;
use crate::plain::Plain;
use crate::table::Row;

pub fn row(config: &Config) -> Row {
    Row::computed(Plain, AccessReview { authorizer: config.authorizer.clone(), whose: Whose::Own })
}
