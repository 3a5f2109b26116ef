//! ValidatingWebhookConfiguration: webhooks.

use super::webhooks;
use crate::Config;
use crate::plain::Ruled;
use crate::table::Row;

pub fn row(_: &Config) -> Row {
    Row::stored(Ruled::new(webhooks::validate).with_warnings(super::warnings))
}
