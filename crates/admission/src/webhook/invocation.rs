//! The call of a webhook.

use super::hook::Hook;
use auth::Callers;
use meta::{Gvk, Gvr};

/// A webhook to call, with the resource and kind to send.
pub(super) struct Invocation<'a> {
    pub hook: &'a Hook,
    pub callers: &'a Callers,
    pub resource: Gvr,
    pub kind: Gvk,
}
